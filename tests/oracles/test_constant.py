"""The constant oracle: what it tells, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest

from harness.errors import InputError
from harness.interfaces import Oracle
from harness.oracles.constant import ConstantOracle
from harness.types import Cluster, Instance, NetworkSample, TierFacts, Topology

S = 10**12
TIERS = TierFacts((3600, 100, 50, 25), (1, 3, 8, 15))


def make(topology: Topology, congestion: dict[int, float]) -> ConstantOracle:
    instances = tuple(Instance(i, "decode" if i else "prefill", i, 4, (2 * i,), {}) for i in range(8))
    return ConstantOracle(congestion=congestion, cluster=Cluster(topology, instances), tiers=TIERS)


def test_tells_the_same_whatever_is_measured(eight_hosts: Topology) -> None:
    oracle: Oracle = make(eight_hosts, {2: 0.05, 3: 0.25})
    before = oracle.snapshot(0)
    assert before.congestion == (0.0, 0.0, 0.05, 0.25)
    assert (before.tier_bandwidth_bps, before.tier_latency_ps) == ((3600, 100, 50, 25), (1, 3, 8, 15))
    assert [before.tier_map(0, d) for d in (1, 2, 3, 4, 7)] == [1, 2, 2, 3, 3]
    assert before.class_separation
    full = np.full((eight_hosts.n_ports, 3), 12_500_000_000)
    oracle.observe(NetworkSample(S, full, full[:, 0], full[:, 0], full[:, 0]))
    assert oracle.snapshot(2 * S) == before


@pytest.mark.parametrize(
    ("congestion", "message"),
    [
        ({4: 0.1}, "oracle.congestion: tier 4 given; allowed: 0, 1, 2, 3"),
        ({3: 1.0}, "oracle.congestion.3: 1.0 given; a number in [0, 0.99]"),
        ({2: -0.01}, "oracle.congestion.2: -0.01 given; a number in [0, 0.99]"),
    ],
)
def test_what_it_refuses(eight_hosts: Topology, congestion: dict[int, float], message: str) -> None:
    with pytest.raises(InputError) as caught:
        make(eight_hosts, congestion)
    assert str(caught.value) == message
