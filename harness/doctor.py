"""What this machine lacks for netkv-cosim, and what to install.

Standard library only, so that it runs before anything is installed: ``python3 -m harness.doctor`` says what stands in
the way of an installation and exits with 1, or is silent.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

#: What the ns3 3.44.post0 wheels are built for: cp39 to cp313, manylinux_2_28, x86_64. 3.9 lacks syntax that we use.
PYTHON_FROM, PYTHON_TO = (3, 10), (3, 13)
GLIBC_FROM = (2, 28)
NS3_CORE = "lib64/libns3.44-core.so"

#: Size of a .venv with the dev extra, measured, rounded up [bytes].
VENV_BYTES = 1_500_000_000
#: What one packet-level run of a shipped scenario may take at most [bytes].
RUN_BYTES = 1_000_000_000

_CXX20_PROGRAM = "template <class T> concept Sized = sizeof(T) > 0;\nauto f(Sized auto x) { return x; }\n"
_HEADER_PROGRAM = "#include <new>\n#include <span>\n"


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at: whether it will do, what was found and, where it will not, the remedy."""

    name: str
    ok: bool
    found: str
    remedy: str = ""


def check_machine() -> list[Finding]:
    """Everything that a packet-level run needs, in the order in which to mend it."""
    installed = [check_ns3(), check_cppyy(), check_disk(Path.cwd()), check_memory()]
    return [*check_before_install(), *installed]


def check_before_install() -> list[Finding]:
    """What pip cannot install, and would only miss after minutes of work."""
    return [check_python(), check_platform(), check_venv(), check_compiler(), check_python_headers(), check_headers()]


def describe_missing(findings: list[Finding]) -> str:
    """A line for each finding that is not ok; empty when all are."""
    return "\n".join(f"{f.name}: {f.found}. Remedy: {f.remedy}" for f in findings if not f.ok)


def check_python() -> Finding:
    version = sys.version_info[:2]
    ok = PYTHON_FROM <= version <= PYTHON_TO and sys.implementation.name == "cpython"
    found = f"{platform.python_implementation()} {platform.python_version()} at {sys.executable}"
    remedy = "use CPython 3.10 to 3.13 (make PYTHON=/path/to/python3.12): ns-3 has no wheel for other versions"
    return Finding("Python", ok, found, "" if ok else remedy)


def check_platform() -> Finding:
    libc, libc_version = platform.libc_ver()
    found = f"{platform.system()} on {platform.machine()}, {libc or 'C library unknown'} {libc_version}".rstrip()
    new_enough = libc == "glibc" and tuple(int(part) for part in libc_version.split(".")[:2]) >= GLIBC_FROM
    ok = platform.system() == "Linux" and platform.machine() == "x86_64" and new_enough
    remedy = (
        "use Linux on x86_64 with glibc 2.28 or newer, in a container if need be: ns-3 has no wheel for anything else"
    )
    return Finding("Platform", ok, found, "" if ok else remedy)


def check_venv() -> Finding:
    """Debian ships venv without ensurepip unless python3-venv is installed."""
    missing = [name for name in ("venv", "ensurepip") if importlib.util.find_spec(name) is None]
    found = f"module {missing[0]} is missing" if missing else "module venv is there"
    return Finding("venv module", not missing, found, _apt(f"python{_python_version()}-venv") if missing else "")


def check_compiler() -> Finding:
    compiler = shutil.which("g++")
    if compiler is None:
        return Finding("C++ compiler", False, "no g++ on PATH", _apt("g++"))
    error = _compile(compiler, _CXX20_PROGRAM)
    if error:
        return Finding(
            "C++ compiler", False, f"{compiler} does not compile C++20: {error}", _apt("g++") + ", version 10 or newer"
        )
    return Finding("C++ compiler", True, f"{compiler} {_run([compiler, '-dumpfullversion'])[1]}")


def check_headers() -> Finding:
    """Whether cppyy may be imported: without libstdc++'s headers it takes the interpreter down with it."""
    compiler = shutil.which("g++")
    if compiler is None:
        return Finding("C++ headers", False, "not looked at, as there is no g++", _apt("g++"))
    error = _compile(compiler, _HEADER_PROGRAM)
    if error:
        major = _run([compiler, "-dumpversion"])[1].split(".")[0]
        return Finding(
            "C++ headers", False, f"libstdc++'s headers do not compile: {error}", _apt(f"libstdc++-{major}-dev")
        )
    return Finding("C++ headers", True, "libstdc++'s headers compile")


def check_python_headers() -> Finding:
    header = Path(sysconfig.get_path("include")) / "Python.h"
    ok = header.is_file()
    return Finding(
        "Python headers",
        ok,
        f"{header}{'' if ok else ' is missing'}",
        "" if ok else _apt(f"python{_python_version()}-dev"),
    )


def check_ns3() -> Finding:
    """The wheel's core library is loaded in a process of its own."""
    spec = importlib.util.find_spec("ns3")
    roots = list(spec.submodule_search_locations or ()) if spec else []
    if not roots:
        return Finding("ns-3", False, f"the ns3 wheel is not installed for {sys.executable}", "make venv")
    library = Path(roots[0]) / NS3_CORE
    version = importlib.metadata.version("ns3")
    if not library.is_file():
        return Finding("ns-3", False, f"ns3 {version} without {library}", "make clean venv")
    status, output = _run([sys.executable, "-c", "import ctypes, sys; ctypes.CDLL(sys.argv[1])", str(library)])
    if status:
        return Finding("ns-3", False, f"ns3 {version} does not load: {_last_line(output)}", "make clean venv")
    return Finding("ns-3", True, f"ns3 {version} at {roots[0]}")


def check_cppyy() -> Finding:
    """cppyy is imported in a process of its own, which its crash would end."""
    if importlib.util.find_spec("cppyy") is None:
        return Finding("cppyy", False, f"not installed for {sys.executable}", "make venv")
    version = importlib.metadata.version("cppyy")
    program = "import cppyy; cppyy.cppdef('int doctor() { return 7; }'); raise SystemExit(cppyy.gbl.doctor() != 7)"
    status, output = _run([sys.executable, "-c", program])
    if status:
        return Finding(
            "cppyy",
            False,
            f"cppyy {version} fails (status {status}): {_last_line(output)}",
            "mend the C++ headers, then make clean venv",
        )
    return Finding("cppyy", True, f"cppyy {version} compiles and calls C++")


def check_disk(directory: Path) -> Finding:
    free = shutil.disk_usage(directory).free
    ok = free >= VENV_BYTES
    return Finding(
        "Disk space",
        ok,
        f"{free / 1e9:.1f} GB free at {directory}",
        "" if ok else f"make {VENV_BYTES / 1e9:.1f} GB free",
    )


def check_memory() -> Finding:
    """Physical memory; a container's own limit is not seen."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    ok = total >= 2 * RUN_BYTES
    return Finding("Memory", ok, f"{total / 1e9:.1f} GB", "" if ok else "run with --jobs 1: a run takes up to 1 GB")


def _python_version() -> str:
    return f"{sys.version_info[0]}.{sys.version_info[1]}"


def _apt(packages: str) -> str:
    return f"sudo apt install {packages} (Debian, Ubuntu; elsewhere the package of that name)"


def _compile(compiler: str, program: str) -> str:
    """The compiler's first complaint about a program, or an empty text."""
    status, output = _run([compiler, "-std=c++20", "-fsyntax-only", "-x", "c++", "-"], program)
    if status == 0:
        return ""
    return next((line for line in output.splitlines() if "error" in line), output.strip() or f"status {status}")


def _run(command: list[str], text: str = "") -> tuple[int, str]:
    """Exit status and whole output; 127 for a program that cannot be started, 124 for one that hangs."""
    try:
        done = subprocess.run(
            command, input=text, capture_output=True, text=True, timeout=120, env={**os.environ, "LC_ALL": "C"}
        )
    except OSError as error:
        return 127, str(error)
    except subprocess.TimeoutExpired:
        return 124, f"no answer within 120 s from {command[0]}"
    return done.returncode, (done.stdout + done.stderr).strip()


def _last_line(output: str) -> str:
    return output.splitlines()[-1] if output else "no message"


if __name__ == "__main__":
    missing_text = describe_missing(check_before_install())
    if missing_text:
        sys.exit(f"netkv-cosim cannot be installed here.\n{missing_text}")
