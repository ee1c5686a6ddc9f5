#ifndef KVNET_STOCK_H
#define KVNET_STOCK_H

// Parsed by cppyy: includes nothing of ns-3.

#include <cstdint>
#include <string>
#include <vector>

namespace kvnet
{

struct StockLink
{
    uint32_t nodeA{0};
    uint32_t nodeB{0};
    uint64_t rateBps{0};
    int64_t delayPs{0};
};

/** `path` lists the nodes from source to destination. */
struct StockFlow
{
    std::vector<uint32_t> path;
    uint64_t packets{0};
};

struct StockResult
{
    uint64_t hops{0};
    uint64_t received{0}; //!< packets, by the UDP servers
    uint64_t events{0};
    double cpuSeconds{0};
};

/**
 * What an ns-3 user would otherwise run: point-to-point devices, the internet stack and UDP clients at line rate on the
 * same fabric and paths, under the ns3::SimulatorImpl named `engine`. A hop is a packet that a device sent. No congestion control, no loss recovery, no ACKs.
 */
StockResult RunStock(uint32_t nodes,
                     const std::vector<StockLink>& links,
                     const std::vector<StockFlow>& flows,
                     uint32_t payloadBytes,
                     const std::string& engine);

} // namespace kvnet

#endif // KVNET_STOCK_H
