"""The placements of a recorded run, once more."""

from __future__ import annotations

from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq

from harness.errors import InputError, RunFailure
from harness.types import ClusterView, OracleSnapshot, Request

_FILTERS = ("backend", "scheduler", "seed")


class Replay:
    """The decode instances that a recorded run chose, request by request, whatever the network does.

    Parameters
    ----------
    path : requests.parquet of a run.
    backend, scheduler, repetition : which run, where the file holds several; a repetition is the file's seed.

    Raises
    ------
    InputError : the file cannot be read, or does not hold exactly one run that fits.
    """

    def __init__(
        self, *, path: str, backend: str | None = None, scheduler: str | None = None, repetition: int | None = None
    ) -> None:
        columns = (*_FILTERS, "id", "decode_instance")
        try:
            table = pq.ParquetFile(Path(path)).read(columns=columns, use_threads=False)
        except (OSError, ValueError) as error:
            raise InputError(f"cannot be read: {error}", source=path, key="scheduler.path") from error
        missing = [name for name in columns if name not in table.column_names]
        if missing:
            raise InputError(f"has no column {', '.join(missing)}", source=path, key="scheduler.path")
        for name, wanted in zip(_FILTERS, (backend, scheduler, repetition), strict=True):
            if wanted is not None:
                table = table.filter(pc.equal(table[name], wanted))
        runs = sorted(set(zip(*(table[name].to_pylist() for name in _FILTERS), strict=True)))
        if len(runs) != 1:
            found = "; ".join(f"{backend} {scheduler} {seed}" for backend, scheduler, seed in runs[:5]) or "none"
            message = f"must hold one run that fits, holds {len(runs)} (backend, scheduler, seed: {found})"
            raise InputError(message, source=path, key="scheduler.path")
        self._path = path
        self._choices = dict(zip(table["id"].to_pylist(), table["decode_instance"].to_pylist(), strict=True))

    def choose(self, request: Request, view: ClusterView, oracle: OracleSnapshot) -> int:  # noqa: ARG002
        """The recorded instance.

        Raises
        ------
        RunFailure : the record has no placement of the request, or the instance has no memory for it now.
        """
        choice: int = self._choices.get(request.id, -1)
        if choice < 0:
            raise RunFailure(f"{self._path} has no placement of request {request.id}")
        if all(d.instance != choice for d in view.decode):
            feasible = ", ".join(str(d.instance) for d in view.decode)
            raise RunFailure(
                f"request {request.id} was placed on instance {choice} in {self._path}, which is not feasible here; "
                f"feasible: {feasible}"
            )
        return choice
