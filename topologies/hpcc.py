"""Reads the topology and flow text files of the HPCC family of simulators (Li et al., SIGCOMM 2019,
doi:10.1145/3341302.3342085).

Topology: ``nodes switches links``; then the switch ids; then a line ``a b rate delay error_rate`` per link. Flows:
their number; then a line ``src dst priority_group dst_port size_bytes start_s`` per flow. As in that family, text
after the announced number of lines is a note and is not read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from harness.errors import InputError
from harness.types import Link, Node, Topology
from harness.units import parse_duration, parse_rate
from topologies.fat_tree import Count

_LINK_FIELDS = "a b rate delay error_rate"
_FLOW_FIELDS = "src dst priority_group dst_port size_bytes start_s"


@dataclass(frozen=True, slots=True)
class TextFlow:
    """A line of a flow file; `start_ps` [ps]."""

    src: int
    dst: int
    priority_group: int
    dst_port: int
    size_bytes: int
    start_ps: int


class Hpcc:
    """A topology in the text format of the HPCC family; node ids stay as they are.

    The level of a switch is its distance from the nearest host. Hosts on one first-level switch are one rack, racks
    that are connected without a third level are one pod. A link's tier is the level of its upper end, one more where
    both ends are of one level, at most 3.

    Parameters
    ----------
    path : of the file.
    gpus_per_server, gpus_per_instance : a host holds gpus_per_server / gpus_per_instance instances, among which its
        links are divided in the file's order; there is no NVLink.

    Raises
    ------
    InputError : no such file, or a line that cannot be read (with its number).
    """

    def __init__(self, *, path: str, gpus_per_server: Count = 4, gpus_per_instance: Count = 4) -> None:
        self.gpus_per_server, self.gpus_per_instance = gpus_per_server, gpus_per_instance
        self._topology = read_topology(Path(path))

    def build(self) -> Topology:
        """The file's nodes and links, under the file's ids and in its order."""
        return self._topology


def read_topology(path: Path) -> Topology:
    """Read a topology file.

    Raises
    ------
    InputError : no such file, or a line that cannot be read (with its number).
    """
    lines = _Lines(path)
    n_nodes, n_switches, n_links = lines.integers(3, "nodes switches links")
    switches: set[int] = set()
    while len(switches) < n_switches:
        for field in lines.fields("switch ids"):
            switch = lines.integer(field, "switch id", n_nodes)
            if switch in switches:
                raise lines.error(f"switch {switch} is listed twice")
            switches.add(switch)
        if len(switches) > n_switches:
            raise lines.error(f"{len(switches)} switch ids, but line 1 announces {n_switches}")
    cables = [_read_link(lines, n_nodes) for _ in range(n_links)]
    if lines.looks_like_more(_LINK_FIELDS):
        raise lines.error(f"more links than the {n_links} that line 1 announces")
    return _arranged(path.name, n_nodes, switches, cables)


def read_flows(path: Path, topology: Topology) -> tuple[TextFlow, ...]:
    """Read a flow file whose ends are hosts of `topology`; flows in the file's order.

    Raises
    ------
    InputError : no such file, or a line that cannot be read (with its number).
    """
    lines = _Lines(path)
    (n_flows,) = lines.integers(1, "number of flows")
    flows = [_read_flow(lines, topology) for _ in range(n_flows)]
    if lines.looks_like_more(_FLOW_FIELDS):
        raise lines.error(f"more flows than the {n_flows} that line 1 announces")
    return tuple(flows)


class _Lines:
    """The lines of a file that hold anything, with the number of the present one for messages."""

    def __init__(self, path: Path) -> None:
        self._path, self._number = path, 0
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"cannot be read: {error}", source=str(path)) from error
        self._rest: Iterator[tuple[int, str]] = (
            (number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()
        )

    def error(self, message: str) -> InputError:
        return InputError(message, source=f"{self._path}:{self._number}")

    def fields(self, what: str, count: int | None = None) -> list[str]:
        """The fields of the next line."""
        number, line = next(self._rest, (None, ""))
        if number is None:
            self._number += 1
            raise self.error(f"the file ends where '{what}' should stand")
        self._number = number
        fields = line.split()
        if count is not None and len(fields) != count:
            raise self.error(f"{len(fields)} fields where '{what}' should stand: {line.strip()!r}")
        return fields

    def integers(self, count: int, what: str) -> list[int]:
        return [self.integer(field, what) for field in self.fields(what, count)]

    def integer(self, field: str, what: str, below: int | None = None) -> int:
        if not (field.isascii() and field.isdigit()):
            raise self.error(f"{what}: given {field!r}, must be a whole number")
        if below is not None and int(field) >= below:
            raise self.error(f"{what}: given {field}, must be below the number of nodes, {below}")
        return int(field)

    def looks_like_more(self, what: str) -> bool:
        """Whether the next line has the shape of another entry (a note after the end has not)."""
        number, line = next(self._rest, (self._number, ""))
        fields = line.split()
        self._number = number
        return len(fields) == len(what.split()) and all(field.isdigit() for field in fields[:2])


def _read_link(lines: _Lines, n_nodes: int) -> tuple[int, int, int, int, float]:
    a_text, b_text, rate, delay, loss = lines.fields(_LINK_FIELDS, 5)
    a, b = (lines.integer(text, "node id", n_nodes) for text in (a_text, b_text))
    if a == b:
        raise lines.error(f"a link from node {a} to itself")
    try:
        rate_bps, delay_ps, loss_rate = parse_rate(rate), parse_duration(delay), float(loss)
    except ValueError as error:
        raise lines.error(str(error)) from error
    if rate_bps == 0:
        raise lines.error("the rate of a link must be above 0")
    if not 0 <= loss_rate < 1:
        raise lines.error(f"error rate: given {loss}, must be at least 0 and below 1")
    return a, b, rate_bps, delay_ps, loss_rate


def _read_flow(lines: _Lines, topology: Topology) -> TextFlow:
    src_text, dst_text, group, dst_port, size, start = lines.fields(_FLOW_FIELDS, 6)
    src, dst = (lines.integer(text, "node id", len(topology.nodes)) for text in (src_text, dst_text))
    for node in (src, dst):
        if topology.nodes[node].kind != "host":
            raise lines.error(f"node {node} is a switch; a flow runs between hosts")
    if src == dst:
        raise lines.error(f"a flow from host {src} to itself")
    size_bytes = lines.integer(size, "size_bytes")
    if size_bytes == 0:
        raise lines.error("size_bytes: given 0, must be above 0")
    try:
        start_ps = parse_duration(f"{start}s")
    except InputError as error:
        raise lines.error(f"start_s: given {start!r}, must be a time in seconds in whole picoseconds") from error
    return TextFlow(
        src, dst, lines.integer(group, "priority_group"), lines.integer(dst_port, "dst_port"), size_bytes, start_ps
    )


def _arranged(name: str, n_nodes: int, switches: set[int], cables: list[tuple[int, int, int, int, float]]) -> Topology:
    """Nodes with rack and pod, and links with tier, from the levels of the switches."""
    peers: list[list[int]] = [[] for _ in range(n_nodes)]
    for a, b, *_ in cables:
        peers[a].append(b)
        peers[b].append(a)
    level = [-1 if node in switches else 0 for node in range(n_nodes)]
    frontier = deque(node for node in range(n_nodes) if level[node] == 0)
    while frontier:
        node = frontier.popleft()
        for peer in peers[node]:
            if level[peer] < 0:
                level[peer] = level[node] + 1
                frontier.append(peer)
    pods = _components(peers, [node for node in range(n_nodes) if 0 < level[node] <= 2])
    racks = {switch: rack for rack, switch in enumerate(n for n in range(n_nodes) if level[n] == 1)}
    nodes = []
    for node in range(n_nodes):
        if node in switches:
            nodes.append(Node(node, f"switch{node}", "switch", pods.get(node, -1), racks.get(node, -1)))
        else:
            first = next((peer for peer in peers[node] if peer in racks), -1)
            nodes.append(Node(node, f"host{node}", "host", pods.get(first, -1), racks.get(first, -1)))
    links = tuple(
        Link(i, a, b, rate_bps, delay_ps, min(3, max(1, max(level[a], level[b]) + (level[a] == level[b]))), loss_rate)
        for i, (a, b, rate_bps, delay_ps, loss_rate) in enumerate(cables)
    )
    return Topology(name, tuple(nodes), links)


def _components(peers: list[list[int]], members: list[int]) -> dict[int, int]:
    """Connected components of the graph on `members`, numbered by their lowest member."""
    component: dict[int, int] = {}
    inside = set(members)
    found = 0
    for start in members:
        if start in component:
            continue
        component[start] = found
        frontier = deque([start])
        while frontier:
            for peer in peers[frontier.popleft()]:
                if peer in inside and peer not in component:
                    component[peer] = found
                    frontier.append(peer)
        found += 1
    return component
