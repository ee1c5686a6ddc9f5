"""The six checks of the notes on the paper, on the scheduler's own functions; and its choices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from harness.interfaces import Scheduler
from harness.schedulers.netkv import (
    NetKVFull,
    NetKVStatic,
    NetKVTopo,
    decode_time_ps,
    effective_bandwidth_bps,
    nearer_wins,
    queue_time_ps,
    staleness_tolerance,
    transfer_time_ps,
)
from harness.types import ClusterView, OracleSnapshot, Request

Views = Callable[..., ClusterView]
Snapshots = Callable[..., OracleSnapshot]

GBPS = 10**9
GB = 10**9
S = 10**12
MS = 10**9


def iteration_ps(batch: int) -> int:
    return (10 + batch) * MS


# Check 1, the KV bytes of a token, is in tests/serving/test_kv_cache.py: the formula is not the scheduler's.


def test_check_2_worked_example() -> None:
    """10 GB; hit 0.5 at 6.25 GB/s, c = 0.2, one in flight: 2 s. Hit 0.9 at 3.125 GB/s, c = 0.2, none: 0.4 s."""
    d1 = transfer_time_ps(5 * GB, effective_bandwidth_bps(50 * GBPS, 0.2, 1))
    d2 = transfer_time_ps(1 * GB, effective_bandwidth_bps(25 * GBPS, 0.2, 0))
    assert d1 == pytest.approx(2.0 * S)
    # 1 GB at the 2.5 GB/s of the notes; the hit of 0.9 leaves a tenth of 10 GB.
    assert d2 == pytest.approx(0.4 * S)


def test_check_3_proposition_1() -> None:
    """rho1 = 0, rho2 = 0.5, k = 4: 1 < 2, the near instance wins; and the transfer times say the same."""
    assert nearer_wins(0.0, 0.5, 4)
    assert not nearer_wins(0.0, 0.75, 4)  # 1 < 1 is false
    near, far = transfer_time_ps(10 * GB, 100 * GBPS), transfer_time_ps(5 * GB, 25 * GBPS)
    assert near < far


def test_check_4_proposition_2() -> None:
    """4:1 at c = 0.3: (2.8 - 0.7) / 5 = 0.42; an error just below keeps the order of tiers, just above inverts it."""
    tolerance = staleness_tolerance(100 * GBPS, 0.3, 25 * GBPS, 0.3)
    assert tolerance == pytest.approx(0.42)
    for error, kept in ((tolerance - 1e-6, True), (tolerance + 1e-6, False)):
        near = effective_bandwidth_bps(100 * GBPS, 0.3 + error, 0)
        far = effective_bandwidth_bps(25 * GBPS, 0.3 - error, 0)
        assert (near > far) is kept


def test_check_5_a_decision_looks_at_each_instance_once(
    request_1000: Request, view_of: Views, snapshot_of: Snapshots
) -> None:
    """O(|D|): one look into the tier map an instance, whatever their number."""
    for n in (10, 100):
        looks: list[int] = []

        def tier_map(_: int, decode: int, looks: list[int] = looks) -> int:
            looks.append(decode)
            return 3

        NetKVFull().choose(request_1000, view_of(*[{}] * n), snapshot_of({}, tier_map=tier_map))
        assert looks == list(range(4, 4 + n))


def test_check_6_bandwidth_budget() -> None:
    """5 GB at 50 Gbit/s with one in flight: 1.6 s."""
    assert transfer_time_ps(5 * GB, effective_bandwidth_bps(50 * GBPS, 0, 1)) == 1.6 * S


def test_inflight_counts_to_16() -> None:
    assert effective_bandwidth_bps(17 * GBPS, 0, 16) == 1 * GBPS
    assert effective_bandwidth_bps(17 * GBPS, 0, 1000) == 1 * GBPS


def test_latency_is_added_once() -> None:
    assert transfer_time_ps(1000, 8 * GBPS, 15_000_000) == 1_000_000 + 15_000_000


@pytest.mark.parametrize(
    ("queued", "batch", "expected_ms"),
    [(0, 8, 0), (3, 5, 0), (3, 8, 3 * 18), (4, 7, 3 * 17), (9, 0, 1 * 11)],
)
def test_queue_time(queued: int, batch: int, expected_ms: int) -> None:
    """max(0, q - (8 - batch)) iterations of 10 + batch ms; an idle instance iterates with a batch of 1."""
    assert queue_time_ps(queued, batch, 8, iteration_ps) == expected_ms * MS


def test_decode_time() -> None:
    assert decode_time_ps(0, 8, iteration_ps) == 11 * MS
    assert decode_time_ps(7, 8, iteration_ps) == 18 * MS
    assert decode_time_ps(8, 8, iteration_ps) == 18 * MS  # it has to wait, and joins a full batch


def test_requests_on_their_way_count_in_the_batch(
    request_1000: Request, view_of: Views, snapshot_of: Snapshots
) -> None:
    """Of equal instances the one that fewest have chosen, whether their caches are there or not."""
    snapshot = snapshot_of({4: 2, 5: 2, 6: 2})
    views = view_of({"reserved": 2}, {"batch": 1, "queued": 1}, {"batch": 1})
    assert NetKVFull().choose(request_1000, views, snapshot) == 6


def test_topo_sees_the_tier_map_alone(request_1000: Request, view_of: Views, snapshot_of: Snapshots) -> None:
    scheduler: Scheduler = NetKVTopo()
    snapshot = snapshot_of({4: 3, 5: 2}, congestion=(0.0, 0.0, 0.9, 0.0))
    assert scheduler.choose(request_1000, view_of({}, {"inflight": 16}), snapshot) == 5


@pytest.mark.parametrize(("inflight", "choice"), [(0, 5), (1, 5), (2, 4)])
def test_static_counts_transfers_in_flight(
    request_1000: Request, view_of: Views, snapshot_of: Snapshots, inflight: int, choice: int
) -> None:
    """50 / (1 + 1) is 25, where the shorter latency decides; 50 / 3 is less. Congestion does not count."""
    snapshot = snapshot_of({4: 3, 5: 2}, congestion=(0.0, 0.0, 0.9, 0.0))
    assert NetKVStatic().choose(request_1000, view_of({}, {"inflight": inflight}), snapshot) == choice


@pytest.mark.parametrize(("congestion", "choice"), [(0.49, 5), (0.51, 4)])
def test_full_counts_congestion(
    request_1000: Request, view_of: Views, snapshot_of: Snapshots, congestion: float, choice: int
) -> None:
    snapshot = snapshot_of({4: 3, 5: 2}, congestion=(0.0, 0.0, congestion, 0.0))
    assert NetKVFull().choose(request_1000, view_of({}, {}), snapshot) == choice


def test_without_class_separation_inflight_reads_0(
    request_1000: Request, view_of: Views, snapshot_of: Snapshots
) -> None:
    view = view_of({}, {"inflight": 5})
    assert NetKVFull().choose(request_1000, view, snapshot_of({4: 3, 5: 2})) == 4
    assert NetKVFull().choose(request_1000, view, snapshot_of({4: 3, 5: 2}, class_separation=False)) == 5


@pytest.mark.parametrize(
    ("instances", "choice"),
    [
        # 327.68 MB at 25 Gbit/s: 105 ms. A full batch and queue of 8 costs 8 * 18 ms.
        (({"batch": 8, "queued": 5, "reserved": 3, "transfer_bytes": 0}, {}), 5),
        (({"batch": 8, "queued": 1, "reserved": 0, "transfer_bytes": 0}, {}), 4),
        (({"batch": 3}, {"batch": 2}), 5),  # t_iter(4) and t_iter(3)
        (({}, {}, {}), 4),  # lowest id
    ],
)
def test_queue_decode_and_ties(
    request_1000: Request,
    view_of: Views,
    snapshot_of: Snapshots,
    instances: tuple[dict[str, Any], ...],
    choice: int,
) -> None:
    assert NetKVFull().choose(request_1000, view_of(*instances), snapshot_of({4: 3, 5: 3, 6: 3})) == choice
