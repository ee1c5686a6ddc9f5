#ifndef KVNET_EVENT_H
#define KVNET_EVENT_H

#include <cstdint>

namespace kvnet
{

/** Simulated time [ps]. */
using SimTime = int64_t;

/** A time that never comes. */
constexpr SimTime NEVER = INT64_MAX;

/** What an event touches that touches nothing of note. */
inline void* NOTHING{nullptr};

/**
 * An event that its owner embeds and schedules again and again: no allocation, no reference count.
 *
 * At most one occurrence is pending at a time; the owner sees to that.
 */
struct Event
{
    SimTime time{NEVER};
    Event* next{nullptr};
    void* touches{&NOTHING}; //!< what it reads first, and that begins with a pointer to what it reads next: fetched ahead
    void (*fire)(Event*){nullptr};
};

} // namespace kvnet

#endif // KVNET_EVENT_H
