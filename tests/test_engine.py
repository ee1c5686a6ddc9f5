"""The engine's timelines on a network double in which every flow has a pipe of its own.

Unless said, a token prefills in 1 ms, weighs 1000 bytes and so crosses the 8 Mbit/s pipe in 1 ms; an iteration of
batch b takes 10 + b ms. Times are in ms.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.engine import Engine
from harness.errors import InputError, RunFailure
from harness.interfaces import NetworkModel
from harness.types import (
    TRAFFIC_CLASSES,
    Cluster,
    ClusterView,
    FlowTable,
    Instance,
    Int64Array,
    KVFlow,
    Link,
    NetworkResult,
    NetworkSample,
    NetworkTotals,
    Node,
    OracleSnapshot,
    Request,
    RequestRecord,
    Topology,
)

MS = 10**9  # [ps]
MBPS = 10**6
TOKEN_BYTES = 1000


class PipeNetwork:
    """A flow of n bytes takes 8 n / rate; its bytes count at its first source port when it ends."""

    def __init__(self, topology: Topology, rate_bps: int = 8 * MBPS) -> None:
        self.now_ps = 0
        self.flows: list[tuple[KVFlow, int]] = []  # with their starts
        self.end_ps: dict[int, int] = {}  # by place in `flows`
        self._n_ports, self._rate_bps = topology.n_ports, rate_bps
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._order = count()
        self._tx_bytes = np.zeros((self._n_ports, len(TRAFFIC_CLASSES)), dtype=np.int64)

    def schedule(self, at_ps: int, action: Callable[[], None]) -> None:
        assert at_ps >= self.now_ps, "scheduled in the past"
        heapq.heappush(self._events, (at_ps, next(self._order), action))

    def start(self, flow: KVFlow, at_ps: int, done: Callable[[], None] | None = None) -> None:
        assert flow.size_bytes > 0
        assert len(flow.src_ports) == len(flow.dst_ports)
        index = len(self.flows)
        self.flows.append((flow, at_ps))

        def end() -> None:
            self.end_ps[index] = self.now_ps
            self._tx_bytes[flow.src_ports[0], TRAFFIC_CLASSES.index(flow.traffic_class)] += flow.size_bytes
            if done is not None:
                done()

        self.schedule(at_ps + flow.size_bytes * 8 * 10**12 // self._rate_bps, end)

    def sample(self, reset_peaks: bool = False) -> NetworkSample:
        zeros = np.zeros(self._n_ports, dtype=np.int64)
        return NetworkSample(self.now_ps, self._tx_bytes.copy(), zeros, zeros, zeros)

    def run(self) -> NetworkResult:
        while self._events:
            self.now_ps, _, action = heapq.heappop(self._events)
            action()
        return self.recorded

    @property
    def recorded(self) -> NetworkResult:
        def column(values: list[int]) -> Int64Array:
            return np.array(values, dtype=np.int64)

        flows, n = [flow for flow, _ in self.flows], len(self.flows)
        table = FlowTable(
            transfer_id=column([f.id for f in flows]),
            traffic_class=np.array([TRAFFIC_CLASSES.index(f.traffic_class) for f in flows], dtype=np.int8),
            src_port=column([f.src_ports[0] for f in flows]),
            dst_port=column([f.dst_ports[0] for f in flows]),
            size_bytes=column([f.size_bytes for f in flows]),
            acked_bytes=column([f.size_bytes if i in self.end_ps else 0 for i, f in enumerate(flows)]),
            start_ps=column([start for _, start in self.flows]),
            end_ps=column([self.end_ps.get(i, -1) for i in range(n)]),
            ideal_fct_ps=column([f.size_bytes * 8 * 10**12 // self._rate_bps for f in flows]),
            ecn_marks=column([0] * n),
            cnps=column([0] * n),
            retransmitted_bytes=column([0] * n),
        )
        return NetworkResult(table, NetworkTotals(), self.sample())


@dataclass
class Times:
    prefill_queue: bool = False
    max_batch: int = 8

    def prefill_ps(self, tokens: int) -> int:
        return tokens * MS

    def iteration_ps(self, batch: int) -> int:
        return (10 + batch) * MS


@dataclass
class Choose:
    """Sends request i to `instances[i]`, and keeps what it was shown."""

    instances: list[int]
    views: list[ClusterView] = field(default_factory=list)

    def choose(self, request: Request, view: ClusterView, oracle: OracleSnapshot) -> int:
        self.views.append(view)
        return self.instances[request.id % len(self.instances)]


class MostMemory:
    """The instance with the most free memory."""

    def choose(self, request: Request, view: ClusterView, oracle: OracleSnapshot) -> int:
        return max(view.decode, key=lambda d: (d.free_memory_bytes, -d.instance)).instance


@dataclass
class Watch:
    """An oracle that keeps the times of its samples."""

    interval_ps: int = 10 * MS
    seen_ps: list[int] = field(default_factory=list)

    def observe(self, sample: NetworkSample) -> None:
        self.seen_ps.append(sample.now_ps)

    def snapshot(self, now_ps: int) -> OracleSnapshot:
        return OracleSnapshot(0, lambda p, d: 3, (0,) * 4, (0,) * 4, (0.0,) * 4)


@dataclass
class Flows:
    """Background flows given one by one; without end if `every_ps` is."""

    starts_ps: list[int] = field(default_factory=list)
    every_ps: int = 0

    def flows(self) -> Iterator[tuple[int, KVFlow]]:
        starts = count(0, self.every_ps) if self.every_ps else iter(self.starts_ps)
        for i, start_ps in enumerate(starts):
            yield start_ps, KVFlow(i, "background", (14,), (2,), 1000)


def cluster_of(topology: Topology, roles: dict[int, str]) -> Cluster:
    """Instance i is the i-th of `roles`, host -> role; the NIC of host h is port 2 h on the shared fabrics."""
    placed = [Instance(i, role, host, 4, (2 * host,), {}) for i, (host, role) in enumerate(roles.items())]  # type: ignore[arg-type]
    return Cluster(topology, tuple(placed))


def request(
    i: int, at_ms: int, input_tokens: int, output_tokens: int, hashes: tuple[int, ...] | None = None
) -> Request:
    """A request whose prompt, in blocks of 4 tokens, is like no other's unless `hashes` says so."""
    own = tuple(1000 * (i + 1) + k for k in range(-(-input_tokens // 4)))
    return Request(i, at_ms * MS, input_tokens, output_tokens, own if hashes is None else hashes)


@pytest.fixture
def one_each(eight_hosts: Topology) -> Cluster:
    """A prefill instance (0) and a decode instance (1) in another pod."""
    return cluster_of(eight_hosts, {0: "prefill", 7: "decode"})


def engine_for(cluster: Cluster, requests: list[Request], **changes: Any) -> Engine:
    parts: dict[str, Any] = {
        "scheduler": Choose(list(cluster.decode[:1])),
        "oracle": Watch(),
        "service_times": Times(),
        "background": Flows(),
        "network": PipeNetwork(cluster.topology),
        "kv_bytes_per_token": TOKEN_BYTES,
        "layers": 10,
        "kv_memory_bytes": 10_000 * TOKEN_BYTES,
        "block_tokens": 4,
    }
    return Engine(requests=requests, cluster=cluster, **{**parts, **changes})


def serve(cluster: Cluster, requests: list[Request], **changes: Any) -> tuple[RequestRecord, ...]:
    result = engine_for(cluster, requests, **changes).run()
    assert result.status == "complete"
    return result.requests


def times_ms(record: RequestRecord) -> dict[str, float]:
    names = ("arrival", "prefill_start", "prefill_end", "decision", "transfer_start", "transfer_end")
    names += ("decode_start", "first_token", "last_token")
    return {name: getattr(record, f"{name}_ps") / MS for name in names}


def test_the_double_is_a_network_model(eight_hosts: Topology) -> None:
    network: NetworkModel = PipeNetwork(eight_hosts)
    assert network.now_ps == 0


def test_one_request(one_each: Cluster) -> None:
    (record,) = serve(one_each, [request(0, 5, 10, 3)])
    assert times_ms(record) == {
        "arrival": 5,
        "prefill_start": 5,
        "prefill_end": 15,  # 10 tokens
        "decision": 15,
        "transfer_start": 15,
        "transfer_end": 25,
        "decode_start": 25,
        "first_token": 36,  # an iteration of batch 1
        "last_token": 58,  # two more
    }
    assert (record.prefill_instance, record.decode_instance, record.tier) == (0, 1, 3)
    assert (record.kv_bytes, record.transfer_bytes, record.hit_tokens) == (10_000, 10_000, 0)


def test_a_request_joins_the_batch_at_the_next_boundary(one_each: Cluster) -> None:
    first, second = serve(one_each, [request(0, 0, 10, 3), request(1, 2, 10, 3)])
    # Iterations: 20-31 (batch 1), 31-43 and 43-55 (2), 55-66 (1).
    assert (first.decode_start_ps, first.first_token_ps, first.last_token_ps) == (20 * MS, 31 * MS, 55 * MS)
    assert second.transfer_end_ps == 22 * MS
    assert (second.decode_start_ps, second.first_token_ps, second.last_token_ps) == (31 * MS, 43 * MS, 66 * MS)


def test_a_request_waits_for_a_slot(one_each: Cluster) -> None:
    requests = [request(0, 0, 10, 3), request(1, 2, 10, 1), request(2, 3, 10, 1)]
    records = serve(one_each, requests, service_times=Times(max_batch=1))
    # Request 0 iterates 20-53; then the others, in the order in which their caches came.
    assert [r.decode_start_ps // MS for r in records] == [20, 53, 64]
    assert [r.last_token_ps // MS for r in records] == [53, 64, 75]


def test_of_transfers_that_end_together_the_first_starts_an_idle_instance_at_once(eight_hosts: Topology) -> None:
    cluster = cluster_of(eight_hosts, {0: "prefill", 1: "prefill", 7: "decode"})
    first, second = serve(cluster, [request(0, 0, 10, 1), request(1, 0, 10, 1)])
    assert first.transfer_end_ps == second.transfer_end_ps == 20 * MS
    assert (first.decode_start_ps, second.decode_start_ps) == (20 * MS, 31 * MS)


def test_prefill_queue(eight_hosts: Topology) -> None:
    cluster = cluster_of(eight_hosts, {0: "prefill", 1: "prefill", 7: "decode"})
    requests = [request(0, 0, 10, 1), request(1, 0, 25, 1), request(2, 5, 30, 1), request(3, 6, 5, 1)]
    # Outstanding at 5: 5 and 20, so instance 0 until 40; at 6: 34 and 19, so instance 1.
    records = serve(cluster, requests, service_times=Times(prefill_queue=True))
    assert [r.prefill_instance for r in records] == [0, 1, 0, 1]
    assert [r.prefill_start_ps // MS for r in records] == [0, 0, 10, 25]


def test_without_prefill_queue_any_number_prefill_at_once(eight_hosts: Topology) -> None:
    cluster = cluster_of(eight_hosts, {0: "prefill", 1: "prefill", 7: "decode"})
    requests = [request(0, 0, 10, 1), request(1, 0, 25, 1), request(2, 5, 30, 1), request(3, 6, 5, 1)]
    # Outstanding at 6: 4 + 29 and 19, so instance 1.
    records = serve(cluster, requests)
    assert [r.prefill_instance for r in records] == [0, 1, 0, 1]
    assert [r.prefill_start_ps // MS for r in records] == [0, 0, 5, 6]


def test_requests_that_do_not_fit_wait_first_in_first_out(one_each: Cluster) -> None:
    requests = [request(0, 0, 10, 3), request(1, 1, 10, 3), request(2, 12, 1, 1)]
    scheduler = Choose([1])
    records = serve(one_each, requests, scheduler=scheduler, kv_memory_bytes=15 * TOKEN_BYTES)
    # Request 0 holds 13 of 15 tokens until 20 + 33. Request 2 would fit beside it, and waits behind request 1.
    assert records[0].last_token_ps == 53 * MS
    assert [r.decision_ps // MS for r in records] == [10, 53, 53]
    assert [view.decode[0].free_memory_bytes for view in scheduler.views] == [15_000, 15_000, 2_000]
    assert records[1].transfer_end_ps == 63 * MS


def test_a_full_hit_starts_no_flow(one_each: Cluster) -> None:
    network = PipeNetwork(one_each.topology)
    prompt = (1, 2, 3)
    records = serve(one_each, [request(0, 0, 10, 1, prompt), request(1, 100, 10, 2, prompt)], network=network)
    assert [flow.id for flow, _ in network.flows] == [0]
    assert (records[1].hit_tokens, records[1].transfer_bytes) == (10, 0)
    assert records[1].transfer_start_ps == records[1].transfer_end_ps == records[1].decode_start_ps == 110 * MS
    assert records[1].first_token_ps == 121 * MS


def test_a_hit_shortens_the_transfer_by_its_leading_blocks(one_each: Cluster) -> None:
    scheduler = Choose([1])
    requests = [request(0, 0, 12, 1, (1, 2, 3)), request(1, 100, 12, 1, (1, 9, 3))]
    _, record = serve(one_each, requests, scheduler=scheduler)
    assert (record.hit_tokens, record.transfer_bytes) == (4, 8_000)  # block 3 does not lead
    assert record.transfer_end_ps - record.transfer_start_ps == 8 * MS
    # The idle blocks of request 0 count as free memory.
    assert scheduler.views[1].decode[0].free_memory_bytes == 10_000_000
    assert scheduler.views[1].kv_bytes == 12_000


def test_blocks_on_their_way_are_no_hits(one_each: Cluster) -> None:
    records = serve(one_each, [request(0, 0, 10, 1, (1, 2, 3)), request(1, 1, 10, 1, (1, 2, 3))])
    assert [r.transfer_bytes for r in records] == [10_000, 10_000]


def test_views_count_load_and_transfers_in_flight(eight_hosts: Topology) -> None:
    # Host 0 prefills; 1 is in its rack, 2 and 3 in its pod.
    cluster = cluster_of(eight_hosts, {0: "prefill", 1: "decode", 2: "decode", 3: "decode"})
    scheduler = Choose([2, 2, 2, 3])
    requests = [request(0, 0, 10, 9), request(1, 2, 10, 9), request(2, 3, 20, 9), request(3, 13, 1, 9)]
    serve(cluster, requests, scheduler=scheduler, service_times=Times(max_batch=1))
    views = [{d.instance: d for d in view.decode} for view in scheduler.views]
    # Decisions fall at 10, 12, 14 (request 3) and 23 (request 2); transfers end at 20, 22, 15.
    at_14 = views[2]
    assert [d.tier for d in at_14.values()] == [1, 2, 2]
    assert (at_14[2].batch, at_14[2].queued, at_14[2].reserved) == (0, 0, 2)
    assert [d.inflight for d in at_14.values()] == [0, 2, 2]
    at_23 = views[3]
    assert (at_23[2].batch, at_23[2].queued, at_23[2].reserved) == (1, 1, 0)
    assert [d.inflight for d in at_23.values()] == [0, 0, 0]
    assert at_23[2].max_batch == 1


def test_queue_at_decision_counts_waiting_and_reserved(one_each: Cluster) -> None:
    records = serve(one_each, [request(0, 0, 10, 1), request(1, 2, 10, 1), request(2, 3, 10, 1)])
    assert [r.queue_at_decision for r in records] == [0, 1, 2]
    assert [r.batch_at_decision for r in records] == [0, 0, 0]


def test_decision_on_arrival(one_each: Cluster) -> None:
    """The transfer waits for the prefill; what was decided counts as on its way and in flight until it is over."""
    scheduler = Choose([1, 1, 1])
    prompt = (1, 2, 3)
    requests = [request(0, 0, 10, 1, prompt), request(1, 5, 10, 1, prompt), request(2, 100, 10, 1, prompt)]
    records = serve(one_each, requests, scheduler=scheduler, decision_at="arrival")
    assert times_ms(records[0]) == {
        "arrival": 0,
        "prefill_start": 0,
        "prefill_end": 10,
        "decision": 0,
        "transfer_start": 10,
        "transfer_end": 20,
        "decode_start": 20,
        "first_token": 31,
        "last_token": 31,
    }
    assert [(v.decode[0].reserved, v.decode[0].inflight, v.decode[0].hit_tokens) for v in scheduler.views] == [
        (0, 0, 0),
        (1, 1, 0),
        (0, 0, 10),
    ]
    full_hit = times_ms(records[2])
    assert (full_hit["decision"], full_hit["transfer_start"], full_hit["decode_start"]) == (100, 110, 110)


def test_a_request_that_does_not_fit_on_arrival_is_prefilled_meanwhile(one_each: Cluster) -> None:
    requests = [request(0, 0, 10, 1), request(1, 1, 10, 1), request(2, 2, 10, 1)]
    records = serve(one_each, requests, decision_at="arrival", kv_memory_bytes=15 * TOKEN_BYTES)
    # Each holds its 11 tokens for 10 ms of transfer and 11 of an iteration once its prefill has ended.
    assert [r.prefill_end_ps // MS for r in records] == [10, 11, 12]
    assert [(r.decision_ps // MS, r.transfer_start_ps // MS) for r in records] == [(0, 10), (31, 31), (52, 52)]


def test_decision_on_arrival_before_a_prefill_that_waits_and_in_layer_groups(one_each: Cluster) -> None:
    network = PipeNetwork(one_each.topology)
    requests = [request(0, 0, 10, 1), request(1, 1, 10, 1)]
    times = Times(prefill_queue=True)
    _, record = serve(one_each, requests, network=network, service_times=times, layer_groups=2, decision_at="arrival")
    assert (record.decision_ps // MS, record.prefill_start_ps // MS, record.transfer_start_ps // MS) == (1, 10, 15)


def test_layer_groups_overlap_prefill_and_transfer(one_each: Cluster) -> None:
    network = PipeNetwork(one_each.topology)
    (record,) = serve(one_each, [request(0, 0, 10, 1)], network=network, layer_groups=3)
    # 10 layers in groups of 3, 3, 4: ready after 3, 6 and 10 ms, of 3, 3 and 4 kB.
    assert [(f.id, f.size_bytes, start // MS) for f, start in network.flows] == [
        (0, 3000, 3),
        (1, 3000, 6),
        (2, 4000, 10),
    ]
    assert (record.decision_ps, record.prefill_end_ps) == (0, 10 * MS)
    assert (record.transfer_start_ps, record.transfer_end_ps) == (3 * MS, 14 * MS)
    assert record.first_token_ps == 25 * MS


def test_layer_groups_that_are_ready_before_memory_is_leave_at_the_decision(one_each: Cluster) -> None:
    network = PipeNetwork(one_each.topology)
    requests = [request(0, 0, 10, 1), request(1, 18, 10, 1)]
    _, record = serve(one_each, requests, network=network, layer_groups=2, kv_memory_bytes=15 * TOKEN_BYTES)
    # Request 0 ends at 15 + 11 = 26: the first half of request 1 is ready since 23, the second from 28 on.
    assert record.decision_ps == 26 * MS
    assert [(f.id, start // MS) for f, start in network.flows] == [(0, 5), (1, 10), (2, 26), (3, 28)]
    assert record.transfer_end_ps == 33 * MS


def test_a_full_hit_with_layer_groups_waits_for_the_prefill(one_each: Cluster) -> None:
    requests = [request(0, 0, 10, 1, (1, 2, 3)), request(1, 100, 10, 1, (1, 2, 3))]
    _, record = serve(one_each, requests, layer_groups=2)
    assert (record.transfer_bytes, record.transfer_end_ps, record.decode_start_ps) == (0, 110 * MS, 110 * MS)


def test_a_prefix_hit_can_shorten_prefill(one_each: Cluster) -> None:
    requests = [
        request(0, 0, 12, 1, (1, 2, 3)),
        request(1, 100, 16, 1, (1, 2, 5, 6)),
        request(2, 200, 12, 1, (1, 2, 3)),
    ]
    records = serve(one_each, requests, prefix_hit_shortens_prefill=True)
    # 8 of 16 tokens are known; of a prompt that is known whole, the last token is computed again.
    assert [(r.prefill_end_ps - r.prefill_start_ps) // MS for r in records] == [12, 8, 1]
    without = serve(one_each, requests)
    assert [(r.prefill_end_ps - r.prefill_start_ps) // MS for r in without] == [12, 16, 12]


def test_tier_0_takes_the_nvlink(three_hosts: Topology) -> None:
    nvlink = Link(3, 0, 0, 3600 * 10**9, 10**6, tier=0)
    topology = replace(three_hosts, links=(*three_hosts.links, nvlink))
    instances = (Instance(0, "prefill", 0, 4, (0,), {1: 6}), Instance(1, "decode", 0, 4, (0,), {0: 7}))
    network = PipeNetwork(topology)
    (record,) = serve(Cluster(topology, instances), [request(0, 0, 10, 1)], network=network)
    ((flow, _),) = network.flows
    assert (flow.src_ports, flow.dst_ports, record.tier) == ((6,), (7,), 0)


def test_path_seed_and_ids_of_flows(one_each: Cluster) -> None:
    network = PipeNetwork(one_each.topology)
    serve(one_each, [request(0, 0, 4, 1), request(1, 0, 4, 1)], network=network, path_seed=42)
    assert [(f.id, f.traffic_class, f.path_seed) for f, _ in network.flows] == [(0, "kv", 42), (1, "kv", 42)]


def test_background_stops_with_the_last_transfer(one_each: Cluster) -> None:
    network = PipeNetwork(one_each.topology)
    (record,) = serve(one_each, [request(0, 0, 10, 1)], network=network, background=Flows(every_ps=MS // 2))
    assert record.last_token_ps == 31 * MS
    starts = [start for flow, start in network.flows if flow.traffic_class == "background"]
    # Every half millisecond, handed over 10 ms ahead. The transfer ends at 20 ms, just after the flows up to 30 ms were
    # handed over.
    assert starts == [k * MS // 2 for k in range(60)]


def test_background_out_of_order_fails(one_each: Cluster) -> None:
    with pytest.raises(RunFailure, match="background flow 1 starts at 1000000000 ps, after one that starts later"):
        serve(one_each, [request(0, 0, 10, 1)], background=Flows([12 * MS, MS]))


def test_oracle_samples_until_the_last_transfer(one_each: Cluster) -> None:
    oracle = Watch(interval_ps=10 * MS)
    serve(one_each, [request(0, 0, 10, 1)], oracle=oracle)
    assert oracle.seen_ps == [10 * MS, 20 * MS]  # the transfer ends at 20, after the sample


def test_link_samples(one_each: Cluster) -> None:
    engine = engine_for(one_each, [request(0, 0, 10, 1)], link_sampling_ps=15 * MS, background=Flows([2 * MS]))
    links = engine.run().links
    n_ports = one_each.topology.n_ports
    assert links["start_ps"].reshape(-1, n_ports)[:, 0].tolist() == [0, 15 * MS]
    assert links["end_ps"].reshape(-1, n_ports)[:, 0].tolist() == [15 * MS, 20 * MS]
    assert links["port"].tolist() == list(range(n_ports)) * 2
    # The KV flow ends at 20 from port 0, the background flow at 3 from port 14.
    assert links["kv_bytes"].reshape(-1, n_ports)[:, 0].tolist() == [0, 10_000]
    assert links["background_bytes"].reshape(-1, n_ports)[:, 14].tolist() == [1000, 0]
    assert links["kv_bytes"].sum() == 10_000
    assert links["control_bytes"].sum() == links["ecn_marks"].sum() == links["paused_ps"].sum() == 0


def test_warmup_requests_are_flagged(one_each: Cluster) -> None:
    records = serve(one_each, [request(i, i, 4, 1) for i in range(19)], warmup_share=0.1)
    assert [r.warmup for r in records] == [True] + [False] * 18  # 1.9, rounded down


def test_decision_time_is_recorded(one_each: Cluster) -> None:
    (record,) = serve(one_each, [request(0, 0, 4, 1)])
    assert 0 < record.decision_wall_s < 1


def test_a_choice_out_of_view_fails_by_name(eight_hosts: Topology) -> None:
    cluster = cluster_of(eight_hosts, {0: "prefill", 6: "decode", 7: "decode"})
    with pytest.raises(RunFailure) as caught:
        serve(cluster, [request(0, 0, 4, 1)], scheduler=Choose([0]), scheduler_name="lost")
    assert str(caught.value) == "scheduler lost chose 0 for request 0; feasible decode instances: 1, 2"


class FailsAtSecond:
    def choose(self, request: Request, view: ClusterView, oracle: OracleSnapshot) -> int:
        if request.id:
            raise ZeroDivisionError("mine")
        return view.decode[0].instance


def test_what_a_scheduler_raises_comes_out_and_leaves_a_partial_result(one_each: Cluster) -> None:
    requests = [request(0, 0, 10, 1), request(1, 0, 25, 1), request(2, 24, 10, 1), request(3, 30, 10, 1)]
    engine = engine_for(one_each, requests, scheduler=FailsAtSecond(), seed=7, backend="pipe", link_sampling_ps=10 * MS)
    with pytest.raises(ZeroDivisionError, match="mine"):
        engine.run()  # at 25
    assert engine.completed == 0
    result = engine.result("failed")
    assert (result.status, result.seed, result.backend) == ("failed", 7, "pipe")
    done, failed, prefilling, unborn = result.requests
    assert (done.transfer_end_ps, done.decode_start_ps, done.first_token_ps) == (20 * MS, 20 * MS, -1)
    assert (failed.prefill_end_ps, failed.decision_ps, failed.decode_instance, failed.tier) == (25 * MS, -1, -1, -1)
    assert (prefilling.prefill_start_ps, prefilling.prefill_end_ps) == (24 * MS, -1)
    assert (unborn.arrival_ps, unborn.prefill_start_ps, unborn.prefill_instance) == (30 * MS, -1, -1)
    assert result.network.flows.acked_bytes.tolist() == [10_000]
    assert result.links["end_ps"].max() == 20 * MS


class Lossy(PipeNetwork):
    """Says of its flows that one byte was never acknowledged."""

    def run(self) -> NetworkResult:
        result = super().run()
        return replace(result, flows=replace(result.flows, acked_bytes=result.flows.acked_bytes - 1))


class Inflating(PipeNetwork):
    """Carries one byte more than it was given."""

    def start(self, flow: KVFlow, at_ps: int, done: Callable[[], None] | None = None) -> None:
        super().start(replace(flow, size_bytes=flow.size_bytes + 1), at_ps, done)


class Forgetful(PipeNetwork):
    """Never says that a flow is done."""

    def start(self, flow: KVFlow, at_ps: int, done: Callable[[], None] | None = None) -> None:
        super().start(flow, at_ps)


class Early(PipeNetwork):
    """Stops after 15 ms."""

    def run(self) -> NetworkResult:
        self.schedule(15 * MS, self._events.clear)
        return super().run()


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (Lossy, "1 flows not delivered, first of them kv transfer 0: 9999 of 10000 bytes acknowledged"),
        (Inflating, "KV flows carried 10001 bytes, the requests needed 10000"),
        (Forgetful, "no KV byte has moved for 60 s, transfers of 1 requests are open, first of them 0"),
        (Early, "the network stopped with 1 of 1 requests incomplete, first of them 0; 0 wait for memory"),
    ],
)
def test_what_the_network_breaks_fails_the_run(
    one_each: Cluster, network: Callable[[Topology], NetworkModel], message: str
) -> None:
    engine = engine_for(one_each, [request(0, 0, 10, 1)], network=network(one_each.topology))
    with pytest.raises(RunFailure, match=message):
        engine.run()
    assert len(engine.result("failed").requests) == 1


def test_a_transfer_faster_than_the_nic_fails_the_run(one_each: Cluster) -> None:
    # 10 kB at 100 Gbit/s are 0.8 us; the pipe takes a tenth of that.
    network = PipeNetwork(one_each.topology, rate_bps=10**12)
    with pytest.raises(RunFailure, match="TTFT of request 0 is 21000080000 ps, less than the 21000800000 ps"):
        serve(one_each, [request(0, 0, 10, 1)], network=network)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"requests": []}, "workload: the workload has no requests"),
        ({"requests": [request(1, 0, 4, 1)]}, "workload: request number 0 has the id 1; ids must be 0, 1, 2, ..."),
        (
            {"requests": [request(0, 5, 4, 1), request(1, 4, 4, 1)]},
            "workload: request number 1 arrives before the one before it, or before 0",
        ),
        (
            {"requests": [request(0, 0, 4, 0)]},
            "workload: request number 0 has 4 input and 0 output tokens; at least 1 each",
        ),
        (
            {"requests": [request(0, 0, 5, 1, (1,))]},
            "workload: request number 0 has 1 block hashes; 5 tokens begin 2 blocks of 4",
        ),
        (
            {"kv_memory_bytes": 12_999},
            (
                "cluster.memory_per_gpu: request 0 needs 0.00 GB of KV cache (13 tokens); "
                "an instance has 0.00 GB left beside the weights"
            ),
        ),
        ({"layer_groups": 11}, "layer_groups: 11 given; from 1 to the model's 10 layers"),
    ],
)
def test_parts_that_do_not_go_together(one_each: Cluster, changed: dict[str, Any], message: str) -> None:
    requests = changed.pop("requests", [request(0, 0, 10, 3)])
    with pytest.raises(InputError) as caught:
        engine_for(one_each, requests, **changed)
    assert str(caught.value) == message


def test_a_cluster_without_decode_instance(eight_hosts: Topology) -> None:
    cluster = cluster_of(eight_hosts, {0: "prefill"})
    with pytest.raises(InputError, match="cluster.placement: the placement leaves no decode instance"):
        engine_for(cluster, [request(0, 0, 4, 1)])


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(
        st.tuples(st.integers(0, 30), st.integers(1, 20), st.integers(1, 6), st.integers(0, 2)), min_size=1, max_size=12
    ),
    layer_groups=st.integers(1, 4),
    queue=st.booleans(),
    shortens=st.booleans(),
    shared=st.booleans(),
)
def test_every_workload_is_served_within_memory(
    sizes: list[tuple[int, int, int, int]], layer_groups: int, queue: bool, shortens: bool, shared: bool
) -> None:
    """Whatever arrives is completed in order of its times, and no instance ever holds more than its 30 tokens."""
    hosts = (*(Node(i, f"host{i}", "host", pod=0, rack=0) for i in range(4)), Node(4, "tor", "tor", pod=0, rack=0))
    topology = Topology("four", hosts, tuple(Link(i, i, 4, 10**11, 10**6, tier=1) for i in range(4)))
    cluster = cluster_of(topology, {0: "prefill", 1: "prefill", 2: "decode", 3: "decode"})
    requests = [
        # Prompts that share begin with one of three documents.
        request(i, at, n_in, n_out, tuple(100 * document + k for k in range(-(-n_in // 4))) if shared else None)
        for i, (at, n_in, n_out, document) in enumerate(sorted(sizes))
    ]
    scheduler = Spy()
    records = serve(
        cluster,
        requests,
        scheduler=scheduler,
        kv_memory_bytes=30 * TOKEN_BYTES,
        layer_groups=layer_groups,
        service_times=Times(prefill_queue=queue, max_batch=2),
        prefix_hit_shortens_prefill=shortens,
    )
    assert all(r.last_token_ps > 0 for r in records)
    if not shared:
        for instance in cluster.decode:
            held = [
                event
                for r in records
                if r.decode_instance == instance
                for tokens in [r.input_tokens + r.output_tokens]
                for event in ((r.decision_ps, tokens), (r.last_token_ps, -tokens))
            ]
            # Releases come first where times are equal.
            assert max(np.cumsum([tokens for _, tokens in sorted(held)]), default=0) <= 30
    assert all(0 <= d.free_memory_bytes <= 30_000 for view in scheduler.views for d in view.decode)


class Spy(MostMemory):
    def __init__(self) -> None:
        self.views: list[ClusterView] = []

    def choose(self, request: Request, view: ClusterView, oracle: OracleSnapshot) -> int:
        self.views.append(view)
        return super().choose(request, view, oracle)
