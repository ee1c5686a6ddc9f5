"""The `network:` block of a scenario: transport, congestion control, switch, framing, load balancing.

A profile (harness/packet/profiles/*.yaml) gives every key; a scenario overrides single keys. Defaults that stand here
are switches of our own ("off"); every value from the world stands in a profile, with its source.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from harness.errors import InputError
from harness.units import DurationPs, RateBps, SizeBytes

Positive = Field(gt=0)
NonNegative = Field(ge=0)


def _attribute_text(value: object) -> object:
    """A YAML number or truth value as the text that ns-3 reads."""
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value) if isinstance(value, int | float) else value


AttributeName = Annotated[str, Field(pattern=r"^\w+$")]
AttributeText = Annotated[str, BeforeValidator(_attribute_text), Field(pattern=r"^[^\n]*$")]


#: What `cc.use` may name, beside the TypeId of a plug-in header.
CONGESTION_CONTROLS = {
    "dcqcn": "DCQCN's reaction point; the choices in which its implementations differ are keys of network.cc",
    "swift": "Swift: keeps the delay near a target; its values are network.cc.attributes",
    "none": "line rate, whatever happens",
    "fixed": "the constant rate network.cc.rate",
}

#: What `load_balancing.use` may name.
LOAD_BALANCERS = {
    "ecmp": "one path per queue pair, by a hash of its 5-tuple at every switch",
    "flowlet": "another path after a pause of load_balancing.flowlet_gap, decided by every switch",
    "spray": "a path per packet; the receiver must place data out of order (transport.reordering)",
    "pinned": "paths from a file (netkv-cosim flows --paths)",
}


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Transport(_Section):
    """Queue pairs at the host NIC.

    With `reordering: drop` a receiver takes packets in order only, and the sender goes back to the first that is
    missing. With `place` each packet's data goes where it belongs as it comes, as with NICs made for spraying (Ultra
    Ethernet 1.0; Lu et al., MP-RDMA, NSDI 2018; Mittal et al., IRN, SIGCOMM 2018, doi:10.1145/3230543.3230557): ACKs
    stay cumulative, a bitmap of `reorder_window` packets remembers what is beyond the first gap, and a NACK names one
    packet to send again, one to two `reorder_timeout` after another packet has overtaken it, and again every
    `reorder_timeout` until it comes. Both values are ours: LetFlow's shortest flowlet gap, above what paths of a data
    centre differ by, and more packets than a 400 Gb/s NIC sends in that time and a round trip.
    """

    payload_bytes: Annotated[SizeBytes, Field(ge=64, le=9000)]
    ack_every: Annotated[
        int, Field(ge=1, le=65536)
    ]  #: data packets per cumulative ACK; the last one always has its own
    window: Literal["none", "fixed", "rate_scaled"] = "none"
    window_bytes: Annotated[SizeBytes, NonNegative] = 0
    loss_recovery: Literal["go-back-n"] = "go-back-n"
    timeout: Annotated[
        DurationPs, Positive
    ]  #: without an ACK that moves on, the sender goes back to the first unacknowledged byte
    nack_interval: Annotated[DurationPs, NonNegative]  #: least time between two NACKs of one queue pair
    queue_pairs: Annotated[int, Field(ge=1, le=256)] = 1  #: per transfer and NIC
    striping: Literal["single", "per-rank"] = "single"
    reordering: Literal["drop", "place"] = "drop"  #: what a receiver does with a packet that overtook another
    reorder_window: Annotated[int, Field(ge=2, le=1 << 20)] = 2048  #: with place: packets under way, lost ones included
    reorder_timeout: Annotated[DurationPs, Positive] = (
        100_000_000  #: with place: a packet that was overtaken so long ago counts as lost
    )

    @model_validator(mode="after")
    def _placing_can_go_on(self) -> Transport:
        if self.reordering == "place" and self.ack_every >= self.reorder_window:
            raise ValueError(f"reorder_window is {self.reorder_window}, must be above ack_every ({self.ack_every})")
        return self

    @model_validator(mode="after")
    def _window_has_a_size(self) -> Transport:
        if self.window != "none" and self.window_bytes < self.payload_bytes:
            raise ValueError(
                f"window_bytes is {self.window_bytes}, must hold a payload ({self.payload_bytes} bytes) "
                f"when window is {self.window!r}"
            )
        return self


class CongestionControl(_Section):
    """The reaction point (sender) and notification point (receiver).

    `use` is `dcqcn`, `swift`, `none` (line rate), `fixed` (`rate`), or a TypeId name of the C++ class in `header`.
    `attributes` are those of the C++ class; `swift` takes all its values from there.
    `scale_with_rate` is the link rate for which the rate steps are given: they scale with the NIC's rate over it; null
    takes them as they are.
    """

    use: str
    header: str | None = None
    attributes: dict[AttributeName, AttributeText] = Field(default_factory=dict)
    rate: Annotated[RateBps, Positive] | None = None
    cnp_mode: Literal["packet", "ack-flag"]
    cnp_interval: Annotated[DurationPs, NonNegative]  #: of packets: a mark within it after a CNP has one at its end
    alpha_timer: Annotated[DurationPs, Positive]
    cut_check: Annotated[DurationPs, NonNegative]  #: period at which a pending cut is carried out; 0: at the CNP
    g: Annotated[float, Field(gt=0, le=1)]
    initial_alpha: Annotated[float, Field(ge=0, le=1)] = 1.0
    clamp_target: bool
    first_cut: Literal["immediate", "at-check"]
    increase_timer: Annotated[DurationPs, Positive]
    byte_counter: Annotated[SizeBytes, NonNegative]  #: 0 = off
    fast_recovery_steps: Annotated[int, Field(ge=1, le=1000)]
    additive_step: Annotated[RateBps, Positive]
    hyper_step: Annotated[RateBps, Positive]
    additive_rounds: Literal[
        "one", "until-both"
    ]  #: hpcc: one additive round, then hyper; paper: hyper once timer and byte counter both passed F
    min_rate: Annotated[RateBps, Positive]
    scale_with_rate: Annotated[RateBps, Positive] | None

    @model_validator(mode="after")
    def _consistent(self) -> CongestionControl:
        if self.use == "fixed" and self.rate is None:
            raise ValueError("rate is missing: cc.use 'fixed' needs cc.rate, for example '25Gbps'")
        if self.header is None and self.use not in CONGESTION_CONTROLS:
            allowed = f"{', '.join(map(repr, CONGESTION_CONTROLS))}, or a TypeId name together with cc.header"
            raise ValueError(f"use is {self.use!r}, allowed: {allowed}")
        if self.cut_check == 0 and self.first_cut == "at-check":
            raise ValueError("first_cut 'at-check' needs cut_check > 0")
        return self


class Ecn(_Section):
    """RED marking on the egress queue of one class, in frame bytes."""

    kmin: Annotated[SizeBytes, NonNegative]
    kmax: Annotated[SizeBytes, NonNegative]
    pmax: Annotated[float, Field(ge=0, le=1)]
    at: Literal["enqueue", "dequeue"]
    scale_with_rate: Annotated[RateBps, Positive] | None  #: as in cc: the link rate for which kmin and kmax are given

    @model_validator(mode="after")
    def _ordered(self) -> Ecn:
        if self.kmin > self.kmax:
            raise ValueError(f"kmin is {self.kmin} bytes, must not exceed kmax ({self.kmax} bytes)")
        return self


class Pfc(_Section):
    """Priority flow control per ingress port and class.

    The pause threshold is either dynamic, `(buffer - headroom - reserves - shared use) >> dynamic_shift`, or static
    (`xoff`, `xon`).
    With `on: false` the switch is lossy, and the same threshold limits each egress queue (Choudhury and Hahne, IEEE/ACM
    ToN 1998, doi:10.1109/90.664262).
    """

    on: bool
    dynamic_shift: Annotated[int, Field(ge=0, le=16)] | None = None
    xoff: Annotated[SizeBytes, Positive] | None = None
    xon: Annotated[SizeBytes, NonNegative] | None = None
    headroom: Annotated[SizeBytes, NonNegative] | Literal["computed"]  #: per ingress port
    headroom_factor: Annotated[float, Field(ge=0, le=4)] = 1.0
    reserve: Annotated[SizeBytes, NonNegative]  #: per ingress port and class
    resume_offset: Annotated[SizeBytes, NonNegative]

    @model_validator(mode="after")
    def _one_threshold(self) -> Pfc:
        if self.on and (self.dynamic_shift is None) == (self.xoff is None):
            raise ValueError("give either dynamic_shift or xoff (with xon), not both and not none")
        if self.xoff is not None and (self.xon is None or self.xon > self.xoff):
            raise ValueError(f"xon is {self.xon}, must be given and not exceed xoff ({self.xoff})")
        return self


class Switch(_Section):
    """Shared-buffer, output-queued, store-and-forward switch."""

    buffer_bytes: Annotated[SizeBytes, Positive]
    ecn: Ecn
    pfc: Pfc
    ack_class: Literal["control", "data"]  #: the queue that ACKs and CNPs use in switches
    background_priority: Literal["background", "data"] = (
        "background"  #: its own queue below KV data, or KV data's queue
    )


class Framing(_Section):
    """Bytes on the wire around a payload. `wire_gap` (preamble, inter-frame gap) takes time but no buffer."""

    data_overhead: Annotated[SizeBytes, NonNegative]
    ack: Annotated[SizeBytes, Positive]
    cnp: Annotated[SizeBytes, Positive]
    pfc: Annotated[SizeBytes, Positive]
    wire_gap: Annotated[SizeBytes, NonNegative]
    rounding: Literal["ps", "ns"]


class LoadBalancing(_Section):
    """How a switch chooses among equal-cost ports.

    `ecmp` hashes the 5-tuple; `flowlet` draws anew at each switch where a flow paused for longer than `flowlet_gap`
    (LetFlow: Vanini et al., NSDI 2017); `spray` chooses for every packet; `pinned` takes the paths of a file. Flowlets
    and spraying are for RoCE data: ACKs, NACKs, CNPs and stock ns-3 traffic follow ECMP.
    `seed_per_switch` false gives every switch the same hash, which polarises the choice.
    """

    use: Literal["ecmp", "flowlet", "spray", "pinned"]
    seed_per_switch: bool = True
    flowlet_gap: Annotated[DurationPs, Positive] = 100_000_000  #: LetFlow's and CONGA's 100-500 us, the lower end
    spray_mode: Literal["random", "round-robin"] = "random"


class Tcp(_Section):
    """The TCP of background flows with `carrier: tcp`: that of ns-3, in the background class.

    `use` is the congestion control: DCTCP (RFC 8257), CUBIC (RFC 9438), NewReno (RFC 6582) or BBR. With `ecn` switches
    mark it as they do RoCE data; DCTCP's K is a step: equal `kmin` and `kmax`.
    """

    use: Literal["dctcp", "cubic", "newreno", "bbr"] = "dctcp"
    ecn: bool = True
    mtu: Annotated[SizeBytes, Field(ge=576, le=9000)] | None = None  #: of IP; null: its frames are as long as RoCE's
    buffer_bytes: Annotated[SizeBytes, Field(ge=64_000, le=1 << 30)] = 4 << 20  #: at either end; Linux's tcp_wmem limit
    initial_window: Annotated[int, Field(ge=1, le=1000)] = 10  #: segments (RFC 6928)
    min_rto: Annotated[DurationPs, Positive] = 10_000_000_000  #: 10 ms, ours; RFC 6298's 1 s is for the Internet

    @model_validator(mode="after")
    def _dctcp_needs_marks(self) -> Tcp:
        if self.use == "dctcp" and not self.ecn:
            raise ValueError("ecn is false, must be true when use is 'dctcp'")
        return self


class NetworkSettings(_Section):
    """All of it, resolved."""

    profile: str
    transport: Transport
    cc: CongestionControl
    switch: Switch
    framing: Framing
    load_balancing: LoadBalancing
    tcp: Tcp = Tcp()

    @model_validator(mode="after")
    def _spraying_needs_placing(self) -> NetworkSettings:
        if self.load_balancing.use == "spray" and self.transport.reordering == "drop":
            raise InputError(
                "given 'spray', which reorders packets: a receiver that takes them in order only would drop most of "
                "them; set network.transport.reordering to 'place'",
                key="load_balancing.use",
            )
        return self

    @property
    def tcp_mtu(self) -> int:
        """The MTU of `tcp` [bytes]: as given, or a RoCE frame without Ethernet's 18 bytes."""
        return self.tcp.mtu or self.transport.payload_bytes + self.framing.data_overhead - 18

    watchdog: Annotated[DurationPs, Positive] = (
        1_000_000_000_000  #: simulated time without any progress of an unfinished flow
    )
