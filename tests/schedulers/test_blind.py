"""Round robin, cache-aware, and cache- and load-aware choices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from harness.errors import InputError
from harness.interfaces import Scheduler
from harness.schedulers.cache_load import TUNED_WEIGHTS, CacheAware, CacheLoadAware, CacheLoadAwareTuned
from harness.schedulers.round_robin import RoundRobin
from harness.types import ClusterView, OracleSnapshot, Request

Views = Callable[..., ClusterView]


@pytest.fixture
def snapshot(snapshot_of: Callable[..., OracleSnapshot]) -> OracleSnapshot:
    return snapshot_of({})


def test_round_robin(request_1000: Request, view_of: Views, snapshot: OracleSnapshot) -> None:
    scheduler: Scheduler = RoundRobin()
    all_three, without_5 = view_of({}, {}, {}), view_of({}, {"instance": 6})
    choices = [
        scheduler.choose(request_1000, v, snapshot) for v in (all_three, without_5, all_three, all_three, without_5)
    ]
    assert choices == [4, 6, 4, 5, 6]


def test_cache_aware_takes_the_longest_hit_whatever_the_load(
    request_1000: Request, view_of: Views, snapshot: OracleSnapshot
) -> None:
    view = view_of({"hit_tokens": 100}, {"hit_tokens": 200, "batch": 8, "queued": 9}, {})
    assert CacheAware(seed=0).choose(request_1000, view, snapshot) == 5


def test_cache_aware_breaks_ties_by_load_and_then_at_random(
    request_1000: Request, view_of: Views, snapshot: OracleSnapshot
) -> None:
    view = view_of({"batch": 2}, {"reserved": 1}, {"queued": 1}, {"batch": 1})
    scheduler = CacheAware(seed=1)
    choices = [scheduler.choose(request_1000, view, snapshot) for _ in range(300)]
    assert set(choices) == {5, 6, 7}
    assert min(Counter(choices).values()) > 60  # 100 expected, sd 8
    again = CacheAware(seed=1)
    assert [again.choose(request_1000, view, snapshot) for _ in range(300)] == choices


@pytest.mark.parametrize(
    ("weights", "choice"),
    [
        ({}, 4),  # 0.5 + 3/8 = 0.875 and 1 + 0
        ({"w_cache": 0.5}, 5),  # 0.25 + 0.375 and 0.5
        ({"w_load": 2}, 5),  # 0.5 + 0.75 and 1
    ],
)
def test_cache_load_aware(
    request_1000: Request, view_of: Views, snapshot: OracleSnapshot, weights: dict[str, Any], choice: int
) -> None:
    view = view_of({"hit_tokens": 500, "batch": 1, "queued": 1, "reserved": 1}, {})
    assert CacheLoadAware(**weights, seed=0).choose(request_1000, view, snapshot) == choice


def test_cache_load_aware_ties(request_1000: Request, view_of: Views, snapshot: OracleSnapshot) -> None:
    view = view_of({"batch": 1}, {}, {}, {})
    lowest = CacheLoadAware(ties="lowest-id", seed=0)
    assert [lowest.choose(request_1000, view, snapshot) for _ in range(5)] == [5] * 5
    at_random = CacheLoadAware(ties="random", seed=0)
    counts = Counter(at_random.choose(request_1000, view, snapshot) for _ in range(300))
    assert sorted(counts) == [5, 6, 7]
    assert min(counts.values()) > 60  # 100 expected, sd 8


def test_tuned_is_the_same_rule_with_other_weights(
    request_1000: Request, view_of: Views, snapshot: OracleSnapshot
) -> None:
    w_cache, w_load = TUNED_WEIGHTS
    # The load that just outweighs a full hit, and one request less.
    for load, choice in ((int(8 * w_cache / w_load) + 1, 5), (int(8 * w_cache / w_load) - 1, 4)):
        view = view_of({"hit_tokens": 1000, "batch": load}, {})
        assert CacheLoadAwareTuned(seed=0).choose(request_1000, view, snapshot) == choice


def test_weights_are_checked() -> None:
    with pytest.raises(InputError, match="scheduler.w_load: -1 given; a finite number, at least 0"):
        CacheLoadAware(w_load=-1, seed=0)
