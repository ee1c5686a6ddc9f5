#ifndef KVNET_ROCE_CHANNEL_H
#define KVNET_ROCE_CHANNEL_H

#include "ns3/channel.h"
#include "ns3/data-rate.h"
#include "ns3/net-device.h"
#include "ns3/nstime.h"

#include <array>

namespace kvnet
{

/** A full-duplex cable between two RoceNetDevices, as ns-3 sees it. */
class RoceChannel : public ns3::Channel
{
  public:
    static ns3::TypeId GetTypeId();

    RoceChannel() = default;
    RoceChannel(ns3::DataRate rate, ns3::Time delay, std::array<ns3::Ptr<ns3::NetDevice>, 2> ends);

    std::size_t GetNDevices() const override;
    ns3::Ptr<ns3::NetDevice> GetDevice(std::size_t i) const override;

  protected:
    void DoDispose() override;

  private:
    ns3::DataRate GetRate() const;
    ns3::Time GetDelay() const;

    ns3::DataRate m_rate;
    ns3::Time m_delay;
    std::array<ns3::Ptr<ns3::NetDevice>, 2> m_ends;
};

} // namespace kvnet

#endif // KVNET_ROCE_CHANNEL_H
