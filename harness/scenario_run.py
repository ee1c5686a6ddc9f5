"""A run of one scenario: its cells, and the tables, figures and report that are made from them."""

from __future__ import annotations

import fcntl
import hashlib
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal

from harness import metrics, results, run
from harness.cells import Cell, OnEvent, Outcome, prepare, read_status, run_cells
from harness.config import Scenario
from harness.errors import InputError

#: Record tables of an interrupted run are merged only up to this size [bytes], which takes about 0.1 s.
_QUICK_MERGE_BYTES = 20_000_000

#: Files of a run that are made from its cells.
_DERIVED = ("summary.csv", "comparison.csv", "report.html", *(f"{name}.parquet" for name in results.RECORD_TABLES))

Status = Literal["complete", "interrupted", "failed"]


@dataclass(frozen=True)
class RunReport:
    """A run that has ended: where it is, how it ended, and the rows of its small tables.

    `cells` has a mapping per cell: backend, scheduler, seed, status, error, detail, and what it measured.
    """

    out: Path
    status: Status
    axes: tuple[str, ...]  #: none, as of all runs that are not a sweep's
    cells: tuple[Mapping[str, Any], ...]
    summary: tuple[Mapping[str, Any], ...]
    comparison: tuple[Mapping[str, Any], ...]
    counters: Mapping[str, Mapping[str, int]]  #: per backend, over all cells
    wall_s: float


def plan(scenario: Scenario, out: Path) -> list[Cell]:
    """The cells of a run in the order of its tables: by backend, scheduler as listed, seed.

    Raises
    ------
    InputError : the scenario cannot run (a request that never fits, a trace that is too short, ...).
    """
    cells = []
    for backend in scenario.backends:
        costs = {seed: run.estimate_cost(scenario, backend, seed) for seed in scenario.seeds}
        for scheduler in scenario.schedulers:
            for seed in scenario.seeds:
                name = f"{backend}_{_slug(run.label(scheduler))}_s{seed}"
                cells.append(Cell(out / "cells" / name, scenario, backend, scheduler, seed, costs[seed]))
    return cells


def _slug(label: str) -> str:
    slug = re.sub(r"[^A-Za-z0-9.-]+", "-", label)[-60:]
    return slug if slug == label else f"{slug}-{hashlib.sha256(label.encode()).hexdigest()[:6]}"


def find_directory(name: str, config: str, root: Path, *, resume: bool) -> Path:
    """Where what has no --out goes: root/<name>/<time>-<config>; when resuming, the newest with this config.

    Parameters
    ----------
    config : digest of the configuration, of which eight digits are used.

    Raises
    ------
    InputError : there is nothing to resume.
    """
    parent, config = root / name, config[:8]
    if not resume:
        return parent / f"{time.strftime('%Y%m%d-%H%M%S')}-{config}"
    runs = sorted(path.parent for path in parent.glob("*/run.json"))
    same = [path for path in runs if path.name.endswith(config)]
    if not same:
        there = f"; the newest run there is {runs[-1].name}" if runs else ""
        message = f"nothing to resume with config {config}{there}; --out names a run's directory"
        raise InputError(message, source=str(parent))
    return same[-1]


@contextmanager
def locked(out: Path) -> Iterator[None]:
    """Hold a run's directory: two commands that write the same one would mix their cells.

    Raises
    ------
    InputError : another process holds it.
    """
    results.make_directory(out)
    with (out / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            message = "another netkv-cosim is writing here; wait for it, or give another --out"
            raise InputError(message, source=str(out)) from None
        yield


def run_scenario(
    scenario: Scenario,
    out: Path,
    *,
    jobs: int,
    resume: bool,
    command: str,
    on_plan: Callable[[Sequence[Cell], Sequence[Cell]], None],
    on_event: OnEvent,
) -> RunReport:
    """Run all cells of a scenario and write its tables, figures and report.

    Parameters
    ----------
    on_plan : called once with all cells and with those to be run, before any of them starts.

    Raises
    ------
    InputError : before any simulation, but for what only a cell itself can find out.
    DiskFailure : the disk is full or broken; complete cells are kept.
    """
    begun_s, started = time.monotonic(), datetime.now(timezone.utc).isoformat(timespec="seconds")
    cells = plan(scenario, out)
    versions = results.versions()
    with locked(out):
        if not resume:
            clear(out)
        pending = prepare(cells, resume=resume, code=versions["code_sha256"])
        for name in _DERIVED:
            (out / name).unlink(missing_ok=True)
        shutil.rmtree(out / "figures", ignore_errors=True)
        manifest: dict[str, Any] = {
            "project": "netkv-cosim",
            "name": scenario.name,
            "run_id": out.name,
            "status": "running",
            "started_utc": started,
            "command": command,
            "jobs": jobs,
            "seeds": list(scenario.seeds),
            "config_sha256": scenario.digest(),
            "versions": versions,
            "host": results.host(),
            "scenario": scenario.to_json(),
        }
        results.write_json(out / "run.json", manifest)
        on_plan(cells, pending)
        outcomes = dict(zip((c.directory for c in pending), run_cells(pending, jobs, on_event), strict=True))
        report = _finish(cells, outcomes, out, manifest, begun_s)
    for cell in pending:
        remember(cell, read_status(cell.directory))
    for kind, error in (("disk-error", results.DiskFailure), ("input-error", InputError)):
        for outcome in outcomes.values():
            if outcome.status == kind:
                raise error(outcome.error)
    return report


def clear(out: Path) -> None:
    """Make room for a new run, but never at the expense of an unfinished one's complete cells.

    Raises
    ------
    InputError : there are such.
    """
    old = results.read_json(out / "run.json")
    done = [path for path in (out / "cells").glob("*") if read_status(path)["status"] == "complete"]
    if old is not None and old["status"] != "complete" and done:
        raise InputError(
            f"holds a run that is not complete, with {len(done)} complete cells; --resume goes on with it; "
            "to start anew remove the directory, or give another --out",
            source=str(out),
        )
    for name in ("cells", "pcap"):
        shutil.rmtree(out / name, ignore_errors=True)


def _finish(
    cells: Sequence[Cell], outcomes: Mapping[Path, Outcome], out: Path, manifest: Mapping[str, Any], begun_s: float
) -> RunReport:
    records = [cell_record(cell, outcomes.get(cell.directory)) for cell in cells]
    status = status_of(records)
    directories = [cell.directory for cell in cells]
    files = [path for d in directories for path in d.glob("*.parquet")]
    if status != "interrupted" or sum(path.stat().st_size for path in files) <= _QUICK_MERGE_BYTES:
        for name in results.RECORD_TABLES:
            results.merge_tables(out, directories, name)
    summary = [summary_row(cell, record) for cell, record in zip(cells, records, strict=True)]
    results.write_csv(out / "summary.csv", results.SUMMARY_COLUMNS, summary)
    comparison = _comparison(cells, records)
    results.write_csv(out / "comparison.csv", results.COMPARISON_COLUMNS, comparison)
    sums = totals(records, begun_s)
    manifest = {**manifest, "status": status, **sums, "cells": records}
    if status != "interrupted":  # there is no time for it on the way out; --resume draws them
        _draw(out, manifest, summary, comparison)
    results.write_json(out / "run.json", manifest)
    wall_s = time.monotonic() - begun_s
    return RunReport(out, status, (), tuple(records), tuple(summary), tuple(comparison), sums["counters"], wall_s)


def cell_record(cell: Cell, outcome: Outcome | None) -> dict[str, Any]:
    """A cell in run.json: its status on disk, or, where none was written, how it ended."""
    found = read_status(cell.directory)
    if found["status"] == "pending" and outcome is not None:
        found = asdict(outcome)
    return {
        **dict(cell.place),
        "backend": cell.backend,
        "scheduler": cell.label,
        "seed": cell.seed,
        "directory": str(cell.directory.relative_to(cell.directory.parent.parent)),
        "peak_memory_bytes": 0,
        **found,
        "expected": asdict(cell.cost),
    }


def status_of(records: Sequence[Mapping[str, Any]]) -> Status:
    """How a run has ended whose cells have these records."""
    states = {record["status"] for record in records}
    if states == {"complete"}:
        return "complete"
    return "interrupted" if states & {"interrupted", "pending"} else "failed"


def totals(records: Sequence[Mapping[str, Any]], begun_s: float) -> dict[str, Any]:
    """What run.json says of all cells together, a directory that several share counting once.

    Parameters
    ----------
    begun_s : on the monotonic clock.
    """
    runs = {record["directory"]: record for record in records}.values()
    counters = {
        backend: results.add_counters(r["counters"] for r in runs if r["backend"] == backend and "counters" in r)
        for backend in dict.fromkeys(record["backend"] for record in records)
    }
    return {
        "wall_s": time.monotonic() - begun_s,
        "packets": sum(c["data_packets"] + c["ack_packets"] for c in counters.values()),
        "packet_hops": sum(c["data_hops"] + c["control_hops"] for c in counters.values()),
        "peak_memory_bytes": max(record["peak_memory_bytes"] for record in records),
        "counters": counters,
    }


def summary_row(cell: Cell, record: Mapping[str, Any]) -> dict[str, Any]:
    """A cell's row of summary.csv, from its status."""
    row = {"backend": cell.backend, "scheduler": cell.label, "seed": cell.seed, "requests": cell.scenario.requests}
    return {**row, "completed": 0, **record.get("summary", {}), "status": record["status"]}


def _comparison(cells: Sequence[Cell], records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row per backend and pair of schedulers: the later in the scenario's order against the earlier."""
    ttft_ps: dict[tuple[str, str], dict[int, Any]] = {}
    for cell, record in zip(cells, records, strict=True):
        by_seed = ttft_ps.setdefault((cell.backend, cell.label), {})
        if record["status"] == "complete":
            by_seed[cell.seed] = _measured_ttft_ps(cell.directory)
    rows = []
    for (base_backend, baseline), base in ttft_ps.items():
        for (backend, scheduler), ours in ttft_ps.items():
            seeds = [seed for seed in ours if seed in base and len(ours[seed])]
            earlier = list(ttft_ps).index((base_backend, baseline)) < list(ttft_ps).index((backend, scheduler))
            if backend == base_backend and earlier and seeds:
                change = metrics.percent_change({s: ours[s] for s in seeds}, {s: base[s] for s in seeds})
                numbers = (change.mean, change.low, change.high, len(seeds), change.method)
                row = (backend, scheduler, baseline, *numbers)
                rows.append(dict(zip(results.COMPARISON_COLUMNS, row, strict=True)))
    return rows


def _measured_ttft_ps(directory: Path) -> Any:
    columns = ("arrival_ps", "first_token_ps", "last_token_ps", "warmup")
    table = results.read_parquet(directory / "requests.parquet", columns)
    arrival, first, last, warmup = (table[name].to_numpy() for name in columns)
    return (first - arrival)[(last >= 0) & ~warmup]


def _draw(
    out: Path,
    manifest: Mapping[str, Any],
    summary: Sequence[Mapping[str, Any]],
    comparison: Sequence[Mapping[str, Any]],
) -> None:
    from harness import figures  # here, as it loads matplotlib and seaborn

    paths = {name: out / f"{name}.parquet" for name in figures.COLUMNS}
    frames = {n: results.read_parquet(p, figures.COLUMNS[n]).to_pandas() for n, p in paths.items() if p.is_file()}
    images = figures.draw(summary, frames.get("requests"), frames.get("links"), frames.get("traces"))
    results.make_directory(out / "figures")
    for name, image in images.items():
        results.write_bytes(out / "figures" / name, image)
    results.write_text(out / "report.html", figures.report(manifest, summary, comparison, images))


def remember(cell: Cell, status: Mapping[str, Any]) -> None:
    """Let later estimates know what a cell took."""
    if status["status"] == "complete":
        counters = status["counters"]
        hops = counters["data_hops"] + counters["control_hops"]
        run.remember_speed(
            cell.scenario,
            cell.backend,
            cell.cost,
            seconds=status["cpu_s"],
            work=hops if cell.backend == "packet" else status["flows"],
            memory_bytes=status["peak_memory_bytes"],
        )
