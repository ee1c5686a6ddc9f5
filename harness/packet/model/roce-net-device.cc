#include "roce-net-device.h"

#include "data-plane.h"
#include "roce-channel.h"

#include "ns3/double.h"
#include "ns3/node.h"
#include "ns3/packet.h"
#include "ns3/simulator.h"
#include "ns3/uinteger.h"

namespace kvnet
{

NS_OBJECT_ENSURE_REGISTERED(RoceNetDevice);

ns3::TypeId
RoceNetDevice::GetTypeId()
{
    static ns3::TypeId tid =
        ns3::TypeId("kvnet::RoceNetDevice")
            .SetParent<ns3::NetDevice>()
            .SetGroupName("Kvnet")
            .AddConstructor<RoceNetDevice>()
            .AddAttribute("EcnMin",
                          "Queue length from which packets are marked [frame bytes].",
                          ns3::UintegerValue(0),
                          ns3::MakeUintegerAccessor(&RoceNetDevice::SetEcnMin,
                                                    &RoceNetDevice::GetEcnMin),
                          ns3::MakeUintegerChecker<uint64_t>(0, INT64_MAX))
            .AddAttribute("EcnMax",
                          "Queue length above which every packet is marked [frame bytes].",
                          ns3::UintegerValue(0),
                          ns3::MakeUintegerAccessor(&RoceNetDevice::SetEcnMax,
                                                    &RoceNetDevice::GetEcnMax),
                          ns3::MakeUintegerChecker<uint64_t>(0, INT64_MAX))
            .AddAttribute("EcnMaxProbability",
                          "Marking probability at EcnMax.",
                          ns3::DoubleValue(0),
                          ns3::MakeDoubleAccessor(&RoceNetDevice::SetEcnMaxProbability,
                                                  &RoceNetDevice::GetEcnMaxProbability),
                          ns3::MakeDoubleChecker<double>(0, 1))
            .AddAttribute("TxQueueBytes",
                          "What may wait here of the ns-3 stack's packets, at a host [frame bytes]. The default is the "
                          "largest segment that a host hands to its NIC.",
                          ns3::UintegerValue(65536),
                          ns3::MakeUintegerAccessor(&RoceNetDevice::m_txQueueBytes),
                          ns3::MakeUintegerChecker<uint32_t>(2 * 9018))
            .AddTraceSource("Drop",
                            "A stock packet was lost at or behind this port (null: a RoCE packet).",
                            ns3::MakeTraceSourceAccessor(&RoceNetDevice::m_dropTrace),
                            "ns3::Packet::TracedCallback")
            .AddTraceSource("Pfc",
                            "This port was paused (true) or resumed (false) by its peer.",
                            ns3::MakeTraceSourceAccessor(&RoceNetDevice::m_pfcTrace),
                            "ns3::TracedValueCallback::Bool");
    return tid;
}

void
RoceNetDevice::Attach(Port* port, Sender sender)
{
    m_port = port;
    m_sender = std::move(sender);
}

void
RoceNetDevice::SetChannel(ns3::Ptr<ns3::Channel> channel)
{
    m_channel = channel;
}

void
RoceNetDevice::Receive(ns3::Ptr<ns3::Packet> packet, uint16_t protocol, ns3::Mac48Address from)
{
    if (!m_promiscuous.IsNull())
    {
        m_promiscuous(this, packet, protocol, from, m_address, ns3::NetDevice::PACKET_HOST);
    }
    if (!m_receive.IsNull())
    {
        m_receive(this, packet, protocol, from);
    }
}

void
RoceNetDevice::NotifyDrop(ns3::Ptr<const ns3::Packet> packet)
{
    m_dropTrace(packet);
}

void
RoceNetDevice::NotifyPfc(bool paused)
{
    m_pfcTrace(paused);
    if (!paused && m_queues && m_queues->GetTxQueue(0)->IsStopped())
    {
        SchedulePoll(ns3::TimeStep(0));
    }
}

void
RoceNetDevice::EnableFlowControl()
{
    m_queues = ns3::CreateObject<ns3::NetDeviceQueueInterface>();
    AggregateObject(m_queues);
}

bool
RoceNetDevice::HasRoom(uint32_t bytes) const
{
    return m_port->queues[QUEUE_BACKGROUND].bytes + bytes + ETHERNET_BYTES <= m_txQueueBytes;
}

void
RoceNetDevice::Stop()
{
    m_queues->GetTxQueue(0)->Stop();
    // The port is lazy: nothing tells when a packet leaves it, so look when the next one does.
    const SimTime wait = m_port->freeAt - ns3::Simulator::Now().GetTimeStep();
    if (wait > 0)
    {
        SchedulePoll(ns3::TimeStep(wait));
    } // or else it is paused, and NotifyPfc tells when it is not
}

void
RoceNetDevice::SchedulePoll(ns3::Time delay)
{
    if (!m_polling)
    {
        m_polling = true;
        ns3::Simulator::ScheduleWithContext(m_node->GetId(), delay, &RoceNetDevice::Poll, this);
    }
}

void
RoceNetDevice::Poll()
{
    m_polling = false;
    if (!m_port)
    {
        return;
    }
    m_port->plane->Advance(*m_port, ns3::Simulator::Now().GetTimeStep());
    if (HasRoom(m_mtu))
    {
        m_queues->GetTxQueue(0)->Wake();
    }
    else
    {
        Stop();
    }
}

bool
RoceNetDevice::Send(ns3::Ptr<ns3::Packet> packet, const ns3::Address& dest, uint16_t protocolNumber)
{
    if (!m_sender || packet->GetSize() > m_mtu || !HasRoom(packet->GetSize()))
    {
        m_dropTrace(packet);
        return false;
    }
    const bool sent = m_sender(*this, packet, ns3::Mac48Address::ConvertFrom(dest), protocolNumber);
    if (m_queues && !HasRoom(m_mtu))
    {
        Stop();
    }
    return sent;
}

bool
RoceNetDevice::SendFrom(ns3::Ptr<ns3::Packet> packet,
                        const ns3::Address&,
                        const ns3::Address& dest,
                        uint16_t protocolNumber)
{
    return Send(packet, dest, protocolNumber);
}

uint64_t
RoceNetDevice::GetEcnMin() const
{
    return m_port ? static_cast<uint64_t>(m_port->ecnMin) : 0;
}

void
RoceNetDevice::SetEcnMin(uint64_t bytes)
{
    if (m_port)
    {
        m_port->ecnMin = static_cast<int64_t>(bytes);
    }
}

uint64_t
RoceNetDevice::GetEcnMax() const
{
    return m_port ? static_cast<uint64_t>(m_port->ecnMax) : 0;
}

void
RoceNetDevice::SetEcnMax(uint64_t bytes)
{
    if (m_port)
    {
        m_port->ecnMax = static_cast<int64_t>(bytes);
    }
}

double
RoceNetDevice::GetEcnMaxProbability() const
{
    return m_port ? m_port->ecnMaxProbability : 0;
}

void
RoceNetDevice::SetEcnMaxProbability(double probability)
{
    if (m_port)
    {
        m_port->ecnMaxProbability = probability;
    }
}

void
RoceNetDevice::SetIfIndex(const uint32_t index)
{
    m_ifIndex = index;
}

uint32_t
RoceNetDevice::GetIfIndex() const
{
    return m_ifIndex;
}

ns3::Ptr<ns3::Channel>
RoceNetDevice::GetChannel() const
{
    return m_channel;
}

void
RoceNetDevice::SetAddress(ns3::Address address)
{
    m_address = ns3::Mac48Address::ConvertFrom(address);
}

ns3::Address
RoceNetDevice::GetAddress() const
{
    return m_address;
}

bool
RoceNetDevice::SetMtu(const uint16_t mtu)
{
    if (mtu > 9000)
    {
        return false;
    }
    m_mtu = mtu;
    return true;
}

uint16_t
RoceNetDevice::GetMtu() const
{
    return m_mtu;
}

bool
RoceNetDevice::IsLinkUp() const
{
    return true;
}

void
RoceNetDevice::AddLinkChangeCallback(ns3::Callback<void>)
{
    // Links never change.
}

bool
RoceNetDevice::IsBroadcast() const
{
    return true;
}

ns3::Address
RoceNetDevice::GetBroadcast() const
{
    return ns3::Mac48Address::GetBroadcast();
}

bool
RoceNetDevice::IsMulticast() const
{
    return false;
}

ns3::Address
RoceNetDevice::GetMulticast(ns3::Ipv4Address multicastGroup) const
{
    return ns3::Mac48Address::GetMulticast(multicastGroup);
}

ns3::Address
RoceNetDevice::GetMulticast(ns3::Ipv6Address addr) const
{
    return ns3::Mac48Address::GetMulticast(addr);
}

bool
RoceNetDevice::IsBridge() const
{
    return false;
}

bool
RoceNetDevice::IsPointToPoint() const
{
    return false;
}

ns3::Ptr<ns3::Node>
RoceNetDevice::GetNode() const
{
    return m_node;
}

void
RoceNetDevice::SetNode(ns3::Ptr<ns3::Node> node)
{
    m_node = node;
}

bool
RoceNetDevice::NeedsArp() const
{
    return true;
}

void
RoceNetDevice::SetReceiveCallback(ReceiveCallback cb)
{
    m_receive = cb;
}

void
RoceNetDevice::SetPromiscReceiveCallback(PromiscReceiveCallback cb)
{
    m_promiscuous = cb;
}

bool
RoceNetDevice::SupportsSendFrom() const
{
    return false;
}

void
RoceNetDevice::DoDispose()
{
    m_port = nullptr;
    m_sender = nullptr;
    m_channel = nullptr;
    m_node = nullptr;
    m_queues = nullptr;
    m_receive = ReceiveCallback();
    m_promiscuous = PromiscReceiveCallback();
    ns3::NetDevice::DoDispose();
}

} // namespace kvnet
