from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import InputError
from harness.types import Cluster, Link, Node, Role, Topology
from topologies.fat_tree import FatTree
from topologies.placement import Mixed, PlacementList, PrefillRacks, place, slots


def pairs_by_tier(cluster: Cluster) -> Counter[int]:
    return Counter(cluster.tier(p, d) for p in cluster.prefill for d in cluster.decode)


def test_prefill_racks_gives_the_tier_shares_of_the_paper() -> None:
    """Rack 0 (4 instances) prefills; 4 of the 12 others are in its pod: 16 of 48 pairs, 33.3 %, none nearer."""
    cluster = place(FatTree(), PrefillRacks())
    assert cluster.prefill == (0, 1, 2, 3)
    assert cluster.decode == tuple(range(4, 16))
    assert pairs_by_tier(cluster) == {2: 16, 3: 32}


def test_prefill_racks_are_taken_from_the_pods_in_turn() -> None:
    cluster = place(FatTree(), PrefillRacks(racks=3))
    # Racks 0 and 2 first, the first of either pod, then rack 1; four instances a rack.
    assert cluster.decode == (12, 13, 14, 15)


def test_mixed_uses_every_tier() -> None:
    cluster = place(FatTree(), Mixed())
    assert cluster.prefill == (3, 7, 11, 15)
    # Each of the 4 has 1 decode neighbour on its server, 2 on the rack's other server, 3 in the other rack, 6 beyond.
    assert pairs_by_tier(cluster) == {0: 4, 1: 8, 2: 12, 3: 24}


def test_list() -> None:
    cluster = place(FatTree(), PlacementList(prefill=(5, 2)))
    assert cluster.prefill == (2, 5)
    assert len(cluster.decode) == 14


def test_instances_own_ports_in_the_order_of_the_hosts_links() -> None:
    """Two servers of 4 instances (2 GPUs) with 2 NICs each: links 0-7 and 8-15 are NICs, 16-21 and 22-27 NVLinks."""
    builder = FatTree(pods=1, racks_per_pod=1, gpus_per_instance=2, nics_per_instance=2)
    cluster = place(builder, PlacementList(prefill=(0,)))
    assert [i.host for i in cluster.instances] == [0] * 4 + [1] * 4
    assert [i.nic_ports for i in cluster.instances] == [
        (0, 2), (4, 6), (8, 10), (12, 14), (16, 18), (20, 22), (24, 26), (28, 30),
    ]  # fmt: skip
    # Pairs (0,1), (0,2), (0,3), (1,2), (1,3), (2,3) have links 16 to 21; the port at a link's first end is 2 x its id.
    assert [dict(i.nvlink_ports) for i in cluster.instances[:4]] == [
        {1: 32, 2: 34, 3: 36},
        {0: 33, 2: 38, 3: 40},
        {0: 35, 1: 39, 3: 42},
        {0: 37, 1: 41, 2: 43},
    ]
    assert dict(cluster.instances[4].nvlink_ports) == {5: 44, 6: 46, 7: 48}


@given(st.integers(1, 2), st.integers(1, 3), st.sampled_from([1, 2, 4, 8]), st.integers(1, 3))
def test_every_host_port_belongs_to_exactly_one_instance(racks: int, servers: int, gpus: int, nics: int) -> None:
    builder = FatTree(racks_per_pod=racks, servers_per_rack=servers, gpus_per_instance=gpus, nics_per_instance=nics)
    topology = builder.build()
    owned = [
        port
        for slot in slots(topology, gpus_per_server=8, gpus_per_instance=gpus)
        for port in (*slot.nic_ports, *slot.nvlink_ports.values())
    ]
    on_hosts = [port for node in topology.nodes if node.kind == "host" for port in topology.ports_of[node.id]]
    assert sorted(owned) == sorted(on_hosts)


def test_fewer_instances_than_slots_are_the_first_ones() -> None:
    cluster = place(FatTree(), PrefillRacks(), instances=5)
    assert [(i.id, i.role) for i in cluster.instances] == [
        (0, "prefill"), (1, "prefill"), (2, "prefill"), (3, "prefill"), (4, "decode"),
    ]  # fmt: skip
    # The server's second slot is empty, so nobody is at the other end of its NVLink.
    assert cluster.instances[4].nvlink_ports == {}


class AllPrefill:
    def roles(self, topology: Topology, hosts: Sequence[int]) -> Sequence[Role]:
        return ["prefill"] * len(hosts)


class TooFew:
    def roles(self, topology: Topology, hosts: Sequence[int]) -> Sequence[Role]:
        return ["prefill", "decode"]


@pytest.mark.parametrize(
    ("placement", "instances", "message"),
    [
        (
            PrefillRacks(),
            17,
            "cluster.instances: given 17: topology fat-tree has 64 GPUs, room for 16 instances of 4 GPUs",
        ),
        (
            PrefillRacks(racks=4),
            None,
            "placement.racks: given 4: must leave a rack to decode; the instances stand in 4",
        ),
        (PrefillRacks(), 4, "placement.racks: given 1: must leave a rack to decode; the instances stand in 1"),
        (Mixed(prefill_share=0.01), None, "cluster.placement: leaves no prefill instance among the 16 on fat-tree"),
        (
            PlacementList(prefill=(16,)),
            None,
            "placement.prefill: there is no instance 16: topology fat-tree has 0 to 15",
        ),
        (AllPrefill(), None, "cluster.placement: leaves no decode instance among the 16 on fat-tree"),
        (TooFew(), None, "cluster.placement: gives 2 roles for 16 instances"),
    ],
)
def test_refused(placement: Any, instances: int | None, message: str) -> None:
    with pytest.raises(InputError) as caught:
        place(FatTree(), placement, instances)
    assert str(caught.value) == message


def fabric(links: list[tuple[int, int]]) -> Topology:
    nodes = (Node(0, "host0", "host"), Node(1, "tor0", "tor"))
    return Topology("lab", nodes, tuple(Link(i, a, b, 1, 1, int(a != b)) for i, (a, b) in enumerate(links)))


@pytest.mark.parametrize(
    ("links", "message"),
    [
        ([(0, 1)], "host0 has 1 NICs: its 2 instances need equally many each"),
        ([(0, 0)], "host0 has 0 NICs: its 2 instances need equally many each"),
        ([(0, 1), (1, 0), (0, 0), (0, 0)], "host0 has 2 NVLinks: 2 instances need 1 or none"),
    ],
)
def test_ports_that_do_not_divide(links: list[tuple[int, int]], message: str) -> None:
    with pytest.raises(InputError) as caught:
        slots(fabric(links), gpus_per_server=8, gpus_per_instance=4)
    assert str(caught.value) == message


def test_a_nic_may_be_either_end_of_its_link() -> None:
    first, second = slots(fabric([(0, 1), (1, 0)]), gpus_per_server=8, gpus_per_instance=4)
    assert (first.nic_ports, second.nic_ports) == ((0,), (3,))
    assert (first.nvlink_ports, second.nvlink_ports) == ({}, {})
