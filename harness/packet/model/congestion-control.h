#ifndef KVNET_CONGESTION_CONTROL_H
#define KVNET_CONGESTION_CONTROL_H

#include "event.h"

#include "ns3/object.h"

namespace kvnet
{

/**
 * What a queue pair's congestion control steers: its sending rate, and when it wants to be called.
 *
 * A rate holds from the next packet on: the send that is already scheduled does not move.
 */
struct RateControl
{
    // The flow's own facts
    double lineRateBps{0};
    int64_t packetBytes{0};     //!< payload of a full packet
    int64_t packetWireBytes{0}; //!< a full packet with all that it takes on the wire: headers, preamble, gap
    int64_t packetsPerAck{1};   //!< that the receiver may let pass before it acknowledges
    uint32_t switches{0};       //!< on the path

    // What is steered
    double rateBps{0};
    SimTime deadline{NEVER};       //!< OnDeadline is called before the first packet sent at or after this time
    int64_t bytesLeft{INT64_MAX};  //!< OnBytes is called once this many more frame bytes are sent
    int64_t windowBytes{INT64_MAX}; //!< payload bytes that may be unacknowledged
};

/** What an ACK tells. */
struct AckInfo
{
    int64_t ackedBytes; //!< payload bytes newly acknowledged
    SimTime rtt;        //!< since the newest acknowledged packet was put on the wire
    bool ecnEcho;
};

/**
 * Congestion control of one queue pair, at its sender.
 *
 * Subclass it, register a TypeId with a constructor, and name it in the scenario (`network.cc.use`). Objects are
 * reused: Start must reset all state that is not an attribute. Timers need no events: a rate matters only when a packet is
 * sent, so set `deadline` and catch up, in the order of the timers' times, when called.
 */
class CongestionControl : public ns3::Object
{
  public:
    static ns3::TypeId GetTypeId()
    {
        static ns3::TypeId tid = ns3::TypeId("kvnet::CongestionControl")
                                     .SetParent<ns3::Object>()
                                     .SetGroupName("Kvnet");
        return tid;
    }

    /** The queue pair starts at `now`; the flow's own facts are set, the rest holds its defaults and rate = line rate. */
    virtual void Start(RateControl& control, SimTime now) = 0;
    /** A congestion notification arrived (a CNP packet, or an ECN echo where `cnp_mode` is ack-flag). */
    virtual void OnCnp(RateControl& control, SimTime now) = 0;

    /** Whether OnAck does anything; it is not called otherwise. */
    virtual bool UsesAcks() const
    {
        return true;
    }

    /** An ACK arrived. */
    virtual void OnAck(RateControl&, const AckInfo&, SimTime)
    {
    }

    /** `control.deadline` has come; must move it on beyond `now`. */
    virtual void OnDeadline(RateControl& control, SimTime)
    {
        control.deadline = NEVER;
    }

    /** `control.bytesLeft` is used up; must renew it. */
    virtual void OnBytes(RateControl& control, SimTime)
    {
        control.bytesLeft = INT64_MAX;
    }
};

} // namespace kvnet

#endif // KVNET_CONGESTION_CONTROL_H
