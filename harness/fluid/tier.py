"""The flow-level model of the NetKV paper: a transfer's rate is fixed when it starts."""

from __future__ import annotations

from harness.fluid.model import Flow, FluidModel
from harness.fluid.pools import make_pools
from harness.routing import queue_pair_flows
from harness.types import N_TIERS, TRAFFIC_CLASSES, KVFlow, QueuePairFlow

KV = TRAFFIC_CLASSES.index("kv")

#: The paper caps n_inflight at 16, about the number of flows that saturate a NIC (arXiv 2606.03910).
MAX_INFLIGHT = 16
#: Congestion is clipped below 1, where the rate would vanish; the value is ours.
MAX_CONGESTION = 0.99


class Tier(FluidModel):
    """Equation 4 of the NetKV paper (arXiv 2606.03910): B = B_tier (1 - c_tier) / (1 + n_inflight), fixed at the start.

    B_tier is the share of the path's scarcest pool that falls to one NIC below it: the NIC's rate over the cumulative
    oversubscription. c_tier is the mean, over the ports of the path's top tier, of the share that other classes than KV
    use at the moment; it slows KV flows only. n_inflight counts the flows of the same class from the same NIC in the
    same tier. Nothing keeps the sum of rates on a link below its capacity. A transfer has one flow per NIC, whatever
    `transport.queue_pairs` says. Which of a tier's links carries a flow has no effect, so spraying has none.
    """

    LOAD_BALANCING = (*FluidModel.LOAD_BALANCING, "spray")

    def _set_up(self) -> None:
        self._pools = make_pools(self._topology)
        ports_of_tier = [0] * N_TIERS
        for link in self._topology.links:
            ports_of_tier[link.tier] += 2
        self._ports_of_tier = ports_of_tier
        self._inflight: dict[tuple[int, int, int], int] = {}
        self._other: dict[Flow, None] = {}
        self._started: list[Flow] = []

    def _split(self, flow: KVFlow) -> tuple[QueuePairFlow, ...]:
        return queue_pair_flows(flow, striping=self._settings.transport.striping, queue_pairs=1)

    def _alone_bps(self, path: tuple[int, ...]) -> float:
        shares = [
            self._pools.rate_bps[pool] / self._pools.nics[pool] for pool in map(self._pools.of_port.__getitem__, path)
        ]
        return min(min(shares), min(self._topology.links[port >> 1].rate_bps for port in path))

    def _attach(self, flow: Flow) -> None:
        tier = self._tier(flow)
        key = (flow.class_index, flow.path[0], tier)
        inflight = self._inflight.get(key, 0)
        self._inflight[key] = inflight + 1
        congestion = self._congestion(tier) if flow.class_index == KV else 0.0
        flow.rate_bps = self._alone_bps(flow.path) * (1.0 - congestion) / (1 + min(inflight, MAX_INFLIGHT))
        if flow.class_index != KV:
            self._other[flow] = None
        self._started.append(flow)

    def _detach(self, flow: Flow) -> None:
        self._inflight[(flow.class_index, flow.path[0], self._tier(flow))] -= 1
        if flow.class_index != KV:
            del self._other[flow]

    def _reallocate(self) -> None:
        self._rates_changed(self._started)
        self._started.clear()

    def _tier(self, flow: Flow) -> int:
        return max(self._topology.links[port >> 1].tier for port in flow.path)

    def _congestion(self, tier: int) -> float:
        used = 0.0
        for flow in self._other:
            for port in flow.path:
                link = self._topology.links[port >> 1]
                if link.tier == tier:
                    used += flow.rate_bps / link.rate_bps
        return min(used / self._ports_of_tier[tier], MAX_CONGESTION)
