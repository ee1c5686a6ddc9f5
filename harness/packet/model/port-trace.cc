#include "port-trace.h"

#include "data-plane.h"

#include "ns3/simulator.h"

#include <algorithm>

namespace kvnet
{

PortTrace::PortTrace(DataPlane& plane,
                     std::vector<Port*> ports,
                     SimTime resolution,
                     size_t capacity,
                     std::function<bool()> isActive)
    : m_plane(plane),
      m_ports(std::move(ports)),
      m_resolution(resolution),
      m_capacity(capacity),
      m_isActive(std::move(isActive)),
      m_samples(m_ports.size()),
      m_present(m_ports.size())
{
}

void
PortTrace::Wake(SimTime now)
{
    if (m_awake)
    {
        return;
    }
    m_awake = true;
    const SimTime boundary = now / m_resolution * m_resolution;
    if (boundary > m_start)
    {
        Close(boundary); // nothing was sent since that moment
    }
    ScheduleNext(now);
}

void
PortTrace::ScheduleNext(SimTime now)
{
    const SimTime next = (now / m_resolution + 1) * m_resolution;
    ns3::Simulator::Schedule(ns3::TimeStep(next - now), &PortTrace::Fire, this);
}

void
PortTrace::Fire()
{
    const SimTime now = ns3::Simulator::Now().GetTimeStep();
    Close(now);
    if (m_isActive())
    {
        ScheduleNext(now);
    }
    else
    {
        m_awake = false;
    }
}

void
PortTrace::Collect()
{
    for (size_t i = 0; i < m_ports.size(); ++i)
    {
        Port& port = *m_ports[i];
        m_present[i].queueMax = std::max(m_present[i].queueMax, port.queueMax);
        port.queueMaxSampled = std::max(port.queueMaxSampled, port.queueMax);
        port.queueMax = 0;
    }
}

void
PortTrace::Close(SimTime now)
{
    if (now <= m_start)
    {
        return;
    }
    for (Port* port : m_ports)
    {
        m_plane.Advance(*port, now);
    }
    Collect();
    for (size_t i = 0; i < m_ports.size(); ++i)
    {
        const Port& port = *m_ports[i];
        Sample& before = m_present[i];
        Sample sample{before.queueMax, {}, port.PausedUntil(now) - before.pausedTime};
        for (size_t c = 0; c < N_CLASSES; ++c)
        {
            sample.sentBytes[c] = port.sentBytes[c] - before.sentBytes[c];
        }
        m_samples[i].push_back(sample);
        before.sentBytes = port.sentBytes;
        before.pausedTime += sample.pausedTime;
        before.queueMax = 0;
        for (const PacketQueue& queue : port.queues)
        {
            before.queueMax = std::max(before.queueMax, queue.bytes);
        }
    }
    m_intervals.push_back({m_start, now});
    m_start = now;
    while (m_intervals.size() >= m_capacity)
    {
        Halve();
    }
}

void
PortTrace::Halve()
{
    m_resolution *= 2;
    size_t kept = 0;
    for (size_t i = 1; i < m_intervals.size(); ++i)
    {
        Interval& into = m_intervals[kept];
        const bool merges = into.start / m_resolution == (m_intervals[i].end - 1) / m_resolution;
        if (merges)
        {
            into.end = m_intervals[i].end;
        }
        else
        {
            m_intervals[++kept] = m_intervals[i];
        }
        for (std::vector<Sample>& samples : m_samples)
        {
            if (!merges)
            {
                samples[kept] = samples[i];
                continue;
            }
            samples[kept].queueMax = std::max(samples[kept].queueMax, samples[i].queueMax);
            samples[kept].pausedTime += samples[i].pausedTime;
            for (size_t c = 0; c < N_CLASSES; ++c)
            {
                samples[kept].sentBytes[c] += samples[i].sentBytes[c];
            }
        }
    }
    m_intervals.resize(kept + 1);
    for (std::vector<Sample>& samples : m_samples)
    {
        samples.resize(kept + 1);
    }
}

} // namespace kvnet
