"""Lays out nodes and links of a hierarchical fabric: hosts, ToRs, aggregation switches and cores, in this order."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations

from harness.errors import InputError
from harness.types import Link, Node, NodeKind, Topology

#: NVLink between two instances of one server: 450 GB/s a direction, 1 us (NetKV, arXiv 2606.03910, table of tiers).
NVLINK_RATE_BPS = 3_600_000_000_000
NVLINK_DELAY_PS = 1_000_000

#: One-way cable delays host-ToR, ToR-aggregation, aggregation-core: up and down again they add to the 3, 8 and 15 us
#: of the tiers in NetKV (2 x 1.5, 2 x (1.5 + 2.5), 2 x (1.5 + 2.5 + 3.5)).
NIC_DELAY_PS, TOR_DELAY_PS, AGG_DELAY_PS = 1_500_000, 2_500_000, 3_500_000


class Fabric:
    """Collects nodes and links under consecutive ids."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.links: list[Link] = []

    def add_node(self, name: str, kind: NodeKind, *, pod: int = -1, rack: int = -1) -> int:
        """Add a node and return its id."""
        self.nodes.append(Node(len(self.nodes), name, kind, pod, rack))
        return len(self.nodes) - 1

    def add_link(self, a: int, b: int, rate_bps: int, delay_ps: int, tier: int) -> None:
        """Add a full-duplex link."""
        self.links.append(Link(len(self.links), a, b, rate_bps, delay_ps, tier))

    def add_nvlinks(self, hosts: Iterable[int], instances: int, rate_bps: int, delay_ps: int) -> None:
        """Add an NVLink for every two of the `instances` of each host, in order (0, 1), (0, 2), ..., (1, 2), ..."""
        for host in hosts:
            for _ in combinations(range(instances), 2):
                self.add_link(host, host, rate_bps, delay_ps, 0)

    def topology(self, name: str) -> Topology:
        """What was collected."""
        return Topology(name, tuple(self.nodes), tuple(self.links))


def instances_per_server(gpus_per_server: int, gpus_per_instance: int) -> int:
    """Number of instances that one server holds.

    Raises
    ------
    InputError : the GPUs of a server do not divide into instances.
    """
    if gpus_per_server % gpus_per_instance:
        raise InputError(
            f"{gpus_per_instance} GPUs per instance do not divide the {gpus_per_server} GPUs of a server",
            key="cluster.gpus_per_instance",
        )
    return gpus_per_server // gpus_per_instance
