"""Time series of ports: literal values of one flow, sums, bounds, and that watching changes nothing."""

from __future__ import annotations

import numpy as np
import pytest

from harness.config import load_network
from harness.packet.network import TRACE_CAPACITY, TRACE_COLUMNS, PacketNetwork
from harness.types import KVFlow, Topology
from tests.packet.conftest import Run, RunFlows

US = 1_000_000


def rows(run: Run, port: int) -> list[tuple[int, ...]]:
    """(start, end, longest queue, control, kv and background bytes, paused) per interval, but for the last one."""
    traces = run.network.port_traces
    chosen = traces["port"] == port
    return list(zip(*(traces[name][chosen].tolist() for name in TRACE_COLUMNS[1:]), strict=True))[:-1]


def test_one_flow_interval_by_interval(three_hosts: Topology, run_flows: RunFlows) -> None:
    """100 packets at line rate: host 0 starts packet k at k x 334,240 ps, the switch 1,334,240 ps later.

    By 10 us the host has started packets 0 to 29 and the switch 0 to 25, by 20 us 59 and 55, by 30 us 89 and 85, by
    40 us all. Every packet passes the switch without waiting, which counts as a queue of one frame. The switch returns
    an ACK per 16 packets, packets 15, 31, 47, 63, 79, 95 and 99, as soon as they have reached host 2: sent by that host
    2 x (334,240 + 1 us) after the host 0 began to send them, by the switch 6,880 ps + 1 us later still: for packet 15
    at 8.7 us, 31 at 14.0, 47 at 19.4, 63 at 24.7, 79 at 30.1, 95 at 35.4 and 99 at 36.8 us.
    """
    run = run_flows(three_hosts, [(0, 2, 4096 * 100)], "cc.use=none", trace_ports=[0, 3, 1])
    data = 4178
    assert rows(run, 0)[:4] == [
        (10 * US * i, 10 * US * (i + 1), 0, 0, n * data, 0, 0) for i, n in enumerate((30, 30, 30, 10))
    ]
    assert rows(run, 3)[:4] == [
        (10 * US * i, 10 * US * (i + 1), 4158, 0, n * data, 0, 0) for i, n in enumerate((26, 30, 30, 14))
    ]
    assert [row[3] // 86 for row in rows(run, 1)[:4]] == [1, 2, 1, 3]


def test_queue_and_pauses_of_an_incast(eight_hosts: Topology, run_flows: RunFlows) -> None:
    """What the trace holds adds up to what the counters of the whole run say, and tracing changes no completion."""
    flows = [(2 * (i % 7), 14, 1_500_000) for i in range(7)]
    overrides = ("cc.use=none", "switch.buffer_bytes=1500KB")
    watched = [15, 23, 0]  # the ToR to host 7, an uplink's way down, a host
    plain = run_flows(eight_hosts, flows, *overrides)
    for simulator in ("wheel", "ns3"):
        traced = run_flows(eight_hosts, flows, *overrides, trace_ports=watched, simulator=simulator)
        assert traced.fct_ps.tolist() == plain.fct_ps.tolist()
        ours, theirs = traced.result, plain.result
        assert ours.totals.pfc_pauses == theirs.totals.pfc_pauses > 0
        assert ours.totals.max_queue_bytes == theirs.totals.max_queue_bytes
        for column in ("tx_bytes", "marks", "paused_ps", "queue_max_bytes"):
            assert np.array_equal(getattr(ours.port_totals, column), getattr(theirs.port_totals, column))
        traces = traced.network.port_traces
        for port in watched:
            chosen = traces["port"] == port
            total = theirs.port_totals
            assert traces["queue_max_bytes"][chosen].max() == total.queue_max_bytes[port]
            assert traces["kv_bytes"][chosen].sum() == total.tx_bytes[port, 1]
            assert traces["paused_ps"][chosen].sum() == total.paused_ps[port]
            assert (traces["paused_ps"] <= traces["end_ps"] - traces["start_ps"]).all()
            assert traces["start_ps"][chosen][0] == 0
            assert np.array_equal(traces["start_ps"][chosen][1:], traces["end_ps"][chosen][:-1])
        assert traces["paused_ps"].sum() > 0


def test_a_queue_that_drains_is_seen_without_arrivals(three_hosts: Topology, run_flows: RunFlows) -> None:
    """Two trains of 200 packets meet at the port to host 2: 200 frames wait when the last have come, after 67 us.

    From then on one leaves every 334,240 ps; an interval's longest queue is that at its start.
    """
    flows = [(0, 4, 4096 * 200), (2, 4, 4096 * 200)]
    run = run_flows(three_hosts, flows, "cc.use=none", "switch.pfc.on=false", trace_ports=[5])
    queues = {start // US: queue for start, _, queue, *_ in rows(run, 5)}
    # The k-th packet leaves the switch at 1,334,240 + (k - 1) x 334,240: by 80 us that is 236, by 90 us 266.
    assert queues[80] == (400 - 236) * 4158
    assert queues[90] == (400 - 266) * 4158


def test_samples_between_do_not_hide_a_peak(three_hosts: Topology) -> None:
    """Whoever restarts the queue maxima (the links table does) and the trace see all of each other's peaks."""
    overrides = ["cc.use=none", "switch.pfc.on=false"]

    def peaks(trace_ports: list[int]) -> tuple[list[int], PacketNetwork]:
        network = PacketNetwork(
            three_hosts, load_network(overrides=overrides), seed=1, trace_ports=trace_ports, trace_interval_ps=40 * US
        )
        for i in range(2):
            network.start(KVFlow(i, "kv", (2 * i,), (4,), 4096 * 50), 0)
        seen: list[int] = []
        for at_us in (18, 30, 60):
            network.schedule(at_us * US, lambda: seen.append(int(network.sample(reset_peaks=True).queue_max_bytes[5])))
        network.run()
        return seen, network

    plain, _ = peaks([])
    traced, network = peaks([5])
    assert traced == plain and max(plain) == 50 * 4158
    assert network.port_traces["queue_max_bytes"][0] == 50 * 4158


def test_a_long_trace_is_bounded(three_hosts: Topology, run_flows: RunFlows) -> None:
    """1 ns steps over milliseconds: the resolution is halved until the series fits, and no byte is lost on the way."""
    run = run_flows(three_hosts, [(0, 2, 4096 * 5000)], "cc.use=none", trace_ports=[0, 3], trace_interval_ps=1000)
    traces = run.network.port_traces
    spans = traces["end_ps"] - traces["start_ps"]
    assert TRACE_CAPACITY / 2 - 1 <= (traces["port"] == 3).sum() <= TRACE_CAPACITY
    # 5000 packets take 1.68 ms: 1 ns doubled nine times is the first step of which 4096 cover that.
    assert np.unique(spans[:1000]).tolist() == [512 * 1000]
    for port in (0, 3):
        assert traces["kv_bytes"][traces["port"] == port].sum() == 5000 * 4178


def test_nothing_is_sampled_while_nothing_is_sent(three_hosts: Topology) -> None:
    """Two flows with a second between them: one interval covers the pause, and its end is on the grid."""
    network = PacketNetwork(three_hosts, load_network(overrides=["cc.use=none"]), seed=1, trace_ports=[0])
    network.start(KVFlow(0, "kv", (0,), (2,), 4096), 0)
    network.start(KVFlow(1, "kv", (0,), (2,), 4096), 10**12 + 3 * US)
    network.run()
    traces = network.port_traces
    bounds = list(zip(traces["start_ps"].tolist(), traces["end_ps"].tolist(), strict=True))
    assert bounds[:3] == [(0, 10 * US), (10 * US, 10**12), (10**12, 10**12 + 10 * US)]
    assert traces["kv_bytes"].tolist()[:3] == [4178, 0, 4178]


def test_no_trace_without_ports(three_hosts: Topology, run_flows: RunFlows) -> None:
    run = run_flows(three_hosts, [(0, 2, 4096)])
    assert all(len(column) == 0 for column in run.network.port_traces.values())


@pytest.mark.parametrize("ports", [[0], [0, 1, 2, 3, 4, 5]])
def test_rows_are_by_port_as_given(three_hosts: Topology, run_flows: RunFlows, ports: list[int]) -> None:
    run = run_flows(three_hosts, [(0, 2, 4096 * 100)], trace_ports=ports[::-1])
    assert list(dict.fromkeys(run.network.port_traces["port"].tolist())) == ports[::-1]


@pytest.mark.parametrize("ack_every", [1, 4])
@pytest.mark.parametrize("trace_interval_ps", [3_000_000, 1_000_007])
def test_a_windowed_sender_is_not_disturbed(
    eight_hosts: Topology, run_flows: RunFlows, ack_every: int, trace_interval_ps: int
) -> None:
    """A lazy NIC that is looked at sends what was due by then; by the window of then, if it is not looked at either."""
    flows = [(0, 10, 1_000_000), (2, 10, 700_000), (4, 0, 500_000)]
    overrides = ("cc.use=none", "transport.window=fixed", "transport.window_bytes=40KB")
    overrides = (*overrides, f"transport.ack_every={ack_every}")
    plain = run_flows(eight_hosts, flows, *overrides)
    traced = run_flows(
        eight_hosts, flows, *overrides, trace_ports=list(range(0, 16, 2)), trace_interval_ps=trace_interval_ps
    )
    assert traced.fct_ps.tolist() == plain.fct_ps.tolist()
