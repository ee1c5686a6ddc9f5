#ifndef KVNET_HUGE_PAGES_H
#define KVNET_HUGE_PAGES_H

#include <cstddef>
#include <cstdlib>
#include <memory_resource>
#include <new>

#if __has_include(<sys/mman.h>)
#include <sys/mman.h>
#endif

namespace kvnet
{

/**
 * Memory in huge pages where the system has them, and ordinary memory elsewhere: ports and packets are touched in no order,
 * and of small pages the processor knows too few by heart.
 */
class HugePages : public std::pmr::memory_resource
{
  public:
    static constexpr size_t PAGE = size_t{2} << 20; //!< of x86-64, and of ARM with pages of 4 KiB

  private:
    void* do_allocate(size_t bytes, size_t alignment) override
    {
        const size_t rounded = (bytes + PAGE - 1) / PAGE * PAGE;
        void* memory = alignment <= PAGE ? std::aligned_alloc(PAGE, rounded) : nullptr;
        if (!memory)
        {
            throw std::bad_alloc{};
        }
#ifdef MADV_HUGEPAGE
        madvise(memory, rounded, MADV_HUGEPAGE); // advice: that it is not taken does no harm
#endif
        return memory;
    }

    void do_deallocate(void* memory, size_t, size_t) override
    {
        std::free(memory);
    }

    bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override
    {
        return this == &other;
    }
};

} // namespace kvnet

#endif // KVNET_HUGE_PAGES_H
