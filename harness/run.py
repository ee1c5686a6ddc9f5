"""The composition root: builds one run from a resolved scenario, runs it, and says beforehand what it will cost."""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from harness import components, results
from harness.components import ComponentSpec
from harness.config import Scenario, build_cluster, build_tiers, port_ids
from harness.engine import Engine
from harness.errors import InputError, Interrupted, RunFailure
from harness.fluid import MODELS
from harness.interfaces import Background, NetworkModel, ServiceTimes, Workload
from harness.packet import capture
from harness.routing import Router
from harness.types import Cluster, Int64Array, KVFlow, Progress, Request, RunResult, TierFacts, Topology

Backend = Literal["packet", "fluid"]

#: Called about every 0.1 s of wall time with how far the network is and how many requests have completed.
OnProgress = Callable[[Progress, int], None]

#: Keys of a scenario that say which cells there are, not what one of them does.
NOT_OF_A_CELL = ("backend", "schedulers", "seeds")


@dataclass(frozen=True)
class Streams:
    """Seeds of a repetition's random streams; equal for all schedulers and backends, so that differences are paired."""

    workload: int
    background: int
    paths: int  #: of the UDP source ports of KV flows
    network: int  #: of the switches' hashes and marks
    other: int  #: of schedulers' ties, oracles, service times


def streams(scenario: Scenario, repetition: int) -> Streams:
    """Derive the seeds from the scenario's name, its workload and the repetition, and from nothing else."""
    text = f"{scenario.name}\0{scenario.workload.use}\0{repetition}"
    entropy = int.from_bytes(hashlib.sha256(text.encode()).digest(), "big")
    children = np.random.SeedSequence(entropy).spawn(5)
    return Streams(*(int(child.generate_state(1, np.uint64)[0]) >> 1 for child in children))


@dataclass(frozen=True)
class _Parts:
    """All of a run that does not depend on the scheduler or the network model."""

    streams: Streams
    cluster: Cluster
    tiers: TierFacts
    requests: Sequence[Request]
    service_times: ServiceTimes
    background: Background
    context: dict[str, Any]


def _build_parts(scenario: Scenario, seed: int) -> _Parts:
    stream = streams(scenario, seed)
    cluster = build_cluster(scenario)
    tiers = build_tiers(scenario, cluster)
    context = {
        "seed": stream.other,
        "cluster": cluster,
        "tiers": tiers,
        "n_requests": scenario.requests,
        "block_tokens": scenario.block_tokens,
    }

    def create(family: str, spec: ComponentSpec, own_seed: int) -> Any:
        return components.create(family, spec, {**context, "seed": own_seed})

    workload: Workload = create("workload", scenario.workload, stream.workload)
    background: Background = create("background", scenario.background, stream.background)
    service_times: ServiceTimes = create("serving", scenario.serving, stream.other)
    return _Parts(stream, cluster, tiers, workload.requests(), service_times, background, context)


def _build_network(
    scenario: Scenario,
    parts: _Parts,
    backend: Backend,
    on_heartbeat: Callable[[Progress], None],
    pcap: Mapping[int, Path],
) -> tuple[NetworkModel, Callable[[], Mapping[str, Int64Array]]]:
    """The network model, and what tells the traces of its ports until now."""
    topology = _left_over(parts.cluster.topology, parts.background)
    settings, seed = scenario.network, parts.streams.network
    if backend == "fluid":
        return MODELS[scenario.fluid](topology, settings, seed=seed, on_heartbeat=on_heartbeat), dict
    from harness.packet.network import PacketNetwork  # here, as it loads cppyy and ns-3

    network = PacketNetwork(
        topology,
        settings,
        seed=seed,
        on_heartbeat=on_heartbeat,
        trace_ports=port_ids(topology, scenario.trace_ports),
        trace_interval_ps=scenario.trace_interval,
        pcap=pcap,
        pcap_snap_bytes=scenario.pcap_payload,
    )
    return network, (lambda: network.port_traces) if scenario.trace_ports else dict


def _left_over(topology: Topology, background: Background) -> Topology:
    """The fabric with what the background leaves of each link's rate."""
    left = {tier: 1 - share for tier, share in background.taken_share.items() if share}
    return replace(
        topology,
        links=tuple(
            replace(link, rate_bps=round(link.rate_bps * left[link.tier])) if link.tier in left else link
            for link in topology.links
        ),
    )


def build_network_model(scenario: Scenario) -> None:
    """Compile the packet model with the scenario's C++ header in it, if it is needed and not compiled yet.

    Raises
    ------
    InputError : there is no compiler, or it does not accept the header.
    """
    if "packet" in scenario.backends:
        from harness.packet import runtime

        header = scenario.network.cc.header
        runtime.build(() if header is None else (Path(header),))
        if scenario.background.use == "ns3-tcp":
            runtime.build_stock()


def network_warnings(scenario: Scenario) -> list[str]:
    """What an expert would want to know of the network's settings before the run."""
    if "packet" not in scenario.backends:
        return []
    from harness.packet.network import warnings

    parts = _build_parts(scenario, 1)
    return warnings(_left_over(parts.cluster.topology, parts.background), scenario.network)


def _build_engine(
    scenario: Scenario, parts: _Parts, network: NetworkModel, backend: Backend, scheduler: ComponentSpec, seed: int
) -> Engine:
    return Engine(
        requests=parts.requests,
        scheduler=components.create("scheduler", scheduler, parts.context),
        oracle=components.create("oracle", scenario.oracle, parts.context),
        service_times=parts.service_times,
        background=parts.background,
        cluster=parts.cluster,
        network=network,
        kv_bytes_per_token=scenario.model.kv_bytes_per_token,
        layers=scenario.model.layers,
        kv_memory_bytes=scenario.cluster.kv_memory_bytes,
        block_tokens=scenario.block_tokens,
        layer_groups=scenario.layer_groups,
        decision_at=scenario.decision_at,
        prefix_hit_shortens_prefill=scenario.prefix_hit_shortens_prefill,
        warmup_share=scenario.warmup_share,
        link_sampling_ps=scenario.link_sampling,
        path_seed=parts.streams.paths,
        backend=backend,
        scheduler_name=label(scheduler),
        seed=seed,
    )


def run_cell(
    scenario: Scenario,
    backend: Backend,
    scheduler: ComponentSpec,
    seed: int,
    on_progress: OnProgress | None = None,
    on_partial: Callable[[RunResult], None] | None = None,
    pcap_prefix: str = "",
) -> RunResult:
    """Run one scheduler with one seed on one network model.

    Parameters
    ----------
    on_partial : is given what was recorded until then when the run ends early, before the exception goes on.
    pcap_prefix : of the paths of the scenario's captures, see harness/packet/capture.py.

    Raises
    ------
    InputError : the parts do not go together.
    RunFailure : an invariant broke.
    Interrupted, KeyboardInterrupt : the run was stopped.
    Exception : whatever a component raised, unchanged.
    """
    scenario = scenario.of(backend)
    parts = _build_parts(scenario, seed)
    engine: Engine | None = None

    def heartbeat(progress: Progress) -> None:
        if on_progress is not None and engine is not None:
            on_progress(progress, engine.completed)

    captures = capture.files(parts.cluster.topology, scenario.pcap, pcap_prefix)
    network, traces = _build_network(scenario, parts, backend, heartbeat, captures)
    engine = _build_engine(scenario, parts, network, backend, scheduler, seed)
    try:
        return replace(engine.run(), traces=traces())
    except BaseException as error:
        stopped = isinstance(error, Interrupted | KeyboardInterrupt)
        if on_partial is not None:
            on_partial(replace(engine.result("interrupted" if stopped else "failed"), traces=traces()))
        raise


def label(scheduler: ComponentSpec) -> str:
    """The scheduler's name in every table."""
    return components.label("scheduler", scheduler)


# --- What a cell is ---------------------------------------------------------------------------------------------------


def cell_scenario(scenario: Scenario, backend: Backend) -> dict[str, Any]:
    """The keys of the scenario that decide what a cell of this backend does, as JSON values."""
    of_the_other = ("fluid",) if backend == "packet" else ("trace_ports", "trace_interval", "pcap", "pcap_payload")
    left_out = (*NOT_OF_A_CELL, *of_the_other)
    return {key: value for key, value in scenario.of(backend).to_json().items() if key not in left_out}


def cell_digest(scenario: Scenario, backend: Backend, scheduler: ComponentSpec, seed: int) -> str:
    """SHA-256 of what decides a cell's result beside the project's code: configuration, plug-ins' sources, traces."""
    scenario = scenario.of(backend)
    cell = {
        "scenario": cell_scenario(scenario, backend),
        "backend": backend,
        "scheduler": scheduler.to_json(),
        "seed": seed,
        "plug_ins": plug_in_digests(scenario, scheduler),
    }
    return hashlib.sha256(json.dumps(cell, sort_keys=True).encode()).hexdigest()


def plug_in_digests(scenario: Scenario, scheduler: ComponentSpec) -> dict[str, str]:
    """SHA-256 of every file outside the project that the cell reads: classes, a C++ header, traces, topology files."""
    specs = {
        "topology": scenario.topology,
        "placement": scenario.cluster.placement,
        "workload": scenario.workload,
        "serving": scenario.serving,
        "oracle": scenario.oracle,
        "background": scenario.background,
        "scheduler": scheduler,
    }
    paths = {}
    for family, spec in specs.items():
        if spec.use not in components.FAMILIES[family]:
            source = inspect.getsourcefile(components.resolve(family, spec.use))
            if source is not None:
                paths[f"{family} {spec.use}"] = Path(source)
    if scenario.network.cc.header is not None:
        paths["header"] = Path(scenario.network.cc.header)
    for family, spec in specs.items():
        if isinstance(path := spec.params.get("path"), str):
            paths[f"{family}.path"] = Path(path)
    return {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in paths.items() if path.is_file()}


# --- What a cell costs ------------------------------------------------------------------------------------------------

#: Background flows looked at to extrapolate their rate: the sum of this many exponential sizes is known to 2 %.
_BACKGROUND_SAMPLE = 2000

#: Pairs of instances looked at for the mean number of links between them.
_PAIR_SAMPLE = 256


@dataclass(frozen=True)
class Cost:
    """What a cell is expected to need when placed at random; its seconds are proportional to `work`."""

    data_packets: int
    data_hops: int
    flows: int
    work: float
    seconds: float
    memory_bytes: int


#: Of a cell that nobody planned.
NO_COST = Cost(0, 0, 0, 0.0, 0.0, 0)


@dataclass(frozen=True)
class _Speed:
    """Work per CPU second, and memory: fixed and per flow."""

    work_per_s: float
    base_bytes: int
    bytes_per_flow: int


#: Before anything was measured on this machine: scenarios/rag.yaml, quick, on one core of a 2-core virtual machine took
#: 11-13 M hops/s, or 15 k flows/s without packets; memory from runs with 290 k flows and with hardly any.
_DEFAULT_SPEED = {
    "packet": _Speed(11e6, 330_000_000, 300),
    "packet ns3-tcp": _Speed(3e5, 330_000_000, 5000),
    "fluid": _Speed(15e3, 135_000_000, 470),
}

#: Cells shorter than this say more about start-up than about speed [s].
_SHORTEST_MEASURED_S = 5.0


def estimate_cost(scenario: Scenario, backend: Backend, seed: int) -> Cost:
    """Expected packet-hops, seconds and memory of a cell, from its real requests and background flows.

    KV bytes are those left after the hits that random placement would have, carried over the mean path of all
    pairs of prefill and decode instance; background flows run until the last transfer.

    Raises
    ------
    InputError : the workload cannot be read, or a request can never be served.
    """
    scenario = scenario.of(backend)
    parts = _build_parts(scenario, seed)
    settings = scenario.network
    ecmp = settings.load_balancing.model_copy(update={"use": "ecmp"})
    some = settings.model_copy(update={"load_balancing": ecmp})
    fluid = MODELS["maxmin"](parts.cluster.topology, some, seed=0)  # not run: the engine checks requests and parts
    _build_engine(scenario, parts, fluid, backend, scenario.schedulers[0], seed)

    hops = _Hops(parts.cluster)
    payload = settings.transport.payload_bytes
    bytes_per_token = scenario.model.kv_bytes_per_token
    kv_bytes = expected_transfer_bytes(parts.requests, bytes_per_token, scenario.block_tokens, hops.n_decode)
    flows_per_transfer = settings.transport.queue_pairs * (
        len(parts.cluster.instances[0].nic_ports) if settings.transport.striping == "per-rank" else 1
    )
    kv_flows = len(parts.requests) * scenario.layer_groups * flows_per_transfer
    end_s = _expected_end_s(parts, bytes_per_token)
    rates = _background_rates(parts.background, hops, payload)
    data_packets = kv_bytes / payload + rates.packets_per_s * end_s
    data_hops = kv_bytes / payload * hops.mean + rates.hops_per_s * end_s
    flows = round(kv_flows + rates.flows_per_s * end_s)
    work = data_hops * (1 + 1 / settings.transport.ack_every) if backend == "packet" else flows
    speed = _speed(scenario, backend)
    return Cost(
        data_packets=round(data_packets) if backend == "packet" else 0,
        data_hops=round(data_hops) if backend == "packet" else 0,
        flows=flows,
        work=work,
        seconds=work / speed.work_per_s,
        memory_bytes=round(speed.base_bytes + flows * speed.bytes_per_flow),
    )


def expected_transfer_bytes(
    requests: Sequence[Request], kv_bytes_per_token: int, block_tokens: int, n_decode: int
) -> float:
    """KV bytes to move when every request goes to one of `n_decode` instances at random and no block is ever evicted.

    A block that k earlier requests had is on the chosen instance with probability 1 - (1 - 1/n)^k; whoever has a block
    has those before it.
    """
    seen: dict[int, int] = {}
    absent = 1 - 1 / n_decode
    tokens = 0.0
    for request in requests:
        tokens += request.input_tokens
        for i, block in enumerate(request.block_hashes):
            earlier = seen.get(block, 0)
            if earlier:
                tokens -= (1 - absent**earlier) * min(block_tokens, request.input_tokens - i * block_tokens)
            seen[block] = earlier + 1
    return tokens * kv_bytes_per_token


class _Hops:
    """Links between ports, and their mean over pairs of prefill and decode instance."""

    def __init__(self, cluster: Cluster) -> None:
        self._router = Router(cluster.topology)
        self._known: dict[tuple[int, int], int] = {}
        self.n_decode = len(cluster.decode)
        pairs = [(p, d) for p in cluster.prefill for d in cluster.decode]
        chosen = pairs[:: max(1, len(pairs) // _PAIR_SAMPLE)]
        self.mean = sum(self._of_pair(cluster, p, d) for p, d in chosen) / len(chosen)

    def _of_pair(self, cluster: Cluster, a: int, b: int) -> int:
        src, dst = cluster.instances[a], cluster.instances[b]
        return 1 if b in src.nvlink_ports else self.between(src.nic_ports[0], dst.nic_ports[0])

    def between(self, src_port: int, dst_port: int) -> int:
        """Links of a path; all shortest paths have as many."""
        if (src_port, dst_port) not in self._known:
            self._known[src_port, dst_port] = len(self._router.path(src_port, dst_port, 0))
        return self._known[src_port, dst_port]


@dataclass(frozen=True)
class _Rates:
    flows_per_s: float = 0.0
    packets_per_s: float = 0.0
    hops_per_s: float = 0.0


def _background_rates(background: Background, hops: _Hops, payload_bytes: int) -> _Rates:
    flows: list[tuple[int, KVFlow]] = [f for f, _ in zip(background.flows(), range(_BACKGROUND_SAMPLE), strict=False)]
    if not flows or not flows[-1][0]:
        return _Rates()
    packets = [-(-flow.size_bytes // payload_bytes) for _, flow in flows]
    links = [hops.between(flow.src_ports[0], flow.dst_ports[0]) for _, flow in flows]
    span_s = flows[-1][0] / 1e12
    return _Rates(
        len(flows) / span_s, sum(packets) / span_s, sum(n * h for n, h in zip(packets, links, strict=True)) / span_s
    )


def _expected_end_s(parts: _Parts, kv_bytes_per_token: int) -> float:
    """When the last transfer would end, if each were alone and crossed the slowest tier."""
    slowest_bps = min(bps for bps in parts.tiers.bandwidth_bps if bps)
    return max(
        (r.arrival_ps + parts.service_times.prefill_ps(r.input_tokens)) / 1e12
        + r.input_tokens * kv_bytes_per_token * 8 / slowest_bps
        for r in parts.requests
    )


# --- What earlier runs on this machine took ---------------------------------------------------------------------------


def _speed_key(scenario: Scenario, backend: Backend) -> str:
    if backend == "packet":
        return "packet ns3-tcp" if scenario.background.use == "ns3-tcp" else "packet"
    return f"fluid {scenario.fluid}"


def _speed_file() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "netkv-cosim" / "speed.json"


def _measured() -> dict[str, dict[str, float]]:
    """This machine's entries of the speed file; a file that is not what we write counts as none."""
    try:
        data = results.read_json(_speed_file())
    except (OSError, ValueError):
        return {}
    mine = data.get(platform.node(), {}) if isinstance(data, dict) else {}
    return {
        key: entry
        for key, entry in (mine.items() if isinstance(mine, dict) else ())
        if isinstance(entry, dict) and all(isinstance(v, int | float) and v > 0 for v in entry.values())
    }


def _speed(scenario: Scenario, backend: Backend) -> _Speed:
    default = _DEFAULT_SPEED.get(_speed_key(scenario, backend), _DEFAULT_SPEED[backend])
    entry = _measured().get(_speed_key(scenario, backend), {})
    base_bytes = round(entry.get("base_bytes", default.base_bytes))
    return _Speed(entry.get("work_per_s", default.work_per_s), base_bytes, default.bytes_per_flow)


def remember_speed(
    scenario: Scenario, backend: Backend, cost: Cost, *, seconds: float, work: float, memory_bytes: int
) -> None:
    """Let later estimates on this machine know what a cell took in CPU seconds; half weight to the newest."""
    if seconds < _SHORTEST_MEASURED_S:
        return
    measured = _measured()
    key = _speed_key(scenario, backend)
    now = {
        "work_per_s": work / seconds,
        "base_bytes": max(1, memory_bytes - cost.flows * _DEFAULT_SPEED[backend].bytes_per_flow),
    }
    before = measured.get(key, now)
    measured[key] = {name: (before.get(name, value) + value) / 2 for name, value in now.items()}
    file = _speed_file()
    # An estimate is a convenience: a home that cannot be written must not fail a run that is done.
    with suppress(OSError, InputError, RunFailure):
        data = results.read_json(file) if file.is_file() else {}
        results.make_directory(file.parent)
        results.write_json(file, {**(data if isinstance(data, dict) else {}), platform.node(): measured})


# --- Traces -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TraceFacts:
    """What a request trace holds."""

    requests: int
    span_s: float
    input_tokens: dict[str, float]  #: by statistic
    output_tokens: dict[str, float]
    blocks: int
    distinct_blocks: int
    ideal_hit_share: float  #: of all blocks, those in a leading run that an earlier request had


def trace_facts(path: Path) -> TraceFacts:
    """Read a Mooncake trace and count.

    Raises
    ------
    InputError : the file cannot be read, is empty, or a line is wrong.
    """
    try:
        with path.open("rb") as file:
            n = sum(1 for line in file if line.strip())
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", source=str(path)) from error
    context = {"n_requests": max(1, n), "block_tokens": 512}
    workload: Workload = components.create("workload", {"use": "mooncake", "path": str(path)}, context)
    requests = workload.requests()
    seen: set[int] = set()
    hits = 0
    for request in requests:
        for block in request.block_hashes:
            if block not in seen:
                break
            hits += 1
        seen.update(request.block_hashes)
    blocks = sum(len(r.block_hashes) for r in requests)
    return TraceFacts(
        requests=len(requests),
        span_s=(requests[-1].arrival_ps - requests[0].arrival_ps) / 1e12,
        input_tokens=_quantiles([r.input_tokens for r in requests]),
        output_tokens=_quantiles([r.output_tokens for r in requests]),
        blocks=blocks,
        distinct_blocks=len(seen),
        ideal_hit_share=hits / blocks if blocks else 0.0,
    )


def _quantiles(values: Sequence[int]) -> dict[str, float]:
    array = np.array(values, dtype=np.float64)
    quantiles = np.quantile(array, [0.5, 0.9, 0.99], method="inverted_cdf")  # lengths that occur
    return {
        "mean": float(array.mean()),
        "median": float(quantiles[0]),
        "p90": float(quantiles[1]),
        "p99": float(quantiles[2]),
        "max": float(array.max()),
    }
