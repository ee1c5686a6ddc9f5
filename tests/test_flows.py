"""Plain flow lists: reading, pinned paths, and the command as a user meets it."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import psutil
import pytest

from calibration.validate import DATA
from harness import cli, flows
from harness.config import load_network, load_topology
from harness.errors import InputError
from harness.results import read_parquet
from tests.conftest import PROJECT
from topologies import hpcc

W2 = ("--topology", str(DATA / "W2_incast.topo.txt"), "--flows", str(DATA / "W2_incast.flow.txt"))

#: Hosts 0, 1, 2 on switch 3; host 3 on switch 5 (node 4); two links between the switches.
TWO_WAYS = """7 2 6
3 5
0 3 100Gbps 1us 0
1 3 100Gbps 1us 0
2 3 100Gbps 1us 0
4 5 100Gbps 1us 0
3 5 100Gbps 1us 0
3 5 100Gbps 1us 0
"""

#: Four switches 4-7 in a ring, a host each.
RING = """8 4 8
4 5 6 7
""" + "".join(f"{i} {4 + i} 100Gbps 1us 0\n{4 + i} {4 + (i + 1) % 4} 100Gbps 1us 0\n" for i in range(4))


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "harness", "flows", *map(str, arguments)]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(PROJECT)}


def netkv(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments), capture_output=True, text=True, cwd=cwd, env=environment(), check=False)


# --- End to end -------------------------------------------------------------------------------------------------------


def test_files_of_the_hpcc_family(tmp_path: Path) -> None:
    """One flow of 100 MB over two links of the reference simulator: 8404.094 us, 10^5 packets and as many ACKs."""
    files = ("--topology", DATA / "W1_pair.topo.txt", "--flows", DATA / "W1_pair.flow.txt")
    done = netkv(*files, "--profile", "hpcc-sim", "--out", "out", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "out/fct.csv").read_text().splitlines() == [
        "flow_id,src,dst,size_bytes,start_s,fct_us,ideal_fct_us,slowdown",
        "0,0,1,100000000,0.001000000000,8404.094000,8404.094000,1.000000",
    ]
    (totals,) = table(tmp_path / "out/totals.csv")
    assert list(totals)[:8] == list(flows.TOTALS_COLUMNS)
    assert {name: int(totals[name]) for name in flows.TOTALS_COLUMNS} == {
        "packets": 200_000,
        "link_transmissions": 400_000,
        "ecn_marks": 0,
        "cnps": 0,
        "pfc_frames": 0,
        "drops": 0,
        "retransmitted_bytes": 0,
        "max_queue_bytes": 1048,
    }
    links = read_parquet(tmp_path / "out/links.parquet").to_pylist()
    assert [(link["link"], link["kv_bytes"], link["control_bytes"]) for link in links] == [
        ("host0->switch2", 104_800_000, 0),
        ("switch2->host0", 0, 6_000_000),
        ("host1->switch2", 0, 6_000_000),
        ("switch2->host1", 104_800_000, 0),
    ]
    assert {link["start_ps"] for link in links} == {10**9}
    assert "1 of 1 flows done" in done.stdout and "drops 0" in done.stdout and "pfc_frames 0" in done.stdout
    manifest = json.loads((tmp_path / "out/run.json").read_text())
    assert (manifest["status"], manifest["seed"], manifest["network"]["profile"]) == ("complete", 1, "hpcc-sim")
    assert manifest["versions"]["code_sha256"]


def test_payload_and_settings(tmp_path: Path) -> None:
    """4096 B: 24,414 full packets of 332 ns and one of 256 B, of 24 ns."""
    files = ("--topology", str(DATA / "W1_pair.topo.txt"), "--flows", str(DATA / "W1_pair.flow.txt"))
    out = ("--out", str(tmp_path))
    assert cli.main(["flows", *files, "--profile", "hpcc-sim", "--payload", "4096", *out]) == 0
    assert table(tmp_path / "fct.csv")[0]["fct_us"] == "8109.814000"
    fixed = ("--set", "cc.use=fixed", "--set", "cc.rate=50Gbps")
    assert cli.main(["flows", *files, "--profile", "hpcc-sim", *fixed, *out]) == 0
    # At half the rate: 99,999 gaps of 167.68 ns, rounded to 168, before the last packet.
    expected_us = (99_999 * 168 + 2 * (84 + 1000) + 2 * (5 + 1000)) / 1000
    assert float(table(tmp_path / "fct.csv")[0]["fct_us"]) == pytest.approx(expected_us, abs=1e-6)


def test_a_list_of_our_own_on_a_preset(tmp_path: Path) -> None:
    """Names and ids, sizes with units, starts to the picosecond; the same bytes when run again."""
    lines = ("flow_id,src,dst,size_bytes,start_s", "7,host0,7,1MB,0.000000000001", "3, host1, host2, 4096, 1e-3")
    (tmp_path / "flows.csv").write_text("\n".join(lines) + "\n")
    for out in ("a", "b"):
        files = ("--topology", "paper-64", "--flows", str(tmp_path / "flows.csv"))
        assert cli.main(["flows", *files, "--out", str(tmp_path / out)]) == 0
    rows = table(tmp_path / "a/fct.csv")
    assert [(r["flow_id"], r["src"], r["dst"], r["size_bytes"], r["start_s"]) for r in rows] == [
        ("7", "host0", "7", "1000000", "0.000000000001"),
        ("3", "host1", "host2", "4096", "0.001000000000"),
    ]
    assert [row["slowdown"] for row in rows] == ["1.000000", "1.000000"]
    for name in ("fct.csv", "totals.csv", "links.parquet"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_traced_ports(tmp_path: Path) -> None:
    """1 MB at line rate: of its 245 packets the host has started 30 by 10 us, one every 334,240 ps from time 0 on."""
    (tmp_path / "flows.csv").write_text("flow_id,src,dst,size_bytes,start_s\n0,host0,host1,1MB,0\n")
    files = ("--topology", str(DATA / "W1_pair.topo.txt"), "--flows", str(tmp_path / "flows.csv"))
    out = tmp_path / "out"
    options = ("--set", "cc.use=none", "--trace-port", "host0->switch2", "--out", str(out))
    assert cli.main(["flows", *files, *options]) == 0
    traces = read_parquet(out / "traces.parquet").to_pylist()
    assert {row["port"] for row in traces} == {"host0->switch2"}
    first = traces[0]
    assert (first["start_ps"], first["end_ps"], first["kv_bytes"]) == (0, 10_000_000, 30 * 4178)
    assert sum(row["kv_bytes"] for row in traces) == 1_000_000 + 245 * 82
    assert [path.name for path in (out / "figures").iterdir()] == ["port-host0-to-switch2.png"]


def test_queue_pairs_and_ranks() -> None:
    """A flow ends with the last of its queue pairs, each rank's bytes cross its own NIC, and alone it is ideal."""
    topology = load_topology("paper-64")
    flow = flows.Flow(0, 0, 1, 3_000_001, 5, ("host0", "host1"))
    settings = load_network(overrides=["transport.striping=per-rank", "transport.queue_pairs=2", "cc.use=none"])
    outcome = flows.run(topology, [flow], settings)
    table = outcome.network.flows
    nics = [p for p in topology.ports_of[0] if topology.port_node(p ^ 1) != 0]
    assert sorted(table.src_port.tolist()) == sorted(2 * nics)
    (row,) = flows.fct_rows([flow], outcome)
    assert row["fct_us"] == (table.end_ps.max() - 5) / 1e6
    assert row["ideal_fct_us"] > 1.5 * table.ideal_fct_ps.max() / 1e6
    assert 1 <= row["slowdown"] < 1.01


def test_queue_pairs_of_one_nic_share_it() -> None:
    """Four of 25 MB each take what one of 100 MB does, but for the ACKs of the others: 8404.094 us and up to 4 ACKs."""
    topology = hpcc.read_topology(DATA / "W1_pair.topo.txt")
    flow = flows.Flow(0, 0, 1, 100_000_000, 0, ("0", "1"))
    outcome = flows.run(topology, [flow], load_network("hpcc-sim", overrides=["transport.queue_pairs=4"]))
    (row,) = flows.fct_rows([flow], outcome)
    assert row["ideal_fct_us"] == 8404.094
    assert 8404.094 <= row["fct_us"] <= 8404.114


# --- Pinned paths -----------------------------------------------------------------------------------------------------


def pinned(tmp_path: Path, flow_lines: str, path_lines: str, *more: str) -> int:
    """The exit code of a run on TWO_WAYS."""
    (tmp_path / "two.txt").write_text(TWO_WAYS)
    (tmp_path / "flows.csv").write_text("flow_id,src,dst,size_bytes,start_s\n" + flow_lines)
    (tmp_path / "paths.csv").write_text("direction,flow_id,nodes_transmitting_in_order,final_node\n" + path_lines)
    files = ("--topology", str(tmp_path / "two.txt"), "--flows", str(tmp_path / "flows.csv"))
    paths = ("--paths", str(tmp_path / "paths.csv"), "--set", "load_balancing.use=pinned")
    return cli.main(["flows", *files, *paths, *more, "--out", str(tmp_path / "out")])


def test_parallel_links_and_flows_between_the_same_hosts(tmp_path: Path) -> None:
    """Ten flows between one pair of hosts, the odd ones over the second link; ACKs of flow 0 come back over it too."""
    flow_lines = "".join(f"{i},0,4,{(1 + i) * 4096},0\n" for i in range(10))
    path_lines = "".join(f"data,{i},0 3#{i % 2} 5,4\n" for i in range(10)) + "ack,0,4 5#1 3,0\n"
    assert pinned(tmp_path, flow_lines, path_lines) == 0
    links = {row["link"]: row for row in read_parquet(tmp_path / "out/links.parquet").to_pylist()}
    first, second = links["switch3->switch5"], links["switch3->switch5#1"]
    assert first["kv_bytes"] == 4178 * (1 + 3 + 5 + 7 + 9)
    assert second["kv_bytes"] == 4178 * (2 + 4 + 6 + 8 + 10)
    assert links["switch5->switch3"]["control_bytes"] == 4 * 86  # of flows 2, 4, 6, 8
    assert links["switch5->switch3#1"]["control_bytes"] == 6 * 86


def test_a_taken_source_port_is_not_shared() -> None:
    """20,000 flows over two ways draw from 16,384 source ports: flows with one port have one path."""
    topology = hpcc.read_topology(DATA / "W1_pair.topo.txt")
    listed = [flows.Flow(i, 0, 1, 1, 0, ("0", "1")) for i in range(20_000)]
    ways = ((0, 3), (0, 3, 2, 3))
    paths = {i: flows.PinnedPaths(ways[i % 2], (2, 1)) for i in range(20_000)}
    started, chosen = flows.pinned_transfers(listed, paths, load_network(), seed=1)
    assert topology.n_ports == 4
    for kv, _ in started[::97]:
        (part,) = flows.queue_pair_flows(kv, striping="single", queue_pairs=1)
        assert chosen[0, 2, part.udp_sport] == ways[kv.id % 2]


@pytest.mark.slow
def test_the_paths_of_the_reference(tmp_path: Path) -> None:
    """64 flows over six links each: 7,680,000 link transmissions of data, and the links that the file names."""
    files = ("--topology", str(DATA / "W3_fattree_perm.topo.txt"), "--flows", str(DATA / "W3_fattree_perm.flow.txt"))
    paths = ("--paths", str(DATA / "W3_paths.csv"), "--set", "load_balancing.use=pinned")
    assert cli.main(["flows", *files, *paths, "--profile", "hpcc-sim", "--out", str(tmp_path)]) == 0
    (totals,) = table(tmp_path / "totals.csv")
    assert totals["data_hops"] == "7680000"
    expected: dict[str, int] = {}
    topology = hpcc.read_topology(DATA / "W3_fattree_perm.topo.txt")
    for row in table(DATA / "W3_paths.csv"):
        if row["direction"] == "data":
            nodes = [int(n) for n in (*row["nodes_transmitting_in_order"].split(), row["final_node"])]
            for a, b in pairwise(nodes):
                name = f"{topology.nodes[a].name}->{topology.nodes[b].name}"
                expected[name] = expected.get(name, 0) + 20_000 * 1048
    links = read_parquet(tmp_path / "links.parquet").to_pylist()
    assert {link["link"]: link["kv_bytes"] for link in links if link["kv_bytes"]} == expected


FLOW = "0,0,4,4096,0\n"


@pytest.mark.parametrize(
    ("path_lines", "message"),
    [
        ("data,0,0 3 5,4\n", "paths.csv:2: there are 2 links from switch3 to switch5: write switch3#0 or switch3#1"),
        ("data,0,0 3#2 5,4\n", "paths.csv:2: link #2 from switch3 to switch5: there are 2, from #0 on"),
        ("data,0,0 5,4\n", "paths.csv:2: there is no link from host0 to switch5"),
        ("data,0,0 3 1 3#0 5,4\n", "paths.csv:2: host1 is a host and forwards nothing"),
        ("data,0,1 3#0 5,4\n", "paths.csv:2: the data path of flow 0 must lead from host0 to host4"),
        ("ack,0,0 3#0 5,4\n", "paths.csv:2: the ack path of flow 0 must lead from host4 to host0"),
        ("data,0,0 3#0 9,4\n", "paths.csv:2: node: unknown node '9'; allowed: 0 to 6"),
        ("data,1,0 3#0 5,4\n", "paths.csv:2: there is no flow 1 in the flow list"),
        ("both,0,0 3#0 5,4\n", "paths.csv:2: direction: given 'both', allowed: data, ack"),
        ("data,0,0 3#0 5,4\ndata,0,0 3#1 5,4\n", "paths.csv:3: the data path of flow 0 stands twice"),
        ("data,0,,4\n", "paths.csv:2: nodes_transmitting_in_order is empty"),
        ("data,0,0 3#0 5\n", "paths.csv:2: the line must have 4 fields"),
        ("", "paths.csv: flow 0 has no data path"),
    ],
)
def test_a_wrong_path(path_lines: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert pinned(tmp_path, FLOW, path_lines) == cli.WRONG_INPUT
    assert_one_message(capsys, message)


def test_paths_and_the_key_need_each_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    message = "network.load_balancing.use: a file of paths (--paths) and --set load_balancing.use=pinned go together"
    assert pinned(tmp_path, FLOW, "data,0,0 3#0 5,4\n", "--set", "load_balancing.use=ecmp") == cli.WRONG_INPUT
    assert_one_message(capsys, message)
    assert cli.main(["flows", *W2, "--set", "load_balancing.use=pinned"]) == cli.WRONG_INPUT
    assert_one_message(capsys, message)
    assert cli.main(["run", "rag", "--set", "network.load_balancing.use=pinned"]) == cli.WRONG_INPUT
    assert_one_message(capsys, "network.load_balancing.use: given 'pinned': a run has no path file")


# --- Mistakes ---------------------------------------------------------------------------------------------------------


def assert_one_message(capsys: pytest.CaptureFixture[str], message: str) -> None:
    out, err = capsys.readouterr()
    assert message in err
    assert err.startswith("netkv-cosim: error: ") and err.count("\n") == 1
    assert "flows" not in out


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("switch.ecn.kmin=2MB", "network.switch.ecn: kmin is 2000000 bytes, must not exceed kmax"),
        ("switch.ecn.pmax=1.5", "network.switch.ecn.pmax: given 1.5: must be less than or equal to 1"),
        ("cc.alpha_timer=0us", "network.cc.alpha_timer: given '0us': must be greater than 0"),
        ("cc.increase_timer=0s", "network.cc.increase_timer: given '0s': must be greater than 0"),
        ("cc.additive_step=-5Mbps", "network.cc.additive_step: '-5Mbps' is negative"),
        ("cc.min_rate=0bps", "network.cc.min_rate: given '0bps': must be greater than 0"),
        ("switch.pfc.headroom=40MB", "network.switch.pfc.headroom: headroom and reserves of switch9 come to"),
        ("cc.increse_timer=1us", "did you mean 'increase_timer'?"),
        ("network.cc.g=0.5", "unknown key 'network'"),
    ],
)
def test_wrong_settings(override: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert cli.main(["flows", *W2, "--profile", "hpcc-sim", "--set", override, "--out", str(out)]) == cli.WRONG_INPUT
    assert_one_message(capsys, message)
    assert not out.exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1\n0 9 3 100 1000 0\n", "flows:2: node 9 is a switch; a flow runs between hosts"),
        ("1\n0 12 3 100 1000 0\n", "flows:2: node id: given 12, must be below the number of nodes, 10"),
        ("2\n0 8 3 100 1000 0\n\n0 8 3 100 1x0 0\n", "flows:4: size_bytes: given '1x0', must be a whole number"),
        ("flow_id,src,dst,size_bytes,start_s\n0,host0,host12,1,0\n", "flows:2: dst: unknown node 'host12'; allowed: 0"),
        ("flow_id,src,dst,size_bytes,start_s\n0,0,switch9,1,0\n", "flows:2: switch9 is a switch"),
        ("flow_id,src,dst,size_bytes,start_s\n0,0,1,1,0\n0,0,1,1,0\n", "flows:3: flow_id 0 stands twice"),
        ("flow_id,src,dst,size_bytes,start_s\n0,0,1,-1,0\n", "flows:2: -1 is negative"),
        ("flow_id,src,dst,size_bytes,start_s\n0,0,1,0,0\n", "flows:2: size_bytes: given 0, must be above 0"),
        ("flow_id,src,dst,size_bytes,start_s\n0,0,1,9,soon\n", "flows:2: 'soons' is not a time"),
        ("flow_id,src,dst,size_bytes,start_s\n0,0,1\n", "flows:2: the line must have 5 fields"),
        ("flow_id,src,dst,bytes,start_s\n0,0,1,1,0\n", "flows:1: has no column 'size_bytes'; the columns are flow_id"),
        ("flow_id,src,dst,size_bytes,start_s\n", "flows: holds no flow"),
    ],
)
def test_a_wrong_flow_list(text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "flows").write_text(text)
    arguments = ["flows", "--topology", W2[1], "--flows", str(tmp_path / "flows"), "--out", str(tmp_path / "out")]
    assert cli.main(arguments) == cli.WRONG_INPUT
    assert_one_message(capsys, message)
    assert not (tmp_path / "out").exists()


def test_a_port_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = ("--topology", str(DATA / "W1_pair.topo.txt"), "--flows", str(DATA / "W1_pair.flow.txt"))
    for options, message in (
        (("--trace-port", "host0->switch"), "unknown port 'host0->switch'; did you mean 'host0->switch2'?"),
        (("--trace-port", "host0->switch2", "--trace-interval", "0us"), "--trace-interval 0us: must be above 0"),
    ):
        assert cli.main(["flows", *files, *options, "--out", str(tmp_path)]) == 2
        assert_one_message(capsys, message)


def test_a_missing_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["flows", "--topology", W2[1], "--flows", str(tmp_path / "none")]) == cli.WRONG_INPUT
    assert_one_message(capsys, "none: cannot be read:")


def test_hosts_without_a_path() -> None:
    nodes = hpcc.read_topology(DATA / "W2_incast.topo.txt")
    cut = type(nodes)("cut", nodes.nodes, nodes.links[:1])
    flow = flows.Flow(0, 0, 1, 1, 0, ("0", "1"))
    with pytest.raises(InputError, match="no path from host0 to host1"):
        flows.run(cut, [flow], load_network())


# --- Before, during and after a run -----------------------------------------------------------------------------------


def test_what_is_risky_is_said_before_the_run(tmp_path: Path) -> None:
    """With half the headroom the run's own messages come after the warning; `run` gives the same one."""
    half = "switch.pfc.headroom_factor=0.5"
    command_line = command(*W2, "--set", half, "--out", "out")
    done = subprocess.run(
        command_line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=tmp_path, env=environment()
    )
    assert done.returncode == 0
    warning = "PFC headroom of 29190 bytes is below the 33380 bytes that 100 Gb/s may bring: loss is possible"
    assert done.stdout.splitlines()[0] == f"netkv-cosim: warning: {warning}"


def test_run_warns_too(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    scenario = ("rag", "--requests", "1", "--schedulers", "rr", "--seeds", "1", "--set", "background=none")
    small = ("--set", "workload.input_mean=200", "--set", "network.switch.pfc.headroom_factor=0.5")
    assert cli.main(["run", *scenario, *small, "--out", str(tmp_path)]) == 0
    assert "netkv-cosim: warning: PFC headroom of" in capfd.readouterr().err


def test_a_deadlock_names_its_flows(tmp_path: Path) -> None:
    """Four flows, each two hops clockwise around a ring, at line rate."""
    (tmp_path / "ring.txt").write_text(RING)
    lines = [f"{i} {(i + 2) % 4} 3 100 20000000 0" for i in range(4)]
    (tmp_path / "flows.txt").write_text("\n".join(["4", *lines]) + "\n")
    paths = ["direction,flow_id,nodes_transmitting_in_order,final_node"]
    paths += [f"data,{i},{i} {4 + i} {4 + (i + 1) % 4} {4 + (i + 2) % 4},{(i + 2) % 4}" for i in range(4)]
    (tmp_path / "paths.csv").write_text("\n".join(paths) + "\n")
    keys = ("cc.use=none", "switch.buffer_bytes=1MB", "switch.pfc.headroom=100KB", "load_balancing.use=pinned")
    sets = [part for key in keys for part in ("--set", key)]
    files = ("--topology", "ring.txt", "--flows", "flows.txt", "--paths", "paths.csv")
    done = netkv(*files, *sets, "--out", "out", cwd=tmp_path)
    assert done.returncode == cli.FAILED
    assert "nothing moves any more" in done.stderr and "held by PFC" in done.stderr
    for i in range(4):
        assert f"flow {i} (host{i} to host{(i + 2) % 4}, " in done.stderr
    assert [row["fct_us"] for row in table(tmp_path / "out/fct.csv")] == [""] * 4
    assert json.loads((tmp_path / "out/run.json").read_text())["status"] == "failed"


def test_ctrl_c_ends_within_a_second_and_keeps_what_there_is(tmp_path: Path) -> None:
    (tmp_path / "flows.csv").write_text(
        "flow_id,src,dst,size_bytes,start_s\n0,0,1,1000,0\n1,0,8,2TB,0\n"  # the second would take minutes
    )
    arguments = ("--topology", W2[1], "--flows", "flows.csv", "--profile", "hpcc-sim", "--out", "out")
    process = subprocess.Popen(
        command(*arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=environment()
    )
    while not any("libkvnet" in mapped.path for mapped in psutil.Process(process.pid).memory_maps()):
        time.sleep(0.1)
    time.sleep(2)
    process.send_signal(signal.SIGINT)
    pressed_s = time.monotonic()
    _, err = process.communicate(timeout=30)
    assert process.returncode == cli.INTERRUPTED
    assert time.monotonic() - pressed_s < 1
    assert err == "netkv-cosim: interrupted; what was recorded is in out\n"
    assert [row["fct_us"] != "" for row in table(tmp_path / "out/fct.csv")] == [True, False]
