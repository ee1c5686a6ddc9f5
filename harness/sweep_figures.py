"""How a sweep's figures are drawn: lines, bars and heat maps of means with their intervals, in the style of a run's."""

from __future__ import annotations

import itertools
import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, Normalize, TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, NullLocator

from harness.figures import panel_grid, scheduler_colours
from harness.sweep_block import Quantity

_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">")
_LINE_OF_BACKEND: dict[str, Any] = {"packet": "-", "fluid": (0, (4, 1.6))}
_HATCH_OF_BACKEND = {"packet": "", "fluid": "////"}
_PAPER = "published (paper)"
_RING: dict[str, Any] = {"marker": "o", "markersize": 9, "markerfacecolor": "none", "linestyle": ":"}
_DIAMOND: dict[str, Any] = {"marker": "D", "markersize": 7, "markerfacecolor": "white", "linestyle": ""}
_MISSING_COLOUR = "0.85"

#: What stands where there is no value.
MISSING = "-"


@dataclass(frozen=True)
class Frame:
    """What all kinds of figures have in common.

    Parameters
    ----------
    points : a row per key, backend, scheduler and metric: mean, ci_low, ci_high, paper (NaN where there is none).
    title, caption : above and below the panels.
    labels : what axes of the sweep are called, where that is not their name.
    order : the labels of every axis, backends and schedulers among them, in the order to show them.
    """

    points: pd.DataFrame
    title: str
    caption: str
    labels: Mapping[str, str]
    order: Mapping[str, Sequence[str]]

    def label(self, axis: str) -> str:
        """What an axis is called."""
        return self.labels.get(axis, axis.replace("_", " "))

    def present(self, axis: str) -> list[str]:
        """The labels of an axis that the points have, in order."""
        found = set(self.points[axis])
        return [label for label in self.order[axis] if label in found]

    def colours(self) -> dict[str, Any]:
        """The colours of all the sweep's schedulers, so that one has the same in every figure."""
        return scheduler_colours(self.order["scheduler"])


def _short(scheduler: str) -> str:
    return scheduler.rsplit("/", 1)[-1]  # a plug-in by its file, not the whole path


def _positions(labels: Sequence[str]) -> tuple[np.ndarray[Any, np.dtype[np.float64]], bool]:
    """Where the labels of an x axis stand: at their values if all are numbers, else side by side."""
    try:
        values = np.array([float(label) for label in labels])
    except ValueError:
        values = np.array([math.nan])
    if np.isfinite(values).all():
        return values, True
    return np.arange(len(labels), dtype=np.float64), False


def _limit(axes: Axes, points: pd.DataFrame, metric: Quantity, *, from_zero: bool) -> bool:
    """Limit the y axis so that intervals of two or three seeds do not dwarf the means; whether that cut any.

    The axis is at least a tenth of the largest value long: what is flat looks flat.
    """
    values = points[["mean", "paper"]].to_numpy()
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    largest = max(abs(low), abs(high))
    reach = max(high - low, 0.5 * largest)
    whisker_low = float(np.fmin(points["ci_low"].min(), low))
    whisker_high = float(np.fmax(points["ci_high"].max(), high))
    bottom, top = max(whisker_low, low - reach), min(whisker_high, high + reach)
    margin = max(0.06 * (top - bottom), 0.05 * largest - 0.5 * (top - bottom)) or 1.0
    bottom, top = bottom - margin, top + margin
    if metric.is_difference:
        if from_zero:
            bottom, top = min(bottom, 0.0), max(top, 0.0)
    else:
        bottom = 0.0 if from_zero else max(bottom, 0.0)
        if metric.is_share:
            top = min(top, 1.02)
    axes.set_ylim(bottom, top)
    return whisker_low < bottom or whisker_high > top


def _finish(figure: Figure, frame: Frame, handles: Sequence[Any], *, cut: bool = False) -> Figure:
    inches = figure.get_figwidth()
    title = textwrap.fill(frame.title, int(9 * (inches - 1.3)))
    figure.suptitle(title, x=0.01, ha="left", fontsize=11.5, fontweight="bold")
    caption = textwrap.fill(frame.caption + (" Long whiskers are cut." if cut else ""), int(12.5 * inches))
    figure.supxlabel(caption, fontsize=8.5, color="0.35", x=0.01, ha="left")
    if handles:
        figure.legend(handles=handles, loc="outside right upper", frameon=False, fontsize=9)
    return figure


def _facets(frame: Frame, facet: str | None) -> list[tuple[str, pd.DataFrame]]:
    """A title and the points of every panel."""
    if facet is None:
        return [("", frame.points)]
    names = {v: f"{v} model" if facet == "backend" else f"{frame.label(facet)}: {v}" for v in frame.present(facet)}
    return [(name, frame.points.loc[frame.points[facet] == v]) for v, name in names.items()]


def _panels(
    frame: Frame, facet: str | None, metrics: Sequence[Quantity], size: tuple[float, float], *, share_y: bool
) -> tuple[Figure, list[tuple[Axes, str, pd.DataFrame, Quantity]]]:
    """A panel per facet and metric: metrics side by side, or, of one metric, the facets."""
    facets = _facets(frame, facet)
    cells = list(itertools.product(facets, metrics))
    columns = len(metrics) if len(metrics) > 1 and len(facets) > 1 else 4 if len(cells) % 3 else 3
    if len(cells) == 4:
        columns = 2
    if len(cells) == 1:
        size = max(size[0], 6.4), max(size[1], 4.0)
    figure, axes = panel_grid(len(cells), *size, columns=columns, sharex=False, sharey=share_y and len(metrics) == 1)
    return figure, [
        (ax, title, points.loc[points["metric"] == metric.id], metric)
        for ax, ((title, points), metric) in zip(axes, cells, strict=True)
    ]


def _all_of(frame: Frame, points: pd.DataFrame, metric: Quantity, *, share_y: bool) -> pd.DataFrame:
    """The points that a panel's y axis is for."""
    return frame.points.loc[frame.points["metric"] == metric.id] if share_y else points


def _scheduler_handles(frame: Frame, *, line: bool) -> list[Any]:
    colours = frame.colours()
    names = frame.present("scheduler")
    if not line:
        return [Patch(facecolor=colours[s], label=_short(s)) for s in names]
    marker = _markers(frame)
    return [Line2D([], [], color=colours[s], marker=marker[s], linewidth=1.8, label=_short(s)) for s in names]


def _markers(frame: Frame) -> dict[str, str]:
    return dict(zip(frame.order["scheduler"], itertools.cycle(_MARKERS), strict=False))


def _has_paper(points: pd.DataFrame) -> bool:
    return bool(points["paper"].notna().any())


def lines(
    frame: Frame, *, x: str, metrics: Sequence[Quantity], facet: str | None, log_x: bool, share_y: bool
) -> Figure:
    """A line per scheduler and backend with whiskers for its interval; published values are hollow."""
    labels = frame.present(x)
    position, numeric = _positions(labels)
    log_x = log_x and numeric and bool((position > 0).all())
    colours, marker = frame.colours(), _markers(frame)
    backends = [] if facet == "backend" else frame.present("backend")
    series = [(s, b) for s in frame.present("scheduler") for b in frame.present("backend")]
    figure, panels = _panels(frame, facet, metrics, (4.4, 3.3), share_y=share_y)
    cuts = []
    for axes, title, points, metric in panels:
        if log_x:
            axes.set_xscale("log")
        if metric.is_difference:
            axes.axhline(0, color="0.4", linewidth=1, zorder=1)
        for number, (scheduler, backend) in enumerate(series):
            rows = points.loc[(points["scheduler"] == scheduler) & (points["backend"] == backend)].set_index(x)
            if rows.empty:
                continue
            rows = rows.reindex(labels)
            style = _LINE_OF_BACKEND.get(backend, "-") if len(backends) > 1 else "-"
            colour = colours[scheduler]
            axes.errorbar(
                _dodged(position, number, len(series), log=log_x),
                rows["mean"],
                yerr=[rows["mean"] - rows["ci_low"], rows["ci_high"] - rows["mean"]],
                color=colour,
                linestyle=style,
                linewidth=1.8,
                elinewidth=1.2,
                capsize=3,
                marker=marker[scheduler],
                markersize=5,
                markerfacecolor=colour if style == "-" else "white",
                zorder=3,
            )
            published = rows["paper"].to_numpy()
            if backend == frame.present("backend")[0] and np.isfinite(published).any():
                axes.plot(position, published, color=colour, linewidth=1.2, zorder=4, **_RING)
        _name_axes(axes, title, frame.label(x), metric)
        axes.xaxis.set_major_locator(FixedLocator(list(position)))
        axes.xaxis.set_minor_locator(NullLocator())
        crowded = _is_crowded(labels, np.log(position) if log_x else position, 3.3)
        axes.set_xticks(position, labels, rotation=45 if crowded else 0)
        axes.margins(x=0.05)
        cuts.append(_limit(axes, _all_of(frame, points, metric, share_y=share_y), metric, from_zero=False))
    handles = _scheduler_handles(frame, line=True)
    if len(backends) > 1:
        handles += [Line2D([], [], color="0.2", linestyle=_LINE_OF_BACKEND[b], label=b) for b in backends]
    if _has_paper(frame.points):
        handles.append(Line2D([], [], color="0.2", label=_PAPER, **_RING))
    return _finish(figure, frame, handles, cut=any(cuts))


def _dodged(
    position: np.ndarray[Any, np.dtype[np.float64]], number: int, of: int, *, log: bool
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Positions moved a little aside, so that the whiskers of several lines do not cover one another."""
    scale = np.log(position) if log else position
    span = float(np.ptp(scale)) or 1.0
    room = min(0.2 * float(np.diff(np.sort(scale)).min(initial=span)), 0.04 * span)
    moved: np.ndarray[Any, np.dtype[np.float64]] = scale + room * ((number + 0.5) / of - 0.5)
    return np.exp(moved) if log else moved


def _name_axes(axes: Axes, title: str, x_label: str, metric: Quantity) -> None:
    axes.set_xlabel(x_label)
    axes.set_ylabel(metric.label)
    axes.tick_params(labelbottom=True, labelleft=True)
    if title:
        axes.set_title(title, loc="left", fontsize=10)
    if metric.format.endswith("%"):
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    sns.despine(ax=axes)


def _is_crowded(labels: Sequence[str], scale: np.ndarray[Any, np.dtype[np.float64]], inches: float) -> bool:
    """Whether labels at these places of an axis would touch."""
    order = np.argsort(scale)
    room = np.diff(scale[order]) * inches / (np.ptp(scale) or 1.0)
    lengths = np.array([len(labels[i]) for i in order])
    return bool((room < 0.05 * (lengths[1:] + lengths[:-1]) + 0.1).any())


def bars(frame: Frame, *, x: str, metrics: Sequence[Quantity], facet: str | None, share_y: bool) -> Figure:
    """Bars by scheduler and backend at every label of `x`, with their intervals; published values are hollow."""
    colours = frame.colours()
    backends = frame.present("backend")
    groups = frame.present(x)
    hues = [(s, b) for s in ([None] if x == "scheduler" else frame.present("scheduler")) for b in backends]
    width = 0.8 / len(hues)
    size = (max(3.6, 1.2 + 0.36 * len(groups) * (len(hues) + 1)), 3.6)
    figure, panels = _panels(frame, facet, metrics, size, share_y=share_y)
    cuts = []
    for axes, title, points, metric in panels:
        for (i, group), (j, (hue, backend)) in itertools.product(enumerate(groups), enumerate(hues)):
            scheduler = group if hue is None else hue
            chosen = (points[x] == group) & (points["scheduler"] == scheduler) & (points["backend"] == backend)
            rows = points.loc[chosen]
            if rows.empty:
                continue
            row = rows.iloc[0]
            centre = i + (j - (len(hues) - 1) / 2) * width
            hatch = _HATCH_OF_BACKEND.get(backend, "") if len(backends) > 1 else ""
            look: dict[str, Any] = {"color": colours[scheduler], "edgecolor": "white", "alpha": 0.85, "hatch": hatch}
            axes.bar(centre, row["mean"], width=0.92 * width, linewidth=0, zorder=2, **look)
            if math.isfinite(row["ci_low"]):
                whiskers = [[row["mean"] - row["ci_low"]], [row["ci_high"] - row["mean"]]]
                axes.errorbar(centre, row["mean"], yerr=whiskers, color="0.15", capsize=3, linewidth=1.3, zorder=4)
            if math.isfinite(row["paper"]):
                hollow: dict[str, Any] = {
                    "marker": "D",
                    "markersize": 7,
                    "markerfacecolor": "white",
                    "markeredgecolor": "0.15",
                }
                axes.plot(centre, row["paper"], linestyle="", zorder=5, **hollow)
        names = [_short(group) for group in groups]
        _name_axes(axes, title, "" if x == "scheduler" else frame.label(x), metric)
        crowded = _is_crowded(names, np.arange(len(names), dtype=np.float64), size[0] - 1.2)
        axes.set_xticks(range(len(groups)), names, rotation=30 if crowded else 0, ha="right" if crowded else "center")
        axes.set_xlim(-0.6, len(groups) - 0.4)
        axes.xaxis.grid(False)
        if metric.is_difference:
            axes.axhline(0, color="0.4", linewidth=1, zorder=3)
        cuts.append(_limit(axes, _all_of(frame, points, metric, share_y=share_y), metric, from_zero=True))
    handles = [] if x == "scheduler" else _scheduler_handles(frame, line=False)
    if len(backends) > 1:
        hatches = {b: _HATCH_OF_BACKEND.get(b, "") for b in backends}
        handles += [Patch(label=b, facecolor="0.5", edgecolor="white", hatch=h) for b, h in hatches.items()]
    if _has_paper(frame.points):
        handles.append(Line2D([], [], color="0.15", label=_PAPER, **_DIAMOND))
    return _finish(figure, frame, handles, cut=any(cuts))


def heatmap(frame: Frame, *, rows: str, columns: str, facet: str | None, metric: Quantity) -> Figure:
    """A panel per facet and backend on one colour scale, the mean and half its interval in every cell."""
    backends = frame.present("backend")
    facets = _facets(frame, facet)
    down, across = frame.present(rows), frame.present(columns)
    size = (max(2.6, 0.9 + 0.72 * len(across)), max(2.2, 0.9 + 0.5 * len(down)))
    grid = (len(backends), len(facets))
    figure = Figure(figsize=(max(6.0, size[0] * grid[1] + 1.0), size[1] * grid[0] + 0.6), layout="constrained")
    panels = figure.subplots(*grid, squeeze=False)
    colour_map, norm = _colour_scale(frame.points["mean"].to_numpy())
    for (y, backend), (x, (title, facet_points)) in itertools.product(enumerate(backends), enumerate(facets)):
        axes = panels[y, x]
        points = facet_points.loc[facet_points["backend"] == backend]
        cell = {(row[rows], row[columns]): row for _, row in points.iterrows()}
        means = np.array([[cell[r, c]["mean"] if (r, c) in cell else math.nan for c in across] for r in down])
        edges = np.arange(len(across) + 1) - 0.5, np.arange(len(down) + 1) - 0.5
        mesh = axes.pcolormesh(*edges, np.ma.masked_invalid(means), cmap=colour_map, norm=norm, edgecolor="white")
        for (i, r), (j, c) in itertools.product(enumerate(down), enumerate(across)):
            _write_cell(axes, j, i, cell.get((r, c)), metric, colour_map, norm)
        axes.set_xticks(range(len(across)), across)
        axes.set_yticks(range(len(down)), down)
        axes.grid(False)
        axes.tick_params(length=0)
        sns.despine(ax=axes, left=True, bottom=True)
        heading = title if len(backends) == 1 else ", ".join(filter(None, (title, f"{backend} model")))
        axes.set_title(heading, loc="left", fontsize=10)
        if y == grid[0] - 1:
            axes.set_xlabel(frame.label(columns))
        if x == 0:
            axes.set_ylabel(frame.label(rows))
    bar = figure.colorbar(mesh, ax=panels, shrink=0.9, pad=0.015, aspect=28)
    bar.set_label(metric.label)
    bar.outline.set_visible(False)
    return _finish(figure, frame, ())


def _colour_scale(means: np.ndarray[Any, np.dtype[np.float64]]) -> tuple[Colormap, Normalize]:
    """From 0 upwards one hue; if there are values below 0 as well, two hues that meet at 0."""
    finite = means[np.isfinite(means)]
    low, high = float(finite.min(initial=0.0)), float(finite.max(initial=0.0))
    if low >= 0:
        return sns.color_palette("crest", as_cmap=True).with_extremes(bad=_MISSING_COLOUR), Normalize(0, high or 1.0)
    reach = max(-low, high)
    return sns.color_palette("vlag_r", as_cmap=True).with_extremes(bad=_MISSING_COLOUR), TwoSlopeNorm(0, -reach, reach)


def _write_cell(
    axes: Axes, x: int, y: int, row: pd.Series[Any] | None, metric: Quantity, colour_map: Colormap, norm: Normalize
) -> None:
    if row is None or not math.isfinite(row["mean"]):
        axes.text(x, y, MISSING, ha="center", va="center", color="0.35")
        return
    red, green, blue, _ = colour_map(norm(row["mean"]))
    ink = "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.55 else "white"
    known = math.isfinite(row["ci_low"])
    axes.text(x, y + (0.13 if known else 0), format(row["mean"], metric.format), ha="center", va="center", color=ink)
    if known:
        half = format((row["ci_high"] - row["ci_low"]) / 2, metric.format.lstrip("+"))
        axes.text(x, y - 0.25, f"± {half}", ha="center", va="center", color=ink, fontsize=7.5)
