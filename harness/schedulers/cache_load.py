"""Schedulers that see prefix caches and load, but not the network."""

from __future__ import annotations

import math
import random
from typing import Literal

from harness.errors import InputError
from harness.types import ClusterView, DecodeView, OracleSnapshot, Request

#: (w_cache, w_load) of `cla-tuned`: least mean TTFT (1593 ms) of `calibration.tune_cla` with its grid (w_cache 0.1 to
#: 10 at w_load 1, and either alone) on scenarios/rag.yaml, 200 requests, ten seeds from 900,001, fluid model `maxmin`.
#: The rule is not sensitive: all pairs with both terms come within 0.3 %, w_cache alone is 1 % worse, w_load alone 8 %.
#: On scenarios/paper-rag.yaml, 40 seeds, it is 0.8 % from the best, (2, 1), and 1.2 % with twice the load; kept there.
TUNED_WEIGHTS = (0.5, 1.0)


def _load(d: DecodeView) -> int:
    return d.batch + d.queued + d.reserved


class CacheAware:
    """The longest prefix hit; among equals the least loaded, among those a random one.

    Parameters
    ----------
    seed : of the random choice.
    """

    def __init__(self, *, seed: int) -> None:
        self._random = random.Random(seed)

    def choose(self, request: Request, view: ClusterView, oracle: OracleSnapshot) -> int:  # noqa: ARG002
        """The feasible instance with the largest hit [tokens]."""
        best = max((d.hit_tokens, -_load(d)) for d in view.decode)
        return self._random.choice([d.instance for d in view.decode if (d.hit_tokens, -_load(d)) == best])


class CacheLoadAware:
    """Least of w_cache (1 - hit / prompt) + w_load (batch + queued + reserved) / max_batch.

    On a lightly loaded cluster many instances cost the same. "lowest-id" then prefers whatever the placement numbers
    first; "random" is as blind to topology as the rule itself.

    Parameters
    ----------
    w_cache, w_load : weights of the two terms, not negative.
    ties : which of several instances of least cost.
    seed : of the random choice.
    """

    def __init__(
        self,
        *,
        w_cache: float = 1.0,
        w_load: float = 1.0,
        ties: Literal["lowest-id", "random"] = "random",
        seed: int,
    ) -> None:
        for name, weight in (("w_cache", w_cache), ("w_load", w_load)):
            if not 0 <= weight < math.inf:
                raise InputError(f"{weight} given; a finite number, at least 0", key=f"scheduler.{name}")
        self._w_cache, self._w_load = w_cache, w_load
        self._random = random.Random(seed) if ties == "random" else None

    def choose(self, request: Request, view: ClusterView, oracle: OracleSnapshot) -> int:  # noqa: ARG002
        """The feasible instance of least cost."""
        w_cache, w_load, tokens = self._w_cache, self._w_load, request.input_tokens
        costs = [w_cache * (1 - d.hit_tokens / tokens) + w_load * _load(d) / d.max_batch for d in view.decode]
        least = min(costs)
        if self._random is None:
            return view.decode[costs.index(least)].instance
        return self._random.choice([d.instance for d, cost in zip(view.decode, costs, strict=True) if cost == least])


class CacheLoadAwareTuned(CacheLoadAware):
    """CLA*: cache- and load-aware with weights tuned on seeds of their own.

    Parameters
    ----------
    w_cache, w_load : the tuned weights, see `TUNED_WEIGHTS`.
    ties, seed : as in `CacheLoadAware`.
    """

    def __init__(
        self,
        *,
        w_cache: float = TUNED_WEIGHTS[0],
        w_load: float = TUNED_WEIGHTS[1],
        ties: Literal["lowest-id", "random"] = "random",
        seed: int,
    ) -> None:
        super().__init__(w_cache=w_cache, w_load=w_load, ties=ties, seed=seed)
