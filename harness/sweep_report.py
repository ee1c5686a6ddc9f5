"""What is drawn from a sweep: figures, tables beside the paper's, claims held against the result, and report.html.

A sweep's YAML says what it wants in its `figures:` block; `check` reads it before any run, `render` draws it after the
last. A value is a mean over seeds with Student's 95 % interval. Gains and differences are taken seed by seed, so
arrivals, lengths and hashes are the same on both sides. Everything below tables/ depends on the results only; what is
measured in wall time is in the report and its figure alone.
"""

from __future__ import annotations

import itertools
import math
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib import rc_context

from harness import figures as run_figures
from harness import metrics, results, sweep_figures
from harness.sweep_block import (
    POINT_COLUMNS,
    WALL_CLOCK,
    WHO,
    Bars,
    Claim,
    Figure,
    Heatmap,
    Lines,
    Metric,
    Quantity,
    Table,
    check,
    in_order,
    label_text,
    published,
)
from harness.sweep_figures import MISSING, Frame

__all__ = ["CLAIM_COLUMNS", "GAP", "POINT_COLUMNS", "check", "render"]

#: The backend column of the difference between the two network models.
GAP = "fluid - packet"

#: Columns of tables/claims.csv.
CLAIM_COLUMNS = ("figure", "claim", "backend", "scheduler", "of", "verdict", "numbers")


# --- Values and intervals ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Data:
    """The rows of a sweep that one figure shows.

    `keys` : the axes that are shown. `values` : keys, backend, scheduler, seed, metric, value, a row per complete run
    and metric. `points` : the same over seeds. `runs`, `lost` : of summary.csv the rows that it rests on, baselines
    included, complete and not.
    """

    keys: tuple[str, ...]
    values: pd.DataFrame
    points: pd.DataFrame
    runs: pd.DataFrame
    lost: pd.DataFrame


def _metric_values(runs: pd.DataFrame, axes: Sequence[str], metric: Metric) -> pd.Series[float]:
    """The metric of every run; NaN for the baseline itself, and where the baseline is missing."""
    ours = runs[metric.of].astype(float)
    if metric.baseline is None:
        return ours
    pairing = [*axes, "backend", "seed"]
    of_base = runs["scheduler"] == metric.baseline
    base = ours[of_base].set_axis(pd.MultiIndex.from_frame(runs.loc[of_base, pairing]))
    beside = base.reindex(pd.MultiIndex.from_frame(runs[pairing])).to_numpy()
    values: pd.Series[float] = 100 * (1 - ours / beside) if metric.gain_over is not None else ours - beside
    return values.mask(of_base)


def _select(figure: Figure, axes: Sequence[str], summary: pd.DataFrame) -> _Data:
    keys = tuple(axis for axis in figure.shown.values() if axis not in WHO)
    rows = summary
    for axis, label in figure.where.items():
        rows = rows.loc[rows[axis] == label_text(label)]
    complete = rows.loc[rows["status"] == "complete"]
    parts = []
    for metric in figure.metrics:
        part = complete[[*keys, *WHO, "seed"]].assign(metric=metric.id, value=_metric_values(complete, axes, metric))
        parts.append(part.loc[part["value"].notna()])
    values = pd.concat(parts, ignore_index=True)
    used = rows["scheduler"].notna()
    if figure.schedulers:
        values = values.loc[values["scheduler"].isin(figure.schedulers)]
        used = rows["scheduler"].isin([*figure.schedulers, *(metric.baseline for metric in figure.metrics)])
    points = _with_published(_over_seeds(values, keys), figure, axes)
    done = rows["status"] == "complete"
    return _Data(keys, values, points, rows.loc[used & done], rows.loc[used & ~done])


def _over_seeds(values: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """Mean and interval over seeds, and, where both network models ran, those of their difference."""
    lead = [*keys, *WHO, "metric"]
    rows = []
    for key, group in values.groupby(lead, sort=False):
        rows.append((*key, *_numbers(group["value"])))
    beside = values.pivot_table(index=[*keys, "scheduler", "metric", "seed"], columns="backend", values="value")
    if {"fluid", "packet"} <= set(beside):
        gap = (beside["fluid"] - beside["packet"]).dropna().rename("value").reset_index().assign(backend=GAP)
        for key, group in gap.groupby(lead, sort=False):
            rows.append((*key, *_numbers(group["value"])))
    points: pd.DataFrame = pd.DataFrame(rows, columns=[*lead, "mean", "ci_low", "ci_high", "seeds"])
    return points


def _numbers(values: pd.Series[float]) -> tuple[float, float, float, int]:
    interval = metrics.t_interval(values.to_numpy())
    return interval.mean, interval.low, interval.high, len(values)


def _with_published(points: pd.DataFrame, figure: Figure, axes: Sequence[str]) -> pd.DataFrame:
    """Add the published values, half their intervals, and the difference of ours to them."""
    points = points.assign(paper=math.nan, paper_pm=math.nan)
    if figure.paper is not None:
        table = published(figure.paper, axes)
        for axis, label in figure.where.items():
            if axis in table:
                table = table.loc[table[axis] == label_text(label)]
        on = [column for column in table if column in points.columns and column != "metric"]
        for metric in figure.metrics:
            for column, name in ((metric.id, "paper"), (f"{metric.id}_pm", "paper_pm")):
                if column in table:
                    known = table.set_index(on)[column]
                    known = known.loc[~known.index.duplicated()]
                    of_metric = (points["metric"] == metric.id) & (points["backend"] != GAP)
                    index = points.loc[of_metric].set_index(on).index
                    points.loc[of_metric, name] = known.reindex(index).to_numpy()
    points["difference"] = points["mean"] - points["paper"]
    return points


# --- Claims -----------------------------------------------------------------------------------------------------------


def _claims(figure: Figure, data: _Data) -> list[dict[str, Any]]:
    """A row per claim, metric, network model, scheduler and facet."""
    facet = [figure.facet_axis] if figure.facet_axis in data.keys else []
    rows = []
    for claim, metric in itertools.product(figure.claims, figure.metrics):
        values = data.values.loc[data.values["metric"] == metric.id]
        for key, group in values.groupby([*WHO, *facet], sort=False):
            backend, scheduler, *of = key
            said, verdict, numbers = _evaluate(claim, metric, figure, data.keys, group)
            of_these = data.lost["backend"].eq(backend) & data.lost["scheduler"].isin((scheduler, metric.baseline))
            for axis, label in zip(facet, of, strict=True):
                of_these &= data.lost[axis] == label
            if verdict == "holds" and of_these.any():
                verdict = "undecided (runs are missing)"
            row = (figure.name, said, backend, scheduler, ", ".join(map(str, of)), verdict, numbers)
            rows.append(dict(zip(CLAIM_COLUMNS, row, strict=True)))
    return rows


def _evaluate(
    claim: Claim, metric: Metric, figure: Figure, keys: Sequence[str], values: pd.DataFrame
) -> tuple[str, str, str]:
    """What is claimed, the verdict, and the numbers behind it, for one metric, model, scheduler and facet."""
    quantity = metric.quantity
    name, form = quantity.label, quantity.format.lstrip("+")
    if claim.axis is not None:
        along = figure.labels.get(claim.axis, claim.axis)
        lines = _lines(values, claim.axis, [key for key in keys if key != claim.axis])
        if claim.monotone is not None:
            return f"{name} does not fall along {along}", *_monotone(lines, form)
        assert claim.within is not None
        if metric.gain_over is not None:
            said, allowed = f"{name} changes by at most {claim.within:g} percentage points", [claim.within] * len(lines)
        else:
            said = f"{name} changes by at most {claim.within:g} % of its mean"
            allowed = [claim.within / 100 * abs(float(line.to_numpy().mean())) for line in lines]
        return f"{said} along {along}", *_flat(lines, allowed, form)
    cells = [metrics.t_interval(g["value"].to_numpy()) for _, g in values.groupby(list(keys) or ["metric"], sort=False)]
    if claim.wins:
        return f"{name} is above 0", *_above([(c.mean, c.low, c.high) for c in cells], form)
    assert claim.below is not None
    below = [(claim.below - c.mean, claim.below - c.high, claim.below - c.low) for c in cells]
    verdict, _ = _above(below, form)
    highest = max(c.mean for c in cells)
    return f"{name} is below {claim.below:,.12g}", verdict, f"{len(cells)} cells, largest {highest:{form}}"


def _lines(values: pd.DataFrame, axis: str, others: Sequence[str]) -> list[pd.DataFrame]:
    """The values along an axis for each combination of the other keys: a row per seed that all labels have."""
    lines = []
    for _, group in values.groupby(list(others) or ["metric"], sort=False):
        line = group.pivot_table(index="seed", columns=axis, values="value")[in_order(group[axis])].dropna()
        if line.shape[1] > 1 and len(line):
            lines.append(line)
    return lines


def _monotone(lines: Sequence[pd.DataFrame], form: str) -> tuple[str, str]:
    """It fails if a step falls beyond its interval; it holds if no mean falls and every line rises from end to end."""
    if not lines:
        return "undecided (fewer than two labels)", ""
    steps = [
        metrics.t_interval((line.iloc[:, i + 1] - line.iloc[:, i]).to_numpy())
        for line in lines
        for i in range(line.shape[1] - 1)
    ]
    whole = [metrics.t_interval((line.iloc[:, -1] - line.iloc[:, 0]).to_numpy()) for line in lines]
    up, down = sum(step.low > 0 for step in steps), sum(step.high < 0 for step in steps)
    falling = sum(step.mean < 0 for step in steps)
    numbers = (
        f"{len(steps)} steps: {up} rise and {down} fall beyond the interval, {falling - down} more fall in the mean; "
        f"least step {min(step.mean for step in steps):+{form}}; from end to end "
        f"{min(w.mean for w in whole):+{form}} to {max(w.mean for w in whole):+{form}}"
    )
    if down:
        return "fails", numbers
    if not falling and all(w.low > 0 for w in whole):
        return "holds", numbers
    return _undecided(step.low for step in steps), numbers


def _flat(lines: Sequence[pd.DataFrame], tolerances: Sequence[float], form: str) -> tuple[str, str]:
    """Of each line the largest difference between two labels, with its interval, against the tolerance.

    Being the largest of several, it is overestimated: the verdict leans towards "fails", not towards "holds".
    """
    if not lines:
        return "undecided (fewer than two labels)", ""
    spreads = []
    for line in lines:
        means = line.mean()
        spreads.append(metrics.t_interval((line[means.idxmax()] - line[means.idxmin()]).to_numpy()))
    largest = max(spreads, key=lambda s: s.mean)
    known = f" ({largest.low:{form}} to {largest.high:{form}})" if math.isfinite(largest.low) else ""
    numbers = f"largest mean less smallest: {largest.mean:{form}}{known}; allowed {max(tolerances):{form}}"
    if any(spread.low > tolerance for spread, tolerance in zip(spreads, tolerances, strict=True)):
        return "fails", numbers
    if all(spread.high <= tolerance for spread, tolerance in zip(spreads, tolerances, strict=True)):
        return "holds", numbers
    return _undecided(spread.low for spread in spreads), numbers


def _above(cells: Sequence[tuple[float, float, float]], form: str) -> tuple[str, str]:
    """(mean, low, high) of every cell against 0."""
    up, down = sum(low > 0 for _, low, _ in cells), sum(high < 0 for _, _, high in cells)
    means = [mean for mean, _, _ in cells]
    numbers = (
        f"{len(cells)} cells: {up} above and {down} below 0 beyond the interval; {sum(m > 0 for m in means)} above in "
        f"the mean; {min(means):{form}} to {max(means):{form}}"
    )
    if down:
        return "fails", numbers
    if up == len(cells):
        return "holds", numbers
    return _undecided(low for _, low, _ in cells), numbers


def _undecided(lows: Iterable[float]) -> str:
    return f"undecided ({'one seed' if any(map(math.isnan, lows)) else 'intervals overlap'})"


# --- Tables -----------------------------------------------------------------------------------------------------------


def _table_rows(figure: Figure, data: _Data, frame: Frame) -> list[dict[str, str]]:
    """The table as it is read, all cells as text: a row per key and scheduler, and per network model if both ran."""
    points = data.points
    has_paper = set(points.loc[points["paper"].notna(), "metric"])
    lead = [*data.keys]
    if points["scheduler"].nunique() > 1 or not lead:
        lead.append("scheduler")
    if points["backend"].nunique() > 1:
        lead.append("backend")
    by_key: dict[Any, pd.DataFrame] = dict(iter(points.groupby(lead, sort=False)))
    order = {**frame.order, "backend": [*frame.order["backend"], GAP]}
    rows = []
    for key in sorted(by_key, key=lambda k: [order[a].index(v) for a, v in zip(lead, k, strict=True)]):
        row = {frame.label(axis): label for axis, label in zip(lead, key, strict=True)}
        found = by_key[key].set_index("metric")
        for metric in figure.metrics:
            quantity = metric.quantity
            point = found.loc[metric.id] if metric.id in found.index else None
            row[quantity.label] = _mean_text(point, quantity)
            if metric.id in has_paper:
                row[f"{quantity.label}, paper"] = _paper_text(point, quantity)
                row[f"{quantity.label}, ours - paper"] = _difference_text(point, quantity)
        rows.append(row)
    return rows


def _mean_text(point: pd.Series[Any] | None, quantity: Quantity) -> str:
    if point is None:
        return MISSING
    plain = quantity.format.lstrip("+")
    text = format(point["mean"], f"+{plain}" if point["backend"] == GAP else quantity.format)
    return f"{text} ± {(point['ci_high'] - point['ci_low']) / 2:{plain}}" if math.isfinite(point["ci_low"]) else text


def _paper_text(point: pd.Series[Any] | None, quantity: Quantity) -> str:
    if point is None or not math.isfinite(point["paper"]):
        return MISSING
    text = format(point["paper"], quantity.format)
    return f"{text} ± {point['paper_pm']:{quantity.format.lstrip('+')}}" if math.isfinite(point["paper_pm"]) else text


def _difference_text(point: pd.Series[Any] | None, quantity: Quantity) -> str:
    if point is None or not math.isfinite(point["paper"]):
        return MISSING
    text = format(point["difference"], "+" + quantity.format.lstrip("+"))
    is_ratio = quantity.id.endswith(("_ms", "_us", "_gbps"))
    return f"{text} ({100 * point['difference'] / point['paper']:+.1f} %)" if is_ratio else text


def _markdown(title: str, rows: Sequence[Mapping[str, str]], texts: Sequence[str], caption: str) -> str:
    columns = list(rows[0])
    lines = [f"**{title}**", "", "| " + " | ".join(columns) + " |"]
    lines.append("|" + "|".join("---" if column in texts else "---:" for column in columns) + "|")
    lines += ["| " + " | ".join(row[column].replace("|", "\\|") for column in columns) + " |" for row in rows]
    return "\n".join([*lines, "", caption, ""])


# --- All of it --------------------------------------------------------------------------------------------------------


def render(
    out: Path,
    figures: Sequence[Mapping[str, Any]],
    axes: Sequence[str],
    summary: pd.DataFrame,
    manifest: Mapping[str, Any],
    failed: Sequence[Mapping[str, Any]],
) -> list[Path]:
    """Write figures/*.png, tables/*.csv and *.md, provenance.csv and report.html below `out`.

    Parameters
    ----------
    figures : the sweep's `figures:` block.
    axes : names of the axes, which are the first columns of `summary`.
    summary : summary.csv of the sweep, a row per run.
    manifest : what is to be known of the sweep as a whole, and in `cells` what each run measured in wall time.
    failed : of each run that is not complete its labels, backend, scheduler, seed, status, error and detail.

    Returns
    -------
    The files written.

    Raises
    ------
    InputError : a malformed block.
    DiskFailure : the disk is full or broken.
    """
    blocks = check(figures, axes)
    summary = _prepared(summary, axes, manifest)
    order = {a: in_order(summary[a]) for a in axes} | {w: list(dict.fromkeys(summary[w])) for w in WHO}
    for name in ("figures", "tables"):
        shutil.rmtree(out / name, ignore_errors=True)
        results.make_directory(out / name)
    written: list[Path] = []
    claims: list[dict[str, str]] = []
    reproducible: list[dict[str, str]] = []
    sections = []
    for figure in blocks:
        data = _select(figure, axes, summary)
        if data.points.empty:
            sections += [_heading(figure.title), "<p class=quiet>There is no complete run to show.</p>"]
            continue
        frame = Frame(data.points, figure.title, _caption(figure, data), figure.labels, order)
        if not figure.is_wall_clock:
            written.append(out / "tables" / f"{figure.name}.csv")
            columns = [*data.keys, *WHO, *POINT_COLUMNS]
            results.write_csv(written[-1], columns, _records(data.points))
        if isinstance(figure, Table):
            rows = _table_rows(figure, data, frame)
            texts = [frame.label(name) for name in (*data.keys, *WHO)]
            sections += [_heading(figure.title), run_figures.html_table(rows, texts)]
            sections.append(f"<p class=quiet>{run_figures.escape(frame.caption)}</p>")
            if not figure.is_wall_clock:
                written.append(out / "tables" / f"{figure.name}.md")
                results.write_text(written[-1], _markdown(figure.title, rows, texts, frame.caption))
        else:
            written.append(out / "figures" / f"{figure.name}.png")
            image = _draw(figure, replace(frame, points=data.points.loc[data.points["backend"] != GAP]))
            results.write_bytes(written[-1], image)
            sections += [_heading(figure.title), run_figures.html_image(image, frame.caption)]
        found = _claims(figure, data)
        claims += found
        reproducible += [] if figure.is_wall_clock else found
    if reproducible:
        written += [out / "tables" / "claims.csv", out / "tables" / "claims.md"]
        results.write_csv(written[-2], CLAIM_COLUMNS, reproducible)
        results.write_text(written[-1], _markdown("Claims", reproducible, CLAIM_COLUMNS, _ABOUT_CLAIMS))
    written += [out / "provenance.csv", out / "report.html"]
    results.write_csv(written[-2], ("what", "value"), _provenance(manifest))
    results.write_text(written[-1], _report(manifest, summary, sections, claims, failed, axes))
    return written


def _records(points: pd.DataFrame) -> list[dict[str, Any]]:
    return [dict(zip(points.columns, row, strict=True)) for row in points.itertuples(index=False)]


def _prepared(summary: pd.DataFrame, axes: Sequence[str], manifest: Mapping[str, Any]) -> pd.DataFrame:
    """The summary with labels as text, and with the wall times of every run."""
    summary = summary.copy()
    for axis in axes:
        summary[axis] = summary[axis].map(label_text)
    who = [*axes, *WHO, "seed"]
    times = {tuple(label_text(cell[k]) for k in who): cell for cell in manifest.get("cells", ())}
    keys = [tuple(map(label_text, key)) for key in summary[who].itertuples(index=False)]
    for name in WALL_CLOCK:
        summary[name] = [float(times.get(key, {}).get(name) or math.nan) for key in keys]
    return summary


def _caption(figure: Figure, data: _Data) -> str:
    """Network model, seeds, requests and number of runs, and what the marks mean."""
    backends = [b for b in dict.fromkeys(data.points["backend"]) if b != GAP]
    seeds = sorted(set(data.points.loc[data.points["backend"] != GAP, "seeds"]))
    parts = [" and ".join(backends) + (" models" if len(backends) > 1 else " model")]
    if seeds == [1]:
        parts.append("one seed, so no interval")
    else:
        many = f"{seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else str(seeds[0])
        mark = "whiskers" if isinstance(figure, Lines | Bars) else "±"
        parts.append(f"{many} seeds, {mark}: 95 % interval (t)")
    fewest, most = int(data.runs["requests"].min()), int(data.runs["requests"].max())
    parts.append(f"{fewest:,}" + (f" to {most:,}" if most > fewest else "") + " requests a run")
    parts.append(f"{len(data.runs):,} runs" + (f", {len(data.lost):,} more are missing" if len(data.lost) else ""))
    fixed = [f"{figure.labels.get(axis, axis)} {label_text(label)}" for axis, label in figure.where.items()]
    text = "; ".join([*fixed, *parts]) + "."
    if figure.is_wall_clock:
        text += " Wall time: differs from machine to machine and from run to run."
    return f"{text} {figure.note}".strip()


def _draw(figure: Figure, frame: Frame) -> bytes:
    quantities = [metric.quantity for metric in figure.metrics]
    options: dict[str, Any] = {}
    if isinstance(figure, Lines | Bars):
        options = {"x": figure.x, "metrics": quantities, "facet": figure.facet, "share_y": figure.share_y}
    with rc_context({**run_figures.STYLE, "text.parse_math": False}):  # a label may hold any number of $
        if isinstance(figure, Lines):
            drawn = sweep_figures.lines(frame, log_x=figure.log_x, **options)
        elif isinstance(figure, Bars):
            drawn = sweep_figures.bars(frame, **options)
        else:
            assert isinstance(figure, Heatmap)
            options = {"rows": figure.rows, "columns": figure.columns, "facet": figure.facet}
            drawn = sweep_figures.heatmap(frame, metric=quantities[0], **options)
        return run_figures.png(drawn)


# --- Report -----------------------------------------------------------------------------------------------------------

_ABOUT_CLAIMS = (
    'A claim "holds" or "fails" where 95 % intervals over seeds, paired where two runs are compared, allow no other '
    "answer, each interval taken by itself: of many, one in twenty is wrong by chance."
)

#: Failed runs whose traceback is shown; of hundreds, the first tell what is wrong.
_SHOWN_FAILURES = 50


def _provenance(manifest: Mapping[str, Any]) -> list[dict[str, str]]:
    own = [{"what": key, "value": manifest[key]} for key in ("name", "started_utc", "config_sha256")]
    return [*own, *run_figures.provenance(manifest)]


def _heading(title: str) -> str:
    return f"<h3>{run_figures.escape(title)}</h3>"


def _report(
    manifest: Mapping[str, Any],
    summary: pd.DataFrame,
    sections: Sequence[str],
    claims: Sequence[Mapping[str, str]],
    failed: Sequence[Mapping[str, Any]],
    axes: Sequence[str],
) -> str:
    """The sweep as one HTML page that needs no other file."""
    escape = run_figures.escape
    title = f"netkv-cosim sweep: {manifest['name']}"
    facts = [manifest.get(key) for key in ("run_id", "status", "started_utc")]
    parts = [f"<h1>{escape(title)}</h1>", f"<p class=quiet>{' · '.join(escape(f) for f in facts if f)}</p>"]
    if failed:
        parts.append(
            f"<div class=bad><b>{len(failed)} of {len(summary)} runs are not complete.</b> They are left out of all "
            'figures and tables, and <a href="#failed">listed below</a>.</div>'
        )
    if claims:
        parts += ["<h2>Claims</h2>", run_figures.html_table(claims), f"<p class=quiet>{escape(_ABOUT_CLAIMS)}</p>"]
    none = "<p class=quiet>The sweep has no <code>figures</code>; summary.csv has a row per run.</p>"
    parts += ["<h2>Figures and tables</h2>", *(sections or [none])]
    if failed:
        parts.append("<h2 id=failed>Runs that are not complete</h2>")
        for run in failed[:_SHOWN_FAILURES]:
            labels = " / ".join(f"{name} {run[name]}" for name in (*axes, *WHO, "seed"))
            parts.append(
                f"<div class=bad><b>{escape(labels)}: {escape(run['status'])}</b>"
                f"<pre>{escape(run['error'])}\n{escape(run['detail'])}</pre></div>"
            )
        if len(failed) > _SHOWN_FAILURES:
            parts.append(f"<p>{len(failed) - _SHOWN_FAILURES} more are in status.csv.</p>")
    parts += ["<h2>Provenance</h2>", run_figures.html_table(_provenance(manifest))]
    return run_figures.html_page(title, parts)
