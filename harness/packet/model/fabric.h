#ifndef KVNET_FABRIC_H
#define KVNET_FABRIC_H

// The boundary to Python: parsed by cppyy, so it includes nothing of ns-3.

#include "fabric-types.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace kvnet
{

/**
 * A network in one ns-3 simulation: nodes, links, flows, counters. One at a time in a process.
 *
 * The callback into Python must not raise; whoever wants to end the simulation from one calls Stop.
 */
class Fabric
{
  public:
    /** `engine` is the TypeId name of an ns3::SimulatorImpl. */
    Fabric(const NetworkParameters& parameters, const std::string& engine);
    ~Fabric();

    Fabric(const Fabric&) = delete;
    Fabric& operator=(const Fabric&) = delete;

    void AddNode(const std::string& name, bool isHost, uint64_t hashSeed);
    void AddLink(const LinkParameters& link);
    /** `attributes`: a line "name=value" each. An empty string, or what is wrong with the type or its attributes. */
    std::string SetCongestionControl(const std::string& typeId, const std::string& attributes);
    /** The same for what chooses among equal-cost ports; without it, the hash of ECMP does. Call before Build. */
    std::string SetLoadBalancer(const std::string& typeId, const std::string& attributes);
    /** `callback` is the address of a PythonCall. */
    void SetCallback(uintptr_t callback);
    /** Finish the network; `seed` is of the ports' random streams. */
    void Build(uint64_t seed, int64_t watchdogPs);

    /**
     * Record time series of these ports, at most `capacity` intervals of `resolutionPs` or a power of 2 times that.
     * Call after Build, at most once.
     */
    void TracePorts(const std::vector<uint32_t>& ports, int64_t resolutionPs, uint64_t capacity);

    int64_t Now() const;
    /** Call ON_ACTION with the token at a time >= now. */
    void Schedule(uint64_t token, int64_t at);
    /** Start a flow at a time >= now; with `notify`, ON_FLOW_DONE is called when it is complete. */
    void StartFlow(uint64_t id,
                   uint32_t trafficClass,
                   uint32_t source,
                   uint32_t destination,
                   int64_t bytes,
                   uint32_t udpSourcePort,
                   int64_t at,
                   bool notify);
    /** The same, on paths that are given and that no load balancer changes. */
    void StartFlowOnPath(uint64_t id,
                         uint32_t trafficClass,
                         int64_t bytes,
                         const std::vector<uint32_t>& forward,
                         const std::vector<uint32_t>& reverse,
                         uint32_t udpSourcePort,
                         int64_t at,
                         bool notify);
    std::vector<uint32_t> Path(uint32_t source, uint32_t destination, uint32_t udpSourcePort);
    /** Write the frames that leave a port from now on to a pcap file; an empty string, or why that cannot be done. */
    std::string Capture(uint32_t port, const std::string& path, int64_t snapBytes, int64_t limitBytes);
    /** Bring all captures up to now; what went wrong with any of them, or an empty string. */
    std::string FlushCaptures();
    /** The captures that reached their limit, by port. */
    std::vector<uint32_t> FullCaptures() const;

    /** Run until no event is left, Stop is called, or the watchdog finds that nothing moves. */
    void Run();
    void Stop();
    /** Whether the watchdog ended the run. */
    bool Stalled() const;

    const Totals& GetTotals() const;
    uint64_t EventCount() const;
    uint64_t PacketCapacity() const;
    uint64_t ActiveFlows() const;
    /** Bring every port up to now and copy its counters into the arrays below; perhaps restart the queue maxima. */
    void Sample(bool resetPeaks);
    /** The arrays of the last sample: per port, sentBytes per port and class. */
    const std::vector<int64_t>& SentBytes() const;
    const std::vector<int64_t>& Marks() const;
    const std::vector<int64_t>& PausedTime() const;
    const std::vector<int64_t>& QueueMax() const;
    /** What was traced until now, a row per port and interval. */
    const std::vector<TraceRow>& Traces();
    /** The same as plain numbers, TraceRow after TraceRow. */
    const int64_t* TraceData();
    /** What waits at a port now, without the packet in transmission. */
    int64_t QueueBytes(uint32_t port);
    /** Largest queue of any port so far. */
    int64_t QueueMaxEver() const;
    /** A row per started flow, in order of start; brings unfinished flows' rows up to date. */
    const std::vector<FlowRow>& Flows();
    /** The same as plain numbers, FlowRow after FlowRow. */
    const int64_t* FlowData();

  private:
    class Impl;
    std::unique_ptr<Impl> m_impl;
};

} // namespace kvnet

#endif // KVNET_FABRIC_H
