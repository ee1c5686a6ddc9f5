#ifndef KVNET_STOCK_TRAFFIC_H
#define KVNET_STOCK_TRAFFIC_H

// Parsed by cppyy: includes nothing of ns-3.

#include "fabric-types.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace kvnet
{

/** See harness/network_settings.py, class Tcp. */
struct TcpParameters
{
    std::string congestionControl; //!< TypeId name of an ns3::TcpCongestionOps
    bool ecn{true};
    uint32_t mtu{1500};
    uint32_t bufferBytes{0}; //!< at either end
    uint32_t initialWindow{10};
    int64_t minRto{0};
};

/**
 * ns-3's internet stack on the hosts of the present simulation, and bulk flows over its TCP.
 *
 * Nothing here knows of the data plane: hosts are nodes with devices, as to any ns-3 application.
 * The stack comes to a host with its first flow. All NICs are in one subnet, 10.0.0.1 plus the
 * port's number; neighbours are entered, not asked for.
 */
class StockTraffic
{
  public:
    /** `callback` is the address of a PythonCall: ON_FLOW_DONE is called when a flow that wants it is complete. */
    StockTraffic(const TcpParameters& parameters, uintptr_t callback);
    ~StockTraffic();

    StockTraffic(const StockTraffic&) = delete;
    StockTraffic& operator=(const StockTraffic&) = delete;

    /** Tell of a host's device, as ns-3 finds it; its address is that of the port. First of all calls. */
    void AddNic(uint32_t node, uint32_t device, uint32_t port);
    /** Install the stack on a host, and make all hosts of such calls neighbours of each other. */
    void Install(uint32_t node);
    /**
     * Send bytes from one port's host to another's at a time >= now. A flow begins with TCP's
     * handshake and ends when its last byte is acknowledged. Its source port is `tcpSourcePort`, or
     * the next one that is free.
     */
    void StartFlow(uint64_t id,
                   uint32_t trafficClass,
                   uint32_t source,
                   uint32_t destination,
                   int64_t bytes,
                   uint32_t tcpSourcePort,
                   int64_t at,
                   int64_t idealFct,
                   bool notify);

    uint64_t ActiveFlows() const;
    /** A row per started flow, in order of start. */
    const std::vector<FlowRow>& Flows();
    /** The same as plain numbers, FlowRow after FlowRow. */
    const int64_t* FlowData();

    /** Where flows are received. Their paths are hashed with source xor destination port. */
    static constexpr uint16_t SERVER_PORT = 5001;

  private:
    class Impl;
    std::shared_ptr<Impl> m_impl;
};

} // namespace kvnet

#endif // KVNET_STOCK_TRAFFIC_H
