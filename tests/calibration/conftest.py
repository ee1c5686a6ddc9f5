"""A store of cells for the tests of this directory, so that each packet cell runs once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from calibration import experiment
from calibration.experiment import Options, Runner
from harness.cells import Cell


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("calibrate") / "cells"


@pytest.fixture
def tiny(store: Path, tmp_path: Path) -> Callable[..., Options]:
    """Makes the options of an experiment with three requests and no background, all of them measured."""

    def make(name: str, **changes: Any) -> Options:
        options = experiment.settings(
            name,
            cells=store,
            out=tmp_path / name,
            jobs=2,
            seeds=1,
            requests=3,
            loads_pct=[100],
            profiles=["roce-default"],
            overrides=["background=none", "warmup_share=0"],
            allow_mixed_code=True,  # or whoever edits a source while the tests run meets a refusal
        )
        return replace(options, **changes)

    return make


class Rounds:
    """Notes what a runner is about to do."""

    def __init__(self) -> None:
        self.pending: list[int] = []  #: cells to be run, of every round

    def runner(self, options: Options) -> Runner:
        return Runner(options, lambda forecast: None, self._plan, lambda cell, event: None)

    def _plan(self, cells: Sequence[Cell], pending: Sequence[Cell]) -> None:
        self.pending.append(len(pending))


@pytest.fixture
def rounds() -> Rounds:
    return Rounds()
