#ifndef KVNET_ROUTER_H
#define KVNET_ROUTER_H

#include <cstdint>
#include <vector>

namespace kvnet
{

/**
 * Shortest-path ECMP, as harness/routing.py has it: same tables, same hash, same paths.
 *
 * A host forwards nothing. Tables are made per destination switch when first asked for.
 */
class Router
{
  public:
    uint32_t AddNode(bool isHost, uint64_t hashSeed);
    /** The two ends get the port numbers 2 * k and 2 * k + 1 for the k-th link. */
    void AddLink(uint32_t a, uint32_t b);

    /** What switches hash of a 5-tuple. */
    static uint64_t Key(uint32_t source, uint32_t destination, uint32_t udpSourcePort);
    /** The node on which a port sits. */
    uint32_t NodeOf(uint32_t port) const
    {
        return m_nodeOf[port];
    }

    /** The ports of `node` on shortest paths towards the switch `last`. */
    std::vector<uint32_t> NextPorts(uint32_t node, uint32_t last);

    /** Egress ports from `source` to `destination` (both NIC ports); empty if there is no path. */
    std::vector<uint32_t> Path(uint32_t source, uint32_t destination, uint32_t udpSourcePort);

  private:
    struct Table
    {
        std::vector<uint32_t> first; //!< per node, the index of its first port in `ports`; one more at the end
        std::vector<uint32_t> ports;
    };

    const Table& Towards(uint32_t node);

    std::vector<bool> m_isHost;
    std::vector<uint64_t> m_seeds;
    std::vector<std::vector<uint32_t>> m_portsOf;
    std::vector<uint32_t> m_nodeOf;
    std::vector<Table> m_tables;
};

} // namespace kvnet

#endif // KVNET_ROUTER_H
