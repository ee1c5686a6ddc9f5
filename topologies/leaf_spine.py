"""A two-level leaf-spine fabric: a fat-tree of one pod without cores."""

from __future__ import annotations

from typing import Literal

from harness.errors import InputError
from harness.types import Topology
from harness.units import DurationPs, PositiveRateBps
from topologies.fabric import NIC_DELAY_PS, NVLINK_DELAY_PS, NVLINK_RATE_BPS, TOR_DELAY_PS
from topologies.fat_tree import Count, FatTree, Ratio

#: What the fat-tree calls by another name.
_OWN_KEYS = {
    "topology.uplinks_per_tor": "topology.uplinks_per_leaf",
    "topology.tor_oversubscription": "topology.oversubscription",
    "topology.tor_uplink_rate": "topology.uplink_rate",
}


class LeafSpine:
    """Leaf-spine: every leaf (`tor`) to every spine (`agg`); its tiers are 0, 1 and 2.

    Parameters
    ----------
    leaves, spines, servers_per_leaf : shape of the fabric.
    uplinks_per_leaf : spread evenly over the spines; one to each by default.
    oversubscription, oversubscribe_by, uplink_rate : as in `FatTree`, for the one level of uplinks.
    leaf_delay : one-way delay of a link between leaf and spine [ps].
    gpus_per_server, gpus_per_instance, nics_per_instance, nic_rate, nic_delay, nvlink_rate, nvlink_delay : as in
        `FatTree`.
    """

    def __init__(
        self,
        *,
        leaves: Count = 4,
        spines: Count = 4,
        servers_per_leaf: Count = 2,
        uplinks_per_leaf: Count | None = None,
        gpus_per_server: Count = 8,
        gpus_per_instance: Count = 4,
        nics_per_instance: Count = 1,
        nic_rate: PositiveRateBps = 100_000_000_000,
        oversubscription: Ratio | None = None,
        oversubscribe_by: Literal["thin", "fewer"] = "thin",
        uplink_rate: PositiveRateBps | None = None,
        nic_delay: DurationPs = NIC_DELAY_PS,
        leaf_delay: DurationPs = TOR_DELAY_PS,
        nvlink_rate: PositiveRateBps = NVLINK_RATE_BPS,
        nvlink_delay: DurationPs = NVLINK_DELAY_PS,
    ) -> None:
        self.gpus_per_server, self.gpus_per_instance = gpus_per_server, gpus_per_instance
        try:
            self._tree = FatTree(
                name="leaf-spine",
                pods=1,
                racks_per_pod=leaves,
                servers_per_rack=servers_per_leaf,
                gpus_per_server=gpus_per_server,
                gpus_per_instance=gpus_per_instance,
                nics_per_instance=nics_per_instance,
                nic_rate=nic_rate,
                aggs_per_pod=spines,
                uplinks_per_tor=spines if uplinks_per_leaf is None else uplinks_per_leaf,
                uplinks_per_agg=0,
                cores=0,
                tor_oversubscription=oversubscription,
                oversubscribe_by=oversubscribe_by,
                tor_uplink_rate=uplink_rate,
                nic_delay=nic_delay,
                tor_delay=leaf_delay,
                nvlink_rate=nvlink_rate,
                nvlink_delay=nvlink_delay,
            )
        except InputError as error:
            raise InputError(error.message, key=_OWN_KEYS.get(error.key, error.key)) from error

    def build(self) -> Topology:
        """Node ids: hosts, then leaves, spines."""
        return self._tree.build()
