#include "packet-capture.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace kvnet
{

namespace
{

constexpr size_t FLUSH_BYTES = 1 << 20;

constexpr uint32_t ETHERNET_HEADER = 14;
constexpr uint32_t IP_HEADER = 20;
constexpr uint32_t UDP_HEADER = 8;
constexpr uint32_t BTH = 12;
constexpr uint32_t RETH = 16;
constexpr uint32_t AETH = 4;
constexpr uint32_t CNP_RESERVED = 16;
constexpr uint32_t ICRC = 4;
//! Of IPv4 without and TCP with all options.
constexpr uint32_t STOCK_HEADERS = 80;

constexpr uint64_t ETHERTYPE_MAC_CONTROL = 0x8808;
constexpr uint64_t ROCE_PORT = 4791;
constexpr uint64_t FIRST_ADDRESS = 0x0A000001;

//! DSCP of each class: CS6 as NICs send CNPs, AF31 as is customary for RoCE, CS1 for low priority
//! (RFC 4594).
constexpr std::array<uint8_t, N_CLASSES> DSCP{48, 26, 8};

constexpr int64_t MAX_MESSAGE = int64_t{1} << 31; // InfiniBand, 9.7.6

constexpr uint8_t Priority(uint32_t queue)
{
    return queue == QUEUE_KV ? DSCP[CLASS_KV] / 8 : DSCP[CLASS_BACKGROUND] / 8;
}

constexpr std::array<uint32_t, 256> MakeCrcTable()
{
    std::array<uint32_t, 256> table{};
    for (uint32_t i = 0; i < 256; ++i)
    {
        uint32_t crc = i;
        for (int bit = 0; bit < 8; ++bit)
        {
            crc = (crc >> 1) ^ (crc & 1 ? 0xEDB88320U : 0);
        }
        table[i] = crc;
    }
    return table;
}

constexpr std::array<uint32_t, 256> CRC_TABLE = MakeCrcTable();

uint32_t Crc32(uint32_t crc, uint8_t byte)
{
    return (crc >> 8) ^ CRC_TABLE[(crc ^ byte) & 0xFF];
}

void PutChecksum(uint8_t* ip)
{
    uint32_t sum = 0;
    for (uint32_t i = 0; i < IP_HEADER; i += 2)
    {
        sum += (uint32_t{ip[i]} << 8) | ip[i + 1];
    }
    while (sum >> 16)
    {
        sum = (sum & 0xFFFF) + (sum >> 16);
    }
    ip[10] = static_cast<uint8_t>(~sum >> 8);
    ip[11] = static_cast<uint8_t>(~sum);
}

} // namespace

PacketCapture::PacketCapture(const std::string& path,
                             const NetworkParameters& parameters,
                             const std::vector<MacBytes>& addresses,
                             int64_t snapBytes,
                             int64_t limitBytes)
    : m_payloadBytes(parameters.payloadBytes),
      m_perMessage(static_cast<uint32_t>(MAX_MESSAGE / parameters.payloadBytes)),
      m_ackEvery(parameters.ackEvery), m_addresses(addresses), m_snapBytes(snapBytes),
      m_limitBytes(limitBytes), m_path(path), m_file(std::fopen(path.c_str(), "wb"))
{
    if (!m_file)
    {
        Fail();
        return;
    }
    std::setvbuf(m_file, nullptr, _IONBF, 0);
    constexpr uint32_t SNAP_LENGTH = 65535;
    constexpr uint32_t LINKTYPE_ETHERNET = 1;
    const uint32_t header[6] = {0xA1B23C4D, 2 | (4 << 16), 0, 0, SNAP_LENGTH, LINKTYPE_ETHERNET};
    const auto* bytes = reinterpret_cast<const uint8_t*>(header);
    m_buffer.reserve(FLUSH_BYTES + SNAP_LENGTH);
    m_buffer.assign(bytes, bytes + sizeof(header));
    m_bytes = sizeof(header);
}

PacketCapture::~PacketCapture()
{
    Flush();
    if (m_file)
    {
        std::fclose(m_file);
    }
}

void PacketCapture::Fail()
{
    m_error = "cannot write " + m_path + ": " + std::strerror(errno);
    m_full = true;
    m_buffer.clear();
}

void PacketCapture::Flush()
{
    if (m_file && !m_buffer.empty() &&
        std::fwrite(m_buffer.data(), 1, m_buffer.size(), m_file) != m_buffer.size())
    {
        Fail();
    }
    m_buffer.clear();
}

void PacketCapture::Put(uint64_t value, int bytes)
{
    while (bytes-- > 0)
    {
        m_frame.push_back(static_cast<uint8_t>(value >> (8 * bytes)));
    }
}

void PacketCapture::EndRecord(SimTime at)
{
    const auto kept = static_cast<uint32_t>(m_frame.size());
    const int64_t ns = at / 1000;
    const uint32_t header[4] = {static_cast<uint32_t>(ns / 1000000000),
                                static_cast<uint32_t>(ns % 1000000000),
                                kept,
                                m_frameBytes};
    m_bytes += static_cast<int64_t>(sizeof(header)) + kept;
    if (m_bytes > m_limitBytes)
    {
        m_full = true;
        return;
    }
    const auto* bytes = reinterpret_cast<const uint8_t*>(header);
    m_buffer.insert(m_buffer.end(), bytes, bytes + sizeof(header));
    m_buffer.insert(m_buffer.end(), m_frame.begin(), m_frame.end());
    if (m_buffer.size() >= FLUSH_BYTES)
    {
        Flush();
    }
}

void PacketCapture::Write(const Port& port, const Packet& packet, SimTime at)
{
    m_frame.clear();
    if (packet.kind == PacketKind::PFC)
    {
        PutPfc(port, packet);
    }
    else
    {
        PutRoce(packet);
    }
    EndRecord(at);
}

void PacketCapture::PutRoce(const Packet& packet)
{
    const Flow& flow = *packet.flow;
    const bool data = packet.kind == PacketKind::DATA;
    const bool cnp = packet.kind == PacketKind::CNP;
    const uint32_t source = data ? flow.srcPort : flow.dstPort;
    const uint32_t destination = data ? flow.dstPort : flow.srcPort;
    const auto pair = static_cast<uint32_t>(2 * flow.row + 2);
    const uint32_t inMessage = packet.sequence % m_perMessage;
    const bool first = inMessage == 0;
    const bool last = packet.sequence + 1 == flow.packets;
    const bool ends = last || inMessage + 1 == m_perMessage;
    const int64_t payload = !data ? 0 : last ? flow.lastPayloadBytes : m_payloadBytes;
    const auto pad = static_cast<uint32_t>(-payload & 3);
    const uint32_t extension = data ? (first ? RETH : 0) : (cnp ? CNP_RESERVED : AETH);
    const uint32_t body = BTH + extension + static_cast<uint32_t>(payload) + pad + ICRC;
    m_frameBytes = ETHERNET_HEADER + IP_HEADER + UDP_HEADER + body;

    for (const uint32_t port : {destination, source})
    {
        m_frame.insert(m_frame.end(), m_addresses[port].begin(), m_addresses[port].end());
    }
    Put(ETHERTYPE_IPV4, 2);

    constexpr size_t IP = ETHERNET_HEADER;
    const uint8_t ecn = !data ? 0 : packet.ecn ? 3 : 2;
    Put(0x45, 1);
    Put((uint64_t{DSCP[packet.trafficClass]} << 2) | ecn, 1);
    Put(IP_HEADER + UDP_HEADER + body, 2);
    Put(0, 2);      // identification
    Put(0x4000, 2); // don't fragment
    Put(64, 1);
    Put(17, 1); // UDP
    Put(0, 2);
    Put(FIRST_ADDRESS + source, 4);
    Put(FIRST_ADDRESS + destination, 4);
    PutChecksum(&m_frame[IP]);

    Put(flow.udpSourcePort, 2);
    Put(ROCE_PORT, 2);
    Put(UDP_HEADER + body, 2);
    Put(0, 2);

    const uint8_t opcode = cnp     ? 0x81
                           : !data ? 0x11
                           : first ? (ends ? 0x0A : 0x06)
                                   : (ends ? 0x08 : 0x07);
    Put(opcode, 1);
    Put((cnp ? 0 : 0x40) | (pad << 4), 1);           // migrated, padding, version 0
    Put(0xFFFF, 2);                                  // default partition
    Put(cnp || (!data && packet.ecn) ? 0x40 : 0, 1); // BECN
    Put(data ? pair + 1 : pair, 3);
    const bool acknowledge = data && (last || (packet.sequence + 1) % m_ackEvery == 0);
    Put(acknowledge ? 0x80 : 0, 1);
    // The model's ACK names the next packet expected, a real one the last packet received.
    const uint32_t number =
        data || packet.kind == PacketKind::NACK ? packet.sequence : packet.sequence - 1;
    Put(cnp ? 0 : number, 3);

    if (cnp)
    {
        Put(0, 8);
        Put(0, 8);
    }
    else if (!data)
    {
        const uint32_t messages =
            packet.sequence / m_perMessage +
            (packet.sequence == flow.packets && packet.sequence % m_perMessage);
        // A sequence error, or an ACK that tells of no credits.
        Put(packet.kind == PacketKind::NACK ? 0x60 : 0x1F, 1);
        Put(messages, 3);
    }
    else if (first)
    {
        const int64_t offset = int64_t{packet.sequence} * m_payloadBytes;
        Put(static_cast<uint64_t>(offset), 8);
        Put(pair + 1, 4); // key
        Put(static_cast<uint64_t>(
                std::min(flow.sizeBytes - offset, int64_t{m_perMessage} * m_payloadBytes)),
            4);
    }
    m_frame.insert(m_frame.end(), static_cast<size_t>(std::min(payload, m_snapBytes)), 0);
    if (payload <= m_snapBytes)
    {
        Put(0, static_cast<int>(pad));
        PutInvariantCrc(IP);
    }
}

void PacketCapture::PutInvariantCrc(size_t ip)
{
    // Eight bytes of ones stand for the missing local route header; what routers change counts as
    // ones.
    uint32_t crc = ~0U;
    for (int i = 0; i < 8; ++i)
    {
        crc = Crc32(crc, 0xFF);
    }
    for (size_t i = ip; i < m_frame.size(); ++i)
    {
        const size_t at = i - ip;
        const bool changes = at == 1 || at == 8 || at == 10 ||
                             at == 11 || // DSCP and ECN, TTL, checksum
                             at == IP_HEADER + 6 || at == IP_HEADER + 7 || // UDP checksum
                             at == IP_HEADER + UDP_HEADER + 4;             // FECN, BECN
        crc = Crc32(crc, changes ? 0xFF : m_frame[i]);
    }
    crc = ~crc;
    for (int i = 0; i < 4; ++i)
    {
        m_frame.push_back(static_cast<uint8_t>(crc >> (8 * i)));
    }
}

void PacketCapture::PutPfc(const Port& port, const Packet& packet)
{
    constexpr uint32_t SHORTEST = 60; // without FCS
    const uint8_t priority = Priority(packet.sequence);
    Put(0x0180C2000001, 6);
    m_frame.insert(m_frame.end(), m_addresses[port.id].begin(), m_addresses[port.id].end());
    Put(ETHERTYPE_MAC_CONTROL, 2);
    Put(0x0101, 2);
    Put(1U << priority, 2);
    for (int i = 0; i < 8; ++i)
    {
        Put(i == priority && packet.ecn ? 0xFFFF : 0, 2); // quanta of 512 bit times
    }
    m_frame.resize(SHORTEST, 0);
    m_frameBytes = SHORTEST;
}

uint32_t PacketCapture::StockBytesKept(uint32_t size) const
{
    return static_cast<uint32_t>(std::min<int64_t>(size, STOCK_HEADERS + m_snapBytes));
}

void PacketCapture::WriteStock(const StockFrame& frame,
                               const std::vector<uint8_t>& body,
                               uint32_t size,
                               SimTime at)
{
    m_frame.clear();
    m_frame.insert(m_frame.end(), frame.destination.begin(), frame.destination.end());
    const MacBytes& source = m_addresses[frame.source];
    m_frame.insert(m_frame.end(), source.begin(), source.end());
    Put(frame.protocol, 2);
    m_frame.insert(m_frame.end(), body.begin(), body.end());
    m_frameBytes = ETHERNET_HEADER + size;
    EndRecord(at);
}

} // namespace kvnet
