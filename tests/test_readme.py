"""The README's examples, as they stand there."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import PROJECT

TEXT = (PROJECT / "README.md").read_text()
FILES = dict(re.findall(r"In `([\w.]+)`:\n\n```\w+\n(.*?)```", TEXT, re.DOTALL))
COMMANDS = {
    name: line.strip()
    for name in FILES
    for line in TEXT.splitlines()
    if name in line and line.startswith("    netkv-cosim")
}


def test_every_example_has_a_command() -> None:
    assert sorted(FILES) == sorted(COMMANDS) == ["gentle.h", "nearest.py", "wide.yaml"]


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(FILES))
def test_example_runs(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(FILES[name])
    words = shlex.split(COMMANDS[name])[1:]
    words[words.index("scenarios/rag.yaml")] = str(PROJECT / "scenarios" / "rag.yaml")
    small = ["--requests", "4", "--out", str(tmp_path / "out"), "--set", "background=none"]
    if "--schedulers" not in words:
        small += ["--schedulers", "rr"]
    done = subprocess.run(
        [sys.executable, "-m", "harness", *words, *small], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "4/4" in done.stdout
