"""Single flows against arithmetic done by hand."""

from __future__ import annotations

import pytest

from harness.config import build_cluster, load_network, load_scenario
from harness.routing import Router, ideal_fct_ps
from harness.types import Topology
from tests.packet.conftest import RunFlows

US = 1_000_000


def test_one_switch(three_hosts: Topology, run_flows: RunFlows) -> None:
    """Two 100 Gb/s links of 1 us; 2 packets of 4096 + 62 + 20 B at 80 ps/B = 334,240 ps each.

    Both packets leave in 668,480 ps, the second crosses the first link (1 us), is sent again (334,240) and crosses the
    second (1 us); its ACK of 86 B takes 6,880 ps and 1 us per link.
    """
    run = run_flows(three_hosts, [(0, 2, 8192)], "cc.use=none")
    assert run.fct_ps.tolist() == [668_480 + US + 334_240 + US + 2 * (6_880 + US)]


def test_short_last_packet(three_hosts: Topology, run_flows: RunFlows) -> None:
    """One full packet and one of 1 + 82 = 83 B (6,640 ps), which waits at the switch for the full one to leave."""
    run = run_flows(three_hosts, [(0, 2, 4097)], "cc.use=none")
    # The full packet reaches the switch at 334,240 + 1 us and leaves it by 668,480 + 1 us, after the short one has
    # come.
    assert run.fct_ps.tolist() == [668_480 + US + 6_640 + US + 2 * (6_880 + US)]


@pytest.mark.parametrize("tier", [1, 2, 3])
@pytest.mark.parametrize("size", [1, 4096, 1_000_000, 50_000_001])
def test_paper_tiers(tier: int, size: int, run_flows: RunFlows) -> None:
    """On paper-64 the slowest link sets the pace: 100, 50, 25 Gb/s within a rack, a pod, and across pods."""
    scenario = load_scenario("rag", overrides=["cluster.placement.use=mixed"])
    cluster = build_cluster(scenario)
    topology = cluster.topology
    src = cluster.instances[0]
    dst = next(i for i in cluster.instances if cluster.tier(0, i.id) == tier)
    run = run_flows(topology, [(src.nic_ports[0], dst.nic_ports[0], size)], "cc.use=none")
    fct = int(run.fct_ps[0])
    path = run.network.path(src.nic_ports[0], dst.nic_ports[0], 0)
    rates = [topology.links[p >> 1].rate_bps for p in path]
    delays = [topology.links[p >> 1].delay_ps for p in path]
    assert min(rates) == {1: 100, 2: 50, 3: 25}[tier] * 10**9
    full, rest = divmod(size, 4096)
    # The pipe fills packet by packet as rates fall towards the middle of the path and drains with the last packet.
    ps = [8 * 10**12 // r for r in rates]
    sizes = [4096] * full + ([rest] if rest else [])
    arrive = [0] * len(sizes)
    for ps_per_byte, delay in zip(ps, delays, strict=True):
        free = 0
        for k, payload in enumerate(sizes):
            free = max(free, arrive[k]) + (payload + 82) * ps_per_byte
            arrive[k] = free + delay
    expected = arrive[-1] + sum(86 * p + d for p, d in zip(ps, delays, strict=True))
    assert fct == expected == int(run.result.flows.ideal_fct_ps[0])
    settings = load_network("roce-default", overrides=["cc.use=none"])
    router = Router(topology, seed=1)
    forward = router.path(src.nic_ports[0], dst.nic_ports[0], 50_000)
    backward = router.path(dst.nic_ports[0], src.nic_ports[0], 50_000)
    assert ideal_fct_ps(topology, forward, backward, size, settings) == expected


def test_dcqcn_leaves_an_uncongested_flow_alone(three_hosts: Topology, run_flows: RunFlows) -> None:
    sizes = [(0, 2, 20_000_000)]
    free, controlled = run_flows(three_hosts, sizes, "cc.use=none"), run_flows(three_hosts, sizes)
    assert free.fct_ps.tolist() == controlled.fct_ps.tolist()
    assert controlled.result.totals.ecn_marks == 0


def test_fixed_rate(three_hosts: Topology, run_flows: RunFlows) -> None:
    """At 10 Gb/s a 4178 B packet every 3,342,400 ps; the last one is sent 999 intervals after the first."""
    run = run_flows(three_hosts, [(0, 2, 4096 * 1000)], "cc.use=fixed", "cc.rate=10Gbps")
    assert run.fct_ps.tolist() == [999 * 3_342_400 + 2 * (334_240 + US) + 2 * (6_880 + US)]


def test_nanosecond_rounding(three_hosts: Topology, run_flows: RunFlows) -> None:
    """HPCC family: 1048 B take 83.84 ns, rounded to 84; N ser + 1000 + ser + 1000 + 2 (5 + 1000) ns."""
    run = run_flows(three_hosts, [(0, 2, 100_000_000)], profile="hpcc-sim")
    assert run.fct_ps.tolist() == [8_404_094_000]


def test_round_robin_shares_a_nic(three_hosts: Topology, run_flows: RunFlows) -> None:
    """Two flows from one NIC to two hosts alternate, so that both end within one packet of the time for all bytes."""
    run = run_flows(three_hosts, [(0, 2, 4096 * 100), (0, 4, 4096 * 100)], "cc.use=none")
    tail = US + 334_240 + US + 2 * (6_880 + US)
    assert run.fct_ps.tolist() == [199 * 334_240 + tail, 200 * 334_240 + tail]


def test_nvlink_is_a_link_of_its_own(run_flows: RunFlows) -> None:
    """Tier 0 at 450 GB/s and 1 us: one packet of 4178 B in 9,284.4 ps (rounded), its ACK of 86 B in 191.1."""
    cluster = build_cluster(load_scenario("rag"))
    a = cluster.instances[0]
    b = next(i for i in cluster.instances if i.host == a.host and i.id != a.id)
    run = run_flows(cluster.topology, [(a.nvlink_ports[b.id], b.nvlink_ports[a.id], 4096)], "cc.use=none")
    assert run.fct_ps.tolist() == [9_284 + US + 191 + US]
