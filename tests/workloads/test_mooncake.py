from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.errors import InputError
from harness.interfaces import Workload
from harness.types import Request
from harness.workloads.mooncake import Mooncake

MS = 10**9
TRACES = Path(__file__).resolve().parents[2].parent / "shared" / "traces"


def line(timestamp: Any = 0, input_length: Any = 600, output_length: Any = 5, **changes: Any) -> str:
    row = {"timestamp": timestamp, "input_length": input_length, "output_length": output_length, "hash_ids": [1, 2]}
    return json.dumps({**row, **changes})


def load(tmp_path: Path, lines: list[str], n: int, **changes: Any) -> list[Request]:
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    workload: Workload = Mooncake(**{"path": str(path), "n_requests": n, "block_tokens": 512, **changes})
    return list(workload.requests())


def message(tmp_path: Path, lines: list[str], n: int = 1, **changes: Any) -> str:
    with pytest.raises(InputError) as caught:
        load(tmp_path, lines, n, **changes)
    return str(caught.value).replace(str(tmp_path), "TMP")


def test_requests(tmp_path: Path) -> None:
    requests = load(tmp_path, [line(100), "", line(350, 512, 7, hash_ids=[9])], 2)
    assert requests == [Request(0, 0, 600, 5, (1, 2)), Request(1, 250 * MS, 512, 7, (9,))]


def test_rate_scale_and_offset(tmp_path: Path) -> None:
    requests = load(tmp_path, [line(0), line(100), line(301)], 2, rate_scale=2.0, offset=1)
    assert [r.arrival_ps for r in requests] == [0, 100_500_000_000]


def test_lines_out_of_order_are_sorted_stably(tmp_path: Path) -> None:
    requests = load(tmp_path, [line(5, 601), line(3, 602), line(5, 603), line(3, 604)], 4)
    assert [r.input_tokens for r in requests] == [602, 604, 601, 603]
    assert [r.arrival_ps // MS for r in requests] == [0, 0, 2, 2]
    assert [r.id for r in requests] == [0, 1, 2, 3]


def test_lines_beyond_the_wanted_are_not_read(tmp_path: Path) -> None:
    assert len(load(tmp_path, [line(), "not JSON"], 1)) == 1


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ('{"timestamp" 1}', "not JSON (Expecting ':' delimiter at column 14)"),
        ("[1]", "not a JSON object; allowed: timestamp, input_length, output_length, hash_ids"),
        ('{"timestamp": 1, "hash_ids": []}', "no input_length, output_length; the line has hash_ids, timestamp"),
        (line(timestamp=-1), "timestamp is -1; a time in ms, at least 0"),
        (line(timestamp="now"), "timestamp is 'now'; a time in ms, at least 0"),
        (line(input_length=0), "input_length is 0; a whole number of tokens, at least 1"),
        (line(output_length=1.5), "output_length is 1.5; a whole number of tokens, at least 1"),
        (line(hash_ids=[1, "a"]), "hash_ids is not a list of whole numbers"),
        (line(hash_ids=[1]), "hash_ids has 1 entries; 2 blocks of 512 tokens make up input_length"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, wrong: str, expected: str) -> None:
    assert message(tmp_path, [line(), "", wrong], n=2) == f"TMP/trace.jsonl: line 3: {expected}"


def test_an_empty_trace(tmp_path: Path) -> None:
    assert message(tmp_path, [""]) == "TMP/trace.jsonl: the trace is empty; a request a line expected"


def test_a_trace_that_is_too_short(tmp_path: Path) -> None:
    assert message(tmp_path, [line(), line()], n=2, offset=1) == (
        "TMP/trace.jsonl: 1 requests from 1 on, 2 wanted; lower requests or offset"
    )


def test_a_missing_trace(tmp_path: Path) -> None:
    expected = f"workload.path: {tmp_path}/none.jsonl: No such file or directory"
    with pytest.raises(InputError) as caught:
        Mooncake(path=f"{tmp_path}/none.jsonl", n_requests=1, block_tokens=512).requests()
    assert str(caught.value) == expected


def test_a_binary_file(tmp_path: Path) -> None:
    path = tmp_path / "trace.bin"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match=r"trace.bin: not a text file \(UTF-8\)"):
        Mooncake(path=str(path), n_requests=1, block_tokens=512).requests()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"block_tokens": 256},
            "block_tokens: 256 given; the hashes of a Mooncake trace stand for blocks of 512 tokens",
        ),
        ({"rate_scale": 0.0}, "workload.rate_scale: 0.0 given; a number above 0"),
        ({"offset": -1}, "workload.offset: -1 given; a whole number, at least 0"),
    ],
)
def test_wrong_keys(tmp_path: Path, changes: dict[str, Any], expected: str) -> None:
    assert message(tmp_path, [line()], **changes) == expected


@pytest.mark.parametrize(
    ("name", "n", "mean_input", "longest"),
    [("conversation", 12_031, 12_035, 126_195), ("synthetic", 3_993, 15_325, 191_378)],
)
def test_the_public_traces(name: str, n: int, mean_input: int, longest: int) -> None:
    path = TRACES / f"mooncake_{name}_trace.jsonl"
    if not path.is_file():
        pytest.skip(f"the trace is not at {path}")
    requests = Mooncake(path=str(path), n_requests=n, block_tokens=512).requests()
    inputs = [r.input_tokens for r in requests]
    assert (len(requests), round(sum(inputs) / n), max(inputs)) == (n, mean_input, longest)
