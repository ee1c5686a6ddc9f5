"""Placements replayed: how transfers compete, the distributions, and the whole experiment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

from calibration import replay
from calibration.experiment import Options
from harness.errors import InputError

Tiny = Callable[..., Options]


def test_mean_overlap() -> None:
    start, end = np.array([0, 5, 20, 30]), np.array([10, 15, 30, 30])
    everyone = np.ones((4, 4), dtype=bool)
    # The first two share 5 of their 10; the last takes no time.
    assert replay.mean_overlap(start, end, everyone).tolist() == [0.5, 0.5, 0, 0]
    assert replay.mean_overlap(start, end, np.eye(4, dtype=bool)).tolist() == [0, 0, 0, 0]


def test_the_table_says_what_each_class_adds() -> None:
    place = {"workload": "rag", "load": 100, "profile": "p", "model": "m"}
    transfers = pd.DataFrame(
        [
            {**place, "tier": 2, "bytes": 1e9, "fluid_ms": 80.0, "packet_ms": 100.0, "competing_link": 0.0},
            {**place, "tier": 2, "bytes": 2e9, "fluid_ms": 160.0, "packet_ms": 200.0, "competing_link": 2.0},
            {**place, "tier": 3, "bytes": 9e9, "fluid_ms": 900.0, "packet_ms": 900.0, "competing_link": 0.1},
            {**place, "tier": 3, "bytes": 1e8, "fluid_ms": 10.0, "packet_ms": 20.0, "competing_link": 1.5},
        ]
    )
    transfers["ratio"] = transfers["fluid_ms"] / transfers["packet_ms"]
    rows = replay.table(transfers)
    got = {(row["by"], row["class"]): (row["transfers"], row["ratio_p50"], row["adds_ms"]) for row in rows}
    # 20 + 40 + 0 + 10 ms over four transfers.
    assert got["all", "all"] == (4, pytest.approx(0.8), 17.5)
    assert got["tier", "tier 2"] == (2, pytest.approx(0.8), 15)
    assert got["tier", "tier 3"] == (2, 0.75, 2.5)
    assert [c for by, c in got if by == "size"] == ["below 0.5 GB", "0.5 to 2 GB", "2 to 5 GB", "5 GB or more"]
    assert [c for by, c in got if by == "competing"] == ["alone", "up to 1", "1 to 2", "2 or more"]
    assert sum(add for (by, _), (_, _, add) in got.items() if by == "tier and competing") == pytest.approx(17.5)
    assert "+10 ms, comes from tier 2, 2 or more (1 of 4 transfers" in replay.verdict(rows)


def test_replay_end_to_end(tiny: Tiny, rounds: Any) -> None:
    options = tiny("replay")
    report = replay.run_replay(rounds.runner(options))
    assert not report.failures
    assert rounds.pending[1] == 6  # the placements of three schedulers in two models
    transfers = pd.read_csv(options.out / "transfers.csv")
    assert transfers.groupby("model").size().to_dict() == {"fluid-paper": 9, "maxmin-goodput": 9}
    # Without background and with few transfers at a time, packets cost headers and DCQCN's start; nothing is faster.
    assert transfers["ratio"].between(0.4, 1).all()
    again = replay.run_replay(rounds.runner(options))
    assert rounds.pending[2:] == [0, 0]
    assert again.rows == report.rows


def test_a_replay_has_no_auto(tiny: Tiny, rounds: Any) -> None:
    with pytest.raises(InputError, match="--seeds: 'auto' given"):
        replay.run_replay(rounds.runner(tiny("replay", seeds=None)))
