#include "wheel-simulator-impl.h"

#include "ns3/assert.h"
#include "ns3/event-impl.h"
#include "ns3/make-event.h"
#include "ns3/simulator.h"

#include <algorithm>

namespace kvnet
{

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
WheelSimulatorImpl::Grow(Slot& s)
{
    const uint32_t aside = s.capacity - Slot::IN_PLACE;
    auto rest = std::make_unique<Due[]>(2 * aside + 13);
    std::copy(s.rest.get(), s.rest.get() + aside, rest.get());
    s.rest = std::move(rest);
    s.capacity = Slot::IN_PLACE + 2 * aside + 13;
}

[[gnu::noinline]] void
WheelSimulatorImpl::InsertNow(Event* event, SimTime time)
{
    if (m_end + 2 >= m_due.size())
    {
        m_due.resize(2 * m_due.size() + 4);
    }
    size_t i = m_end++;
    while (i > m_next && m_due[i - 1].time > time)
    {
        m_due[i] = m_due[i - 1];
        --i;
    }
    m_due[i] = {time, event};
}

[[gnu::noinline]] void
WheelSimulatorImpl::InsertFar(Event* event, SimTime time)
{
    m_far.push({time, m_sequence++, event});
    m_farSlot = (static_cast<uint64_t>(m_far.top().time) >> SLOT_SHIFT) - (N_SLOTS - 1);
}

[[gnu::noinline]] void
WheelSimulatorImpl::TakeFromFar(uint64_t slot)
{
    while (!m_far.empty() && (static_cast<uint64_t>(m_far.top().time) >> SLOT_SHIFT) - slot < N_SLOTS)
    {
        const Far& far = m_far.top();
        Append(far.event, far.time, static_cast<uint64_t>(far.time) >> SLOT_SHIFT);
        m_far.pop();
    }
    m_farSlot = m_far.empty()
                    ? UINT64_MAX
                    : (static_cast<uint64_t>(m_far.top().time) >> SLOT_SHIFT) - (N_SLOTS - 1);
}

void
WheelSimulatorImpl::Spread(const Slot& s)
{
    // Spread over finer slots by the next bits of the time: what is left to sort is nearly in order.
    constexpr int FINE_BITS = 5;
    const auto fine = [](const Due& due) {
        return (static_cast<uint64_t>(due.time) >> (SLOT_SHIFT - FINE_BITS)) & ((1 << FINE_BITS) - 1);
    };
    std::array<uint32_t, 1 << FINE_BITS> place{};
    const auto each = [&s](auto&& visit) {
        std::for_each(s.first, s.first + Slot::IN_PLACE, visit);
        std::for_each(s.rest.get(), s.rest.get() + (s.count - Slot::IN_PLACE), visit);
    };
    each([&](const Due& due) { ++place[fine(due)]; });
    uint32_t before = 0;
    for (uint32_t& count : place)
    {
        before += std::exchange(count, before);
    }
    each([&](const Due& due) { m_due[place[fine(due)]++] = due; });
}

[[gnu::noinline]] void
WheelSimulatorImpl::Load(Slot& s)
{
    const size_t n = s.count;
    m_next = 0;
    m_end = n;
    if (m_due.size() < n + 2)
    {
        m_due.resize(n + 2); // with room to look ahead
    }
    const Due* source = s.first;
    if (n > Slot::IN_PLACE)
    {
        Spread(s);
        source = m_due.data();
    }
    // A stable insertion sort: events of equal time stay in the order in which they were scheduled.
    for (size_t i = 0; i < n; ++i)
    {
        const Due due = source[i];
        size_t j = i;
        while (j > 0 && m_due[j - 1].time > due.time)
        {
            m_due[j] = m_due[j - 1];
            --j;
        }
        m_due[j] = due;
    }
}

inline bool
WheelSimulatorImpl::FindSlot(uint64_t& slot) const
{
    const uint64_t start = (m_slot + 1) & (N_SLOTS - 1);
    constexpr uint64_t WORDS = N_SLOTS / 64;
    uint64_t word = start >> 6;
    uint64_t bits = m_occupied[word] & (~uint64_t{0} << (start & 63));
    // Once round: the last look at the first word takes in its lower bits.
    for (uint64_t looked = 0; !bits && looked < WORDS; ++looked)
    {
        word = (word + 1) & (WORDS - 1);
        bits = m_occupied[word];
    }
    if (bits)
    {
        const uint64_t index = (word << 6) + std::countr_zero(bits);
        slot = m_slot + 1 + ((index - start) & (N_SLOTS - 1));
        return true;
    }
    if (!m_far.empty())
    {
        slot = static_cast<uint64_t>(m_far.top().time) >> SLOT_SHIFT;
        return true;
    }
    return false;
}

void
WheelSimulatorImpl::Run()
{
    m_stop = false;
    while (!m_stop)
    {
        if (m_next == m_end)
        {
            uint64_t slot;
            if (!FindSlot(slot))
            {
                break;
            }
            m_slot = slot;
            if (slot >= m_farSlot)
            {
                // Whatever the horizon now reaches leaves the heap before anything new can be scheduled there, so a
                // slot lists its events in the order in which they were scheduled.
                TakeFromFar(slot);
            }
            const uint64_t index = slot & (N_SLOTS - 1);
            Slot& s = m_wheel[index];
            m_occupied[index >> 6] &= ~(uint64_t{1} << (index & 63));
            if (s.count == 1)
            {
                const Due due = s.first[0];
                s.count = 0;
                m_next = m_end = 0;
                m_now = due.time;
                ++m_count;
                due.event->fire(due.event);
                continue;
            }
            Load(s);
            s.count = 0;
        }
        while (m_next < m_end && !m_stop)
        {
            const Due due = m_due[m_next++];
            __builtin_prefetch(m_due[m_next + 1].event);
            m_now = due.time;
            ++m_count;
            due.event->fire(due.event);
        }
    }
}

bool
WheelSimulatorImpl::IsFinished() const
{
    return m_stop || (m_next == m_end && m_far.empty() &&
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
