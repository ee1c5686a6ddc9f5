"""Cells in processes of their own: planning, resuming, supervision, and what becomes of a cell that dies."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from harness import results, run, scenario_run
from harness.cells import Cell, read_status
from harness.config import Scenario, load_scenario
from harness.errors import InputError

PROJECT = Path(__file__).resolve().parent.parent

#: Sleeps before every choice for as long as the environment says, and does what it is told to a request.
PLUG_IN = """
import os, signal, time

class Slow:
    def choose(self, request, view, oracle):
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


def execute(scenario: Scenario, out: Path, *, jobs: int = 2, resume: bool = False) -> scenario_run.RunReport:
    return scenario_run.run_scenario(
        scenario, out, jobs=jobs, resume=resume, command="test", on_plan=ignore, on_event=ignore
    )


TABLES = ("summary.csv", "comparison.csv", "requests.parquet", "flows.parquet", "links.parquet")


def tables(out: Path) -> dict[str, bytes]:
    names = (*TABLES, *(f"figures/{path.name}" for path in sorted((out / "figures").glob("*.png"))))
    return {name: (out / name).read_bytes() for name in names}


# --- A whole run ------------------------------------------------------------------------------------------------------


def four_cells() -> Scenario:
    return small("rr", "netkv-full", seeds=2)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> scenario_run.RunReport:
    """A run that nothing happened to; not to be written to."""
    return execute(four_cells(), tmp_path_factory.mktemp("undisturbed") / "out")


def test_tables_are_the_same_bytes_whatever_the_jobs(tmp_path: Path, undisturbed: scenario_run.RunReport) -> None:
    report = execute(four_cells(), tmp_path, jobs=1)
    assert (report.status, undisturbed.status) == ("complete", "complete")
    assert tables(report.out) == tables(undisturbed.out)
    assert len(tables(report.out)) == 5 + 5  # every table and every figure


def test_rows_follow_the_scenarios_order_and_have_the_documented_columns(undisturbed: scenario_run.RunReport) -> None:
    header, *rows = (undisturbed.out / "summary.csv").read_text().splitlines()
    assert header.split(",")[:19] == list(results.SUMMARY_COLUMNS[:19])
    assert [row.split(",")[:5] for row in rows] == [
        ["fluid", scheduler, seed, "8", "8"] for scheduler in ("rr", "netkv-full") for seed in ("1", "2")
    ]
    comparison = (undisturbed.out / "comparison.csv").read_text().splitlines()
    assert comparison[0] == "backend,scheduler,baseline,ttft_change_pct,ci_low_pct,ci_high_pct,seeds,interval"
    assert [row.split(",")[:3] for row in comparison[1:]] == [["fluid", "netkv-full", "rr"]]
    counters = undisturbed.counters["fluid"]
    assert counters["payload_bytes_sent"] == counters["payload_bytes_acked"] > 0


def test_run_json_says_what_was_run_on_what(undisturbed: scenario_run.RunReport) -> None:
    run_json = json.loads((undisturbed.out / "run.json").read_text())
    assert run_json["status"] == "complete"
    assert run_json["seeds"] == [1, 2]
    assert run_json["scenario"] == four_cells().to_json()
    assert {"project", "git_commit", "ns3", "cppyy", "python"} <= set(run_json["versions"])
    assert run_json["wall_s"] > 0
    assert run_json["peak_memory_bytes"] > 10_000_000
    assert set(run_json["counters"]["fluid"]) == set(results.COUNTERS)
    cell = run_json["cells"][0]
    assert (cell["backend"], cell["scheduler"], cell["seed"], cell["status"]) == ("fluid", "rr", 1, "complete")
    assert cell["expected"]["flows"] == cell["flows"] == 8


def test_a_plug_in_that_raises_costs_its_cells_only(tmp_path: Path) -> None:
    plug_in = tmp_path / "mine.py"
    plug_in.write_text(
        "class Mine:\n"
        "    def choose(self, request, view, oracle):\n"
        "        return self.pick(view) if request.id == 4 else view.decode[0].instance\n"
        "    def pick(self, view):\n"
        "        raise ZeroDivisionError('oops')\n"
    )
    report = execute(small("rr", f"{plug_in}:Mine"), tmp_path / "out")
    assert report.status == "failed"
    assert [cell["status"] for cell in report.cells] == ["complete", "failed"]
    failed = report.cells[1]
    assert failed["error"] == "ZeroDivisionError: oops"
    assert failed["detail"].startswith(f'Traceback (most recent call last):\n  File "{plug_in}", line 3, in choose')
    assert failed["detail"].endswith("ZeroDivisionError: oops")
    # What was recorded until then is there, and marked.
    partial = results.read_parquet(tmp_path / "out" / failed["directory"] / "requests.parquet")
    assert 0 < sum(d >= 0 for d in partial["decision_ps"].to_pylist()) < 8
    assert (tmp_path / "out" / "summary.csv").read_text().splitlines()[2].endswith(",failed")
    assert (tmp_path / "out" / "comparison.csv").read_text().count("\n") == 1
    assert "ZeroDivisionError: oops" in (tmp_path / "out" / "report.html").read_text()


@pytest.mark.parametrize(
    ("scheduler", "error", "detail"),
    [
        ("Dies", "its process was ended by SIGKILL (killed, or out of memory)", "last words"),
        ("Exits", "its process ended with exit code 7 and left no status", ""),
    ],
)
def test_a_cell_that_dies_is_a_failed_cell(tmp_path: Path, lab: Path, scheduler: str, error: str, detail: str) -> None:
    report = execute(small(f"{lab}:{scheduler}", "rr"), tmp_path / "out")
    assert [cell["status"] for cell in report.cells] == ["failed", "complete"]
    assert report.cells[0]["error"] == error
    assert report.cells[0]["detail"] == detail
    assert report.summary[0]["completed"] == 0


# --- Resuming ---------------------------------------------------------------------------------------------------------


def test_resume_redoes_only_what_is_not_complete(tmp_path: Path, undisturbed: scenario_run.RunReport) -> None:
    out = tmp_path / "out"
    shutil.copytree(undisturbed.out, out)
    cells = sorted((out / "cells").iterdir())
    stamps = {cell.name: (cell / "status.json").stat().st_mtime_ns for cell in cells}
    (cells[0] / "status.json").unlink()
    (out / "summary.csv").unlink()
    started: list[str] = []

    def note(cell: Cell, event: Mapping[str, Any]) -> None:
        if event["event"] == "start":
            started.append(cell.directory.name)

    scenario_run.run_scenario(four_cells(), out, jobs=2, resume=True, command="", on_plan=ignore, on_event=note)
    assert started == [cells[0].name]
    assert all((cell / "status.json").stat().st_mtime_ns == stamps[cell.name] for cell in cells[1:])
    assert tables(out) == tables(undisturbed.out)


def test_resume_adds_a_scheduler_and_a_seed(tmp_path: Path, undisturbed: scenario_run.RunReport) -> None:
    execute(small("rr"), tmp_path / "out")
    report = execute(four_cells(), tmp_path / "out", resume=True)
    assert tables(report.out) == tables(undisturbed.out)


def test_resume_refuses_another_configuration_and_names_both(
    tmp_path: Path, undisturbed: scenario_run.RunReport
) -> None:
    shutil.copytree(undisturbed.out, tmp_path / "out")
    first, other = four_cells(), small("rr", requests=9)
    with pytest.raises(InputError) as caught:
        execute(other, tmp_path / "out", resume=True)
    text = str(caught.value)
    for scenario in (first, other):
        assert run.cell_digest(scenario, "fluid", scenario.schedulers[0], 1)[:12] in text
    assert "requests: 8 there, 9 here" in text


def test_resume_refuses_other_code_and_names_both(tmp_path: Path, undisturbed: scenario_run.RunReport) -> None:
    shutil.copytree(undisturbed.out, tmp_path / "out")
    path = tmp_path / "out" / "cells" / "fluid_rr_s1" / "cell.json"
    path.write_text(path.read_text().replace(results.code_digest(), "0123456789ab" + 52 * "0"))
    with pytest.raises(InputError, match=f"code 0123456789ab, this is code {results.code_digest()[:12]}"):
        execute(four_cells(), tmp_path / "out", resume=True)


def test_a_new_run_does_not_wipe_the_complete_cells_of_an_unfinished_one(
    tmp_path: Path, undisturbed: scenario_run.RunReport
) -> None:
    out = tmp_path / "out"
    shutil.copytree(undisturbed.out, out)
    manifest = json.loads((out / "run.json").read_text())
    (out / "run.json").write_text(json.dumps({**manifest, "status": "running"}))
    with pytest.raises(InputError, match="4 complete cells; --resume goes on with it"):
        execute(small("rr"), out)
    (out / "run.json").write_text(json.dumps(manifest))
    report = execute(small("rr"), out)  # a finished run is replaced
    assert [cell.name for cell in (report.out / "cells").iterdir()] == ["fluid_rr_s1"]


def test_two_runs_cannot_share_a_directory(tmp_path: Path) -> None:
    with (
        scenario_run.locked(tmp_path),
        pytest.raises(InputError, match="another netkv-cosim is writing here"),
        scenario_run.locked(tmp_path),
    ):
        pytest.fail("both hold it")


def find(scenario: Scenario, root: Path, *, resume: bool) -> Path:
    return scenario_run.find_directory(scenario.name, scenario.digest(), root, resume=resume)


def test_a_run_without_out_is_found_again_by_its_configuration(tmp_path: Path) -> None:
    scenario = small("rr")
    new = find(scenario, tmp_path, resume=False)
    assert new.parent == tmp_path / "rag"
    with pytest.raises(InputError, match="nothing to resume"):
        find(scenario, tmp_path, resume=True)
    new.mkdir(parents=True)
    (new / "run.json").write_text("{}")
    assert find(scenario, tmp_path, resume=True) == new
    with pytest.raises(InputError, match=f"the newest run there is {new.name}"):
        find(small("ca"), tmp_path, resume=True)


# --- A full disk ------------------------------------------------------------------------------------------------------


def test_a_disk_that_is_full_when_the_tables_are_merged_keeps_the_cells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, scenario = tmp_path / "out", small("rr")
    replace = Path.replace

    def full(self: Path, target: Path) -> Path:
        if target == out / "requests.parquet":
            raise OSError(28, os.strerror(28))
        return replace(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", full)
        with pytest.raises(results.DiskFailure, match=r"requests\.parquet: No space left on device"):
            execute(scenario, out)
    assert read_status(next((out / "cells").iterdir()))["status"] == "complete"
    report = execute(scenario, out, resume=True)
    assert report.status == "complete"
    assert set(TABLES) <= {path.name for path in out.iterdir()}
