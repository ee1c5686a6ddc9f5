"""The prefix cache against a model that keeps everything in plain lists and counts anew every time."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from harness.prefix_cache import BlockKey, Lease, PrefixCache, block_keys

BLOCK = 4


def run(cache: PrefixCache, hashes: tuple[int, ...], input_tokens: int, output_tokens: int) -> tuple[Lease, int]:
    """Reserve and publish; also the hit."""
    keys = block_keys(hashes, input_tokens, BLOCK)
    n_hit = cache.hit_blocks(keys)
    assert cache.fits(keys, n_hit, input_tokens + output_tokens)
    lease = cache.reserve(keys, n_hit, input_tokens + output_tokens)
    cache.publish(lease)
    return lease, n_hit


def test_a_partial_last_block_equals_only_one_of_its_length() -> None:
    assert block_keys((7, 8, 9), 12, BLOCK) == (7, 8, 9)
    assert block_keys((7, 8, 9), 10, BLOCK) == (7, 8, (9, 2))
    cache = PrefixCache(100, BLOCK)
    run(cache, (7, 8, 9), 10, 1)
    assert cache.hit_blocks(block_keys((7, 8, 9), 10, BLOCK)) == 3
    assert cache.hit_blocks(block_keys((7, 8, 9), 11, BLOCK)) == 2
    assert cache.hit_blocks(block_keys((7, 8, 9), 12, BLOCK)) == 2


def test_hit_is_the_leading_run() -> None:
    cache = PrefixCache(100, BLOCK)
    run(cache, (1, 2, 3, 4), 16, 1)
    assert cache.hit_blocks((1, 2, 9, 4)) == 2
    assert cache.hit_blocks((9, 2, 3, 4)) == 0
    assert cache.run_tokens(()) == 0
    assert cache.run_tokens((1, 2, (3, 1))) == 9


def test_blocks_are_resident_once_the_transfer_is_done_and_stay_after_the_end() -> None:
    cache = PrefixCache(100, BLOCK)
    lease = cache.reserve((1, 2), 0, 10)
    assert (cache.hit_blocks((1, 2)), cache.free_tokens, cache.resident_tokens) == (0, 90, 0)
    cache.publish(lease)
    assert (cache.hit_blocks((1, 2)), cache.free_tokens, cache.resident_tokens) == (2, 90, 8)
    cache.release(lease)
    assert (cache.hit_blocks((1, 2)), cache.free_tokens, cache.resident_tokens) == (2, 100, 8)


def test_requests_share_resident_blocks() -> None:
    cache = PrefixCache(20, BLOCK)
    first, _ = run(cache, (1, 2), 8, 2)  # 10 of 20
    second, n_hit = run(cache, (1, 2, 3), 12, 2)  # 6 more
    assert (n_hit, cache.free_tokens) == (2, 4)
    cache.release(first)
    assert cache.free_tokens == 6  # its output; the blocks are pinned by the other
    cache.release(second)
    assert (cache.free_tokens, cache.resident_tokens) == (20, 12)


def test_a_block_that_came_twice_is_kept_once() -> None:
    cache = PrefixCache(20, BLOCK)
    leases = [cache.reserve((1, 2), 0, 9) for _ in range(2)]
    assert cache.free_tokens == 2
    for lease in leases:
        cache.publish(lease)
    assert (cache.free_tokens, cache.resident_tokens) == (10, 8)


def test_least_recently_used_blocks_give_way_tails_first() -> None:
    cache = PrefixCache(20, BLOCK)
    for hashes in ((1, 2), (3, 4)):
        cache.release(run(cache, hashes, 8, 1)[0])
    cache.release(run(cache, (1, 2), 8, 1)[0])  # used again: 3 and 4 are the oldest now
    lease, _ = run(cache, (5,), 4, 4)  # 8 tokens; 16 of 20 are resident
    assert [cache.hit_blocks((h,)) for h in (1, 2, 3, 4, 5)] == [1, 1, 1, 0, 1]
    cache.release(lease)


def test_pinned_blocks_do_not_give_way() -> None:
    cache = PrefixCache(20, BLOCK)
    run(cache, (1, 2), 8, 1)
    keys = (3, 4, 5)
    assert not cache.fits(keys, 0, 12)
    assert cache.fits(keys, 0, 11)


def test_an_idle_hit_takes_memory_like_any_other_block() -> None:
    cache = PrefixCache(12, BLOCK)
    cache.release(run(cache, (1, 2), 8, 1)[0])
    run(cache, (9,), 4, 1)  # 7 left, in which one of the two blocks stays
    assert cache.hit_blocks((1, 2)) == 1
    assert not cache.fits((1, 2), 1, 8)
    assert cache.fits((1,), 1, 7)


@dataclass
class Model:
    """Brute force: leases as (keys, published, hit, total), resident blocks in order of last use."""

    capacity: int
    leases: dict[int, tuple[tuple[BlockKey, ...], bool, int, int]] = field(default_factory=dict)
    resident: list[BlockKey] = field(default_factory=list)

    @staticmethod
    def tokens(key: BlockKey) -> int:
        return key[1] if isinstance(key, tuple) else BLOCK

    def pinned(self) -> set[BlockKey]:
        return {k for keys, published, n_hit, _ in self.leases.values() for k in (keys if published else keys[:n_hit])}

    def private(self) -> int:
        return sum(
            total - sum(map(self.tokens, keys if published else keys[:n_hit]))
            for keys, published, n_hit, total in self.leases.values()
        )

    def free(self) -> int:
        return self.capacity - self.private() - sum(map(self.tokens, self.pinned()))

    def hit(self, keys: tuple[BlockKey, ...]) -> int:
        return next((n for n, key in enumerate(keys) if key not in self.resident), len(keys))

    def fits(self, keys: tuple[BlockKey, ...], total: int) -> bool:
        hit = set(keys[: self.hit(keys)])
        new_pins = sum(map(self.tokens, hit - self.pinned()))
        return self.free() >= new_pins + total - sum(map(self.tokens, hit))

    def reserve(self, i: int, keys: tuple[BlockKey, ...], total: int) -> None:
        self.leases[i] = (keys, False, self.hit(keys), total)
        while self.private() + sum(map(self.tokens, self.resident)) > self.capacity:
            self.resident.remove(next(key for key in self.resident if key not in self.pinned()))

    def publish(self, i: int) -> None:
        keys, _, n_hit, total = self.leases[i]
        self.leases[i] = (keys, True, n_hit, total)
        self.resident += [key for key in keys if key not in self.resident]

    def release(self, i: int) -> None:
        keys = self.leases.pop(i)[0]
        for key in reversed(keys):
            if key not in self.pinned():
                self.resident.remove(key)
                self.resident.append(key)


@settings(max_examples=300, deadline=None)
@given(
    capacity=st.integers(8, 60),
    steps=st.lists(
        st.one_of(
            # A prompt: a document, how many of its tokens, and the output.
            st.tuples(st.just("reserve"), st.integers(0, 3), st.integers(1, 24), st.integers(1, 6)),
            st.tuples(st.sampled_from(["publish", "release"]), st.integers(0, 5)),
        ),
        max_size=40,
    ),
)
def test_against_brute_force(capacity: int, steps: list[tuple[str, int] | tuple[str, int, int, int]]) -> None:
    cache, model = PrefixCache(capacity, BLOCK), Model(capacity)
    leases: dict[int, Lease] = {}
    for i, step in enumerate(steps):
        if len(step) == 4:
            _, document, n_in, n_out = step
            # Documents 0 and 1 begin alike, as do 2 and 3.
            hashes = tuple((document // 2 if k < 2 else document) * 100 + k for k in range(-(-n_in // BLOCK)))
            keys = block_keys(hashes, n_in, BLOCK)
            n_hit = cache.hit_blocks(keys)
            assert n_hit == model.hit(keys)
            assert cache.fits(keys, n_hit, n_in + n_out) == model.fits(keys, n_in + n_out)
            if model.fits(keys, n_in + n_out):
                model.reserve(i, keys, n_in + n_out)
                leases[i] = cache.reserve(keys, n_hit, n_in + n_out)
        elif step[0] == "publish":
            waiting = [j for j, lease in leases.items() if not model.leases[j][1]]
            if waiting:
                j = waiting[step[1] % len(waiting)]
                model.publish(j)
                cache.publish(leases[j])
        else:
            running = [j for j in leases if model.leases[j][1]]
            if running:
                j = running[step[1] % len(running)]
                model.release(j)
                cache.release(leases.pop(j))
        assert cache.free_tokens == model.free()
        assert cache.resident_tokens == sum(map(model.tokens, model.resident))
        assert cache.resident_tokens + model.private() <= capacity
