#ifndef KVNET_DCQCN_H
#define KVNET_DCQCN_H

#include "congestion-control.h"

#include "ns3/data-rate.h"
#include "ns3/nstime.h"

namespace kvnet
{

/**
 * DCQCN's reaction point (Zhu et al., SIGCOMM 2015, doi:10.1145/2785956.2787484), with the choices in which its
 * implementations differ as attributes.
 *
 * Alpha decays with its own timer; a cut multiplies the rate by (1 - alpha/2); a timer and a byte counter since the last cut
 * drive fast recovery, additive and hyper increase. With CutCheck > 0 a notification only asks for a cut, which happens at
 * the next tick of a clock that the first notification starts (the HPCC lineage); with 0 the notification itself cuts and
 * restarts the alpha timer (the paper).
 */
class Dcqcn : public CongestionControl
{
  public:
    static ns3::TypeId GetTypeId();
    void Start(RateControl& control, SimTime now) override;
    void OnCnp(RateControl& control, SimTime now) override;

    bool UsesAcks() const override
    {
        return false;
    }

    void OnDeadline(RateControl& control, SimTime now) override;
    void OnBytes(RateControl& control, SimTime now) override;

    double GetAlpha() const
    {
        return m_alpha;
    }

  private:
    void CatchUp(RateControl& control, SimTime now);
    void UpdateAlpha(SimTime now);
    void Cut(RateControl& control, SimTime now);
    void Increase(RateControl& control, uint32_t& steps);
    void SetDeadline(RateControl& control) const;

    // Attributes
    double m_g;
    double m_initialAlpha;
    ns3::Time m_alphaTimer;
    ns3::Time m_cutCheck;
    bool m_firstCutImmediate;
    bool m_clampTarget;
    ns3::Time m_increaseTimer;
    uint64_t m_byteCounter;
    uint32_t m_fastRecoverySteps;
    ns3::DataRate m_additiveStep;
    ns3::DataRate m_hyperStep;
    bool m_oneAdditiveRound;
    ns3::DataRate m_minRate;
    ns3::DataRate m_stepsForRate;

    // State
    double m_alpha{1};
    double m_target{0};
    double m_stepScale{1};
    SimTime m_nextAlpha{NEVER};
    SimTime m_nextCheck{NEVER}; //!< of a pending cut
    SimTime m_checkOrigin{0};   //!< the check's ticks are this plus multiples of CutCheck
    SimTime m_nextIncrease{NEVER};
    uint32_t m_timerSteps{0};
    uint32_t m_byteSteps{0};
    bool m_notified{false};     //!< since the last alpha update
    bool m_everNotified{false};
};

} // namespace kvnet

#endif // KVNET_DCQCN_H
