from __future__ import annotations

import pytest

from calibration.tune_cla import TUNING_SEEDS, grid, tune
from harness.config import Scenario, load_scenario
from harness.errors import InputError


def small() -> Scenario:
    return load_scenario("rag", overrides=["requests=12", "background.use=none"])


def test_grid_leaves_out_equal_ratios() -> None:
    assert grid((0.0, 1.0, 2.0), (0.0, 1.0, 2.0)) == [(0.0, 1.0), (1.0, 0.0), (1.0, 1.0), (1.0, 2.0), (2.0, 1.0)]


def test_tune_orders_the_trials() -> None:
    trials = tune(small(), w_cache=(0.0, 1.0), w_load=(1.0,), seeds=TUNING_SEEDS[:2])
    assert sorted((t.w_cache, t.w_load) for t in trials) == [(0.0, 1.0), (1.0, 1.0)]
    assert trials[0].ttft_mean_ms <= trials[1].ttft_mean_ms
    # No TTFT is below the mean prefill of the shortest prompts, none near ten times the paper's.
    assert 100 < trials[0].ttft_mean_ms < 20_000


def test_the_seeds_of_the_report_are_refused() -> None:
    with pytest.raises(InputError, match=r"seeds: tuning would use the seeds \[2\] of the scenario's own report"):
        tune(small(), seeds=(2, 5))
