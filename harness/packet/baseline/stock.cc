#include "stock.h"

#include "ns3/data-rate.h"
#include "ns3/global-value.h"
#include "ns3/inet-socket-address.h"
#include "ns3/internet-stack-helper.h"
#include "ns3/ipv4-address-helper.h"
#include "ns3/ipv4-static-routing-helper.h"
#include "ns3/node-container.h"
#include "ns3/point-to-point-helper.h"
#include "ns3/point-to-point-net-device.h"
#include "ns3/queue.h"
#include "ns3/simulator.h"
#include "ns3/string.h"
#include "ns3/udp-client-server-helper.h"
#include "ns3/udp-server.h"
#include "ns3/uinteger.h"

#include <ctime>
#include <map>

namespace kvnet
{

StockResult
RunStock(uint32_t nodes,
         const std::vector<StockLink>& links,
         const std::vector<StockFlow>& flows,
         uint32_t payloadBytes,
         const std::string& engine)
{
    using namespace ns3;
    if (Time::GetResolution() != Time::PS)
    {
        Time::SetResolution(Time::PS);
    }
    Simulator::Destroy();
    GlobalValue::Bind("SimulatorImplementationType", StringValue(engine));
    NodeContainer all;
    all.Create(nodes);
    InternetStackHelper stack;
    stack.SetIpv6StackInstall(false);
    stack.Install(all);
    Ipv4AddressHelper addresses("10.0.0.0", "255.255.255.252");
    std::map<std::pair<uint32_t, uint32_t>, uint32_t> interfaceTo; // of a node, towards another
    std::vector<Ipv4Address> addressOf(nodes);
    std::vector<Ptr<PointToPointNetDevice>> devices;
    for (const StockLink& link : links)
    {
        PointToPointHelper pointToPoint;
        pointToPoint.SetDeviceAttribute("DataRate", DataRateValue(DataRate(link.rateBps)));
        pointToPoint.SetDeviceAttribute("Mtu", UintegerValue(9000));
        pointToPoint.SetChannelAttribute("Delay", TimeValue(TimeStep(link.delayPs)));
        const NetDeviceContainer pair = pointToPoint.Install(all.Get(link.nodeA), all.Get(link.nodeB));
        const Ipv4InterfaceContainer assigned = addresses.Assign(pair);
        addresses.NewNetwork();
        const uint32_t ends[2] = {link.nodeA, link.nodeB};
        for (uint32_t i = 0; i < 2; ++i)
        {
            interfaceTo[{ends[i], ends[1 - i]}] = assigned.Get(i).second;
            addressOf[ends[i]] = assigned.GetAddress(i);
            devices.push_back(DynamicCast<PointToPointNetDevice>(pair.Get(i)));
        }
    }
    Ipv4StaticRoutingHelper routing;
    std::map<uint32_t, Ptr<UdpServer>> servers;
    constexpr uint16_t PORT = 4791;
    for (const StockFlow& flow : flows)
    {
        const uint32_t destination = flow.path.back();
        for (size_t i = 0; i + 1 < flow.path.size(); ++i)
        {
            Ptr<Ipv4> ip = all.Get(flow.path[i])->GetObject<Ipv4>();
            routing.GetStaticRouting(ip)->AddHostRouteTo(addressOf[destination],
                                                         interfaceTo[{flow.path[i], flow.path[i + 1]}]);
        }
        const Ptr<PointToPointNetDevice> device =
            DynamicCast<PointToPointNetDevice>(all.Get(flow.path.front())->GetDevice(1));
        DataRateValue rate;
        device->GetAttribute("DataRate", rate);
        UdpClientHelper client(InetSocketAddress(addressOf[destination], PORT));
        client.SetAttribute("MaxPackets", UintegerValue(flow.packets));
        client.SetAttribute("PacketSize", UintegerValue(payloadBytes));
        // 30 bytes of IP, UDP and point-to-point headers.
        client.SetAttribute("Interval", TimeValue(rate.Get().CalculateBytesTxTime(payloadBytes + 30)));
        client.Install(all.Get(flow.path.front())).Start(Time(0));
        if (!servers.contains(destination))
        {
            UdpServerHelper server(PORT);
            const ApplicationContainer installed = server.Install(all.Get(destination));
            installed.Start(Time(0));
            servers[destination] = DynamicCast<UdpServer>(installed.Get(0));
        }
    }
    StockResult result;
    Simulator::Stop(Seconds(10));
    const std::clock_t before = std::clock();
    Simulator::Run();
    result.cpuSeconds = static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC;
    result.events = Simulator::GetEventCount();
    for (const auto& [destination, server] : servers)
    {
        result.received += server->GetReceived();
    }
    for (const Ptr<PointToPointNetDevice>& device : devices)
    {
        const Ptr<Queue<Packet>> queue = device->GetQueue();
        result.hops += queue->GetTotalReceivedPackets() - queue->GetTotalDroppedPackets();
    }
    Simulator::Destroy();
    return result;
}

} // namespace kvnet
