"""The fluid models beside the packet model, where congestion control has nothing to find out."""

from __future__ import annotations

from collections.abc import Sequence

from harness.config import load_network
from harness.fluid import MODELS
from harness.interfaces import NetworkModel
from harness.packet.network import PacketNetwork
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
