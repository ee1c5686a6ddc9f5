"""Compiling and caching the model."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.errors import InputError
from harness.packet import runtime


def test_a_cached_model_is_not_compiled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    path = runtime.build()

    def fail(*_: object) -> None:
        raise AssertionError("compiled again")

    monkeypatch.setattr(runtime, "check_headers", fail)
    assert runtime.build() == path


def test_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(InputError, match=r"no C\+\+ compiler: g\+\+ is not on PATH; install it"):
        runtime.build()


def test_a_header_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"network.cc.header: no such file: .*mine\.h"):
        runtime.build([tmp_path / "mine.h"])


def test_a_header_that_does_not_compile(tmp_path: Path) -> None:
    header = tmp_path / "broken.h"
    header.write_text("int f() { return undeclared; }\n")
    with pytest.raises(InputError, match=r"(?s)the C\+\+ compiler rejects .*broken\.h:\n.*'?undeclared"):
        runtime.build([header])
