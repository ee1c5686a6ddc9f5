#include "spray.h"

#include "ns3/boolean.h"

namespace kvnet
{

NS_OBJECT_ENSURE_REGISTERED(Spray);

ns3::TypeId
Spray::GetTypeId()
{
    static ns3::TypeId tid =
        ns3::TypeId("kvnet::Spray")
            .SetParent<LoadBalancer>()
            .SetGroupName("Kvnet")
            .AddConstructor<Spray>()
            .AddAttribute("RoundRobin",
                          "Take the equal-cost ports in turn, rather than one at random for every "
                          "packet.",
                          ns3::BooleanValue(false),
                          ns3::MakeBooleanAccessor(&Spray::m_roundRobin),
                          ns3::MakeBooleanChecker());
    return tid;
}

Port*
Spray::Choose(PortGroup& group, const Port& in, const Packet&, SimTime)
{
    if (!m_roundRobin)
    {
        return Random(group, in);
    }
    Port* port = group.ports[group.turn];
    group.turn = group.turn + 1 < group.ports.size() ? group.turn + 1 : 0;
    return port;
}

} // namespace kvnet
