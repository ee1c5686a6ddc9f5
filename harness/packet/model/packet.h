#ifndef KVNET_PACKET_H
#define KVNET_PACKET_H

#include "event.h"

#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <new>

namespace ns3
{
class Packet;
} // namespace ns3

namespace kvnet
{

struct Flow;
struct Port;

/** Traffic classes: one DSCP each, and the index of every per-class counter. */
enum TrafficClass : uint8_t
{
    CLASS_CONTROL,
    CLASS_KV,
    CLASS_BACKGROUND,
    N_CLASSES
};

/** Egress queues in order of strict priority. MAC control (PFC) is never paused. */
enum QueueIndex : uint8_t
{
    QUEUE_MAC,
    QUEUE_CONTROL,
    QUEUE_KV,
    QUEUE_BACKGROUND,
    N_QUEUES
};

enum class PacketKind : uint8_t
{
    DATA,
    ACK,
    NACK,
    CNP,
    PFC,   //!< `sequence` is the queue, `ecn` is 1 for pause and 0 for resume
    STOCK, //!< carries an ns3::Packet
};

/** A packet's descriptor. Pooled; exactly one cache line. */
struct alignas(64) Packet
{
    Port* out;          //!< the egress port to take at the next switch; null: a load balancer chooses; must be first
    Packet* next;       //!< in a queue, a lane or the free list
    Port* const* route; //!< where `out` was read: the egress ports of the path, null after the last one
    Flow* flow;

    union {
        SimTime following; //!< in a lane: when `next` arrives at the far end
        Port* in;          //!< in a queue: the port through which it entered the switch
    };

    union {
        SimTime sent;       //!< when the sender put it on the wire; an ACK echoes it
        ns3::Packet* stock; //!< holds a reference
    };

    uint32_t sequence; //!< DATA: packet number; ACK and NACK: next packet number expected; STOCK: may be marked
    uint16_t bytes;    //!< frame length, without preamble and gap
    PacketKind kind;
    uint8_t trafficClass;
    uint8_t queue;    //!< in switches
    uint8_t ecn;      //!< congestion experienced; on an ACK: echoed
    uint8_t buffered; //!< counted in the ingress accounting of `in`
};

static_assert(sizeof(Packet) == 64 && offsetof(Packet, out) == 0);

/** Hands out packets and takes them back; never returns memory. */
class PacketPool
{
  public:
    explicit PacketPool(std::pmr::memory_resource& memory)
        : m_memory(memory)
    {
    }

    Packet* Get()
    {
        if (!m_free) [[unlikely]]
        {
            Grow();
        }
        Packet* packet = m_free;
        m_free = packet->next;
        return packet;
    }

    void Put(Packet* packet)
    {
        packet->next = m_free;
        m_free = packet;
    }

    size_t Capacity() const
    {
        return m_capacity;
    }

  private:
    static constexpr size_t BLOCK = 1024;

    void Grow()
    {
        auto* block = static_cast<Packet*>(m_memory.allocate(BLOCK * sizeof(Packet), alignof(Packet)));
        for (size_t i = BLOCK; i-- > 0;)
        {
            Put(new (&block[i]) Packet);
        }
        m_capacity += BLOCK;
    }

    std::pmr::memory_resource& m_memory;
    Packet* m_free{nullptr};
    size_t m_capacity{0};
};

} // namespace kvnet

#endif // KVNET_PACKET_H
