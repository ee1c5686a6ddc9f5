"""How far flows have drained and when they will be done, in arrays, so that many rates can change at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

PS_PER_S = 10**12

_NEVER_PS = np.iinfo(np.int64).max
#: An end further away [ps] is not told apart from this: 53 days, and sums of it and a time still fit 64 bits.
_FAR_PS = 2.0**62

_STATE = np.dtype([("left_bits", "f8"), ("rate_bps", "f8"), ("since_ps", "i8"), ("end_ps", "i8")])

#: Up to so many changes are made one by one. A matter of speed only.
_FEW = 12


class Drains:
    """Flows by slot: the bits left at some moment, the rate since then, and the end that follows.

    Ends are rounded to the nearest ps. Slots are used again.
    """

    def __init__(self) -> None:
        self._used = 0  # slots from here on have never been taken
        self._free: list[int] = []
        self._next: tuple[int, int] | None = None
        self._stale = False  # `_next` has to be looked for
        self._resize(np.empty(0, _STATE))

    def _resize(self, old: npt.NDArray[np.void]) -> None:
        self._state = np.zeros(2 * len(old) or 64, _STATE)
        self._state["end_ps"] = _NEVER_PS
        self._state[: len(old)] = old
        # Single numbers are read and written through these: several times as fast as through the array.
        numbers: list[Any] = [self._state[name].data for name in _STATE.names or ()]
        self._left_bits, self._rate_bps, self._since_ps, self._end_ps = numbers

    def add(self, bits: float, now_ps: int) -> int:
        """A slot for a flow of `bits` at rate 0."""
        if self._free:
            slot = self._free.pop()
        else:
            if self._used == len(self._state):
                self._resize(self._state)
            slot = self._used
            self._used += 1
        self._left_bits[slot], self._rate_bps[slot], self._since_ps[slot] = bits, 0.0, now_ps
        return slot

    def remove(self, slot: int) -> None:
        """The flow of `slot` is done."""
        self._end_ps[slot] = _NEVER_PS
        self._free.append(slot)
        self._stale = True

    def left_bits(self, slot: int, now_ps: int) -> float:
        """What is left of a flow now."""
        left_bits: float = self._left_bits[slot] - self._rate_bps[slot] * (now_ps - self._since_ps[slot]) / PS_PER_S
        return max(0.0, left_bits)

    def set_rates(self, slots: Sequence[int], rates_bps: Sequence[float], now_ps: int) -> None:
        """Give each flow another rate from now on."""
        self._stale = True
        if len(slots) <= _FEW:
            for slot, rate_bps in zip(slots, rates_bps, strict=True):
                left_bits = self.left_bits(slot, now_ps)
                self._left_bits[slot], self._rate_bps[slot], self._since_ps[slot] = left_bits, rate_bps, now_ps
                duration_ps = left_bits * PS_PER_S / rate_bps if rate_bps else _FAR_PS
                self._end_ps[slot] = now_ps + round(duration_ps) if duration_ps < _FAR_PS else _NEVER_PS
            return
        chosen = np.array(slots)
        rates = np.array(rates_bps)
        state = self._state[chosen]
        drained_bits = state["rate_bps"] * (now_ps - state["since_ps"]) / PS_PER_S
        state["left_bits"] = np.maximum(0.0, state["left_bits"] - drained_bits)
        state["rate_bps"] = rates
        state["since_ps"] = now_ps
        with np.errstate(divide="ignore", invalid="ignore"):
            durations_ps = np.where(rates > 0.0, state["left_bits"] * PS_PER_S / rates, _FAR_PS)
        near = durations_ps < _FAR_PS
        state["end_ps"] = _NEVER_PS
        state["end_ps"][near] = now_ps + np.rint(durations_ps[near]).astype(np.int64)
        self._state[chosen] = state

    def next_end(self) -> tuple[int, int] | None:
        """The earliest end [ps] and its slot, the lowest among equals; None if there is none."""
        if self._stale:
            self._stale = False
            slot = int(self._state["end_ps"][: self._used].argmin())
            end_ps = self._end_ps[slot]
            self._next = None if end_ps == _NEVER_PS else (end_ps, slot)
        return self._next
