"""The writer: whole files or none, the same bytes for the same input, and columns that other programs rely on."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from harness import results
from harness.errors import InputError, RunFailure
from harness.types import (
    LINK_COLUMNS,
    FlowTable,
    NetworkResult,
    NetworkSample,
    NetworkTotals,
    RequestRecord,
    RunResult,
    Topology,
)

PS_PER_S = 10**12


def make_request(request_id: int, **changes: int | bool | float) -> RequestRecord:
    """A request that arrives at `request_id` s, with a TTFT of 2 s, 1 s of it transfer."""
    start = request_id * PS_PER_S
    times = dict(zip(("arrival", "prefill_start", "prefill_end", "decision"), (0, 0, 9, 9), strict=True))
    times |= dict(zip(("transfer_start", "transfer_end", "decode_start", "first_token"), (9, 19, 19, 20), strict=True))
    times |= {"last_token": 30}
    fields = {f"{name}_ps": start + tenths * PS_PER_S // 10 for name, tenths in times.items()}
    record = RequestRecord(
        id=request_id,
        **fields,
        input_tokens=1000,
        output_tokens=11,
        prefill_instance=0,
        decode_instance=4,
        tier=2,
        hit_tokens=0,
        kv_bytes=10**9,
        transfer_bytes=10**9,
        queue_at_decision=0,
        batch_at_decision=1,
        warmup=False,
    )
    return replace(record, **changes)


def make_result(*, scheduler: str = "rr", seed: int = 1, n_requests: int = 3) -> RunResult:
    """On three_hosts: one KV flow host0 -> host1 and one background flow host2 -> host0, and one link interval."""

    def column(*values: int) -> np.ndarray:
        return np.array(values, dtype=np.int64)

    flows = FlowTable(
        transfer_id=column(0, 7),
        traffic_class=np.array([1, 2], dtype=np.int8),
        src_port=column(0, 4),
        dst_port=column(2, 0),
        size_bytes=column(10**9, 500),
        acked_bytes=column(10**9, 0),
        start_ps=column(0, 5),
        end_ps=column(PS_PER_S, -1),
        ideal_fct_ps=column(10, 20),
        ecn_marks=column(3, 0),
        cnps=column(2, 0),
        retransmitted_bytes=column(0, 0),
    )
    zeros = np.zeros((6, 3), dtype=np.int64)
    sample = NetworkSample(2 * PS_PER_S, zeros, zeros[:, 0], zeros[:, 0], zeros[:, 0])
    links = {name: np.zeros(6, dtype=np.int64) for name in LINK_COLUMNS}
    links |= {"port": np.arange(6), "end_ps": np.full(6, PS_PER_S)}
    links["kv_bytes"] = column(6_250_000_000, 0, 0, 0, 0, 0)  # half of what 100 Gbit/s carry in 1 s
    return RunResult(
        backend="packet",
        scheduler=scheduler,
        seed=seed,
        requests=tuple(make_request(i) for i in range(n_requests)),
        network=NetworkResult(flows, NetworkTotals(data_packets=12, max_queue_bytes=5), sample),
        links=links,
        status="complete",
    )


def test_a_file_is_replaced_whole_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    results.write_text(path, "old")
    results.write_text(path, "new")
    assert path.read_text() == "new"
    assert [p.name for p in tmp_path.iterdir()] == ["table.csv"]


@pytest.mark.parametrize(("where", "call"), [(os, "fsync"), (Path, "replace")])
def test_a_full_disk_keeps_the_old_file_and_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: object, call: str
) -> None:
    path = tmp_path / "summary.csv"
    results.write_text(path, "old")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(where, call, full)
    with pytest.raises(results.DiskFailure) as caught:
        results.write_text(path, "new")
    assert str(caught.value) == (
        f"cannot write {path}: No space left on device; everything written before is kept, --resume goes on from there"
    )
    assert isinstance(caught.value, RunFailure)
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["summary.csv"]


def test_a_path_that_cannot_be_a_directory_is_the_users_mistake(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="file/out: cannot write here: Not a directory"):
        results.make_directory(tmp_path / "file" / "out")


def test_csv_has_six_decimals_empty_cells_and_quotes(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    rows = [{"a": 1 / 3, "b": 7, "c": "x"}, {"a": float("nan"), "b": None, "c": 'say "a, b"'}, {"a": np.float64(2)}]
    results.write_csv(path, ("a", "b", "c"), rows)
    assert path.read_text() == 'a,b,c\n0.333333,7,x\n,,"say ""a, b"""\n2.000000,,\n'


def test_json_has_null_for_what_is_no_number(tmp_path: Path) -> None:
    results.write_json(tmp_path / "run.json", {"a": float("inf"), "b": (np.int64(3), np.float64("nan"))})
    assert json.loads((tmp_path / "run.json").read_text()) == {"a": None, "b": [3, None]}
    assert results.read_json(tmp_path / "missing.json") is None


def test_tables_have_the_documented_columns(three_hosts: Topology) -> None:
    tables = results.record_tables(make_result(), three_hosts)
    keys = ["backend", "scheduler", "seed"]
    assert all(table.column_names[:3] == keys for table in tables.values())
    assert {"arrival_ps", "first_token_ps", "tier", "transfer_bytes", "hit_tokens", "queue_at_decision"} <= set(
        tables["requests"].column_names
    )
    assert "decision_wall_s" not in tables["requests"].column_names  # it differs from run to run
    flows = tables["flows"].select(["src", "dst", "bytes", "start_ps", "end_ps", "ideal_fct_ps", "traffic_class"])
    assert flows.to_pylist() == [
        dict(zip(flows.column_names, ("host0", "host1", 10**9, 0, PS_PER_S, 10, "kv"), strict=True)),
        dict(zip(flows.column_names, ("host2", "host0", 500, 5, -1, 20, "background"), strict=True)),
    ]
    links = tables["links"].to_pylist()
    assert [row["link"] for row in links[:2]] == ["host0->tor0", "tor0->host0"]
    assert [row["utilisation"] for row in links[:2]] == [0.5, 0.0]
    assert {row["tier"] for row in links} == {1}


def test_the_same_rows_give_the_same_bytes_and_read_back(tmp_path: Path, three_hosts: Topology) -> None:
    for name in ("a", "b"):
        results.write_parquet(tmp_path / name, [results.record_tables(make_result(), three_hosts)["flows"]])
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert results.read_parquet(tmp_path / "a").equals(results.record_tables(make_result(), three_hosts)["flows"])


def test_cells_are_merged_in_the_order_given(tmp_path: Path, three_hosts: Topology) -> None:
    cells = [tmp_path / "late", tmp_path / "early", tmp_path / "has-none"]
    for cell, scheduler in zip(cells[:2], ("z", "a"), strict=True):
        cell.mkdir()
        table = results.record_tables(make_result(scheduler=scheduler), three_hosts)["requests"]
        results.write_parquet(cell / "requests.parquet", [table])
    results.merge_tables(tmp_path, cells, "requests")
    merged = results.read_parquet(tmp_path / "requests.parquet")
    assert merged["scheduler"].to_pylist() == ["z"] * 3 + ["a"] * 3
    assert merged["id"].to_pylist() == [0, 1, 2, 0, 1, 2]


def test_no_cell_no_table(tmp_path: Path) -> None:
    results.merge_tables(tmp_path, [tmp_path / "nothing"], "flows")
    assert list(tmp_path.iterdir()) == []


def test_an_empty_table_keeps_its_columns(tmp_path: Path, three_hosts: Topology) -> None:
    empty = results.record_tables(make_result(n_requests=0), three_hosts)["requests"]
    results.write_parquet(tmp_path / "t", [empty])
    read = results.read_parquet(tmp_path / "t")
    assert read.num_rows == 0
    assert read.schema.field("seed").type == pa.int64()
    assert read.schema.field("backend").type == pa.string()


def test_every_counter_is_there_also_when_zero() -> None:
    first = results.counters(NetworkTotals(data_packets=2, max_queue_bytes=7))
    assert first["drops"] == 0
    total = results.add_counters([first, results.counters(NetworkTotals(data_packets=3, max_queue_bytes=4))])
    assert (total["data_packets"], total["max_queue_bytes"], total["pfc_pauses"]) == (5, 7, 0)
    assert results.add_counters([]) == dict.fromkeys(results.COUNTERS, 0)


def test_provenance_names_versions_code_and_host() -> None:
    versions = results.versions()
    assert {"project", "git_commit", "ns3", "cppyy", "python", "code_sha256"} <= set(versions)
    assert len(versions["code_sha256"]) == 64
    assert versions["code_sha256"] == results.code_digest()
    host = results.host()
    assert host["cores"] >= 1
    assert host["memory_bytes"] > 0
