"""ns-3's own TCP and UDP over the fabric's devices, beside RoCE."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from harness.backgrounds.poisson import PoissonBackground
from harness.backgrounds.tcp import TcpBackground
from harness.config import load_network
from harness.errors import InputError
from harness.packet.network import PacketNetwork
from harness.routing import Router, queue_pair_flows
from harness.types import Cluster, Instance, KVFlow, Topology
from tests.conftest import GBPS, make_three_hosts
from tests.packet.conftest import RunFlows
from tests.packet.test_network import in_a_fresh_process
from tests.packet.test_pcap import CE, read

MS = 10**9  # [ps]
K = 100_000
STEP_AT_K = (f"switch.ecn.kmin={K}B", f"switch.ecn.kmax={K}B", "switch.ecn.scale_with_rate=null")
NO_ECN = ("tcp.use=newreno", "tcp.ecn=false")


def tcp(i: int, src: int, dst: int, size: int) -> KVFlow:
    return KVFlow(i, "background", (src,), (dst,), size, carrier="tcp")


@pytest.mark.parametrize(("gbps", "size"), [(10, 10_000_000), (100, 50_000_000)])
@pytest.mark.parametrize(
    ("mtu", "payload", "wire"),
    [
        ("null", 4088, 4178),  # as long as a RoCE frame: 4158 bytes and the gap of 20; without 18, 20, 20 and 12 bytes
        ("9000", 8948, 9038),
    ],
)
def test_a_bulk_flow_alone_gets_the_line(
    run_flows: RunFlows, gbps: int, size: int, mtu: str, payload: int, wire: int
) -> None:
    """Below are its segments at line rate; handshake and slow start, 4 us a round trip, add less than 2 %."""
    run = run_flows(make_three_hosts(gbps * GBPS), [tcp(0, 0, 4, size)], f"tcp.mtu={mtu}")
    share = size * 8e12 / (gbps * GBPS) / int(run.fct_ps[0])
    assert 0.98 * payload / wire < share < payload / wire
    flows, totals = run.result.flows, run.result.totals
    assert (flows.acked_bytes[0], flows.retransmitted_bytes[0], totals.drops, totals.ecn_marks) == (size, 0, 0, 0)
    # The ideal leaves out connection set-up and slow start only.
    assert 0.98 < flows.ideal_fct_ps[0] / run.fct_ps[0] < 1
    sent = run.result.port_totals.tx_bytes[0]
    assert sent[:2].tolist() == [0, 0]
    assert size * wire / payload < sent[2] < size * wire / payload + wire + 1000


def queue_of_two(*overrides: str) -> tuple[np.ndarray, PacketNetwork]:
    """The queue towards host 2 at 10 Gb/s, every 10 us from 5 to 25 ms, as hosts 0 and 1 send to it."""
    network = PacketNetwork(make_three_hosts(10 * GBPS), load_network(overrides=overrides), seed=1)
    network.start(tcp(0, 0, 4, 17_000_000), 0)
    network.start(tcp(1, 2, 4, 17_000_000), 0)
    samples: list[int] = []
    for at in range(5 * MS, 25 * MS, MS // 100):
        network.schedule(at, lambda: samples.append(network.queue_bytes(5)))
    network.run()
    return np.array(samples), network


def test_dctcp_keeps_the_queue_near_k() -> None:
    """Alizadeh et al., SIGCOMM 2010, eq. 8-10: the queue swings by A = sqrt(2 N (C RTT + K)) / 2 below K + N packets.

    N = 2, K = 24 frames of 4158 bytes, C RTT = 5 kB or 1.2: A = 5.0 frames or 21 kB. Where N is small and flows are out
    of step the mean is about K.
    """
    queue, network = queue_of_two(*STEP_AT_K)
    result = network.recorded
    assert abs(queue.mean() - K) < 21_000
    assert np.percentile(queue, 1) > K - 2 * 21_000 and np.percentile(queue, 99) < K + 2 * 21_000
    assert result.totals.ecn_marks > 100
    assert (result.totals.drops, result.totals.pfc_pauses, result.flows.retransmitted_bytes.sum()) == (0, 0, 0)
    fct_ps = result.flows.end_ps - result.flows.start_ps
    assert fct_ps.min() > 0.9 * fct_ps.max()  # a fair share each


def test_without_ecn_the_windows_fill_the_buffer() -> None:
    """Two windows of up to 4 MiB: what DCTCP reacts to are the marks."""
    queue, network = queue_of_two(*STEP_AT_K, *NO_ECN)
    assert queue.mean() > 20 * K
    assert network.recorded.totals.ecn_marks == 0
    assert network.recorded.totals.drops == 0  # PFC holds the hosts


def test_a_lossy_switch_drops_and_tcp_recovers(run_flows: RunFlows) -> None:
    flows = [tcp(0, 0, 4, 3_000_000), tcp(1, 2, 4, 3_000_000)]
    run = run_flows(make_three_hosts(10 * GBPS), flows, *NO_ECN, "switch.pfc.on=false", "switch.buffer_bytes=1MB")
    assert run.result.totals.drops > 0
    # Every lost segment is sent again, the shorter last one of each flow perhaps among them.
    assert run.result.flows.retransmitted_bytes.sum() > 4088 * (run.result.totals.drops - 2)
    assert run.result.flows.acked_bytes.tolist() == [3_000_000] * 2


def test_roce_passes_tcp_in_its_own_class(run_flows: RunFlows) -> None:
    """KV data has priority: at either link it waits for at most one TCP frame (4178 bytes at 800 ps), its ACK for one
    of 90 bytes.
    """
    topology = make_three_hosts(10 * GBPS)
    kv = KVFlow(0, "kv", (0,), (4,), 4096 * 1000)
    alone = run_flows(topology, [kv], "cc.use=none")
    both = run_flows(topology, [tcp(0, 0, 4, 3_000_000), tcp(1, 2, 4, 3_000_000), kv], "cc.use=none")
    flows = both.result.flows
    assert flows.traffic_class.tolist() == [1, 2, 2]  # of one start time, RDMA flows come first
    fct_ps = flows.end_ps - flows.start_ps
    assert 0 <= fct_ps[0] - alone.fct_ps[0] <= 2 * 4178 * 800 + 2 * 90 * 800
    assert fct_ps[1:].min() > fct_ps[0]
    classes = both.result.port_totals.tx_bytes[5]
    assert classes[1] == 1000 * 4178 and classes[2] > 6_000_000


def test_rows_and_completion(three_hosts: Topology) -> None:
    network = PacketNetwork(three_hosts, load_network(), seed=1)
    done: list[tuple[str, int]] = []
    network.start(tcp(7, 0, 4, 100_000), 30 * MS, lambda: done.append(("tcp", network.now_ps)))
    network.start(KVFlow(8, "kv", (0,), (4,), 4096), 40 * MS, lambda: done.append(("kv", network.now_ps)))
    network.start(tcp(9, 2, 4, 1), 20 * MS)
    flows = network.run().flows
    assert flows.transfer_id.tolist() == [9, 7, 8]
    assert flows.traffic_class.tolist() == [2, 2, 1]
    assert flows.start_ps.tolist() == [20 * MS, 30 * MS, 40 * MS]
    assert done == [("tcp", flows.end_ps[1]), ("kv", flows.end_ps[2])]


def test_kv_flows_are_not_carried_by_tcp(three_hosts: Topology) -> None:
    network = PacketNetwork(three_hosts, load_network(), seed=1)
    with pytest.raises(InputError, match="a flow of class 'kv' over tcp"):
        network.start(KVFlow(0, "kv", (0,), (4,), 1000, carrier="tcp"), 0)


def test_flows_of_one_pair_use_different_ports_and_paths(eight_hosts: Topology, run_flows: RunFlows) -> None:
    """Each follows the path of its source port xor 5001, and one whose source port is taken gets the next."""
    flows = [tcp(i, 0, 14, 200_000) for i in (*range(8), 0)]
    run = run_flows(eight_hosts, flows)
    assert run.result.flows.acked_bytes.tolist() == [200_000] * 9
    router = Router(eight_hosts, seed=1)
    used = set()
    for flow in flows[:8]:
        (part,) = queue_pair_flows(flow, striping="single", queue_pairs=1)
        used |= set(router.path(0, 14, part.udp_sport ^ 5001))
    carried = {p for p in range(eight_hosts.n_ports) if run.result.port_totals.tx_bytes[p, 2] > 200_000}
    assert used <= carried
    assert len(used) > 5  # more than one path


@pytest.mark.parametrize("other", [{}, {"simulator": "ns3"}])
def test_runs_are_repeatable_on_either_engine(
    eight_hosts: Topology, run_flows: RunFlows, other: dict[str, str]
) -> None:
    flows = [tcp(i, 2 * i, 14, 300_000) for i in range(4)] + [
        KVFlow(i, "kv", (2 * i,), (14,), 500_000) for i in range(4)
    ]
    first, again = run_flows(eight_hosts, flows), run_flows(eight_hosts, flows, **other)
    assert first.result.flows.end_ps.tolist() == again.result.flows.end_ps.tolist()


def test_captured_frames_carry_the_marks(run_flows: RunFlows, tmp_path: Path) -> None:
    file = tmp_path / "tcp.pcap"
    flows = [tcp(0, 0, 4, 1_000_000), tcp(1, 2, 4, 1_000_000)]
    run = run_flows(make_three_hosts(10 * GBPS), flows, *STEP_AT_K, pcap={5: file})
    records = read(file)
    assert sum(r.ecn == CE for r in records) == run.result.totals.ecn_marks > 0
    full = [r for r in records if r.length > 1000]
    assert {r.length for r in full} <= {4154, *(r.length for r in full if r.length < 4154)}
    assert {r.data[12:14] + r.data[23:24] for r in records} == {b"\x08\x00\x06"}  # IPv4, TCP
    # What a file holds of a stock frame: Ethernet 14, IP 20, TCP with all options 60.
    assert {len(r.data) for r in full} == {94}


def test_other_runs_do_without_the_internet_stack() -> None:
    out = in_a_fresh_process(
        """
        from pathlib import Path
        from harness.config import load_network
        from harness.packet.network import PacketNetwork
        from harness.types import KVFlow
        from tests.conftest import make_three_hosts
        network = PacketNetwork(make_three_hosts(), load_network(), seed=1)
        network.start(KVFlow(0, "kv", (0,), (2,), 4096), 0)
        network.run()
        maps = Path("/proc/self/maps").read_text()
        print("ns3.44-network" in maps, "ns3.44-internet" in maps)
        """
    )
    assert out.split() == ["True", "False"]


def test_ns3_applications_run_on_the_hosts() -> None:
    """ns-3's UDP client and server, bulk sender and sink, as an ns-3 user writes them. And the bound of a host's queue:
    of 100 frames of 1018 bytes handed to a device at once, the 64 that fit into 65,536 bytes are taken, beside one in
    transmission.
    """
    out = in_a_fresh_process(
        """
        import cppyy
        from harness.config import load_network
        from harness.packet import runtime
        from harness.packet.network import PacketNetwork
        from tests.conftest import make_three_hosts
        network = PacketNetwork(make_three_hosts(), load_network(), seed=1)
        network.install_internet_stack([0, 1, 2])
        root = runtime.ns3_root()
        cppyy.add_include_path(str(root / "include"))
        for module in ("core", "network", "internet", "applications"):
            cppyy.load_library(str(root / "lib64" / f"libns3.44-{module}.so"))
        for module in ("core", "network", "internet", "applications"):
            cppyy.include(f"ns3/{module}-module.h")
        cppyy.cppdef('''
        using namespace ns3;
        ApplicationContainer servers;
        uint32_t taken = 0, dropped = 0;
        void Drop(Ptr<const Packet>) { ++dropped; }
        void SetUp() {
            Ptr<Node> a = NodeList::GetNode(0), b = NodeList::GetNode(1), c = NodeList::GetNode(2);
            UdpServerHelper server(9);
            servers.Add(server.Install(c));
            UdpClientHelper client(InetSocketAddress(Ipv4Address("10.0.0.5"), 9));
            client.SetAttribute("MaxPackets", UintegerValue(500));
            client.SetAttribute("PacketSize", UintegerValue(1000));
            client.SetAttribute("Interval", TimeValue(MicroSeconds(1)));
            client.Install(a);
            InetSocketAddress sink(Ipv4Address("10.0.0.5"), 80);
            servers.Add(PacketSinkHelper("ns3::TcpSocketFactory", sink).Install(c));
            BulkSendHelper bulk("ns3::TcpSocketFactory", sink);
            bulk.SetAttribute("MaxBytes", UintegerValue(1000000));
            bulk.Install(b);
            Ptr<NetDevice> device = b->GetDevice(0);
            device->TraceConnectWithoutContext("Drop", MakeCallback(&Drop));
            Simulator::Schedule(Seconds(2), std::function<void()>([device, c] {
                for (int i = 0; i < 100; ++i)
                    taken += device->Send(Create<Packet>(1000), c->GetDevice(0)->GetAddress(), 0x88b5);
            }));
        }
        uint64_t Udp() { return DynamicCast<UdpServer>(servers.Get(0))->GetReceived(); }
        uint64_t Bulk() { return DynamicCast<PacketSink>(servers.Get(1))->GetTotalRx(); }
        ''')
        cppyy.gbl.SetUp()
        network.run()
        print(cppyy.gbl.Udp(), cppyy.gbl.Bulk(), cppyy.gbl.taken, cppyy.gbl.dropped)
        """
    )
    assert out.split() == ["500", "1000000", "65", "35"]


def test_the_background_component_is_poisson_over_tcp(eight_hosts: Topology) -> None:
    cluster = Cluster(eight_hosts, tuple(Instance(i, "decode", i, 4, (2 * i,), {}) for i in range(8)))
    over_rdma, over_tcp = (
        list(islice(use(share={2: 0.1}, seed=1, cluster=cluster).flows(), 100))
        for use in (PoissonBackground, TcpBackground)
    )
    assert {flow.carrier for _, flow in over_tcp} == {"tcp"}
    assert [(at, flow.size_bytes, flow.src_ports) for at, flow in over_tcp] == [
        (at, flow.size_bytes, flow.src_ports) for at, flow in over_rdma
    ]


def test_headroom_counts_the_longest_frame() -> None:
    """No loss in spite of frames of 9018 bytes, twice RoCE's: two lossless hosts that fill one link."""
    queue, network = queue_of_two(*NO_ECN, "tcp.mtu=9000")
    assert queue.max() > 10 * K
    assert network.recorded.totals.drops == 0 < network.recorded.totals.pfc_pauses
