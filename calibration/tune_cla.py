"""Finds the weights of `cla-tuned`: a grid over w_cache and w_load on seeds that no report uses.

The pair of least mean TTFT is committed as `harness.schedulers.cache_load.TUNED_WEIGHTS`. Only the ratio of the weights
decides, so pairs of a ratio already in the grid are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from joblib import Parallel, delayed

from harness import components
from harness.config import Scenario
from harness.errors import InputError
from harness.metrics import measured, ttft_ps
from harness.run import run_cell

#: Reports number their seeds from 1; the tuner's begin where no report's get to.
TUNING_SEEDS = tuple(range(900_001, 900_011))

W_CACHE = (0.0, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 10.0)
W_LOAD = (0.0, 1.0)


@dataclass(frozen=True, order=True)
class Trial:
    """A pair of weights and the mean TTFT under them [ms], over seeds of equal weight."""

    ttft_mean_ms: float
    w_cache: float
    w_load: float


def grid(w_cache: Sequence[float], w_load: Sequence[float]) -> list[tuple[float, float]]:
    """All pairs but (0, 0) and those whose ratio an earlier pair has."""
    pairs: dict[float, tuple[float, float]] = {}
    for cache in w_cache:
        for load in w_load:
            if cache or load:
                pairs.setdefault(cache / (cache + load), (cache, load))
    return list(pairs.values())


def tune(
    scenario: Scenario,
    *,
    w_cache: Sequence[float] = W_CACHE,
    w_load: Sequence[float] = W_LOAD,
    seeds: Sequence[int] = TUNING_SEEDS,
    ties: str = "random",
    jobs: int = 1,
) -> list[Trial]:
    """Run the `cla` scheduler on the scenario's fluid model with every pair of weights and every seed.

    Parameters
    ----------
    ties : how the scheduler breaks ties.
    jobs : processes.

    Returns
    -------
    The trials, best first; of equals the one with the lower w_cache.

    Raises
    ------
    InputError : a seed is one of the scenario's own.
    """
    shared = sorted(set(seeds) & set(scenario.seeds))
    if shared:
        raise InputError(f"tuning would use the seeds {shared} of the scenario's own report", key="seeds")
    pairs = grid(w_cache, w_load)
    cells = [({"use": "cla", "w_cache": c, "w_load": w, "ties": ties}, seed) for c, w in pairs for seed in seeds]
    means = Parallel(n_jobs=jobs)(delayed(_ttft_mean_ms)(scenario, scheduler, seed) for scheduler, seed in cells)
    by_pair = np.array(means).reshape(len(pairs), len(seeds)).mean(axis=1)
    return sorted(Trial(float(ms), *pair) for ms, pair in zip(by_pair, pairs, strict=True))


def _ttft_mean_ms(scenario: Scenario, scheduler: dict[str, Any], seed: int) -> float:
    result = run_cell(scenario, "fluid", components.check("scheduler", scheduler), seed)
    return float(ttft_ps(measured(result.requests)).mean()) / 1e9
