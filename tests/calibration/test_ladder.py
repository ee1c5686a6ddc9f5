"""The ladder: its rungs, its sums, and which of its cells are table5's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from calibration import figures, ladder, table5
from calibration.experiment import Options, scenario_of

Tiny = Callable[..., Options]


def test_the_steps_add_up() -> None:
    steps = ladder.climb([{1: 20.0, 2: 24.0}, {1: 18.0, 2: 23.0}, {1: 19.0, 2: 20.0}])
    assert [step["gain_pct"] for step in steps] == [22, 20.5, 19.5]
    assert "delta_pp" not in steps[0]
    # -2 and -1; +1 and -3.
    assert [step["delta_pp"] for step in steps[1:]] == [-1.5, -1]
    assert sum(step["delta_pp"] for step in steps[1:]) == steps[-1]["gain_pct"] - steps[0]["gain_pct"]
    # Of -2 and -1: standard error 0.5, t(1, 0.975) = 12.7062.
    assert steps[1]["ci_low_pp"] == pytest.approx(-1.5 - 6.3531, abs=1e-4)


def test_every_order_takes_every_step_once_that_the_start_has_not_made() -> None:
    for steps in ladder.orders("maxmin-tier").values():
        assert sorted(steps) == sorted(set(ladder.STEPS) - {ladder.START, ladder.AGGREGATE, ladder.COLLISIONS})
    assert ladder.orders("maxmin") == {
        "background-late": ("headers", "dcqcn", "pfc", "background", "oracle"),
        "background-early": ("headers", "background", "dcqcn", "pfc", "oracle"),
    }
    for steps in ladder.orders("maxmin-goodput").values():
        assert "headers" not in steps
        assert ladder.rungs(steps)[0] == frozenset()
        assert ladder.rungs(steps)[-1] == frozenset(steps)


def test_the_ladder_stands_between_the_two_sides_of_table5(tiny: Tiny, rounds: Any) -> None:
    options = tiny("ladder", overrides=())
    runner = rounds.runner(options)
    ((group, by_set),) = ladder.groups(options).items()
    (other,) = table5.groups(options)
    for ours, theirs in ((group.variants[0], other.variants[0]), (group.variants[-1], other.variants[-1])):
        assert [c.directory for c in runner.cells(ours, 1)] == [c.directory for c in runner.cells(theirs, 1)]
    # Two orders that part at the background: seven rungs of one, two that only the other has, and a model apart.
    assert len(by_set) == 10
    directories = {cell.directory for variant in by_set.values() for cell in runner.cells(variant, 1)}
    assert len(directories) == 30
    apart = {name: by_set[frozenset({name})].scenario.fluid for name in (ladder.AGGREGATE, "whole-path")}
    assert apart == {"aggregate": "maxmin-aggregate", "whole-path": "maxmin"}


def test_each_rung_replaces_one_assumption(tiny: Tiny) -> None:
    options = tiny("ladder", overrides=())
    endless = ("network.switch.pfc.on=false", f"network.switch.buffer_bytes={ladder.ENDLESS_BUFFER}")
    full, lossless = scenario_of(options, "rag"), scenario_of(options, "rag", overrides=endless)
    scenarios = ladder.Scenarios(full, lossless, full)
    facts = []
    for rung in ladder.rungs(ladder.orders("maxmin-tier")["background-late"]):
        variant = ladder.variant(scenarios, rung, "maxmin-tier")
        scenario, backend = variant.scenario, variant.backend
        pfc = scenario.network.switch.pfc.on if backend == "packet" else None
        model = scenario.fluid if backend == "fluid" else None
        facts.append((backend, model, pfc, scenario.background.use, scenario.oracle.use))
    assert facts == [
        ("fluid", "maxmin-tier", None, "constant", "constant"),
        ("fluid", "maxmin", None, "constant", "constant"),
        ("fluid", "maxmin-goodput", None, "constant", "constant"),
        ("packet", None, False, "constant", "constant"),
        ("packet", None, True, "constant", "constant"),
        ("packet", None, True, "poisson", "constant"),
        ("packet", None, True, "poisson", "sampled"),
    ]
    assert lossless.network.switch.buffer_bytes == 10**15


def test_the_waterfall_is_drawn_with_and_without_figures() -> None:
    def rows(gains: list[dict[int, float]]) -> list[dict[str, Any]]:
        place = {"workload": "rag", "load": 100, "profile": "roce-default", "order": "one", "baseline": "rr"}
        names = ("fluid-paper", "whole-path", "headers")
        levels = {"ttft_baseline_ms": 1969.0, "ttft_netkv_ms": 1598.0}
        return [
            {**place, **levels, "adds": name, **step} for name, step in zip(names, ladder.climb(gains), strict=True)
        ]

    drawn = figures.ladder(rows([{1: 20.0, 2: 24.0}, {1: 18.0, 2: 23.0}, {1: 19.0, 2: 20.0}]))
    empty = figures.ladder(rows([{}, {}, {}]))
    assert drawn[:8] == empty[:8] == b"\x89PNG\r\n\x1a\n"
    assert len(drawn) > len(empty)
