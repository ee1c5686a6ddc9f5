"""The command as a user meets it: exit codes, one message for a mistake, and what Ctrl-C leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

PROJECT = Path(__file__).resolve().parent.parent

#: A small run without packets.
QUICK = ("--backend", "fluid", "--requests", "8", "--seeds", "1", "--set", "background=none")

SLOW = """
import os, time

class Slow:
    def choose(self, request, view, oracle):
        time.sleep(float(os.environ.get("LAB_SLEEP_S", "0")))
        return view.decode[request.id % len(view.decode)].instance
"""


def netkv(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "harness", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment())


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(PROJECT), **more}


def tables(out: Path) -> dict[str, bytes]:
    names = ("summary.csv", "comparison.csv", "requests.parquet", "flows.parquet", "links.parquet")
    return {name: (out / name).read_bytes() for name in names}


# --- Done -------------------------------------------------------------------------------------------------------------


def test_a_run_prints_its_cost_its_table_all_counters_and_its_files(tmp_path: Path) -> None:
    done = netkv("run", "rag", *QUICK, "--schedulers", "rr", "--out", "out", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].startswith("expected, fluid: 1 cells, 8 flows, ")
    assert any(line.split()[:3] == ["fluid", "rr", "8/8"] for line in lines)
    assert any(line.startswith("measured, fluid (expected): 1 cells, 8 flows (8), ") for line in lines)
    counters = next(line for line in lines if line.startswith("counters, fluid: "))
    assert "pfc_pauses 0" in counters
    assert "drops 0" in counters
    files = {line.strip() for line in lines if line.startswith("  out/")}
    names = ("run.json", "summary.csv", "comparison.csv", "requests.parquet", "flows.parquet", "links.parquet")
    assert {f"out/{name}" for name in (*names, "report.html", "figures/ttft-cdf.png")} <= files


def test_a_packet_level_run_counts_packets(tmp_path: Path) -> None:
    arguments = ("--requests", "2", "--set", "background=none", "--set", "workload.input_mean=200")
    done = netkv("run", "rag", *arguments, "--schedulers", "rr", "--seeds", "1", "--out", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    manifest = json.loads((tmp_path / "out" / "run.json").read_text())
    counters = manifest["counters"]["packet"]
    assert manifest["status"] == "complete"
    assert manifest["packets"] == counters["data_packets"] + counters["ack_packets"] > 0
    assert manifest["packet_hops"] > manifest["packets"]
    assert counters["payload_bytes_sent"] == counters["payload_bytes_acked"] > 0
    # Without background every packet carries 4096 bytes of a KV cache, but for the last of a transfer.
    requests = manifest["scenario"]["requests"]
    assert 0 <= counters["data_packets"] - counters["payload_bytes_sent"] / 4096 <= requests


def test_traced_ports_have_a_table_and_a_figure_each(tmp_path: Path) -> None:
    arguments = ("--requests", "2", "--set", "background=none", "--set", "workload.input_mean=200", "--seeds", "1")
    ports = ("--trace-port", "host0->tor0", "--trace-port", "tor0->host0", "--set", "trace_interval=5us")
    done = netkv("run", "rag", *arguments, *ports, "--schedulers", "rr,ca", "--out", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    traces = pd.read_parquet(tmp_path / "out" / "traces.parquet")
    links = pd.read_parquet(tmp_path / "out" / "links.parquet")
    assert list(dict.fromkeys(zip(traces["scheduler"], traces["port"], strict=True))) == [
        (scheduler, port) for scheduler in ("rr", "ca") for port in ("host0->tor0", "tor0->host0")
    ]
    for (scheduler, port), rows in traces.groupby(["scheduler", "port"]):
        whole = links.loc[(links["scheduler"] == scheduler) & (links["link"] == port)]
        assert rows["kv_bytes"].sum() == whole["kv_bytes"].sum()
        assert (rows["end_ps"] % 5_000_000 == 0)[:-1].all()
    assert traces["kv_bytes"].sum() > 0
    figures = {path.name for path in (tmp_path / "out" / "figures").glob("port-*.png")}
    assert figures == {"port-host0-to-tor0.png", "port-tor0-to-host0.png"}


def test_captured_links_have_a_file_a_direction_and_cell(tmp_path: Path) -> None:
    arguments = ("--requests", "2", "--set", "background=none", "--set", "workload.input_mean=200", "--seeds", "1")
    done = netkv(
        "run", "rag", *arguments, "--pcap", "host0-tor0", "--schedulers", "rr,ca", "--out", "out", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "captures: host0-tor0 of every cell, up to " in done.stdout
    files = {path.name: path.stat().st_size for path in (tmp_path / "out" / "pcap").iterdir()}
    assert sorted(files) == [
        f"packet_{scheduler}_s1_{port}.pcap"
        for scheduler in ("ca", "rr")
        for port in ("host0-to-tor0", "tor0-to-host0")
    ]
    assert max(files.values()) > 24  # more than pcap's header


def test_background_over_tcp(tmp_path: Path) -> None:
    background = "background={use: ns3-tcp, share: {2: 0.02}, mean_size: 1MB}"
    arguments = ("--requests", "2", "--set", "workload.input_mean=200", "--seeds", "1", "--set", background)
    done = netkv("run", "rag", *arguments, "--schedulers", "rr", "--out", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    flows = pd.read_parquet(tmp_path / "out" / "flows.parquet")
    over_tcp = flows[flows["traffic_class"] == "background"]
    assert len(over_tcp) > 0
    assert (over_tcp["end_ps"] - over_tcp["start_ps"] > over_tcp["ideal_fct_ps"]).all()


def test_a_scheduler_from_a_file_outside_the_project(tmp_path: Path) -> None:
    (tmp_path / "lab.py").write_text(SLOW)
    for name, out in (("lab.py:Slow", "by-path"), ("lab:Slow", "by-module")):
        done = netkv("run", "rag", *QUICK, "--schedulers", f"rr,{name}", "--out", out, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        rows = (tmp_path / out / "summary.csv").read_text().splitlines()[1:]
        assert [row.split(",")[1] for row in rows] == ["rr", name]


def test_help_starts_fast_and_names_the_commands(tmp_path: Path) -> None:
    # A start-up that loads pandas or ns-3 takes seconds: only what is imported is looked at, not the clock.
    program = "import sys; from harness import cli; code = cli.main(['--help'])"
    watch = f"try:\n    {program}\nexcept SystemExit:\n    print(*sys.modules, file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{watch}"], capture_output=True, text=True, env=environment(), cwd=tmp_path
    )
    heavy = {"numpy", "pandas", "seaborn", "matplotlib", "pyarrow", "pydantic", "cppyy", "joblib", "rich"}
    assert heavy & set(done.stderr.split()) == set()
    for command in ("run", "flows", "validate", "bench", "trace", "list", "doctor"):
        assert f"\n    {command} " in done.stdout
    assert "cell" not in done.stdout


def test_list_names_components_and_presets(tmp_path: Path) -> None:
    done = netkv("list", cwd=tmp_path)
    assert done.returncode == 0
    for heading in ("workload:", "scheduler:", "fluid:", "topology preset:", "network profile:", "scenario preset:"):
        assert f"{heading}\n" in done.stdout
    one = netkv("list", "scheduler", cwd=tmp_path)
    assert one.stdout.splitlines()[0] == "scheduler:"
    assert "  netkv-full " in one.stdout
    assert "workload:" not in one.stdout


def test_trace_tells_what_a_trace_holds(tmp_path: Path) -> None:
    lines = [
        {"timestamp": 0, "input_length": 1000, "output_length": 5, "hash_ids": [1, 2]},
        {"timestamp": 4000, "input_length": 1024, "output_length": 7, "hash_ids": [1, 3]},
    ]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = netkv("trace", "t.jsonl", cwd=tmp_path)
    assert done.returncode == 0
    assert "t.jsonl: 2 requests in 4 s (0.50 a second)" in done.stdout
    assert "ideal prefix hit: 25.0% of 4 blocks of 512 tokens (3 distinct)" in done.stdout


# --- The user's mistakes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "rag", "--set", "netwrok.cc.g=1"), "--set netwrok.cc.g=1: netwrok: unknown key 'netwrok'"),
        (("run", "rag", "--schedulers", "netkv-ful"), "did you mean 'netkv-full'?"),
        (("run", "rga"), "did you mean 'rag'?"),
        (("run", "rag", "--backend", "fulid"), "invalid choice: 'fulid' (choose from"),
        (("run", "rag", "--seeds", "0"), "argument --seeds: '0' given; a whole number, at least 1"),
        (("run", "rag", "--schedulers", "rr,,ca"), "names with commas between them"),
        (("run",), "the following arguments are required: SCENARIO"),
        (("rnu",), "invalid choice: 'rnu' (choose from"),
        ((), "the following arguments are required: COMMAND"),
        (("trace", "missing.jsonl"), "missing.jsonl: cannot be read: No such file or directory"),
        (("list", "schduler"), "unknown family 'schduler'; allowed: workload, scheduler"),
        (("run", "rag", "--set", "workload={use: mooncake, path: none.jsonl}"), "none.jsonl: No such file"),
        (("run", "rag", "--trace-port", "tor0->ag1"), "unknown port 'tor0->ag1'; did you mean 'tor0->agg1'?"),
        (("run", "rag", "--pcap", "tor0-ag1"), "unknown link 'tor0-ag1'; did you mean 'tor0-agg1'?"),
        (("run", "rag", *QUICK, "--pcap", "tor0-agg1"), "pcap: given for a run without the packet model"),
        (("run", "rag", "--pcap-payload", "much"), "--pcap-payload much: pcap_payload: "),
        (("run", "rag", *QUICK, "--trace-port", "tor0->agg1"), "trace_ports: given for a run without the packet model"),
        (("run", "rag", "--set", "network.load_balancing.use=spray"), "set network.transport.reordering to 'place'"),
        (("run", "rag", *QUICK, "--resume"), "nothing to resume"),
        (("run", "rag", *QUICK, "--out", "file"), "file: cannot write here: File exists"),
        (("run", "rag", "--requests", "4", "--set", "cluster.memory_per_gpu=36GB"), "of KV cache"),
        (("bench", "--scaling", "x", "--baseline"), "--scaling: measures its own workloads"),
    ],
)
def test_a_mistake_is_one_message_and_exit_2(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    (tmp_path / "file").write_text("")
    done = netkv(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert message in done.stderr
    assert done.stderr.startswith("netkv-cosim: error: ")
    assert done.stderr.count("\n") == 1
    assert [path.name for path in tmp_path.rglob("*.parquet")] == []


# --- Failed runs ------------------------------------------------------------------------------------------------------


def test_a_callback_that_raises_is_exit_3_with_its_own_traceback(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "class Mine:\n"
        "    def choose(self, request, view, oracle):\n"
        "        return view.decode[request.id // 5].instance if request.id < 6 else {}['instance']\n"
    )
    done = netkv("run", "rag", *QUICK, "--schedulers", "rr,mine:Mine", "--out", "out", cwd=tmp_path)
    assert done.returncode == 3
    assert "failed: fluid / mine:Mine / seed 1: KeyError: 'instance'" in done.stderr
    assert f'File "{tmp_path}/mine.py", line 3, in choose' in done.stderr
    assert "engine.py" not in done.stderr
    assert done.stderr.endswith("1 of 2 cells failed; what they recorded is kept in out\n")
    rows = [row.split(",") for row in (tmp_path / "out" / "summary.csv").read_text().splitlines()[1:]]
    assert [row[-1] for row in rows] == ["complete", "failed"]
    assert (tmp_path / "out" / "report.html").is_file()


# --- Interrupted, killed, resumed -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with lab.py and a complete run of rr and lab.py:Slow in `whole`."""
    directory = tmp_path_factory.mktemp("lab")
    (directory / "lab.py").write_text(SLOW)
    done = netkv("run", "rag", *QUICK, "--schedulers", "rr,lab.py:Slow", "--out", "whole", cwd=directory)
    assert done.returncode == 0, done.stderr
    return directory


def start_slow_run(cwd: Path, out: str) -> subprocess.Popen[str]:
    """A run whose first cell is complete and whose second one has begun and takes long."""
    command = [sys.executable, "-m", "harness", "run", "rag", *QUICK, "--schedulers", "rr,lab.py:Slow"]
    child = subprocess.Popen(
        [*command, "--jobs", "1", "--out", out],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        env=environment(LAB_SLEEP_S="60", PYTHONUNBUFFERED="1"),
    )
    assert child.stdout is not None
    for line in child.stdout:
        if line.startswith("[1/2]"):
            break
    log = next((cwd / out / "cells").glob("*Slow*")) / "log.txt"
    while not log.exists():
        time.sleep(0.01)
    time.sleep(2)
    return child


def test_ctrl_c_stops_within_a_second_and_resume_goes_on(undisturbed: Path) -> None:
    child = start_slow_run(undisturbed, "stopped")
    pressed = time.monotonic()
    child.send_signal(signal.SIGINT)
    _, errors = child.communicate()
    # The promise is a second; the bound leaves room for a machine that is busy with other tests.
    assert time.monotonic() - pressed < 3
    assert child.returncode == 130
    assert errors.startswith("netkv-cosim: interrupted: 1 of 2 cells are complete")
    assert "Traceback" not in errors
    out = undisturbed / "stopped"
    assert json.loads((out / "run.json").read_text())["status"] == "interrupted"
    rows = [row.split(",") for row in (out / "summary.csv").read_text().splitlines()[1:]]
    assert [(row[1], row[-1]) for row in rows] == [("rr", "complete"), ("lab.py:Slow", "interrupted")]

    done = netkv("run", "rag", *QUICK, "--schedulers", "rr,lab.py:Slow", "--resume", "--out", out, cwd=undisturbed)
    assert done.returncode == 0, done.stderr
    assert "1 of 2 cells are complete already" in done.stdout
    assert tables(out) == tables(undisturbed / "whole")


def test_kill_9_of_the_parent_loses_no_complete_cell(undisturbed: Path) -> None:
    child = start_slow_run(undisturbed, "killed")
    child.kill()
    child.communicate()
    out = undisturbed / "killed"
    assert json.loads((out / "run.json").read_text())["status"] == "running"
    done = netkv("run", "rag", *QUICK, "--schedulers", "rr,lab.py:Slow", "--resume", "--out", out, cwd=undisturbed)
    assert done.returncode == 0, done.stderr
    assert "1 of 2 cells are complete already" in done.stdout
    assert tables(out) == tables(undisturbed / "whole")
