from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from harness.errors import InputError
from harness.types import Link, Topology
from topologies.fat_tree import FatTree
from topologies.k_ary import KAry
from topologies.leaf_spine import LeafSpine

GBPS = 10**9

PAPER: dict[str, Any] = {"tor_oversubscription": 2, "agg_oversubscription": 2}


def links_by_tier(topology: Topology) -> Counter[tuple[int, int, int]]:
    return Counter((link.tier, link.rate_bps, link.delay_ps) for link in topology.links)


def test_paper_shape() -> None:
    """2 pods x 2 racks x 2 servers x 2 instances of one 100G NIC; both levels of uplinks halve the capacity.

    ToR: 4 x 100G down, so 4 uplinks of 50G. Aggregation: 2 racks x 50G down, so 2 uplinks of 25G.
    """
    topology = FatTree(**PAPER).build()
    assert Counter(node.kind for node in topology.nodes) == {"host": 8, "tor": 4, "agg": 8, "core": 8}
    assert links_by_tier(topology) == {
        (1, 100 * GBPS, 1_500_000): 16,
        (0, 3600 * GBPS, 1_000_000): 8,
        (2, 50 * GBPS, 2_500_000): 16,  # 4 ToRs x 4
        (3, 25 * GBPS, 3_500_000): 16,  # 8 aggregation switches x 2
    }


def test_ids_places_and_names() -> None:
    topology = FatTree(**PAPER).build()
    assert [node.id for node in topology.nodes] == list(range(28))
    assert [link.id for link in topology.links] == list(range(56))
    assert [node.kind for node in topology.nodes] == ["host"] * 8 + ["tor"] * 4 + ["agg"] * 8 + ["core"] * 8
    assert [(n.rack, n.pod) for n in topology.nodes[:8]] == [
        (0, 0), (0, 0), (1, 0), (1, 0), (2, 1), (2, 1), (3, 1), (3, 1),
    ]  # fmt: skip
    assert [(n.name, n.rack, n.pod) for n in topology.nodes[8:12]] == [
        ("tor0", 0, 0), ("tor1", 1, 0), ("tor2", 2, 1), ("tor3", 3, 1),
    ]  # fmt: skip
    assert [n.pod for n in topology.nodes[12:]] == [0] * 4 + [1] * 4 + [-1] * 8
    assert topology.links[0] == Link(0, 0, 8, 100 * GBPS, 1_500_000, 1)
    assert topology.links[16] == Link(16, 0, 0, 3600 * GBPS, 1_000_000, 0)
    assert topology.links[24] == Link(24, 8, 12, 50 * GBPS, 2_500_000, 2)
    # Aggregation switch 2 (id 14) of pod 0 is in plane 2: cores 4 and 5, ids 24 and 25.
    assert [link.b for link in topology.links if link.a == 14] == [24, 25]
    # So is aggregation switch 6 (id 18) of pod 1.
    assert [link.b for link in topology.links if link.a == 18] == [24, 25]


def test_fewer_uplinks_carry_the_same_capacity_and_leave_unused_switches_out() -> None:
    """2 of 4 uplinks of 100G reach 2 aggregation switches a pod; each has 1 of 2 uplinks of 100G, to one core."""
    topology = FatTree(**PAPER, oversubscribe_by="fewer").build()
    assert Counter(node.kind for node in topology.nodes) == {"host": 8, "tor": 4, "agg": 4, "core": 2}
    assert links_by_tier(topology) == {
        (1, 100 * GBPS, 1_500_000): 16,
        (0, 3600 * GBPS, 1_000_000): 8,
        (2, 100 * GBPS, 2_500_000): 8,
        (3, 100 * GBPS, 3_500_000): 4,
    }
    assert all(topology.ports_of[node.id] for node in topology.nodes)


def test_one_instance_a_server_has_no_nvlink_and_all_nics_of_the_server() -> None:
    topology = FatTree(gpus_per_instance=8, nics_per_instance=8).build()
    assert [link.tier for link in topology.links].count(0) == 0
    assert [link.tier for link in topology.links].count(1) == 64


def test_four_instances_a_server_have_six_nvlinks() -> None:
    topology = FatTree(pods=1, racks_per_pod=1, servers_per_rack=1, gpus_per_instance=2).build()
    assert [(link.a, link.b) for link in topology.links if link.tier == 0] == [(0, 0)] * 6


def test_given_uplink_rates_and_parallel_uplinks() -> None:
    topology = FatTree(
        aggs_per_pod=2, cores=2, uplinks_per_tor=4, tor_uplink_rate=400 * GBPS, agg_uplink_rate=GBPS
    ).build()
    # ToR 8: two links to each of the aggregation switches 12 and 13, in turn.
    assert [(link.b, link.rate_bps) for link in topology.links if link.a == 8] == [
        (12, 400 * GBPS), (13, 400 * GBPS), (12, 400 * GBPS), (13, 400 * GBPS),
    ]  # fmt: skip
    # One core a plane: both uplinks of aggregation switch 12 lead to core 16.
    assert [(link.b, link.rate_bps) for link in topology.links if link.a == 12] == [(16, GBPS), (16, GBPS)]


def test_a_derived_rate_is_rounded_to_the_bit_per_second() -> None:
    topology = FatTree(tor_oversubscription=3).build()
    # 400 Gb/s / 3 / 4 = 33,333,333,333.33 bit/s
    assert {link.rate_bps for link in topology.links if link.tier == 2} == {33_333_333_333}


def test_k_ary() -> None:
    """k = 4: k^3/4 = 16 servers, k^2/2 = 8 switches at each lower level, k^2/4 = 4 cores, 16 links... of each tier."""
    topology = KAry().build()
    assert Counter(node.kind for node in topology.nodes) == {"host": 16, "tor": 8, "agg": 8, "core": 4}
    assert Counter((link.tier, link.rate_bps) for link in topology.links) == {
        (1, 100 * GBPS): 16,
        (2, 100 * GBPS): 16,
        (3, 100 * GBPS): 16,
    }
    # Every switch has k ports.
    assert {len(topology.ports_of[node.id]) for node in topology.nodes if node.kind != "host"} == {4}


def test_leaf_spine() -> None:
    topology = LeafSpine(leaves=3, spines=2, servers_per_leaf=4, oversubscription=2).build()
    assert Counter(node.kind for node in topology.nodes) == {"host": 12, "tor": 3, "agg": 2}
    # A leaf has 4 servers x 2 NICs x 100G = 800G down; two uplinks of 200G.
    assert Counter((link.tier, link.rate_bps) for link in topology.links) == {
        (0, 3600 * GBPS): 12,
        (1, 100 * GBPS): 24,
        (2, 200 * GBPS): 6,
    }
    assert {node.pod for node in topology.nodes} == {0}


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: FatTree(gpus_per_instance=3),
            "cluster.gpus_per_instance: 3 GPUs per instance do not divide the 8 GPUs of a server",
        ),
        (lambda: FatTree(cores=6), "topology.cores: given 6: must be a multiple of aggs_per_pod, 4"),
        (
            lambda: FatTree(uplinks_per_tor=6),
            "topology.uplinks_per_tor: 6 links do not spread evenly over the 4 switches above",
        ),
        (
            lambda: FatTree(uplinks_per_agg=3),
            "topology.uplinks_per_agg: 3 links do not spread evenly over the 2 switches above",
        ),
        (
            lambda: FatTree(tor_oversubscription=3, oversubscribe_by="fewer"),
            (
                "topology.tor_oversubscription: 4 uplinks cannot be made fewer by 3: no whole number is left; "
                "choose another ratio, or oversubscribe_by: thin"
            ),
        ),
        (
            lambda: FatTree(tor_oversubscription=2, tor_uplink_rate=1),
            "topology.tor_uplink_rate: give either tor_uplink_rate or tor_oversubscription, not both",
        ),
        (lambda: KAry(k=5), "topology.k: given 5: must be even"),
        (
            lambda: LeafSpine(uplinks_per_leaf=6),
            "topology.uplinks_per_leaf: 6 links do not spread evenly over the 4 switches above",
        ),
    ],
)
def test_refused(build: Any, message: str) -> None:
    with pytest.raises(InputError) as caught:
        build()
    assert str(caught.value) == message
