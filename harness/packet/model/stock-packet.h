#ifndef KVNET_STOCK_PACKET_H
#define KVNET_STOCK_PACKET_H

#include "ns3/packet.h"

#include <cstdint>
#include <vector>

namespace kvnet
{

// What a switch must know of a frame of the ns-3 stack, read from its bytes: IPv4 alone, as ns-3
// writes it (no options).

constexpr uint16_t ETHERTYPE_IPV4 = 0x0800;

/** Whether the sender reacts to congestion marks (RFC 3168). */
bool IsEcnCapable(const ns3::Packet& packet, uint16_t protocol);

/** What spreads flows over equal-cost paths: source port xor destination port of TCP and UDP, 0 for
 * all else. */
uint32_t PathEntropy(const ns3::Packet& packet, uint16_t protocol);

/** Mark the first bytes of an IPv4 packet with congestion experienced; a checksum of 0 was never
 * computed and stays. */
void SetCongestionExperienced(std::vector<uint8_t>& bytes);
void SetCongestionExperienced(ns3::Ptr<ns3::Packet> packet);

} // namespace kvnet

#endif // KVNET_STOCK_PACKET_H
