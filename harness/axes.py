"""A sweep's YAML -> `Sweep`: every run of it, resolved and checked, led by its labels on the axes."""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from harness import results, run
from harness.cells import Limits
from harness.cluster import ClusterSettings
from harness.components import ComponentSpec
from harness.config import Override, Scenario, find, key_path, load_scenario, parse_override, read_yaml
from harness.errors import InputError
from harness.units import PositiveDurationPs, PositiveSizeBytes
from harness.validation import input_error, located, unknown

#: Columns of status.csv after the axes; `cell` is the directory below cells/.
STATUS_COLUMNS = ("backend", "scheduler", "seed", "state", "attempts", "seconds", "error", "cell")


# --- The file ---------------------------------------------------------------------------------------------------------


class _Block(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _read_key(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _read_values(value: object) -> object:
    if not isinstance(value, dict | list):
        raise InputError(f"given {value!r}: must be a list of values, or a block of labels and what each of them sets")
    return value


Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
Changes = dict[str, Any]  #: key path -> value, which takes the place of what was there, as with --set


class AxisBlock(_Block):
    """One axis: its labels, and what each of them sets.

    Without `key`, `values` maps a label to changes, among them perhaps `scenario`, the base to start from. With `key`,
    or several of them, it maps a label to the value for it, or lists the values, which are their own labels.
    """

    name: Name
    key: Annotated[list[str], BeforeValidator(_read_key)] = Field(default_factory=list)
    values: Annotated[dict[str, Any] | list[Any], BeforeValidator(_read_values)]


class QuickBlock(_Block):
    """What --quick changes: `axes` lists the labels to leave, or maps them to what they then set beside."""

    set: Changes = Field(default_factory=dict)
    seeds: Any = None
    axes: dict[str, list[str | int | float] | dict[str, Changes]] = Field(default_factory=dict)
    cells: list[dict[str, Any]] | None = None


class SweepFile(_Block):
    """A sweep as its YAML has it.

    Parameters
    ----------
    name : of its directory below results/.
    scenario : the base, a short name or a path, of all places that do not name another.
    set : changes for all cells, as ``key: value`` or ``key.path: value``.
    axes : every label of each axis goes with every label of the others (`combine: product`), or the first labels go
        together, then the second ones, ... (`zip`).
    cells : in place of axes, a list of places: their labels by name, and beside them `set` and perhaps `scenario`.
    seeds : repetitions, or a list of seeds; otherwise the scenario's.
    quick : what --quick changes.
    keep : tables of each cell to keep beside its summary: what figures need by default, as the flows and links of
        hundreds of cells fill disks.
    cell_time_limit, cell_memory_limit : beyond which a cell is killed; all cells then have processes of their own.
    cluster : the batch system whose jobs run the cells.
    figures : see harness/sweep_block.py.
    """

    name: Name
    scenario: str | None = None
    set: Changes = Field(default_factory=dict)
    axes: list[AxisBlock] = Field(default_factory=list)
    combine: Literal["product", "zip"] = "product"
    cells: list[dict[str, Any]] = Field(default_factory=list)
    seeds: Any = None
    quick: QuickBlock | None = None
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
    only: Sequence[str] = (),
) -> Sweep:
    """Read, resolve and check a sweep, every cell of it.

    Parameters
    ----------
    path_or_name : a YAML file, or the short name of one that comes with the project (``load``).
    overrides : ``key.path=value`` each, for all cells.
    requests, schedulers, seeds, backend : in place of the file's, for all cells.
    quick : apply the file's `quick:` block: its `set` before the axes, the changes of its `axes` after them.
    only : ``axis=label,label`` each: leave out the cells with other labels of the axis.

    Raises
    ------
    InputError : the first mistake, with the file or option that holds it and its key path.
    """
    path = find("sweep", str(path_or_name))
    source = str(path)
    file = _read_file(path)
    common = _settings(file.set, f"{source}: set") + _seeds(file.seeds, source)
    axes = [[*_labels(axis, source, i)] for i, axis in enumerate(file.axes)]
    blocks = file.cells
    if quick:
        if file.quick is None:
            raise InputError("must be a block of what a quick sweep changes", source=source, key="quick")
        common += _settings(file.quick.set, f"{source}: quick.set") + _seeds(file.quick.seeds, f"{source}: quick")
        axes = _quick_axes(file, axes, source)
        blocks = file.cells if file.quick.cells is None else file.quick.cells
    names = tuple(axis.name for axis in file.axes) or _columns(blocks, source)
    _check_names(names, source)
    changes = [parse_override(text) for text in overrides]
    options = {"requests": requests, "schedulers": schedulers, "seeds": seeds, "backend": backend}
    given = [*changes, *(Override((key,), value, f"--{key}") for key, value in options.items() if value is not None)]
    read = _read_once()
    entries: list[Entry] = []
    known: dict[str, Entry] = {}
    places = set()
    for labels in _chosen(_places(file, axes, blocks, source), names, only):
        place = tuple(zip(names, (label.text for label in labels), strict=True))
        if place in places:
            message = f"two cells have the labels {' / '.join(f'{axis} {label}' for axis, label in place)}"
            raise InputError(message, source=source, key="cells")
        places.add(place)
        base = next((label.scenario for label in reversed(labels) if label.scenario is not None), file.scenario)
        if base is None:
            message = "is required and missing, as not every cell names its scenario"
            raise InputError(message, source=source, key="scenario")
        settings = [*common, *(s for label in labels for s in label.settings), *changes]
        with located(where(source, place)):
            scenario = load_scenario(
                base,
                settings=settings,
                requests=requests,
                schedulers=schedulers,
                seeds=seeds,
                backend=backend,
                read=read,
            )
        new = [*_entries(place, scenario)]
        # Of two places the cells of one backend alone may be the same: then they are run once, and shown at both.
        if all(entry.digest in known for entry in new):
            twin = known[new[0].digest].name
            message = f"the cells {twin!r} and {new[0].name!r} are the same: {_why_same(labels, given, scenario)}"
            raise InputError(message, source=source, key="axes" if file.axes else "cells")
        entries += new
        known |= {entry.digest: entry for entry in new}
    from harness.sweep_block import check  # here, as it loads pandas

    labels_of = {axis: list(dict.fromkeys(dict(entry.place)[axis] for entry in entries)) for axis in names}
    labels_of["scheduler"] = list(dict.fromkeys(run.label(entry.scheduler) for entry in entries))
    try:
        check(file.figures, names, labels_of, source=source)
    except InputError:
        if not quick and not given and not only:
            raise
        # Options may leave out what a figure names: what counts is the file as it stands.
        load_sweep(path, overrides=[text for text in overrides if parse_override(text).path[0] != "schedulers"])
    seconds = None if file.cell_time_limit is None else file.cell_time_limit / 1e12
    return Sweep(
        name=file.name,
        source=source,
        axes=names,
        entries=tuple(entries),
        keep=tuple(dict.fromkeys(file.keep)),
        limits=Limits(seconds, file.cell_memory_limit),
        cluster=file.cluster,
        figures=tuple(file.figures),
    )


def _read_file(path: Path) -> SweepFile:
    raw = read_yaml(path)
    if "workload" in raw and "scenario" not in raw:
        message = "is a scenario, which `netkv-cosim run` runs: a sweep names one as its `scenario`"
        raise InputError(message, source=str(path))
    try:
        # Strict JSON has lists for tuples and text for integer keys, but no True for 1 and no "3" for 3.
        return SweepFile.model_validate_json(json.dumps(raw), strict=True)
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


def _seeds(repetitions: object, source: str) -> list[Override]:
    return [] if repetitions is None else _settings({"seeds": repetitions}, source)


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
            if not isinstance(changes, Mapping):
                message = f"given {changes!r}: must be a block of keys"
                raise InputError(message, source=source, key=f"cells.{i}.set")
            base = {"scenario": block["scenario"]} if "scenario" in block else {}
            setting = _label("", {**changes, **base}, f"{source}: cells.{i}")
            first = _Label(texts[0], setting.scenario, setting.settings)
            places.append((first, *(_Label(text, None, ()) for text in texts[1:])))
        return places
    if file.combine == "zip" and not axes:
        raise InputError("given 'zip': there are no axes to go together", source=source, key="combine")
    if file.combine == "product":
        return list(itertools.product(*axes))
    lengths = {axis.name: len(labels) for axis, labels in zip(file.axes, axes, strict=True)}
    if len(set(lengths.values())) > 1:
        counts = ", ".join(f"{name} has {n}" for name, n in lengths.items())
        raise InputError(f"given 'zip': all axes must have as many values; {counts}", source=source, key="combine")
    return list(zip(*axes, strict=True))


def _chosen(places: Sequence[Sequence[_Label]], axes: Sequence[str], only: Sequence[str]) -> list[Sequence[_Label]]:
    """The places with the labels that `only` names."""
    chosen = [*places]
    for text in only:
        axis, _, listed = text.partition("=")
        with located(f"--only {text}"):
            if axis not in axes:
                raise InputError(unknown("axis", axis, axes))
            column = axes.index(axis)
            known = list(dict.fromkeys(labels[column].text for labels in places))
            wanted = listed.split(",")
            for label in wanted:
                if label not in known:
                    raise InputError(unknown(f"label of axis {axis!r}", label, known))
            chosen = [labels for labels in chosen if labels[column].text in wanted]
    if not chosen:
        raise InputError(f"no cell is left by {' '.join(f'--only {text}' for text in only)}")
    return chosen


def _why_same(labels: Sequence[_Label], given: Sequence[Override], scenario: Scenario) -> str:
    """Why what the labels set changes nothing, as far as that can be told."""
    for path in (setting.path for label in labels for setting in label.settings):
        for option in given:
            if path[: len(option.block)] == option.block:
                return f"{option.source} takes the place of what they set"
        instead = f"fluid_{path[0]}"
        if scenario.backend == "fluid" and getattr(scenario, instead, None) is not None:
            return (
                f"`{path[0]}` has no effect in the fluid model, where `{instead}` takes its place; try --backend packet"
            )
    return "nothing differs in what they run"


def where(source: str, place: Sequence[tuple[str, str]]) -> str:
    """What messages call a place of the sweep in the file `source`."""
    return f"{source}: {' / '.join(f'{axis} {label}' for axis, label in place)}" if place else source


def _entries(place: tuple[tuple[str, str], ...], scenario: Scenario) -> Iterator[Entry]:
    for backend in scenario.backends:
        for scheduler in scenario.schedulers:
            for seed in scenario.seeds:
                digest = run.cell_digest(scenario, backend, scheduler, seed)
                yield Entry(place, scenario, backend, scheduler, seed, digest)
