"""Loads ns-3 and the packet model: checks the machine, compiles the C++ once, and hands out its namespace.

The library is cached by a hash of its sources, the ns3 wheel, the compiler and its flags, so that a process with a warm
cache starts in well under a second.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from harness.doctor import check_headers, describe_missing
from harness.errors import InputError

MODEL_DIR = Path(__file__).parent / "model"

#: Translation units of the model, compiled as one so that the per-packet path inlines across them.
SOURCES = (
    "wheel-simulator-impl",
    "constant-rate",
    "dcqcn",
    "swift",
    "flowlet",
    "spray",
    "data-plane",
    "port-trace",
    "router",
    "roce-channel",
    "packet-capture",
    "stock-packet",
    "roce-net-device",
    "fabric",
)

#: No -march=native and no contraction of floating point: a result must not depend on the machine.
FLAGS = (
    "-std=c++20",
    "-O3",
    "-DNDEBUG",
    "-fPIC",
    "-shared",
    "-ffp-contract=off",
    "-fno-semantic-interposition",
    "-fno-plt",
    "-Wl,-Bsymbolic",
)

NS3_MODULES = ("core", "network")

STOCK_DIR = Path(__file__).parent / "stock"
STOCK_MODULES = ("core", "network", "internet", "traffic-control")

BASELINE_DIR = Path(__file__).parent / "baseline"
BASELINE_MODULES = ("core", "network", "internet", "point-to-point", "applications")


def ns3_root() -> Path:
    """Directory of the ns3 wheel, which holds include/ and lib64/."""
    spec = importlib.util.find_spec("ns3")
    if spec is None or not spec.submodule_search_locations:
        raise InputError(
            "the package ns3 is not installed; `make venv` installs it, `netkv-cosim doctor` tells what else is missing"
        )
    return Path(next(iter(spec.submodule_search_locations)))


def cache_dir() -> Path:
    """Where compiled models are kept: $XDG_CACHE_HOME/netkv-cosim, or ~/.cache/netkv-cosim."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "netkv-cosim"


def compiler() -> str:
    """The C++ compiler: $CXX, or g++."""
    name = os.environ.get("CXX", "g++")
    path = shutil.which(name)
    if path is None:
        raise InputError(f"no C++ compiler: {name} is not on PATH; install it (Debian, Ubuntu: apt install g++)")
    return path


def build(headers: Sequence[Path] = ()) -> Path:
    """Path of the compiled model with the plug-in `headers` in it, compiled now if it is not cached.

    Raises
    ------
    InputError : no compiler, or it rejects a plug-in header (its messages are in the error).
    """
    for header in headers:
        if not header.is_file():
            raise InputError(f"no such file: {header}", key="network.cc.header")
    includes = [MODEL_DIR, *(h.resolve().parent for h in headers)]
    unit = [f"{name}.cc" for name in SOURCES] + [h.name for h in headers]
    try:
        return _compile("kvnet", unit, [*MODEL_DIR.iterdir(), *headers], includes, NS3_MODULES)
    except _CompilerError as error:
        what = ", ".join(map(str, headers)) or "the packet model"
        message = "\n  ".join([f"the C++ compiler rejects {what}:", *error.lines])
        raise InputError(message, key="network.cc.header" if headers else "") from error


def build_stock() -> Path:
    """Path of the part that needs ns-3's internet stack, compiled now if it is not cached; other runs do without it."""
    sources = [*STOCK_DIR.iterdir(), MODEL_DIR / "fabric-types.h"]
    return _compile("stocktraffic", ["stock-traffic.cc"], sources, [STOCK_DIR, MODEL_DIR], STOCK_MODULES)


@lru_cache(maxsize=1)
def load_stock() -> Any:
    """The C++ namespace `kvnet` with StockTraffic in it; `load` comes first."""
    return _load(build_stock(), STOCK_DIR, "stock-traffic.h")


def load_baseline() -> Any:
    """The C++ namespace `kvnet` with RunStock in it: stock ns-3 devices, stack and applications, for comparison."""
    library = _compile("stock", ["stock.cc"], list(BASELINE_DIR.iterdir()), [BASELINE_DIR], BASELINE_MODULES)
    return _load(library, BASELINE_DIR, "stock.h")


class _CompilerError(Exception):
    def __init__(self, stderr: str) -> None:
        lines = stderr.splitlines()
        self.lines = [line for line in lines if "error:" in line][:8] or lines[-8:]


def _compile(
    name: str, unit: Sequence[str], sources: Sequence[Path], includes: Sequence[Path], modules: Sequence[str]
) -> Path:
    """Compile a translation unit that includes the files `unit`; cached by the hash of all that it depends on."""
    cxx = compiler()
    target = cache_dir() / _key(sources, cxx) / f"lib{name}.so"
    if target.exists():
        return target
    missing = describe_missing([check_headers()])
    if missing:
        raise InputError(missing)
    target.parent.mkdir(parents=True, exist_ok=True)
    root = ns3_root()
    with tempfile.TemporaryDirectory(dir=target.parent) as tmp:
        source, library = Path(tmp) / "unit.cc", Path(tmp) / target.name
        source.write_text("".join(f'#include "{file}"\n' for file in unit))
        command = [cxx, *FLAGS, *(f"-I{path}" for path in (*includes, root / "include"))]
        command += [str(source), "-o", str(library), f"-L{root / 'lib64'}", f"-Wl,-rpath,{root / 'lib64'}"]
        command += [f"-lns3.44-{module}" for module in modules]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise _CompilerError(done.stderr)
        library.replace(target)
    return target


def _key(sources: Sequence[Path], cxx: str) -> str:
    digest = hashlib.sha256()
    version = subprocess.run([cxx, "--version"], capture_output=True, text=True, check=True).stdout.splitlines()[0]
    for text in (version, importlib.metadata.version("ns3"), str(ns3_root()), *FLAGS):
        digest.update(text.encode() + b"\0")
    for path in sorted(sources):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:24]


@lru_cache(maxsize=1)
def load(headers: tuple[Path, ...] = ()) -> Any:
    """The C++ namespace `kvnet`. One set of plug-in headers a process: the library cannot be loaded twice."""
    return _load(build(headers), MODEL_DIR, "fabric.h")


def _load(library: Path, include: Path, header: str) -> Any:
    with _quiet_header_rebuild():
        import cppyy  # slow to import, and it crashes where the C++ headers are missing: only once _compile has passed
    cppyy.add_include_path(str(include))
    cppyy.load_library(str(library))
    cppyy.include(header)
    return cppyy.gbl.kvnet


@contextlib.contextmanager
def _quiet_header_rebuild() -> Any:
    """cppyy announces on stdout, once after installation, that it compiles its headers: keep stdout for results."""
    saved = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(saved, 1)
        os.close(saved)
