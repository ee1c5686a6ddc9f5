"""Round robin: blind to load, caches and network."""

from __future__ import annotations

from harness.types import ClusterView, OracleSnapshot, Request


class RoundRobin:
    """The next feasible decode instance in order of id."""

    def __init__(self) -> None:
        self._last = -1

    def choose(self, request: Request, view: ClusterView, oracle: OracleSnapshot) -> int:  # noqa: ARG002
        """The first feasible instance after the last choice, from the lowest id again after the highest."""
        ids = [d.instance for d in view.decode]
        self._last = next((i for i in ids if i > self._last), ids[0])
        return self._last
