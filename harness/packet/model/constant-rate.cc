#include "constant-rate.h"

namespace kvnet
{

NS_OBJECT_ENSURE_REGISTERED(ConstantRate);

ns3::TypeId
ConstantRate::GetTypeId()
{
    static ns3::TypeId tid =
        ns3::TypeId("kvnet::ConstantRate")
            .SetParent<CongestionControl>()
            .SetGroupName("Kvnet")
            .AddConstructor<ConstantRate>()
            .AddAttribute("Rate",
                          "Sending rate, preamble and gap included; 0 is the line rate.",
                          ns3::DataRateValue(ns3::DataRate(0)),
                          ns3::MakeDataRateAccessor(&ConstantRate::m_rate),
                          ns3::MakeDataRateChecker());
    return tid;
}

void
ConstantRate::Start(RateControl& control, SimTime)
{
    const auto rate = static_cast<double>(m_rate.GetBitRate());
    control.rateBps = rate > 0 ? std::min(rate, control.lineRateBps) : control.lineRateBps;
}

void
ConstantRate::OnCnp(RateControl&, SimTime)
{
}

} // namespace kvnet
