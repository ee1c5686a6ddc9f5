#ifndef KVNET_CONSTANT_RATE_H
#define KVNET_CONSTANT_RATE_H

#include "congestion-control.h"

#include "ns3/data-rate.h"

#include <algorithm>

namespace kvnet
{

/** No reaction to congestion: a constant rate, the line rate unless `Rate` is lower. */
class ConstantRate : public CongestionControl
{
  public:
    static ns3::TypeId GetTypeId();
    void Start(RateControl& control, SimTime now) override;
    void OnCnp(RateControl& control, SimTime now) override;

    bool UsesAcks() const override
    {
        return false;
    }


  private:
    ns3::DataRate m_rate;
};

} // namespace kvnet

#endif // KVNET_CONSTANT_RATE_H
