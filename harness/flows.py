"""Runs a plain list of flows on a topology, without the co-simulation: reads the list and the paths, runs, writes.

Flow lists are text files of the HPCC family, or CSV with the columns of `FLOW_COLUMNS`, nodes by name or id.
"""

from __future__ import annotations

import csv
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from harness import results
from harness.errors import InputError, Interrupted, RunFailure
from harness.network_settings import NetworkSettings
from harness.packet import network as packet_network
from harness.routing import Router, ideal_fct_ps, queue_pair_flows, serialisation_ps
from harness.types import TRAFFIC_CLASSES, Int64Array, KVFlow, NetworkResult, Progress, RunResult, Topology
from harness.units import parse_duration, parse_size
from topologies import hpcc

FLOW_COLUMNS = ("flow_id", "src", "dst", "size_bytes", "start_s")
PATH_COLUMNS = ("direction", "flow_id", "nodes_transmitting_in_order", "final_node")

FCT_COLUMNS = ("flow_id", "src", "dst", "size_bytes", "start_s", "fct_us", "ideal_fct_us", "slowdown")

#: What totals.csv begins with; the other counters follow. Packets are data and ACKs; a link transmission is a frame on
#: a link, PFC frames included.
TOTALS_COLUMNS = (
    "packets",
    "link_transmissions",
    "ecn_marks",
    "cnps",
    "pfc_frames",
    "drops",
    "retransmitted_bytes",
    "max_queue_bytes",
)

#: Different paths for flows between the same two NICs need different UDP source ports; so many are tried for each.
_SEEDS_TRIED = 100_000

Key = tuple[int, int, int]
Ports = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Flow:
    """A line of a flow list; `src` and `dst` are node ids, `written` what the list calls them."""

    id: int
    src: int
    dst: int
    size_bytes: int
    start_ps: int
    written: tuple[str, str]


@dataclass(frozen=True, slots=True)
class PinnedPaths:
    """The egress ports of a flow's data packets and of its ACKs, in order."""

    data: Ports
    ack: Ports


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run recorded, each flow's time alone on its paths, and how it ended; `message` says why not well."""

    network: NetworkResult
    ideal_ps: Mapping[int, int]
    status: Literal["complete", "interrupted", "failed"]
    message: str = ""
    traces: Mapping[str, Int64Array] = field(default_factory=dict)


# --- Reading ----------------------------------------------------------------------------------------------------------


def read_flow_list(path: Path, topology: Topology) -> tuple[Flow, ...]:
    """Read a flow list whose ends are hosts of `topology`: CSV if its first line has a comma, else HPCC text.

    Raises
    ------
    InputError : no such file, no flow in it, or a line that cannot be read (with its number).
    """
    if "," in _text(path).lstrip().partition("\n")[0]:
        flows = _read_flow_csv(path, topology)
    else:
        flows = tuple(
            Flow(i, f.src, f.dst, f.size_bytes, f.start_ps, (str(f.src), str(f.dst)))
            for i, f in enumerate(hpcc.read_flows(path, topology))
        )
    if not flows:
        raise InputError("holds no flow", source=str(path))
    return flows


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read: {error}", source=str(path)) from error


def _rows(path: Path, columns: Sequence[str], *, others: bool) -> Iterator[tuple[str, dict[str, str]]]:
    """The rows of a CSV file, each with its place for messages."""
    reader = csv.DictReader(_text(path).splitlines(), skipinitialspace=True)
    head = [name.strip() for name in reader.fieldnames or ()]
    reader.fieldnames = head
    missing = [name for name in columns if name not in head]
    unknown = [name for name in head if name not in columns and not others]
    if missing or unknown:
        what = f"has no column {missing[0]!r}" if missing else f"has an unknown column {unknown[0]!r}"
        raise InputError(f"{what}; the columns are {', '.join(columns)}", source=f"{path}:1")
    for row in reader:
        place = f"{path}:{reader.line_num}"
        if None in row or None in row.values():
            raise InputError(f"the line must have {len(head)} fields", source=place)
        yield place, {name: str(value).strip() for name, value in row.items()}


def _read_flow_csv(path: Path, topology: Topology) -> tuple[Flow, ...]:
    node_ids = _node_ids(topology)
    flows: dict[int, Flow] = {}
    for place, row in _rows(path, FLOW_COLUMNS, others=False):
        flow_id = _whole_number(row["flow_id"], "flow_id", place)
        if flow_id in flows:
            raise InputError(f"flow_id {flow_id} stands twice", source=place)
        src, dst = (_node(row[key], key, topology, node_ids, place) for key in ("src", "dst"))
        for node in (src, dst):
            if topology.nodes[node].kind != "host":
                raise InputError(f"{topology.nodes[node].name} is a switch; a flow runs between hosts", source=place)
        if src == dst:
            raise InputError(f"a flow from {topology.nodes[src].name} to itself", source=place)
        try:
            size = row["size_bytes"]
            size_bytes = parse_size(int(size) if size.removeprefix("-").isdecimal() else size)
            start_ps = parse_duration(f"{row['start_s']}s")
        except InputError as error:
            raise InputError(error.message, source=place) from error
        if size_bytes == 0:
            raise InputError("size_bytes: given 0, must be above 0", source=place)
        flows[flow_id] = Flow(flow_id, src, dst, size_bytes, start_ps, (row["src"], row["dst"]))
    return tuple(flows.values())


def read_paths(path: Path, topology: Topology, flows: Sequence[Flow]) -> dict[int, PinnedPaths]:
    """Read the paths of all `flows` from CSV with the columns of `PATH_COLUMNS` (others are not looked at).

    `direction` is data or ack; the nodes that transmit are separated by spaces. Without an ack line, a flow's ACKs take
    the way of its data back. Of parallel links, ``a#0``, ``a#1``, ... names the one by which node a transmits, in the
    topology's order.

    Raises
    ------
    InputError : a line that cannot be read or that does not fit its flow (with its number), or a flow without a path.
    """
    node_ids = _node_ids(topology)
    links = _links_between(topology)
    by_id = {flow.id: flow for flow in flows}
    found: dict[tuple[str, int], Ports] = {}
    for place, row in _rows(path, PATH_COLUMNS, others=True):
        direction, flow_id = row["direction"], _whole_number(row["flow_id"], "flow_id", place)
        if direction not in ("data", "ack"):
            raise InputError(f"direction: given {direction!r}, allowed: data, ack", source=place)
        if flow_id not in by_id:
            raise InputError(f"there is no flow {flow_id} in the flow list", source=place)
        if (direction, flow_id) in found:
            raise InputError(f"the {direction} path of flow {flow_id} stands twice", source=place)
        ports = _ports(row["nodes_transmitting_in_order"], row["final_node"], topology, node_ids, links, place)
        flow = by_id[flow_id]
        ends = (flow.src, flow.dst) if direction == "data" else (flow.dst, flow.src)
        if (topology.port_node(ports[0]), topology.port_node(ports[-1] ^ 1)) != ends:
            a, b = (topology.nodes[node].name for node in ends)
            raise InputError(f"the {direction} path of flow {flow_id} must lead from {a} to {b}", source=place)
        found[direction, flow_id] = ports
    pinned = {}
    for flow in flows:
        data = found.get(("data", flow.id))
        if data is None:
            raise InputError(f"flow {flow.id} has no data path", source=str(path))
        back = tuple(port ^ 1 for port in reversed(data))
        pinned[flow.id] = PinnedPaths(data, found.get(("ack", flow.id), back))
    return pinned


def _ports(
    transmitting: str,
    final: str,
    topology: Topology,
    node_ids: Mapping[str, int],
    links: Mapping[tuple[int, int], Sequence[int]],
    place: str,
) -> Ports:
    """The egress ports of a path that is written as nodes."""
    steps = [text.partition("#") for text in transmitting.split()]
    if not steps:
        raise InputError("nodes_transmitting_in_order is empty", source=place)
    nodes = [_node(text, "node", topology, node_ids, place) for text in (*(name for name, _, _ in steps), final)]
    for node in nodes[1:-1]:
        if topology.nodes[node].kind == "host":
            raise InputError(f"{topology.nodes[node].name} is a host and forwards nothing", source=place)
    ports = []
    for a, b, (_, tagged, tag) in zip(nodes[:-1], nodes[1:], steps, strict=True):
        parallel = links.get((a, b), ())
        name, to = topology.nodes[a].name, topology.nodes[b].name
        if not parallel:
            raise InputError(f"there is no link from {name} to {to}", source=place)
        if tagged:
            k = _whole_number(tag, "link", place)
            if k >= len(parallel):
                raise InputError(f"link #{k} from {name} to {to}: there are {len(parallel)}, from #0 on", source=place)
            ports.append(parallel[k])
        elif len(parallel) == 1:
            ports.append(parallel[0])
        else:
            ways = " or ".join(f"{name}#{k}" for k in range(len(parallel)))
            raise InputError(f"there are {len(parallel)} links from {name} to {to}: write {ways}", source=place)
    return tuple(ports)


def _links_between(topology: Topology) -> dict[tuple[int, int], list[int]]:
    """Per ordered pair of different nodes, the ports of the first that lead to the second."""
    links: dict[tuple[int, int], list[int]] = {}
    for port in range(topology.n_ports):
        a, b = topology.port_node(port), topology.port_node(port ^ 1)
        if a != b:
            links.setdefault((a, b), []).append(port)
    return links


def _node_ids(topology: Topology) -> dict[str, int]:
    """Node ids by name and by number; a name that looks like a number is a name."""
    return {**{str(node.id): node.id for node in topology.nodes}, **{node.name: node.id for node in topology.nodes}}


def _node(text: str, what: str, topology: Topology, node_ids: Mapping[str, int], place: str) -> int:
    if text not in node_ids:
        first, last = topology.nodes[0].name, topology.nodes[-1].name
        allowed = f"0 to {len(topology.nodes) - 1}, or a name from {first} to {last}"
        raise InputError(f"{what}: unknown node {text!r}; allowed: {allowed}", source=place)
    return node_ids[text]


def _whole_number(text: str, what: str, place: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise InputError(f"{what}: given {text!r}, must be a whole number", source=place)
    return int(text)


# --- Running ----------------------------------------------------------------------------------------------------------


def transfers(topology: Topology, flows: Sequence[Flow], *, seed: int) -> list[tuple[KVFlow, int]]:
    """The flows as the network takes them, each with its start [ps].

    A flow may use all NICs of its hosts, paired in the order of their ids; the key `striping` says which it does.

    Raises
    ------
    InputError : no path leads from one end to the other.
    """
    router = Router(topology)
    nics: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for src, dst in dict.fromkeys((flow.src, flow.dst) for flow in flows):
        nics[src, dst] = _nic_pairs(topology, src, dst)
        for pair in nics[src, dst]:
            router.check_connected(pair)
    return [
        (
            KVFlow(
                flow.id,
                "kv",
                tuple(a for a, _ in nics[flow.src, flow.dst]),
                tuple(b for _, b in nics[flow.src, flow.dst]),
                flow.size_bytes,
                path_seed=seed,
            ),
            flow.start_ps,
        )
        for flow in flows
    ]


def _nic_pairs(topology: Topology, src: int, dst: int) -> list[tuple[int, int]]:
    direct = [(port, port ^ 1) for port in topology.ports_of[src] if topology.port_node(port ^ 1) == dst]
    if direct:
        return direct

    def nics(host: int) -> list[int]:
        return [p for p in topology.ports_of[host] if topology.nodes[topology.port_node(p ^ 1)].kind != "host"]

    pairs = list(zip(nics(src), nics(dst), strict=False))
    if not pairs:
        names = " to ".join(topology.nodes[node].name for node in (src, dst))
        raise InputError(f"no path from {names}", source=f"topology {topology.name}")
    return pairs


def pinned_transfers(
    flows: Sequence[Flow], paths: Mapping[int, PinnedPaths], settings: NetworkSettings, *, seed: int
) -> tuple[list[tuple[KVFlow, int]], dict[Key, Ports]]:
    """The flows as the network takes them, and the paths of their queue pairs, all of one flow's alike.

    Queue pairs between the same NICs are told apart by their UDP source ports: a flow whose ports are taken by one with
    other paths draws others.

    Raises
    ------
    InputError : more flows with different paths than there are source ports.
    """
    chosen: dict[Key, Ports] = {}
    started = []
    transport = settings.transport
    for flow in flows:
        path = paths[flow.id]
        src, dst = path.data[0], path.data[-1] ^ 1
        for attempt in range(_SEEDS_TRIED):
            kv = KVFlow(flow.id, "kv", (src,), (dst,), flow.size_bytes, path_seed=seed + attempt)
            own: dict[Key, Ports] = {}
            for part in queue_pair_flows(kv, striping=transport.striping, queue_pairs=transport.queue_pairs):
                own[src, dst, part.udp_sport] = path.data
                own[dst, src, part.udp_sport] = path.ack
            if all(chosen.get(key, ports) == ports for key, ports in own.items()):
                break
        else:
            raise InputError(f"flow {flow.id}: no UDP source port is left for its path", key="network.load_balancing")
        chosen |= own
        started.append((kv, flow.start_ps))
    return started, chosen


def check(topology: Topology, settings: NetworkSettings, paths: Mapping[int, PinnedPaths] | None) -> None:
    """Raise InputError for settings that do not fit the topology, or paths that they do not ask for, or the reverse."""
    packet_network.check(topology, settings)
    if (settings.load_balancing.use == "pinned") != (paths is not None):
        raise InputError(
            "a file of paths (--paths) and --set load_balancing.use=pinned go together: one needs the other",
            key="network.load_balancing.use",
        )


def run(
    topology: Topology,
    flows: Sequence[Flow],
    settings: NetworkSettings,
    *,
    seed: int = 1,
    paths: Mapping[int, PinnedPaths] | None = None,
    trace_ports: Sequence[int] = (),
    trace_interval_ps: int = packet_network.TRACE_INTERVAL_PS,
    on_progress: Callable[[Progress], None] | None = None,
) -> Outcome:
    """Run all flows to their end on the packet model.

    Parameters
    ----------
    seed : of the UDP source ports, the switches' hashes and the marks.
    paths : per flow; given if and only if `load_balancing.use` is `pinned`.
    trace_ports, trace_interval_ps : as PacketNetwork takes them.

    Raises
    ------
    InputError : parts that do not go together. A deadlock and Ctrl-C are told by the outcome, which has what there is.
    """
    pinned = None
    check(topology, settings, paths)
    if paths is None:
        started = transfers(topology, flows, seed=seed)
    else:
        started, pinned = pinned_transfers(flows, paths, settings, seed=seed)
    stopped = threading.Event()

    def heartbeat(progress: Progress) -> None:
        if stopped.is_set():
            raise KeyboardInterrupt
        if on_progress is not None:
            on_progress(progress)

    network = packet_network.PacketNetwork(
        topology,
        settings,
        seed=seed,
        pinned=pinned,
        on_heartbeat=heartbeat,
        trace_ports=trace_ports,
        trace_interval_ps=trace_interval_ps,
    )
    for kv, start_ps in started:
        network.start(kv, start_ps)
    status: Literal["complete", "interrupted", "failed"] = "complete"
    message = ""
    with _ctrl_c_sets(stopped):
        try:
            network.run()
        except Interrupted:
            status = "interrupted"
        except RunFailure as error:
            status, message = "failed", str(error)
    ideal_ps = _ideal_ps(topology, [kv for kv, _ in started], settings, network.recorded, seed=seed, pinned=pinned)
    return Outcome(network.recorded, ideal_ps, status, message, network.port_traces if trace_ports else {})


def _ideal_ps(
    topology: Topology,
    transfers_run: Sequence[KVFlow],
    settings: NetworkSettings,
    network: NetworkResult,
    *,
    seed: int,
    pinned: Mapping[Key, Ports] | None,
) -> dict[int, int]:
    """Per flow a time that it cannot beat [ps]: alone, each queue pair on its path, all of a NIC's through that NIC.

    The last packet to leave a NIC is the last one of some queue pair; it leaves once all packets have, and then it and
    its ACK have to cross the rest of their paths.
    """
    table, transport, framing = network.flows, settings.transport, settings.framing
    ideal: dict[int, int] = {}
    for flow_id, ideal_ps in zip(table.transfer_id.tolist(), table.ideal_fct_ps.tolist(), strict=True):
        ideal[flow_id] = max(ideal_ps, ideal.get(flow_id, 0))
    if transport.queue_pairs == 1:
        return ideal
    router = Router(topology, seed=seed, seed_per_switch=settings.load_balancing.seed_per_switch, pinned=pinned)
    for kv in transfers_run:
        busy_ps: dict[int, int] = {}
        rest_ps: dict[int, int] = {}
        for part in queue_pair_flows(kv, striping=transport.striping, queue_pairs=transport.queue_pairs):
            nic = part.src_port
            full, rest = divmod(part.size_bytes, transport.payload_bytes)
            last_bytes = rest or transport.payload_bytes
            full_ps, last_ps = (
                serialisation_ps(
                    size + framing.data_overhead + framing.wire_gap,
                    topology.links[nic >> 1].rate_bps,
                    framing.rounding,
                )
                for size in (transport.payload_bytes, last_bytes)
            )
            busy_ps[nic] = busy_ps.get(nic, 0) + full * full_ps + (last_ps if rest else 0)
            there = router.path(nic, part.dst_port, part.udp_sport)
            back = router.path(part.dst_port, nic, part.udp_sport)
            after_ps = ideal_fct_ps(topology, there, back, last_bytes, settings) - last_ps
            rest_ps[nic] = min(after_ps, rest_ps.get(nic, after_ps))
        ideal[kv.id] = max(ideal.get(kv.id, 0), *(busy_ps[nic] + rest_ps[nic] for nic in busy_ps))
    return ideal


@contextmanager
def _ctrl_c_sets(pressed: threading.Event) -> Iterator[None]:
    """Inside, Ctrl-C sets the event, in place of an exception that could arise between Python and the event loop."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, lambda *_: pressed.set())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


# --- Writing ----------------------------------------------------------------------------------------------------------


def fct_rows(flows: Sequence[Flow], outcome: Outcome) -> list[dict[str, Any]]:
    """A row of `FCT_COLUMNS` per flow in the list's order; an unfinished flow has no times.

    A flow ends when all its queue pairs have.
    """
    table = outcome.network.flows
    parts: dict[int, list[int]] = {}
    for i, flow_id in enumerate(table.transfer_id.tolist()):
        parts.setdefault(flow_id, []).append(i)
    rows = []
    for flow in flows:
        own = parts.get(flow.id, [])
        row: dict[str, Any] = {
            "flow_id": flow.id,
            "src": flow.written[0],
            "dst": flow.written[1],
            "size_bytes": flow.size_bytes,
            "start_s": f"{flow.start_ps // 10**12}.{flow.start_ps % 10**12:012d}",
        }
        if own and all(table.end_ps[i] >= 0 for i in own):
            fct_ps = max(int(table.end_ps[i]) for i in own) - flow.start_ps
            ideal_ps = outcome.ideal_ps[flow.id]
            row |= {"fct_us": fct_ps / 1e6, "ideal_fct_us": ideal_ps / 1e6, "slowdown": fct_ps / ideal_ps}
        rows.append(row)
    return rows


def totals_row(network: NetworkResult) -> dict[str, int]:
    """The run's counters, beginning with `TOTALS_COLUMNS`."""
    counters = results.counters(network.totals)
    sums = {
        "packets": counters["data_packets"] + counters["ack_packets"],
        "link_transmissions": counters["data_hops"] + counters["control_hops"],
        "pfc_frames": counters["pfc_pauses"] + counters["pfc_resumes"],
    }
    every = {**sums, **counters}
    return {name: every[name] for name in dict.fromkeys((*TOTALS_COLUMNS, *counters))}


def write(
    out: Path,
    topology: Topology,
    flows: Sequence[Flow],
    settings: NetworkSettings,
    outcome: Outcome,
    *,
    seed: int,
    command: str,
) -> None:
    """Write fct.csv, totals.csv, links.parquet (one interval, the whole run) and, last, run.json.

    Of traced ports also traces.parquet and a figure each.

    Raises
    ------
    InputError : the directory may not be written.
    RunFailure : the disk is full or broken.
    """
    network = outcome.network
    results.make_directory(out)
    results.write_csv(out / "fct.csv", FCT_COLUMNS, fct_rows(flows, outcome))
    totals = totals_row(network)
    results.write_csv(out / "totals.csv", list(totals), [totals])
    first_ps = min(flow.start_ps for flow in flows)
    results.write_parquet(out / "links.parquet", [results.links_table(_run_result(outcome, first_ps, seed), topology)])
    if outcome.traces:
        _write_traces(out, results.traces_table(outcome.traces, topology), seed)
    manifest = {
        "command": command,
        "status": outcome.status,
        "message": outcome.message,
        "seed": seed,
        "topology": topology.name,
        "flows": len(flows),
        "network": settings.model_dump(mode="json"),
        "counters": totals,
        "versions": results.versions(),
        "host": results.host(),
    }
    results.write_json(out / "run.json", manifest)


def _write_traces(out: Path, table: pa.Table, seed: int) -> None:
    from harness import figures  # here, as it loads matplotlib and seaborn

    results.write_parquet(out / "traces.parquet", [table])
    results.make_directory(out / "figures")
    frame = table.to_pandas().assign(scheduler="", seed=seed)
    for name, image in figures.draw((), None, None, frame).items():
        results.write_bytes(out / "figures" / name, image)


def _run_result(outcome: Outcome, first_ps: int, seed: int) -> RunResult:
    sample = outcome.network.port_totals
    n = len(sample.marks)
    by_class = {f"{name}_bytes": sample.tx_bytes[:, i] for i, name in enumerate(TRAFFIC_CLASSES)}
    links = {
        "port": np.arange(n, dtype=np.int64),
        "start_ps": np.full(n, min(first_ps, sample.now_ps - 1), dtype=np.int64),
        "end_ps": np.full(n, sample.now_ps, dtype=np.int64),
        **by_class,
        "ecn_marks": sample.marks,
        "paused_ps": sample.paused_ps,
        "queue_max_bytes": sample.queue_max_bytes,
    }
    return RunResult("packet", "", seed, (), outcome.network, links, outcome.status)
