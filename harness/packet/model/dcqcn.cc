#include "dcqcn.h"

#include "ns3/boolean.h"
#include "ns3/double.h"
#include "ns3/uinteger.h"

#include <algorithm>
#include <cmath>

namespace kvnet
{

NS_OBJECT_ENSURE_REGISTERED(Dcqcn);

ns3::TypeId
Dcqcn::GetTypeId()
{
    static ns3::TypeId tid =
        ns3::TypeId("kvnet::Dcqcn")
            .SetParent<CongestionControl>()
            .SetGroupName("Kvnet")
            .AddConstructor<Dcqcn>()
            .AddAttribute("G",
                          "Gain of the alpha estimate.",
                          ns3::DoubleValue(1.0 / 256),
                          ns3::MakeDoubleAccessor(&Dcqcn::m_g),
                          ns3::MakeDoubleChecker<double>(0, 1))
            .AddAttribute("InitialAlpha",
                          "Alpha at the first notification.",
                          ns3::DoubleValue(1),
                          ns3::MakeDoubleAccessor(&Dcqcn::m_initialAlpha),
                          ns3::MakeDoubleChecker<double>(0, 1))
            .AddAttribute("AlphaTimer",
                          "Period of the alpha update.",
                          ns3::TimeValue(ns3::MicroSeconds(55)),
                          ns3::MakeTimeAccessor(&Dcqcn::m_alphaTimer),
                          ns3::MakeTimeChecker(ns3::TimeStep(1)))
            .AddAttribute("CutCheck",
                          "Period at which pending cuts are carried out; 0: at the notification.",
                          ns3::TimeValue(ns3::Time(0)),
                          ns3::MakeTimeAccessor(&Dcqcn::m_cutCheck),
                          ns3::MakeTimeChecker(ns3::Time(0)))
            .AddAttribute("FirstCutImmediate",
                          "Whether the very first notification cuts at once.",
                          ns3::BooleanValue(true),
                          ns3::MakeBooleanAccessor(&Dcqcn::m_firstCutImmediate),
                          ns3::MakeBooleanChecker())
            .AddAttribute("ClampTarget",
                          "Whether every cut sets the target rate to the rate before it, or only one after an increase.",
                          ns3::BooleanValue(true),
                          ns3::MakeBooleanAccessor(&Dcqcn::m_clampTarget),
                          ns3::MakeBooleanChecker())
            .AddAttribute("IncreaseTimer",
                          "Period of the increase timer, restarted by a cut.",
                          ns3::TimeValue(ns3::MicroSeconds(55)),
                          ns3::MakeTimeAccessor(&Dcqcn::m_increaseTimer),
                          ns3::MakeTimeChecker(ns3::TimeStep(1)))
            .AddAttribute("ByteCounter",
                          "Frame bytes per increase event of the byte counter; 0: off.",
                          ns3::UintegerValue(10000000),
                          ns3::MakeUintegerAccessor(&Dcqcn::m_byteCounter),
                          ns3::MakeUintegerChecker<uint64_t>())
            .AddAttribute("FastRecoverySteps",
                          "Increase events that only halve the distance to the target (F).",
                          ns3::UintegerValue(5),
                          ns3::MakeUintegerAccessor(&Dcqcn::m_fastRecoverySteps),
                          ns3::MakeUintegerChecker<uint32_t>(1))
            .AddAttribute("AdditiveStep",
                          "Target rate step of additive increase (R_AI).",
                          ns3::DataRateValue(ns3::DataRate("40Mbps")),
                          ns3::MakeDataRateAccessor(&Dcqcn::m_additiveStep),
                          ns3::MakeDataRateChecker())
            .AddAttribute("HyperStep",
                          "Target rate step of hyper increase (R_HAI).",
                          ns3::DataRateValue(ns3::DataRate("400Mbps")),
                          ns3::MakeDataRateAccessor(&Dcqcn::m_hyperStep),
                          ns3::MakeDataRateChecker())
            .AddAttribute("OneAdditiveRound",
                          "True: one additive round, then hyper increase. False: hyper increase once both timer and "
                          "byte counter have passed F.",
                          ns3::BooleanValue(false),
                          ns3::MakeBooleanAccessor(&Dcqcn::m_oneAdditiveRound),
                          ns3::MakeBooleanChecker())
            .AddAttribute("MinRate",
                          "Lowest sending rate.",
                          ns3::DataRateValue(ns3::DataRate("10Mbps")),
                          ns3::MakeDataRateAccessor(&Dcqcn::m_minRate),
                          ns3::MakeDataRateChecker())
            .AddAttribute("StepsForRate",
                          "Line rate for which the steps are given; they scale with the line rate. 0: do not scale.",
                          ns3::DataRateValue(ns3::DataRate(0)),
                          ns3::MakeDataRateAccessor(&Dcqcn::m_stepsForRate),
                          ns3::MakeDataRateChecker());
    return tid;
}

void
Dcqcn::Start(RateControl& control, SimTime)
{
    m_alpha = m_initialAlpha;
    m_target = control.lineRateBps;
    const auto reference = static_cast<double>(m_stepsForRate.GetBitRate());
    m_stepScale = reference > 0 ? control.lineRateBps / reference : 1;
    m_nextAlpha = m_nextCheck = m_nextIncrease = NEVER;
    m_timerSteps = m_byteSteps = 0;
    m_notified = m_everNotified = false;
}

void
Dcqcn::OnCnp(RateControl& control, SimTime now)
{
    CatchUp(control, now);
    const SimTime period = m_cutCheck.GetTimeStep();
    const bool first = !m_everNotified;
    m_everNotified = true;
    if (period == 0 || (first && m_firstCutImmediate))
    {
        Cut(control, now);
        m_alpha = (1 - m_g) * m_alpha + m_g;
        m_notified = false;
        m_nextAlpha = now + m_alphaTimer.GetTimeStep();
        m_checkOrigin = now;
    }
    else if (first)
    {
        m_notified = false;
        m_nextAlpha = now + m_alphaTimer.GetTimeStep();
        m_checkOrigin = now + 1000; // 1 ns, so that an alpha update due at the same time comes first
        m_nextCheck = m_checkOrigin + period;
    }
    else
    {
        m_notified = true;
        if (m_nextCheck == NEVER)
        {
            m_nextCheck = now + period - (now - m_checkOrigin) % period;
        }
    }
    SetDeadline(control);
}

void
Dcqcn::OnDeadline(RateControl& control, SimTime now)
{
    CatchUp(control, now);
    SetDeadline(control);
}

void
Dcqcn::OnBytes(RateControl& control, SimTime now)
{
    CatchUp(control, now);
    Increase(control, m_byteSteps);
    control.bytesLeft += static_cast<int64_t>(m_byteCounter);
    SetDeadline(control);
}

void
Dcqcn::CatchUp(RateControl& control, SimTime now)
{
    while (true)
    {
        if (m_nextCheck <= now && m_nextCheck <= m_nextIncrease)
        {
            const SimTime at = m_nextCheck;
            UpdateAlpha(at);
            Cut(control, at);
        }
        else if (m_nextIncrease <= now)
        {
            m_nextIncrease += m_increaseTimer.GetTimeStep();
            Increase(control, m_timerSteps);
        }
        else
        {
            break;
        }
    }
    UpdateAlpha(now);
}

void
Dcqcn::UpdateAlpha(SimTime now)
{
    if (now < m_nextAlpha)
    {
        return;
    }
    const SimTime period = m_alphaTimer.GetTimeStep();
    SimTime updates = (now - m_nextAlpha) / period + 1;
    m_nextAlpha += updates * period;
    if (m_notified)
    {
        m_alpha = (1 - m_g) * m_alpha + m_g;
        m_notified = false;
        --updates;
    }
    m_alpha *= std::pow(1 - m_g, static_cast<double>(updates));
}

void
Dcqcn::Cut(RateControl& control, SimTime now)
{
    if (m_clampTarget || m_timerSteps > 0 || m_byteSteps > 0)
    {
        m_target = control.rateBps;
    }
    control.rateBps = std::max(static_cast<double>(m_minRate.GetBitRate()),
                               control.rateBps * (1 - m_alpha / 2));
    m_timerSteps = m_byteSteps = 0;
    m_nextCheck = NEVER;
    m_nextIncrease = now + m_increaseTimer.GetTimeStep();
    if (m_byteCounter > 0)
    {
        control.bytesLeft = static_cast<int64_t>(m_byteCounter);
    }
}

void
Dcqcn::Increase(RateControl& control, uint32_t& steps)
{
    const uint32_t most = std::max(m_timerSteps, m_byteSteps);
    const uint32_t least = std::min(m_timerSteps, m_byteSteps);
    const bool hyper = (m_oneAdditiveRound ? most : least) > m_fastRecoverySteps;
    if (most >= m_fastRecoverySteps)
    {
        const ns3::DataRate& step = hyper ? m_hyperStep : m_additiveStep;
        m_target = std::min(m_target + static_cast<double>(step.GetBitRate()) * m_stepScale,
                            control.lineRateBps);
    }
    control.rateBps = std::min((control.rateBps + m_target) / 2, control.lineRateBps);
    ++steps;
    if (control.lineRateBps - control.rateBps < 1)
    {
        // Within a bit per second of the line: recovered, and nothing is left to increase until the next cut.
        control.rateBps = control.lineRateBps;
        m_nextIncrease = NEVER;
        control.bytesLeft = INT64_MAX / 2;
    }
}

void
Dcqcn::SetDeadline(RateControl& control) const
{
    control.deadline = std::min(m_nextCheck, m_nextIncrease);
}

} // namespace kvnet
