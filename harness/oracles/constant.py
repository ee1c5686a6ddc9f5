"""A network cost oracle that measures nothing."""

from __future__ import annotations

from harness.errors import InputError
from harness.oracles.sampled import MAX_CONGESTION, tier_map
from harness.types import N_TIERS, Cluster, NetworkSample, OracleSnapshot, TierFacts


class ConstantOracle:
    """The same congestion at all times, whatever the network does.

    With the shares of a `constant` background it is perfect knowledge of it; with others, an oracle that is wrong by
    design.

    Parameters
    ----------
    congestion : per tier (0 to 3) what the scheduler is told, in [0, 0.99]; 0 for a tier that is not listed.
    cluster : the instances.
    tiers : bandwidth and latency as the scheduler is told.

    Raises
    ------
    InputError : no such tier, or a congestion out of range.
    """

    interval_ps = 10**12  # of samples that are not looked at

    def __init__(self, *, congestion: dict[int, float], cluster: Cluster, tiers: TierFacts) -> None:
        for tier, c in congestion.items():
            if tier not in range(N_TIERS):
                raise InputError(f"tier {tier} given; allowed: 0, 1, 2, 3", key="oracle.congestion")
            if not 0 <= c <= MAX_CONGESTION:
                message = f"{c} given; a number in [0, {MAX_CONGESTION}]"
                raise InputError(message, key=f"oracle.congestion.{tier}")
        self._snapshot = OracleSnapshot(
            sampled_ps=0,
            tier_map=tier_map(cluster),
            tier_bandwidth_bps=tiers.bandwidth_bps,
            tier_latency_ps=tiers.latency_ps,
            congestion=tuple(congestion.get(tier, 0.0) for tier in range(N_TIERS)),
        )

    def observe(self, sample: NetworkSample) -> None:
        """Nothing changes."""

    def snapshot(self, now_ps: int) -> OracleSnapshot:  # noqa: ARG002 (the same at all times)
        """What the configuration says."""
        return self._snapshot
