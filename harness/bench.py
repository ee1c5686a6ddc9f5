"""How fast the packet model is: packet-hops per CPU second on fixed workloads.

A hop is a packet crossing a link. CPU seconds are those of the simulation's run alone (without start-up); each
measurement is the median of several runs in a process of its own.
"""

from __future__ import annotations

import multiprocessing
import resource
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from harness.config import load_network, load_scenario
from harness.results import host, versions
from harness.routing import Router, queue_pair_flows
from harness.types import KVFlow, Link, NetworkTotals, Node, Progress, Topology

GBPS = 10**9
RATE_BPS = 100 * GBPS
DELAY_PS = 1_000_000
MB = 10**6

#: (workload, payload [bytes]) in the order of the table.
CASES = (
    ("W1", 1000),
    ("W1", 4096),
    ("W2", 1000),
    ("W2", 4096),
    ("W3", 1000),
    ("W3", 4096),
    ("W4", 1000),
    ("W4", 4096),
    ("rag", 4096),
)
WORKLOADS = tuple(dict.fromkeys(name for name, _ in CASES))
ACK_EVERY = (1, 16)

#: Stock ns-3 carries this part of each flow.
BASELINE_SHARE = 20

#: Data packets in all of the runs that show whether time grows with anything but packets.
SCALING_PACKETS = (10**6, 10**7, 10**8, 10**9)

SCALING_COLUMNS = (
    "data_packets",
    "data_hops",
    "cpu_s",
    "data_hops_per_cpu_s",
    "first_tenth_per_cpu_s",
    "last_tenth_per_cpu_s",
    "first_tenth_rss_mib",
    "peak_rss_mib",
)


def _links(ends: Sequence[tuple[int, int]], rate_bps: int = RATE_BPS) -> tuple[Link, ...]:
    return tuple(Link(i, a, b, rate_bps, DELAY_PS, tier=1) for i, (a, b) in enumerate(ends))


def star(hosts: int, rate_bps: int = RATE_BPS) -> Topology:
    """Hosts 0, 1, ... on one switch; host i is port 2 i."""
    nodes = (*(Node(i, f"host{i}", "host") for i in range(hosts)), Node(hosts, "switch", "switch"))
    return Topology(f"star-{hosts}", nodes, _links([(i, hosts) for i in range(hosts)], rate_bps))


def three_tiers(pods: int, tors: int, hosts: int, aggs: int, cores: int) -> Topology:
    """Per pod `tors` ToRs of `hosts` hosts, each to all `aggs` aggregation switches, each of these to `cores` core
    switches.

    Aggregation switch j of every pod reaches the cores [j * cores, (j + 1) * cores) modulo their number where planes
    are separate (aggs * cores cores), or all of them where `cores` is their whole number.
    """
    n_hosts, n_tors, n_aggs = pods * tors * hosts, pods * tors, pods * aggs
    tor0, agg0, core0 = n_hosts, n_hosts + n_tors, n_hosts + n_tors + n_aggs
    n_cores = cores
    ends = [(h, tor0 + h // hosts) for h in range(n_hosts)]
    ends += [(tor0 + t, agg0 + t // tors * aggs + a) for t in range(n_tors) for a in range(aggs)]
    per_agg = min(n_cores, hosts)
    ends += [(agg0 + a, core0 + (a % aggs * per_agg + k) % n_cores) for a in range(n_aggs) for k in range(per_agg)]
    nodes = [Node(i, f"host{i}", "host") for i in range(n_hosts)]
    nodes += [Node(tor0 + i, f"tor{i}", "tor") for i in range(n_tors)]
    nodes += [Node(agg0 + i, f"agg{i}", "agg") for i in range(n_aggs)]
    nodes += [Node(core0 + i, f"core{i}", "core") for i in range(n_cores)]
    return Topology("three-tiers", tuple(nodes), _links(ends))


def workload(name: str) -> tuple[Topology, list[tuple[int, int, int]]]:
    """Fabric and flows (source port, destination port, bytes) of one workload; all links 100 Gb/s and 1 us.

    W1: one flow of 100 MB over two links. W2: 8-to-1 incast of 100 MB each. W3: 64 hosts, 16 ToR, 8 aggregation and 4
    core
    switches, flows i -> i + 17 of 20 MB. W4: 1024 hosts, 128 ToR with 8 uplinks, 128 aggregation and 64 core switches,
    flows i -> i + 129 of 1 MB.
    """
    if name == "W1":
        return star(2), [(0, 2, 100 * MB)]
    if name == "W2":
        return star(9), [(2 * i, 16, 100 * MB) for i in range(8)]
    if name == "W3":
        return three_tiers(pods=4, tors=4, hosts=4, aggs=2, cores=4), [
            (2 * i, 2 * ((i + 17) % 64), 20 * MB) for i in range(64)
        ]
    assert name == "W4", name
    fabric = three_tiers(pods=16, tors=8, hosts=8, aggs=8, cores=64)
    return fabric, [(2 * i, 2 * ((i + 129) % 1024), MB) for i in range(1024)]


def _run_flows(name: str, payload_bytes: int, ack_every: int) -> tuple[NetworkTotals, float]:
    from harness.packet.network import PacketNetwork

    fabric, flows = workload(name)
    overrides = [f"transport.ack_every={ack_every}"]
    network = PacketNetwork(fabric, load_network("hpcc-sim", overrides=overrides, payload_bytes=payload_bytes), seed=1)
    for i, (source, destination, size) in enumerate(flows):
        network.start(KVFlow(i, "kv", (source,), (destination,), size), 0)
    before = time.process_time()
    result = network.run()
    return result.totals, time.process_time() - before


def _run_rag(payload_bytes: int, ack_every: int) -> tuple[NetworkTotals, float]:
    """The co-simulation itself: rag with 40 requests under netkv-full, Python callbacks, oracle and background
    included.
    """
    from harness.run import run_cell

    overrides = [f"network.transport.payload_bytes={payload_bytes}", f"network.transport.ack_every={ack_every}"]
    scenario = load_scenario("rag", overrides=overrides, requests=40, schedulers=["netkv-full"], seeds=1)
    before = time.process_time()
    result = run_cell(scenario, "packet", scenario.schedulers[0], 1)
    return result.network.totals, time.process_time() - before


def _peak_rss_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(name: str, payload_bytes: int, ack_every: int, repeats: int) -> dict[str, Any]:
    """One row of the table, measured in this process."""
    runs = [
        _run_rag(payload_bytes, ack_every) if name == "rag" else _run_flows(name, payload_bytes, ack_every)
        for _ in range(repeats)
    ]
    totals = runs[0][0]
    seconds = statistics.median(s for _, s in runs)
    return {
        "workload": name,
        "payload_bytes": payload_bytes,
        "ack_every": ack_every,
        "engine": "ours",
        "data_hops_per_cpu_s": totals.data_hops / seconds,
        "all_hops_per_cpu_s": (totals.data_hops + totals.control_hops) / seconds,
        "events_per_data_hop": totals.events / totals.data_hops,
        "data_hops": totals.data_hops,
        "cpu_s": seconds,
        "peak_rss_mib": _peak_rss_mib(),
    }


def measure_scaling(packets: int) -> dict[str, Any]:
    """The incast of W2 with `packets` data packets of 1000 bytes in all (a multiple of 8), measured in this process.

    Speed [data hops per CPU second] and memory [MiB] in the first and the last tenth, None below ten heartbeats.

    Raises
    ------
    RuntimeError : not every byte was acknowledged.
    """
    from harness.packet.network import PacketNetwork

    fabric, flows = workload("W2")
    settings = load_network("hpcc-sim", overrides=["transport.ack_every=16"], payload_bytes=1000)
    size = packets // len(flows) * 1000
    beats: list[tuple[int, float, float]] = []  # data hops, CPU seconds, memory

    def on_heartbeat(progress: Progress) -> None:
        beats.append((progress.data_hops, time.process_time() - before, _peak_rss_mib()))

    network = PacketNetwork(fabric, settings, seed=1, on_heartbeat=on_heartbeat)
    for i, (source, destination, _) in enumerate(flows):
        network.start(KVFlow(i, "kv", (source,), (destination,), size), 0)
    before = time.process_time()
    totals = network.run().totals
    seconds = time.process_time() - before
    if totals.payload_bytes_acked != len(flows) * size:
        raise RuntimeError(f"{totals.payload_bytes_acked} of {len(flows) * size} bytes were acknowledged")
    tenth = len(beats) // 10
    first, last = beats[:tenth], beats[len(beats) - tenth :]
    return {
        "data_packets": packets,
        "data_hops": totals.data_hops,
        "cpu_s": seconds,
        "data_hops_per_cpu_s": totals.data_hops / seconds,
        "first_tenth_per_cpu_s": _speed(first),
        "last_tenth_per_cpu_s": _speed(last),
        "first_tenth_rss_mib": first[-1][2] if first else None,
        "peak_rss_mib": _peak_rss_mib(),
    }


def _speed(beats: Sequence[tuple[int, float, float]]) -> float | None:
    if len(beats) < 2:
        return None
    (hops, begin, _), (more_hops, end, _) = beats[0], beats[-1]
    return (more_hops - hops) / (end - begin)


def run_scaling(packets: Sequence[int] = SCALING_PACKETS, repeats: int = 5) -> dict[str, Any]:
    """Measure time and memory against packets, and two processes at a time against one.

    Returns
    -------
    machine, versions; rows: SCALING_COLUMNS, one per size; processes: of 1 and 2 processes that run W3 (4096 B, an ACK
    per 16) at the same time, data hops per CPU second in all, and how many times that of one.
    """
    context = multiprocessing.get_context("spawn")
    rows = []
    for n in packets:
        with context.Pool(1) as pool:
            rows.append(pool.apply(measure_scaling, (n,)))
    together: list[dict[str, Any]] = []
    for n in (1, 2):
        with context.Pool(n) as pool:
            runs = pool.starmap(measure, [("W3", 4096, 16, repeats)] * n, chunksize=1)
        speed = sum(run["data_hops_per_cpu_s"] for run in runs)
        one = together[0]["data_hops_per_cpu_s"] if together else speed
        together.append({"processes": n, "data_hops_per_cpu_s": speed, "times_one": speed / one})
    return {"machine": host(), "versions": versions(), "rows": rows, "processes": together}


def run_stock(name: str, payload_bytes: int, *, share: int, engine: str = "ns3::DefaultSimulatorImpl") -> Any:
    """A workload on stock ns-3 devices with UDP, on the same fabric and paths; flows are 1/`share` as long."""
    from harness.packet import runtime

    stock = runtime.load_baseline()
    fabric, flows = workload(name)
    router = Router(fabric, seed=1)
    cxx_links = []
    for link in fabric.links:
        row = stock.StockLink()
        row.nodeA, row.nodeB, row.rateBps, row.delayPs = link.a, link.b, link.rate_bps, link.delay_ps
        cxx_links.append(row)
    cxx_flows = []
    for i, (source, destination, size) in enumerate(flows):
        flow = KVFlow(i, "kv", (source,), (destination,), size // share)
        (part,) = queue_pair_flows(flow, striping="single", queue_pairs=1)
        ports = router.path(part.src_port, part.dst_port, part.udp_sport)
        row = stock.StockFlow()
        row.path = [fabric.port_node(p) for p in ports] + [fabric.port_node(ports[-1] ^ 1)]
        row.packets = -(-part.size_bytes // payload_bytes)
        cxx_flows.append(row)
    return stock.RunStock(len(fabric.nodes), cxx_links, cxx_flows, payload_bytes, engine)


def measure_baseline(name: str, payload_bytes: int) -> dict[str, Any]:
    """What a user would otherwise run, measured in this process. Its speed does not depend on the flows' length."""
    result = run_stock(name, payload_bytes, share=BASELINE_SHARE)
    return {
        "workload": name,
        "payload_bytes": payload_bytes,
        "ack_every": 0,
        "engine": "stock-ns3",
        "data_hops_per_cpu_s": result.hops / result.cpuSeconds,
        "all_hops_per_cpu_s": result.hops / result.cpuSeconds,
        "events_per_data_hop": result.events / result.hops,
        "data_hops": result.hops,
        "cpu_s": result.cpuSeconds,
        "peak_rss_mib": _peak_rss_mib(),
    }


def run_bench(
    *, workloads: Sequence[str] | None, ack_every: int | None, baseline: bool, repeats: int
) -> dict[str, Any]:
    """Measure, and return what `netkv-cosim bench --json` prints: machine, versions, rows.

    Parameters
    ----------
    workloads : names out of WORKLOADS, all by default.
    ack_every : data packets per ACK, 1 and 16 by default.
    baseline : measure stock ns-3 on the same fabric as well (not for rag).
    repeats : runs of which the median counts.
    """
    rows: list[dict[str, Any]] = []
    context = multiprocessing.get_context("spawn")
    for name, payload_bytes in CASES:
        if name not in (workloads or WORKLOADS):
            continue
        calls: list[tuple[Callable[..., dict[str, Any]], tuple[Any, ...]]] = [
            (measure, (name, payload_bytes, every, repeats)) for every in ([ack_every] if ack_every else ACK_EVERY)
        ]
        if baseline and name != "rag":
            calls.append((measure_baseline, (name, payload_bytes)))
        for function, arguments in calls:
            with context.Pool(1) as pool:  # a fresh process: its peak memory is the row's own
                rows.append(pool.apply(function, arguments))
    return {"machine": host(), "versions": versions(), "rows": rows}
