"""What the calibration experiments share: NetKV's gain over a baseline, under several network models, on paired seeds.

A gain is 100 (1 - TTFT_netkv / TTFT_baseline) [%] of mean TTFT over the measured requests of one run. Every seed gives
all schedulers and network models the same arrivals, lengths, hits and path hashes, so gains are compared seed by seed;
intervals are Student's t over the seeds' differences. Seeds are taken in order from `REPORT_SEEDS`; with `--seeds auto`
sampling stops once the standard error is small, which leaves the interval slightly too narrow.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from harness import components, metrics, results, run
from harness.cells import Cell, OnEvent, prepare, read_status, run_cells
from harness.config import Scenario, load_scenario
from harness.errors import InputError, Interrupted
from harness.network_settings import NetworkSettings
from harness.scenario_run import locked, remember
from harness.validation import unknown

#: The scenario of each workload.
SCENARIOS = {"rag": "paper-rag", "chatbot": "paper-chatbot", "long-context": "paper-long-context"}

#: The fluid model that stands for the paper's flow-level simulator, with a constant background and a perfect oracle.
PAPER_FLUID_MODEL = "maxmin-tier"

SUBJECT = "netkv-full"
BASELINES = ("rr", "cla-tuned")

#: The headline profile first.
PROFILES = ("roce-default", "roce-paper")

#: Of every report, in this order. The fit uses seeds from 800,001 and tuning from 900,001.
REPORT_SEEDS = tuple(range(1, 201))

#: `--seeds auto` ends where every gap is known to this standard error [percentage points]: the 95 % interval is then as
#: wide as the paper's range of 4-6. Ours.
SE_TARGET_PP = 0.5

#: Fewer seeds than this say little of their own spread.
MIN_AUTO_SEEDS = 4

#: Of `--seeds auto` [packet-hops]: about three CPU hours at 18 M hops/s.
DEFAULT_BUDGET_HOPS = 200_000_000_000

#: Of every experiment with --quick, which is to take less than five minutes on two cores.
QUICK_REQUESTS = 24

#: Record tables of a stored cell; flows, hundreds of thousands of which are background, are not needed.
KEEP = ("requests", "links")

DEFAULT_OUT = Path("results") / "calibrate"

#: What a gain may be of: a mean over the measured requests of a run.
Quantity = Literal["ttft", "transfer"]

#: The fluid models that read `network.cc`.
_KNOW_CC = ("maxmin-dcqcn",)

_REAL_BACKGROUND = "poisson"
_REAL_ORACLE = "sampled"


@dataclass(frozen=True)
class Options:
    """What the command line says.

    `seeds` is their number, or None to add seeds until the gaps are precise or `budget_hops` is spent.
    """

    out: Path
    cells: Path  #: the common store of cells
    jobs: int
    seeds: int | None
    requests: int | None  #: None: the scenario's
    workloads: tuple[str, ...]
    loads_pct: tuple[int, ...]
    profiles: tuple[str, ...]
    overrides: tuple[str, ...] = ()
    budget_hops: int = DEFAULT_BUDGET_HOPS
    resume: bool = False
    quick: bool = False
    allow_mixed_code: bool = False
    command: str = ""


@dataclass(frozen=True)
class Defaults:
    """What an experiment does where the command line does not say, and what of it is another with --quick."""

    seeds: int
    quick_seeds: int
    loads_pct: tuple[int, ...]
    profiles: tuple[str, ...]
    quick_profiles: tuple[str, ...]


_HEADLINE = PROFILES[:1]
DEFAULTS = {
    "table5": Defaults(10, 2, (100, 200), PROFILES, PROFILES),
    "ladder": Defaults(5, 2, (100,), PROFILES, _HEADLINE),
    "replay": Defaults(2, 1, (100, 200), PROFILES, PROFILES),
    "sensitivity": Defaults(3, 1, (100,), _HEADLINE, _HEADLINE),
}


def settings(
    name: str,
    *,
    out: Path | None = None,
    cells: Path | None = None,
    jobs: int = 1,
    seeds: int | Literal["auto"] | None = None,
    budget_hops: int | None = None,
    requests: int | None = None,
    workloads: Sequence[str] | None = None,
    loads_pct: Sequence[int] | None = None,
    profiles: Sequence[str] | None = None,
    overrides: Sequence[str] = (),
    resume: bool = False,
    quick: bool = False,
    allow_mixed_code: bool = False,
    command: str = "",
) -> Options:
    """The options of the experiment `name`; its defaults for what is None.

    Cells go to OUT/cells, or without `out` to the store that all experiments share.

    Raises
    ------
    InputError : an unknown workload.
    """
    for workload in workloads or ():
        if workload not in SCENARIOS:
            raise InputError(unknown("workload", workload, SCENARIOS), source="--workloads")
    defaults = DEFAULTS[name]
    return Options(
        out=out or DEFAULT_OUT / name,
        cells=cells or (out or DEFAULT_OUT) / "cells",
        jobs=jobs,
        seeds=None if seeds == "auto" else seeds or (defaults.quick_seeds if quick else defaults.seeds),
        requests=requests or (QUICK_REQUESTS if quick else None),
        workloads=tuple(workloads or ("rag",)),
        loads_pct=tuple(loads_pct or defaults.loads_pct),
        profiles=tuple(profiles or (defaults.quick_profiles if quick else defaults.profiles)),
        overrides=tuple(overrides),
        budget_hops=budget_hops or DEFAULT_BUDGET_HOPS,
        resume=resume,
        quick=quick,
        allow_mixed_code=allow_mixed_code,
        command=command,
    )


# --- Network models ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Variant:
    """One network model, as a whole scenario and a backend; `name` is what messages and tables call it."""

    name: str
    scenario: Scenario
    backend: run.Backend

    @property
    def full_name(self) -> str:
        load = self.scenario.workload.params.get("rate_scale", 1)
        return f"{self.scenario.workload.use} at {100 * load:g} %, {self.name}"


@dataclass(frozen=True, eq=False)
class Group:
    """Network models under which the gains are compared, all with the same seeds; the gap is first less last."""

    key: tuple[Any, ...]
    variants: tuple[Variant, ...]


def scenario_of(
    options: Options, workload: str, load_pct: int = 100, profile: str | None = None, overrides: Sequence[str] = ()
) -> Scenario:
    """The full packet model: the workload's scenario with background flows and a sampled oracle.

    Parameters
    ----------
    profile : None for the scenario's own.
    overrides : over those of `options`.

    Raises
    ------
    InputError : a mistake in the overrides, or one sets what the experiment itself varies.
    """
    own = [f"workload.rate_scale={load_pct / 100:g}", *([f"network.profile={profile}"] if profile else [])]
    keys = {text.partition("=")[0] for text in own}
    for text in options.overrides:
        if text.partition("=")[0].strip() in keys:
            raise InputError("is set by the experiment; see --loads and --profiles", source=f"--set {text}")
    scenario = load_scenario(
        SCENARIOS[workload],
        overrides=[*options.overrides, *own, *overrides],
        requests=options.requests,
        schedulers=(*BASELINES, SUBJECT),
        backend="packet",
    )
    scenario = scenario.of("packet")  # variants say themselves what a fluid model is given
    if scenario.background.use == "constant":
        share = scenario.background.params["share"]
        scenario = _with(scenario, background={"use": _REAL_BACKGROUND, "share": share})
    if scenario.oracle.use == "constant":
        scenario = _with(scenario, oracle={"use": _REAL_ORACLE})
    return scenario


def _with(scenario: Scenario, **specs: Mapping[str, Any]) -> Scenario:
    return scenario.model_copy(update={family: components.check(family, spec) for family, spec in specs.items()})


def constant_background(scenario: Scenario) -> Scenario:
    """The scenario with a constant share of the links' capacity in place of its background flows."""
    return _with(scenario, background={"use": "constant", "share": scenario.background.params.get("share", {})})


def constant_oracle(scenario: Scenario) -> Scenario:
    """The scenario with an oracle that knows the background's nominal share, always."""
    return _with(scenario, oracle={"use": "constant", "congestion": scenario.background.params.get("share", {})})


def fluid(scenario: Scenario, model: str, reference: NetworkSettings) -> Scenario:
    """The scenario on a fluid model.

    Parameters
    ----------
    reference : network settings that fill in whatever no fluid model reads, so that runs which differ in nothing else
        are one and the same cell.
    """
    ours = scenario.network
    qp_keys = ("payload_bytes", "queue_pairs", "striping")
    transport = reference.transport.model_copy(update={key: getattr(ours.transport, key) for key in qp_keys})
    switch = reference.switch.model_copy(update={"background_priority": ours.switch.background_priority})
    network = reference.model_copy(
        update={
            "transport": transport,
            "cc": ours.cc if model in _KNOW_CC else reference.cc,
            "switch": switch,
            "framing": ours.framing,
            "load_balancing": ours.load_balancing,
        }
    )
    return scenario.model_copy(update={"backend": "fluid", "fluid": model, "network": network})


def paper_fluid(scenario: Scenario, reference: NetworkSettings, model: str = PAPER_FLUID_MODEL) -> Variant:
    """The paper's flow-level simulator: a fluid model with a constant background and a perfect oracle."""
    known = constant_background(constant_oracle(scenario))
    name = "fluid-paper" if model == PAPER_FLUID_MODEL else f"fluid {model}"
    return Variant(name, fluid(known, model, reference), "fluid")


# --- Running ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StoredCell(Cell):
    """A cell of the common store; its directory's name is the digest of all that decides its result."""

    what: str = ""

    @property
    def name(self) -> str:
        """What messages call the cell."""
        return f"{self.what}, {self.scheduler.use}, seed {self.seed}"


@dataclass(frozen=True)
class Failure:
    """A cell that failed; its seed is left out of every figure that needs it."""

    cell: str
    seed: int
    error: str
    directory: str


@dataclass(frozen=True)
class Forecast:
    """What an experiment is expected to need, complete cells included; of `--seeds auto`, at most."""

    seeds: int
    packet_cells: int
    fluid_cells: int
    packet_hops: int
    cpu_s: float
    wall_s: float
    complete: int  #: cells of the first seed that are complete already
    of_first_seed: int  #: cells of the first seed
    se_target_pp: float = SE_TARGET_PP


#: Called before anything runs.
OnForecast = Callable[[Forecast], None]
#: Called before each round with its cells and those of them to be run.
OnPlan = Callable[[Sequence[Cell], Sequence[Cell]], None]


@dataclass
class Runner:
    """Runs cells of the common store, each once, and reads what they measured.

    Raises InputError from `run` where a complete cell was made by other code, unless that is allowed.
    """

    options: Options
    on_forecast: OnForecast
    on_plan: OnPlan
    on_event: OnEvent
    code: str = field(default_factory=results.code_digest)
    failures: dict[Path, Failure] = field(default_factory=dict)
    used: dict[Path, StoredCell] = field(default_factory=dict)
    _known: dict[tuple[Variant, int], tuple[StoredCell, ...]] = field(default_factory=dict)

    def cells(self, variant: Variant, seed: int) -> tuple[StoredCell, ...]:
        """A cell per scheduler."""
        if (variant, seed) not in self._known:
            scenario, backend = variant.scenario, variant.backend
            cost = run.estimate_cost(scenario, backend, seed)
            self._known[variant, seed] = tuple(
                StoredCell(
                    directory=self._directory(variant, scheduler, seed),
                    scenario=scenario,
                    backend=backend,
                    scheduler=scheduler,
                    seed=seed,
                    cost=cost,
                    keep=KEEP,
                    what=variant.full_name,
                )
                for scheduler in scenario.schedulers
            )
        return self._known[variant, seed]

    def _directory(self, variant: Variant, scheduler: components.ComponentSpec, seed: int) -> Path:
        digest = run.cell_digest(variant.scenario, variant.backend, scheduler, seed)
        return self.options.cells / digest[:32]

    def run(self, cells: Iterable[StoredCell]) -> None:
        """Run those of the cells that are not complete.

        Raises
        ------
        InputError : a complete cell was made by other code, or what only a cell itself can find out.
        DiskFailure : the disk is full or broken.
        Interrupted : the user stopped it; complete cells are kept.
        """
        unique = {cell.directory: cell for cell in cells}
        self.used |= unique
        pending = [cell for cell in unique.values() if not self.is_done(cell)]
        prepare(pending, resume=False, code=self.code)
        self.on_plan(list(unique.values()), pending)
        outcomes = run_cells(pending, self.options.jobs, self.on_event) if pending else []
        for cell, outcome in zip(pending, outcomes, strict=True):
            if outcome.status == "failed":
                directory = str(cell.directory)
                self.failures[cell.directory] = Failure(cell.name, cell.seed, outcome.error, directory)
            elif outcome.status == "complete":
                remember(cell, read_status(cell.directory))
        for kind, error in (("disk-error", results.DiskFailure), ("input-error", InputError)):
            for outcome in outcomes:
                if outcome.status == kind:
                    raise error(outcome.error)
        if any(outcome.status in ("interrupted", "pending") for outcome in outcomes):
            raise Interrupted("stopped by the user")

    def is_done(self, cell: Cell) -> bool:
        """Whether the store has the cell, complete and made by this code.

        Raises
        ------
        InputError : it was made by other code, and that is not allowed.
        """
        if read_status(cell.directory)["status"] != "complete":
            return False
        code = results.read_json(cell.directory / "cell.json")["code_sha256"]
        if code != self.code and not self.options.allow_mixed_code:
            raise InputError(
                f"{cell.name} is complete with code {code[:12]}, this is code {self.code[:12]}; go back to that "
                "version, take what is there with --allow-mixed-code, or give another --cells",
                source=str(cell.directory),
            )
        return True

    def run_groups(self, groups: Sequence[Group], on_round: Callable[[Mapping[Group, Sequence[int]]], None]) -> None:
        """Run all groups seed by seed.

        Parameters
        ----------
        on_round : called after every round with the seeds that each group has had.
        """
        taken: dict[Group, list[int]] = {group: [] for group in groups}
        self.on_forecast(self.forecast(groups))
        if self.options.seeds is not None:
            per_seed = sum(len(variant.scenario.schedulers) for group in groups for variant in group.variants)
            for seeds in rounds(self.options.seeds, per_seed, self.options.jobs):
                self._round([(group, seed) for seed in seeds for group in groups], taken)
                on_round(taken)
            return
        spent_hops = 0
        for seed in REPORT_SEEDS:
            unsure = [group for group in groups if not self.is_precise(group, taken[group])]
            hops = [self._hops(group, seed) for group in unsure]
            chosen = affordable(hops, self.options.budget_hops - spent_hops)
            if not chosen:
                return
            spent_hops += sum(hops[i] for i in chosen)
            self._round([(unsure[i], seed) for i in chosen], taken)
            on_round(taken)

    def _round(self, members: Sequence[tuple[Group, int]], taken: Mapping[Group, list[int]]) -> None:
        self.run(cell for group, seed in members for variant in group.variants for cell in self.cells(variant, seed))
        for group, seed in members:
            taken[group].append(seed)

    def _hops(self, group: Group, seed: int) -> int:
        return sum(cell.cost.data_hops for variant in group.variants for cell in self.cells(variant, seed))

    def is_precise(self, group: Group, seeds: Sequence[int]) -> bool:
        """Whether the group's gaps over all baselines are known well enough."""
        return all(is_precise(list(self.gap_pp(group, baseline, seeds).values())) for baseline in BASELINES)

    def forecast(self, groups: Sequence[Group]) -> Forecast:
        """From the first seed's cells."""
        first = {c.directory: c for g in groups for v in g.variants for c in self.cells(v, REPORT_SEEDS[0])}
        hops, cpu_s = (sum(getattr(c.cost, name) for c in first.values()) for name in ("data_hops", "seconds"))
        if self.options.seeds is None:
            n = max(1, min(len(REPORT_SEEDS), int(self.options.budget_hops // max(hops, 1))))
        else:
            n = self.options.seeds
        n_packet = sum(cell.backend == "packet" for cell in first.values())
        n_jobs = min(self.options.jobs, len(first))
        complete = sum(self.is_done(cell) for cell in first.values())
        wall_s = n * cpu_s / n_jobs
        return Forecast(n, n * n_packet, n * (len(first) - n_packet), n * hops, n * cpu_s, wall_s, complete, len(first))

    # --- What came out ------------------------------------------------------------------------------------------------

    def means_ms(self, variant: Variant, seed: int, quantity: Quantity = "ttft") -> dict[str, float]:
        """Means by scheduler [ms] of those cells that are complete."""
        found = {}
        for cell in self.cells(variant, seed):
            status = read_status(cell.directory)
            mean = status["summary"][f"{quantity}_mean_ms"] if status["status"] == "complete" else None
            if mean is not None:
                found[cell.label] = mean
        return found

    def gains_pct(
        self, variant: Variant, baseline: str, seeds: Sequence[int], quantity: Quantity = "ttft"
    ) -> dict[int, float]:
        """The gain over a baseline by seed, of the seeds that have it."""
        by_seed = {seed: self.means_ms(variant, seed, quantity) for seed in seeds}
        return {s: gain_pct(t[SUBJECT], t[baseline]) for s, t in by_seed.items() if {SUBJECT, baseline} <= t.keys()}

    def common_gains_pct(
        self, variants: Sequence[Variant], baseline: str, seeds: Sequence[int], quantity: Quantity = "ttft"
    ) -> list[dict[int, float]]:
        """The gains under each of the variants, of the seeds that all of them have."""
        all_gains = [self.gains_pct(variant, baseline, seeds, quantity) for variant in variants]
        common = [seed for seed in seeds if all(seed in gains for gains in all_gains)]
        return [{seed: gains[seed] for seed in common} for gains in all_gains]

    def gap_pp(
        self, group: Group, baseline: str, seeds: Sequence[int], quantity: Quantity = "ttft"
    ) -> dict[int, float]:
        """The gap by seed [percentage points]."""
        first, last = self.common_gains_pct((group.variants[0], group.variants[-1]), baseline, seeds, quantity)
        return {seed: first[seed] - last[seed] for seed in first}


def rounds(n_seeds: int, cells_per_seed: int, jobs: int) -> list[tuple[int, ...]]:
    """The first `n_seeds` report seeds, so many at a time as keep all jobs busy.

    Raises
    ------
    InputError : there are not so many report seeds.
    """
    if n_seeds > len(REPORT_SEEDS):
        raise InputError(f"{n_seeds} given; there are {len(REPORT_SEEDS)} report seeds", source="--seeds")
    size = max(1, jobs // cells_per_seed)
    return [REPORT_SEEDS[i : min(i + size, n_seeds)] for i in range(0, n_seeds, size)]


def affordable(costs: Sequence[int], left: int) -> list[int]:
    """Indices of the costs that fit into what is left, taken in order; one that does not fit is passed over."""
    chosen = []
    for i, cost in enumerate(costs):
        if cost <= left:
            left -= cost
            chosen.append(i)
    return chosen


# --- Figures of merit -------------------------------------------------------------------------------------------------


def gain_pct(subject: float, baseline: float) -> float:
    """By how much the subject's mean is below the baseline's [%]; NaN where that is 0."""
    return 100 * (1 - subject / baseline) if baseline else math.nan


def standard_error(values: Sequence[float]) -> float:
    """Of a mean over seeds; NaN of a single one."""
    return float(np.std(values, ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else math.nan


def is_precise(gaps_pp: Sequence[float]) -> bool:
    """Whether so many seeds' gaps end `--seeds auto`."""
    return len(gaps_pp) >= MIN_AUTO_SEEDS and standard_error(gaps_pp) < SE_TARGET_PP


@dataclass(frozen=True)
class Gap:
    """Gains in the fluid and the packet model [%], their gap with its 95 % interval [percentage points]."""

    gain_fluid_pct: float
    gain_packet_pct: float
    gap_pp: float
    gap_ci_low_pp: float
    gap_ci_high_pp: float
    se_pp: float
    seeds: int


GAP_COLUMNS = ("gain_fluid_pct", "gain_packet_pct", "gap_pp", "gap_ci_low_pp", "gap_ci_high_pp", "seeds", "se_pp")


def gap_of(fluid_pct: Mapping[int, float], packet_pct: Mapping[int, float]) -> Gap:
    """The gap over the seeds that both have."""
    seeds = [seed for seed in fluid_pct if seed in packet_pct]
    differences = [fluid_pct[seed] - packet_pct[seed] for seed in seeds]
    interval = metrics.t_interval(differences)
    return Gap(
        gain_fluid_pct=_mean([fluid_pct[seed] for seed in seeds]),
        gain_packet_pct=_mean([packet_pct[seed] for seed in seeds]),
        gap_pp=interval.mean,
        gap_ci_low_pp=interval.low,
        gap_ci_high_pp=interval.high,
        se_pp=standard_error(differences),
        seeds=len(seeds),
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan


# --- What an experiment writes ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Report:
    """An experiment that has ended: its main table, and what failed."""

    out: Path
    columns: tuple[str, ...]
    rows: tuple[Mapping[str, Any], ...]
    failures: tuple[Failure, ...]
    packet_hops: int  #: of all cells used
    cpu_s: float  #: of all cells used
    wall_s: float


@contextmanager
def recorded(runner: Runner, name: str) -> Iterator[dict[str, Any]]:
    """Hold the experiment's directory and the store, and keep OUT/run.json; what is put into the mapping is in it.

    Raises
    ------
    InputError : another process writes there, or there is nothing to resume.
    """
    options, begun_s = runner.options, time.monotonic()
    out = options.out
    if options.resume and not (out / "run.json").is_file():
        raise InputError("holds no experiment to go on with", source=str(out))
    with ExitStack() as held:
        for directory in dict.fromkeys((out, options.cells)):
            held.enter_context(locked(directory))
        manifest: dict[str, Any] = {
            "project": "netkv-cosim",
            "name": f"calibrate {name}",
            "status": "running",
            "started_utc": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "command": options.command,
            "options": asdict(options),
            "paper_fluid_model": PAPER_FLUID_MODEL,
            "scenarios": {workload: SCENARIOS[workload] for workload in options.workloads},
            "versions": {**results.versions(), "code_sha256": runner.code},
            "host": results.host(),
        }
        results.write_json(out / "run.json", manifest)
        try:
            yield manifest
            manifest["status"] = "failed" if runner.failures else "complete"
        except (KeyboardInterrupt, Interrupted):
            manifest["status"] = "interrupted"
            raise
        except BaseException:
            manifest["status"] = "failed"
            raise
        finally:
            statuses = [read_status(directory) for directory in runner.used]
            done = [status for status in statuses if status["status"] == "complete"]
            manifest["failures"] = [asdict(failure) for failure in runner.failures.values()]
            manifest["cells"] = len(statuses)
            manifest["cells_complete"] = len(done)
            manifest["packet_hops"] = sum(s["counters"]["data_hops"] + s["counters"]["control_hops"] for s in done)
            manifest["cpu_s"] = sum(s["cpu_s"] for s in done)
            manifest["wall_s"] = time.monotonic() - begun_s
            specs = [results.read_json(directory / "cell.json") for directory in runner.used]
            manifest["code_sha256_of_cells"] = sorted({spec["code_sha256"] for spec in specs if spec})
            results.write_json(out / "run.json", manifest)


def report(
    runner: Runner, manifest: Mapping[str, Any], columns: Sequence[str], rows: Sequence[Mapping[str, Any]]
) -> Report:
    """What the command line shows of an experiment that `recorded` has closed."""
    return Report(
        out=runner.options.out,
        columns=tuple(columns),
        rows=tuple(rows),
        failures=tuple(runner.failures.values()),
        packet_hops=manifest["packet_hops"],
        cpu_s=manifest["cpu_s"],
        wall_s=manifest["wall_s"],
    )


#: Of gains.csv, after what names the group; the gain is of TTFT.
SEED_COLUMNS = (
    "variant",
    "backend",
    "seed",
    "baseline",
    "ttft_baseline_ms",
    "ttft_netkv_ms",
    "gain_pct",
    "transfer_baseline_ms",
    "transfer_netkv_ms",
)


def record_seeds(
    runner: Runner, manifest: dict[str, Any], key: Sequence[str], taken: Mapping[Group, Sequence[int]]
) -> None:
    """Write gains.csv, a row per group, variant, seed and baseline, and note the seeds of every group.

    Parameters
    ----------
    key : names of the parts of a group's key.
    taken : the seeds that each group has had.
    """
    rows = []
    for group, seeds in taken.items():
        manifest.setdefault("seeds", {})[", ".join(map(str, group.key))] = list(seeds)
        place = dict(zip(key, group.key, strict=True))
        rows += [place | row for variant in group.variants for row in _seed_rows(runner, variant, seeds)]
    results.write_csv(runner.options.out / "gains.csv", (*key, *SEED_COLUMNS), rows)


def _seed_rows(runner: Runner, variant: Variant, seeds: Sequence[int]) -> list[dict[str, Any]]:
    """The two mean TTFTs behind each gain, the gain, and the mean transfer times in them."""
    rows = []
    for seed in seeds:
        ttft_ms, transfer_ms = (runner.means_ms(variant, seed, quantity) for quantity in get_args(Quantity))
        for baseline in BASELINES:
            if {SUBJECT, baseline} <= ttft_ms.keys():
                row = {
                    "variant": variant.name,
                    "backend": variant.backend,
                    "seed": seed,
                    "baseline": baseline,
                    "ttft_baseline_ms": ttft_ms[baseline],
                    "ttft_netkv_ms": ttft_ms[SUBJECT],
                    "gain_pct": gain_pct(ttft_ms[SUBJECT], ttft_ms[baseline]),
                    "transfer_baseline_ms": transfer_ms.get(baseline),
                    "transfer_netkv_ms": transfer_ms.get(SUBJECT),
                }
                rows.append(row)
    return rows


def markdown(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> str:
    """A table in Markdown; floats with two decimals."""
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(_text(row.get(column)) for column in columns) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _text(value: Any) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    return f"{value:.2f}" if isinstance(value, float) else str(value)
