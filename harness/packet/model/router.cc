#include "router.h"

#include <deque>

namespace kvnet
{

namespace
{

uint64_t
Mix64(uint64_t x)
{
    x += 0x9E3779B97F4A7C15ULL;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
    return x ^ (x >> 31);
}

} // namespace

uint32_t
Router::AddNode(bool isHost, uint64_t hashSeed)
{
    m_isHost.push_back(isHost);
    m_seeds.push_back(hashSeed);
    m_portsOf.emplace_back();
    m_tables.emplace_back();
    return static_cast<uint32_t>(m_isHost.size() - 1);
}

void
Router::AddLink(uint32_t a, uint32_t b)
{
    for (const uint32_t node : {a, b})
    {
        m_portsOf[node].push_back(static_cast<uint32_t>(m_nodeOf.size()));
        m_nodeOf.push_back(node);
    }
}

const Router::Table&
Router::Towards(uint32_t node)
{
    Table& table = m_tables[node];
    if (!table.first.empty())
    {
        return table;
    }
    const size_t n = m_isHost.size();
    std::vector<int64_t> distance(n, -1);
    distance[node] = 0;
    std::deque<uint32_t> frontier{node};
    while (!frontier.empty())
    {
        const uint32_t here = frontier.front();
        frontier.pop_front();
        for (const uint32_t port : m_portsOf[here])
        {
            const uint32_t peer = m_nodeOf[port ^ 1];
            if (distance[peer] < 0 && !m_isHost[peer])
            {
                distance[peer] = distance[here] + 1;
                frontier.push_back(peer);
            }
        }
    }
    table.first.reserve(n + 1);
    for (size_t i = 0; i < n; ++i)
    {
        table.first.push_back(static_cast<uint32_t>(table.ports.size()));
        if (distance[i] <= 0)
        {
            continue;
        }
        for (const uint32_t port : m_portsOf[i])
        {
            const uint32_t peer = m_nodeOf[port ^ 1];
            if (!m_isHost[peer] && distance[peer] == distance[i] - 1)
            {
                table.ports.push_back(port);
            }
        }
    }
    table.first.push_back(static_cast<uint32_t>(table.ports.size()));
    return table;
}

uint64_t
Router::Key(uint32_t source, uint32_t destination, uint32_t udpSourcePort)
{
    return Mix64((uint64_t{source} << 40) ^ (uint64_t{destination} << 16) ^ udpSourcePort);
}

std::vector<uint32_t>
Router::NextPorts(uint32_t node, uint32_t last)
{
    const Table& table = Towards(last);
    return {table.ports.begin() + table.first[node], table.ports.begin() + table.first[node + 1]};
}

std::vector<uint32_t>
Router::Path(uint32_t source, uint32_t destination, uint32_t udpSourcePort)
{
    std::vector<uint32_t> path{source};
    if (destination == (source ^ 1))
    {
        return path;
    }
    uint32_t node = m_nodeOf[source ^ 1];
    const uint32_t last = m_nodeOf[destination ^ 1];
    if (m_isHost[node] || m_isHost[last])
    {
        return {};
    }
    const uint64_t key = Key(source, destination, udpSourcePort);
    const Table& table = Towards(last);
    while (node != last)
    {
        const uint32_t first = table.first[node];
        const uint64_t choices = table.first[node + 1] - first;
        if (choices == 0)
        {
            return {};
        }
        const uint64_t hash = Mix64(key ^ m_seeds[node]) >> 32;
        const uint32_t port = table.ports[first + ((hash * choices) >> 32)];
        path.push_back(port);
        node = m_nodeOf[port ^ 1];
    }
    path.push_back(destination ^ 1);
    return path;
}

} // namespace kvnet
