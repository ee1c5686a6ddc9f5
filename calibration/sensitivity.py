"""Where the gap lies: a map over DCQCN's recovery, and one parameter at a time around the headline profile.

How fast a sender climbs back after a cut decides how much of a thin uplink it leaves idle, so the map spans the
increase timer and the rate steps, from the headline profile's values (300 us, 5 Mb/s per 25 Gb/s) to recovery within
milliseconds. The hyper step is ten times the additive one throughout, as in both profiles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from calibration import figures
from calibration.experiment import (
    BASELINES,
    GAP_COLUMNS,
    PAPER_FLUID_MODEL,
    Group,
    Options,
    Report,
    Runner,
    Variant,
    gap_of,
    markdown,
    paper_fluid,
    record_seeds,
    recorded,
    report,
    scenario_of,
)
from harness import results

MAP = "recovery"

#: From the SIGCOMM 2015 paper's timer to the headline profile's [us].
TIMERS_US = (55, 130, 300)
#: Additive steps [Mb/s per 25 Gb/s of link rate]; the last is 500 Mb/s on a 100 Gb/s NIC.
STEPS_MBPS = (5, 15, 45, 125)
HYPER_OVER_ADDITIVE = 10
#: The corners.
QUICK_TIMERS_US = (TIMERS_US[0], TIMERS_US[-1])
QUICK_STEPS_MBPS = (STEPS_MBPS[0], STEPS_MBPS[-1])

COLUMNS = (
    "parameter",
    "value",
    "baseline",
    *GAP_COLUMNS,
    "increase_timer_us",
    "additive_step_mbps",
    "workload",
    "load",
    "profile",
)
_KEY = ("workload", "load", "profile", "parameter", "value")


@dataclass(frozen=True)
class Point:
    """One setting: its name, what it overrides, and the load [%], profile or fluid model if it is about such."""

    parameter: str
    value: str
    overrides: tuple[str, ...] = ()
    load_pct: int | None = None
    profile: str | None = None
    fluid_model: str = PAPER_FLUID_MODEL
    increase_timer_us: int | None = None
    additive_step_mbps: int | None = None


#: In place of the paper's: what it would have overstated had it been another one.
FLUID_MODELS = tuple(model for model in ("tier", "maxmin-aggregate", "maxmin") if model != PAPER_FLUID_MODEL)

#: A few values for each parameter, around those of the scenario and the headline profile.
ONE_AT_A_TIME = (
    Point("profile", "roce-paper", profile="roce-paper"),
    Point("profile", "hpcc-sim", profile="hpcc-sim"),
    Point("uplinks of a ToR", "2 x 100G", ("topology.oversubscribe_by=fewer",)),
    Point("aggregation to core", "1:1", ("topology.agg_oversubscription=1",)),
    Point("aggregation to core", "4:1", ("topology.agg_oversubscription=4",)),
    Point("payload", "1000 B", ("network.transport.payload_bytes=1000",)),
    Point("queue pairs a transfer", "4", ("network.transport.queue_pairs=4",)),
    Point("switch buffer", "9 MB", ("network.switch.buffer_bytes=9MB",)),
    Point("switch buffer", "16 MB", ("network.switch.buffer_bytes=16MB",)),
    Point("background share", "0 %", ("background.share={2: 0.0, 3: 0.0}",)),
    Point("background share", "20 %", ("background.share={2: 0.2, 3: 0.2}",)),
    *(Point("fluid model", model, fluid_model=model) for model in FLUID_MODELS),
    Point("load", "50 %", load_pct=50),
    Point("load", "200 %", load_pct=200),
)
#: Of these one says how the gap moves, at little cost.
QUICK_PARAMETERS = ("profile", "queue pairs a transfer", "fluid model")


def recovery_map(timers_us: Sequence[int], steps_mbps: Sequence[int]) -> list[Point]:
    """Every timer with every step."""
    points = []
    for timer_us in timers_us:
        for step_mbps in steps_mbps:
            overrides = (
                f"network.cc.increase_timer={timer_us}us",
                f"network.cc.additive_step={step_mbps}Mbps",
                f"network.cc.hyper_step={HYPER_OVER_ADDITIVE * step_mbps}Mbps",
            )
            value = f"{timer_us} us, {step_mbps} Mb/s"
            points.append(Point(MAP, value, overrides, increase_timer_us=timer_us, additive_step_mbps=step_mbps))
    return points


def points(options: Options) -> list[Point]:
    """The base, the map, and one parameter at a time; with `quick` a few of them."""
    base = Point("none", "base")
    if options.quick:
        few = [point for point in ONE_AT_A_TIME if point.parameter in QUICK_PARAMETERS and point.profile != "hpcc-sim"]
        return [base, *recovery_map(QUICK_TIMERS_US, QUICK_STEPS_MBPS), *few]
    return [base, *recovery_map(TIMERS_US, STEPS_MBPS), *ONE_AT_A_TIME]


def groups(options: Options) -> dict[Group, Point]:
    """A fluid and a packet variant of every point, per workload, load [%] and profile.

    Raises
    ------
    InputError : a mistake in the overrides.
    """
    found = {}
    for workload in options.workloads:
        for base_load_pct in options.loads_pct:
            for base_profile in options.profiles:
                for point in points(options):
                    load_pct, profile = point.load_pct or base_load_pct, point.profile or base_profile
                    reference = scenario_of(options, workload, load_pct).network
                    scenario = scenario_of(options, workload, load_pct, profile, point.overrides)
                    name = f"{profile}, {point.parameter} {point.value}"
                    fluid = paper_fluid(scenario, reference, point.fluid_model)
                    variants = (fluid, Variant(name, scenario, "packet"))
                    key = (workload, base_load_pct, base_profile, point.parameter, point.value)
                    found[Group(key, variants)] = point
    return found


def run_sensitivity(runner: Runner) -> Report:
    """Run what is not in the store yet, and write sensitivity.csv, gains.csv and the figures after every round.

    Raises
    ------
    InputError : before any simulation, but for what only a cell itself can find out.
    DiskFailure : the disk is full or broken.
    Interrupted : the user stopped it; what is complete is written.
    """
    all_groups = groups(runner.options)
    rows: list[dict[str, Any]] = []
    with recorded(runner, "sensitivity") as manifest:

        def write(taken: Mapping[Group, Sequence[int]]) -> None:
            rows[:] = table(runner, taken, all_groups)
            record_seeds(runner, manifest, _KEY, taken)
            out = runner.options.out
            results.write_csv(out / "sensitivity.csv", COLUMNS, rows)
            results.write_text(out / "sensitivity.md", markdown(COLUMNS, rows))
            results.make_directory(out / "figures")
            for base in dict.fromkeys(group.key[:3] for group in all_groups):
                own = [row for row in rows if (row["workload"], row["load"], row["profile"]) == base]
                name = "-".join(map(str, base))
                results.write_bytes(out / "figures" / f"recovery-{name}.png", figures.recovery_map(own))
                results.write_bytes(out / "figures" / f"one-at-a-time-{name}.png", figures.one_at_a_time(own))

        runner.run_groups(list(all_groups), write)
    return report(runner, manifest, COLUMNS[: 3 + len(GAP_COLUMNS)], rows)


def table(runner: Runner, taken: Mapping[Group, Sequence[int]], points: Mapping[Group, Point]) -> list[dict[str, Any]]:
    """The rows of sensitivity.csv."""
    rows = []
    for group, seeds in taken.items():
        fluid, packet = group.variants
        point = points[group]
        for baseline in BASELINES:
            gap = gap_of(runner.gains_pct(fluid, baseline, seeds), runner.gains_pct(packet, baseline, seeds))
            place = {
                "baseline": baseline,
                "increase_timer_us": point.increase_timer_us,
                "additive_step_mbps": point.additive_step_mbps,
            }
            rows.append(dict(zip(_KEY, group.key, strict=True)) | place | asdict(gap))
    return rows
