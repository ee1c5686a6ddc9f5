"""Cells in processes of their own: planning, resuming, supervision, and what becomes of a cell that dies."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from harness.cells import Cell, prepare, run_cells
from harness.config import Scenario, load_scenario
from harness.scenario_run import plan

PROJECT = Path(__file__).resolve().parent.parent

#: Sleeps before every choice for as long as the environment says, and does what it is told to a request.
PLUG_IN = """
import os, signal, time
from pathlib import Path

class Slow:
    def choose(self, request, view, oracle):
        Path(__file__).with_name("begun").touch()
        time.sleep(float(os.environ.get("LAB_SLEEP_S", "0")))
        return view.decode[request.id % len(view.decode)].instance

class Dies:
    def choose(self, request, view, oracle):
        print("last words", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

class Exits:
    def choose(self, request, view, oracle):
        os._exit(7)
"""


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    """A file outside the project with schedulers of one's own."""
    path = tmp_path / "lab.py"
    path.write_text(PLUG_IN)
    return path


def small(*schedulers: str, seeds: int = 1, requests: int = 8, overrides: tuple[str, ...] = ()) -> Scenario:
    return load_scenario(
        "rag",
        overrides=["background=none", *overrides],
        requests=requests,
        schedulers=schedulers or ("rr",),
        seeds=seeds,
        backend="fluid",
    )


def ignore(*_: object) -> None:
    """Take no notice of an event."""


# --- Order, stopping --------------------------------------------------------------------------------------------------


def test_the_longest_cells_start_first(tmp_path: Path) -> None:
    short, long = small("rr", requests=4), small("rr", requests=12)
    cells = [*plan(short, tmp_path / "a"), *plan(long, tmp_path / "b")]
    prepare(cells, resume=False, code="")
    started: list[int] = []

    def note(cell: Cell, event: Mapping[str, Any]) -> None:
        if event["event"] == "start":
            started.append(cell.scenario.requests)

    outcomes = run_cells(cells, 1, note)
    assert started == [12, 4]
    assert [outcome.status for outcome in outcomes] == ["complete", "complete"]
    assert all(outcome.peak_memory_bytes >= 0 and outcome.wall_s > 0 for outcome in outcomes)


def test_sigint_stops_running_cells_and_starts_no_more(
    tmp_path: Path, lab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAB_SLEEP_S", "60")  # what is not stopped takes minutes
    cells = plan(small(f"{lab}:Slow", seeds=3), tmp_path)
    prepare(cells, resume=False, code="")

    def press_when_it_moves() -> None:
        while not lab.with_name("begun").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    presser = threading.Thread(target=press_when_it_moves)
    presser.start()
    outcomes = run_cells(cells, 2, ignore)
    presser.join()
    assert {outcome.status for outcome in outcomes} <= {"interrupted", "pending"}
    assert "interrupted" in {outcome.status for outcome in outcomes}
    assert signal.getsignal(signal.SIGINT) is before


def test_a_cell_dies_with_its_parent(tmp_path: Path, lab: Path) -> None:
    cells = plan(small(f"{lab}:Slow"), tmp_path)
    prepare(cells, resume=False, code="")
    start_and_wait = (
        "import subprocess, sys, os\n"
        f"child = subprocess.Popen([sys.executable, '-m', 'harness', 'cell', {str(cells[0].directory)!r}, "
        "'--parent', str(os.getpid())])\n"
        "print(child.pid, flush=True)\n"
        "child.wait()\n"
    )
    environment = {**os.environ, "LAB_SLEEP_S": "60"}
    parent = subprocess.Popen(
        [sys.executable, "-c", start_and_wait], stdout=subprocess.PIPE, text=True, env=environment, cwd=PROJECT
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    time.sleep(1)  # let it begin; if it has not, it finds its parent gone
    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 10
    while _alive(child):
        assert time.monotonic() < deadline, "the cell outlived its parent"
        time.sleep(0.02)


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


# --- A full disk ------------------------------------------------------------------------------------------------------


def test_a_cell_that_meets_a_full_disk_says_so_and_stops_the_others(tmp_path: Path) -> None:
    cells = plan(small("rr", "ca", seeds=2), tmp_path)
    prepare(cells, resume=False, code="")
    shutil.rmtree(cells[0].directory / "flows.parquet", ignore_errors=True)
    program = (
        "import errno, os, sys\n"
        "from pathlib import Path\n"
        "from harness import cli\n"
        "replace = Path.replace\n"
        "def full(self, target):\n"
        "    if target.name == 'flows.parquet':\n"
        "        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))\n"
        "    return replace(self, target)\n"
        "Path.replace = full\n"
        f"sys.exit(cli.main(['cell', {str(cells[0].directory)!r}]))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=PROJECT)
    assert done.returncode == 3
    event = json.loads(done.stdout.splitlines()[-1])
    assert event["event"] == "disk-error"
    assert "flows.parquet: No space left on device" in event["disk_error"]
    assert sorted(path.name for path in cells[0].directory.iterdir()) == ["cell.json", "requests.parquet"]
