"""Max-min fair rates for a changing set of flows over shared links, in strict-priority bands.

An allocation is max-min fair when every flow has a bottleneck: a saturated link on which no other flow of its band is
faster (Bertsekas and Gallager, Data Networks, 2nd ed., section 6.5.2). A band shares what the bands above it leave.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

import numpy as np

INF = float("inf")

#: Index of a link that every path is padded with: it never limits a flow.
NO_LINK = 0

#: Up to so many flows are settled one by one; more of them in arrays. A matter of speed only.
SMALL = 60

#: Relative difference below which two rates are the same: four decimal digits above the rounding of a double.
SAME = 1e-12
#: The same for sums over the flows of a link, in asking whether it is saturated.
SLACK = 1e-9


class Demand:
    """A flow as the allocation sees it: the links it crosses, each once, its rate [bit/s], and its bottleneck."""

    __slots__ = ("bottleneck", "links", "rate_bps")

    def __init__(self, links: tuple[int, ...]) -> None:
        self.links = links
        self.rate_bps = 0.0
        self.bottleneck = NO_LINK


AnyDemand = TypeVar("AnyDemand", bound=Demand)


class Band(Generic[AnyDemand]):
    """The flows of one priority, and their max-min fair rates on the capacity that the bands above leave.

    Rates are right after `solve`. It recomputes few flows: those held by the links where something changed, and then,
    as long as there are any, those whose bottleneck the new rates undo. Every flow has a bottleneck in the end, so the
    result is the max-min fair one. Bands must be solved from the top down.

    Parameters
    ----------
    capacity_bps : per link; entry `NO_LINK` is infinite. Shared by all bands; it may grow.
    above : the band of the next higher priority.
    """

    def __init__(self, capacity_bps: list[float], above: Band[AnyDemand] | None = None) -> None:
        assert capacity_bps[NO_LINK] == INF
        self._capacity_bps = capacity_bps
        self.moved: list[AnyDemand] = []  #: the flows that the last `solve` gave another bottleneck
        self._below: Band[AnyDemand] | None = None
        if above is not None:
            above._below = self
        self._on_link: dict[int, dict[AnyDemand, None]] = {}
        self._held_by: dict[int, dict[AnyDemand, None]] = {NO_LINK: {}}  # flows by bottleneck; new ones have none
        # Sums of rates, kept by additions and subtractions: their rounding stays far below SLACK.
        self._load_bps: dict[int, float] = {}
        self._loads_above: list[dict[int, float]] = [] if above is None else [above._load_bps, *above._loads_above]
        self._changed_links: dict[int, None] = {}  # a flow came or went, or the bands above take more or less
        self._contested_links: dict[int, None] = {}  # of these, where they may take more

    def __len__(self) -> int:
        return sum(map(len, self._held_by.values()))

    def add(self, flow: AnyDemand) -> None:
        """Take in `flow` at rate 0."""
        flow.rate_bps = 0.0
        flow.bottleneck = NO_LINK
        self._held_by[NO_LINK][flow] = None
        for link in flow.links:
            self._on_link.setdefault(link, {})[flow] = None
            self._load_bps.setdefault(link, 0.0)
            self._changed_links[link] = None

    def remove(self, flow: AnyDemand) -> None:
        """Let go of `flow`, whose rate becomes 0."""
        del self._held_by[flow.bottleneck][flow]
        for link in flow.links:
            on_link = self._on_link[link]
            del on_link[flow]
            self._load_bps[link] -= flow.rate_bps
            if not on_link:
                del self._on_link[link], self._load_bps[link]
            self._changed_links[link] = None
        flow.rate_bps = 0.0

    def widen(self, link: int) -> None:
        """The capacity of `link` has grown."""
        if link in self._on_link:
            self._changed_links[link] = None

    def solve(self) -> list[AnyDemand]:
        """Set every flow's rate; returns the flows whose rates changed."""
        self.moved.clear()
        if not self._changed_links:
            return []
        touched, self._changed_links = self._changed_links, {}
        contested, self._contested_links = self._contested_links, {}
        changed = self._settle(touched, contested)
        band = self._below
        if band is not None:
            for flow in changed:
                touched.update(dict.fromkeys(flow.links))
        while band is not None:
            for link in touched:
                if link in band._on_link:
                    band._changed_links[link] = band._contested_links[link] = None
            band = band._below
        return changed

    def _left_bps(self, link: int) -> float:
        """What the bands above leave of a link; rounding errors of a saturated link count as nothing left."""
        left = capacity = self._capacity_bps[link]
        for load_bps in self._loads_above:
            left -= load_bps.get(link, 0.0)
        return left if left > SLACK * capacity else 0.0

    def _settle(self, changed_links: Iterable[int], contested_links: Iterable[int]) -> list[AnyDemand]:
        """Solve after changes on links; returns the flows whose rates changed."""
        concerned = dict(self._held_by[NO_LINK])
        for link in changed_links:
            if link in self._held_by:
                concerned.update(self._held_by[link])
        for link in contested_links:
            on_link = self._on_link.get(link)
            if on_link:
                left = self._left_bps(link)
                if self._load_bps[link] > left * (1 + SLACK):
                    fair = left / len(on_link)
                    concerned.update((flow, None) for flow in on_link if flow.rate_bps > fair)
        settling: list[AnyDemand] = []
        crossing: dict[int, list[AnyDemand]] = {}  # of them, the flows per link
        room_bps: dict[int, float] = {}  # what all others leave of it
        filled: _Filled[AnyDemand] = _Filled({}, {}, {}, {})
        while concerned:
            settling += concerned
            if len(settling) > SMALL:
                filled = self._fill_many(settling)
            else:
                for flow in concerned:
                    for link in flow.links:
                        if link not in room_bps:
                            room_bps[link] = self._left_bps(link) - self._load_bps[link]
                            crossing[link] = []
                        room_bps[link] += flow.rate_bps
                        crossing[link].append(flow)
                filled = _fill(crossing, room_bps, len(settling))
            concerned = self._undone(filled)
        changed = []
        for flow, (rate_bps, bottleneck) in filled.settled.items():
            self._hold(flow, bottleneck)
            old_bps = flow.rate_bps
            if abs(rate_bps - old_bps) > SAME * rate_bps:
                changed.append(flow)
                flow.rate_bps = rate_bps
                for link in flow.links:
                    self._load_bps[link] += rate_bps - old_bps
        return changed

    def _hold(self, flow: AnyDemand, bottleneck: int) -> None:
        if bottleneck != flow.bottleneck:
            del self._held_by[flow.bottleneck][flow]
            self._held_by.setdefault(bottleneck, {})[flow] = None
            flow.bottleneck = bottleneck
            self.moved.append(flow)

    def _undone(self, filled: _Filled[AnyDemand]) -> dict[AnyDemand, None]:
        """The flows not settled that keep a settled one from having a bottleneck, or whose own bottleneck it undoes.

        On a bottleneck that n flows cross, those with up to 1/n of the capacity are in nobody's way.
        """
        settled = filled.settled
        undone: dict[AnyDemand, None] = {}
        for link, level_bps in {bottleneck: rate_bps for rate_bps, bottleneck in settled.values()}.items():
            on_link = self._on_link[link]
            if len(on_link) > filled.crossing[link]:
                too_fast = max(level_bps, self._left_bps(link) / len(on_link)) * (1 + SLACK)
                undone.update((flow, None) for flow in on_link if flow.rate_bps > too_fast and flow not in settled)
        for link, unused_bps in filled.unused_bps.items():
            held = self._held_by.get(link)
            if held:
                saturated = unused_bps <= SLACK * self._capacity_bps[link]
                too_slow = filled.fastest_bps[link] * (1 - SLACK) if saturated else INF
                undone.update((flow, None) for flow in held if flow.rate_bps < too_slow and flow not in settled)
        return undone

    def _fill_many(self, flows: list[AnyDemand]) -> _Filled[AnyDemand]:
        """Settle `flows` as `_fill` does, in arrays.

        A round settles all links that offer the lowest share to each of their open flows.
        """
        crossed = [link for flow in flows for link in flow.links]
        links = list(dict.fromkeys(crossed))
        n_links = len(links) + 1
        number = {link: i for i, link in enumerate(links, 1)}  # 0 pads paths: a link that offers anything
        lengths = np.array([len(flow.links) for flow in flows])
        hops = int(lengths.max())
        paths = np.zeros((len(flows), hops), dtype=np.int64)
        paths[np.arange(hops) < lengths[:, None]] = [number[link] for link in crossed]

        own_bps = np.repeat([flow.rate_bps for flow in flows], hops)
        left = np.array([INF, *(self._left_bps(link) - self._load_bps[link] for link in links)])
        left = np.maximum(left + np.bincount(paths.ravel(), weights=own_bps, minlength=n_links), 0.0)
        crossing = open_count = np.bincount(paths.ravel(), minlength=n_links)
        rates = np.empty(len(flows))
        bottlenecks = np.empty(len(flows), dtype=np.int64)
        fastest = np.zeros(n_links)
        still_open = np.arange(len(flows))
        while len(still_open):
            share = np.full(n_links, INF)
            np.divide(left, open_count, out=share, where=open_count > 0)
            share[0] = INF
            offered = share[paths]
            lowest = offered.min(axis=1)
            above_lowest = offered > lowest[:, None]
            contested = np.zeros(n_links, dtype=bool)
            contested[paths[above_lowest]] = True
            holds = ~above_lowest & ~contested[paths]
            settled = holds.any(axis=1)
            settled_bps = np.repeat(lowest[settled], hops)
            rates[still_open[settled]] = lowest[settled]
            bottlenecks[still_open[settled]] = paths[settled, holds[settled].argmax(axis=1)]
            gone = paths[settled].ravel()
            np.maximum.at(fastest, gone, settled_bps)
            left = np.maximum(left - np.bincount(gone, weights=settled_bps, minlength=n_links), 0.0)
            open_count = open_count - np.bincount(gone, minlength=n_links)
            still_open, paths = still_open[~settled], paths[~settled]
        held_by = [links[i - 1] for i in bottlenecks.tolist()]
        return _Filled(
            dict(zip(flows, zip(rates.tolist(), held_by, strict=True), strict=True)),
            dict(zip(links, left[1:].tolist(), strict=True)),
            dict(zip(links, crossing[1:].tolist(), strict=True)),
            dict(zip(links, fastest[1:].tolist(), strict=True)),
        )


@dataclass(frozen=True, slots=True)
class _Filled(Generic[AnyDemand]):
    """Rates for some flows.

    Parameters
    ----------
    settled : per flow its rate [bit/s] and its bottleneck.
    unused_bps, crossing, fastest_bps : per link that they cross, what is left of it, how many of them cross it, and the
        highest of their rates.
    """

    settled: dict[AnyDemand, tuple[float, int]]
    unused_bps: dict[int, float]
    crossing: dict[int, int]
    fastest_bps: dict[int, float]


def _fill(crossing: dict[int, list[AnyDemand]], room_bps: dict[int, float], n: int) -> _Filled[AnyDemand]:
    """Water-filling of the room on links among the `n` flows that cross them.

    The fair share of a link never falls while flows are settled at lower shares elsewhere, so a heap entry that is out
    of date only has to be put back; and the last flow settled on a link is its fastest.
    """
    counts = {link: len(flows) for link, flows in crossing.items()}
    if n == 1:
        bottleneck, ((flow,), *_) = min(room_bps, key=room_bps.__getitem__), crossing.values()
        share = max(room_bps[bottleneck], 0.0)
        left_bps = {link: room - share for link, room in room_bps.items()}
        return _Filled({flow: (share, bottleneck)}, left_bps, counts, dict.fromkeys(counts, share))
    left_bps = dict(room_bps)
    unsettled = dict(counts)
    fastest_bps: dict[int, float] = {}
    heap = [(left_bps[link] / k, link) for link, k in unsettled.items()]
    heapify(heap)
    settled: dict[AnyDemand, tuple[float, int]] = {}
    while len(settled) < n:
        foreseen, link = heappop(heap)
        k = unsettled[link]
        if k == 0:
            continue
        share = left_bps[link] / k
        if share > foreseen:
            heappush(heap, (share, link))
            continue
        share = max(share, 0.0)
        for flow in crossing[link]:
            if flow not in settled:
                settled[flow] = (share, link)
                for crossed in flow.links:
                    left_bps[crossed] -= share
                    unsettled[crossed] -= 1
                    fastest_bps[crossed] = share
    return _Filled(settled, left_bps, counts, fastest_bps)
