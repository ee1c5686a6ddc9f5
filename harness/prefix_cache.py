"""The KV memory of one instance: what running requests hold, and the prefix blocks cached in what they leave."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

#: A block's identity: its hash if it is full, (hash, tokens) if it is the partial last block of a prompt.
BlockKey = int | tuple[int, int]


def block_keys(block_hashes: Sequence[int], input_tokens: int, block_tokens: int) -> tuple[BlockKey, ...]:
    """The keys of a prompt's blocks; a partial last block is equal only to one of as many tokens.

    `block_hashes` has one hash per `block_tokens` tokens begun, i.e. ceil(input_tokens / block_tokens) of them.
    """
    partial = input_tokens % block_tokens
    if not partial:
        return tuple(block_hashes)
    return (*block_hashes[:-1], (block_hashes[-1], partial))


@dataclass(slots=True)
class Lease:
    """Memory that one request holds: `private_tokens` of its own, and resident blocks `keys[:n_resident]`, pinned."""

    keys: tuple[BlockKey, ...]
    n_resident: int
    private_tokens: int


class PrefixCache:
    """KV memory of one instance as tokens: leases of running requests, and an LRU of idle prefix blocks.

    A block is resident from the moment its request's cache has arrived (`publish`); it is pinned while a request that
    contains it runs, and idle afterwards. Idle blocks give way, least recently used first, whenever a lease needs
    their memory; of one request's blocks, the last gives way first, so that leading runs survive. Requests that run at
    the same time share resident blocks; a block that two of them bring at once is kept once. At all times

        private + pinned + idle tokens <= capacity,    free = capacity - private - pinned.

    A hit may cover a whole prompt. It then saves the whole transfer, and nothing else: the request still needs
    memory for its output, a batch slot, and one decode iteration before its first token.

    Left out: caches of generated tokens are dropped at the end of the request, not offered as prefixes; fragmentation.

    Parameters
    ----------
    capacity_tokens : memory for KV caches [tokens].
    block_tokens : tokens of a full block.
    """

    def __init__(self, capacity_tokens: int, block_tokens: int) -> None:
        self.free_tokens = capacity_tokens  #: what running requests leave; idle blocks count as free
        self._block_tokens = block_tokens
        self._pins: dict[BlockKey, int] = {}  # resident block -> requests that hold it; 0 where idle
        self._idle: OrderedDict[BlockKey, None] = OrderedDict()  # least recently used first
        self._pinned_tokens = self._idle_tokens = 0

    @property
    def resident_tokens(self) -> int:
        """Tokens in resident blocks, pinned and idle."""
        return self._pinned_tokens + self._idle_tokens

    def hit_blocks(self, keys: Sequence[BlockKey]) -> int:
        """Length of the longest leading run of resident blocks."""
        pins = self._pins
        for n, key in enumerate(keys):
            if key not in pins:
                return n
        return len(keys)

    def run_tokens(self, keys: Sequence[BlockKey]) -> int:
        """Tokens in a leading run of blocks of one prompt."""
        if not keys:
            return 0
        return (len(keys) - 1) * self._block_tokens + self._tokens(keys[-1])

    def fits(self, keys: Sequence[BlockKey], n_hit: int, total_tokens: int) -> bool:
        """Whether a request of `total_tokens` (prompt and output) whose first `n_hit` blocks are resident has room."""
        if total_tokens <= self.free_tokens:
            return True
        pinned_hit_tokens = sum(self._tokens(key) for key in keys[:n_hit] if self._pins[key])
        return total_tokens - pinned_hit_tokens <= self.free_tokens

    def reserve(self, keys: tuple[BlockKey, ...], n_hit: int, total_tokens: int) -> Lease:
        """Take memory for a request that `fits`: pin its hit and set the rest apart, evicting idle blocks."""
        hit = keys[:n_hit]
        for key in hit:
            self._pin(key)
        lease = Lease(keys, n_hit, total_tokens - self.run_tokens(hit))
        self.free_tokens -= lease.private_tokens
        while self._idle_tokens > self.free_tokens:
            assert self._idle, "reserved a request that does not fit"
            key, _ = self._idle.popitem(last=False)
            del self._pins[key]
            self._idle_tokens -= self._tokens(key)
        return lease

    def publish(self, lease: Lease) -> None:
        """The prompt's cache has arrived: all its blocks are resident from now on, pinned by this request."""
        for key in lease.keys[lease.n_resident :]:
            tokens = self._tokens(key)
            lease.private_tokens -= tokens
            self.free_tokens += tokens
            if key in self._pins:
                self._pin(key)
            else:
                self._pins[key] = 1
                self._pinned_tokens += tokens
                self.free_tokens -= tokens
        lease.n_resident = len(lease.keys)

    def release(self, lease: Lease) -> None:
        """The request is done: its own memory is free, its blocks stay as long as nobody needs their room."""
        self.free_tokens += lease.private_tokens
        for key in reversed(lease.keys[: lease.n_resident]):
            self._pins[key] -= 1
            if not self._pins[key]:
                tokens = self._tokens(key)
                self._idle[key] = None
                self._pinned_tokens -= tokens
                self.free_tokens += tokens
                self._idle_tokens += tokens

    def _tokens(self, key: BlockKey) -> int:
        return key[1] if isinstance(key, tuple) else self._block_tokens

    def _pin(self, key: BlockKey) -> None:
        if not self._pins[key]:
            tokens = self._tokens(key)
            del self._idle[key]
            self._idle_tokens -= tokens
            self._pinned_tokens += tokens
            self.free_tokens -= tokens
        self._pins[key] += 1
