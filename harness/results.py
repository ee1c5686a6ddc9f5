"""The only writer: tables, JSON and provenance, each file written whole or not at all.

A table is a pure function of what was simulated, so the same input gives the same bytes, whatever the number of
processes; wall times and machine facts stand in run.json only.
"""

from __future__ import annotations

import errno
import hashlib
import importlib.metadata
import json
import math
import os
import platform
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from harness.errors import InputError, RunFailure
from harness.types import LINK_COLUMNS, TRAFFIC_CLASSES, NetworkTotals, RequestRecord, RunResult, Topology

#: Columns of summary.csv that other programs rely on; more may follow them.
SUMMARY_COLUMNS = (
    "backend",
    "scheduler",
    "seed",
    "requests",
    "completed",
    "ttft_mean_ms",
    "ttft_p50_ms",
    "ttft_p95_ms",
    "ttft_p99_ms",
    "tbt_mean_ms",
    "slo_attainment",
    "transfer_mean_ms",
    "transfer_p99_ms",
    "tier0_share",
    "tier1_share",
    "tier2_share",
    "tier3_share",
    "prefix_hit_share",
    "goodput_gbps",
    "status",
)

#: Columns of comparison.csv: how much less (negative) or more `scheduler`'s mean TTFT is than `baseline`'s.
COMPARISON_COLUMNS = (
    "backend",
    "scheduler",
    "baseline",
    "ttft_change_pct",
    "ci_low_pct",
    "ci_high_pct",
    "seeds",
    "interval",
)

#: The tables of a run that hold a row per request, flow, link and interval, and (if there are any) traced port and
#: interval.
RECORD_TABLES = ("requests", "flows", "links", "traces")

COUNTERS = tuple(f.name for f in fields(NetworkTotals))

#: Errors of the medium rather than of the path: what was written before is safe, and the run cannot go on.
_DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG}
_PATH_ERRORS = {
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.EEXIST,
    errno.ENAMETOOLONG,
}


class DiskFailure(RunFailure):
    """A file could not be written because the disk is full or broken."""


# --- Files ------------------------------------------------------------------------------------------------------------


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn an `OSError` raised inside into what the user can do about it.

    Raises
    ------
    InputError : the path may not be written.
    DiskFailure : the disk is full or broken.
    """
    try:
        yield
    except OSError as error:
        if error.errno in _DISK_ERRORS:
            raise DiskFailure(
                f"cannot write {path}: {error.strerror}; everything written before is kept, --resume goes on from there"
            ) from error
        if error.errno in _PATH_ERRORS:
            raise InputError(f"cannot write here: {error.strerror}", source=str(path)) from error
        raise


def make_directory(path: Path) -> None:
    """Create a directory and its parents.

    Raises
    ------
    InputError : the path cannot be a directory, or may not be written.
    DiskFailure : the disk is full or broken.
    """
    with disk_errors(path):
        path.mkdir(parents=True, exist_ok=True)


@contextmanager
def _replacing(path: Path, sync: bool) -> Iterator[IO[bytes]]:
    """A file that takes the place of `path` once it is whole; if that fails, nothing is left of it."""
    with disk_errors(path):
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        temporary = Path(name)
        try:
            with os.fdopen(handle, "wb") as file:
                yield file
                file.flush()
                os.fchmod(handle, 0o644)
                if sync:
                    os.fsync(handle)
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def write_bytes(path: Path, data: bytes, *, sync: bool = True) -> None:
    """Write `data` to `path` atomically: at any moment the file is the old one or the new one, whole.

    Parameters
    ----------
    sync : wait until the disk has it, which only a crash of the machine makes a difference to.

    Raises
    ------
    InputError : the path may not be written.
    DiskFailure : the disk is full or broken; no partial file is left.
    """
    with _replacing(path, sync) as file:
        file.write(data)


def write_text(path: Path, text: str, *, sync: bool = True) -> None:
    """Write text as UTF-8, atomically; otherwise as `write_bytes`."""
    write_bytes(path, text.encode(), sync=sync)


def write_json(path: Path, value: Any, *, sync: bool = True) -> None:
    """Write indented JSON atomically; a float that is not a number becomes null. Otherwise as `write_bytes`."""
    write_text(path, json.dumps(_plain(value), indent=2, allow_nan=False) + "\n", sync=sync)


def read_json(path: Path) -> Any:
    """What `write_json` wrote, or None if there is no such file."""
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return None


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value


def write_csv(path: Path, columns: Sequence[str], rows: Iterable[Mapping[str, Any]], *, sync: bool = True) -> None:
    """Write CSV, see `csv_text`; otherwise as `write_bytes`."""
    write_text(path, csv_text(columns, rows), sync=sync)


def csv_text(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """CSV: floats with six decimals, nothing for what is missing or no number."""
    lines = [",".join(_csv_cell(column) for column in columns)]
    lines += [",".join(_csv_cell(row.get(column)) for column in columns) for row in rows]
    return "\n".join(lines) + "\n"


def _csv_cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float | np.floating):
        return f"{float(value):.6f}" if math.isfinite(value) else ""
    text = str(value)
    return '"' + text.replace('"', '""') + '"' if any(c in text for c in ',"\n\r') else text


def write_parquet(path: Path, tables: Iterable[pa.Table], *, sync: bool = True) -> None:
    """Write tables of one schema one after the other as Parquet, holding one at a time in memory.

    The bytes depend on the rows, their division into tables and the library's version only. Otherwise as `write_bytes`.
    """
    with _replacing(path, sync) as file:
        writer = None
        for table in tables:
            if writer is None:
                schema = table.schema.remove_metadata()
                writer = pq.ParquetWriter(
                    file,
                    schema,
                    version="2.6",
                    compression="zstd",
                    compression_level=3,
                    use_dictionary=[f.name for f in schema if f.type == pa.string()],
                )
            writer.write_table(table.cast(schema), row_group_size=1 << 20)
        assert writer is not None, "a Parquet file needs at least one table, if only for its columns"
        writer.close()


def read_parquet(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """A table that `write_parquet` wrote, or some of its columns."""
    return pq.ParquetFile(path).read(columns=columns, use_threads=False)


# --- Tables of one run ------------------------------------------------------------------------------------------------


def record_tables(result: RunResult, topology: Topology, names: Sequence[str] = RECORD_TABLES) -> dict[str, pa.Table]:
    """Those of `names` that one run has, each row led by backend, scheduler and seed; traces are of traced ports."""
    makers: dict[str, Callable[[], pa.Table]] = {
        "requests": lambda: requests_table(result.requests),
        "flows": lambda: flows_table(result, topology),
        "links": lambda: links_table(result, topology),
    }
    if result.traces:
        makers["traces"] = lambda: traces_table(result.traces, topology)
    return {name: _keyed(result, make()) for name, make in makers.items() if name in names}


def requests_table(requests: Sequence[RequestRecord]) -> pa.Table:
    """A row per request as recorded, but for the wall time of its decision, which differs from run to run."""
    names = [f.name for f in fields(RequestRecord) if f.name != "decision_wall_s"]
    columns = {name: np.array([getattr(r, name) for r in requests], dtype=np.int64) for name in names}
    return _table({n: _flags(v) if n == "warmup" else _numbers(v) for n, v in columns.items()})


def flows_table(result: RunResult, topology: Topology) -> pa.Table:
    """A row per queue-pair flow in order of start; `src` and `dst` are the names of its ends' hosts."""
    flows = result.network.flows
    host_of_port = [topology.nodes[topology.port_node(p)].name for p in range(topology.n_ports)]
    return _table(
        {
            "transfer_id": _numbers(flows.transfer_id),
            "traffic_class": _strings(TRAFFIC_CLASSES, flows.traffic_class),
            "src": _strings(host_of_port, flows.src_port),
            "dst": _strings(host_of_port, flows.dst_port),
            "src_port": _numbers(flows.src_port),
            "dst_port": _numbers(flows.dst_port),
            "bytes": _numbers(flows.size_bytes),
            "acked_bytes": _numbers(flows.acked_bytes),
            "start_ps": _numbers(flows.start_ps),
            "end_ps": _numbers(flows.end_ps),
            "ideal_fct_ps": _numbers(flows.ideal_fct_ps),
            "ecn_marks": _numbers(flows.ecn_marks),
            "cnps": _numbers(flows.cnps),
            "retransmitted_bytes": _numbers(flows.retransmitted_bytes),
        }
    )


def links_table(result: RunResult, topology: Topology) -> pa.Table:
    """A row per direction of a link and interval; `utilisation` is the share of the interval that wire bytes fill."""
    raw = {name: np.asarray(result.links[name], dtype=np.int64) for name in LINK_COLUMNS}
    port = raw["port"]
    tier = np.array([link.tier for link in topology.links], dtype=np.int64)
    rate_bps = np.array([link.rate_bps for link in topology.links], dtype=np.float64)
    wire_bytes = raw["control_bytes"] + raw["kv_bytes"] + raw["background_bytes"]
    span_s = (raw["end_ps"] - raw["start_ps"]) / 1e12
    return _table(
        {
            "link": _strings(topology.port_names, port),
            "tier": _numbers(tier[port >> 1]),
            **{name: _numbers(raw[name]) for name in LINK_COLUMNS[:6]},
            "utilisation": _numbers(8.0 * wire_bytes / (rate_bps[port >> 1] * span_s)),
            **{name: _numbers(raw[name]) for name in LINK_COLUMNS[6:]},
        }
    )


def traces_table(traces: Mapping[str, npt.NDArray[np.int64]], topology: Topology) -> pa.Table:
    """A row per traced port and interval, by port as it was given, then time; `port` is the name of the direction."""
    return _table(
        {
            "port": _strings(topology.port_names, traces["port"]),
            **{name: _numbers(values) for name, values in traces.items() if name != "port"},
        }
    )


# pa.table() and pa.array() import pandas to see whether they were given something of it. A cell needs none, and when
# Ctrl-C stops it there is no time to load it: so columns are built from their buffers.


def _table(columns: Mapping[str, pa.Array]) -> pa.Table:
    return pa.Table.from_arrays(list(columns.values()), names=list(columns))


def _numbers(values: npt.NDArray[Any]) -> pa.Array:
    kind, dtype = (pa.float64(), np.float64) if values.dtype.kind == "f" else (pa.int64(), np.int64)
    data = np.ascontiguousarray(values, dtype=dtype)
    return pa.Array.from_buffers(kind, len(data), [None, pa.py_buffer(data)])


def _flags(values: npt.NDArray[Any]) -> pa.Array:
    bits = np.packbits(values.astype(np.bool_), bitorder="little")
    return pa.Array.from_buffers(pa.bool_(), len(values), [None, pa.py_buffer(bits)])


def _strings(names: Sequence[str], index: npt.NDArray[np.integer[Any]]) -> pa.Array:
    """`names[i]` for every i of `index`."""
    encoded = [name.encode() for name in names]
    offsets = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(encoded))]
    return pc.take(pa.Array.from_buffers(pa.string(), len(encoded), buffers), _numbers(index))


def _keyed(result: RunResult, table: pa.Table) -> pa.Table:
    n = table.num_rows
    keys = {
        "backend": _strings([result.backend], np.zeros(n, dtype=np.int64)),
        "scheduler": _strings([result.scheduler], np.zeros(n, dtype=np.int64)),
        "seed": _numbers(np.full(n, result.seed)),
    }
    return _table(keys | dict(zip(table.column_names, table.columns, strict=True)))


def merge_tables(out: Path, cells: Sequence[Path], name: str) -> None:
    """Write the table `name` of several cells, one after the other in the order given; no file if no cell has one."""
    paths = [path for cell in cells if (path := cell / f"{name}.parquet").is_file()]
    if paths:
        write_parquet(out / f"{name}.parquet", map(read_parquet, paths))


# --- Provenance -------------------------------------------------------------------------------------------------------


def code_digest() -> str:
    """SHA-256 over the sources that a result depends on: code, presets and profiles, and the pinned ns-3 and numpy."""
    root = Path(__file__).resolve().parent.parent
    sha = hashlib.sha256()
    for package in ("harness", "topologies"):
        for path in sorted((root / package).rglob("*")):
            if path.suffix in (".py", ".h", ".cc", ".yaml") and path.is_file():
                sha.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    for distribution in ("ns3", "cppyy", "numpy"):
        sha.update(f"{distribution}={_version(distribution)}\0".encode())
    return sha.hexdigest()


def versions() -> dict[str, Any]:
    """Versions of everything that a result may depend on; the commit is None where the sources are not a checkout."""
    root = Path(__file__).resolve().parent.parent
    commit = _git(root, "rev-parse", "HEAD") if (root / ".git").exists() else None
    return {
        "project": _version("netkv-cosim"),
        "git_commit": commit,
        "git_dirty": bool(_git(root, "status", "--porcelain")) if commit else None,
        "code_sha256": code_digest(),
        "ns3": _version("ns3"),
        "cppyy": _version("cppyy"),
        "python": platform.python_version(),
        **{name: _version(name) for name in ("numpy", "pyarrow", "joblib")},
    }


def host() -> dict[str, Any]:
    """The machine that a result was made on."""
    return {
        "name": platform.node(),
        "system": platform.platform(),
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    }


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _git(root: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=10)
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())


def counters(totals: NetworkTotals) -> dict[str, int]:
    """Every network counter by name, also those that are zero."""
    return {name: cast(int, getattr(totals, name)) for name in COUNTERS}


def add_counters(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Counters of several runs together: sums, and for the largest queue the maximum."""
    total = dict.fromkeys(COUNTERS, 0)
    for part in parts:
        for name in COUNTERS:
            total[name] = max(total[name], part[name]) if name == "max_queue_bytes" else total[name] + part[name]
    return total
