"""The `figures:` block of a sweep: what is to be drawn, claims to be checked, and published values beside it."""

from __future__ import annotations

import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Literal

import pandas as pd
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from harness.errors import InputError
from harness.validation import input_error, join_key, located, unknown

#: Where the published values lie that go by a file's name.
PAPER_DIRECTORY = Path(str(files("scenarios"))) / "sweeps" / "paper"

#: Columns of a cell's status that hold wall time: no table may depend on them.
WALL_CLOCK = ("decision_mean_us", "decision_median_us", "decision_max_us")

#: Name and format of every column of summary.csv that can be shown, and of a cell's wall times.
_COLUMNS = {
    "ttft_mean_ms": ("mean TTFT [ms]", ",.0f"),
    "ttft_p50_ms": ("median TTFT [ms]", ",.0f"),
    "ttft_p95_ms": ("95th percentile of TTFT [ms]", ",.0f"),
    "ttft_p99_ms": ("99th percentile of TTFT [ms]", ",.0f"),
    "tbt_mean_ms": ("mean TBT [ms]", ",.2f"),
    "slo_attainment": ("SLO attainment", ".3f"),
    "transfer_mean_ms": ("mean transfer time [ms]", ",.0f"),
    "transfer_p99_ms": ("99th percentile of transfer time [ms]", ",.0f"),
    "tier0_share": ("share of tier 0 (same server)", ".1%"),
    "tier1_share": ("share of tier 1 (same rack)", ".1%"),
    "tier2_share": ("share of tier 2 (same pod)", ".1%"),
    "tier3_share": ("share of tier 3 (cross pod)", ".1%"),
    "prefix_hit_share": ("prefix hits, share of tokens", ".1%"),
    "goodput_gbps": ("goodput [Gb/s]", ",.1f"),
    "completed": ("completed requests", ",.0f"),
    "decision_mean_us": ("mean time of a decision [us]", ",.0f"),
    "decision_median_us": ("median time of a decision [us]", ",.0f"),
    "decision_max_us": ("longest time of a decision [us]", ",.0f"),
}

#: Columns that lead every point of a figure, beside the axes.
WHO = ("backend", "scheduler")

#: Columns of tables/NAME.csv after the keys; `paper_pm` is half the published interval, as it is given there.
POINT_COLUMNS = ("metric", "mean", "ci_low", "ci_high", "seeds", "paper", "paper_pm", "difference")


@dataclass(frozen=True)
class Quantity:
    """A column of a figure's points: how it is called, with its unit, and how its numbers are written."""

    id: str
    label: str
    format: str

    @property
    def is_difference(self) -> bool:
        """Whether 0 means "no difference": a gain, or a difference to another scheduler."""
        return "gain_over_" in self.id or "_minus_" in self.id

    @property
    def is_share(self) -> bool:
        """Whether it is a part of a whole."""
        return self.id == "slo_attainment" or self.id.endswith("_share")


class _Block(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


Labels = Mapping[str, Sequence[str]]


def _named(value: object) -> object:
    return {"of": value} if isinstance(value, str) else value


def _listed(value: object) -> object:
    return tuple(value) if isinstance(value, list) else (value,)


class Metric(_Block):
    """A column of summary.csv, or what it says beside another scheduler's, seed by seed.

    `gain_over` : 100 (1 - value / baseline's value) [%]; `minus` : value - baseline's value.
    """

    of: str = "ttft_mean_ms"
    gain_over: str | None = None
    minus: str | None = None
    label: str | None = None
    format: str | None = None  #: Python's format specification

    @model_validator(mode="after")
    def _known(self) -> Metric:
        if self.of not in _COLUMNS:
            raise InputError(unknown("column", self.of, _COLUMNS), key="of")
        if self.gain_over is not None and self.minus is not None:
            raise InputError("given with `gain_over`: one of the two", key="minus")
        if self.format is not None:
            try:
                for form in (self.format, "+" + self.format.lstrip("+")):  # differences have a sign
                    format(0.5, form)
            except ValueError as error:
                message = f"given {self.format!r}: must be a format of Python for a number, such as .1f"
                raise InputError(message, key="format") from error
        return self

    @property
    def baseline(self) -> str | None:
        """The scheduler that it is held against."""
        return self.gain_over or self.minus

    @property
    def id(self) -> str:
        """Its name in tables, and as a column of published values."""
        if self.gain_over is not None:
            return f"{'' if self.of == 'ttft_mean_ms' else self.of + '_'}gain_over_{self.gain_over}_pct"
        return self.of if self.minus is None else f"{self.of}_minus_{self.minus}"

    @property
    def quantity(self) -> Quantity:
        """How it is shown."""
        label, form = _COLUMNS[self.of]
        if self.gain_over is not None:
            what = "" if self.of == "ttft_mean_ms" else f" in {label.partition(' [')[0]}"
            label, form = f"gain over {self.gain_over}{what} [%]", ".1f"
        elif self.minus is not None:
            label, form = f"{label} minus {self.minus}'s", f"+{form}"
        return Quantity(self.id, self.label or label, self.format or form)


class Claim(_Block):
    """A statement to be held against the result; exactly one of its first four keys is given.

    `monotone` : the metric does not fall along this axis. `wins` : the gain is above 0 everywhere. `flat` : along this
    axis the metric changes by no more than `within` percent of its mean, or, of a gain, `within` points. `below` : the
    metric stays below this value.
    """

    monotone: str | None = None
    wins: Literal[True] | None = None
    flat: str | None = None
    below: float | None = None
    within: Annotated[float, Field(gt=0)] | None = None

    @model_validator(mode="after")
    def _one(self) -> Claim:
        if sum(value is not None for value in (self.monotone, self.wins, self.flat, self.below)) != 1:
            raise InputError("must have one of the keys monotone, wins, flat, below")
        if (self.flat is None) != (self.within is None):
            raise InputError("`within` goes with `flat`, and `flat` needs it", key="within")
        return self

    @property
    def axis(self) -> str | None:
        """The axis that it is about."""
        return self.monotone or self.flat


MetricSpec = Annotated[Metric, BeforeValidator(_named)]
MetricSpecs = Annotated[tuple[MetricSpec, ...], BeforeValidator(_listed), Field(min_length=1)]


class Figure(_Block, ABC):
    """What all kinds have in common."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*$")]  #: of its files
    title: str
    schedulers: tuple[str, ...] = ()  #: to show; all if empty
    where: dict[str, str | int | float | bool] = Field(
        default_factory=dict
    )  #: one label for each axis that is not shown
    labels: dict[str, str] = Field(default_factory=dict)  #: what axes are called, with their unit
    paper: str | None = None  #: a file of published values
    note: str = ""  #: a sentence for the caption
    claims: tuple[Claim, ...] = ()

    @property
    @abstractmethod
    def keyed(self) -> dict[str, Metric]:
        """By the key of the block that holds it, every metric that is shown."""

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """What it shows."""
        return tuple(self.keyed.values())

    @property
    @abstractmethod
    def shown(self) -> dict[str, str]:
        """By the key of the block that names it, every axis that is shown."""

    @property
    def facet_axis(self) -> str | None:
        """The axis that has a panel for each label."""
        return None

    @property
    def is_wall_clock(self) -> bool:
        """Whether it shows what was measured in wall time."""
        return any(metric.of in WALL_CLOCK for metric in self.metrics)


class _Plot(Figure):
    x: str
    y: MetricSpecs
    facet: str | None = None
    share_y: bool = True

    @property
    def keyed(self) -> dict[str, Metric]:
        """One, or one for each column of panels."""
        return {f"y.{i}": metric for i, metric in enumerate(self.y)}

    @property
    def shown(self) -> dict[str, str]:
        """The x axis and the facets."""
        return {"x": self.x, **({"facet": self.facet} if self.facet else {})}

    @property
    def facet_axis(self) -> str | None:
        """As given."""
        return self.facet


class Lines(_Plot):
    """A line per scheduler and network model, with the whiskers of its interval."""

    kind: Literal["line"]
    log_x: bool = False


class Bars(_Plot):
    """Bars by scheduler and network model at each label of `x`, which may be `scheduler` itself."""

    kind: Literal["bars"]


class Heatmap(Figure):
    """A number and a colour for each pair of labels, a panel per facet and network model."""

    kind: Literal["heatmap"]
    rows: str
    columns: str
    facet: str | None = None
    value: MetricSpec

    @model_validator(mode="after")
    def _one_scheduler(self) -> Heatmap:
        if len(self.schedulers) != 1:
            raise InputError("must be a list of the one scheduler that the cells are about", key="schedulers")
        return self

    @property
    def keyed(self) -> dict[str, Metric]:
        """The one that is mapped."""
        return {"value": self.value}

    @property
    def shown(self) -> dict[str, str]:
        """Rows, columns and facets."""
        return {"rows": self.rows, "columns": self.columns, **({"facet": self.facet} if self.facet else {})}

    @property
    def facet_axis(self) -> str | None:
        """As given."""
        return self.facet


class Table(Figure):
    """A row per label of every axis in `rows` and per scheduler; ours, the paper's and the difference side by side."""

    kind: Literal["table"]
    rows: tuple[str, ...] = ()
    columns: MetricSpecs

    @property
    def keyed(self) -> dict[str, Metric]:
        """The columns."""
        return {f"columns.{i}": metric for i, metric in enumerate(self.columns)}

    @property
    def shown(self) -> dict[str, str]:
        """The rows."""
        return {f"rows.{i}": axis for i, axis in enumerate(self.rows)}


_KINDS: dict[str, type[Lines | Bars | Heatmap | Table]] = {
    "line": Lines,
    "bars": Bars,
    "heatmap": Heatmap,
    "table": Table,
}


def check(
    figures: object, axes: Sequence[str], labels: Labels | None = None, *, source: str = ""
) -> tuple[Figure, ...]:
    """Read a sweep's `figures:` block.

    Parameters
    ----------
    axes : the names of the sweep's axes.
    labels : of each axis, and as `scheduler` the names of the schedulers: what a figure may name; anything if None.
    source : the file that the block stands in.

    Raises
    ------
    InputError : the first mistake, with its key path.
    """
    with located(source):
        if not isinstance(figures, Sequence) or isinstance(figures, str):
            raise InputError(f"given {figures!r}: must be a list", key="figures")
        if figures:
            _check_tables(axes, labels or {})
        checked = [_check_one(block, axes, labels, f"figures.{i}") for i, block in enumerate(figures)]
        names = [figure.name for figure in checked]
        for i, name in enumerate(names):
            if name in names[:i] or name == "claims":
                raise InputError(f"{name!r} is the name of another table", key=f"figures.{i}.name")
    return tuple(checked)


def _check_tables(axes: Sequence[str], labels: Labels) -> None:
    """Whether the points of a figure can be told apart by the axes' names and labels."""
    for axis in axes:
        if axis in (*POINT_COLUMNS, "value"):
            message = f"with figures, an axis cannot be called {axis!r}: that is a column of their tables"
            raise InputError(message, key="axes")
        known: dict[str, str] = {}
        for label in labels.get(axis, ()):
            if (twin := known.setdefault(label_text(label), label)) != label:
                message = f"the labels {twin!r} and {label!r} of axis {axis!r} are the same number"
                raise InputError(message, key="axes")


def _check_one(block: object, axes: Sequence[str], labels: Labels | None, key: str) -> Figure:
    if not isinstance(block, Mapping):
        raise InputError(f"given {block!r}: must be a block of keys", key=key)
    if "kind" not in block:
        raise InputError(f"is required and missing. Allowed: {', '.join(_KINDS)}", key=f"{key}.kind")
    model = _KINDS.get(str(block["kind"]))
    if model is None:
        raise InputError(unknown("kind of figure", block["kind"], _KINDS), key=f"{key}.kind")
    try:
        figure = model.model_validate_json(json.dumps(block), strict=True)
    except ValidationError as error:
        raise input_error(error, model, key=key) from error
    with located(key=key):
        _check_axes(figure, axes)
        _check_metrics(figure)
        if labels is not None:
            _check_names(figure, labels)
        if figure.is_wall_clock and any(metric.of not in WALL_CLOCK for metric in figure.metrics):
            raise InputError(f"{' and '.join(WALL_CLOCK)} are wall time, and go into a figure of their own")
        for i, claim in enumerate(figure.claims):
            along = [axis for axis in figure.shown.values() if axis not in (*WHO, figure.facet_axis)]
            if claim.axis is not None and claim.axis not in along:
                message = unknown("axis within a panel of this figure", claim.axis, along)
                raise InputError(message, key=f"claims.{i}.{'flat' if claim.flat else 'monotone'}")
            if claim.wins and any(metric.gain_over is None for metric in figure.metrics):
                raise InputError("goes with gain_over only", key=f"claims.{i}.wins")
        if figure.paper is not None:
            _published_file(figure.paper)
    if figure.paper is not None:
        published(figure.paper, axes)
    return figure


def _check_axes(figure: Figure, axes: Sequence[str]) -> None:
    for key, axis in figure.shown.items():
        more = {"x": ["scheduler"], "facet": ["backend"]} if isinstance(figure, Bars) else {"facet": ["backend"]}
        allowed = [*axes, *more.get(key, [])]
        if axis not in allowed:
            raise InputError(unknown("axis", axis, allowed), key=key)
    for axis in figure.where:
        if axis not in axes:
            raise InputError(unknown("axis", axis, axes), key=join_key("where", axis))
    for axis in figure.labels:
        if axis not in axes:
            raise InputError(unknown("axis", axis, axes), key=join_key("labels", axis))
    used = [*figure.shown.values(), *figure.where]
    for axis in axes:
        if axis not in used:
            message = f"the axis {axis!r} is not shown: show it, or choose one of its labels here"
            raise InputError(message, key=join_key("where", axis))
        if used.count(axis) > 1:
            raise InputError(f"the axis {axis!r} is named twice")


def _check_metrics(figure: Figure) -> None:
    ids: set[str] = set()
    heads = [*WHO, *(figure.labels.get(axis, axis.replace("_", " ")) for axis in figure.shown.values())]
    for key, metric in figure.keyed.items():
        if metric.id in ids:
            raise InputError(f"{metric.id!r} is listed twice", key=key)
        ids.add(metric.id)
        if isinstance(figure, Table) and metric.quantity.label in heads:
            raise InputError(f"{metric.quantity.label!r} is what another column is called", key=join_key(key, "label"))
        heads.append(metric.quantity.label)


def _check_names(figure: Figure, labels: Labels) -> None:
    """Whether the sweep has the labels and schedulers that a figure names."""
    for axis, label in figure.where.items():
        if label_text(label) not in map(label_text, labels[axis]):
            message = unknown(f"label of axis {axis!r}", label_text(label), labels[axis])
            raise InputError(message, key=join_key("where", axis))
    schedulers = labels["scheduler"]
    for i, name in enumerate(figure.schedulers):
        if name not in schedulers:
            raise InputError(unknown("scheduler of this sweep", name, schedulers), key=f"schedulers.{i}")
    for key, metric in figure.keyed.items():
        with located(key=join_key(key, "minus" if metric.gain_over is None else "gain_over")):
            if metric.baseline is not None and metric.baseline not in schedulers:
                raise InputError(unknown("scheduler of this sweep", metric.baseline, schedulers))
            if {metric.baseline} == set(figure.schedulers or schedulers):
                raise InputError(f"given {metric.baseline!r}: there is no other scheduler to hold against it")


# --- Labels, published values -----------------------------------------------------------------------------------------


def label_text(label: object) -> str:
    """An axis' label as it is shown: numbers without needless digits."""
    if isinstance(label, bool):
        return str(label).lower()
    try:
        value = float(str(label))
    except ValueError:
        return str(label)
    return f"{value:.12g}" if math.isfinite(value) else str(label)


def in_order(labels: Iterable[str]) -> list[str]:
    """Numbers by value; anything else as it comes."""
    unique = list(dict.fromkeys(labels))
    try:
        return sorted(unique, key=float)
    except ValueError:
        return unique


def _published_file(given: str) -> Path:
    path = Path(given) if "/" in given else PAPER_DIRECTORY / given
    if not path.is_file():
        known = [p.name for p in sorted(PAPER_DIRECTORY.glob("*.csv"))]
        raise InputError(f"{unknown('file of published values', given, known)}, or the path of a file", key="paper")
    return path


def published(paper: str, axes: Sequence[str]) -> pd.DataFrame:
    """A file of published values: text in the key columns, numbers in all others.

    Key columns are axes, scheduler and backend; all others are named as a metric, or as one with _pm after it, which
    holds half the published interval. Lines that begin with # are comments.

    Raises
    ------
    InputError : there is no such file, or it holds something else.
    """
    path = _published_file(paper)
    try:
        table: pd.DataFrame = pd.read_csv(path, comment="#", dtype=str, keep_default_na=False, skipinitialspace=True)
    except (OSError, ValueError) as error:
        raise InputError(f"cannot be read as CSV: {error}", source=str(path)) from error
    for column in table.columns:
        if column in (*axes, *WHO):
            table[column] = table[column].map(label_text)
            continue
        metric = column.removesuffix("_pm")
        of = re.sub(r"^gain_over_.+_pct$", "ttft_mean_ms", re.sub(r"(_gain_over_.+_pct|_minus_.+)$", "", metric))
        if of not in _COLUMNS:
            allowed = (*axes, *WHO, *_COLUMNS)
            raise InputError(unknown("column", column, allowed), source=str(path), key=column)
        try:
            table[column] = pd.to_numeric(table[column].replace("", None))
        except ValueError as error:
            raise InputError(f"must hold numbers: {error}", source=str(path), key=column) from error
    if not set(table.columns) & {*axes, *WHO}:
        raise InputError(f"has no column of keys. Allowed: {', '.join((*axes, *WHO))}", source=str(path))
    return table
