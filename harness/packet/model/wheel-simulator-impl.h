#ifndef KVNET_WHEEL_SIMULATOR_IMPL_H
#define KVNET_WHEEL_SIMULATOR_IMPL_H

#include "event.h"

#include "ns3/simulator-impl.h"

#include <array>
#include <bit>
#include <cassert>
#include <deque>
#include <list>
#include <queue>
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
    /**
     * Make the wheel reach so far ahead [ps], within limits: an event that is further away when it is scheduled costs a
     * heap's time. Does nothing once events are scheduled in it.
     */
    void SetHorizon(SimTime ahead);

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

    static constexpr uint64_t MAX_SLOTS = 4096;
    /** Slots of 2^10 ps unless SetHorizon says otherwise: a horizon of 4 us, above the delay of a data centre's links. */
    static constexpr int MIN_SHIFT = 10;
    /** Above this, slots hold so many events that sorting them costs more than the heap. */
    static constexpr int MAX_SHIFT = 13;
    /** The width of slots follows the density of events, within the horizon: every 2^26 ps it is looked at, */
    static constexpr int LOOK_SHIFT = 26;
    /** and where there are fewer events than one in so many slots, slots are made twice as wide, */
    static constexpr uint64_t SPARSE = 8;
    /** or half as wide where there are more than so many in a slot. */
    static constexpr uint64_t DENSE = 1;
    /** So many slots ahead an event, what it touches, and what it touches after that are fetched into the cache. */
    static constexpr uint64_t FAR = 6;
    static constexpr uint64_t NEAR = 3;
    static constexpr uint64_t NEXT = 1;

    static void FireGeneral(Event* event);
    uint32_t Add(uint32_t context, SimTime time, ns3::EventImpl* event);
    void Append(Event* event, uint64_t slot);
    void InsertNow(Event* event, SimTime time);
    void InsertFar(Event* event, SimTime time);
    /** Adapt the width of slots to how many events there were since the last look; `slot` is the next to come. */
    void Adapt(uint64_t slot);
    /** Change the width of slots. The current slot's events have all been run. */
    void SetShift(int shift);
    /** The number of the next slot in which something happens; false if there is none. */
    bool FindSlot(uint64_t& slot) const;
    /** Take events out of the heap that the horizon reaches from `slot`. */
    void TakeFromFar(uint64_t slot);
    /** Make a slot's events, newest first, those to run. */
    void Load(Event* newest);
    void GrowDue();
    uint64_t SlotOf(SimTime time) const
    {
        return static_cast<uint64_t>(time) >> m_shift;
    }

    std::array<Event*, MAX_SLOTS> m_wheel; //!< the newest event of each slot, linked to older ones; m_none ends the list
    Event m_none;
    int m_minShift{MIN_SHIFT};
    int m_shift{MIN_SHIFT};         //!< a slot is 2^m_shift ps wide
    uint64_t m_mask{MAX_SLOTS - 1}; //!< one less than the slots in use, whose number times their width is the horizon
    std::array<uint64_t, MAX_SLOTS / 64> m_occupied{};
    std::priority_queue<Far, std::vector<Far>, std::greater<>> m_far;
    uint64_t m_farSlot{UINT64_MAX}; //!< the first slot from which the horizon reaches the heap's top
    uint64_t m_lookSlot{uint64_t{1} << (LOOK_SHIFT - MIN_SHIFT)}; //!< from which the width is looked at again
    uint64_t m_attendSlot{m_lookSlot};                            //!< the smaller of the two
    uint64_t m_lookedAt{0};         //!< the slot of the last look
    uint64_t m_lookedCount{0};      //!< m_count then
    std::vector<Due> m_due{std::vector<Due>(64)}; //!< its last part: the events of the current slot, sorted
    Due* m_dueEnd{m_due.data() + m_due.size()};
    Due* m_next{m_dueEnd}; //!< in m_due
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

[[gnu::always_inline]] inline void
WheelSimulatorImpl::Append(Event* event, uint64_t slot)
{
    const uint64_t index = slot & m_mask;
    event->next = m_wheel[index];
    m_wheel[index] = event;
    m_occupied[index >> 6] |= uint64_t{1} << (index & 63);
}

[[gnu::always_inline]] inline void
WheelSimulatorImpl::Insert(Event* event, SimTime time)
{
    assert(time >= m_now);
    event->time = time;
    const uint64_t slot = SlotOf(time);
    const uint64_t ahead = slot - m_slot;
    if (ahead - 1 < m_mask) [[likely]]
    {
        Append(event, slot);
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
