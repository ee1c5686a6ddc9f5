"""The life of every request: arrival, prefill, placement, transfer, decode. Sees the other parts as interfaces only.

Events at one time run in the order in which they were scheduled. Arrivals are scheduled first, by id, then the first
oracle sample, the first link sample and the first background flows.
"""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from harness.errors import InputError, RunFailure
from harness.interfaces import Background, NetworkModel, Oracle, Scheduler, ServiceTimes
from harness.prefix_cache import BlockKey, Lease, PrefixCache, block_keys
from harness.types import (
    LINK_COLUMNS,
    N_TIERS,
    TRAFFIC_CLASSES,
    Cluster,
    ClusterView,
    DecisionAt,
    DecodeView,
    KVFlow,
    NetworkResult,
    NetworkSample,
    Request,
    RequestRecord,
    RunResult,
)

#: Background flows are handed to the network this much simulated time ahead [ps]: few events, and few flows in memory.
BACKGROUND_CHUNK_PS = 10 * 10**9

#: A run in which no KV byte moves for this long although transfers are open is stuck [ps]. The network model cannot
#: tell, because samples and background flows go on; any retransmission timeout is far shorter.
STALL_PS = 60 * 10**12

_KV = TRAFFIC_CLASSES.index("kv")


class Engine:
    """One run: every request of a workload, served by a cluster whose KV caches cross a network model.

    A request goes to the prefill instance with the least outstanding work, i.e. the least sum of remaining prefill
    times of the requests it has (ties: lowest id). At the end of its prefill the scheduler picks a decode instance,
    which at that moment sets memory apart for prompt and output tokens, but for the prompt's blocks resident there.
    What is not resident is transferred; a prompt that is wholly resident starts no flow. When all is acknowledged the
    request queues for a slot, first in first out, and joins the batch at an iteration boundary, or at once if the
    instance is idle. Every iteration yields one token of every running request; the first token takes one. A request
    that fits nowhere waits, first in first out, until memory is free; later ones wait behind it.

    With `decision_at` "arrival" the scheduler picks when the request arrives, as a router in front of prefill and
    decode does; from then on memory is set apart, the request counts as on its way and its transfer as in flight, and
    the hit is the one of that moment. A request that has to wait for memory is prefilled meanwhile.

    With `layer_groups` > 1 the decision falls at the start of the prefill, or on arrival, and each group of layers is
    sent as soon as it is computed, as a flow with paths of its own; the layers share the prefill time equally. Finished
    groups of a request that waits for memory leave at the decision.

    With `prefix_hit_shortens_prefill` each prefill instance keeps an LRU of the blocks it computed, in as much memory
    as a decode instance has, and a prompt of n tokens with h resident takes prefill(n) - prefill(h); at least one token
    is computed. The hit is looked up at arrival.

    Left out: memory limits of prefill instances; preemption; failures; control messages before a transfer.

    Parameters
    ----------
    requests : by arrival time, ids 0, 1, 2, ...
    scheduler, oracle, service_times, background, network : see harness/interfaces.py.
    cluster : the instances.
    kv_bytes_per_token : KV cache of one token over all layers [bytes].
    layers : of the model; what `layer_groups` divides.
    decision_at : when the scheduler is asked.
    kv_memory_bytes : of an instance, for KV caches [bytes].
    block_tokens : tokens per prefix block.
    warmup_share : share of the requests, the first, that only warm the caches (rounded down).
    link_sampling_ps : between two samples of the link counters [ps].
    path_seed : decides the ECMP paths of the KV flows.
    backend, scheduler_name, seed : how the result is labelled.

    Raises
    ------
    InputError : the parts do not go together: no decode instance, a request larger than an instance's memory, ...
    """

    def __init__(
        self,
        *,
        requests: Sequence[Request],
        scheduler: Scheduler,
        oracle: Oracle,
        service_times: ServiceTimes,
        background: Background,
        cluster: Cluster,
        network: NetworkModel,
        kv_bytes_per_token: int,
        layers: int,
        kv_memory_bytes: int,
        block_tokens: int,
        layer_groups: int = 1,
        decision_at: DecisionAt = "prefill-end",
        prefix_hit_shortens_prefill: bool = False,
        warmup_share: float = 0.0,
        link_sampling_ps: int = 10**12,
        path_seed: int = 0,
        backend: str = "",
        scheduler_name: str = "",
        seed: int = 0,
    ) -> None:
        capacity_tokens = kv_memory_bytes // kv_bytes_per_token
        _check_parts(requests, cluster, layers, layer_groups, capacity_tokens, kv_bytes_per_token, block_tokens)
        self._scheduler, self._oracle, self._service, self._network = scheduler, oracle, service_times, network
        self._background = background.flows()
        self._cluster = cluster
        self._kv_bytes_per_token, self._block_tokens = kv_bytes_per_token, block_tokens
        self._layers, self._layer_groups = layers, layer_groups
        self._decides_on_arrival = decision_at == "arrival"
        self._decides_at_prefill_end = not self._decides_on_arrival and layer_groups == 1
        self._link_sampling_ps, self._path_seed = link_sampling_ps, path_seed
        self._backend, self._scheduler_name, self._seed = backend, scheduler_name, seed

        self._jobs = [_Job(r, block_keys(r.block_hashes, r.input_tokens, block_tokens)) for r in requests]
        self._n_warmup = int(warmup_share * len(requests))
        self._prefill = [
            _Prefill(cluster, i, PrefixCache(capacity_tokens, block_tokens) if prefix_hit_shortens_prefill else None)
            for i in cluster.prefill
        ]
        self._decode = [_Decode(i, PrefixCache(capacity_tokens, block_tokens)) for i in cluster.decode]
        self._decode_by_id = {decode.id: decode for decode in self._decode}
        self._iteration_ps = [0, *(service_times.iteration_ps(b) for b in range(1, service_times.max_batch + 1))]
        self._waiting: deque[_Job] = deque()
        self._open = len(requests)  # without their last token
        self._to_transfer = len(requests)  # without their cache on the decode side
        self._flows_open = 0
        self._moved_ps = 0  # when a KV byte last moved, as far as link samples tell
        self._next_background = next(self._background, None)
        self._link_rows: list[npt.NDArray[np.int64]] = []
        self._last_link_sample: NetworkSample | None = None
        self._network_result: NetworkResult | None = None

    @property
    def completed(self) -> int:
        """Requests that have their last token."""
        return len(self._jobs) - self._open

    def run(self) -> RunResult:
        """Serve all requests.

        Raises
        ------
        RunFailure : an invariant broke; the message says which. Whatever a component raised comes out unchanged.
            What was recorded until then can be had from `result`.
        """
        for job in self._jobs:
            self._network.schedule(job.request.arrival_ps, partial(self._arrive, job))
        self._network.schedule(self._oracle.interval_ps, self._sample_oracle)
        self._last_link_sample = self._network.sample(reset_peaks=True)
        self._network.schedule(self._link_sampling_ps, self._sample_links)
        self._pump_background()
        self._network_result = self._network.run()
        self._check(self._network_result)
        return self.result("complete")

    def result(self, status: Literal["complete", "interrupted", "failed"]) -> RunResult:
        """What has been recorded, also after `run` raised."""
        return RunResult(
            backend=self._backend,
            scheduler=self._scheduler_name,
            seed=self._seed,
            requests=tuple(self._record(job) for job in self._jobs),
            network=self._network.recorded if self._network_result is None else self._network_result,
            links=self._links(),
            status=status,
        )

    # --- Prefill ------------------------------------------------------------------------------------------------------

    def _arrive(self, job: _Job) -> None:
        now_ps = self._network.now_ps
        prefill = min(self._prefill, key=lambda p: p.outstanding_ps(now_ps))  # the first of equals has the lowest id
        duration_ps = self._prefill_duration_ps(job, prefill)
        start_ps = max(now_ps, prefill.free_at_ps) if self._service.prefill_queue else now_ps
        job.prefill, job.prefill_start_ps, job.prefill_end_ps = prefill, start_ps, start_ps + duration_ps
        prefill.free_at_ps = job.prefill_end_ps
        prefill.jobs[job.request.id] = job
        if self._decides_on_arrival:
            self._place_or_wait(job)
        elif not self._decides_at_prefill_end:
            self._network.schedule(start_ps, partial(self._place_or_wait, job))
        for group in range(1, self._layer_groups + 1):
            ready_ps = start_ps + duration_ps * self._layers_until(group) // self._layers
            self._network.schedule(ready_ps, partial(self._group_ready, job, group))

    def _prefill_duration_ps(self, job: _Job, prefill: _Prefill) -> int:
        tokens = job.request.input_tokens
        duration_ps = self._service.prefill_ps(tokens)
        if prefill.cache is not None:
            hit = job.keys[: prefill.cache.hit_blocks(job.keys)]
            hit_tokens = min(prefill.cache.run_tokens(hit), tokens - 1)
            if hit_tokens:
                duration_ps -= self._service.prefill_ps(hit_tokens)
        return duration_ps

    def _layers_until(self, group: int) -> int:
        """Layers in the first `group` layer groups."""
        return self._layers * group // self._layer_groups

    def _group_ready(self, job: _Job, group: int) -> None:
        job.groups_ready = group
        if group == self._layer_groups:
            prefill = job.prefill
            del prefill.jobs[job.request.id]
            if prefill.cache is not None:
                cache = prefill.cache
                lease = cache.reserve(job.keys, cache.hit_blocks(job.keys), job.request.input_tokens)
                cache.publish(lease)
                cache.release(lease)
            if self._decides_at_prefill_end:
                self._place_or_wait(job)
                return
        if job.decode is not None:
            self._send_ready_groups(job)

    # --- Placement ----------------------------------------------------------------------------------------------------

    def _place_or_wait(self, job: _Job) -> None:
        if self._waiting or not self._place(job):
            self._waiting.append(job)

    def _place_waiting(self) -> None:
        while self._waiting:
            job = self._waiting.popleft()
            if not self._place(job):
                self._waiting.appendleft(job)
                return

    def _place(self, job: _Job) -> bool:
        """Let the scheduler choose a feasible decode instance and start the transfer; False if there is none."""
        request, keys, prefill = job.request, job.keys, job.prefill
        total_tokens = request.input_tokens + request.output_tokens
        tiers, inflight = prefill.tier, prefill.inflight
        max_batch, bytes_per_token = self._service.max_batch, self._kv_bytes_per_token
        views: list[DecodeView] = []
        hits: dict[int, int] = {}
        for decode in self._decode:
            cache = decode.cache
            n_hit = cache.hit_blocks(keys)
            if not cache.fits(keys, n_hit, total_tokens):
                continue
            hits[decode.id] = n_hit
            hit_tokens = cache.run_tokens(keys[:n_hit]) if n_hit else 0
            tier = tiers[decode.id]
            views.append(
                DecodeView(
                    decode.id,
                    tier,
                    hit_tokens,
                    (request.input_tokens - hit_tokens) * bytes_per_token,
                    cache.free_tokens * bytes_per_token,
                    decode.batch,
                    len(decode.queue),
                    decode.reserved,
                    max_batch,
                    inflight[tier],
                )
            )
        if not views:
            return False
        now_ps = self._network.now_ps
        kv_bytes = request.input_tokens * bytes_per_token
        view = ClusterView(now_ps, prefill.id, kv_bytes, tuple(views), self._service.iteration_ps)
        snapshot = self._oracle.snapshot(now_ps)
        started_s = time.perf_counter()
        choice = self._scheduler.choose(request, view, snapshot)
        job.decision_wall_s = time.perf_counter() - started_s
        if choice not in hits:
            raise RunFailure(
                f"scheduler {self._scheduler_name or type(self._scheduler).__name__} chose {choice!r} for request "
                f"{request.id}; feasible decode instances: {', '.join(map(str, hits))}"
            )
        chosen = next(d for d in views if d.instance == choice)
        decode = self._decode_by_id[chosen.instance]
        job.decode, job.decision_ps, job.view = decode, now_ps, chosen
        job.lease = decode.cache.reserve(keys, hits[decode.id], total_tokens)
        decode.reserved += 1
        if chosen.transfer_bytes:
            prefill.inflight[chosen.tier] += 1
        self._send_ready_groups(job)
        return True

    # --- Transfer -----------------------------------------------------------------------------------------------------

    def _send_ready_groups(self, job: _Job) -> None:
        assert job.decode is not None
        assert job.view is not None
        if job.groups_ready == job.groups_sent:
            return
        now_ps = self._network.now_ps
        if job.groups_sent == 0:
            job.transfer_start_ps = now_ps
        while job.groups_sent < job.groups_ready:
            group = job.groups_sent
            job.groups_sent += 1
            size_bytes = self._group_bytes(job.view, group)
            if size_bytes:
                job.flows_open += 1
                self._flows_open += 1
                self._moved_ps = now_ps
                src_ports, dst_ports = _ports(self._cluster, job.prefill.id, job.decode.id)
                flow_id = job.request.id * self._layer_groups + group
                flow = KVFlow(flow_id, "kv", src_ports, dst_ports, size_bytes, self._path_seed)
                self._network.start(flow, now_ps, partial(self._flow_done, job))
        self._finish_transfer_if_done(job)

    def _group_bytes(self, view: DecodeView, group: int) -> int:
        """What layer group `group` (0, 1, ...) adds to the transfer."""
        first, after = self._layers_until(group), self._layers_until(group + 1)
        return view.transfer_bytes * after // self._layers - view.transfer_bytes * first // self._layers

    def _flow_done(self, job: _Job) -> None:
        job.flows_open -= 1
        self._flows_open -= 1
        self._finish_transfer_if_done(job)

    def _finish_transfer_if_done(self, job: _Job) -> None:
        if job.flows_open or job.groups_sent < self._layer_groups:
            return
        decode, view, lease = job.decode, job.view, job.lease
        assert decode is not None
        assert view is not None
        assert lease is not None
        job.transfer_end_ps = self._network.now_ps
        self._to_transfer -= 1
        if not self._to_transfer:
            self._record_links()
        if view.transfer_bytes:
            job.prefill.inflight[view.tier] -= 1
        decode.reserved -= 1
        decode.cache.publish(lease)
        decode.queue.append(job)
        self._join(decode)
        self._place_waiting()  # blocks that came twice are kept once, and may be hits now

    # --- Decode -------------------------------------------------------------------------------------------------------

    def _start_stretch(self, decode: _Decode) -> None:
        """Begin a stretch of iterations with one batch, which ends when a request leaves, or earlier if one joins."""
        now_ps = self._network.now_ps
        joined: list[_Job] = []
        while decode.queue and decode.batch < self._service.max_batch:
            job = decode.queue.popleft()
            decode.batch += 1
            joined.append(job)
            heapq.heappush(decode.leaving, (decode.iterations + job.request.output_tokens, job.request.id))
        decode.stretch_ps, decode.iteration_ps = now_ps, self._iteration_ps[decode.batch]
        for job in joined:
            job.decode_start_ps, job.first_token_ps = now_ps, now_ps + decode.iteration_ps
        self._end_stretch_after(decode, decode.leaving[0][0] - decode.iterations)

    def _end_stretch_after(self, decode: _Decode, iterations: int) -> None:
        decode.stretch_iterations = iterations
        at_ps = decode.stretch_ps + iterations * decode.iteration_ps
        self._network.schedule(at_ps, partial(self._end_stretch, decode, at_ps))

    def _join(self, decode: _Decode) -> None:
        """Let the request that has just been queued in at the next iteration boundary, if there is a slot."""
        if not decode.batch:
            self._start_stretch(decode)
        elif decode.batch < self._service.max_batch:
            begun = -(-(self._network.now_ps - decode.stretch_ps) // decode.iteration_ps)
            if max(begun, 1) < decode.stretch_iterations:
                self._end_stretch_after(decode, max(begun, 1))

    def _end_stretch(self, decode: _Decode, at_ps: int) -> None:
        if not decode.batch or at_ps != decode.stretch_ps + decode.stretch_iterations * decode.iteration_ps:
            return  # it ended earlier than foreseen, as a request joined
        decode.iterations += decode.stretch_iterations
        if decode.leaving[0][0] == decode.iterations:
            while decode.leaving and decode.leaving[0][0] == decode.iterations:
                self._complete(self._jobs[heapq.heappop(decode.leaving)[1]], decode)
            self._place_waiting()
        # A request that waited and needed no transfer may just have begun the next stretch on the idle instance.
        if decode.stretch_ps < at_ps and (decode.batch or decode.queue):
            self._start_stretch(decode)

    def _complete(self, job: _Job, decode: _Decode) -> None:
        assert job.lease is not None
        job.last_token_ps = self._network.now_ps
        decode.batch -= 1
        decode.cache.release(job.lease)
        self._open -= 1

    # --- Periodic processes, until the last transfer is complete: nothing depends on the network after it -------------

    def _sample_oracle(self) -> None:
        if self._to_transfer:
            self._oracle.observe(self._network.sample())
            self._network.schedule(self._network.now_ps + self._oracle.interval_ps, self._sample_oracle)

    def _sample_links(self) -> None:
        if self._to_transfer:
            self._record_links()
            self._check_stall()
            self._network.schedule(self._network.now_ps + self._link_sampling_ps, self._sample_links)

    def _check_stall(self) -> None:
        now_ps = self._network.now_ps
        if not self._flows_open or self._link_rows[-1][:, LINK_COLUMNS.index("kv_bytes")].any():
            self._moved_ps = now_ps
        elif now_ps - self._moved_ps >= STALL_PS:
            stuck = [job.request.id for job in self._jobs if job.flows_open]
            raise RunFailure(
                f"no KV byte has moved for {(now_ps - self._moved_ps) / 1e12:g} s, transfers of {len(stuck)} requests "
                f"are open, first of them {stuck[0]}"
            )

    def _record_links(self) -> None:
        last, sample = self._last_link_sample, self._network.sample(reset_peaks=True)
        assert last is not None
        if sample.now_ps > last.now_ps:
            n_ports = len(sample.marks)
            columns = [
                np.arange(n_ports),
                np.full(n_ports, last.now_ps),
                np.full(n_ports, sample.now_ps),
                *(sample.tx_bytes - last.tx_bytes).T,
                sample.marks - last.marks,
                sample.paused_ps - last.paused_ps,
                sample.queue_max_bytes,
            ]
            self._link_rows.append(np.stack(columns, axis=1).astype(np.int64))
            self._last_link_sample = sample

    def _links(self) -> Mapping[str, npt.NDArray[Any]]:
        empty = np.empty((0, len(LINK_COLUMNS)), dtype=np.int64)
        table = np.concatenate([empty, *self._link_rows])
        return {name: table[:, i].copy() for i, name in enumerate(LINK_COLUMNS)}

    def _pump_background(self) -> None:
        if not self._to_transfer:
            return
        until_ps = self._network.now_ps + BACKGROUND_CHUNK_PS
        while self._next_background is not None and self._next_background[0] < until_ps:
            start_ps, flow = self._next_background
            if start_ps < self._network.now_ps:
                raise RunFailure(f"background flow {flow.id} starts at {start_ps} ps, after one that starts later")
            self._network.start(flow, start_ps)
            self._next_background = next(self._background, None)
        if self._next_background is not None:
            self._network.schedule(until_ps, self._pump_background)

    # --- Results ------------------------------------------------------------------------------------------------------

    def _record(self, job: _Job) -> RequestRecord:
        now_ps, view, request = self._network.now_ps, job.view, job.request

        def passed(time_ps: int) -> int:
            return time_ps if time_ps <= now_ps else -1

        return RequestRecord(
            id=request.id,
            arrival_ps=request.arrival_ps,
            prefill_start_ps=passed(job.prefill_start_ps),
            prefill_end_ps=passed(job.prefill_end_ps),
            decision_ps=job.decision_ps,
            transfer_start_ps=job.transfer_start_ps,
            transfer_end_ps=job.transfer_end_ps,
            decode_start_ps=job.decode_start_ps,
            first_token_ps=passed(job.first_token_ps),
            last_token_ps=job.last_token_ps,
            input_tokens=request.input_tokens,
            output_tokens=request.output_tokens,
            prefill_instance=job.prefill.id if job.prefill_start_ps >= 0 else -1,
            decode_instance=view.instance if view else -1,
            tier=view.tier if view else -1,
            hit_tokens=view.hit_tokens if view else 0,
            kv_bytes=request.input_tokens * self._kv_bytes_per_token,
            transfer_bytes=view.transfer_bytes if view else 0,
            queue_at_decision=view.queued + view.reserved if view else 0,
            batch_at_decision=view.batch if view else 0,
            warmup=request.id < self._n_warmup,
            decision_wall_s=job.decision_wall_s,
        )

    def _check(self, network: NetworkResult) -> None:
        """What must hold in every run, whatever the parts do."""
        if self._open:
            unfinished = [job.request.id for job in self._jobs if job.last_token_ps < 0]
            raise RunFailure(
                f"the network stopped with {len(unfinished)} of {len(self._jobs)} requests incomplete, first of them "
                f"{unfinished[0]}; {len(self._waiting)} wait for memory"
            )
        flows = network.flows
        short = np.flatnonzero((flows.acked_bytes != flows.size_bytes) | (flows.end_ps < flows.start_ps))
        if short.size:
            i = short[0]
            raise RunFailure(
                f"{short.size} flows not delivered, first of them {TRAFFIC_CLASSES[flows.traffic_class[i]]} transfer "
                f"{flows.transfer_id[i]}: {flows.acked_bytes[i]} of {flows.size_bytes[i]} bytes acknowledged"
            )
        carried_bytes = int(flows.size_bytes[flows.traffic_class == _KV].sum())
        placed_bytes = sum(job.view.transfer_bytes for job in self._jobs if job.view)
        if carried_bytes != placed_bytes:
            raise RunFailure(f"KV flows carried {carried_bytes} bytes, the requests needed {placed_bytes} bytes")
        fastest_iteration_ps = min(self._iteration_ps[1:])
        for job in self._jobs:
            self._check_times(job, fastest_iteration_ps)

    def _check_times(self, job: _Job, fastest_iteration_ps: int) -> None:
        assert job.view is not None
        request = job.request
        begin = (request.arrival_ps, job.prefill_start_ps, job.prefill_end_ps)
        moved = (job.decision_ps, job.transfer_start_ps, job.transfer_end_ps)
        end = (job.decode_start_ps, job.first_token_ps, job.last_token_ps)
        # The transfer begins when the prefill has ended, or within it with layer groups.
        transferred = (*begin, *moved[1:], *end) if self._layer_groups == 1 else (*begin[:2], *moved[1:], *end)
        asked = begin if self._decides_at_prefill_end else begin[:1] if self._decides_on_arrival else begin[:2]
        orders = [transferred, (*begin, *end), (*asked, *moved, *end)]
        for order in orders:
            if list(order) != sorted(order):
                raise RunFailure(f"times of request {request.id} are out of order: {order} ps")
        last_bytes = self._group_bytes(job.view, self._layer_groups - 1)
        src_ports, dst_ports = _ports(self._cluster, job.prefill.id, job.view.instance)
        rate_bps = min(_rate_bps(self._cluster, src_ports), _rate_bps(self._cluster, dst_ports))
        prefill_ps = job.prefill_end_ps - job.prefill_start_ps
        ideal_ps = prefill_ps + last_bytes * 8 * 10**12 // rate_bps + fastest_iteration_ps
        ttft_ps = job.first_token_ps - request.arrival_ps
        if ttft_ps < ideal_ps:
            raise RunFailure(
                f"TTFT of request {request.id} is {ttft_ps} ps, less than the {ideal_ps} ps of its prefill, its last "
                "layers at line rate and one decode iteration"
            )


class _Prefill:
    """State of a prefill instance."""

    __slots__ = ("cache", "free_at_ps", "id", "inflight", "jobs", "tier")

    def __init__(self, cluster: Cluster, instance: int, cache: PrefixCache | None) -> None:
        self.id = instance
        self.cache = cache  #: only where prefix hits shorten prefill
        self.tier = {d: cluster.tier(instance, d) for d in cluster.decode}
        self.inflight = [0] * N_TIERS  #: transfers under way, per tier
        self.jobs: dict[int, _Job] = {}  #: waiting and in service
        self.free_at_ps = 0  #: end of the last one that arrived

    def outstanding_ps(self, now_ps: int) -> int:
        return sum(job.prefill_end_ps - max(job.prefill_start_ps, now_ps) for job in self.jobs.values())


class _Decode:
    """State of a decode instance."""

    __slots__ = (
        "batch",
        "cache",
        "id",
        "iteration_ps",
        "iterations",
        "leaving",
        "queue",
        "reserved",
        "stretch_iterations",
        "stretch_ps",
    )

    def __init__(self, instance: int, cache: PrefixCache) -> None:
        self.id = instance
        self.cache = cache
        self.reserved = 0  #: requests whose cache is on its way
        self.queue: deque[_Job] = deque()  #: requests that wait for the next iteration or a slot
        self.batch = 0  #: running requests
        self.iterations = 0  #: completed before the present stretch
        self.stretch_ps = 0  #: when the present stretch began
        self.stretch_iterations = 0  #: how many it will have, as far as is known
        self.iteration_ps = 0  #: how long one of them takes
        self.leaving: list[tuple[int, int]] = []  #: heap of (number of its last iteration, request id)


class _Job:
    """State of a request; times are -1 until they are known."""

    __slots__ = (
        "decision_ps",
        "decision_wall_s",
        "decode",
        "decode_start_ps",
        "first_token_ps",
        "flows_open",
        "groups_ready",
        "groups_sent",
        "keys",
        "last_token_ps",
        "lease",
        "prefill",
        "prefill_end_ps",
        "prefill_start_ps",
        "request",
        "transfer_end_ps",
        "transfer_start_ps",
        "view",
    )

    def __init__(self, request: Request, keys: tuple[BlockKey, ...]) -> None:
        self.request, self.keys = request, keys
        self.prefill: _Prefill  #: from arrival on
        self.decode: _Decode | None = None
        self.view: DecodeView | None = None  #: the chosen instance at the decision
        self.lease: Lease | None = None
        self.groups_ready = self.groups_sent = self.flows_open = 0
        self.decision_wall_s = 0.0
        self.prefill_start_ps = self.prefill_end_ps = self.decision_ps = self.transfer_start_ps = -1
        self.transfer_end_ps = self.decode_start_ps = self.first_token_ps = self.last_token_ps = -1


def _ports(cluster: Cluster, src: int, dst: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Ports of a transfer: the NVLink of two instances on one host if they have one, else all NICs that pair up."""
    a, b = cluster.instances[src], cluster.instances[dst]
    if dst in a.nvlink_ports:
        return (a.nvlink_ports[dst],), (b.nvlink_ports[src],)
    n = min(len(a.nic_ports), len(b.nic_ports))
    return a.nic_ports[:n], b.nic_ports[:n]


def _rate_bps(cluster: Cluster, ports: tuple[int, ...]) -> int:
    return sum(cluster.topology.links[port >> 1].rate_bps for port in ports)


def _check_parts(
    requests: Sequence[Request],
    cluster: Cluster,
    layers: int,
    layer_groups: int,
    capacity_tokens: int,
    kv_bytes_per_token: int,
    block_tokens: int,
) -> None:
    for role, instances in (("prefill", cluster.prefill), ("decode", cluster.decode)):
        if not instances:
            raise InputError(f"the placement leaves no {role} instance", key="cluster.placement")
    if not 1 <= layer_groups <= layers:
        raise InputError(f"{layer_groups} given; from 1 to the model's {layers} layers", key="layer_groups")
    if not requests:
        raise InputError("the workload has no requests", key="workload")
    for i, request in enumerate(requests):
        tokens = request.input_tokens + request.output_tokens
        if tokens > capacity_tokens:
            raise InputError(
                f"request {request.id} needs {tokens * kv_bytes_per_token / 1e9:.2f} GB of KV cache ({tokens} tokens); "
                f"an instance has {capacity_tokens * kv_bytes_per_token / 1e9:.2f} GB left beside the weights",
                key="cluster.memory_per_gpu",
            )
        problem = ""
        if request.id != i:
            problem = f"has the id {request.id}; ids must be 0, 1, 2, ..."
        elif request.arrival_ps < (requests[i - 1].arrival_ps if i else 0):
            problem = "arrives before the one before it, or before 0"
        elif request.input_tokens < 1 or request.output_tokens < 1:
            problem = f"has {request.input_tokens} input and {request.output_tokens} output tokens; at least 1 each"
        elif len(request.block_hashes) != -(-request.input_tokens // block_tokens):
            n, blocks = len(request.block_hashes), -(-request.input_tokens // block_tokens)
            problem = f"has {n} block hashes; {request.input_tokens} tokens begin {blocks} blocks of {block_tokens}"
        if problem:
            raise InputError(f"request number {i} {problem}", key="workload")
