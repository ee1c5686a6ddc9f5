#ifndef KVNET_PORT_TRACE_H
#define KVNET_PORT_TRACE_H

#include "event.h"
#include "packet.h"

#include "ns3/event-id.h"

#include <array>
#include <functional>
#include <vector>

namespace kvnet
{

class DataPlane;
struct Port;

/**
 * Time series of chosen ports: largest queue, bytes sent by class, time held by PFC, per interval.
 *
 * Intervals end at multiples of the present resolution. When `capacity` of them are full, the resolution is halved and
 * what falls into one interval of the new length is merged: queues by their maximum, bytes and pauses by their sum. So
 * both memory and events stay bounded, whatever is simulated. While no flow is active nothing is sampled: the next
 * interval begins where the last one ended.
 */
class PortTrace
{
  public:
    /** Of one port over one interval. */
    struct Sample
    {
        int64_t queueMax{0}; //!< frame bytes of the longest of the port's queues
        std::array<int64_t, N_CLASSES> sentBytes{};
        int64_t pausedTime{0};
    };

    struct Interval
    {
        SimTime start;
        SimTime end;
    };

    /** `isActive` tells whether anything may still happen. */
    PortTrace(DataPlane& plane,
              std::vector<Port*> ports,
              SimTime resolution,
              size_t capacity,
              std::function<bool()> isActive);

    /** A flow begins: sample from now on. */
    void Wake(SimTime now);
    /** Take in the ports' queue maxima, which someone else is about to restart. */
    void Collect();
    /** End the present interval. */
    void Close(SimTime now);

    const std::vector<Port*>& Ports() const
    {
        return m_ports;
    }

    const std::vector<Interval>& Intervals() const
    {
        return m_intervals;
    }

    /** By port, then interval. */
    const Sample& Get(size_t port, size_t interval) const
    {
        return m_samples[port][interval];
    }

  private:
    void Fire();
    void ScheduleNext(SimTime now);
    void Halve();

    DataPlane& m_plane;
    std::vector<Port*> m_ports;
    SimTime m_resolution;
    size_t m_capacity;
    std::function<bool()> m_isActive;
    bool m_awake{false};
    SimTime m_start{0}; //!< of the present interval
    std::vector<Interval> m_intervals;
    std::vector<std::vector<Sample>> m_samples; //!< per port
    /** Per port: the queue's maximum in the present interval, and the counters at its start. */
    std::vector<Sample> m_present;
};

} // namespace kvnet

#endif // KVNET_PORT_TRACE_H
