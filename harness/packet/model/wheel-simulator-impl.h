#ifndef KVNET_WHEEL_SIMULATOR_IMPL_H
#define KVNET_WHEEL_SIMULATOR_IMPL_H

#include "event.h"

#include "ns3/simulator-impl.h"

#include <array>
#include <bit>
#include <cassert>
#include <deque>
#include <list>
#include <memory>
#include <queue>
#include <utility>
#include <vector>

namespace kvnet
{

/**
 * An ns-3 simulator engine for packet models: a timing wheel for the near future, a heap for the rest.
 *
 * Events run in order of time, those of equal time in the order in which they were scheduled, as with
 * ns3::DefaultSimulatorImpl. Embedded events (kvnet::Event) cost no allocation; ns-3's own events (EventImpl) run on it
 * unchanged. Single-threaded: ScheduleWithContext must be called from the thread that runs the simulation.
 *
 * A cancelled or removed event stays in the list until its time, where it does nothing.
 */
class WheelSimulatorImpl : public ns3::SimulatorImpl
{
  public:
    static ns3::TypeId GetTypeId();

    WheelSimulatorImpl();
    ~WheelSimulatorImpl() override;

    // Embedded events
    /** Schedule `event` at `time` >= now. */
    void Insert(Event* event, SimTime time);

    /** The current time [ps]. */
    SimTime NowPs() const
    {
        return m_now;
    }

    // ns3::SimulatorImpl
    void Destroy() override;
    bool IsFinished() const override;
    void Stop() override;
    ns3::EventId Stop(const ns3::Time& delay) override;
    ns3::EventId Schedule(const ns3::Time& delay, ns3::EventImpl* event) override;
    void ScheduleWithContext(uint32_t context,
                             const ns3::Time& delay,
                             ns3::EventImpl* event) override;
    ns3::EventId ScheduleNow(ns3::EventImpl* event) override;
    ns3::EventId ScheduleDestroy(ns3::EventImpl* event) override;
    void Remove(const ns3::EventId& id) override;
    void Cancel(const ns3::EventId& id) override;
    bool IsExpired(const ns3::EventId& id) const override;
    void Run() override;
    ns3::Time Now() const override;
    ns3::Time GetDelayLeft(const ns3::EventId& id) const override;
    ns3::Time GetMaximumSimulationTime() const override;
    void SetScheduler(ns3::ObjectFactory schedulerFactory) override;
    uint32_t GetSystemId() const override;
    uint32_t GetContext() const override;
    uint64_t GetEventCount() const override;

  private:
    /** An ns-3 event in the list: holds the reference that Schedule was given. */
    struct GeneralEvent : Event
    {
        WheelSimulatorImpl* owner;
        ns3::EventImpl* impl;
        uint32_t context;
        uint32_t uid;
    };

    struct Far
    {
        SimTime time;
        uint64_t sequence;
        Event* event;

        bool operator>(const Far& other) const
        {
            return time != other.time ? time > other.time : sequence > other.sequence;
        }
    };

    struct Due
    {
        SimTime time{0};
        Event* event{nullptr};
    };

    /** What is to happen within one slot's time, in the order in which it was scheduled: a few in place, the rest aside. */
    struct alignas(64) Slot
    {
        static constexpr uint32_t IN_PLACE = 3;

        Due first[IN_PLACE];
        uint32_t count{0};
        uint32_t capacity{IN_PLACE};
        std::unique_ptr<Due[]> rest; //!< room for capacity - IN_PLACE
    };

    /** 2^13 ps wide slots and 1024 of them: a horizon of 8.4 us, above the delay of a data centre's links. */
    static constexpr int SLOT_SHIFT = 13;
    static constexpr uint64_t N_SLOTS = 1024;

    static void FireGeneral(Event* event);
    uint32_t Add(uint32_t context, SimTime time, ns3::EventImpl* event);
    void Append(Event* event, SimTime time, uint64_t slot);
    static void Grow(Slot& s);
    void InsertNow(Event* event, SimTime time);
    void InsertFar(Event* event, SimTime time);
    /** The number of the next slot in which something happens; false if there is none. */
    bool FindSlot(uint64_t& slot) const;
    /** Take events out of the heap that the horizon reaches from `slot`. */
    void TakeFromFar(uint64_t slot);
    /** Make a slot's events, more than one, those to run. */
    void Load(Slot& s);
    /** Copy a full slot's events to m_due, nearly in order of time. */
    void Spread(const Slot& s);

    std::array<Slot, N_SLOTS> m_wheel;
    std::array<uint64_t, N_SLOTS / 64> m_occupied{};
    std::priority_queue<Far, std::vector<Far>, std::greater<>> m_far;
    uint64_t m_farSlot{UINT64_MAX}; //!< the first slot from which the horizon reaches the heap's top
    std::vector<Due> m_due{2}; //!< the events of the current slot in [m_next, m_end), sorted
    size_t m_next{0};
    size_t m_end{0};
    uint64_t m_slot{0};   //!< the current slot's number since time 0
    uint64_t m_sequence{0}; //!< orders equal times in the heap
    SimTime m_now{0};
    uint64_t m_count{0};
    bool m_stop{false};
    uint32_t m_uid;
    uint32_t m_currentUid{0};
    uint32_t m_context;
    std::deque<GeneralEvent> m_storage;
    std::vector<GeneralEvent*> m_free;
    std::list<ns3::EventId> m_destroyEvents;
};

inline void
WheelSimulatorImpl::Append(Event* event, SimTime time, uint64_t slot)
{
    const uint64_t index = slot & (N_SLOTS - 1);
    Slot& s = m_wheel[index];
    const uint32_t i = s.count;
    if (i == s.capacity) [[unlikely]]
    {
        Grow(s);
    }
    s.count = i + 1;
    Due* due = i < Slot::IN_PLACE ? &s.first[i] : &s.rest[i - Slot::IN_PLACE];
    *due = {time, event};
    m_occupied[index >> 6] |= uint64_t{1} << (index & 63);
}

inline void
WheelSimulatorImpl::Insert(Event* event, SimTime time)
{
    assert(time >= m_now);
    event->time = time;
    const uint64_t slot = static_cast<uint64_t>(time) >> SLOT_SHIFT;
    const uint64_t ahead = slot - m_slot;
    if (ahead - 1 < N_SLOTS - 1) [[likely]]
    {
        Append(event, time, slot);
    }
    else if (ahead == 0)
    {
        InsertNow(event, time);
    }
    else
    {
        InsertFar(event, time);
    }
}

} // namespace kvnet

#endif // KVNET_WHEEL_SIMULATOR_IMPL_H
