#include "roce-channel.h"

namespace kvnet
{

NS_OBJECT_ENSURE_REGISTERED(RoceChannel);

ns3::TypeId
RoceChannel::GetTypeId()
{
    static ns3::TypeId tid =
        ns3::TypeId("kvnet::RoceChannel")
            .SetParent<ns3::Channel>()
            .SetGroupName("Kvnet")
            .AddConstructor<RoceChannel>()
            .AddAttribute("DataRate",
                          "Rate in either direction.",
                          ns3::TypeId::ATTR_GET,
                          ns3::DataRateValue(),
                          ns3::MakeDataRateAccessor(&RoceChannel::GetRate),
                          ns3::MakeDataRateChecker())
            .AddAttribute("Delay",
                          "Propagation delay.",
                          ns3::TypeId::ATTR_GET,
                          ns3::TimeValue(),
                          ns3::MakeTimeAccessor(&RoceChannel::GetDelay),
                          ns3::MakeTimeChecker());
    return tid;
}

RoceChannel::RoceChannel(ns3::DataRate rate,
                         ns3::Time delay,
                         std::array<ns3::Ptr<ns3::NetDevice>, 2> ends)
    : m_rate(rate),
      m_delay(delay),
      m_ends(ends)
{
}

std::size_t
RoceChannel::GetNDevices() const
{
    return m_ends.size();
}

ns3::Ptr<ns3::NetDevice>
RoceChannel::GetDevice(std::size_t i) const
{
    return m_ends.at(i);
}

ns3::DataRate
RoceChannel::GetRate() const
{
    return m_rate;
}

ns3::Time
RoceChannel::GetDelay() const
{
    return m_delay;
}

void
RoceChannel::DoDispose()
{
    m_ends = {};
    ns3::Channel::DoDispose();
}

} // namespace kvnet
