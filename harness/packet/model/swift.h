#ifndef KVNET_SWIFT_H
#define KVNET_SWIFT_H

#include "congestion-control.h"

#include "ns3/nstime.h"

namespace kvnet
{

/**
 * Swift: AIMD on the round-trip delay against a target (Kumar et al., SIGCOMM 2020,
 * doi:10.1145/3387514.3406591, section 3).
 *
 * Below the target the window grows by `AdditiveIncrease` packets a round trip; above it, at most
 * once per round trip, it is multiplied by max(1 - Beta (delay - target) / delay, 1 -
 * MaxDecrease). The target grows with the switches on the path and shrinks with the window.
 *
 * The window of cwnd packets steers both of the sender's limits. `windowBytes` is the paper's:
 * packets in flight. ACKs may be coalesced here, so as many packets as an ACK may leave uncounted
 * are added, or a small window would wait for an ACK that nobody sends. The rate is cwnd per
 * delay, at any cwnd; the paper paces only below one packet, where CPUs pay for pacing, and lets
 * ACKs be the clock above, which coalesced ACKs are not: they would send in bursts. With an
 * ACK per packet both limits say the same in the steady state.
 *
 * Left out: the endpoint's delay and its own window, since simulated hosts answer at once; the
 * reaction to retransmissions, since what is lost in a lossless fabric is a matter of the
 * transport; smoothing, since simulated time stamps have no noise. CNPs are ignored.
 */
class Swift : public CongestionControl
{
  public:
    static ns3::TypeId GetTypeId();
    void Start(RateControl& control, SimTime now) override;
    void OnCnp(RateControl& control, SimTime now) override;
    void OnAck(RateControl& control, const AckInfo& ack, SimTime now) override;

    /** Packets in flight; below one, the share of a packet per round trip. */
    double GetWindow() const
    {
        return m_window;
    }

    /** Target delay [ps] at the present window. */
    double GetTargetDelay() const;

  private:
    void Grow(double packets);
    void Steer(RateControl& control, double delay) const;

    // Attributes
    ns3::Time m_baseTarget;
    ns3::Time m_hopScaling;
    ns3::Time m_flowScaling;
    double m_flowScalingMinWindow;
    double m_flowScalingMaxWindow;
    double m_additiveIncrease;
    double m_beta;
    double m_maxDecrease;
    double m_minWindow;
    double m_maxWindow;
    double m_initialWindow;

    // State
    double m_window{1};
    double m_windowLimit{1};
    double m_pathTarget{0}; //!< the target's part that does not depend on the window [ps]
    SimTime m_lastDecrease{0};
    bool m_decreased{false};
};

} // namespace kvnet

#endif // KVNET_SWIFT_H
