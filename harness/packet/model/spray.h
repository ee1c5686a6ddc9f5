#ifndef KVNET_SPRAY_H
#define KVNET_SPRAY_H

#include "load-balancer.h"

namespace kvnet
{

/**
 * Packet spraying: every packet takes an equal-cost port of its own, at random or in turn.
 *
 * Dixit et al., "On the Impact of Packet Spraying in Data Center Networks", INFOCOM 2013,
 * doi:10.1109/INFCOM.2013.6567015. Turns are kept per switch and destination switch.
 */
class Spray : public LoadBalancer
{
  public:
    static ns3::TypeId GetTypeId();
    Port* Choose(PortGroup& group, const Port& in, const Packet& packet, SimTime now) override;

  private:
    bool m_roundRobin;
};

} // namespace kvnet

#endif // KVNET_SPRAY_H
