#include "flowlet.h"

#include "ns3/nstime.h"

#include <algorithm>

namespace kvnet
{

NS_OBJECT_ENSURE_REGISTERED(Flowlet);

ns3::TypeId
Flowlet::GetTypeId()
{
    static ns3::TypeId tid =
        ns3::TypeId("kvnet::Flowlet")
            .SetParent<LoadBalancer>()
            .SetGroupName("Kvnet")
            .AddConstructor<Flowlet>()
            .AddAttribute("Gap",
                          "Time between two packets of a flow at a switch beyond which the second may take "
                          "another port.",
                          ns3::TimeValue(ns3::MicroSeconds(100)),
                          ns3::MakeTimeAccessor(&Flowlet::m_gapTime),
                          ns3::MakeTimeChecker(ns3::TimeStep(1)));
    return tid;
}

void
Flowlet::Build(size_t nPorts, size_t nSwitches, uint64_t seed)
{
    LoadBalancer::Build(nPorts, nSwitches, seed);
    m_gap = m_gapTime.GetTimeStep();
    m_tables.resize(nSwitches);
}

Port*
Flowlet::Choose(PortGroup& group, const Port& in, const Packet& packet, SimTime now)
{
    Table& table = m_tables[in.owner->index];
    Entry& entry = table.entries[packet.flow->key];
    if (!entry.port || now - entry.last > m_gap)
    {
        entry.port = Random(group, in);
    }
    entry.last = now;
    Port* port = entry.port;
    if (table.entries.size() > table.limit)
    {
        std::erase_if(table.entries,
                      [&](const auto& item) { return now - item.second.last > m_gap; });
        table.limit = std::max<size_t>(256, 2 * table.entries.size());
    }
    return port;
}

} // namespace kvnet
