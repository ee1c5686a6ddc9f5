"""The packet-level network model: ns-3 carries every packet, and hosts the run's one event queue."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from harness.errors import InputError, Interrupted, RunFailure
from harness.network_settings import NetworkSettings
from harness.packet import capture, runtime
from harness.routing import Router, ideal_fct_ps, mix64, queue_pair_flows
from harness.types import (
    TRAFFIC_CLASSES,
    FlowTable,
    Int64Array,
    KVFlow,
    Link,
    NetworkResult,
    NetworkSample,
    NetworkTotals,
    Progress,
    Topology,
)

#: Engines that can run the model, by the name that `simulator` takes.
ENGINES = {"wheel": "kvnet::WheelSimulatorImpl", "ns3": "ns3::DefaultSimulatorImpl"}

#: Reaction time of a PFC peer, as the bytes that it may still send at 100 Gb/s [bytes]. IEEE 802.1Qbb (802.3 annex
#: 31B.3.7) allows 60 quanta of 512 bit times at 10 Gb/s and more at higher rates; about 25 KB at 100 Gb/s.
PFC_REACTION_BYTES_AT_100G = 25_000

#: Types of ns-3's congestion controls, by the name that `network.tcp.use` takes.
TCP_TYPES = {"dctcp": "ns3::TcpDctcp", "cubic": "ns3::TcpCubic", "newreno": "ns3::TcpNewReno", "bbr": "ns3::TcpBbr"}

_MAX_FRAME_BYTES = 9600
_MAX_PACKETS = 2**32 - 1
_FLOW_FIELDS = 12

#: `PythonCall` of fabric-types.h.
_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_uint32, ctypes.c_uint64)

#: Columns of a port trace, in C++'s order; bytes are wire bytes by class, the queue is in frame bytes.
TRACE_COLUMNS = (
    "port",
    "start_ps",
    "end_ps",
    "queue_max_bytes",
    "control_bytes",
    "kv_bytes",
    "background_bytes",
    "paused_ps",
)

#: Finest resolution of a trace unless said otherwise [ps]: about a round trip through a data centre.
TRACE_INTERVAL_PS = 10_000_000

#: Intervals that a trace keeps per port: enough for a figure, and 8 MB at 64 bytes each for 32 ports.
TRACE_CAPACITY = 4096


def in_flight_bytes(link: Link, settings: NetworkSettings) -> int:
    """What may still arrive on `link` after a pause was decided, at a peer that reacts at once [bytes].

    2 x delay x rate + 2 frames + the PFC frame (IEEE 802.1Qbb, 802.3 annex 31B).
    """
    framing = settings.framing
    longest = max(settings.transport.payload_bytes + framing.data_overhead, settings.tcp_mtu + 18)
    frames = 2 * longest + framing.pfc
    return 2 * link.delay_ps * link.rate_bps // (8 * 10**12) + frames


def pfc_headroom_bytes(link: Link, settings: NetworkSettings) -> int:
    """Headroom of a switch's ingress on `link` [bytes].

    What may be in flight and the peer's reaction, or the number that is configured; times `headroom_factor`.
    """
    pfc = settings.switch.pfc
    if pfc.headroom == "computed":
        headroom = in_flight_bytes(link, settings) + PFC_REACTION_BYTES_AT_100G * link.rate_bps // 10**11
    else:
        headroom = pfc.headroom
    return int(headroom * pfc.headroom_factor)


def _address(callback: Any) -> int:
    address = ctypes.cast(callback, ctypes.c_void_p).value
    assert address is not None
    return address


def _lines(attributes: Mapping[str, str]) -> str:
    """Attributes as C++ takes them: cppyy needs a tenth of a second of compilation for a vector of strings."""
    return "".join(f"{name}={value}\n" for name, value in attributes.items())


def _scaled(value: int, rate_bps: int, reference_bps: int | None) -> int:
    return value if reference_bps is None else round(value * rate_bps / reference_bps)


def check(topology: Topology, settings: NetworkSettings) -> None:
    """Raise InputError for settings that do not fit the topology or each other; nothing unchecked reaches ns-3."""
    framing, switch = settings.framing, settings.switch
    frame = settings.transport.payload_bytes + framing.data_overhead
    if framing.wire_gap > _MAX_FRAME_BYTES:
        message = f"given {framing.wire_gap}, allowed: up to {_MAX_FRAME_BYTES}"
        raise InputError(message, key="network.framing.wire_gap")
    if max(frame, framing.ack, framing.cnp, framing.pfc) > _MAX_FRAME_BYTES:
        raise InputError(
            f"a frame of {frame} bytes is too long, allowed: up to {_MAX_FRAME_BYTES}", key="network.framing"
        )
    if switch.pfc.on:
        classes = 1 if switch.background_priority == "data" else 2
        for node in topology.nodes:
            if node.kind == "host":
                continue
            links = [topology.links[p >> 1] for p in topology.ports_of[node.id]]
            need = classes * sum(pfc_headroom_bytes(link, settings) + switch.pfc.reserve for link in links)
            if need >= switch.buffer_bytes:
                raise InputError(
                    f"headroom and reserves of {node.name} come to {need} bytes ({len(links)} ports, {classes} "
                    f"lossless classes), must be below buffer_bytes ({switch.buffer_bytes})",
                    key="network.switch.pfc.headroom",
                )


def warnings(topology: Topology, settings: NetworkSettings) -> list[str]:
    """What an expert would want to know before the run: PFC settings under which loss is possible."""
    pfc = settings.switch.pfc
    if not pfc.on:
        return ["PFC is off: packets are dropped when an egress queue reaches its share of the buffer"]
    for link in topology.links:
        # The peers modelled here react at once: loss needs less than the standard's allowance for slow ones.
        have, need = pfc_headroom_bytes(link, settings), in_flight_bytes(link, settings)
        if have < need and link.tier != 0:
            rate = f"{link.rate_bps / 1e9:g} Gb/s"
            return [f"PFC headroom of {have} bytes is below the {need} bytes that {rate} may bring: loss is possible"]
    return []


class PacketNetwork:
    """A NetworkModel on ns-3. One at a time in a process; `run` once.

    Parameters
    ----------
    topology : the fabric.
    settings : the resolved `network:` block.
    seed : of the ECMP hashes (as Router) and of the ports' marking streams.
    on_heartbeat : called about every million packet-hops with the progress so far; may raise to stop the run.
    simulator : "wheel" (ours) or "ns3" (ns3::DefaultSimulatorImpl); results are identical.
    pinned : (src_port, dst_port, udp_sport) -> path, overriding ECMP.
    trace_ports : ports of which time series are recorded, see `port_traces`.
    pcap : port -> file of the frames that leave it, see model/packet-capture.h.
    pcap_snap_bytes : of a frame's payload, so much is kept beside the headers.
    pcap_limit_bytes : a file ends before it grows beyond this size, see `pcap_full`.
    trace_interval_ps : their finest resolution; it is halved as often as the series would outgrow TRACE_CAPACITY.

    Raises
    ------
    InputError : settings that do not fit, or a congestion control that cannot be made.
    """

    def __init__(
        self,
        topology: Topology,
        settings: NetworkSettings,
        *,
        seed: int,
        on_heartbeat: Callable[[Progress], None] | None = None,
        simulator: str = "wheel",
        pinned: Mapping[tuple[int, int, int], tuple[int, ...]] | None = None,
        trace_ports: Sequence[int] = (),
        trace_interval_ps: int = TRACE_INTERVAL_PS,
        pcap: Mapping[int, Path] | None = None,
        pcap_snap_bytes: int = 0,
        pcap_limit_bytes: int = capture.LIMIT_BYTES,
    ) -> None:
        check(topology, settings)
        if pinned is not None and settings.load_balancing.use in ("flowlet", "spray"):
            raise InputError(
                f"given {settings.load_balancing.use!r}, must be 'pinned' or 'ecmp' with paths that are given",
                key="network.load_balancing.use",
            )
        self._topology, self._settings, self._on_heartbeat = topology, settings, on_heartbeat
        self._router = Router(
            topology, seed=seed, seed_per_switch=settings.load_balancing.seed_per_switch, pinned=pinned
        )
        self._pinned = pinned
        headers = (Path(settings.cc.header),) if settings.cc.header else ()
        self._kvnet = runtime.load(headers)
        self._actions: dict[int, Callable[[], None]] = {}
        self._next_token = 0
        self._transfers: dict[int, tuple[int, Callable[[], None]]] = {}
        self._error: BaseException | None = None
        self._stock: Any = None
        self._fabric = self._build(seed, ENGINES[simulator])
        if trace_ports:
            self._fabric.TracePorts(list(trace_ports), trace_interval_ps, TRACE_CAPACITY)
        for port, path in (pcap or {}).items():
            problem = str(self._fabric.Capture(port, str(path), pcap_snap_bytes, pcap_limit_bytes))
            if problem:
                raise InputError(problem)

    # --- set-up -------------------------------------------------------------------------------------------------------

    def _parameters(self) -> Any:
        s, p = self._settings, self._kvnet.NetworkParameters()
        p.payloadBytes, p.ackEvery = s.transport.payload_bytes, s.transport.ack_every
        p.windowBytes = s.transport.window_bytes if s.transport.window != "none" else 0
        p.windowScalesWithRate = s.transport.window == "rate_scaled"
        p.timeout, p.nackInterval = s.transport.timeout, s.transport.nack_interval
        if s.transport.reordering == "place":
            p.reorderWindow, p.reorderTimeout = s.transport.reorder_window, s.transport.reorder_timeout
        p.cnpAsPacket, p.cnpInterval = s.cc.cnp_mode == "packet", s.cc.cnp_interval
        p.bufferBytes, p.markAtEnqueue, p.ecnMaxProbability = (
            s.switch.buffer_bytes,
            s.switch.ecn.at == "enqueue",
            s.switch.ecn.pmax,
        )
        pfc = s.switch.pfc
        p.pfc = pfc.on
        p.dynamicShift = -1 if pfc.dynamic_shift is None else pfc.dynamic_shift
        p.xoffBytes, p.xonBytes = pfc.xoff or 0, pfc.xon or 0
        p.reserveBytes, p.resumeOffsetBytes = pfc.reserve, pfc.resume_offset
        p.acksInDataQueue = s.switch.ack_class == "data"
        p.backgroundInDataQueue = s.switch.background_priority == "data"
        f = s.framing
        p.dataOverhead, p.ackBytes, p.cnpBytes, p.pfcBytes, p.wireGap = f.data_overhead, f.ack, f.cnp, f.pfc, f.wire_gap
        p.roundingPs = 1000 if f.rounding == "ns" else 1
        return p

    def _congestion_control(self) -> tuple[str, dict[str, str]]:
        cc = self._settings.cc
        if cc.header is not None:
            return cc.use, dict(cc.attributes)
        if cc.use == "none":
            return "kvnet::ConstantRate", dict(cc.attributes)
        if cc.use == "swift":
            return "kvnet::Swift", dict(cc.attributes)
        if cc.use == "fixed":
            return "kvnet::ConstantRate", {"Rate": f"{cc.rate}bps", **cc.attributes}
        ps = "{}ps".format
        return "kvnet::Dcqcn", {
            "G": repr(cc.g),
            "InitialAlpha": repr(cc.initial_alpha),
            "AlphaTimer": ps(cc.alpha_timer),
            "CutCheck": ps(cc.cut_check),
            "FirstCutImmediate": str(cc.first_cut == "immediate").lower(),
            "ClampTarget": str(cc.clamp_target).lower(),
            "IncreaseTimer": ps(cc.increase_timer),
            "ByteCounter": str(cc.byte_counter),
            "FastRecoverySteps": str(cc.fast_recovery_steps),
            "AdditiveStep": f"{cc.additive_step}bps",
            "HyperStep": f"{cc.hyper_step}bps",
            "OneAdditiveRound": str(cc.additive_rounds == "one").lower(),
            "MinRate": f"{cc.min_rate}bps",
            "StepsForRate": f"{cc.scale_with_rate or 0}bps",
            **cc.attributes,
        }

    def _load_balancer(self) -> tuple[str, dict[str, str]] | None:
        balancing = self._settings.load_balancing
        if balancing.use == "flowlet":
            return "kvnet::Flowlet", {"Gap": f"{balancing.flowlet_gap}ps"}
        if balancing.use == "spray":
            return "kvnet::Spray", {"RoundRobin": str(balancing.spray_mode == "round-robin").lower()}
        return None

    def _build(self, seed: int, engine: str) -> Any:
        s, kvnet = self._settings, self._kvnet
        fabric = kvnet.Fabric(self._parameters(), engine)
        type_id, attributes = self._congestion_control()
        problem = str(fabric.SetCongestionControl(type_id, _lines(attributes)))
        if problem:
            raise InputError(problem, key="network.cc")
        if (balancer := self._load_balancer()) is not None:
            type_id, attributes = balancer
            problem = str(fabric.SetLoadBalancer(type_id, _lines(attributes)))
            assert not problem, problem
        for node in self._topology.nodes:
            fabric.AddNode(node.name, node.kind == "host", self._router.switch_seeds[node.id])
        ecn = s.switch.ecn
        for link in self._topology.links:
            p = kvnet.LinkParameters()
            p.nodeA, p.nodeB, p.rateBps, p.delayPs, p.lossRate = (
                link.a,
                link.b,
                link.rate_bps,
                link.delay_ps,
                link.loss_rate,
            )
            p.ecnMinBytes = _scaled(ecn.kmin, link.rate_bps, ecn.scale_with_rate)
            p.ecnMaxBytes = _scaled(ecn.kmax, link.rate_bps, ecn.scale_with_rate)
            p.headroomBytes = pfc_headroom_bytes(link, s) if s.switch.pfc.on else 0
            fabric.AddLink(p)
        self._calls = {
            kvnet.ON_ACTION: self._act,
            kvnet.ON_FLOW_DONE: self._flow_done,
            kvnet.ON_HEARTBEAT: self._heartbeat,
        }
        self._callback = _CALLBACK(self._called)  # must live as long as C++ may call it
        fabric.SetCallback(_address(self._callback))
        fabric.Build(mix64(seed & (2**64 - 1)), s.watchdog)
        return fabric

    # --- callbacks from the event loop --------------------------------------------------------------------------------

    def _called(self, reason: int, value: int) -> None:
        if self._error is None:
            try:
                self._calls[reason](value)
            except BaseException as error:  # noqa: BLE001  (must not unwind through C++: run() raises it)
                self._end(error)

    def _end(self, error: BaseException) -> None:
        self._error = error
        self._fabric.Stop()

    @contextmanager
    def _ending_on_ctrl_c(self) -> Iterator[None]:
        """Within, a Ctrl-C that Python sees on its way into a callback, before any `try`, ends the run as well."""
        before = sys.unraisablehook

        def hook(unraisable: Any) -> None:
            if isinstance(unraisable.exc_value, KeyboardInterrupt):
                self._end(unraisable.exc_value)
            else:
                before(unraisable)

        sys.unraisablehook = hook
        try:
            yield
        finally:
            sys.unraisablehook = before

    def _act(self, token: int) -> None:
        self._actions.pop(token)()

    def _flow_done(self, transfer: int) -> None:
        left, done = self._transfers[transfer]
        if left > 1:
            self._transfers[transfer] = (left - 1, done)
        else:
            del self._transfers[transfer]
            done()

    def _heartbeat(self, _: int) -> None:
        if self._on_heartbeat is not None:
            totals = self._fabric.GetTotals()
            self._on_heartbeat(Progress(self._fabric.Now(), totals.dataPackets, totals.dataHops))

    # --- NetworkModel -------------------------------------------------------------------------------------------------

    @property
    def now_ps(self) -> int:
        return int(self._fabric.Now())

    def schedule(self, at_ps: int, action: Callable[[], None]) -> None:
        self._check_time(at_ps)
        token = self._next_token
        self._next_token += 1
        self._actions[token] = action
        self._fabric.Schedule(token, at_ps)

    def start(self, flow: KVFlow, at_ps: int, done: Callable[[], None] | None = None) -> None:
        self._check_time(at_ps)
        if flow.carrier == "tcp":
            self._start_tcp(flow, at_ps, done)
            return
        transport = self._settings.transport
        parts = queue_pair_flows(flow, striping=transport.striping, queue_pairs=transport.queue_pairs)
        assert parts, f"flow {flow.id} is empty"
        if parts[0].size_bytes // transport.payload_bytes >= _MAX_PACKETS:
            raise InputError(
                f"a flow of {parts[0].size_bytes} bytes has more packets of {transport.payload_bytes} bytes than 2^32"
            )
        index = TRAFFIC_CLASSES.index(flow.traffic_class)
        transfer = flow.id * len(TRAFFIC_CLASSES) + index
        if done is not None:
            self._transfers[transfer] = (len(parts), done)
        for part in parts:
            if self._pinned is None:
                self._fabric.StartFlow(
                    transfer,
                    index,
                    part.src_port,
                    part.dst_port,
                    part.size_bytes,
                    part.udp_sport,
                    at_ps,
                    done is not None,
                )
            else:
                forward = self._router.path(part.src_port, part.dst_port, part.udp_sport)
                reverse = self._router.path(part.dst_port, part.src_port, part.udp_sport)
                self._fabric.StartFlowOnPath(
                    transfer,
                    index,
                    part.size_bytes,
                    list(forward),
                    list(reverse),
                    part.udp_sport,
                    at_ps,
                    done is not None,
                )

    def _start_tcp(self, flow: KVFlow, at_ps: int, done: Callable[[], None] | None) -> None:
        """One connection on the flow's first NIC, whatever `striping` and `queue_pairs` say.

        Its row has neither marks nor CNPs: those are not told apart by flow.
        """
        if flow.traffic_class != "background":
            raise InputError(f"a flow of class {flow.traffic_class!r} over tcp; only background flows can be")
        if self._settings.tcp_mtu < 576:
            message = f"not given, and RoCE's frames would make it {self._settings.tcp_mtu}; TCP needs 576 or more"
            raise InputError(message, key="network.tcp.mtu")
        (part,) = queue_pair_flows(flow, striping="single", queue_pairs=1)
        stock = self._stock_traffic()
        entropy = part.udp_sport ^ stock.SERVER_PORT
        ideal_ps = ideal_fct_ps(
            self._topology,
            self._router.path(part.src_port, part.dst_port, entropy),
            self._router.path(part.dst_port, part.src_port, entropy),
            part.size_bytes,
            _tcp_framing(self._settings),
        )
        index = TRAFFIC_CLASSES.index(flow.traffic_class)
        transfer = flow.id * len(TRAFFIC_CLASSES) + index
        if done is not None:
            self._transfers[transfer] = (1, done)
        stock.StartFlow(
            transfer,
            index,
            part.src_port,
            part.dst_port,
            part.size_bytes,
            part.udp_sport,
            at_ps,
            ideal_ps,
            done is not None,
        )

    def _stock_traffic(self) -> Any:
        if self._stock is None:
            kvnet, tcp = runtime.load_stock(), self._settings.tcp
            p = kvnet.TcpParameters()
            p.congestionControl, p.ecn = TCP_TYPES[tcp.use], tcp.ecn
            p.mtu, p.bufferBytes, p.initialWindow, p.minRto = (
                self._settings.tcp_mtu,
                tcp.buffer_bytes,
                tcp.initial_window,
                tcp.min_rto,
            )
            self._stock = kvnet.StockTraffic(p, _address(self._callback))
            for node in self._topology.nodes:
                if node.kind == "host":
                    for i, port in enumerate(self._topology.ports_of[node.id]):
                        self._stock.AddNic(node.id, i, port)
        return self._stock

    def install_internet_stack(self, hosts: Iterable[int]) -> None:
        """Give hosts (node ids) ns-3's internet stack, for ns-3 applications beside the flows started here.

        Port p has the address 10.0.0.1 + p in 10.0.0.0/8. What these applications send is of the background class.
        """
        for host in hosts:
            self._stock_traffic().Install(host)

    def sample(self, reset_peaks: bool = False) -> NetworkSample:
        self._fabric.Sample(reset_peaks)
        n = self._topology.n_ports
        return NetworkSample(
            now_ps=self.now_ps,
            tx_bytes=_copy(self._fabric.SentBytes().data(), n * len(TRAFFIC_CLASSES)).reshape(n, len(TRAFFIC_CLASSES)),
            marks=_copy(self._fabric.Marks().data(), n),
            paused_ps=_copy(self._fabric.PausedTime().data(), n),
            queue_max_bytes=_copy(self._fabric.QueueMax().data(), n),
        )

    @property
    def port_traces(self) -> dict[str, Int64Array]:
        """Time series of `trace_ports` until now, as TRACE_COLUMNS; rows by port as given, then time.

        A port's intervals follow each other without a gap. `queue_max_bytes` is of the longest of a switch port's
        queues, `paused_ps` the time in which PFC held at least one class.
        """
        n, width = self._fabric.Traces().size(), len(TRACE_COLUMNS)
        rows = _copy(self._fabric.TraceData(), n * width).reshape(n, width)
        return {name: rows[:, i].copy() for i, name in enumerate(TRACE_COLUMNS)}

    @property
    def pcap_full(self) -> tuple[int, ...]:
        """The ports whose files reached their limit."""
        return tuple(self._fabric.FullCaptures())

    def queue_bytes(self, port: int) -> int:
        """What waits at a port now, the packet in transmission left out [bytes]."""
        return int(self._fabric.QueueBytes(port))

    def run(self) -> NetworkResult:
        with self._ending_on_ctrl_c():
            self._fabric.Run()
        problem = str(self._fabric.FlushCaptures())
        if self._error is None and problem:
            raise RunFailure(problem)
        if self._error is not None:
            if isinstance(self._error, KeyboardInterrupt):
                raise Interrupted("interrupted") from None
            raise self._error
        open_tcp = 0 if self._stock is None else self._stock.ActiveFlows()
        if self._fabric.Stalled() or self._fabric.ActiveFlows() or open_tcp:
            raise RunFailure(self._stall_message())
        return self.recorded

    @property
    def recorded(self) -> NetworkResult:
        """What was recorded until now; also after a run that ended early."""
        return NetworkResult(self._flows(), self._totals(), self.sample())

    def path(self, src_port: int, dst_port: int, udp_sport: int) -> tuple[int, ...]:
        """The path that the C++ router gives a 5-tuple: the same as Router's."""
        return tuple(self._fabric.Path(src_port, dst_port, udp_sport))

    # --- records ------------------------------------------------------------------------------------------------------

    def _check_time(self, at_ps: int) -> None:
        assert at_ps >= self.now_ps, f"an event in the past: {at_ps} ps, now {self.now_ps} ps"

    def _flows(self) -> FlowTable:
        rows = _flow_rows(self._fabric)
        if self._stock is not None:
            rows = np.concatenate([rows, _flow_rows(self._stock)])
            rows = rows[np.argsort(rows[:, 6], kind="stable")]  # by start
        return FlowTable(
            transfer_id=rows[:, 0] // len(TRAFFIC_CLASSES),
            traffic_class=rows[:, 1].astype(np.int8),
            src_port=rows[:, 2],
            dst_port=rows[:, 3],
            size_bytes=rows[:, 4],
            acked_bytes=rows[:, 5],
            start_ps=rows[:, 6],
            end_ps=rows[:, 7],
            ideal_fct_ps=rows[:, 8],
            ecn_marks=rows[:, 9],
            cnps=rows[:, 10],
            retransmitted_bytes=rows[:, 11],
        )

    def _totals(self) -> NetworkTotals:
        t = self._fabric.GetTotals()
        sample = self.sample()
        return NetworkTotals(
            data_packets=t.dataPackets,
            ack_packets=t.ackPackets,
            data_hops=t.dataHops,
            control_hops=t.controlHops,
            payload_bytes_sent=t.payloadBytesSent,
            payload_bytes_acked=t.payloadBytesAcked,
            retransmitted_bytes=t.retransmittedBytes,
            ecn_marks=t.ecnMarks,
            cnps=t.cnps,
            pfc_pauses=t.pfcPauses,
            pfc_resumes=t.pfcResumes,
            paused_ps=int(sample.paused_ps.sum()),
            drops=t.drops,
            out_of_order=t.outOfOrder,
            duplicates=t.duplicates,
            max_queue_bytes=int(self._fabric.QueueMaxEver()),
            events=self._fabric.EventCount(),
        )

    def _stall_message(self) -> str:
        flows = self._flows()
        stuck = np.flatnonzero(flows.end_ps < 0)
        names = self._topology.port_names

        def host(port: int) -> str:
            return names[port].split("->")[0]

        some = [
            f"{TRAFFIC_CLASSES[flows.traffic_class[i]]} flow {flows.transfer_id[i]} "
            f"({host(flows.src_port[i])} to {host(flows.dst_port[i])}, "
            f"{flows.acked_bytes[i]} of {flows.size_bytes[i]} bytes acknowledged)"
            for i in stuck[:5]
        ]
        more = f" and {len(stuck) - 5} more" if len(stuck) > 5 else ""
        held = [names[p] for p in np.flatnonzero(self.sample().paused_ps > 0)][:8]
        cause = f"; links held by PFC so far: {', '.join(held)}" if held else ""
        return f"nothing moves any more at {self.now_ps / 1e12:.6f} s; unfinished: {', '.join(some)}{more}{cause}"


def _tcp_framing(settings: NetworkSettings) -> NetworkSettings:
    """The settings under which a RoCE flow's ideal completion time is that of a TCP flow: its segments, its headers."""
    overhead = 14 + 20 + 20 + 12 + 4  # Ethernet, IPv4, TCP, timestamps, FCS
    transport = settings.transport.model_copy(update={"payload_bytes": settings.tcp_mtu - 52})
    framing = settings.framing.model_copy(update={"data_overhead": overhead, "ack": overhead})
    return settings.model_copy(update={"transport": transport, "framing": framing})


def _flow_rows(source: Any) -> Int64Array:
    n = source.Flows().size()
    return _copy(source.FlowData(), n * _FLOW_FIELDS).reshape(n, _FLOW_FIELDS)


def _copy(pointer: Any, n: int) -> Int64Array:
    if n == 0:
        return np.zeros(0, dtype=np.int64)
    pointer.reshape((n,))
    return np.array(pointer, dtype=np.int64)
