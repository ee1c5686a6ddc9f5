"""The k-ary fat-tree of commodity switches: Al-Fares et al., SIGCOMM 2008, doi:10.1145/1402958.1402967."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from harness.errors import InputError
from harness.types import Topology
from harness.units import DurationPs, PositiveRateBps
from topologies.fabric import AGG_DELAY_PS, NIC_DELAY_PS, NVLINK_DELAY_PS, NVLINK_RATE_BPS, TOR_DELAY_PS
from topologies.fat_tree import Count, FatTree


class KAry:
    """k-ary fat-tree: k pods of k/2 racks of k/2 servers, (k/2)^2 cores, every link of one rate.

    Parameters
    ----------
    k : ports of a switch, even.
    link_rate : of every link [bit/s]. With one NIC a server (the default) the fabric is not oversubscribed.
    gpus_per_server, gpus_per_instance, nics_per_instance, nic_delay, tor_delay, agg_delay, nvlink_rate,
    nvlink_delay : as in `FatTree`.

    Raises
    ------
    InputError : k is odd.
    """

    def __init__(
        self,
        *,
        k: Annotated[int, Field(ge=2)] = 4,
        link_rate: PositiveRateBps = 100_000_000_000,
        gpus_per_server: Count = 4,
        gpus_per_instance: Count = 4,
        nics_per_instance: Count = 1,
        nic_delay: DurationPs = NIC_DELAY_PS,
        tor_delay: DurationPs = TOR_DELAY_PS,
        agg_delay: DurationPs = AGG_DELAY_PS,
        nvlink_rate: PositiveRateBps = NVLINK_RATE_BPS,
        nvlink_delay: DurationPs = NVLINK_DELAY_PS,
    ) -> None:
        if k % 2:
            raise InputError(f"given {k}: must be even", key="topology.k")
        half = k // 2
        self.gpus_per_server, self.gpus_per_instance = gpus_per_server, gpus_per_instance
        self._tree = FatTree(
            name=f"{k}-ary",
            pods=k,
            racks_per_pod=half,
            servers_per_rack=half,
            gpus_per_server=gpus_per_server,
            gpus_per_instance=gpus_per_instance,
            nics_per_instance=nics_per_instance,
            nic_rate=link_rate,
            aggs_per_pod=half,
            uplinks_per_tor=half,
            uplinks_per_agg=half,
            cores=half * half,
            tor_uplink_rate=link_rate,
            agg_uplink_rate=link_rate,
            nic_delay=nic_delay,
            tor_delay=tor_delay,
            agg_delay=agg_delay,
            nvlink_rate=nvlink_rate,
            nvlink_delay=nvlink_delay,
        )

    def build(self) -> Topology:
        """Node ids: hosts, then ToRs, aggregation switches, cores."""
        return self._tree.build()
