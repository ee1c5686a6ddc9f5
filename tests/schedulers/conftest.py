"""Views and snapshots to decide on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from harness.types import ClusterView, DecodeView, OracleSnapshot, Request

MS = 10**9
GBPS = 10**9


@pytest.fixture
def request_1000() -> Request:
    """A prompt of 1000 tokens."""
    return Request(0, 0, 1000, 10, (0, 1))


@pytest.fixture
def view_of() -> Callable[..., ClusterView]:
    """Makes a view of instances given as keyword changes to an idle one without hit; ids count from 4."""

    def make(*instances: dict[str, Any]) -> ClusterView:
        idle: dict[str, Any] = {
            "tier": 3,
            "hit_tokens": 0,
            "transfer_bytes": 1000 * 327_680,
            "free_memory_bytes": 10**11,
            "batch": 0,
            "queued": 0,
            "reserved": 0,
            "max_batch": 8,
            "inflight": 0,
        }
        decode = tuple(DecodeView(**{"instance": 4 + i, **idle, **changes}) for i, changes in enumerate(instances))
        return ClusterView(0, 0, 1000 * 327_680, decode, lambda batch: (10 + batch) * MS)

    return make


@pytest.fixture
def snapshot_of() -> Callable[..., OracleSnapshot]:
    """Makes a snapshot of the paper's tiers with a map given as instance -> tier."""

    def make(tiers: dict[int, int], **changes: Any) -> OracleSnapshot:
        parts: dict[str, Any] = {
            "sampled_ps": 0,
            "tier_map": lambda prefill, decode: tiers[decode],
            "tier_bandwidth_bps": (3600 * GBPS, 100 * GBPS, 50 * GBPS, 25 * GBPS),
            "tier_latency_ps": (1_000_000, 3_000_000, 8_000_000, 15_000_000),
            "congestion": (0.0, 0.0, 0.0, 0.0),
        }
        return OracleSnapshot(**{**parts, **changes})

    return make
