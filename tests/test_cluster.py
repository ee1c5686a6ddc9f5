"""Sweeps on a Dask cluster: a real scheduler and real workers on this machine, and the script that jobs would have."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

PROJECT = Path(__file__).resolve().parent.parent

#: Waits while there is a file `hold`; what it chooses does not depend on that.
PLUG_IN = """
import os, time
from pathlib import Path

class Gate:
    def choose(self, request, view, oracle):
        if request.id == 0 and "LAB_IS_JOB" in os.environ:
            print("in a job")
        if request.id == 3 and Path("hold").exists():
            Path(f"waiting-{os.getpid()}").touch()
            while Path("hold").exists():
                time.sleep(0.01)
        return view.decode[request.id % len(view.decode)].instance
"""

SWEEP = """
name: lab
scenario: rag
set: {requests: 6, background: none, backend: fluid, schedulers: [rr, "lab.py:Gate"]}
axes: [{name: p_share, key: workload.p_share, values: [0, 0.9]}]
seeds: 1
figures:
  - {name: ttft, kind: table, title: Time to first token, rows: [p_share], columns: [ttft_mean_ms]}
"""


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(PROJECT), **more}


def start(lab: Path, *arguments: str, **more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "harness", "sweep", *arguments]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=lab, env=environment(**more)
    )


def tables(out: Path) -> dict[str, bytes]:
    paths = [out / "summary.csv", *sorted((out / "tables").iterdir()), *sorted(out.glob("cells/*/*.parquet"))]
    return {str(path.relative_to(out)): path.read_bytes() for path in paths}


def wait_for(what: Callable[[], Any]) -> Any:
    """What it returns once that is true; two minutes are for a machine that is busy with much else."""
    deadline = time.monotonic() + 120
    while not (found := what()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


def waiting(lab: Path) -> list[int]:
    """The processes that wait at the gate."""
    return [int(path.name.partition("-")[2]) for path in lab.glob("waiting-*")]


def start_cluster(lab: Path, file: str) -> list[subprocess.Popen[bytes]]:
    """A scheduler that writes its address to `file`, and two worker processes."""

    def run(*arguments: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", *arguments, "--no-dashboard", "--scheduler-file", file]
        return subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=lab,
            env=environment(),
            start_new_session=True,
        )

    worker = ("distributed.cli.dask_worker", "--nthreads", "1", "--no-nanny", "--local-directory", "scratch")
    return [run("distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0"), run(*worker), run(*worker)]


def kill(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.kill()
        process.wait()


def read_address(file: Path) -> str:
    """Of the scheduler that writes it there; "" until then."""
    try:
        return str(json.loads(file.read_text())["address"])
    except (FileNotFoundError, ValueError):
        return ""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a plug-in, a sweep and, in `whole`, that sweep as this machine alone has it."""
    directory = tmp_path_factory.mktemp("cluster")
    (directory / "lab.py").write_text(PLUG_IN)
    (directory / "s.yaml").write_text(SWEEP)
    (directory / "apart.yaml").write_text(f"{SWEEP}cell_time_limit: 600s\n")  # cells have processes of their own
    done = start(directory, "s.yaml", "--jobs", "1", "--out", "whole")
    _, errors = done.communicate()
    assert done.returncode == 0, errors
    return directory


@pytest.fixture(scope="module")
def address(lab: Path) -> Iterator[str]:
    """Of a scheduler with two worker processes."""
    processes = start_cluster(lab, "scheduler.json")
    try:
        yield wait_for(lambda: read_address(lab / "scheduler.json"))
    finally:
        kill(processes)


@pytest.fixture
def gate(lab: Path) -> Iterator[Path]:
    """Closed."""
    (lab / "hold").touch()
    yield lab / "hold"
    for path in (lab / "hold", *lab.glob("waiting-*")):
        path.unlink(missing_ok=True)


def test_a_cluster_gives_the_same_bytes(lab: Path, address: str) -> None:
    done = start(lab, "s.yaml", "--dask", address, "--out", "dask")
    _, errors = done.communicate()
    assert (done.returncode, errors) == (0, "")
    assert tables(lab / "dask") == tables(lab / "whole")


def test_ctrl_c_reaches_cells_on_the_cluster_and_resume_goes_on(lab: Path, address: str, gate: Path) -> None:
    stopped = start(lab, "apart.yaml", "--dask", address, "--out", "stopped")
    pids = wait_for(lambda: len(waiting(lab)) == 2 and waiting(lab))
    stopped.send_signal(signal.SIGINT)
    _, errors = stopped.communicate()
    assert stopped.returncode == 130
    assert "Traceback" not in errors
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
    gate.unlink()
    done = start(lab, "apart.yaml", "--dask", address, "--out", "stopped", "--resume")
    _, errors = done.communicate()
    assert (done.returncode, errors) == (0, "")
    assert tables(lab / "stopped") == tables(lab / "whole")


def test_a_worker_that_is_killed_costs_nothing(lab: Path, address: str, gate: Path) -> None:
    sweep = start(lab, "s.yaml", "--dask", address, "--out", "worker-killed")
    first, _ = wait_for(lambda: len(waiting(lab)) == 2 and waiting(lab))
    os.kill(first, signal.SIGKILL)
    gate.unlink()
    _, errors = sweep.communicate()
    assert (sweep.returncode, errors) == (0, "")
    assert tables(lab / "worker-killed") == tables(lab / "whole")


def test_a_scheduler_that_does_not_answer_is_one_message_and_exit_2(lab: Path) -> None:
    done = start(lab, "s.yaml", "--dask", "tcp://127.0.0.1:9", "--out", "nowhere")
    output, errors = done.communicate()
    assert (done.returncode, output) == (2, "")
    message = "--dask tcp://127.0.0.1:9: no Dask scheduler answers there within 5 s"
    assert errors == f"netkv-cosim: error: {message}\n"
    assert not (lab / "nowhere").exists()


def test_a_scheduler_that_dies_is_exit_3_and_resume_goes_on(lab: Path, gate: Path) -> None:
    processes = start_cluster(lab, "doomed.json")
    try:
        address = wait_for(lambda: read_address(lab / "doomed.json"))
        sweep = start(lab, "s.yaml", "--dask", address, "--out", "doomed")
        wait_for(lambda: len(waiting(lab)) == 2)
        processes[0].kill()
        _, errors = sweep.communicate()
        assert sweep.returncode == 3
        message = "the Dask scheduler is gone; what is complete is kept, --resume goes on from there"
        assert errors == f"netkv-cosim: error: {message}\n"
    finally:
        kill(processes)
    gate.unlink()
    done = start(lab, "s.yaml", "--jobs", "1", "--out", "doomed", "--resume")
    _, errors = done.communicate()
    assert (done.returncode, errors) == (0, "")
    assert tables(lab / "doomed") == tables(lab / "whole")


#: Stands for Slurm's: runs the script at once, on this machine.
SBATCH = """#!/bin/sh
cp "$1" submitted.sh
setsid sh submitted.sh >/dev/null 2>&1 &
echo $! >job
echo "Submitted batch job $!"
"""


def test_a_batch_system_is_given_jobs_which_are_taken_back(lab: Path) -> None:
    commands = lab / "bin"
    commands.mkdir()
    for name, text in (("sbatch", SBATCH), ("scancel", '#!/bin/sh\nkill -KILL -- "-$1"\n')):
        (commands / name).write_text(text)
        (commands / name).chmod(0o755)
    cluster = "cluster: {use: slurm, jobs: 1, cores: 1, memory: 4GB, interface: lo, prologue: [export LAB_IS_JOB=1]}\n"
    (lab / "batch.yaml").write_text(f"{SWEEP}cell_time_limit: 600s\n{cluster}".replace("[rr, ", "["))
    more = {"PATH": f"{commands}:{os.environ['PATH']}"}
    done = start(lab, "batch.yaml", "--out", "batch", **more)
    output, errors = done.communicate()
    assert (done.returncode, errors) == (0, "")
    assert "waiting for the cluster's first worker" in output
    summary = (lab / "batch" / "summary.csv").read_text().splitlines()
    assert set(summary) < set((lab / "whole" / "summary.csv").read_text().splitlines())
    assert len(summary) == 3
    script = (lab / "batch" / "cluster-job.sh").read_text()
    assert "#SBATCH --cpus-per-task=1" in script
    assert "export LAB_IS_JOB=1" in (lab / "submitted.sh").read_text()
    # Not even a single worker leaves the work to the machine that the sweep was started on.
    assert {path.read_text() for path in (lab / "batch").glob("cells/*/log.txt")} == {"in a job\n"}
    job = int((lab / "job").read_text())
    wait_for(lambda: not Path(f"/proc/{job}").exists())


@pytest.mark.parametrize(
    ("system", "lines"),
    [
        (
            "slurm",
            (
                "#SBATCH -J netkv-lab",
                "#SBATCH -p long",
                "#SBATCH -A atlas",
                "#SBATCH --cpus-per-task=8",
                "#SBATCH --mem=30G",  # 32 GB are 29.8 GiB
                "#SBATCH -t 12:00:00",
                "#SBATCH --constraint=icelake",
                "module load gcc",
            ),
        ),
        (
            "pbs",
            (
                "#PBS -N netkv-lab",
                "#PBS -q long",
                "#PBS -A atlas",
                "#PBS -l select=1:ncpus=8:mem=30GB",
                "#PBS -l walltime=12:00:00",
                "#PBS --constraint=icelake",
                "module load gcc",
            ),
        ),
    ],
)
def test_the_job_script_of_a_batch_system(tmp_path: Path, system: str, lines: tuple[str, ...]) -> None:
    cluster = (
        f"cluster: {{use: {system}, jobs: 4, cores: 8, memory: 32GB, walltime: '12:00:00', queue: long, "
        "account: atlas, directives: [--constraint=icelake], prologue: [module load gcc]}\n"
    )
    (tmp_path / "s.yaml").write_text(SWEEP.replace("lab.py:Gate", "ca") + cluster)
    done = start(tmp_path, "s.yaml", "--print-job-script")
    script, errors = done.communicate()
    assert (done.returncode, errors) == (0, "")
    assert set(lines) <= set(script.splitlines())
    # A worker process with one thread for each core, of the Python that the sweep runs on.
    worker = script.splitlines()[-1]
    assert worker.startswith(f"{sys.executable} -m distributed.cli.dask_worker tcp://")
    assert {"--nthreads 1", "--nworkers 8"} <= {f"--{option.strip()}" for option in worker.split("--")}
