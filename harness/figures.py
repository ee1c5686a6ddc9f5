"""The figures of a run, and its report as one HTML file: pure functions from tables to bytes; results.py writes them.

The same tables give the same bytes. Colours are seaborn's colour-blind palette, one per scheduler in every figure.
"""

from __future__ import annotations

import base64
import html
import io
import re
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import matplotlib
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import PercentFormatter

from harness import metrics
from harness.types import N_TIERS, TRAFFIC_CLASSES

TIER_NAMES = ("same server", "same rack", "same pod", "cross pod")

#: From near to far: four steps of a sequential map that keep their order in grey and for every kind of colour vision.
_TIER_COLOURS = tuple(sns.color_palette("viridis", N_TIERS).as_hex()[::-1])

#: matplotlib's settings for every figure of the project.
STYLE = {
    **sns.axes_style("whitegrid"),
    **sns.plotting_context("notebook", font_scale=0.9),
    "figure.dpi": 120,
    "savefig.dpi": 150,
    "font.family": "DejaVu Sans",
    "axes.titleweight": "bold",
    "axes.titlesize": 11,
    "axes.edgecolor": "0.4",
    "grid.color": "0.9",
}


#: What the figures need of the record tables.
COLUMNS = {
    "requests": (
        "backend",
        "scheduler",
        "seed",
        "arrival_ps",
        "transfer_start_ps",
        "transfer_end_ps",
        "first_token_ps",
        "last_token_ps",
        "tier",
        "warmup",
    ),
    "links": ("backend", "scheduler", "seed", "tier", "start_ps", "utilisation"),
    "traces": (
        "scheduler",
        "seed",
        "port",
        "start_ps",
        "end_ps",
        "queue_max_bytes",
        *(f"{name}_bytes" for name in TRAFFIC_CLASSES),
        "paused_ps",
    ),
}


def draw(
    rows: Sequence[Mapping[str, Any]],
    requests: pd.DataFrame | None,
    links: pd.DataFrame | None,
    traces: pd.DataFrame | None = None,
) -> dict[str, bytes]:
    """Draw every figure that the tables have data for.

    Parameters
    ----------
    rows : of summary.csv; their order is the order of backends and schedulers in the figures.
    requests, links, traces : `COLUMNS` of the tables of these names, or None if there is no such table.

    Returns
    -------
    PNG images by file name, without those for which there is nothing to draw.
    """
    summary = pd.DataFrame(rows)
    makers: dict[str, Callable[[], Figure]] = {}
    if requests is not None:
        counted = requests.loc[~requests["warmup"] & (requests["last_token_ps"] >= 0)]
        if len(counted):
            makers["ttft-by-scheduler.png"] = lambda: ttft_by_scheduler(summary, counted)
            makers["ttft-cdf.png"] = lambda: ttft_cdf(summary, counted)
            makers["tier-shares.png"] = lambda: tier_shares(summary, counted)
            makers["transfer-by-tier.png"] = lambda: transfer_by_tier(summary, counted)
    if links is not None and len(links):
        makers["link-utilisation.png"] = lambda: link_utilisation(summary, links)
    if traces is not None:
        for port, rows_of_port in traces.groupby("port", sort=False):
            makers[port_file(str(port))] = partial(port_trace, str(port), rows_of_port)
    with matplotlib.rc_context(STYLE):
        return {name: png(make()) for name, make in makers.items()}


def png(figure: Figure) -> bytes:
    """The figure as a PNG image, the same bytes for the same figure."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", bbox_inches="tight", metadata={"Software": None})
    return buffer.getvalue()


def _ordered(summary: pd.DataFrame, column: str) -> list[str]:
    return list(dict.fromkeys(summary[column]))


def scheduler_colours(schedulers: Sequence[str]) -> dict[str, Any]:
    """A colour for each scheduler, in this order."""
    return dict(zip(schedulers, sns.color_palette("colorblind", len(schedulers)), strict=True))


def _pairs(summary: pd.DataFrame) -> list[tuple[str, str]]:
    """(backend, scheduler) in the order of the summary."""
    return list(dict.fromkeys(zip(summary["backend"], summary["scheduler"], strict=True)))


def _label(pair: tuple[str, str], backends: Sequence[str]) -> str:
    name = pair[1].rsplit("/", 1)[-1]  # a plug-in by its file, not the whole path
    return f"{name}\n({pair[0]})" if len(backends) > 1 else name


def ttft_by_scheduler(summary: pd.DataFrame, requests: pd.DataFrame) -> Figure:
    """Mean TTFT per scheduler: a bar, its 95 % interval, and a point per seed."""
    backends, pairs = _ordered(summary, "backend"), _pairs(summary)
    colours = scheduler_colours(_ordered(summary, "scheduler"))
    figure = Figure(figsize=(max(5.0, 1.6 + 1.15 * len(pairs)), 4.2), layout="constrained")
    axes = figure.subplots()
    seeds, highest, tallest = 0, 0.0, 0.0
    for x, (backend, scheduler) in enumerate(pairs):
        chosen = requests.loc[(requests["backend"] == backend) & (requests["scheduler"] == scheduler)]
        if chosen.empty:
            axes.annotate("no data", (x, 0), (0, 6), textcoords="offset points", ha="center", color="0.4")
            continue
        ttft_ms = (chosen["first_token_ps"] - chosen["arrival_ps"]) / 1e9
        per_seed = ttft_ms.groupby(chosen["seed"]).mean()
        seeds = max(seeds, len(per_seed))
        interval = metrics.mean_interval({int(s): v.to_numpy() for s, v in ttft_ms.groupby(chosen["seed"])})
        axes.bar(x, interval.mean, width=0.62, color=colours[scheduler], alpha=0.85, zorder=2)
        axes.errorbar(
            x,
            interval.mean,
            yerr=[[interval.mean - interval.low], [interval.high - interval.mean]],
            color="0.15",
            capsize=5,
            linewidth=1.5,
            zorder=4,
        )
        offsets = [x + 0.2 + 0.08 * (i % 2) for i in range(len(per_seed))]
        axes.scatter(offsets, per_seed, s=22, color="white", edgecolor="0.15", linewidth=1, zorder=5)
        axes.annotate(
            f"{interval.mean:,.0f}", (x, 0), (0, 5), textcoords="offset points", ha="center", fontsize=9, zorder=6
        ).set_bbox({"boxstyle": "round,pad=0.2", "facecolor": "white", "edgecolor": "none", "alpha": 0.85})
        highest = max(highest, interval.mean, per_seed.max())
        tallest = max(tallest, interval.high if interval.high == interval.high else 0.0)
    axes.set_xticks(range(len(pairs)), [_label(p, backends) for p in pairs])
    axes.set_xlim(-0.6, len(pairs) - 0.4)
    # The interval of two or three seeds can dwarf the bars.
    cut = tallest > 2 * highest
    axes.set_ylim(0, 1.08 * (2 * highest if cut else max(highest, tallest)))
    axes.set_ylabel("mean TTFT [ms]")
    axes.xaxis.grid(False)
    how = f"t over {seeds} seeds" if seeds > 1 else "bootstrap over the requests of one seed"
    axes.set_title("Time to first token by scheduler", loc="left")
    note = f"whiskers: 95 % interval, {how}{' (cut at the top)' if cut else ''}; circles: seeds"
    axes.set_xlabel(note, fontsize=8.5, color="0.35", labelpad=8)
    sns.despine(ax=axes, left=True)
    return figure


def panel_grid(
    n: int, width: float, height: float, *, columns: int = 4, sharex: bool = True, sharey: bool = True
) -> tuple[Figure, list[Axes]]:
    """A figure with `n` panels of one size [inches]."""
    columns = min(n, columns)
    rows = -(-n // columns)
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, sharey=sharey, sharex=sharex)
    axes = list(grid.flat)
    for unused in axes[n:]:
        unused.set_visible(False)
    return figure, axes[:n]


def ttft_cdf(summary: pd.DataFrame, requests: pd.DataFrame) -> Figure:
    """Distribution of TTFT over all requests and seeds, a panel per backend."""
    backends, schedulers = _ordered(summary, "backend"), _ordered(summary, "scheduler")
    colours = scheduler_colours(schedulers)
    dashes: list[Literal["-", "--", "-.", ":"]] = ["-", "--", "-.", ":"]
    frame = requests.assign(ttft_s=(requests["first_token_ps"] - requests["arrival_ps"]) / 1e12)
    figure, panels = panel_grid(len(backends), 5.6, 4.0)
    for axes, backend in zip(panels, backends, strict=True):
        for i, scheduler in enumerate(schedulers):
            chosen = frame.loc[(frame["backend"] == backend) & (frame["scheduler"] == scheduler)]
            if len(chosen):
                style = dashes[i % len(dashes)]
                sns.ecdfplot(x=chosen["ttft_s"], ax=axes, color=colours[scheduler], linestyle=style, linewidth=1.8)
        axes.set_xlabel("TTFT [s]")
        axes.set_ylabel("share of requests")
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes.set_xlim(left=0)
        axes.set_title(f"TTFT distribution ({backend})", loc="left")
        handles = [
            Line2D([], [], color=colours[s], linestyle=dashes[i % len(dashes)], linewidth=1.8)
            for i, s in enumerate(schedulers)
        ]
        names = [_label((backend, s), ()) for s in schedulers]
        axes.legend(handles, names, loc="lower right", frameon=True, fontsize=9)
    return figure


def tier_shares(summary: pd.DataFrame, requests: pd.DataFrame) -> Figure:
    """Where each scheduler sent its requests: share of every locality tier over all seeds."""
    backends, pairs = _ordered(summary, "backend"), _pairs(summary)
    figure = Figure(figsize=(7.4, 1.3 + 0.48 * len(pairs)), layout="constrained")
    axes = figure.subplots()
    for y, pair in enumerate(pairs):
        tiers = requests.loc[(requests["backend"] == pair[0]) & (requests["scheduler"] == pair[1]), "tier"]
        left = 0.0
        for tier in range(N_TIERS):
            share = float((tiers == tier).mean()) if len(tiers) else 0.0
            if share == 0:
                continue
            axes.barh(y, share, left=left, color=_TIER_COLOURS[tier], edgecolor="white", height=0.7)
            if share >= 0.06:
                ink = "black" if tier < 2 else "white"
                axes.text(left + share / 2, y, f"{share:.0%}", ha="center", va="center", color=ink, fontsize=9)
            left += share
    axes.set_yticks(range(len(pairs)), [_label(p, backends).replace("\n", " ") for p in pairs])
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    axes.xaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_xlabel("share of requests")
    axes.set_title("Placement: locality tier of prefill and decode instance", loc="left")
    axes.yaxis.grid(False)
    present = sorted(int(t) for t in requests["tier"].unique())
    handles = [Line2D([], [], marker="s", linestyle="", markersize=9, color=_TIER_COLOURS[t]) for t in present]
    labels = [f"tier {t}: {TIER_NAMES[t]}" for t in present]
    axes.legend(handles, labels, loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, fontsize=9)
    return figure


def transfer_by_tier(summary: pd.DataFrame, requests: pd.DataFrame) -> Figure:
    """Transfer time by tier and scheduler: median, quartiles, and whiskers from the 5th to the 95th percentile."""
    backends, schedulers = _ordered(summary, "backend"), _ordered(summary, "scheduler")
    frame = requests.assign(transfer_ms=(requests["transfer_end_ps"] - requests["transfer_start_ps"]) / 1e9)
    tiers = sorted(int(t) for t in frame["tier"].unique())
    labels = [f"tier {t}\n{TIER_NAMES[t]}" for t in tiers]
    frame["where"] = frame["tier"].map(dict(zip(tiers, labels, strict=True)))
    width = max(5.6, 1.5 + len(tiers) * (0.6 + 0.32 * len(schedulers)))
    figure, panels = panel_grid(len(backends), width, 4.2)
    for axes, backend in zip(panels, backends, strict=True):
        with warnings.catch_warnings():
            # seaborn 0.13 hands matplotlib 3.11 an argument that it is to drop.
            warnings.simplefilter("ignore", matplotlib.MatplotlibDeprecationWarning)
            sns.boxplot(
                data=frame.loc[frame["backend"] == backend],
                x="where",
                y="transfer_ms",
                hue="scheduler",
                order=labels,
                hue_order=schedulers,
                palette=scheduler_colours(schedulers),
                whis=(5, 95),
                showfliers=False,
                linewidth=1,
                gap=0.15,
                ax=axes,
            )
        axes.set_xlabel("")
        axes.set_ylabel("KV-cache transfer time [ms]")
        axes.set_ylim(bottom=0)
        axes.set_title(f"Transfer time by tier ({backend})", loc="left")
        legend = axes.get_legend()
        if legend is not None:
            legend.remove()
    handles = [
        Line2D([], [], marker="s", linestyle="", markersize=9, color=c, label=_label(("", s), ()))
        for s, c in scheduler_colours(schedulers).items()
    ]
    panels[-1].legend(handles=handles, loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, fontsize=9)
    return figure


def link_utilisation(summary: pd.DataFrame, links: pd.DataFrame) -> Figure:
    """Utilisation over time by tier, a panel per scheduler: mean over link directions and seeds, and the busiest."""
    backends = _ordered(summary, "backend")
    pairs = [p for p in _pairs(summary) if ((links["backend"] == p[0]) & (links["scheduler"] == p[1])).any()]
    tiers = sorted(int(t) for t in links.loc[links["utilisation"] > 0, "tier"].unique())
    figure, panels = panel_grid(len(pairs), 3.9, 2.6, columns=3)
    for axes, pair in zip(panels, pairs, strict=True):
        chosen = links.loc[(links["backend"] == pair[0]) & (links["scheduler"] == pair[1])]
        for tier in tiers:
            rows = chosen.loc[chosen["tier"] == tier]
            over_time = rows.groupby("start_ps")["utilisation"]
            seconds = over_time.mean().index.to_numpy() / 1e12
            axes.plot(seconds, over_time.max(), color=_TIER_COLOURS[tier], linewidth=0.9, alpha=0.8)
            axes.plot(seconds, over_time.mean(), color=_TIER_COLOURS[tier], linewidth=2.4)
        axes.set_title(_label(pair, backends).replace("\n", " "), loc="left", fontsize=10)
        axes.set_ylim(0, 1.02)
        axes.set_xlim(left=0)
        axes.tick_params(labelbottom=True)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    figure.supxlabel("simulated time [s]", fontsize=10)
    figure.supylabel("link utilisation", fontsize=10)
    handles = [Line2D([], [], color=_TIER_COLOURS[t], linewidth=2) for t in tiers]
    handles += [Line2D([], [], color="0.3", linewidth=2.4), Line2D([], [], color="0.3", linewidth=0.9, alpha=0.8)]
    names = [*(f"tier {t} links" for t in tiers), "mean", "busiest link"]
    figure.legend(handles, names, loc="outside upper center", ncols=len(handles), frameon=False, fontsize=9)
    return figure


_CLASS_COLOURS = dict(zip(TRAFFIC_CLASSES, ("0.45", *sns.color_palette("colorblind", 3).as_hex()[::2]), strict=True))
_PAUSE_COLOUR = "#f4a582"

#: Steps of time that a panel shows apart.
_TRACE_STEPS = 300


def scaling(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """CPU time and memory of runs of one kind against their data packets, as a PNG; rows as of `bench.run_scaling`."""
    frame = pd.DataFrame(rows)
    with matplotlib.rc_context(STYLE):
        figure, (times, memory) = panel_grid(2, 4.6, 3.6, sharey=False)
        packets, seconds = frame["data_packets"], frame["cpu_s"]
        times.plot(packets, seconds, "o-", linewidth=1.8, label="measured")
        straight = seconds.iloc[-1] * packets / packets.iloc[-1]
        times.plot(packets, straight, "--", color="0.5", label="in proportion to the largest")
        times.set_yscale("log")
        times.set_ylabel("CPU time [s]")
        times.legend(frameon=True, fontsize=9)
        memory.plot(packets, frame["peak_rss_mib"], "o-", linewidth=1.8)
        memory.set_ylim(0, 1.25 * frame["peak_rss_mib"].max())
        memory.set_ylabel("peak of the process [MiB]")
        for axes in (times, memory):
            axes.set_xscale("log")
            axes.set_xlabel("data packets")
        times.set_title("Time of an 8-to-1 incast of 1000-byte packets", loc="left")
        memory.set_title("Memory", loc="left")
        return png(figure)


def port_file(port: str) -> str:
    """The name of the figure of a traced port."""
    return f"port-{re.sub('[^A-Za-z0-9.#_-]+', '-', port.replace('->', '-to-'))}.png"


def port_trace(port: str, traces: pd.DataFrame) -> Figure:
    """Rate by class and longest queue of a port over time, a column per scheduler (its first seed); pauses shaded.

    Parameters
    ----------
    traces : `COLUMNS` of traces.parquet, the rows of this port.
    """
    schedulers = list(dict.fromkeys(traces["scheduler"]))
    figure = Figure(figsize=(max(6.4, 4.2 * len(schedulers)), 4.6), layout="constrained")
    grid = figure.subplots(2, len(schedulers), squeeze=False, sharex="col", sharey="row")
    for (rate, queue), scheduler in zip(grid.T, schedulers, strict=True):
        rows = traces.loc[traces["scheduler"] == scheduler]
        rows = _thinned(rows.loc[rows["seed"] == rows["seed"].min()])
        edges_ms = np.append(rows["start_ps"].to_numpy(), rows["end_ps"].to_numpy()[-1:]) / 1e9
        span_ps = (rows["end_ps"] - rows["start_ps"]).to_numpy()
        paused = (rows["paused_ps"] / span_ps).to_numpy()
        for axes in (rate, queue):
            shade = {"color": _PAUSE_COLOUR, "alpha": 0.5, "transform": axes.get_xaxis_transform(), "zorder": 0.5}
            axes.stairs(paused, edges_ms, fill=True, **shade)
        below = np.zeros(len(rows))
        for name in TRAFFIC_CLASSES:
            gbps = rows[f"{name}_bytes"].to_numpy() * 8e3 / span_ps
            if gbps.any():
                rate.stairs(below + gbps, edges_ms, baseline=below, fill=True, color=_CLASS_COLOURS[name], zorder=2)
                below = below + gbps
        queue.stairs(rows["queue_max_bytes"].to_numpy() / 1e3, edges_ms, color="0.15", linewidth=1, baseline=None)
        for axes in (rate, queue):
            axes.set_ylim(bottom=0)
            axes.margins(x=0.01)
        if scheduler:
            rate.set_title(_label(("", scheduler), ()), loc="left", fontsize=10)
        queue.set_xlabel("simulated time [ms]")
    grid[0, 0].set_ylabel("rate [Gb/s]")
    grid[1, 0].set_ylabel("longest queue [KB]")
    handles = [Line2D([], [], marker="s", linestyle="", markersize=9, color=c) for c in _CLASS_COLOURS.values()]
    handles.append(Line2D([], [], marker="s", linestyle="", markersize=9, color=_PAUSE_COLOUR))
    names = [*TRAFFIC_CLASSES, "held by PFC (full height: all the time)"]
    figure.suptitle(port, x=0.01, ha="left", fontsize=11, fontweight="bold")
    figure.legend(handles, names, loc="outside lower center", ncols=len(names), frameon=False, fontsize=9)
    return figure


def _thinned(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows up to the last in which anything happened, merged into at most `_TRACE_STEPS` and a few of equal length.

    A step that has the end of a long idle interval in it is as long as that.
    """
    busy = rows[["queue_max_bytes", *(f"{name}_bytes" for name in TRAFFIC_CLASSES), "paused_ps"]].any(axis=1).to_numpy()
    rows = rows.iloc[: int(np.flatnonzero(busy).max(initial=0)) + 1]
    step_ps = -(-int(rows["end_ps"].max()) // _TRACE_STEPS)
    sums = dict.fromkeys((*(f"{name}_bytes" for name in TRAFFIC_CLASSES), "paused_ps"), "sum")
    grouped = rows.groupby((rows["end_ps"] - 1) // step_ps)
    return grouped.agg({"start_ps": "min", "end_ps": "max", "queue_max_bytes": "max", **sums})


# --- Report -----------------------------------------------------------------------------------------------------------

_CAPTIONS = {
    "ttft-by-scheduler.png": "Mean time to first token with its 95 % interval and one circle per seed.",
    "ttft-cdf.png": "Distribution of the time to first token over all measured requests.",
    "tier-shares.png": "Share of requests by locality tier of the pair of prefill and decode instance.",
    "transfer-by-tier.png": "KV-cache transfer time: median, quartiles, 5th and 95th percentile.",
    "link-utilisation.png": "Share of link capacity in use, wire bytes of all classes.",
}

_PORT_CAPTION = "A port over time: rate by class, and longest queue; shaded is the share of time in which PFC held it."

_CSS = """
body{font:15px/1.5 system-ui,sans-serif;max-width:1100px;margin:2rem auto;padding:0 1rem;color:#222}
h1{font-size:1.6rem;margin-bottom:.2rem} h2{font-size:1.2rem;margin-top:2.2rem;border-bottom:1px solid #ddd}
.scroll{overflow-x:auto} table{border-collapse:collapse;font-size:13px;font-variant-numeric:tabular-nums}
th,td{padding:.25rem .6rem;border-bottom:1px solid #e5e5e5;text-align:right;white-space:nowrap}
th{background:#f6f6f6} td.text,th.text{text-align:left} figure{margin:1.2rem 0} img{max-width:100%;height:auto}
figcaption{font-size:13px;color:#555} pre{background:#f6f6f6;padding:.8rem;overflow-x:auto;font-size:12px}
.bad{background:#fdecea;border-left:4px solid #b3261e;padding:.6rem 1rem;margin:1rem 0} .quiet{color:#666}
"""


def report(
    run: Mapping[str, Any],
    summary: Sequence[Mapping[str, Any]],
    comparison: Sequence[Mapping[str, Any]],
    images: Mapping[str, bytes],
) -> str:
    """The run as one HTML page that needs no other file.

    Parameters
    ----------
    run : run.json.
    summary, comparison : the rows of summary.csv and comparison.csv.
    images : PNG images by file name.
    """
    title = f"netkv-cosim: {run['name']}"
    parts = [
        f"<h1>{escape(title)}</h1>",
        f"<p class=quiet>{escape(run['run_id'])} · {escape(run['status'])} · {escape(run['started_utc'])}</p>",
    ]
    bad = [cell for cell in run["cells"] if cell["status"] != "complete"]
    if bad:
        parts.append("<div class=bad><b>Not every run is complete.</b> The tables hold what there is.</div>")
        parts += [
            f"<div class=bad><b>{escape(c['backend'])} / {escape(c['scheduler'])} / seed {c['seed']}: "
            f"{escape(c['status'])}</b><pre>{escape(c['error'])}\n{escape(c['detail'])}</pre></div>"
            for c in bad
        ]
    parts += ["<h2>Summary</h2>", html_table(summary)]
    if comparison:
        parts += ["<h2>Comparison of mean TTFT</h2>", html_table(comparison)]
        parts.append("<p class=quiet>Negative: faster than the baseline. Pairs share arrivals, lengths and hashes.</p>")
    parts.append("<h2>Figures</h2>")
    for name, image in images.items():
        parts.append(html_image(image, _CAPTIONS.get(name, _PORT_CAPTION)))
    if not images:
        parts.append("<p>No request finished, so there is nothing to draw.</p>")
    rows = [
        {"backend": c["backend"], "scheduler": c["scheduler"], "seed": c["seed"], **c["counters"]}
        for c in run["cells"]
        if c.get("counters")
    ]
    parts += ["<h2>Network counters</h2>", html_table(rows)]
    parts += ["<h2>Provenance</h2>", html_table(provenance(run))]
    parts += ["<h2>Scenario as resolved</h2>", f"<pre>{escape(indented(run['scenario']))}</pre>"]
    return html_page(title, parts)


def html_page(title: str, parts: Sequence[str]) -> str:
    """A page that needs no other file, from pieces of HTML."""
    body = "\n".join(parts)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_CSS}</style></head>\n'
        f"<body>\n{body}\n</body></html>\n"
    )


def html_image(image: bytes, caption: str) -> str:
    """A PNG image, held by the page itself, with a line of text below it."""
    source = f"data:image/png;base64,{base64.b64encode(image).decode()}"
    text = escape(caption)
    return f'<figure><img alt="{text}" src="{source}"><figcaption>{text}</figcaption></figure>'


def provenance(run: Mapping[str, Any]) -> list[dict[str, str]]:
    """From run.json: what was run with which versions on which machine, as rows of "what" and "value"."""
    facts = {k: run.get(k) for k in ("wall_s", "packets", "packet_hops", "peak_memory_bytes", "command")}
    facts |= {f"versions.{k}": v for k, v in run["versions"].items()} | {f"host.{k}": v for k, v in run["host"].items()}
    return [{"what": k, "value": _text(v)} for k, v in facts.items()]


def escape(value: Any) -> str:
    """Text that HTML shows as it stands."""
    return html.escape(str(value))


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return "" if value != value else f"{value:,.3f}"
    return str(value)


def indented(value: Any, indent: int = 0) -> str:
    """Nested mappings as indented `key: value` lines."""
    lines = []
    for key, item in value.items():
        if isinstance(item, Mapping) and item:
            lines += [f"{' ' * indent}{key}:", indented(item, indent + 2)]
        else:
            lines.append(f"{' ' * indent}{key}: {item}")
    return "\n".join(lines)


def html_table(rows: Sequence[Mapping[str, Any]], text: Collection[str] | None = None) -> str:
    """Rows with the same keys; the columns in `text`, or else those that hold text, are left-aligned."""
    if not rows:
        return "<p class=quiet>none</p>"
    columns = list(rows[0])
    texts = text if text is not None else {c for c in columns if any(isinstance(r.get(c), str) for r in rows)}

    def cell(tag: str, column: str, content: Any) -> str:
        kind = " class=text" if column in texts else ""
        return f"<{tag}{kind}>{escape(content)}</{tag}>"

    head = "".join(cell("th", c, c) for c in columns)
    body = "".join("<tr>" + "".join(cell("td", c, _text(row.get(c))) for c in columns) + "</tr>" for row in rows)
    return f"<div class=scroll><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
