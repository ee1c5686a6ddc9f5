from __future__ import annotations

from typing import Any

import pytest

from harness.types import TierFacts
from topologies.fat_tree import FatTree
from topologies.k_ary import KAry
from topologies.leaf_spine import LeafSpine
from topologies.placement import Mixed, PrefillRacks, place
from topologies.tiers import tier_facts

GBPS, US = 10**9, 10**6

#: NVLink 450 GB/s and 1 us; 100 G, over 2 and over 4; 2 x 1.5, 2 x (1.5 + 2.5) and 2 x (1.5 + 2.5 + 3.5) us.
PAPER = TierFacts((3600 * GBPS, 100 * GBPS, 50 * GBPS, 25 * GBPS), (1 * US, 3 * US, 8 * US, 15 * US))


@pytest.mark.parametrize("by", ["thin", "fewer"])
def test_tiers_of_the_paper_whichever_way_oversubscription_is_brought_about(by: Any) -> None:
    builder = FatTree(tor_oversubscription=2, agg_oversubscription=2, oversubscribe_by=by)
    assert tier_facts(place(builder, PrefillRacks())) == PAPER


def test_spare_capacity_below_a_narrow_level_does_not_widen_it() -> None:
    """ToR 4:1 (C_2 = 400 of C_1 = 1600 Gb/s), aggregation 1:4 (C_3 = 1600): 25 Gb/s from tier 2 on."""
    cluster = place(FatTree(tor_oversubscription=4, agg_oversubscription=0.25), PrefillRacks())
    assert tier_facts(cluster).bandwidth_bps == (3600 * GBPS, 100 * GBPS, 25 * GBPS, 25 * GBPS)


def test_without_oversubscription_every_tier_has_the_nic_rate() -> None:
    facts = tier_facts(place(KAry(link_rate=10 * GBPS), Mixed()))
    # One instance a server: nothing is in tier 0, which stands in for tier 1.
    assert facts.bandwidth_bps == (10 * GBPS,) * 4
    assert facts.latency_ps == (3 * US, 3 * US, 8 * US, 15 * US)


def test_a_fabric_of_two_levels_has_no_tier_3() -> None:
    facts = tier_facts(place(LeafSpine(oversubscription=2), PrefillRacks()))
    assert facts == TierFacts((3600 * GBPS, 100 * GBPS, 50 * GBPS, 0), (1 * US, 3 * US, 8 * US, 0))


def test_a_striped_transfer_uses_all_nics_of_an_instance() -> None:
    cluster = place(FatTree(nics_per_instance=4, tor_oversubscription=2), PrefillRacks())
    assert tier_facts(cluster).bandwidth_bps[1:3] == (100 * GBPS, 50 * GBPS)
    assert tier_facts(cluster, all_nics=True).bandwidth_bps[1:3] == (400 * GBPS, 200 * GBPS)


def test_overrides_make_a_wrong_oracle() -> None:
    cluster = place(FatTree(tor_oversubscription=2, agg_oversubscription=2), PrefillRacks())
    facts = tier_facts(cluster, bandwidth_bps={2: 7}, latency_ps={0: 0, 3: 9})
    assert facts == TierFacts((3600 * GBPS, 100 * GBPS, 7, 25 * GBPS), (0, 3 * US, 8 * US, 9))
