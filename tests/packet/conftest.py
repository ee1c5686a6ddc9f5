"""One call from flows to their completion, on a fabric and a profile with overrides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from harness.config import load_network
from harness.packet.network import PacketNetwork
from harness.types import Int64Array, KVFlow, NetworkResult, Topology


@dataclass
class Run:
    network: PacketNetwork
    result: NetworkResult

    @property
    def fct_ps(self) -> Int64Array:
        """Per transfer with one queue pair, in order of its id."""
        flows = self.result.flows
        return (flows.end_ps - flows.start_ps)[np.argsort(flows.transfer_id, kind="stable")]


RunFlows = Callable[..., Run]


@pytest.fixture
def run_flows() -> RunFlows:
    def run(
        topology: Topology,
        flows: Sequence[tuple[int, int, int]] | Sequence[KVFlow],
        *overrides: str,
        profile: str = "roce-default",
        start_ps: int = 0,
        seed: int = 1,
        **keywords: Any,
    ) -> Run:
        """`flows`: (source port, destination port, bytes) or KVFlow; overrides: ``cc.use=none`` and so on."""
        network = PacketNetwork(topology, load_network(profile, overrides=overrides), seed=seed, **keywords)
        for i, flow in enumerate(flows):
            kv = flow if isinstance(flow, KVFlow) else KVFlow(i, "kv", (flow[0],), (flow[1],), flow[2], path_seed=seed)
            network.start(kv, start_ps)
        return Run(network, network.run())

    return run
