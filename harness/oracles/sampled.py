"""The network cost oracle, fed by periodic samples of the link counters."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Literal

import numpy as np

from harness.errors import InputError
from harness.types import N_TIERS, TRAFFIC_CLASSES, Cluster, Int64Array, NetworkSample, OracleSnapshot, TierFacts
from harness.units import DurationPs, PositiveDurationPs

#: Congestion is clipped here, so that an effective bandwidth is never 0 (1 % of the tier's is left).
MAX_CONGESTION = 0.99

_KV = TRAFFIC_CLASSES.index("kv")


def tier_map(cluster: Cluster) -> Callable[[int, int], int]:
    """From a prefill and a decode instance to their tier."""
    tiers = {p: {d: cluster.tier(p, d) for d in cluster.decode} for p in cluster.prefill}
    return lambda prefill, decode: tiers[prefill][decode]


class SampledOracle:
    """Tier map, bandwidth and latency as given; congestion of a tier from its links' counters.

    The congestion of tier t is a statistic, over both directions of all links of that tier, of the share of the
    direction's capacity that was used since the last sample by traffic that does not bear the KV class's DSCP:
    background and control (ACK and CNP frames, which take capacity from KV data wherever they come from), on the wire.
    It is clipped to [0, 0.99]. Before the first visible sample, and for a tier without links, it is 0. A tier's links
    are those that `Link.tier` names: what a cross-pod path shares with same-pod paths counts for tier 2, not tier 3.

    Parameters
    ----------
    interval : between samples [ps].
    delay : from sampling until the scheduler sees it [ps].
    statistic : over the links of a tier.
    class_separation : False: KV traffic counts as well, and the snapshot says so (n_inflight is then read as 0).
    cluster : the instances, and the topology whose links are sampled.
    tiers : bandwidth and latency as the scheduler is told.
    """

    def __init__(
        self,
        *,
        interval: PositiveDurationPs = 10**12,
        delay: DurationPs = 0,
        statistic: Literal["mean", "p95", "max"] = "mean",
        class_separation: bool = True,
        cluster: Cluster,
        tiers: TierFacts,
    ) -> None:
        if interval <= 0:
            raise InputError(f"{interval} ps given; more than 0", key="oracle.interval")
        if delay < 0:
            raise InputError(f"{delay} ps given; at least 0", key="oracle.delay")
        self.interval_ps = interval
        self._delay_ps = delay
        self._statistic = statistic
        self._classes = [i for i in range(len(TRAFFIC_CLASSES)) if i != _KV or not class_separation]
        links = cluster.topology.links
        tier_of_port = np.repeat([link.tier for link in links], 2)
        self._rate_bps = np.repeat(np.array([link.rate_bps for link in links], dtype=np.float64), 2)
        self._ports_of_tier = [np.flatnonzero(tier_of_port == tier) for tier in range(N_TIERS)]
        self._last_ps = 0
        self._last_bytes: Int64Array = np.zeros(2 * len(links), dtype=np.int64)

        self._tier_map = tier_map(cluster)
        self._tiers = tiers
        self._class_separation = class_separation
        self._visible = self._snapshot(0, (0.0,) * N_TIERS)
        self._unpublished: deque[OracleSnapshot] = deque()

    def observe(self, sample: NetworkSample) -> None:
        """Take in the counters at `sample.now_ps`, which is later than those of the last call."""
        used_bytes = sample.tx_bytes[:, self._classes].sum(axis=1)
        elapsed_s = (sample.now_ps - self._last_ps) / 1e12
        share = (used_bytes - self._last_bytes) * 8 / (self._rate_bps * elapsed_s)
        self._last_ps, self._last_bytes = sample.now_ps, used_bytes
        congestion = tuple(self._reduce(share[ports]) for ports in self._ports_of_tier)
        self._unpublished.append(self._snapshot(sample.now_ps, congestion))

    def snapshot(self, now_ps: int) -> OracleSnapshot:
        """The last sample published by `now_ps`; calls must not go back in time."""
        while self._unpublished and self._unpublished[0].sampled_ps + self._delay_ps <= now_ps:
            self._visible = self._unpublished.popleft()
        return self._visible

    def _reduce(self, share: np.typing.NDArray[np.float64]) -> float:
        if not share.size:
            return 0.0
        match self._statistic:
            case "mean":
                value = float(share.mean())
            case "p95":
                value = float(np.percentile(share, 95))
            case "max":
                value = float(share.max())
        return min(max(value, 0.0), MAX_CONGESTION)

    def _snapshot(self, sampled_ps: int, congestion: tuple[float, ...]) -> OracleSnapshot:
        return OracleSnapshot(
            sampled_ps=sampled_ps,
            tier_map=self._tier_map,
            tier_bandwidth_bps=self._tiers.bandwidth_bps,
            tier_latency_ps=self._tiers.latency_ps,
            congestion=congestion,
            class_separation=self._class_separation,
        )
