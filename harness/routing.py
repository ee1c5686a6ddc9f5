"""Shortest-path ECMP routing: which ports a queue pair's packets take. Used by the packet and the fluid models alike.

The hash is ours: a 64-bit finaliser (splitmix64: Steele et al., OOPSLA 2014, doi:10.1145/2660193.2660195) over the
fields of the
5-tuple that differ between RoCEv2 flows (source and destination address, UDP source port) and the switch's seed. Real
switches hash the same fields, with functions that vendors do not publish.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Literal

from harness.errors import InputError
from harness.network_settings import Framing, NetworkSettings
from harness.types import KVFlow, QueuePairFlow, Topology

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15

#: Ephemeral range that RoCEv2 requesters draw the UDP source port from (IBTA RoCEv2 annex A17.9.2).
_SPORT_FIRST, _SPORT_COUNT = 49152, 16384


def mix64(x: int) -> int:
    """The splitmix64 finaliser."""
    x = (x + _GOLDEN) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def flow_key(src_port: int, dst_port: int, udp_sport: int) -> int:
    """The hashed 5-tuple; addresses stand one to one for NIC ports, and destination port and protocol are constant in
    RoCEv2.
    """
    return mix64((src_port << 40) ^ (dst_port << 16) ^ udp_sport)


def ecmp_choice(key: int, switch_seed: int, n: int) -> int:
    """Index of the chosen port among `n` equal-cost ones."""
    return ((mix64(key ^ switch_seed) >> 32) * n) >> 32


class Router:
    """Forwarding tables of every switch, and the path that a 5-tuple takes through them.

    Parameters
    ----------
    topology : the fabric. Hosts forward nothing; a NIC reaches the fabric through its own link only.
    seed : of the run; every switch derives its own hash seed from it.
    seed_per_switch : False gives all switches one seed, so that equal choices repeat at every tier (polarisation).
    pinned : (src_port, dst_port, udp_sport) -> path, for paths that are given instead of hashed.
    """

    def __init__(
        self,
        topology: Topology,
        *,
        seed: int = 0,
        seed_per_switch: bool = True,
        pinned: Mapping[tuple[int, int, int], tuple[int, ...]] | None = None,
    ) -> None:
        self.topology = topology
        self.switch_seeds = tuple(mix64(mix64(seed & _MASK) + (n.id if seed_per_switch else 0)) for n in topology.nodes)
        self._pinned = dict(pinned or {})
        self._is_host = tuple(n.kind == "host" for n in topology.nodes)
        self._peer_node = tuple(topology.port_node(p ^ 1) for p in range(topology.n_ports))
        self._next_ports: dict[int, tuple[tuple[int, ...], ...]] = {}

    def next_ports(self, switch: int) -> tuple[tuple[int, ...], ...]:
        """Per node, its egress ports on shortest paths towards `switch`, in increasing order; empty where there is
        none.
        """
        table = self._next_ports.get(switch)
        if table is None:
            table = self._next_ports[switch] = self._towards(switch)
        return table

    def _towards(self, switch: int) -> tuple[tuple[int, ...], ...]:
        topology = self.topology
        distance = [-1] * len(topology.nodes)
        distance[switch] = 0
        frontier = deque([switch])
        while frontier:
            node = frontier.popleft()
            for port in topology.ports_of[node]:
                peer = self._peer_node[port]
                if distance[peer] < 0 and not self._is_host[peer]:
                    distance[peer] = distance[node] + 1
                    frontier.append(peer)
        return tuple(
            tuple(
                p
                for p in topology.ports_of[n]
                if not self._is_host[self._peer_node[p]] and distance[self._peer_node[p]] == d - 1
            )
            if (d := distance[n]) > 0
            else ()
            for n in range(len(topology.nodes))
        )

    def path(self, src_port: int, dst_port: int, udp_sport: int) -> tuple[int, ...]:
        """The egress ports that a packet leaves through, in order, beginning with `src_port`.

        Raises
        ------
        InputError : no path leads from one to the other.
        """
        if dst_port == src_port ^ 1:
            return (src_port,)
        pinned = self._pinned.get((src_port, dst_port, udp_sport))
        if pinned is not None:
            return pinned
        node, last = self._peer_node[src_port], self._peer_node[dst_port]
        if self._is_host[node] or self._is_host[last]:
            raise self._no_path(src_port, dst_port)
        key = flow_key(src_port, dst_port, udp_sport)
        table = self.next_ports(last)
        path = [src_port]
        while node != last:
            group = table[node]
            if not group:
                raise self._no_path(src_port, dst_port)
            port = group[ecmp_choice(key, self.switch_seeds[node], len(group))]
            path.append(port)
            node = self._peer_node[port]
        path.append(dst_port ^ 1)
        return tuple(path)

    def check_connected(self, ports: Iterable[int]) -> None:
        """Raise InputError unless every two of `ports` have a path in both directions."""
        ports = list(ports)
        for src in ports:
            for dst in ports:
                if src != dst:
                    first, last = self._peer_node[src], self._peer_node[dst]
                    if self._is_host[first] or self._is_host[last]:
                        if dst != src ^ 1:
                            raise self._no_path(src, dst)
                    elif first != last and not self.next_ports(last)[first]:
                        raise self._no_path(src, dst)

    def _no_path(self, src_port: int, dst_port: int) -> InputError:
        names = [self.topology.nodes[self.topology.port_node(p)].name for p in (src_port, dst_port)]
        return InputError(
            f"no path from {names[0]} to {names[1]}; every two hosts must be connected through switches",
            source=f"topology {self.topology.name}",
        )


def queue_pair_flows(
    flow: KVFlow, *, striping: Literal["single", "per-rank"], queue_pairs: int
) -> tuple[QueuePairFlow, ...]:
    """Split a transfer over its queue pairs: `queue_pairs` on the first NIC (`single`) or on every NIC (`per-rank`).

    The bytes are shared as evenly as whole bytes allow, the larger shares first; an empty share makes no queue pair.
    """
    nics = list(zip(flow.src_ports, flow.dst_ports, strict=True))
    if striping == "single":
        nics = nics[:1]
    lanes = [nic for nic in nics for _ in range(queue_pairs)]
    share, extra = divmod(flow.size_bytes, len(lanes))
    salt = mix64(flow.path_seed & _MASK) ^ mix64(
        flow.id * 4 + ("control", "kv", "background").index(flow.traffic_class)
    )
    flows = []
    for k, (src, dst) in enumerate(lanes):
        size = share + (k < extra)
        if size:
            sport = _SPORT_FIRST + mix64(salt + k) % _SPORT_COUNT
            flows.append(QueuePairFlow(flow.id, flow.traffic_class, src, dst, size, sport))
    return tuple(flows)


def serialisation_ps(wire_bytes: int, rate_bps: int, rounding: Literal["ps", "ns"] = "ps") -> int:
    """Time to put `wire_bytes` on a link, rounded half up once [ps]."""
    unit = 1 if rounding == "ps" else 1000
    numerator, denominator = wire_bytes * 8 * 10**12, rate_bps * unit
    return (2 * numerator + denominator) // (2 * denominator) * unit


def ideal_fct_ps(
    topology: Topology, path: tuple[int, ...], reverse_path: tuple[int, ...], size_bytes: int, settings: NetworkSettings
) -> int:
    """Completion time of a flow alone at line rate: from its start to the arrival of the ACK of its last byte [ps].

    Every packet follows the one before it as closely as the links allow (store and forward): the last packet leaves
    link i when it has arrived there whole and link i has finished the packet before it.
    """
    framing, payload = settings.framing, settings.transport.payload_bytes
    full, rest = divmod(size_bytes, payload)
    sizes = [payload] * min(full, 1) + ([rest] if rest else [])
    n_full = full
    finish = _train_end_ps(topology, path, n_full, sizes, framing, payload)
    for port in reverse_path:
        link = topology.links[port >> 1]
        finish += serialisation_ps(framing.ack + framing.wire_gap, link.rate_bps, framing.rounding) + link.delay_ps
    return finish


def _train_end_ps(
    topology: Topology, path: tuple[int, ...], n_full: int, sizes: list[int], framing: Framing, payload: int
) -> int:
    """When the last packet of a back-to-back train (`n_full` full packets, then perhaps a short one) reaches the end of
    `path`.
    """
    overhead = framing.data_overhead + framing.wire_gap
    first = 0  # arrival of the first full packet at the input of the present link
    last_full = 0  # and of the last full packet
    short = 0  # and of the short packet
    for hop, port in enumerate(path):
        link = topology.links[port >> 1]
        ser_full = serialisation_ps(payload + overhead, link.rate_bps, framing.rounding)
        end_full = 0
        if n_full:
            # Equal packets on a link: the train leaves either at the pace at which it came or at the link's own.
            end_full = max(first + n_full * ser_full, last_full + ser_full)
            first = first + ser_full + link.delay_ps
            last_full = end_full + link.delay_ps
        if not n_full or sizes[-1] != payload:
            ser_short = serialisation_ps(sizes[-1] + overhead, link.rate_bps, framing.rounding)
            short = max(end_full, short if hop else 0) + ser_short + link.delay_ps
    return short if (not n_full or sizes[-1] != payload) else last_full
