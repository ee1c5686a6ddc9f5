"""Table V from end to end: packets and fluid on the same requests, tables, figure, and what a second run does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from calibration import table5
from calibration.experiment import Options
from harness.cli import main

Tiny = Callable[..., Options]

FILES = ("table5.csv", "table5.md", "gains.csv", "figures/gap.png")


def test_table5_end_to_end(tiny: Tiny, rounds: Any) -> None:
    options = tiny("table5")
    (group,) = table5.groups(options)
    runner = rounds.runner(options)
    one_seed_hops = sum(cell.cost.data_hops for variant in group.variants for cell in runner.cells(variant, 1))
    assert one_seed_hops > 0
    # The second of the seeds that `auto` would add is beyond the budget.
    auto = replace(options, seeds=None, budget_hops=one_seed_hops)
    report = table5.run_table5(rounds.runner(auto))
    assert not report.failures
    assert rounds.pending in ([6], [3])  # three schedulers in two models; the store may have the packet ones

    table = pd.read_csv(options.out / "table5.csv")
    assert list(table.columns[:10]) == [
        *("workload", "load", "profile", "baseline", "gain_fluid_pct", "gain_packet_pct"),
        *("gap_pp", "gap_ci_low_pp", "gap_ci_high_pp", "seeds"),
    ]
    assert table[["workload", "load", "profile", "baseline", "seeds"]].to_numpy().tolist() == [
        ["rag", 100, "roce-default", "rr", 1],
        ["rag", 100, "roce-default", "cla-tuned", 1],
    ]
    assert (table["gain_fluid_pct"] - table["gain_packet_pct"]).tolist() == pytest.approx(table["gap_pp"].tolist())
    transfer_gap = table["transfer_gain_fluid_pct"] - table["transfer_gain_packet_pct"]
    assert transfer_gap.tolist() == pytest.approx(table["transfer_gap_pp"].tolist())

    gains = pd.read_csv(options.out / "gains.csv")
    assert len(gains) == 4  # two models, two baselines
    expected = 100 * (1 - gains["ttft_netkv_ms"] / gains["ttft_baseline_ms"])
    assert gains["gain_pct"].tolist() == pytest.approx(expected.tolist(), abs=1e-5)
    saved = 100 * (1 - gains["transfer_netkv_ms"] / gains["transfer_baseline_ms"])
    for backend, column in (("fluid", "transfer_gain_fluid_pct"), ("packet", "transfer_gain_packet_pct")):
        assert saved[gains["backend"] == backend].tolist() == pytest.approx(table[column].tolist(), abs=1e-5)
    # A transfer is a part of TTFT, and the prefill, which is the rest of it, is the same in both models.
    rest = gains["ttft_baseline_ms"] - gains["transfer_baseline_ms"]
    assert (rest > 0).all()
    assert rest[:2].tolist() == pytest.approx(rest[2:].tolist(), rel=1e-3)
    # Headers and congestion control only ever cost time.
    by_backend = gains.groupby("backend")["ttft_baseline_ms"].min()
    assert by_backend["packet"] > by_backend["fluid"]

    before = {name: (options.out / name).read_bytes() for name in FILES}
    table5.run_table5(rounds.runner(auto))
    assert rounds.pending[-1] == 0
    assert {name: (options.out / name).read_bytes() for name in FILES} == before


def test_the_command(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny = "--requests 3 --seeds 1 --loads 100 --profiles roce-default --set background=none --set warmup_share=0"
    where = ["--cells", str(store), "--allow-mixed-code", "--out", str(tmp_path / "out")]
    assert main(["calibrate", "table5", *tiny.split(), *where]) == 0
    told = capsys.readouterr().out
    assert "1 seed: 3 packet and 3 fluid cells, " in told
    assert "gap_pp" in told and f"results in {tmp_path / 'out'}" in told


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("table5 --seeds many", "argument --seeds: 'many' given; a whole number, at least 1"),
        ("table5 --budget none", "argument --budget: 'none' given; a number of packet-hops, such as 2e11"),
        ("ladder --loads 0", "argument --loads: '0' given; a whole number, at least 1"),
        ("table5 --workloads rga", "--workloads: unknown workload 'rga'; did you mean 'rag'?"),
        ("sensitivity --profiles roce", "network.profile: unknown profile 'roce'"),
    ],
)
def test_a_wrong_option_is_told_in_one_line(
    arguments: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["calibrate", *arguments.split(), "--out", str(tmp_path / "out")]) == 2
    message = capsys.readouterr().err
    assert told in message and message.count("\n") == 1
    assert not (tmp_path / "out").exists()
