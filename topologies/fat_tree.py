"""A three-level fat-tree (Clos) of pods, racks and servers, oversubscribed at either level of uplinks."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Annotated, Literal

from pydantic import Field

from harness.errors import InputError
from harness.types import Topology
from harness.units import DurationPs, PositiveRateBps
from topologies.fabric import (
    AGG_DELAY_PS,
    NIC_DELAY_PS,
    NVLINK_DELAY_PS,
    NVLINK_RATE_BPS,
    TOR_DELAY_PS,
    Fabric,
    instances_per_server,
)

Count = Annotated[int, Field(ge=1)]
CountOrNone = Annotated[int, Field(ge=0)]
Ratio = Annotated[float, Field(gt=0)]


class FatTree:
    """Fat-tree: every ToR to every aggregation switch of its pod, aggregation switch j to every core of plane j.

    A level's uplinks carry its downlink capacity divided by the oversubscription. With `thin` all uplinks are there
    and have a lower rate; with `fewer` they have the full rate, there are fewer of them, and switches to which no
    link leads are left out. A given uplink rate is taken as it is, in place of a ratio.

    Parameters
    ----------
    pods, racks_per_pod, servers_per_rack, gpus_per_server : shape of the fabric.
    gpus_per_instance : tensor-parallel degree; a server holds gpus_per_server / gpus_per_instance instances, each with
        `nics_per_instance` NICs, and an NVLink between every two of them.
    nic_rate : of one NIC [bit/s].
    aggs_per_pod : aggregation switches of a pod; 0 (in a fabric of one rack) for none.
    uplinks_per_tor : of one ToR, spread evenly over the aggregation switches.
    uplinks_per_agg : of one aggregation switch, spread evenly over the cores of its plane.
    cores : of the whole fabric, in as many planes as a pod has aggregation switches.
    tor_oversubscription, agg_oversubscription : downlink over uplink capacity of one switch, 1 by default.
    oversubscribe_by : how a ratio is brought about.
    tor_uplink_rate, agg_uplink_rate : of one uplink [bit/s]; excludes the ratio of the same level.
    nic_delay, tor_delay, agg_delay : one-way delay of a link to host, from ToR up, from aggregation up [ps].
    nvlink_rate, nvlink_delay : of the NVLink between two instances [bit/s], [ps].
    name : of the topology.

    Raises
    ------
    InputError : counts that do not divide evenly, or a rate and a ratio for one level.

    Notes
    -----
    A derived uplink rate is rounded to the nearest bit/s.
    """

    def __init__(
        self,
        *,
        pods: Count = 2,
        racks_per_pod: Count = 2,
        servers_per_rack: Count = 2,
        gpus_per_server: Count = 8,
        gpus_per_instance: Count = 4,
        nics_per_instance: Count = 1,
        nic_rate: PositiveRateBps = 100_000_000_000,
        aggs_per_pod: CountOrNone = 4,
        uplinks_per_tor: CountOrNone = 4,
        uplinks_per_agg: CountOrNone = 2,
        cores: CountOrNone = 8,
        tor_oversubscription: Ratio | None = None,
        agg_oversubscription: Ratio | None = None,
        oversubscribe_by: Literal["thin", "fewer"] = "thin",
        tor_uplink_rate: PositiveRateBps | None = None,
        agg_uplink_rate: PositiveRateBps | None = None,
        nic_delay: DurationPs = NIC_DELAY_PS,
        tor_delay: DurationPs = TOR_DELAY_PS,
        agg_delay: DurationPs = AGG_DELAY_PS,
        nvlink_rate: PositiveRateBps = NVLINK_RATE_BPS,
        nvlink_delay: DurationPs = NVLINK_DELAY_PS,
        name: str = "fat-tree",
    ) -> None:
        self.name = name
        self.pods, self.racks_per_pod, self.servers_per_rack = pods, racks_per_pod, servers_per_rack
        self.gpus_per_server, self.gpus_per_instance = gpus_per_server, gpus_per_instance
        self.nic_rate_bps, self.nvlink_rate_bps = nic_rate, nvlink_rate
        self.nic_delay_ps, self.tor_delay_ps, self.agg_delay_ps = nic_delay, tor_delay, agg_delay
        self.nvlink_delay_ps = nvlink_delay
        self.nics_per_server = instances_per_server(gpus_per_server, gpus_per_instance) * nics_per_instance

        by = oversubscribe_by
        down_bps = servers_per_rack * self.nics_per_server * nic_rate
        self.uplinks_per_tor, self.tor_uplink_bps = _uplinks(
            "tor", uplinks_per_tor, down_bps, tor_oversubscription, tor_uplink_rate, by
        )
        self.aggs_per_pod = _spread("uplinks_per_tor", self.uplinks_per_tor, aggs_per_pod)
        if cores and (not aggs_per_pod or cores % aggs_per_pod):
            raise InputError(f"given {cores}: must be a multiple of aggs_per_pod, {aggs_per_pod}", key="topology.cores")
        down_bps = self.aggs_per_pod and (
            racks_per_pod * (self.uplinks_per_tor // self.aggs_per_pod) * self.tor_uplink_bps
        )
        self.uplinks_per_agg, self.agg_uplink_bps = _uplinks(
            "agg", uplinks_per_agg, down_bps, agg_oversubscription, agg_uplink_rate, by
        )
        in_plane = cores // aggs_per_pod if aggs_per_pod else 0
        self.cores_per_plane = _spread("uplinks_per_agg", self.uplinks_per_agg, in_plane)

    def build(self) -> Topology:
        """Node ids: hosts, ToRs, aggregation switches, cores. Links: NICs by host, NVLinks, ToR up, aggregation up."""
        fabric = Fabric()
        racks = [(pod, pod * self.racks_per_pod + r) for pod in range(self.pods) for r in range(self.racks_per_pod)]
        hosts = [
            (fabric.add_node(f"host{rack * self.servers_per_rack + s}", "host", pod=pod, rack=rack), rack)
            for pod, rack in racks
            for s in range(self.servers_per_rack)
        ]
        tors = [fabric.add_node(f"tor{rack}", "tor", pod=pod, rack=rack) for pod, rack in racks]
        aggs = [
            [fabric.add_node(f"agg{pod * self.aggs_per_pod + j}", "agg", pod=pod) for j in range(self.aggs_per_pod)]
            for pod in range(self.pods)
        ]
        planes = [
            [fabric.add_node(f"core{j * self.cores_per_plane + c}", "core") for c in range(self.cores_per_plane)]
            for j in range(self.aggs_per_pod)
        ]
        for host, rack in hosts:
            for _ in range(self.nics_per_server):
                fabric.add_link(host, tors[rack], self.nic_rate_bps, self.nic_delay_ps, 1)
        instances = self.gpus_per_server // self.gpus_per_instance
        fabric.add_nvlinks((host for host, _ in hosts), instances, self.nvlink_rate_bps, self.nvlink_delay_ps)
        for pod, rack in racks:
            for agg in _round_robin(aggs[pod], self.uplinks_per_tor):
                fabric.add_link(tors[rack], agg, self.tor_uplink_bps, self.tor_delay_ps, 2)
        for pod in range(self.pods):
            for agg, plane in zip(aggs[pod], planes, strict=True):
                for core in _round_robin(plane, self.uplinks_per_agg):
                    fabric.add_link(agg, core, self.agg_uplink_bps, self.agg_delay_ps, 3)
        return fabric.topology(self.name)


def _round_robin(switches: list[int], links: int) -> Iterator[int]:
    return (switches[i % len(switches)] for i in range(links))


def _uplinks(
    level: str, count: int, down_bps: int, ratio: float | None, rate_bps: int | None, by: Literal["thin", "fewer"]
) -> tuple[int, int]:
    """Number and rate [bit/s] of a switch's uplinks."""
    if rate_bps is not None:
        if ratio is not None:
            raise InputError(
                f"give either {level}_uplink_rate or {level}_oversubscription, not both",
                key=f"topology.{level}_uplink_rate",
            )
        return count, rate_bps
    if not count:
        return 0, 0
    exact_ratio = Fraction(str(ratio or 1))
    if by == "thin":
        return count, round(down_bps / exact_ratio / count)
    left = count / exact_ratio
    if left.denominator != 1:
        raise InputError(
            f"{count} uplinks cannot be made fewer by {exact_ratio}: no whole number is left; "
            "choose another ratio, or oversubscribe_by: thin",
            key=f"topology.{level}_oversubscription",
        )
    return int(left), round(Fraction(down_bps, count))


def _spread(key: str, links: int, switches: int) -> int:
    """Over how many of `switches` the `links` spread evenly."""
    if links <= switches:
        return links
    if not switches or links % switches:
        raise InputError(
            f"{links} links do not spread evenly over the {switches} switches above", key=f"topology.{key}"
        )
    return switches
