"""Placements of a recorded run, once more."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from harness import components, results
from harness.errors import InputError, RunFailure
from harness.interfaces import Scheduler
from harness.schedulers.replay import Replay
from harness.types import ClusterView, OracleSnapshot, Request

Views = Callable[..., ClusterView]


@pytest.fixture
def record(tmp_path: Path) -> str:
    """Two runs of two requests; the second of seed 2 was never placed."""
    path = tmp_path / "requests.parquet"
    columns: dict[str, list[Any]] = {
        "backend": ["packet"] * 4,
        "scheduler": ["rr"] * 4,
        "seed": [1, 1, 2, 2],
        "id": [0, 1, 0, 1],
        "decode_instance": [5, 4, 6, -1],
    }
    results.write_parquet(path, [pa.table(columns)])
    return str(path)


def request(number: int) -> Request:
    return Request(number, 0, 1000, 10, (0, 1))


def test_the_recorded_instances_are_chosen(record: str, view_of: Views, snapshot_of: Callable[..., Any]) -> None:
    scheduler: Scheduler = Replay(path=record, repetition=1)
    view, oracle = view_of({}, {}, {}), snapshot_of({})
    assert [scheduler.choose(request(i), view, oracle) for i in (0, 1, 0)] == [5, 4, 5]


def test_what_was_not_placed_or_does_not_fit_fails(
    record: str, view_of: Views, snapshot_of: Callable[..., OracleSnapshot]
) -> None:
    scheduler, oracle = Replay(path=record, repetition=2), snapshot_of({})
    for number in (1, 7):
        with pytest.raises(RunFailure, match=f"has no placement of request {number}"):
            scheduler.choose(request(number), view_of({}, {}, {}), oracle)
    with pytest.raises(RunFailure, match="placed on instance 6 in .* not feasible here; feasible: 4, 5"):
        scheduler.choose(request(0), view_of({}, {}), oracle)


def test_one_run_must_fit(record: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"holds 2 \(backend, scheduler, seed: packet rr 1; packet rr 2\)"):
        Replay(path=record)
    with pytest.raises(InputError, match="holds 0"):
        Replay(path=record, scheduler="cla")
    with pytest.raises(InputError, match="nothing.parquet: scheduler.path: cannot be read"):
        Replay(path=str(tmp_path / "nothing.parquet"))
    table = tmp_path / "table.parquet"
    results.write_parquet(table, [pa.table({"backend": ["packet"]})])
    with pytest.raises(InputError, match="has no column scheduler, seed, id, decode_instance"):
        Replay(path=str(table))


def test_the_runs_own_seed_chooses_nothing(record: str) -> None:
    spec = {"use": "replay", "path": record, "repetition": 2}
    assert isinstance(components.create("scheduler", spec, {"seed": 99}), Replay)
