"""Loads ns-3 and the packet model: checks the machine, compiles the C++ once, and hands out its namespace.

The library is cached by a hash of its sources, the ns3 wheel, the compiler and its flags, so that a process with a warm cache
starts in well under a second.
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

from harness.errors import InputError

MODEL_DIR = Path(__file__).parent / "model"

#: Translation units of the model, compiled as one so that the per-packet path inlines across them.
SOURCES = (
    "wheel-simulator-impl",
    "constant-rate",
    "dcqcn",
    "swift",
    "data-plane",
    "router",
    "roce-channel",
    "roce-net-device",
    "fabric",
)

#: No -march=native and no contraction of floating point: a result must not depend on the machine.
FLAGS = ("-std=c++20", "-O3", "-DNDEBUG", "-fPIC", "-shared", "-ffp-contract=off", "-fno-semantic-interposition", "-fno-plt", "-Wl,-Bsymbolic")

NS3_MODULES = ("core", "network")


def ns3_root() -> Path:
    """Directory of the ns3 wheel, which holds include/ and lib64/."""
    spec = importlib.util.find_spec("ns3")
    if spec is None or not spec.submodule_search_locations:
        raise InputError("the package ns3 is not installed; `make venv` installs it, `netkv-cosim doctor` tells what else is missing")
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


def _unit(headers: Sequence[Path]) -> str:
    includes = [f'#include "{name}.cc"' for name in SOURCES] + [f'#include "{h.name}"' for h in headers]
    return "\n".join(includes) + "\n"


def _key(headers: Sequence[Path], cxx: str) -> str:
    digest = hashlib.sha256()
    version = subprocess.run([cxx, "--version"], capture_output=True, text=True, check=True).stdout.splitlines()[0]
    for text in (version, importlib.metadata.version("ns3"), str(ns3_root()), *FLAGS):
        digest.update(text.encode() + b"\0")
    for path in [*sorted(MODEL_DIR.iterdir()), *headers]:
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:24]


def build(headers: Sequence[Path] = ()) -> Path:
    """Path of the compiled model with the plug-in `headers` in it, compiled now if it is not cached.

    Raises
    ------
    InputError : no compiler, or it rejects a plug-in header (its messages are in the error).
    """
    for header in headers:
        if not header.is_file():
            raise InputError(f"no such file: {header}", key="network.cc.header")
    cxx = compiler()
    target = cache_dir() / _key(headers, cxx) / "libkvnet.so"
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    root = ns3_root()
    with tempfile.TemporaryDirectory(dir=target.parent) as tmp:
        unit, library = Path(tmp) / "kvnet.cc", Path(tmp) / target.name
        unit.write_text(_unit(headers))
        command = [cxx, *FLAGS, f"-I{MODEL_DIR}", f"-I{root / 'include'}"]
        command += [f"-I{h.resolve().parent}" for h in headers]
        command += [str(unit), "-o", str(library), f"-L{root / 'lib64'}", f"-Wl,-rpath,{root / 'lib64'}"]
        command += [f"-lns3.44-{module}" for module in NS3_MODULES]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            errors = [line for line in done.stderr.splitlines() if "error" in line][:8] or done.stderr.splitlines()[-8:]
            what = "the C++ compiler rejects " + (", ".join(map(str, headers)) if headers else "the packet model")
            raise InputError("\n  ".join([f"{what}:", *errors]), key="network.cc.header" if headers else "")
        os.replace(library, target)
    return target


@lru_cache(maxsize=1)
def load(headers: tuple[Path, ...] = ()) -> Any:
    """The C++ namespace `kvnet`. One set of plug-in headers a process: the library cannot be loaded twice."""
    library = build(headers)
    with _quiet_header_rebuild():
        import cppyy  # noqa: PLC0415  (slow to import, and crashes where C++ headers are missing: only once build() has passed)
    cppyy.add_include_path(str(MODEL_DIR))
    cppyy.load_library(str(library))
    cppyy.include("fabric.h")
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
