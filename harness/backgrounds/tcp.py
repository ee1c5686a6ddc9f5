"""Background traffic over ns-3's own TCP stack."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from harness.backgrounds.poisson import PoissonBackground
from harness.types import KVFlow


class TcpBackground(PoissonBackground):
    """The flows of `poisson`, carried by ns-3's TCP instead of RDMA (congestion control and so on: `network.tcp`).

    Each is a connection of its own, from handshake to the last acknowledged byte. A fluid model takes it for a flow
    like any other. ns-3's stack needs some 35 us of CPU time per segment, hundreds of times as much as a RoCE packet.
    """

    def flows(self) -> Iterator[tuple[int, KVFlow]]:
        """As those of `poisson`, with another carrier."""
        for start_ps, flow in super().flows():
            yield start_ps, replace(flow, carrier="tcp")
