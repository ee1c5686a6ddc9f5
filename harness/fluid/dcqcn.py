"""Max-min fair sharing between senders that recover as slowly as DCQCN lets them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from harness.errors import InputError
from harness.fluid.drains import PS_PER_S
from harness.fluid.maxmin import MaxMinGoodput
from harness.fluid.model import Flow
from harness.fluid.waterfill import SLACK
from harness.network_settings import NetworkSettings

#: A sender's increases are applied together once they add up to this share of its rate. A matter of speed: rates are
#: too low by half of it on average while they climb.
_STEP = 0.01
#: Or after so many periods, whatever they add up to.
_MOST_PERIODS = 10_000


class MaxMinDcqcn(MaxMinGoodput):
    """`maxmin-goodput` with senders that give way at once and take freed capacity at the pace of DCQCN's increase.

    A reduced-order model of DCQCN (Zhu et al., SIGCOMM 2015, doi:10.1145/2785956.2787484, section 3.3). A sender starts
    at line rate. Where its max-min share is lower, it is cut to that share. While a link holds it there, every period
    of the increase timer ends in another cut, which halves the distance between its target rate and its rate, or, with
    `cc.clamp_target`, has closed it already. Once the link would give more, the sender climbs: fast recovery, additive
    and hyper increase by timer and byte counter, as `network.cc` says.

    Leaves out queues, marks and alpha: how far a cut goes below the share, the delay until it comes, and the capacity
    that is unused after it. With `roce-default` a single flow, an incast and a flow that short ones disturb again and
    again take what they take in packets to within 8 % (where `maxmin-goodput` misses the last by more than a quarter).
    With `roce-paper`, whose queues run empty after a cut, a single flow on a slower path takes a tenth to a fifth less.
    """

    @classmethod
    def check(cls, settings: NetworkSettings) -> None:
        """Raise InputError for a load balancing or a congestion control that the model does not have."""
        super().check(settings)
        if settings.cc.use != "dcqcn":
            raise InputError(f"given {settings.cc.use!r}: maxmin-dcqcn knows 'dcqcn' only", key="network.cc.use")

    def _set_up(self) -> None:
        super()._set_up()
        self._senders: dict[Flow, _Sender] = {}

    def _links(self, path: tuple[int, ...]) -> tuple[int, ...]:
        """The ports, and a link of the flow's own whose capacity is the sender's rate."""
        return (*super()._links(path), self._own_link(self._topology.links[path[0] >> 1].rate_bps))

    def _attach(self, flow: Flow) -> None:
        super()._attach(flow)
        line_bps = self._capacity_bps[flow.links[-1]]
        self._senders[flow] = _Sender(line_bps, line_bps, line_bps, self.now_ps)

    def _detach(self, flow: Flow) -> None:
        super()._detach(flow)
        del self._senders[flow]
        self._free_links.append(flow.links[-1])

    def _reallocate(self) -> None:
        for band in self._bands:
            changed = band.solve()
            self._rates_changed(changed)
            for flow in dict.fromkeys((*changed, *band.moved)):
                self._follow(flow)

    def _follow(self, flow: Flow) -> None:
        """Let the sender of `flow`, which has another rate or another bottleneck, react."""
        sender = self._senders[flow]
        own = flow.links[-1]
        rate_bps = max(flow.rate_bps, min(self._settings.cc.min_rate, sender.rate_bps))
        if rate_bps < sender.rate_bps * (1 - SLACK) or (sender.climbs and flow.bottleneck != own):
            target_bps = sender.rate_bps if sender.timer_steps else sender.target_bps
            if self._settings.cc.clamp_target:
                target_bps = rate_bps
            self._senders[flow] = _Sender(sender.line_bps, rate_bps, target_bps, self.now_ps)
            self._capacity_bps[own] = rate_bps
        elif flow.bottleneck == own and sender.rate_bps < sender.line_bps:
            if not sender.climbs:
                rounds = (self.now_ps - sender.cut_ps) // self._settings.cc.increase_timer
                sender.target_bps = sender.rate_bps + (sender.target_bps - sender.rate_bps) * 0.5 ** min(rounds, 64)
                sender.climbs = True
            higher, periods = self._climbed(sender)
            at_ps = self.now_ps + periods * self._settings.cc.increase_timer
            self.schedule(at_ps, partial(self._lift, flow, sender, higher))

    def _climbed(self, sender: _Sender) -> tuple[_Sender, int]:
        """What a sender becomes if nothing holds it back until its rate has moved, and the timer periods until then."""
        cc = self._settings.cc
        after = replace(sender)
        enough_bps = min(sender.rate_bps * (1 + _STEP), sender.line_bps)
        periods = 0
        while after.rate_bps < enough_bps and periods < _MOST_PERIODS:
            periods += 1
            after.counted_bytes += after.rate_bps * cc.increase_timer / (8 * PS_PER_S)
            if cc.byte_counter and after.counted_bytes >= cc.byte_counter:
                after.counted_bytes -= cc.byte_counter
                self._increase(after)
                after.byte_steps += 1
            self._increase(after)
            after.timer_steps += 1
        return after, periods

    def _increase(self, sender: _Sender) -> None:
        cc = self._settings.cc
        most, least = max(sender.timer_steps, sender.byte_steps), min(sender.timer_steps, sender.byte_steps)
        if most >= cc.fast_recovery_steps:
            hyper = (most if cc.additive_rounds == "one" else least) > cc.fast_recovery_steps
            scale = sender.line_bps / cc.scale_with_rate if cc.scale_with_rate else 1.0
            sender.target_bps = min(
                sender.target_bps + scale * (cc.hyper_step if hyper else cc.additive_step), sender.line_bps
            )
        sender.rate_bps = (sender.rate_bps + sender.target_bps) / 2
        if sender.line_bps - sender.rate_bps < 1:
            sender.rate_bps = sender.line_bps

    def _lift(self, flow: Flow, sender: _Sender, higher: _Sender) -> None:
        """Go on as `higher`, unless the flow has drained or was cut since."""
        if self._senders.get(flow) is sender:
            self._senders[flow] = higher
            self._capacity_bps[flow.links[-1]] = higher.rate_bps
            self._band_of_class[flow.class_index].widen(flow.links[-1])


@dataclass(slots=True)
class _Sender:
    """DCQCN's reaction point: line, current and target rate, the last cut, and what it has counted since."""

    line_bps: float
    rate_bps: float
    target_bps: float
    cut_ps: int
    climbs: bool = False  #: nothing holds it back but its own rate
    timer_steps: int = 0
    byte_steps: int = 0
    counted_bytes: float = 0.0
