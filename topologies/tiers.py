"""What the operator knows of the locality tiers: the bandwidth and latency of each, derived from the fabric."""

from __future__ import annotations

from collections.abc import Mapping

from harness.types import N_TIERS, Cluster, TierFacts, Topology


def tier_facts(
    cluster: Cluster,
    *,
    all_nics: bool = False,
    bandwidth_bps: Mapping[int, int] | None = None,
    latency_ps: Mapping[int, int] | None = None,
) -> TierFacts:
    """Bandwidth and one-way latency of the tiers.

    A tier's bandwidth is the NIC rate (of the first instance) over the cumulative oversubscription up to it. With C_t
    the capacity of all links of tier t, the oversubscription between two levels is C_{t-1} / C_t, so the cumulative one
    is C_1 / C_t, however it is brought about (thin or few links); spare capacity of a level makes up for nothing above
    or below it. Latency is the sum of the link delays up to that tier and down again; links of one tier with unequal
    delays count with their mean. Tier 0 is NVLink; without it, instances of one server are joined as in tier 1.

    Parameters
    ----------
    all_nics : a transfer is striped over all NICs of an instance, not carried by one.
    bandwidth_bps, latency_ps : per tier, what to report instead: a wrong oracle. The network stays as it is.

    Returns
    -------
    TierFacts : 0 for tiers that the fabric does not have. Bandwidths are rounded down to the bit/s.
    """
    topology = cluster.topology
    first = cluster.instances[0]
    nics = first.nic_ports if all_nics else first.nic_ports[:1]
    pair_bps = sum(topology.links[port >> 1].rate_bps for port in nics)
    capacity = [sum(link.rate_bps for link in topology.links if link.tier == t) for t in range(N_TIERS)]
    bandwidth, latency = [0] * N_TIERS, [0] * N_TIERS
    narrowest, one_way_up = capacity[1], 0
    for t in range(1, N_TIERS):
        if not capacity[t]:
            break
        narrowest = min(narrowest, capacity[t])
        one_way_up += _mean_delay_ps(topology, t)
        bandwidth[t] = pair_bps * narrowest // capacity[1]
        latency[t] = 2 * one_way_up
    if capacity[0]:
        bandwidth[0] = min(link.rate_bps for link in topology.links if link.tier == 0)
        latency[0] = _mean_delay_ps(topology, 0)
    else:
        bandwidth[0], latency[0] = bandwidth[1], latency[1]
    for t, value in (bandwidth_bps or {}).items():
        bandwidth[t] = value
    for t, value in (latency_ps or {}).items():
        latency[t] = value
    b0, b1, b2, b3 = bandwidth
    l0, l1, l2, l3 = latency
    return TierFacts((b0, b1, b2, b3), (l0, l1, l2, l3))


def _mean_delay_ps(topology: Topology, tier: int) -> int:
    delays = [link.delay_ps for link in topology.links if link.tier == tier]
    return sum(delays) // len(delays)
