"""Identical placements: packet runs' decode instances replayed in fluid models, and transfer times side by side.

With the decisions held fixed, what differs is the network model alone. Transfers start at the same times, as prefill
does not depend on the network (unless a request has to wait for memory); those whose cache hits differ are left out.
Two fluid models are asked: the paper's, and per-link max-min with headers and the packet run's own background flows,
whose only difference from packets is what congestion control and buffers do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from calibration import figures
from calibration.experiment import (
    REPORT_SEEDS,
    Group,
    Options,
    Report,
    Runner,
    StoredCell,
    Variant,
    fluid,
    markdown,
    paper_fluid,
    recorded,
    report,
    scenario_of,
)
from harness import components, results, run
from harness.cells import read_status
from harness.config import Scenario, build_cluster
from harness.errors import InputError
from harness.metrics import FloatArray
from harness.routing import Router, queue_pair_flows
from harness.types import Int64Array, KVFlow

PAPER, SAME_FLOWS = "fluid-paper", "maxmin-goodput"

#: Where one size class ends and the next begins [bytes].
SIZE_ENDS = (0.5e9, 2e9, 5e9)
SIZE_NAMES = ("below 0.5 GB", "0.5 to 2 GB", "2 to 5 GB", "5 GB or more")

#: The same of the mean number of other transfers that share a link with one.
COMPETING_ENDS = (0.1, 1.0, 2.0)
COMPETING_NAMES = ("alone", "up to 1", "1 to 2", "2 or more")

_QUANTILES = {"ratio_p05": 0.05, "ratio_p25": 0.25, "ratio_p50": 0.5, "ratio_p75": 0.75, "ratio_p95": 0.95}
_MEANS = ("fluid_mean_ms", "packet_mean_ms", "adds_ms")
_KEY = ("workload", "load", "profile", "model")
#: What the distributions are parted by, and the columns that it takes.
_PARTS = {
    "all": ["all"],
    "tier": ["place"],
    "size": ["size"],
    "competing": ["competing"],
    "tier and competing": ["place", "competing"],
}
COLUMNS = (
    *_KEY,
    "by",
    "class",
    "transfers",
    "ratio_mean",
    *_QUANTILES,
    *_MEANS,
)
#: Of the table that the command line shows.
SHOWN = (*_KEY, "class", "transfers", "ratio_p05", "ratio_p50", "ratio_p95", *_MEANS)
TRANSFER_COLUMNS = (
    *_KEY,
    "scheduler",
    "seed",
    "request",
    "tier",
    "bytes",
    "fluid_ms",
    "packet_ms",
    "ratio",
    "competing_nic",
    "competing_link",
)


@dataclass(frozen=True, eq=False)
class Source:
    """The packet model whose placements are replayed, and the fluid models that replay them."""

    group: Group
    models: Mapping[str, Scenario]


def sources(options: Options) -> list[Source]:
    """One per workload, load [%] and profile.

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
                models = {
                    PAPER: paper_fluid(scenario, reference).scenario,
                    SAME_FLOWS: fluid(scenario, SAME_FLOWS, reference),
                }
                group = Group((workload, load_pct, profile), (Variant(profile, scenario, "packet"),))
                found.append(Source(group, models))
    return found


def replay_of(source: StoredCell, model: str, scenario: Scenario) -> Variant:
    """The placements of a complete packet cell, in a fluid model."""
    spec = {"use": "replay", "path": str(source.directory / "requests.parquet")}
    schedulers = (components.check("scheduler", spec),)
    again = scenario.model_copy(update={"schedulers": schedulers})
    name = f"{source.scenario.network.profile}, {source.label} replayed in {model}"
    return Variant(name, again, "fluid")


def run_replay(runner: Runner) -> Report:
    """Run what is not in the store yet, and write replay.csv, replay.md, transfers.csv and figures after every seed.

    Raises
    ------
    InputError : before any simulation, but for what only a cell itself can find out.
    DiskFailure : the disk is full or broken.
    Interrupted : the user stopped it; what is complete is written.
    """
    n_seeds = runner.options.seeds
    if n_seeds is None:
        raise InputError("'auto' given; a replay has no gap to make precise: a number of seeds", source="--seeds")
    all_sources = sources(runner.options)
    rows: list[dict[str, Any]] = []
    parts: list[pd.DataFrame] = []
    with recorded(runner, "replay") as manifest:
        runner.on_forecast(runner.forecast([source.group for source in all_sources]))
        for seed in REPORT_SEEDS[:n_seeds]:
            parts += _replay_seed(runner, all_sources, seed)
            manifest["seeds"] = list(REPORT_SEEDS[: REPORT_SEEDS.index(seed) + 1])
            if parts:
                transfers = pd.concat(parts, ignore_index=True)
                rows[:] = table(transfers)
                _write(runner.options.out, transfers, rows)
    shown = [row for row in rows if row["by"] in ("all", "tier")]
    return report(runner, manifest, SHOWN, shown)


def _write(out: Path, transfers: pd.DataFrame, rows: Sequence[Mapping[str, Any]]) -> None:
    results.write_csv(out / "replay.csv", COLUMNS, rows)
    results.write_csv(out / "transfers.csv", TRANSFER_COLUMNS, _records(transfers))
    results.write_text(out / "replay.md", f"{verdict(rows)}\n\n{markdown(COLUMNS, rows)}")
    results.make_directory(out / "figures")
    for key, own in classified(transfers).groupby(list(_KEY[:3]), sort=False):
        name = "-".join(map(str, key))
        results.write_bytes(out / "figures" / f"replay-{name}.png", figures.replay(own, COMPETING_NAMES))


def _records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(name): value for name, value in row.items()} for row in frame.to_dict("records")]


def _replay_seed(runner: Runner, all_sources: Sequence[Source], seed: int) -> list[pd.DataFrame]:
    """Run the packet cells of a seed, replay those that completed, and set the transfers side by side."""
    packet = {source: runner.cells(source.group.variants[0], seed) for source in all_sources}
    runner.run(cell for cells in packet.values() for cell in cells)
    pairs: list[tuple[Source, str, StoredCell, StoredCell]] = []
    for source, cells in packet.items():
        for cell in cells:
            if read_status(cell.directory)["status"] == "complete":
                for model, scenario in source.models.items():
                    (again,) = runner.cells(replay_of(cell, model, scenario), seed)
                    pairs.append((source, model, cell, again))
    runner.run(again for *_, again in pairs)
    parts = []
    for source, model, cell, again in pairs:
        if read_status(again.directory)["status"] == "complete":
            key = dict(zip(_KEY, (*source.group.key, model), strict=True))
            frame = side_by_side(cell, again)
            parts.append(frame.assign(**key, scheduler=cell.label, seed=seed)[list(TRANSFER_COLUMNS)])
    return parts


def side_by_side(packet: StoredCell, again: StoredCell) -> pd.DataFrame:
    """The measured transfers of a packet cell with their time in both models; `ratio` is fluid over packet."""
    columns = ("id", "tier", "transfer_bytes", "transfer_start_ps", "transfer_end_ps", "warmup")
    ours, theirs = (
        results.read_parquet(cell.directory / "requests.parquet", columns).to_pandas() for cell in (packet, again)
    )
    competing_nic, competing_link = competition(packet)
    frame = pd.DataFrame(
        {
            "request": ours["id"],
            "tier": ours["tier"],
            "bytes": ours["transfer_bytes"],
            "fluid_ms": (theirs["transfer_end_ps"] - theirs["transfer_start_ps"]) / 1e9,
            "packet_ms": (ours["transfer_end_ps"] - ours["transfer_start_ps"]) / 1e9,
            "competing_nic": competing_nic,
            "competing_link": competing_link,
        }
    )
    counted = ~ours["warmup"] & (ours["transfer_bytes"] > 0) & (ours["transfer_bytes"] == theirs["transfer_bytes"])
    chosen: pd.DataFrame = frame.loc[counted].copy()
    chosen["ratio"] = chosen["fluid_ms"] / chosen["packet_ms"]
    return chosen


def competition(cell: StoredCell) -> tuple[FloatArray, FloatArray]:
    """Per request, the mean number of other KV transfers during its own: from the same NIC, and on a link of its path.

    Paths are those of the run, hashed anew.
    """
    scenario = cell.scenario
    columns = ("id", "prefill_instance", "decode_instance", "transfer_bytes", "transfer_start_ps", "transfer_end_ps")
    frame = results.read_parquet(cell.directory / "requests.parquet", columns).to_pandas()
    cluster, seeds = build_cluster(scenario), run.streams(scenario, cell.seed)
    balancing, transport = scenario.network.load_balancing, scenario.network.transport
    router = Router(cluster.topology, seed=seeds.network, seed_per_switch=balancing.seed_per_switch)
    crosses = np.zeros((len(frame), cluster.topology.n_ports), dtype=np.int64)
    leaves = np.zeros_like(crosses)
    for i, row in enumerate(frame.itertuples(index=False)):
        src, dst = cluster.instances[int(row.prefill_instance)], cluster.instances[int(row.decode_instance)]
        linked = dst.id in src.nvlink_ports
        src_ports = (src.nvlink_ports[dst.id],) if linked else src.nic_ports
        dst_ports = (dst.nvlink_ports[src.id],) if linked else dst.nic_ports
        for group in range(scenario.layer_groups):
            flow_id = int(row.id) * scenario.layer_groups + group
            flow = KVFlow(flow_id, "kv", src_ports, dst_ports, int(row.transfer_bytes), seeds.paths)
            pairs = queue_pair_flows(flow, striping=transport.striping, queue_pairs=transport.queue_pairs)
            for pair in pairs:
                crosses[i, list(router.path(pair.src_port, pair.dst_port, pair.udp_sport))] = 1
                leaves[i, pair.src_port] = 1
    start, end = frame["transfer_start_ps"].to_numpy(), frame["transfer_end_ps"].to_numpy()
    return mean_overlap(start, end, leaves @ leaves.T > 0), mean_overlap(start, end, crosses @ crosses.T > 0)


def mean_overlap(start_ps: Int64Array, end_ps: Int64Array, related: npt.NDArray[np.bool_]) -> FloatArray:
    """Per interval, the mean number of other related intervals during it; 0 for an empty one.

    Parameters
    ----------
    start_ps, end_ps : [n]. related : [n, n], whether two of them count for one another.
    """
    shared = np.minimum(end_ps[:, None], end_ps[None, :]) - np.maximum(start_ps[:, None], start_ps[None, :])
    shared = np.where(related, np.maximum(shared, 0), 0)
    np.fill_diagonal(shared, 0)
    duration = end_ps - start_ps
    mean: FloatArray = shared.sum(axis=1) / np.where(duration > 0, duration, 1)
    return mean


def classified(transfers: pd.DataFrame) -> pd.DataFrame:
    """With the columns `size`, `competing` and `place` (the tier by name), which the distributions are parted by."""
    frame: pd.DataFrame = transfers.assign(
        all="all",
        place=transfers["tier"].map(lambda tier: f"tier {tier}"),
        size=pd.cut(transfers["bytes"], (0, *SIZE_ENDS, np.inf), right=False, labels=SIZE_NAMES),
        competing=pd.cut(
            transfers["competing_link"], (0, *COMPETING_ENDS, np.inf), right=False, labels=COMPETING_NAMES
        ),
    )
    return frame


def table(transfers: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of replay.csv: per model the distribution of fluid over packet transfer time, in all and by class.

    `adds_ms` is what a class adds to the mean transfer time on packets over the fluid model's, over all transfers.
    """
    frame = classified(transfers)
    return [
        dict(zip(_KEY, key, strict=True))
        | {"by": by, "class": ", ".join(map(str, name)), "adds_ms": _missing_ms(part) / len(own)}
        | _distribution(part)
        for key, own in frame.groupby(list(_KEY), sort=False)
        for by, columns in _PARTS.items()
        for name, part in own.groupby(columns, observed=True)
    ]


def _missing_ms(part: pd.DataFrame) -> float:
    return float((part["packet_ms"] - part["fluid_ms"]).sum())


def _distribution(part: pd.DataFrame) -> dict[str, Any]:
    return {
        "transfers": len(part),
        "ratio_mean": float(part["ratio"].mean()),
        **{column: float(part["ratio"].quantile(q)) for column, q in _QUANTILES.items()},
        "fluid_mean_ms": float(part["fluid_ms"].mean()),
        "packet_mean_ms": float(part["packet_ms"].mean()),
    }


def verdict(rows: Sequence[Mapping[str, Any]]) -> str:
    """A sentence for each model: how far it is off in all, and which class of transfers that comes from."""
    sentences = []
    for key in dict.fromkeys(tuple(row[name] for name in _KEY) for row in rows):
        own = [row for row in rows if tuple(row[name] for name in _KEY) == key]
        (whole,) = (row for row in own if row["by"] == "all")
        worst = max((row for row in own if row["by"] == "tier and competing"), key=lambda row: abs(row["adds_ms"]))
        workload, load, profile, model = key
        sentences.append(
            f"- {workload}, {load} % load, {profile}: in {model} the mean transfer takes "
            f"{whole['fluid_mean_ms']:.0f} ms, on packets {whole['packet_mean_ms']:.0f} ms. The largest part of the "
            f"difference, {worst['adds_ms']:+.0f} ms, comes from {worst['class']} ({worst['transfers']} of "
            f"{whole['transfers']} transfers, median ratio {worst['ratio_p50']:.2f})."
        )
    return "\n".join(sentences)
