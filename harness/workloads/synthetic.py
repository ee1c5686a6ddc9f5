"""Synthetic workloads: Poisson arrivals, lognormal lengths, and prompts that begin with popular documents."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from harness.errors import InputError
from harness.types import Int64Array, Request

#: Longest prompt [tokens]: the context length of Llama-3.1-70B, and of the longest example in the NetKV paper.
MAX_INPUT_TOKENS = 131_072


@dataclass(frozen=True, kw_only=True)
class Rag:
    """Retrieval-augmented generation: 8,000-token prompts, half of them beginning with a popular document.

    Prompt and output lengths are lognormal. With probability `p_share` a prompt begins with one of `documents`
    documents, whose popularity follows Zipf's law (the k-th most popular is drawn with a weight of k^-zipf), and goes
    on with tokens of its own; all other prompts have nothing in common. A document has a lognormal length as well and
    is shared in whole blocks; a prompt ends with at least one token of its own.

    Defaults, and where they come from:

    - rate 1.5 requests/s, prompts of mean 8,000 and sigma 0.9: deduced from the NetKV paper (arXiv 2606.03910). Its
      Table VI implies 2.5-3 GB a transfer, 8-9 thousand tokens at 327,680 bytes; at this rate and spread a max-min
      model of its placement comes near the three transfer times of its Table II.
    - output_mean 800: deduced from Table II, where TBT rises by 0.27 ms when the load doubles. Reading one more cache
      of 2.6 GB at the 4 x 3.35 TB/s of four H100 takes 0.2 ms an iteration, so some 1.3 requests are added to each of
      12 decode instances; at 1.5 requests/s and 12.74 ms a token they have 800 tokens (Little's law). The 343 of
      Mooncake's conversation trace came out further from Table II's TBT at 200 %.
    - output_sigma 0.7: our choice.
    - p_share, documents, zipf, document_mean, document_sigma: chosen so that in place of round-robin a cache-aware
      scheduler saves about 16 % of the bytes, as the paper's 993 -> 835 ms at an equal mix of tiers imply (15.9 % with
      `cla`, mean of 12 seeds of 200 requests on the paper's placement). Other values would do as well.

    Parameters
    ----------
    rate : mean arrivals a second.
    burst : mean number of requests that arrive at one moment, 1 + a Poisson variate; 1 is a Poisson process of single
        requests. Mooncake's conversation trace has 10 requests a moment, every 3 s.
    rate_scale : factor on the rate; lengths and documents stay as they are, and all arrivals come closer together.
    input_mean, input_sigma : mean [tokens] and sigma of the logarithm of a prompt's length, before the cut.
    input_max : longest prompt [tokens]; longer ones are cut.
    output_mean, output_sigma : the same of the output's length.
    p_share : probability that a prompt begins with a document.
    documents : number of documents.
    zipf : exponent of their popularity.
    document_mean, document_sigma : mean [tokens] and sigma of the logarithm of a document's length.
    seed, n_requests, block_tokens : of the run.

    Raises
    ------
    InputError : a parameter is out of range.
    """

    rate: float = 1.5
    burst: float = 1.0
    rate_scale: float = 1.0
    input_mean: float = 8000.0
    input_sigma: float = 0.9
    input_max: int = MAX_INPUT_TOKENS
    output_mean: float = 800.0
    output_sigma: float = 0.7
    p_share: float = 0.5
    documents: int = 20
    zipf: float = 1.0
    document_mean: float = 7000.0
    document_sigma: float = 0.5
    seed: int
    n_requests: int
    block_tokens: int

    def __post_init__(self) -> None:
        for name in ("rate", "rate_scale", "input_mean", "output_mean", "document_mean"):
            value = getattr(self, name)
            if not 0 < value < math.inf:
                raise InputError(f"{value} given; a number above 0", key=f"workload.{name}")
        for name in ("input_sigma", "output_sigma", "document_sigma", "zipf"):
            value = getattr(self, name)
            if not 0 <= value <= 10:
                raise InputError(f"{value} given; a number from 0 to 10", key=f"workload.{name}")
        if not 1 <= self.burst <= 1000:
            raise InputError(f"{self.burst} given; a number from 1 to 1000", key="workload.burst")
        if not 0 <= self.p_share <= 1:
            raise InputError(f"{self.p_share} given; a probability in [0, 1]", key="workload.p_share")
        for name in ("input_max", "documents"):
            value = getattr(self, name)
            if value < 1:
                raise InputError(f"{value} given; a whole number, at least 1", key=f"workload.{name}")

    def requests(self) -> Sequence[Request]:
        """All requests, the same at every call."""
        # A stream for each quantity: the first requests of a longer run are the requests of a shorter one.
        rngs = np.random.default_rng(self.seed).spawn(7)
        arrival_rng, input_rng, output_rng, share_rng, pick_rng, document_rng, burst_rng = rngs
        n, block_tokens = self.n_requests, self.block_tokens
        moments_s = np.cumsum(arrival_rng.exponential(self.burst / (self.rate * self.rate_scale), n))
        sizes = 1 + burst_rng.poisson(self.burst - 1, n)
        arrivals_ps = np.rint(np.repeat(moments_s, sizes)[:n] * 1e12).astype(np.int64).tolist()
        inputs = np.minimum(_lengths(input_rng, self.input_mean, self.input_sigma, n), self.input_max).tolist()
        outputs = _lengths(output_rng, self.output_mean, self.output_sigma, n).tolist()
        document_tokens = _lengths(document_rng, self.document_mean, self.document_sigma, self.documents)
        document_blocks = (document_tokens // block_tokens).tolist()
        weights = np.arange(1, self.documents + 1) ** -self.zipf
        picks = pick_rng.choice(self.documents, size=n, p=weights / weights.sum()).tolist()
        shares = (share_rng.random(n) < self.p_share).tolist()

        first_hash = [0, *np.cumsum(document_blocks).tolist()]  # of each document, and of all that is not shared
        next_hash = first_hash[-1]
        requests = []
        for i in range(n):
            n_blocks = -(-inputs[i] // block_tokens)
            shared = min(document_blocks[picks[i]], (inputs[i] - 1) // block_tokens) if shares[i] else 0
            start, own = first_hash[picks[i]], n_blocks - shared
            hashes = (*range(start, start + shared), *range(next_hash, next_hash + own))
            next_hash += own
            requests.append(Request(i, arrivals_ps[i], inputs[i], outputs[i], hashes))
        return requests


@dataclass(frozen=True, kw_only=True)
class Chatbot(Rag):
    """Chat: 2,000-token prompts at four times the rate, most of them beginning with a known system prompt or history.

    As `Rag`, with defaults of our own, for the paper's notes give none of its chatbot profile: prompts of a quarter of
    the length at four times the rate, so that as many bytes a second are to be moved; shorter and more popular
    documents, which stand for system prompts and conversations that go on; outputs of 343 tokens, the mean of
    Mooncake's conversation trace.

    Parameters: see `Rag`.
    """

    rate: float = 6.0
    input_mean: float = 2000.0
    input_sigma: float = 1.0
    output_mean: float = 343.0
    p_share: float = 0.7
    document_mean: float = 1750.0


@dataclass(frozen=True, kw_only=True)
class LongContext(Rag):
    """Long documents: 32,000-token prompts at a quarter of the rate of rag.

    As `Rag`. The prompt length is deduced from the NetKV paper's Table IV: TTFT under CLA* is 7,121 ms, which, less one
    decode iteration and at rag's 0.225 ms a token (prefill and transfer, (1812 - 13) ms / 8,000), is 31,600 tokens. The
    rate keeps the bytes a second of rag, the sigma of 0.5 keeps the cut at `input_max` rare (0.1 % of prompts), both by
    our choice, like the documents: four times as long as rag's.

    Parameters: see `Rag`.
    """

    rate: float = 0.375
    input_mean: float = 32_000.0
    input_sigma: float = 0.5
    document_mean: float = 28_000.0


def _lengths(rng: np.random.Generator, mean: float, sigma: float, n: int) -> Int64Array:
    """`n` lognormal lengths of a given mean [tokens] and sigma of the logarithm, at least 1."""
    drawn: npt.NDArray[np.float64] = rng.lognormal(math.log(mean) - sigma**2 / 2, sigma, n)
    whole: Int64Array = np.maximum(np.rint(drawn), 1).astype(np.int64)
    return whole
