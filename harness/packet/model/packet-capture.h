#ifndef KVNET_PACKET_CAPTURE_H
#define KVNET_PACKET_CAPTURE_H

#include "fabric-types.h"
#include "port.h"
#include "stock-packet.h"

#include <array>
#include <cstdio>
#include <string>
#include <vector>

namespace kvnet
{

using MacBytes = std::array<uint8_t, 6>;

/** What a stock packet is to the link layer. */
struct StockFrame
{
    uint32_t source; //!< port
    MacBytes destination;
    uint16_t protocol;
};

/**
 * Writes the frames that leave one port to a pcap file with nanosecond timestamps.
 *
 * A frame is stamped with the time at which its first bit leaves the port, rounded down to the
 * nanosecond. RoCE frames are made up from the descriptors, field by field as on a real wire:
 * - Ethernet: the NICs' ns-3 addresses; no FCS, as in any capture.
 * - IPv4: 10.0.0.1 plus the NIC's port number; DSCP by traffic class; ECT(0) or CE on data, Not-ECT
 *   on ACKs and CNPs.
 * - UDP: the flow's source port, 4791, no checksum.
 * - BTH: a flow is one RDMA WRITE, or, above 2 GiB, several; the sender's queue pair is 2 n + 2 and
 *   the receiver's 2 n + 3 for the n-th flow of the fabric's table (modulo 2^24); packet numbers
 *   begin at 0; an ACK that echoes ECN has BECN.
 * - RETH on a message's first packet: address is the offset in the flow. AETH on ACKs and NAKs
 *   (sequence error).
 * - Payload is zeros, padded to a multiple of 4 bytes; the ICRC (InfiniBand annex A17) is computed
 *   where it is kept.
 * - PFC: IEEE 802.3 annex 31D; the priority is that of the class's DSCP, DSCP / 8.
 *
 * Lengths are those of such frames, not those that the model was configured with: with 62 bytes of
 * overhead a modelled frame is 4 bytes longer (FCS), 12 shorter where there is a RETH, and has no
 * padding.
 */
class PacketCapture
{
  public:
    /** Error() tells whether the file can be written. `addresses`, of all ports, outlive the capture. */
    PacketCapture(const std::string& path,
                  const NetworkParameters& parameters,
                  const std::vector<MacBytes>& addresses,
                  int64_t snapBytes,
                  int64_t limitBytes);
    ~PacketCapture();

    PacketCapture(const PacketCapture&) = delete;
    PacketCapture& operator=(const PacketCapture&) = delete;

    /** A frame of RoCE or PFC. */
    void Write(const Port& port, const Packet& packet, SimTime at);
    /** A frame of stock ns-3 with `size` bytes after the Ethernet header, of which `body` is kept.
     */
    void WriteStock(const StockFrame& frame,
                    const std::vector<uint8_t>& body,
                    uint32_t size,
                    SimTime at);
    /** How much of a stock packet of this size is kept. */
    uint32_t StockBytesKept(uint32_t size) const;
    /** Hand all records to the operating system. */
    void Flush();

    /** The limit is reached: nothing more is written. */
    bool Full() const
    {
        return m_full;
    }

    /** What went wrong, or nothing. */
    const std::string& Error() const
    {
        return m_error;
    }

  private:
    void PutRoce(const Packet& packet);
    void PutPfc(const Port& port, const Packet& packet);
    void PutInvariantCrc(size_t ip);
    void Put(uint64_t value, int bytes);
    void EndRecord(SimTime at);
    void Fail();

    const int64_t m_payloadBytes;
    const uint32_t m_perMessage; //!< packets
    const int64_t m_ackEvery;
    const std::vector<MacBytes>& m_addresses;
    const int64_t m_snapBytes;
    const int64_t m_limitBytes;
    std::string m_path;
    std::FILE* m_file;
    std::vector<uint8_t> m_buffer; //!< whole records
    std::vector<uint8_t> m_frame;
    uint32_t m_frameBytes{0}; //!< true length
    int64_t m_bytes{0};       //!< in file and buffer
    bool m_full{false};
    std::string m_error;
};

} // namespace kvnet

#endif // KVNET_PACKET_CAPTURE_H
