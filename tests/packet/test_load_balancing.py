"""Flowlets and spraying: how packets spread, what order they arrive in, and that each byte is delivered once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from harness.config import load_network, load_scenario
from harness.errors import InputError
from harness.fluid import MODELS
from harness.packet.network import PacketNetwork
from harness.types import KVFlow, Link, Node, Topology
from tests.conftest import make_eight_hosts
from tests.packet.conftest import Run, RunFlows

GBPS = 10**9
US = 1_000_000

PLACE = "transport.reordering=place"
SPRAY = ("load_balancing.use=spray", PLACE)
ROUND_ROBIN = (*SPRAY, "load_balancing.spray_mode=round-robin")
FLOWLET = "load_balancing.use=flowlet"


def parallel_paths(n: int, *, extra_delay_ps: int = 0, loss_rate: float = 0.0) -> Topology:
    """Host 0 (port 0) and host 1 (port 2), each on a ToR; `n` switches between the ToRs, 1 us a link.

    The first ToR's uplink to switch i is port 4 + 2 i. The links of switch i are i * extra_delay_ps longer.
    """
    nodes = [Node(0, "host0", "host"), Node(1, "host1", "host"), Node(2, "tor0", "tor"), Node(3, "tor1", "tor")]
    nodes += [Node(4 + i, f"agg{i}", "agg") for i in range(n)]
    links = [Link(i, i, 2 + i, 100 * GBPS, US, 1) for i in range(2)]
    for tor in (2, 3):
        links += [Link(len(links) + i, tor, 4 + i, 100 * GBPS, US + i * extra_delay_ps, 2, loss_rate) for i in range(n)]
    return Topology("parallel-paths", tuple(nodes), tuple(links))


def packets_per_uplink(run: Run, n: int) -> list[int]:
    """Full packets of 4178 wire bytes that the first ToR sent to each of the `n` switches."""
    return (run.result.port_totals.tx_bytes[4 : 4 + 2 * n : 2, 1] // 4178).tolist()


# --- Spraying ---------------------------------------------------------------------------------------------------------


def test_random_spraying_is_uniform(run_flows: RunFlows) -> None:
    """20,000 packets over 8 ports: a fair choice fails this test once in 10,000 seeds, and the seed is fixed."""
    counts = packets_per_uplink(run_flows(parallel_paths(8), [(0, 2, 4096 * 20_000)], "cc.use=none", *SPRAY), 8)
    assert sum(counts) == 20_000
    assert chisquare(counts).pvalue > 1e-4
    assert len(set(counts)) > 1  # random, not in turn


def test_round_robin_spraying_is_even_to_the_packet(run_flows: RunFlows) -> None:
    run = run_flows(parallel_paths(8), [(0, 2, 4096 * 20_000)], "cc.use=none", *ROUND_ROBIN)
    assert packets_per_uplink(run, 8) == [2500] * 8
    # Equal paths and a source at line rate: packets stay in order, and the flow takes as long as alone on one path.
    assert run.result.totals.out_of_order == 0
    assert run.fct_ps.tolist() == run.result.flows.ideal_fct_ps.tolist()


def test_control_packets_follow_ecmp(run_flows: RunFlows) -> None:
    run = run_flows(parallel_paths(8), [(0, 2, 4096 * 1600)], "cc.use=none", *SPRAY)
    back = run.result.port_totals.tx_bytes[20:36:2, 0]  # the second ToR's uplinks
    assert sorted(back.tolist()) == [0] * 7 + [100 * 86]  # an ACK per 16 packets, all one way


@pytest.mark.parametrize("overrides", [SPRAY, ROUND_ROBIN])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_spraying_beats_ecmp_where_hashes_collide(
    eight_hosts: Topology, run_flows: RunFlows, overrides: tuple[str, ...], seed: int
) -> None:
    """Every host sends to the one opposite in the other pod, which a non-blocking fabric can carry at line rate.

    With these seeds ECMP puts two or three flows on a link, so that the last takes at least twice as long as alone;
    sprayed, all share all links, and the last is not 10 % late: what is left is the queues that random choices make.
    """
    flows = [(2 * i, 2 * ((i + 4) % 8), 10_000_000) for i in range(8)]
    ecmp = run_flows(eight_hosts, flows, seed=seed)
    sprayed = run_flows(eight_hosts, flows, *overrides, seed=seed)
    ideal_ps = ecmp.result.flows.ideal_fct_ps.max()
    assert ecmp.fct_ps.max() > 1.9 * ideal_ps
    assert ideal_ps <= sprayed.fct_ps.max() < 1.1 * ideal_ps
    assert sprayed.result.totals.duplicates == 0


@pytest.mark.parametrize("loss_rate", [1e-4, 1e-2])
def test_every_byte_is_delivered_once_under_loss(run_flows: RunFlows, loss_rate: float) -> None:
    """Losses of data, ACKs and NACKs alike. Only what was lost is sent again, but for copies that cross a late NACK."""
    topology = parallel_paths(4, loss_rate=loss_rate)
    run = run_flows(topology, [(0, 2, 60_000_000)], "cc.use=none", "transport.timeout=1ms", *SPRAY)
    totals = run.result.totals
    assert totals.drops > 0
    assert totals.payload_bytes_acked == totals.payload_bytes_sent == 60_000_000
    # A packet that the receiver had already was sent again though it was not lost; all others were needed.
    sent_again = totals.data_packets - 14_649
    assert 0 < sent_again <= totals.drops + totals.duplicates
    assert totals.duplicates <= 0.01 * 14_649
    again = run_flows(topology, [(0, 2, 60_000_000)], "cc.use=none", "transport.timeout=1ms", *SPRAY, simulator="ns3")
    assert again.fct_ps.tolist() == run.fct_ps.tolist() and again.result.totals.drops == totals.drops


def test_placing_recovers_faster_than_going_back(run_flows: RunFlows) -> None:
    """Go-back-N sends a window again per loss; placing sends a packet. 1 % loss on two links, 30 us of bytes under way.

    Go-back-N at N = 30 packets and p = 2 % keeps about 1 / (1 + N p) = 60 % of the rate at best; placing 1 - p = 98 %.
    """
    lossy = parallel_paths(1, loss_rate=0.01)
    drop, place = (
        run_flows(lossy, [(0, 2, 60_000_000)], "cc.use=none", "transport.timeout=1ms", f"transport.reordering={how}")
        for how in ("drop", "place")
    )
    ideal_ps = drop.result.flows.ideal_fct_ps[0]
    assert drop.fct_ps[0] > 1.5 * ideal_ps
    assert place.fct_ps[0] < 1.15 * ideal_ps
    assert drop.result.totals.retransmitted_bytes > 10 * place.result.totals.retransmitted_bytes


def test_the_window_of_the_bitmap_bounds_what_is_under_way(run_flows: RunFlows) -> None:
    """With room for 20 packets and a round trip of 12 us and 5 packets, the sender has to wait: 20 packets a round.

    Six links of 1 us, and on the way 3 data packets (334,240 ps) and an ACK (6,880 ps) on 3 links, after every 10
    packets: between 20 packets per round trip and twice that.
    """
    overrides = ("cc.use=none", "transport.reorder_window=20", "transport.ack_every=10")
    run = run_flows(parallel_paths(4), [(0, 2, 4096 * 4000)], *overrides, *SPRAY)
    # Four links each way in this fabric.
    round_ps = 8 * US + 4 * 334_240 + 4 * 6_880
    assert 4000 / 20 * round_ps <= run.fct_ps[0] <= 4000 / 20 * (round_ps + 10 * 334_240)


def test_spray_without_placing_is_refused() -> None:
    with pytest.raises(InputError, match="--set load_balancing.use=spray: network.load_balancing.use: .*reordering"):
        load_network(overrides=["load_balancing.use=spray"])


def test_a_bitmap_smaller_than_an_ack_is_refused() -> None:
    with pytest.raises(InputError, match=r"reorder_window is 16, must be above ack_every \(16\)"):
        load_network(overrides=[PLACE, "transport.reorder_window=16"])


# --- Flowlets ---------------------------------------------------------------------------------------------------------


def test_a_flow_takes_another_path_after_a_gap_only(run_flows: RunFlows) -> None:
    """At 1 Gb/s a packet of 4178 B leaves every 33.4 us: a gap of 30 us parts all of them, one of 40 us none."""
    flow = [(0, 2, 4096 * 400)]
    steady = ("cc.use=fixed", "cc.rate=1Gbps", FLOWLET)
    parted = run_flows(parallel_paths(4), flow, *steady, "load_balancing.flowlet_gap=30us")
    whole = run_flows(parallel_paths(4), flow, *steady, "load_balancing.flowlet_gap=40us")
    assert min(packets_per_uplink(parted, 4)) > 50
    assert sorted(packets_per_uplink(whole, 4)) == [0, 0, 0, 400]


def test_flowlets_stay_in_order_if_the_gap_is_longer_than_paths_differ(run_flows: RunFlows) -> None:
    """The second path is 2 x 4 us longer. A window of 16 packets makes bursts with pauses of a round trip, over 8 us.

    With a gap of 8 us the bursts part and none overtakes another; with one of 0.2 us, below the 334 ns between two
    packets, the packets of a burst part as well and overtake.
    """
    topology = parallel_paths(2, extra_delay_ps=4 * US)
    bursts = ("cc.use=none", "transport.window=fixed", "transport.window_bytes=65536", FLOWLET)
    kept, torn = (
        run_flows(topology, [(0, 2, 4096 * 1600)], *bursts, f"load_balancing.flowlet_gap={gap}")
        for gap in ("8us", "200ns")
    )
    assert min(packets_per_uplink(kept, 2)) > 0
    assert all(n % 16 == 0 for n in packets_per_uplink(kept, 2))
    assert kept.result.totals.out_of_order == 0 and kept.result.totals.retransmitted_bytes == 0
    assert torn.result.totals.out_of_order > 0


def test_forgotten_flowlets_change_nothing(run_flows: RunFlows) -> None:
    """Far more flows than a switch's table holds before it sheds old entries: every flow still keeps its path."""
    flows = [KVFlow(i, "kv", (0,), (2,), 4096 * 3, path_seed=1) for i in range(1000)]
    run = run_flows(parallel_paths(4), flows, "cc.use=fixed", "cc.rate=50Mbps", FLOWLET)
    assert run.result.totals.out_of_order == 0
    assert run.result.totals.payload_bytes_acked == 1000 * 4096 * 3


# --- Both -------------------------------------------------------------------------------------------------------------


@settings(max_examples=20, deadline=None)
@given(
    flows=st.lists(
        st.tuples(st.integers(0, 7), st.integers(0, 7), st.integers(1, 1_000_000)).filter(lambda f: f[0] != f[1]),
        min_size=1,
        max_size=10,
    ),
    balancing=st.sampled_from([SPRAY, ROUND_ROBIN, (FLOWLET, "load_balancing.flowlet_gap=1us"), (FLOWLET, PLACE)]),
    cc=st.sampled_from(["dcqcn", "none", "swift"]),
    loss_rate=st.sampled_from([0.0, 1e-3]),
    ack_every=st.sampled_from([1, 7, 16]),
    window=st.sampled_from([17, 64, 2048]),
    seed=st.integers(0, 50),
)
def test_bytes_are_acknowledged_once_on_both_engines(
    flows: list[tuple[int, int, int]],
    balancing: tuple[str, ...],
    cc: str,
    loss_rate: float,
    ack_every: int,
    window: int,
    seed: int,
) -> None:
    fabric = make_eight_hosts()
    lossy = tuple(Link(k.id, k.a, k.b, k.rate_bps, k.delay_ps, k.tier, loss_rate) for k in fabric.links)
    topology = Topology("lossy", fabric.nodes, lossy)
    overrides = [*balancing, f"cc.use={cc}", f"transport.ack_every={ack_every}", "transport.timeout=1ms"]
    overrides += [f"transport.reorder_window={window}", "switch.buffer_bytes=2MB"]
    results = []
    for simulator in ("wheel", "ns3"):
        network = PacketNetwork(topology, load_network(overrides=overrides), seed=seed, simulator=simulator)
        for i, (src, dst, size) in enumerate(flows):
            network.start(KVFlow(i, "kv", (2 * src,), (2 * dst,), size, path_seed=seed), i * 1000)
        results.append(network.run())
    ours, stock = results
    assert ours.flows.end_ps.tolist() == stock.flows.end_ps.tolist()
    assert ours.totals.duplicates == stock.totals.duplicates
    assert ours.totals.payload_bytes_acked == ours.totals.payload_bytes_sent == sum(f[2] for f in flows)
    assert ours.flows.acked_bytes.tolist() == ours.flows.size_bytes.tolist()
    # A short last packet that is sprayed may pass the one before it on each of the up to five links after the first.
    overtaken_ps = 5 * 334_240 if "load_balancing.use=spray" in balancing else 0
    assert (ours.flows.end_ps - ours.flows.start_ps >= ours.flows.ideal_fct_ps - overtaken_ps).all()
    assert np.array_equal(ours.port_totals.tx_bytes, stock.port_totals.tx_bytes)


def test_pinned_paths_keep_their_packets_and_exclude_a_balancer(run_flows: RunFlows) -> None:
    topology = parallel_paths(4)

    class Third(dict[tuple[int, int, int], tuple[int, ...]]):
        def get(self, key: tuple[int, int, int], default: object = None) -> tuple[int, ...]:  # type: ignore[override]
            there = (0, 8, 17, 3)
            return there if key[0] == 0 else tuple(p ^ 1 for p in reversed(there))

    network = PacketNetwork(topology, load_network(overrides=["load_balancing.use=pinned"]), seed=1, pinned={})
    network._router._pinned = Third()
    network.start(KVFlow(0, "kv", (0,), (2,), 4096 * 100), 0)
    assert network.run().port_totals.tx_bytes[4:12:2, 1].tolist() == [0, 0, 100 * 4178, 0]
    with pytest.raises(InputError, match="load_balancing.use: given 'spray', must be 'pinned' or 'ecmp'"):
        PacketNetwork(topology, load_network(overrides=list(SPRAY)), seed=1, pinned={})


@pytest.mark.parametrize(("model", "use"), [("maxmin", "spray"), ("maxmin-aggregate", "flowlet"), ("tier", "flowlet")])
def test_fluid_models_refuse_what_they_do_not_have(eight_hosts: Topology, model: str, use: str) -> None:
    network = load_network(overrides=[f"load_balancing.use={use}", PLACE])
    with pytest.raises(InputError, match=f"given '{use}': the fluid model knows ecmp, pinned"):
        MODELS[model](eight_hosts, network, seed=1)
    overrides = [f"network.load_balancing.use={use}", "network.transport.reordering=place"]
    with pytest.raises(InputError, match=f"--set network.load_balancing.use={use}: .*the fluid model knows"):
        load_scenario("rag", overrides=overrides, backend="both", fluid=model)


def test_pooled_fluid_models_know_spraying(eight_hosts: Topology) -> None:
    for model in ("maxmin-aggregate", "tier"):
        MODELS[model](eight_hosts, load_network(overrides=list(SPRAY)), seed=1)
