"""Cells and their processes: every (backend, scheduler, seed) runs in a process of its own, supervised through joblib.

A cell's directory holds cell.json (what to run), log.txt, its tables, and status.json, which is written last: a cell is
done when its status says "complete", and then its tables are whole. A crash, a kill or a lack of memory costs one cell.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType, TracebackType
from typing import IO, Any, Literal

import numpy as np

from harness import components, metrics, results, run
from harness.components import ComponentSpec
from harness.config import Scenario, build_cluster, scenario_from_json
from harness.errors import InputError, Interrupted, RunFailure
from harness.types import Progress, RunResult

Status = Literal["pending", "complete", "interrupted", "failed", "input-error", "disk-error"]

#: From the request to stop to the kill [s]: Ctrl-C has to be over in a second, writing the tables included.
GRACE_S = 0.6

#: Between two looks at a child's limits and at whether it has to stop [s].
_WATCH_S = 0.2

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
    place: tuple[tuple[str, str], ...] = field(default=(), kw_only=True)  #: axis and label of each of a sweep's axes
    keep: tuple[str, ...] = field(default=results.RECORD_TABLES, kw_only=True)  #: which of the record tables to write

    @property
    def label(self) -> str:
        """The scheduler's name in every table."""
        return run.label(self.scheduler)

    @property
    def name(self) -> str:
        """What messages call the cell."""
        place = (f"{axis} {label}" for axis, label in self.place)
        return " / ".join((*place, self.backend, self.label, f"seed {self.seed}"))

    def spec(self, code: str) -> dict[str, Any]:
        """What cell.json holds."""
        return {
            "backend": self.backend,
            "scheduler": self.scheduler.to_json(),
            "seed": self.seed,
            "config_sha256": run.cell_digest(self.scenario, self.backend, self.scheduler, self.seed),
            "code_sha256": code,
            "keep": self.keep,
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
    attempts: int = 1  #: how often the cell was begun, this time included


@dataclass(frozen=True)
class Limits:
    """What a cell's process may take; it is killed beyond. None is no limit."""

    seconds: float | None = None
    memory_bytes: int | None = None


NO_LIMITS = Limits()

#: Called with a cell and an event {"event": "start" | "progress" | "end", ...}, from several threads.
OnEvent = Callable[[Cell, Mapping[str, Any]], None]


def prepare(
    cells: Sequence[Cell], *, resume: bool, code: str, allow_mixed_code: bool = False, sync: bool = True
) -> list[Cell]:
    """Write every pending cell's cell.json; return the pending cells, which, when resuming, are those not complete.

    Parameters
    ----------
    allow_mixed_code : take complete cells that were made with other code.
    sync : as in harness.results.

    Raises
    ------
    InputError : a complete cell was made with another configuration or, unless that is allowed, other code.
    """
    pending = [cell for cell in cells if not (resume and _is_done(cell, code, allow_mixed_code))]
    for cell in pending:
        fell = resume and has_fallen(cell.directory)
        with suppress(FileNotFoundError):
            shutil.rmtree(cell.directory)
        results.make_directory(cell.directory)
        results.write_json(cell.directory / "cell.json", cell.spec(code), sync=sync)
        if fell:
            (cell.directory / "log.txt").touch()
    return pending


def has_fallen(directory: Path) -> bool:
    """Whether the cell was begun and its process ended before it could say how."""
    return (directory / "log.txt").exists() and not (directory / "status.json").exists()


def read_status(directory: Path) -> dict[str, Any]:
    """A cell's status.json, or {"status": "pending"} where there is none."""
    return results.read_json(directory / "status.json") or {"status": "pending", "error": "", "detail": ""}


def _is_done(cell: Cell, code: str, allow_mixed_code: bool) -> bool:
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
    if there["code_sha256"] != here["code_sha256"] and not allow_mixed_code:
        raise InputError(
            f"cannot resume: {cell.name} is complete with code {there['code_sha256'][:12]}, this is code "
            f"{here['code_sha256'][:12]}; go back to that version, or give another --out",
            source=out,
        )
    return set(cell.keep) <= set(there["keep"])


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
    supervisor = Supervisor(on_event)
    with supervisor.signals():
        workers = Parallel(n_jobs=max(1, min(jobs, len(cells))), backend="threading", batch_size=1)
        ended = workers(delayed(supervisor.supervise)(cells[i]) for i in order)
    by_cell = dict(zip(order, ended, strict=True))
    return [by_cell[i] for i in range(len(cells))]


class Supervisor:
    """Starts children, reads their progress, and stops them.

    Parameters
    ----------
    must_stop : asked now and then whether to stop all children.
    """

    def __init__(
        self, on_event: OnEvent, limits: Limits = NO_LIMITS, must_stop: Callable[[], bool] | None = None
    ) -> None:
        self._on_event = on_event
        self._limits = limits
        self._must_stop = must_stop
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

    def supervise(self, cell: Cell, attempt: int = 1, directory: Path | None = None) -> Outcome:
        """Run one cell's process to its end.

        Parameters
        ----------
        attempt : which one this is.
        directory : to run it in; None is the current one.
        """
        if self._is_stopping():
            return Outcome("pending", "not started")
        begun = time.monotonic()
        (cell.directory / "status.json").unlink(missing_ok=True)
        options = ("--parent", str(os.getpid()), "--attempt", str(attempt))
        with results.disk_errors(cell.directory / "log.txt"), (cell.directory / "log.txt").open("wb") as log:
            child = subprocess.Popen(
                [sys.executable, "-m", "harness", "cell", str(cell.directory), *options],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                bufsize=0,
                cwd=directory,
                start_new_session=True,  # Ctrl-C then reaches the parent alone, which stops the children
            )
        self._children[child.pid] = child
        if self._is_stopping():
            _signal_group(child, signal.SIGTERM)
        self._on_event(cell, {"event": "start"})
        peak, disk_error, excess = 0, "", ""
        assert child.stdout is not None
        try:
            for line in self._lines(child.stdout):
                if line:
                    event = json.loads(line)
                    peak = max(peak, event["peak_memory_bytes"])
                    disk_error = event.get("disk_error", disk_error)
                    self._on_event(cell, event)
                if not excess and (excess := self._excess(child, time.monotonic() - begun)):
                    _signal_group(child, signal.SIGKILL)
                if self._must_stop is not None and self._must_stop():
                    self.stop()
            code = child.wait()
        except BaseException:  # Ctrl-C, where it raises
            _signal_group(child, signal.SIGKILL)
            child.wait()
            raise
        finally:
            child.stdout.close()
            del self._children[child.pid]
        wall_s = time.monotonic() - begun
        if disk_error:
            outcome = Outcome("disk-error", disk_error, "", wall_s, peak, attempt)
        else:
            outcome = self._outcome(cell, excess or _exit_text(code), wall_s, peak, attempt)
        if outcome.status in ("disk-error", "input-error"):
            self.stop()
        self._on_event(cell, {"event": "end", **asdict(outcome)})
        return outcome

    def _lines(self, stream: IO[bytes]) -> Iterator[bytes]:
        """Lines of a child's output, and an empty one whenever it is time to look whether it has to be stopped."""
        is_watched = self._must_stop is not None or self._limits != NO_LIMITS
        rest = b""
        while True:
            if not select.select([stream], [], [], _WATCH_S if is_watched else None)[0]:
                yield b""
                continue
            data = stream.read(1 << 16)
            if not data:
                return
            *lines, rest = (rest + data).split(b"\n")
            yield from lines

    def _excess(self, child: subprocess.Popen[bytes], wall_s: float) -> str:
        """Which limit a child has exceeded, if one."""
        seconds, memory_bytes = self._limits.seconds, self._limits.memory_bytes
        if seconds is not None and wall_s > seconds:
            return f"killed, as it took longer than the time limit of {seconds:g} s"
        if memory_bytes is not None and (peak := peak_memory_bytes(child.pid)) > memory_bytes:
            most, used = memory_bytes / 1e6, peak / 1e6
            return f"killed, as it used {used:,.0f} MB, more than the memory limit of {most:,.0f} MB"
        return ""

    def _outcome(self, cell: Cell, ending: str, wall_s: float, peak: int, attempt: int) -> Outcome:
        status = read_status(cell.directory)
        if status["status"] != "pending":
            return Outcome(status["status"], status["error"], status["detail"], wall_s, peak, attempt)
        if self._is_stopping():
            outcome = Outcome("interrupted", "stopped before it had anything to write", "", wall_s, peak, attempt)
        else:
            outcome = Outcome("failed", ending, log_tail(cell.directory), wall_s, peak, attempt)
        try:
            results.write_json(cell.directory / "status.json", asdict(outcome))
        except results.DiskFailure as full:
            return Outcome("disk-error", str(full), outcome.error, wall_s, peak, attempt)
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


# --- The cell itself --------------------------------------------------------------------------------------------------


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when the thread that started it ends: no child outlives a killed parent."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it was gone before prctl
        os.kill(os.getpid(), signal.SIGKILL)


def peak_memory_bytes(pid: int | Literal["self"] = "self") -> int:
    """Largest resident set of a process since it was started; 0 if it is gone."""
    with suppress(FileNotFoundError, ProcessLookupError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0


def execute_cell(directory: Path, on_event: Callable[[Mapping[str, Any]], None], attempt: int = 1) -> Status:
    """Run the cell of `directory` in this process, which is for this cell alone.

    SIGINT and SIGTERM stop the run. Whatever ends it early, what was recorded until then is written and marked.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    spec = results.read_json(directory / "cell.json")
    scenario = scenario_from_json(spec["scenario"])
    scheduler = components.check("scheduler", spec["scheduler"])

    def protect_writing() -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)  # a second one must not tear what is being written

    cell = Cell(directory, scenario, spec["backend"], scheduler, spec["seed"], run.NO_COST, keep=tuple(spec["keep"]))
    outcome = execute(cell, on_event, attempt, on_end=protect_writing)
    if outcome.status == "disk-error":
        peak = outcome.peak_memory_bytes
        on_event({"event": "disk-error", "disk_error": outcome.error, "peak_memory_bytes": peak})
    return outcome.status


def execute(
    cell: Cell,
    on_event: Callable[[Mapping[str, Any]], None],
    attempt: int = 1,
    *,
    on_end: Callable[[], None] = lambda: None,
    sync: bool = True,
) -> Outcome:
    """Run a cell in this process and write its tables, then its status.

    Parameters
    ----------
    on_event : what it raises ends the run.
    on_end : called when the run has ended, before anything is written.
    sync : as in harness.results.
    """
    begun_s, begun_cpu_s = time.monotonic(), time.thread_time()
    kept: list[RunResult] = []

    def on_progress(progress: Progress, completed: int) -> None:
        event = {"event": "progress", "completed": completed, "peak_memory_bytes": peak_memory_bytes()}
        on_event(event | asdict(progress))

    status: Status = "complete"
    error = detail = ""
    try:
        pcap = cell.directory.parent.parent / "pcap"
        if cell.scenario.pcap:
            results.make_directory(pcap)
        result = run.run_cell(
            cell.scenario,
            cell.backend,
            cell.scheduler,
            cell.seed,
            on_progress,
            kept.append,
            pcap_prefix=f"{pcap}/{cell.directory.name}_",
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
    on_end()

    wall_s = time.monotonic() - begun_s
    record = {
        "status": status,
        "error": error,
        "detail": detail,
        "attempts": attempt,
        "wall_s": wall_s,
        "cpu_s": time.thread_time() - begun_cpu_s,
    }
    try:
        if kept:
            tables = results.record_tables(kept[0], build_cluster(cell.scenario).topology, cell.keep)
            for name, table in tables.items():
                results.write_parquet(cell.directory / f"{name}.parquet", [table], sync=sync)
            record |= _numbers(kept[0], cell.scenario)
        peak = peak_memory_bytes()
        results.write_json(cell.directory / "status.json", record | {"peak_memory_bytes": peak}, sync=sync)
    except results.DiskFailure as full:
        return Outcome("disk-error", str(full), "", wall_s, peak_memory_bytes(), attempt)
    return Outcome(status, error, detail, wall_s, peak, attempt)


def _numbers(result: RunResult, scenario: Scenario) -> dict[str, Any]:
    decisions_s = np.array([r.decision_wall_s for r in result.requests if r.decision_ps >= 0])
    return {
        "summary": metrics.summary(result, ttft_bound_ps=scenario.slo.ttft, tbt_bound_ps=scenario.slo.tbt),
        "counters": results.counters(result.network.totals),
        "flows": len(result.network.flows.size_bytes),
        "simulated_s": result.network.port_totals.now_ps / 1e12,
        "decision_mean_us": float(decisions_s.mean()) * 1e6 if decisions_s.size else None,
        "decision_median_us": float(np.median(decisions_s)) * 1e6 if decisions_s.size else None,
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
