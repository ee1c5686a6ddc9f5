"""Gains and gaps, how seeds are added, and when runs are one and the same cell."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from calibration import experiment
from calibration.experiment import (
    REPORT_SEEDS,
    Group,
    Options,
    Variant,
    affordable,
    fluid,
    gain_pct,
    gap_of,
    is_precise,
    markdown,
    paper_fluid,
    rounds,
    scenario_of,
    settings,
    standard_error,
)
from calibration.fit import FIT_SEEDS
from calibration.tune_cla import TUNING_SEEDS
from harness import components, results
from harness.errors import InputError

Tiny = Callable[..., Options]


def test_a_gain_is_what_the_subject_saves() -> None:
    assert gain_pct(1500, 2000) == 25
    assert gain_pct(2200, 2000) == pytest.approx(-10)


def test_the_gap_is_paired_over_seeds() -> None:
    # Differences 2, 5, 2: mean 3, standard deviation sqrt(3), standard error 1; t(2, 0.975) = 4.302653.
    gap = gap_of({1: 20.0, 2: 22.0, 3: 24.0}, {1: 18.0, 2: 17.0, 3: 22.0})
    assert (gap.gain_fluid_pct, gap.gain_packet_pct, gap.gap_pp, gap.seeds) == (22, 19, 3, 3)
    assert gap.se_pp == pytest.approx(1)
    assert (gap.gap_ci_low_pp, gap.gap_ci_high_pp) == pytest.approx((-1.302653, 7.302653), abs=1e-6)


def test_a_seed_without_its_partner_is_left_out() -> None:
    gap = gap_of({1: 20.0, 2: 22.0, 3: 90.0}, {1: 18.0, 2: 17.0, 4: -50.0})
    assert (gap.gain_fluid_pct, gap.gain_packet_pct, gap.gap_pp, gap.seeds) == (21, 17.5, 3.5, 2)


def test_one_seed_has_no_interval() -> None:
    gap = gap_of({1: 20.0}, {1: 18.0})
    assert gap.gap_pp == 2
    assert math.isnan(gap.gap_ci_low_pp) and math.isnan(gap.se_pp)


def test_standard_error() -> None:
    assert standard_error([1.0, 3.0]) == pytest.approx(1)  # standard deviation sqrt(2), over sqrt(2)


def test_auto_ends_with_four_seeds_that_agree() -> None:
    # Standard deviation of 0, 0, 1, 1 is 0.577, over 2: 0.289. Of 0, 0, 2, 2 it is 1.155, over 2: 0.577.
    assert not is_precise([0.0, 0.0, 0.0])
    assert is_precise([0.0, 0.0, 1.0, 1.0])
    assert not is_precise([0.0, 0.0, 2.0, 2.0])


def test_a_budget_is_spent_in_order() -> None:
    assert affordable([5, 3, 4], 8) == [0, 1]
    assert affordable([9, 3, 4], 8) == [1, 2]
    assert affordable([9], 8) == []


def test_rounds_keep_the_jobs_busy() -> None:
    assert rounds(3, cells_per_seed=18, jobs=2) == [(1,), (2,), (3,)]
    assert rounds(5, cells_per_seed=4, jobs=8) == [(1, 2), (3, 4), (5,)]
    with pytest.raises(InputError, match="there are 200 report seeds"):
        rounds(201, cells_per_seed=1, jobs=1)


def test_report_seeds_are_no_others_seeds() -> None:
    assert not set(REPORT_SEEDS) & {*FIT_SEEDS, *TUNING_SEEDS}
    assert len(set(REPORT_SEEDS)) == len(REPORT_SEEDS)


def test_settings_fill_in_defaults() -> None:
    quick = settings("table5", quick=True)
    assert (quick.seeds, quick.requests, quick.loads_pct) == (2, 24, (100, 200))
    assert (quick.out, quick.cells) == (Path("results/calibrate/table5"), Path("results/calibrate/cells"))
    chosen = settings("table5", quick=True, seeds="auto", requests=7, out=Path("there"))
    assert (chosen.seeds, chosen.requests, chosen.cells) == (None, 7, Path("there/cells"))
    with pytest.raises(InputError, match="unknown workload 'rga'; did you mean 'rag'"):
        settings("table5", workloads=["rga"])


def test_what_the_experiment_varies_cannot_be_set(tiny: Tiny) -> None:
    options = tiny("table5", overrides=("network.profile=roce-paper",))
    with pytest.raises(InputError, match="--set network.profile=roce-paper: is set by the experiment"):
        scenario_of(options, "rag", 100, "roce-default")


def test_the_paper_knows_the_background(tiny: Tiny) -> None:
    scenario = scenario_of(tiny("table5", overrides=("background.share={2: 0.1, 3: 0.2}",)), "rag")
    known = paper_fluid(scenario, scenario.network).scenario
    assert known.background.to_json() == {"use": "constant", "share": {"2": 0.1, "3": 0.2}}
    assert known.oracle.to_json() == {"use": "constant", "congestion": {"2": 0.1, "3": 0.2}}
    assert (known.fluid, scenario.background.use, scenario.oracle.use) == (
        experiment.PAPER_FLUID_MODEL,
        "poisson",
        "sampled",
    )


def test_what_a_scenario_gives_its_fluid_model_is_left_to_the_variants(tiny: Tiny) -> None:
    given = ("background={use: poisson, share: {2: 0.1}}", "fluid_background=none", "fluid_oracle=sampled")
    scenario = scenario_of(tiny("table5", overrides=given), "rag")
    known = paper_fluid(scenario, scenario.network).scenario.of("fluid")
    assert known.background.to_json() == {"use": "constant", "share": {"2": 0.1}}
    assert known.oracle.use == "constant"


def test_fluid_cells_are_shared_by_what_only_packets_know(tiny: Tiny, rounds: Any) -> None:
    runner = rounds.runner(tiny("table5"))
    reference = scenario_of(runner.options, "rag").network

    def directory(profile: str, *overrides: str, model: str = "maxmin") -> Path:
        scenario = scenario_of(runner.options, "rag", 100, profile, overrides)
        cell: Path = runner.cells(Variant("", fluid(scenario, model, reference), "fluid"), 1)[0].directory
        return cell

    assert directory("roce-default") == directory("roce-paper", "network.switch.buffer_bytes=9MB")
    assert directory("roce-default") != directory("roce-default", "network.transport.queue_pairs=4")
    assert directory("roce-default") != directory("roce-default", model="tier")
    assert directory("roce-default", model="maxmin-dcqcn") != directory("roce-paper", model="maxmin-dcqcn")


def fluid_group(options: Options) -> Group:
    """One network model only, the cheapest."""
    scenario = scenario_of(options, "rag")
    return Group(("rag",), (paper_fluid(scenario, scenario.network),))


def test_a_stopped_experiment_goes_on_where_it_was(tiny: Tiny, rounds: Any, tmp_path: Path) -> None:
    options = tiny("table5", seeds=2, cells=tmp_path / "cells")
    runner = rounds.runner(options)
    group = fluid_group(options)
    seen: list[dict[str, Any]] = []

    def stop(taken: Any) -> None:
        seen.append({"seeds": list(taken[group]), "gains": runner.gains_pct(group.variants[0], "rr", taken[group])})
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), experiment.recorded(runner, "table5"):
        runner.run_groups([group], stop)
    assert results.read_json(options.out / "run.json")["status"] == "interrupted"
    assert (rounds.pending, seen[0]["seeds"], list(seen[0]["gains"])) == ([3], [1], [1])

    again = rounds.runner(replace(options, resume=True))
    with experiment.recorded(again, "table5"):
        again.run_groups([group], lambda taken: None)
    manifest = results.read_json(options.out / "run.json")
    assert rounds.pending == [3, 0, 3]
    assert (manifest["status"], manifest["cells"], manifest["cells_complete"]) == ("complete", 6, 6)
    assert again.gains_pct(group.variants[0], "rr", [1]) == seen[0]["gains"]

    (first, *_) = again.cells(group.variants[0], 1)
    spec = results.read_json(first.directory / "cell.json")
    results.write_json(first.directory / "cell.json", {**spec, "code_sha256": "0" * 64})
    with pytest.raises(InputError, match="complete with code 000000000000, this is code"):
        rounds.runner(replace(options, allow_mixed_code=False)).run_groups([group], lambda taken: None)
    rounds.runner(options).run_groups([group], lambda taken: None)
    assert rounds.pending[3:] == [0, 0]


def test_there_must_be_something_to_resume(tiny: Tiny, rounds: Any) -> None:
    runner = rounds.runner(tiny("table5", resume=True))
    with pytest.raises(InputError, match="holds no experiment to go on with"), experiment.recorded(runner, "table5"):
        raise AssertionError
    assert not runner.options.out.exists()


def test_a_failed_cell_takes_its_seed_out(tiny: Tiny, rounds: Any, tmp_path: Path) -> None:
    plug_in = tmp_path / "lab.py"
    plug_in.write_text("class Fails:\n    def choose(self, request, view, oracle):\n        raise ValueError('no')\n")
    options = tiny("table5", cells=tmp_path / "cells")
    runner = rounds.runner(options)
    scenario = fluid_group(options).variants[0].scenario
    schedulers = (components.check("scheduler", f"{plug_in}:Fails"), *scenario.schedulers[1:])
    broken = Variant("broken", scenario.model_copy(update={"schedulers": schedulers}), "fluid")
    runner.run(runner.cells(broken, 1))
    (failure,) = runner.failures.values()
    assert (failure.seed, failure.error) == (1, "ValueError: no")
    assert runner.gains_pct(broken, "rr", [1]) == {}
    assert list(runner.gains_pct(broken, "cla-tuned", [1])) == [1]


def test_markdown() -> None:
    assert markdown(("a", "b"), [{"a": 1.234, "b": "x"}, {"a": math.nan}]) == (
        "| a | b |\n|---|---|\n| 1.23 | x |\n| - | - |\n"
    )
