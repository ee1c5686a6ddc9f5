"""The command `netkv-cosim`: reads arguments, prints, and turns what happened into an exit code. The only printer.

Exit codes: 0 done; 2 the user's input is wrong; 3 a run failed; 130 interrupted. Modules that take long to load are
imported by the commands that need them.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shlex
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

from harness.errors import InputError, Interrupted, RunFailure

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bar
    from rich.progress import TaskID
    from rich.table import Table

    from calibration import experiment, validate
    from harness.axes import Sweep
    from harness.cells import Cell
    from harness.scenario_run import RunReport
    from harness.sweep import SweepReport
    from harness.workers import Workers

DONE, WRONG_INPUT, FAILED, INTERRUPTED = 0, 2, 3, 130

#: Between two lines of progress where there is no terminal [s].
_LINE_INTERVAL_S = 10.0

#: Bars of single cells on a terminal.
_MOST_BARS = 12

#: Rows of a sweep that are printed; all are in summary.csv.
_MOST_ROWS = 60


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    argv = list(sys.argv[1:] if arguments is None else arguments)
    try:
        options = _cell_parser().parse_args(argv[1:]) if argv[:1] == ["cell"] else _parser().parse_args(argv)
        code: int = options.command(options)
        return code
    except InputError as error:
        return _fail(WRONG_INPUT, str(error))
    except RunFailure as error:
        return _fail(FAILED, str(error))
    except (KeyboardInterrupt, Interrupted):
        return _fail(INTERRUPTED, "interrupted")
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains again at exit
        return FAILED


def _fail(code: int, message: str) -> int:
    kind = "" if code == INTERRUPTED else "error: "
    print(f"netkv-cosim: {kind}{message}", file=sys.stderr)
    return code


# --- Arguments --------------------------------------------------------------------------------------------------------


class _Parser(argparse.ArgumentParser):
    """Refuses with one line, as every other mistake is told."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message} (see: {self.prog} --help)")


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} given; a whole number, at least 1")
    return int(text)


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise argparse.ArgumentTypeError(f"{text!r} given; names with commas between them, such as rr,netkv-full")
    return names


def _parser() -> _Parser:
    description = "Packet-level co-simulation of disaggregated LLM inference."
    parser = _Parser(prog="netkv-cosim", description=description, allow_abbrev=False)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def add(name: str, command: Callable[[argparse.Namespace], int], text: str) -> _Parser:
        sub = commands.add_parser(name, help=text, description=text, allow_abbrev=False)
        sub.set_defaults(command=command)
        return sub

    sub = add("run", _run, "run a scenario: every scheduler with every seed")
    sub.add_argument("scenario", metavar="SCENARIO", help="a YAML file, or the name of one that comes with the project")
    sub.add_argument("--backend", choices=("packet", "fluid", "both"), help="network model")
    sub.add_argument("--fluid", metavar="MODEL", help="which fluid model (see: list fluid)")
    sub.add_argument("--schedulers", type=_names, metavar="A,B,...", help="names, module:Class or path/file.py:Class")
    sub.add_argument("--seeds", type=_count, metavar="N", help="repetitions, with the seeds 1..N")
    sub.add_argument("--requests", type=_count, metavar="N", help="requests a run")
    sub.add_argument("--jobs", type=_count, metavar="N", help="processes at a time (default: the cores there are)")
    sub.add_argument("--quick", action="store_true", help="small but real: what the scenario's quick block says")
    sub.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides", help="set any key")
    sub.add_argument("--resume", action="store_true", help="go on with a run, leaving out the cells that are complete")
    sub.add_argument(
        "--trace-port", action="append", default=[], metavar="PORT", help="record queue, rate and pauses, as tor0->agg1"
    )
    sub.add_argument(
        "--pcap",
        action="append",
        default=[],
        metavar="LINK",
        help="write the frames of tor0->agg1, or of both directions of tor0-agg1, to OUT/pcap",
    )
    sub.add_argument(
        "--pcap-payload", metavar="BYTES", help="kept of every frame beside its headers, such as 4096 (default: 0)"
    )
    sub.add_argument("--out", type=Path, metavar="DIR", help="default: results/<scenario>/<time>-<config>")

    sub = add("sweep", _sweep, "run a sweep: a scenario at every point of some axes, on this machine or a cluster")
    sub.add_argument("sweep", metavar="SWEEP", help="a YAML file, or the name of one that comes with the project")
    sub.add_argument("--backend", choices=("packet", "fluid", "both"), help="network model")
    sub.add_argument("--schedulers", type=_names, metavar="A,B,...", help="names, module:Class or path/file.py:Class")
    sub.add_argument("--seeds", type=_count, metavar="N", help="repetitions of every cell, with the seeds 1..N")
    sub.add_argument("--requests", type=_count, metavar="N", help="requests a cell")
    sub.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="AXIS=LABEL,...",
        help="a part now; --resume without it adds the rest",
    )
    sub.add_argument("--jobs", type=_count, metavar="N", help="processes at a time (default: the cores there are)")
    sub.add_argument("--dask", metavar="ADDRESS", help="run on the workers of this Dask scheduler, as tcp://host:8786")
    sub.add_argument("--quick", action="store_true", help="small but real: what the sweep's quick block says")
    sub.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides", help="set any key")
    sub.add_argument("--resume", action="store_true", help="go on with a sweep, leaving out what is complete")
    sub.add_argument("--allow-mixed-code", action="store_true", help="go on although the code has changed since")
    sub.add_argument("--print-job-script", action="store_true", help="print what the cluster block submits, and end")
    sub.add_argument("--out", type=Path, metavar="DIR", help="default: results/<sweep>/<time>-<config>")

    sub = add("flows", _flows, "run a plain list of flows, without the co-simulation")
    sub.add_argument("--topology", required=True, metavar="FILE", help="YAML, a preset's name, or HPCC text")
    sub.add_argument("--flows", required=True, type=Path, metavar="FILE", help="HPCC text, or CSV: flow_id,src,dst,...")
    sub.add_argument("--profile", metavar="NAME", help="network settings: a name or a YAML file (see: list profile)")
    sub.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides", help="any key below network"
    )
    sub.add_argument("--payload", type=_count, metavar="BYTES", help="of a full packet")
    sub.add_argument("--seed", type=int, default=1, metavar="N", help="of path hashes and marks (default: 1)")
    sub.add_argument("--paths", type=Path, metavar="FILE", help="CSV of paths, with --set load_balancing.use=pinned")
    sub.add_argument(
        "--trace-port", action="append", default=[], metavar="PORT", help="record queue, rate and pauses, as tor0->agg1"
    )
    sub.add_argument("--trace-interval", default="10us", metavar="TIME", help="finest resolution of it (default: 10us)")
    sub.add_argument("--out", type=Path, metavar="DIR", help="default: results/flows/<time>-<config>")

    text = "how far a fluid model overstates what network-aware placement gains, and why"
    _add_calibrate(commands.add_parser("calibrate", help=text, description=text, allow_abbrev=False))

    sub = add("validate", _validate, "hold the packet model against closed forms, theory and reference figures")
    sub.add_argument("--jobs", type=_count, default=2, metavar="N", help="processes at a time (default: 2)")
    sub.add_argument("--out", type=Path, metavar="DIR", help="default: results/validate/<time>")

    sub = add("bench", _bench, "measure the speed of the packet model on this machine")
    sub.add_argument("--workload", action="append", choices=("W1", "W2", "W3", "W4", "rag"), help="default: all")
    sub.add_argument("--ack-every", type=_count, metavar="N", help="data packets per ACK (default: 1 and 16)")
    sub.add_argument("--baseline", action="store_true", help="measure stock ns-3 on the same fabric as well")
    sub.add_argument("--repeats", type=_count, default=5, metavar="N", help="the median of N counts (default: 5)")
    sub.add_argument("--json", action="store_true", help="print JSON instead of a table")
    sub.add_argument(
        "--scaling", type=Path, metavar="DIR", help="instead: time and memory from 1e6 to 1e9 packets; table and figure"
    )

    sub = add("trace", _trace, "say what a request trace holds")
    sub.add_argument("file", type=Path, metavar="FILE", help="Mooncake JSONL")

    sub = add("list", _list, "list components and presets")
    sub.add_argument("family", nargs="?", metavar="FAMILY", help="one of what `list` prints as headings")

    add("doctor", _doctor, "say what the machine lacks, and what to install")
    return parser


def _add_calibrate(parser: _Parser) -> None:
    experiments = parser.add_subparsers(title="experiments", metavar="EXPERIMENT", required=True)

    def add(name: str, text: str) -> _Parser:
        sub = experiments.add_parser(name, help=text, description=text, allow_abbrev=False)
        sub.set_defaults(command=_calibrate, experiment=name)
        sub.add_argument("--quick", action="store_true", help="small but real: minutes")
        sub.add_argument("--jobs", type=_count, metavar="N", help="processes at a time (default: the cores there are)")
        sub.add_argument("--out", type=Path, metavar="DIR", help=f"default: results/calibrate/{name}")
        return sub

    sub = add("fit", "fit what the paper does not state to its tables; writes the scenarios paper-*.yaml")
    sub.set_defaults(command=_fit)
    sub.add_argument("--fluid", metavar="MODEL", help="fit another fluid model than maxmin-tier")
    sub.add_argument("--decision-at", choices=("prefill-end", "arrival"), help="default: arrival")
    sub.add_argument("--seeds", type=_count, metavar="N", help="fit on N seeds (default: 96)")

    texts = {
        "table5": "the gap between the gains in the paper's fluid model and on packets",
        "ladder": "the same gap, taken apart one assumption at a time",
        "replay": "the placements of packet runs replayed in fluid models: transfer times side by side",
        "sensitivity": "where the gap lies as congestion control, fabric and load change",
    }
    for name, text in texts.items():
        sub = add(name, text)
        sub.add_argument(
            "--seeds", type=_count_or_auto, metavar="N|auto", help="the seeds 1..N; auto: until the gaps are precise"
        )
        sub.add_argument("--budget", type=_hops, metavar="HOPS", help="packet-hops that --seeds auto may spend")
        sub.add_argument("--requests", type=_count, metavar="N", help="requests a run")
        sub.add_argument("--workloads", type=_names, metavar="A,B,...", help="default: rag; chatbot, long-context")
        sub.add_argument("--loads", type=_percents, metavar="A,B,...", help="of the workload's rate [%%]")
        sub.add_argument("--profiles", type=_names, metavar="A,B,...", help="network profiles")
        sub.add_argument(
            "--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides", help="set any key"
        )
        sub.add_argument("--resume", action="store_true", help="go on in OUT; complete cells are used in any case")
        sub.add_argument("--cells", type=Path, metavar="DIR", help="store of cells that all experiments share")
        sub.add_argument("--allow-mixed-code", action="store_true", help="use complete cells of other code as well")


def _count_or_auto(text: str) -> int | str:
    return text if text == "auto" else _count(text)


def _hops(text: str) -> int:
    try:
        hops = int(float(text))
    except (ValueError, OverflowError):
        hops = 0
    if hops < 1:
        raise argparse.ArgumentTypeError(f"{text!r} given; a number of packet-hops, such as 2e11")
    return hops


def _percents(text: str) -> list[int]:
    return [_count(part) for part in _names(text)]


def _cell_parser() -> _Parser:
    parser = _Parser(prog="netkv-cosim cell", description="Run one prepared cell (used by run).")
    parser.add_argument("directory", type=Path, metavar="DIR")
    parser.add_argument("--parent", type=int, metavar="PID", help="end when this process ends")
    parser.add_argument("--attempt", type=int, default=1, metavar="N", help="which one this is")
    parser.set_defaults(command=_cell)
    return parser


# --- run, cell --------------------------------------------------------------------------------------------------------


def _run(options: argparse.Namespace) -> int:
    from harness import run, scenario_run
    from harness.config import load_scenario

    scenario = load_scenario(
        options.scenario,
        overrides=options.overrides,
        requests=options.requests,
        schedulers=options.schedulers,
        seeds=options.seeds,
        backend=options.backend,
        fluid=options.fluid,
        trace_ports=options.trace_port,
        pcap=options.pcap,
        pcap_payload=options.pcap_payload,
        quick=options.quick,
    )
    out = _out(scenario.name, scenario.digest(), options)
    jobs = options.jobs or len(os.sched_getaffinity(0))
    display = _Display(_console(sys.stdout), jobs)
    with _compiling(display.console):
        run.build_network_model(scenario)
    _warn(run.network_warnings(scenario))
    try:
        report = scenario_run.run_scenario(
            scenario,
            out,
            jobs=jobs,
            resume=options.resume,
            command=shlex.join(["netkv-cosim", *sys.argv[1:]]),
            on_plan=display.plan,
            on_event=display.event,
        )
    finally:
        display.close()
    return _show(report, display)


def _sweep(options: argparse.Namespace) -> int:
    from harness import axes, cluster, sweep

    found = axes.load_sweep(
        options.sweep,
        overrides=options.overrides,
        requests=options.requests,
        schedulers=options.schedulers,
        seeds=options.seeds,
        backend=options.backend,
        quick=options.quick,
        only=options.only,
    )
    if options.print_job_script:
        if found.cluster is None:
            raise InputError("is required and missing", source=found.source, key="cluster")
        print(cluster.job_script(found.cluster, found.name), end="")
        return DONE
    out = _out(found.name, found.digest(), options)
    console = _console(sys.stdout)
    with _workers(options, found, console) as workers:
        display = _Display(console, max(1, workers.slots), is_brief=True)
        with _compiling(console):
            sweep.build_network_models(found)
        _warn(sweep.network_warnings(found))
        try:
            report = sweep.run_sweep(
                found,
                out,
                workers,
                resume=options.resume,
                allow_mixed_code=options.allow_mixed_code,
                command=shlex.join(["netkv-cosim", *sys.argv[1:]]),
                on_plan=display.plan,
                on_event=display.event,
            )
        finally:
            display.close()
    _print_sweep(report, console)
    _print_measured(report.cells, console)
    _print_files(report, console)
    return _code_of(report)


@contextmanager
def _workers(options: argparse.Namespace, found: Sweep, console: Console) -> Iterator[Workers]:
    from harness import cluster
    from harness.workers import LocalWorkers

    if options.dask is None and found.cluster is None:
        yield LocalWorkers(options.jobs or len(os.sched_getaffinity(0)))
        return
    if options.jobs is not None:
        where = "--dask" if options.dask is not None else f"the cluster block of {found.source}"
        raise InputError(f"given beside {where}, whose workers decide how many cells run at a time", source="--jobs")
    with ExitStack() as stack:
        if options.dask is not None:
            workers = stack.enter_context(cluster.dask_workers(options.dask))
        else:
            assert found.cluster is not None
            workers = stack.enter_context(cluster.cluster_workers(found.cluster, found.name))
        if not workers.slots:
            console.print("waiting for the cluster's first worker")
            workers.wait()
        yield workers


def _out(name: str, config: str, options: argparse.Namespace) -> Path:
    from harness.scenario_run import find_directory

    given: Path | None = options.out
    return find_directory(name, config, Path("results"), resume=options.resume) if given is None else given


def _cell(options: argparse.Namespace) -> int:
    from harness import cells

    if options.parent is not None:
        cells.die_with_parent(options.parent)
    # ns-3 and compilers write where they like: progress gets a descriptor of its own, and everything else the log.
    with os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1) as stream:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        status = cells.execute_cell(
            options.directory, lambda event: print(json.dumps(event), file=stream, flush=True), options.attempt
        )
    return {"complete": DONE, "input-error": WRONG_INPUT, "interrupted": INTERRUPTED}.get(status, FAILED)


def _console(stream: TextIO) -> Console:
    from rich.console import Console

    # Without a terminal rich assumes 80 columns, too narrow for the tables.
    return Console(file=stream, width=None if stream.isatty() else 160, highlight=False, soft_wrap=not stream.isatty())


@contextmanager
def _compiling(console: Console) -> Iterator[None]:
    """Say what takes so long, if the packet model is not compiled yet."""
    notice = threading.Timer(1.0, console.print, ("compiling the packet model (once, about half a minute)",))
    notice.start()
    try:
        yield
    finally:
        notice.cancel()


def _warn(texts: Sequence[str]) -> None:
    for text in texts:
        print(f"netkv-cosim: warning: {text}", file=sys.stderr, flush=True)


class _Display:
    """Progress of a run: a bar on a terminal, a line now and then elsewhere."""

    def __init__(self, console: Console, jobs: int, *, is_brief: bool = False) -> None:
        self.console = console
        self._jobs = jobs
        self._is_brief = is_brief  #: for hundreds of cells: no line for each that ends well
        self._lock = threading.Lock()
        self._bar: Bar | None = None
        self._tasks: dict[Path, TaskID] = {}
        self._total: TaskID | None = None
        self._share: dict[Path, float] = {}  #: of each pending cell's work that is done
        self._seconds: dict[Path, float] = {}  #: what each pending cell is expected to take
        self._packets: dict[Path, int] = {}
        self._begun_s = self._last_line_s = time.monotonic()
        self._ended = 0

    def plan(self, cells: Sequence[Cell], pending: Sequence[Cell]) -> None:
        """Say what is to come and what it will cost, and open the bar."""
        self._begun_s = self._last_line_s = time.monotonic()
        self._ended = 0
        self._seconds = {cell.directory: cell.cost.seconds for cell in pending}
        self._share = dict.fromkeys(self._seconds, 0.0)
        if len(pending) < len(cells):
            self.console.print(f"{len(cells) - len(pending)} of {len(cells)} cells are complete already")
        for line in _cost_lines(pending, self._jobs):
            self.console.print(line)
        if self.console.is_terminal and pending:
            self._open_bar(len(pending))

    def _open_bar(self, n: int) -> None:
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.percentage:>3.0f} %"),
            TextColumn("{task.fields[facts]}"),
            console=self.console,
            transient=True,
        )
        self._bar.start()
        self._total = self._bar.add_task(f"all {n} cells", total=1.0, facts="")

    def event(self, cell: Cell, event: Mapping[str, Any]) -> None:
        """Take in what a cell's process reported."""
        with self._lock:
            kind = event["event"]
            if kind == "progress":
                self._progress(cell, event)
            elif kind == "start" and self._bar is not None and len(self._tasks) < _MOST_BARS:
                self._tasks[cell.directory] = self._bar.add_task(cell.name, total=1.0, facts="starting")
            elif kind == "end":
                self._end(cell, event)

    def _progress(self, cell: Cell, event: Mapping[str, Any]) -> None:
        by_requests = event["completed"] / cell.scenario.requests
        by_hops = event["data_hops"] / cell.cost.data_hops if cell.cost.data_hops else by_requests
        # Hops are the finer measure; requests say when the estimate of hops was wrong.
        share = min(max(by_requests, min(by_hops, 0.99)), 1.0)
        self._share[cell.directory] = max(share, self._share[cell.directory])
        self._packets[cell.directory] = event["data_packets"]
        facts = f"{_short(event['data_packets'])} packets, {event['now_ps'] / 1e12:.1f} s simulated"
        if self._bar is not None and cell.directory in self._tasks:
            self._bar.update(self._tasks[cell.directory], completed=share, facts=facts)
            self._update_total()
        elif time.monotonic() - self._last_line_s >= _LINE_INTERVAL_S:
            self._last_line_s = time.monotonic()
            self.console.print(f"{self._overall():.0%} done, {self._left()} left; {cell.name}: {share:.0%}, {facts}")

    def _end(self, cell: Cell, event: Mapping[str, Any]) -> None:
        self._ended += 1
        self._share[cell.directory] = 1.0
        if self._bar is not None and cell.directory in self._tasks:
            self._bar.remove_task(self._tasks.pop(cell.directory))
            self._update_total()
        if self._is_brief and event["status"] == "complete":
            if self._bar is not None or time.monotonic() - self._last_line_s < _LINE_INTERVAL_S:
                return
            self._last_line_s = time.monotonic()
        text = f"[{self._ended}/{len(self._share)}] {cell.name}: {event['status']} after {event['wall_s']:.1f} s"
        self.console.print(text, markup=False)

    def _update_total(self) -> None:
        if self._bar is not None and self._total is not None:
            facts = f"{_short(sum(self._packets.values()))} packets, {self._left()} left"
            self._bar.update(self._total, completed=self._overall(), facts=facts)

    def _overall(self) -> float:
        whole = sum(self._seconds.values())
        return sum(self._share[d] * s for d, s in self._seconds.items()) / whole if whole else 1.0

    def _left(self) -> str:
        done, elapsed_s = self._overall(), time.monotonic() - self._begun_s
        return _duration(elapsed_s * (1 - done) / done) if done > 0.01 else "? s"

    def close(self) -> None:
        """Take the bar off the screen."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def _cost_lines(pending: Sequence[Cell], jobs: int) -> list[str]:
    from harness.packet import capture

    lines = []
    for backend in dict.fromkeys(cell.backend for cell in pending):
        costs = [cell.cost for cell in pending if cell.backend == backend]
        n, mean_s = len(costs), sum(c.seconds for c in costs) / len(costs)
        memory = max(c.memory_bytes for c in costs)
        what = f"{_short(sum(c.flows for c in costs))} flows"
        if backend == "packet":
            packets, hops = sum(c.data_packets for c in costs), sum(c.data_hops for c in costs)
            what = f"{_short(packets)} data packets, {_short(hops)} hops"
        wall_s = max(sum(c.seconds for c in costs) / min(jobs, n), max(c.seconds for c in costs))
        lines.append(
            f"expected, {backend}: {n} cells, {what}, {_duration(mean_s)} CPU a cell, {_duration(wall_s)} with "
            f"{min(jobs, n)} at a time, {memory / 1e6:,.0f} MB a process"
        )
        scenario = pending[0].scenario
        if backend == "packet" and scenario.pcap:
            largest = capture.largest_bytes(max(c.data_packets for c in costs), scenario.pcap_payload)
            lines.append(
                f"captures: {' '.join(scenario.pcap)} of every cell, up to {_short(largest)}B a direction; a file ends "
                f"at {_short(capture.LIMIT_BYTES)}B"
            )
    return lines


def _show(report: RunReport, display: _Display) -> int:
    console = display.console
    _print_schedulers(report, console)
    _print_measured(report.cells, console)
    for backend, counters in report.counters.items():
        console.print(f"counters, {backend}: " + ", ".join(f"{name} {value:,}" for name, value in counters.items()))
    _print_files(report, console)
    return _code_of(report)


def _print_files(report: RunReport | SweepReport, console: Console) -> None:
    console.print(f"{report.status} in {_duration(report.wall_s)}; results in {report.out}", markup=False)
    for path in sorted(path for path in report.out.rglob("*") if path.is_file()):
        if "cells" not in path.parts and not path.name.startswith("."):
            console.print(f"  {path}", markup=False)


def _code_of(report: RunReport | SweepReport) -> int:
    n = len(report.cells)
    if report.status == "interrupted":
        done = sum(cell["status"] == "complete" for cell in report.cells)
        text = f"interrupted: {done} of {n} cells are complete; what the others recorded is marked; --resume goes on"
        return _fail(INTERRUPTED, text)
    failed = [cell for cell in report.cells if cell["status"] == "failed"]
    told: set[str] = set()
    for cell in failed:
        name = " / ".join((*(f"{axis} {cell[axis]}" for axis in report.axes), cell["backend"], cell["scheduler"]))
        print(f"failed: {name} / seed {cell['seed']}: {cell['error']}", file=sys.stderr)
        if cell["detail"] and cell["detail"] not in told:
            told.add(cell["detail"])
            print(cell["detail"], file=sys.stderr)
    if failed:
        return _fail(FAILED, f"{len(failed)} of {n} cells failed; what they recorded is kept in {report.out}")
    return DONE


def _print_sweep(report: SweepReport, console: Console) -> None:
    """Mean TTFT by place and scheduler."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    by_place: dict[tuple[str, ...], dict[str, list[Mapping[str, Any]]]] = {}
    schedulers = list(dict.fromkeys(row["scheduler"] for row in report.summary))
    for row in report.summary:
        place = (*(row[axis] for axis in report.axes), row["backend"])
        by_place.setdefault(place, {}).setdefault(row["scheduler"], []).append(row)
    table = Table(box=SIMPLE_HEAD, header_style="bold", pad_edge=False, title=Text("mean TTFT [ms]"))
    for head in (*report.axes, "backend"):
        table.add_column(head, overflow="fold")
    for head in schedulers:
        table.add_column(head, justify="right", overflow="fold")
    for place, rows in list(by_place.items())[:_MOST_ROWS]:
        table.add_row(*place, *(_number(_mean(rows.get(name, []), "ttft_mean_ms"), 0) for name in schedulers))
    console.print(table)
    if len(by_place) > _MOST_ROWS:
        console.print(f"and {len(by_place) - _MOST_ROWS} more rows; all are in {report.out}/summary.csv", markup=False)


#: Columns of the closing table after backend and scheduler: head, column of summary.csv, digits, factor.
_SHOWN = (
    ("TTFT\nmean ms", "ttft_mean_ms", 0, 1),
    ("\np99 ms", "ttft_p99_ms", 0, 1),
    ("transfer\nmean ms", "transfer_mean_ms", 0, 1),
    ("TBT\nms", "tbt_mean_ms", 2, 1),
    ("SLO\nmet %", "slo_attainment", 1, 100),
    ("prefix\nhits %", "prefix_hit_share", 1, 100),
    ("goodput\nGb/s", "goodput_gbps", 1, 1),
)


def _print_schedulers(report: RunReport, console: Console) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    narrow = console.width < 100
    shown = _SHOWN[:-1] if narrow else _SHOWN
    table = Table(box=SIMPLE_HEAD, header_style="bold", pad_edge=False, padding=(0, 0 if narrow else 1))
    table.add_column("\nbackend", no_wrap=True)
    table.add_column("\nscheduler", overflow="fold")
    for head in ("\ndone", *(head for head, *_ in shown), "tier %\n0/1/2/3"):
        table.add_column(head, justify="right", no_wrap=True)
    groups = dict.fromkeys((row["backend"], row["scheduler"]) for row in report.summary)
    for backend, scheduler in groups:
        rows = [r for r in report.summary if (r["backend"], r["scheduler"]) == (backend, scheduler)]
        done = f"{sum(r['completed'] for r in rows)}/{sum(r['requests'] for r in rows)}"
        figures = [_number(factor * _mean(rows, name), digits) for _, name, digits, factor in shown]
        tiers = "/".join(_number(100 * _mean(rows, f"tier{t}_share"), 0) for t in range(4))
        table.add_row(backend, scheduler, done, *figures, tiers)
    console.print(table)


def _mean(rows: Sequence[Mapping[str, Any]], name: str) -> float:
    """Over the seeds that have the figure; NaN if none has."""
    values = [row[name] for row in rows if row.get(name) is not None]
    return sum(values) / len(values) if values else float("nan")


def _print_measured(records: Sequence[Mapping[str, Any]], console: Console) -> None:
    """What was expected beside what it took."""
    for backend in dict.fromkeys(cell["backend"] for cell in records):
        cells = [c for c in records if c["backend"] == backend and c["status"] == "complete"]
        if not cells:
            continue
        seconds, memory = sum(c["cpu_s"] for c in cells), max(c["peak_memory_bytes"] for c in cells)
        expected_s = sum(c["expected"]["seconds"] for c in cells)
        expected_memory = max(c["expected"]["memory_bytes"] for c in cells)
        work = f"{_short(sum(c['flows'] for c in cells))} flows ({_short(sum(c['expected']['flows'] for c in cells))})"
        if backend == "packet":
            hops, expected = (sum(c[k]["data_hops"] for c in cells) for k in ("counters", "expected"))
            work = f"{_short(hops)} data hops ({_short(expected)}), {hops / seconds / 1e6:.1f} M a CPU second"
        console.print(
            f"measured, {backend} (expected): {len(cells)} cells, {work}, {seconds / len(cells):.1f} CPU s a cell "
            f"({expected_s / len(cells):.1f}), {memory / 1e6:,.0f} MB a process ({expected_memory / 1e6:,.0f})"
        )


# --- calibrate --------------------------------------------------------------------------------------------------------


def _calibrate(options: argparse.Namespace) -> int:
    from calibration import experiment, ladder, replay, sensitivity, table5
    from harness.packet import runtime

    name = options.experiment
    settings = experiment.settings(
        name,
        out=options.out,
        cells=options.cells,
        jobs=options.jobs or len(os.sched_getaffinity(0)),
        seeds=options.seeds,
        budget_hops=options.budget,
        requests=options.requests,
        workloads=options.workloads,
        loads_pct=options.loads,
        profiles=options.profiles,
        overrides=options.overrides,
        resume=options.resume,
        quick=options.quick,
        allow_mixed_code=options.allow_mixed_code,
        command=shlex.join(["netkv-cosim", *sys.argv[1:]]),
    )
    console = _console(sys.stdout)
    with _compiling(console):
        runtime.build()
    display = _Display(console, settings.jobs)

    def forecast(expected: experiment.Forecast) -> None:
        for line in _forecast_lines(expected, settings):
            console.print(line)

    def plan(cells: Sequence[Cell], pending: Sequence[Cell]) -> None:
        display.close()
        if pending:
            display.plan(cells, pending)

    runner = experiment.Runner(settings, forecast, plan, display.event)
    commands = {
        "table5": table5.run_table5,
        "ladder": ladder.run_ladder,
        "replay": replay.run_replay,
        "sensitivity": sensitivity.run_sensitivity,
    }
    try:
        report = commands[name](runner)
    finally:
        display.close()
    return _show_experiment(report, console)


def _fit(options: argparse.Namespace) -> int:
    from calibration import experiment, fit

    console = _console(sys.stdout)
    begun_s, n = time.monotonic(), 0

    def show(workload: str, evaluation: fit.Evaluation) -> None:
        nonlocal n
        n += 1
        values = ", ".join(f"{key.rpartition('.')[2]} {value:g}" for key, value in evaluation.values.items())
        console.print(f"{workload}, evaluation {n}: loss {evaluation.loss:.2f} at {values}", markup=False)

    report = fit.run_fit(
        options.out or experiment.DEFAULT_OUT / "fit",
        jobs=options.jobs or len(os.sched_getaffinity(0)),
        quick=options.quick,
        command=shlex.join(["netkv-cosim", *sys.argv[1:]]),
        on_evaluation=show,
        fluid=options.fluid or fit.FLUID,
        decision_at=options.decision_at or fit.DECISION_AT,
        n_seeds=options.seeds,
    )
    console.print(_table(fit.FIT_COLUMNS, report.rows))
    within = sum(row["within"] == "yes" for row in report.rows)
    console.print(f"{within} of {len(report.rows)} figures are within tolerance, on seeds that the fit did not see")
    text = f"done in {_duration(time.monotonic() - begun_s)}; scenarios and fit.csv in {report.out}"
    console.print(text, markup=False)
    return DONE


def _table(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for column in columns:
        number = any(isinstance(row.get(column), int | float) for row in rows)
        table.add_column(column, justify="right" if number else "left", overflow="fold")
    for row in rows:
        table.add_row(*(_figure(row.get(column)) for column in columns))
    return table


def _forecast_lines(expected: experiment.Forecast, settings: experiment.Options) -> list[str]:
    most = "at most " if settings.seeds is None else ""
    n_packet, n_fluid = expected.packet_cells, expected.fluid_cells
    cost = f"{_short(expected.packet_hops)} packet-hops, {_duration(expected.cpu_s)} CPU"
    wall = f"{_duration(expected.wall_s)} with {settings.jobs} at a time"
    seeds = f"{most}{expected.seeds} seed{'s' * (expected.seeds > 1)}"
    lines = [
        f"{seeds}: {n_packet} packet and {n_fluid} fluid cells, {cost}, {wall}",
        f"{expected.complete} of the first seed's {expected.of_first_seed} cells are complete in {settings.cells}",
    ]
    if settings.seeds is None:
        lines.append(
            f"seeds are added until every gap's standard error is below {expected.se_target_pp} points or "
            f"{_short(settings.budget_hops)} packet-hops are spent (--budget)"
        )
    return lines


def _show_experiment(report: experiment.Report, console: Console) -> int:
    console.print(_table(report.columns, report.rows))
    spent = f"{_short(report.packet_hops)} packet-hops, {_duration(report.cpu_s)} CPU in all cells"
    console.print(f"{spent}; done in {_duration(report.wall_s)}; results in {report.out}", markup=False)
    for failure in report.failures:
        print(f"failed: {failure.cell}: {failure.error} (see {failure.directory}/log.txt)", file=sys.stderr)
    if report.failures:
        seeds = ", ".join(str(seed) for seed in sorted({failure.seed for failure in report.failures}))
        n = len(report.failures)
        return _fail(FAILED, f"{n} cells failed; their seeds are left out where they are needed: {seeds}")
    return DONE


def _figure(value: Any) -> str:
    if isinstance(value, float):
        return _number(value, 2)
    return "-" if value is None else str(value)


# --- flows, validate --------------------------------------------------------------------------------------------------


def _flows(options: argparse.Namespace) -> int:
    from harness import flows
    from harness.config import load_network, load_topology, port_ids
    from harness.packet import network, runtime
    from harness.types import Progress
    from harness.units import parse_duration
    from harness.validation import located

    topology = load_topology(options.topology)
    settings = load_network(options.profile, overrides=options.overrides, payload_bytes=options.payload)
    flow_list = flows.read_flow_list(options.flows, topology)
    paths = None if options.paths is None else flows.read_paths(options.paths, topology, flow_list)
    flows.check(topology, settings, paths)
    with located("--trace-port"):
        ports = port_ids(topology, options.trace_port)
    with located(f"--trace-interval {options.trace_interval}"):
        trace_interval_ps = parse_duration(options.trace_interval)
        if trace_interval_ps == 0:
            raise InputError("must be above 0")
    console = _console(sys.stdout)
    with _compiling(console):
        runtime.build(() if settings.cc.header is None else (Path(settings.cc.header),))
    _warn(network.warnings(topology, settings))
    n = len(flow_list)
    size = _short(sum(flow.size_bytes for flow in flow_list))
    console.print(f"{n} flows, {size}B, on {topology.name}; profile {settings.profile}, seed {options.seed}")
    begun_s = time.monotonic()
    with console.status("starting") as status:

        def progress(done: Progress) -> None:
            status.update(f"{_short(done.data_packets)} packets, {done.now_ps / 1e9:.3f} ms simulated")

        outcome = flows.run(
            topology,
            flow_list,
            settings,
            seed=options.seed,
            paths=paths,
            trace_ports=ports,
            trace_interval_ps=trace_interval_ps,
            on_progress=progress if console.is_terminal else None,
        )
    config = hashlib.sha256(settings.model_dump_json().encode()).hexdigest()[:8]
    out = options.out or Path("results") / "flows" / f"{time.strftime('%Y%m%d-%H%M%S')}-{config}"
    command = shlex.join(["netkv-cosim", *sys.argv[1:]])
    flows.write(out, topology, flow_list, settings, outcome, seed=options.seed, command=command)
    _print_flows(flows.fct_rows(flow_list, outcome), console)
    totals = flows.totals_row(outcome.network)
    console.print("counters: " + ", ".join(f"{name} {value:,}" for name, value in totals.items()))
    console.print(f"{outcome.status} in {_duration(time.monotonic() - begun_s)}; results in {out}", markup=False)
    if outcome.status == "interrupted":
        return _fail(INTERRUPTED, f"interrupted; what was recorded is in {out}")
    if outcome.status == "failed":
        return _fail(FAILED, f"{outcome.message}; what was recorded is in {out}")
    return DONE


def _print_flows(rows: Sequence[Mapping[str, Any]], console: Console) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    done = [row for row in rows if "fct_us" in row]
    table = Table(box=SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for head in (f"{len(done)} of {len(rows)} flows done", "mean", "median", "p99", "max"):
        table.add_column(head, justify="left" if " of " in head else "right", no_wrap=True)
    for name, text in (("fct_us", "FCT us"), ("ideal_fct_us", "ideal FCT us"), ("slowdown", "slowdown")):
        values = sorted(row[name] for row in done)
        if values:
            ranks = (values[min(len(values) - 1, int(q * len(values)))] for q in (0.5, 0.99))
            figures = (sum(values) / len(values), *ranks, values[-1])
            table.add_row(text, *(_number(value, 3) for value in figures))
    console.print(table)


def _validate(options: argparse.Namespace) -> int:
    from calibration import validate
    from harness.packet import runtime

    console = _console(sys.stdout)
    with _compiling(console):
        runtime.build()
    out = options.out or Path("results") / "validate" / time.strftime("%Y%m%d-%H%M%S")
    begun_s = time.monotonic()

    def done(name: str, rows: Sequence[validate.Row], left: int) -> None:
        failed = sum(row.failed for row in rows)
        what = f"{failed} of {len(rows)} FAILED" if failed else f"{len(rows)} passed"
        console.print(f"[{time.monotonic() - begun_s:4.0f} s] {name}: {what}, {left} to go", markup=False)

    rows = validate.run(jobs=options.jobs, on_done=done)
    path = validate.write(out, rows)
    _print_validation(rows, console)
    failed = [row for row in rows if row.failed]
    judged = sum(row.judged for row in rows)
    missed = sum(row.verdict == "missed" for row in rows)
    seconds = _duration(time.monotonic() - begun_s)
    console.print(
        f"{judged - len(failed) - missed} of {judged} rows pass, {missed} known to miss (see its note), "
        f"{len(rows) - judged} are reported only; {seconds}; see {path}",
        markup=False,
    )
    if failed:
        return _fail(FAILED, f"{len(failed)} of {judged} rows failed: {', '.join(row.case for row in failed)}")
    return DONE


def _print_validation(rows: Sequence[validate.Row], console: Console) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for head in ("row", "case", "expected", "got", "tolerance", "source", "pass"):
        table.add_column(head, justify="right" if head in ("row", "expected", "got") else "left", overflow="fold")
    for row in rows:
        verdict = Text(row.verdict, "" if not row.judged else "green" if row.passed else "bold red")
        cells = (str(row.row), row.case, row.expected, row.got, row.tolerance, row.source)
        table.add_row(*(Text(cell) for cell in cells), verdict)
    console.print(table)
    for row in rows:
        if row.note and not (row.passed and row.judged):
            console.print(f"{row.case}: {row.note}", markup=False)


# --- bench, trace, list, doctor ---------------------------------------------------------------------------------------


def _bench(options: argparse.Namespace) -> int:
    from harness.bench import run_bench

    if options.scaling is not None:
        return _bench_scaling(options)
    report = run_bench(
        workloads=options.workload, ack_every=options.ack_every, baseline=options.baseline, repeats=options.repeats
    )
    if options.json:
        print(json.dumps(report, indent=2))
        return DONE
    _print_rows(report["rows"])
    return DONE


def _bench_scaling(options: argparse.Namespace) -> int:
    from harness import figures, results
    from harness.bench import SCALING_COLUMNS, run_scaling

    if options.workload or options.ack_every or options.baseline:
        raise InputError("measures its own workloads: give no --workload, --ack-every or --baseline", key="--scaling")
    results.make_directory(options.scaling)
    report = run_scaling(repeats=options.repeats)
    results.write_csv(options.scaling / "scaling.csv", SCALING_COLUMNS, report["rows"])
    results.write_bytes(options.scaling / "scaling.png", figures.scaling(report["rows"]))
    if options.json:
        print(json.dumps(report, indent=2))
        return DONE
    _print_rows(report["rows"])
    _print_rows(report["processes"])
    print(options.scaling / "scaling.png")
    return DONE


def _print_rows(rows: Sequence[Mapping[str, Any]]) -> None:
    from rich.table import Table

    table = Table(header_style="bold")
    for name in rows[0]:
        table.add_column(name, justify="left" if isinstance(rows[0][name], str) else "right")
    for row in rows:
        table.add_row(*(_cell_text(value) for value in row.values()))
    _console(sys.stdout).print(table)


def _trace(options: argparse.Namespace) -> int:
    from rich.table import Table

    from harness.run import trace_facts

    facts = trace_facts(options.file)
    console = _console(sys.stdout)
    rate = facts.requests / facts.span_s if facts.span_s else float("nan")
    console.print(f"{options.file}: {facts.requests:,} requests in {facts.span_s:,.0f} s ({_number(rate, 2)} a second)")
    table = Table(header_style="bold")
    for head in ("tokens", *facts.input_tokens):
        table.add_column(head, justify="left" if head == "tokens" else "right")
    for name, values in (("input", facts.input_tokens), ("output", facts.output_tokens)):
        table.add_row(name, *(f"{value:,.0f}" for value in values.values()))
    console.print(table)
    console.print(
        f"ideal prefix hit: {facts.ideal_hit_share:.1%} of {facts.blocks:,} blocks of 512 tokens "
        f"({facts.distinct_blocks:,} distinct), with one cache that never evicts"
    )
    return DONE


def _list(options: argparse.Namespace) -> int:
    from harness import components
    from harness.config import presets
    from harness.fluid import MODELS
    from harness.network_settings import CONGESTION_CONTROLS, LOAD_BALANCERS

    groups: dict[str, Callable[[], list[tuple[str, str]]]] = {
        family: lambda family=family: components.describe(family)  # type: ignore[misc]
        for family in components.FAMILIES
    }
    groups["fluid"] = lambda: [(n, (model.__doc__ or "").strip().partition("\n")[0]) for n, model in MODELS.items()]
    groups["congestion control"] = lambda: list(CONGESTION_CONTROLS.items())
    groups["load balancing"] = lambda: list(LOAD_BALANCERS.items())
    groups["scenario preset"] = lambda: presets("scenario")
    groups["sweep preset"] = lambda: presets("sweep")
    groups["topology preset"] = lambda: presets("topology")
    groups["network profile"] = lambda: presets("profile")
    if options.family is None:
        chosen = list(groups)
    else:
        chosen = [name for name in groups if options.family in (name, name.split()[-1], name.split()[0])]
        if not chosen:
            raise InputError(f"unknown family {options.family!r}; allowed: {', '.join(groups)}")
    for name in chosen:
        print(f"{name}:")
        entries = groups[name]()
        width = max((len(entry) for entry, _ in entries), default=0)
        for entry, text in entries:
            print(f"  {entry:<{width}}  {text}".rstrip())
    return DONE


def _doctor(_options: argparse.Namespace) -> int:
    from harness.doctor import check_machine

    findings = check_machine()
    width = max(len(finding.name) for finding in findings)
    for finding in findings:
        print(f"{'ok  ' if finding.ok else 'MISS'} {finding.name:<{width}}  {finding.found}")
        if not finding.ok:
            print(f"     {'':<{width}}  remedy: {finding.remedy}")
    missing = [finding.name for finding in findings if not finding.ok]
    return _fail(WRONG_INPUT, f"this machine lacks: {', '.join(missing)}") if missing else DONE


# --- Numbers ----------------------------------------------------------------------------------------------------------


def _short(value: float) -> str:
    """1234567 -> 1.23 M."""
    for factor, prefix in ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k")):
        if value >= factor:
            return f"{value / factor:.3g}{prefix}"
    return f"{value:.0f}"


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60} h {minutes % 60:02d} min" if minutes >= 60 else f"{minutes} min {rest:02d} s"


def _number(value: float, digits: int) -> str:
    return "-" if value != value else f"{value:,.{digits}f}"


def _cell_text(value: Any) -> str:
    if isinstance(value, float):
        return _short(value) if value >= 1e6 else f"{value:,.2f}"
    return f"{value:,}" if isinstance(value, int) else "" if value is None else str(value)
