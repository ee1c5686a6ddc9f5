"""The fabrics that tests share, and where the figures of the independent simulator lie."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.types import Link, Node, Topology

PROJECT = Path(__file__).resolve().parent.parent

GBPS = 1_000_000_000
US = 1_000_000  # [ps]


def make_three_hosts(rate_bps: int = 100 * GBPS, delay_ps: int = US) -> Topology:
    """Hosts 0, 1, 2 on switch 3; link i joins host i (port 2 i) to the switch (port 2 i + 1)."""
    nodes = (*(Node(i, f"host{i}", "host", pod=0, rack=0) for i in range(3)), Node(3, "tor0", "tor", pod=0, rack=0))
    return Topology("three-hosts", nodes, tuple(Link(i, i, 3, rate_bps, delay_ps, tier=1) for i in range(3)))


def make_eight_hosts(rate_bps: int = 100 * GBPS, delay_ps: int = US) -> Topology:
    """Two pods of two racks of two hosts; two aggregation switches a pod, two cores; every link alike.

    Nodes: hosts 0-7, ToR 8-11, aggregation 12-15, core 16-17. Links: 0-7 host to ToR (host i is port 2 i), 8-15 ToR to
    both aggregations of its pod, 16-23 aggregation to both cores.
    """
    nodes = [Node(i, f"host{i}", "host", pod=i // 4, rack=i // 2) for i in range(8)]
    nodes += [Node(8 + i, f"tor{i}", "tor", pod=i // 2, rack=i) for i in range(4)]
    nodes += [Node(12 + i, f"agg{i}", "agg", pod=i // 2) for i in range(4)]
    nodes += [Node(16 + i, f"core{i}", "core") for i in range(2)]
    ends = [(i, 8 + i // 2, 1) for i in range(8)]
    ends += [(8 + i, 12 + 2 * (i // 2) + j, 2) for i in range(4) for j in range(2)]
    ends += [(12 + i, 16 + j, 3) for i in range(4) for j in range(2)]
    return Topology(
        "eight-hosts", tuple(nodes), tuple(Link(i, a, b, rate_bps, delay_ps, t) for i, (a, b, t) in enumerate(ends))
    )


@pytest.fixture(scope="session")
def three_hosts() -> Topology:
    return make_three_hosts()


@pytest.fixture(scope="session")
def eight_hosts() -> Topology:
    return make_eight_hosts()


@pytest.fixture(scope="session")
def reference_dir() -> Path:
    """Flow completion times of an independent packet-level simulator, kept beside the project."""
    path = PROJECT.parent / "shared" / "reference"
    if not path.is_dir():
        pytest.skip(f"the reference figures are not at {path}")
    return path
