"""Background traffic: the load that its flows put on each tier, summed over their real paths."""

from __future__ import annotations

from itertools import islice, pairwise
from typing import Any

import numpy as np
import pytest

from harness.backgrounds.poisson import NoBackground, PoissonBackground
from harness.errors import InputError
from harness.interfaces import Background
from harness.routing import Router, queue_pair_flows
from harness.types import Cluster, Instance, KVFlow, Topology

GBPS = 10**9


@pytest.fixture
def cluster(eight_hosts: Topology) -> Cluster:
    """An instance a host; 8 links of 100 Gbit/s in each of the tiers 1, 2 and 3."""
    return Cluster(eight_hosts, tuple(Instance(i, "decode", i, 4, (2 * i,), {}) for i in range(8)))


def draw(cluster: Cluster, n: int, **changes: Any) -> list[tuple[int, KVFlow]]:
    background: Background = PoissonBackground(
        **{"share": {2: 0.1, 3: 0.04}, "mean_size": 1_000_000, "seed": 1, "cluster": cluster, **changes}
    )
    return list(islice(background.flows(), n))


def test_none() -> None:
    assert list(NoBackground().flows()) == []


def test_offered_rates(cluster: Cluster) -> None:
    """A tier has 1600 Gbit/s in both directions: A3 = 0.04 * 1600 / 2, A2 = 0.1 * 1600 / 2 - A3, A1 = 0."""
    background = PoissonBackground(share={2: 0.1, 3: 0.04}, seed=1, cluster=cluster)
    assert background.offered_bps == pytest.approx((0, 0, 48 * GBPS, 32 * GBPS))
    with_tier_1 = PoissonBackground(share={1: 0.15, 2: 0.1, 3: 0.04}, seed=1, cluster=cluster)
    assert with_tier_1.offered_bps == pytest.approx((0, 40 * GBPS, 48 * GBPS, 32 * GBPS))


@pytest.mark.parametrize("size", ["fixed", "exponential"])
def test_the_load_of_each_tier_is_its_share(cluster: Cluster, size: str) -> None:
    flows = draw(cluster, 20_000, size=size, mean_size=100_000)
    topology, router = cluster.topology, Router(cluster.topology)
    carried_bytes = np.zeros(topology.n_ports)
    for _, flow in flows:
        (queue_pair,) = queue_pair_flows(flow, striping="single", queue_pairs=1)
        path = router.path(queue_pair.src_port, queue_pair.dst_port, queue_pair.udp_sport)
        carried_bytes[list(path)] += flow.size_bytes
    elapsed_s = flows[-1][0] / 1e12
    share = carried_bytes * 8 / (100 * GBPS * elapsed_s)
    tier = np.repeat([link.tier for link in topology.links], 2)
    # Both bytes and time of n flows have a relative standard deviation of up to 1 / sqrt(n) = 0.7 %, and the number of
    # those of tier 3 one of 1 %: 4 % are three standard deviations.
    assert share[tier == 2].mean() == pytest.approx(0.1, rel=0.04)
    assert share[tier == 3].mean() == pytest.approx(0.04, rel=0.04)
    assert share[tier == 1].mean() == pytest.approx(0.1, rel=0.04)  # what crosses to tier 2
    # All ports of a tier are alike here: 16 ports share 20,000 flows, so each has 1,000 or more, give or take 3 %.
    assert share[tier == 2].min() > 0.085
    assert share[tier == 2].max() < 0.115


def test_flows_have_the_right_distance_and_class(cluster: Cluster) -> None:
    distances = set()
    for i, (_, flow) in enumerate(draw(cluster, 2000)):
        ((src,), (dst,)) = flow.src_ports, flow.dst_ports
        assert (flow.id, flow.traffic_class) == (i, "background")
        distances.add(cluster.tier(src // 2, dst // 2))
    assert distances == {2, 3}


def test_starts_are_poisson(cluster: Cluster) -> None:
    """80 Gbit/s of 1 MB: a flow every 100 us, gaps exponential (mean = standard deviation) and never negative."""
    gaps = np.diff([start for start, _ in draw(cluster, 20_001)])
    # The mean of 20,000 gaps has a standard deviation of 0.7 %, the standard deviation one of 1 %.
    assert gaps.mean() == pytest.approx(1e8, rel=0.03)
    assert gaps.std() == pytest.approx(1e8, rel=0.04)
    assert gaps.min() >= 0


@pytest.mark.parametrize(("size", "median"), [("fixed", 1_000_000), ("exponential", 693_147), ("lognormal", 135_335)])
def test_sizes(cluster: Cluster, size: str, median: int) -> None:
    """All have a mean of 1 MB; the medians are that, times ln 2, and times exp(-sigma^2 / 2)."""
    sizes = np.array([flow.size_bytes for _, flow in draw(cluster, 20_000, size=size)])
    # The median of 20,000 lognormal sizes has a relative standard deviation of sigma sqrt(pi / 2 / n) = 1.8 %.
    assert np.median(sizes) == pytest.approx(median, rel=0.06)
    if size != "lognormal":  # its mean does not settle in 20,000 draws
        assert sizes.mean() == pytest.approx(1_000_000, rel=0.03)
    assert sizes.min() >= 1


def test_the_mean_of_lognormal_sizes(cluster: Cluster) -> None:
    sizes = np.array([flow.size_bytes for _, flow in draw(cluster, 20_000, size="lognormal", sigma=0.5)])
    # Relative standard deviation of one size: sqrt(exp(0.25) - 1) = 0.53; of the mean 0.4 %.
    assert sizes.mean() == pytest.approx(1_000_000, rel=0.015)


def test_every_call_begins_anew_and_seeds_differ(cluster: Cluster) -> None:
    background = PoissonBackground(share={3: 0.05}, seed=1, cluster=cluster)
    first = list(islice(background.flows(), 3000))
    assert list(islice(background.flows(), 3000)) == first
    assert draw(cluster, 3000, share={3: 0.05}, seed=2) != first
    assert all(a <= b for (a, _), (b, _) in pairwise(first))


def test_shares_of_0_are_no_traffic(cluster: Cluster) -> None:
    assert draw(cluster, 5, share={2: 0.0, 3: 0.0}) == []
    assert draw(cluster, 5, share={}) == []


@pytest.mark.parametrize(
    ("share", "message"),
    [
        ({0: 0.1}, "background.share: tier 0 given; allowed: 1 (host links), 2, 3"),
        ({2: 1.0}, "background.share.2: 1.0 given; a share in [0, 1)"),
        ({2: -0.1}, "background.share.2: -0.1 given; a share in [0, 1)"),
        (
            {2: 0.02, 3: 0.04},
            "background.share.2: 0.02 given; the flows of the higher tiers cross these links: at least 0.04",
        ),
    ],
)
def test_shares_that_cannot_be(cluster: Cluster, share: dict[int, float], message: str) -> None:
    with pytest.raises(InputError) as caught:
        PoissonBackground(share=share, seed=1, cluster=cluster)
    assert str(caught.value) == message


def test_a_tier_without_links_or_pairs(three_hosts: Topology, eight_hosts: Topology) -> None:
    one_rack = Cluster(three_hosts, tuple(Instance(i, "decode", i, 4, (2 * i,), {}) for i in range(3)))
    with pytest.raises(InputError) as caught:
        PoissonBackground(share={2: 0.05}, seed=1, cluster=one_rack)
    assert str(caught.value) == "background.share.2: 0.05 given; the topology has links of tiers [1] only"
    two_racks = Cluster(eight_hosts, tuple(Instance(i, "decode", i, 4, (2 * i,), {}) for i in range(4)))
    with pytest.raises(InputError) as caught:
        PoissonBackground(share={3: 0.05}, seed=1, cluster=two_racks)
    assert str(caught.value) == "background.share.3: no two instances are at this distance; pairs: [1, 2]"
