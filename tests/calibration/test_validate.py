"""Every row of the validation table, and how a verdict is reached.

The rows on DCQCN's fixed point have their tests in test_dcqcn_packet.py.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from calibration import validate
from calibration.validate import Row
from harness import cli
from harness.errors import RunFailure

SLOW = ("loss 1e-4", "loss 1e-2", "max-min", "reference W3, 1000 B", "reference W3, 4096 B")

GROUP = validate._Group(3, "somewhere")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name in SLOW else ())
        for name in validate.CASES
        if not name.startswith("DCQCN")
    ],
)
def test_rows_pass(name: str) -> None:
    rows = validate.CASES[name]()
    assert rows
    assert [f"{row.case}: {row.got} for {row.expected} ({row.tolerance})" for row in rows if not row.passed] == []


def test_the_groups_are_those_of_the_table() -> None:
    assert {name.split(",")[0].split()[0] for name in validate.CASES} == {
        *("DCQCN", "ECMP", "PFC", "closed", "limits", "loss", "max-min", "reference")
    }


@pytest.mark.parametrize(
    ("row", "passed", "tolerance"),
    [
        (GROUP.exact("x", 5, 5), True, "exact"),
        (GROUP.exact("x", 5, 6), False, "exact"),
        (GROUP.within("x", 200.0, 206.0, 0.03), True, "3 %"),
        (GROUP.within("x", 200.0, 206.1, 0.03), False, "3 %"),
        (GROUP.within("x", 200.0, 193.9, 0.03), False, "3 %"),
        (GROUP.between("x", 80.0, 83.0, 77.0, 83.0), True, "77 to 83"),
        (GROUP.between("x", 80.0, 76.9, 77.0, 83.0), False, "77 to 83"),
        (GROUP.at_least("x", 0.93, 0.93), True, "bound"),
        (GROUP.at_least("x", 0.93, 0.92), False, "bound"),
        (GROUP.reported("x", 1.0, 9.0), True, "none"),
    ],
)
def test_verdicts(row: Row, passed: bool, tolerance: str) -> None:
    assert (row.row, row.source, row.passed, row.tolerance) == (3, "somewhere", passed, tolerance)


def test_not_a_number_fails() -> None:
    nan = float("nan")
    rows = (GROUP.within("x", 1.0, nan, 0.5), GROUP.between("x", 1.0, nan, 0.0, 2.0), GROUP.at_least("x", 0.0, nan))
    assert [row.passed for row in rows] == [False, False, False]


def test_go_back_n() -> None:
    """Without loss the whole line; with one NACK a round and few lost ones the textbook's (1-p)/(1-p+pM).

    p = 1e-3, M = 20: 1.020020 slots a packet in the textbook; NACKs and next packets that are lost add p^2 (M + 1).
    """
    assert validate._go_back_n_share(0.0, 20, 20) == 1.0
    assert validate._go_back_n_share(1e-3, 20, 20) == pytest.approx(1 / (1.020020 + 21e-6), abs=1e-6)
    # By hand: f = 0.19, extra slots 10 + 1/9 + 100 x 0.19 / 0.81 = 33.568.
    assert validate._go_back_n_share(0.1, 10, 100) == pytest.approx(1 / (1 + 3.3568), rel=1e-4)


def test_water_filling_of_parking_lots() -> None:
    """20 Gb/s of the long flow leave 80 Gb/s to 1, 2 and 3 others; 100 Gb/s NICs meet at a half."""
    unequal = validate._water_filling(validate._parking_lot(20 * 10**9, (1, 2, 3)))
    assert unequal == pytest.approx([20e9, 80e9, 40e9, 40e9, 80e9 / 3, 80e9 / 3, 80e9 / 3])
    assert validate._water_filling(validate._parking_lot(10**11, (1, 1))) == pytest.approx([50e9] * 3)
    assert validate._water_filling(validate._parking_lot(10**11, (1, 1)), 40e9) == pytest.approx([40e9] * 3)


def test_the_reference_figures_are_whole() -> None:
    """Five runs of each of three workloads and two payloads; 1, 8 and 64 flows."""
    for workload, flows in (("W1_pair", 1), ("W2_incast", 8), ("W3_fattree_perm", 64)):
        for payload in (1000, 4096):
            assert len(validate._reference("runs", workload, payload)) == 5
            assert len(validate._reference("flows", workload, payload)) == flows


def test_the_reference_figures_are_those_of_the_simulator(reference_dir: Path) -> None:
    """Means over seeds of what stands beside the project, where it does."""
    with (reference_dir / "fct.csv").open() as file:
        fcts: dict[tuple[str, str, str], list[float]] = {}
        for row in csv.DictReader(file):
            key = (row["workload"], row["payload_bytes"], row["flow_id"])
            fcts.setdefault(key, []).append(float(row["fct_us"]))
    with (validate.DATA / "flows.csv").open() as file:
        ours = {
            (r["workload"], r["payload_bytes"], r["flow_id"]): float(r["fct_mean_us"]) for r in csv.DictReader(file)
        }
    assert ours == pytest.approx({key: sum(values) / 5 for key, values in fcts.items()}, abs=1e-3)
    for name in ("W1_pair.topo.txt", "W2_incast.flow.txt", "W3_fattree_perm.topo.txt", "W3_paths.csv"):
        assert (validate.DATA / name).read_text() == (reference_dir / name).read_text()


def cases_of(*rows: Row) -> dict[str, Callable[[], list[Row]]]:
    return {f"case {i}": (lambda row=row: [row]) for i, row in enumerate(rows)}


def test_a_run_that_fails_is_a_failed_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> list[Row]:
        raise RunFailure("nothing moves any more")

    monkeypatch.setattr(validate, "CASES", {**cases_of(GROUP.exact("fine", 1, 1)), "broken": fail})
    told: list[tuple[str, int]] = []
    rows = validate.run(jobs=1, on_done=lambda name, _, left: told.append((name, left)))
    assert [(row.case, row.passed, row.note) for row in rows] == [
        ("broken", False, "nothing moves any more"),
        ("fine", True, ""),
    ]
    assert told == [("case 0", 1), ("broken", 0)]


@pytest.mark.parametrize(("got", "code"), [(1, cli.DONE), (2, cli.FAILED)])
def test_the_command_writes_the_table_and_fails_with_a_row(
    got: int, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one = GROUP.exact("one [us]", 1, got, "a cause")
    missed = replace(GROUP.exact("four", 1, 2, "a known cause"), known_miss=True)
    rows = cases_of(one, GROUP.within("two", 2.0, 2.01, 0.01), GROUP.reported("three", 1.0, 9.0, "a reason"), missed)
    monkeypatch.setattr(validate, "CASES", rows)
    assert cli.main(["validate", "--jobs", "1", "--out", str(tmp_path)]) == code
    out, err = capsys.readouterr()
    assert "one [us]" in out
    assert "three: a reason" in out and "four: a known cause" in out
    assert f"{2 if got == 1 else 1} of 3 rows pass, 1 known to miss (see its note), 1 are reported only" in out
    assert ("1 of 3 rows failed: one [us]" in err) == ("one [us]: a cause" in out) == (code == cli.FAILED)
    verdict = "yes" if got == 1 else "no"
    assert (tmp_path / "validate.csv").read_text().splitlines() == [
        "row,case,expected,got,tolerance,source,pass,note",
        f"3,one [us],1,{got},exact,somewhere,{verdict},a cause",
        "3,two,2,2.01,1 %,somewhere,yes,",
        "3,three,1,9,none,somewhere,reported,a reason",
        "3,four,1,2,exact,somewhere,missed,a known cause",
    ]
