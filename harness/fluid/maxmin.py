"""Event-driven max-min fair sharing: what congestion control aims at, reached at once and without overhead."""

from __future__ import annotations

import numpy as np

from harness.fluid.model import Flow, FluidModel
from harness.fluid.pools import make_pools
from harness.fluid.waterfill import Band
from harness.types import TRAFFIC_CLASSES, Int64Array


class MaxMin(FluidModel):
    """Every link is shared max-min fairly by the flows that cross it, on the packet run's own paths.

    Control goes before KV traffic; background traffic comes after it or, with `switch.background_priority: data`,
    shares with it. Leaves out headers, ACKs, CNPs, and whatever congestion control does on its way to the fair share.
    """

    def _set_up(self) -> None:
        self._capacity_bps = [float("inf"), *self._link_capacities_bps()]
        self._free_links: list[int] = []
        control: Band[Flow] = Band(self._capacity_bps)
        kv = Band(self._capacity_bps, above=control)
        shared = self._settings.switch.background_priority == "data"
        background = kv if shared else Band(self._capacity_bps, above=kv)
        self._band_of_class = (control, kv, background)
        self._bands = (control, kv) if shared else (control, kv, background)

    def _link_capacities_bps(self) -> list[float]:
        """Of what `_links` numbers 1, 2, ..."""
        return [float(self._topology.links[port >> 1].rate_bps) for port in range(self._topology.n_ports)]

    def _links(self, path: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(port + 1 for port in path)

    def _own_link(self, capacity_bps: float) -> int:
        """A further link for one flow, to be put into `_free_links` when the flow leaves."""
        if not self._free_links:
            self._free_links.append(len(self._capacity_bps))
            self._capacity_bps.append(0.0)
        link = self._free_links.pop()
        self._capacity_bps[link] = float(capacity_bps)
        return link

    def _attach(self, flow: Flow) -> None:
        self._band_of_class[flow.class_index].add(flow)

    def _detach(self, flow: Flow) -> None:
        self._band_of_class[flow.class_index].remove(flow)

    def _reallocate(self) -> None:
        for band in self._bands:
            self._rates_changed(band.solve())

    def _alone_bps(self, path: tuple[int, ...]) -> float:
        return min(self._topology.links[port >> 1].rate_bps for port in path)


class MaxMinGoodput(MaxMin):
    """`maxmin` with each payload's headers and inter-frame gap taking their time on the wire."""

    def _wire_bytes(self, size_bytes: int) -> int:
        framing = self._settings.framing
        packets = -(-size_bytes // self._settings.transport.payload_bytes)
        return size_bytes + packets * (framing.data_overhead + framing.wire_gap)


class MaxMinTier(MaxMin):
    """`maxmin` with the tiers apart: a flow takes capacity of its NICs and of the links of its own tier only.

    A tier of the NetKV paper (arXiv 2606.03910) is a rate B_tier and nothing below it; here it is a set of links with
    that rate, on one or two of which a flow's path is hashed. So flows across pods leave the links within a pod alone,
    though a fat-tree has them cross those as well; a port's counter tells it, and may exceed what the port can carry.
    """

    def _links(self, path: tuple[int, ...]) -> tuple[int, ...]:
        return super()._links(self._of_own_tier(path))

    def _alone_bps(self, path: tuple[int, ...]) -> float:
        return super()._alone_bps(self._of_own_tier(path))

    def _of_own_tier(self, path: tuple[int, ...]) -> tuple[int, ...]:
        """The first and the last port, and those of the path's highest tier."""
        tiers = [self._topology.links[port >> 1].tier for port in path]
        own, last = max(tiers), len(path) - 1
        return tuple(port for i, port in enumerate(path) if i in (0, last) or tiers[i] == own)


class MaxMinAggregate(MaxMin):
    """`maxmin` without hash collisions: every flow can use all parallel links of a rack or a pod as one (see pools.py).

    A single flow is still no faster than the narrowest link on its path. A port counts its share of the pool's bytes,
    by its rate, rounded down. Spraying is what the model assumes anyway.
    """

    LOAD_BALANCING = (*MaxMin.LOAD_BALANCING, "spray")

    def _link_capacities_bps(self) -> list[float]:
        self._pools = make_pools(self._topology)
        return [float(rate_bps) for rate_bps in self._pools.rate_bps]

    def _links(self, path: tuple[int, ...]) -> tuple[int, ...]:
        """The pools, and a link of the flow's own that limits it."""
        return (*(self._pools.of_port[port] + 1 for port in path), self._own_link(self._alone_bps(path)))

    def _detach(self, flow: Flow) -> None:
        super()._detach(flow)
        self._free_links.append(flow.links[-1])

    def _spread(self, tx_bytes: Int64Array) -> Int64Array:
        pools = self._pools
        of_pool = np.zeros((len(pools.rate_bps), len(TRAFFIC_CLASSES)), dtype=np.int64)
        np.add.at(of_pool, np.array(pools.of_port), tx_bytes)
        return np.array(
            [
                [int(n) * self._topology.links[port >> 1].rate_bps // pools.rate_bps[pool] for n in of_pool[pool]]
                for port, pool in enumerate(pools.of_port)
            ],
            dtype=np.int64,
        )
