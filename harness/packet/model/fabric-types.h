#ifndef KVNET_FABRIC_TYPES_H
#define KVNET_FABRIC_TYPES_H

#include <cstdint>
#include <string>
#include <vector>

namespace kvnet
{

/** Why Python is called, each with a number: the action's token, the flow's id, 0. */
enum Reason : uint32_t
{
    ON_ACTION,
    ON_FLOW_DONE,
    ON_HEARTBEAT,
};

/** A C function, since cppyy takes a quarter of a second to compile what a std::function needs. */
using PythonCall = void (*)(uint32_t, uint64_t);

/** Settings that hold for the whole network; see harness/network_settings.py for their meaning. Times in ps. */
struct NetworkParameters
{
    int64_t payloadBytes{4096};
    int64_t ackEvery{1};
    int64_t windowBytes{0}; //!< 0: no window
    bool windowScalesWithRate{false};
    int64_t timeout{0};
    int64_t nackInterval{0};
    int64_t reorderWindow{0}; //!< packets; 0: out-of-order packets are dropped, and the sender goes back
    int64_t reorderTimeout{0};

    bool cnpAsPacket{true};
    int64_t cnpInterval{0};

    int64_t bufferBytes{0};
    bool markAtEnqueue{false};
    double ecnMaxProbability{0};
    bool pfc{true};
    int64_t dynamicShift{-1}; //!< -1: static thresholds
    int64_t xoffBytes{0};
    int64_t xonBytes{0};
    int64_t reserveBytes{0};
    int64_t resumeOffsetBytes{0};
    bool acksInDataQueue{false};
    bool backgroundInDataQueue{false};

    int64_t dataOverhead{0};
    int64_t ackBytes{0};
    int64_t cnpBytes{0};
    int64_t pfcBytes{0};
    int64_t wireGap{0};
    int64_t roundingPs{1}; //!< 1 or 1000
};

/** One link. ECN thresholds and headroom are those of a switch port on it, already scaled with its rate. */
struct LinkParameters
{
    uint32_t nodeA{0};
    uint32_t nodeB{0};
    int64_t rateBps{0};
    int64_t delayPs{0};
    double lossRate{0};
    int64_t ecnMinBytes{0};
    int64_t ecnMaxBytes{0};
    int64_t headroomBytes{0};
};

/** What happened in the network so far. */
struct Totals
{
    uint64_t dataPackets{0};
    uint64_t ackPackets{0};
    uint64_t dataHops{0};
    uint64_t controlHops{0};
    uint64_t payloadBytesSent{0}; //!< each byte once
    uint64_t payloadBytesAcked{0};
    uint64_t retransmittedBytes{0};
    uint64_t ecnMarks{0};
    uint64_t cnps{0};
    uint64_t pfcPauses{0};
    uint64_t pfcResumes{0};
    uint64_t drops{0};
    uint64_t markedAcks{0};
    uint64_t outOfOrder{0}; //!< data packets that came before an earlier one of their flow
    uint64_t duplicates{0}; //!< data packets that the receiver had already
};

/** A finished or unfinished flow, as it is handed to Python: twelve 64-bit integers. */
struct FlowRow
{
    int64_t id{0};
    int64_t trafficClass{0};
    int64_t srcPort{0};
    int64_t dstPort{0};
    int64_t sizeBytes{0};
    int64_t ackedBytes{0};
    int64_t start{0};
    int64_t end{-1};
    int64_t idealFct{0}; //!< alone on its path at line rate
    int64_t marks{0};
    int64_t cnps{0};
    int64_t retransmittedBytes{0};
};

/** What a port did in one interval, as it is handed to Python: eight 64-bit integers. */
struct TraceRow
{
    int64_t port{0};
    int64_t start{0};
    int64_t end{0};
    int64_t queueMax{0};
    int64_t controlBytes{0};
    int64_t kvBytes{0};
    int64_t backgroundBytes{0};
    int64_t pausedTime{0};
};

} // namespace kvnet

#endif // KVNET_FABRIC_TYPES_H
