"""A sweep: axes -> cells -> workers; resume; status.

OUT/cells/HASH holds a run each, HASH being the digest of its resolved configuration; status.csv a row per cell, kept
current; summary.csv a row per run, led by the sweep's axes. A cell that is complete is not run again.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from harness import results, run
from harness.cells import Cell, Limits, OnEvent, Outcome, prepare, read_status
from harness.cluster import ClusterSettings, DaskWorkers
from harness.components import ComponentSpec
from harness.config import Override, Scenario, find, key_path, load_scenario, parse_override, read_yaml
from harness.errors import InputError
from harness.scenario_run import backends_of, clear, locked, remember, summary_row
from harness.units import PositiveDurationPs, PositiveSizeBytes
from harness.validation import input_error, located, unknown
from harness.workers import Workers, run_on_workers

#: Columns of status.csv after the axes; `cell` is the directory below cells/.
STATUS_COLUMNS = ("backend", "scheduler", "seed", "state", "attempts", "seconds", "error", "cell")

#: Between two writings of status.csv [s].
_STATUS_INTERVAL_S = 1.0

#: Hexadecimal digits of a cell's directory.
_HASH_DIGITS = 24

#: Keys of a scenario that its cost does not depend on.
_COSTLESS = (*run.NOT_OF_A_CELL, "oracle", "slo", "link_sampling")

#: Files of a sweep that are made from its cells.
_DERIVED = ("summary.csv", "report.html")


# --- The file ---------------------------------------------------------------------------------------------------------


class _Block(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _read_key(value: object) -> object:
    return [value] if isinstance(value, str) else value


Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
Changes = dict[str, Any]  #: key path -> value, which takes the place of what was there, as with --set


class AxisBlock(_Block):
    """One axis: its labels, and what each of them sets.

    Without `key`, `values` maps a label to changes, among them perhaps `scenario`, the base to start from. With `key`,
    or several of them, it maps a label to the value for it, or lists the values, which are their own labels.
    """

    name: Name
    key: Annotated[list[str], BeforeValidator(_read_key)] = Field(default_factory=list)
    values: dict[str, Any] | list[Any]


class QuickBlock(_Block):
    """What --quick changes: `axes` lists the labels to leave, or maps them to what they then set beside."""

    set: Changes = Field(default_factory=dict)
    seeds: Any = None
    axes: dict[str, list[str | int | float] | dict[str, Changes]] = Field(default_factory=dict)
    cells: list[dict[str, Any]] | None = None


class SweepFile(_Block):
    """A sweep as its YAML has it."""

    name: Name
    scenario: str | None = None
    set: Changes = Field(default_factory=dict)
    axes: list[AxisBlock] = Field(default_factory=list)
    combine: Literal["product", "zip"] = "product"
    cells: list[dict[str, Any]] = Field(default_factory=list)
    seeds: Any = None
    quick: QuickBlock | None = None
    #: Tables of each cell to keep: what figures need; flows and links of hundreds of cells fill disks.
    keep: tuple[Literal["requests", "flows", "links", "traces"], ...] = ("requests",)
    cell_time_limit: PositiveDurationPs | None = None
    cell_memory_limit: PositiveSizeBytes | None = None
    cluster: ClusterSettings | None = None
    figures: list[Any] = Field(default_factory=list)


# --- The sweep --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Entry:
    """A run of the sweep: axis and label for each axis, and all that decides it."""

    place: tuple[tuple[str, str], ...]
    scenario: Scenario
    backend: run.Backend
    scheduler: ComponentSpec
    seed: int
    digest: str

    @property
    def name(self) -> str:
        """What messages call it."""
        place = (f"{axis} {label}" for axis, label in self.place)
        return " / ".join((*place, self.backend, run.label(self.scheduler), f"seed {self.seed}"))


@dataclass(frozen=True)
class Sweep:
    """A sweep, resolved and checked; its runs are in the order of the tables: by axis, backend, scheduler, seed."""

    name: str
    source: str
    axes: tuple[str, ...]
    entries: tuple[Entry, ...]
    keep: tuple[str, ...]
    limits: Limits
    cluster: ClusterSettings | None
    figures: tuple[Mapping[str, Any], ...]

    def digest(self) -> str:
        """SHA-256 of what there is to run."""
        text = json.dumps([[*entry.place, entry.digest] for entry in self.entries])
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def scenarios(self) -> list[Scenario]:
        """Each that occurs, once."""
        return list({id(entry.scenario): entry.scenario for entry in self.entries}.values())


@dataclass(frozen=True)
class _Label:
    """A label of an axis, the base scenario that it names, and what it sets."""

    text: str
    scenario: str | None
    settings: tuple[Override, ...]


def load_sweep(
    path_or_name: str | Path,
    *,
    overrides: Sequence[str] = (),
    requests: int | None = None,
    schedulers: Sequence[str] | None = None,
    seeds: int | None = None,
    backend: str | None = None,
    quick: bool = False,
) -> Sweep:
    """Read, resolve and check a sweep, every cell of it.

    Parameters
    ----------
    path_or_name : a YAML file, or the short name of one that comes with the project (``load``).
    overrides : ``key.path=value`` each, for all cells.
    requests, schedulers, seeds, backend : in place of the file's, for all cells.
    quick : apply the file's `quick:` block: its `set` before the axes, the changes of its `axes` after them.

    Raises
    ------
    InputError : the first mistake, with the file or option that holds it and its key path.
    """
    path = find("sweep", str(path_or_name))
    source = str(path)
    file = _read_file(path)
    common = _settings(file.set, f"{source}: set")
    axes = [[*_labels(axis, source, i)] for i, axis in enumerate(file.axes)]
    blocks, repetitions = file.cells, file.seeds
    if quick:
        if file.quick is None:
            raise InputError("must be a block of what a quick sweep changes", source=source, key="quick")
        common += _settings(file.quick.set, f"{source}: quick.set")
        axes = _quick_axes(file, axes, source)
        blocks = file.cells if file.quick.cells is None else file.quick.cells
        repetitions = file.seeds if file.quick.seeds is None else file.quick.seeds
    if repetitions is not None:
        common += _settings({"seeds": repetitions}, source)
    names = tuple(axis.name for axis in file.axes) or _columns(blocks, source)
    _check_names(names, source)
    changes = [parse_override(text) for text in overrides]
    read = _read_once()
    entries: dict[str, Entry] = {}
    for labels in _places(file, axes, blocks, source):
        place = tuple(zip(names, (label.text for label in labels), strict=True))
        base = next((label.scenario for label in reversed(labels) if label.scenario is not None), file.scenario)
        if base is None:
            message = "is required and missing, as not every cell names its scenario"
            raise InputError(message, source=source, key="scenario")
        settings = [*common, *(s for label in labels for s in label.settings), *changes]
        with located(f"{source}: {_text(place)}" if place else source):
            scenario = load_scenario(
                base,
                settings=settings,
                requests=requests,
                schedulers=schedulers,
                seeds=seeds,
                backend=backend,
                read=read,
            )
        for entry in _entries(place, scenario):
            if (twin := entries.setdefault(entry.digest, entry)) is not entry:
                message = f"the cells {twin.name!r} and {entry.name!r} are the same: nothing differs in what they run"
                raise InputError(message, source=source, key="axes" if file.axes else "cells")
    from harness.sweep_block import check  # here, as it loads pandas

    check(file.figures, names, source=source)
    seconds = None if file.cell_time_limit is None else file.cell_time_limit / 1e12
    return Sweep(
        name=file.name,
        source=source,
        axes=names,
        entries=tuple(entries.values()),
        keep=tuple(dict.fromkeys(file.keep)),
        limits=Limits(seconds, file.cell_memory_limit),
        cluster=file.cluster,
        figures=tuple(file.figures),
    )


def _read_file(path: Path) -> SweepFile:
    try:
        # Strict JSON has lists for tuples and text for integer keys, but no True for 1 and no "3" for 3.
        return SweepFile.model_validate_json(json.dumps(read_yaml(path)), strict=True)
    except ValidationError as error:
        raise input_error(error, SweepFile, source=str(path)) from error


def _read_once() -> Callable[[Path], dict[str | int, Any]]:
    """`read_yaml` for files that are asked for again and again."""
    known: dict[Path, dict[str | int, Any]] = {}

    def read(path: Path) -> dict[str | int, Any]:
        if path not in known:
            known[path] = read_yaml(path)
        return copy.deepcopy(known[path])

    return read


def _settings(changes: Mapping[str, Any], source: str) -> list[Override]:
    paths = {key: key_path(key) for key in changes}
    for key, path in paths.items():
        if "" in path:
            raise InputError(f"given {key!r}: must be a key, or keys with a point between them", source=source)
    return [Override(paths[key], value, source) for key, value in changes.items()]


def _label(text: str, changes: object, source: str) -> _Label:
    if not isinstance(changes, Mapping):
        message = f"given {changes!r}: must be a block of the keys that it sets, or the axis must have a `key`"
        raise InputError(message, source=source)
    changes = dict(changes)
    base = changes.pop("scenario", None)
    if base is not None and not isinstance(base, str):
        raise InputError(f"given {base!r}: must be the name of a scenario, or its path", source=source, key="scenario")
    return _Label(text, base, tuple(_settings(changes, source)))


def _labels(axis: AxisBlock, source: str, i: int) -> Iterator[_Label]:
    if not axis.values:
        raise InputError("must have at least one value", source=source, key=f"axes.{i}.values")
    where = f"{source}: axes.{axis.name}"
    if isinstance(axis.values, dict):
        for text, value in axis.values.items():
            changes = dict.fromkeys(axis.key, value) if axis.key else value
            yield _label(text, changes, f"{where}.{text}")
        return
    if not axis.key:
        message = "must be a block of labels and what each of them sets, or the axis must have a `key`"
        raise InputError(message, source=source, key=f"axes.{i}.values")
    seen = set()
    for j, value in enumerate(axis.values):
        key = f"axes.{i}.values.{j}"
        if isinstance(value, dict | list):
            raise InputError(f"given {value!r}: needs a label, as in `values: {{label: ...}}`", source=source, key=key)
        text = value if isinstance(value, str) else json.dumps(value)
        if text in seen:
            raise InputError(f"{text!r} is listed twice", source=source, key=key)
        seen.add(text)
        yield _label(text, dict.fromkeys(axis.key, value), f"{where}.{text}")


def _quick_axes(file: SweepFile, axes: Sequence[Sequence[_Label]], source: str) -> list[list[_Label]]:
    assert file.quick is not None
    names = [axis.name for axis in file.axes]
    for name in file.quick.axes:
        if name not in names:
            raise InputError(unknown("axis", name, names), source=source, key=f"quick.axes.{name}")
    chosen = []
    for name, labels in zip(names, axes, strict=True):
        wanted = file.quick.axes.get(name)
        if wanted is None:
            chosen.append([*labels])
            continue
        more = wanted if isinstance(wanted, dict) else {str(label): {} for label in wanted}
        by_text = {label.text: label for label in labels}
        if not more:
            raise InputError("must have at least one label", source=source, key=f"quick.axes.{name}")
        for text in more:
            if text not in by_text:
                message = unknown(f"label of axis {name!r}", text, by_text)
                raise InputError(message, source=source, key=f"quick.axes.{name}")
        chosen.append(
            [_with(by_text[text], changes, f"{source}: quick.axes.{name}.{text}") for text, changes in more.items()]
        )
    return chosen


def _with(label: _Label, changes: Mapping[str, Any], source: str) -> _Label:
    more = _label(label.text, changes, source)
    return _Label(label.text, more.scenario or label.scenario, (*label.settings, *more.settings))


def _columns(blocks: Sequence[Mapping[str, Any]], source: str) -> tuple[str, ...]:
    """The labels' names in a plain list of cells: all keys but those that say what is run."""
    columns = [tuple(key for key in block if key not in ("scenario", "set")) for block in blocks]
    for i, names in enumerate(columns):
        if names != columns[0] or not names:
            message = f"has the labels {', '.join(names) or 'none'}; every cell must have the same, at least one"
            raise InputError(message, source=source, key=f"cells.{i}")
    return columns[0] if columns else ()


def _check_names(names: Sequence[str], source: str) -> None:
    taken = {*results.SUMMARY_COLUMNS, *STATUS_COLUMNS}
    for i, name in enumerate(names):
        if name in taken or name in names[:i]:
            whose = "another axis" if name in names[:i] else "a column of the tables"
            raise InputError(f"an axis cannot be called {name!r}: that is {whose}", source=source)


def _places(
    file: SweepFile, axes: Sequence[Sequence[_Label]], blocks: Sequence[Mapping[str, Any]], source: str
) -> list[tuple[_Label, ...]]:
    """All combinations of labels, the first axis changing slowest."""
    if axes and blocks:
        raise InputError("given beside `axes`: one of the two", source=source, key="cells")
    if blocks:
        places = []
        for i, block in enumerate(blocks):
            texts = [str(value) for key, value in block.items() if key not in ("scenario", "set")]
            changes = block.get("set", {})
            with located(source, f"cells.{i}"):
                if not isinstance(changes, Mapping):
                    raise InputError(f"given {changes!r}: must be a block of keys", key="set")
                base = {"scenario": block["scenario"]} if "scenario" in block else {}
                setting = _label("", {**changes, **base}, f"{source}: cells.{i}")
            first = _Label(texts[0], setting.scenario, setting.settings)
            places.append((first, *(_Label(text, None, ()) for text in texts[1:])))
        return places
    if file.combine == "product":
        return list(itertools.product(*axes))
    lengths = {axis.name: len(labels) for axis, labels in zip(file.axes, axes, strict=True)}
    if len(set(lengths.values())) > 1:
        counts = ", ".join(f"{name} has {n}" for name, n in lengths.items())
        raise InputError(f"given 'zip': all axes must have as many values; {counts}", source=source, key="combine")
    return list(zip(*axes, strict=True))


def _text(place: Sequence[tuple[str, str]]) -> str:
    return " / ".join(f"{axis} {label}" for axis, label in place)


def _entries(place: tuple[tuple[str, str], ...], scenario: Scenario) -> Iterator[Entry]:
    for backend in scenario.backends:
        for scheduler in scenario.schedulers:
            for seed in scenario.seeds:
                digest = run.cell_digest(scenario, backend, scheduler, seed)
                yield Entry(place, scenario, backend, scheduler, seed, digest)


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
    """What an expert would want to know of the network's settings before the sweep, each text once."""
    return list(dict.fromkeys(text for scenario in sweep.scenarios for text in run.network_warnings(scenario)))


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
            with located(f"{sweep.source}: {_text(entry.place)}" if entry.place else sweep.source):
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
    status: Literal["complete", "interrupted", "failed"]
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
    versions = results.versions()
    code = versions["code_sha256"]
    stop = out.resolve() / ".stop"
    with locked(out):
        if not resume:
            clear(out)
        pending = prepare(cells, resume=resume, code=code, allow_mixed_code=allow_mixed_code, sync=False)
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
        on_plan(cells, pending)
        try:
            outcomes = run_on_workers(
                pending,
                workers,
                status.watching(on_event),
                code=None if allow_mixed_code else code,
                stop=stop,
                limits=sweep.limits,
            )
        finally:
            status.write()
        by_directory = dict(zip((c.directory for c in pending), outcomes, strict=True))
        report = _finish(sweep, cells, by_directory, out, manifest, begun_s)
    if not isinstance(workers, DaskWorkers):  # whose speed is not this machine's
        for cell in pending:
            remember(cell, read_status(cell.directory))
    return report


class _StatusTable:
    """status.csv, current to about a second."""

    def __init__(self, axes: Sequence[str], cells: Sequence[Cell], out: Path) -> None:
        self._columns = (*axes, *STATUS_COLUMNS)
        self._path = out / "status.csv"
        self._lock = threading.Lock()
        self._rows: dict[Path, dict[str, Any]] = {}
        for cell in cells:
            found = read_status(cell.directory)
            self._rows[cell.directory] = {
                **dict(cell.place),
                "backend": cell.backend,
                "scheduler": cell.label,
                "seed": cell.seed,
                "state": found["status"],
                "attempts": found.get("attempts", 0),
                "seconds": found.get("wall_s"),
                "error": found["error"],
                "cell": cell.directory.name,
            }
        self._written_s = 0.0
        self.write()

    def watching(self, on_event: OnEvent) -> OnEvent:
        """`on_event`, with what it is told going into the table as well."""

        def watch(cell: Cell, event: Mapping[str, Any]) -> None:
            with self._lock:
                row = self._rows[cell.directory]
                if event["event"] == "start":
                    row |= {"state": "running", "attempts": row["attempts"] + 1}
                elif event["event"] == "end":
                    row |= {"state": event["status"], "attempts": event["attempts"]}
                    row |= {"seconds": event["wall_s"], "error": event["error"]}
            if time.monotonic() - self._written_s >= _STATUS_INTERVAL_S:
                self.write()
            on_event(cell, event)

        return watch

    def write(self) -> None:
        """Write it now."""
        with self._lock:
            self._written_s = time.monotonic()
            results.write_csv(self._path, self._columns, self._rows.values(), sync=False)


def _finish(
    sweep: Sweep,
    cells: Sequence[Cell],
    outcomes: Mapping[Path, Outcome],
    out: Path,
    manifest: Mapping[str, Any],
    begun_s: float,
) -> SweepReport:
    records = [_record(cell, outcomes.get(cell.directory)) for cell in cells]
    states = {record["status"] for record in records}
    status: Literal["complete", "interrupted", "failed"] = "complete"
    if states != {"complete"}:
        status = "interrupted" if states & {"interrupted", "pending"} else "failed"
    rows = [dict(cell.place) | summary_row(cell, record) for cell, record in zip(cells, records, strict=True)]
    results.write_csv(out / "summary.csv", (*sweep.axes, *results.SUMMARY_COLUMNS), rows)
    counters = {
        backend: results.add_counters(r["counters"] for r in records if r["backend"] == backend and "counters" in r)
        for backend in backends_of(cells)
    }
    codes = [results.read_json(cell.directory / "cell.json")["code_sha256"] for cell in cells]
    manifest = {
        **manifest,
        "status": status,
        "wall_s": time.monotonic() - begun_s,
        "packets": sum(c["data_packets"] + c["ack_packets"] for c in counters.values()),
        "packet_hops": sum(c["data_hops"] + c["control_hops"] for c in counters.values()),
        "peak_memory_bytes": max(record["peak_memory_bytes"] for record in records),
        "counters": counters,
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


def _record(cell: Cell, outcome: Outcome | None) -> dict[str, Any]:
    found = read_status(cell.directory)
    if found["status"] == "pending" and outcome is not None:
        found = asdict(outcome)
    return {
        **dict(cell.place),
        "backend": cell.backend,
        "scheduler": cell.label,
        "seed": cell.seed,
        "directory": f"cells/{cell.directory.name}",
        "peak_memory_bytes": 0,
        **found,
        "expected": asdict(cell.cost),
    }


def _as_read(out: Path, axes: Sequence[str]) -> Any:
    """summary.csv as a data frame: what anybody has who reads it, with labels as text."""
    import pandas as pd

    words = dict.fromkeys((*axes, "backend", "scheduler", "status"), str)
    numbers = {column: [""] for column in results.SUMMARY_COLUMNS if column not in words}
    return pd.read_csv(out / "summary.csv", dtype=words, keep_default_na=False, na_values=numbers)
