"""What a sweep's YAML may say, and how its mistakes are told."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from harness import sweep
from harness.axes import load_sweep
from harness.config import load_scenario, presets
from harness.errors import InputError
from tests.conftest import PROJECT

#: Four places of two cells each.
SWEEP = """
name: lab
scenario: rag
set: {requests: 6, background: none, backend: fluid, schedulers: [rr, ca]}
axes:
  - {name: ratio, values: {"2:1": {topology.agg_oversubscription: 1}, "4:1": {topology.agg_oversubscription: 2}}}
  - {name: p_share, key: workload.p_share, values: [0, 0.9]}
seeds: 1
"""


def write(directory: Path, text: str) -> Path:
    path = directory / "s.yaml"
    path.write_text(text)
    return path


def test_axes_multiply_the_first_slowest_and_may_set_several_keys_or_another_base(tmp_path: Path) -> None:
    text = (
        "name: many\n"
        "set: {background: none, schedulers: [rr, ca], oracle.interval: 2s}\n"
        "axes:\n"
        "  - name: workload\n"
        "    values: {rag: {scenario: rag, requests: 9}, chatbot: {scenario: chatbot, requests: 30}}\n"
        "  - {name: blocks, key: block_tokens, values: {fine: 16}}\n"
        "  - {name: rate, key: [workload.rate_scale, workload.rate], values: [1, 2.5]}\n"
    )
    path = write(tmp_path, text)
    found = load_sweep(path, seeds=2, backend="both")
    assert found.axes == ("workload", "blocks", "rate")
    assert [tuple(label for _, label in entry.place) for entry in found.entries[::8]] == [
        ("rag", "fine", "1"),
        ("rag", "fine", "2.5"),
        ("chatbot", "fine", "1"),
        ("chatbot", "fine", "2.5"),
    ]
    first = found.entries[:8]
    assert [(e.backend, e.scheduler.use, e.seed) for e in first] == [
        (backend, scheduler, seed) for backend in ("packet", "fluid") for scheduler in ("rr", "ca") for seed in (1, 2)
    ]
    last = found.entries[-1].scenario
    assert (last.name, last.requests, last.block_tokens) == ("chatbot", 30, 16)
    assert (last.workload.params["rate_scale"], last.workload.params["rate"]) == (2.5, 2.5)
    assert last.oracle.params["interval"] == 2_000_000_000_000
    # What is swept is what `run` would run with the same keys.
    same = load_scenario(
        "chatbot",
        overrides=[
            "background=none",
            "oracle.interval=2s",
            "block_tokens=16",
            "workload.rate_scale=2.5",
            "workload.rate=2.5",
        ],
        requests=30,
        schedulers=["rr", "ca"],
        seeds=2,
        backend="both",
    )
    assert last == same


def test_zip_and_plain_lists(tmp_path: Path) -> None:
    axes = "axes:\n  - {name: n, key: requests, values: [5, 6]}\n  - {name: t, key: block_tokens, values: [16, 32]}\n"
    path = write(tmp_path, f"name: z\nscenario: rag\nset: {{schedulers: [rr]}}\nseeds: 1\ncombine: zip\n{axes}")
    assert [dict(entry.place) for entry in load_sweep(path).entries] == [
        {"n": "5", "t": "16"},
        {"n": "6", "t": "32"},
    ]
    plain = (
        "name: p\nset: {schedulers: [rr]}\nseeds: 1\ncells:\n"
        "  - {what: small, n: 5, scenario: rag, set: {requests: 5}}\n"
        "  - {what: long, n: 6, scenario: long-context, set: {requests: 6}}\n"
    )
    found = load_sweep(write(tmp_path, plain))
    assert [dict(entry.place) for entry in found.entries] == [{"what": "small", "n": "5"}, {"what": "long", "n": "6"}]
    assert [(e.scenario.name, e.scenario.requests) for e in found.entries] == [("rag", 5), ("long-context", 6)]


def test_quick_leaves_labels_out_and_changes_what_is_left(tmp_path: Path) -> None:
    text = SWEEP.replace("seeds: 1", "seeds: 2") + (
        "quick:\n"
        "  seeds: 1\n"
        "  set: {requests: 3, schedulers: [rr]}\n"
        "  axes: {p_share: [0.9], ratio: {'4:1': {requests: 4}}}\n"
    )
    found = load_sweep(write(tmp_path, text), quick=True)
    (only,) = found.entries
    assert dict(only.place) == {"ratio": "4:1", "p_share": "0.9"}
    assert (only.scenario.requests, only.scenario.seeds) == (4, (1,))


def test_options_are_for_all_cells(tmp_path: Path) -> None:
    path = write(tmp_path, SWEEP)
    found = load_sweep(path, overrides=["slo.ttft=1s"], requests=7, schedulers=["ca"], seeds=2)
    assert len(found.entries) == 4 * 2
    assert {(e.scheduler.use, e.scenario.requests, e.scenario.slo.ttft) for e in found.entries} == {("ca", 7, 10**12)}


def test_only_some_labels(tmp_path: Path) -> None:
    path = write(tmp_path, SWEEP)
    whole = load_sweep(path)
    found = load_sweep(path, only=["p_share=0.9", "ratio=2:1,4:1"])
    assert found.entries == tuple(entry for entry in whole.entries if dict(entry.place)["p_share"] == "0.9")
    assert len(found.entries) == len(whole.entries) / 2
    with pytest.raises(InputError, match="--only share=1: unknown axis 'share'; did you mean 'p_share'?"):
        load_sweep(path, only=["share=1"])
    with pytest.raises(InputError, match="--only ratio=2:1,: unknown label of axis 'ratio' ''. Allowed: 2:1, 4:1"):
        load_sweep(path, only=["ratio=2:1,"])
    with pytest.raises(InputError, match="no cell is left by --only ratio=2:1 --only ratio=4:1"):
        load_sweep(path, only=["ratio=2:1", "ratio=4:1"])


BASE = "name: x\nscenario: rag\nset: {schedulers: [rr]}\nseeds: 1\n"


@pytest.mark.parametrize(
    ("text", "where", "message"),
    [
        (
            BASE + "axes: [{name: r, key: topology.agg_oversubscripton, values: [1]}]",
            "axes.r.1: topology.agg_oversubscripton: ",
            "did you mean 'agg_oversubscription'?",
        ),
        (BASE + "axes: [{name: r, values: {a: {wrkload.rate: 1}}}]", "axes.r.a: wrkload: ", "did you mean 'workload'?"),
        (BASE + "axes: [{name: r, key: requests, values: []}]", "axes.0.values: ", "must have at least one value"),
        (BASE + "axes: [{name: r, values: {}}]", "axes.0.values: ", "must have at least one value"),
        (BASE + "axes: [{name: r, key: requests, values: [0]}]", "axes.r.0: requests: given 0: ", "equal to 1"),
        (BASE + "axes: [{name: r, key: requests, values: [5, 5]}]", "axes.0.values.1: ", "'5' is listed twice"),
        (BASE + "axes: [{name: r, values: [5]}]", "axes.0.values: ", "or the axis must have a `key`"),
        (BASE + "axes: [{name: r, values: {a: 5}}]", "axes.r.a: given 5: ", "or the axis must have a `key`"),
        (BASE + "axes: [{name: r, key: background.share, values: [{2: 0.1}]}]", "axes.0.values.0: ", "needs a label"),
        (
            BASE + "axes: [{name: r, values: {a: {requests: 5}, b: {requests: 5}}}]",
            "axes: ",
            "the cells 'r a / packet / rr / seed 1' and 'r b / packet / rr / seed 1' are the same",
        ),
        (BASE + "axes: [{name: r, values: {a: {scenario: rga}}}]", "r a: ", "did you mean 'rag'?"),
        ("name: x\nscenario: rga\nseeds: 1", "", "unknown scenario 'rga'; did you mean 'rag'?"),
        ("name: x\nseeds: 1", "scenario: ", "is required and missing"),
        (BASE + "axes: [{name: seed, key: requests, values: [5]}]", "", "cannot be called 'seed': that is a column"),
        (
            BASE + "axes: [{name: r, key: requests, values: [5]}, {name: r, key: block_tokens, values: [16]}]",
            "",
            "that is another axis",
        ),
        (
            BASE + "combine: zip\naxes: [{name: r, key: seeds, values: [1]}, {name: b, key: requests, values: [1, 2]}]",
            "combine: ",
            "r has 1, b has 2",
        ),
        (BASE + "combine: zip", "combine: given 'zip': ", "there are no axes"),
        (BASE + "axes: [{name: r, key: requests, values: 5}]", "axes.0.values: given 5: ", "must be a list of values"),
        (BASE + "cells: [{a: 1, set: {requests: 5}}, {a: 1}]", "cells: ", "two cells have the labels a 1"),
        (BASE + "cells: [{a: 1, scenario: 5}]", "cells.0: scenario: given 5: ", "the name of a scenario"),
        ("name: x\nworkload: {use: rag}\nquick: {requests: 5}", "", "is a scenario, which `netkv-cosim run` runs"),
        (
            BASE + "axes: [{name: r, key: requests, values: [5]}]\n"
            "figures: [{name: a, kind: table, title: A, where: {r: 6}, columns: ttft_mean_ms}]",
            "figures.0.where.r: ",
            "unknown label of axis 'r' '6'. Allowed: 5",
        ),
        (
            BASE + "figures: [{name: a, kind: table, title: A, columns: {gain_over: ca}}]",
            "figures.0.columns.0.gain_over: ",
            "unknown scheduler of this sweep 'ca'. Allowed: rr",
        ),
        (BASE + "combine: zpi", "combine: given 'zpi': ", "'product' or 'zip'"),
        (BASE + "axis: []", "axis: ", "unknown key 'axis'; did you mean 'axes'?"),
        (BASE + "axes: [{name: r, key: requests, vlues: [5]}]", "axes.0.vlues: ", "did you mean 'values'?"),
        (BASE + "cells: [{a: 1}]\naxes: [{name: r, key: requests, values: [5]}]", "cells: ", "one of the two"),
        (BASE + "cells: [{a: 1, set: {requests: 5}}, {b: 1}]", "cells.1: has the labels b; ", "the same"),
        (BASE + "cells: [{a: 1, set: 5}]", "cells.0.set: given 5: ", "must be a block of keys"),
        (BASE + "keep: [request]", "keep.0: given 'request': ", "'requests'"),
        (BASE + "cell_time_limit: 5h", "cell_time_limit: ", "'h'"),
        (BASE + "cluster: {use: slrm, jobs: 1, cores: 1, memory: 1GB}", "cluster.use: given 'slrm': ", "'pbs'"),
        (BASE + "figures: [{name: a, kind: pie, title: A}]", "figures.0.kind: ", "unknown kind of figure 'pie'"),
    ],
)  # fmt: skip
def test_a_mistake_is_found_before_any_run(tmp_path: Path, text: str, where: str, message: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(InputError) as caught:
        load_sweep(path)
    assert str(caught.value).startswith(f"{path}: {where}")
    assert message in str(caught.value)


FIGURE = """
quick: {set: {schedulers: [ca]}, axes: {p_share: [0]}}
figures: [{name: a, kind: table, title: A, rows: [ratio], where: {p_share: SHARE}, columns: {gain_over: BASE}}]
"""


@pytest.mark.parametrize("options", [{"quick": True}, {"schedulers": ["ca"]}, {"overrides": ["schedulers=[ca]"]}])
def test_what_options_leave_out_a_figure_may_name(tmp_path: Path, options: dict[str, Any]) -> None:
    text = SWEEP + FIGURE.replace("SHARE", "0.9")
    found = load_sweep(write(tmp_path, text.replace("BASE", "rr")), **options)
    assert {entry.scheduler.use for entry in found.entries} == {"ca"}
    with pytest.raises(InputError, match="gain_over: unknown scheduler of this sweep 'cla'; did you mean 'ca'?"):
        load_sweep(write(tmp_path, text.replace("BASE", "cla")), **options)
    with pytest.raises(InputError, match="where.p_share: unknown label of axis 'p_share' '0.8'; did you mean '0.9'?"):
        load_sweep(write(tmp_path, (SWEEP + FIGURE).replace("SHARE", "0.8").replace("BASE", "rr")), **options)


@pytest.mark.parametrize(
    ("axis", "options", "reason"),
    [
        ("{name: a, key: workload.rate, values: [1, 2]}", {"overrides": ["workload.rate=3"]}, "--set workload.rate=3 "),
        ("{name: a, key: requests, values: [5, 6]}", {"requests": 7}, "--requests "),
    ],
)
def test_an_option_in_place_of_an_axis_is_named(
    tmp_path: Path, axis: str, options: dict[str, Any], reason: str
) -> None:
    path = write(tmp_path, f"{BASE}axes: [{axis}]")
    with pytest.raises(InputError, match=f"are the same: {reason}takes the place of what they set"):
        load_sweep(path, **options)


def test_an_axis_that_the_fluid_model_does_not_know_is_refused_there() -> None:
    with pytest.raises(InputError) as caught:
        load_sweep("staleness", backend="fluid")
    assert caught.value.message == (
        "the cells 'interval 100ms / fluid / cla-tuned / seed 1' and 'interval 1s / fluid / cla-tuned / seed 1' are "
        "the same: `oracle` has no effect in the fluid model, where `fluid_oracle` takes its place; "
        "try --backend packet"
    )
    assert len(load_sweep("staleness", backend="fluid", overrides=["fluid_oracle=null"]).entries) == 36


def test_the_example_in_the_readme_is_read(tmp_path: Path) -> None:
    text = (PROJECT / "scenarios" / "sweeps" / "README.md").read_text()
    (example,) = re.findall(r"In `mine.yaml`:\n\n```yaml\n(.*?)```", text, re.DOTALL)
    found = load_sweep(write(tmp_path, example), backend="fluid")
    assert (found.axes, len(found.entries), len(found.figures)) == (("load", "fabric"), 36, 1)
    assert f"These {len(found.entries)} runs" in text


@pytest.mark.parametrize(
    ("quick", "message"),
    [
        ("", "quick: must be a block of what a quick sweep changes"),
        ("quick: {axes: {ration: [a]}}", "quick.axes.ration: unknown axis 'ration'; did you mean 'ratio'?"),
        ("quick: {axes: {ratio: [8:1]}}", "quick.axes.ratio: unknown label of axis 'ratio' '8:1'; did you mean"),
        ("quick: {axes: {ratio: []}}", "quick.axes.ratio: must have at least one label"),
        ("quick: {seeds: []}", "quick: seeds: given []: must be a number of repetitions"),
    ],
)
def test_a_mistake_in_the_quick_block(tmp_path: Path, quick: str, message: str) -> None:
    path = write(tmp_path, SWEEP + quick)
    with pytest.raises(InputError) as caught:
        load_sweep(path, quick=True)
    assert str(caught.value).startswith(f"{path}: {message}")


@pytest.mark.parametrize("name", [name for name, _ in presets("sweep")])
@pytest.mark.parametrize("quick", [False, True])
def test_the_sweeps_that_come_with_the_project_can_be_run(tmp_path: Path, name: str, quick: bool) -> None:
    found = load_sweep(name, quick=quick)
    assert found.name == name
    seeds = {entry.seed for entry in found.entries}
    assert len(seeds) == 1 if quick else len(seeds) >= 2
    if quick:
        # About 45 s on two cores, at 17 million packet-hops a CPU second.
        assert sum(cell.cost.data_hops for cell in sweep.plan(found, tmp_path)) < 1_500_000_000
