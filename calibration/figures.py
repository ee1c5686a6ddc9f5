"""The figures of the calibration experiments: pure functions from table rows to PNG bytes."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import NullFormatter, ScalarFormatter

from harness.figures import STYLE, TIER_NAMES, png

#: By how many points the flow-level simulator overstates the gains (arXiv 2606.03910, Table V).
PAPER_GAP_PP = (4.0, 6.0)

BASELINE_NAMES = {"rr": "over round-robin", "cla-tuned": "over cla-tuned"}
_BAND_COLOUR = "#e9c46a"
_COLOURS = dict(zip(BASELINE_NAMES, sns.color_palette("colorblind", 2).as_hex(), strict=True))


def gap(rows: Sequence[Mapping[str, Any]], by_seed: Mapping[str, Sequence[Sequence[float]]]) -> bytes:
    """Table V: the gap of every row with its interval and a dot per seed, in TTFT and in transfer time.

    The paper's range, which is of TTFT, is shaded.

    Parameters
    ----------
    rows : of table5.csv. by_seed : of ttft and transfer, per row, the gap of every seed [percentage points].
    """
    with matplotlib.rc_context(STYLE):
        keys = list(dict.fromkeys((row["workload"], row["load"], row["profile"]) for row in rows))
        figure = Figure(figsize=(11.0, 1.9 + 0.72 * len(keys)), layout="constrained")
        left, right = figure.subplots(1, 2, sharex=True, sharey=True)
        left.axvspan(*PAPER_GAP_PP, color=_BAND_COLOUR, alpha=0.45, linewidth=0, label="the paper: 4-6 points")
        for axes, quantity, prefix in ((left, "ttft", ""), (right, "transfer", "transfer_")):
            axes.axvline(0, color="0.3", linewidth=1)
            for row, dots in zip(rows, by_seed[quantity], strict=True):
                baseline = row["baseline"]
                y = keys.index((row["workload"], row["load"], row["profile"])) + 0.2 * _side(baseline)
                _point(axes, row, dots, y, _COLOURS[baseline], prefix)
            axes.set_xlabel("gain in the fluid model less gain on packets [points]", fontsize=9)
            axes.yaxis.grid(False)
            sns.despine(ax=axes, left=True)
        for baseline, name in BASELINE_NAMES.items():
            left.errorbar([], [], xerr=[], fmt="o", color=_COLOURS[baseline], capsize=4, label=f"gain {name}")
        left.set_yticks(range(len(keys)), [f"{workload}, {load} % load\n{profile}" for workload, load, profile in keys])
        left.set_ylim(len(keys) - 0.4, -0.6)
        left.set_title("in mean TTFT", loc="left")
        right.set_title("in mean transfer time", loc="left")
        shown = [value for of_all in by_seed.values() for dots in of_all for value in dots]
        _limit(left, [*shown, *(row[f"{prefix}gap_pp"] for row in rows for prefix in ("", "transfer_"))])
        figure.suptitle("How far the fluid model overstates NetKV's gain [percentage points]")
        figure.legend(
            title=_whiskers(rows, "; circles: seeds"),
            title_fontsize=9,
            loc="outside lower center",
            ncols=3,
            frameon=False,
            fontsize=9,
        )
        return png(figure)


def _side(baseline: str) -> int:
    """-1 or 1: above or below the middle of the row."""
    return 2 * list(BASELINE_NAMES).index(baseline) - 1


def _seeds(rows: Iterable[Mapping[str, Any]]) -> str:
    numbers = sorted({row["seeds"] for row in rows})
    if numbers == [1]:
        return "one seed"
    return f"{numbers[0]} seeds" if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]} seeds"


def _whiskers(rows: Sequence[Mapping[str, Any]], more: str = "") -> str:
    """What to say of the intervals; one seed has none."""
    seeds = _seeds(rows)
    return f"{seeds}, no intervals" if seeds == "one seed" else f"whiskers: 95 % interval, paired t over {seeds}{more}"


def _point(axes: Any, row: Mapping[str, Any], dots: Sequence[float], y: float, colour: str, prefix: str = "") -> None:
    """A mean with its interval, and a dot per seed; `prefix` is of the columns."""
    jitter = [y + 0.035 * (i % 3 - 1) for i in range(len(dots))]
    axes.scatter(dots, jitter, s=14, facecolor="none", edgecolor=colour, linewidth=0.8, alpha=0.8, zorder=2)
    low, high = row[f"{prefix}gap_ci_low_pp"], row[f"{prefix}gap_ci_high_pp"]
    if np.isfinite(low):
        axes.plot([low, high], [y, y], color=colour, linewidth=2, zorder=3)
        axes.plot([low, high], [y, y], linestyle="", marker="|", color=colour, markersize=9, zorder=3)
    axes.plot(row[f"{prefix}gap_pp"], y, marker="o", color=colour, markersize=7, zorder=4)


_STEP_NAMES = {
    "fluid-paper": "fluid model\nof the paper",
    "whole-path": "whole\npath",
    "headers": "frame\nheaders",
    "dcqcn": "packets,\nDCQCN",
    "pfc": "buffers,\nPFC",
    "background": "background\nflows",
    "oracle": "sampled\noracle",
}
_DOWN, _UP, _TOTAL = "#d1495b", "#2e8b57", "0.55"


def ladder(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """A waterfall from the gain in the fluid model to that on packets, a panel per order of the steps and baseline.

    Parameters
    ----------
    rows : of ladder.csv, of one workload, load and profile.
    """
    with matplotlib.rc_context(STYLE):
        rows = [row for row in rows if row["order"] != "inside-fluid"]
        orders = list(dict.fromkeys(row["order"] for row in rows))
        baselines = list(dict.fromkeys(row["baseline"] for row in rows))
        figure = Figure(figsize=(6.6 * len(baselines), 3.5 * len(orders)), layout="constrained")
        grid = figure.subplots(len(orders), len(baselines), squeeze=False, sharey="col")
        for i, order in enumerate(orders):
            for j, baseline in enumerate(baselines):
                steps = [row for row in rows if (row["order"], row["baseline"]) == (order, baseline)]
                _waterfall(grid[i][j], steps)
                title = f"gain {BASELINE_NAMES.get(baseline, baseline)}"
                grid[i][j].set_title(f"{title}, {order.replace('-', ' ')}", loc="left")
            grid[i][0].set_ylabel("gain in mean TTFT [%]")
        first = rows[0]
        figure.suptitle(
            f"From the fluid model to packets: what each replaced assumption does to NetKV's gain\n"
            f"({first['workload']}, {first['load']} % load, {first['profile']}, {_seeds(rows)}; "
            "whiskers: 95 % interval of the step, paired over seeds; below: TTFT of the baseline and NetKV [ms])",
            fontsize=11,
        )
        return png(figure)


def _waterfall(axes: Any, steps: Sequence[Mapping[str, Any]]) -> None:
    gains = [step["gain_pct"] for step in steps]
    if not np.isfinite(gains).all():
        axes.annotate("no seed has all rungs", (0.5, 0.5), xycoords="axes fraction", ha="center", color="0.4")
        return
    last = len(steps)
    for x, step in enumerate(steps):
        gain = gains[x]
        if x == 0:
            axes.bar(x, gain, width=0.7, color=_TOTAL, zorder=2)
            _say(axes, x, max(gain, 0), f"{gain:.1f}")
            continue
        before, delta = gains[x - 1], step["delta_pp"]
        axes.bar(x, delta, bottom=before, width=0.7, color=_UP if delta >= 0 else _DOWN, zorder=2)
        axes.plot([x - 1.35, x + 0.35], [before, before], color="0.4", linewidth=0.8, zorder=1)
        low, high = step["ci_low_pp"], step["ci_high_pp"]
        top = max(before, gain)
        if np.isfinite(low):
            axes.plot([x, x], [before + low, before + high], color="0.15", linewidth=1.3, zorder=3)
            top = max(top, before + high)
        _say(axes, x, top, f"{delta:+.1f}")
    axes.bar(last, gains[-1], width=0.7, color=_TOTAL, zorder=2)
    axes.plot([last - 1.35, last + 0.35], [gains[-1]] * 2, color="0.4", linewidth=0.8, zorder=1)
    _say(axes, last, max(gains[-1], 0), f"{gains[-1]:.1f}")
    names = [_STEP_NAMES.get(step["adds"], step["adds"]) for step in steps]
    levels = [f"{step['ttft_baseline_ms']:.0f}, {step['ttft_netkv_ms']:.0f}" for step in (*steps, steps[-1])]
    labels = [f"{name}\n{level}" for name, level in zip((*names, "packet\nmodel"), levels, strict=True)]
    axes.set_xticks(range(last + 1), labels, fontsize=8)
    axes.axhline(0, color="0.3", linewidth=1)
    axes.axhspan(gains[0] - PAPER_GAP_PP[1], gains[0] - PAPER_GAP_PP[0], color=_BAND_COLOUR, alpha=0.45, linewidth=0)
    axes.annotate(
        "4-6 points below",
        (0.5, gains[0] - sum(PAPER_GAP_PP) / 2),
        ha="left",
        va="center",
        fontsize=7.5,
        color="0.3",
        zorder=5,
    )
    axes.margins(y=0.1)
    axes.xaxis.grid(False)
    sns.despine(ax=axes, left=True)


def _say(axes: Any, x: float, y: float, text: str) -> None:
    axes.annotate(text, (x, y), (0, 3), textcoords="offset points", ha="center", va="bottom", fontsize=8.5, zorder=6)


def recovery_map(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """The gap over increase timer and additive step, a panel per baseline; outlined where the paper's 4-6 lie.

    Parameters
    ----------
    rows : of sensitivity.csv, of one workload, load and profile; those without a timer are left out.
    """
    chosen = [row for row in rows if row["increase_timer_us"] is not None]
    timers = sorted({row["increase_timer_us"] for row in chosen})
    steps = sorted({row["additive_step_mbps"] for row in chosen})
    interval = "" if _seeds(chosen) == "one seed" else "± half of the 95 % interval; "
    extreme = max([abs(row["gap_pp"]) for row in chosen if np.isfinite(row["gap_pp"])], default=1.0)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(2.0 + 4.4 * len(BASELINE_NAMES), 1.9 + 0.75 * len(timers)), layout="constrained")
        panels = figure.subplots(1, len(BASELINE_NAMES), sharey=True)
        for axes, (baseline, name) in zip(panels, BASELINE_NAMES.items(), strict=True):
            grid = np.full((len(timers), len(steps)), np.nan)
            for row in chosen:
                if row["baseline"] != baseline or not np.isfinite(row["gap_pp"]):
                    continue
                y, x = timers.index(row["increase_timer_us"]), steps.index(row["additive_step_mbps"])
                grid[y, x] = row["gap_pp"]
                half = row["gap_pp"] - row["gap_ci_low_pp"]
                dark = abs(row["gap_pp"]) > 0.6 * extreme
                text = f"{round(row['gap_pp'], 1) + 0.0:.1f}" + (f"\n±{half:.1f}" if np.isfinite(half) else "")
                axes.text(x, y, text, ha="center", va="center", fontsize=9, color="white" if dark else "black")
                if PAPER_GAP_PP[0] <= row["gap_pp"] <= PAPER_GAP_PP[1]:
                    outline = Rectangle((x - 0.47, y - 0.46), 0.94, 0.92, fill=False, edgecolor="black", linewidth=2.5)
                    axes.add_patch(outline)
            image = axes.imshow(grid, cmap="RdBu_r", vmin=-extreme, vmax=extreme, aspect="auto")
            axes.set_xticks(range(len(steps)), [f"{step}" for step in steps])
            axes.set_yticks(range(len(timers)), [f"{timer} us" for timer in timers])
            axes.set_xlabel("additive step [Mb/s per 25 Gb/s of link rate]")
            axes.set_title(f"gap of the gain {name}", loc="left")
            axes.grid(False)
        panels[0].set_ylabel("increase timer")
        figure.colorbar(image, ax=panels, label="gap [percentage points]", shrink=0.9)
        figure.suptitle(
            f"How the gap moves with DCQCN's recovery ({_place(rows[0])}, {_seeds(chosen)};\n"
            f"{interval}outlined: within the paper's 4-6 points)",
            fontsize=10.5,
        )
        return png(figure)


def one_at_a_time(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """The gap as single parameters change, beside the base's; the paper's range shaded.

    Parameters
    ----------
    rows : of sensitivity.csv, of one workload, load and profile; those of the map are left out.
    """
    chosen = [row for row in rows if row["increase_timer_us"] is None]
    names = list(dict.fromkeys((row["parameter"], row["value"]) for row in chosen))
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(8.2, 1.7 + 0.42 * len(names)), layout="constrained")
        axes = figure.subplots()
        axes.axvspan(*PAPER_GAP_PP, color=_BAND_COLOUR, alpha=0.45, linewidth=0, label="the paper: 4-6 points")
        axes.axvline(0, color="0.3", linewidth=1)
        for row in chosen:
            place = names.index((row["parameter"], row["value"]))
            _point(axes, row, (), place + 0.15 * _side(row["baseline"]), _COLOURS[row["baseline"]])
        for baseline, name in BASELINE_NAMES.items():
            axes.plot([], [], marker="o", color=_COLOURS[baseline], label=f"gain {name}")
        axes.set_yticks(range(len(names)), ["base" if name == "none" else f"{name}: {value}" for name, value in names])
        axes.set_ylim(len(names) - 0.4, -0.6)
        axes.yaxis.grid(False)
        _limit(axes, [row["gap_pp"] for row in chosen])
        axes.set_xlabel(
            f"gain in the fluid model less gain on packets [percentage points of mean TTFT]\n{_whiskers(chosen)}",
            fontsize=9,
        )
        axes.set_title(f"The gap, one parameter at a time ({_place(rows[0])})", loc="left")
        figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=9)
        sns.despine(ax=axes, left=True)
        return png(figure)


def _place(row: Mapping[str, Any]) -> str:
    return f"{row['workload']}, {row['load']} % load, {row['profile']}"


def _limit(axes: Any, values: Sequence[float]) -> None:
    """Show all values and the paper's range; intervals that are wider run out of the picture."""
    finite = [value for value in values if np.isfinite(value)]
    axes.set_xlim(min([-1.0, *finite]) - 2, max([PAPER_GAP_PP[1], *finite]) + 2)


_RATIO_TICKS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2, 1.5, 2.0, 3.0, 5.0)


def replay(transfers: pd.DataFrame, competing_names: Sequence[str]) -> bytes:
    """Fluid over packet transfer time by tier and by competing transfers, a panel per fluid model.

    Parameters
    ----------
    transfers : of transfers.csv, of one workload, load and profile.
    competing_names : of the classes of competing transfers, fewest first.
    """
    models = list(dict.fromkeys(transfers["model"]))
    frame = transfers.assign(
        where=transfers["tier"].map(lambda tier: f"tier {tier}\n{TIER_NAMES[tier]}"),
    )
    order = sorted(set(frame["where"]))
    low, high = frame["ratio"].quantile([0.02, 0.98])
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(5.4 * len(models), 4.6), layout="constrained")
        panels = np.atleast_1d(figure.subplots(1, len(models), sharey=True))
        for axes, model in zip(panels, models, strict=True):
            with warnings.catch_warnings():
                # seaborn 0.13 hands matplotlib 3.11 an argument that it is to drop.
                warnings.simplefilter("ignore", matplotlib.MatplotlibDeprecationWarning)
                sns.boxplot(
                    data=frame.loc[frame["model"] == model],
                    x="where",
                    y="ratio",
                    hue="competing",
                    order=order,
                    hue_order=list(competing_names),
                    palette="viridis_r",
                    whis=(5, 95),
                    showfliers=False,
                    linewidth=1,
                    gap=0.15,
                    legend=False,
                    ax=axes,
                )
            axes.axhline(1, color="0.2", linewidth=1.2, zorder=0)
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter(ScalarFormatter())
            axes.yaxis.set_minor_formatter(NullFormatter())
            axes.set_yticks(_RATIO_TICKS)
            axes.set_ylim(0.9 * min(0.8, low), 1.1 * max(1.1, high))
            axes.set_xlabel("")
            axes.set_ylabel("transfer time: fluid over packet")
            axes.set_title(model, loc="left")
        colours = sns.color_palette("viridis_r", len(competing_names)).as_hex()
        handles = [
            Line2D([], [], marker="s", linestyle="", markersize=9, color=colour, label=name)
            for name, colour in zip(competing_names, colours, strict=True)
        ]
        title = "other transfers on its links (mean number)"
        figure.legend(handles=handles, title=title, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
        place = _place({name: transfers[name].iloc[0] for name in ("workload", "load", "profile")})
        n = len(transfers) // len(models)
        figure.suptitle(
            f"The same placements in a fluid model and on packets ({place}, about {n} transfers)\n"
            "below 1: the fluid model is too fast; boxes: quartiles, whiskers: 5th to 95th percentile",
            fontsize=10.5,
        )
        return png(figure)
