"""YAML -> `Scenario`: reads experiments, presets and profiles, applies overrides, and finds every mistake before a run.

Relative paths in a file or option are relative to the current directory. Booleans are `true` and `false` only, and a
number in base 10 is a number in base 10 (YAML 1.2), so that a key `on` stays a key and ``1e9`` is a number.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, TypeVar

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    ValidationError,
    model_validator,
)

from harness import components
from harness.components import FAMILIES, ComponentSpec
from harness.errors import InputError
from harness.fluid import MODELS
from harness.network_settings import NetworkSettings
from harness.packet import capture
from harness.routing import Router
from harness.types import Cluster, DecisionAt, TierFacts, Topology
from harness.units import DurationPs, PositiveDurationPs, PositiveRateBps, SizeBytes, format_size
from harness.validation import input_error, join_key, located, unknown
from topologies.placement import place
from topologies.tiers import tier_facts

DEFAULT_PROFILE = "roce-default"

#: What a scenario that does not say otherwise has.
_DEFAULT_COMPONENTS = {"oracle": "sampled", "background": "none"}

#: Where the files lie that go by a short name.
_DIRECTORIES = {
    "scenario": Path(str(files("scenarios"))),
    "sweep": Path(str(files("scenarios"))) / "sweeps",
    "topology": Path(str(files("topologies"))) / "presets",
    "profile": Path(str(files("harness"))) / "packet" / "profiles",
}

_MAX_DEPTH = 50

#: Reads a YAML file, as `read_yaml` does.
ReadYaml: TypeAlias = "Callable[[Path], dict[str | int, Any]]"


# --- The scenario -----------------------------------------------------------------------------------------------------


class _Block(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


_FLAT = PlainSerializer(ComponentSpec.to_json)
TopologySpec = Annotated[ComponentSpec, PlainValidator(partial(components.check, "topology")), _FLAT]
PlacementSpec = Annotated[ComponentSpec, PlainValidator(partial(components.check, "placement")), _FLAT]
WorkloadSpec = Annotated[ComponentSpec, PlainValidator(partial(components.check, "workload")), _FLAT]
ServingSpec = Annotated[ComponentSpec, PlainValidator(partial(components.check, "serving")), _FLAT]
SchedulerSpec = Annotated[ComponentSpec, PlainValidator(partial(components.check, "scheduler")), _FLAT]
OracleSpec = Annotated[ComponentSpec, PlainValidator(partial(components.check, "oracle")), _FLAT]
BackgroundSpec = Annotated[ComponentSpec, PlainValidator(partial(components.check, "background")), _FLAT]


def _read_instances(value: object) -> int | Literal["all"]:
    if value == "all":
        return "all"
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return value
    raise InputError(f"given {value!r}: must be 'all' or a whole number, at least 1")


def _read_seeds(value: object) -> tuple[int, ...]:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return tuple(range(1, value + 1))
    if isinstance(value, list | tuple) and value:
        whole = [seed for seed in value if isinstance(seed, int) and not isinstance(seed, bool) and seed >= 0]
        if len(whole) == len(value) and len(set(whole)) == len(whole):
            return tuple(whole)
    raise InputError(f"given {value!r}: must be a number of repetitions, at least 1, or a list of different seeds >= 0")


Tier = Annotated[int, Field(ge=0, le=3)]
Share = Annotated[float, Field(ge=0, lt=1)]


class ClusterSettings(_Block):
    """The compute side. What weights and `memory_reserve` leave of an instance's memory holds KV caches."""

    gpus_per_instance: Annotated[int, Field(ge=1)]
    instances: Annotated[int | Literal["all"], BeforeValidator(_read_instances)] = "all"
    placement: PlacementSpec
    memory_per_gpu: SizeBytes
    weights_per_instance: SizeBytes
    memory_reserve: Share = 0.0
    tier_bandwidth: dict[Tier, PositiveRateBps] = Field(default_factory=dict)
    tier_latency: dict[Tier, DurationPs] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _weights_fit(self) -> ClusterSettings:
        memory = self.gpus_per_instance * self.memory_per_gpu
        if self.weights_per_instance >= memory:
            raise InputError(
                f"given {format_size(self.weights_per_instance)}: must leave room in the {format_size(memory)} of an "
                f"instance ({self.gpus_per_instance} x {format_size(self.memory_per_gpu)})",
                key="weights_per_instance",
            )
        return self

    @property
    def kv_memory_bytes(self) -> int:
        """Memory of one instance for KV caches [bytes], rounded down."""
        left = self.gpus_per_instance * self.memory_per_gpu - self.weights_per_instance
        return int(left * (1 - Fraction(str(self.memory_reserve))))


class ModelSettings(_Block):
    """The shape of the language model's KV cache."""

    name: str
    layers: Annotated[int, Field(ge=1)]
    kv_heads: Annotated[int, Field(ge=1)]
    head_dim: Annotated[int, Field(ge=1)]
    bytes_per_element: Annotated[float, Field(gt=0)]  #: 2 for FP16, 1 for FP8, 0.5 for INT4

    @model_validator(mode="after")
    def _whole_bytes(self) -> ModelSettings:
        if self._exact_bytes_per_token.denominator != 1:
            raise InputError(
                f"given {self.bytes_per_element}: a token's KV cache must come to a whole number of bytes",
                key="bytes_per_element",
            )
        return self

    @property
    def _exact_bytes_per_token(self) -> Fraction:
        return 2 * self.layers * self.kv_heads * self.head_dim * Fraction(str(self.bytes_per_element))

    @property
    def kv_bytes_per_token(self) -> int:
        """KV cache of one token: keys and values of all layers [bytes]."""
        return int(self._exact_bytes_per_token)


class Slo(_Block):
    """Bounds within which a request attains its service-level objective."""

    ttft: PositiveDurationPs
    tbt: PositiveDurationPs | None = None


class Scenario(_Block):
    """One experiment, resolved: presets and profiles read, overrides applied, every quantity in base units."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    topology: TopologySpec
    cluster: ClusterSettings
    model: ModelSettings
    workload: WorkloadSpec
    requests: Annotated[int, Field(ge=1, le=10_000_000)]
    warmup_share: Share = 0.1
    serving: ServingSpec
    block_tokens: Annotated[int, Field(ge=1)] = 512
    prefix_hit_shortens_prefill: bool = False
    layer_groups: Annotated[int, Field(ge=1)] = 1
    decision_at: DecisionAt = "prefill-end"
    schedulers: Annotated[tuple[SchedulerSpec, ...], Field(min_length=1)]
    oracle: OracleSpec
    background: BackgroundSpec
    network: NetworkSettings
    backend: Literal["packet", "fluid", "both"] = "packet"
    fluid: str = "maxmin"
    fluid_background: BackgroundSpec | None = None  #: in place of `background` on a fluid model: what that assumes
    fluid_oracle: OracleSpec | None = None  #: in place of `oracle` on a fluid model
    slo: Slo
    link_sampling: PositiveDurationPs = 1_000_000_000_000
    trace_ports: tuple[str, ...] = ()  #: directions of links, such as tor0->agg1, whose time series are recorded
    trace_interval: PositiveDurationPs = 10_000_000
    pcap: tuple[str, ...] = ()  #: links, or directions of links, whose frames are captured: tor0-agg1, tor0->agg1
    pcap_payload: SizeBytes = 0  #: kept of every frame beside its headers
    seeds: Annotated[tuple[int, ...], BeforeValidator(_read_seeds)] = (1,)

    @model_validator(mode="after")
    def _consistent(self) -> Scenario:
        if self.fluid not in MODELS:
            raise InputError(unknown("fluid model", self.fluid, MODELS), key="fluid")
        if self.layer_groups > self.model.layers:
            raise InputError(
                f"given {self.layer_groups}: must not exceed the model's {self.model.layers} layers", key="layer_groups"
            )
        labels = [components.label("scheduler", spec) for spec in self.schedulers]
        for i, name in enumerate(labels):
            if name in labels[:i]:
                raise InputError(f"{name!r} is listed twice", key=f"schedulers.{i}")
        return self

    @property
    def backends(self) -> tuple[Literal["packet", "fluid"], ...]:
        """The network models to run, in the order of the tables."""
        return ("packet", "fluid") if self.backend == "both" else (self.backend,)

    def of(self, backend: Literal["packet", "fluid"]) -> Scenario:
        """What a cell on one network model runs: with the background and the oracle that the model is given."""
        given: dict[str, ComponentSpec | None] = {"fluid_background": None, "fluid_oracle": None}
        if backend == "fluid":
            given["background"] = self.fluid_background or self.background
            given["oracle"] = self.fluid_oracle or self.oracle
        return self.model_copy(update=given)

    def to_json(self) -> dict[str, Any]:
        """All of it as JSON values; `scenario_from_json` reads it back."""
        return self.model_dump(mode="json")

    def digest(self) -> str:
        """SHA-256 of the canonical JSON."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()


# --- Loading ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Override:
    """A value set from outside of the file; `source` is what the user wrote, or where."""

    path: tuple[str | int, ...]
    value: Any
    source: str

    @property
    def block(self) -> tuple[str | int, ...]:
        """The path of all that is set: the choice of a component sets the whole component."""
        chooses = self.path[-1] == "use" and _family_at(self.path[:-1]) is not None
        return self.path[:-1] if chooses else self.path


def load_scenario(
    path_or_name: str | Path,
    *,
    overrides: Sequence[str] = (),
    requests: int | None = None,
    schedulers: Sequence[str] | None = None,
    seeds: int | None = None,
    backend: str | None = None,
    fluid: str | None = None,
    trace_ports: Sequence[str] = (),
    pcap: Sequence[str] = (),
    pcap_payload: str | None = None,
    quick: bool = False,
    settings: Sequence[Override] = (),
    read: ReadYaml | None = None,
) -> Scenario:
    """Read, resolve and check a scenario.

    Parameters
    ----------
    path_or_name : a YAML file, or the short name of one that comes with the project (``rag``).
    overrides : ``key.path=value`` each, the value in YAML; a number in the path is an index or a numeric key.
        Naming another component (``workload.use=mooncake``) drops the keys that the file gave to the old one. A block
        is set before the keys in it, otherwise in the order given.
    requests, schedulers, seeds, backend, fluid, trace_ports, pcap, pcap_payload : in place of the file's; schedulers
        that the file lists keep their keys.
    quick : apply the file's `quick:` block before all overrides.
    settings : set before the options above.
    read : in place of `read_yaml`, for who loads many scenarios from the same few files.

    Raises
    ------
    InputError : the first mistake, with the file or option that holds it and its key path.
    """
    read = read or read_yaml
    path = find("scenario", str(path_or_name))
    source = str(path)
    raw = read(path)
    if "scenario" in raw:
        raise InputError("is a sweep, which `netkv-cosim sweep` runs", source=source)
    for key, use in _DEFAULT_COMPONENTS.items():
        raw.setdefault(key, use)
    quick_block = raw.pop("quick", None)
    if quick:
        if not isinstance(quick_block, dict):
            raise InputError("must be a block of the keys that a quick run changes", source=source, key="quick")
        if isinstance(quick_block.get("schedulers"), list):
            quick_block["schedulers"] = [_listed(raw.get("schedulers"), name) for name in quick_block["schedulers"]]
        _apply(raw, list(_leaves(quick_block, (), source)))
    if isinstance(raw.get("schedulers"), str):
        raw["schedulers"] = raw["schedulers"].split(",")
    options = {"requests": requests, "seeds": seeds, "backend": backend, "fluid": fluid}
    settings = list(settings)
    settings += [Override((key,), value, f"--{key} {value}") for key, value in options.items() if value is not None]
    if schedulers is not None:
        picked = [_listed(raw.get("schedulers"), name) for name in schedulers]
        settings.append(Override(("schedulers",), picked, f"--schedulers {','.join(schedulers)}"))
    if trace_ports:
        option = " ".join(f"--trace-port {name!r}" for name in trace_ports)
        settings.append(Override(("trace_ports",), list(trace_ports), option))
    if pcap:
        settings.append(Override(("pcap",), list(pcap), " ".join(f"--pcap {name!r}" for name in pcap)))
    if pcap_payload is not None:
        settings.append(Override(("pcap_payload",), pcap_payload, f"--pcap-payload {pcap_payload}"))
    settings += [parse_override(text) for text in overrides]
    _apply(raw, settings)
    with _blaming(settings, source):
        if "topology" in raw:
            raw["topology"] = _with_instance_size(_resolve_topology(raw["topology"], read), raw.get("cluster"))
        raw["network"] = _resolve_network(raw.get("network"), read)
        scenario = _read(Scenario, raw)
        _check_runnable(scenario)
    return scenario


def scenario_from_json(data: Mapping[str, Any]) -> Scenario:
    """Read back what `Scenario.to_json` gave."""
    return _read(Scenario, data)


def load_network(
    profile: str | None = None, *, overrides: Sequence[str] = (), payload_bytes: int | None = None
) -> NetworkSettings:
    """Network settings on their own: a profile (name or YAML file) and overrides with keys below `network`.

    Raises
    ------
    InputError : the first mistake.
    """
    raw: dict[str, Any] = {"profile": profile or DEFAULT_PROFILE}
    settings = [parse_override(text) for text in overrides]
    if payload_bytes is not None:
        settings.append(Override(("transport", "payload_bytes"), payload_bytes, f"--payload {payload_bytes}"))
    _apply(raw, settings, below="network")
    with _blaming(settings, f"--profile {profile}" if profile else "", below="network"):
        return _read(NetworkSettings, _resolve_network(raw, read_yaml))


def load_topology(path_or_name: str) -> Topology:
    """A topology on its own: a preset, a YAML file, a builder with its defaults, or a text file of the HPCC family.

    Raises
    ------
    InputError : the first mistake.
    """
    spec = _resolve_topology(path_or_name, read_yaml)
    topology: Topology = components.create("topology", spec, {}).build()
    return topology


def build_cluster(scenario: Scenario) -> Cluster:
    """The topology with the instances placed on it.

    Raises
    ------
    InputError : more instances than the GPUs allow, no prefill or decode instance, or a mistake in the topology.
    """
    settings = scenario.cluster
    with _as_configured("topology", "topology"):
        builder = components.create("topology", scenario.topology, {})
        if builder.gpus_per_instance != settings.gpus_per_instance:
            raise InputError(
                f"given {settings.gpus_per_instance}: the topology's instances have {builder.gpus_per_instance} GPUs",
                key="cluster.gpus_per_instance",
            )
    with _as_configured("placement", "cluster.placement"):
        placement = components.create("placement", settings.placement, {})
        return place(builder, placement, None if settings.instances == "all" else settings.instances)


def build_tiers(scenario: Scenario, cluster: Cluster) -> TierFacts:
    """Bandwidth and latency of the tiers, with the scenario's overrides."""
    return tier_facts(
        cluster,
        all_nics=scenario.network.transport.striping == "per-rank",
        bandwidth_bps=scenario.cluster.tier_bandwidth,
        latency_ps=scenario.cluster.tier_latency,
    )


def port_ids(topology: Topology, names: Sequence[str]) -> tuple[int, ...]:
    """The ports that `names` of Topology.port_names stand for.

    Raises
    ------
    InputError : there is no such port, or it is named twice.
    """
    known = {name: port for port, name in enumerate(topology.port_names)}
    for i, name in enumerate(names):
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ";"
            example = topology.port_names[0]
            raise InputError(
                f"unknown port {name!r}{hint} a port is a direction of a link, {len(known)} from {example!r} to "
                f"{topology.port_names[-1]!r}",
                key="trace_ports",
            )
        if name in names[:i]:
            raise InputError(f"{name!r} is given twice", key="trace_ports")
    return tuple(known[name] for name in names)


def presets(kind: Literal["scenario", "sweep", "topology", "profile"]) -> list[tuple[str, str]]:
    """Short names of the files that come with the project, each with the first line of its leading comment."""
    found = []
    for path in sorted(_DIRECTORIES[kind].glob("*.yaml")):
        first = path.read_text(encoding="utf-8").partition("\n")[0]
        found.append((path.stem, first.lstrip("# ") if first.startswith("#") else ""))
    return found


# --- Checks across keys -----------------------------------------------------------------------------------------------


def _check_runnable(scenario: Scenario) -> None:
    """Build all but the network once: what constructors refuse is refused before any run."""
    if scenario.network.load_balancing.use == "pinned":
        message = "given 'pinned': a run has no path file; `netkv-cosim flows --paths FILE` has"
        raise InputError(message, key="network.load_balancing.use")
    cluster = build_cluster(scenario)
    Router(cluster.topology).check_connected(port for instance in cluster.instances for port in instance.nic_ports)
    if "fluid" in scenario.backends:
        MODELS[scenario.fluid].check(scenario.network)
    if scenario.trace_ports and "packet" not in scenario.backends:
        raise InputError("given for a run without the packet model: only that has queues to trace", key="trace_ports")
    port_ids(cluster.topology, scenario.trace_ports)
    if scenario.pcap and "packet" not in scenario.backends:
        raise InputError("given for a run without the packet model: only that has packets to capture", key="pcap")
    with _as_configured("pcap", "pcap"):
        capture.files(cluster.topology, scenario.pcap)
    context = {
        "seed": 0,
        "cluster": cluster,
        "tiers": build_tiers(scenario, cluster),
        "n_requests": scenario.requests,
        "block_tokens": scenario.block_tokens,
    }
    for key in ("workload", "serving", "oracle", "background", "fluid_oracle", "fluid_background"):
        family, spec = key.removeprefix("fluid_"), getattr(scenario, key)
        if spec is not None:
            with _as_configured(family, key):
                components.create(family, spec, context)
    for i, spec in enumerate(scenario.schedulers):
        with _as_configured("scheduler", f"schedulers.{i}"):
            components.create("scheduler", spec, context)


@contextmanager
def _as_configured(family: str, key: str) -> Iterator[None]:
    """Components call their own keys ``family.key``: put the scenario's key path in place of the family."""
    try:
        yield
    except InputError as error:
        own = error.key.removeprefix(f"{family}.")
        theirs = error.key if own == error.key and error.key else join_key(key, own)
        raise InputError(error.message, source=error.source, key=theirs) from error


# --- Presets, profiles ------------------------------------------------------------------------------------------------


def _resolve_topology(raw: object, read: ReadYaml, seen: tuple[str, ...] = ()) -> object:
    """Replace the name of a preset or file by the builder and keys that it gives, under the keys given here."""
    use = raw.get("use") if isinstance(raw, Mapping) else raw
    if not isinstance(use, str) or use in FAMILIES["topology"] or ":" in use:
        return raw
    given = {k: v for k, v in raw.items() if k != "use"} if isinstance(raw, Mapping) else {}
    if Path(use).is_file() and Path(use).suffix not in (".yaml", ".yml"):
        return {"use": "hpcc", "path": use, **given}
    with located(key="topology"):
        names = [*FAMILIES["topology"], *(name for name, _ in presets("topology"))]
        path = find("topology", use, names)
        if str(path) in seen:
            raise InputError(f"{path} names itself")
    below = _resolve_topology(read(path), read, (*seen, str(path)))
    components.check("topology", below, source=str(path))
    assert isinstance(below, Mapping)
    return {**below, **given}


def _with_instance_size(topology: object, cluster: object) -> object:
    """Tell a builder that asks for it how many GPUs an instance has, unless the topology itself says so."""
    spec = {"use": topology} if isinstance(topology, str) else topology
    if not isinstance(spec, Mapping) or not isinstance(spec.get("use"), str) or not isinstance(cluster, Mapping):
        return topology  # refused below, with what is allowed
    with located(key="topology.use"):
        asked = "gpus_per_instance" in components.keys("topology", spec["use"])
    if not asked or "gpus_per_instance" not in cluster:
        return spec
    return {"gpus_per_instance": cluster["gpus_per_instance"], **spec}


def _resolve_network(raw: object, read: ReadYaml) -> dict[str, Any]:
    """All network settings: the profile's, under the keys given here."""
    given = {"profile": raw} if isinstance(raw, str) else raw if raw is not None else {}
    if not isinstance(given, Mapping):
        raise InputError(f"given {raw!r}: must be a block or the name of a profile", key="network")
    profile = given.get("profile", DEFAULT_PROFILE)
    if not isinstance(profile, str):
        raise InputError(f"given {profile!r}: must be the name of a profile or a YAML file", key="network.profile")
    with located(key="network.profile"):
        path = find("profile", profile)
    whole = {**read(path), "profile": profile}
    with located(str(path)):
        _read(NetworkSettings, whole)
    return _merged(whole, given)


def find(kind: str, given: str, names: Sequence[str] | None = None) -> Path:
    """The file of a short name of this kind, or the file at a path.

    Raises
    ------
    InputError : there is none; the message lists `names`, or the short names there are.
    """
    directory = _DIRECTORIES[kind]
    if "/" not in given and Path(given).suffix not in (".yaml", ".yml"):
        path = directory / f"{given}.yaml"
        if path.is_file():
            return path
        known = names if names is not None else [p.stem for p in sorted(directory.glob("*.yaml"))]
        raise InputError(f"{unknown(kind, given, known)}, or the path of a file")
    path = Path(given)
    if path.is_file():
        return path
    beside = [str(p) for p in sorted(path.parent.glob("*.y*ml"))]
    hint = f"; beside it are {', '.join(beside)}" if beside else ""
    raise InputError(f"there is no file {given!r}{hint}")


# --- Overrides --------------------------------------------------------------------------------------------------------


def _family_at(path: Sequence[str | int]) -> str | None:
    """The family of the component at a key path of a scenario."""
    match tuple(path):
        case (("topology" | "workload" | "serving" | "oracle" | "background") as key,):
            return str(key)
        case (("fluid_background" | "fluid_oracle") as key,):
            return str(key).removeprefix("fluid_")
        case ("cluster", "placement"):
            return "placement"
        case ("schedulers", int()):
            return "scheduler"
    return None


def parse_override(text: str) -> Override:
    """Read an option ``key.path=value``, the value in YAML.

    Raises
    ------
    InputError : it is no such text.
    """
    source = f"--set {text}"
    key, equals, value = text.partition("=")
    path = key_path(key)
    if not equals or "" in path:
        raise InputError("must be key.path=value, for example network.profile=roce-paper", source=source)
    return Override(path, _parse_yaml(value, source), source)


def key_path(text: str) -> tuple[str | int, ...]:
    """The parts of a dotted key path; what looks like a number is an index or a numeric key."""
    parts = [part.strip() for part in text.split(".")]
    return tuple(int(part) if part.isascii() and part.isdigit() else part for part in parts)


def _leaves(block: Mapping[Any, Any], above: tuple[str | int, ...], source: str) -> Iterator[Override]:
    """Every value in a block that is not a block itself."""
    for key, value in block.items():
        path = (*above, key)
        if isinstance(value, Mapping):
            yield from _leaves(value, path, source)
        else:
            yield Override(path, value, source)


def _apply(data: dict[Any, Any], settings: Sequence[Override], below: str = "") -> None:
    """Set all values, blocks before the keys in them; `below` is the key path of `data` itself."""
    for setting in sorted(settings, key=lambda s: len(s.block)):
        with located(setting.source):
            _set(data, setting.path, setting.value, below)


def _set(data: dict[Any, Any], path: tuple[str | int, ...], value: Any, below: str) -> None:
    """Set the value at `path`, making the blocks that lead there."""
    node: Any = data
    for depth, part in enumerate(path[:-1], 1):
        child = _at(node, part, path[:depth])
        if child is None:
            child = {}
        elif isinstance(child, str) and _family_at(path[:depth]) is not None:
            child = {"use": child}
        elif isinstance(child, str) and not below and path[:depth] == ("network",):
            child = {"profile": child}
        elif not isinstance(child, dict | list):
            raise InputError(f"is {child!r}, which has no keys", key=join_key(below, *path[:depth]))
        node[part] = child
        node = child
    last = path[-1]
    if last == "use" and _family_at(path[:-1]) is not None and _at(node, last, path) != value:
        node.clear()
    _at(node, last, path)
    node[last] = value


def _at(node: Any, part: str | int, path: tuple[str | int, ...]) -> Any:
    if isinstance(node, dict):
        return node.get(part)
    if not isinstance(part, int) or part >= len(node):
        raise InputError(f"the list has no entry {part!r}; it has 0 to {len(node) - 1}", key=join_key(*path))
    return node[part]


def _merged(base: Mapping[Any, Any], top: Mapping[Any, Any]) -> dict[Any, Any]:
    """`base` with the values of `top` over it, block by block."""
    result = dict(base)
    for key, value in top.items():
        below = result.get(key)
        result[key] = _merged(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return result


def _listed(schedulers: object, name: object) -> object:
    """The file's entry for the scheduler `name`, keys included; else the name itself."""
    entries = schedulers if isinstance(schedulers, list) else []
    return next((e for e in entries if isinstance(e, dict) and e.get("use") == name), name)


@contextmanager
def _blaming(settings: Sequence[Override], source: str, below: str = "") -> Iterator[None]:
    """Name the option that set the wrong value as the source of a mistake, or else `source`, the file."""
    try:
        yield
    except InputError as error:
        if error.source:
            raise
        for setting in reversed(settings):
            path, wrong = f"{join_key(below, *setting.block)}.", f"{error.key}."
            if error.key and (wrong.startswith(path) or path.startswith(wrong)):
                raise InputError(error.message, source=setting.source, key=error.key) from error
        raise InputError(error.message, source=source, key=error.key) from error


_Model = TypeVar("_Model", bound=BaseModel)


def _read(model: type[_Model], data: Mapping[Any, Any]) -> _Model:
    try:
        # Strict JSON has lists for tuples and text for integer keys, but no True for 1 and no "3" for 3.
        return model.model_validate_json(json.dumps(data), strict=True)
    except ValidationError as error:
        key = "network" if model is NetworkSettings else ""
        raise input_error(error, model, key=key) from error


# --- YAML -------------------------------------------------------------------------------------------------------------


class _Loader(yaml.SafeLoader):
    """The JSON part of YAML 1.2, without duplicate keys."""

    yaml_constructors: ClassVar[dict[Any, Callable[..., Any]]] = {
        tag: constructor
        for tag, constructor in yaml.SafeLoader.yaml_constructors.items()
        if tag is None or str(tag).rpartition(":")[2] in ("null", "bool", "int", "float", "str", "seq", "map")
    }

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Refuse a key that stands twice, before `<<` adds what may be overridden."""
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag.rpartition(":")[2] not in ("str", "int", "merge"):
                raise _wrong(key, "a key must be text or a whole number")
            if key.value in seen:
                raise _wrong(key, f"the key {key.value!r} stands twice")
            seen.add(key.value)
        super().flatten_mapping(node)

    def construct_finite(self, node: yaml.ScalarNode) -> float:
        """A float that is not infinite."""
        value = float(str(node.value))
        if not math.isfinite(value):
            raise _wrong(node, f"{node.value} is too large a number")
        return value


def _wrong(node: yaml.Node, message: str) -> yaml.constructor.ConstructorError:
    return yaml.constructor.ConstructorError(None, None, message, node.start_mark)


_Loader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in (
    ("bool", r"true|false", "tf"),
    ("null", r"~|null|", ["~", "n", ""]),
    ("int", r"[-+]?(0|[1-9][0-9]*)", "-+0123456789"),
    ("float", r"[-+]?(\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?", "-+.0123456789"),
    ("merge", r"<<", "<"),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), list(_first))
_Loader.add_constructor("tag:yaml.org,2002:float", _Loader.construct_finite)


def read_yaml(path: Path) -> dict[str | int, Any]:
    """A YAML file that holds one block of keys.

    Raises
    ------
    InputError : it cannot be read, is not YAML (with the line), is empty, or holds something else.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read: {error}", source=str(path)) from error
    data = _parse_yaml(text, str(path))
    if data is None:
        raise InputError("is empty", source=str(path))
    if not isinstance(data, dict):
        raise InputError(f"must hold a block of keys, not {type(data).__name__}", source=str(path))
    return data


def _parse_yaml(text: str, source: str) -> Any:
    try:
        data = yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        line = f"line {mark.line + 1}: " if mark is not None else ""
        raise InputError(f"{line}{error.problem}", source=source) from error
    except yaml.YAMLError as error:
        raise InputError(f"not YAML: {error}", source=source) from error
    return _unshared(data, source)


def _unshared(value: Any, source: str, depth: int = 0) -> Any:
    """A copy in which an alias is a block of its own, so that setting a key in one place leaves the others alone."""
    if depth > _MAX_DEPTH:
        raise InputError(f"is nested more than {_MAX_DEPTH} deep", source=source)
    if isinstance(value, dict):
        return {key: _unshared(below, source, depth + 1) for key, below in value.items()}
    if isinstance(value, list):
        return [_unshared(below, source, depth + 1) for below in value]
    return value
