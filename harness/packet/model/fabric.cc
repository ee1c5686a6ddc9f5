#include "fabric.h"

#include "data-plane.h"
#include "packet-capture.h"
#include "port-trace.h"
#include "roce-channel.h"
#include "roce-net-device.h"
#include "router.h"
#include "stock-packet.h"

#include "ns3/data-rate.h"
#include "ns3/global-value.h"
#include "ns3/names.h"
#include "ns3/node.h"
#include "ns3/object-factory.h"
#include "ns3/packet.h"
#include "ns3/simulator.h"
#include "ns3/string.h"

#include <algorithm>
#include <map>
#include <set>
#include <sstream>

namespace kvnet
{

namespace
{

/** Set up a factory of `base`'s subclass `typeId`, with a line "name=value" per attribute; an empty string, or what is wrong. */
std::string
Configure(ns3::ObjectFactory& factory,
          const ns3::TypeId& base,
          const std::string& typeId,
          const std::string& attributes)
{
    ns3::TypeId tid;
    if (!ns3::TypeId::LookupByNameFailSafe(typeId, &tid))
    {
        return "no ns-3 type is named '" + typeId + "'";
    }
    if (!tid.IsChildOf(base) || !tid.HasConstructor())
    {
        return "'" + typeId + "' is not a " + base.GetName() + " that can be made";
    }
    factory.SetTypeId(tid);
    ns3::Ptr<ns3::Object> trial = factory.Create();
    std::istringstream lines(attributes);
    for (std::string line; std::getline(lines, line);)
    {
        const size_t equals = line.find('=');
        const std::string name = line.substr(0, equals);
        const std::string value = line.substr(equals + 1);
        ns3::TypeId::AttributeInformation info;
        if (!tid.LookupAttributeByName(name, &info))
        {
            std::string allowed;
            for (ns3::TypeId t = tid; t != ns3::Object::GetTypeId(); t = t.GetParent())
            {
                for (size_t j = 0; j < t.GetAttributeN(); ++j)
                {
                    allowed += (allowed.empty() ? "" : ", ") + t.GetAttribute(j).name;
                }
            }
            return "'" + typeId + "' has no attribute '" + name + "'; it has: " + allowed;
        }
        if (!trial->SetAttributeFailSafe(name, ns3::StringValue(value)))
        {
            return "attribute '" + name + "' of '" + typeId + "' cannot be '" + value +
                   "': " + info.help + " " + info.checker->GetUnderlyingTypeInformation();
        }
        factory.Set(name, ns3::StringValue(value));
    }
    return "";
}

} // namespace

class Fabric::Impl
{
  public:
    Impl(const NetworkParameters& parameters, const std::string& engine);
    ~Impl();

    void AddNode(const std::string& name, bool isHost, uint64_t hashSeed);
    void AddLink(const LinkParameters& link);
    std::string SetCongestionControl(const std::string& typeId, const std::string& attributes);
    std::string SetLoadBalancer(const std::string& typeId, const std::string& attributes);
    void Build(uint64_t seed, int64_t watchdogPs);
    void TracePorts(const std::vector<uint32_t>& ports, SimTime resolution, size_t capacity);
    Flow* StartFlow(uint64_t id,
                    uint32_t trafficClass,
                    int64_t bytes,
                    const std::vector<uint32_t>& forward,
                    const std::vector<uint32_t>& reverse,
                    int64_t at,
                    bool notify);
    /** Let the load balancer, if there is one, find the way of a flow's data. */
    void Balance(Flow& flow, uint32_t udpSourcePort);
    void Sample(bool resetPeaks);
    const std::vector<TraceRow>& Traces();
    void Record(const Flow& flow);
    std::string Capture(uint32_t port, const std::string& path, int64_t snapBytes, int64_t limitBytes);

    const NetworkParameters parameters;
    DataPlane plane;
    Router router;
    PythonCall call{nullptr};
    bool stalled{false};
    std::set<const Flow*> active; //!< started and not complete
    std::vector<FlowRow> rows;
    std::vector<int64_t> sentBytes;
    std::vector<int64_t> marks;
    std::vector<int64_t> pausedTime;
    std::vector<int64_t> queueMax;
    std::map<uint32_t, std::unique_ptr<PacketCapture>> captures; //!< by port

    static SimTime Now()
    {
        return ns3::Simulator::Now().GetTimeStep();
    }

  private:
    static void EndSimulation();

    static inline Impl* s_current{nullptr}; //!< whose simulation ns-3 holds

    SimTime IdealFct(const Flow& flow) const;
    void Begin(Flow* flow);
    void Done(Flow* flow);
    void Watch();
    bool SendStock(RoceNetDevice& device,
                   ns3::Ptr<ns3::Packet> packet,
                   ns3::Mac48Address destination,
                   uint16_t protocol);
    void SendStockTo(RoceNetDevice& device,
                     ns3::Ptr<ns3::Packet> packet,
                     ns3::Mac48Address address,
                     uint32_t destination,
                     uint16_t protocol);
    void OnCapture(const Port& port, const Packet& packet, SimTime at);
    ns3::Ptr<CongestionControl> NewCongestionControl();

    ns3::ObjectFactory m_ccFactory;
    ns3::Ptr<LoadBalancer> m_balancer;
    std::map<uint32_t, std::vector<PortGroup>> m_groups; //!< by the switch towards which they lead
    uint64_t m_seed{0};
    std::unique_ptr<PortTrace> m_trace;
    std::vector<TraceRow> m_traceRows;
    std::vector<ns3::Ptr<CongestionControl>> m_freeCc;
    std::vector<Switch> m_switches;
    std::vector<int64_t> m_switchOf; //!< per node, its index in m_switches or -1
    std::vector<LinkParameters> m_links;
    std::vector<ns3::Ptr<ns3::Node>> m_nodes;
    std::vector<ns3::Ptr<RoceNetDevice>> m_devices; //!< per port
    std::map<ns3::Mac48Address, uint32_t> m_portOfAddress;
    //! By source and destination port and what tells flows apart.
    std::map<std::array<uint32_t, 3>, std::vector<Port*>> m_stockRoutes;
    std::vector<MacBytes> m_addresses; //!< per port
    std::map<ns3::Packet*, StockFrame> m_stockFrames; //!< of stock packets in the network
    SimTime m_watchdog{0};
    bool m_watching{false};
    uint64_t m_progress{0};
};

Fabric::Impl::Impl(const NetworkParameters& networkParameters, const std::string& engine)
    : parameters(networkParameters),
      plane(networkParameters)
{
    if (ns3::Time::GetResolution() != ns3::Time::PS)
    {
        ns3::Time::SetResolution(ns3::Time::PS);
    }
    // ns-3 is one simulation a process: a new fabric ends the one before it, whose records stay readable.
    EndSimulation();
    s_current = this;
    ns3::GlobalValue::Bind("SimulatorImplementationType", ns3::StringValue(engine));
    plane.UseEngine(dynamic_cast<WheelSimulatorImpl*>(
        ns3::PeekPointer(ns3::Simulator::GetImplementation())));
}

Fabric::Impl::~Impl()
{
    if (s_current == this)
    {
        EndSimulation();
    }
}

void
Fabric::Impl::EndSimulation()
{
    ns3::Simulator::Destroy();
    ns3::Names::Clear();
    s_current = nullptr;
}

void
Fabric::Impl::AddNode(const std::string& name, bool isHost, uint64_t hashSeed)
{
    router.AddNode(isHost, hashSeed);
    ns3::Ptr<ns3::Node> node = ns3::CreateObject<ns3::Node>();
    ns3::Names::Add(name, node);
    m_nodes.push_back(node);
    m_switchOf.push_back(isHost ? -1 : static_cast<int64_t>(m_switches.size()));
    if (!isHost)
    {
        m_switches.emplace_back();
        m_switches.back().index = static_cast<uint32_t>(m_switches.size() - 1);
    }
}

void
Fabric::Impl::AddLink(const LinkParameters& link)
{
    m_links.push_back(link);
}

std::string
Fabric::Impl::SetCongestionControl(const std::string& typeId, const std::string& attributes)
{
    std::string problem =
        Configure(m_ccFactory, CongestionControl::GetTypeId(), typeId, attributes);
    if (problem.empty())
    {
        m_freeCc.push_back(m_ccFactory.Create<CongestionControl>());
    }
    return problem;
}

std::string
Fabric::Impl::SetLoadBalancer(const std::string& typeId, const std::string& attributes)
{
    ns3::ObjectFactory factory;
    std::string problem =
        Configure(factory, LoadBalancer::GetTypeId(), typeId, attributes);
    if (problem.empty())
    {
        m_balancer = factory.Create<LoadBalancer>();
    }
    return problem;
}

void
Fabric::Impl::Build(uint64_t seed, int64_t watchdogPs)
{
    m_watchdog = watchdogPs;
    for (const LinkParameters& link : m_links)
    {
        router.AddLink(link.nodeA, link.nodeB);
        Switch* ends[2];
        const uint32_t nodes[2] = {link.nodeA, link.nodeB};
        for (int i = 0; i < 2; ++i)
        {
            const int64_t index = m_switchOf[nodes[i]];
            ends[i] = index < 0 ? nullptr : &m_switches[static_cast<size_t>(index)];
        }
        plane.AddLink(link, ends[0], ends[1], seed);
        std::array<ns3::Ptr<ns3::NetDevice>, 2> devices;
        const auto first = static_cast<uint32_t>(plane.NPorts() - 2);
        for (uint32_t i = 0; i < 2; ++i)
        {
            ns3::Ptr<RoceNetDevice> device = ns3::CreateObject<RoceNetDevice>();
            device->Attach(&plane.GetPort(first + i),
                           [this](RoceNetDevice& from,
                                  ns3::Ptr<ns3::Packet> packet,
                                  ns3::Mac48Address to,
                                  uint16_t protocol) {
                               return SendStock(from, packet, to, protocol);
                           });
            const ns3::Mac48Address address = ns3::Mac48Address::Allocate();
            device->SetAddress(address);
            m_portOfAddress[address] = first + i;
            address.CopyTo(m_addresses.emplace_back().data());
            if (!ends[i])
            {
                device->EnableFlowControl();
            }
            m_nodes[nodes[i]]->AddDevice(device);
            m_devices.push_back(device);
            devices[i] = device;
        }
        ns3::Ptr<RoceChannel> channel =
            ns3::CreateObject<RoceChannel>(ns3::DataRate(static_cast<uint64_t>(link.rateBps)),
                                           ns3::TimeStep(link.delayPs),
                                           devices);
        m_devices[first]->SetChannel(channel);
        m_devices[first + 1]->SetChannel(channel);
    }
    plane.Build();
    m_seed = seed;
    if (m_balancer)
    {
        m_balancer->Build(plane.NPorts(), m_switches.size(), seed);
        plane.SetLoadBalancer(m_balancer);
    }
    sentBytes.assign(plane.NPorts() * N_CLASSES, 0);
    marks.assign(plane.NPorts(), 0);
    pausedTime.assign(plane.NPorts(), 0);
    queueMax.assign(plane.NPorts(), 0);

    plane.onFlowDone = [this](Flow* flow, SimTime) { Done(flow); };
    plane.onPfc = [this](Port& port, bool paused) { m_devices[port.id]->NotifyPfc(paused); };
    plane.onDrop = [this](Port& port, const Packet& packet) {
        ns3::Packet* stock = packet.kind == PacketKind::STOCK ? packet.stock : nullptr;
        m_devices[port.id]->NotifyDrop(stock);
    };
    plane.onStockDropped = [this](ns3::Packet* packet) {
        m_stockFrames.erase(packet);
        packet->Unref();
    };
    plane.onStock = [this](Port& port, Packet* packet) {
        const auto frame = m_stockFrames.extract(packet->stock);
        ns3::Ptr<ns3::Packet> stock(packet->stock, false);
        if (packet->ecn)
        {
            SetCongestionExperienced(stock);
        }
        const StockFrame& f = frame.mapped();
        const ns3::Mac48Address from =
            ns3::Mac48Address::ConvertFrom(m_devices[f.source]->GetAddress());
        ns3::Ptr<RoceNetDevice> device = m_devices[port.id];
        ns3::Simulator::ScheduleWithContext(device->GetNode()->GetId(),
                                            ns3::TimeStep(0),
                                            &RoceNetDevice::Receive,
                                            device,
                                            stock,
                                            f.protocol,
                                            from);
    };
}

// --- Flows -----------------------------------------------------------------------------------------------------------

ns3::Ptr<CongestionControl>
Fabric::Impl::NewCongestionControl()
{
    if (m_freeCc.empty())
    {
        return m_ccFactory.Create<CongestionControl>();
    }
    ns3::Ptr<CongestionControl> cc = m_freeCc.back();
    m_freeCc.pop_back();
    return cc;
}

Flow*
Fabric::Impl::StartFlow(uint64_t id,
                        uint32_t trafficClass,
                        int64_t bytes,
                        const std::vector<uint32_t>& forward,
                        const std::vector<uint32_t>& reverse,
                        int64_t at,
                        bool notify)
{
    Flow* flow = plane.NewFlow();
    flow->id = id;
    flow->trafficClass = static_cast<uint8_t>(trafficClass);
    flow->queue = trafficClass == CLASS_BACKGROUND && !parameters.backgroundInDataQueue
                      ? QUEUE_BACKGROUND
                      : QUEUE_KV;
    flow->sizeBytes = bytes;
    const int64_t payload = parameters.payloadBytes;
    flow->packets = static_cast<uint32_t>((bytes + payload - 1) / payload);
    flow->lastPayloadBytes = bytes - (int64_t{flow->packets} - 1) * payload;
    flow->fullBytes = static_cast<uint16_t>(payload + parameters.dataOverhead);
    flow->lastBytes = static_cast<uint16_t>(flow->lastPayloadBytes + parameters.dataOverhead);
    flow->srcPort = forward.front();
    flow->dstPort = forward.back() ^ 1;
    flow->notify = notify;
    flow->forward.clear();
    flow->reverse.clear();
    for (const uint32_t port : forward)
    {
        flow->forward.push_back(&plane.GetPort(port));
    }
    for (const uint32_t port : reverse)
    {
        flow->reverse.push_back(&plane.GetPort(port));
    }
    flow->hops.assign(flow->forward.begin() + 1, flow->forward.end());
    flow->hops.push_back(nullptr);
    flow->hops.insert(flow->hops.end(), flow->reverse.begin() + 1, flow->reverse.end());
    flow->hops.push_back(nullptr);
    flow->route = flow->hops.data();
    flow->idealFct = IdealFct(*flow);
    ns3::Simulator::Schedule(ns3::TimeStep(at - Now()), &Impl::Begin, this, flow);
    return flow;
}

void
Fabric::Impl::Balance(Flow& flow, uint32_t udpSourcePort)
{
    if (!m_balancer || flow.forward.size() == 1)
    {
        return;
    }
    const uint32_t last = router.NodeOf(flow.dstPort ^ 1);
    const auto [found, isNew] = m_groups.try_emplace(last);
    std::vector<PortGroup>& groups = found->second;
    if (isNew)
    {
        groups.resize(m_switches.size());
        PortRandom random{m_seed ^ last};
        for (uint32_t node = 0; node < m_nodes.size(); ++node)
        {
            if (m_switchOf[node] < 0)
            {
                continue;
            }
            PortGroup& group = groups[static_cast<size_t>(m_switchOf[node])];
            for (const uint32_t port : router.NextPorts(node, last))
            {
                group.ports.push_back(&plane.GetPort(port));
            }
            const auto n = static_cast<double>(group.ports.size());
            group.turn = static_cast<uint32_t>(random.Uniform() * n);
        }
    }
    flow.route = nullptr;
    flow.towards = &groups;
    flow.key = Router::Key(flow.srcPort, flow.dstPort, udpSourcePort);
}

SimTime
Fabric::Impl::IdealFct(const Flow& flow) const
{
    // A train of equal packets leaves a link either at the pace at which it came or at the link's own; the last, shorter
    // packet follows it. See routing.ideal_fct_ps.
    const int64_t full = flow.packets - (flow.lastBytes != flow.fullBytes);
    SimTime first = 0;
    SimTime lastFull = 0;
    SimTime last = 0;
    for (const Port* port : flow.forward)
    {
        SimTime end = 0;
        if (full > 0)
        {
            const SimTime serialisation = port->serialisation[flow.fullBytes];
            end = std::max(first + full * serialisation, lastFull + serialisation);
            first += serialisation + port->delay;
            lastFull = end + port->delay;
        }
        last = std::max(end, last) + port->serialisation[flow.lastBytes] + port->delay;
    }
    SimTime fct = flow.lastBytes == flow.fullBytes ? lastFull : last;
    for (const Port* port : flow.reverse)
    {
        fct += port->serialisation[parameters.ackBytes] + port->delay;
    }
    return fct;
}

void
Fabric::Impl::Begin(Flow* flow)
{
    flow->cc = NewCongestionControl();
    flow->row = rows.size();
    rows.emplace_back();
    active.insert(flow);
    if (m_trace)
    {
        m_trace->Wake(Now());
    }
    if (!m_watching)
    {
        m_watching = true;
        m_progress = plane.GetTotals().payloadBytesAcked;
        ns3::Simulator::Schedule(ns3::TimeStep(m_watchdog), &Impl::Watch, this);
    }
    plane.StartFlow(flow, Now());
}

void
Fabric::Impl::Record(const Flow& flow)
{
    FlowRow& row = rows[flow.row];
    row.id = static_cast<int64_t>(flow.id);
    row.trafficClass = flow.trafficClass;
    row.srcPort = flow.srcPort;
    row.dstPort = flow.dstPort;
    row.sizeBytes = flow.sizeBytes;
    row.ackedBytes = std::min(flow.sizeBytes, int64_t{flow.acked} * parameters.payloadBytes);
    row.start = flow.start;
    row.end = flow.end;
    row.idealFct = flow.idealFct;
    row.marks = static_cast<int64_t>(flow.marks);
    row.cnps = static_cast<int64_t>(flow.cnps);
    row.retransmittedBytes = static_cast<int64_t>(flow.retransmittedBytes);
}

void
Fabric::Impl::Done(Flow* flow)
{
    Record(*flow);
    active.erase(flow);
    m_freeCc.push_back(flow->cc);
    flow->cc = nullptr;
    if (flow->notify)
    {
        call(ON_FLOW_DONE, flow->id);
    }
}

void
Fabric::Impl::Watch()
{
    if (active.empty())
    {
        m_watching = false;
        return;
    }
    const uint64_t progress = plane.GetTotals().payloadBytesAcked;
    const SimTime newest = (*std::max_element(active.begin(), active.end(), [](auto a, auto b) {
                               return a->start < b->start;
                           }))->start;
    if (progress == m_progress && Now() - newest >= m_watchdog)
    {
        stalled = true;
        ns3::Simulator::Stop();
        return;
    }
    m_progress = progress;
    ns3::Simulator::Schedule(ns3::TimeStep(m_watchdog), &Impl::Watch, this);
}

void
Fabric::Impl::Sample(bool resetPeaks)
{
    const SimTime now = Now();
    plane.AdvanceAll(now);
    if (m_trace)
    {
        m_trace->Collect();
    }
    for (uint32_t i = 0; i < plane.NPorts(); ++i)
    {
        Port& port = plane.GetPort(i);
        const int64_t most = std::max(port.queueMax, port.queueMaxSampled);
        std::copy(port.sentBytes.begin(), port.sentBytes.end(), sentBytes.begin() + i * N_CLASSES);
        marks[i] = static_cast<int64_t>(port.marks);
        pausedTime[i] = port.PausedUntil(now);
        queueMax[i] = most;
        port.queueMaxEver = std::max(port.queueMaxEver, most);
        if (resetPeaks)
        {
            port.queueMax = port.queueMaxSampled = 0;
        }
    }
}

void
Fabric::Impl::TracePorts(const std::vector<uint32_t>& ports, SimTime resolution, size_t capacity)
{
    std::vector<Port*> chosen;
    for (const uint32_t port : ports)
    {
        chosen.push_back(&plane.GetPort(port));
    }
    m_trace = std::make_unique<PortTrace>(plane, std::move(chosen), resolution, capacity, [this] {
        return !active.empty();
    });
}

const std::vector<TraceRow>&
Fabric::Impl::Traces()
{
    m_traceRows.clear();
    if (!m_trace)
    {
        return m_traceRows;
    }
    m_trace->Close(Now());
    for (size_t p = 0; p < m_trace->Ports().size(); ++p)
    {
        for (size_t i = 0; i < m_trace->Intervals().size(); ++i)
        {
            const auto [start, end] = m_trace->Intervals()[i];
            const PortTrace::Sample& sample = m_trace->Get(p, i);
            m_traceRows.push_back({m_trace->Ports()[p]->id,
                                   start,
                                   end,
                                   sample.queueMax,
                                   sample.sentBytes[CLASS_CONTROL],
                                   sample.sentBytes[CLASS_KV],
                                   sample.sentBytes[CLASS_BACKGROUND],
                                   sample.pausedTime});
        }
    }
    return m_traceRows;
}

// --- Stock ns-3 packets ----------------------------------------------------------------------------------------------

bool
Fabric::Impl::SendStock(RoceNetDevice& device,
                        ns3::Ptr<ns3::Packet> packet,
                        ns3::Mac48Address destination,
                        uint16_t protocol)
{
    const Port& port = device.GetPort();
    if (port.owner)
    {
        return false; // switches forward; they are not stations
    }
    if (!destination.IsGroup())
    {
        const auto found = m_portOfAddress.find(destination);
        if (found == m_portOfAddress.end() || plane.GetPort(found->second).owner)
        {
            return false;
        }
        SendStockTo(device, packet, destination, found->second, protocol);
        return true;
    }
    for (uint32_t i = 0; i < plane.NPorts(); ++i)
    {
        const Port& other = plane.GetPort(i);
        if (i != port.id && !other.owner && other.peer->owner)
        {
            SendStockTo(device, packet->Copy(), destination, i, protocol);
        }
    }
    return true;
}

void
Fabric::Impl::SendStockTo(RoceNetDevice& device,
                          ns3::Ptr<ns3::Packet> packet,
                          ns3::Mac48Address address,
                          uint32_t destination,
                          uint16_t protocol)
{
    Port& port = device.GetPort();
    const uint32_t entropy = PathEntropy(*packet, protocol);
    std::vector<Port*>& route = m_stockRoutes[{port.id, destination, entropy}];
    if (route.empty())
    {
        for (const uint32_t hop : router.Path(port.id, destination, entropy))
        {
            route.push_back(&plane.GetPort(hop));
        }
        route.push_back(nullptr);
    }
    if (!route.front())
    {
        return; // no path: the frame is lost, as on any network
    }
    ns3::Ptr<ns3::Packet> copy = packet->Copy();
    copy->Ref();
    StockFrame& frame = m_stockFrames[ns3::PeekPointer(copy)];
    frame.source = port.id;
    frame.protocol = protocol;
    address.CopyTo(frame.destination.data());
    plane.SendStock(port,
                    ns3::PeekPointer(copy),
                    static_cast<uint16_t>(copy->GetSize() + RoceNetDevice::ETHERNET_BYTES),
                    IsEcnCapable(*copy, protocol),
                    route.data() + 1,
                    Now());
}

// --- Captures --------------------------------------------------------------------------------------------------------

std::string
Fabric::Impl::Capture(uint32_t port, const std::string& path, int64_t snapBytes, int64_t limitBytes)
{
    auto capture =
        std::make_unique<PacketCapture>(path, parameters, m_addresses, snapBytes, limitBytes);
    if (!capture->Error().empty())
    {
        return capture->Error();
    }
    captures[port] = std::move(capture);
    plane.GetPort(port).captured = true;
    plane.onCapture = [this](const Port& from, const Packet& packet, SimTime at) {
        OnCapture(from, packet, at);
    };
    return "";
}

void
Fabric::Impl::OnCapture(const Port& port, const Packet& packet, SimTime at)
{
    PacketCapture& capture = *captures.at(port.id);
    if (packet.kind == PacketKind::STOCK)
    {
        const uint32_t size = packet.stock->GetSize();
        std::vector<uint8_t> body(capture.StockBytesKept(size));
        packet.stock->CopyData(body.data(), static_cast<uint32_t>(body.size()));
        if (packet.ecn)
        {
            SetCongestionExperienced(body);
        }
        capture.WriteStock(m_stockFrames.at(packet.stock), body, size, at);
    }
    else
    {
        capture.Write(port, packet, at);
    }
    if (capture.Full())
    {
        plane.GetPort(port.id).captured = false;
        if (!capture.Error().empty())
        {
            ns3::Simulator::Stop();
        }
    }
}

// --- The boundary ----------------------------------------------------------------------------------------------------

Fabric::Fabric(const NetworkParameters& parameters, const std::string& engine)
    : m_impl(std::make_unique<Impl>(parameters, engine))
{
}

Fabric::~Fabric() = default;

void
Fabric::AddNode(const std::string& name, bool isHost, uint64_t hashSeed)
{
    m_impl->AddNode(name, isHost, hashSeed);
}

void
Fabric::AddLink(const LinkParameters& link)
{
    m_impl->AddLink(link);
}

std::string
Fabric::SetCongestionControl(const std::string& typeId, const std::string& attributes)
{
    return m_impl->SetCongestionControl(typeId, attributes);
}

std::string
Fabric::SetLoadBalancer(const std::string& typeId, const std::string& attributes)
{
    return m_impl->SetLoadBalancer(typeId, attributes);
}

void
Fabric::SetCallback(uintptr_t callback)
{
    m_impl->call = reinterpret_cast<PythonCall>(callback);
    m_impl->plane.onHeartbeat = [impl = m_impl.get()] { impl->call(ON_HEARTBEAT, 0); };
}

void
Fabric::Build(uint64_t seed, int64_t watchdogPs)
{
    m_impl->Build(seed, watchdogPs);
}

void
Fabric::TracePorts(const std::vector<uint32_t>& ports, int64_t resolutionPs, uint64_t capacity)
{
    m_impl->TracePorts(ports, resolutionPs, capacity);
}

int64_t
Fabric::Now() const
{
    return Impl::Now();
}

void
Fabric::Schedule(uint64_t token, int64_t at)
{
    Impl* impl = m_impl.get();
    ns3::Simulator::Schedule(ns3::TimeStep(at - Impl::Now()),
                             std::function<void()>([impl, token] { impl->call(ON_ACTION, token); }));
}

void
Fabric::StartFlow(uint64_t id,
                  uint32_t trafficClass,
                  uint32_t source,
                  uint32_t destination,
                  int64_t bytes,
                  uint32_t udpSourcePort,
                  int64_t at,
                  bool notify)
{
    Flow* flow = m_impl->StartFlow(id,
                                   trafficClass,
                                   bytes,
                                   m_impl->router.Path(source, destination, udpSourcePort),
                                   m_impl->router.Path(destination, source, udpSourcePort),
                                   at,
                                   notify);
    flow->udpSourcePort = static_cast<uint16_t>(udpSourcePort);
    m_impl->Balance(*flow, udpSourcePort);
}

void
Fabric::StartFlowOnPath(uint64_t id,
                        uint32_t trafficClass,
                        int64_t bytes,
                        const std::vector<uint32_t>& forward,
                        const std::vector<uint32_t>& reverse,
                        uint32_t udpSourcePort,
                        int64_t at,
                        bool notify)
{
    Flow* flow = m_impl->StartFlow(id, trafficClass, bytes, forward, reverse, at, notify);
    flow->udpSourcePort = static_cast<uint16_t>(udpSourcePort);
}

std::vector<uint32_t>
Fabric::Path(uint32_t source, uint32_t destination, uint32_t udpSourcePort)
{
    return m_impl->router.Path(source, destination, udpSourcePort);
}

std::string
Fabric::Capture(uint32_t port, const std::string& path, int64_t snapBytes, int64_t limitBytes)
{
    return m_impl->Capture(port, path, snapBytes, limitBytes);
}

std::string
Fabric::FlushCaptures()
{
    std::string problem;
    for (const auto& [port, capture] : m_impl->captures)
    {
        m_impl->plane.Advance(m_impl->plane.GetPort(port), Now());
        capture->Flush();
        problem = capture->Error().empty() ? problem : capture->Error();
    }
    return problem;
}

std::vector<uint32_t>
Fabric::FullCaptures() const
{
    std::vector<uint32_t> ports;
    for (const auto& [port, capture] : m_impl->captures)
    {
        if (capture->Full())
        {
            ports.push_back(port);
        }
    }
    return ports;
}

void
Fabric::Run()
{
    ns3::Simulator::Run();
}

void
Fabric::Stop()
{
    ns3::Simulator::Stop();
}

bool
Fabric::Stalled() const
{
    return m_impl->stalled;
}

const Totals&
Fabric::GetTotals() const
{
    return m_impl->plane.GetTotals();
}

uint64_t
Fabric::EventCount() const
{
    return ns3::Simulator::GetEventCount();
}

uint64_t
Fabric::PacketCapacity() const
{
    return m_impl->plane.PacketCapacity();
}

uint64_t
Fabric::ActiveFlows() const
{
    return m_impl->active.size();
}

void
Fabric::Sample(bool resetPeaks)
{
    m_impl->Sample(resetPeaks);
}

const std::vector<int64_t>&
Fabric::SentBytes() const
{
    return m_impl->sentBytes;
}

const std::vector<int64_t>&
Fabric::Marks() const
{
    return m_impl->marks;
}

const std::vector<int64_t>&
Fabric::PausedTime() const
{
    return m_impl->pausedTime;
}

const std::vector<int64_t>&
Fabric::QueueMax() const
{
    return m_impl->queueMax;
}

const std::vector<TraceRow>&
Fabric::Traces()
{
    return m_impl->Traces();
}

const int64_t*
Fabric::TraceData()
{
    static_assert(sizeof(TraceRow) == 8 * sizeof(int64_t));
    return reinterpret_cast<const int64_t*>(Traces().data());
}

int64_t
Fabric::QueueBytes(uint32_t port)
{
    return m_impl->plane.QueueBytes(m_impl->plane.GetPort(port), Now());
}

int64_t
Fabric::QueueMaxEver() const
{
    int64_t most = 0;
    for (uint32_t i = 0; i < m_impl->plane.NPorts(); ++i)
    {
        const Port& port = m_impl->plane.GetPort(i);
        most = std::max({most, port.queueMax, port.queueMaxSampled, port.queueMaxEver});
    }
    return most;
}

const std::vector<FlowRow>&
Fabric::Flows()
{
    for (const Flow* flow : m_impl->active)
    {
        m_impl->Record(*flow);
    }
    return m_impl->rows;
}

const int64_t*
Fabric::FlowData()
{
    static_assert(sizeof(FlowRow) == 12 * sizeof(int64_t));
    return reinterpret_cast<const int64_t*>(Flows().data());
}

} // namespace kvnet
