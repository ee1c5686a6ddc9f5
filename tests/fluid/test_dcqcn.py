"""Senders that recover as DCQCN lets them: closed forms on three hosts, all links 100 Gb/s and 1 us.

The steps of the test settings are given for 25 Gb/s, so they are 20 Mb/s (additive) and 200 Mb/s (hyper) here. The
timer is 300 us; the first increase after a cut only halves the distance to the target.
"""

from __future__ import annotations

import pytest

from harness.errors import InputError
from harness.fluid.dcqcn import MaxMinDcqcn
from harness.network_settings import NetworkSettings
from harness.types import KVFlow, Topology
from tests.fluid.conftest import KEYS

US = 1_000_000  # [ps]


def ends_ps(topology: Topology, settings: NetworkSettings, *packets: int) -> list[int]:
    """Ends of flows of so many packets from hosts 0, 1, ... to host 2, without the 2 us of propagation."""
    model = MaxMinDcqcn(topology, settings, seed=1)
    for i, n in enumerate(packets):
        model.start(KVFlow(i, "kv", (2 * i,), (4,), 4096 * n), 0)
    return [int(end) - 2 * US for end in model.run().flows.end_ps]


def test_a_flow_alone_keeps_the_line_rate(three_hosts: Topology, settings: NetworkSettings) -> None:
    assert ends_ps(three_hosts, settings, 1000) == [1000 * 4178 * 80]


def test_a_flow_climbs_when_another_has_gone(three_hosts: Topology, settings: NetworkSettings) -> None:
    """600 packets at 50 Gb/s end after 401.088 us, one timer period; the target of 100 Gb/s has come half way: 75.

    From then on flow 0 has 50 Gb/s for a period, (50 + 75) / 2 = 62.5 Gb/s for a second one and, with a target of
    75.02, 68.76 Gb/s in the third: of its 56,820,800 bits 20,054,400 + 15,000,000 + 18,750,000 are gone by then.
    """
    gone_ps = 401_088_000
    first, second = ends_ps(three_hosts, settings, 1700, 600)
    assert second == gone_ps
    assert first == gone_ps + 2 * 300 * US + round(3_016_400e12 / 68.76e9)


def test_a_flow_that_ends_before_the_first_increase_loses_half_of_the_line(
    three_hosts: Topology, settings: NetworkSettings
) -> None:
    first, second = ends_ps(three_hosts, settings, 1000, 600)
    assert (first, second) == (1000 * 4178 * 160, 600 * 4178 * 160)


def test_a_clamped_target_leaves_nothing_to_recover_fast(three_hosts: Topology) -> None:
    """Increases are applied once they add up to 1 %: targets 50, 50.02, 50.22, 50.42, 50.62, 50.82 Gb/s.

    The rate follows them half way: 50, 50.01, 50.115, 50.2675, 50.44375, 50.631875 Gb/s, the first above 50.5.
    """
    clamped = NetworkSettings(**KEYS | {"cc": KEYS["cc"] | {"clamp_target": True}})
    first, second = ends_ps(three_hosts, clamped, 4500, 600)
    assert second == 401_088_000
    # 4500 packets are 150,408,000 bits: 20,054,400 before, 90,000,000 in six periods at 50 Gb/s, the rest faster.
    assert first == 401_088_000 + 6 * 300 * US + round(40_353_600e12 / 50.631875e9)


def test_other_congestion_controls_are_refused(three_hosts: Topology) -> None:
    other = NetworkSettings(**KEYS | {"cc": KEYS["cc"] | {"use": "none"}})
    with pytest.raises(InputError) as caught:
        MaxMinDcqcn(three_hosts, other, seed=1)
    assert str(caught.value) == "network.cc.use: given 'none': maxmin-dcqcn knows 'dcqcn' only"
