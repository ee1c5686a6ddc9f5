"""Sweeps: what their YAML may say, what becomes of it, and that nothing that is done is lost or done again."""

from __future__ import annotations

import csv
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from harness import results, sweep
from harness.axes import STATUS_COLUMNS, load_sweep
from harness.cells import Cell
from harness.errors import InputError
from harness.workers import LocalWorkers

PROJECT = Path(__file__).resolve().parent.parent

#: `Gate` leaves its process' number and waits while there is a file `hold`; what it chooses does not depend on that.
PLUG_IN = """
import os, signal, time
from pathlib import Path

class Gate:
    def choose(self, request, view, oracle):
        if request.id == 3 and Path("hold").exists():
            Path("waiting.part").write_text(str(os.getpid()))
            Path("waiting.part").replace(f"waiting-{os.getpid()}")
            while Path("hold").exists():
                time.sleep(0.01)
        return view.decode[request.id % len(view.decode)].instance

class Raises:
    def choose(self, request, view, oracle):
        raise ZeroDivisionError("oops")

class Dies:
    def choose(self, request, view, oracle):
        print("last words", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

class Forgets:
    def choose(self, request, view, oracle):
        time.sleep(60)

class Hoards:
    def choose(self, request, view, oracle):
        self.hoard = b"x" * 1_000_000_000
        time.sleep(60)
"""

#: Four places of two cells each, without packets.
SWEEP = """
name: lab
scenario: rag
set: {requests: 6, background: none, backend: fluid, schedulers: [rr, "lab.py:Gate"]}
axes:
  - {name: ratio, values: {"2:1": {topology.agg_oversubscription: 1}, "4:1": {topology.agg_oversubscription: 2}}}
  - {name: p_share, key: workload.p_share, values: [0, 0.9]}
seeds: 1
figures:
  - {name: ttft, kind: table, title: Time to first token, rows: [ratio, p_share], columns: [ttft_mean_ms]}
"""


def write(directory: Path, text: str, name: str = "s.yaml") -> Path:
    path = directory / name
    path.write_text(text)
    return path


def ignore(*_: object) -> None:
    """Take no notice of an event."""


def execute(
    source: Path | str,
    out: Path,
    *,
    jobs: int = 1,
    resume: bool = False,
    on_event: Callable[[Cell, Mapping[str, Any]], None] = ignore,
    allow_mixed_code: bool = False,
) -> sweep.SweepReport:
    return sweep.run_sweep(
        load_sweep(source),
        out,
        LocalWorkers(jobs),
        resume=resume,
        allow_mixed_code=allow_mixed_code,
        command="test",
        on_plan=ignore,
        on_event=on_event,
    )


def start(lab: Path, *arguments: str, **options: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "harness", "sweep", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(PROJECT)}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=lab, env=environment, **options
    )


def tables(out: Path) -> dict[str, bytes]:
    """All that must not depend on what happened on the way."""
    paths = [out / "summary.csv", *sorted((out / "tables").iterdir()), *sorted(out.glob("cells/*/*.parquet"))]
    return {str(path.relative_to(out)): path.read_bytes() for path in paths}


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def stamps(out: Path) -> dict[str, int]:
    """When each complete cell was done."""
    found = {path.parent.name: path.stat().st_mtime_ns for path in out.glob("cells/*/status.json")}
    states = {name: results.read_json(out / "cells" / name / "status.json")["status"] for name in found}
    return {name: stamp for name, stamp in found.items() if states[name] == "complete"}


def wait_for(what: Callable[[], Any], process: subprocess.Popen[str] | None = None) -> Any:
    """What it returns once that is true; a minute is for a machine that is busy with much else."""
    deadline = time.monotonic() + 60
    while not (found := what()):
        assert process is None or process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


def are_gone(processes: list[psutil.Process]) -> Callable[[], bool]:
    def gone(process: psutil.Process) -> bool:
        try:
            return process.status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    return lambda: all(map(gone, processes))


# --- A whole sweep ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a plug-in, a sweep and, in `whole`, that sweep as it is when nothing happens."""
    directory = tmp_path_factory.mktemp("lab")
    write(directory, PLUG_IN, "lab.py")
    write(directory, SWEEP)
    write(directory, f"{SWEEP}cell_time_limit: 600s\n", "apart.yaml")  # cells then have processes of their own
    here = Path.cwd()
    os.chdir(directory)
    try:
        assert execute("s.yaml", directory / "whole").status == "complete"
    finally:
        os.chdir(here)
    return directory


@pytest.fixture
def here(lab: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The same as current directory, with the gate closed."""
    monkeypatch.chdir(lab)
    (lab / "hold").touch()
    yield lab
    for path in (lab / "hold", *lab.glob("waiting-*")):
        path.unlink(missing_ok=True)


def waiting(lab: Path) -> list[int]:
    """The processes that wait at the gate."""
    return [int(path.name.partition("-")[2]) for path in lab.glob("waiting-*")]


def test_tables_lead_with_the_axes_and_follow_their_order(lab: Path) -> None:
    whole = lab / "whole"
    header = (whole / "summary.csv").read_text().splitlines()[0]
    assert header == ",".join(("ratio", "p_share", *results.SUMMARY_COLUMNS))
    expected = [
        (ratio, share, scheduler)
        for ratio in ("2:1", "4:1")
        for share in ("0", "0.9")
        for scheduler in ("rr", "lab.py:Gate")
    ]
    summary = rows(whole / "summary.csv")
    assert [(row["ratio"], row["p_share"], row["scheduler"]) for row in summary] == expected
    assert {(row["completed"], row["status"]) for row in summary} == {("6", "complete")}
    status = rows(whole / "status.csv")
    assert list(status[0]) == ["ratio", "p_share", *STATUS_COLUMNS]
    assert [(row["ratio"], row["p_share"], row["scheduler"]) for row in status] == expected
    assert {(row["state"], row["attempts"], row["error"]) for row in status} == {("complete", "1", "")}
    # A cell's directory is its digest, and holds a run: by default its requests, of the large tables.
    directory = whole / "cells" / status[0]["cell"]
    assert results.read_json(directory / "cell.json")["config_sha256"].startswith(directory.name)
    assert sorted(path.name for path in directory.iterdir()) == [
        "cell.json",
        "log.txt",
        "requests.parquet",
        "status.json",
    ]
    manifest = json.loads((whole / "run.json").read_text())
    assert (manifest["status"], manifest["axes"], len(manifest["cells"])) == ("complete", ["ratio", "p_share"], 8)
    assert manifest["code_sha256_of_cells"] == [results.code_digest()]
    cell = manifest["cells"][0]
    assert 0 < cell["decision_median_us"] <= cell["decision_max_us"]
    assert 0 < cell["decision_mean_us"] <= cell["decision_max_us"]
    assert len(rows(whole / "tables" / "ttft.csv")) == 8


def test_flows_and_links_are_kept_if_wanted_and_resuming_makes_them(lab: Path, tmp_path: Path) -> None:
    text = SWEEP.replace(', "lab.py:Gate"', "").replace("[0, 0.9]", "[0]")
    out = tmp_path / "out"
    execute(write(tmp_path, text), out)
    assert len(list(out.glob("cells/*/*.parquet"))) == 2
    more = write(tmp_path, f"{text}keep: [requests, flows, links]\n")
    execute(more, out, resume=True)
    assert len(list(out.glob("cells/*/*.parquet"))) == 6
    done = stamps(out)
    execute(more, out, resume=True)
    assert stamps(out) == done


def test_places_may_share_the_cells_of_one_backend_and_run_them_once(tmp_path: Path) -> None:
    """An oracle that never changes is what the fluid model is given: its interval then matters to packets only."""
    text = (
        "name: shared\nscenario: rag\nseeds: 1\n"
        "set: {requests: 3, workload.input_mean: 200, background: none, schedulers: [netkv-full], "
        "fluid_oracle: {use: constant, congestion: {2: 0.1, 3: 0.1}}}\n"
        "axes: [{name: interval, key: oracle.interval, values: [1s, 60s]}]\n"
    )
    path = write(tmp_path, text)
    with pytest.raises(InputError, match="are the same: `oracle` has no effect in the fluid model"):
        load_sweep(path, backend="fluid")
    both = load_sweep(path, backend="both")
    told = "axis 'interval' has no effect in the fluid model, which has the same cells at all its labels"
    assert told in sweep.network_warnings(both)
    assert told not in sweep.network_warnings(load_sweep(path))
    places = [(dict(e.place)["interval"], e.backend) for e in both.entries]
    assert places == [("1s", "packet"), ("1s", "fluid"), ("60s", "packet"), ("60s", "fluid")]
    path.write_text(text.replace("requests: 3,", "requests: 3, backend: both,"))
    report = execute(path, tmp_path / "out")
    assert report.status == "complete"
    assert len(list((tmp_path / "out" / "cells").iterdir())) == 3
    first, fluid, _, same_fluid = ({k: v for k, v in row.items() if k != "interval"} for row in report.summary)
    assert fluid == same_fluid != first
    assert [row["state"] for row in rows(tmp_path / "out" / "status.csv")] == 4 * ["complete"]


# --- Killed, stopped, resumed -----------------------------------------------------------------------------------------


def finish(lab: Path, out: str, source: str = "s.yaml") -> None:
    """Go on with what was stopped, and check that it comes to the same and that nothing is done again."""
    (lab / "hold").unlink(missing_ok=True)
    done = stamps(lab / out)
    assert len(done) < 8
    report = execute(source, lab / out, resume=True)
    assert report.status == "complete"
    assert {name: stamp for name, stamp in stamps(lab / out).items() if name in done} == done
    assert tables(lab / out) == tables(lab / "whole")


def test_a_part_now_and_the_rest_later_come_to_the_same(here: Path) -> None:
    (here / "hold").unlink()
    process = start(here, "s.yaml", "--only", "p_share=0.9", "--only", "ratio=4:1", "--out", "part")
    process.communicate()
    assert process.returncode == 0
    assert len(rows(here / "part" / "summary.csv")) == 2
    finish(here, "part")


def test_kill_9_of_the_sweep_takes_all_along_and_resume_goes_on(here: Path) -> None:
    parent = start(here, "s.yaml", "--jobs", "2", "--out", "killed")
    wait_for(lambda: len(waiting(here)) == 2, parent)  # both workers are in the middle of a cell
    family = psutil.Process(parent.pid).children(recursive=True)
    parent.kill()
    parent.communicate()
    wait_for(are_gone([process for process in family if process.pid in waiting(here)]))
    states = [row["state"] for row in rows(here / "killed" / "status.csv")]
    assert set(states) <= {"pending", "running", "complete"}
    assert json.loads((here / "killed" / "run.json").read_text())["status"] == "running"
    finish(here, "killed")


def test_kill_9_of_the_sweep_takes_cells_in_processes_of_their_own_along(here: Path) -> None:
    parent = start(here, "apart.yaml", "--jobs", "2", "--out", "killed-apart")
    wait_for(lambda: len(waiting(here)) == 2, parent)
    cells = [psutil.Process(pid) for pid in waiting(here)]
    assert all(cell.cmdline()[2:4] == ["harness", "cell"] for cell in cells)
    workers = [cell.parent() for cell in cells]
    parent.kill()
    parent.communicate()
    wait_for(are_gone([*cells, *(worker for worker in workers if worker is not None)]))
    finish(here, "killed-apart", "apart.yaml")


def test_kill_9_of_a_worker_costs_nothing(here: Path) -> None:
    parent = start(here, "s.yaml", "--jobs", "2", "--out", "worker-killed")
    first, _ = wait_for(lambda: len(waiting(here)) == 2 and waiting(here), parent)
    os.kill(first, signal.SIGKILL)
    (here / "hold").unlink()
    _, errors = parent.communicate()
    assert parent.returncode == 0, errors
    assert tables(here / "worker-killed") == tables(here / "whole")
    # loky lets go of all workers when one dies: both cells that were under way were begun again.
    assert sorted(row["attempts"] for row in rows(here / "worker-killed" / "status.csv"))[-1] == "2"


def test_kill_9_of_a_cell_is_made_up_for(here: Path) -> None:
    parent = start(here, "apart.yaml", "--jobs", "2", "--out", "cell-killed")
    first = wait_for(lambda: waiting(here), parent)[0]
    os.kill(first, signal.SIGKILL)
    (here / "hold").unlink()
    _, errors = parent.communicate()
    assert parent.returncode == 0, errors
    assert tables(here / "cell-killed") == tables(here / "whole")
    attempts = [row["attempts"] for row in rows(here / "cell-killed" / "status.csv")]
    assert sorted(attempts) == [*7 * ["1"], "2"]


@pytest.mark.parametrize("source", ["s.yaml", "apart.yaml"])
def test_ctrl_c_stops_all_and_resume_goes_on(here: Path, source: str) -> None:
    out = f"stopped-{source}"
    parent = start(here, source, "--jobs", "2", "--out", out, start_new_session=True)
    wait_for(lambda: len(waiting(here)) == 2, parent)
    family = [psutil.Process(pid) for pid in waiting(here)]
    os.killpg(parent.pid, signal.SIGINT)  # as a terminal does: the workers are asked as well
    _, errors = parent.communicate()  # would not end while its cells wait
    assert parent.returncode == 130
    assert errors.startswith("netkv-cosim: interrupted: ")
    assert "Traceback" not in errors
    wait_for(are_gone(family))
    assert json.loads((here / out / "run.json").read_text())["status"] == "interrupted"
    states = [row["status"] for row in rows(here / out / "summary.csv")]
    assert states.count("interrupted") == 2
    finish(here, out, source)


def test_a_full_disk_stops_the_sweep_and_resume_goes_on(lab: Path, tmp_path: Path) -> None:
    """A limit on the size of files stands for the disk; the cells with many requests are above it."""
    text = (
        "name: disk\nscenario: rag\nset: {background: none, backend: fluid, schedulers: [rr]}\nseeds: 3\n"
        "axes: [{name: n, key: requests, values: [4, 5, 600]}]\n"
    )
    write(tmp_path, text)
    assert execute(tmp_path / "s.yaml", tmp_path / "whole").status == "complete"
    sizes = sorted(path.stat().st_size for path in (tmp_path / "whole").glob("cells/*/requests.parquet"))
    limit = 40_000
    assert sizes[5] < limit < sizes[6]
    full = start(
        tmp_path,
        *("s.yaml", "--jobs", "2", "--out", "full"),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )
    _, errors = full.communicate()
    assert full.returncode == 3, errors
    assert "requests.parquet: File too large; everything written before is kept" in errors
    assert errors.count("\n") == 1
    done = stamps(tmp_path / "full")
    assert execute(tmp_path / "s.yaml", tmp_path / "full", resume=True).status == "complete"
    assert {name: stamp for name, stamp in stamps(tmp_path / "full").items() if name in done} == done
    assert tables(tmp_path / "full") == tables(tmp_path / "whole")


# --- Failures ---------------------------------------------------------------------------------------------------------


def failing(lab: Path, scheduler: str, more: str = "") -> str:
    text = SWEEP.replace("lab.py:Gate", f"lab.py:{scheduler}").replace("[0, 0.9]", "[0]")
    return str(write(lab, text + more, f"{scheduler}.yaml"))


def test_a_plug_in_that_raises_is_begun_twice_and_costs_its_cells_only(here: Path) -> None:
    report = execute(failing(here, "Raises"), here / "raises")
    assert report.status == "failed"
    assert [cell["status"] for cell in report.cells] == ["complete", "failed"] * 2
    status = rows(here / "raises" / "status.csv")
    assert [row["attempts"] for row in status] == ["1", "2"] * 2
    assert [row["error"] for row in status] == ["", "ZeroDivisionError: oops"] * 2
    assert "line 16, in choose" in report.cells[1]["detail"]
    assert [row["status"] for row in rows(here / "raises" / "summary.csv")] == ["complete", "failed"] * 2
    assert "ZeroDivisionError: oops" in (here / "raises" / "report.html").read_text()
    # Failures are never taken for done.
    begun: list[str] = []
    execute(
        failing(here, "Raises"),
        here / "raises",
        resume=True,
        on_event=lambda cell, event: begun.append(cell.label) if event["event"] == "end" else None,
    )
    assert begun == ["lab.py:Raises"] * 2


def test_a_fluid_cell_that_kills_its_worker_costs_itself_only(here: Path) -> None:
    (here / "hold").unlink()
    sweep_ = start(here, failing(here, "Dies"), "--jobs", "2", "--out", "dies")
    _, errors = sweep_.communicate()
    assert sweep_.returncode == 3
    status = rows(here / "dies" / "status.csv")
    assert [row["state"] for row in status] == ["complete", "failed"] * 2
    assert {row["error"] for row in status if row["state"] == "failed"} == {
        "its process was ended by SIGKILL (killed, or out of memory)"
    }
    assert "last words" in errors
    assert errors.endswith("2 of 4 cells failed; what they recorded is kept in dies\n")


@pytest.mark.parametrize(
    ("scheduler", "limit", "error"),
    [
        ("Forgets", "cell_time_limit: 3s\n", "killed, as it took longer than the time limit of 3 s"),
        ("Hoards", "cell_memory_limit: 800MB\n", "MB, more than the memory limit of 800 MB"),
    ],
)
def test_a_cell_beyond_a_limit_is_killed(here: Path, scheduler: str, limit: str, error: str) -> None:
    path = Path(failing(here, scheduler, limit))
    path.write_text(path.read_text().replace('"4:1": {topology.agg_oversubscription: 2}', ""))
    report = execute(path, here / scheduler, jobs=2)
    assert [cell["status"] for cell in report.cells] == ["complete", "failed"]
    assert error in report.cells[1]["error"]


def test_resume_refuses_other_code_unless_allowed(here: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(here / "whole", out)
    path = next(out.glob("cells/*/cell.json"))
    path.write_text(path.read_text().replace(results.code_digest(), "0123456789ab" + 52 * "0"))
    with pytest.raises(InputError, match=f"code 0123456789ab, this is code {results.code_digest()[:12]}"):
        execute("s.yaml", out, resume=True)
    done = stamps(out)
    report = execute("s.yaml", out, resume=True, allow_mixed_code=True)
    assert report.status == "complete"
    assert stamps(out) == done
    codes = json.loads((out / "run.json").read_text())["code_sha256_of_cells"]
    assert codes == ["0123456789ab" + 52 * "0", results.code_digest()]


def test_an_input_that_only_a_cell_finds_wrong_stops_the_sweep(here: Path) -> None:
    """A plug-in's own InputError, at run time, is the user's mistake: no second attempt, and no other cell."""
    write(
        here,
        "from harness.errors import InputError\n\n"
        "class Refuses:\n"
        "    def choose(self, request, view, oracle):\n"
        "        raise InputError('the moon is full', key='moon')\n",
        "refuses.py",
    )
    text = SWEEP.replace("lab.py:Gate", "refuses.py:Refuses").replace("[rr, ", "[")
    with pytest.raises(InputError, match="moon: the moon is full"):
        execute(write(here, text, "refuses.yaml"), here / "refuses")
    states = [row["state"] for row in rows(here / "refuses" / "status.csv")]
    assert states == ["input-error", "pending", "pending", "pending"]


# --- The command ------------------------------------------------------------------------------------------------------


def test_a_packet_level_sweep_prints_its_cost_a_table_and_its_files(tmp_path: Path) -> None:
    text = (
        "name: small\nscenario: rag\nset: {requests: 2, background: none, workload.input_mean: 200, schedulers: [rr]}\n"
        "axes: [{name: rate, key: workload.rate_scale, values: [1, 2]}]\nseeds: 1\n"
    )
    write(tmp_path, text)
    done = start(tmp_path, "s.yaml", "--backend", "both", "--jobs", "2")
    output, errors = done.communicate()
    assert (done.returncode, errors) == (0, "")
    assert "expected, packet: 2 cells, " in output
    assert "expected, fluid: 2 cells, " in output
    lines = [line.split() for line in output.splitlines()]
    assert [words[:2] for words in lines if words[:1] in (["1"], ["2"])] == [
        ["1", "packet"],
        ["1", "fluid"],
        ["2", "packet"],
        ["2", "fluid"],
    ]
    (out,) = (tmp_path / "results" / "small").iterdir()
    assert f"  results/small/{out.name}/summary.csv" in output
    cells = json.loads((out / "run.json").read_text())["cells"]
    assert [cell["backend"] for cell in cells] == ["packet", "fluid"] * 2
    again = start(tmp_path, "s.yaml", "--backend", "both", "--jobs", "2", "--resume")
    output, errors = again.communicate()
    assert (again.returncode, errors) == (0, "")
    assert "4 of 4 cells are complete already" in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("laod",), "unknown sweep 'laod'; did you mean 'load'?"),
        (("load", "--set", "requets=5"), "--set requets=5: requets: unknown key 'requets'; did you mean 'requests'?"),
        (("load", "--resume"), "nothing to resume with config "),
        (("load", "--dask", "tcp://127.0.0.1:9", "--jobs", "2"), "--jobs: given beside --dask"),
        (("load", "--print-job-script"), "load.yaml: cluster: is required and missing"),
    ],
)
def test_a_mistake_is_one_message_and_exit_2(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    done = start(tmp_path, *arguments)
    output, errors = done.communicate()
    assert (done.returncode, output, errors.count("\n")) == (2, "", 1)
    assert message in errors


def test_the_papers_figures_leave_out_what_the_fluid_model_cannot_show() -> None:
    """Of `make paper`, what it would run."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("MAKE")}
    said = {}
    for backend in ("fluid", "both"):
        command = ["make", "-n", "paper", f"BACKEND={backend}", "PAPER=fig2 fig3"]
        done = subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True, check=True)
        said[backend] = [line.split()[2] for line in done.stdout.splitlines() if "netkv-cosim sweep" in line]
        left_out = "fig2 is left out: the fluid model's oracle never ages"
        assert (left_out in done.stdout.splitlines()) == (backend == "fluid")
    assert said["fluid"] == ["scenarios/sweeps/prefix-sharing.yaml"]
    assert said["both"] == ["scenarios/sweeps/staleness.yaml", "scenarios/sweeps/prefix-sharing.yaml"]
