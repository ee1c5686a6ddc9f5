#ifndef KVNET_ROCE_NET_DEVICE_H
#define KVNET_ROCE_NET_DEVICE_H

#include "port.h"

#include "ns3/mac48-address.h"
#include "ns3/net-device-queue-interface.h"
#include "ns3/net-device.h"
#include "ns3/traced-callback.h"

#include <functional>

namespace kvnet
{

class RoceChannel;

/**
 * A port of the data plane as an ns-3 device: attributes, trace sources, and a way for stock ns-3 applications to send
 * ns3::Packets across the fabric, which is one layer-2 network to them.
 *
 * Stock packets travel in the background class. What a host sends waits in the port's queue of TxQueueBytes; a queue disc
 * above is stopped while that is full, and without one Send refuses. RoCE traffic does not pass through this object.
 */
class RoceNetDevice : public ns3::NetDevice
{
  public:
    static ns3::TypeId GetTypeId();

    /** Frames of Ethernet around a stock packet: header 14 and checksum 4 [bytes]. */
    static constexpr uint16_t ETHERNET_BYTES = 18;

    /** Sends a stock packet from a port towards another device's address; false if there is no such device. */
    using Sender = std::function<bool(RoceNetDevice&, ns3::Ptr<ns3::Packet>, ns3::Mac48Address, uint16_t)>;

    void Attach(Port* port, Sender sender);
    /** Let a queue disc above be stopped while there is no room, and woken when there is. */
    void EnableFlowControl();
    void SetChannel(ns3::Ptr<ns3::Channel> channel);
    /** A stock packet arrived here. */
    void Receive(ns3::Ptr<ns3::Packet> packet, uint16_t protocol, ns3::Mac48Address from);
    void NotifyDrop(ns3::Ptr<const ns3::Packet> packet);
    void NotifyPfc(bool paused);

    Port& GetPort() const
    {
        return *m_port;
    }

    // ns3::NetDevice
    void SetIfIndex(const uint32_t index) override;
    uint32_t GetIfIndex() const override;
    ns3::Ptr<ns3::Channel> GetChannel() const override;
    void SetAddress(ns3::Address address) override;
    ns3::Address GetAddress() const override;
    bool SetMtu(const uint16_t mtu) override;
    uint16_t GetMtu() const override;
    bool IsLinkUp() const override;
    void AddLinkChangeCallback(ns3::Callback<void> callback) override;
    bool IsBroadcast() const override;
    ns3::Address GetBroadcast() const override;
    bool IsMulticast() const override;
    ns3::Address GetMulticast(ns3::Ipv4Address multicastGroup) const override;
    ns3::Address GetMulticast(ns3::Ipv6Address addr) const override;
    bool IsBridge() const override;
    bool IsPointToPoint() const override;
    bool Send(ns3::Ptr<ns3::Packet> packet, const ns3::Address& dest, uint16_t protocolNumber) override;
    bool SendFrom(ns3::Ptr<ns3::Packet> packet,
                  const ns3::Address& source,
                  const ns3::Address& dest,
                  uint16_t protocolNumber) override;
    ns3::Ptr<ns3::Node> GetNode() const override;
    void SetNode(ns3::Ptr<ns3::Node> node) override;
    bool NeedsArp() const override;
    void SetReceiveCallback(ReceiveCallback cb) override;
    void SetPromiscReceiveCallback(PromiscReceiveCallback cb) override;
    bool SupportsSendFrom() const override;

  protected:
    void DoDispose() override;

  private:
    uint64_t GetEcnMin() const;
    void SetEcnMin(uint64_t bytes);
    uint64_t GetEcnMax() const;
    void SetEcnMax(uint64_t bytes);
    bool HasRoom(uint32_t bytes) const;
    void Stop();
    void Poll();
    void SchedulePoll(ns3::Time delay);
    double GetEcnMaxProbability() const;
    void SetEcnMaxProbability(double probability);

    Port* m_port{nullptr};
    Sender m_sender;
    ns3::Ptr<ns3::Channel> m_channel;
    ns3::Ptr<ns3::Node> m_node;
    ns3::Mac48Address m_address;
    uint32_t m_ifIndex{0};
    uint16_t m_mtu{1500};
    uint32_t m_txQueueBytes;
    ns3::Ptr<ns3::NetDeviceQueueInterface> m_queues; //!< null unless flow control is enabled
    bool m_polling{false};                           //!< an event will look whether there is room
    ReceiveCallback m_receive;
    PromiscReceiveCallback m_promiscuous;
    ns3::TracedCallback<ns3::Ptr<const ns3::Packet>> m_dropTrace;
    ns3::TracedCallback<bool> m_pfcTrace;
};

} // namespace kvnet

#endif // KVNET_ROCE_NET_DEVICE_H
