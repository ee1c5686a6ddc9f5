"""What a run's records say: pure functions on arrays and records, without rounding.

Requests that only warm the caches, or that did not finish, are left out of every figure but `completed`. A figure of
nothing is None in a summary and NaN elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from harness.types import N_TIERS, TRAFFIC_CLASSES, FlowTable, Int64Array, RequestRecord, RunResult

FloatArray = npt.NDArray[np.float64]

CONFIDENCE = 0.95
#: Enough for either end of a 95 % interval to move by about 1 % of its width between random streams.
BOOTSTRAP_RESAMPLES = 4000
BOOTSTRAP_SEED = 0

PS_PER_MS = 10**9


# --- One run ----------------------------------------------------------------------------------------------------------


def is_complete(request: RequestRecord) -> bool:
    return request.last_token_ps >= 0


def measured(requests: Sequence[RequestRecord]) -> list[RequestRecord]:
    """The requests that count: complete, and not among the first, which warm the caches."""
    return [request for request in requests if is_complete(request) and not request.warmup]


def ttft_ps(requests: Sequence[RequestRecord]) -> Int64Array:
    """Time to first token: from arrival to the end of the first decode iteration [ps]."""
    return np.array([request.first_token_ps - request.arrival_ps for request in requests], dtype=np.int64)


def tbt_ps(requests: Sequence[RequestRecord]) -> FloatArray:
    """Time between tokens: mean gap between a request's tokens from the first on [ps]; NaN if it has only one."""
    return np.array(
        [
            (request.last_token_ps - request.first_token_ps) / (request.output_tokens - 1)
            if request.output_tokens > 1
            else math.nan
            for request in requests
        ],
        dtype=np.float64,
    )


def transfer_ps(requests: Sequence[RequestRecord]) -> Int64Array:
    """From the start of the KV transfer to the acknowledgement of its last byte [ps]."""
    return np.array([request.transfer_end_ps - request.transfer_start_ps for request in requests], dtype=np.int64)


def slo_attainment(requests: Sequence[RequestRecord], *, ttft_bound_ps: int, tbt_bound_ps: int | None) -> float:
    """Share of requests whose TTFT and, if it has a bound and they have one, TBT are within the bounds."""
    if not requests:
        return math.nan
    attained = ttft_ps(requests) <= ttft_bound_ps
    if tbt_bound_ps is not None:
        attained &= ~(tbt_ps(requests) > tbt_bound_ps)
    return float(attained.mean())


def tier_shares(requests: Sequence[RequestRecord]) -> FloatArray:
    """Share of the requests that were placed in each tier [N_TIERS]."""
    if not requests:
        return np.full(N_TIERS, math.nan)
    return np.bincount([request.tier for request in requests], minlength=N_TIERS) / len(requests)


def prefix_hit_share(requests: Sequence[RequestRecord]) -> float:
    """Share of all prompt tokens that were resident on the chosen decode instance."""
    tokens = sum(request.input_tokens for request in requests)
    return sum(request.hit_tokens for request in requests) / tokens if tokens else math.nan


def goodput_bps(flows: FlowTable) -> float:
    """KV payload of all finished flows over the time from their first start to their last end [bit/s]."""
    finished = (flows.traffic_class == TRAFFIC_CLASSES.index("kv")) & (flows.end_ps >= 0)
    if not finished.any():
        return math.nan
    span_ps = int(flows.end_ps[finished].max() - flows.start_ps[finished].min())
    return int(flows.acked_bytes[finished].sum()) * 8 * 10**12 / span_ps


def summary(result: RunResult, *, ttft_bound_ps: int, tbt_bound_ps: int | None = None) -> dict[str, int | float | None]:
    """The figures of a row of summary.csv, by column; percentiles are interpolated linearly.

    Parameters
    ----------
    ttft_bound_ps, tbt_bound_ps : the service-level objective [ps]; no bound on TBT if None.
    """
    requests = measured(result.requests)
    ttft_ms, tbt_ms, transfer_ms = (f(requests) / PS_PER_MS for f in (ttft_ps, tbt_ps, transfer_ps))
    figures = {
        "ttft_mean_ms": _mean(ttft_ms),
        "ttft_p50_ms": _percentile(ttft_ms, 50),
        "ttft_p95_ms": _percentile(ttft_ms, 95),
        "ttft_p99_ms": _percentile(ttft_ms, 99),
        "tbt_mean_ms": _mean(tbt_ms[~np.isnan(tbt_ms)]),
        "slo_attainment": slo_attainment(requests, ttft_bound_ps=ttft_bound_ps, tbt_bound_ps=tbt_bound_ps),
        "transfer_mean_ms": _mean(transfer_ms),
        "transfer_p99_ms": _percentile(transfer_ms, 99),
        **{f"tier{tier}_share": float(share) for tier, share in enumerate(tier_shares(requests))},
        "prefix_hit_share": prefix_hit_share(requests),
        "goodput_gbps": goodput_bps(result.network.flows) / 1e9,
    }
    return {
        "completed": sum(map(is_complete, result.requests)),
        **{name: None if math.isnan(figure) else figure for name, figure in figures.items()},
    }


def jain_index(rates: npt.ArrayLike) -> float:
    """Fairness of an allocation: 1 if all rates are equal, 1/n if one has all.

    Raises
    ------
    ValueError : there is no rate above 0.

    References
    ----------
    Jain, Chiu, Hawe: A quantitative measure of fairness, DEC-TR-301, 1984.
    """
    values = np.asarray(rates, dtype=np.float64)
    if not values.any():
        raise ValueError("Jain's index needs a rate above 0")
    return float(values.sum() ** 2 / (values.size * (values**2).sum()))


# --- Several seeds ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Interval:
    """A mean with its 95 % confidence interval, and how that was found.

    `t` : Student's t over seeds. `bootstrap` : over the requests of one seed, which says nothing of how seeds differ.
    `low` and `high` are NaN where there is only one value.
    """

    mean: float
    low: float
    high: float
    method: Literal["t", "bootstrap"]


def t_interval(values: npt.ArrayLike) -> Interval:
    """Of a mean over seeds; given the differences of pairs, it is the paired interval."""
    array = np.asarray(values, dtype=np.float64)
    mean = _mean(array)
    if array.size < 2:
        return Interval(mean, math.nan, math.nan, "t")
    from scipy.special import stdtrit  # here, as it takes a fifth of a second to load, which a cell can do without

    half = float(stdtrit(array.size - 1, (1 + CONFIDENCE) / 2) * array.std(ddof=1) / math.sqrt(array.size))
    return Interval(mean, mean - half, mean + half, "t")


def mean_interval(by_seed: Mapping[int, npt.ArrayLike]) -> Interval:
    """Of the mean over seeds of each seed's mean over requests; of one seed, by bootstrap over its requests."""
    samples = [np.asarray(sample, dtype=np.float64) for sample in by_seed.values()]
    if len(samples) > 1:
        return t_interval([_mean(sample) for sample in samples])
    (sample,) = samples
    return _bootstrap(_mean(sample), sample[_resamples(sample.size)].mean(axis=1) if sample.size > 1 else None)


def percent_change(by_seed: Mapping[int, npt.ArrayLike], base_by_seed: Mapping[int, npt.ArrayLike]) -> Interval:
    """Of 100 (mean / mean of base - 1), paired: over seeds or, of one seed, by bootstrap over its requests.

    Parameters
    ----------
    by_seed, base_by_seed : per seed a value per request; equal seeds in both. Of one seed, equal requests in order.

    Raises
    ------
    ValueError : the seeds, or the numbers of requests of a single seed, differ.
    """
    if by_seed.keys() != base_by_seed.keys():
        raise ValueError(f"seeds {sorted(by_seed)} and {sorted(base_by_seed)} cannot be paired")
    pairs = [
        (np.asarray(by_seed[seed], dtype=np.float64), np.asarray(base_by_seed[seed], dtype=np.float64))
        for seed in by_seed
    ]
    changes = [100.0 * (_mean(ours) / _mean(base) - 1.0) for ours, base in pairs]
    if len(pairs) > 1:
        return t_interval(changes)
    ((ours, base),) = pairs
    if ours.size != base.size:
        raise ValueError(f"{ours.size} and {base.size} requests cannot be paired")
    if ours.size < 2:
        return _bootstrap(changes[0], None)
    chosen = _resamples(ours.size)
    return _bootstrap(changes[0], 100.0 * (ours[chosen].mean(axis=1) / base[chosen].mean(axis=1) - 1.0))


def _resamples(n: int) -> Int64Array:
    return np.random.default_rng(BOOTSTRAP_SEED).integers(0, n, (BOOTSTRAP_RESAMPLES, n))


def _bootstrap(estimate: float, resampled: FloatArray | None) -> Interval:
    """The percentile interval (Efron and Tibshirani, An Introduction to the Bootstrap, 1993, chapter 13)."""
    if resampled is None:
        return Interval(estimate, math.nan, math.nan, "bootstrap")
    low, high = np.percentile(resampled, [50 * (1 - CONFIDENCE), 50 * (1 + CONFIDENCE)])
    return Interval(estimate, float(low), float(high), "bootstrap")


def _mean(values: npt.NDArray[np.floating | np.integer]) -> float:
    return float(values.mean()) if values.size else math.nan


def _percentile(values: FloatArray, percent: float) -> float:
    return float(np.percentile(values, percent)) if values.size else math.nan
