"""How fast the packet model is: packet-hops per CPU second on fixed workloads.

A hop is a packet crossing a link. CPU seconds are those of the simulation's run alone (without start-up); each
measurement is the median of several runs in a process of its own.
"""

from __future__ import annotations

import multiprocessing
import platform
import resource
import statistics
import time
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from typing import Any

from harness.config import load_network, load_scenario
from harness.types import KVFlow, Link, NetworkTotals, Node, Topology

GBPS = 10**9
RATE_BPS = 100 * GBPS
DELAY_PS = 1_000_000
MB = 10**6

#: (workload, payload [bytes]) in the order of the table.
CASES = (("W1", 1000), ("W1", 4096), ("W2", 1000), ("W2", 4096), ("W3", 1000), ("W3", 4096), ("W4", 1000), ("W4", 4096), ("rag", 4096))
WORKLOADS = tuple(dict.fromkeys(name for name, _ in CASES))
ACK_EVERY = (1, 16)


def _links(ends: Sequence[tuple[int, int]]) -> tuple[Link, ...]:
    return tuple(Link(i, a, b, RATE_BPS, DELAY_PS, tier=1) for i, (a, b) in enumerate(ends))


def star(hosts: int) -> Topology:
    """Hosts 0, 1, ... on one switch; host i is port 2 i."""
    nodes = (*(Node(i, f"host{i}", "host") for i in range(hosts)), Node(hosts, "switch", "switch"))
    return Topology(f"star-{hosts}", nodes, _links([(i, hosts) for i in range(hosts)]))


def three_tiers(pods: int, tors: int, hosts: int, aggs: int, cores: int) -> Topology:
    """Per pod `tors` ToRs of `hosts` hosts, each to all `aggs` aggregation switches, each of these to `cores` core switches.

    Aggregation switch j of every pod reaches the cores [j * cores, (j + 1) * cores) modulo their number where planes are
    separate (aggs * cores cores), or all of them where `cores` is their whole number.
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

    W1: one flow of 100 MB over two links. W2: 8-to-1 incast of 100 MB each. W3: 64 hosts, 16 ToR, 8 aggregation and 4 core
    switches, flows i -> i + 17 of 20 MB. W4: 1024 hosts, 128 ToR with 8 uplinks, 128 aggregation and 64 core switches, flows
    i -> i + 129 of 1 MB.
    """
    if name == "W1":
        return star(2), [(0, 2, 100 * MB)]
    if name == "W2":
        return star(9), [(2 * i, 16, 100 * MB) for i in range(8)]
    if name == "W3":
        return three_tiers(pods=4, tors=4, hosts=4, aggs=2, cores=4), [(2 * i, 2 * ((i + 17) % 64), 20 * MB) for i in range(64)]
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
    """The co-simulation itself: rag with 40 requests under netkv-full, Python callbacks, oracle and background included."""
    from harness.run import run_cell

    overrides = [f"network.transport.payload_bytes={payload_bytes}", f"network.transport.ack_every={ack_every}"]
    scenario = load_scenario("rag", overrides=overrides, requests=40, schedulers=["netkv-full"], seeds=1)
    before = time.process_time()
    result = run_cell(scenario, "packet", scenario.schedulers[0], 1)
    return result.network.totals, time.process_time() - before


def measure(name: str, payload_bytes: int, ack_every: int, repeats: int) -> dict[str, Any]:
    """One row of the table, measured in this process."""
    runs = [_run_rag(payload_bytes, ack_every) if name == "rag" else _run_flows(name, payload_bytes, ack_every) for _ in range(repeats)]
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
        "peak_rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def machine() -> str:
    """The processor's name, as the system tells it."""
    with open("/proc/cpuinfo", encoding="utf-8") as info:
        for line in info:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def rows(workloads: Sequence[str], ack_every: Sequence[int], repeats: int) -> Iterator[dict[str, Any]]:
    """The table's rows, as they are measured."""
    context = multiprocessing.get_context("spawn")
    for name, payload_bytes in CASES:
        if name not in workloads:
            continue
        for every in ack_every:
            with context.Pool(1) as pool:
                yield pool.apply(measure, (name, payload_bytes, every, repeats))


def versions() -> dict[str, str]:
    """Of what the figures depend on."""
    return {"python": platform.python_version(), **{name: version(name) for name in ("ns3", "cppyy", "netkv-cosim")}}


def run_bench(*, workloads: Sequence[str] | None, ack_every: int | None, baseline: bool, repeats: int) -> dict[str, Any]:
    """Measure, and return what `netkv-cosim bench --json` prints: machine, versions, rows.

    Parameters
    ----------
    workloads : names out of WORKLOADS, all by default.
    ack_every : data packets per ACK, 1 and 16 by default.
    baseline : measure stock ns-3 on the same fabric as well.
    repeats : runs of which the median counts.
    """
    measured = rows(workloads or WORKLOADS, ACK_EVERY if ack_every is None else (ack_every,), repeats)
    return {"machine": machine(), "versions": versions(), "rows": list(measured)}
