"""The ladder: from the paper's fluid model to packets, one assumption replaced at a time.

What a step adds depends on what was replaced before it, so two orders are run, which differ in the most coupled pair:
DCQCN and background flows. Of the pairs with the background it interacts most, by 0.7 and 0.4 points of gain over `rr`
and `cla-tuned`, hash collisions by 0.2 and 0.2, PFC by 0.05 and 0.04 (rag, 15 requests, seeds 1-3, roce-default). The
deltas of an order sum to gain on packets less gain in the fluid model, that is to minus the gap. What the fluid model
itself owes to hash collisions stands apart, in rows of the order "inside-fluid": it is no part of the gap.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from calibration import figures
from calibration.experiment import (
    BASELINES,
    PAPER_FLUID_MODEL,
    SUBJECT,
    Group,
    Options,
    Report,
    Runner,
    Variant,
    constant_background,
    constant_oracle,
    fluid,
    markdown,
    paper_fluid,
    record_seeds,
    recorded,
    report,
    scenario_of,
    standard_error,
)
from harness import metrics, results
from harness.config import Scenario

START = "fluid-paper"

#: Two fluid models that stand apart: without hash collisions the links of a tier are one; with them it is the ladder's
#: first step.
AGGREGATE = "aggregate"
COLLISIONS = "collisions"
INSIDE_FLUID = "inside-fluid"

#: What each step replaces.
STEPS = {
    START: f"the paper's fluid model: {PAPER_FLUID_MODEL}, constant background, perfect oracle",
    "whole-path": "flows across pods take capacity within their pods as well, of every link on their path",
    "headers": "frame headers and gaps take their time",
    "dcqcn": "packets under DCQCN, in buffers that never fill",
    "pfc": "the profile's buffers and PFC",
    "background": "background flows in place of a constant share",
    "oracle": "an oracle that samples the links in place of a perfect one",
    AGGREGATE: "maxmin-aggregate: the links of a tier as one",
    COLLISIONS: "maxmin: each link on its own, on the packet run's hashed paths",
}

#: The fluid models that packets can be reached from, each with the steps that it has made already.
_HAS = {
    "maxmin-tier": frozenset[str](),
    "maxmin": frozenset({"whole-path"}),
    "maxmin-goodput": frozenset({"whole-path", "headers"}),
}
_LINKS = frozenset({"whole-path", "headers"})

_ORDERS = {
    "background-late": ("whole-path", "headers", "dcqcn", "pfc", "background", "oracle"),
    "background-early": ("whole-path", "headers", "background", "dcqcn", "pfc", "oracle"),
}

#: What a switch is given so that it never fills: more than all KV caches of a run together.
ENDLESS_BUFFER = "1000TB"

COLUMNS = (
    "workload",
    "load",
    "profile",
    "baseline",
    "rung",
    "adds",
    "gain_pct",
    "delta_pp",
    "ci_low_pp",
    "ci_high_pp",
    "order",
    "seeds",
    "se_pp",
    "ttft_baseline_ms",
    "ttft_netkv_ms",
    "what",
)
_KEY = ("workload", "load", "profile")


@dataclass(frozen=True)
class Scenarios:
    """The three scenarios that all rungs of a ladder are made from."""

    full: Scenario  #: the packet model as table5 has it
    lossless: Scenario  #: the same without PFC, in endless buffers
    reference: Scenario  #: with the network settings that fill in what no fluid model reads


def orders(model: str = PAPER_FLUID_MODEL) -> dict[str, tuple[str, ...]]:
    """The steps from a fluid model to the full packet model; the orders part where background flows come in."""
    return {name: tuple(step for step in steps if step not in _HAS[model]) for name, steps in _ORDERS.items()}


def variant(scenarios: Scenarios, replaced: frozenset[str], start: str = PAPER_FLUID_MODEL) -> Variant:
    """The network model in which the steps `replaced` have been made from `start`; packets need both about links."""
    replaced = replaced | _HAS[start]
    packets = "dcqcn" in replaced
    assert not packets or replaced >= _LINKS
    assert packets or "pfc" not in replaced
    scenario = scenarios.full if "pfc" in replaced or not packets else scenarios.lossless
    if "oracle" not in replaced:
        scenario = constant_oracle(scenario)
    if "background" not in replaced:
        scenario = constant_background(scenario)
    name = "+".join(step for step in STEPS if step in replaced)
    if packets:
        return Variant(f"{scenario.network.profile}, {name}", scenario, "packet")
    if replaced == _HAS[start]:
        return paper_fluid(scenario, scenarios.reference.network, start)
    (model,) = (name for name, made in _HAS.items() if made == replaced & _LINKS)
    return Variant(f"fluid {name}", fluid(scenario, model, scenarios.reference.network), "fluid")


def rungs(order: Sequence[str]) -> list[frozenset[str]]:
    """The sets of steps that have been made, from none to all."""
    return [frozenset(order[:n]) for n in range(len(order) + 1)]


def groups(options: Options) -> dict[Group, dict[frozenset[str], Variant]]:
    """A group per workload, load [%] and profile, with the variants of all orders.

    Raises
    ------
    InputError : a mistake in the overrides.
    """
    endless = ("network.switch.pfc.on=false", f"network.switch.buffer_bytes={ENDLESS_BUFFER}")
    found = {}
    for workload in options.workloads:
        for load_pct in options.loads_pct:
            for profile in options.profiles:
                scenarios = Scenarios(
                    scenario_of(options, workload, load_pct, profile),
                    scenario_of(options, workload, load_pct, profile, endless),
                    scenario_of(options, workload, load_pct),
                )
                sets = dict.fromkeys(rung for order in orders().values() for rung in rungs(order))
                by_set = {rung: variant(scenarios, rung) for rung in sorted(sets, key=len)}
                full = by_set.popitem()
                aggregate = paper_fluid(scenarios.full, scenarios.reference.network, "maxmin-aggregate")
                by_set[frozenset({AGGREGATE})] = aggregate
                by_set |= {full[0]: full[1]}
                found[Group((workload, load_pct, profile), tuple(by_set.values()))] = by_set
    return found


def run_ladder(runner: Runner) -> Report:
    """Run what is not in the store yet, and write ladder.csv, ladder.md, gains.csv and figures after every round.

    Raises
    ------
    InputError : before any simulation, but for what only a cell itself can find out.
    DiskFailure : the disk is full or broken.
    Interrupted : the user stopped it; what is complete is written.
    """
    all_groups = groups(runner.options)
    rows: list[dict[str, Any]] = []
    with recorded(runner, "ladder") as manifest:

        def write(taken: Mapping[Group, Sequence[int]]) -> None:
            rows[:] = [row for group, seeds in taken.items() for row in table(runner, group, all_groups[group], seeds)]
            record_seeds(runner, manifest, _KEY, taken)
            out = runner.options.out
            results.write_csv(out / "ladder.csv", COLUMNS, rows)
            results.write_text(out / "ladder.md", markdown(COLUMNS, rows))
            results.make_directory(out / "figures")
            for group in all_groups:
                own = [row for row in rows if tuple(row[name] for name in _KEY) == group.key]
                name = "-".join(map(str, group.key))
                results.write_bytes(out / "figures" / f"ladder-{name}.png", figures.ladder(own))

        runner.run_groups(list(all_groups), write)
    return report(runner, manifest, COLUMNS[:-3], rows)


def table(
    runner: Runner, group: Group, by_set: Mapping[frozenset[str], Variant], seeds: Sequence[int]
) -> list[dict[str, Any]]:
    """The rows of one group, by order, baseline and rung, over the seeds that every rung of every order has."""
    rows = []
    key = dict(zip(_KEY, group.key, strict=True))
    ways = {order: ((START, *steps), rungs(steps)) for order, steps in orders().items()}
    ways[INSIDE_FLUID] = ((AGGREGATE, COLLISIONS), [frozenset({AGGREGATE}), frozenset({"whole-path"})])
    for order, (names, sets) in ways.items():
        for baseline in BASELINES:
            gains = dict(zip(by_set, runner.common_gains_pct(list(by_set.values()), baseline, seeds), strict=True))
            climbed = climb([gains[rung] for rung in sets])
            for rung, (adds, step) in enumerate(zip(names, climbed, strict=True)):
                place = {"baseline": baseline, "order": order, "rung": rung, "adds": adds, "what": STEPS[adds]}
                rows.append(key | place | step | levels(runner, by_set[sets[rung]], baseline, [*gains[sets[rung]]]))
    return rows


def levels(runner: Runner, variant: Variant, baseline: str, seeds: Sequence[int]) -> dict[str, float]:
    """Mean TTFT of the baseline and of NetKV [ms], over the seeds that have both."""
    found = [runner.means_ms(variant, seed) for seed in seeds]
    names = {"ttft_baseline_ms": baseline, "ttft_netkv_ms": SUBJECT}
    return {name: statistics.fmean(of[who] for of in found) if found else math.nan for name, who in names.items()}


def climb(gains_pct: Sequence[Mapping[int, float]]) -> list[dict[str, Any]]:
    """Per rung its mean gain [%] and, from the second on, what it adds to the one before, paired over seeds.

    Parameters
    ----------
    gains_pct : per rung the gain by seed; equal seeds in all.
    """
    steps: list[dict[str, Any]] = []
    for rung, gains in enumerate(gains_pct):
        values = list(gains.values())
        step: dict[str, Any] = {"seeds": len(values), "gain_pct": sum(values) / len(values) if values else math.nan}
        if rung:
            before = gains_pct[rung - 1]
            deltas = [gain - before[seed] for seed, gain in gains.items()]
            interval = metrics.t_interval(deltas)
            step |= {"delta_pp": interval.mean, "ci_low_pp": interval.low, "ci_high_pp": interval.high}
            step["se_pp"] = standard_error(deltas)
        steps.append(step)
    return steps
