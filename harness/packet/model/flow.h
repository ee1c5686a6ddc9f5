#ifndef KVNET_FLOW_H
#define KVNET_FLOW_H

#include "congestion-control.h"
#include "packet.h"

#include "ns3/ptr.h"

#include <vector>

namespace kvnet
{

class DataPlane;

/** One queue pair's flow: the state of its sender and of its receiver. Pooled; lives until its last packet is gone. */
struct Flow
{
    Event timer; //!< retransmission timeout; must be first

    // Sender
    RateControl control;
    ns3::Ptr<CongestionControl> cc;
    std::vector<Port*> forward; //!< egress ports from the source host to the destination
    std::vector<Port*> reverse; //!< and back, for ACKs and CNPs
    double psPerByte{0};        //!< of frame and gap at the current rate
    double pacedRateBps{0};     //!< the rate that psPerByte was computed for
    uint32_t packets{0};
    uint32_t sendNext{0}; //!< next packet to send
    uint32_t sendMax{0};  //!< packets sent at least once
    uint32_t acked{0};    //!< packets acknowledged
    uint16_t fullBytes{0}; //!< frame length of all packets but the last
    uint16_t lastBytes{0};
    uint8_t trafficClass{0};
    uint8_t queue{0};
    bool sending{false};       //!< in the NIC's list of senders
    bool windowClosed{false};
    bool done{false};
    SimTime paceNext{0};       //!< earliest time of the next packet
    SimTime lastProgress{0};

    // Receiver
    uint32_t expected{0};
    uint32_t sinceAck{0};
    bool echo{false};          //!< a marked packet since the last ACK
    SimTime lastCnp{-1};
    Event cnpTimer;            //!< end of the CNP interval in which a marked packet came
    bool cnpPending{false};    //!< cnpTimer is scheduled
    SimTime lastNack{-1};
    uint32_t nackedAt{UINT32_MAX}; //!< `expected` when the last NACK was sent

    // Both
    uint32_t references{0}; //!< packets in the network and pending timers that point here
    DataPlane* plane{nullptr};

    // Record
    uint64_t id{0};
    uint32_t srcPort{0};
    uint32_t dstPort{0};
    int64_t sizeBytes{0};
    int64_t lastPayloadBytes{0};
    SimTime start{0};
    SimTime end{-1};
    SimTime idealFct{0};
    uint64_t marks{0};
    uint64_t cnps{0};
    uint64_t retransmittedBytes{0};
    bool notify{false};
    size_t row{0}; //!< in the fabric's table of flows
};

} // namespace kvnet

#endif // KVNET_FLOW_H
