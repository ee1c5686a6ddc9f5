"""The fluid models on the shared fabrics: completion times in closed form, events, records.

All links are 100 Gb/s and 1 us, so a byte takes 80 ps. Hosts 0 and 1 of the eight share a rack, 0 and 2 a pod.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import astuple, replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from harness.errors import Interrupted
from harness.fluid import MODELS, drains, waterfill
from harness.fluid.model import FluidModel
from harness.interfaces import NetworkModel
from harness.network_settings import NetworkSettings
from harness.types import KVFlow, NetworkResult, Progress, Topology, TrafficClass

US = 1_000_000  # [ps]
MB = 1_000_000
PS_PER_BYTE = 80


def nic(host: int) -> int:
    """The port of a host's only NIC, on both shared fabrics."""
    return 2 * host


def flow(
    id: int,  # noqa: A002 (as in KVFlow)
    src: int,
    dst: int,
    size_bytes: int,
    traffic_class: TrafficClass = "kv",
) -> KVFlow:
    return KVFlow(id, traffic_class, (nic(src),), (nic(dst),), size_bytes)


def run(model: FluidModel, *starts: tuple[int, KVFlow]) -> NetworkResult:
    for at_ps, kv_flow in starts:
        model.start(kv_flow, at_ps)
    return model.run()


@pytest.fixture(params=sorted(MODELS))
def any_model(request: pytest.FixtureRequest, three_hosts: Topology, settings: NetworkSettings) -> FluidModel:
    return MODELS[request.param](three_hosts, settings, seed=1)


class TestCompletionTimes:
    @pytest.mark.parametrize(("dst", "links"), [(1, 2), (2, 4), (4, 6)])
    @pytest.mark.parametrize("name", ["maxmin", "maxmin-aggregate", "tier"])
    def test_one_flow(self, eight_hosts: Topology, settings: NetworkSettings, name: str, dst: int, links: int) -> None:
        # Two hosts on two uplinks of the same rate a rack: no tier is oversubscribed.
        result = run(MODELS[name](eight_hosts, settings, seed=1), (5 * US, flow(0, 0, dst, 10 * MB + 1)))
        fct_ps = (10 * MB + 1) * PS_PER_BYTE + links * US
        assert result.flows.start_ps.tolist() == [5 * US]
        assert result.flows.end_ps.tolist() == [5 * US + fct_ps]
        assert result.flows.ideal_fct_ps.tolist() == [fct_ps]

    def test_headers_take_their_time(self, three_hosts: Topology, settings: NetworkSettings) -> None:
        # 10,000 B are three packets; each takes 62 B of headers and 20 B of gap.
        result = run(MODELS["maxmin-goodput"](three_hosts, settings, seed=1), (0, flow(0, 0, 1, 10_000)))
        assert result.flows.end_ps.tolist() == [(10_000 + 3 * 82) * PS_PER_BYTE + 2 * US]
        assert result.flows.acked_bytes.tolist() == [10_000]
        assert result.port_totals.tx_bytes[nic(0)].tolist() == [0, 10_000 + 3 * 82, 0]

    def test_two_flows_share_the_last_link(self, three_hosts: Topology, settings: NetworkSettings) -> None:
        # Both at half rate until the shorter has drained, then the longer alone.
        result = run(
            MODELS["maxmin"](three_hosts, settings, seed=1), (0, flow(0, 0, 2, 3 * MB)), (0, flow(1, 1, 2, MB))
        )
        assert result.flows.end_ps.tolist() == [4 * MB * PS_PER_BYTE + 2 * US, 2 * MB * PS_PER_BYTE + 2 * US]

    def test_a_late_flow_slows_the_first(self, three_hosts: Topology, settings: NetworkSettings) -> None:
        # Flow 0 has 1 MB left when flow 1 comes: both need 2 MB of link time for it, then 1 MB of flow 1 is left alone.
        late_ps = MB * PS_PER_BYTE
        result = run(
            MODELS["maxmin"](three_hosts, settings, seed=1),
            (0, flow(0, 0, 2, 2 * MB)),
            (late_ps, flow(1, 1, 2, 2 * MB)),
        )
        assert result.flows.end_ps.tolist() == [3 * MB * PS_PER_BYTE + 2 * US, 4 * MB * PS_PER_BYTE + 2 * US]

    def test_parking_lot(self, three_hosts: Topology, settings: NetworkSettings) -> None:
        # 0->1 shares NIC 0 with 0->2, which shares link 2 with 1->2: all at half rate; then 0->1 and 1->2 are over at
        # once and 0->2 has 2 MB left alone.
        result = run(
            MODELS["maxmin"](three_hosts, settings, seed=1),
            (0, flow(0, 0, 2, 3 * MB)),
            (0, flow(1, 0, 1, MB)),
            (0, flow(2, 1, 2, MB)),
        )
        two_mb_ps = 2 * MB * PS_PER_BYTE
        assert result.flows.end_ps.tolist() == [2 * two_mb_ps + 2 * US, two_mb_ps + 2 * US, two_mb_ps + 2 * US]

    def test_background_waits_for_kv(self, three_hosts: Topology, settings: NetworkSettings) -> None:
        result = run(
            MODELS["maxmin"](three_hosts, settings, seed=1),
            (0, flow(0, 0, 2, 2 * MB, "background")),
            (MB * PS_PER_BYTE, flow(0, 1, 2, 5 * MB)),
        )
        assert result.flows.end_ps.tolist() == [7 * MB * PS_PER_BYTE + 2 * US, 6 * MB * PS_PER_BYTE + 2 * US]
        assert result.port_totals.tx_bytes[nic(2) ^ 1].tolist() == [0, 5 * MB, 2 * MB]

    def test_background_in_the_data_queue_shares(
        self, three_hosts: Topology, settings_one_queue: NetworkSettings
    ) -> None:
        result = run(
            MODELS["maxmin"](three_hosts, settings_one_queue, seed=1),
            (0, flow(0, 0, 2, MB, "background")),
            (0, flow(0, 1, 2, MB)),
        )
        assert result.flows.end_ps.tolist() == [2 * MB * PS_PER_BYTE + 2 * US] * 2

    def test_a_transfer_is_done_with_its_last_queue_pair(
        self, three_hosts: Topology, settings_two_queue_pairs: NetworkSettings
    ) -> None:
        model = MODELS["maxmin"](three_hosts, settings_two_queue_pairs, seed=1)
        done: list[int] = []
        model.start(flow(0, 0, 2, 3), 0, lambda: done.append(model.now_ps))
        result = model.run()
        # 2 and 1 bytes at half rate: 160 ps; the second byte of the first then alone: 240 ps.
        assert result.flows.size_bytes.tolist() == [2, 1]
        assert result.flows.end_ps.tolist() == [3 * PS_PER_BYTE + 2 * US, 2 * PS_PER_BYTE + 2 * US]
        assert done == [3 * PS_PER_BYTE + 2 * US]

    def test_nothing_to_send_is_done_at_once(self, any_model: FluidModel) -> None:
        done: list[int] = []
        any_model.start(flow(0, 0, 1, 0), 7, lambda: done.append(any_model.now_ps))
        assert len(any_model.run().flows.end_ps) == 0
        assert done == [7]


class TestTiersApart:
    def test_a_flow_across_pods_leaves_the_links_within_a_pod_alone(
        self, eight_hosts: Topology, settings: NetworkSettings
    ) -> None:
        """One flow within the pod, one across, from hosts of one rack: they meet on an uplink, or they do not."""
        pair = (flow(0, 0, 2, MB), flow(1, 1, 4, MB))
        ends = {
            name: [
                tuple(run(MODELS[name](eight_hosts, settings, seed=s), *((0, f) for f in pair)).flows.end_ps)
                for s in range(20)
            ]
            for name in ("maxmin", "maxmin-tier")
        }
        near_ps, far_ps = MB * PS_PER_BYTE + 4 * US, MB * PS_PER_BYTE + 6 * US
        met = (near_ps + MB * PS_PER_BYTE, far_ps + MB * PS_PER_BYTE)
        assert set(ends["maxmin"]) == {(near_ps, far_ps), met}
        assert set(ends["maxmin-tier"]) == {(near_ps, far_ps)}

    def test_flows_of_one_tier_collide_and_nics_are_shared(
        self, eight_hosts: Topology, settings: NetworkSettings
    ) -> None:
        for pair in ((flow(0, 0, 2, MB), flow(1, 1, 3, MB)), (flow(0, 0, 2, MB), flow(1, 0, 4, MB))):
            ends = [
                [
                    run(MODELS[name](eight_hosts, settings, seed=s), *((0, f) for f in pair)).flows.end_ps.tolist()
                    for s in range(20)
                ]
                for name in ("maxmin", "maxmin-tier")
            ]
            assert ends[0] == ends[1]

    def test_alone_it_has_the_rate_of_its_tier(self, eight_hosts: Topology, settings: NetworkSettings) -> None:
        """A thin link of a lower tier holds it back as little as other flows there do; the ideal time says so too."""
        thin = replace(
            eight_hosts,
            links=tuple(replace(link, rate_bps=25 * 10**9) if link.tier == 2 else link for link in eight_hosts.links),
        )
        flows = run(MODELS["maxmin-tier"](thin, settings, seed=1), (0, flow(0, 0, 4, MB)), (0, flow(1, 1, 3, MB))).flows
        assert flows.end_ps.tolist() == [MB * PS_PER_BYTE + 6 * US, 4 * MB * PS_PER_BYTE + 4 * US]
        assert flows.ideal_fct_ps.tolist() == flows.end_ps.tolist()


class TestAggregate:
    def test_no_collision(self, eight_hosts: Topology, settings: NetworkSettings) -> None:
        """Two flows that collide on a hashed uplink do not where the two uplinks are one pool."""
        pair = (flow(0, 0, 2, MB), flow(1, 1, 3, MB))
        seeds = range(20)
        alone_ps, collided_ps = MB * PS_PER_BYTE + 4 * US, 2 * MB * PS_PER_BYTE + 4 * US
        ends = {
            name: [
                tuple(run(MODELS[name](eight_hosts, settings, seed=s), *((0, f) for f in pair)).flows.end_ps)
                for s in seeds
            ]
            for name in ("maxmin", "maxmin-aggregate")
        }
        assert set(ends["maxmin"]) == {(alone_ps, alone_ps), (collided_ps, collided_ps)}
        assert set(ends["maxmin-aggregate"]) == {(alone_ps, alone_ps)}

    def test_one_flow_is_held_to_its_narrowest_link(self, eight_hosts: Topology, settings: NetworkSettings) -> None:
        thin = replace(
            eight_hosts,
            links=tuple(replace(link, rate_bps=25 * 10**9) if link.tier == 3 else link for link in eight_hosts.links),
        )
        model = MODELS["maxmin-aggregate"](thin, settings, seed=1)
        assert run(model, (0, flow(0, 0, 4, MB))).flows.end_ps.tolist() == [4 * MB * PS_PER_BYTE + 6 * US]

    def test_the_pool_is_shared(self, eight_hosts: Topology, settings: NetworkSettings) -> None:
        """Four flows leave a pod whose four uplinks carry one and a half NICs together: 37.5 Gb/s for each."""
        thin = replace(
            eight_hosts,
            links=tuple(
                replace(link, rate_bps=37_500_000_000) if link.tier == 3 else link for link in eight_hosts.links
            ),
        )
        result = run(
            MODELS["maxmin-aggregate"](thin, settings, seed=1), *((0, flow(i, i, i + 4, 3 * MB)) for i in range(4))
        )
        assert result.flows.end_ps.tolist() == [3 * MB * 8 * 10**12 // (37_500 * MB) + 6 * US] * 4
        leaving = [port for port in range(32, 48, 2) if thin.nodes[thin.port_node(port)].pod == 0]
        assert result.port_totals.tx_bytes[leaving, 1].tolist() == [3 * MB] * 4


class TestTier:
    def test_own_flows_share_and_the_rate_stays(self, three_hosts: Topology, settings: NetworkSettings) -> None:
        # The second flow of the NIC starts at 1/(1 + 1) of the tier's rate and keeps it when the first has gone.
        result = run(MODELS["tier"](three_hosts, settings, seed=1), (0, flow(0, 0, 1, MB)), (0, flow(1, 0, 2, MB)))
        assert result.flows.end_ps.tolist() == [MB * PS_PER_BYTE + 2 * US, 2 * MB * PS_PER_BYTE + 2 * US]

    def test_flows_of_other_nics_do_not_count(self, three_hosts: Topology, settings: NetworkSettings) -> None:
        result = run(MODELS["tier"](three_hosts, settings, seed=1), (0, flow(0, 0, 2, MB)), (0, flow(1, 1, 2, MB)))
        assert result.flows.end_ps.tolist() == [MB * PS_PER_BYTE + 2 * US] * 2

    def test_congestion_is_what_other_classes_use_of_the_tier(
        self, three_hosts: Topology, settings: NetworkSettings
    ) -> None:
        # One background flow at line rate on 2 of 6 ports: c = 1/3, so 1 MB takes 1.5 times as long.
        result = run(
            MODELS["tier"](three_hosts, settings, seed=1),
            (0, flow(0, 0, 2, 9 * MB, "background")),
            (1, flow(0, 1, 2, MB)),
        )
        assert result.flows.end_ps[1] == 1 + MB * PS_PER_BYTE * 3 // 2 + 2 * US

    def test_tier_bandwidth_is_the_nic_over_the_cumulative_oversubscription(
        self, eight_hosts: Topology, settings: NetworkSettings
    ) -> None:
        # ToR uplinks at 50 Gb/s: 2:1. Aggregation uplinks at 25 Gb/s: 4 NICs over 4 links, so 4:1 in all.
        rate_of_tier = {1: 100, 2: 50, 3: 25}
        thin = replace(
            eight_hosts,
            links=tuple(replace(link, rate_bps=rate_of_tier[link.tier] * 10**9) for link in eight_hosts.links),
        )
        for dst, links, slower in ((1, 2, 1), (2, 4, 2), (4, 6, 4)):
            result = run(MODELS["tier"](thin, settings, seed=1), (0, flow(0, 0, dst, MB)))
            assert result.flows.end_ps.tolist() == [MB * PS_PER_BYTE * slower + links * US]

    def test_inflight_is_capped_at_16(self, three_hosts: Topology, settings: NetworkSettings) -> None:
        result = run(MODELS["tier"](three_hosts, settings, seed=1), *((0, flow(i, 0, 1, MB)) for i in range(20)))
        assert result.flows.end_ps.tolist() == [MB * PS_PER_BYTE * (1 + min(i, 16)) + 2 * US for i in range(20)]


class TestEvents:
    def test_equal_time_events_run_in_scheduling_order(self, any_model: FluidModel) -> None:
        order: list[str] = []

        def note(name: str) -> Callable[[], None]:
            return lambda: order.append(name)

        drained_ps = MB * PS_PER_BYTE
        any_model.schedule(drained_ps, note("a"))
        any_model.schedule(0, lambda: any_model.schedule(drained_ps, note("c")))
        any_model.schedule(drained_ps, note("b"))
        any_model.run()
        assert order == ["a", "b", "c"]

    def test_flows_that_drain_at_one_time_leave_in_the_order_of_their_start(self, any_model: FluidModel) -> None:
        order: list[int] = []
        for i in (2, 0, 1):
            any_model.start(flow(i, i, (i + 1) % 3, MB), 0, partial(order.append, i))
        any_model.run()
        assert order == [2, 0, 1]

    def test_done_runs_when_the_last_byte_has_arrived(self, three_hosts: Topology, settings: NetworkSettings) -> None:
        model = MODELS["maxmin"](three_hosts, settings, seed=1)
        ends: list[int] = []

        def again() -> None:
            ends.append(model.now_ps)
            if len(ends) < 3:
                model.start(flow(len(ends), 0, 1, MB), model.now_ps, again)

        model.start(flow(0, 0, 1, MB), 0, again)
        model.run()
        assert ends == [k * (MB * PS_PER_BYTE + 2 * US) for k in (1, 2, 3)]

    def test_the_past_is_closed(self, any_model: FluidModel) -> None:
        any_model.schedule(10, lambda: any_model.schedule(9, lambda: None))
        with pytest.raises(AssertionError, match="an event in the past: 9 ps, now 10 ps"):
            any_model.run()

    def test_what_an_action_raises_comes_out_unchanged_and_records_stay(self, any_model: FluidModel) -> None:
        error = RuntimeError("mine")

        def fail() -> None:
            raise error

        any_model.start(flow(0, 0, 1, 2 * MB), 0)
        any_model.schedule(MB * PS_PER_BYTE, fail)
        with pytest.raises(RuntimeError) as raised:
            any_model.run()
        assert raised.value is error
        result = any_model.recorded
        assert result.flows.end_ps.tolist() == [-1]
        # With headers 1 MB of wire time has gone by then, of which 82 in 4178 bytes are no payload.
        expected = MB * 4096 // 4178 if isinstance(any_model, MODELS["maxmin-goodput"]) else MB
        assert result.flows.acked_bytes.tolist() == [pytest.approx(expected, abs=100)]
        assert result.totals.payload_bytes_acked == result.flows.acked_bytes[0]

    def test_ctrl_c(self, any_model: FluidModel) -> None:
        def press() -> None:
            raise KeyboardInterrupt

        any_model.schedule(3 * 10**12, press)
        with pytest.raises(Interrupted, match=r"stopped at 3\.000 s of simulated time"):
            any_model.run()

    def test_heartbeat(self, three_hosts: Topology, settings: NetworkSettings) -> None:
        beats: list[Progress] = []
        model = MODELS["maxmin"](three_hosts, settings, seed=1, on_heartbeat=beats.append)
        for at_ps in range(1000):
            model.schedule(at_ps, lambda: time.sleep(0.0003))
        model.run()
        assert 1 <= len(beats) <= 1000 // 64
        assert all(0 < beat.now_ps < 1000 for beat in beats)


class TestSamples:
    def test_bytes_are_integrated_up_to_the_moment(self, three_hosts: Topology, settings: NetworkSettings) -> None:
        model = MODELS["maxmin"](three_hosts, settings, seed=1)
        seen: dict[int, list[list[int]]] = {}

        def sample() -> None:
            taken = model.sample()
            assert taken.now_ps == model.now_ps
            seen[model.now_ps] = taken.tx_bytes[:, 1].tolist()

        # Alone until 80 us (1 MB), then half rate each.
        model.start(flow(0, 0, 2, 3 * MB), 0)
        model.start(flow(1, 1, 2, MB), 80 * US)
        for at_ps in (0, 40 * US, 160 * US, 10_000 * US):
            model.schedule(at_ps, sample)
        model.run()
        half = MB // 2
        assert seen == {
            0: [0] * 6,
            40 * US: [half, 0, 0, 0, 0, half],
            160 * US: [3 * half, 0, half, 0, 0, 4 * half],
            10_000 * US: [3 * MB, 0, MB, 0, 0, 4 * MB],
        }


def check_protocol(model: FluidModel) -> NetworkModel:
    return model


transfers = st.lists(
    st.tuples(
        st.integers(0, 50 * US),
        st.integers(0, 7),
        st.integers(1, 7),
        st.integers(1, 5 * MB),
        st.sampled_from(["kv", "background"]),
    ),
    min_size=1,
    max_size=25,
)


@pytest.mark.parametrize("name", sorted(MODELS))
@hypothesis_settings(max_examples=40, deadline=None)
@given(transfers=transfers, seed=st.integers(0, 5))
def test_every_byte_arrives_once_never_early_and_twice_the_same(
    eight_hosts: Topology,
    settings: NetworkSettings,
    name: str,
    transfers: list[tuple[int, int, int, int, TrafficClass]],
    seed: int,
) -> None:
    starts = [
        (at_ps, flow(i, src, (src + away) % 8, size, cls)) for i, (at_ps, src, away, size, cls) in enumerate(transfers)
    ]
    result, again = (run(MODELS[name](eight_hosts, settings, seed=seed), *starts) for _ in range(2))
    flows = result.flows
    assert sorted(flows.size_bytes.tolist()) == sorted(size for *_, size, _ in transfers)
    assert flows.acked_bytes.tolist() == flows.size_bytes.tolist()
    assert result.totals.payload_bytes_acked == sum(size for *_, size, _ in transfers)
    # A rate change rounds what is left; 25 flows change a rate at most 50 times, by less than a ps each.
    assert (flows.end_ps - flows.start_ps >= flows.ideal_fct_ps - 50).all()
    tx = result.port_totals.tx_bytes
    if name in ("maxmin", "maxmin-tier", "tier"):
        # Bytes leave each host once, and enter each host once.
        hosts = np.arange(8)
        assert tx[nic(0) : nic(8) : 2].sum() == tx[1 : nic(8) : 2].sum() == result.totals.payload_bytes_acked
        for host in hosts:
            assert tx[nic(host)].sum() == flows.size_bytes[flows.src_port == nic(host)].sum()
    if name not in ("tier", "maxmin-tier"):  # which keep no sum of rates below a link's
        span_ps = int(flows.end_ps.max() - flows.start_ps.min())
        assert (tx.sum(axis=1) * PS_PER_BYTE <= span_ps).all()
    for ours, theirs in zip(astuple(flows), astuple(again.flows), strict=True):
        assert np.array_equal(ours, theirs)
    assert np.array_equal(tx, again.port_totals.tx_bytes)


@pytest.mark.parametrize("name", ["maxmin", "maxmin-aggregate"])
def test_many_flows_at_once_are_as_one_by_one(
    eight_hosts: Topology, settings: NetworkSettings, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """150 flows in two classes, settled and drained singly and in arrays."""
    draw = random.Random(5)
    starts = []
    for i in range(150):
        src, away = draw.randrange(8), draw.randint(1, 7)
        kind: TrafficClass = "kv" if i % 3 else "background"
        starts.append((draw.randrange(200 * US), flow(i, src, (src + away) % 8, draw.randint(1, 5 * MB), kind)))
    ends = []
    for few in (1000, 0):
        monkeypatch.setattr(waterfill, "SMALL", few)
        monkeypatch.setattr(drains, "_FEW", few)
        ends.append(run(MODELS[name](eight_hosts, settings, seed=2), *starts).flows.end_ps)
    # Rates of 1e10 bit/s differ in the sixteenth digit, so ends of 10 ms by some hundredths of a ps before rounding.
    assert np.abs(ends[0] - ends[1]).max() <= 2


def test_the_hash_decides_the_path(eight_hosts: Topology, settings: NetworkSettings) -> None:
    uplinks = {
        tuple(
            run(MODELS["maxmin"](eight_hosts, settings, seed=seed), (0, flow(0, 0, 2, MB))).port_totals.tx_bytes[
                16:20:2, 1
            ]
        )
        for seed in range(20)
    }
    assert uplinks == {(MB, 0), (0, MB)}


GOLDEN = {
    "maxmin-dcqcn": [85607200, 1209946395, 473616960, 392409120, 1356982141, 1023300032, 697211040, 2564069479],
    "maxmin": [84000000, 546000000, 464000000, 386000000, 986000000, 766000000, 686000000, 1326000000],
    "maxmin-tier": [84000000, 506000000, 464000000, 386000000, 966000000, 766000000, 686000000, 1326000000],
    "maxmin-goodput": [85607200, 555616960, 473616960, 392409120, 1003620160, 780418880, 697211040, 1350029280],
    "maxmin-aggregate": [84000000, 186000000, 464000000, 386000000, 486000000, 766000000, 686000000, 786000000],
    "tier": [84000000, 186000000, 318285714, 431714286, 486000000, 746000000, 872666667, 786000000],
}


@pytest.mark.parametrize("name", sorted(MODELS))
def test_golden_run(eight_hosts: Topology, settings: NetworkSettings, name: str) -> None:
    """Ends [ps] of eight transfers that start 20 us apart and meet in many places; recorded, to notice any change."""
    starts = [
        (20 * i * US, flow(i, i, dst, (i + 1) * MB, "background" if i % 3 == 1 else "kv"))
        for i, dst in enumerate((2, 5, 0, 6, 1, 0, 3, 2))
    ]
    result = run(MODELS[name](eight_hosts, settings, seed=11), *starts)
    assert result.flows.end_ps.tolist() == GOLDEN[name]
