#include "stock-traffic.h"

#include "ns3/abort.h"
#include "ns3/arp-cache.h"
#include "ns3/boolean.h"
#include "ns3/double.h"
#include "ns3/inet-socket-address.h"
#include "ns3/internet-stack-helper.h"
#include "ns3/ipv4-interface.h"
#include "ns3/ipv4-l3-protocol.h"
#include "ns3/ipv4-static-routing-helper.h"
#include "ns3/node-list.h"
#include "ns3/node.h"
#include "ns3/simulator.h"
#include "ns3/tcp-l4-protocol.h"
#include "ns3/tcp-socket-base.h"
#include "ns3/tcp-socket-factory.h"
#include "ns3/traffic-control-helper.h"
#include "ns3/type-id.h"
#include "ns3/uinteger.h"

#include <algorithm>
#include <functional>
#include <map>
#include <set>

namespace kvnet
{

namespace
{

using namespace ns3;

constexpr uint32_t FIRST_ADDRESS = 0x0A000001;
constexpr char SUBNET_MASK[] = "255.0.0.0";

//! IPv4 20, TCP 20, timestamps 12.
constexpr uint32_t TCP_OVERHEAD = 52;

//! Ephemeral ports (RFC 6335).
constexpr uint32_t FIRST_SOURCE_PORT = 49152;
constexpr uint32_t SOURCE_PORTS = 16384;

//! A flow that a higher class starves goes on trying.
constexpr uint32_t RETRIES = 1000;

//! Keeps a source port for 2 ms after its flow, far longer than a segment lives here.
constexpr double SEGMENT_LIFETIME_S = 1e-3;

//! Segments handed to TCP at a time: few calls, small pieces to cut.
constexpr uint32_t WRITE_SEGMENTS = 16;

Ipv4Address AddressOf(uint32_t port)
{
    return Ipv4Address(FIRST_ADDRESS + port);
}

struct Nic
{
    uint32_t node;
    uint32_t device; //!< of the node
};

struct TcpFlow
{
    uint64_t id;
    size_t row;
    int64_t bytes;
    int64_t written{0};
    int64_t acked{0};
    uint64_t retransmitted{0};
    bool notify;
    Ptr<Socket> socket;
};

} // namespace

class StockTraffic::Impl : public std::enable_shared_from_this<StockTraffic::Impl>
{
  public:
    Impl(const TcpParameters& parameters, PythonCall call);

    void AddNic(uint32_t node, uint32_t device, uint32_t port);
    void EnsureHost(uint32_t node);
    void Connect(uint32_t a, uint32_t b);
    void ConnectHosts(uint32_t a, uint32_t b);
    void Begin(FlowRow row, uint32_t tcpSourcePort, bool notify);
    void Write(TcpFlow& flow);
    void OnAcknowledged(TcpFlow& flow);
    void Forget();

    std::vector<FlowRow> rows;
    std::map<uint64_t, std::shared_ptr<TcpFlow>> active; //!< by row
    std::set<uint32_t> installed;                        //!< nodes that Install was called for

  private:
    Ptr<NetDevice> Device(uint32_t port) const;
    Ptr<Socket> NewSocket(uint32_t port);
    void Listen(uint32_t port);

    const TcpParameters m_parameters;
    const uint32_t m_segmentBytes;
    std::map<uint32_t, Nic> m_nics;                      //!< by port
    std::map<uint32_t, std::vector<uint32_t>> m_portsOf; //!< of a node
    PythonCall m_call;
    std::set<uint32_t> m_hosts;                  //!< nodes that have the stack
    std::map<uint32_t, Ptr<Socket>> m_listeners; //!< by port
};

StockTraffic::Impl::Impl(const TcpParameters& parameters, PythonCall call)
    : m_parameters(parameters), m_segmentBytes(parameters.mtu - TCP_OVERHEAD),
      m_call(call)
{
}

void StockTraffic::Impl::AddNic(uint32_t node, uint32_t device, uint32_t port)
{
    m_nics[port] = {node, device};
    m_portsOf[node].push_back(port);
}

Ptr<NetDevice> StockTraffic::Impl::Device(uint32_t port) const
{
    const Nic& nic = m_nics.at(port);
    return NodeList::GetNode(nic.node)->GetDevice(nic.device);
}

void StockTraffic::Impl::EnsureHost(uint32_t node)
{
    if (!m_hosts.insert(node).second)
    {
        return;
    }
    Ptr<Node> host = NodeList::GetNode(node);
    Ipv4StaticRoutingHelper routing;
    InternetStackHelper stack;
    stack.SetIpv6StackInstall(false);
    stack.SetRoutingHelper(routing);
    stack.Install(host);
    host->GetObject<TcpL4Protocol>()->SetAttribute(
        "SocketType", TypeIdValue(TypeId::LookupByName(m_parameters.congestionControl)));
    Ptr<Ipv4> ip = host->GetObject<Ipv4>();
    for (const uint32_t port : m_portsOf[node])
    {
        Ptr<NetDevice> device = Device(port);
        device->SetMtu(static_cast<uint16_t>(m_parameters.mtu));
        const uint32_t interface = ip->AddInterface(device);
        ip->AddAddress(interface, Ipv4InterfaceAddress(AddressOf(port), Ipv4Mask(SUBNET_MASK)));
        ip->SetUp(interface);
        TrafficControlHelper::Default().Install(device);
    }
    host->Initialize();
}

void StockTraffic::Impl::Connect(uint32_t a, uint32_t b)
{
    for (const auto [own, other] : {std::pair(a, b), std::pair(b, a)})
    {
        Ptr<NetDevice> device = Device(own);
        Ptr<Ipv4L3Protocol> ip = device->GetNode()->GetObject<Ipv4L3Protocol>();
        const auto interface = static_cast<uint32_t>(ip->GetInterfaceForDevice(device));
        Ptr<ArpCache> cache = ip->GetInterface(interface)->GetArpCache();
        if (!cache->Lookup(AddressOf(other)))
        {
            ArpCache::Entry* entry = cache->Add(AddressOf(other));
            entry->SetMacAddress(Device(other)->GetAddress());
            entry->MarkPermanent();
        }
    }
}

void StockTraffic::Impl::ConnectHosts(uint32_t a, uint32_t b)
{
    for (const uint32_t own : m_portsOf[a])
    {
        for (const uint32_t other : m_portsOf[b])
        {
            Connect(own, other);
        }
    }
}

Ptr<Socket> StockTraffic::Impl::NewSocket(uint32_t port)
{
    Ptr<Socket> socket =
        Socket::CreateSocket(Device(port)->GetNode(), TcpSocketFactory::GetTypeId());
    socket->SetAttribute("SegmentSize", UintegerValue(m_segmentBytes));
    socket->SetAttribute("SndBufSize", UintegerValue(m_parameters.bufferBytes));
    socket->SetAttribute("RcvBufSize", UintegerValue(m_parameters.bufferBytes));
    socket->SetAttribute("InitialCwnd", UintegerValue(m_parameters.initialWindow));
    socket->SetAttribute("MinRto", TimeValue(TimeStep(m_parameters.minRto)));
    socket->SetAttribute("MaxSegLifetime", DoubleValue(SEGMENT_LIFETIME_S));
    // Or the last segment of a flow would wait for the timer of delayed acknowledgements.
    socket->SetAttribute("DelAckCount", UintegerValue(1));
    socket->SetAttribute("ConnCount", UintegerValue(RETRIES));
    socket->SetAttribute("DataRetries", UintegerValue(RETRIES));
    DynamicCast<TcpSocketBase>(socket)->SetUseEcn(m_parameters.ecn ? TcpSocketState::On
                                                                   : TcpSocketState::Off);
    // No DSCP: ns-3's TCP sends Not-ECT once one is set. The fabric takes its packets for
    // background anyway.
    return socket;
}

void StockTraffic::Impl::Listen(uint32_t port)
{
    if (m_listeners.contains(port))
    {
        return;
    }
    Ptr<Socket> listener = NewSocket(port);
    listener->Bind(InetSocketAddress(AddressOf(port), SERVER_PORT));
    listener->BindToNetDevice(Device(port));
    listener->Listen();
    listener->SetAcceptCallback(
        MakeNullCallback<bool, Ptr<Socket>, const Address&>(),
        Callback<void, Ptr<Socket>, const Address&>([](Ptr<Socket> accepted, const Address&) {
            accepted->SetRecvCallback(Callback<void, Ptr<Socket>>([](Ptr<Socket> socket) {
                while (socket->Recv())
                {
                }
            }));
            accepted->SetCloseCallbacks(
                Callback<void, Ptr<Socket>>([](Ptr<Socket> socket) { socket->Close(); }),
                MakeNullCallback<void, Ptr<Socket>>());
        }));
    m_listeners[port] = listener;
}

void StockTraffic::Impl::Begin(FlowRow row, uint32_t tcpSourcePort, bool notify)
{
    const auto source = static_cast<uint32_t>(row.srcPort);
    const auto destination = static_cast<uint32_t>(row.dstPort);
    EnsureHost(m_nics.at(source).node);
    EnsureHost(m_nics.at(destination).node);
    Connect(source, destination);
    Listen(destination);

    auto flow = std::make_shared<TcpFlow>();
    flow->id = static_cast<uint64_t>(row.id);
    flow->row = rows.size();
    flow->bytes = row.sizeBytes;
    flow->notify = notify;
    flow->socket = NewSocket(source);
    rows.push_back(row);
    active[flow->row] = flow;

    // First the device: a source port counts as taken among sockets of one device.
    flow->socket->BindToNetDevice(Device(source));
    uint32_t choice = tcpSourcePort - FIRST_SOURCE_PORT;
    uint32_t tried = 0;
    while (flow->socket->Bind(InetSocketAddress(
               AddressOf(source), static_cast<uint16_t>(FIRST_SOURCE_PORT + choice))) != 0)
    {
        NS_ABORT_MSG_IF(++tried == SOURCE_PORTS, "no TCP source port is left at a host");
        choice = (choice + 1) % SOURCE_PORTS;
    }
    // The socket outlives the flow by its closing handshake, and this object may be gone before
    // either.
    const std::weak_ptr<Impl> self = weak_from_this();
    flow->socket->SetSendCallback(
        Callback<void, Ptr<Socket>, uint32_t>([self, flow](Ptr<Socket>, uint32_t) {
            if (const auto impl = self.lock())
            {
                impl->OnAcknowledged(*flow);
            }
        }));
    flow->socket->TraceConnectWithoutContext(
        "Retransmission",
        Callback<void,
                 Ptr<const Packet>,
                 const TcpHeader&,
                 const Address&,
                 const Address&,
                 Ptr<const TcpSocketBase>>(
            [flow](Ptr<const Packet> packet,
                   const TcpHeader&,
                   const Address&,
                   const Address&,
                   Ptr<const TcpSocketBase>) { flow->retransmitted += packet->GetSize(); }));
    flow->socket->SetConnectCallback(Callback<void, Ptr<Socket>>([self, flow](Ptr<Socket>) {
                                         if (const auto impl = self.lock())
                                         {
                                             impl->Write(*flow);
                                         }
                                     }),
                                     MakeNullCallback<void, Ptr<Socket>>());
    flow->socket->Connect(InetSocketAddress(AddressOf(destination), SERVER_PORT));
}

void StockTraffic::Impl::Write(TcpFlow& flow)
{
    while (flow.written < flow.bytes)
    {
        const int64_t most = std::min<int64_t>(flow.socket->GetTxAvailable(),
                                               int64_t{WRITE_SEGMENTS} * m_segmentBytes);
        const int64_t n = std::min(flow.bytes - flow.written, most);
        if (n < std::min<int64_t>(m_segmentBytes, flow.bytes - flow.written))
        {
            return; // room for a part of a segment only
        }
        flow.socket->Send(Create<Packet>(static_cast<uint32_t>(n)));
        flow.written += n;
    }
}

void StockTraffic::Impl::OnAcknowledged(TcpFlow& flow)
{
    if (!flow.socket)
    {
        return;
    }
    const int64_t held = int64_t{m_parameters.bufferBytes} - flow.socket->GetTxAvailable();
    flow.acked = flow.written - held;
    if (flow.acked < flow.bytes)
    {
        Write(flow);
        return;
    }
    FlowRow& row = rows[flow.row];
    row.ackedBytes = flow.bytes;
    row.end = Simulator::Now().GetTimeStep();
    row.retransmittedBytes = static_cast<int64_t>(flow.retransmitted);
    // Not before: ns-3's TCP recovers from loss one segment a timeout once it is closing.
    flow.socket->Close();
    flow.socket = nullptr;
    const uint64_t id = flow.id;
    const bool notify = flow.notify;
    active.erase(flow.row);
    if (notify)
    {
        m_call(ON_FLOW_DONE, id);
    }
}

void StockTraffic::Impl::Forget()
{
    for (const auto& [row, flow] : active)
    {
        flow->socket = nullptr;
    }
    m_listeners.clear();
}

StockTraffic::StockTraffic(const TcpParameters& parameters, uintptr_t callback)
    : m_impl(std::make_shared<Impl>(parameters, reinterpret_cast<PythonCall>(callback)))
{
    // No socket may outlive the simulation.
    Simulator::ScheduleDestroy(std::function<void()>([impl = std::weak_ptr(m_impl)] {
        if (const auto alive = impl.lock())
        {
            alive->Forget();
        }
    }));
}

StockTraffic::~StockTraffic()
{
    // A flow and its socket hold each other.
    m_impl->Forget();
}

void StockTraffic::AddNic(uint32_t node, uint32_t device, uint32_t port)
{
    m_impl->AddNic(node, device, port);
}

void StockTraffic::Install(uint32_t node)
{
    m_impl->EnsureHost(node);
    for (const uint32_t other : m_impl->installed)
    {
        m_impl->ConnectHosts(node, other);
    }
    m_impl->installed.insert(node);
}

void StockTraffic::StartFlow(uint64_t id,
                             uint32_t trafficClass,
                             uint32_t source,
                             uint32_t destination,
                             int64_t bytes,
                             uint32_t tcpSourcePort,
                             int64_t at,
                             int64_t idealFct,
                             bool notify)
{
    FlowRow row;
    row.id = static_cast<int64_t>(id);
    row.trafficClass = trafficClass;
    row.srcPort = source;
    row.dstPort = destination;
    row.sizeBytes = bytes;
    row.start = at;
    row.idealFct = idealFct;
    Impl* impl = m_impl.get();
    Simulator::Schedule(TimeStep(at) - Simulator::Now(),
                        std::function<void()>([impl, row, tcpSourcePort, notify] {
                            impl->Begin(row, tcpSourcePort, notify);
                        }));
}

uint64_t StockTraffic::ActiveFlows() const
{
    return m_impl->active.size();
}

const std::vector<FlowRow>& StockTraffic::Flows()
{
    for (const auto& [row, flow] : m_impl->active)
    {
        m_impl->rows[row].ackedBytes = flow->acked;
        m_impl->rows[row].retransmittedBytes = static_cast<int64_t>(flow->retransmitted);
    }
    return m_impl->rows;
}

const int64_t* StockTraffic::FlowData()
{
    static_assert(sizeof(FlowRow) == 12 * sizeof(int64_t));
    return reinterpret_cast<const int64_t*>(Flows().data());
}

} // namespace kvnet
