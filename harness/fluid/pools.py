"""Parallel links taken together: what a rack or a pod has as a whole towards the rest of the network."""

from __future__ import annotations

from dataclasses import dataclass

from harness.types import NodeKind, Topology

#: From the hosts upwards. A "switch" has no level.
_LEVEL: dict[NodeKind, int] = {"host": 0, "tor": 1, "agg": 2, "core": 3}


@dataclass(frozen=True)
class Pools:
    """A pool is all links of one tier that leave a rack (or a pod) upwards, or that enter it; or any other port alone.

    Parameters
    ----------
    of_port : per port, its pool.
    rate_bps : per pool, the sum over its ports [bit/s].
    nics : per pool, how many NICs of hosts lie below it, at least 1.
    """

    of_port: tuple[int, ...]
    rate_bps: tuple[int, ...]
    nics: tuple[int, ...]


def make_pools(topology: Topology) -> Pools:
    nics_of_rack: dict[int, int] = {}
    nics_of_pod: dict[int, int] = {}
    for link in topology.links:
        ends = [topology.nodes[link.a], topology.nodes[link.b]]
        hosts = [node for node in ends if node.kind == "host"]
        if len(hosts) == 1:
            nics_of_rack[hosts[0].rack] = nics_of_rack.get(hosts[0].rack, 0) + 1
            nics_of_pod[hosts[0].pod] = nics_of_pod.get(hosts[0].pod, 0) + 1
    pools: dict[tuple[str, int, int, bool], int] = {}
    of_port: list[int] = []
    rates_bps: list[int] = []
    nics: list[int] = []
    for port in range(topology.n_ports):
        link = topology.links[port >> 1]
        near, far = (topology.nodes[topology.port_node(p)] for p in (port, port ^ 1))
        near_level, far_level = _LEVEL.get(near.kind, -1), _LEVEL.get(far.kind, -1)
        upwards = near_level < far_level
        lower = near if upwards else far
        key, below = ("port", port, link.tier, upwards), 1
        if min(near_level, far_level) > 0 and near_level != far_level:
            if lower.rack >= 0:
                key, below = ("rack", lower.rack, link.tier, upwards), nics_of_rack.get(lower.rack, 1)
            elif lower.pod >= 0:
                key, below = ("pod", lower.pod, link.tier, upwards), nics_of_pod.get(lower.pod, 1)
        pool = pools.setdefault(key, len(rates_bps))
        if pool == len(rates_bps):
            rates_bps.append(0)
            nics.append(below)
        rates_bps[pool] += link.rate_bps
        of_port.append(pool)
    return Pools(tuple(of_port), tuple(rates_bps), tuple(nics))
