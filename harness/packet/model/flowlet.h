#ifndef KVNET_FLOWLET_H
#define KVNET_FLOWLET_H

#include "load-balancer.h"

#include <unordered_map>

namespace kvnet
{

/**
 * Flowlet switching: a flow that pauses for longer than `Gap` at a switch goes on through a port drawn anew.
 *
 * Vanini et al., "Let It Flow: Resilient Asymmetric Load Balancing with Flowlet Switching", NSDI 2017: each switch
 * decides by itself, at random. Its table is exact; left out are the collisions of a hardware table of fixed size.
 */
class Flowlet : public LoadBalancer
{
  public:
    static ns3::TypeId GetTypeId();
    void Build(size_t nPorts, size_t nSwitches, uint64_t seed) override;
    Port* Choose(PortGroup& group, const Port& in, const Packet& packet, SimTime now) override;

  private:
    struct Entry
    {
        SimTime last{0}; //!< when the flow's latest packet came
        Port* port{nullptr};
    };

    /** A flow whose gap has passed needs no entry: a table that has doubled sheds those. */
    struct Table
    {
        std::unordered_map<uint64_t, Entry> entries; //!< by the flow's 5-tuple
        size_t limit{256};
    };

    ns3::Time m_gapTime;
    SimTime m_gap{0};
    std::vector<Table> m_tables; //!< per switch
};

} // namespace kvnet

#endif // KVNET_FLOWLET_H
