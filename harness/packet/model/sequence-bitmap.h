#ifndef KVNET_SEQUENCE_BITMAP_H
#define KVNET_SEQUENCE_BITMAP_H

#include <bit>
#include <cstdint>
#include <vector>

namespace kvnet
{

/** A bit per packet number in a sliding window: numbers that far apart share one. */
class SequenceBitmap
{
  public:
    /** All bits off, and room for a window of `packets`. */
    void Reset(uint32_t packets)
    {
        m_mask = std::bit_ceil(packets < 64 ? 64 : packets) - 1;
        m_words.assign((m_mask + 1) / 64, 0);
    }

    bool Test(uint32_t sequence) const
    {
        return m_words[(sequence & m_mask) / 64] >> (sequence % 64) & 1;
    }

    void Set(uint32_t sequence)
    {
        m_words[(sequence & m_mask) / 64] |= uint64_t{1} << (sequence % 64);
    }

    void Clear(uint32_t sequence)
    {
        m_words[(sequence & m_mask) / 64] &= ~(uint64_t{1} << (sequence % 64));
    }

  private:
    uint32_t m_mask{0};
    std::vector<uint64_t> m_words;
};

} // namespace kvnet

#endif // KVNET_SEQUENCE_BITMAP_H
