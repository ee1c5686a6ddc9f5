"""Many flows at once: incast, PFC, loss, and what must hold whatever happens."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.config import load_network
from harness.errors import RunFailure
from harness.metrics import jain_index
from harness.packet.network import PacketNetwork, warnings
from harness.types import KVFlow, Link, Node, Topology
from tests.conftest import make_eight_hosts
from tests.packet.conftest import Run, RunFlows

GBPS = 10**9
US = 1_000_000


def star(n: int, rate_bps: int = 100 * GBPS) -> Topology:
    """Hosts 0..n-1 on switch n; host i is port 2 i."""
    nodes = (*(Node(i, f"host{i}", "host") for i in range(n)), Node(n, "switch", "switch"))
    return Topology(f"star-{n}", nodes, tuple(Link(i, i, n, rate_bps, US, tier=1) for i in range(n)))


def incast(run_flows: RunFlows, size: int, *overrides: str) -> Run:
    return run_flows(star(9), [(2 * i, 16, size) for i in range(8)], *overrides)


def use_of_the_bottleneck(run: Run) -> float:
    """Share of the time from first start to last end in which the link into host 8 (port 17) was sending."""
    flows = run.result.flows
    span_ps = int(flows.end_ps.max() - flows.start_ps.min())
    return float(run.result.port_totals.tx_bytes[17].sum()) * 80 / span_ps


def test_incast_at_line_rate_is_lossless_and_keeps_the_bottleneck_busy(run_flows: RunFlows) -> None:
    run = incast(run_flows, 20_000_000, "cc.use=none")
    totals = run.result.totals
    assert totals.drops == 0 and totals.pfc_pauses > 0 and totals.pfc_pauses == totals.pfc_resumes
    assert use_of_the_bottleneck(run) > 0.98
    assert totals.payload_bytes_acked == totals.payload_bytes_sent == 160_000_000
    assert totals.max_queue_bytes <= 32 * 2**20


@pytest.mark.slow
def test_incast_with_dcqcn_is_fair(run_flows: RunFlows) -> None:
    run = incast(run_flows, 200_000_000)
    flows = run.result.flows
    assert run.result.totals.drops == 0
    assert jain_index(flows.size_bytes / (flows.end_ps - flows.start_ps)) > 0.95


def test_small_buffer_without_pfc_drops_and_recovers(run_flows: RunFlows) -> None:
    run = incast(
        run_flows, 5_000_000, "cc.use=none", "switch.pfc.on=false", "switch.buffer_bytes=200KB", "transport.timeout=1ms"
    )
    totals = run.result.totals
    assert totals.drops > 0 and totals.retransmitted_bytes > 0 and totals.pfc_pauses == 0
    assert run.result.flows.acked_bytes.tolist() == [5_000_000] * 8
    assert totals.max_queue_bytes <= 200_000


@pytest.mark.parametrize("loss_rate", [1e-4, 1e-2])
def test_random_loss_delivers_every_byte(run_flows: RunFlows, loss_rate: float) -> None:
    nodes = (Node(0, "a", "host"), Node(1, "b", "host"), Node(2, "s", "switch"))
    lossy = Topology("lossy", nodes, (Link(0, 0, 2, 100 * GBPS, US, 1, loss_rate), Link(1, 1, 2, 100 * GBPS, US, 1)))
    run = run_flows(lossy, [(0, 2, 20_000_000)], "cc.use=none", "transport.timeout=1ms")
    totals = run.result.totals
    assert totals.drops > 0 and totals.retransmitted_bytes > 0
    assert totals.payload_bytes_acked == totals.payload_bytes_sent == 20_000_000


def test_control_goes_before_data_and_background_after(run_flows: RunFlows) -> None:
    """A background flow on a saturated link gets what KV leaves: nothing, until the KV flow is done."""
    flows = [KVFlow(0, "kv", (0,), (4,), 4096 * 500), KVFlow(0, "background", (2,), (4,), 4096 * 10)]
    run = run_flows(star(3), flows, "cc.use=none")
    table = run.result.flows
    kv, background = (table.end_ps[table.traffic_class == c][0] for c in (1, 2))
    assert background > kv - 10 * US
    shared = run_flows(star(3), flows, "cc.use=none", "switch.background_priority=data").result.flows
    assert shared.end_ps[shared.traffic_class == 2][0] < kv / 2


def two_switches() -> Topology:
    """Hosts 0, 1 on switch 4 and 2, 3, 5 on switch 6 (nodes in that order); one link joins the switches."""
    kinds = {4: "switch", 6: "switch"}
    nodes = tuple(Node(i, f"n{i}", "switch" if i in kinds else "host") for i in range(7))
    ends = [(0, 4), (1, 4), (2, 6), (3, 6), (5, 6), (4, 6)]
    return Topology("two-switches", nodes, tuple(Link(i, a, b, 100 * GBPS, US, 1) for i, (a, b) in enumerate(ends)))


def test_victim_of_head_of_line_blocking(run_flows: RunFlows) -> None:
    """Hosts 0 and 5 send 45 Gb/s each and host 2 too, all into host 3; host 1 sends 45 Gb/s to host 2 and meets no full
    link.

    PFC pauses the link between the switches for the sake of host 3, and so slows host 1 to the pace of host 0, a third
    of host 3's link; with PFC off host 1 is left alone.
    """
    flows = [(0, 6, 30_000_000), (8, 6, 30_000_000), (4, 6, 30_000_000), (2, 4, 10_000_000)]
    common = ("cc.use=fixed", "cc.rate=45Gbps", "switch.buffer_bytes=1MB")
    with_pfc = run_flows(two_switches(), flows, *common)
    without = run_flows(two_switches(), flows, *common, "switch.pfc.on=false", "transport.timeout=1ms")
    assert with_pfc.result.totals.drops == 0 and without.result.totals.drops > 0
    ideal_ps = 10_000_000 * 4178 / 4096 * 8 / 45 * 1000
    assert without.fct_ps[3] == pytest.approx(ideal_ps, rel=0.02)
    assert with_pfc.fct_ps[3] > 1.2 * without.fct_ps[3]


def ring() -> tuple[Topology, dict[tuple[int, int], tuple[int, ...]]]:
    """Four switches in a ring with a host each, and the clockwise path of two hops for every host to the one
    opposite.
    """
    nodes = (*(Node(i, f"host{i}", "host") for i in range(4)), *(Node(4 + i, f"switch{i}", "switch") for i in range(4)))
    links = [Link(i, i, 4 + i, 100 * GBPS, US, 1) for i in range(4)]
    links += [Link(4 + i, 4 + i, 4 + (i + 1) % 4, 100 * GBPS, US, 2) for i in range(4)]
    topology = Topology("ring", nodes, tuple(links))

    def clockwise(a: int, b: int) -> tuple[int, ...]:
        hops = [2 * a]
        while a != b:
            hops.append(2 * (4 + a))
            a = (a + 1) % 4
        return (*hops, 2 * b + 1)

    return topology, {(2 * a, 2 * b): clockwise(a, b) for a in range(4) for b in range(4) if a != b}


def test_the_watchdog_names_a_deadlock() -> None:
    topology, clockwise = ring()
    flows = [KVFlow(i, "kv", (2 * i,), (2 * ((i + 2) % 4),), 20_000_000) for i in range(4)]
    overrides = ["cc.use=none", "switch.buffer_bytes=1MB", "switch.pfc.headroom=100KB", "watchdog=200ms"]

    class AllSports(dict[tuple[int, int, int], tuple[int, ...]]):
        def get(self, key: tuple[int, int, int], default: object = None) -> tuple[int, ...]:  # type: ignore[override]
            return clockwise[key[0], key[1]]

    network = PacketNetwork(topology, load_network(overrides=overrides), seed=1, pinned={})
    network._router._pinned = AllSports()
    for flow in flows:
        network.start(flow, 0)
    with pytest.raises(RunFailure, match=r"nothing moves.*kv flow 0 \(host0 to host2.*held by PFC.*switch"):
        network.run()


def test_halved_headroom_is_announced(eight_hosts: Topology) -> None:
    assert warnings(eight_hosts, load_network()) == []
    (text,) = warnings(eight_hosts, load_network(overrides=["switch.pfc.headroom_factor=0.25"]))
    assert "loss is possible" in text


FLOWS = st.lists(
    st.tuples(st.integers(0, 7), st.integers(0, 7), st.integers(1, 2_000_000)).filter(lambda f: f[0] != f[1]),
    min_size=1,
    max_size=12,
)
OVERRIDES = st.fixed_dictionaries(
    {
        "transport.payload_bytes": st.sampled_from([512, 1000, 4096]),
        "transport.ack_every": st.sampled_from([1, 3, 16]),
        "transport.window": st.sampled_from(["none", "fixed", "rate_scaled"]),
        "transport.window_bytes": st.sampled_from(["50KB", "300KB"]),
        "cc.use": st.sampled_from(["dcqcn", "none"]),
        "cc.cnp_mode": st.sampled_from(["packet", "ack-flag"]),
        "switch.ecn.at": st.sampled_from(["enqueue", "dequeue"]),
        "switch.ecn.kmin": st.just("20KB"),
        "switch.buffer_bytes": st.sampled_from(["1MB", "32MiB"]),
        "switch.ack_class": st.sampled_from(["control", "data"]),
    }
)


@settings(max_examples=25, deadline=None)
@given(
    flows=FLOWS, overrides=OVERRIDES, seed=st.integers(0, 100), profile=st.sampled_from(["roce-default", "roce-paper"])
)
def test_limits_hold_whatever_is_configured(
    flows: list[tuple[int, int, int]], overrides: dict[str, object], seed: int, profile: str
) -> None:
    """Bytes in are bytes out; no link above its rate; no flow faster than alone; no queue above the buffer; both
    engines agree.
    """
    topology = make_eight_hosts()
    config = load_network(profile, overrides=[f"{k}={v}" for k, v in overrides.items()])
    results = []
    for simulator in ("wheel", "ns3"):
        network = PacketNetwork(topology, config, seed=seed, simulator=simulator)
        for i, (src, dst, size) in enumerate(flows):
            network.start(KVFlow(i, "kv", (2 * src,), (2 * dst,), size, path_seed=seed), i * 1000)
        results.append(network.run())
    result, other = results
    for column in ("start_ps", "end_ps", "ecn_marks", "cnps"):
        assert np.array_equal(getattr(result.flows, column), getattr(other.flows, column))
    table, totals = result.flows, result.totals
    assert totals.pfc_pauses == other.totals.pfc_pauses and totals.drops == other.totals.drops == 0
    assert table.acked_bytes.tolist() == table.size_bytes.tolist()
    assert totals.payload_bytes_acked == totals.payload_bytes_sent == sum(f[2] for f in flows)
    assert (table.end_ps - table.start_ps >= table.ideal_fct_ps).all()
    assert (result.port_totals.tx_bytes.sum(axis=1) * 80 <= result.port_totals.now_ps).all()
    assert totals.max_queue_bytes <= config.switch.buffer_bytes
