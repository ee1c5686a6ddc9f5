#ifndef KVNET_LOAD_BALANCER_H
#define KVNET_LOAD_BALANCER_H

#include "port.h"

#include "ns3/object.h"

#include <vector>

namespace kvnet
{

/** The ports of a switch on shortest paths towards one other switch. */
struct PortGroup
{
    std::vector<Port*> ports;
    uint32_t turn{0}; //!< for strategies that take the ports in turn; starts at a random one
};

/**
 * Chooses among a switch's equal-cost ports, packet by packet.
 *
 * Asked for RoCE data packets only, and only where there are several ports. Without a load balancer a flow's path is
 * the one that its 5-tuple hashes to (ECMP), resolved once when the flow starts.
 */
class LoadBalancer : public ns3::Object
{
  public:
    static ns3::TypeId GetTypeId()
    {
        static ns3::TypeId tid =
            ns3::TypeId("kvnet::LoadBalancer").SetParent<ns3::Object>().SetGroupName("Kvnet");
        return tid;
    }

    /** The network is complete; `seed` is of the run. */
    virtual void Build(size_t nPorts, size_t nSwitches, uint64_t seed)
    {
        m_random.resize(nPorts);
        for (size_t i = 0; i < nPorts; ++i)
        {
            m_random[i].state = (seed + 1) * 0x9E3779B97F4A7C15ULL ^ i * 0xD1342543DE82EF95ULL;
        }
        m_nSwitches = nSwitches;
    }

    /** The port of `group` that `packet`, which came in at `in`, leaves through. */
    virtual Port* Choose(PortGroup& group, const Port& in, const Packet& packet, SimTime now) = 0;

  protected:
    /** Uniform over the group, from the stream of the port at which the packet came in. */
    Port* Random(const PortGroup& group, const Port& in)
    {
        const auto n = static_cast<double>(group.ports.size());
        return group.ports[static_cast<size_t>(m_random[in.id].Uniform() * n)];
    }

    size_t m_nSwitches{0};

  private:
    std::vector<PortRandom> m_random; //!< per port
};

} // namespace kvnet

#endif // KVNET_LOAD_BALANCER_H
