"""Service times of prefill and decode instances: named profiles behind the ServiceTimes interface."""

from __future__ import annotations

from bisect import bisect_right

from harness.errors import InputError
from harness.units import DurationPs, PositiveDurationPs

PS_PER_MS = 10**9

#: Decode slots of an instance: the largest batch of the published table below. The NetKV notes name none.
MAX_BATCH = 64


def _check_max_batch(max_batch: int) -> int:
    if max_batch < 1:
        raise InputError(f"{max_batch} given; a whole number of slots, at least 1", key="serving.max_batch")
    return max_batch


class PaperProfile:
    """Service times of the form that the NetKV paper's Table II implies (arXiv 2606.03910).

    Prefill: no queue, and a time proportional to the prompt. In all six cells of Table II TTFT - transfer is 977 ms,
    at twice the load as well, so there is no queue; less one decode iteration that leaves 964 ms for the rag mix.

    Decode: an iteration is linear in the batch, t_iter(b) = iteration + b * iteration_per_request, as the TBT of Table
    II is: 12.74 ms under round-robin, and 0.27 ms more when the load doubles.

    The paper states neither a prompt length nor a batch, so the constants go with a workload: the defaults with
    scenarios/rag.yaml (a mean prompt of 8,000 tokens; a published H100 measurement is 954 ms at 8,192; and a mean batch
    of 1.69, itself included, that a running request is part of under round-robin), those of scenarios/paper-rag.yaml
    come from `netkv-cosim calibrate fit`.

    Left out: dependence of an iteration on the length of the contexts in it; interference of concurrent prefills.

    Parameters
    ----------
    prefill_per_token : time to prefill a token [ps].
    iteration, iteration_per_request : of a decode iteration, what does not and what does depend on the batch [ps].
    max_batch : decode slots of an instance.
    """

    prefill_queue = False

    def __init__(
        self,
        *,
        prefill_per_token: PositiveDurationPs = 964 * PS_PER_MS // 8000,
        iteration: PositiveDurationPs = 12_470_000_000,
        iteration_per_request: DurationPs = 159_763_314,
        max_batch: int = MAX_BATCH,
    ) -> None:
        self._prefill_per_token_ps = prefill_per_token
        self._iteration_ps, self._per_request_ps = iteration, iteration_per_request
        self.max_batch = _check_max_batch(max_batch)

    def prefill_ps(self, tokens: int) -> int:
        """Time to prefill `tokens` tokens [ps]."""
        return tokens * self._prefill_per_token_ps

    def iteration_ps(self, batch: int) -> int:
        """Time of one decode iteration with `batch` >= 1 running requests [ps]."""
        return self._iteration_ps + batch * self._per_request_ps


class H100Tp4Profile:
    """Measured service times of a 70B FP16 model on four H100 (tensor parallel), with a prefill queue.

    Medians of published measurements of Llama-2-70B, which has the layer and KV shape of Llama-3-70B (splitwise-sim,
    data/perf_model.csv; Patel et al., ISCA 2024), interpolated linearly between the points and extended below the
    first two. Beyond the last prompt length the time grows as

        t(n) = t(8192) + b (n - 8192) + b r (n^2 - 8192^2),

    r = 4 d L / 2 / (2 P), the ratio of the FLOPs of causal attention (width d = 8192, L = 80 layers) to those of the
    weights (P = 70e9), per token; b is fitted by least squares to the table (with an intercept). Beyond the last batch,
    a decode iteration goes on along the last segment.

    Left out: dependence of an iteration on the length of the contexts in it (the table's prompts have 512 tokens);
    batching of prompts; chunked prefill.

    Parameters
    ----------
    max_batch : decode slots of an instance.
    """

    prefill_queue = True

    PREFILL_MS = ((512, 59.6), (1024, 105.6), (2048, 200.7), (4096, 463.0), (8192, 954.0))
    ITERATION_MS = ((1, 29.4), (8, 31.4), (16, 32.8), (32, 36.9), (64, 52.4))
    ATTENTION_RATIO = 4 * 8192 * 80 / 2 / (2 * 70e9)

    def __init__(self, *, max_batch: int = MAX_BATCH) -> None:
        self.max_batch = _check_max_batch(max_batch)
        work = [n + self.ATTENTION_RATIO * n * n for n, _ in self.PREFILL_MS]
        times = [ms for _, ms in self.PREFILL_MS]
        mean_work, mean_time = sum(work) / len(work), sum(times) / len(times)
        covariance = sum((w - mean_work) * (t - mean_time) for w, t in zip(work, times, strict=True))
        self._ms_per_work = covariance / sum((w - mean_work) ** 2 for w in work)
        self._last_work = work[-1]

    def prefill_ps(self, tokens: int) -> int:
        """Time to prefill `tokens` tokens alone [ps]."""
        last_tokens, last_ms = self.PREFILL_MS[-1]
        if tokens > last_tokens:
            work = tokens + self.ATTENTION_RATIO * tokens * tokens
            return round((last_ms + self._ms_per_work * (work - self._last_work)) * PS_PER_MS)
        return _interpolate_ps(self.PREFILL_MS, tokens)

    def iteration_ps(self, batch: int) -> int:
        """Time of one decode iteration with `batch` >= 1 running requests [ps]."""
        return _interpolate_ps(self.ITERATION_MS, batch)


def _interpolate_ps(table_ms: tuple[tuple[int, float], ...], x: int) -> int:
    """The piecewise linear function through `table_ms` at `x` [ps]; its end segments go on for ever."""
    segment = min(max(bisect_right(table_ms, x, key=lambda point: point[0]) - 1, 0), len(table_ms) - 2)
    (x0, y0), (x1, y1) = table_ms[segment], table_ms[segment + 1]
    return round((y0 + (y1 - y0) * (x - x0) / (x1 - x0)) * PS_PER_MS)
