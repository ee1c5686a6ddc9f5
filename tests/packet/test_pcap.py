"""Captured links: every byte of a frame, its time, and what tshark makes of it."""

from __future__ import annotations

import shutil
import struct
import subprocess
import zlib
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.config import load_network
from harness.errors import InputError, Interrupted, RunFailure
from harness.packet import capture
from harness.packet.network import PacketNetwork
from harness.types import KVFlow, Link, Topology
from tests.conftest import PROJECT, make_three_hosts
from tests.packet.conftest import RunFlows

US = 1_000_000
NS = 1000

WRITE_FIRST, WRITE_MIDDLE, WRITE_LAST, WRITE_ONLY, ACK, CNP = 0x06, 0x07, 0x08, 0x0A, 0x11, 0x81
NOT_ECT, ECT0, CE = 0, 2, 3

#: Ports of the three-hosts fabric.
HOST0, TOR_TO_HOST0, TOR_TO_HOST2 = 0, 1, 5

#: Wireshark 4.0 lacks the name of a CNP.
CNP_NAMES = PROJECT / "harness" / "packet" / "cnp.lua"

WHOLE = {"pcap_snap_bytes": 9000}


@dataclass(frozen=True)
class Record:
    time_ns: int
    length: int  #: on the wire
    data: bytes

    @property
    def ip(self) -> bytes:
        return self.data[14:34]

    @property
    def bth(self) -> bytes:
        return self.data[42:54]

    @property
    def opcode(self) -> int:
        return self.bth[0]

    @property
    def psn(self) -> int:
        return int.from_bytes(self.bth[9:12], "big")

    @property
    def ecn(self) -> int:
        return self.ip[1] & 3


def read(path: Path) -> list[Record]:
    content = path.read_bytes()
    magic, major, minor, _, _, _, link_type = struct.unpack_from("<IHHIIII", content)
    assert (magic, major, minor, link_type) == (0xA1B23C4D, 2, 4, 1)  # nanoseconds, Ethernet
    records, at = [], 24
    while at < len(content):
        seconds, ns, kept, length = struct.unpack_from("<IIII", content, at)
        assert len(content) >= at + 16 + kept
        records.append(Record(seconds * 10**9 + ns, length, content[at + 16 : at + 16 + kept]))
        at += 16 + kept
    return records


def invariant_crc(frame: bytes) -> bytes:
    """Of a whole frame without its last four bytes, by InfiniBand annex A17.3.3; the CRC is not the model's."""
    masked = bytearray(frame[14:-4])
    for i in (1, 8, 10, 11, 26, 27, 32):  # DSCP and ECN, TTL, IP checksum, UDP checksum, BTH's FECN and BECN
        masked[i] = 0xFF
    return zlib.crc32(b"\xff" * 8 + masked).to_bytes(4, "little")


def ip_sum(header: bytes) -> int:
    total = sum(struct.unpack("!10H", header))
    return (total & 0xFFFF) + (total >> 16)


def test_a_write_of_three_packets(three_hosts: Topology, run_flows: RunFlows, tmp_path: Path) -> None:
    """8193 bytes: full packets of 14 + 20 + 8 + 12 + 4096 + 4 = 4154 bytes, the first with 16 of RETH, the last with
    one byte, padded to 4. They leave host 0 back to back, 334.24 ns apart (4178 modelled bytes at 80 ps).
    """
    files = {HOST0: tmp_path / "data.pcap", TOR_TO_HOST0: tmp_path / "acks.pcap"}
    flow = KVFlow(0, "kv", (0,), (4,), 8193)
    run_flows(three_hosts, [flow], "cc.use=none", pcap=files, **WHOLE)
    records = read(files[HOST0])
    assert [(r.time_ns, r.length, r.opcode) for r in records] == [
        (0, 4170, WRITE_FIRST),
        (334, 4154, WRITE_MIDDLE),
        (668, 62, WRITE_LAST),
    ]
    for i, r in enumerate(records):
        assert len(r.data) == r.length
        assert (r.data[:6], r.data[6:12]) == (bytes([0, 0, 0, 0, 0, 5]), bytes([0, 0, 0, 0, 0, 1]))  # ports 4 and 0
        assert (r.ip[12:16], r.ip[16:20]) == (bytes([10, 0, 0, 1]), bytes([10, 0, 0, 5]))
        assert r.ip[1] == 26 << 2 | ECT0
        assert int.from_bytes(r.ip[2:4], "big") == r.length - 14
        assert ip_sum(r.ip) == 0xFFFF
        udp = struct.unpack("!4H", r.data[34:42])
        assert udp[1:] == (4791, r.length - 34, 0)
        assert udp[0] >= 49152
        assert (r.bth[1], r.bth[2:4], r.bth[5:8]) == (0x70 if i == 2 else 0x40, b"\xff\xff", b"\0\0\3")
        assert r.psn == i
        assert r.bth[8] == (0x80 if i == 2 else 0)  # an ACK is asked for at the end
        assert r.data[-4:] == invariant_crc(r.data)
    assert struct.unpack("!QII", records[0].data[54:70]) == (0, 3, 8193)
    (ack,) = read(files[TOR_TO_HOST0])
    # The last packet, of 83 modelled bytes, has left host 0 at 675.12 ns, but waits at the switch for the full ones:
    # 2 x 334.24 + 1000 + 334.24 ns. Then 6.64 and 1000 ns, and the ACK's 86 bytes in 6.88 and 1000 ns to the switch.
    assert ack.time_ns == (2 * 334_240 + US + 334_240 + 6_640 + US + 6_880 + US) // NS
    assert (ack.length, ack.opcode, ack.psn, ack.bth[5:8]) == (62, ACK, 2, b"\0\0\2")
    assert ack.data[54:58] == b"\x1f\0\0\1"  # no credits, one message complete
    assert ack.ip[1] == 48 << 2 | NOT_ECT
    assert ack.data[-4:] == invariant_crc(ack.data)


def test_the_start_value_of_the_invariant_crc() -> None:
    """That of Linux's soft RoCE driver (rxe_icrc.c)."""
    assert zlib.crc32(b"\xff" * 8) ^ 0xFFFFFFFF == 0xDEBB20E3


def test_a_write_of_one_packet_without_its_payload(three_hosts: Topology, run_flows: RunFlows, tmp_path: Path) -> None:
    file = tmp_path / "data.pcap"
    run_flows(three_hosts, [(0, 4, 1000)], pcap={HOST0: file})
    (record,) = read(file)
    assert (record.opcode, record.length, len(record.data)) == (WRITE_ONLY, 14 + 20 + 8 + 12 + 16 + 1000 + 4, 70)


def test_a_flow_above_2_gib_is_several_messages(three_hosts: Topology, run_flows: RunFlows, tmp_path: Path) -> None:
    """With payloads of 9000 bytes a message has 238,609 packets (2^31 / 9000, rounded down): two packets are left."""
    file = tmp_path / "data.pcap"
    size = 238_611 * 9000
    run_flows(
        three_hosts,
        [(0, 4, size)],
        "cc.use=none",
        "transport.payload_bytes=9000",
        profile="roce-default",
        pcap={0: file},
    )
    records = read(file)
    assert [r.opcode for r in records[238_607:]] == [WRITE_MIDDLE, WRITE_LAST, WRITE_FIRST, WRITE_LAST]
    assert struct.unpack("!QII", records[238_609].data[54:70]) == (238_609 * 9000, 3, 2 * 9000)


def test_marks_and_notifications(three_hosts: Topology, run_flows: RunFlows, tmp_path: Path) -> None:
    files = {HOST0: tmp_path / "sent", TOR_TO_HOST2: tmp_path / "marked", TOR_TO_HOST0: tmp_path / "back"}
    run = run_flows(
        three_hosts, [(0, 4, 400_000), (2, 4, 400_000)], "switch.ecn.kmin=0B", "switch.ecn.kmax=0B", pcap=files
    )
    assert {r.ecn for r in read(files[HOST0])} == {ECT0}
    marked = read(files[TOR_TO_HOST2])
    assert sum(r.ecn == CE for r in marked) == run.result.totals.ecn_marks > 50
    assert all(ip_sum(r.ip) == 0xFFFF for r in marked)
    cnps = [r for r in read(files[TOR_TO_HOST0]) if r.opcode == CNP]
    assert len(cnps) == run.result.flows.cnps[0] > 0
    for r in cnps:
        assert (r.length, len(r.data)) == (74, 74)
        assert r.data[42:70] == bytes([CNP, 0, 0xFF, 0xFF, 0x40, 0, 0, 2]) + bytes(20)  # BECN, queue pair 2, reserved
        assert r.data[-4:] == invariant_crc(r.data)


def test_a_lost_packet_is_answered_with_a_sequence_error(run_flows: RunFlows, tmp_path: Path) -> None:
    fabric = make_three_hosts()
    lossy = Link(0, 0, 3, 10**11, US, tier=1, loss_rate=0.02)
    topology = Topology("lossy", fabric.nodes, (lossy, *fabric.links[1:]))
    files = {HOST0: tmp_path / "data", 4: tmp_path / "answers"}
    run = run_flows(topology, [(0, 4, 4096 * 300)], "cc.use=none", "transport.nack_interval=0us", pcap=files)
    assert run.result.totals.drops > 0
    naks = [r for r in read(files[4]) if r.opcode == ACK and r.data[54] == 0x60]
    assert naks
    sent = [r.psn for r in read(files[HOST0])]
    assert set(sent) == set(range(300))
    # Whatever is named missing is sent again.
    assert all(sent.count(r.psn) >= 2 for r in naks)


def test_pfc_frames(three_hosts: Topology, run_flows: RunFlows, tmp_path: Path) -> None:
    file = tmp_path / "pfc"
    run = run_flows(
        three_hosts,
        [(0, 4, 2_000_000), (2, 4, 2_000_000)],
        "cc.use=none",
        "switch.buffer_bytes=1500KB",
        pcap={TOR_TO_HOST0: file},
    )
    frames = [r for r in read(file) if r.data[12:14] == b"\x88\x08"]
    assert 2 * len(frames) == run.result.totals.pfc_pauses + run.result.totals.pfc_resumes > 0
    head = bytes.fromhex("0180c2000001 000000000002 8808 0101 0008".replace(" ", ""))  # priority 3, as DSCP 26 / 8
    pause, resume = (head + bytes(6) + quanta + bytes(8 + 26) for quanta in (b"\xff\xff", b"\0\0"))
    assert [r.data for r in frames] == [pause, resume] * (len(frames) // 2)
    assert {r.length for r in frames} == {60}


def test_capturing_changes_nothing(eight_hosts: Topology, run_flows: RunFlows, tmp_path: Path) -> None:
    flows = [(2 * i, 14, 500_000 + 1000 * i) for i in range(7)]
    files = {port: tmp_path / str(port) for port in range(eight_hosts.n_ports)}
    plain, captured = run_flows(eight_hosts, flows), run_flows(eight_hosts, flows, pcap=files)
    assert captured.fct_ps.tolist() == plain.fct_ps.tolist()
    totals = captured.result.totals
    assert totals == plain.result.totals
    records = {port: read(path) for port, path in files.items()}
    assert sum(map(len, records.values())) == totals.data_hops + totals.control_hops
    for times in ([r.time_ns for r in rs] for rs in records.values()):
        assert times == sorted(times)


def test_a_file_ends_at_its_limit(three_hosts: Topology, run_flows: RunFlows, tmp_path: Path) -> None:
    """A header of 24 bytes, a first record of 16 + 70, the others of 16 + 54: 14 of them fit into 1100 bytes."""
    file = tmp_path / "data"
    run = run_flows(three_hosts, [(0, 4, 4096 * 100)], pcap={HOST0: file}, pcap_limit_bytes=1100)
    assert len(read(file)) == 1 + 14
    assert run.network.pcap_full == (HOST0,)


def test_a_file_is_whole_after_an_interruption(three_hosts: Topology, tmp_path: Path) -> None:
    file = tmp_path / "data"

    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    network = PacketNetwork(three_hosts, load_network(), seed=1, on_heartbeat=interrupt, pcap={HOST0: file})
    network.start(KVFlow(0, "kv", (0,), (4,), 10**11), 0)
    with pytest.raises(Interrupted):
        network.run()
    # 2^20 packet-hops until the heartbeat, of each packet two, and an ACK for 16 packets.
    assert len(read(file)) == pytest.approx(2**20 / (2 + 2 / 16), rel=1e-3)


def test_a_file_that_cannot_be_written(three_hosts: Topology, run_flows: RunFlows, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot write .*/no/file: No such file or directory"):
        run_flows(three_hosts, [(0, 4, 1000)], pcap={HOST0: tmp_path / "no" / "file"})
    with pytest.raises(RunFailure, match="cannot write /dev/full: No space left on device"):
        run_flows(three_hosts, [(0, 4, 1000)], pcap={HOST0: Path("/dev/full")})


def test_names_of_links(eight_hosts: Topology) -> None:
    assert capture.ports_named(eight_hosts, "tor0->agg1") == (18,)
    assert capture.ports_named(eight_hosts, "tor0-agg1") == capture.ports_named(eight_hosts, "agg1-tor0") == (18, 19)
    files = capture.files(eight_hosts, ["tor0-agg1", "host0->tor0"], "out/x_")
    assert {port: str(path) for port, path in files.items()} == {
        0: "out/x_host0-to-tor0.pcap",
        18: "out/x_tor0-to-agg1.pcap",
        19: "out/x_agg1-to-tor0.pcap",
    }
    with pytest.raises(InputError, match="unknown link 'tor0-ag1'; did you mean 'tor0-agg1'?"):
        capture.ports_named(eight_hosts, "tor0-ag1")


def test_largest_file() -> None:
    assert capture.largest_bytes(1000, 0) == 70_000
    assert capture.largest_bytes(10**9, 4096) == 10**9


@pytest.fixture
def tshark() -> str:
    path = shutil.which("tshark")
    if path is None:
        pytest.skip("tshark is not installed (Debian, Ubuntu: apt install tshark)")
    return path


def test_tshark_names_every_opcode(tshark: str, three_hosts: Topology, run_flows: RunFlows, tmp_path: Path) -> None:
    files = {HOST0: tmp_path / "data.pcap", TOR_TO_HOST0: tmp_path / "back.pcap"}
    flows = [(0, 4, 1_000_000), (2, 4, 1_000_000), (0, 4, 100)]
    overrides = ("switch.ecn.kmin=0B", "switch.ecn.kmax=0B", "switch.buffer_bytes=1500KB")
    run_flows(three_hosts, flows, *overrides, pcap=files, **WHOLE)

    def shown(path: Path, *more: str) -> str:
        command = [tshark, "-X", f"lua_script:{CNP_NAMES}", "-o", "ip.check_checksum:TRUE", "-r", str(path), *more]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    data, back = shown(files[HOST0]).splitlines(), shown(files[TOR_TO_HOST0]).splitlines()
    assert all("RRoCE" in line for line in data)
    assert {line.split("RC ")[1].partition(" QP")[0] for line in data} == {
        "RDMA Write First",
        "RDMA Write Middle",
        "RDMA Write Last",
        "RDMA Write Only",
    }
    assert any("RRoCE 74 CNP" in line for line in back)
    assert any("RRoCE 62 RC Acknowledge" in line for line in back)
    for path in files.values():
        assert shown(path, "-Y", "_ws.expert or _ws.malformed or ip.checksum.status == 0") == ""
    fields = ("-T", "fields", "-c", "1", *(x for f in ("ip.dsfield.dscp", "frame.len") for x in ("-e", f)))
    assert shown(files[HOST0], *fields).split() == ["26", "4170"]
    # Without the payload, fields and lengths are the same.
    cut = tmp_path / "cut.pcap"
    run_flows(three_hosts, flows, *overrides, pcap={HOST0: cut})
    fields = ("-T", "fields", "-e", "frame.len", "-e", "infiniband.bth.opcode", "-e", "infiniband.bth.psn")
    assert shown(cut, *fields) == shown(files[HOST0], *fields)
