from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from harness.errors import InputError
from harness.types import Link, Node
from topologies.hpcc import Hpcc, TextFlow, read_flows, read_topology

#: Hosts 1, 2, 4 and switches 0, 3: 1 and 2 on switch 0, 4 on switch 3.
TOPOLOGY = """5 2 4
0 3
1 0 100Gbps 1000ns 0.000000
2 0 100Gbps 1us 0.01

3 4 25Gbps 0.001ms 0
0 3 40Gbps 2us 0
node 0 is the ToR of the test bed
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "lab.topo.txt"
    path.write_text(TOPOLOGY)
    return path


def test_topology_keeps_ids_and_order(file: Path) -> None:
    topology = Hpcc(path=str(file)).build()
    assert topology.name == "lab.topo.txt"
    assert topology.nodes == (
        Node(0, "switch0", "switch", pod=0, rack=0),
        Node(1, "host1", "host", pod=0, rack=0),
        Node(2, "host2", "host", pod=0, rack=0),
        Node(3, "switch3", "switch", pod=0, rack=1),
        Node(4, "host4", "host", pod=0, rack=1),
    )
    assert topology.links == (
        Link(0, 1, 0, 100 * 10**9, 10**6, 1),
        Link(1, 2, 0, 100 * 10**9, 10**6, 1, 0.01),
        Link(2, 3, 4, 25 * 10**9, 10**6, 1),
        Link(3, 0, 3, 40 * 10**9, 2 * 10**6, 2),
    )


def test_reference_fat_tree(reference_dir: Path) -> None:
    """64 hosts, 16 ToRs, 8 aggregation switches, 4 cores: 64 host links, 16 x 2 and 8 x 4 uplinks, 4 pods."""
    topology = read_topology(reference_dir / "W3_fattree_perm.topo.txt")
    assert Counter(link.tier for link in topology.links) == {1: 64, 2: 32, 3: 32}
    assert [topology.nodes[host].rack for host in (0, 3, 4, 63)] == [0, 0, 1, 15]
    assert [topology.nodes[host].pod for host in (0, 15, 16, 63)] == [0, 0, 1, 3]
    assert [topology.nodes[node].pod for node in (64, 80, 81, 82, 88)] == [0, 0, 0, 1, -1]
    flows = read_flows(reference_dir / "W3_fattree_perm.flow.txt", topology)
    assert flows[0] == TextFlow(0, 17, 3, 100, 20_000_000, 10**9)
    assert [(flow.src, flow.dst) for flow in flows] == [(i, (i + 17) % 64) for i in range(64)]


def edited(file: Path, old: str, new: str) -> Path:
    assert old in TOPOLOGY
    file.write_text(TOPOLOGY.replace(old, new))
    return file


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("5 2 4", "5 2", 1, "2 fields where 'nodes switches links' should stand: '5 2'"),
        ("5 2 4", "5 two 4", 1, "nodes switches links: given 'two', must be a whole number"),
        ("0 3\n1", "0\n1", 3, "switch 0 is listed twice"),
        ("0 3\n1", "0 3 4\n1", 2, "3 switch ids, but line 1 announces 2"),
        ("0 3\n1", "0 0\n1", 2, "switch 0 is listed twice"),
        ("0 3\n1", "0 5\n1", 2, "switch id: given 5, must be below the number of nodes, 5"),
        ("1us 0.01", "1us", 4, "4 fields where 'a b rate delay error_rate' should stand: '2 0 100Gbps 1us'"),
        ("1us 0.01", "1us 1", 4, "error rate: given 1, must be at least 0 and below 1"),
        ("1us 0.01", "1us x", 4, "could not convert string to float: 'x'"),
        ("3 4 25Gbps", "3 9 25Gbps", 6, "node id: given 9, must be below the number of nodes, 5"),
        ("3 4 25Gbps", "3 3 25Gbps", 6, "a link from node 3 to itself"),
        ("3 4 25Gbps", "3 4 0Gbps", 6, "the rate of a link must be above 0"),
        (
            "3 4 25Gbps",
            "3 4 25GB",
            6,
            (
                "'25GB' has the unit 'GB' (bytes; a rate is in bits: Gbps, 8 times the number); allowed: a rate in "
                'bits per second, such as "400Gbps", "2.5 Gb/s" or a whole number of bit/s'
            ),
        ),
        (
            "0 3 40Gbps 2us 0\nnode 0 is the ToR of the test bed\n",
            "",
            7,
            "the file ends where 'a b rate delay error_rate' should stand",
        ),
        ("node 0 is the ToR of the test bed", "1 3 40Gbps 2us 0", 8, "more links than the 4 that line 1 announces"),
    ],
)
def test_topology_mistakes_name_the_line(file: Path, old: str, new: str, line: int, message: str) -> None:
    with pytest.raises(InputError) as caught:
        read_topology(edited(file, old, new))
    assert str(caught.value) == f"{file}:{line}: {message}"


FLOWS = """2
1 4 3 100 20000 0.001
4 2 3 100 1 0.0000000015
"""


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("1 4 3", "1 0 3", 2, "node 0 is a switch; a flow runs between hosts"),
        ("1 4 3", "1 1 3", 2, "a flow from host 1 to itself"),
        ("1 4 3", "1 5 3", 2, "node id: given 5, must be below the number of nodes, 5"),
        ("20000", "0", 2, "size_bytes: given 0, must be above 0"),
        ("20000", "-7", 2, "size_bytes: given '-7', must be a whole number"),
        ("0.001", "-0.001", 2, "start_s: given '-0.001', must be a time in seconds in whole picoseconds"),
        (
            " 0.001",
            "",
            2,
            "5 fields where 'src dst priority_group dst_port size_bytes start_s' should stand: '1 4 3 100 20000'",
        ),
        ("2\n1", "3\n1", 4, "the file ends where 'src dst priority_group dst_port size_bytes start_s' should stand"),
        ("2\n1", "1\n1", 3, "more flows than the 1 that line 1 announces"),
    ],
)
def test_flow_mistakes_name_the_line(file: Path, old: str, new: str, line: int, message: str) -> None:
    assert old in FLOWS
    path = file.with_name("lab.flow.txt")
    path.write_text(FLOWS.replace(old, new, 1))
    with pytest.raises(InputError) as caught:
        read_flows(path, read_topology(file))
    assert str(caught.value) == f"{path}:{line}: {message}"


def test_flows(file: Path) -> None:
    path = file.with_name("lab.flow.txt")
    path.write_text(FLOWS + "src dst group port size start\n")
    # 0.001 s = 10^9 ps; 1.5 ns = 1500 ps
    assert read_flows(path, read_topology(file)) == (
        TextFlow(1, 4, 3, 100, 20_000, 10**9),
        TextFlow(4, 2, 3, 100, 1, 1500),
    )


def test_missing_file(tmp_path: Path) -> None:
    path = tmp_path / "absent.txt"
    with pytest.raises(InputError) as caught:
        Hpcc(path=str(path))
    assert str(caught.value) == f"{path}: cannot be read: [Errno 2] No such file or directory: '{path}'"
