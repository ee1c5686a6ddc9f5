"""A sweep's cells on workers, through joblib: processes of this machine, or (see harness/cluster.py) of a cluster.

A cell of the packet model has a process of its own below the worker; one of a fluid model, which is short, runs in the
worker itself, unless there are limits to be kept, or it has failed or taken its worker down with it before. Workers
write results to the cells' directories themselves: nothing is lost when a worker, or the sweep, is killed.
"""

from __future__ import annotations

import _thread
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import asdict, dataclass, fields
from functools import cache
from multiprocessing import resource_tracker
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from harness import results
from harness.cells import (
    NO_LIMITS,
    Cell,
    Limits,
    OnEvent,
    Outcome,
    Supervisor,
    die_with_parent,
    execute,
    has_fallen,
    read_status,
)
from harness.errors import InputError, Interrupted, RunFailure

if TYPE_CHECKING:
    from joblib import Parallel

#: A cell that fails is begun once more.
MAX_ATTEMPTS = 2

#: Workers may be lost this often in a row without a cell being done in between.
_MAX_LOSSES = 5

#: Between two looks at, and two words of, running cells [s].
_INTERVAL_S = 1.0

#: Cells that have not ended, the longest first, that are looked at.
_MOST_WATCHED = 100


# --- Workers ----------------------------------------------------------------------------------------------------------


class Workers(Protocol):
    """Where cells run."""

    @property
    def slots(self) -> int:
        """How many cells run at a time."""

    def parallel(self, n: int) -> Parallel:
        """What gives `n` cells to workers, and their outcomes back as they come."""

    @property
    def loss_errors(self) -> tuple[type[BaseException], ...]:
        """What joblib raises when a worker was lost."""

    def losses(self) -> Mapping[str, str]:
        """Tasks whose outcomes will never come, though joblib waits for them, each with the reason.

        Raises
        ------
        RunFailure : none will come any more.
        """


@dataclass(frozen=True)
class LocalWorkers:
    """Processes of this machine; with one job, this process itself."""

    jobs: int

    @property
    def slots(self) -> int:
        """As many as jobs."""
        return self.jobs

    def parallel(self, n: int) -> Parallel:
        """By joblib's loky, small cells several at a time."""
        from joblib import Parallel

        jobs = min(self.jobs, n)
        more = {"initializer": _join, "initargs": (os.getpid(),)} if jobs > 1 else {}
        return Parallel(n_jobs=jobs, backend="loky", return_as="generator_unordered", max_nbytes=None, **more)

    @property
    def loss_errors(self) -> tuple[type[BaseException], ...]:
        """Of loky, which then lets go of all workers."""
        return (BrokenProcessPool,)

    def losses(self) -> Mapping[str, str]:
        """None: joblib raises."""
        return {}


def _join(parent: int) -> None:
    """Make this process a worker: it ends with the parent, which is also the one to hear Ctrl-C."""
    die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


# --- In the worker ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Task:
    """What a worker is given."""

    cell: Cell
    attempt: int
    limits: Limits
    stop: Path  #: once this file exists, the cell has to stop
    directory: Path  #: current directory of the sweep, which paths of plug-ins are relative to
    code: str | None  #: digest of the code that the worker must have


class _Reporter:
    """Leaves word of a running cell in its directory, and looks whether to stop."""

    def __init__(self, task: _Task) -> None:
        self._task = task
        self._file = task.cell.directory / "progress.json"
        self._last_s = time.monotonic()
        self._has_written = False

    def must_stop(self) -> bool:
        """Whether the sweep has been stopped."""
        return self._task.stop.exists()

    def event(self, event: Mapping[str, Any]) -> None:
        """Take in what the cell reports.

        Raises
        ------
        Interrupted : the sweep has been stopped.
        """
        if event["event"] == "progress" and time.monotonic() - self._last_s >= _INTERVAL_S:
            self._last_s = time.monotonic()
            if self.must_stop():
                raise Interrupted("the sweep has been stopped")
            with suppress(OSError, InputError, RunFailure):  # a cell does not depend on who watches it
                results.write_json(self._file, event, sync=False)
                self._has_written = True

    def close(self) -> None:
        """Leave nothing behind."""
        if self._has_written:
            self._file.unlink(missing_ok=True)


def _work(task: _Task) -> Outcome:
    """Run one cell; what goes wrong is told, not raised."""
    cell, attempt = task.cell, task.attempt
    found = _told(cell.directory)
    if found is not None and (found.status == "complete" or found.attempts == attempt):
        return found  # of a worker that was lost before it could say so
    if task.stop.exists():
        return Outcome("pending", "not started")
    if has_fallen(cell.directory):
        attempt += 1
    is_apart = cell.backend == "packet" or attempt > 1 or task.limits != NO_LIMITS or Path.cwd() != task.directory
    if task.code is not None and task.code != (code := results.code_digest() if is_apart else _own_code()):
        message = (
            f"a worker has other code ({code[:12]}) than the sweep began with ({task.code[:12]}): all machines need "
            "the same version, and it must stay as it is while a sweep runs"
        )
        return Outcome("input-error", message)
    reporter = _Reporter(task)
    try:
        if not is_apart:
            with _log(cell.directory / "log.txt"):
                return execute(cell, reporter.event, attempt, sync=False)
        supervisor = Supervisor(lambda _, event: _report(reporter, event), task.limits, reporter.must_stop)
        return supervisor.supervise(cell, attempt, task.directory)
    except results.DiskFailure as full:
        return Outcome("disk-error", str(full), "", 0.0, 0, attempt)
    except InputError as wrong:
        return Outcome("input-error", str(wrong), "", 0.0, 0, attempt)
    finally:
        reporter.close()


def _told(directory: Path) -> Outcome | None:
    """How a cell has ended, as its directory has it."""
    found = read_status(directory)
    if found["status"] == "pending":
        return None
    return Outcome(*(found[field.name] for field in fields(Outcome)))


def _report(reporter: _Reporter, event: Mapping[str, Any]) -> None:
    with suppress(Interrupted):  # the supervisor asks itself, and lets the cell write what it has
        reporter.event(event)


@contextmanager
def _log(path: Path) -> Iterator[None]:
    """Have what Python prints inside go to a file; not on a thread beside others, for standard output has no owner."""
    with results.disk_errors(path), path.open("w") as file, ExitStack() as stack:
        if threading.current_thread() is threading.main_thread():
            stack.enter_context(redirect_stdout(file))
            stack.enter_context(redirect_stderr(file))
        yield


@cache
def _own_code() -> str:
    """Digest of the code that this process has loaded."""
    return results.code_digest()


# --- In the parent ----------------------------------------------------------------------------------------------------


def run_on_workers(
    cells: Sequence[Cell],
    workers: Workers,
    on_event: OnEvent,
    *,
    code: str | None,
    stop: Path,
    limits: Limits = NO_LIMITS,
) -> list[Outcome]:
    """Run cells on workers, the longest first. What fails is begun once more; what a lost worker had is begun again.

    Ctrl-C (or SIGTERM) stops all, and so do a full disk and a wrong input, which all cells would meet.

    Parameters
    ----------
    code : digest of the code that workers must have; None for any.
    stop : a file that tells workers on other machines to stop, once it is there.

    Returns
    -------
    One outcome per cell, in the order given: "interrupted" if it was stopped, "pending" if it never began.

    Raises
    ------
    RunFailure : workers are lost again and again.
    """
    order = sorted(range(len(cells)), key=lambda i: (-cells[i].cost.seconds, i))
    ended: dict[int, Outcome] = {}
    attempts = dict.fromkeys(order, 1)
    losses = 0
    watch = _Watch(cells, order, ended, workers, on_event)

    def end(i: int, outcome: Outcome) -> None:
        attempts[i] = outcome.attempts + 1
        if outcome.status == "failed" and outcome.attempts < MAX_ATTEMPTS:
            return
        ended[i] = outcome
        on_event(cells[i], {"event": "end", **asdict(outcome)})
        if outcome.status in ("interrupted", "pending", "disk-error", "input-error"):
            raise _Stopped

    try:
        with _interruptible(), watch.running():
            while todo := [i for i in order if i not in ended]:
                n_before = len(ended)
                tasks = {i: _Task(cells[i], attempts[i], limits, stop, Path.cwd(), code) for i in todo}
                loss = _run_all(tasks, workers, watch, end)
                losses = 0 if not loss else 1 if len(ended) > n_before else losses + 1
                if losses > _MAX_LOSSES:
                    raise RunFailure(f"workers were lost {losses} times without a cell being done: {loss}")
    except (KeyboardInterrupt, _Stopped):
        with suppress(results.DiskFailure):  # a cell has met it before, and tells it
            results.write_text(stop, "", sync=False)
    return [ended.get(i) or _unended(cell.directory) for i, cell in enumerate(cells)]


def _unended(directory: Path) -> Outcome:
    """Of a cell that the sweep did not wait for."""
    if has_fallen(directory):
        return Outcome("interrupted", "stopped")
    return _told(directory) or Outcome("pending", "not started")


class _Stopped(Exception):
    """No more cells are wanted."""


def _run_all(tasks: Mapping[int, _Task], workers: Workers, watch: _Watch, end: Callable[[int, Outcome], None]) -> str:
    """Run tasks and hand on their outcomes; return why some were lost, or "" if none was."""
    from joblib import delayed

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # joblib warns of tasks that are given up, which is what is wanted then
        with _unheard():
            found = workers.parallel(len(tasks))(delayed(_numbered)(i, task) for i, task in tasks.items())
        try:
            for i, outcome in found:
                end(i, outcome)
        except workers.loss_errors as error:
            workers.losses()  # raises if there are no workers to go on with
            return str(error).partition("\n")[0]
        except KeyboardInterrupt:
            if loss := watch.take_loss():
                return loss
            raise
        finally:
            found.close()
    return ""


def _numbered(i: int, task: _Task) -> tuple[int, Outcome]:
    return i, _work(task)


@contextmanager
def _unheard() -> Iterator[None]:
    """Within, SIGINT waits: processes started meanwhile never get it, not even before they can say so themselves."""
    resource_tracker.ensure_running()  # else it is started with the first worker, and lets signals through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _interruptible() -> Iterator[None]:
    """Within, SIGINT and SIGTERM raise KeyboardInterrupt, however the process was started."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {n: signal.signal(n, signal.default_int_handler) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Watch:
    """Looks now and then what the running cells have left word of, and whether the workers are still there."""

    def __init__(
        self,
        cells: Sequence[Cell],
        order: Sequence[int],
        ended: Mapping[int, Outcome],
        workers: Workers,
        on_event: OnEvent,
    ) -> None:
        self._cells, self._order, self._ended = cells, order, ended
        self._workers = workers
        self._on_event = on_event
        self._started: set[int] = set()
        self._lost: set[str] = set()
        self._loss: str | RunFailure = ""
        self._is_over = threading.Event()

    def take_loss(self) -> str:
        """Why tasks were lost, if any were since the last call.

        Raises
        ------
        RunFailure : there are no workers any more.
        """
        loss, self._loss = self._loss, ""
        if isinstance(loss, RunFailure):
            raise loss
        return loss

    @contextmanager
    def running(self) -> Iterator[None]:
        """Watch, on a thread of its own."""
        thread = threading.Thread(target=self._run, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._is_over.set()
            thread.join()

    def _run(self) -> None:
        while not self._is_over.wait(_INTERVAL_S):
            try:
                new = {key: why for key, why in self._workers.losses().items() if key not in self._lost}
            except RunFailure as failure:
                self._loss = failure
                _thread.interrupt_main()
                return
            if new:
                self._lost |= set(new)
                self._loss = next(iter(new.values()))
                _thread.interrupt_main()
            self._look()

    def _look(self) -> None:
        running = [i for i in self._order if i not in self._ended][:_MOST_WATCHED]
        for i in running:
            cell = self._cells[i]
            if i not in self._started:
                if not (cell.directory / "log.txt").exists():
                    continue
                self._started.add(i)
                self._on_event(cell, {"event": "start"})
            with suppress(OSError, ValueError):
                if event := results.read_json(cell.directory / "progress.json"):
                    self._on_event(cell, event)
