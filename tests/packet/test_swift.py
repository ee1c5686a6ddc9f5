"""Swift, the delay-based congestion control, on a star of senders and one receiver."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from harness.config import load_network
from harness.errors import InputError
from harness.packet.network import PacketNetwork
from harness.types import KVFlow, Link, Node, Topology
from tests.packet.conftest import RunFlows

GBPS = 1_000_000_000
US = 1_000_000  # [ps]
MS = 1_000_000_000  # [ps]

#: Round trip of a lone packet over two links of 100 Gb/s and 1 us: data 2 (334 240 ps + 1 us), ACK 2 (6 880 ps + 1 us).
BASE_RTT_PS = 2 * (334_240 + US) + 2 * (6_880 + US)

#: A target of 10 us + 2 us for the one switch, whatever the window.
FLAT_TARGET = (
    "cc.use=swift",
    "transport.ack_every=1",
    "cc.attributes.BaseTarget=10us",
    "cc.attributes.HopScaling=2us",
    "cc.attributes.FlowScaling=0us",
)


def star(senders: int) -> Topology:
    """Hosts 0 .. `senders` on one switch; host i is port 2 i, and the last one receives."""
    switch = senders + 1
    nodes = (
        *(Node(i, f"host{i}", "host", pod=0, rack=0) for i in range(switch)),
        Node(switch, "tor0", "tor", pod=0, rack=0),
    )
    return Topology("star", nodes, tuple(Link(i, i, switch, 100 * GBPS, US, tier=1) for i in range(switch)))


class _SpanOverError(Exception):
    """Ends a run whose flows would go on."""


@dataclass
class Standing:
    """What a span of the steady state showed."""

    rates_bps: Sequence[float]  #: payload acknowledged, per flow
    queue_bytes: Sequence[int]  #: of the bottleneck, every 10 us

    @property
    def jain(self) -> float:
        """Jain's index: 1 for equal rates, 1/n where one flow has all."""
        rates = np.array(self.rates_bps)
        return float(rates.sum() ** 2 / (len(rates) * (rates**2).sum()))


def standing(senders: int, *overrides: str, warm_up_ps: int = 20 * MS, span_ps: int = 20 * MS) -> Standing:
    """`senders` to one receiver, all from time 0 and without end, seen for `span_ps` after `warm_up_ps`."""
    network = PacketNetwork(star(senders), load_network("roce-default", overrides=overrides), seed=1)
    for i in range(senders):
        network.start(KVFlow(i, "kv", (2 * i,), (2 * senders,), 10**10, path_seed=1), 0)
    acked: list[np.ndarray] = []
    queue: list[int] = []

    def note_acked() -> None:
        acked.append(network.recorded.flows.acked_bytes)

    def note_queue() -> None:
        queue.append(network.queue_bytes(2 * senders + 1))

    def end() -> None:
        raise _SpanOverError

    network.schedule(warm_up_ps, note_acked)
    for at in range(warm_up_ps, warm_up_ps + span_ps, 10 * US):
        network.schedule(at, note_queue)
    network.schedule(warm_up_ps + span_ps, note_acked)
    network.schedule(warm_up_ps + span_ps, end)
    with pytest.raises(_SpanOverError):
        network.run()
    return Standing(((acked[1] - acked[0]) * 8e12 / span_ps).tolist(), queue)


@pytest.mark.parametrize("ack_every", [1, 16])
def test_a_lone_flow_has_the_line(three_hosts: Topology, run_flows: RunFlows, ack_every: int) -> None:
    """It starts at line rate and never sees the target, so it ends when an uncontrolled flow would."""
    run = run_flows(three_hosts, [(0, 2, 10_000_000)], "cc.use=swift", f"transport.ack_every={ack_every}")
    assert run.fct_ps.tolist() == run.result.flows.ideal_fct_ps.tolist()


def test_a_small_window_grows_to_the_line() -> None:
    """From one packet, a packet per round trip: the line takes 14 packets per 4.68 us, 13 round trips away."""
    seen = standing(1, "cc.use=swift", "transport.ack_every=1", "cc.attributes.InitialWindow=1", warm_up_ps=MS)
    assert seen.rates_bps == pytest.approx([100e9 * 4096 / 4178], rel=1e-3)


def test_a_small_window_paces() -> None:
    """A window held at half a packet sends a packet every two round trips; nothing delays it."""
    one = ("cc.use=swift", "transport.ack_every=1", "cc.attributes.MaxWindow=0.5")
    seen = standing(1, *one, warm_up_ps=MS, span_ps=10 * MS)
    # 1068 packets fit in the span: one more or less is 0.1 %.
    assert seen.rates_bps == pytest.approx([4096 * 8e12 / (2 * BASE_RTT_PS)], rel=2e-3)


@pytest.mark.parametrize("ack_every", [1, 16])
@pytest.mark.parametrize("senders", [2, 8, 32])
def test_flows_share_fairly_and_fill_the_line(senders: int, ack_every: int) -> None:
    seen = standing(senders, "cc.use=swift", f"transport.ack_every={ack_every}")
    assert seen.jain > 0.95
    assert sum(seen.rates_bps) > 0.99 * 100e9 * 4096 / 4178


@pytest.mark.parametrize("senders", [2, 8])
def test_the_queue_stands_near_the_target_delay(senders: int) -> None:
    """Target 12 us less the base round trip of 4.68 us leaves 7.32 us of queue: 91 KB of frames at 100 Gb/s.

    The sawtooth about it is what the flows add in a round trip before they see its effect: a packet each.
    """
    seen = standing(senders, *FLAT_TARGET)
    target_bytes = (12 * US - BASE_RTT_PS) * 100e9 / 8e12 * 4158 / 4178
    assert target_bytes == pytest.approx(91_040, abs=10)
    assert np.mean(seen.queue_bytes) == pytest.approx(target_bytes, abs=senders * 4158)


def test_incast_queue_stands_far_below_dcqcns() -> None:
    """DCQCN's queue stands about Kmin (400 KB here) and above, Swift's at its target (91 KB)."""
    dcqcn = standing(8)
    swift = standing(8, *FLAT_TARGET)
    assert np.mean(swift.queue_bytes) < np.mean(dcqcn.queue_bytes) / 3
    assert sum(swift.rates_bps) > sum(dcqcn.rates_bps)


def test_hops_and_small_windows_raise_the_target() -> None:
    """The queue grows by what either adds to the target: 5 us of delay are 62.2 KB of frames."""
    flat = np.mean(standing(8, *FLAT_TARGET).queue_bytes)
    hops = np.mean(standing(8, *FLAT_TARGET, "cc.attributes.HopScaling=7us").queue_bytes)
    flows = np.mean(
        standing(
            8,
            *FLAT_TARGET,
            "cc.attributes.FlowScaling=5us",
            "cc.attributes.FlowScalingMinWindow=1000",  # above any window here: all of it is added
            "cc.attributes.FlowScalingMaxWindow=1001",
        ).queue_bytes
    )
    assert hops - flat == pytest.approx(62_200, rel=0.15)
    assert flows == pytest.approx(hops, rel=0.01)


def test_two_runs_agree(run_flows: RunFlows) -> None:
    flows = [(2 * i, 16, 3_000_000 + 1000 * i) for i in range(8)]
    first, second = (run_flows(star(8), flows, "cc.use=swift") for _ in range(2))
    assert first.fct_ps.tolist() == second.fct_ps.tolist()
    other = run_flows(star(8), flows, "cc.use=swift", simulator="ns3")
    assert other.fct_ps.tolist() == first.fct_ps.tolist()


def test_unknown_and_wrong_attributes_are_refused(three_hosts: Topology) -> None:
    for override, message in (
        ("cc.attributes.Betta=0.5", "has no attribute 'Betta'; it has: BaseTarget, HopScaling"),
        ("cc.attributes.MaxDecrease=1.5", "attribute 'MaxDecrease' of 'kvnet::Swift' cannot be '1.5'"),
    ):
        with pytest.raises(InputError, match=message):
            PacketNetwork(three_hosts, load_network(overrides=["cc.use=swift", override]), seed=1)
