"""Max-min fair rates for a changing set of flows over shared links, in strict-priority bands.

An allocation is max-min fair when every flow has a bottleneck: a saturated link on which no other flow of its band is
faster (Bertsekas and Gallager, Data Networks, 2nd ed., section 6.5.2). A band shares what the bands above it leave.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush

import numpy as np

INF = float("inf")

#: Index of a link that every path is padded with: it never limits a flow.
NO_LINK = 0

#: Up to so many flows are recomputed one by one; beyond, the whole band at once in arrays. A matter of speed only.
SMALL = 200

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


class Band:
    """The flows of one priority, and their max-min fair rates on the capacity that the bands above leave.

    Rates are right after `solve`. It recomputes few flows: those held by the links where something changed, and then,
    as long as there are any, those whose bottleneck the new rates undo. Every flow has a bottleneck in the end, so the
    result is the max-min fair one. Bands must be solved from the top down.

    Parameters
    ----------
    capacity_bps : per link; entry `NO_LINK` is infinite. Shared by all bands; it may grow.
    above : the band of the next higher priority.
    """

    def __init__(self, capacity_bps: list[float], above: Band | None = None) -> None:
        assert capacity_bps[NO_LINK] == INF
        self._capacity_bps = capacity_bps
        self._above = above
        self._below: Band | None = None
        if above is not None:
            above._below = self
        self._flows: dict[Demand, None] = {}
        self._on_link: dict[int, dict[Demand, None]] = {}
        self._held_by: dict[int, dict[Demand, None]] = {NO_LINK: {}}  # flows by bottleneck; new ones have none
        # Sums of rates, kept by additions and subtractions: their rounding stays far below SLACK.
        self._load_bps: dict[int, float] = {}
        self._changed_links: dict[int, None] = {}  # a flow came or went, or the bands above take more or less
        self._contested_links: dict[int, None] = {}  # of these, where they may take more

    def __len__(self) -> int:
        return len(self._flows)

    def add(self, flow: Demand) -> None:
        """Take in `flow` at rate 0."""
        self._flows[flow] = None
        flow.rate_bps = 0.0
        flow.bottleneck = NO_LINK
        self._held_by[NO_LINK][flow] = None
        for link in flow.links:
            self._on_link.setdefault(link, {})[flow] = None
            self._load_bps.setdefault(link, 0.0)
            self._changed_links[link] = None

    def remove(self, flow: Demand) -> None:
        """Let go of `flow`, whose rate becomes 0."""
        del self._flows[flow]
        del self._held_by[flow.bottleneck][flow]
        for link in flow.links:
            on_link = self._on_link[link]
            del on_link[flow]
            self._load_bps[link] -= flow.rate_bps
            if not on_link:
                del self._on_link[link], self._load_bps[link]
            self._changed_links[link] = None
        flow.rate_bps = 0.0

    def solve(self) -> list[tuple[Demand, float]]:
        """Set every flow's rate; the flows whose rates changed, with their old rates [bit/s]."""
        if not self._changed_links:
            return []
        touched, self._changed_links = self._changed_links, {}
        contested, self._contested_links = self._contested_links, {}
        changes = self._solve_few(touched, contested)
        if changes is None:
            changes = self._solve_all()
        band = self._below
        if band is not None:
            for flow, _ in changes:
                touched.update(dict.fromkeys(flow.links))
        while band is not None:
            for link in touched:
                if link in band._on_link:
                    band._changed_links[link] = band._contested_links[link] = None
            band = band._below
        return changes

    def _left_bps(self, link: int) -> float:
        """What the bands above leave of a link; rounding errors of a saturated link count as nothing left."""
        left = capacity = self._capacity_bps[link]
        band = self._above
        while band is not None:
            left -= band._load_bps.get(link, 0.0)
            band = band._above
        return left if left > SLACK * capacity else 0.0

    def _solve_few(
        self, changed_links: Iterable[int], contested_links: Iterable[int]
    ) -> list[tuple[Demand, float]] | None:
        """Solve after changes on links; None, with nothing settled, if many flows are concerned."""
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
        crossing: dict[int, list[Demand]] = {}  # the flows to settle, per link
        room_bps: dict[int, float] = {}  # what all others leave of it
        settled: dict[Demand, tuple[float, int]] = {}
        n = 0
        while concerned:
            n += len(concerned)
            if n > SMALL:
                return None
            for flow in concerned:
                for link in flow.links:
                    if link not in room_bps:
                        room_bps[link] = self._left_bps(link) - self._load_bps[link]
                        crossing[link] = []
                    room_bps[link] += flow.rate_bps
                    crossing[link].append(flow)
            settled, unused_bps = _fill(crossing, room_bps, n)
            concerned = self._undone(settled, crossing, unused_bps)
        changes = []
        for flow, (rate_bps, bottleneck) in settled.items():
            self._hold(flow, bottleneck)
            old_bps = flow.rate_bps
            if abs(rate_bps - old_bps) > SAME * rate_bps:
                changes.append((flow, old_bps))
                flow.rate_bps = rate_bps
                for link in flow.links:
                    self._load_bps[link] += rate_bps - old_bps
        return changes

    def _hold(self, flow: Demand, bottleneck: int) -> None:
        if bottleneck != flow.bottleneck:
            del self._held_by[flow.bottleneck][flow]
            self._held_by.setdefault(bottleneck, {})[flow] = None
            flow.bottleneck = bottleneck

    def _undone(
        self,
        settled: dict[Demand, tuple[float, int]],
        crossing: dict[int, list[Demand]],
        unused_bps: dict[int, float],
    ) -> dict[Demand, None]:
        """The flows outside `settled` that keep one of it from having a bottleneck, or whose own bottleneck it undoes.

        On a bottleneck that n flows cross, those with up to 1/n of the capacity are in nobody's way.
        """
        undone: dict[Demand, None] = {}
        for link, level_bps in {bottleneck: rate_bps for rate_bps, bottleneck in settled.values()}.items():
            on_link = self._on_link[link]
            if len(on_link) > len(crossing[link]):
                too_fast = max(level_bps, self._left_bps(link) / len(on_link)) * (1 + SLACK)
                undone.update((flow, None) for flow in on_link if flow.rate_bps > too_fast and flow not in settled)
        for link, flows in crossing.items():
            others = [flow for flow in self._held_by.get(link, ()) if flow not in settled]
            if others:
                saturated = unused_bps[link] <= SLACK * self._capacity_bps[link]
                too_slow = max(settled[flow][0] for flow in flows) * (1 - SLACK) if saturated else INF
                undone.update((flow, None) for flow in others if flow.rate_bps < too_slow)
        return undone

    def _solve_all(self) -> list[tuple[Demand, float]]:
        """Water-filling over all flows; a round settles the links whose share is the lowest to all their open flows."""
        n_links = len(self._capacity_bps)
        capacity = np.array(self._capacity_bps)
        left = capacity.copy()
        band = self._above
        while band is not None:
            left[list(band._load_bps)] -= list(band._load_bps.values())
            band = band._above
        left[left <= SLACK * capacity] = 0.0
        left[NO_LINK] = INF
        flows = list(self._flows)
        lengths = np.array([len(flow.links) for flow in flows])
        hops = int(lengths.max())
        paths = np.full((len(flows), hops), NO_LINK)
        paths[np.arange(hops) < lengths[:, None]] = [link for flow in flows for link in flow.links]
        open_count = np.bincount(paths.ravel(), minlength=n_links)
        rates = np.empty(len(flows))
        bottlenecks = np.empty(len(flows), dtype=np.int64)
        still_open = np.arange(len(flows))
        while len(still_open):
            with np.errstate(divide="ignore", invalid="ignore"):
                share = np.where(open_count > 0, left / open_count, INF)
            share[NO_LINK] = INF
            offered = share[paths]
            lowest = offered.min(axis=1)
            above_lowest = offered > lowest[:, None]
            contested = np.zeros(n_links, dtype=bool)
            contested[paths[above_lowest]] = True
            holds = ~above_lowest & ~contested[paths]
            settled = holds.any(axis=1)
            rates[still_open[settled]] = lowest[settled]
            gone = paths[settled].ravel()
            bottlenecks[still_open[settled]] = paths[settled, holds[settled].argmax(axis=1)]
            left -= np.bincount(gone, weights=np.repeat(lowest[settled], hops), minlength=n_links)
            np.maximum(left, 0.0, out=left)
            left[NO_LINK] = INF
            open_count -= np.bincount(gone, minlength=n_links)
            still_open, paths = still_open[~settled], paths[~settled]
        changes = []
        self._load_bps = dict.fromkeys(self._on_link, 0.0)
        for flow, rate_bps, bottleneck in zip(flows, rates.tolist(), bottlenecks.tolist(), strict=True):
            self._hold(flow, bottleneck)
            old_bps = flow.rate_bps
            if abs(rate_bps - old_bps) > SAME * rate_bps:
                changes.append((flow, old_bps))
                flow.rate_bps = rate_bps
            for link in flow.links:
                self._load_bps[link] += flow.rate_bps
        return changes


def _fill(
    crossing: dict[int, list[Demand]], room_bps: dict[int, float], n: int
) -> tuple[dict[Demand, tuple[float, int]], dict[int, float]]:
    """Water-filling of the room on links among the `n` flows that cross them.

    The fair share of a link never falls while flows are settled at lower shares elsewhere, so a heap entry that is out
    of date only has to be put back.

    Returns
    -------
    Per flow its rate and bottleneck, and per link the room that is left.
    """
    left_bps = dict(room_bps)
    if n == 1:
        bottleneck, ((flow,), *_) = min(room_bps, key=room_bps.__getitem__), crossing.values()
        share = max(room_bps[bottleneck], 0.0)
        return {flow: (share, bottleneck)}, {link: room - share for link, room in room_bps.items()}
    unsettled = {link: len(flows) for link, flows in crossing.items()}
    heap = [(left_bps[link] / k, link) for link, k in unsettled.items()]
    heapify(heap)
    settled: dict[Demand, tuple[float, int]] = {}
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
    return settled, left_bps
