"""What a component must do: the Protocols between the engine and everything that can be swapped.

A component is a class whose keyword arguments are its configuration keys. Arguments with one of the names in
`CONTEXT` are not configuration: the run passes them to whoever asks for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

from harness.types import (
    ClusterView,
    KVFlow,
    NetworkResult,
    NetworkSample,
    OracleSnapshot,
    Request,
    Role,
    Topology,
)

#: Constructor arguments that the run supplies, with what they hold.
CONTEXT = {
    "seed": "int: derived from (scenario, workload, repetition), never from the scheduler",
    "cluster": "harness.types.Cluster",
    "tiers": "harness.types.TierFacts",
    "n_requests": "int: number of requests in the run",
    "block_tokens": "int: tokens per KV block",
}


class Workload(Protocol):
    """A source of requests."""

    def requests(self) -> Sequence[Request]:
        """All requests of the run, by arrival time; ids are 0, 1, 2, ... in that order."""


class Scheduler(Protocol):
    """Chooses the decode instance of one request."""

    def choose(self, request: Request, view: ClusterView, oracle: OracleSnapshot) -> int:
        """The id of one of `view.decode`, which is never empty. Called once per request, at `decision_at`."""


class Oracle(Protocol):
    """The network cost oracle: fed with link counters by a periodic process, read by the scheduler."""

    interval_ps: int

    def observe(self, sample: NetworkSample) -> None:
        """Take in the counters at `sample.now_ps`."""

    def snapshot(self, now_ps: int) -> OracleSnapshot:
        """What the scheduler may see at `now_ps`, given the oracle's publication delay."""


class ServiceTimes(Protocol):
    """How long an instance computes."""

    prefill_queue: bool  #: True: an instance prefills one request at a time; False: any number at once, as in the paper
    max_batch: int  #: decode slots of an instance

    def prefill_ps(self, tokens: int) -> int:
        """Time to prefill a prompt of `tokens` tokens alone [ps]."""

    def iteration_ps(self, batch: int) -> int:
        """Time of one decode iteration with `batch` running requests, batch >= 1 [ps]."""


class Background(Protocol):
    """Traffic that is not KV cache: flows, or a constant share of the links' capacity."""

    @property
    def taken_share(self) -> Mapping[int, float]:
        """Per tier, the share in [0, 1) of each link's rate that the network model does not get; 0 if not listed."""

    def flows(self) -> Iterator[tuple[int, KVFlow]]:
        """Pairs of start time [ps] and flow, by start time, without end."""


class TopologyBuilder(Protocol):
    """A fabric, and how its hosts are cut into instances; topologies.placement.slots says which ports are whose."""

    gpus_per_server: int
    gpus_per_instance: int

    def build(self) -> Topology:
        """The nodes and links."""


class Placement(Protocol):
    """Decides which instances prefill and which decode."""

    def roles(self, topology: Topology, hosts: Sequence[int]) -> Sequence[Role]:
        """The role of each instance, given the host (node id) of each."""


class NetworkModel(Protocol):
    """Carries flows and owns the run's one clock."""

    @property
    def now_ps(self) -> int:
        """The simulated time [ps]."""

    @property
    def recorded(self) -> NetworkResult:
        """What has been recorded until now; after `run` raised, all that there is of the run."""

    def schedule(self, at_ps: int, action: Callable[[], None]) -> None:
        """Run `action` at `at_ps` >= now; actions for the same time run in the order in which they were scheduled."""

    def start(self, flow: KVFlow, at_ps: int, done: Callable[[], None] | None = None) -> None:
        """Start `flow` at `at_ps` >= now; `done` runs at the time at which its last byte is acknowledged."""

    def sample(self, reset_peaks: bool = False) -> NetworkSample:
        """The link counters now."""

    def run(self) -> NetworkResult:
        """Process events until none is left.

        Raises
        ------
        RunFailure : flows are left over that no event can finish (deadlock), or an invariant broke.
        Interrupted : the user pressed Ctrl-C. Whatever an action raised is raised here unchanged.
        """
