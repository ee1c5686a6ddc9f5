from __future__ import annotations

import pytest

from harness.errors import InputError
from harness.interfaces import ServiceTimes
from harness.serving.profiles import H100Tp4Profile, PaperProfile

MS = 10**9


def test_paper_prefill() -> None:
    profile: ServiceTimes = PaperProfile()
    assert not profile.prefill_queue
    # 964 ms for the mean prompt of rag, and in proportion.
    assert profile.prefill_ps(8000) == 964 * MS
    assert profile.prefill_ps(1000) == 120.5 * MS


def test_paper_decode() -> None:
    profile = PaperProfile()
    # 0.27 ms / 1.69 = 159.763 us a request on 12.47 ms; round-robin's mean batch of 1.69 gives Table II's 12.74.
    assert profile.iteration_ps(1) == 12_629_763_314
    assert profile.iteration_ps(3) - profile.iteration_ps(2) == 159_763_314
    assert 12.47 * MS + 1.69 * 159_763_314 == pytest.approx(12.74 * MS)  # noqa: SIM300


def test_paper_constants_can_be_set() -> None:
    profile = PaperProfile(prefill_per_token=100_000_000, iteration=12 * MS, iteration_per_request=0)
    assert profile.prefill_ps(8000) == 800 * MS
    assert [profile.iteration_ps(b) for b in (1, 64)] == [12 * MS, 12 * MS]


@pytest.mark.parametrize(
    ("tokens", "ms"),
    [
        (512, 59.6),
        (8192, 954.0),
        (3072, 331.85),  # halfway between 200.7 and 463
        (6144, 708.5),  # halfway between 463 and 954
        (256, 36.6),  # 59.6 - 256 (105.6 - 59.6) / 512
    ],
)
def test_h100_prefill_is_interpolated(tokens: int, ms: float) -> None:
    assert H100Tp4Profile().prefill_ps(tokens) == round(ms * MS)


def test_h100_prefill_beyond_the_table_is_linear_plus_quadratic() -> None:
    prefill_ps = H100Tp4Profile().prefill_ps
    # r = 4 * 8192 * 80 / 2 / 140e9 = 9.3623e-6. Least squares of the five times on n + r n^2 (512: 514.454, 1024:
    # 1033.817, 2048: 2087.268, 4096: 4253.073, 8192: 8820.292) have the slope 0.1089757 ms. So t(16384) = 954 +
    # 0.1089757 (8192 + r (16384^2 - 8192^2)) = 954 + 0.1089757 * 10076.877 = 2052.134.
    assert prefill_ps(16384) == pytest.approx(2052.134 * MS, abs=0.001 * MS)
    assert prefill_ps(8193) - prefill_ps(8192) == pytest.approx(0.125693 * MS, abs=1e-6 * MS)  # (1 + 16385 r) as much
    # The growth per token itself grows evenly.
    steps = [prefill_ps(n + 10_000) - prefill_ps(n) for n in (10_000, 20_000, 30_000)]
    assert steps[2] - steps[1] == pytest.approx(steps[1] - steps[0], abs=2)
    assert steps[1] > steps[0]


@pytest.mark.parametrize(
    ("batch", "ms"), [(1, 29.4), (8, 31.4), (12, 32.1), (48, 44.65), (64, 52.4), (65, 52.884375), (128, 83.4)]
)
def test_h100_decode(batch: int, ms: float) -> None:
    """Interpolated; beyond 64 along the last segment, 15.5 ms per 32 requests."""
    assert H100Tp4Profile().iteration_ps(batch) == round(ms * MS)


def test_h100_queues_prefills() -> None:
    assert H100Tp4Profile().prefill_queue


@pytest.mark.parametrize("profile", [PaperProfile, H100Tp4Profile])
def test_max_batch(profile: type[PaperProfile] | type[H100Tp4Profile]) -> None:
    assert profile(max_batch=3).max_batch == 3
    with pytest.raises(InputError, match="serving.max_batch: 0 given; a whole number of slots, at least 1"):
        profile(max_batch=0)
