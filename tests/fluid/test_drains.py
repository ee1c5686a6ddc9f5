"""The ends of draining flows: closed forms, and that one by one or many at once makes no difference."""

from __future__ import annotations

import random

import pytest

from harness.fluid import drains
from harness.fluid.drains import Drains


@pytest.fixture(params=[True, False], ids=["singly", "arrays"], autouse=True)
def _both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if not request.param:
        monkeypatch.setattr(drains, "_FEW", 0)


def test_a_change_of_rate_moves_the_end() -> None:
    flows = Drains()
    slot = flows.add(3000.0, 100)
    assert flows.next_end() is None
    flows.set_rates([slot], [1e12], 100)  # a bit per ps
    assert flows.next_end() == (3100, slot)
    flows.set_rates([slot], [0.5e12], 1100)  # 2000 bits are left
    assert flows.left_bits(slot, 1300) == 1900.0
    assert flows.next_end() == (5100, slot)
    flows.set_rates([slot], [0.0], 2100)
    assert flows.next_end() is None
    assert flows.left_bits(slot, 9000) == 1500.0


def test_ends_are_rounded_to_the_nearest_ps() -> None:
    flows = Drains()
    slots = [flows.add(2.0, 0), flows.add(4.0, 0)]
    flows.set_rates(slots, [3e12, 3e12], 0)
    assert flows.next_end() == (1, slots[0])  # 0.67 ps
    flows.remove(slots[0])
    assert flows.next_end() == (1, slots[1])  # 1.33 ps


def test_the_lowest_slot_is_the_first_of_equals() -> None:
    flows = Drains()
    slots = [flows.add(10.0, 0) for _ in range(3)]
    flows.set_rates(slots[::-1], [1e12] * 3, 0)
    for slot in slots:
        assert flows.next_end() == (10, slot)
        flows.remove(slot)
    assert flows.next_end() is None


def test_slots_are_used_again_and_there_are_always_more() -> None:
    flows = Drains()
    slots = [flows.add(1.0 + i, 0) for i in range(1000)]
    assert slots == list(range(1000))
    flows.set_rates(slots, [1e12] * 1000, 0)
    flows.remove(7)
    assert flows.add(500.0, 3) == 7
    flows.set_rates([7], [1e15], 3)
    assert [flows.left_bits(slot, 100) for slot in (7, 200, 999)] == [0.0, 101.0, 900.0]


def test_an_end_beyond_what_64_bits_hold_is_none() -> None:
    flows = Drains()
    slot = flows.add(1e12, 10**15)
    flows.set_rates([slot], [1e-9], 10**15)
    assert flows.next_end() is None


def test_many_changes_at_once_are_as_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(3)
    singly, together = Drains(), Drains()
    for flows in (singly, together):
        for i in range(50):
            flows.add(1e9 * (i + 1), 0)
    for step in range(1, 100):
        now_ps = step * 10**7
        chosen = draw.sample(range(50), draw.randint(1, 30))
        rates = [draw.choice([0.0, draw.uniform(1e6, 1e11)]) for _ in chosen]
        monkeypatch.setattr(drains, "_FEW", 50)
        singly.set_rates(chosen, rates, now_ps)
        monkeypatch.setattr(drains, "_FEW", 0)
        together.set_rates(chosen, rates, now_ps)
        assert singly.next_end() == together.next_end()
        assert all(singly.left_bits(i, now_ps) == together.left_bits(i, now_ps) for i in range(50))
