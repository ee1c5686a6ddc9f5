"""The oracle on the eight-host fabric: 8 links of each tier, 100 Gbit/s, so 12.5 GB in 1 s a direction."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from harness.errors import InputError
from harness.interfaces import Oracle
from harness.oracles.sampled import SampledOracle
from harness.types import Cluster, Instance, NetworkSample, TierFacts, Topology

S = 10**12
FULL = 12_500_000_000  # bytes that a direction carries in 1 s
CONTROL, KV, BACKGROUND = 0, 1, 2
TIERS = TierFacts((3600, 100, 50, 25), (1, 3, 8, 15))


def make(topology: Topology, **changes: Any) -> SampledOracle:
    instances = tuple(Instance(i, "decode" if i else "prefill", i, 4, (2 * i,), {}) for i in range(8))
    return SampledOracle(cluster=Cluster(topology, instances), tiers=TIERS, **changes)


def sample(topology: Topology, now_ps: int, used: dict[tuple[int, int], int]) -> NetworkSample:
    """Counters that are 0 but for (port, class) -> bytes."""
    tx_bytes = np.zeros((topology.n_ports, 3), dtype=np.int64)
    for key, n_bytes in used.items():
        tx_bytes[key] = n_bytes
    zeros = np.zeros(topology.n_ports, dtype=np.int64)
    return NetworkSample(now_ps, tx_bytes, zeros, zeros, zeros)


def test_before_the_first_sample(eight_hosts: Topology) -> None:
    oracle: Oracle = make(eight_hosts)
    snapshot = oracle.snapshot(5 * S)
    assert oracle.interval_ps == S
    assert (snapshot.sampled_ps, snapshot.congestion, snapshot.class_separation) == (0, (0.0, 0.0, 0.0, 0.0), True)
    assert (snapshot.tier_bandwidth_bps, snapshot.tier_latency_ps) == ((3600, 100, 50, 25), (1, 3, 8, 15))
    assert [snapshot.tier_map(0, d) for d in (1, 2, 3, 4, 7)] == [1, 2, 2, 3, 3]


def test_mean_over_both_directions_of_the_links_of_a_tier(eight_hosts: Topology) -> None:
    oracle = make(eight_hosts)
    # Links 8-15 (ports 16-31) are tier 2, links 16-23 (ports 32-47) tier 3.
    used = {(16, BACKGROUND): FULL, (17, BACKGROUND): FULL // 2, (40, CONTROL): FULL // 4, (0, KV): FULL, (16, KV): 999}
    oracle.observe(sample(eight_hosts, S, used))
    # (1 + 1/2) / 16 and (1/4) / 16; KV traffic does not count.
    assert oracle.snapshot(S).congestion == (0.0, 0.0, 0.09375, 0.015625)


def test_only_the_last_interval_counts(eight_hosts: Topology) -> None:
    oracle = make(eight_hosts)
    oracle.observe(sample(eight_hosts, S, {(16, BACKGROUND): FULL}))
    oracle.observe(sample(eight_hosts, 3 * S, {(16, BACKGROUND): 2 * FULL}))
    # As much again in 2 s: half of the capacity of one port of 16.
    assert oracle.snapshot(3 * S).congestion[2] == 0.03125


def test_without_class_separation_kv_counts(eight_hosts: Topology) -> None:
    oracle = make(eight_hosts, class_separation=False)
    oracle.observe(sample(eight_hosts, S, {(0, KV): FULL, (2, BACKGROUND): FULL}))
    snapshot = oracle.snapshot(S)
    assert snapshot.congestion[1] == 0.125
    assert not snapshot.class_separation


@pytest.mark.parametrize(("statistic", "expected"), [("mean", 0.05), ("p95", 0.2), ("max", 0.8)])
def test_statistics(eight_hosts: Topology, statistic: str, expected: float) -> None:
    """One port of 16 is used to 80 %; the 95th percentile lies a quarter of the way between the two largest values."""
    oracle = make(eight_hosts, statistic=statistic)
    oracle.observe(sample(eight_hosts, S, {(16, BACKGROUND): FULL * 8 // 10}))
    assert oracle.snapshot(S).congestion[2] == pytest.approx(expected)


def test_congestion_is_clipped(eight_hosts: Topology) -> None:
    oracle = make(eight_hosts, statistic="max")
    oracle.observe(sample(eight_hosts, S, {(16, BACKGROUND): FULL}))
    assert oracle.snapshot(S).congestion[2] == 0.99


def test_samples_are_seen_after_the_delay(eight_hosts: Topology) -> None:
    oracle = make(eight_hosts, interval=S, delay=S * 3 // 2)
    seen = []
    for now_ps in (S, 2 * S, 3 * S):
        oracle.observe(sample(eight_hosts, now_ps, {}))
        seen.append(oracle.snapshot(now_ps).sampled_ps)
    seen += [oracle.snapshot(t).sampled_ps for t in (S * 7 // 2 - 1, S * 7 // 2, S * 9 // 2)]
    assert seen == [0, 0, S, S, 2 * S, 3 * S]


def test_an_interval_of_0_is_refused(eight_hosts: Topology) -> None:
    with pytest.raises(InputError, match="oracle.interval: 0 ps given; more than 0"):
        make(eight_hosts, interval=0)
