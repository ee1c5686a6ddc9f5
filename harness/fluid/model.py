"""What the fluid models have in common: the clock, the life of a flow, and the records.

A flow's bytes drain at its present rate on all links of its path at once; when they are gone, the last of them still
has the propagation delays of the path before it (once, one way), and then the flow has ended. Left out: packets,
queues, congestion control, PFC, ACKs, loss.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from time import perf_counter
from typing import ClassVar

import numpy as np

from harness.errors import InputError, Interrupted
from harness.fluid.drains import PS_PER_S, Drains
from harness.fluid.waterfill import Demand
from harness.network_settings import NetworkSettings
from harness.routing import Router, queue_pair_flows
from harness.types import (
    TRAFFIC_CLASSES,
    FlowTable,
    Int64Array,
    KVFlow,
    NetworkResult,
    NetworkSample,
    NetworkTotals,
    Progress,
    QueuePairFlow,
    Topology,
)

HEARTBEAT_S = 0.1


class Flow(Demand):
    """A queue pair's bytes under way.

    Parameters
    ----------
    queue_pair, record : what it carries, and the row of its record.
    links : what it crosses, as the allocation numbers it. path : the ports that it leaves through.
    slot : where `Drains` has it.
    wire_bytes : what has to drain, and what link counters count.
    delay_ps : propagation along the path.
    """

    __slots__ = (
        "class_index",
        "delay_ps",
        "path",
        "queue_pair",
        "record",
        "slot",
        "transfer",
        "wire_bytes",
    )

    def __init__(
        self,
        queue_pair: QueuePairFlow,
        record: int,
        transfer: Transfer,
        *,
        links: tuple[int, ...],
        path: tuple[int, ...],
        slot: int,
        wire_bytes: int,
        delay_ps: int,
    ) -> None:
        super().__init__(links)
        self.queue_pair = queue_pair
        self.class_index = TRAFFIC_CLASSES.index(queue_pair.traffic_class)
        self.record = record
        self.transfer = transfer
        self.path = path
        self.slot = slot
        self.wire_bytes = wire_bytes
        self.delay_ps = delay_ps


class Transfer:
    """How many queue pairs of a transfer are still under way, and what to do after the last."""

    __slots__ = ("done", "under_way")

    def __init__(self, under_way: int, done: Callable[[], None] | None) -> None:
        self.under_way = under_way
        self.done = done


class FluidModel(ABC):
    """A `NetworkModel` without packets: subclasses say how flows share links.

    At one time the flows that have drained leave first, by slot (see drains.py); then actions run in the order in which
    they were scheduled; and when nothing more happens at that time, rates follow.

    Parameters
    ----------
    topology, settings : the fabric, and from `settings` how transfers are split over queue pairs, the framing and the
        priority of background traffic.
    seed : of the path hashes, as in the packet model.
    on_heartbeat : called about every 0.1 s of wall time from inside `run`.

    Raises
    ------
    InputError : a load balancing that the model does not have.
    """

    #: The values of `load_balancing.use` that the model can follow: a flow has one path, which it keeps.
    LOAD_BALANCING: ClassVar[tuple[str, ...]] = ("ecmp", "pinned")

    @classmethod
    def check(cls, settings: NetworkSettings) -> None:
        """Raise InputError for a load balancing that the model does not have."""
        use = settings.load_balancing.use
        if use not in cls.LOAD_BALANCING:
            raise InputError(
                f"given {use!r}: the fluid model knows {', '.join(cls.LOAD_BALANCING)} only",
                key="network.load_balancing.use",
            )

    def __init__(
        self,
        topology: Topology,
        settings: NetworkSettings,
        *,
        seed: int,
        on_heartbeat: Callable[[Progress], None] | None = None,
    ) -> None:
        self.check(settings)
        self.now_ps = 0
        self._topology = topology
        self._settings = settings
        self._router = Router(topology, seed=seed, seed_per_switch=settings.load_balancing.seed_per_switch)
        self._on_heartbeat = on_heartbeat
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._scheduled = 0
        self._processed = 0
        self._draining: dict[int, Flow] = {}  # by slot, in order of start
        self._drains = Drains()
        self._drained_bytes: list[list[int]] = [[0] * topology.n_ports for _ in TRAFFIC_CLASSES]
        self._queue_pairs: list[QueuePairFlow] = []
        self._start_ps: list[int] = []
        self._end_ps: list[int] = []
        self._ideal_fct_ps: list[int] = []
        self._set_up()

    # --- NetworkModel -------------------------------------------------------------------------------------------------

    def schedule(self, at_ps: int, action: Callable[[], None]) -> None:
        """Run `action` at `at_ps` >= now; actions for the same time run in the order in which they were scheduled."""
        assert at_ps >= self.now_ps, f"an event in the past: {at_ps} ps, now {self.now_ps} ps"
        heappush(self._events, (at_ps, self._scheduled, action))
        self._scheduled += 1

    def start(self, flow: KVFlow, at_ps: int, done: Callable[[], None] | None = None) -> None:
        """Start `flow` at `at_ps` >= now; `done` runs when its last byte has arrived, at once if it has none."""
        self.schedule(at_ps, lambda: self._begin(flow, done))

    def sample(self, reset_peaks: bool = False) -> NetworkSample:  # noqa: ARG002 (there are no queues, so no peaks)
        """The link counters now; `marks`, `paused_ps` and `queue_max_bytes` are 0."""
        tx_bytes = np.array(self._drained_bytes, dtype=np.int64).T.copy()
        for flow in self._draining.values():
            sent = self._sent(flow, flow.wire_bytes)
            for port in flow.path:
                tx_bytes[port, flow.class_index] += sent
        none = np.zeros(self._topology.n_ports, dtype=np.int64)
        return NetworkSample(self.now_ps, self._spread(tx_bytes), none, none.copy(), none.copy())

    def run(self) -> NetworkResult:
        """Process events until none is left.

        Raises
        ------
        Interrupted : the user pressed Ctrl-C. Whatever an action raised is raised here unchanged.
        """
        try:
            self._process_events()
        except KeyboardInterrupt:
            raise Interrupted(f"stopped at {self.now_ps / PS_PER_S:.3f} s of simulated time") from None
        # Links have positive rates, so the highest band always drains, and then the next one does.
        assert not self._draining, f"{len(self._draining)} flows are left over without an event"
        return self.recorded

    @property
    def recorded(self) -> NetworkResult:
        """What was recorded until now, also after `run` has raised."""
        size_bytes = _int64([flow.size_bytes for flow in self._queue_pairs])
        drained_bytes = size_bytes.copy()
        for flow in self._draining.values():
            drained_bytes[flow.record] = self._sent(flow, flow.queue_pair.size_bytes)
        none = np.zeros(len(size_bytes), dtype=np.int64)
        flows = FlowTable(
            transfer_id=_int64([flow.transfer_id for flow in self._queue_pairs]),
            traffic_class=np.array(
                [TRAFFIC_CLASSES.index(flow.traffic_class) for flow in self._queue_pairs], dtype=np.int8
            ),
            src_port=_int64([flow.src_port for flow in self._queue_pairs]),
            dst_port=_int64([flow.dst_port for flow in self._queue_pairs]),
            size_bytes=size_bytes,
            acked_bytes=drained_bytes,
            start_ps=_int64(self._start_ps),
            end_ps=_int64(self._end_ps),
            ideal_fct_ps=_int64(self._ideal_fct_ps),
            ecn_marks=none,
            cnps=none.copy(),
            retransmitted_bytes=none.copy(),
        )
        drained = int(drained_bytes.sum())
        totals = NetworkTotals(payload_bytes_sent=drained, payload_bytes_acked=drained, events=self._processed)
        return NetworkResult(flows, totals, self.sample())

    # --- What a model decides -----------------------------------------------------------------------------------------

    @abstractmethod
    def _set_up(self) -> None:
        """Prepare the allocation on `_topology` with `_settings`."""

    @abstractmethod
    def _attach(self, flow: Flow) -> None:
        """`flow` starts now. `_reallocate` follows before time moves on."""

    @abstractmethod
    def _detach(self, flow: Flow) -> None:
        """`flow` has drained now. `_reallocate` follows before time moves on."""

    @abstractmethod
    def _reallocate(self) -> None:
        """Call `_rates_changed` with the flows whose rates are other ones from now on."""

    @abstractmethod
    def _alone_bps(self, path: tuple[int, ...]) -> float:
        """The rate of a flow that is alone in the network [bit/s]."""

    def _links(self, path: tuple[int, ...]) -> tuple[int, ...]:
        """What the ports of a path are to the allocation."""
        return path

    def _wire_bytes(self, size_bytes: int) -> int:
        """What a payload takes on every link."""
        return size_bytes

    def _spread(self, tx_bytes: Int64Array) -> Int64Array:
        """Port counters from the bytes that crossed each port of the paths."""
        return tx_bytes

    def _split(self, flow: KVFlow) -> tuple[QueuePairFlow, ...]:
        transport = self._settings.transport
        return queue_pair_flows(flow, striping=transport.striping, queue_pairs=transport.queue_pairs)

    # --- The life of a flow -------------------------------------------------------------------------------------------

    def _process_events(self) -> None:
        events = self._events
        next_heartbeat_s = perf_counter() + HEARTBEAT_S
        while True:
            end = self._drains.next_end()
            if (not events or events[0][0] > self.now_ps) and (end is None or end[0] > self.now_ps):
                self._reallocate()
                end = self._drains.next_end()
            if end is not None and (not events or end[0] <= events[0][0]):
                self.now_ps, slot = end
                self._drain(self._draining[slot])
            elif events:
                self.now_ps, _, action = heappop(events)
                action()
            else:
                return
            self._processed += 1
            if self._on_heartbeat is not None and not self._processed & 63 and perf_counter() >= next_heartbeat_s:
                self._on_heartbeat(Progress(self.now_ps, 0, 0))
                next_heartbeat_s = perf_counter() + HEARTBEAT_S

    def _begin(self, kv_flow: KVFlow, done: Callable[[], None] | None) -> None:
        queue_pairs = self._split(kv_flow)
        if not queue_pairs and done is not None:
            done()
        transfer = Transfer(len(queue_pairs), done)
        for queue_pair in queue_pairs:
            path = self._router.path(queue_pair.src_port, queue_pair.dst_port, queue_pair.udp_sport)
            wire_bytes = self._wire_bytes(queue_pair.size_bytes)
            flow = Flow(
                queue_pair,
                len(self._queue_pairs),
                transfer,
                links=self._links(path),
                path=path,
                slot=self._drains.add(8.0 * wire_bytes, self.now_ps),
                wire_bytes=wire_bytes,
                delay_ps=sum(self._topology.links[port >> 1].delay_ps for port in path),
            )
            self._queue_pairs.append(queue_pair)
            self._start_ps.append(self.now_ps)
            self._end_ps.append(-1)
            self._ideal_fct_ps.append(_duration_ps(8 * wire_bytes, self._alone_bps(path)) + flow.delay_ps)
            self._draining[flow.slot] = flow
            self._attach(flow)

    def _rates_changed(self, flows: Sequence[Flow]) -> None:
        """The rates of `flows` are new: foresee their ends anew."""
        if not flows:
            return
        slots, rates_bps = [flow.slot for flow in flows], [flow.rate_bps for flow in flows]
        self._drains.set_rates(slots, rates_bps, self.now_ps)

    def _sent(self, flow: Flow, total_bytes: int) -> int:
        """The part of `total_bytes` that has drained by now, to the nearest byte."""
        left_bits = self._drains.left_bits(flow.slot, self.now_ps)
        return round(total_bytes * (8 * flow.wire_bytes - left_bits) / (8 * flow.wire_bytes))

    def _drain(self, flow: Flow) -> None:
        del self._draining[flow.slot]
        self._drains.remove(flow.slot)
        drained_bytes = self._drained_bytes[flow.class_index]
        for port in flow.path:
            drained_bytes[port] += flow.wire_bytes
        self._detach(flow)
        self.schedule(self.now_ps + flow.delay_ps, lambda: self._arrive(flow))

    def _arrive(self, flow: Flow) -> None:
        self._end_ps[flow.record] = self.now_ps
        transfer = flow.transfer
        transfer.under_way -= 1
        if not transfer.under_way and transfer.done is not None:
            transfer.done()


def _duration_ps(bits: float, rate_bps: float) -> int:
    """Time to drain, rounded once to the nearest ps."""
    return round(bits * PS_PER_S / rate_bps)


def _int64(values: list[int]) -> Int64Array:
    return np.array(values, dtype=np.int64)
