"""The composition root: paired seeds, costs that can be worked out by hand, and what is kept when a run ends early."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness import components, run
from harness.config import Scenario, build_cluster, build_tiers, load_scenario
from harness.errors import InputError, Interrupted
from harness.types import Request, RunResult

SMALL = {"requests": 12, "seeds": 1, "schedulers": ["rr"], "backend": "fluid"}


def small(*overrides: str, **options: Any) -> Scenario:
    return load_scenario("rag", overrides=["background=none", *overrides], **{**SMALL, **options})


RR = components.check("scheduler", "rr")


def test_a_run_completes_and_is_the_same_twice() -> None:
    first, second = (run.run_cell(small(), "fluid", RR, 1) for _ in range(2))
    assert (first.backend, first.scheduler, first.seed, first.status) == ("fluid", "rr", 1, "complete")
    assert len(first.requests) == 12
    assert all(r.last_token_ps > r.first_token_ps > r.arrival_ps for r in first.requests)
    assert [r.last_token_ps for r in first.requests] == [r.last_token_ps for r in second.requests]
    assert np.array_equal(first.network.flows.end_ps, second.network.flows.end_ps)


def test_schedulers_of_a_seed_see_the_same_arrivals_and_other_seeds_see_others() -> None:
    netkv = components.check("scheduler", "netkv-full")
    arrivals = {
        (label, seed): [(r.arrival_ps, r.input_tokens) for r in run.run_cell(small(), "fluid", spec, seed).requests]
        for label, spec in (("rr", RR), ("netkv", netkv))
        for seed in (1, 2)
    }
    assert arrivals["rr", 1] == arrivals["netkv", 1]
    assert arrivals["rr", 1] != arrivals["rr", 2]


def test_streams_depend_on_name_workload_and_repetition_only() -> None:
    base = run.streams(small(), 1)
    assert len({base.workload, base.background, base.paths, base.network, base.other}) == 5
    assert base == run.streams(small("network.profile=roce-paper", schedulers=["netkv-full"], backend="packet"), 1)
    assert base != run.streams(small(), 2)
    assert base != run.streams(small("workload.use=chatbot"), 1)
    assert base != run.streams(small("name=other"), 1)


def test_an_action_that_raises_leaves_what_was_recorded_and_comes_out_unchanged(tmp_path: Path) -> None:
    plug_in = tmp_path / "lab.py"
    plug_in.write_text(
        "class Fails:\n"
        "    def choose(self, request, view, oracle):\n"
        "        if request.id == 5:\n"
        "            raise KeyError('my own bug')\n"
        "        return view.decode[0].instance\n"
    )
    kept: list[RunResult] = []
    spec = components.check("scheduler", f"{plug_in}:Fails")
    with pytest.raises(KeyError, match="my own bug"):
        run.run_cell(small(), "fluid", spec, 1, on_partial=kept.append)
    assert [r.status for r in kept] == ["failed"]
    placed = [r.id for r in kept[0].requests if r.decision_ps >= 0]
    assert 0 in placed
    assert 5 not in placed


def test_an_interrupted_run_keeps_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.fluid.model.HEARTBEAT_S", 0.0)
    kept: list[RunResult] = []

    def press_ctrl_c(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(Interrupted):
        run.run_cell(small(), "fluid", RR, 1, press_ctrl_c, kept.append)
    assert [r.status for r in kept] == ["interrupted"]


def test_progress_counts_completed_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.fluid.model.HEARTBEAT_S", 0.0)
    seen: list[tuple[int, int]] = []
    run.run_cell(small(), "fluid", RR, 1, lambda progress, completed: seen.append((progress.now_ps, completed)))
    assert seen == sorted(seen)
    assert 0 < seen[-1][1] <= 12


def test_a_request_that_fits_no_instance_is_refused_before_any_run() -> None:
    # Four GPUs of 36 GB less 140 GB of weights and a tenth leave 3.6 GB: 10,986 tokens of 327,680 bytes.
    scenario = small("cluster.memory_per_gpu=36GB", "workload.input_mean=30000")
    with pytest.raises(InputError, match=r"an instance has 3\.60 GB left"):
        run.estimate_cost(scenario, "packet", 1)


def test_a_constant_background_slows_both_network_models_and_nothing_else() -> None:
    """A fifth of paper-64's 50 Gb/s and 60 % of its 25 Gb/s are taken: 200 and 800 ps a byte are left."""
    scenario = small(
        "background={use: constant, share: {2: 0.2, 3: 0.6}}",
        "network.cc.use=none",
        "model.layers=1",  # 4096 bytes a token
        "workload.rate_scale=0.1",  # no two transfers meet
        requests=6,
        backend="both",
    )
    ps_per_byte = {2: 200, 3: 800}
    latency_ps = {2: 8_000_000, 3: 15_000_000}
    fluid, packet = (run.run_cell(scenario, backend, RR, 1) for backend in scenario.backends[::-1])
    assert {r.tier for r in fluid.requests} == {2, 3}
    flows = [(r.tier, r.transfer_bytes, r.transfer_end_ps - r.transfer_start_ps) for r in fluid.requests]
    assert [fct for *_, fct in flows] == [size * ps_per_byte[tier] + latency_ps[tier] for tier, size, _ in flows]
    for r in packet.requests:
        wire_ps = (r.transfer_bytes + -(-r.transfer_bytes // 4096) * 82) * ps_per_byte[r.tier]
        # The last ACK's way back; and a packet of 4178 B once more on each link, but for the first of the slowest:
        # 334 ns at 100 Gb/s, 836 ns at 40, 3342 ns at 10, and a little for the ACK's 86 B.
        late_ps = r.transfer_end_ps - r.transfer_start_ps - wire_ps - 2 * latency_ps[r.tier]
        assert 0 <= late_ps <= {2: 2 * 334_000 + 836_000, 3: 2 * 334_000 + 2 * 836_000 + 3_342_000}[r.tier] + 300_000
    assert build_tiers(scenario, build_cluster(scenario)).bandwidth_bps[1:] == (100 * 10**9, 50 * 10**9, 25 * 10**9)


# --- What a cell is ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "same"),
    [
        (lambda: small(seeds=2), True),
        (lambda: small(schedulers=["rr", "ca"]), True),
        (lambda: small("fluid=tier"), False),
        (lambda: small("network.transport.ack_every=1"), False),
        (lambda: small(requests=13), False),
    ],
)
def test_a_cells_digest_changes_with_what_the_cell_does(change: Callable[[], Scenario], same: bool) -> None:
    digest = run.cell_digest(small(), "fluid", RR, 1)
    assert (run.cell_digest(change(), "fluid", RR, 1) == digest) is same


def test_a_packet_cells_digest_does_not_know_the_fluid_model_but_the_seed() -> None:
    digest = run.cell_digest(small(), "packet", RR, 1)
    assert run.cell_digest(small("fluid=tier"), "packet", RR, 1) == digest
    assert run.cell_digest(small(), "packet", RR, 2) != digest


def test_a_traced_port_is_of_packet_cells_only() -> None:
    plain, traced = small(backend="both"), small(backend="both", trace_ports=["tor0->agg1"])
    assert run.cell_digest(plain, "fluid", RR, 1) == run.cell_digest(traced, "fluid", RR, 1)
    assert run.cell_digest(plain, "packet", RR, 1) != run.cell_digest(traced, "packet", RR, 1)


def test_a_cells_digest_changes_with_a_plug_ins_source(tmp_path: Path) -> None:
    digests = []
    for directory in ("one", "two"):
        plug_in = tmp_path / directory / "lab.py"
        plug_in.parent.mkdir()
        plug_in.write_text(f"class Mine:\n    '''{directory}'''\n    def choose(self, request, view, oracle): ...\n")
        sources = run.plug_in_digests(small(), components.check("scheduler", f"{plug_in}:Mine"))
        digests.append(next(iter(sources.values())))
    assert digests[0] != digests[1]


# --- Cost -------------------------------------------------------------------------------------------------------------


def request(request_id: int, tokens: int, blocks: tuple[int, ...]) -> Request:
    return Request(request_id, request_id, tokens, 1, blocks)


def test_expected_bytes_count_random_hits() -> None:
    # Two instances, blocks of 10 tokens. Request 1 shares block 7 with request 0: there with probability 1/2. Request 2
    # shares it with both: 1 - 1/4. So 60 - 10/2 - 10 * 3/4 = 47.5 tokens of 4 bytes.
    requests = [request(0, 20, (7, 1)), request(1, 20, (7, 2)), request(2, 20, (7, 3))]
    assert run.expected_transfer_bytes(requests, 4, 10, n_decode=2) == pytest.approx(47.5 * 4)


def test_a_partial_block_counts_for_its_tokens() -> None:
    requests = [request(0, 15, (7, 8)), request(1, 15, (7, 8))]
    assert run.expected_transfer_bytes(requests, 1, 10, n_decode=1) == pytest.approx(15)  # all of the second is there


def test_expected_hops_without_background_are_packets_times_the_mean_path() -> None:
    cost = run.estimate_cost(small(backend="packet"), "packet", 1)
    # paper-64, prefill in rack 0: of 12 decode instances 4 are same-pod (4 links) and 8 cross-pod (6 links).
    assert cost.data_hops / cost.data_packets == pytest.approx((4 * 4 + 8 * 6) / 12, rel=1e-6)
    assert cost.flows == 12
    # One ACK per 16 packets of 4096 bytes goes back over as many links.
    assert cost.work == pytest.approx(cost.data_hops * (1 + 1 / 16), rel=1e-6)


def test_background_adds_its_share_of_capacity() -> None:
    quiet = run.estimate_cost(small(backend="packet"), "packet", 1)
    loaded = run.estimate_cost(small("background={use: poisson, share: {3: 0.05}}", backend="packet"), "packet", 1)
    # Tier 3 of paper-64 has 16 links of 25 Gb/s, so flows of 5 % of 400 Gb/s = 20 Gb/s; over about 20 s that is 50 GB.
    extra_bytes = (loaded.data_packets - quiet.data_packets) * 4096
    seconds = extra_bytes * 8 / 20e9
    assert 5 < seconds < 60
    assert (loaded.data_hops - quiet.data_hops) / (loaded.data_packets - quiet.data_packets) == pytest.approx(6)


def test_a_measured_speed_replaces_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    scenario = small(backend="packet")
    before = run.estimate_cost(scenario, "packet", 1)
    run.remember_speed(scenario, "packet", before, seconds=20.0, work=4e8, memory_bytes=500_000_000)
    assert run.estimate_cost(scenario, "packet", 1).seconds == pytest.approx(before.work / 2e7)
    assert run.estimate_cost(scenario, "fluid", 1).seconds != pytest.approx(before.work / 2e7)
    run.remember_speed(scenario, "packet", before, seconds=10.0, work=4e8, memory_bytes=500_000_000)
    assert run.estimate_cost(scenario, "packet", 1).seconds == pytest.approx(before.work / 3e7)  # the mean of 2 and 4
    run.remember_speed(scenario, "packet", before, seconds=4.9, work=4e7, memory_bytes=1)  # too short to tell
    assert run.estimate_cost(scenario, "packet", 1).seconds == pytest.approx(before.work / 3e7)


@pytest.mark.parametrize("content", ["not JSON", "[]", '{"x": 1}', ""])
def test_a_broken_speed_file_is_as_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    expected = run.estimate_cost(small(), "fluid", 1)
    (tmp_path / "netkv-cosim").mkdir()
    (tmp_path / "netkv-cosim" / "speed.json").write_text(content)
    assert run.estimate_cost(small(), "fluid", 1) == expected


# --- Traces -----------------------------------------------------------------------------------------------------------


def test_trace_facts(tmp_path: Path) -> None:
    trace = tmp_path / "t.jsonl"
    lines = [
        '{"timestamp": 0, "input_length": 1000, "output_length": 5, "hash_ids": [1, 2]}',
        '{"timestamp": 500, "input_length": 1024, "output_length": 7, "hash_ids": [1, 3]}',
        '{"timestamp": 2000, "input_length": 1500, "output_length": 9, "hash_ids": [1, 4, 2]}',
    ]
    trace.write_text("\n".join(lines) + "\n")
    facts = run.trace_facts(trace)
    assert (facts.requests, facts.span_s, facts.blocks, facts.distinct_blocks) == (3, 2.0, 7, 4)
    assert facts.ideal_hit_share == pytest.approx(2 / 7)  # block 1 twice; the last 2 follows a miss
    mean = pytest.approx(3524 / 3)
    assert facts.input_tokens == {"mean": mean, "median": 1024, "p90": 1500, "p99": 1500, "max": 1500}


def test_an_empty_or_missing_trace_is_the_users_mistake(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(InputError, match=r"empty\.jsonl: the trace is empty"):
        run.trace_facts(tmp_path / "empty.jsonl")
    with pytest.raises(InputError, match=r"missing\.jsonl: cannot be read: No such file"):
        run.trace_facts(tmp_path / "missing.jsonl")
