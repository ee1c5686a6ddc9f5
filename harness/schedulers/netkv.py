"""NetKV: the decode instance of least transfer, queue and decode time (arXiv 2606.03910, Algorithm 1).

The terms of the cost are public functions. Times are [ps] and rates [bit/s], as floats: a cost is an estimate.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from harness.types import ClusterView, OracleSnapshot, Request

#: n_inflight counts no further than this, about as many flows as saturate a NIC (notes on the paper, section 7).
MAX_INFLIGHT = 16

PS_PER_S = 10**12


def effective_bandwidth_bps(bandwidth_bps: float, congestion: float, inflight: int) -> float:
    """Eq. (4): B (1 - c) / (1 + n), what a new transfer may expect of its tier's bandwidth B [bit/s].

    `congestion` c is the share of B that other traffic uses, in [0, 1); `inflight` n the number of transfers from the
    same prefill instance on the same tier, which count no further than `MAX_INFLIGHT`.
    """
    return bandwidth_bps * (1 - congestion) / (1 + min(inflight, MAX_INFLIGHT))


def transfer_time_ps(size_bytes: float, bandwidth_bps: float, latency_ps: float = 0) -> float:
    """Time to move `size_bytes` at an effective bandwidth, and one latency."""
    return size_bytes * 8 * PS_PER_S / bandwidth_bps + latency_ps


def queue_time_ps(queued: int, batch: int, max_batch: int, iteration_ps: Callable[[int], int]) -> float:
    """max(0, q - (max_batch - batch)) t_iter(batch): one iteration for each request ahead that has no slot yet."""
    excess = queued - (max_batch - batch)
    return excess * iteration_ps(max(batch, 1)) if excess > 0 else 0


def decode_time_ps(batch: int, max_batch: int, iteration_ps: Callable[[int], int]) -> float:
    """t_iter(batch + 1), with no more than `max_batch` at a time: the iteration that yields the first token."""
    return iteration_ps(min(batch + 1, max_batch))


def nearer_wins(hit_share_near: float, hit_share_far: float, bandwidth_ratio: float) -> bool:
    """Proposition 1: with equal congestion and queues the near instance, whose tier is `bandwidth_ratio` times as fast,

    transfers sooner if (1 - hit_share_near) < bandwidth_ratio (1 - hit_share_far).
    """
    return 1 - hit_share_near < bandwidth_ratio * (1 - hit_share_far)


def staleness_tolerance(
    bandwidth_near_bps: float, congestion_near: float, bandwidth_far_bps: float, congestion_far: float
) -> float:
    """Proposition 2: the error of both congestion values below which the order of two tiers is kept.

    (B (1 - c) - B' (1 - c')) / (B + B'), with the true congestion c of each tier.
    """
    residual_near = bandwidth_near_bps * (1 - congestion_near)
    residual_far = bandwidth_far_bps * (1 - congestion_far)
    return (residual_near - residual_far) / (bandwidth_near_bps + bandwidth_far_bps)


class NetKVFull:
    """NetKV with all its inputs: tier map, self-contention (n_inflight) and the oracle's congestion.

    Chooses the least transfer + queue + decode time; ties: lowest id. Requests that wait for a slot and those whose
    cache is on its way both stand in the queue, and count in the batch of the first iteration as far as there are
    slots, so that requests of one moment spread over instances that are alike. If the oracle cannot tell classes
    apart, its congestion contains the scheduler's own transfers, and n_inflight is read as 0 so that they do not count
    twice.
    """

    _use_inflight = True
    _use_congestion = True

    def choose(self, request: Request, view: ClusterView, oracle: OracleSnapshot) -> int:  # noqa: ARG002
        """The feasible instance of least cost, in time linear in their number."""
        use_inflight = self._use_inflight and oracle.class_separation
        tier_of, prefill, iteration_ps = oracle.tier_map, view.prefill, view.iteration_ps
        congestion = oracle.congestion if self._use_congestion else (0.0,) * len(oracle.congestion)
        bandwidth_bps: dict[int, float] = {}  # of a tier: n_inflight is the same for all its instances
        best, best_cost = -1, math.inf
        for d in view.decode:
            tier = tier_of(prefill, d.instance)
            if tier not in bandwidth_bps:
                bandwidth_bps[tier] = effective_bandwidth_bps(
                    oracle.tier_bandwidth_bps[tier], congestion[tier], d.inflight if use_inflight else 0
                )
            cost = (
                transfer_time_ps(d.transfer_bytes, bandwidth_bps[tier], oracle.tier_latency_ps[tier])
                + queue_time_ps(d.queued + d.reserved, d.batch, d.max_batch, iteration_ps)
                + decode_time_ps(d.batch + d.queued + d.reserved, d.max_batch, iteration_ps)
            )
            if cost < best_cost:
                best, best_cost = d.instance, cost
        return best


class NetKVStatic(NetKVFull):
    """NetKV without telemetry: tier map and self-contention (n_inflight), congestion taken as 0."""

    _use_congestion = False


class NetKVTopo(NetKVStatic):
    """NetKV with the tier map only: congestion and n_inflight taken as 0."""

    _use_inflight = False
