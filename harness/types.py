"""The frozen records that the parts of the harness exchange.

Times are integer picoseconds since the start of the run, sizes integer bytes, rates integer bits per second.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Int64Array = npt.NDArray[np.int64]

NodeKind = Literal["host", "tor", "agg", "core", "switch"]
Role = Literal["prefill", "decode"]
DecisionAt = Literal["prefill-end", "arrival"]

#: Traffic classes, each with its own DSCP, in the order of every per-class array.
TRAFFIC_CLASSES = ("control", "kv", "background")
TrafficClass = Literal["control", "kv", "background"]

#: Locality tiers of a pair of instances: same server, same rack, same pod, cross pod.
N_TIERS = 4


# --- Topology ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Node:
    """A host (server) or a switch. `pod` and `rack` are -1 where the node has none; racks are numbered globally."""

    id: int
    name: str
    kind: NodeKind
    pod: int = -1
    rack: int = -1


@dataclass(frozen=True, slots=True)
class Link:
    """A full-duplex cable between the nodes `a` and `b`.

    `tier` is the locality tier that the link serves: 0 NVLink (both ends on one host), 1 host to ToR, 2 ToR to
    aggregation, 3 aggregation to core. `loss_rate` is the probability that a packet is lost on the link.
    """

    id: int
    a: int
    b: int
    rate_bps: int
    delay_ps: int
    tier: int
    loss_rate: float = 0.0


@dataclass(frozen=True)
class Topology:
    """Nodes and links; `nodes[i].id == i` and `links[i].id == i`.

    A *port* is one end of a link: port `2 * link.id` is the end at `link.a`, `2 * link.id + 1` the end at `link.b`.
    A port stands for both the network device at that end and the direction of the link that leaves it, so the
    device at the far end of port `i` is port `i ^ 1`.
    """

    name: str
    nodes: tuple[Node, ...]
    links: tuple[Link, ...]

    @property
    def n_ports(self) -> int:
        return 2 * len(self.links)

    def port_node(self, port: int) -> int:
        """The id of the node that `port` sits on."""
        link = self.links[port >> 1]
        return link.b if port & 1 else link.a

    @cached_property
    def ports_of(self) -> tuple[tuple[int, ...], ...]:
        """Per node, its ports in increasing order."""
        ports: list[list[int]] = [[] for _ in self.nodes]
        for port in range(self.n_ports):
            ports[self.port_node(port)].append(port)
        return tuple(tuple(p) for p in ports)

    @cached_property
    def port_names(self) -> tuple[str, ...]:
        """Per port ``"from->to"`` by node names; parallel links are told apart by ``#1``, ``#2``, ... after the
        name.
        """
        seen: dict[tuple[int, int], int] = {}
        names: list[str] = []
        for link in self.links:
            pair = (min(link.a, link.b), max(link.a, link.b))
            k = seen.get(pair, 0)
            seen[pair] = k + 1
            tag = f"#{k}" if k else ""
            a, b = self.nodes[link.a].name, self.nodes[link.b].name
            names += (
                [f"{a}->{b}{tag}", f"{b}->{a}{tag}"]
                if link.a != link.b
                else [f"{a}.0->{a}.1{tag}", f"{a}.1->{a}.0{tag}"]
            )
        return tuple(names)


@dataclass(frozen=True, slots=True)
class Instance:
    """A prefill or decode instance: `gpus` GPUs on one host, reached over its own NICs.

    `nic_ports` are ports on the host, one per NIC. `nvlink_ports` maps the id of another instance of the same host to
    this instance's port on the NVLink between the two.
    """

    id: int
    role: Role
    host: int
    gpus: int
    nic_ports: tuple[int, ...]
    nvlink_ports: Mapping[int, int]


@dataclass(frozen=True)
class Cluster:
    """Instances placed on a topology; `instances[i].id == i`."""

    topology: Topology
    instances: tuple[Instance, ...]

    @cached_property
    def prefill(self) -> tuple[int, ...]:
        return tuple(i.id for i in self.instances if i.role == "prefill")

    @cached_property
    def decode(self) -> tuple[int, ...]:
        return tuple(i.id for i in self.instances if i.role == "decode")

    def tier(self, a: int, b: int) -> int:
        """Locality tier of two instances: 0 same server, 1 same rack, 2 same pod, 3 cross pod."""
        na, nb = (self.topology.nodes[self.instances[i].host] for i in (a, b))
        if na.id == nb.id:
            return 0
        if na.rack == nb.rack and na.rack >= 0:
            return 1
        return 2 if na.pod == nb.pod and na.pod >= 0 else 3


@dataclass(frozen=True, slots=True)
class TierFacts:
    """Per tier (index 0..3): bandwidth of one pair [bit/s] and one-way latency [ps]; 0 where the topology has no such
    tier.
    """

    bandwidth_bps: tuple[int, int, int, int]
    latency_ps: tuple[int, int, int, int]


# --- Requests and decisions -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Request:
    """One inference request as a workload emits it.

    `block_hashes` holds one id per block of the prompt, in order, the last block possibly partial: equal leading ids
    mean a shared prefix.
    """

    id: int
    arrival_ps: int
    input_tokens: int
    output_tokens: int
    block_hashes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DecodeView:
    """What a scheduler may know of one feasible decode instance at the moment of the decision.

    `hit_tokens` is the request's longest leading run of blocks resident there [tokens], `transfer_bytes` the KV cache
    left to move after that hit. `batch` counts running requests, `queued` those that wait for a slot with their cache
    there, `reserved` those that have chosen it and whose cache is not there yet. `inflight` counts the transfers from
    this prefill instance to any instance of the same tier that have been decided and are not complete (uncapped).
    """

    instance: int
    tier: int
    hit_tokens: int
    transfer_bytes: int
    free_memory_bytes: int
    batch: int
    queued: int
    reserved: int
    max_batch: int
    inflight: int


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The compute side of the cluster at the moment of one decision: feasible decode instances only, by instance id."""

    now_ps: int
    prefill: int
    kv_bytes: int
    decode: tuple[DecodeView, ...]
    iteration_ps: Callable[[int], int]  #: time of one decode iteration at a batch size [ps]


@dataclass(frozen=True, slots=True)
class OracleSnapshot:
    """The network cost oracle's four maps as the scheduler sees them, sampled at `sampled_ps`.

    `tier_map` maps (prefill instance, decode instance) to a tier; the others are indexed by tier.
    """

    sampled_ps: int
    tier_map: Callable[[int, int], int]
    tier_bandwidth_bps: tuple[int, ...]
    tier_latency_ps: tuple[int, ...]
    congestion: tuple[float, ...]
    class_separation: bool = True  #: False: congestion counts KV traffic too, and n_inflight is to be read as 0


# --- Network ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KVFlow:
    """A transfer between two hosts: a KV cache from prefill to decode instance, or a background flow.

    `src_ports` and `dst_ports` are the NICs (or NVLink ports) it may use, of equal length. `id` is unique within its
    traffic class in a run and, with `path_seed`, decides the UDP source ports and so the ECMP paths.
    """

    id: int
    traffic_class: TrafficClass
    src_ports: tuple[int, ...]
    dst_ports: tuple[int, ...]
    size_bytes: int
    path_seed: int = 0
    carrier: Literal["rdma", "tcp"] = "rdma"  #: tcp: background only; to a fluid model, a flow like any other


@dataclass(frozen=True, slots=True)
class QueuePairFlow:
    """The share of a transfer that one queue pair carries: one 5-tuple, one path."""

    transfer_id: int
    traffic_class: TrafficClass
    src_port: int
    dst_port: int
    size_bytes: int
    udp_sport: int


@dataclass(frozen=True, slots=True)
class NetworkSample:
    """Link counters at one moment, per port (direction that leaves it), cumulative since the start unless said.

    `tx_bytes` [n_ports, 3] wire bytes by traffic class; `marks` [n_ports] ECN marks; `paused_ps` [n_ports] time in
    which PFC held at least one class; `queue_max_bytes` [n_ports] largest egress queue since the last sample that reset
    it.
    """

    now_ps: int
    tx_bytes: Int64Array
    marks: Int64Array
    paused_ps: Int64Array
    queue_max_bytes: Int64Array


@dataclass(frozen=True, slots=True)
class FlowTable:
    """A row per queue-pair flow, in order of start; columns of equal length.

    `end_ps` is when the sender saw the last byte acknowledged, -1 for a flow that did not finish. `ideal_fct_ps` is the
    flow's time alone on its path.
    """

    transfer_id: Int64Array
    traffic_class: npt.NDArray[np.int8]  #: index into TRAFFIC_CLASSES
    src_port: Int64Array
    dst_port: Int64Array
    size_bytes: Int64Array
    acked_bytes: Int64Array
    start_ps: Int64Array
    end_ps: Int64Array
    ideal_fct_ps: Int64Array
    ecn_marks: Int64Array
    cnps: Int64Array
    retransmitted_bytes: Int64Array


@dataclass(frozen=True, slots=True)
class NetworkTotals:
    """What the network did over the whole run. Counters that a model has no notion of are 0."""

    data_packets: int = 0
    ack_packets: int = 0
    data_hops: int = 0
    control_hops: int = 0  #: of ACKs, CNPs, PFC frames, and packets of ns-3's own stack
    payload_bytes_sent: int = 0
    payload_bytes_acked: int = 0
    retransmitted_bytes: int = 0
    ecn_marks: int = 0
    cnps: int = 0
    pfc_pauses: int = 0
    pfc_resumes: int = 0
    paused_ps: int = 0
    drops: int = 0
    out_of_order: int = 0  #: data packets that came before an earlier one of their flow
    duplicates: int = 0  #: data packets that the receiver had already
    max_queue_bytes: int = 0
    events: int = 0


@dataclass(frozen=True, slots=True)
class NetworkResult:
    """Everything that a network model recorded in one run."""

    flows: FlowTable
    totals: NetworkTotals
    port_totals: NetworkSample


# --- Results ----------------------------------------------------------------------------------------------------------

#: What `RunResult.links` holds: a row per port and sampling interval, by start time and port. Bytes are wire bytes.
LINK_COLUMNS = (
    "port",
    "start_ps",
    "end_ps",
    "control_bytes",
    "kv_bytes",
    "background_bytes",
    "ecn_marks",
    "paused_ps",
    "queue_max_bytes",
)


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request's life: times [ps] since the start of the run, -1 where it did not come to pass."""

    id: int
    arrival_ps: int
    prefill_start_ps: int
    prefill_end_ps: int
    decision_ps: int
    transfer_start_ps: int
    transfer_end_ps: int
    decode_start_ps: int
    first_token_ps: int
    last_token_ps: int
    input_tokens: int
    output_tokens: int
    prefill_instance: int
    decode_instance: int
    tier: int
    hit_tokens: int
    kv_bytes: int
    transfer_bytes: int
    queue_at_decision: int  #: requests waiting or on their way to the chosen instance when it was chosen
    batch_at_decision: int
    warmup: bool  #: among the first requests, which warm the caches and are left out of every mean
    decision_wall_s: float = 0.0  #: not part of any table that must be byte-identical


@dataclass(frozen=True, slots=True)
class RunResult:
    """One run of one scheduler with one seed on one network model.

    `links` has a row per port and sampling interval, as columns (see results.py), `traces` one per traced port and
    interval; `status` is "complete", "interrupted" or "failed", and an incomplete result holds what was recorded until
    then.
    """

    backend: str
    scheduler: str
    seed: int
    requests: tuple[RequestRecord, ...]
    network: NetworkResult
    links: Mapping[str, npt.NDArray[Any]]
    status: Literal["complete", "interrupted", "failed"]
    traces: Mapping[str, Int64Array] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a network model has come, as its heartbeat reports it."""

    now_ps: int
    data_packets: int
    data_hops: int
