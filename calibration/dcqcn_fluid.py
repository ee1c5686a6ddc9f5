"""DCQCN's steady state from its fluid equations.

Setting: N flows share one bottleneck of C [packets/s]; each has current rate R, target rate Rt [packets/s] and alpha;
every packet is marked with probability p, independently. Derived from the algorithm (Zhu et al., SIGCOMM 2015,
doi:10.1145/2785956.2787484), and equal to the published equations (Zhu et al., "ECN or Delay", CoNEXT 2016,
doi:10.1145/2999572.2999593):

- *Cuts.* The receiver sends at most one CNP in tau, and one if any of the tau R packets in it was marked: probability
  a = 1 - (1-p)^(tau R), so a / tau cuts a second. A cut sets Rt to R and takes R alpha/2 off R.
- *Alpha.* Each alpha timer tau' it moves by g towards 1 where a mark was seen, else towards 0; its mean moves towards
  1 - (1-p)^(tau' R).
- *Increase events.* Marks end runs of unmarked packets; R p runs end a second, and a run has k packets or more with
  probability (1-p)^k. The byte counter fires every B packets of a run, sum_j (1-p)^(jB) = 1 / ((1-p)^-B - 1) times a
  run, hence R b a second, b = p / ((1-p)^-B - 1). Those beyond the F-th (j > F) are R c, c = b (1-p)^(FB). The timer
  fires every T R packets: d and e are b and c with T R for B. Every event moves R by (Rt - R) / 2; one beyond the F-th
  first moves Rt by R_AI.

      d alpha/dt = g/tau' [1 - (1-p)^(tau' R) - alpha]
      dRt/dt = -(a/tau) (Rt - R) + R_AI R (c + e)
      dR/dt  = -(a/tau) R alpha/2 + (Rt - R)/2 R (b + d)
      dq/dt  = N R - C,   p = Pmax (q - Kmin)/(Kmax - Kmin) between Kmin and Kmax, 0 below, 1 above

  with p and, in the exponents, R as they were when the packets passed that are now reported. At rest R = C/N, and
  Rt - R = tau R_AI R (c + e)/a from the second equation turns the third into one for p:

      a^2 alpha = tau^2 R_AI R (b + d)(c + e),   alpha = 1 - (1-p)^(tau' R)

  Small p: a = p tau R, alpha = p tau' R, b = c = 1/B, d = e = 1/(T R) give `approximation`.

Left out: hyper increase, the line rate as a limit, what the queue's fluctuation does where the ramp of p ends (at Kmin,
and most of all at Kmax, where p jumps to 1), and that increase events follow a cut at fixed times.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq

from harness.errors import InputError
from harness.network_settings import NetworkSettings

FloatArray = npt.NDArray[np.float64]

#: Where fixed points are looked for. Above one mark in two packets the equations say nothing useful.
_LEAST_P, _LARGEST_P = 1e-9, 0.5

#: Largest exponent that matters: exp(-700) is the last double.
_FAR = 700.0


@dataclass(frozen=True, slots=True)
class DcqcnParameters:
    """What the steady state depends on; the defaults are those of SIGCOMM 2015, section 5.2, at 40 Gb/s."""

    kmin_bytes: float = 5e3
    kmax_bytes: float = 200e3
    pmax: float = 0.01
    g: float = 1 / 256
    cnp_interval_s: float = 50e-6  #: tau; 0: a CNP for every mark
    alpha_timer_s: float = 55e-6  #: tau'
    increase_timer_s: float = 55e-6  #: T
    byte_counter_bytes: float = 10e6  #: B; inf: off
    fast_recovery_steps: int = 5  #: F
    additive_step_bps: float = 40e6  #: R_AI, per increase event

    @classmethod
    def from_network(cls, settings: NetworkSettings, link_bps: float) -> DcqcnParameters:
        """Those that `settings` gives a link of `link_bps`, scaled with its rate as the packet model scales them.

        Raises
        ------
        InputError : a congestion control, or a variant of DCQCN, that the equations do not describe.
        """
        cc, ecn = settings.cc, settings.switch.ecn
        if cc.use != "dcqcn" or cc.cut_check or not cc.clamp_target or cc.cnp_mode != "packet" or cc.attributes:
            published = "use dcqcn, cut_check 0, clamp_target true, cnp_mode packet, no attributes"
            raise InputError(f"the fluid equations describe DCQCN as published: {published}", key="network.cc")
        ecn_scale = link_bps / ecn.scale_with_rate if ecn.scale_with_rate else 1
        step_scale = link_bps / cc.scale_with_rate if cc.scale_with_rate else 1
        return cls(
            kmin_bytes=ecn.kmin * ecn_scale,
            kmax_bytes=ecn.kmax * ecn_scale,
            pmax=ecn.pmax,
            g=cc.g,
            cnp_interval_s=cc.cnp_interval / 1e12,
            alpha_timer_s=cc.alpha_timer / 1e12,
            increase_timer_s=cc.increase_timer / 1e12,
            byte_counter_bytes=float(cc.byte_counter) if cc.byte_counter else math.inf,
            fast_recovery_steps=cc.fast_recovery_steps,
            additive_step_bps=cc.additive_step * step_scale,
        )


PAPER_40G = DcqcnParameters()


@dataclass(frozen=True, slots=True)
class FixedPoint:
    """The steady state of each of `n_flows` equal flows.

    `queue_bytes` is None where `marking_probability` exceeds Pmax: no queue up to Kmax marks so much, and the queue
    swings about Kmax instead.
    """

    n_flows: int
    marking_probability: float
    alpha: float
    queue_bytes: float | None
    rate_bps: float
    target_rate_bps: float


def _queue_bytes(p: float, parameters: DcqcnParameters) -> float | None:
    if p > parameters.pmax:
        return None
    return parameters.kmin_bytes + p / parameters.pmax * (parameters.kmax_bytes - parameters.kmin_bytes)


def _events_per_packet(p: float, packets: float, steps: int) -> tuple[float, float]:
    """Increase events per packet of a counter that fires every `packets`: all, and those beyond the first `steps`."""
    exponent = -math.log1p(-p) * packets
    every = p / math.expm1(exponent) if exponent < _FAR else 0.0
    return every, every * math.exp(-min(steps * exponent, _FAR))


def _cuts_per_second(silent: FloatArray, tau: float) -> FloatArray:
    """a / tau, or its limit for tau = 0; `silent` is R log(1 - p)."""
    return -np.expm1(silent * tau) / tau if tau > 0 else -silent


def fixed_point(
    n_flows: int, capacity_bps: float, packet_bytes: float, parameters: DcqcnParameters = PAPER_40G
) -> FixedPoint:
    """The fluid equations' exact fixed point (module docstring).

    Parameters
    ----------
    n_flows : flows that share the bottleneck.
    capacity_bps : of the bottleneck [bit/s].
    packet_bytes : of every packet, all that it takes on the wire [bytes].

    Raises
    ------
    InputError : no marking probability from 1e-9 to 0.5 balances these parameters.
    """
    bits = 8 * packet_bytes
    rate = capacity_bps / bits / n_flows
    step = parameters.additive_step_bps / bits

    def parts(p: float) -> tuple[float, float, float, float]:
        """Cuts per second, alpha, and increase events per packet: all, and those beyond the F-th."""
        silent = math.log1p(-p) * rate
        b, c = _events_per_packet(p, parameters.byte_counter_bytes / packet_bytes, parameters.fast_recovery_steps)
        d, e = _events_per_packet(p, parameters.increase_timer_s * rate, parameters.fast_recovery_steps)
        cuts = float(_cuts_per_second(np.float64(silent), parameters.cnp_interval_s))
        return cuts, -math.expm1(silent * parameters.alpha_timer_s), b + d, c + e

    def excess(log_p: float) -> float:
        cuts, alpha, events, additive = parts(math.exp(log_p))
        return cuts**2 * alpha - step * rate * events * additive

    least, largest = math.log(_LEAST_P), math.log(_LARGEST_P)
    if excess(least) >= 0 or excess(largest) <= 0:
        raise InputError(f"no marking probability from {_LEAST_P} to {_LARGEST_P} balances {n_flows} flows")
    p = math.exp(brentq(excess, least, largest, xtol=1e-13))
    cuts, alpha, _, additive = parts(p)
    return FixedPoint(
        n_flows=n_flows,
        marking_probability=p,
        alpha=alpha,
        queue_bytes=_queue_bytes(p, parameters),
        rate_bps=rate * bits,
        target_rate_bps=(rate + step * rate * additive / cuts) * bits,
    )


def approximation(
    n_flows: int, capacity_bps: float, packet_bytes: float, parameters: DcqcnParameters = PAPER_40G
) -> float | None:
    """The fixed point's queue for small p [bytes]: p = cbrt(R_AI (1/B + 1/(T R))^2 / (tau' R^2)); None if p > Pmax."""
    rate = capacity_bps / (8 * packet_bytes) / n_flows
    step = parameters.additive_step_bps / (8 * packet_bytes)
    events = packet_bytes / parameters.byte_counter_bytes + 1 / (parameters.increase_timer_s * rate)
    p = (step * events**2 / (parameters.alpha_timer_s * rate**2)) ** (1 / 3)
    return _queue_bytes(p, parameters)


@dataclass(frozen=True, slots=True)
class Trajectory:
    """The fluid equations integrated: per step time [s] and queue [bytes], per step and flow rate [bit/s] and alpha."""

    time_s: FloatArray
    queue_bytes: FloatArray
    rate_bps: FloatArray
    alpha: FloatArray


def integrate(
    capacity_bps: float,
    packet_bytes: float,
    initial_rates_bps: Sequence[float],
    parameters: DcqcnParameters = PAPER_40G,
    *,
    feedback_delay_s: float = 4e-6,
    marking: Literal["dequeue", "enqueue"] = "dequeue",
    initial_alpha: float = 1.0,
    duration_s: float,
    step_s: float = 1e-6,
) -> Trajectory:
    """Solve the delay equations by Euler steps from an empty queue, one flow per initial rate.

    `marking` says which queue a mark reports: at dequeue that of `feedback_delay_s` ago; at enqueue that of a queueing
    time earlier still. Rates are kept within a packet per second and the line.
    """
    bits = 8 * packet_bytes
    capacity, line = capacity_bps / bits, capacity_bps / bits
    steps = round(duration_s / step_s)
    rate = np.array(initial_rates_bps) / bits
    target, alpha = rate.copy(), np.full(len(rate), initial_alpha)
    queues, rates, alphas = np.zeros(steps), np.zeros((steps, len(rate))), np.zeros((steps, len(rate)))
    ready_s = np.zeros(steps)  # when each step's marks are known to the senders
    p_of = np.zeros(steps)
    known = 0
    queue = 0.0
    fast = parameters.fast_recovery_steps
    kmin, kmax = parameters.kmin_bytes / packet_bytes, parameters.kmax_bytes / packet_bytes
    for i in range(steps):
        queues[i], rates[i], alphas[i] = queue, rate, alpha
        p_of[i] = 1.0 if queue > kmax else max(0.0, parameters.pmax * (queue - kmin) / (kmax - kmin))
        ready_s[i] = i * step_s + feedback_delay_s + (queue / capacity if marking == "enqueue" else 0.0)
        while known < i and ready_s[known + 1] <= i * step_s:
            known += 1
        p, past = min(max(p_of[known], 1e-12), 1 - 1e-12), rates[known]
        silent = math.log1p(-p)
        cuts = _cuts_per_second(silent * past, parameters.cnp_interval_s)
        by_bytes = min(-silent * parameters.byte_counter_bytes / packet_bytes, _FAR)
        by_time = np.minimum(-silent * parameters.increase_timer_s * past, _FAR)
        b, d = past * p / math.expm1(by_bytes), past * p / np.expm1(by_time)
        additive = b * math.exp(-min(fast * by_bytes, _FAR)) + d * np.exp(-np.minimum(fast * by_time, _FAR))
        gap = target - rate
        alpha_goal = -np.expm1(silent * parameters.alpha_timer_s * past)
        d_alpha = parameters.g / parameters.alpha_timer_s * (alpha_goal - alpha)
        d_target = -cuts * gap + parameters.additive_step_bps / bits * additive
        d_rate = -cuts * rate * alpha / 2 + gap / 2 * (b + d)
        queue = max(queue + (float(rate.sum()) - capacity) * step_s, 0.0)
        alpha = alpha + d_alpha * step_s
        target = np.clip(target + d_target * step_s, 1.0, line)
        rate = np.clip(rate + d_rate * step_s, 1.0, line)
    return Trajectory(np.arange(steps, dtype=np.float64) * step_s, queues * packet_bytes, rates * bits, alphas)
