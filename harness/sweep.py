"""Cells and their processes: every (backend, scheduler, seed) runs in a process of its own, supervised through joblib.

A cell's directory holds cell.json (what to run), log.txt, its tables, and status.json, which is written last: a cell is
done when its status says "complete", and then its tables are whole. A crash, a kill or a lack of memory costs one cell.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Literal

import numpy as np

from harness import components, metrics, results, run
from harness.components import ComponentSpec
from harness.config import Scenario, build_cluster, scenario_from_json
from harness.errors import InputError, Interrupted, RunFailure
from harness.types import Progress, RunResult

Status = Literal["pending", "complete", "interrupted", "failed", "input-error", "disk-error"]

#: From the request to stop to the kill [s]: Ctrl-C has to be over in a second, writing the tables included.
GRACE_S = 0.6

#: Record tables of an interrupted run are merged only up to this size [bytes], which takes about 0.1 s.
_QUICK_MERGE_BYTES = 20_000_000

#: Files of a run that are made from its cells.
_DERIVED = ("summary.csv", "comparison.csv", "report.html", *(f"{name}.parquet" for name in results.RECORD_TABLES))

_LOG_TAIL_LINES = 25
_PR_SET_PDEATHSIG = 1  # prctl(2)


# --- Cells ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    """One run to be made: where it goes, what it is, and what it is expected to cost."""

    directory: Path
    scenario: Scenario
    backend: run.Backend
    scheduler: ComponentSpec
    seed: int
    cost: run.Cost

    @property
    def label(self) -> str:
        """The scheduler's name in every table."""
        return run.label(self.scheduler)

    @property
    def name(self) -> str:
        """What messages call the cell."""
        return f"{self.backend} / {self.label} / seed {self.seed}"

    def spec(self, code: str) -> dict[str, Any]:
        """What cell.json holds."""
        return {
            "backend": self.backend,
            "scheduler": self.scheduler.to_json(),
            "seed": self.seed,
            "config_sha256": run.cell_digest(self.scenario, self.backend, self.scheduler, self.seed),
            "code_sha256": code,
            "scenario": self.scenario.to_json(),
        }


@dataclass(frozen=True)
class Outcome:
    """How a cell's process ended."""

    status: Status
    error: str = ""  #: one line
    detail: str = ""  #: a traceback, or the tail of the log
    wall_s: float = 0.0
    peak_memory_bytes: int = 0


#: Called with a cell and an event {"event": "start" | "progress" | "end", ...}, from several threads.
OnEvent = Callable[[Cell, Mapping[str, Any]], None]


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


def prepare(cells: Sequence[Cell], *, resume: bool, code: str) -> list[Cell]:
    """Write every pending cell's cell.json; return the pending cells, which, when resuming, are those not complete.

    Raises
    ------
    InputError : a complete cell was made with another configuration or other code.
    """
    pending = [cell for cell in cells if not (resume and _is_done(cell, code))]
    for cell in pending:
        if cell.directory.exists():
            shutil.rmtree(cell.directory)
        results.make_directory(cell.directory)
        results.write_json(cell.directory / "cell.json", cell.spec(code))
    return pending


def read_status(directory: Path) -> dict[str, Any]:
    """A cell's status.json, or {"status": "pending"} where there is none."""
    return results.read_json(directory / "status.json") or {"status": "pending", "error": "", "detail": ""}


def _is_done(cell: Cell, code: str) -> bool:
    if read_status(cell.directory)["status"] != "complete":
        return False
    there, here = results.read_json(cell.directory / "cell.json"), cell.spec(code)
    out = str(cell.directory.parent.parent)
    if there["config_sha256"] != here["config_sha256"]:
        changed = "; ".join(_differences(there["scenario"], here["scenario"])) or "a plug-in or a trace was changed"
        raise InputError(
            f"cannot resume: {cell.name} is complete with config {there['config_sha256'][:12]}, this is config "
            f"{here['config_sha256'][:12]} ({changed}); give the same options, or another --out",
            source=out,
        )
    if there["code_sha256"] != here["code_sha256"]:
        raise InputError(
            f"cannot resume: {cell.name} is complete with code {there['code_sha256'][:12]}, this is code "
            f"{here['code_sha256'][:12]}; go back to that version, or give another --out",
            source=out,
        )
    return True


def _differences(there: Any, here: Any, path: str = "") -> list[str]:
    if isinstance(there, dict) and isinstance(here, dict):
        keys = [key for key in {**there, **here} if path or key not in run.NOT_OF_A_CELL]
        return [d for k in keys for d in _differences(there.get(k), here.get(k), f"{path}.{k}" if path else str(k))]
    return [] if there == here else [f"{path}: {there!r} there, {here!r} here"]


# --- Supervision, in the parent ---------------------------------------------------------------------------------------


def run_cells(cells: Sequence[Cell], jobs: int, on_event: OnEvent) -> list[Outcome]:
    """Run every cell in a process of its own, `jobs` at a time, the longest first.

    Ctrl-C (or SIGTERM) asks all children to stop and kills what has not stopped after `GRACE_S`. A full disk stops the
    others as well, and so does a cell whose input is wrong: they would all meet the same.

    Returns
    -------
    One outcome per cell, in the order given: "interrupted" if it was stopped, "pending" if it never began.
    """
    from joblib import Parallel, delayed  # here, as a cell's process does without

    order = sorted(range(len(cells)), key=lambda i: (-cells[i].cost.seconds, i))
    supervisor = _Supervisor(on_event)
    with supervisor.signals():
        workers = Parallel(n_jobs=max(1, min(jobs, len(cells))), backend="threading", batch_size=1)
        ended = workers(delayed(supervisor.supervise)(cells[i]) for i in order)
    by_cell = dict(zip(order, ended, strict=True))
    return [by_cell[i] for i in range(len(cells))]


class _Supervisor:
    """Starts children, reads their progress, and stops them."""

    def __init__(self, on_event: OnEvent) -> None:
        self._on_event = on_event
        self._children: dict[int, subprocess.Popen[bytes]] = {}
        self._stop_asked = False

    @contextmanager
    def signals(self) -> Iterator[None]:
        """Within, SIGINT and SIGTERM stop the children instead of raising: then the threads end by themselves."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        if self._is_stopping():
            self._signal_all(signal.SIGKILL)
        self.stop()

    def _is_stopping(self) -> bool:
        return self._stop_asked

    def stop(self) -> None:
        """Ask all children to stop, and kill after `GRACE_S` those that have not."""
        if self._is_stopping():
            return
        self._stop_asked = True
        self._signal_all(signal.SIGTERM)
        timer = threading.Timer(GRACE_S, self._signal_all, (signal.SIGKILL,))
        timer.daemon = True
        timer.start()

    def _signal_all(self, number: signal.Signals) -> None:
        # list() of a dict is atomic. A lock would not do: the handler may interrupt the very thread that holds it.
        for child in list(self._children.values()):
            _signal_group(child, number)

    def supervise(self, cell: Cell) -> Outcome:
        """Run one cell's process to its end."""
        if self._is_stopping():
            return Outcome("pending", "not started")
        begun = time.monotonic()
        with (cell.directory / "log.txt").open("wb") as log:
            child = subprocess.Popen(
                [sys.executable, "-m", "harness", "cell", str(cell.directory), "--parent", str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # Ctrl-C then reaches the parent alone, which stops the children
            )
        self._children[child.pid] = child
        if self._is_stopping():
            _signal_group(child, signal.SIGTERM)
        self._on_event(cell, {"event": "start"})
        peak, disk_error = 0, ""
        assert child.stdout is not None
        with child.stdout:
            for line in child.stdout:
                event = json.loads(line)
                peak = max(peak, event["peak_memory_bytes"])
                disk_error = event.get("disk_error", disk_error)
                self._on_event(cell, event)
        code = child.wait()
        del self._children[child.pid]
        wall_s = time.monotonic() - begun
        if disk_error:
            outcome = Outcome("disk-error", disk_error, "", wall_s, peak)
        else:
            outcome = self._outcome(cell, code, wall_s, peak)
        if outcome.status in ("disk-error", "input-error"):
            self.stop()
        self._on_event(cell, {"event": "end", **asdict(outcome)})
        return outcome

    def _outcome(self, cell: Cell, code: int, wall_s: float, peak: int) -> Outcome:
        status = read_status(cell.directory)
        if status["status"] != "pending":
            return Outcome(status["status"], status["error"], status["detail"], wall_s, peak)
        if self._is_stopping():
            outcome = Outcome("interrupted", "stopped before it had anything to write", "", wall_s, peak)
        else:
            outcome = Outcome("failed", _exit_text(code), log_tail(cell.directory), wall_s, peak)
        try:
            results.write_json(cell.directory / "status.json", asdict(outcome))
        except results.DiskFailure as full:
            return Outcome("disk-error", str(full), outcome.error, wall_s, peak)
        return outcome


def _signal_group(child: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Signal a child and what it started, a compiler for example."""
    if child.returncode is None:  # not waited for yet, so its id is still its own
        with suppress(ProcessLookupError):
            os.killpg(child.pid, number)


def _exit_text(code: int) -> str:
    if code >= 0:
        return f"its process ended with exit code {code} and left no status"
    name = signal.Signals(-code).name
    return f"its process was ended by {name}" + (" (killed, or out of memory)" if name == "SIGKILL" else "")


def log_tail(directory: Path) -> str:
    """The last lines of a cell's log."""
    lines = (directory / "log.txt").read_text(errors="replace").splitlines()
    return "\n".join(lines[-_LOG_TAIL_LINES:])


# --- The cell itself, in the child ------------------------------------------------------------------------------------


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when the thread that started it ends: no child outlives a killed parent."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it was gone before prctl
        os.kill(os.getpid(), signal.SIGKILL)


def peak_memory_bytes() -> int:
    """Largest resident set of this process since it was started."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def execute_cell(directory: Path, on_event: Callable[[Mapping[str, Any]], None]) -> Status:
    """Run the cell of `directory` in this process and write its tables, then its status.

    SIGINT and SIGTERM stop the run. Whatever ends it early, what was recorded until then is written and marked.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    begun_s, begun_cpu_s = time.monotonic(), time.process_time()
    spec = results.read_json(directory / "cell.json")
    scenario = scenario_from_json(spec["scenario"])
    scheduler = components.check("scheduler", spec["scheduler"])
    kept: list[RunResult] = []

    def on_progress(progress: Progress, completed: int) -> None:
        event = {"event": "progress", "completed": completed, "peak_memory_bytes": peak_memory_bytes()}
        on_event(event | asdict(progress))

    status: Status = "complete"
    error = detail = ""
    try:
        pcap = directory.parent.parent / "pcap"
        if scenario.pcap:
            results.make_directory(pcap)
        result = run.run_cell(
            scenario,
            spec["backend"],
            scheduler,
            spec["seed"],
            on_progress,
            kept.append,
            pcap_prefix=f"{pcap}/{directory.name}_",
        )
        kept.append(result)
    except (KeyboardInterrupt, Interrupted):
        status, error = "interrupted", "stopped by the user"
    except InputError as wrong:
        status, error = "input-error", str(wrong)
    except RunFailure as failure:
        status, error = "failed", str(failure)
    except Exception as raised:  # noqa: BLE001 - the edge of the cell: what a plug-in raises ends here, and is told whole
        status, error, detail = "failed", f"{type(raised).__name__}: {raised}", callers_traceback(raised)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # a second one must not tear what is being written

    record = {
        "status": status,
        "error": error,
        "detail": detail,
        "wall_s": time.monotonic() - begun_s,
        "cpu_s": time.process_time() - begun_cpu_s,
    }
    try:
        if kept:
            for name, table in results.record_tables(kept[0], build_cluster(scenario).topology).items():
                results.write_parquet(directory / f"{name}.parquet", [table])
            record |= _numbers(kept[0], scenario)
        results.write_json(directory / "status.json", record | {"peak_memory_bytes": peak_memory_bytes()})
    except results.DiskFailure as full:
        on_event({"event": "disk-error", "disk_error": str(full), "peak_memory_bytes": peak_memory_bytes()})
        return "disk-error"
    return status


def _numbers(result: RunResult, scenario: Scenario) -> dict[str, Any]:
    decisions_s = np.array([r.decision_wall_s for r in result.requests if r.decision_ps >= 0])
    return {
        "summary": metrics.summary(result, ttft_bound_ps=scenario.slo.ttft, tbt_bound_ps=scenario.slo.tbt),
        "counters": results.counters(result.network.totals),
        "flows": len(result.network.flows.size_bytes),
        "simulated_s": result.network.port_totals.now_ps / 1e12,
        "decision_mean_us": float(decisions_s.mean()) * 1e6 if decisions_s.size else None,
        "decision_max_us": float(decisions_s.max()) * 1e6 if decisions_s.size else None,
    }


def callers_traceback(error: BaseException) -> str:
    """A traceback from the first frame outside the harness on: what the author of a plug-in wants to see."""
    own = str(Path(__file__).resolve().parent)
    frames = traceback.extract_tb(error.__traceback__)
    inner = next((i for i, frame in enumerate(frames) if not frame.filename.startswith(own)), 0)
    tail: TracebackType | None = error.__traceback__
    for _ in range(inner):
        tail = tail.tb_next if tail is not None else None
    return "".join(traceback.format_exception(type(error), error.with_traceback(tail), tail)).rstrip()


# --- A whole run ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RunReport:
    """A run that has ended: where it is, how it ended, and the rows of its small tables.

    `cells` has a mapping per cell: backend, scheduler, seed, status, error, detail, and what it measured.
    """

    out: Path
    status: Literal["complete", "interrupted", "failed"]
    cells: tuple[Mapping[str, Any], ...]
    summary: tuple[Mapping[str, Any], ...]
    comparison: tuple[Mapping[str, Any], ...]
    counters: Mapping[str, Mapping[str, int]]  #: per backend, over all cells
    wall_s: float


def find_directory(scenario: Scenario, root: Path, *, resume: bool) -> Path:
    """Where a run without --out goes: root/<scenario>/<time>-<config>; when resuming, the newest with this config.

    Raises
    ------
    InputError : there is nothing to resume.
    """
    parent, config = root / scenario.name, scenario.digest()[:8]
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
            _clear(out)
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
        _remember(cell, read_status(cell.directory))
    for kind, error in (("disk-error", results.DiskFailure), ("input-error", InputError)):
        for outcome in outcomes.values():
            if outcome.status == kind:
                raise error(outcome.error)
    return report


def _clear(out: Path) -> None:
    """Make room for a new run, but never at the expense of an unfinished one's complete cells."""
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
    records = [_record(cell, outcomes.get(cell.directory)) for cell in cells]
    states = {record["status"] for record in records}
    status: Literal["complete", "interrupted", "failed"] = "complete"
    if states != {"complete"}:
        status = "interrupted" if states & {"interrupted", "pending"} else "failed"
    directories = [cell.directory for cell in cells]
    files = [path for d in directories for path in d.glob("*.parquet")]
    if status != "interrupted" or sum(path.stat().st_size for path in files) <= _QUICK_MERGE_BYTES:
        for name in results.RECORD_TABLES:
            results.merge_tables(out, directories, name)
    summary = [_summary_row(cell, record) for cell, record in zip(cells, records, strict=True)]
    results.write_csv(out / "summary.csv", results.SUMMARY_COLUMNS, summary)
    comparison = _comparison(cells, records)
    results.write_csv(out / "comparison.csv", results.COMPARISON_COLUMNS, comparison)
    parts = {b: [r["counters"] for r in records if r["backend"] == b and "counters" in r] for b in _backends(cells)}
    counters = {backend: results.add_counters(part) for backend, part in parts.items()}
    manifest = {
        **manifest,
        "status": status,
        "wall_s": time.monotonic() - begun_s,
        "packets": sum(c["data_packets"] + c["ack_packets"] for c in counters.values()),
        "packet_hops": sum(c["data_hops"] + c["control_hops"] for c in counters.values()),
        "peak_memory_bytes": max(record["peak_memory_bytes"] for record in records),
        "counters": counters,
        "cells": records,
    }
    if status != "interrupted":  # there is no time for it on the way out; --resume draws them
        _draw(out, manifest, summary, comparison)
    results.write_json(out / "run.json", manifest)
    return RunReport(
        out, status, tuple(records), tuple(summary), tuple(comparison), counters, time.monotonic() - begun_s
    )


def _backends(cells: Sequence[Cell]) -> list[str]:
    return list(dict.fromkeys(cell.backend for cell in cells))


def _record(cell: Cell, outcome: Outcome | None) -> dict[str, Any]:
    found = read_status(cell.directory)
    if found["status"] == "pending" and outcome is not None:
        found = asdict(outcome)
    return {
        "backend": cell.backend,
        "scheduler": cell.label,
        "seed": cell.seed,
        "directory": str(cell.directory.relative_to(cell.directory.parent.parent)),
        "peak_memory_bytes": 0,
        **found,
        "expected": asdict(cell.cost),
    }


def _summary_row(cell: Cell, record: Mapping[str, Any]) -> dict[str, Any]:
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


def _remember(cell: Cell, status: Mapping[str, Any]) -> None:
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
