"""The constant background: what it takes of the links, and what it refuses."""

from __future__ import annotations

import pytest

from harness.backgrounds.constant import ConstantBackground
from harness.errors import InputError
from harness.interfaces import Background
from harness.types import Cluster, Instance, Topology


def cluster_on(topology: Topology) -> Cluster:
    return Cluster(topology, tuple(Instance(i, "decode", i, 4, (2 * i,), {}) for i in range(3)))


def test_takes_its_share_and_has_no_flows(eight_hosts: Topology) -> None:
    background: Background = ConstantBackground(share={2: 0.05, 3: 0.99}, cluster=cluster_on(eight_hosts))
    assert background.taken_share == {2: 0.05, 3: 0.99}
    assert list(background.flows()) == []


@pytest.mark.parametrize(
    ("share", "message"),
    [
        ({0: 0.1}, "background.share: tier 0 given; allowed: 1 (host links), 2, 3"),
        ({2: 0.991}, "background.share.2: 0.991 given; a share in [0, 0.99]"),
        ({3: -0.1}, "background.share.3: -0.1 given; a share in [0, 0.99]"),
    ],
)
def test_shares_that_cannot_be(eight_hosts: Topology, share: dict[int, float], message: str) -> None:
    with pytest.raises(InputError) as caught:
        ConstantBackground(share=share, cluster=cluster_on(eight_hosts))
    assert str(caught.value) == message


def test_a_tier_without_links(three_hosts: Topology) -> None:
    ConstantBackground(share={1: 0.5, 3: 0.0}, cluster=cluster_on(three_hosts))
    with pytest.raises(InputError) as caught:
        ConstantBackground(share={3: 0.05}, cluster=cluster_on(three_hosts))
    assert str(caught.value) == "background.share.3: 0.05 given; the topology has links of tiers [1] only"
