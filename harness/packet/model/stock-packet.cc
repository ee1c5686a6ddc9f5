#include "stock-packet.h"

#include "ns3/header.h"

#include <array>

namespace kvnet
{

namespace
{

constexpr uint32_t BARE_IPV4_HEADER = 20;
constexpr uint32_t PORTS = 4;

/** An IPv4 header as it stands, so that the ns-3 internet module is not needed. */
class RawIpv4Header : public ns3::Header
{
  public:
    static ns3::TypeId GetTypeId()
    {
        static ns3::TypeId tid = ns3::TypeId("kvnet::RawIpv4Header")
                                     .SetParent<ns3::Header>()
                                     .SetGroupName("Kvnet")
                                     .AddConstructor<RawIpv4Header>();
        return tid;
    }

    ns3::TypeId GetInstanceTypeId() const override
    {
        return GetTypeId();
    }

    uint32_t GetSerializedSize() const override
    {
        return BARE_IPV4_HEADER;
    }

    void Serialize(ns3::Buffer::Iterator start) const override
    {
        start.Write(bytes.data(), BARE_IPV4_HEADER);
    }

    uint32_t Deserialize(ns3::Buffer::Iterator start) override
    {
        bytes.resize(BARE_IPV4_HEADER);
        start.Read(bytes.data(), BARE_IPV4_HEADER);
        return BARE_IPV4_HEADER;
    }

    void Print(std::ostream&) const override
    {
    }

    std::vector<uint8_t> bytes;
};

} // namespace

bool IsEcnCapable(const ns3::Packet& packet, uint16_t protocol)
{
    std::array<uint8_t, 2> bytes;
    return protocol == ETHERTYPE_IPV4 && packet.CopyData(bytes.data(), 2) == 2 && (bytes[1] & 3);
}

uint32_t PathEntropy(const ns3::Packet& packet, uint16_t protocol)
{
    std::array<uint8_t, BARE_IPV4_HEADER + PORTS> b;
    if (protocol != ETHERTYPE_IPV4 || packet.CopyData(b.data(), b.size()) != b.size())
    {
        return 0;
    }
    const bool whole = ((b[6] & 0x3F) | b[7]) == 0; // neither more fragments nor an offset
    const bool hasPorts = b[9] == 6 || b[9] == 17;
    return b[0] == 0x45 && whole && hasPorts
               ? ((uint32_t{b[20]} << 8) | b[21]) ^ ((uint32_t{b[22]} << 8) | b[23])
               : 0;
}

void SetCongestionExperienced(std::vector<uint8_t>& bytes)
{
    const uint8_t before = bytes[1];
    bytes[1] |= 3;
    uint32_t checksum = (uint32_t{bytes[10]} << 8) | bytes[11];
    if (checksum)
    {
        // RFC 1624, eqn. 3
        checksum = (~checksum & 0xFFFF) + (~uint32_t{before} & 0xFFFF) + bytes[1];
        checksum = (checksum & 0xFFFF) + (checksum >> 16);
        checksum = (checksum & 0xFFFF) + (checksum >> 16);
        bytes[10] = static_cast<uint8_t>(~checksum >> 8);
        bytes[11] = static_cast<uint8_t>(~checksum);
    }
}

void SetCongestionExperienced(ns3::Ptr<ns3::Packet> packet)
{
    RawIpv4Header header;
    packet->RemoveHeader(header);
    SetCongestionExperienced(header.bytes);
    packet->AddHeader(header);
}

} // namespace kvnet
