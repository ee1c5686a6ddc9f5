from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from harness.errors import InputError
from harness.interfaces import Workload
from harness.types import Request
from harness.workloads.synthetic import Chatbot, LongContext, Rag


def draw(kind: type[Rag] = Rag, n: int = 200, seed: int = 1, **changes: Any) -> list[Request]:
    workload: Workload = kind(n_requests=n, seed=seed, block_tokens=512, **changes)
    return list(workload.requests())


@pytest.mark.parametrize("kind", [Rag, Chatbot, LongContext])
def test_requests_are_whole(kind: type[Rag]) -> None:
    requests = draw(kind)
    assert [r.id for r in requests] == list(range(200))
    assert all(a.arrival_ps <= b.arrival_ps for a, b in pairwise(requests))
    assert all(1 <= r.input_tokens <= 131_072 and r.output_tokens >= 1 for r in requests)
    assert all(len(r.block_hashes) == -(-r.input_tokens // 512) for r in requests)
    assert all(len(set(r.block_hashes)) == len(r.block_hashes) for r in requests)


@pytest.mark.parametrize(
    ("kind", "rate", "mean_input", "median_input"),
    [
        # The median of a lognormal is mean * exp(-sigma^2 / 2).
        (Rag, 1.5, 8000, 5336),
        (Chatbot, 6.0, 2000, 1213),
        (LongContext, 0.375, 32_000, 28_240),
    ],
)
def test_rates_and_lengths(kind: type[Rag], rate: float, mean_input: float, median_input: float) -> None:
    requests = draw(kind, n=20_000)
    inputs = np.array([r.input_tokens for r in requests])
    # Relative standard deviations at n = 20,000: arrivals 0.7 %; the mean at most sqrt(e - 1) / sqrt(n) = 0.9 %, and
    # the cut takes up to 0.3 % off it; the median at most sqrt(pi / 2) / sqrt(n) = 0.9 %.
    assert 20_000e12 / requests[-1].arrival_ps == pytest.approx(rate, rel=0.03)
    assert inputs.mean() == pytest.approx(mean_input, rel=0.03)
    assert np.median(inputs) == pytest.approx(median_input, rel=0.03)


def test_rate_scale_brings_arrivals_closer_and_changes_nothing_else() -> None:
    once, twice = draw(), draw(rate_scale=2.0)
    assert [round(r.arrival_ps / 2) for r in once] == pytest.approx([r.arrival_ps for r in twice], abs=1)
    assert [(r.input_tokens, r.block_hashes) for r in once] == [(r.input_tokens, r.block_hashes) for r in twice]


def test_bursts_keep_the_rate_and_all_else() -> None:
    single, bursts = draw(n=20_000), draw(n=20_000, burst=10.0)
    arrivals = Counter(r.arrival_ps for r in bursts)
    # 2,000 moments of 1 + Poisson(9) requests: the mean has a standard deviation of 3 / sqrt(2000) = 0.07, the rate
    # one of about sqrt(1.1 / 2000) = 2.3 %.
    assert np.mean(list(arrivals.values())) == pytest.approx(10.0, abs=0.3)
    assert 20_000e12 / bursts[-1].arrival_ps == pytest.approx(1.5, rel=0.1)
    assert [(r.input_tokens, r.block_hashes) for r in single] == [(r.input_tokens, r.block_hashes) for r in bursts]
    assert draw(n=200, burst=10.0)[:40] == draw(n=40, burst=10.0)


def test_a_shorter_run_is_the_beginning_of_a_longer_one() -> None:
    assert draw(n=200)[:40] == draw(n=40)


def test_seeds() -> None:
    assert draw(seed=1) == draw(seed=1)
    assert draw(seed=1) != draw(seed=2)


def test_p_share_is_the_share_of_prompts_that_begin_with_a_document() -> None:
    requests = draw(n=5000, p_share=0.3, documents=1, document_mean=512.0, document_sigma=0.0)
    # Prompts of one block have no whole block to share.
    longer = [r for r in requests if r.input_tokens > 512]
    shared = sum(r.block_hashes[0] == 0 for r in longer)
    assert shared / len(longer) == pytest.approx(0.3, abs=0.02)  # three standard deviations of 0.0066
    assert all(r.block_hashes[0] != 0 for r in draw(n=500, p_share=0.0))


def test_documents_follow_zipf() -> None:
    requests = draw(
        n=20_000, p_share=1.0, documents=3, zipf=1.0, document_mean=512.0, document_sigma=0.0, input_sigma=0.0
    )
    counts = Counter(r.block_hashes[0] for r in requests)
    # Weights 1, 1/2, 1/3: shares 6/11, 3/11, 2/11, each with a standard deviation of at most 0.0035.
    assert [counts[k] / 20_000 for k in range(3)] == pytest.approx([6 / 11, 3 / 11, 2 / 11], abs=0.012)


def test_shared_blocks_lead_and_own_blocks_are_nobody_elses() -> None:
    requests = draw(n=2000)
    seen = Counter(h for r in requests for h in r.block_hashes)
    n_shared = 0
    for r in requests:
        common = [seen[h] > 1 for h in r.block_hashes]
        assert common == sorted(common, reverse=True)
        assert not common[-1]  # the question is the request's own
        n_shared += common[0]
    assert n_shared > 500


def test_input_max_cuts() -> None:
    assert max(r.input_tokens for r in draw(n=2000, input_max=5000)) == 5000


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rate": -1.0}, "workload.rate: -1.0 given; a number above 0"),
        ({"rate_scale": 0.0}, "workload.rate_scale: 0.0 given; a number above 0"),
        ({"input_mean": float("nan")}, "workload.input_mean: nan given; a number above 0"),
        ({"output_sigma": -0.5}, "workload.output_sigma: -0.5 given; a number from 0 to 10"),
        ({"p_share": 1.5}, "workload.p_share: 1.5 given; a probability in [0, 1]"),
        ({"documents": 0}, "workload.documents: 0 given; a whole number, at least 1"),
    ],
)
def test_wrong_values(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        draw(**changes)
    assert str(caught.value) == message
