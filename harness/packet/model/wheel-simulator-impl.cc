#include "wheel-simulator-impl.h"

#include "ns3/assert.h"
#include "ns3/event-impl.h"
#include "ns3/make-event.h"
#include "ns3/simulator.h"

#include <algorithm>

namespace kvnet
{

namespace
{

constexpr int CACHE_LINE = 64;

/** Bring what an event will touch, and the cache line behind the event, into the cache. */
inline void
Fetch(const Event& event)
{
    __builtin_prefetch(event.touches);
    __builtin_prefetch(reinterpret_cast<const char*>(&event) + CACHE_LINE);
}

/** The same for what it will touch after that: of a Port, the lines that a packet-hop needs. */
inline void
FetchNext(const Event& event)
{
    const char* next = *static_cast<const char**>(event.touches);
    __builtin_prefetch(next);
    __builtin_prefetch(next + CACHE_LINE);
    __builtin_prefetch(next + 3 * CACHE_LINE);
}

} // namespace

NS_OBJECT_ENSURE_REGISTERED(WheelSimulatorImpl);

ns3::TypeId
WheelSimulatorImpl::GetTypeId()
{
    static ns3::TypeId tid = ns3::TypeId("kvnet::WheelSimulatorImpl")
                                 .SetParent<ns3::SimulatorImpl>()
                                 .SetGroupName("Core")
                                 .AddConstructor<WheelSimulatorImpl>();
    return tid;
}

WheelSimulatorImpl::WheelSimulatorImpl()
    : m_uid(ns3::EventId::UID::VALID),
      m_context(ns3::Simulator::NO_CONTEXT)
{
    m_wheel.fill(&m_none);
}

WheelSimulatorImpl::~WheelSimulatorImpl()
{
    for (auto& event : m_storage)
    {
        if (event.impl)
        {
            event.impl->Unref();
        }
    }
}

void
WheelSimulatorImpl::SetHorizon(SimTime ahead)
{
    const auto any = [](uint64_t bits) { return bits != 0; };
    if (!m_far.empty() || std::any_of(m_occupied.begin(), m_occupied.end(), any))
    {
        return;
    }
    m_shift = MIN_SHIFT;
    while (m_shift < MAX_SHIFT && SlotOf(ahead) >= MAX_SLOTS)
    {
        ++m_shift;
    }
    m_minShift = m_shift;
    m_mask = MAX_SLOTS - 1;
    m_slot = m_lookedAt = SlotOf(m_now);
    m_lookSlot = m_attendSlot = m_slot + (uint64_t{1} << (LOOK_SHIFT - m_shift));
}

void
WheelSimulatorImpl::FireGeneral(Event* event)
{
    auto* general = static_cast<GeneralEvent*>(event);
    WheelSimulatorImpl* self = general->owner;
    self->m_context = general->context;
    self->m_currentUid = general->uid;
    ns3::EventImpl* impl = general->impl;
    general->impl = nullptr;
    self->m_free.push_back(general);
    impl->Invoke();
    impl->Unref();
}

uint32_t
WheelSimulatorImpl::Add(uint32_t context, SimTime time, ns3::EventImpl* event)
{
    NS_ASSERT_MSG(time >= m_now, "kvnet::WheelSimulatorImpl: an event in the past");
    GeneralEvent* general;
    if (m_free.empty())
    {
        general = &m_storage.emplace_back();
        general->fire = &FireGeneral;
        general->owner = this;
    }
    else
    {
        general = m_free.back();
        m_free.pop_back();
    }
    general->impl = event;
    general->context = context;
    general->uid = m_uid++;
    if (m_uid < ns3::EventId::UID::VALID)
    {
        m_uid = ns3::EventId::UID::VALID;
    }
    Insert(general, time);
    return general->uid;
}

[[gnu::noinline]] void
WheelSimulatorImpl::InsertNow(Event* event, SimTime time)
{
    if (m_next == m_due.data())
    {
        GrowDue();
    }
    Due* at = --m_next;
    for (; at + 1 < m_dueEnd && at[1].time <= time; ++at)
    {
        at[0] = at[1];
    }
    *at = {time, event};
}

[[gnu::noinline]] void
WheelSimulatorImpl::GrowDue()
{
    const auto due = m_dueEnd - m_next;
    m_due.insert(m_due.begin(), m_due.size(), Due{});
    m_dueEnd = m_due.data() + m_due.size();
    m_next = m_dueEnd - due;
}

[[gnu::noinline]] void
WheelSimulatorImpl::InsertFar(Event* event, SimTime time)
{
    m_far.push({time, m_sequence++, event});
    m_farSlot = SlotOf(m_far.top().time) - m_mask;
    m_attendSlot = std::min(m_farSlot, m_lookSlot);
}

[[gnu::noinline]] void
WheelSimulatorImpl::TakeFromFar(uint64_t slot)
{
    while (!m_far.empty() && SlotOf(m_far.top().time) - slot <= m_mask)
    {
        const Far& far = m_far.top();
        Append(far.event, SlotOf(far.time));
        m_far.pop();
    }
    m_farSlot = m_far.empty() ? UINT64_MAX : SlotOf(m_far.top().time) - m_mask;
    m_attendSlot = std::min(m_farSlot, m_lookSlot);
}

[[gnu::noinline]] void
WheelSimulatorImpl::Adapt(uint64_t slot)
{
    const uint64_t events = m_count - m_lookedCount;
    const uint64_t slots = slot - m_lookedAt;
    const auto time = static_cast<SimTime>(slot << m_shift);
    if (events * SPARSE < slots && m_shift < MAX_SHIFT)
    {
        SetShift(m_shift + 1);
    }
    else if (events > slots * DENSE && m_shift > m_minShift)
    {
        SetShift(m_shift - 1);
    }
    m_lookedAt = SlotOf(time);
    m_lookedCount = m_count;
    m_lookSlot = m_lookedAt + (uint64_t{1} << (LOOK_SHIFT - m_shift));
    m_attendSlot = std::min(m_farSlot, m_lookSlot);
}

void
WheelSimulatorImpl::SetShift(int shift)
{
    // In order of time, and of equal times in the order in which they were scheduled.
    std::vector<Event*> pending;
    for (uint64_t slot = m_slot + 1; slot <= m_slot + m_mask; ++slot)
    {
        const auto first = static_cast<std::ptrdiff_t>(pending.size());
        for (Event* event = m_wheel[slot & m_mask]; event != &m_none; event = event->next)
        {
            pending.push_back(event);
        }
        std::reverse(pending.begin() + first, pending.end());
    }
    m_wheel.fill(&m_none);
    m_occupied.fill(0);
    m_shift = shift;
    m_mask = (MAX_SLOTS >> (shift - m_minShift)) - 1;
    m_slot = SlotOf(m_now);
    for (Event* event : pending)
    {
        Insert(event, event->time);
    }
    TakeFromFar(m_slot);
}

[[gnu::noinline]] void
WheelSimulatorImpl::Load(Event* newest)
{
    // Sorted by insertion, towards the front: of equal times the older, which comes later in the list, goes first.
    Due* const end = m_dueEnd;
    Due* begin = end;
    for (Event* event = newest; event != &m_none; event = event->next)
    {
        Fetch(*event);
        if (begin == m_due.data()) [[unlikely]]
        {
            GrowDue();
            Load(newest);
            return;
        }
        const SimTime time = event->time;
        Due* at = begin--;
        for (; at < end && at->time < time; ++at)
        {
            at[-1] = at[0];
        }
        at[-1] = {time, event};
    }
    m_next = begin;
    for (const Due* due = begin; due != end; ++due)
    {
        FetchNext(*due->event);
    }
}

inline bool
WheelSimulatorImpl::FindSlot(uint64_t& slot) const
{
    slot = m_slot + 1;
    uint64_t bits = m_occupied[(slot & m_mask) >> 6] >> (slot & 63);
    if (!bits)
    {
        // Once round: the last look, at the first word, takes in its lower bits.
        const uint64_t end = slot + m_mask + 1;
        slot &= ~uint64_t{63};
        do
        {
            slot += 64;
            bits = m_occupied[(slot & m_mask) >> 6];
        } while (!bits && slot < end);
        if (!bits)
        {
            if (m_far.empty())
            {
                return false;
            }
            slot = SlotOf(m_far.top().time);
            return true;
        }
    }
    slot += std::countr_zero(bits);
    return true;
}

void
WheelSimulatorImpl::Run()
{
    m_stop = false;
    do
    {
        if (m_next == m_dueEnd)
        {
            uint64_t slot;
            if (!FindSlot(slot))
            {
                break;
            }
            if (slot >= m_attendSlot) [[unlikely]]
            {
                if (slot >= m_lookSlot)
                {
                    Adapt(slot);
                    continue;
                }
                // Whatever the horizon now reaches leaves the heap before anything new can be scheduled there, so a
                // slot lists its events in the order in which they were scheduled.
                TakeFromFar(slot);
            }
            m_slot = slot;
            const uint64_t index = slot & m_mask;
            Event* head = m_wheel[index];
            m_wheel[index] = &m_none;
            __builtin_prefetch(m_wheel[(index + FAR) & m_mask]);
            Fetch(*m_wheel[(index + NEAR) & m_mask]);
            FetchNext(*m_wheel[(index + NEXT) & m_mask]);
            m_occupied[index >> 6] &= ~(uint64_t{1} << (index & 63));
            if (head->next == &m_none)
            {
                m_now = head->time;
                ++m_count;
                head->fire(head);
                continue;
            }
            Load(head);
        }
        const Due due = *m_next++;
        m_now = due.time;
        ++m_count;
        due.event->fire(due.event);
    } while (!m_stop);
}

bool
WheelSimulatorImpl::IsFinished() const
{
    return m_stop || (m_next == m_dueEnd && m_far.empty() &&
                      std::all_of(m_occupied.begin(), m_occupied.end(), [](uint64_t bits) {
                          return bits == 0;
                      }));
}

void
WheelSimulatorImpl::Stop()
{
    m_stop = true;
}

ns3::EventId
WheelSimulatorImpl::Stop(const ns3::Time& delay)
{
    return Schedule(delay, ns3::MakeEvent(&ns3::Simulator::Stop));
}

ns3::EventId
WheelSimulatorImpl::Schedule(const ns3::Time& delay, ns3::EventImpl* event)
{
    const SimTime time = m_now + delay.GetTimeStep();
    const uint32_t uid = Add(m_context, time, event);
    return ns3::EventId(event, time, m_context, uid);
}

void
WheelSimulatorImpl::ScheduleWithContext(uint32_t context,
                                        const ns3::Time& delay,
                                        ns3::EventImpl* event)
{
    Add(context, m_now + delay.GetTimeStep(), event);
}

ns3::EventId
WheelSimulatorImpl::ScheduleNow(ns3::EventImpl* event)
{
    return Schedule(ns3::Time(0), event);
}

ns3::EventId
WheelSimulatorImpl::ScheduleDestroy(ns3::EventImpl* event)
{
    ns3::EventId id(ns3::Ptr<ns3::EventImpl>(event, false),
                    m_now,
                    0xffffffff,
                    ns3::EventId::UID::DESTROY);
    m_destroyEvents.push_back(id);
    return id;
}

void
WheelSimulatorImpl::Destroy()
{
    while (!m_destroyEvents.empty())
    {
        ns3::Ptr<ns3::EventImpl> event = m_destroyEvents.front().PeekEventImpl();
        m_destroyEvents.pop_front();
        if (!event->IsCancelled())
        {
            event->Invoke();
        }
    }
}

void
WheelSimulatorImpl::Remove(const ns3::EventId& id)
{
    if (id.GetUid() == ns3::EventId::UID::DESTROY)
    {
        m_destroyEvents.remove(id);
        return;
    }
    Cancel(id);
}

void
WheelSimulatorImpl::Cancel(const ns3::EventId& id)
{
    if (!IsExpired(id))
    {
        id.PeekEventImpl()->Cancel();
    }
}

bool
WheelSimulatorImpl::IsExpired(const ns3::EventId& id) const
{
    if (id.PeekEventImpl() == nullptr || id.PeekEventImpl()->IsCancelled())
    {
        return true;
    }
    if (id.GetUid() == ns3::EventId::UID::DESTROY)
    {
        return std::find(m_destroyEvents.begin(), m_destroyEvents.end(), id) == m_destroyEvents.end();
    }
    const auto time = static_cast<SimTime>(id.GetTs());
    // The uid wraps: compare by distance.
    return time < m_now ||
           (time == m_now && static_cast<int32_t>(id.GetUid() - m_currentUid) <= 0);
}

ns3::Time
WheelSimulatorImpl::Now() const
{
    return ns3::TimeStep(m_now);
}

ns3::Time
WheelSimulatorImpl::GetDelayLeft(const ns3::EventId& id) const
{
    return IsExpired(id) ? ns3::TimeStep(0) : ns3::TimeStep(id.GetTs() - m_now);
}

ns3::Time
WheelSimulatorImpl::GetMaximumSimulationTime() const
{
    return ns3::TimeStep(0x7fffffffffffffffLL);
}

void
WheelSimulatorImpl::SetScheduler(ns3::ObjectFactory)
{
    // The event list is part of this engine; ns3::Simulator hands every engine the default scheduler.
}

uint32_t
WheelSimulatorImpl::GetSystemId() const
{
    return 0;
}

uint32_t
WheelSimulatorImpl::GetContext() const
{
    return m_context;
}

uint64_t
WheelSimulatorImpl::GetEventCount() const
{
    return m_count;
}

} // namespace kvnet
