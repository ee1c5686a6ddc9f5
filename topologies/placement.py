"""Where instances stand: the slots that hosts offer, and the policies that say which prefill and which decode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations, pairwise
from typing import Annotated

from pydantic import Field

from harness.errors import InputError
from harness.interfaces import Placement, TopologyBuilder
from harness.types import Cluster, Instance, Role, Topology
from topologies.fabric import instances_per_server


@dataclass(frozen=True, slots=True)
class Slot:
    """Room for one instance: `nvlink_ports` maps the number of another slot of the host to this slot's NVLink port."""

    host: int
    gpus: int
    nic_ports: tuple[int, ...]
    nvlink_ports: Mapping[int, int]


def slots(topology: Topology, *, gpus_per_server: int, gpus_per_instance: int) -> tuple[Slot, ...]:
    """Cut every host into instances, host by host.

    The order of a host's ports alone says whose they are. Its links to other nodes are NICs: in order of their ids, an
    equal number for each instance. Its links to itself are NVLinks: in order of their ids, those of the instances
    (0, 1), (0, 2), ..., (1, 2), ...; port `2 * link.id` belongs to the former of the two.

    Raises
    ------
    InputError : GPUs or NICs do not divide into instances, or the NVLinks are not one for every pair.
    """
    per_host = instances_per_server(gpus_per_server, gpus_per_instance)
    found: list[Slot] = []
    for node in topology.nodes:
        if node.kind != "host":
            continue
        ports = topology.ports_of[node.id]
        looped = [port for port in ports if topology.port_node(port ^ 1) == node.id]
        nics = [port for port in ports if topology.port_node(port ^ 1) != node.id]
        pairs = list(combinations(range(per_host), 2))
        if not nics or len(nics) % per_host:
            raise InputError(f"{node.name} has {len(nics)} NICs: its {per_host} instances need equally many each")
        if looped and len(looped) != 2 * len(pairs):
            found_pairs = len(looped) // 2
            raise InputError(f"{node.name} has {found_pairs} NVLinks: {per_host} instances need {len(pairs)} or none")
        share = len(nics) // per_host
        base = len(found)
        nvlinks: list[dict[int, int]] = [{} for _ in range(per_host)]
        for (i, j), port in zip(pairs, looped[::2], strict=False):  # without NVLink there is nothing to pair up
            nvlinks[i][base + j] = port
            nvlinks[j][base + i] = port ^ 1
        for i in range(per_host):
            found.append(Slot(node.id, gpus_per_instance, tuple(nics[i * share : (i + 1) * share]), nvlinks[i]))
    return tuple(found)


def place(builder: TopologyBuilder, placement: Placement, instances: int | None = None) -> Cluster:
    """The cluster of a topology and a placement policy.

    Parameters
    ----------
    instances : how many of the topology's slots to use, the first ones, host by host; `None` for all.

    Raises
    ------
    InputError : there are fewer slots, or the policy leaves no prefill or no decode instance.
    """
    topology = builder.build()
    room = slots(topology, gpus_per_server=builder.gpus_per_server, gpus_per_instance=builder.gpus_per_instance)
    n = len(room) if instances is None else instances
    if n > len(room):
        gpus = len(room) * builder.gpus_per_instance
        raise InputError(
            f"given {n}: topology {topology.name} has {gpus} GPUs, room for {len(room)} instances of "
            f"{builder.gpus_per_instance} GPUs",
            key="cluster.instances",
        )
    used = room[:n]
    roles = placement.roles(topology, [slot.host for slot in used])
    if len(roles) != n:
        raise InputError(f"gives {len(roles)} roles for {n} instances", key="cluster.placement")
    for role in ("prefill", "decode"):
        if role not in roles:
            raise InputError(f"leaves no {role} instance among the {n} on {topology.name}", key="cluster.placement")
    return Cluster(
        topology,
        tuple(
            Instance(i, role, s.host, s.gpus, s.nic_ports, {j: port for j, port in s.nvlink_ports.items() if j < n})
            for i, (s, role) in enumerate(zip(used, roles, strict=True))
        ),
    )


class PrefillRacks:
    """Whole racks prefill, all others decode: the placement that NetKV's tables imply, with one rack.

    Parameters
    ----------
    racks : number of prefill racks, taken from one pod after the other, so that each pod keeps racks that decode.

    Raises
    ------
    InputError : fewer racks hold instances (on `roles`).
    """

    def __init__(self, *, racks: Annotated[int, Field(ge=1)] = 1) -> None:
        self._racks = racks

    def roles(self, topology: Topology, hosts: Sequence[int]) -> tuple[Role, ...]:
        """The role of each instance."""
        nodes = [topology.nodes[host] for host in hosts]
        pods: dict[int, list[int]] = {}
        for pod, rack in sorted({(node.pod, node.rack) for node in nodes}):
            pods.setdefault(pod, []).append(rack)
        turns = sorted((turn, pod, rack) for pod, racks in pods.items() for turn, rack in enumerate(racks))
        if self._racks >= len(turns):
            raise InputError(
                f"given {self._racks}: must leave a rack to decode; the instances stand in {len(turns)}",
                key="placement.racks",
            )
        prefill = {(pod, rack) for _, pod, rack in turns[: self._racks]}
        return tuple("prefill" if (node.pod, node.rack) in prefill else "decode" for node in nodes)


class Mixed:
    """Prefill and decode side by side: every fourth instance prefills by default, so that all tiers are used.

    Parameters
    ----------
    prefill_share : share of the instances that prefill, spread evenly in order of their ids.
    """

    def __init__(self, *, prefill_share: Annotated[float, Field(gt=0, lt=1)] = 0.25) -> None:
        self._share = Fraction(str(prefill_share))

    def roles(self, topology: Topology, hosts: Sequence[int]) -> tuple[Role, ...]:  # noqa: ARG002
        """The role of each instance."""
        whole = [int(i * self._share) for i in range(len(hosts) + 1)]
        return tuple("prefill" if after > before else "decode" for before, after in pairwise(whole))


class PlacementList:
    """Instances named one by one.

    Parameters
    ----------
    prefill : ids of the instances that prefill; all others decode. Ids count instances host by host from 0.
    """

    def __init__(self, *, prefill: Annotated[tuple[int, ...], Field(min_length=1)]) -> None:
        self._prefill = prefill

    def roles(self, topology: Topology, hosts: Sequence[int]) -> tuple[Role, ...]:
        """The role of each instance."""
        wrong = [i for i in self._prefill if not 0 <= i < len(hosts)]
        if wrong:
            raise InputError(
                f"there is no instance {wrong[0]}: topology {topology.name} has 0 to {len(hosts) - 1}",
                key="placement.prefill",
            )
        return tuple("prefill" if i in self._prefill else "decode" for i in range(len(hosts)))
