#include "swift.h"

#include "ns3/double.h"

#include <algorithm>
#include <cmath>

namespace kvnet
{

NS_OBJECT_ENSURE_REGISTERED(Swift);

ns3::TypeId
Swift::GetTypeId()
{
    // "Ours": the paper leaves the value to the operator, or does not give it.
    static ns3::TypeId tid =
        ns3::TypeId("kvnet::Swift")
            .SetParent<CongestionControl>()
            .SetGroupName("Kvnet")
            .AddConstructor<Swift>()
            .AddAttribute("BaseTarget",
                          "Target delay of a path without a switch at a large window. 25 us is the "
                          "value that simulators take from the paper.",
                          ns3::TimeValue(ns3::MicroSeconds(25)),
                          ns3::MakeTimeAccessor(&Swift::m_baseTarget),
                          ns3::MakeTimeChecker(ns3::TimeStep(1)))
            .AddAttribute("HopScaling",
                          "Added to the target delay for each switch on the path. Ours: a link of "
                          "1 us, there and back.",
                          ns3::TimeValue(ns3::MicroSeconds(2)),
                          ns3::MakeTimeAccessor(&Swift::m_hopScaling),
                          ns3::MakeTimeChecker(ns3::Time(0)))
            .AddAttribute("FlowScaling",
                          "Added to the target delay at small windows (fs_range); 0: off. Ours.",
                          ns3::TimeValue(ns3::MicroSeconds(100)),
                          ns3::MakeTimeAccessor(&Swift::m_flowScaling),
                          ns3::MakeTimeChecker(ns3::Time(0)))
            .AddAttribute("FlowScalingMinWindow",
                          "Window at and below which all of FlowScaling is added [packets].",
                          ns3::DoubleValue(0.1),
                          ns3::MakeDoubleAccessor(&Swift::m_flowScalingMinWindow),
                          ns3::MakeDoubleChecker<double>(1e-6))
            .AddAttribute("FlowScalingMaxWindow",
                          "Window at and above which nothing of FlowScaling is added [packets].",
                          ns3::DoubleValue(100),
                          ns3::MakeDoubleAccessor(&Swift::m_flowScalingMaxWindow),
                          ns3::MakeDoubleChecker<double>(1e-6))
            .AddAttribute("AdditiveIncrease",
                          "Growth per round trip below the target [packets] (ai).",
                          ns3::DoubleValue(1),
                          ns3::MakeDoubleAccessor(&Swift::m_additiveIncrease),
                          ns3::MakeDoubleChecker<double>(1e-6))
            .AddAttribute("Beta",
                          "Share of the relative excess of delay by which the window shrinks.",
                          ns3::DoubleValue(0.8),
                          ns3::MakeDoubleAccessor(&Swift::m_beta),
                          ns3::MakeDoubleChecker<double>(0, 1))
            .AddAttribute("MaxDecrease",
                          "Largest share of the window that one decrease takes (max_mdf).",
                          ns3::DoubleValue(0.5),
                          ns3::MakeDoubleAccessor(&Swift::m_maxDecrease),
                          ns3::MakeDoubleChecker<double>(0, 0.99))
            .AddAttribute("MinWindow",
                          "Smallest window [packets]; 0.001 in the paper.",
                          ns3::DoubleValue(0.001),
                          ns3::MakeDoubleAccessor(&Swift::m_minWindow),
                          ns3::MakeDoubleChecker<double>(1e-6))
            .AddAttribute("MaxWindow",
                          "Largest window [packets]; 0: what fills the line at the target delay, "
                          "where a lone sender's own queue would stop it.",
                          ns3::DoubleValue(0),
                          ns3::MakeDoubleAccessor(&Swift::m_maxWindow),
                          ns3::MakeDoubleChecker<double>(0))
            .AddAttribute("InitialWindow",
                          "Window at the start [packets]; 0: the largest, so that a flow starts at "
                          "line rate as RoCE senders do. Ours.",
                          ns3::DoubleValue(0),
                          ns3::MakeDoubleAccessor(&Swift::m_initialWindow),
                          ns3::MakeDoubleChecker<double>(0));
    return tid;
}

void
Swift::Start(RateControl& control, SimTime)
{
    m_pathTarget = static_cast<double>(m_baseTarget.GetTimeStep()) +
                   control.switches * static_cast<double>(m_hopScaling.GetTimeStep());
    const double fillsLine =
        control.lineRateBps * m_pathTarget / (8e12 * static_cast<double>(control.packetWireBytes));
    m_windowLimit = std::max(m_maxWindow > 0 ? m_maxWindow : fillsLine, m_minWindow);
    m_window = m_initialWindow > 0 ? std::clamp(m_initialWindow, m_minWindow, m_windowLimit)
                                   : m_windowLimit;
    m_decreased = false;
    Steer(control, m_pathTarget);
}

void
Swift::OnCnp(RateControl&, SimTime)
{
}

void
Swift::OnAck(RateControl& control, const AckInfo& ack, SimTime now)
{
    const auto delay = static_cast<double>(ack.rtt);
    const double target = GetTargetDelay();
    if (delay < target)
    {
        Grow(static_cast<double>(ack.ackedBytes) / static_cast<double>(control.packetBytes));
    }
    else if (!m_decreased || now - m_lastDecrease >= ack.rtt)
    {
        m_window *= std::max(1 - m_beta * (delay - target) / delay, 1 - m_maxDecrease);
        m_lastDecrease = now;
        m_decreased = true;
    }
    m_window = std::clamp(m_window, m_minWindow, m_windowLimit);
    Steer(control, delay);
}

double
Swift::GetTargetDelay() const
{
    const auto range = static_cast<double>(m_flowScaling.GetTimeStep());
    if (m_window <= m_flowScalingMinWindow)
    {
        return m_pathTarget + range;
    }
    if (m_window >= m_flowScalingMaxWindow)
    {
        return m_pathTarget;
    }
    const double least = 1 / std::sqrt(m_flowScalingMaxWindow);
    const double most = 1 / std::sqrt(m_flowScalingMinWindow);
    return m_pathTarget + range * (1 / std::sqrt(m_window) - least) / (most - least);
}

void
Swift::Grow(double packets)
{
    // Packet by packet, so that a coalesced ACK adds what as many single ones would.
    for (; packets > 0; --packets)
    {
        const double step = m_additiveIncrease * std::min(packets, 1.0);
        m_window += m_window >= 1 ? step / m_window : step;
    }
}

void
Swift::Steer(RateControl& control, double delay) const
{
    const double wireBits = 8 * static_cast<double>(control.packetWireBytes);
    control.rateBps = std::min(m_window * wireBits * 1e12 / delay, control.lineRateBps);
    const double packets = std::max(m_window, 1.0) + static_cast<double>(control.packetsPerAck - 1);
    control.windowBytes = static_cast<int64_t>(packets * static_cast<double>(control.packetBytes));
}

} // namespace kvnet
