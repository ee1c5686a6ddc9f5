#ifndef KVNET_PORT_H
#define KVNET_PORT_H

#include "flow.h"
#include "packet.h"

#include <array>
#include <cstddef>
#include <vector>

namespace kvnet
{

class DataPlane;
struct Switch;

/** A small counter-based generator, one per port, so that no port's draws depend on another's (splitmix64). */
struct PortRandom
{
    uint64_t state{0};

    /** Uniform in [0, 1). */
    double Uniform()
    {
        uint64_t x = (state += 0x9E3779B97F4A7C15ULL);
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
        x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
        x ^= x >> 31;
        return static_cast<double>(x >> 11) * 0x1.0p-53;
    }
};

/** First in, first out. */
struct alignas(32) PacketQueue
{
    Packet* head{nullptr};
    Packet* tail{nullptr};
    int64_t bytes{0};

    void Push(Packet* packet)
    {
        packet->next = nullptr;
        if (head)
        {
            tail->next = packet;
        }
        else
        {
            head = packet;
        }
        tail = packet;
        bytes += packet->bytes;
    }

    Packet* Pop()
    {
        Packet* packet = head;
        head = packet->next;
        bytes -= packet->bytes;
        return packet;
    }
};

/** Shared-buffer accounting of one ingress port and queue. */
struct alignas(32) Ingress
{
    int64_t bytes{0};    //!< within reserve and shared pool
    int64_t headroom{0}; //!< in headroom
    bool paused{false};  //!< upstream was told to pause
};

/** The queue pairs that have something to send into one queue at a NIC, in order of their turns. */
struct SenderList
{
    std::vector<SimTime> next; //!< earliest time of each one's next packet; NEVER while its window is closed
    std::vector<Flow*> flows;
    size_t turn{0};
};

/**
 * One end of a link, and the direction of the link that leaves it.
 *
 * The transmitter is lazy: `freeAt` says when it can start the next packet, and Advance(port, now) starts every packet
 * whose time has come. Packets in flight wait in a lane, first in first out since delay is constant; the one event of a
 * packet-hop is the arrival of the lane's head at the far end. While the transmitter is busy the lane is never empty, so
 * that nothing else needs to wake the port.
 */
struct alignas(64) Port
{
    // What every packet-hop touches comes first, a cache line for each stage.
    Event arrival; //!< of the lane's head (which it touches) at the peer; must be first
    SimTime freeAt{0};
    Packet* laneTail{nullptr};
    const SimTime* serialisation{nullptr}; //!< by frame length, gap included
    SimTime delay{0};

    Port* peer{nullptr};
    Switch* owner{nullptr}; //!< the switch it sits on; null on a host
    DataPlane* plane{nullptr};
    uint8_t backlog{0}; //!< bit per queue: not empty
    uint8_t paused{0};  //!< bit per queue: held by PFC
    bool transmitPending{false};
    bool lossy{false};    //!< lossRate > 0
    bool captured{false}; //!< what it sends is shown to DataPlane::onCapture
    uint16_t wireGap{0};
    std::array<int64_t, N_CLASSES> sentBytes{}; //!< on the wire, gap included
    int64_t queueMax{0};                        //!< of one queue, since it was last reset

    std::array<PacketQueue, N_QUEUES> queues;
    int64_t ecnMin{0};
    int64_t ecnMax{0};
    PortRandom random;
    double ecnMaxProbability{0};

    std::array<Ingress, N_QUEUES> ingress; //!< packets that came in here
    int64_t headroom{0};                   //!< per queue

    uint32_t id{0};
    int64_t rateBps{0};
    uint64_t marks{0};
    int64_t queueMaxSampled{0}; //!< as queueMax, of the part before a trace restarted that
    int64_t queueMaxEver{0};
    Event transmit; //!< at `freeAt`, while a switch must not be lazy
    double lossRate{0};
    PortRandom lossRandom;
    SimTime pausedSince{0};
    SimTime pausedTime{0};

    // Hosts only
    std::array<SenderList, N_QUEUES> senders;
    SimTime wakeAt{NEVER}; //!< the earliest pending wake-up

    /** The packet in flight that arrives next, or null. */
    Packet* LaneHead() const
    {
        return static_cast<Packet*>(arrival.touches);
    }

    /** For how long PFC held at least one class, up to `now`. */
    SimTime PausedUntil(SimTime now) const
    {
        return pausedTime + (paused && now > pausedSince ? now - pausedSince : 0);
    }
};

// What the engine fetches ahead (FetchNext).
static_assert(offsetof(Port, peer) == 64 && offsetof(Port, queues) == 128 && sizeof(PacketQueue) == 32);

/** A shared-memory switch. */
struct Switch
{
    std::vector<Port*> ports;
    uint32_t index{0};      //!< among the switches
    int64_t poolBytes{0};   //!< buffer less all headroom and reserves
    int64_t sharedUsed{0};  //!< of the pool
    uint32_t pausedIngresses{0};
};

} // namespace kvnet

#endif // KVNET_PORT_H
