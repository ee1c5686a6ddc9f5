"""Background traffic as a constant share of every link, without flows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from harness.backgrounds.poisson import check_tiers
from harness.errors import InputError
from harness.types import Cluster, KVFlow

#: What may be taken of a link, so that something is left; the oracle clips congestion to the same (the value is ours).
MAX_SHARE = 0.99


class ConstantBackground:
    """No flows; instead a constant share of both directions of every link of a tier is not there for KV caches.

    This is the residual bandwidth B (1 - c) of NetKV's flow-level simulator (arXiv 2606.03910). Both network models run
    on links whose rates are reduced by it, rounded once to whole bit/s, so whatever follows from a link's rate in the
    packet model follows from the reduced one: ECN thresholds (`scale_with_rate`), PFC headroom, a flow's ideal
    completion time, and, for tier 1, the NICs' line rate and with it DCQCN's steps. What the oracle tells of the tiers
    and the utilisation in the tables refer to the nominal rates. Link counters do not show the share: `oracle: {use:
    constant}` tells a scheduler of it. Leaves out bursts, and that real traffic yields to KV caches or takes from them.

    Parameters
    ----------
    share : per tier (1, 2, 3) the share of link capacity taken, in [0, 0.99].
    cluster : the instances, and the topology whose links are meant.

    Raises
    ------
    InputError : a share out of range, or a tier without links.
    """

    def __init__(self, *, share: dict[int, float], cluster: Cluster) -> None:
        check_tiers(share, cluster)
        for tier, s in share.items():
            if not 0 <= s <= MAX_SHARE:
                raise InputError(f"{s} given; a share in [0, {MAX_SHARE}]", key=f"background.share.{tier}")
        self.taken_share: Mapping[int, float] = share

    def flows(self) -> Iterator[tuple[int, KVFlow]]:
        """Nothing."""
        return iter(())
