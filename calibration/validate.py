"""Holds the packet model against closed forms, theory and an independent simulator: a table of expected and got.

Every tolerance stands in the code of its row, with the reason; a miss is a failed row. The reference figures, and where
they come from, are in calibration/data.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from joblib import Parallel, delayed
from scipy.stats import chi2, spearmanr

from calibration import dcqcn_fluid, dcqcn_packet
from harness import flows, results
from harness.bench import star
from harness.config import load_network
from harness.errors import RunFailure
from harness.fluid.waterfill import INF, Band, Demand
from harness.network_settings import NetworkSettings
from harness.packet.network import PacketNetwork, warnings
from harness.routing import Router
from harness.types import Int64Array, KVFlow, Link, NetworkResult, Node, Topology
from topologies import hpcc

DATA = Path(str(files("calibration"))) / "data"

GBPS = 10**9
US = 10**6  # [ps]
MS = 10**9  # [ps]
MB = 10**6
SECOND = 10**12  # [ps]

COLUMNS = ("row", "case", "expected", "got", "tolerance", "source", "pass", "note")

REFERENCE = "astra-network-ns3 8fd36047"
SEEDS = (1, 2, 3, 4, 5)

#: Sizes of the profile roce-default on the wire [bytes].
PAYLOAD, DATA_WIRE, ACK_WIRE = 4096, 4096 + 82, 86


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table; `row` is the number of its group.

    A row without a verdict (`judged` false) passes. A `known_miss` is outside its tolerance for the cause in its note:
    it stays in the table as missed, and does not fail the command.
    """

    row: int
    case: str
    expected: str
    got: str
    tolerance: str
    source: str
    passed: bool
    note: str = ""
    judged: bool = True
    known_miss: bool = False

    @property
    def verdict(self) -> str:
        """The column `pass`."""
        if not self.judged:
            return "reported"
        return "yes" if self.passed else "missed" if self.known_miss else "no"

    @property
    def failed(self) -> bool:
        """Whether the command fails for this row."""
        return self.verdict == "no"


# --- Verdicts ---------------------------------------------------------------------------------------------------------


def _text(value: float | str) -> str:
    if isinstance(value, str):
        return value
    return str(value) if isinstance(value, int | np.integer) else f"{value:.6g}"


@dataclass(frozen=True)
class _Group:
    """Makes the rows of one group from one source."""

    row: int
    source: str

    def exact(self, case: str, expected: float | str, got: float | str, note: str = "") -> Row:
        return Row(self.row, case, _text(expected), _text(got), "exact", self.source, expected == got, note)

    def within(self, case: str, expected: float, got: float, share: float, note: str = "") -> Row:
        passed = abs(got - expected) <= share * abs(expected)
        return Row(self.row, case, _text(expected), _text(got), f"{100 * share:g} %", self.source, passed, note)

    def between(self, case: str, expected: float, got: float, low: float, high: float, note: str = "") -> Row:
        tolerance = f"{_text(low)} to {_text(high)}"
        return Row(self.row, case, _text(expected), _text(got), tolerance, self.source, low <= got <= high, note)

    def at_least(self, case: str, bound: float, got: float, note: str = "") -> Row:
        return Row(self.row, case, f">= {_text(bound)}", _text(got), "bound", self.source, got >= bound, note)

    def holds(self, case: str, expected: str, got: str, passed: bool, note: str = "") -> Row:
        return Row(self.row, case, expected, got, "as said", self.source, passed, note)

    def reported(self, case: str, expected: float, got: float, note: str = "") -> Row:
        return Row(self.row, case, _text(expected), _text(got), "none", self.source, True, note, judged=False)


# --- Fabrics and runs -------------------------------------------------------------------------------------------------


def chain(links: int, rate_bps: int) -> Topology:
    """Two hosts with `links` links of 1 us in a row between them; their ports are 0 and 2 links - 1."""
    ends = ("host", *["switch"] * (links - 1), "host")
    nodes = tuple(Node(i, f"{kind}{i}", kind) for i, kind in enumerate(ends))  # type: ignore[arg-type]
    return Topology(f"chain-{links}", nodes, tuple(Link(i, i, i + 1, rate_bps, US, tier=1) for i in range(links)))


def leaf_spine(leaves: int, spines: int, hosts: int) -> Topology:
    """`hosts` hosts a leaf, every leaf to every spine, all 100 Gb/s and 1 us; host i is port 2 i."""
    n = leaves * hosts
    nodes = [Node(i, f"host{i}", "host") for i in range(n)]
    nodes += [Node(n + i, f"leaf{i}", "switch") for i in range(leaves)]
    nodes += [Node(n + leaves + i, f"spine{i}", "switch") for i in range(spines)]
    ends = [(i, n + i // hosts, 1) for i in range(n)]
    ends += [(n + i, n + leaves + j, 2) for i in range(leaves) for j in range(spines)]
    links = tuple(Link(i, a, b, 100 * GBPS, US, tier) for i, (a, b, tier) in enumerate(ends))
    return Topology("leaf-spine", tuple(nodes), links)


PortFlow = tuple[int, int, int]


def _run(
    topology: Topology, port_flows: Iterable[PortFlow], settings: NetworkSettings, *, seed: int = 1, **more: Any
) -> NetworkResult:
    """Flows (source port, destination port, bytes), all from time 0."""
    network = PacketNetwork(topology, settings, seed=seed, **more)
    for i, (src, dst, size) in enumerate(port_flows):
        network.start(KVFlow(i, "kv", (src,), (dst,), size, path_seed=seed), 0)
    return network.run()


def _fct_ps(result: NetworkResult) -> Int64Array:
    """Per flow, by its id."""
    table = result.flows
    return (table.end_ps - table.start_ps)[np.argsort(table.transfer_id, kind="stable")]


class _SpanOverError(Exception):
    """Ends a run whose flows would go on."""


def _goodputs(
    topology: Topology, ends: Iterable[tuple[int, int]], settings: NetworkSettings, *, warm_up_ps: int, span_ps: int
) -> npt.NDArray[np.float64]:
    """Acknowledged payload of endless flows over a span [bit/s], one per pair of ports."""
    network = PacketNetwork(topology, settings, seed=1)
    for i, (src, dst) in enumerate(ends):
        network.start(KVFlow(i, "kv", (src,), (dst,), 10**12, path_seed=1), 0)
    acked: list[Int64Array] = []

    def count() -> None:
        acked.append(network.recorded.flows.acked_bytes)

    def end() -> None:
        count()
        raise _SpanOverError

    network.schedule(warm_up_ps, count)
    network.schedule(warm_up_ps + span_ps, end)
    try:
        network.run()
    except _SpanOverError:
        return np.asarray((acked[1] - acked[0]) * (8 * SECOND / span_ps), dtype=np.float64)
    raise AssertionError("the flows ended before the span did")


# --- 1. Closed forms --------------------------------------------------------------------------------------------------


def _serialisation_ps(wire_bytes: int, rate_bps: int, unit_ps: int) -> int:
    """Half up to whole units of `unit_ps`."""
    return int(Fraction(wire_bytes * 8 * SECOND, rate_bps * unit_ps) + Fraction(1, 2)) * unit_ps


def closed_forms() -> list[Row]:
    """A flow of n full packets and a short one over L equal links, alone.

    The full packets leave the first host back to back, n S; the last of them takes S + d a further link, and the short
    one, s, follows it on every link without a gap: n S + (L - 1)(S + d) + s + d; its ACK comes back in L (a + d).
    Exact: both sides round each packet's serialisation once, half up, to 1 ps (roce-default) or 1 ns (hpcc-sim).
    """
    group = _Group(1, "closed form")
    rows = []
    n, short = 500, 300
    for n_links in (1, 2, 4, 6):
        worst_ps, cases = 0, 0
        for profile, overhead, ack, unit_ps in (("roce-default", 82, ACK_WIRE, 1), ("hpcc-sim", 48, 60, 1000)):
            for rate_bps in (10 * GBPS, 100 * GBPS, 400 * GBPS):
                for payload in (1000, 4096):
                    settings = load_network(profile, overrides=["cc.use=none"], payload_bytes=payload)
                    flow = (0, 2 * n_links - 1, n * payload + short)
                    got = int(_fct_ps(_run(chain(n_links, rate_bps), [flow], settings))[0])
                    full, last, back = (
                        _serialisation_ps(size, rate_bps, unit_ps)
                        for size in (payload + overhead, short + overhead, ack)
                    )
                    expected = n * full + (n_links - 1) * (full + US) + last + US + n_links * (back + US)
                    worst_ps, cases = max(worst_ps, abs(got - expected)), cases + 1
        case = f"one flow, {n_links} link{'s' * (n_links > 1)}: largest error of {cases} FCTs [ps]"
        rows.append(
            group.exact(case, 0, worst_ps, "10/100/400 Gb/s, 1000/4096 B, ps and ns rounding, short last packet")
        )
    return rows


# --- 2, 3, 4. The independent simulator -------------------------------------------------------------------------------


def _reference(table: str, workload: str, payload: int) -> list[dict[str, str]]:
    with (DATA / f"{table}.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return [row for row in rows if (row["workload"], row["payload_bytes"]) == (workload, str(payload))]


def _column(rows: Iterable[dict[str, str]], name: str) -> npt.NDArray[np.float64]:
    return np.array([float(row[name]) for row in rows])


def _reference_run(workload: str, payload: int, seed: int, *, paths: str | None = None) -> NetworkResult:
    topology = hpcc.read_topology(DATA / f"{workload}.topo.txt")
    flow_list = flows.read_flow_list(DATA / f"{workload}.flow.txt", topology)
    overrides = ["load_balancing.use=pinned"] if paths else []
    settings = load_network("hpcc-sim", overrides=overrides, payload_bytes=payload)
    pinned = flows.read_paths(DATA / paths, topology, flow_list) if paths else None
    outcome = flows.run(topology, flow_list, settings, seed=seed, paths=pinned)
    if outcome.status != "complete":
        raise RunFailure(outcome.message or outcome.status)
    return outcome.network


def reference_pair(payload: int) -> list[Row]:
    """W1, one flow over two links: nothing is random, so all figures are equal; the FCT to the nanosecond."""
    group = _Group(2, REFERENCE)
    (flow,) = _reference("flows", "W1_pair", payload)
    run = _reference("runs", "W1_pair", payload)[0]
    result = _reference_run("W1_pair", payload, 1)
    totals = result.totals
    name = f"W1 {payload} B:"
    rows = [
        group.exact(f"{name} FCT [ns]", round(float(flow["fct_mean_us"]) * 1000), int(_fct_ps(result)[0]) // 1000),
        group.exact(f"{name} FCT below the ns [ps]", 0, int(_fct_ps(result)[0]) % 1000),
    ]
    counts = {"data_packets": "data_pkts", "ack_packets": "ack_pkts"}
    counts |= {"data_hops": "data_link_tx", "control_hops": "ack_link_tx", "max_queue_bytes": "max_egress_queue_bytes"}
    for ours, theirs in counts.items():
        rows.append(group.exact(f"{name} {theirs}", int(run[theirs]), int(getattr(totals, ours))))
    return rows


def reference_incast(payload: int) -> list[Row]:
    """W2, 8-to-1: only marking is random; means over 25 seeds against means over the reference's five.

    3 %, 15 %, 15 % and 3 points are given. Use of the bottleneck is its wire time over the time from first start to
    last end. The last end moves by up to 15 % between seeds, and the use with it: by 3.1 points here and 2.0 points
    there (standard deviations of 60 and 5 seeds). Means of five seeds each would miss each other by more than 3 points
    one time in fourteen, means of 25 and five one time in 150.
    """
    group = _Group(3, REFERENCE)
    runs = _reference("runs", "W2_incast", payload)
    ours = [_reference_run("W2_incast", payload, seed) for seed in range(1, 26)]
    fct_us = [_fct_ps(result) / 1e6 for result in ours]
    wire_us = 8 * sum(-(-10 * MB // payload) * 48 + 10 * MB for _ in range(8)) / 1e5
    bottleneck = 17  # the switch's port to host 8
    use = [
        100 * result.port_totals.tx_bytes[bottleneck].sum() * 8 / 1e5 / fct.max()
        for result, fct in zip(ours, fct_us, strict=True)
    ]
    use_expected = float((100 * wire_us / _column(runs, "fct_max_us")).mean())
    name = f"W2 {payload} B:"

    def mean(values: Iterable[float]) -> float:
        return float(np.mean(list(values)))

    marked, queue = _column(runs, "acks_with_cnp_flag").mean(), _column(runs, "max_egress_queue_bytes").mean()
    fct_expected = _column(runs, "fct_mean_us").mean()
    return [
        group.within(f"{name} mean FCT [us]", float(fct_expected), mean(f.mean() for f in fct_us), 0.03),
        group.within(f"{name} marked ACKs", float(marked), mean(r.totals.cnps for r in ours), 0.15),
        group.within(f"{name} max queue [bytes]", float(queue), mean(r.totals.max_queue_bytes for r in ours), 0.15),
        group.between(
            f"{name} bottleneck use [%]", use_expected, mean(use), use_expected - 3, use_expected + 3, "3 points"
        ),
        group.reported(
            f"{name} bottleneck use of the first five seeds [%]",
            use_expected,
            mean(use[:5]),
            "too few for a verdict: their mean has a standard error of 1.4 points, the reference's one of 0.9",
        ),
    ]


def reference_permutation(payload: int) -> list[Row]:
    """W3, 64 flows over six links on the reference's own paths; means over five seeds.

    3 %, 5 % and 0.93 are given: the reference's own five-seed means correlate by 0.94 and more between two sets of
    seeds. Of the same order is within a factor of the square root of 10 either way.
    """
    group = _Group(4, REFERENCE)
    runs, per_flow = (_reference(table, "W3_fattree_perm", payload) for table in ("runs", "flows"))
    ours = [_reference_run("W3_fattree_perm", payload, seed, paths="W3_paths.csv") for seed in SEEDS]
    fct_us = np.mean([_fct_ps(result) / 1e6 for result in ours], axis=0)
    expected_us = _column(per_flow, "fct_mean_us")
    pauses = float(_column(runs, "pfc_pause_frames").mean())
    name = f"W3 {payload} B:"
    rank = float(spearmanr(fct_us, expected_us).statistic)
    ratio = float(np.median(fct_us / expected_us))
    got_pauses = float(np.mean([r.totals.pfc_pauses for r in ours]))
    root = 10**0.5
    return [
        group.within(f"{name} mean FCT [us]", float(expected_us.mean()), float(fct_us.mean()), 0.03),
        group.within(f"{name} median of per-flow FCT ratios", 1.0, ratio, 0.05),
        group.at_least(f"{name} rank correlation of per-flow FCTs", 0.93, rank),
        group.between(f"{name} PFC pauses", pauses, got_pauses, pauses / root, pauses * root, "same order"),
        group.exact(f"{name} drops", 0, sum(r.totals.drops for r in ours)),
    ]


# --- 5. DCQCN's fixed point -------------------------------------------------------------------------------------------


def dcqcn(n_flows: int) -> list[Row]:
    """Time averages over 8 s after a warm-up of 0.5 s against the exact solution of the fluid equations.

    20 % and 2 % are given. Single rates are off by up to 1.2 % over 8 s, and cuts leave the link idle for up to 1 %.
    The equations know the ramp of the marking probability only, so it is carried on above Kmax.
    """
    group = _Group(5, "fluid equations (CoNEXT 2016)")
    settings = dcqcn_packet.paper_settings(*dcqcn_packet.RAMP_CARRIED_ON)
    parameters = dcqcn_fluid.DcqcnParameters.from_network(settings, dcqcn_packet.CAPACITY_BPS)
    point = dcqcn_fluid.fixed_point(n_flows, dcqcn_packet.CAPACITY_BPS, dcqcn_packet.PACKET_BYTES, parameters)
    got = dcqcn_packet.measure(n_flows, settings)
    assert point.queue_bytes is not None
    worst_bps = max(got.rates_bps, key=lambda rate: abs(rate - point.rate_bps))
    name = f"DCQCN, 40G paper set, N = {n_flows}:"
    note = "the ramp of marks is carried on above Kmax"
    return [
        group.within(f"{name} mean queue [KB]", point.queue_bytes / 1000, got.queue_bytes / 1000, 0.2, note),
        group.within(f"{name} rate farthest from C/N [Gb/s]", point.rate_bps / 1e9, worst_bps / 1e9, 0.02, note),
    ]


#: Flows of the literal paper set for which the queue fluctuates up to Kmax = 200 KB, where the marking probability
#: jumps from Pmax to 1 and all flows are cut at once: the equations, which know the ramp only, do not hold there.
BEYOND_THE_RAMP = (10,)


def dcqcn_with_jump(n_flows: int) -> list[Row]:
    """The paper set to the letter: the published jump to certain marks at Kmax, which the equations do not have."""
    group = _Group(5, "fluid equations (CoNEXT 2016)")
    point = dcqcn_fluid.fixed_point(n_flows, dcqcn_packet.CAPACITY_BPS, dcqcn_packet.PACKET_BYTES)
    got = dcqcn_packet.measure(n_flows, dcqcn_packet.paper_settings())
    assert point.queue_bytes is not None
    case = f"DCQCN, 40G paper set to the letter, N = {n_flows}: mean queue [KB]"
    note = f"marks {got.marking_probability:.3%} of packets, the equations {point.marking_probability:.3%}"
    beyond = n_flows in BEYOND_THE_RAMP
    if beyond:
        note += "; the queue reaches Kmax, where all flows are cut at once"
    row = group.within(case, point.queue_bytes / 1000, got.queue_bytes / 1000, 0.2, note)
    return [replace(row, known_miss=beyond)]


# --- 6. Max-min fairness ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _ParkingLot:
    """Switches in a row; one flow along all of them, and on each link between two `cross` flows that use it alone.

    Every flow has hosts of its own, the long one with a NIC of `long_bps`, the others with 100 Gb/s.
    """

    topology: Topology
    ends: tuple[tuple[int, int], ...]


def _parking_lot(long_bps: int, cross: Sequence[int]) -> _ParkingLot:
    n = len(cross) + 1
    nodes = [Node(i, f"switch{i}", "switch") for i in range(n)]
    links = [Link(i, i, i + 1, 100 * GBPS, US, tier=2) for i in range(n - 1)]

    def host(switch: int, rate_bps: int) -> int:
        nodes.append(Node(len(nodes), f"host{len(nodes)}", "host"))
        links.append(Link(len(links), nodes[-1].id, switch, rate_bps, US, tier=1))
        return 2 * links[-1].id

    ends = [(host(0, long_bps), host(n - 1, 100 * GBPS))]
    for i, flows_here in enumerate(cross):
        ends += [(host(i, 100 * GBPS), host(i + 1, 100 * GBPS)) for _ in range(flows_here)]
    return _ParkingLot(Topology("parking-lot", tuple(nodes), tuple(links)), tuple(ends))


def _water_filling(lot: _ParkingLot, limit_bps: float = 10**12) -> list[float]:
    """Max-min fair rates of the flows on the wire [bit/s], each at most `limit_bps` (by a link of its own)."""
    router = Router(lot.topology)
    n_ports = lot.topology.n_ports
    capacity = [INF, *(float(lot.topology.links[p >> 1].rate_bps) for p in range(n_ports))]
    band: Band[Demand] = Band(capacity + [limit_bps] * len(lot.ends))
    demands = []
    for i, (src, dst) in enumerate(lot.ends):
        demand = Demand((*(port + 1 for port in router.path(src, dst, 0)), 1 + n_ports + i))
        band.add(demand)
        demands.append(demand)
    band.solve()
    return [demand.rate_bps for demand in demands]


def max_min() -> list[Row]:
    """Goodput over 40 ms after 10 ms against water-filling of wire rates; 1 % is given.

    Acknowledgements come in steps of 64 KiB: 13 Mb/s in 40 ms, below 0.1 % of any rate here. PFC shares a link equally
    among the ingress ports that always have something to send, which is max-min fair where, as here, a paused port
    holds no flow that another link limits to less.
    """
    group = _Group(6, "water-filling")
    to_goodput = PAYLOAD / DATA_WIRE / 1e9
    rows = []
    cases = (
        ("line rate", 100 * GBPS, (1, 1, 1), ("cc.use=none",), 1e12),
        ("long flow from a 20G NIC, line rate", 20 * GBPS, (1, 2, 3), ("cc.use=none",), 1e12),
        ("fixed 40 Gb/s", 100 * GBPS, (1, 1, 1), ("cc.use=fixed", "cc.rate=40Gbps"), 40e9),
    )
    for name, long_bps, cross, overrides, limit_bps in cases:
        lot = _parking_lot(long_bps, cross)
        expected = np.array(_water_filling(lot, limit_bps)) * to_goodput
        settings = load_network("roce-default", overrides=overrides)
        got = _goodputs(lot.topology, lot.ends, settings, warm_up_ps=10 * MS, span_ps=40 * MS) / 1e9
        worst = int(np.argmax(np.abs(got / expected - 1)))
        case = f"parking lot, {name}: flow farthest off [Gb/s]"
        rows.append(group.within(case, float(expected[worst]), float(got[worst]), 0.01))
    lot = _parking_lot(100 * GBPS, (1, 1, 1))
    fair = float(_water_filling(lot)[0]) * to_goodput
    for profile in ("roce-default", "roce-paper"):
        got = _goodputs(lot.topology, lot.ends, load_network(profile), warm_up_ps=20 * MS, span_ps=100 * MS) / 1e9
        case = f"parking lot, DCQCN of {profile}: long flow [Gb/s]"
        rows.append(
            group.reported(
                case, fair, float(got[0]), "not max-min fair: a flow over three queues is marked in all of them"
            )
        )
    return rows


# --- 7. PFC -----------------------------------------------------------------------------------------------------------


def pfc_incasts() -> list[Row]:
    """At line rate, without congestion control: every packet is admitted, and PFC has had to act for it."""
    group = _Group(7, "IEEE 802.3 annex 31B")
    settings = load_network("roce-default", overrides=["cc.use=none"])
    fabrics = (
        ("32-to-1", star(33), 32, 2 * MB),
        ("256-to-1", star(257), 256, 200_000),
        ("two-tier, 31-to-1", leaf_spine(4, 2, 8), 31, MB),
    )
    rows = []
    for name, topology, n, size in fabrics:
        totals = _run(topology, [(2 * i, 2 * n, size) for i in range(n)], settings).totals
        passed = totals.drops == 0 and totals.pfc_pauses > 0 and totals.payload_bytes_acked == n * size
        got = f"{totals.drops} drops, {totals.pfc_pauses} pauses"
        rows.append(group.holds(f"PFC, {name} incast", "0 drops, some pauses", got, passed))
    halved = load_network("roce-default", overrides=["switch.pfc.headroom_factor=0.5"])
    for name, chosen, expected in (("as computed", settings, "no warning"), ("halved", halved, "loss is possible")):
        told = " ".join(warnings(star(3), chosen)) or "no warning"
        got = expected if expected in told else told
        rows.append(group.exact(f"PFC, headroom {name}: said before the run", expected, got, told))
    return rows


def _two_switches() -> Topology:
    """Hosts 0, 1 on switch 4 and 2, 3, 5 on switch 6; one link joins the switches. Host ports: 0, 2, 4, 6, 8."""
    nodes = tuple(Node(i, f"n{i}", "switch" if i in (4, 6) else "host") for i in range(7))
    ends = [(0, 4), (1, 4), (2, 6), (3, 6), (5, 6), (4, 6)]
    return Topology("two-switches", nodes, tuple(Link(i, a, b, 100 * GBPS, US, 1) for i, (a, b) in enumerate(ends)))


def pfc_victim() -> list[Row]:
    """Hosts 0, 2 and 5 send 45 Gb/s each to host 3, and host 1 as much to host 2, over no full link.

    Host 3's link serves three ingress ports alike, a third of 100 Gb/s each. With PFC the link between the switches is
    paused for host 0's sake and host 1 is held to the same third: 45 / 33.3 = 1.35 times as long, less while buffers
    fill; 1.2 is asked for. Without PFC it is alone: 10 MB at 45 Gb/s, and 2 % for the path's 6 us of 1.8 ms and a
    packet.
    """
    group = _Group(7, "closed form")
    ends = [(0, 6, 30 * MB), (8, 6, 30 * MB), (4, 6, 30 * MB), (2, 4, 10 * MB)]
    common = ("cc.use=fixed", "cc.rate=45Gbps", "switch.buffer_bytes=1MB")
    off = ("switch.pfc.on=false", "transport.timeout=1ms")
    with_pfc, without = (
        _fct_ps(_run(_two_switches(), ends, load_network(overrides=[*common, *more])))[3] / 1e6 for more in ((), off)
    )
    alone_us = 10 * MB * DATA_WIRE / PAYLOAD * 8 / 45e3
    return [
        group.within("victim flow, PFC off: FCT [us]", alone_us, float(without), 0.02),
        group.at_least("victim flow, PFC on: FCT over that with PFC off", 1.2, float(with_pfc / without)),
    ]


def pfc_deadlock() -> list[Row]:
    """Four switches in a ring, every flow two hops clockwise: each link waits for the next; the watchdog says so."""
    group = _Group(7, "Hu et al., HotNets 2016")
    nodes = (*(Node(i, f"host{i}", "host") for i in range(4)), *(Node(4 + i, f"switch{i}", "switch") for i in range(4)))
    links = [Link(i, i, 4 + i, 100 * GBPS, US, 1) for i in range(4)]
    links += [Link(4 + i, 4 + i, 4 + (i + 1) % 4, 100 * GBPS, US, 2) for i in range(4)]
    topology = Topology("ring", nodes, tuple(links))
    listed = [flows.Flow(i, i, (i + 2) % 4, 20 * MB, 0, ("", "")) for i in range(4)]
    paths = {}
    for flow in listed:
        a, b, c = (2 * (4 + (flow.src + k) % 4) for k in range(3))
        there = (2 * flow.src, a, b, 2 * flow.dst + 1)
        back = (2 * flow.dst, c, 2 * (4 + (flow.src + 3) % 4), 2 * flow.src + 1)
        paths[flow.id] = flows.PinnedPaths(there, back)
    overrides = ["cc.use=none", "switch.buffer_bytes=1MB", "switch.pfc.headroom=100KB", "watchdog=200ms"]
    settings = load_network(overrides=[*overrides, "load_balancing.use=pinned"])
    outcome = flows.run(topology, listed, settings, paths=paths)
    named = [flow.id for flow in listed if f"flow {flow.id} (host{flow.src} to host{flow.dst}" in outcome.message]
    got = f"{outcome.status}, names flows {named}" + (", PFC as cause" if "held by PFC" in outcome.message else "")
    expected = "failed, names flows [0, 1, 2, 3], PFC as cause"
    return [group.exact("ring of switches, cyclic paths: deadlock", expected, got)]


# --- 8. Loss ----------------------------------------------------------------------------------------------------------


def _go_back_n_share(loss: float, slots_to_resend: int, slots_between_nacks: int) -> float:
    """Share of a line that go-back-N fills with new packets.

    A packet lost in slot 0 is missed when a later one arrives, the next one unless that is lost too (p/(1-p) slots
    more); the NACK has it sent again in slot M, and all that was sent between is sent again: 1 + M + p/(1-p) slots for
    the packet. Where the NACK or the packet is lost again, f = 1 - (1-p)^2, the next NACK is sent after the least
    interval between NACKs, n slots later: n f/(1-f) on average. For n = M and no loss of NACKs this is the textbook's
    (1-p)/(1-p+pM) (Bertsekas and Gallager, Data Networks, 2nd ed., section 2.4).
    """
    again = 1 - (1 - loss) ** 2
    extra = slots_to_resend + loss / (1 - loss) + slots_between_nacks * again / (1 - again)
    return 1 / (1 + loss * extra)


def loss(loss_rate: float) -> list[Row]:
    """Random loss on the first of two links, both ways; 3 % is given.

    Over the span there are some 400 losses or more; what they cost is known to 5 % and is at most a third of the time.
    Every byte: a flow of 20 MB to its end, with timeouts of 1 ms for what is lost last.
    """
    group = _Group(8, "go-back-N's formula")
    nodes = (Node(0, "a", "host"), Node(1, "b", "host"), Node(2, "s", "switch"))
    links = (Link(0, 0, 2, 100 * GBPS, US, 1, loss_rate), Link(1, 1, 2, 100 * GBPS, US, 1))
    topology = Topology("lossy", nodes, links)
    whole = _run(
        topology, [(0, 2, 20 * MB)] * 4, load_network(overrides=["cc.use=none", "transport.timeout=1ms"]), seed=1
    )
    lost = whole.totals.drops
    got = f"{whole.totals.payload_bytes_acked} bytes, {'some' if lost else 'no'} drops"
    name = f"loss {loss_rate:g}:"
    rows = [group.exact(f"{name} bytes acknowledged", f"{80 * MB} bytes, some drops", got)]
    slot_ps, ack_ps = DATA_WIRE * 80, ACK_WIRE * 80
    # From the start of the lost packet to the NACK at the sender: two slots until the next one has left, a slot and two
    # delays until it is across, and two ACK times and delays back. A packet under way is finished first.
    to_resend = -(-(3 * slot_ps + 2 * ack_ps + 4 * US) // slot_ps)
    line_gbps = 100 * PAYLOAD / DATA_WIRE
    for label, interval_ps in (("500 us", 500 * US), ("1 round trip", (to_resend - 1) * slot_ps)):
        between = max(-(-interval_ps // slot_ps), to_resend)
        settings = load_network(overrides=["cc.use=none", f"transport.nack_interval={interval_ps}"])
        expected = line_gbps * _go_back_n_share(loss_rate, to_resend, between)
        got_bps = _goodputs(topology, [(0, 2)], settings, warm_up_ps=MS, span_ps=1500 * MS)[0]
        case = f"{name} goodput, a NACK per {label} [Gb/s]"
        rows.append(group.within(case, expected, float(got_bps) / 1e9, 0.03))
    return rows


# --- 9. ECMP ----------------------------------------------------------------------------------------------------------


def ecmp() -> list[Row]:
    """20,000 random 5-tuples between pods of W3's fat-tree.

    Every switch's choices are held against equal shares; the statistics of a tier's switches add up. p >= 0.001: a
    sound hash fails one of three tiers in 300 seeds, and the seed is fixed. With one seed for all switches the top bit
    of the hash, which chose the aggregation switch, is also the top bit of the choice among its four cores: half are
    used.
    """
    group = _Group(9, "chi-square test")
    topology = hpcc.read_topology(DATA / "W3_fattree_perm.topo.txt")
    random = np.random.default_rng(1)
    keys: list[tuple[int, int, int]] = []
    while len(keys) < 20_000:
        src, dst, sport = (int(x) for x in random.integers((0, 0, 49152), (64, 64, 65536)))
        if src // 16 != dst // 16:
            keys.append((2 * src, 2 * dst, sport))
    used: dict[bool, list[dict[tuple[int, int], dict[int, int]]]] = {}
    for own_seed in (True, False):
        router = Router(topology, seed=1, seed_per_switch=own_seed)
        tiers: list[dict[tuple[int, int], dict[int, int]]] = [{}, {}, {}]  # ToR up, aggregation up, core down
        for key in keys:
            for tier, port in enumerate(router.path(*key)[1:4]):
                node = topology.port_node(port)
                choice = (node, key[1] // 32 if tier == 2 else -1)  # a core chooses anew for every destination pod
                counts = tiers[tier].setdefault(choice, {})
                counts[port] = counts.get(port, 0) + 1
        used[own_seed] = tiers
    rows = []
    for tier, (name, ways) in enumerate((("ToR up", 2), ("aggregation up", 4), ("core down", 2))):
        statistic = freedom = 0.0
        for counts in used[True][tier].values():
            share = sum(counts.values()) / ways
            statistic += sum((n - share) ** 2 / share for n in counts.values()) + share * (ways - len(counts))
            freedom += ways - 1
        rows.append(group.at_least(f"ECMP, {name}: p of the spread", 0.001, float(chi2.sf(statistic, freedom))))
    for own_seed, expected in ((True, 32), (False, 16)):
        links = sum(len(counts) for counts in used[own_seed][1].values())
        name = "a seed per switch" if own_seed else "one seed for all"
        rows.append(group.exact(f"ECMP, {name}: aggregation-core links used, of 32", expected, links))
    unlike = 0
    for own_seed in (True, False):
        settings = load_network(overrides=[f"load_balancing.seed_per_switch={str(own_seed).lower()}"])
        network = PacketNetwork(topology, settings, seed=1)
        router = Router(topology, seed=1, seed_per_switch=own_seed)
        unlike += sum(network.path(*key) != router.path(*key) for key in keys[:2000])
        del network
    rows.append(group.exact("ECMP: paths of the packet model unlike these, of 4000", 0, unlike))
    return rows


# --- 10. What must hold whatever is configured ------------------------------------------------------------------------

_RANDOM_CASES = 24

_CHOICES: dict[str, tuple[object, ...]] = {
    "transport.payload_bytes": (512, 1000, 4096),
    "transport.ack_every": (1, 3, 16),
    "transport.window": ("none", "fixed", "rate_scaled"),
    "transport.window_bytes": ("50KB", "300KB"),
    "transport.queue_pairs": (1, 2),
    "cc.use": ("dcqcn", "none"),
    "cc.cnp_mode": ("packet", "ack-flag"),
    "cc.clamp_target": ("true", "false"),
    "cc.byte_counter": ("0B", "100KB"),
    "switch.ecn.at": ("enqueue", "dequeue"),
    "switch.ecn.kmin": ("20KB",),
    "switch.buffer_bytes": ("8MB", "32MiB"),
    "switch.ack_class": ("control", "data"),
    "framing.data_overhead": (48, 62, 100),
}


def _random_fabric(random: np.random.Generator) -> tuple[Topology, int]:
    """A leaf-spine with rates and delays drawn per link, and its number of hosts; host i is port 2 i."""
    base = leaf_spine(*(int(random.integers(low, high)) for low, high in ((2, 5), (1, 4), (1, 5))))
    links = tuple(
        Link(k.id, k.a, k.b, int(random.choice((25, 40, 100, 400))) * GBPS, int(random.integers(1, 2 * US)), k.tier)
        for k in base.links
    )
    return Topology("random", base.nodes, links), sum(node.kind == "host" for node in base.nodes)


def limits() -> list[Row]:
    """Random fabrics, flows and settings, each run twice and on both event lists. Counts of what must never happen.

    A link's rate: serialisation of a byte is a whole number of ps at all rates drawn, so nothing is left to rounding.
    """
    group = _Group(10, "conservation")
    random = np.random.default_rng(2)
    broken = dict.fromkeys(
        (
            "bytes in unlike bytes out",
            "drops with PFC on",
            "links above their rate",
            "flows faster than alone",
            "queues above the buffer",
            "unlike results of the same run again",
            "unlike results of ns-3's own event list",
        ),
        0,
    )
    for _ in range(_RANDOM_CASES):
        topology, n_hosts = _random_fabric(random)
        overrides = [f"{key}={random.choice(np.array(options, dtype=object))}" for key, options in _CHOICES.items()]
        settings = load_network(str(random.choice(("roce-default", "roce-paper"))), overrides=overrides)
        ends = [random.choice(n_hosts, 2, replace=False) for _ in range(int(random.integers(1, 13)))]
        port_flows = [(2 * int(a), 2 * int(b), int(random.integers(1, 2 * MB))) for a, b in ends]
        seed = int(random.integers(100))
        result, again, other = (
            _run(topology, port_flows, settings, seed=seed, simulator=simulator)
            for simulator in ("wheel", "wheel", "ns3")
        )
        table, totals, ports = result.flows, result.totals, result.port_totals
        rate_bps = np.array([topology.links[p >> 1].rate_bps for p in range(topology.n_ports)])
        size = sum(flow[2] for flow in port_flows)
        sums = (totals.payload_bytes_sent, totals.payload_bytes_acked, int(table.acked_bytes.sum()))
        checks = (
            sums != (size,) * 3 or table.acked_bytes.tolist() != table.size_bytes.tolist(),
            totals.drops > 0,
            bool((ports.tx_bytes.sum(axis=1) * (8 * SECOND // rate_bps) > ports.now_ps).any()),
            bool((table.end_ps - table.start_ps < table.ideal_fct_ps).any()),
            totals.max_queue_bytes > settings.switch.buffer_bytes,
            _unlike(result, again, events=True),
            _unlike(result, other, events=False),
        )
        for name, wrong in zip(broken, checks, strict=True):
            broken[name] += wrong
    cases = f"{_RANDOM_CASES} random cases:"
    return [group.exact(f"{cases} {name}", 0, int(count)) for name, count in broken.items()]


def _unlike(a: NetworkResult, b: NetworkResult, *, events: bool) -> bool:
    """Whether two results differ; event counts may where the event lists do."""
    left, right = ({k: v for k, v in asdict(r.totals).items() if events or k != "events"} for r in (a, b))
    tables = ((a.flows, b.flows), (a.port_totals, b.port_totals))
    return left != right or any(
        not np.array_equal(np.asarray(getattr(x, name)), np.asarray(getattr(y, name)))
        for x, y in tables
        for name in type(x).__dataclass_fields__
    )


# --- The table --------------------------------------------------------------------------------------------------------

#: The groups of rows by name, the longest first.
CASES: dict[str, Callable[[], list[Row]]] = {
    **{f"DCQCN fixed point, N = {n}": partial(dcqcn, n) for n in (2, 4, 8, 10)},
    **{f"DCQCN with a jump at Kmax, N = {n}": partial(dcqcn_with_jump, n) for n in (2, 4, 8, 10)},
    "reference W3, 1000 B": partial(reference_permutation, 1000),
    "loss 1e-4": partial(loss, 1e-4),
    "loss 1e-2": partial(loss, 1e-2),
    "reference W3, 4096 B": partial(reference_permutation, 4096),
    "max-min": max_min,
    "limits": limits,
    "PFC incasts": pfc_incasts,
    "ECMP": ecmp,
    "reference W2, 1000 B": partial(reference_incast, 1000),
    "reference W2, 4096 B": partial(reference_incast, 4096),
    "reference W1, 1000 B": partial(reference_pair, 1000),
    "reference W1, 4096 B": partial(reference_pair, 4096),
    "closed forms": closed_forms,
    "PFC victim": pfc_victim,
    "PFC deadlock": pfc_deadlock,
}


def _attempt(name: str) -> tuple[str, list[Row]]:
    try:
        return name, CASES[name]()
    except RunFailure as error:
        return name, [Row(0, name, "a complete run", "failed", "", "", False, str(error))]


def run(*, jobs: int = 2, on_done: Callable[[str, Sequence[Row], int], None] | None = None) -> list[Row]:
    """All rows in the order of their numbers.

    Parameters
    ----------
    jobs : processes.
    on_done : called with a group's name, its rows and the number of groups to go, as each is done.
    """
    found: dict[str, list[Row]] = {}
    done = Parallel(n_jobs=jobs, return_as="generator_unordered")(delayed(_attempt)(name) for name in CASES)
    for name, rows in done:
        found[name] = rows
        if on_done is not None:
            on_done(name, rows, len(CASES) - len(found))
    return sorted((row for name in CASES for row in found[name]), key=lambda row: row.row)


def write(out: Path, rows: Sequence[Row]) -> Path:
    """Write validate.csv and return its path.

    Raises
    ------
    InputError : the directory may not be written.
    """
    results.make_directory(out)
    path = out / "validate.csv"
    lines = [{**asdict(row), "pass": row.verdict} for row in rows]
    results.write_csv(path, COLUMNS, lines)
    return path
