"""The map over recovery and the single parameters: which runs they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from calibration import figures, sensitivity
from calibration.experiment import Options

Tiny = Callable[..., Options]


def test_points_are_told_apart_and_share_what_is_equal(tiny: Tiny, rounds: Any) -> None:
    options = tiny("sensitivity", overrides=())
    runner = rounds.runner(options)
    groups = sensitivity.groups(options)
    assert len({group.key for group in groups}) == len(groups) == 1 + 3 * 4 + 13 + 3
    fluid = {group.key[3:]: runner.cells(group.variants[0], 1)[0].directory for group in groups}
    packet = {group.key[3:]: runner.cells(group.variants[1], 1)[0].directory for group in groups}
    # The headline profile is a point of the map, and packets know of no fluid model; that knows nothing of recovery.
    assert packet["none", "base"] == packet["recovery", "300 us, 5 Mb/s"]
    assert len(set(packet.values())) == len(groups) - 4
    assert {fluid["none", "base"]} == {path for key, path in fluid.items() if key[0] == "recovery"}
    assert fluid["none", "base"] != fluid["load", "200 %"]


def test_a_map_point_sets_both_steps() -> None:
    (point,) = sensitivity.recovery_map([55], [45])
    assert point.overrides == (
        "network.cc.increase_timer=55us",
        "network.cc.additive_step=45Mbps",
        "network.cc.hyper_step=450Mbps",
    )


def test_the_figures_are_drawn_with_gaps_inside_and_outside_of_the_papers_range() -> None:
    numbers = {"gap_ci_low_pp": float("nan"), "gap_ci_high_pp": float("nan"), "seeds": 1}
    place = {"workload": "rag", "load": 100, "profile": "roce-default", **numbers}
    rows = [
        {**place, "parameter": "recovery", "value": "", "baseline": baseline, "increase_timer_us": timer}
        | {"additive_step_mbps": 5, "gap_pp": gap}
        for timer, gap in ((55, -1.0), (300, 5.0))
        for baseline in ("rr", "cla-tuned")
    ]
    single = [
        {**place, "parameter": "payload", "value": "1000 B", "baseline": "rr", "increase_timer_us": None}
        | {"gap_pp": 3.0, "gap_ci_low_pp": 1.0, "gap_ci_high_pp": 5.0, "seeds": 3}
    ]
    for image in (figures.recovery_map(rows), figures.one_at_a_time(single)):
        assert image[:8] == b"\x89PNG\r\n\x1a\n"
