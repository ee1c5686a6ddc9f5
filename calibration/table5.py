"""Table V: NetKV's gains in the paper's fluid model and on packets, and the gap between the two, in TTFT.

The same gap in mean transfer time stands beside it: the prefill takes as long in both models, so that a model with
longer transfers turns equal gains in transfer time into a larger gain in TTFT.

The packet side is the whole model: background flows, sampled oracle, the profile's DCQCN and PFC. The fluid side is the
paper's simulator as calibration/experiment.py names it. The paper reports 4-6 points (arXiv 2606.03910, Table V); its
cells are not public.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, get_args

from calibration import figures
from calibration.experiment import (
    BASELINES,
    GAP_COLUMNS,
    Group,
    Options,
    Quantity,
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

#: What the command prints; table5.csv has the gap in transfer time as well.
SHOWN = ("workload", "load", "profile", "baseline", *GAP_COLUMNS)
COLUMNS = (*SHOWN, *(f"transfer_{name}" for name in GAP_COLUMNS if name not in ("seeds", "se_pp")))
_KEY = ("workload", "load", "profile")


def groups(options: Options) -> list[Group]:
    """A fluid and a packet variant per workload, load [%] and profile.

    Raises
    ------
    InputError : a mistake in the overrides.
    """
    found = []
    for workload in options.workloads:
        for load_pct in options.loads_pct:
            reference = scenario_of(options, workload, load_pct).network
            for profile in options.profiles:
                scenario = scenario_of(options, workload, load_pct, profile)
                packet = Variant(profile, scenario, "packet")
                found.append(Group((workload, load_pct, profile), (paper_fluid(scenario, reference), packet)))
    return found


def run_table5(runner: Runner) -> Report:
    """Run what is not in the store yet, and write table5.csv, table5.md, gains.csv and the figure after every round.

    Raises
    ------
    InputError : before any simulation, but for what only a cell itself can find out.
    DiskFailure : the disk is full or broken.
    Interrupted : the user stopped it; what is complete is written.
    """
    all_groups = groups(runner.options)
    rows: list[dict[str, Any]] = []
    with recorded(runner, "table5") as manifest:

        def write(taken: Mapping[Group, Sequence[int]]) -> None:
            rows[:] = table(runner, taken)
            record_seeds(runner, manifest, _KEY, taken)
            out = runner.options.out
            results.write_csv(out / "table5.csv", COLUMNS, rows)
            results.write_text(out / "table5.md", markdown(COLUMNS, rows))
            results.make_directory(out / "figures")
            by_seed = {quantity: gap_by_seed(runner, taken, quantity) for quantity in get_args(Quantity)}
            results.write_bytes(out / "figures" / "gap.png", figures.gap(rows, by_seed))

        runner.run_groups(all_groups, write)
    return report(runner, manifest, SHOWN, rows)


def table(runner: Runner, taken: Mapping[Group, Sequence[int]]) -> list[dict[str, Any]]:
    """The rows of table5.csv."""
    rows = []
    for group, seeds in taken.items():
        fluid, packet = group.variants
        for baseline in BASELINES:
            ttft, transfer = (
                asdict(gap_of(*(runner.gains_pct(variant, baseline, seeds, quantity) for variant in (fluid, packet))))
                for quantity in get_args(Quantity)
            )
            row = dict(zip(_KEY, group.key, strict=True)) | {"baseline": baseline} | ttft
            rows.append(row | {f"transfer_{name}": transfer[name] for name in GAP_COLUMNS})
    return rows


def gap_by_seed(runner: Runner, taken: Mapping[Group, Sequence[int]], quantity: Quantity) -> list[list[float]]:
    """Per row of `table`, the gap of every seed [percentage points]."""
    return [
        list(runner.gap_pp(group, baseline, seeds, quantity).values())
        for group, seeds in taken.items()
        for baseline in BASELINES
    ]
