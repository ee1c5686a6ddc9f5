"""Requests from a Mooncake trace."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from harness.errors import InputError
from harness.types import Request

#: Tokens that one entry of `hash_ids` stands for (README of the repository kvcache-ai/Mooncake, FAST'25 release).
TRACE_BLOCK_TOKENS = 512

PS_PER_MS = 10**9


class Mooncake:
    """A Mooncake JSONL trace: a line per request with timestamp [ms], input_length, output_length, hash_ids.

    Reads `n_requests` lines from line `offset` on and no more; blank lines do not count. Arrivals are relative to the
    first of them, and lines out of order are sorted by time, equal times in the order of the file.

    Parameters
    ----------
    path : the file, relative to the working directory.
    rate_scale : times as many requests per second as in the trace.
    offset : requests to skip at the start of the file.
    n_requests, block_tokens : of the run; the trace's blocks have 512 tokens.

    Raises
    ------
    InputError : the file is missing, empty or too short, or a line is wrong (named by its number).
    """

    def __init__(
        self, *, path: str, rate_scale: float = 1.0, offset: int = 0, n_requests: int, block_tokens: int
    ) -> None:
        if not 0 < rate_scale < math.inf:
            raise InputError(f"{rate_scale} given; a number above 0", key="workload.rate_scale")
        if offset < 0:
            raise InputError(f"{offset} given; a whole number, at least 0", key="workload.offset")
        if block_tokens != TRACE_BLOCK_TOKENS:
            raise InputError(
                f"{block_tokens} given; the hashes of a Mooncake trace stand for blocks of {TRACE_BLOCK_TOKENS} tokens",
                key="block_tokens",
            )
        self._path, self._rate_scale, self._offset, self._n_requests = Path(path), rate_scale, offset, n_requests

    def requests(self) -> Sequence[Request]:
        """The requests, by arrival time."""
        try:
            with self._path.open(encoding="utf-8") as file:
                lines = ((number, line) for number, line in enumerate(file, start=1) if line.strip())
                wanted = islice(lines, self._offset, self._offset + self._n_requests)
                rows = [self._parse(number, line) for number, line in wanted]
        except OSError as error:
            raise InputError(f"{self._path}: {error.strerror}", key="workload.path") from error
        except UnicodeDecodeError as error:
            raise InputError("not a text file (UTF-8)", source=str(self._path)) from error
        if len(rows) < self._n_requests:
            if not rows and not self._offset:
                raise InputError("the trace is empty; a request a line expected", source=str(self._path))
            raise InputError(
                f"{len(rows)} requests from {self._offset} on, {self._n_requests} wanted; lower requests or offset",
                source=str(self._path),
            )
        rows.sort(key=lambda row: row[0])
        start_ms = rows[0][0]
        return [
            Request(i, round((ms - start_ms) * PS_PER_MS / self._rate_scale), input_tokens, output_tokens, hashes)
            for i, (ms, input_tokens, output_tokens, hashes) in enumerate(rows)
        ]

    def _parse(self, number: int, line: str) -> tuple[float, int, int, tuple[int, ...]]:
        def wrong(message: str) -> InputError:
            return InputError(message, source=str(self._path), key=f"line {number}")

        try:
            row = json.loads(line.strip())
        except json.JSONDecodeError as error:
            raise wrong(f"not JSON ({error.msg} at column {error.colno})") from error
        if not isinstance(row, dict):
            raise wrong("not a JSON object; allowed: timestamp, input_length, output_length, hash_ids")
        missing = [key for key in ("timestamp", "input_length", "output_length", "hash_ids") if key not in row]
        if missing:
            raise wrong(f"no {', '.join(missing)}; the line has {', '.join(sorted(row)) or 'nothing'}")
        timestamp, hashes = row["timestamp"], row["hash_ids"]
        if isinstance(timestamp, bool) or not isinstance(timestamp, int | float) or not 0 <= timestamp < math.inf:
            raise wrong(f"timestamp is {timestamp!r}; a time in ms, at least 0")
        for key in ("input_length", "output_length"):
            if not _is_integer(row[key]) or row[key] < 1:
                raise wrong(f"{key} is {row[key]!r}; a whole number of tokens, at least 1")
        if not isinstance(hashes, list) or not all(map(_is_integer, hashes)):
            raise wrong("hash_ids is not a list of whole numbers")
        blocks = -(-row["input_length"] // TRACE_BLOCK_TOKENS)
        if len(hashes) != blocks:
            raise wrong(f"hash_ids has {len(hashes)} entries; {blocks} blocks of 512 tokens make up input_length")
        return timestamp, row["input_length"], row["output_length"], tuple(hashes)


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
