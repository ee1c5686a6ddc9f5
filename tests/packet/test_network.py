"""PacketNetwork as a NetworkModel, its event loop, and its place in ns-3."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from harness.config import build_cluster, load_network, load_scenario
from harness.errors import InputError, Interrupted
from harness.packet.network import PacketNetwork
from harness.routing import Router
from harness.types import KVFlow, Topology
from tests.packet.conftest import RunFlows

US = 1_000_000


def test_events_run_in_order_of_time_then_of_scheduling(three_hosts: Topology) -> None:
    network = PacketNetwork(three_hosts, load_network(), seed=1)
    order: list[tuple[str, int]] = []

    def note(name: str) -> None:
        order.append((name, network.now_ps))

    network.schedule(2 * US, lambda: note("b"))
    network.schedule(1 * US, lambda: note("a"))
    network.schedule(2 * US, lambda: note("c"))
    network.schedule(10**15, lambda: note("far"))  # beyond the timing wheel
    network.schedule(1 * US, lambda: network.schedule(2 * US, lambda: note("d")))
    network.run()
    assert order == [("a", US), ("b", 2 * US), ("c", 2 * US), ("d", 2 * US), ("far", 10**15)]


def test_done_runs_when_the_last_byte_is_acknowledged(three_hosts: Topology) -> None:
    network = PacketNetwork(three_hosts, load_network(overrides=["cc.use=none"]), seed=1)
    done: list[int] = []
    network.start(KVFlow(7, "kv", (0,), (2,), 8192), 5 * US, lambda: done.append(network.now_ps))
    result = network.run()
    assert done == result.flows.end_ps.tolist() == [5 * US + 668_480 + 334_240 + 2 * 6_880 + 4 * US]
    assert result.flows.transfer_id.tolist() == [7]


def test_tie_between_departure_and_arrival(three_hosts: Topology, run_flows: RunFlows) -> None:
    """Two line-rate trains meet at the switch with arrivals exactly at the times at which its port falls free.

    Departures come first, so the queue never holds more than the other flow's packets; arrivals at one time come in the
    order in which they were scheduled, here that of the flows' starts. Swapping the flows swaps their completion times.
    """
    flows = [(0, 4, 4096 * 50), (2, 4, 4096 * 50)]
    run = run_flows(three_hosts, flows, "cc.use=none")
    tail = 2 * US + 2 * (6_880 + US) + 334_240
    assert run.fct_ps.tolist() == [99 * 334_240 + tail, 100 * 334_240 + tail]
    swapped = run_flows(three_hosts, flows[::-1], "cc.use=none")
    assert swapped.fct_ps.tolist() == run.fct_ps.tolist()
    assert run.result.totals.max_queue_bytes == 50 * 4158


def test_same_seed_same_result_and_another_seed_another(eight_hosts: Topology, run_flows: RunFlows) -> None:
    flows = [(2 * i, 2 * ((i + 3) % 8), 3_000_000) for i in range(8)] + [(2 * i, 14, 2_000_000) for i in range(4)]
    first, again, other = (run_flows(eight_hosts, flows, seed=s) for s in (1, 1, 2))
    assert first.fct_ps.tolist() == again.fct_ps.tolist()
    assert first.result.totals == again.result.totals
    assert first.fct_ps.tolist() != other.fct_ps.tolist()


@pytest.mark.parametrize("cnp_mode", ["packet", "ack-flag"])
@pytest.mark.parametrize("ack_every", [1, 16])
def test_a_packet_without_an_event_changes_nothing_but_their_number(
    eight_hosts: Topology, run_flows: RunFlows, ack_every: int, cnp_mode: str
) -> None:
    """Where a link may lose packets every arrival has an event, and at this rate none is lost."""
    links = tuple(replace(link, loss_rate=5e-324) for link in eight_hosts.links)
    flows = [(2 * i, 14, 1_000_000 + 70_001 * i) for i in range(4)] + [(8, 10, 2_000_000), (12, 10, 900_000)]
    overrides = (f"transport.ack_every={ack_every}", f"cc.cnp_mode={cnp_mode}", "transport.payload_bytes=1000")
    quiet = run_flows(eight_hosts, flows, *overrides).result
    loud = run_flows(replace(eight_hosts, links=links), flows, *overrides).result
    for column in ("end_ps", "ecn_marks", "cnps", "retransmitted_bytes"):
        assert getattr(quiet.flows, column).tolist() == getattr(loud.flows, column).tolist()
    assert replace(quiet.totals, events=0) == replace(loud.totals, events=0)
    assert quiet.totals.cnps > 0
    assert (quiet.totals.events < loud.totals.events) == (ack_every > 1)


def test_paths_equal_those_of_the_python_router() -> None:
    for preset in ("paper-64", "leaf-spine-64", "k-ary-4"):
        scenario = load_scenario("rag", overrides=[f"topology={preset}", "background=none"])
        cluster = build_cluster(scenario)
        topology = cluster.topology
        network = PacketNetwork(topology, load_network(), seed=3)
        router = Router(topology, seed=3)
        nics = [i.nic_ports[0] for i in cluster.instances]
        for sport in (49152, 50001, 65535):
            for src in nics[:6]:
                for dst in nics:
                    if src != dst:
                        assert network.path(src, dst, sport) == router.path(src, dst, sport)


def test_striping_and_queue_pairs(eight_hosts: Topology, run_flows: RunFlows) -> None:
    transfer = KVFlow(0, "kv", (0, 2), (8, 10), 1_000_001)
    single = run_flows(eight_hosts, [transfer], "transport.queue_pairs=3")
    assert single.result.flows.size_bytes.tolist() == [333_334, 333_334, 333_333]
    assert set(single.result.flows.src_port.tolist()) == {0}
    ranks = run_flows(eight_hosts, [transfer], "transport.striping=per-rank")
    assert ranks.result.flows.src_port.tolist() == [0, 2]


def test_an_exception_in_an_action_comes_out_unchanged(three_hosts: Topology) -> None:
    network = PacketNetwork(three_hosts, load_network(), seed=1)
    error = LookupError("mine")

    def fail() -> None:
        raise error

    network.start(KVFlow(0, "kv", (0,), (2,), 10_000_000), 0)
    network.schedule(100 * US, fail)
    with pytest.raises(LookupError) as caught:
        network.run()
    assert caught.value is error
    partial = network.recorded
    assert partial.flows.end_ps.tolist() == [-1] and 0 < partial.flows.acked_bytes[0] < 10_000_000


def test_ctrl_c_stops_the_event_loop(three_hosts: Topology) -> None:
    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    network = PacketNetwork(three_hosts, load_network(), seed=1, on_heartbeat=interrupt)
    network.start(KVFlow(0, "kv", (0,), (2,), 10**11), 0)
    with pytest.raises(Interrupted):
        network.run()


def test_ctrl_c_on_the_way_into_a_callback_stops_the_event_loop_as_well(three_hosts: Topology) -> None:
    """Python may see it before the first `try` of a callback; ctypes then reports it as unraisable."""

    @ctypes.CFUNCTYPE(None)
    def callback() -> None:
        raise KeyboardInterrupt

    hook = sys.unraisablehook
    network = PacketNetwork(three_hosts, load_network(), seed=1)
    network.start(KVFlow(0, "kv", (0,), (2,), 10**11), 0)
    network.schedule(US, callback)
    with pytest.raises(Interrupted):
        network.run()
    assert network.now_ps < 10**9
    assert sys.unraisablehook is hook


def test_sample_counts_wire_bytes_by_class(three_hosts: Topology) -> None:
    network = PacketNetwork(three_hosts, load_network(overrides=["cc.use=none"]), seed=1)
    network.start(KVFlow(0, "kv", (0,), (2,), 4096 * 32), 0)
    network.start(KVFlow(0, "background", (4,), (2,), 4096), 0)
    network.run()
    sample = network.sample()
    assert sample.tx_bytes[0].tolist() == [0, 32 * 4178, 0]
    assert sample.tx_bytes[3].tolist() == [0, 32 * 4178, 4178]
    assert sample.tx_bytes[2].tolist() == [3 * 86, 0, 0]  # two ACKs for 32 packets and one for the background flow


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("switch.buffer_bytes=100KB", "headroom and reserves of tor0"),
        ("framing.data_overhead=8000", "a frame of 12096 bytes is too long"),
    ],
)
def test_settings_that_do_not_fit_are_refused(eight_hosts: Topology, override: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        PacketNetwork(eight_hosts, load_network(overrides=[override]), seed=1)


def test_unknown_attribute_of_the_congestion_control_is_refused(three_hosts: Topology) -> None:
    settings = load_network()
    cc = settings.cc.model_copy(update={"attributes": {"Gian": "1"}})
    with pytest.raises(InputError, match="no attribute 'Gian'; it has: G, InitialAlpha, AlphaTimer"):
        PacketNetwork(three_hosts, settings.model_copy(update={"cc": cc}), seed=1)


def in_a_fresh_process(code: str, *arguments: str) -> str:
    """Plug-in headers and ns-3's own API are for one process each."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_a_congestion_control_from_a_header(tmp_path: Path) -> None:
    """A header outside the project, named by one configuration key, at half the line rate: twice the pace of 334,240 ps
    a packet.
    """
    (tmp_path / "half-rate.h").write_text(
        """
        #include "congestion-control.h"
        #include "ns3/double.h"
        namespace lab {
        class HalfRate : public kvnet::CongestionControl {
          public:
            static ns3::TypeId GetTypeId() {
                static ns3::TypeId tid = ns3::TypeId("lab::HalfRate").SetParent<kvnet::CongestionControl>()
                    .AddConstructor<HalfRate>()
                    .AddAttribute("Share", "Of the line rate.", ns3::DoubleValue(1),
                                  ns3::MakeDoubleAccessor(&HalfRate::m_share), ns3::MakeDoubleChecker<double>(0, 1));
                return tid;
            }
            void Start(kvnet::RateControl& control, kvnet::SimTime) override { control.rateBps = m_share *
            control.lineRateBps; } void OnCnp(kvnet::RateControl&, kvnet::SimTime) override {}
          private:
            double m_share;
        };
        NS_OBJECT_ENSURE_REGISTERED(HalfRate);
        }
        """
    )
    out = in_a_fresh_process(
        """
        import sys
        from harness.config import load_network
        from harness.packet.network import PacketNetwork
        from harness.types import KVFlow, Link, Node, Topology
        nodes = (Node(0, "a", "host"), Node(1, "b", "host"), Node(2, "s", "switch"))
        topology = Topology("two", nodes, (Link(0, 0, 2, 10**11, 10**6, 1), Link(1, 1, 2, 10**11, 10**6, 1)))
        plug_in = [f"cc.header={sys.argv[1]}", "cc.use=lab::HalfRate", "cc.attributes={Share: '0.5'}"]
        settings = load_network(overrides=plug_in)
        network = PacketNetwork(topology, settings, seed=1)
        network.start(KVFlow(0, "kv", (0,), (2,), 4096 * 100), 0)
        print(network.run().flows.end_ps[0])
        """,
        str(tmp_path / "half-rate.h"),
    )
    assert int(out) == 99 * 668_480 + 2 * (334_240 + US) + 2 * (6_880 + US)


def test_devices_are_reachable_by_ns3_and_carry_its_packets() -> None:
    """A stock packet socket across the fabric, beside RoCE: 3 packets of 1000 B arrive; device attributes by Config
    path.
    """
    out = in_a_fresh_process(
        """
        from harness.config import load_network
        from harness.packet import runtime
        from harness.packet.network import PacketNetwork
        from harness.types import KVFlow, Link, Node, Topology
        import cppyy
        kvnet = runtime.load()
        root = runtime.ns3_root()
        cppyy.add_include_path(str(root / "include"))
        for module in ("core", "network"):
            cppyy.load_library(str(root / "lib64" / f"libns3.44-{module}.so"))
        cppyy.include("ns3/core-module.h")
        cppyy.include("ns3/network-module.h")
        cppyy.cppdef('''
        uint32_t received = 0;
        bool Receive(ns3::Ptr<ns3::NetDevice>, ns3::Ptr<const ns3::Packet> p, uint16_t protocol, const ns3::Address&) {
            received += p->GetSize() == 1000 && protocol == 0x88b5;
            return true;
        }
        ns3::Ptr<ns3::NetDevice> Device(uint32_t node, uint32_t i) { return ns3::NodeList::GetNode(node)->GetDevice(i);
        } void Send(uint32_t from, uint32_t to) {
            Device(from, 0)->Send(ns3::Create<ns3::Packet>(1000), Device(to, 0)->GetAddress(), 0x88b5);
        }
        void SetUp() {
            Device(1, 0)->SetReceiveCallback(ns3::MakeCallback(&Receive));
            for (int i = 0; i < 3; ++i) ns3::Simulator::Schedule(ns3::MicroSeconds(1 + i), &Send, 0u, 1u);
        }
        uint64_t EcnMin() {
            ns3::Config::Set("/Names/s/DeviceList/1/$kvnet::RoceNetDevice/EcnMin", ns3::UintegerValue(12345));
            ns3::UintegerValue value;
            Device(2, 1)->GetAttribute("EcnMin", value);
            return value.Get();
        }
        ''')
        nodes = (Node(0, "a", "host"), Node(1, "b", "host"), Node(2, "s", "switch"))
        topology = Topology("two", nodes, (Link(0, 0, 2, 10**11, 10**6, 1), Link(1, 1, 2, 10**11, 10**6, 1)))
        network = PacketNetwork(topology, load_network(overrides=["cc.use=none"]), seed=1)
        cppyy.gbl.SetUp()
        network.start(KVFlow(0, "kv", (0,), (2,), 4096 * 100), 0)
        result = network.run()
        print(cppyy.gbl.received, cppyy.gbl.EcnMin(), result.port_totals.tx_bytes[0].tolist())
        """
    )
    # 1000 + 18 Ethernet + 20 preamble and gap each, in the background class.
    assert out.split("\n")[0] == f"3 12345 [0, {100 * 4178}, {3 * 1038}]"


@pytest.mark.parametrize("delay_us", [0.001, 3, 30, 100])
def test_engines_agree_within_the_wheels_horizon_and_beyond(
    eight_hosts: Topology, run_flows: RunFlows, delay_us: float
) -> None:
    """Slots are wider for longer links; at 100 us every arrival goes through the heap."""
    links = tuple(replace(link, delay_ps=int(delay_us * US)) for link in eight_hosts.links)
    fabric = replace(eight_hosts, links=links)
    case = [(2 * (i % 8), 2 * (i % 3), 2_000_000 + 7000 * i) for i in range(24) if i % 8 != i % 3]
    ours, stock = (run_flows(fabric, case, simulator=s) for s in ("wheel", "ns3"))
    assert ours.result.totals.ecn_marks > 0
    assert ours.fct_ps.tolist() == stock.fct_ps.tolist()
    assert ours.result.totals == stock.result.totals


@pytest.mark.parametrize("flows", [1, 40])
def test_engines_agree_on_a_pfc_heavy_case(eight_hosts: Topology, run_flows: RunFlows, flows: int) -> None:
    case = [(2 * (i % 7), 14, 1_500_000 + 1000 * i) for i in range(flows)]
    overrides = ("cc.use=none", "switch.buffer_bytes=1500KB")
    ours, stock = (run_flows(eight_hosts, case, *overrides, simulator=s) for s in ("wheel", "ns3"))
    assert ours.fct_ps.tolist() == stock.fct_ps.tolist()
    assert ours.result.totals.pfc_pauses == stock.result.totals.pfc_pauses
    assert np.array_equal(ours.result.port_totals.paused_ps, stock.result.port_totals.paused_ps)
