#ifndef KVNET_FLOW_H
#define KVNET_FLOW_H

#include "congestion-control.h"
#include "packet.h"
#include "sequence-bitmap.h"

#include "ns3/ptr.h"

#include <vector>

namespace kvnet
{

class DataPlane;
struct PortGroup;

/** One queue pair's flow: the state of its sender and of its receiver. Pooled; lives until its last packet is gone. */
struct Flow
{
    Event timer; //!< retransmission timeout; must be first

    // Sender
    RateControl control;
    ns3::Ptr<CongestionControl> cc;
    std::vector<Port*> forward; //!< egress ports from the source host to the destination
    std::vector<Port*> reverse; //!< and back, for ACKs and CNPs
    std::vector<Port*> hops;    //!< those of `forward` from the first switch on, null, those of `reverse`, null
    Port* const* route{nullptr}; //!< of data, in `hops`; null: a load balancer finds it hop by hop
    SimTime fullGap{0};         //!< between full packets at the current rate
    double pacedRateBps{0};     //!< the rate that fullGap was computed for
    uint32_t packets{0};
    uint32_t sendNext{0}; //!< next packet to send
    uint32_t sendMax{0};  //!< packets sent at least once
    uint32_t acked{0};    //!< packets acknowledged
    uint16_t fullBytes{0}; //!< frame length of all packets but the last
    uint16_t lastBytes{0};
    uint8_t trafficClass{0};
    uint8_t queue{0};
    bool sending{false};       //!< in the NIC's list of senders
    bool resend{false};        //!< `lost` is not empty
    bool windowClosed{false};
    bool usesAcks{false};      //!< what `cc` says
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

    // Only where data is placed out of order
    std::vector<uint32_t> lost; //!< packets to send again, at the sender
    SequenceBitmap placed;      //!< packets received beyond `expected`
    uint32_t received{0};       //!< one more than the highest packet number received
    uint32_t ackedUpTo{0};      //!< `expected` in the last ACK
    Event gapTimer;             //!< pending as long as a packet is missing that a later one has overtaken
    bool gapPending{false};
    uint32_t gapEnd{0};         //!< `received` when gapTimer was scheduled: gaps below it are older than that

    // Only with a load balancer
    std::vector<PortGroup>* towards{nullptr}; //!< per switch, its ports towards the last switch
    uint64_t key{0};                          //!< of the 5-tuple

    // Both
    uint32_t references{0}; //!< packets in the network and pending timers that point here
    DataPlane* plane{nullptr};

    // Record
    uint64_t id{0};
    uint32_t srcPort{0};
    uint32_t dstPort{0};
    uint16_t udpSourcePort{0};
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
