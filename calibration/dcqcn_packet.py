"""DCQCN's steady state in the packet model: N senders and one receiver on a switch, seen for seconds after a warm-up.

To be held against `calibration.dcqcn_fluid`. The packets are those of the equations, 1000 bytes with nothing around
them, and marks are made as packets leave the queue, as the equations have it: "ECN or Delay" (CoNEXT 2016,
doi:10.1145/2999572.2999593) argues that a mark at egress reports the queue of now, not of a queueing time ago. Marks
at the enqueue bring the paper's set into a limit cycle at N = 10, in the equations (`dcqcn_fluid.integrate`) as here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from harness.config import load_network
from harness.network_settings import NetworkSettings
from harness.packet.network import PacketNetwork
from harness.types import Int64Array, KVFlow, Link, Node, Topology

GBPS = 1_000_000_000
US = 1_000_000  # [ps]
SECOND = 1_000_000_000_000  # [ps]

PACKET_BYTES = 1000
CAPACITY_BPS = 40 * GBPS

#: The paper's ramp of the marking probability, 1 % over 195 KB, carried on above 200 KB instead of a jump to 1. The
#: fixed point is the same; with the jump, the queue's fluctuation at N = 10 reaches it, and all flows are cut at once.
RAMP_CARRIED_ON = ("switch.ecn.kmax=1955KB", "switch.ecn.pmax=0.1")


def paper_settings(*overrides: str) -> NetworkSettings:
    """The profile roce-paper with the equations' packets and marks."""
    packets = (f"transport.payload_bytes={PACKET_BYTES}", "framing.data_overhead=0", "framing.wire_gap=0")
    return load_network("roce-paper", overrides=[*packets, "switch.ecn.at=dequeue", *overrides])


@dataclass(frozen=True, slots=True)
class Measured:
    """Means over the span: the bottleneck's queue, each flow's acknowledged rate, the share of packets marked."""

    queue_bytes: float
    rates_bps: tuple[float, ...]
    marking_probability: float


class _SpanOverError(Exception):
    """Ends a run whose flows would go on."""


def measure(
    n_flows: int,
    settings: NetworkSettings,
    *,
    warm_up_ps: int = SECOND // 2,
    span_ps: int = 8 * SECOND,
    sample_every_ps: int = 20 * US,
    delay_ps: int = US,
    seed: int = 1,
) -> Measured:
    """Run `n_flows` senders into one link, all from time 0 and without end.

    Parameters
    ----------
    settings : `paper_settings()`, or others with the same packets.
    warm_up_ps, span_ps : what is left out, and what is seen after it [ps].
    sample_every_ps : of the queue, which moves over hundreds of microseconds [ps].
    delay_ps : of each link [ps].
    """
    switch = n_flows + 1
    nodes = (*(Node(i, f"host{i}", "host") for i in range(switch)), Node(switch, "switch", "switch"))
    links = tuple(Link(i, i, switch, CAPACITY_BPS, delay_ps, tier=1) for i in range(switch))
    network = PacketNetwork(Topology("star", nodes, links), settings, seed=seed)
    receiver, bottleneck = 2 * n_flows, 2 * n_flows + 1
    endless = CAPACITY_BPS // 8 * (warm_up_ps + span_ps) // SECOND
    for i in range(n_flows):
        network.start(KVFlow(i, "kv", (2 * i,), (receiver,), endless, path_seed=seed), 0)

    queue: list[int] = []
    counts: list[tuple[Int64Array, int, int]] = []

    def count() -> None:
        sample = network.sample()
        acked = network.recorded.flows.acked_bytes
        counts.append((acked, int(sample.marks[bottleneck]), int(sample.tx_bytes[bottleneck].sum())))

    def watch() -> None:
        queue.append(network.queue_bytes(bottleneck))
        at = network.now_ps + sample_every_ps
        if at < warm_up_ps + span_ps:
            network.schedule(at, watch)

    def end() -> None:
        count()
        raise _SpanOverError

    network.schedule(warm_up_ps, count)
    network.schedule(warm_up_ps, watch)
    network.schedule(warm_up_ps + span_ps, end)
    try:
        network.run()
    except _SpanOverError:
        pass
    else:
        raise AssertionError("the flows ended before the span did")
    (acked, marks, sent), (acked_end, marks_end, sent_end) = counts
    rates = (acked_end - acked) * (8 * SECOND / span_ps)
    return Measured(
        queue_bytes=float(np.mean(queue)),
        rates_bps=tuple(float(rate) for rate in rates),
        marking_probability=(marks_end - marks) * PACKET_BYTES / (sent_end - sent),
    )
