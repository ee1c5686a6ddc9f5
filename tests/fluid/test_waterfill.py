"""Max-min fairness: closed forms, a linear program, and the properties that define it."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from harness.fluid import waterfill
from harness.fluid.waterfill import Band, Demand

INF = float("inf")

#: Rates are sums and quotients of at most a dozen doubles, so they are right to far more than ten digits.
CLOSE = 1e-10


def solved(capacity_bps: list[float], paths: list[tuple[int, ...]]) -> list[float]:
    band = Band([INF, *capacity_bps])
    flows = [Demand(path) for path in paths]
    for flow in flows:
        band.add(flow)
    band.solve()
    return [flow.rate_bps for flow in flows]


@pytest.fixture(params=[True, False], ids=["heap", "arrays"])
def _both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if not request.param:
        monkeypatch.setattr(waterfill, "SMALL", 0)


@pytest.mark.usefixtures("_both_ways")
class TestClosedForms:
    def test_one_flow_gets_its_narrowest_link(self) -> None:
        assert solved([100.0, 25.0, 50.0], [(1, 2, 3)]) == [25.0]

    def test_flows_on_one_link_share_it_equally(self) -> None:
        assert solved([90.0], [(1,), (1,), (1,)]) == [30.0, 30.0, 30.0]

    def test_parking_lot(self) -> None:
        # The long flow is held to 4/2 on link 2, where flow 2 takes the rest; flow 1 takes what is left of link 1.
        assert solved([10.0, 4.0], [(1, 2), (1,), (2,)]) == [2.0, 8.0, 2.0]

    def test_three_levels(self) -> None:
        # Link 1: 6/3 = 2 for flows 0, 1, 2. Link 2: (10 - 2)/2 = 4 for flows 3, 4. Link 3: 20 - 4 = 16 for flow 5.
        rates = solved([6.0, 10.0, 20.0], [(1,), (1,), (1, 2), (2,), (2, 3), (3,)])
        assert rates == [2.0, 2.0, 2.0, 4.0, 4.0, 16.0]

    def test_a_departure_lifts_the_others(self) -> None:
        band = Band([INF, 10.0, 4.0])
        long, first, second = Demand((1, 2)), Demand((1,)), Demand((2,))
        for flow in (long, first, second):
            band.add(flow)
        band.solve()
        band.remove(second)
        assert band.solve() == [long, first]
        assert (long.rate_bps, first.rate_bps) == (4.0, 6.0)

    def test_a_wider_link_gives_its_flow_more_and_another_bottleneck(self) -> None:
        capacity = [INF, 10.0, 2.0]
        band: Band[Demand] = Band(capacity)
        limited, other = Demand((1, 2)), Demand((1,))
        band.add(limited)
        band.add(other)
        assert band.solve() == band.moved == [limited, other]
        capacity[2] = 7.0
        band.widen(2)
        assert band.solve() == [limited, other]
        assert (limited.rate_bps, other.rate_bps) == (5.0, 5.0)
        assert band.moved == [limited]

    def test_lower_bands_share_what_is_left(self) -> None:
        capacity = [INF, 10.0, 10.0]
        top = Band(capacity)
        middle = Band(capacity, above=top)
        bottom = Band(capacity, above=middle)
        urgent, normal, patient = Demand((1,)), Demand((1, 2)), [Demand((2,)), Demand((2,))]
        top.add(urgent)
        for flow in patient:
            bottom.add(flow)
        for band in (top, middle, bottom):
            band.solve()
        assert (urgent.rate_bps, [f.rate_bps for f in patient]) == (10.0, [5.0, 5.0])
        middle.add(normal)
        for band in (top, middle, bottom):
            band.solve()
        assert (normal.rate_bps, [f.rate_bps for f in patient]) == (0.0, [5.0, 5.0])
        top.remove(urgent)
        for band in (top, middle, bottom):
            band.solve()
        assert (normal.rate_bps, [f.rate_bps for f in patient]) == (10.0, [0.0, 0.0])

    def test_the_bottom_band_learns_of_the_top_past_an_empty_middle(self) -> None:
        capacity = [INF, 8.0]
        top = Band(capacity)
        middle = Band(capacity, above=top)
        bottom = Band(capacity, above=middle)
        patient, urgent = Demand((1,)), Demand((1,))
        bottom.add(patient)
        for band in (top, middle, bottom):
            band.solve()
        top.add(urgent)
        for band in (top, middle, bottom):
            band.solve()
        assert (urgent.rate_bps, patient.rate_bps) == (8.0, 0.0)


@st.composite
def networks(draw: st.DrawFn, max_flows: int = 6) -> tuple[list[float], list[tuple[int, ...]]]:
    n_links = draw(st.integers(1, 5))
    capacity = draw(st.lists(st.integers(1, 20), min_size=n_links, max_size=n_links))
    path = st.sets(st.integers(1, n_links), min_size=1, max_size=n_links).map(lambda links: tuple(sorted(links)))
    return [float(c) for c in capacity], draw(st.lists(path, min_size=1, max_size=max_flows))


def lexicographic_maxmin(capacity: list[float], paths: list[tuple[int, ...]]) -> list[float]:
    """Raise the lowest open rate as far as it goes; settle the flows that cannot exceed it; repeat."""
    n = len(paths)
    on_link = np.array([[float(link + 1 in path) for path in paths] for link in range(len(capacity))])
    settled: dict[int, float] = {}
    while len(settled) < n:
        bounds = [(settled[i], settled[i]) if i in settled else (0.0, None) for i in range(n)]
        lift = np.array([[-float(i == j) for j in range(n)] + [1.0] for i in range(n) if i not in settled])
        limits = np.vstack([np.hstack([on_link, np.zeros((len(capacity), 1))]), lift])
        found = linprog(
            [0.0] * n + [-1.0], limits, capacity + [0.0] * len(lift), bounds=[*bounds, (0.0, None)], method="highs"
        )
        level = -found.fun
        floors = [bound if i in settled else (level - 1e-9, None) for i, bound in enumerate(bounds)]
        for i in range(n):
            if i not in settled:
                most = -linprog(
                    [-float(i == j) for j in range(n)], on_link, capacity, bounds=floors, method="highs"
                ).fun
                if most < level + 1e-6:
                    settled[i] = level
    return [settled[i] for i in range(n)]


@settings(max_examples=40, deadline=None)
@given(networks())
def test_equals_the_linear_program(network: tuple[list[float], list[tuple[int, ...]]]) -> None:
    expected = lexicographic_maxmin(*network)
    for small in (200, 0):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(waterfill, "SMALL", small)
            # 1e-5: the program's own feasibility tolerance is 1e-7, and its levels build on one another.
            assert solved(*network) == pytest.approx(expected, abs=1e-5)


@settings(max_examples=150, deadline=None)
@given(networks(max_flows=12))
def test_no_link_is_overloaded_and_every_flow_has_a_bottleneck(
    network: tuple[list[float], list[tuple[int, ...]]],
) -> None:
    capacity, paths = network
    for small in (200, 0):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(waterfill, "SMALL", small)
            rates = solved(capacity, paths)
        load = [sum(r for r, path in zip(rates, paths, strict=True) if k + 1 in path) for k in range(len(capacity))]
        fastest = [
            max((r for r, path in zip(rates, paths, strict=True) if k + 1 in path), default=0.0)
            for k in range(len(capacity))
        ]
        assert all(used <= c * (1 + CLOSE) for used, c in zip(load, capacity, strict=True))
        for rate, path in zip(rates, paths, strict=True):
            assert any(
                load[link - 1] >= capacity[link - 1] * (1 - CLOSE) and rate >= fastest[link - 1] * (1 - CLOSE)
                for link in path
            )


@settings(max_examples=100, deadline=None)
@given(networks(max_flows=12), st.lists(st.integers(0, 11), max_size=30))
def test_coming_and_going_leaves_the_rates_of_a_fresh_start(
    network: tuple[list[float], list[tuple[int, ...]]], toggles: list[int]
) -> None:
    capacity, paths = network
    for small in (200, 0):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(waterfill, "SMALL", small)
            band = Band([INF, *capacity])
            active: dict[int, Demand] = {}
            for toggle in toggles:
                i = toggle % len(paths)
                if i in active:
                    band.remove(active.pop(i))
                else:
                    active[i] = Demand(paths[i])
                    band.add(active[i])
                band.solve()
            fresh = solved(capacity, [paths[i] for i in active])
            assert [flow.rate_bps for flow in active.values()] == pytest.approx(fresh, rel=CLOSE)
            assert len(band) == len(active)


@settings(max_examples=60, deadline=None)
@given(networks(max_flows=8), networks(max_flows=8))
def test_a_lower_band_is_maxmin_on_what_is_left(
    upper: tuple[list[float], list[tuple[int, ...]]], lower: tuple[list[float], list[tuple[int, ...]]]
) -> None:
    capacity = [c1 + c2 for c1, c2 in zip(upper[0] + [5.0] * 5, lower[0] + [5.0] * 5, strict=False)][:5]
    bands = [Band(shared := [INF, *capacity])]
    bands.append(Band(shared, above=bands[0]))
    flows = [[Demand(path) for path in paths] for paths in (upper[1], lower[1])]
    for band, own in zip(bands, flows, strict=True):
        for flow in own:
            band.add(flow)
        band.solve()
    left = list(capacity)
    for flow in flows[0]:
        for link in flow.links:
            left[link - 1] -= flow.rate_bps
    # A difference of two numbers up to 40 cancels: absolute, not relative.
    assert [flow.rate_bps for flow in flows[1]] == pytest.approx(
        solved([max(0.0, c) if c > 1e-9 else 0.0 for c in left], lower[1]), abs=1e-7
    )


def test_many_equal_flows() -> None:
    band = Band([INF, 10.0])
    for _ in range(3):
        flows = [Demand((1,)) for _ in range(200)]
        for flow in flows:
            band.add(flow)
        band.solve()
        assert {flow.rate_bps for flow in flows} == {0.05}
        assert len(band) == 200
        for flow in flows:
            band.remove(flow)


def test_thousands_of_changes_leave_no_drift() -> None:
    draw = random.Random(1)
    capacity = [draw.choice([25e9, 50e9, 100e9]) for _ in range(40)]
    bands = [Band([INF, *capacity])]
    bands.append(Band(bands[0]._capacity_bps, above=bands[0]))
    active: list[list[Demand]] = [[], []]
    for _ in range(4000):
        which = draw.randrange(2)
        if draw.random() < len(active[which]) / 80:
            bands[which].remove(active[which].pop(draw.randrange(len(active[which]))))
        else:
            active[which].append(Demand(tuple(draw.sample(range(1, 41), draw.randint(1, 6)))))
            bands[which].add(active[which][-1])
        for band in bands:
            band.solve()
    fresh = [Band([INF, *capacity])]
    fresh.append(Band(fresh[0]._capacity_bps, above=fresh[0]))
    for band, flows in zip(fresh, active, strict=True):
        twins = [Demand(flow.links) for flow in flows]
        for twin in twins:
            band.add(twin)
        band.solve()
        # Rates are differences of capacities of 1e11 bit/s, each right to 1e-16 of that, a few thousand times.
        assert [flow.rate_bps for flow in flows] == pytest.approx([twin.rate_bps for twin in twins], abs=0.1)
        assert max(flow.rate_bps for flow in flows) > 1e9
