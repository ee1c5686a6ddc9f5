"""Network settings for the fluid models: of all keys they read framing, payload, striping, queue pairs and priority."""

from __future__ import annotations

from typing import Any

import pytest

from harness.network_settings import NetworkSettings

KEYS: dict[str, Any] = {
    "profile": "test",
    "transport": {"payload_bytes": 4096, "ack_every": 16, "timeout": "67ms", "nack_interval": "500us"},
    "cc": {
        "use": "dcqcn",
        "cnp_mode": "packet",
        "cnp_interval": "4us",
        "alpha_timer": "1us",
        "cut_check": "4us",
        "g": 1 / 256,
        "clamp_target": False,
        "first_cut": "at-check",
        "increase_timer": "300us",
        "byte_counter": 0,
        "fast_recovery_steps": 1,
        "additive_step": "5Mbps",
        "hyper_step": "50Mbps",
        "additive_rounds": "one",
        "min_rate": "1Gbps",
        "scale_with_rate": "25Gbps",
    },
    "switch": {
        "buffer_bytes": "32MiB",
        "ecn": {"kmin": "100KB", "kmax": "400KB", "pmax": 0.2, "at": "dequeue", "scale_with_rate": "25Gbps"},
        "pfc": {"on": True, "dynamic_shift": 3, "headroom": "computed", "reserve": 4096, "resume_offset": 3072},
        "ack_class": "control",
    },
    "framing": {"data_overhead": 62, "ack": 66, "cnp": 78, "pfc": 64, "wire_gap": 20, "rounding": "ps"},
    "load_balancing": {"use": "ecmp"},
}


@pytest.fixture(scope="session")
def settings() -> NetworkSettings:
    return NetworkSettings(**KEYS)


@pytest.fixture(scope="session")
def settings_one_queue() -> NetworkSettings:
    """Background traffic shares KV data's queue."""
    return NetworkSettings(**KEYS | {"switch": KEYS["switch"] | {"background_priority": "data"}})


@pytest.fixture(scope="session")
def settings_two_queue_pairs() -> NetworkSettings:
    return NetworkSettings(**KEYS | {"transport": KEYS["transport"] | {"queue_pairs": 2}})
