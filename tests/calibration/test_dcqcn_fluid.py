"""The fluid equations' fixed point, and their solution over time."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from calibration.dcqcn_fluid import PAPER_40G, DcqcnParameters, approximation, fixed_point, integrate
from harness.config import load_network
from harness.errors import InputError

#: The paper's set at 100 Gb/s: K scaled with the rate, timers and R_AI as they are.
PAPER_100G = replace(PAPER_40G, kmin_bytes=12.5e3, kmax_bytes=500e3)


@pytest.mark.parametrize(
    ("n_flows", "queue_bytes", "marking_probability", "alpha"),
    [
        (2, 20_151, 7.7699e-4, 0.10136),
        (4, 41_809, 1.88767e-3, 0.12182),
        (8, 93_766, 4.55211e-3, 0.14516),
        (10, 122_623, 6.03196e-3, 0.15328),
    ],
)
def test_paper_set(n_flows: int, queue_bytes: float, marking_probability: float, alpha: float) -> None:
    """20.2, 41.8, 93.8 and 122.6 KB, as another solution of the published equations has it."""
    point = fixed_point(n_flows, 40e9, 1000)
    assert point.queue_bytes == pytest.approx(queue_bytes, abs=1)
    assert point.marking_probability == pytest.approx(marking_probability, rel=1e-5)
    assert point.alpha == pytest.approx(alpha, abs=1e-5)
    assert point.rate_bps == 40e9 / n_flows


@pytest.mark.parametrize("n_flows", [2, 10])
def test_nothing_moves_at_the_fixed_point(n_flows: int) -> None:
    """Each equation balanced by hand, with sums of geometric series in place of the closed forms."""
    point = fixed_point(n_flows, 40e9, 1000)
    p, rate, target = point.marking_probability, point.rate_bps / 8000, point.target_rate_bps / 8000
    cuts = (1 - (1 - p) ** (50e-6 * rate)) / 50e-6
    runs = rate * p
    events = [sum((1 - p) ** (j * every) for j in range(1, 3000)) for every in (10_000, 55e-6 * rate)]
    additive = [sum((1 - p) ** (j * every) for j in range(6, 3000)) for every in (10_000, 55e-6 * rate)]
    assert cuts * (target - rate) == pytest.approx(5000 * runs * sum(additive), rel=1e-9)
    assert cuts * rate * point.alpha / 2 == pytest.approx((target - rate) / 2 * runs * sum(events), rel=1e-9)
    assert point.alpha == pytest.approx(1 - (1 - p) ** (55e-6 * rate), rel=1e-12)


def test_paper_set_at_100g() -> None:
    queues = [fixed_point(n, 100e9, 1000, PAPER_100G).queue_bytes for n in (2, 4, 8, 10, 16)]
    assert queues == pytest.approx([24_137, 40_927, 81_701, 104_524, 179_808], abs=1)


def test_no_queue_marks_enough_for_sixteen_flows() -> None:
    """p* is 1.09 %, above Pmax: there is no fixed point on the ramp."""
    point = fixed_point(16, 40e9, 1000)
    assert point.queue_bytes is None
    assert point.marking_probability == pytest.approx(0.010873, abs=1e-6)
    assert approximation(16, 40e9, 1000) is None


def test_approximation_overstates() -> None:
    """N = 2: cbrt(5000 (1/10^4 + 1/137.5)^2 / (55e-6 (2.5e6)^2)) = 9.25e-4 for 7.77e-4."""
    assert approximation(2, 40e9, 1000) == pytest.approx(23_030, abs=10)
    assert [approximation(n, 40e9, 1000) for n in (4, 8, 10)] == pytest.approx([50_230, 118_710, 158_050], abs=10)


def test_a_notification_for_every_mark_is_the_limit_of_short_intervals() -> None:
    every = fixed_point(4, 40e9, 1000, replace(PAPER_40G, cnp_interval_s=0.0))
    short = fixed_point(4, 40e9, 1000, replace(PAPER_40G, cnp_interval_s=1e-9))
    assert every.marking_probability == pytest.approx(short.marking_probability, rel=1e-5)


def test_without_byte_counter() -> None:
    """It counts for little at 20 Gb/s a flow: a run would have to last 10 000 packets at one mark in 1287."""
    timer_only = fixed_point(2, 40e9, 1000, replace(PAPER_40G, byte_counter_bytes=math.inf))
    assert timer_only.queue_bytes == pytest.approx(20_151, rel=1e-3)


def test_no_balance_is_an_error() -> None:
    """Five packets a second and flow: increase events come between packets, whatever is marked."""
    with pytest.raises(InputError, match="no marking probability from 1e-09 to 0.5 balances 1000000 flows"):
        fixed_point(1_000_000, 40e9, 1000)


def test_parameters_of_the_profile() -> None:
    assert DcqcnParameters.from_network(load_network("roce-paper"), 40e9) == PAPER_40G
    scaled = replace(PAPER_100G, additive_step_bps=100e6)
    assert DcqcnParameters.from_network(load_network("roce-paper"), 100e9) == scaled
    with pytest.raises(InputError, match="the fluid equations describe DCQCN as published"):
        DcqcnParameters.from_network(load_network("roce-default"), 100e9)


@pytest.mark.slow
@pytest.mark.parametrize("n_flows", [2, 10])
def test_flows_of_unlike_rates_reach_the_fixed_point(n_flows: int) -> None:
    """From 30 % below and above the fair share, with 4 us of feedback delay."""
    point = fixed_point(n_flows, 40e9, 1000)
    start = 40e9 / n_flows * np.linspace(0.7, 1.3, n_flows)
    path = integrate(40e9, 1000, start.tolist(), initial_alpha=point.alpha, duration_s=0.08)
    assert path.queue_bytes[-1] == pytest.approx(point.queue_bytes, rel=1e-3)
    assert path.rate_bps[-1] == pytest.approx(np.full(n_flows, point.rate_bps), rel=0.01)
    assert path.alpha[-1] == pytest.approx(np.full(n_flows, point.alpha), rel=0.01)


@pytest.mark.slow
def test_marks_at_the_enqueue_make_ten_flows_oscillate() -> None:
    """The mark is older by the queueing time, up to 40 us: the queue swings between empty and above Kmax."""
    start = 4e9 * np.linspace(0.7, 1.3, 10)
    path = integrate(40e9, 1000, start.tolist(), initial_alpha=0.153, marking="enqueue", duration_s=0.08)
    late = path.queue_bytes[len(path.queue_bytes) // 2 :]
    assert late.min() == 0
    assert late.max() > 200_000
