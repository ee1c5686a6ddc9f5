"""The doctor on machines that lack something, made by a PATH of our own and a compiler that hides its headers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness import doctor
from harness.doctor import Finding

PROJECT = Path(__file__).resolve().parent.parent

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++ to hide or to wrap")


def findings_with_path(path: Path, check: str = "check_before_install") -> dict[str, Finding]:
    """What a new interpreter finds with `path` as its whole PATH."""
    program = (
        "import dataclasses, json; from harness import doctor; found = doctor." + check + "();"
        "print(json.dumps([dataclasses.asdict(f) for f in (found if isinstance(found, list) else [found])]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PATH": str(path)},
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=True,
    )
    return {finding["name"]: Finding(**finding) for finding in json.loads(done.stdout)}


def wrap_compiler(directory: Path, arguments: str) -> None:
    compiler = directory / "g++"
    compiler.write_text(f'#!/bin/sh\nexec {shutil.which("g++")} {arguments} "$@"\n')
    compiler.chmod(0o755)


def test_no_compiler(tmp_path: Path) -> None:
    found = findings_with_path(tmp_path)
    assert found["C++ compiler"] == Finding(
        "C++ compiler",
        False,
        "no g++ on PATH",
        "sudo apt install g++ (Debian, Ubuntu; elsewhere the package of that name)",
    )
    assert not found["C++ headers"].ok
    assert found["Python"].ok


@needs_compiler
def test_no_libstdcxx_headers(tmp_path: Path) -> None:
    wrap_compiler(tmp_path, "-nostdinc++ -B/usr/bin")
    found = findings_with_path(tmp_path)
    assert found["C++ compiler"].ok
    headers = found["C++ headers"]
    assert not headers.ok
    assert headers.found.startswith("libstdc++'s headers do not compile: ")
    assert "new: No such file or directory" in headers.found
    assert headers.remedy.startswith("sudo apt install libstdc++-")


@needs_compiler
def test_old_compiler(tmp_path: Path) -> None:
    old = tmp_path / "g++"
    old.write_text("#!/bin/sh\necho \"g++: error: unrecognized command line option '-std=c++20'\" >&2\nexit 1\n")
    old.chmod(0o755)
    compiler = findings_with_path(tmp_path)["C++ compiler"]
    assert not compiler.ok
    assert compiler.found == (
        f"{old} does not compile C++20: g++: error: unrecognized command line option '-std=c++20'"
    )
    assert compiler.remedy.endswith("version 10 or newer")


@needs_compiler
def test_a_sound_compiler(tmp_path: Path) -> None:
    wrap_compiler(tmp_path, "-B/usr/bin")
    found = findings_with_path(tmp_path)
    assert found["C++ compiler"].ok
    assert found["C++ headers"] == Finding("C++ headers", True, "libstdc++'s headers compile")


@pytest.mark.parametrize(("version", "ok"), [((3, 9), False), ((3, 10), True), ((3, 13), True), ((3, 14), False)])
def test_python_version(monkeypatch: pytest.MonkeyPatch, version: tuple[int, int], ok: bool) -> None:
    monkeypatch.setattr(sys, "version_info", (*version, 0, "final", 0))
    found = doctor.check_python()
    assert found.ok is ok
    assert found.remedy == (
        "" if ok else "use CPython 3.10 to 3.13 (make PYTHON=/path/to/python3.12): ns-3 has no wheel for other versions"
    )


@pytest.mark.parametrize(
    ("machine", "libc", "ok"),
    [
        ("x86_64", ("glibc", "2.36"), True),
        ("aarch64", ("glibc", "2.36"), False),
        ("x86_64", ("glibc", "2.27"), False),
        ("x86_64", ("", ""), False),
    ],
)
def test_platform(monkeypatch: pytest.MonkeyPatch, machine: str, libc: tuple[str, str], ok: bool) -> None:
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr("platform.libc_ver", lambda: libc)
    monkeypatch.setattr("platform.system", lambda: "Linux")
    assert doctor.check_platform().ok is ok


def test_no_python_headers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    found = doctor.check_python_headers()
    assert (found.ok, found.found) == (False, f"{tmp_path / 'Python.h'} is missing")
    assert found.remedy.startswith(f"sudo apt install python3.{sys.version_info[1]}-dev")


def test_no_ensurepip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ensurepip", None)
    found = doctor.check_venv()
    assert (found.ok, found.found) == (False, "module ensurepip is missing")
    assert found.remedy.startswith(f"sudo apt install python3.{sys.version_info[1]}-venv")


def test_a_library_that_does_not_load(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    library = tmp_path / "ns3" / doctor.NS3_CORE
    library.parent.mkdir(parents=True)
    (tmp_path / "ns3" / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("importlib.metadata.version", lambda name: "3.44.post0")
    found = doctor.check_ns3()
    assert (found.ok, found.found) == (False, f"ns3 3.44.post0 without {library}")
    library.write_text("no library")
    found = doctor.check_ns3()
    assert not found.ok
    assert "does not load" in found.found
    assert "invalid ELF header" in found.found or "file too short" in found.found


def test_what_is_installed() -> None:
    assert doctor.check_ns3().ok
    assert doctor.check_cppyy().ok


def test_disk_and_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert doctor.check_memory().found.endswith(" GB")
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=10**9))
    assert doctor.check_disk(tmp_path) == Finding("Disk space", False, f"1.0 GB free at {tmp_path}", "make 1.5 GB free")


def test_missing_things_are_described_with_their_remedies() -> None:
    findings = [Finding("A", True, "fine"), Finding("B", False, "gone", "get b"), Finding("C", False, "old", "get c")]
    assert doctor.describe_missing(findings) == "B: gone. Remedy: get b\nC: old. Remedy: get c"
    assert doctor.describe_missing(findings[:1]) == ""


def test_before_the_installation_it_says_what_stands_in_the_way(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "harness.doctor"],
        env={**os.environ, "PATH": str(tmp_path)},
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("netkv-cosim cannot be installed here.\nC++ compiler: no g++ on PATH. Remedy: ")
