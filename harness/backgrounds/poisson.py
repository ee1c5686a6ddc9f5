"""Background traffic: none, or flows of random size that start as a Poisson process."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Literal, TypeVar

import numpy as np

from harness.errors import InputError
from harness.types import N_TIERS, Cluster, Int64Array, KVFlow
from harness.units import PositiveSizeBytes

_BATCH = 1024  # flows drawn at a time
_Item = TypeVar("_Item")


class NoBackground:
    """No traffic but KV caches."""

    taken_share: ClassVar[Mapping[int, float]] = {}

    def flows(self) -> Iterator[tuple[int, KVFlow]]:
        """Nothing."""
        return iter(())


class PoissonBackground:
    """Flows between NICs of random instances, so that the links of each tier carry a given share of their capacity.

    A flow of distance t (1 same rack, 2 same pod, 3 cross pod) climbs through one link of each tier 1..t and descends
    through one of each, so flows of distance t that offer A_t bit/s in all load the directed links of every tier k <= t
    with 2 A_t. With C_k the capacity of the links of tier k, both directions added, a share s_k asks for

        2 (A_k + A_(k+1) + ... + A_3) = s_k C_k.

    From the top down: A_k = s_k C_k / 2 - (A_(k+1) + ... + A_3), which must not be negative. A tier that `share` does
    not list has no flows of its own (A_k = 0) and carries only what crosses it to a higher one. The shares are means
    over a tier's links; single links differ with the hashed paths and the placement of instances. They count payload:
    frame headers come on top (2 % of the share for 4096-byte payloads).

    Starts are Poisson with rate A_t / (8 mean_size); source and destination are uniform over the ordered pairs of
    instances of distance t that a uniform source allows, the NICs uniform over the instance's.

    Parameters
    ----------
    share : per tier (1, 2, 3) the share of link capacity used, in [0, 1).
    mean_size : mean flow size [bytes]. 10 MB is our choice, from no measurement: short beside a KV cache (milliseconds
        at these rates, not hundreds), long enough for congestion control to act, and few enough flows for the fluid
        models, whose cost grows with the number of flows.
    size : distribution of sizes, rounded up to whole bytes. lognormal has a heavy tail, see `sigma`.
    sigma : of the lognormal's logarithm; 2 puts half of the bytes into the largest 2.3 % of flows.
    seed : of starts, sizes, pairs and paths.
    cluster : the instances.

    Raises
    ------
    InputError : a share out of range, a tier without links or pairs, or shares that no traffic can produce.
    """

    taken_share: ClassVar[Mapping[int, float]] = {}

    def __init__(
        self,
        *,
        share: dict[int, float],
        mean_size: PositiveSizeBytes = 10_000_000,
        size: Literal["exponential", "fixed", "lognormal"] = "exponential",
        sigma: float = 2.0,
        seed: int,
        cluster: Cluster,
    ) -> None:
        if mean_size <= 0:
            raise InputError(f"{mean_size} bytes given; more than 0", key="background.mean_size")
        if not 0 < sigma < 10:
            raise InputError(f"{sigma} given; a number between 0 and 10", key="background.sigma")
        self._mean_size_bytes, self._size, self._sigma, self._seed = mean_size, size, sigma, seed
        self._cluster = cluster
        self._peers = _peers_by_tier(cluster)
        self.offered_bps = _offered_bps(share, cluster)  #: per tier 0..3 the rate A_t of flows of that distance [bit/s]
        for tier, rate_bps in enumerate(self.offered_bps):
            if rate_bps > 0 and not self._peers[tier]:
                raise InputError(
                    f"no two instances are at this distance; pairs: {[t for t in (1, 2, 3) if self._peers[t]]}",
                    key=f"background.share.{tier}",
                )

    def flows(self) -> Iterator[tuple[int, KVFlow]]:
        """Start times [ps] and flows, without end; nothing if all shares are 0. Every call begins anew."""
        rng = np.random.default_rng(self._seed)
        total_bps = sum(self.offered_bps)
        if not total_bps:
            return
        mean_gap_ps = 8e12 * self._mean_size_bytes / total_bps
        tier_shares = [rate_bps / total_bps for rate_bps in self.offered_bps]
        instances = self._cluster.instances
        now_ps, flow_id = 0, 0
        while True:
            gaps_ps = np.rint(rng.exponential(mean_gap_ps, _BATCH)).astype(np.int64).tolist()
            sizes_bytes = self._draw_sizes(rng).tolist()
            tiers = rng.choice(N_TIERS, size=_BATCH, p=tier_shares).tolist()
            picks = rng.random((_BATCH, 4)).tolist()
            for gap_ps, size_bytes, tier, (u_src, u_dst, u_src_nic, u_dst_nic) in zip(
                gaps_ps, sizes_bytes, tiers, picks, strict=True
            ):
                now_ps += gap_ps
                src, peers = _pick(self._peers[tier], u_src)
                src_nic = _pick(instances[src].nic_ports, u_src_nic)
                dst_nic = _pick(instances[_pick(peers, u_dst)].nic_ports, u_dst_nic)
                yield now_ps, KVFlow(flow_id, "background", (src_nic,), (dst_nic,), size_bytes, self._seed)
                flow_id += 1

    def _draw_sizes(self, rng: np.random.Generator) -> Int64Array:
        mean = self._mean_size_bytes
        match self._size:
            case "fixed":
                sizes = np.full(_BATCH, float(mean))
            case "exponential":
                sizes = rng.exponential(mean, _BATCH)
            case "lognormal":
                sizes = rng.lognormal(math.log(mean) - self._sigma**2 / 2, self._sigma, _BATCH)
        whole: Int64Array = np.maximum(np.ceil(sizes), 1).astype(np.int64)
        return whole


def _pick(items: Sequence[_Item], u: float) -> _Item:
    """The item at the share `u`, in [0, 1), of the sequence."""
    return items[int(u * len(items))]


#: The source instances of one distance, each with the instances at that distance from it.
_Peers = tuple[tuple[int, tuple[int, ...]], ...]


def _peers_by_tier(cluster: Cluster) -> tuple[_Peers, ...]:
    ids = range(len(cluster.instances))
    peers: list[dict[int, list[int]]] = [{} for _ in range(N_TIERS)]
    for a in ids:
        for b in ids:
            if a != b:
                peers[cluster.tier(a, b)].setdefault(a, []).append(b)
    return tuple(tuple((a, tuple(bs)) for a, bs in by_source.items()) for by_source in peers)


def check_tiers(share: Mapping[int, float], cluster: Cluster) -> None:
    """Raise InputError for a share of a tier that does not exist or, unless it is 0, has no links."""
    has = sorted({link.tier for link in cluster.topology.links} & {1, 2, 3})
    for tier, s in share.items():
        if tier not in (1, 2, 3):
            raise InputError(f"tier {tier} given; allowed: 1 (host links), 2, 3", key="background.share")
        if s and tier not in has:
            raise InputError(f"{s} given; the topology has links of tiers {has} only", key=f"background.share.{tier}")


def _offered_bps(share: dict[int, float], cluster: Cluster) -> tuple[float, ...]:
    check_tiers(share, cluster)
    capacity_bps = [0] * N_TIERS
    for link in cluster.topology.links:
        capacity_bps[link.tier] += 2 * link.rate_bps
    for tier, s in share.items():
        if not 0 <= s < 1:
            raise InputError(f"{s} given; a share in [0, 1)", key=f"background.share.{tier}")
    offered_bps = [0.0] * N_TIERS
    for tier in (3, 2, 1):
        passing_bps = sum(offered_bps[tier + 1 :])
        if tier in share:
            own_bps = share[tier] * capacity_bps[tier] / 2 - passing_bps
            if own_bps < -1e-9 * passing_bps:
                least = 2 * passing_bps / capacity_bps[tier]
                raise InputError(
                    f"{share[tier]} given; the flows of the higher tiers cross these links: at least {least:.4g}",
                    key=f"background.share.{tier}",
                )
            offered_bps[tier] = max(own_bps, 0.0)
        elif passing_bps and 2 * passing_bps >= capacity_bps[tier]:
            raise InputError(
                f"the flows of the tiers above {tier} need {passing_bps / 1e9:.4g} Gbit/s of its links, which have "
                f"{capacity_bps[tier] / 2e9:.4g} a direction",
                key="background.share",
            )
    return tuple(offered_bps)
