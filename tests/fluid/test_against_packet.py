"""The fluid models beside the packet model, where congestion control has nothing to find out."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from harness.config import load_network, load_topology
from harness.fluid import MODELS
from harness.fluid.waterfill import INF, Band, Demand
from harness.interfaces import NetworkModel
from harness.packet.network import PacketNetwork
from harness.routing import Router, queue_pair_flows
from harness.types import KVFlow, Topology

US = 1_000_000  # [ps]
MB = 1_000_000
PS_PER_BYTE = 80  # at 100 Gb/s


def fct_ps(network: NetworkModel, pairs: Sequence[tuple[int, int]], size_bytes: int) -> list[int]:
    """By flow, for flows between hosts (whose NIC is port 2 i) that start together."""
    for i, (src, dst) in enumerate(pairs):
        network.start(KVFlow(i, "kv", (2 * src,), (2 * dst,), size_bytes), 0)
    flows = network.run().flows
    return [int(end) for _, end in sorted(zip(flows.transfer_id, flows.end_ps, strict=True))]


def check_close(packet: list[int], fluid: list[int]) -> None:
    """What packets add to some milliseconds, on at most six links.

    The last ACK's way back, at most 6.1 us; a packet's serialisation (4178 B at 100 Gb/s: 0.34 us) on each link after
    the first, at most 1.7 us; and queues of at most four packets where paths meet.
    """
    for theirs, ours in zip(packet, fluid, strict=True):
        assert 0 <= theirs - ours <= 6.1 * US + 1.7 * US + 4 * 0.34 * US


def test_flows_at_their_fair_rates(eight_hosts: Topology) -> None:
    """Four senders at 25 Gb/s into one NIC of 100 Gb/s."""
    settings = load_network(overrides=["cc.use=fixed", "cc.rate=25Gbps"])
    pairs = [(0, 7), (2, 7), (4, 7), (6, 7)]
    fluid = fct_ps(MODELS["maxmin-goodput"](eight_hosts, settings, seed=3), pairs, 20 * MB)
    packet = fct_ps(PacketNetwork(eight_hosts, settings, seed=3), pairs, 20 * MB)
    check_close(packet, fluid)


def test_both_models_take_the_same_paths(eight_hosts: Topology) -> None:
    """Two flows at line rate whose paths collide take twice as long in both models, or in neither."""
    settings = load_network(overrides=["cc.use=none"])
    pairs = [(0, 2), (1, 3)]
    collisions = set()
    for seed in range(4):
        fluid = fct_ps(MODELS["maxmin-goodput"](eight_hosts, settings, seed=seed), pairs, 20 * MB)
        packet = fct_ps(PacketNetwork(eight_hosts, settings, seed=seed), pairs, 20 * MB)
        check_close(packet, fluid)
        collisions.add(fluid[0] > 1.5 * 20 * MB * PS_PER_BYTE)
    assert collisions == {True, False}


def maxmin_rates_bps(topology: Topology, flows: Sequence[KVFlow], seed: int) -> list[int]:
    """Water-filling over the flows' ECMP paths, rounded down."""
    router = Router(topology, seed=seed)
    band: Band[Demand] = Band([INF, *(float(topology.links[port >> 1].rate_bps) for port in range(topology.n_ports))])
    demands = []
    for flow in flows:
        (pair,) = queue_pair_flows(flow, striping="single", queue_pairs=1)
        demands.append(Demand(tuple(p + 1 for p in router.path(pair.src_port, pair.dst_port, pair.udp_sport))))
        band.add(demands[-1])
    band.solve()
    return [int(demand.rate_bps) for demand in demands]


@pytest.mark.parametrize("seed", range(5))
def test_long_flows_paced_at_their_maxmin_rates_end_together_in_both_models(seed: int) -> None:
    """Eight of paper-64's 16 NICs send to random others of it, each as much as it can in 20 ms at its max-min rate.

    A flow without congestion control keeps its NIC's line rate, so in the packet model the NICs of the senders, which
    receive nothing, have their flows' max-min rates as link rates. Every bottleneck is then used to the full, with no
    more than a packet of each flow in its queue. The fluid model finds the same rates on the fabric as it is.
    """
    topology = load_topology("paper-64")
    settings = load_network(overrides=["cc.use=none"])
    nics = [port for port in range(topology.n_ports) if topology.links[port >> 1].tier == 1 and not port & 1]
    assert [topology.nodes[topology.port_node(port)].kind for port in nics] == ["host"] * 16
    draw = random.Random(seed)
    draw.shuffle(nics)
    pairs = [(src, draw.choice(nics[8:])) for src in nics[:8]]
    rates_bps = maxmin_rates_bps(
        topology, [KVFlow(i, "kv", (src,), (dst,), 1) for i, (src, dst) in enumerate(pairs)], seed
    )
    assert len({round(rate / 1e6) for rate in rates_bps}) > 1
    payload = settings.transport.payload_bytes
    sizes = [rate // 8 // 50 * payload // (payload + 82) for rate in rates_bps]
    rate_of_link = {src >> 1: rate for (src, _), rate in zip(pairs, rates_bps, strict=True)}
    paced = replace(
        topology,
        links=tuple(replace(link, rate_bps=rate_of_link.get(link.id, link.rate_bps)) for link in topology.links),
    )
    ends_ps = []
    for network in (
        MODELS["maxmin-goodput"](topology, settings, seed=seed),
        PacketNetwork(paced, settings, seed=seed),
    ):
        for i, ((src, dst), size) in enumerate(zip(pairs, sizes, strict=True)):
            network.start(KVFlow(i, "kv", (src,), (dst,), size), 0)
        result = network.run()
        assert not result.totals.pfc_pauses
        ends_ps.append([int(e) for _, e in sorted(zip(result.flows.transfer_id, result.flows.end_ps, strict=True))])
    # 20 ms; in the fluid model but for the last packet's rounding and 15 us of propagation.
    assert ends_ps[0] == pytest.approx([20_000 * US] * 8, rel=1e-3)
    # The last ACK's way back, 15 us, and on four links up to a packet of each of eight flows, 1.3 us at 25 Gb/s, before
    # the last one: 60 us of 20 ms.
    assert ends_ps[1] == pytest.approx(ends_ps[0], rel=0.005)


#: On paper-64: start [ms], source and destination among its 16 NICs (four a rack, eight a pod), size [MB].
SHARING = {
    "a cross-pod flow": [(0, 0, 8, 300)],
    "an incast from the other pod": [(0, i, 12, 100) for i in range(8)],
    "a flow that short ones disturb": [(0, 0, 2, 600), *((5 + 4 * i, 1, 2, 10) for i in range(15))],
}


@pytest.mark.parametrize("case", SHARING)
def test_maxmin_dcqcn_finds_what_recovery_costs(case: str) -> None:
    """The headline profile. Without recovery (`maxmin-goodput`) the disturbed flow takes less than three quarters.

    8 % for the first flow and the mean: the model cuts to the share at once and no further. In packets a cut takes some
    round trips, goes below the share, and some flows of an incast further than others.
    """
    topology, settings = load_topology("paper-64"), load_network("roce-default")
    nics = [port for port in range(topology.n_ports) if topology.links[port >> 1].tier == 1 and not port & 1]
    fct_ms = {}
    for name, network in (
        ("goodput", MODELS["maxmin-goodput"](topology, settings, seed=1)),
        ("dcqcn", MODELS["maxmin-dcqcn"](topology, settings, seed=1)),
        ("packet", PacketNetwork(topology, settings, seed=1)),
    ):
        for i, (start_ms, src, dst, size_mb) in enumerate(SHARING[case]):
            network.start(KVFlow(i, "kv", (nics[src],), (nics[dst],), size_mb * MB), start_ms * 1000 * US)
        flows = network.run().flows
        fcts = (flows.end_ps - flows.start_ps) / 1e9
        fct_ms[name] = (fcts[0], fcts.mean())
    assert fct_ms["dcqcn"] == pytest.approx(fct_ms["packet"], rel=0.08)
    if case == "a flow that short ones disturb":
        assert fct_ms["goodput"][0] < 0.75 * fct_ms["packet"][0]
