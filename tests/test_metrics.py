"""Figures of hand-made records, against values worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from harness import metrics
from harness.types import FlowTable, NetworkResult, NetworkSample, NetworkTotals, RequestRecord, RunResult

MS = 10**9  # [ps]

REQUEST = RequestRecord(
    id=0,
    arrival_ps=0,
    prefill_start_ps=0,
    prefill_end_ps=100 * MS,
    decision_ps=100 * MS,
    transfer_start_ps=100 * MS,
    transfer_end_ps=140 * MS,
    decode_start_ps=140 * MS,
    first_token_ps=150 * MS,
    last_token_ps=190 * MS,
    input_tokens=1000,
    output_tokens=5,
    prefill_instance=0,
    decode_instance=1,
    tier=2,
    hit_tokens=0,
    kv_bytes=1000,
    transfer_bytes=1000,
    queue_at_decision=0,
    batch_at_decision=0,
    warmup=False,
)
#: TTFT 150, 250, 450 ms; TBT 10, 20 ms and none; transfer 40, 60, 110 ms.
REQUESTS = (
    replace(REQUEST, id=0, arrival_ps=-(10**12), warmup=True),
    REQUEST,
    replace(
        REQUEST, id=2, arrival_ps=50 * MS, transfer_end_ps=160 * MS, first_token_ps=300 * MS, last_token_ps=380 * MS
    ),
    replace(
        REQUEST,
        id=3,
        transfer_end_ps=210 * MS,
        first_token_ps=450 * MS,
        last_token_ps=450 * MS,
        output_tokens=1,
        tier=3,
        input_tokens=3000,
        hit_tokens=500,
    ),
    replace(REQUEST, id=4, first_token_ps=-1, last_token_ps=-1),
)


def flow_table(*rows: tuple[int, int, int, int]) -> FlowTable:
    """Rows of (class, acknowledged bytes, start, end)."""
    classes, acked, start, end = (np.array(column, dtype=np.int64) for column in zip(*rows, strict=True))
    none = np.zeros(len(rows), dtype=np.int64)
    return FlowTable(none, classes.astype(np.int8), none, none, acked, acked, start, end, none, none, none, none)


def run_result(requests: tuple[RequestRecord, ...], flows: FlowTable) -> RunResult:
    none = np.zeros(0, dtype=np.int64)
    network = NetworkResult(flows, NetworkTotals(), NetworkSample(0, none.reshape(0, 3), none, none, none))
    return RunResult("packet", "rr", 1, requests, network, {}, "complete")


FLOWS = flow_table((1, 10**9, 10 * MS, 90 * MS), (1, 10**9, 50 * MS, 170 * MS), (2, 10**12, 0, 10**12), (1, 5, 0, -1))


def test_measured_leaves_out_warmup_and_unfinished() -> None:
    assert [request.id for request in metrics.measured(REQUESTS)] == [0, 2, 3]
    assert metrics.measured(REQUESTS)[0] is REQUEST


def test_times() -> None:
    requests = metrics.measured(REQUESTS)
    assert metrics.ttft_ps(requests).tolist() == [150 * MS, 250 * MS, 450 * MS]
    assert metrics.transfer_ps(requests).tolist() == [40 * MS, 60 * MS, 110 * MS]
    tbt_ps = metrics.tbt_ps(requests)
    assert tbt_ps[:2].tolist() == [10 * MS, 20 * MS]
    assert math.isnan(tbt_ps[2])


@pytest.mark.parametrize(
    ("ttft_ms", "tbt_ms", "share"),
    [
        (1000, None, 1.0),
        (450, None, 1.0),
        (449, None, 2 / 3),
        (1000, 20, 1.0),
        (1000, 19, 2 / 3),
        (200, 5, 0.0),
        (300, 10, 1 / 3),
    ],
)
def test_slo_attainment(ttft_ms: int, tbt_ms: int | None, share: float) -> None:
    bounds = {"ttft_bound_ps": ttft_ms * MS, "tbt_bound_ps": None if tbt_ms is None else tbt_ms * MS}
    assert metrics.slo_attainment(metrics.measured(REQUESTS), **bounds) == share


def test_summary() -> None:
    found = metrics.summary(run_result(REQUESTS, FLOWS), ttft_bound_ps=300 * MS, tbt_bound_ps=15 * MS)
    assert found == {
        "completed": 4,
        "ttft_mean_ms": pytest.approx(850 / 3),
        "ttft_p50_ms": 250.0,
        "ttft_p95_ms": pytest.approx(430.0),  # 0.9 of the way from 250 to 450
        "ttft_p99_ms": pytest.approx(446.0),
        "tbt_mean_ms": 15.0,
        "slo_attainment": 1 / 3,
        "transfer_mean_ms": 70.0,
        "transfer_p99_ms": pytest.approx(109.0),
        "tier0_share": 0.0,
        "tier1_share": 0.0,
        "tier2_share": 2 / 3,
        "tier3_share": 1 / 3,
        "prefix_hit_share": 0.1,  # 500 of 5000 tokens
        "goodput_gbps": 100.0,  # 16e9 bits in 160 ms
    }


def test_summary_of_nothing() -> None:
    found = metrics.summary(run_result(REQUESTS[4:], flow_table((1, 0, 0, -1))), ttft_bound_ps=1)
    assert found.pop("completed") == 0
    assert len(found) == 14
    assert set(found.values()) == {None}


def test_jain_index() -> None:
    assert metrics.jain_index([5, 5, 5, 5]) == 1.0
    assert metrics.jain_index([7, 0, 0, 0]) == 0.25
    assert metrics.jain_index([1, 3]) == 0.8  # 16 / (2 * 10)
    with pytest.raises(ValueError, match="needs a rate above 0"):
        metrics.jain_index([])


def test_t_interval() -> None:
    # Mean 2, standard deviation 1, t(0.975, 2) = 4.30265: half width 4.30265 / sqrt(3) = 2.48414.
    found = metrics.t_interval([1.0, 2.0, 3.0])
    assert (found.mean, found.method) == (2.0, "t")
    assert [found.low, found.high] == pytest.approx([2 - 2.48414, 2 + 2.48414], abs=1e-5)
    alone = metrics.t_interval([5.0])
    assert alone.mean == 5.0
    assert math.isnan(alone.low)
    assert math.isnan(alone.high)


def test_mean_interval_over_seeds_takes_each_seeds_mean() -> None:
    found = metrics.mean_interval({1: [0, 2], 2: [2], 3: [2, 3, 4]})
    assert found == metrics.t_interval([1.0, 2.0, 3.0])


def test_mean_interval_of_one_seed_is_a_bootstrap_over_requests() -> None:
    values = np.arange(400.0)
    found = metrics.mean_interval({7: values})
    assert (found.mean, found.method) == (199.5, "bootstrap")
    # Normal theory: 1.96 x 115.47 / 20 = 11.3; within 10 % of it, four times the noise of 4000 resamples.
    assert found.mean - found.low == pytest.approx(11.3, rel=0.1)
    assert found.high - found.mean == pytest.approx(11.3, rel=0.1)
    assert found == metrics.mean_interval({7: values})
    assert math.isnan(metrics.mean_interval({7: [1.0]}).low)


def test_percent_change_is_paired_over_seeds() -> None:
    # Every seed gains 10 %, though seeds differ tenfold: the interval has no width.
    found = metrics.percent_change({1: [90.0], 2: [900.0, 900.0]}, {1: [100.0], 2: [1000.0, 1000.0]})
    assert [found.mean, found.low, found.high] == pytest.approx([-10.0] * 3)
    assert found.method == "t"
    # Changes of -10 and -30 %: t(0.975, 1) = 12.7062, half width 12.7062 x 14.1421 / sqrt(2) = 127.062.
    found = metrics.percent_change({1: [90.0], 2: [70.0]}, {1: [100.0], 2: [100.0]})
    assert [found.mean, found.low, found.high] == pytest.approx([-20.0, -147.062, 107.062], abs=1e-3)


def test_percent_change_of_one_seed_resamples_pairs() -> None:
    base = np.linspace(1.0, 1000.0, 50)
    found = metrics.percent_change({1: base * 1.25}, {1: base})
    assert [found.mean, found.low, found.high] == pytest.approx([25.0] * 3)
    assert found.method == "bootstrap"
    noisy = metrics.percent_change({1: base[::-1]}, {1: base})
    assert noisy.low < noisy.mean < noisy.high


def test_percent_change_refuses_what_has_no_pair() -> None:
    with pytest.raises(ValueError, match=r"seeds \[1\] and \[2\] cannot be paired"):
        metrics.percent_change({1: [1.0]}, {2: [1.0]})
    with pytest.raises(ValueError, match="1 and 2 requests cannot be paired"):
        metrics.percent_change({1: [1.0]}, {1: [1.0, 2.0]})
