"""What is drawn from a sweep: gains, intervals, published values, claims, and what may not depend on the clock."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from harness import sweep, sweep_figures, sweep_report
from harness.axes import load_sweep
from harness.errors import InputError
from harness.sweep_block import PAPER_DIRECTORY, Quantity, label_text
from harness.sweep_figures import Frame
from harness.workers import LocalWorkers

AXES = ("load", "share")
MANIFEST = {
    "name": "demo",
    "run_id": "x",
    "status": "complete",
    "started_utc": "2026-01-01T00:00:00+00:00",
    "config_sha256": "0" * 64,
    "versions": {"ns3": "3.44"},
    "host": {"cores": 2},
}

#: Student's t of 0.975 with one degree of freedom times the standard error of two values d apart, which is d / 2.
T1 = 12.706204736174698


def make_summary(
    ttft_ms: Callable[[Any, Any, str, str, int], float],
    *,
    loads: Sequence[Any] = (1.0, 2.0),
    shares: Sequence[Any] = (0.1,),
    backends: Sequence[str] = ("packet",),
    schedulers: Sequence[str] = ("rr", "netkv-full"),
    seeds: Sequence[int] = (1, 2),
) -> pd.DataFrame:
    rows = []
    for load, share, backend, scheduler, seed in itertools.product(loads, shares, backends, schedulers, seeds):
        rows.append(
            {
                "load": load,
                "share": share,
                "backend": backend,
                "scheduler": scheduler,
                "seed": seed,
                "requests": 200,
                "completed": 200,
                "ttft_mean_ms": ttft_ms(load, share, backend, scheduler, seed),
                "tbt_mean_ms": 12.5,
                "slo_attainment": 0.9 if scheduler == "rr" else 0.95,
                "tier2_share": 0.5,
                "status": "complete",
            }
        )
    return pd.DataFrame(rows)


def gains(by_load: Mapping[float, Sequence[float]]) -> Callable[[Any, Any, str, str, int], float]:
    """TTFTs with these gains of netkv-full over rr [%], by load and seed; rr's differ between seeds."""
    return lambda load, _share, _backend, scheduler, seed: (
        1000.0 * seed * (1 - by_load[load][seed - 1] / 100 if scheduler == "netkv-full" else 1)
    )


def render(out: Path, summary: pd.DataFrame, *figures: Mapping[str, Any], **options: Any) -> list[Path]:
    manifest, failed = options.get("manifest", MANIFEST), options.get("failed", [])
    return sweep_report.render(out, figures, AXES, summary, manifest, failed)


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


TABLE = {
    "name": "gains",
    "kind": "table",
    "title": "Gains",
    "rows": ["load"],
    "where": {"share": 0.1},
    "columns": ["ttft_mean_ms", {"gain_over": "rr"}],
}
LINE = {"name": "lines", "kind": "line", "title": "TTFT", "x": "load", "y": "ttft_mean_ms", "where": {"share": 0.1}}
BARS = {**LINE, "name": "bars", "kind": "bars", "x": "scheduler", "facet": "load"}
MAP = {
    "name": "map",
    "kind": "heatmap",
    "title": "Gain",
    "rows": "load",
    "columns": "share",
    "schedulers": ["netkv-full"],
    "value": {"gain_over": "rr"},
}


# --- Values -----------------------------------------------------------------------------------------------------------


def test_gains_are_paired_by_seed(tmp_path: Path) -> None:
    """20 % of 1000 ms and 15 % of 2000 ms: 17.5 % in the mean of seeds, though the means gain 16.7 %."""
    render(tmp_path, make_summary(gains({1.0: (20, 15), 2.0: (10, 10)})), TABLE)
    rows = [row for row in read(tmp_path / "tables" / "gains.csv") if row["metric"] == "gain_over_rr_pct"]
    assert [(row["load"], row["scheduler"], row["seeds"]) for row in rows] == [
        ("1", "netkv-full", "2"),
        ("2", "netkv-full", "2"),
    ]
    assert [float(row["mean"]) for row in rows] == [17.5, 10.0]
    assert float(rows[0]["ci_low"]) == pytest.approx(17.5 - T1 * 2.5, abs=1e-6)
    assert float(rows[0]["ci_high"]) == pytest.approx(17.5 + T1 * 2.5, abs=1e-6)
    assert [float(rows[1][end]) for end in ("ci_low", "ci_high")] == pytest.approx([10.0, 10.0], abs=1e-6)


def test_differences_to_a_scheduler_and_gains_in_other_columns(tmp_path: Path) -> None:
    columns = [{"of": "slo_attainment", "minus": "rr"}, {"of": "tbt_mean_ms", "gain_over": "rr"}]
    render(tmp_path, make_summary(gains({1.0: (20, 15), 2.0: (10, 10)})), {**TABLE, "columns": columns})
    rows = read(tmp_path / "tables" / "gains.csv")
    assert {(row["metric"], row["mean"]) for row in rows} == {
        ("slo_attainment_minus_rr", "0.050000"),
        ("tbt_mean_ms_gain_over_rr_pct", "0.000000"),
    }


def test_the_models_are_side_by_side_with_their_paired_difference(tmp_path: Path) -> None:
    """The fluid model is 100 and 200 ms faster: its mean difference is -150 ms, with a half width of T1 * 50 ms."""
    summary = make_summary(
        lambda _load, _share, backend, _scheduler, seed: 1000.0 * seed - (100.0 * seed if backend == "fluid" else 0),
        backends=("packet", "fluid"),
        loads=(1.0,),
        schedulers=("rr",),
    )
    render(tmp_path, summary, {**TABLE, "columns": "ttft_mean_ms"})
    rows = read(tmp_path / "tables" / "gains.csv")
    assert [(row["backend"], row["mean"]) for row in rows] == [
        ("packet", "1500.000000"),
        ("fluid", "1350.000000"),
        ("fluid - packet", "-150.000000"),
    ]
    assert float(rows[2]["ci_high"]) == pytest.approx(-150 + T1 * 50, abs=1e-6)
    assert (tmp_path / "tables" / "gains.md").read_text().splitlines()[2:7] == [
        "| load | backend | mean TTFT [ms] |",
        "|---|---|---:|",
        "| 1 | packet | 1,500 ± 6,353 |",
        "| 1 | fluid | 1,350 ± 5,718 |",
        "| 1 | fluid - packet | -150 ± 635 |",
    ]


def test_only_complete_runs_count_and_the_caption_says_what_is_missing(tmp_path: Path) -> None:
    summary = make_summary(gains({1.0: (20, 15), 2.0: (10, 10)}))
    lost = (summary["load"] == 1.0) & (summary["scheduler"] == "rr") & (summary["seed"] == 2)
    summary.loc[lost, ["status", "ttft_mean_ms"]] = ["failed", 1.0]
    render(tmp_path, summary, TABLE)
    rows = {(r["load"], r["scheduler"], r["metric"]): r for r in read(tmp_path / "tables" / "gains.csv")}
    assert rows["1", "rr", "ttft_mean_ms"]["mean"] == "1000.000000"
    assert rows["1", "netkv-full", "gain_over_rr_pct"]["mean"] == "20.000000"  # the other seed has no baseline
    assert rows["1", "netkv-full", "gain_over_rr_pct"]["seeds"] == "1"
    text = (tmp_path / "tables" / "gains.md").read_text()
    assert "packet model; 1 to 2 seeds, ±: 95 % interval (t); 200 requests a run; 7 runs, 1 more are missing." in text


def test_of_one_seed_there_is_no_interval(tmp_path: Path) -> None:
    summary = make_summary(gains({1.0: (20,), 2.0: (10,)}), seeds=(1,))
    claims = [{"wins": True}, {"monotone": "load"}]
    render(tmp_path, summary, TABLE, {**MAP, "claims": claims})
    row = next(r for r in read(tmp_path / "tables" / "gains.csv") if r["metric"] == "gain_over_rr_pct")
    assert (row["mean"], row["ci_low"], row["ci_high"]) == ("20.000000", "", "")
    text = (tmp_path / "tables" / "gains.md").read_text()
    assert "| 1 | netkv-full | 800 | 20.0 |" in text
    assert "one seed, so no interval" in text
    assert {c["verdict"] for c in read(tmp_path / "tables" / "claims.csv")} == {"undecided (one seed)"}


def test_labels_are_text_whatever_they_were() -> None:
    assert [label_text(x) for x in (1, 1.0, "1.0", 0.05, 16384, "100ms", True, "inf")] == [
        *("1", "1", "1", "0.05", "16384", "100ms", "true", "inf")
    ]


# --- Published values -------------------------------------------------------------------------------------------------


def test_published_values_stand_beside_ours(tmp_path: Path) -> None:
    paper = tmp_path / "paper.csv"
    paper.write_text(
        "# a comment\nload,scheduler,ttft_mean_ms,ttft_mean_ms_pm,gain_over_rr_pct\n"
        "1,netkv-full,1000,10,18.5\n1,rr,1250,,\n3,rr,1,1,1\n"
    )
    render(tmp_path, make_summary(gains({1.0: (20, 20), 2.0: (10, 10)})), {**TABLE, "paper": str(paper)})
    rows = {(r["load"], r["scheduler"], r["metric"]): r for r in read(tmp_path / "tables" / "gains.csv")}
    ours = rows["1", "netkv-full", "ttft_mean_ms"]
    assert (ours["mean"], ours["paper"], ours["paper_pm"], ours["difference"]) == (
        *("1200.000000", "1000.000000", "10.000000", "200.000000"),
    )
    assert rows["2", "rr", "ttft_mean_ms"]["paper"] == ""
    head, _, *body = (tmp_path / "tables" / "gains.md").read_text().splitlines()[2:]
    assert [cell.strip() for cell in head.strip("|").split("|")] == [
        "load",
        "scheduler",
        "mean TTFT [ms]",
        "mean TTFT [ms], paper",
        "mean TTFT [ms], ours - paper",
        "gain over rr [%]",
        "gain over rr [%], paper",
        "gain over rr [%], ours - paper",
    ]
    assert body[1] == "| 1 | netkv-full | 1,200 ± 5,082 | 1,000 ± 10 | +200 (+20.0 %) | 20.0 ± 0.0 | 18.5 | +1.5 |"
    assert body[2] == "| 2 | rr | 1,500 ± 6,353 | - | - | - | - | - |"


def test_published_values_come_with_the_project() -> None:
    """Spot checks against Tables II, III, IV and VI of arXiv 2606.03910."""
    where = {"load": "load", "context_length": "context_length", "workload": "workload", "scheduler": "scheduler"}
    tables = {path.name: pd.read_csv(path, comment="#") for path in PAPER_DIRECTORY.glob("*.csv")}
    assert set(tables) == {"table2.csv", "table3.csv", "table4.csv", "table6.csv", "fig3.csv"}
    for name, column, key, value in (
        ("table2.csv", "transfer_mean_ms", {"load": 2, "scheduler": "netkv-full"}, 733),
        ("table2.csv", "gain_over_rr_pct", {"load": 2, "scheduler": "netkv-full"}, 21.23),
        ("table3.csv", "gain_over_rr_pct", {"context_length": 16384}, 20.2),
        ("table4.csv", "ttft_mean_ms", {"workload": "long-context", "scheduler": "netkv-static"}, 6150),
        ("table6.csv", "tier2_share", {"scheduler": "netkv-full"}, 0.689),
    ):
        rows = tables[name]
        for axis, label in key.items():
            rows = rows.loc[rows[where[axis]] == label]
        assert rows[column].tolist() == [value]


# --- Claims -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("by_load", "claim", "verdict", "numbers"),
    [
        # Steps of 5, 5 and 5 points in both seeds.
        ([(5, 6), (10, 11), (15, 16), (20, 21)], {"monotone": "load"}, "holds", "3 steps: 3 rise and 0 fall beyond"),
        # The second step falls by 4 points in both seeds.
        ([(5, 6), (10, 11), (6, 7), (20, 21)], {"monotone": "load"}, "fails", "3 steps: 2 rise and 1 fall beyond"),
        # The second step falls by 1 point in the mean, by -1 and 3 in the seeds.
        ([(5, 6), (10, 11), (11, 8), (20, 21)], {"monotone": "load"}, "undecided (intervals overlap)", "1 more fall"),
        # No step falls in the mean, but from end to end the rise is 0 and 3 points.
        ([(5, 6), (5, 7), (5, 8), (5, 9)], {"monotone": "load"}, "undecided (intervals overlap)", "0 more fall"),
        ([(5, 5), (6, 6), (7, 7), (8, 8)], {"wins": True}, "holds", "4 cells: 4 above and 0 below 0"),
        ([(5, 5), (-2, -2), (7, 7), (8, 8)], {"wins": True}, "fails", "4 cells: 3 above and 1 below 0"),
        ([(5, 5), (1, -2), (7, 7), (8, 8)], {"wins": True}, "undecided (intervals overlap)", "3 above in the mean"),
        ([(15.3, 15.4), (15.5, 15.6), (15.4, 15.5), (15.3, 15.4)], {"flat": "load", "within": 1}, "holds", "0.2 (0.2"),
        ([(15, 15), (17, 17), (15, 15), (15, 15)], {"flat": "load", "within": 1}, "fails", "smallest: 2.0"),
        ([(15, 15), (16, 15.5), (15, 15), (15, 15)], {"flat": "load", "within": 1}, "undecided (inter", "0.8 (-2.4"),
        ([(5, 5), (6, 6), (7, 7), (8, 8)], {"below": 9}, "holds", "4 cells, largest 8.0"),
        ([(5, 5), (6, 6), (7, 7), (8, 8)], {"below": 7.5}, "fails", "4 cells, largest 8.0"),
    ],
)
def test_claims_are_held_against_the_intervals(
    tmp_path: Path, by_load: list[tuple[float, float]], claim: dict[str, Any], verdict: str, numbers: str
) -> None:
    loads = (1.0, 2.0, 4.0, 8.0)
    summary = make_summary(gains(dict(zip(loads, by_load, strict=True))), loads=loads)
    render(tmp_path, summary, {**TABLE, "columns": {"gain_over": "rr"}, "claims": [claim]})
    (row,) = read(tmp_path / "tables" / "claims.csv")
    assert row["verdict"].startswith(verdict)
    assert numbers in row["numbers"]
    assert (row["figure"], row["backend"], row["scheduler"]) == ("gains", "packet", "netkv-full")


def test_a_claim_has_a_row_for_every_facet_and_does_not_hold_where_its_runs_are_missing(tmp_path: Path) -> None:
    by_load = {1.0: (20, 20, 20), 2.0: (25, 25, 25)}
    summary = make_summary(gains(by_load), shares=("a", "b"), schedulers=("rr", "ca", "netkv-full"), seeds=(1, 2, 3))
    lost = (summary["share"] == "a") & (summary["scheduler"] == "rr") & (summary["load"] == 1) & (summary["seed"] == 3)
    summary.loc[lost, "status"] = "failed"
    figure = {**LINE, "schedulers": ["netkv-full"], "where": {}, "facet": "share", "y": {"gain_over": "rr"}}
    render(tmp_path, summary, {**figure, "claims": [{"wins": True}]})
    rows = read(tmp_path / "tables" / "claims.csv")
    assert [(row["of"], row["verdict"]) for row in rows] == [("a", "undecided (runs are missing)"), ("b", "holds")]


# --- Pictures ---------------------------------------------------------------------------------------------------------


def make_frame(points: list[dict[str, Any]], **order: Sequence[str]) -> Frame:
    filled = [{"ci_low": float("nan"), "ci_high": float("nan"), "paper": float("nan"), **p} for p in points]
    order = {"backend": ("packet",), "scheduler": ("rr", "netkv-full"), **order}
    return Frame(pd.DataFrame(filled), "Title", "caption", {"load": "load [%]"}, order)


def test_a_cell_has_its_number_and_half_its_interval_and_a_missing_one_a_dash() -> None:
    point = {"backend": "packet", "scheduler": "netkv-full", "metric": "g"}
    points = [
        {**point, "load": "1", "share": "a", "mean": 12.34, "ci_low": 10.34, "ci_high": 14.34},
        {**point, "load": "2", "share": "b", "mean": -3.21},
    ]
    frame = make_frame(points, load=("1", "2"), share=("a", "b"))
    quantity = Quantity("g", "gain [%]", ".1f")
    figure = sweep_figures.heatmap(frame, rows="load", columns="share", facet=None, metric=quantity)
    axes, bar = figure.axes
    texts = [(text.get_text(), round(text.get_position()[0]), round(text.get_position()[1])) for text in axes.texts]
    assert texts == [("12.3", 0, 0), ("± 2.0", 0, 0), ("-", 1, 0), ("-", 0, 1), ("-3.2", 1, 1)]
    assert (axes.get_ylabel(), bar.get_ylabel()) == ("load [%]", "gain [%]")
    assert axes.collections[0].norm(0.0) == pytest.approx(0.5)  # two hues that meet at 0


def test_lines_stand_at_the_numbers_with_their_whiskers_and_the_papers_hollow() -> None:
    point = {"backend": "packet", "scheduler": "rr", "metric": "ttft_mean_ms"}
    points = [
        {**point, "load": "4", "mean": 30.0, "ci_low": 25.0, "ci_high": 35.0, "paper": 33.0},
        {**point, "load": "1", "mean": 10.0, "ci_low": 9.0, "ci_high": 11.0},
    ]
    frame = make_frame(points, load=("1", "4"))
    quantity = Quantity("ttft_mean_ms", "mean TTFT [ms]", ",.0f")
    figure = sweep_figures.lines(frame, x="load", metrics=[quantity], facet=None, log_x=False, share_y=True)
    (axes,) = figure.axes
    ours, paper = (line for line in axes.lines if line.get_marker() in "so" and len(line.get_xdata()) == 2)
    assert ours.get_xydata().tolist() == [[1.0, 10.0], [4.0, 30.0]]
    assert paper.get_markerfacecolor() == "none" and paper.get_ydata()[1] == 33.0
    (whiskers,) = axes.collections
    assert [segment[:, 1].tolist() for segment in whiskers.get_segments()] == [[9.0, 11.0], [25.0, 35.0]]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("load [%]", "mean TTFT [ms]")
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["rr", "published (paper)"]


def test_an_interval_of_two_seeds_does_not_dwarf_the_means() -> None:
    """Means of 10 and 30: the axis ends one difference, 20, beyond them (and 6 % of its length), not at 5000."""
    point = {"backend": "packet", "scheduler": "rr", "metric": "ttft_mean_ms", "ci_low": -5000.0}
    points = [
        {**point, "load": "1", "mean": 10.0, "ci_high": 20.0},
        {**point, "load": "2", "mean": 30.0, "ci_high": 5e3},
    ]
    quantity = Quantity("ttft_mean_ms", "mean TTFT [ms]", ",.0f")
    frame = make_frame(points, load=("1", "2"))
    figure = sweep_figures.lines(frame, x="load", metrics=[quantity], facet=None, log_x=False, share_y=True)
    assert figure.axes[0].get_ylim() == pytest.approx((0, 50 + 0.06 * 60))
    assert figure.get_supxlabel() == "caption Long whiskers are cut."


def test_bars_of_both_models_stand_side_by_side() -> None:
    point = {"scheduler": "rr", "metric": "ttft_mean_ms", "load": "1"}
    points = [{**point, "backend": "packet", "mean": 20.0, "paper": 25.0}, {**point, "backend": "fluid", "mean": 10.0}]
    frame = make_frame(points, load=("1",), backend=("packet", "fluid"))
    quantity = Quantity("ttft_mean_ms", "mean TTFT [ms]", ",.0f")
    figure = sweep_figures.bars(frame, x="load", metrics=[quantity], facet=None, share_y=True)
    (axes,) = figure.axes
    assert [(bar.get_height(), bar.get_hatch()) for bar in axes.patches] == [(20.0, ""), (10.0, "////")]
    assert axes.lines[0].get_ydata() == [25.0]
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == ["rr", "packet", "fluid", "published (paper)"]


# --- Files ------------------------------------------------------------------------------------------------------------


def test_tables_and_pictures_are_the_same_bytes_and_know_no_clock(tmp_path: Path) -> None:
    summary = make_summary(gains({1.0: (20, 15), 2.0: (10, 10)}), backends=("packet", "fluid"))
    wall = {**LINE, "name": "wall", "y": "decision_mean_us", "claims": [{"below": 1500}]}
    keys = summary[[*AXES, "backend", "scheduler", "seed"]].to_dict("records")
    files = []
    for out, time_us in ((tmp_path / "a", 10.0), (tmp_path / "b", 99.0)):
        manifest = {**MANIFEST, "cells": [{**key, "decision_mean_us": time_us} for key in keys]}
        written = render(out, summary, LINE, BARS, MAP, TABLE, wall, manifest=manifest)
        assert all(path.is_file() for path in written)
        names = {path.relative_to(out).as_posix() for path in written}
        assert names == {
            *(f"figures/{name}.png" for name in ("lines", "bars", "map", "wall")),
            *(f"tables/{name}.csv" for name in ("lines", "bars", "map", "gains")),
            *("tables/gains.md", "provenance.csv", "report.html"),
        }
        report = (out / "report.html").read_text()
        assert f"largest {time_us:.0f}" in report and "Wall time: differs" in report
        files.append({name: (out / name).read_bytes() for name in names if name[:7] in ("figures", "tables/")})
    differing = {name for name in files[0] if files[0][name] != files[1][name]}
    assert differing == {"figures/wall.png"}


def test_a_label_may_hold_dollars(tmp_path: Path) -> None:
    """They are no formulas: an unfinished one would end the sweep when its cells have run."""
    summary = make_summary(lambda load, *_: 1.0, loads=("$x_{$", "b"))
    written = render(
        tmp_path,
        summary,
        {**LINE, "title": "$\\frac$"},
        {**BARS, "facet": None, "where": {**LINE["where"], "load": "b"}},
    )
    assert tmp_path / "figures" / "lines.png" in written


def test_the_report_of_a_sweep_without_figures_says_so(tmp_path: Path) -> None:
    render(tmp_path, make_summary(gains({1.0: (20, 15), 2.0: (10, 10)})))
    assert "The sweep has no <code>figures</code>" in (tmp_path / "report.html").read_text()


def test_rendering_again_leaves_nothing_of_before(tmp_path: Path) -> None:
    summary = make_summary(gains({1.0: (20, 15), 2.0: (10, 10)}))
    render(tmp_path, summary, {**TABLE, "name": "before"})
    render(tmp_path, summary, TABLE)
    assert {path.name for path in (tmp_path / "tables").iterdir()} == {"gains.csv", "gains.md"}


def test_the_report_names_what_failed_and_what_has_no_data(tmp_path: Path) -> None:
    who = {"load": "2", "share": "0.1", "backend": "packet", "scheduler": "rr", "seed": 1}
    failed = [{**who, "status": "failed", "error": "a < b", "detail": "Traceback", "wall_s": 1.0}]
    summary = make_summary(gains({1.0: (20, 15), 2.0: (10, 10)}))
    render(tmp_path, summary, {**TABLE, "where": {"share": 0.7}}, failed=failed)
    report = (tmp_path / "report.html").read_text()
    assert "1 of 8 runs are not complete" in report
    assert (
        "load 2 / share 0.1 / backend packet / scheduler rr / seed 1: failed" in report
        and "a &lt; b\nTraceback" in report
    )
    assert "There is no complete run to show" in report
    assert "versions.ns3" in report


# --- The block --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("block", "key", "message"),
    [
        ("lines", "figures.0", "must be a block of keys"),
        ({"name": "a"}, "figures.0.kind", "required and missing. Allowed: line, bars, heatmap, table"),
        ({**LINE, "kind": "lines"}, "figures.0.kind", "did you mean 'line'?"),
        ({**LINE, "titel": "x"}, "figures.0.titel", "did you mean 'title'?"),
        ({**LINE, "name": "A B"}, "figures.0.name", "given 'A B'"),
        ({**LINE, "name": "claims"}, "figures.0.name", "the name of another table"),
        ({**LINE, "x": "laod"}, "figures.0.x", "unknown axis 'laod'; did you mean 'load'? Allowed: load, share"),
        ({**LINE, "facet": "scheduler"}, "figures.0.facet", "Allowed: load, share, backend"),
        ({**LINE, "where": {}}, "figures.0.where.share", "the axis 'share' is not shown"),
        ({**LINE, "where": {"share": 1, "load": 1}}, "figures.0", "'load' is named twice"),
        ({**LINE, "where": {"shar": 1}}, "figures.0.where.shar", "unknown axis"),
        ({**LINE, "labels": {"lod": "x"}}, "figures.0.labels.lod", "unknown axis"),
        ({**LINE, "y": "ttft"}, "figures.0.y.0.of", "unknown column 'ttft'"),
        ({**LINE, "y": {"gain_over": "rr", "minus": "rr"}}, "figures.0.y.0.minus", "one of the two"),
        ({**LINE, "y": {"of": "ttft_mean_ms", "format": "q"}}, "figures.0.y.0.format", "must be a format of Python"),
        ({**LINE, "y": ["ttft_mean_ms", "decision_mean_us"]}, "figures.0", "a figure of their own"),
        ({**LINE, "log_x": "yes"}, "figures.0.log_x", "must be true or false"),
        ({**LINE, "claims": [{"monotone": "share"}]}, "figures.0.claims.0.monotone", "figure 'share'. Allowed: load"),
        ({**BARS, "claims": [{"monotone": "scheduler"}]}, "figures.0.claims.0.monotone", "'scheduler'. Allowed: none"),
        ({**BARS, "claims": [{"flat": "load", "within": 1}]}, "figures.0.claims.0.flat", "'load'. Allowed: none"),
        ({**LINE, "claims": [{"wins": True}]}, "figures.0.claims.0.wins", "goes with gain_over only"),
        ({**LINE, "claims": [{"wins": True, "below": 1}]}, "figures.0.claims.0", "one of the keys"),
        ({**LINE, "claims": [{"flat": "load"}]}, "figures.0.claims.0.within", "`flat` needs it"),
        ({**MAP, "schedulers": ["rr", "ca"]}, "figures.0.schedulers", "the one scheduler"),
        ({**TABLE, "rows": ["load", "scheduler"]}, "figures.0.rows.1", "unknown axis 'scheduler'"),
        ({**LINE, "y": 2 * ["ttft_mean_ms"]}, "figures.0.y.1", "'ttft_mean_ms' is listed twice"),
        ({**TABLE, "columns": {"label": "load"}}, "figures.0.columns.0.label", "'load' is what another column is"),
        ({**TABLE, "columns": {"minus": "rr", "format": "x<9"}}, "figures.0.columns.0.format", "given 'x<9': "),
        ({**TABLE, "paper": "tabel2.csv"}, "figures.0.paper", "did you mean 'table2.csv'?"),
    ],
)
def test_a_mistake_in_the_block_is_told_with_its_key(block: Any, key: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        sweep_report.check([block], AXES, source="sweep.yaml")
    assert (caught.value.source, caught.value.key) == ("sweep.yaml", key)
    assert message in caught.value.message


LABELS = {"load": ["1.0", "2.0"], "share": ["0.1", "low"], "scheduler": ["rr", "lab.py:Mine"]}


@pytest.mark.parametrize(
    ("block", "key", "message"),
    [
        ({**LINE, "where": {"share": "lwo"}}, "where.share", "label of axis 'share' 'lwo'; did you mean 'low'?"),
        ({**LINE, "where": {"share": 1}}, "where.share", "unknown label of axis 'share' '1'. Allowed: 0.1, low"),
        ({**LINE, "schedulers": ["rr", "lab:Mine"]}, "schedulers.1", "'lab:Mine'; did you mean 'lab.py:Mine'?"),
        ({**LINE, "y": {"gain_over": "r"}}, "y.0.gain_over", "unknown scheduler of this sweep 'r'; did you mean 'rr'?"),
        ({**TABLE, "columns": ["ttft_mean_ms", {"minus": "ca"}]}, "columns.1.minus", "'ca'. Allowed: rr, lab.py:Mine"),
        ({**MAP, "schedulers": ["ca"]}, "schedulers.0", "unknown scheduler of this sweep 'ca'. Allowed: rr,"),
        ({**MAP, "schedulers": ["rr"]}, "value.gain_over", "given 'rr': there is no other scheduler"),
    ],
)  # fmt: skip
def test_a_figure_names_what_the_sweep_has(block: Any, key: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        sweep_report.check([block], AXES, LABELS)
    assert caught.value.key == f"figures.0.{key}"
    assert message in caught.value.message
    assert sweep_report.check([block], AXES)  # when it is drawn, what is missing is no mistake


def test_labels_are_the_same_as_their_numbers() -> None:
    share = {"share": ["0.10", "low"]}
    blocks = [{**LINE, "where": {"share": given}, "name": name} for name, given in (("a", 0.1), ("b", "low"))]
    assert [figure.name for figure in sweep_report.check(blocks, AXES, {**LABELS, **share})] == ["a", "b"]
    with pytest.raises(InputError, match="axes: the labels '1' and '1.0' of axis 'load' are the same number"):
        sweep_report.check([LINE], AXES, {**LABELS, "load": ["1", "1.0"]})


@pytest.mark.parametrize("name", ["mean", "metric", "value", "seeds"])
def test_an_axis_cannot_be_called_like_a_column_of_the_tables(name: str) -> None:
    sweep_report.check([], [name])
    with pytest.raises(InputError, match=f"axes: with figures, an axis cannot be called '{name}'"):
        sweep_report.check([{**LINE, "x": name, "where": {}}], [name])


def test_two_figures_cannot_have_one_name() -> None:
    with pytest.raises(InputError, match="figures.1.name: 'lines' is the name of another"):
        sweep_report.check([LINE, LINE], AXES)


@pytest.mark.parametrize(
    ("text", "key", "message"),
    [
        ("load,ttft\n1,2\n", "ttft", "unknown column 'ttft'"),
        ('load\n"1\n', "", "cannot be read as CSV"),
        ("load,ttft_mean_ms\n1,fast\n", "ttft_mean_ms", "must hold numbers"),
        ("ttft_mean_ms\n1\n", "", "has no column of keys. Allowed: load, share, backend, scheduler"),
    ],
)
def test_a_mistake_in_published_values_is_told_before_any_run(
    tmp_path: Path, text: str, key: str, message: str
) -> None:
    paper = tmp_path / "mine.csv"
    paper.write_text(text)
    with pytest.raises(InputError) as caught:
        sweep_report.check([{**LINE, "paper": str(paper)}], AXES)
    assert caught.value.source == str(paper)
    assert caught.value.key == key
    assert message in caught.value.message


# --- With the engine --------------------------------------------------------------------------------------------------

SWEEP = """
name: tiny
scenario: rag
set: {background: none, requests: 8, schedulers: [rr, netkv-full], backend: fluid}
axes: [{name: load, key: workload.rate_scale, values: [1.0, 2.0]}]
seeds: 2
figures:
  - {name: table2, kind: table, title: II, rows: [load], columns: [ttft_mean_ms, {gain_over: rr}], paper: table2.csv}
  - {name: load, kind: line, title: By load, x: load, y: ttft_mean_ms, claims: [{below: 100000}]}
  - {name: decision, kind: bars, title: Decisions, x: load, y: decision_max_us, claims: [{below: 1000000000}]}
"""


def test_a_sweep_ends_with_what_its_file_asks_for(tmp_path: Path) -> None:
    path = tmp_path / "tiny.yaml"
    path.write_text(SWEEP)
    report = sweep.run_sweep(
        load_sweep(path),
        tmp_path / "out",
        LocalWorkers(1),
        resume=False,
        allow_mixed_code=False,
        command="test",
        on_plan=lambda *_: None,
        on_event=lambda *_: None,
    )
    assert report.status == "complete"
    rows = {(r["load"], r["scheduler"], r["metric"]): r for r in read(report.out / "tables" / "table2.csv")}
    ours = rows["2", "netkv-full", "gain_over_rr_pct"]
    by_seed = {
        (r["load"], r["scheduler"], r["seed"]): float(r["ttft_mean_ms"]) for r in read(report.out / "summary.csv")
    }
    expected = [100 * (1 - by_seed["2.0", "netkv-full", s] / by_seed["2.0", "rr", s]) for s in ("1", "2")]
    assert float(ours["mean"]) == pytest.approx(sum(expected) / 2, abs=1e-4)  # summary.csv has six decimals
    assert (ours["paper"], ours["seeds"]) == ("21.230000", "2")
    assert {path.name for path in (report.out / "figures").iterdir()} == {"load.png", "decision.png"}
    page = (report.out / "report.html").read_text()
    assert page.count("data:image/png") == 2 and "longest time of a decision [us] is below 1,000,000,000" in page
