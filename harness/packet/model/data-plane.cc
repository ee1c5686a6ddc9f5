#include "data-plane.h"

#include "ns3/event-impl.h"
#include "ns3/simulator.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cmath>

namespace kvnet
{

namespace
{

/** Longest frame that a port can carry: a 9000-byte payload and any headers. */
constexpr int64_t MAX_FRAME = 9600;

constexpr int64_t PS_PER_SECOND = 1000000000000;

/** An embedded event on an engine that knows only ns-3's own. */
class StockEngineEvent : public ns3::EventImpl
{
  public:
    explicit StockEngineEvent(Event* event)
        : m_event(event)
    {
    }

  private:
    void Notify() override
    {
        m_event->fire(m_event);
    }

    Event* m_event;
};

constexpr uint8_t
Bit(uint8_t queue)
{
    return static_cast<uint8_t>(1U << queue);
}

} // namespace

DataPlane::DataPlane(const NetworkParameters& parameters)
    : m_parameters(parameters),
      m_windowed(parameters.windowBytes > 0 || parameters.reorderWindow > 0),
      m_mayBeQuiet(parameters.ackEvery > 1 && parameters.reorderWindow == 0)
{
}

DataPlane::~DataPlane() = default;

// --- Set-up ----------------------------------------------------------------------------------------------------------

const SimTime*
DataPlane::SerialisationTable(int64_t rateBps)
{
    for (const auto& [rate, table] : m_serialisation)
    {
        if (rate == rateBps)
        {
            return table.get();
        }
    }
    auto table = std::make_unique<SimTime[]>(MAX_FRAME + 1);
    const int64_t unit = m_parameters.roundingPs;
    for (int64_t bytes = 0; bytes <= MAX_FRAME; ++bytes)
    {
        const int64_t numerator = (bytes + m_parameters.wireGap) * 8 * PS_PER_SECOND;
        const int64_t denominator = rateBps * unit;
        table[bytes] = (2 * numerator + denominator) / (2 * denominator) * unit;
    }
    m_serialisation.emplace_back(rateBps, std::move(table));
    return m_serialisation.back().second.get();
}

void
DataPlane::AddLink(const LinkParameters& link, Switch* a, Switch* b, uint64_t seed)
{
    Port* ends[2];
    for (Switch* owner : {a, b})
    {
        Port& port = m_ports.emplace_back();
        port.id = static_cast<uint32_t>(m_ports.size() - 1);
        port.plane = this;
        port.owner = owner;
        port.arrival.touches = nullptr;
        port.transmit.fire = &FireTransmit;
        port.rateBps = link.rateBps;
        port.delay = link.delayPs;
        port.lossRate = link.lossRate;
        port.lossy = link.lossRate > 0;
        port.serialisation = SerialisationTable(link.rateBps);
        port.wireGap = static_cast<uint16_t>(m_parameters.wireGap);
        port.ecnMin = link.ecnMinBytes;
        port.ecnMax = link.ecnMaxBytes;
        port.ecnMaxProbability = owner ? m_parameters.ecnMaxProbability : 0;
        port.headroom = link.headroomBytes;
        port.random.state = seed ^ (uint64_t{port.id} * 0xD1342543DE82EF95ULL);
        port.lossRandom.state = ~seed ^ (uint64_t{port.id} * 0xAF251AF3B0F025B5ULL);
        if (owner)
        {
            owner->ports.push_back(&port);
        }
        ends[port.id & 1] = &port;
    }
    ends[0]->peer = ends[1];
    ends[1]->peer = ends[0];
    for (Port* port : ends)
    {
        port->arrival.fire = port->peer->owner ? &FireArrival : &FireDelivery;
    }
}

void
DataPlane::Build()
{
    const int lossless = m_parameters.backgroundInDataQueue ? 1 : 2;
    const auto frame = static_cast<size_t>(m_parameters.payloadBytes + m_parameters.dataOverhead);
    SimTime horizon = 0;
    for (Port& port : m_ports)
    {
        horizon = std::max(horizon, port.serialisation[frame] + port.delay);
        if (port.owner)
        {
            Switch& sw = *port.owner;
            if (&port == sw.ports.front())
            {
                sw.poolBytes = m_parameters.bufferBytes;
                if (m_parameters.pfc)
                {
                    for (const Port* p : sw.ports)
                    {
                        sw.poolBytes -= lossless * (p->headroom + m_parameters.reserveBytes);
                    }
                }
            }
        }
    }
    if (m_wheel)
    {
        m_wheel->SetHorizon(horizon);
    }
}

Flow*
DataPlane::NewFlow()
{
    if (m_freeFlows.empty())
    {
        Flow& flow = m_flowStorage.emplace_back();
        flow.timer.fire = &FireTimeout;
        flow.cnpTimer.fire = &FireCnp;
        flow.gapTimer.fire = &FireGap;
        flow.plane = this;
        return &flow;
    }
    Flow* flow = m_freeFlows.back();
    m_freeFlows.pop_back();
    return flow;
}

// --- Events ----------------------------------------------------------------------------------------------------------

[[gnu::always_inline]] inline void
DataPlane::Schedule(Event* event, SimTime time)
{
    if (m_wheel) [[likely]]
    {
        m_wheel->Insert(event, time);
        return;
    }
    ScheduleStock(event, time);
}

[[gnu::noinline]] void
DataPlane::ScheduleStock(Event* event, SimTime time)
{
    event->time = time;
    ns3::Simulator::Schedule(ns3::TimeStep(time) - ns3::Simulator::Now(),
                             ns3::Ptr<ns3::EventImpl>(new StockEngineEvent(event), false));
}

void
DataPlane::FireArrival(Event* event)
{
    auto* port = reinterpret_cast<Port*>(event);
    port->plane->Arrive(*port, event->time);
}

void
DataPlane::FireDelivery(Event* event)
{
    auto* port = reinterpret_cast<Port*>(event);
    port->plane->Deliver(*port, event->time);
}

void
DataPlane::FireTransmit(Event* event)
{
    auto* port = reinterpret_cast<Port*>(reinterpret_cast<char*>(event) - offsetof(Port, transmit));
    port->transmitPending = false;
    port->plane->AdvanceSwitchPort(*port, event->time);
    if (port->owner->pausedIngresses)
    {
        port->plane->ArmTransmit(*port);
    }
}

void
DataPlane::FireWake(Event* event)
{
    auto* wake = static_cast<WakeEvent*>(event);
    DataPlane* plane = wake->plane;
    Port& port = *wake->port;
    plane->m_freeWakes.push_back(wake);
    if (port.wakeAt == event->time)
    {
        port.wakeAt = NEVER;
    }
    plane->Kick(port, event->time);
}

// --- Links -----------------------------------------------------------------------------------------------------------

[[gnu::always_inline]] inline void
DataPlane::Transmit(Port& port, Packet* packet, SimTime at)
{
    const uint16_t bytes = packet->bytes;
    port.freeAt = at + port.serialisation[bytes];
    const SimTime arrival = port.freeAt + port.delay;
    packet->next = nullptr;
    port.sentBytes[packet->trafficClass] += bytes + port.wireGap;
    if (port.captured) [[unlikely]]
    {
        onCapture(port, *packet, at);
    }
    if (port.LaneHead())
    {
        port.laneTail->next = packet;
        port.laneTail->following = arrival;
        port.laneTail = packet;
    }
    else
    {
        port.arrival.touches = port.laneTail = packet;
        Schedule(&port.arrival, arrival);
    }
}

inline void
DataPlane::Advance(Port& port, SimTime now)
{
    if (port.owner)
    {
        AdvanceSwitchPort(port, now);
    }
    else
    {
        Kick(port, now);
    }
}

[[gnu::always_inline]] inline void
DataPlane::CountHop(const Packet& packet)
{
    m_totals.dataHops += packet.kind == PacketKind::DATA;
    if (++m_hops % HEARTBEAT_HOPS == 0) [[unlikely]]
    {
        onHeartbeat();
    }
}

[[gnu::always_inline]] inline bool
DataPlane::IsLost(Port& port, const Packet& packet)
{
    return port.lossy && packet.kind != PacketKind::PFC && port.lossRandom.Uniform() < port.lossRate;
}

[[gnu::always_inline]] inline void
DataPlane::Arrive(Port& port, SimTime now)
{
    Packet* packet = port.LaneHead();
    port.arrival.touches = packet->next;
    if (packet->next)
    {
        // Packets outnumber the cache: fetch the next one while there is time.
        __builtin_prefetch(packet->next);
        Schedule(&port.arrival, packet->following);
    }
    else
    {
        Advance(port, now);
    }
    CountHop(*packet);
    if (IsLost(port, *packet)) [[unlikely]]
    {
        Drop(port, packet);
        return;
    }
    Port& in = *port.peer;
    if (Port* out = packet->out)
    {
        packet->out = *++packet->route;
        Forward(in, *out, packet, now);
    }
    else
    {
        ReceiveAtSwitch(*in.owner, in, packet, now);
    }
}

[[gnu::always_inline]] inline void
DataPlane::Deliver(Port& port, SimTime now)
{
    Packet* packet = port.LaneHead();
    Packet* next = packet->next;
    SimTime arrival = packet->following;
    port.arrival.touches = next;
    __builtin_prefetch(next);
    if (!next)
    {
        Advance(port, now);
    }
    else if (!m_mayBeQuiet)
    {
        Schedule(&port.arrival, arrival);
    }
    CountHop(*packet);
    if (IsLost(port, *packet)) [[unlikely]]
    {
        Drop(port, packet);
    }
    else
    {
        ReceiveAtHost(*port.peer, packet, now);
    }
    if (!next || !m_mayBeQuiet)
    {
        return;
    }
    // Packets that nobody but their flow's receiver will notice need no event of their own. The last one in the lane has
    // one all the same: it wakes the port.
    while (next->next && IsQuiet(port, *next, arrival))
    {
        packet = next;
        next = packet->next;
        __builtin_prefetch(next->next);
        CountHop(*packet);
        ReceiveData(*packet, arrival);
        arrival = packet->following;
        Unreference(packet->flow);
        m_pool.Put(packet);
    }
    port.arrival.touches = next;
    Schedule(&port.arrival, arrival);
}

void
DataPlane::Drop(Port& port, Packet* packet)
{
    ++m_totals.drops;
    onDrop(port, *packet);
    if (packet->flow)
    {
        Unreference(packet->flow);
    }
    else if (packet->kind == PacketKind::STOCK)
    {
        onStockDropped(packet->stock);
    }
    m_pool.Put(packet);
}

void
DataPlane::AdvanceAll(SimTime now)
{
    for (Port& port : m_ports)
    {
        Advance(port, now);
    }
}

int64_t
DataPlane::QueueBytes(Port& port, SimTime now)
{
    Advance(port, now);
    int64_t bytes = 0;
    for (const PacketQueue& queue : port.queues)
    {
        bytes += queue.bytes;
    }
    return bytes;
}

// --- Switches --------------------------------------------------------------------------------------------------------

inline Packet*
DataPlane::PopFrom(Port& port, uint8_t queue)
{
    PacketQueue& q = port.queues[queue];
    Packet* packet = q.Pop();
    __builtin_prefetch(q.head);
    if (!q.head)
    {
        port.backlog &= static_cast<uint8_t>(~Bit(queue));
    }
    return packet;
}

[[gnu::always_inline]] inline void
DataPlane::AdvanceSwitchPort(Port& port, SimTime now)
{
    if (port.freeAt <= now && (port.backlog & ~port.paused))
    {
        StartQueued(port, now);
    }
}

[[gnu::noinline]] void
DataPlane::StartQueued(Port& port, SimTime now)
{
    do
    {
        const unsigned ready = port.backlog & ~port.paused;
        const auto queue = static_cast<uint8_t>(std::countr_zero(ready));
        Packet* packet = PopFrom(port, queue);
        if (!m_parameters.markAtEnqueue)
        {
            Mark(port, packet, port.queues[queue].bytes);
        }
        // The transmission comes before the accounting: a resume that this sets off may come back to this port.
        Transmit(port, packet, port.freeAt);
        Release(packet, now);
    } while (port.freeAt <= now && (port.backlog & ~port.paused));
}

inline void
DataPlane::Mark(Port& port, Packet* packet, int64_t queueBytes)
{
    if (queueBytes <= port.ecnMin ||
        (packet->kind != PacketKind::DATA && !(packet->kind == PacketKind::STOCK && packet->sequence)))
    {
        return;
    }
    if (queueBytes <= port.ecnMax)
    {
        const double probability = port.ecnMaxProbability *
                                   static_cast<double>(queueBytes - port.ecnMin) /
                                   static_cast<double>(port.ecnMax - port.ecnMin);
        if (port.random.Uniform() >= probability)
        {
            return;
        }
    }
    packet->ecn = 1;
    ++port.marks;
    ++m_totals.ecnMarks;
}

void
DataPlane::ReceiveAtSwitch(Switch& sw, Port& in, Packet* packet, SimTime now)
{
    if (packet->kind == PacketKind::PFC)
    {
        ReceivePfc(in, *packet, now);
        m_pool.Put(packet);
    }
    else
    {
        Forward(in, *Balance(sw, in, *packet, now), packet, now);
    }
}

[[gnu::always_inline]] inline void
DataPlane::Forward(Port& in, Port& out, Packet* packet, SimTime now)
{
    AdvanceSwitchPort(out, now);
    const uint8_t queue = packet->queue;
    const int64_t bytes = packet->bytes;
    if (out.freeAt <= now && !((out.backlog & ~out.paused) | (out.paused & Bit(queue))))
    {
        // Idle: the packet passes without waiting, and so without taking any buffer.
        out.freeAt = now;
        out.queueMax = std::max(out.queueMax, bytes);
        Transmit(out, packet, now);
        Switch& sw = *out.owner;
        if (sw.pausedIngresses) [[unlikely]]
        {
            Resume(sw, in, queue, now);
        }
        return;
    }
    Enqueue(*out.owner, in, out, packet, now);
}

[[gnu::noinline]] void
DataPlane::Resume(Switch& sw, Port& in, uint8_t queue, SimTime now)
{
    Ingress& ingress = in.ingress[queue];
    if (ingress.paused && MayResume(sw, ingress))
    {
        ingress.paused = false;
        --sw.pausedIngresses;
        SendPfc(in, queue, false, now);
    }
}

[[gnu::noinline]] void
DataPlane::Enqueue(Switch& sw, Port& in, Port& out, Packet* packet, SimTime now)
{
    const uint8_t queue = packet->queue;
    if (!Admit(sw, in, out.queues[queue], packet, now)) [[unlikely]]
    {
        Drop(out, packet);
        return;
    }
    PacketQueue& q = out.queues[queue];
    if (m_parameters.markAtEnqueue)
    {
        Mark(out, packet, q.bytes);
    }
    packet->in = &in;
    q.Push(packet);
    out.backlog |= Bit(queue);
    out.queueMax = std::max(out.queueMax, q.bytes);
    if (sw.pausedIngresses)
    {
        ArmTransmit(out);
    }
}

Port*
DataPlane::Balance(Switch& sw, const Port& in, const Packet& packet, SimTime now)
{
    const Flow& flow = *packet.flow;
    Port* last = flow.forward.back();
    if (last->owner == &sw)
    {
        return last;
    }
    PortGroup& group = (*flow.towards)[sw.index];
    return group.ports.size() == 1 ? group.ports.front()
                                   : m_balancer->Choose(group, in, packet, now);
}

inline int64_t
DataPlane::Threshold(const Switch& sw) const
{
    return m_parameters.dynamicShift >= 0 ? (sw.poolBytes - sw.sharedUsed) >> m_parameters.dynamicShift
                                          : std::min(m_parameters.xoffBytes,
                                                     sw.poolBytes - sw.sharedUsed);
}

inline bool
DataPlane::MustPause(const Switch& sw, const Ingress& ingress) const
{
    return ingress.headroom > 0 ||
           ingress.bytes - m_parameters.reserveBytes >= Threshold(sw);
}

inline bool
DataPlane::MayResume(const Switch& sw, const Ingress& ingress) const
{
    if (ingress.headroom > 0)
    {
        return false;
    }
    const int64_t shared = std::max<int64_t>(0, ingress.bytes - m_parameters.reserveBytes);
    return shared == 0 || (m_parameters.dynamicShift >= 0
                               ? shared + m_parameters.resumeOffsetBytes <= Threshold(sw)
                               : shared <= m_parameters.xonBytes);
}

inline bool
DataPlane::Admit(Switch& sw, Port& in, const PacketQueue& q, Packet* packet, SimTime now)
{
    const uint8_t queue = packet->queue;
    if (queue <= QUEUE_CONTROL)
    {
        packet->buffered = 0;
        return true;
    }
    const int64_t bytes = packet->bytes;
    Ingress& ingress = in.ingress[queue];
    packet->buffered = 1;
    if (!m_parameters.pfc)
    {
        // Lossy: the threshold limits each egress queue, so that one cannot take the whole buffer.
        if (q.bytes + bytes > Threshold(sw))
        {
            AdvanceSwitch(sw, now);
            if (q.bytes + bytes > Threshold(sw))
            {
                return false;
            }
        }
        sw.sharedUsed += bytes;
        ingress.bytes += bytes;
        return true;
    }
    const int64_t reserve = m_parameters.reserveBytes;
    bool advanced = false;
    if (ingress.bytes + bytes - reserve > 0 && ingress.bytes + bytes - reserve > Threshold(sw))
    {
        // Other ports of the switch may have sent what still counts here: bring them up to date before the verdict.
        AdvanceSwitch(sw, now);
        advanced = true;
    }
    const int64_t above = ingress.bytes + bytes - reserve;
    if (above <= 0)
    {
        ingress.bytes += bytes;
    }
    else if (above > Threshold(sw))
    {
        if (ingress.headroom + bytes > in.headroom)
        {
            return false;
        }
        ingress.headroom += bytes;
    }
    else
    {
        ingress.bytes += bytes;
        sw.sharedUsed += std::min(bytes, above);
    }
    if (!ingress.paused && MustPause(sw, ingress))
    {
        if (!advanced)
        {
            AdvanceSwitch(sw, now);
        }
        if (MustPause(sw, ingress))
        {
            ingress.paused = true;
            if (sw.pausedIngresses++ == 0)
            {
                for (Port* port : sw.ports)
                {
                    ArmTransmit(*port);
                }
            }
            SendPfc(in, queue, true, now);
        }
    }
    return true;
}

inline void
DataPlane::Release(Packet* packet, SimTime now)
{
    if (!packet->buffered)
    {
        return;
    }
    packet->buffered = 0;
    const uint8_t queue = packet->queue;
    Port& in = *packet->in;
    Switch& sw = *in.owner;
    Ingress& ingress = in.ingress[queue];
    const int64_t reserve = m_parameters.pfc ? m_parameters.reserveBytes : 0;
    const int64_t fromHeadroom = std::min<int64_t>(ingress.headroom, packet->bytes);
    const int64_t rest = packet->bytes - fromHeadroom;
    sw.sharedUsed -= std::min(rest, std::max<int64_t>(0, ingress.bytes - reserve));
    ingress.headroom -= fromHeadroom;
    ingress.bytes -= rest;
    if (ingress.paused) [[unlikely]]
    {
        Resume(sw, in, queue, now);
    }
}

void
DataPlane::AdvanceSwitch(Switch& sw, SimTime now)
{
    for (Port* port : sw.ports)
    {
        AdvanceSwitchPort(*port, now);
    }
}

void
DataPlane::ArmTransmit(Port& port)
{
    if (!port.transmitPending && (port.backlog & ~port.paused))
    {
        port.transmitPending = true;
        Schedule(&port.transmit, port.freeAt);
    }
}

void
DataPlane::SendPfc(Port& port, uint8_t queue, bool pause, SimTime now)
{
    ++(pause ? m_totals.pfcPauses : m_totals.pfcResumes);
    Packet* packet = m_pool.Get();
    packet->out = nullptr;
    packet->flow = nullptr;
    packet->kind = PacketKind::PFC;
    packet->trafficClass = CLASS_CONTROL;
    packet->queue = QUEUE_MAC;
    packet->bytes = static_cast<uint16_t>(m_parameters.pfcBytes);
    packet->sequence = queue;
    packet->ecn = pause;
    packet->buffered = 0;
    AdvanceSwitchPort(port, now);
    port.freeAt = std::max(port.freeAt, now);
    port.queues[QUEUE_MAC].Push(packet);
    port.backlog |= Bit(QUEUE_MAC);
    AdvanceSwitchPort(port, now);
    if (port.owner->pausedIngresses)
    {
        ArmTransmit(port);
    }
}

void
DataPlane::ReceivePfc(Port& port, const Packet& packet, SimTime now)
{
    Advance(port, now);
    const uint8_t bit = Bit(static_cast<uint8_t>(packet.sequence));
    onPfc(port, packet.ecn != 0);
    if (packet.ecn)
    {
        if (!port.paused)
        {
            port.pausedSince = now;
        }
        port.paused |= bit;
        return;
    }
    if (!(port.paused & bit))
    {
        return;
    }
    port.paused &= static_cast<uint8_t>(~bit);
    if (!port.paused)
    {
        port.pausedTime += now - port.pausedSince;
    }
    port.freeAt = std::max(port.freeAt, now);
    Advance(port, now);
    if (port.owner && port.owner->pausedIngresses)
    {
        ArmTransmit(port);
    }
}

// --- Hosts: sending --------------------------------------------------------------------------------------------------

void
DataPlane::Kick(Port& port, SimTime now)
{
    const SimTime next = AdvanceNic(port, now);
    if (!port.LaneHead() && next < port.wakeAt)
    {
        WakeEvent* wake;
        if (m_freeWakes.empty())
        {
            wake = &m_wakeStorage.emplace_back();
            wake->fire = &FireWake;
            wake->plane = this;
        }
        else
        {
            wake = m_freeWakes.back();
            m_freeWakes.pop_back();
        }
        wake->port = &port;
        port.wakeAt = next;
        Schedule(wake, next);
    }
}

[[gnu::always_inline]] inline SimTime
DataPlane::AdvanceNic(Port& port, SimTime now)
{
    while (port.freeAt <= now)
    {
        const PacketQueue& control = port.queues[QUEUE_CONTROL];
        if (control.head && !(port.paused & Bit(control.head->queue)))
        {
            Transmit(port, PopFrom(port, QUEUE_CONTROL), port.freeAt);
            continue;
        }
        const SimTime next = SendNextData(port, now);
        if (next > now)
        {
            return next;
        }
    }
    return NEVER;
}

[[gnu::always_inline]] inline SimTime
DataPlane::SendNextData(Port& port, SimTime now)
{
    SenderList& kv = port.senders[QUEUE_KV];
    if (kv.flows.size() == 1 && !(port.backlog | port.paused) &&
        port.senders[QUEUE_BACKGROUND].flows.empty()) [[likely]]
    {
        const SimTime when = std::max(port.freeAt, kv.next[0]);
        if (when <= now)
        {
            SendData(port, kv, 0, when);
        }
        return when;
    }
    return SendInTurn(port, now);
}

[[gnu::noinline]] SimTime
DataPlane::SendInTurn(Port& port, SimTime now)
{
    SimTime when = NEVER;
    SenderList* list = nullptr;
    for (const uint8_t queue : {QUEUE_KV, QUEUE_BACKGROUND})
    {
        SenderList& candidate = port.senders[queue];
        if (candidate.flows.empty() || (port.paused & Bit(queue)))
        {
            continue;
        }
        const SimTime earliest = *std::min_element(candidate.next.begin(), candidate.next.end());
        const SimTime time = std::max(port.freeAt, earliest);
        if (time < when)
        {
            when = time;
            list = &candidate;
        }
    }
    if ((port.backlog & Bit(QUEUE_BACKGROUND)) && port.freeAt < when &&
        !(port.paused & Bit(port.queues[QUEUE_BACKGROUND].head->queue)))
    {
        const SimTime at = port.freeAt;
        Transmit(port, PopFrom(port, QUEUE_BACKGROUND), at);
        return at;
    }
    if (when > now)
    {
        return when;
    }
    const size_t n = list->flows.size();
    size_t index = list->turn < n ? list->turn : 0;
    while (list->next[index] > when)
    {
        index = index + 1 < n ? index + 1 : 0;
    }
    SendData(port, *list, index, when);
    return when;
}

inline SimTime
DataPlane::PaceGap(Flow& flow, const Port& port, uint16_t bytes)
{
    const RateControl& control = flow.control;
    if (control.rateBps >= control.lineRateBps)
    {
        return port.serialisation[bytes];
    }
    const auto gapOf = [&](uint16_t frame) {
        const auto unit = static_cast<double>(m_parameters.roundingPs);
        const double gap = (frame + port.wireGap) * 8e12 / control.rateBps;
        return static_cast<SimTime>(gap / unit + 0.5) * m_parameters.roundingPs;
    };
    if (bytes != flow.fullBytes)
    {
        return gapOf(bytes);
    }
    if (control.rateBps != flow.pacedRateBps)
    {
        flow.pacedRateBps = control.rateBps;
        flow.fullGap = gapOf(bytes);
    }
    return flow.fullGap;
}

inline bool
DataPlane::WindowOpen(const Flow& flow) const
{
    int64_t window = flow.control.windowBytes;
    if (m_parameters.windowBytes)
    {
        const double share = m_parameters.windowScalesWithRate
                                 ? flow.control.rateBps / flow.control.lineRateBps
                                 : 1;
        window = std::min(window, static_cast<int64_t>(share * static_cast<double>(m_parameters.windowBytes)));
    }
    const int64_t outstanding = flow.sendNext - flow.acked;
    return outstanding * m_parameters.payloadBytes < window &&
           (!m_parameters.reorderWindow || outstanding < m_parameters.reorderWindow);
}

[[gnu::always_inline]] inline void
DataPlane::SendData(Port& port, SenderList& list, size_t index, SimTime at)
{
    Flow& flow = *list.flows[index];
    RateControl& control = flow.control;
    if (at >= control.deadline)
    {
        flow.cc->OnDeadline(control, at);
    }
    Packet* packet = m_pool.Get();
    uint32_t sequence;
    if (flow.resend) [[unlikely]]
    {
        sequence = flow.lost.front();
        flow.lost.erase(flow.lost.begin());
        flow.resend = !flow.lost.empty();
    }
    else
    {
        sequence = flow.sendNext++;
    }
    const bool last = sequence + 1 == flow.packets;
    packet->route = flow.route;
    packet->out = flow.route ? *flow.route : nullptr;
    packet->flow = &flow;
    packet->sent = at;
    packet->sequence = sequence;
    packet->bytes = last ? flow.lastBytes : flow.fullBytes;
    packet->kind = PacketKind::DATA;
    packet->trafficClass = flow.trafficClass;
    packet->queue = flow.queue;
    packet->ecn = 0;
    packet->buffered = 0;
    ++flow.references;
    ++m_totals.dataPackets;
    const int64_t payload = last ? flow.lastPayloadBytes : m_parameters.payloadBytes;
    if (sequence == flow.sendMax)
    {
        ++flow.sendMax;
        m_totals.payloadBytesSent += payload;
    }
    else
    {
        flow.retransmittedBytes += payload;
        m_totals.retransmittedBytes += payload;
    }
    if (sequence == flow.acked)
    {
        flow.lastProgress = at;
    }
    const uint16_t bytes = packet->bytes;
    flow.paceNext = at + PaceGap(flow, port, bytes);
    list.turn = index + 1;
    if (flow.sendNext == flow.packets && !flow.resend)
    {
        RemoveSender(flow);
    }
    else
    {
        list.next[index] = flow.paceNext;
        if ((m_windowed || control.windowBytes != INT64_MAX) && !flow.resend && !WindowOpen(flow))
        {
            flow.windowClosed = true;
            list.next[index] = NEVER;
        }
    }
    Transmit(port, packet, at);
    control.bytesLeft -= bytes;
    if (control.bytesLeft <= 0) [[unlikely]]
    {
        flow.cc->OnBytes(control, at);
    }
}

void
DataPlane::AddSender(Flow& flow, SimTime next)
{
    SenderList& list = flow.forward[0]->senders[flow.queue];
    list.flows.push_back(&flow);
    list.next.push_back(next);
    flow.sending = true;
    flow.windowClosed = false;
}

void
DataPlane::RemoveSender(Flow& flow)
{
    SenderList& list = flow.forward[0]->senders[flow.queue];
    const auto it = std::find(list.flows.begin(), list.flows.end(), &flow);
    const auto index = static_cast<size_t>(it - list.flows.begin());
    list.flows.erase(it);
    list.next.erase(list.next.begin() + static_cast<std::ptrdiff_t>(index));
    if (list.turn > index)
    {
        --list.turn;
    }
    flow.sending = false;
}

void
DataPlane::StartFlow(Flow* flow, SimTime now)
{
    Port& port = *flow->forward[0];
    flow->control = RateControl{};
    flow->control.lineRateBps = flow->control.rateBps = static_cast<double>(port.rateBps);
    flow->control.packetBytes = m_parameters.payloadBytes;
    flow->control.packetWireBytes = flow->fullBytes + port.wireGap;
    flow->control.packetsPerAck = m_parameters.ackEvery;
    flow->control.switches = static_cast<uint32_t>(flow->forward.size() - 1);
    flow->pacedRateBps = 0;
    flow->sendNext = flow->sendMax = flow->acked = flow->expected = flow->sinceAck = 0;
    flow->sending = flow->windowClosed = flow->done = flow->echo = flow->resend = false;
    if (m_parameters.reorderWindow)
    {
        flow->lost.clear();
        flow->placed.Reset(static_cast<uint32_t>(m_parameters.reorderWindow));
        flow->received = flow->ackedUpTo = 0;
    }
    flow->lastCnp = flow->lastNack = -1;
    flow->nackedAt = UINT32_MAX;
    flow->marks = flow->cnps = flow->retransmittedBytes = 0;
    flow->start = flow->paceNext = flow->lastProgress = now;
    flow->end = -1;
    flow->cc->Start(flow->control, now);
    flow->usesAcks = flow->cc->UsesAcks();
    flow->references = 1;
    Schedule(&flow->timer, now + m_parameters.timeout);
    Kick(port, now);
    AddSender(*flow, now);
    Kick(port, now);
}

void
DataPlane::SendFromHost(Port& port, Packet* packet, SimTime now)
{
    Kick(port, now);
    const bool idle = port.freeAt <= now;
    port.freeAt = std::max(port.freeAt, now);
    const uint8_t queue = packet->kind == PacketKind::STOCK ? QUEUE_BACKGROUND : QUEUE_CONTROL;
    port.queues[queue].Push(packet);
    port.backlog |= Bit(queue);
    if (idle)
    {
        Kick(port, now);
    }
}

void
DataPlane::SendStock(Port& port,
                     ns3::Packet* stock,
                     uint16_t bytes,
                     bool ecnCapable,
                     Port* const* route,
                     SimTime now)
{
    Packet* packet = m_pool.Get();
    packet->route = route;
    packet->out = *route;
    packet->flow = nullptr;
    packet->stock = stock;
    packet->sequence = ecnCapable;
    packet->bytes = bytes;
    packet->kind = PacketKind::STOCK;
    packet->trafficClass = CLASS_BACKGROUND;
    packet->queue = m_parameters.backgroundInDataQueue ? QUEUE_KV : QUEUE_BACKGROUND;
    packet->ecn = 0;
    packet->buffered = 0;
    SendFromHost(port, packet, now);
}

void
DataPlane::GoBack(Flow& flow, SimTime now)
{
    flow.sendNext = flow.acked;
    flow.lost.clear();
    flow.resend = false;
    if (!flow.sending)
    {
        AddSender(flow, std::max(flow.paceNext, now));
    }
    else if (flow.windowClosed)
    {
        Reopen(flow, now);
    }
}

void
DataPlane::Reopen(Flow& flow, SimTime now)
{
    SenderList& list = flow.forward[0]->senders[flow.queue];
    const auto it = std::find(list.flows.begin(), list.flows.end(), &flow);
    list.next[static_cast<size_t>(it - list.flows.begin())] = std::max(flow.paceNext, now);
    flow.windowClosed = false;
}

void
DataPlane::FireTimeout(Event* event)
{
    auto* flow = reinterpret_cast<Flow*>(event);
    DataPlane* plane = flow->plane;
    const SimTime now = event->time;
    const SimTime timeout = plane->m_parameters.timeout;
    if (flow->done)
    {
        plane->Unreference(flow);
        return;
    }
    Port& port = *flow->forward[0];
    plane->Kick(port, now);
    if (flow->sendNext == flow->acked)
    {
        flow->lastProgress = now;
    }
    else if (now - flow->lastProgress >= timeout)
    {
        flow->lastProgress = now;
        plane->GoBack(*flow, now);
        plane->Kick(port, now);
    }
    plane->Schedule(&flow->timer, flow->lastProgress + timeout);
}

// --- Hosts: receiving ------------------------------------------------------------------------------------------------

[[gnu::always_inline]] inline void
DataPlane::ReceiveAtHost(Port& port, Packet* packet, SimTime now)
{
    switch (packet->kind)
    {
    case PacketKind::DATA:
        ReceiveData(*packet, now);
        break;
    case PacketKind::ACK:
    case PacketKind::NACK:
        ReceiveAck(*packet, now);
        break;
    case PacketKind::CNP:
        Kick(*packet->flow->forward[0], now);
        ReceiveCnp(*packet->flow, now);
        break;
    case PacketKind::PFC:
        ReceivePfc(port, *packet, now);
        break;
    case PacketKind::STOCK:
        onStock(port, packet);
        break;
    }
    if (packet->flow)
    {
        Unreference(packet->flow);
    }
    m_pool.Put(packet);
}

inline bool
DataPlane::IsQuiet(const Port& port, const Packet& packet, SimTime at) const
{
    if (packet.kind != PacketKind::DATA || port.lossy)
    {
        return false;
    }
    const Flow& flow = *packet.flow;
    return packet.sequence == flow.expected && packet.sequence + 1 != flow.packets &&
           flow.sinceAck + 1 < m_parameters.ackEvery &&
           (!packet.ecn || !m_parameters.cnpAsPacket || (flow.cnpPending && at < flow.cnpTimer.time));
}

inline void
DataPlane::ReceiveData(const Packet& packet, SimTime now)
{
    Flow& flow = *packet.flow;
    if (packet.ecn)
    {
        ++flow.marks;
        if (!m_parameters.cnpAsPacket)
        {
            flow.echo = true;
        }
        else if (!flow.cnpPending)
        {
            if (flow.lastCnp < 0 || now - flow.lastCnp >= m_parameters.cnpInterval)
            {
                SendCnp(flow, now);
            }
            else
            {
                flow.cnpPending = true;
                ++flow.references;
                Schedule(&flow.cnpTimer, flow.lastCnp + m_parameters.cnpInterval);
            }
        }
    }
    if (m_parameters.reorderWindow)
    {
        PlaceData(flow, packet, now);
        return;
    }
    if (packet.sequence > flow.expected) [[unlikely]]
    {
        ++m_totals.outOfOrder;
        if (flow.nackedAt != flow.expected || now - flow.lastNack >= m_parameters.nackInterval)
        {
            flow.nackedAt = flow.expected;
            flow.lastNack = now;
            SendControl(flow, PacketKind::NACK, flow.expected, flow.echo, packet.sent, now);
            flow.echo = false;
        }
        return;
    }
    if (packet.sequence == flow.expected) [[likely]]
    {
        ++flow.expected;
    }
    else
    {
        ++m_totals.duplicates;
    }
    ++flow.sinceAck;
    if (flow.sinceAck >= m_parameters.ackEvery || packet.sequence + 1 == flow.packets)
    {
        SendAck(flow, packet, now);
    }
}

void
DataPlane::PlaceData(Flow& flow, const Packet& packet, SimTime now)
{
    const uint32_t sequence = packet.sequence;
    if (sequence < flow.expected || flow.placed.Test(sequence))
    {
        // The sender lacks an ACK that was lost.
        ++m_totals.duplicates;
        SendAck(flow, packet, now);
        return;
    }
    assert(sequence < flow.expected + m_parameters.reorderWindow);
    m_totals.outOfOrder += sequence > flow.expected;
    flow.placed.Set(sequence);
    flow.received = std::max(flow.received, sequence + 1);
    while (flow.placed.Test(flow.expected))
    {
        flow.placed.Clear(flow.expected++);
    }
    if (!flow.gapPending && flow.received > flow.expected)
    {
        flow.gapPending = true;
        ++flow.references;
        WatchGaps(flow, now);
    }
    // Whatever fills the window is acknowledged at once: a sender that waits for it would wait for ever.
    if (++flow.sinceAck >= m_parameters.ackEvery ||
        flow.expected - flow.ackedUpTo >= m_parameters.ackEvery || flow.expected == flow.packets)
    {
        SendAck(flow, packet, now);
    }
}

void
DataPlane::SendAck(Flow& flow, const Packet& packet, SimTime now)
{
    flow.sinceAck = 0;
    flow.ackedUpTo = flow.expected;
    SendControl(flow, PacketKind::ACK, flow.expected, flow.echo, packet.sent, now);
    flow.echo = false;
}

void
DataPlane::WatchGaps(Flow& flow, SimTime now)
{
    flow.gapEnd = flow.received;
    Schedule(&flow.gapTimer, now + m_parameters.reorderTimeout);
}

void
DataPlane::FireGap(Event* event)
{
    auto* flow = reinterpret_cast<Flow*>(reinterpret_cast<char*>(event) - offsetof(Flow, gapTimer));
    DataPlane* plane = flow->plane;
    if (flow->done || flow->received == flow->expected)
    {
        flow->gapPending = false;
        plane->Unreference(flow);
        return;
    }
    for (uint32_t sequence = flow->expected; sequence < flow->gapEnd; ++sequence)
    {
        if (!flow->placed.Test(sequence))
        {
            plane->SendControl(*flow, PacketKind::NACK, sequence, flow->echo, 0, event->time);
            flow->echo = false;
        }
    }
    plane->WatchGaps(*flow, event->time);
}

void
DataPlane::SendCnp(Flow& flow, SimTime now)
{
    flow.lastCnp = now;
    SendControl(flow, PacketKind::CNP, flow.expected, false, 0, now);
}

void
DataPlane::FireCnp(Event* event)
{
    auto* flow = reinterpret_cast<Flow*>(reinterpret_cast<char*>(event) - offsetof(Flow, cnpTimer));
    DataPlane* plane = flow->plane;
    flow->cnpPending = false;
    if (!flow->done)
    {
        plane->SendCnp(*flow, event->time);
    }
    plane->Unreference(flow);
}

void
DataPlane::SendControl(Flow& flow,
                       PacketKind kind,
                       uint32_t sequence,
                       bool echo,
                       SimTime echoedTime,
                       SimTime now)
{
    Packet* packet = m_pool.Get();
    packet->route = flow.hops.data() + flow.forward.size();
    packet->out = *packet->route;
    packet->flow = &flow;
    packet->sent = echoedTime;
    packet->sequence = sequence;
    packet->kind = kind;
    packet->trafficClass = CLASS_CONTROL;
    packet->queue = m_parameters.acksInDataQueue ? flow.queue : uint8_t{QUEUE_CONTROL};
    packet->ecn = echo;
    packet->buffered = 0;
    ++flow.references;
    if (kind == PacketKind::CNP)
    {
        packet->bytes = static_cast<uint16_t>(m_parameters.cnpBytes);
        ++flow.cnps;
        ++m_totals.cnps;
    }
    else
    {
        packet->bytes = static_cast<uint16_t>(m_parameters.ackBytes);
        ++m_totals.ackPackets;
        if (echo)
        {
            ++m_totals.markedAcks;
            ++flow.cnps;
            ++m_totals.cnps;
        }
    }
    SendFromHost(*flow.reverse[0], packet, now);
}

void
DataPlane::ReceiveCnp(Flow& flow, SimTime now)
{
    if (!flow.done)
    {
        flow.cc->OnCnp(flow.control, now);
    }
}

inline int64_t
DataPlane::PayloadOf(const Flow& flow, uint32_t packets) const
{
    return packets == flow.packets ? flow.sizeBytes
                                   : static_cast<int64_t>(packets) * m_parameters.payloadBytes;
}

inline void
DataPlane::ReceiveAck(const Packet& packet, SimTime now)
{
    Flow& flow = *packet.flow;
    if (flow.done)
    {
        return;
    }
    Port& port = *flow.forward[0];
    const bool nack = packet.kind == PacketKind::NACK;
    if (nack && m_parameters.reorderWindow)
    {
        ReceiveMissing(flow, packet, now);
        return;
    }
    const bool windowed = m_windowed || flow.control.windowBytes != INT64_MAX;
    const bool usesAcks = flow.usesAcks;
    const bool reacts = packet.ecn || nack || windowed || packet.sequence > flow.sendNext || usesAcks;
    if (reacts)
    {
        // What was due to leave before this moment leaves by the old rate and window.
        Kick(port, now);
    }
    const int64_t before = PayloadOf(flow, flow.acked);
    if (packet.sequence > flow.acked)
    {
        flow.acked = packet.sequence;
        flow.lastProgress = now;
        m_totals.payloadBytesAcked += PayloadOf(flow, flow.acked) - before;
        if (flow.acked == flow.packets)
        {
            Complete(flow, now);
            return;
        }
        flow.sendNext = std::max(flow.sendNext, flow.acked);
    }
    if (!reacts)
    {
        return;
    }
    if (packet.ecn)
    {
        flow.cc->OnCnp(flow.control, now);
    }
    if (usesAcks)
    {
        const AckInfo info{PayloadOf(flow, flow.acked) - before, now - packet.sent, packet.ecn != 0};
        flow.cc->OnAck(flow.control, info, now);
    }
    if (nack)
    {
        GoBack(flow, now);
    }
    if (flow.windowClosed && WindowOpen(flow))
    {
        Reopen(flow, now);
    }
    Kick(port, now);
}

void
DataPlane::ReceiveMissing(Flow& flow, const Packet& packet, SimTime now)
{
    Port& port = *flow.forward[0];
    Kick(port, now);
    if (packet.ecn)
    {
        flow.cc->OnCnp(flow.control, now);
    }
    const uint32_t sequence = packet.sequence;
    if (sequence >= flow.acked && sequence < flow.sendNext &&
        std::find(flow.lost.begin(), flow.lost.end(), sequence) == flow.lost.end())
    {
        flow.lost.push_back(sequence);
        flow.resend = true;
        if (!flow.sending)
        {
            AddSender(flow, std::max(flow.paceNext, now));
        }
        else if (flow.windowClosed)
        {
            Reopen(flow, now);
        }
    }
    Kick(port, now);
}

void
DataPlane::Complete(Flow& flow, SimTime now)
{
    flow.done = true;
    flow.end = now;
    if (flow.sending)
    {
        RemoveSender(flow);
    }
    onFlowDone(&flow, now);
}

inline void
DataPlane::Unreference(Flow* flow)
{
    if (--flow->references == 0)
    {
        m_freeFlows.push_back(flow);
    }
}

} // namespace kvnet
