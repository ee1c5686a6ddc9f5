#ifndef KVNET_DATA_PLANE_H
#define KVNET_DATA_PLANE_H

#include "fabric-types.h"
#include "huge-pages.h"
#include "load-balancer.h"
#include "port.h"
#include "wheel-simulator-impl.h"

#include <deque>
#include <functional>
#include <memory>
#include <memory_resource>

namespace kvnet
{

/**
 * Everything that happens to a packet: NICs, links, switches. Knows nothing of ns-3 nodes or of Python.
 *
 * Order at equal times: a port's departures come before arrivals at it (Advance is inclusive and called first), arrivals
 * in the order in which their events were scheduled. TIMING.md tells the whole of it.
 */
class DataPlane
{
  public:
    explicit DataPlane(const NetworkParameters& parameters);
    ~DataPlane();

    DataPlane(const DataPlane&) = delete;
    DataPlane& operator=(const DataPlane&) = delete;

    /** A link between two nodes; ports 2 * link and 2 * link + 1. `a` and `b` are null for hosts. */
    void AddLink(const LinkParameters& link, Switch* a, Switch* b, uint64_t seed);
    /** Fix the sizes of the switches' pools, once all links are there. */
    void Build();
    /** Choose the engine: call after the simulator implementation is set. */
    void UseEngine(WheelSimulatorImpl* wheel)
    {
        m_wheel = wheel;
    }

    Port& GetPort(uint32_t id)
    {
        return m_ports[id];
    }

    size_t NPorts() const
    {
        return m_ports.size();
    }

    Flow* NewFlow();
    /** Begin to send. The flow's routes, sizes and congestion control are set. */
    void StartFlow(Flow* flow, SimTime now);
    /** Put a packet of the ns-3 stack on a host's port; `ecnCapable`: a switch may mark it. */
    void SendStock(Port& port,
                   ns3::Packet* packet,
                   uint16_t bytes,
                   bool ecnCapable,
                   Port* const* route,
                   SimTime now);

    /** With one, flows that have no route of their own are balanced. Call after Build. */
    void SetLoadBalancer(ns3::Ptr<LoadBalancer> balancer)
    {
        m_balancer = balancer;
    }

    /** Start every transmission that is due at a port. */
    void Advance(Port& port, SimTime now);
    /** And at any port. */
    void AdvanceAll(SimTime now);

    /** What waits at a port, all queues. */
    int64_t QueueBytes(Port& port, SimTime now);

    const Totals& GetTotals()
    {
        m_totals.controlHops = m_hops - m_totals.dataHops;
        return m_totals;
    }

    size_t PacketCapacity() const
    {
        return m_pool.Capacity();
    }

    std::function<void(Flow*, SimTime)> onFlowDone;
    std::function<void(Port&, const Packet&)> onDrop;  //!< before the packet is taken back
    std::function<void(Port&, bool)> onPfc;            //!< the port was paused or resumed
    std::function<void(const Port&, const Packet&, SimTime)> onCapture; //!< a captured port begins to send
    std::function<void()> onHeartbeat; //!< every HEARTBEAT_HOPS packet-hops
    std::function<void(Port&, Packet*)> onStock; //!< a stock packet reached a host; takes over the reference
    std::function<void(ns3::Packet*)> onStockDropped;

    static constexpr uint64_t HEARTBEAT_HOPS = 1 << 20;

  private:
    struct WakeEvent : Event
    {
        DataPlane* plane;
        Port* port;
    };

    void Schedule(Event* event, SimTime time);
    void ScheduleStock(Event* event, SimTime time);
    void Transmit(Port& port, Packet* packet, SimTime at);
    void AdvanceSwitchPort(Port& port, SimTime now);
    void StartQueued(Port& port, SimTime now);
    SimTime AdvanceNic(Port& port, SimTime now);
    SimTime SendNextData(Port& port, SimTime now);
    SimTime SendInTurn(Port& port, SimTime now);
    void SendData(Port& port, SenderList& list, size_t index, SimTime at);
    void Kick(Port& port, SimTime now);
    void CountHop(const Packet& packet);
    bool IsLost(Port& port, const Packet& packet);
    void Arrive(Port& port, SimTime now);
    void Deliver(Port& port, SimTime now);
    /** Whether a packet that reaches a host at `at` will change nothing but its flow's receiver. */
    bool IsQuiet(const Port& port, const Packet& packet, SimTime at) const;
    void ReceiveAtSwitch(Switch& sw, Port& in, Packet* packet, SimTime now);
    void Forward(Port& in, Port& out, Packet* packet, SimTime now);
    void Enqueue(Switch& sw, Port& in, Port& out, Packet* packet, SimTime now);
    void Resume(Switch& sw, Port& in, uint8_t queue, SimTime now);
    Port* Balance(Switch& sw, const Port& in, const Packet& packet, SimTime now);
    void ReceiveAtHost(Port& port, Packet* packet, SimTime now);
    void ReceiveData(const Packet& packet, SimTime now);
    void PlaceData(Flow& flow, const Packet& packet, SimTime now);
    void WatchGaps(Flow& flow, SimTime now);
    void ReceiveAck(const Packet& packet, SimTime now);
    void ReceiveMissing(Flow& flow, const Packet& packet, SimTime now);
    void ReceiveCnp(Flow& flow, SimTime now);
    void SendCnp(Flow& flow, SimTime now);
    void SendControl(Flow& flow,
                     PacketKind kind,
                     uint32_t sequence,
                     bool echo,
                     SimTime echoedTime,
                     SimTime now);
    void SendAck(Flow& flow, const Packet& packet, SimTime now);
    void SendFromHost(Port& port, Packet* packet, SimTime now);
    void GoBack(Flow& flow, SimTime now);
    void AddSender(Flow& flow, SimTime next);
    void RemoveSender(Flow& flow);
    bool WindowOpen(const Flow& flow) const;
    void Complete(Flow& flow, SimTime now);
    void Unreference(Flow* flow);
    void Drop(Port& port, Packet* packet);
    void Reopen(Flow& flow, SimTime now);

    bool Admit(Switch& sw, Port& in, const PacketQueue& q, Packet* packet, SimTime now);
    void Release(Packet* packet, SimTime now);
    bool MustPause(const Switch& sw, const Ingress& ingress) const;
    bool MayResume(const Switch& sw, const Ingress& ingress) const;
    int64_t Threshold(const Switch& sw) const;
    void AdvanceSwitch(Switch& sw, SimTime now);
    void ArmTransmit(Port& port);
    void SendPfc(Port& port, uint8_t queue, bool pause, SimTime now);
    void ReceivePfc(Port& port, const Packet& packet, SimTime now);
    void Mark(Port& port, Packet* packet, int64_t queueBytes);
    Packet* PopFrom(Port& port, uint8_t queue);
    SimTime PaceGap(Flow& flow, const Port& port, uint16_t bytes);
    const SimTime* SerialisationTable(int64_t rateBps);
    int64_t PayloadOf(const Flow& flow, uint32_t packets) const;

    static void FireArrival(Event* event);
    static void FireDelivery(Event* event);
    static void FireTransmit(Event* event);
    static void FireWake(Event* event);
    static void FireTimeout(Event* event);
    static void FireCnp(Event* event);
    static void FireGap(Event* event);

    const NetworkParameters m_parameters;
    const bool m_windowed; //!< every flow has a window
    const bool m_mayBeQuiet; //!< not every packet is acknowledged, and receivers take them in order
    ns3::Ptr<LoadBalancer> m_balancer;
    WheelSimulatorImpl* m_wheel{nullptr};
    Totals m_totals;
    uint64_t m_hops{0};
    HugePages m_hugePages;
    std::pmr::monotonic_buffer_resource m_memory{HugePages::PAGE, &m_hugePages}; //!< of all that packets touch
    PacketPool m_pool{m_memory};
    std::pmr::deque<Port> m_ports{&m_memory};
    std::pmr::deque<Flow> m_flowStorage{&m_memory};
    std::vector<Flow*> m_freeFlows;
    std::deque<WakeEvent> m_wakeStorage;
    std::vector<WakeEvent*> m_freeWakes;
    std::vector<std::pair<int64_t, std::unique_ptr<SimTime[]>>> m_serialisation;
};

} // namespace kvnet

#endif // KVNET_DATA_PLANE_H
