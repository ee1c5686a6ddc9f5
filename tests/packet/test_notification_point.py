"""When a receiver sends congestion notifications."""

from __future__ import annotations

from harness.types import Topology
from tests.packet.conftest import RunFlows

ANY_QUEUE_MARKS = ("cc.use=fixed", "cc.rate=60Gbps", "switch.ecn.kmin=0B", "switch.ecn.kmax=0B")


def test_a_mark_within_the_interval_has_its_notification_at_the_end(three_hosts: Topology, run_flows: RunFlows) -> None:
    """Hosts 0 and 1 send to host 2 at 60 Gb/s, host 1 for 10 us and host 0 for 100 us; any queue marks.

    The queue grows by 20 Gb/s for 10 us and is gone 5 us later. The first mark of each flow has its CNP at once; flow
    0's later ones have one more when the 50 us are over, and then there are no more marks. Flow 1 is complete by then.
    """
    run = run_flows(three_hosts, [(0, 4, 735_000), (2, 4, 73_500)], *ANY_QUEUE_MARKS, "cc.cnp_interval=50us")
    assert run.result.flows.ecn_marks.min() > 5
    assert run.result.flows.cnps.tolist() == [2, 1]


def test_without_an_interval_every_mark_has_one(three_hosts: Topology, run_flows: RunFlows) -> None:
    run = run_flows(three_hosts, [(0, 4, 735_000), (2, 4, 73_500)], *ANY_QUEUE_MARKS, "cc.cnp_interval=0us")
    assert run.result.flows.cnps.tolist() == run.result.flows.ecn_marks.tolist()
