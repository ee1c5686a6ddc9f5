"""A sweep: axes -> cells -> workers; resume; status.

OUT/cells/HASH holds a run each, HASH being the digest of its resolved configuration; status.csv a row per cell, kept
current; summary.csv a row per run, led by the sweep's axes. A cell that is complete is not run again.
"""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from harness import results, run
from harness.axes import STATUS_COLUMNS, Sweep, where
from harness.cells import Cell, OnEvent, Outcome, prepare, read_status
from harness.cluster import DaskWorkers
from harness.errors import InputError
from harness.scenario_run import Status, cell_record, clear, locked, remember, status_of, summary_row, totals
from harness.validation import located
from harness.workers import Workers, run_on_workers

#: Between two writings of status.csv [s].
_STATUS_INTERVAL_S = 1.0

#: Hexadecimal digits of a cell's directory.
_HASH_DIGITS = 24

#: Keys of a scenario that its cost does not depend on.
_COSTLESS = (*run.NOT_OF_A_CELL, "oracle", "slo", "link_sampling")

#: Files of a sweep that are made from its cells.
_DERIVED = ("summary.csv", "report.html")


# --- Planning ---------------------------------------------------------------------------------------------------------


def build_network_models(sweep: Sweep) -> None:
    """Compile all that the sweep's packet-level cells need and is not compiled yet.

    Raises
    ------
    InputError : there is no compiler, or it does not accept a C++ header.
    """
    needs = {(s.network.cc.header, s.background.use == "ns3-tcp"): s for s in sweep.scenarios if "packet" in s.backends}
    for scenario in needs.values():
        run.build_network_model(scenario)


def network_warnings(sweep: Sweep) -> list[str]:
    """What an expert would want to know of the network models before the sweep, each text once."""
    texts = [text for scenario in sweep.scenarios for text in run.network_warnings(scenario)]
    return [*dict.fromkeys(texts), *_axes_without_effect(sweep)]


def _axes_without_effect(sweep: Sweep) -> Iterator[str]:
    """Of two network models one may not know what an axis sets: an oracle that never changes has no interval."""
    for backend in dict.fromkeys(entry.backend for entry in sweep.entries):
        entries = [entry for entry in sweep.entries if entry.backend == backend]
        for axis in sweep.axes:
            cells: dict[Any, list[str]] = {}
            for entry in entries:
                rest = (*(pair for pair in entry.place if pair[0] != axis), run.label(entry.scheduler), entry.seed)
                cells.setdefault(rest, []).append(entry.digest)
            if all(len(digests) > 1 and len(set(digests)) == 1 for digests in cells.values()):
                yield f"axis {axis!r} has no effect in the {backend} model, which has the same cells at all its labels"


def plan(sweep: Sweep, out: Path) -> list[Cell]:
    """The cells of a sweep in the order of its tables.

    Raises
    ------
    InputError : a cell cannot run (a request that never fits, a trace that is too short, ...).
    """
    costs: dict[tuple[str, str, int], run.Cost] = {}
    facts: dict[int, str] = {}
    cells = []
    for entry in sweep.entries:
        scenario, backend, seed = entry.scenario, entry.backend, entry.seed
        if id(scenario) not in facts:
            deciding = {key: value for key, value in scenario.to_json().items() if key not in _COSTLESS}
            facts[id(scenario)] = json.dumps(deciding, sort_keys=True)
        key = (facts[id(scenario)], backend, seed)
        if key not in costs:
            with located(where(sweep.source, entry.place)):
                costs[key] = run.estimate_cost(scenario, backend, seed)
        directory = out.resolve() / "cells" / entry.digest[:_HASH_DIGITS]
        cell = Cell(directory, scenario, backend, entry.scheduler, seed, costs[key], place=entry.place, keep=sweep.keep)
        cells.append(cell)
    return cells


# --- Running it -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SweepReport:
    """A sweep that has ended: where it is, how it ended, and its rows.

    `cells` has a mapping per cell: the axes, backend, scheduler, seed, status, error, detail, and what it measured.
    """

    out: Path
    status: Status
    axes: tuple[str, ...]
    cells: tuple[Mapping[str, Any], ...]
    summary: tuple[Mapping[str, Any], ...]
    wall_s: float


def run_sweep(
    sweep: Sweep,
    out: Path,
    workers: Workers,
    *,
    resume: bool,
    allow_mixed_code: bool,
    command: str,
    on_plan: Callable[[Sequence[Cell], Sequence[Cell]], None],
    on_event: OnEvent,
) -> SweepReport:
    """Run all cells of a sweep and write its tables, figures and report.

    Parameters
    ----------
    allow_mixed_code : take complete cells that were made with other code (run.json then lists all codes), and workers
        that have other code.
    on_plan : called once with all cells and with those to be run, before any of them starts.

    Raises
    ------
    InputError : before any simulation, but for what only a cell itself can find out.
    DiskFailure : the disk is full or broken; complete cells are kept.
    RunFailure : workers are lost again and again; complete cells are kept.
    """
    begun_s, started = time.monotonic(), datetime.now(timezone.utc).isoformat(timespec="seconds")
    cells = plan(sweep, out)
    runs = _unique(cells)
    versions = results.versions()
    code = versions["code_sha256"]
    stop = out.resolve() / ".stop"
    with locked(out):
        if not resume:
            clear(out)
        pending = prepare(runs, resume=resume, code=code, allow_mixed_code=allow_mixed_code, sync=False)
        for name in _DERIVED:
            (out / name).unlink(missing_ok=True)
        for name in ("figures", "tables"):
            shutil.rmtree(out / name, ignore_errors=True)
        stop.unlink(missing_ok=True)
        manifest: dict[str, Any] = {
            "project": "netkv-cosim",
            "name": sweep.name,
            "run_id": out.name,
            "status": "running",
            "started_utc": started,
            "command": command,
            "jobs": workers.slots,
            "axes": sweep.axes,
            "config_sha256": sweep.digest(),
            "versions": versions,
            "host": results.host(),
            "sweep": sweep.source,
            "figures": sweep.figures,
        }
        results.write_json(out / "run.json", manifest)
        if isinstance(workers, DaskWorkers) and workers.job_script:
            results.write_text(out / "cluster-job.sh", workers.job_script)
        status = _StatusTable(sweep.axes, cells, out)
        on_plan(runs, pending)
        outcomes = run_on_workers(
            pending,
            workers,
            status.watching(on_event),
            code=None if allow_mixed_code else code,
            stop=stop,
            limits=sweep.limits,
        )
        for cell, outcome in zip(pending, outcomes, strict=True):
            status.settle(cell, outcome)
        status.write()
        by_directory = dict(zip((c.directory for c in pending), outcomes, strict=True))
        report = _finish(sweep, cells, by_directory, out, manifest, begun_s)
    if not isinstance(workers, DaskWorkers):  # whose speed is not this machine's
        for cell in pending:
            remember(cell, read_status(cell.directory))
    return report


def _unique(cells: Sequence[Cell]) -> list[Cell]:
    """Each directory's first cell."""
    return list({cell.directory: cell for cell in reversed(cells)}.values())[::-1]


class _StatusTable:
    """status.csv, current to about a second."""

    def __init__(self, axes: Sequence[str], cells: Sequence[Cell], out: Path) -> None:
        self._columns = (*axes, *STATUS_COLUMNS)
        self._path = out / "status.csv"
        self._lock = threading.Lock()
        self._cells = cells
        self._states: dict[Path, dict[str, Any]] = {}
        for cell in cells:
            found = read_status(cell.directory)
            self._set(cell, found["status"], found.get("attempts", 0), found.get("wall_s"), found["error"])
        self._written_s = 0.0
        self.write()

    def _set(self, cell: Cell, state: str, attempts: int, seconds: float | None, error: str) -> None:
        self._states[cell.directory] = {"state": state, "attempts": attempts, "seconds": seconds, "error": error}

    def watching(self, on_event: OnEvent) -> OnEvent:
        """`on_event`, with what it is told going into the table as well."""

        def watch(cell: Cell, event: Mapping[str, Any]) -> None:
            with self._lock:
                if event["event"] == "start":
                    self._set(cell, "running", 1, None, "")
                elif event["event"] == "end":
                    self._set(cell, event["status"], event["attempts"], event["wall_s"], event["error"])
            if time.monotonic() - self._written_s >= _STATUS_INTERVAL_S:
                with suppress(results.DiskFailure):  # the cells meet it as well, and tell it
                    self.write()
            on_event(cell, event)

        return watch

    def settle(self, cell: Cell, outcome: Outcome) -> None:
        """Take in how a cell has ended."""
        with self._lock:
            if outcome.status == "pending":
                self._set(cell, "pending", 0, None, "")
            else:
                self._set(cell, outcome.status, outcome.attempts, outcome.wall_s, outcome.error)

    def write(self) -> None:
        """Write it now."""
        with self._lock:
            self._written_s = time.monotonic()
            rows = [
                {
                    **dict(cell.place),
                    "backend": cell.backend,
                    "scheduler": cell.label,
                    "seed": cell.seed,
                    **self._states[cell.directory],
                    "cell": cell.directory.name,
                }
                for cell in self._cells
            ]
            results.write_csv(self._path, self._columns, rows, sync=False)


def _finish(
    sweep: Sweep,
    cells: Sequence[Cell],
    outcomes: Mapping[Path, Outcome],
    out: Path,
    manifest: Mapping[str, Any],
    begun_s: float,
) -> SweepReport:
    records = [cell_record(cell, outcomes.get(cell.directory)) for cell in cells]
    status = status_of(records)
    rows = [dict(cell.place) | summary_row(cell, record) for cell, record in zip(cells, records, strict=True)]
    results.write_csv(out / "summary.csv", (*sweep.axes, *results.SUMMARY_COLUMNS), rows)
    codes = [results.read_json(cell.directory / "cell.json")["code_sha256"] for cell in cells]
    manifest = {
        **manifest,
        "status": status,
        **totals(records, begun_s),
        "code_sha256_of_cells": sorted(set(codes)),
        "cells": [{key: value for key, value in r.items() if key not in ("summary", "counters")} for r in records],
    }
    for kind, error in (("disk-error", results.DiskFailure), ("input-error", InputError)):
        for outcome in outcomes.values():
            if outcome.status == kind:
                results.write_json(out / "run.json", {**manifest, "status": "interrupted"})
                raise error(outcome.error)
    if status != "interrupted":  # there is no time for it on the way out; --resume draws them
        from harness import sweep_report  # here, as it loads matplotlib and seaborn

        failed = [record for record in records if record["status"] != "complete"]
        sweep_report.render(out, sweep.figures, sweep.axes, _as_read(out, sweep.axes), manifest, failed)
    results.write_json(out / "run.json", manifest)
    return SweepReport(out, status, sweep.axes, tuple(records), tuple(rows), time.monotonic() - begun_s)


def _as_read(out: Path, axes: Sequence[str]) -> Any:
    """summary.csv as a data frame: what anybody has who reads it, with labels as text."""
    import pandas as pd

    words = dict.fromkeys((*axes, "backend", "scheduler", "status"), str)
    numbers = {column: [""] for column in results.SUMMARY_COLUMNS if column not in words}
    return pd.read_csv(out / "summary.csv", dtype=words, keep_default_na=False, na_values=numbers)
