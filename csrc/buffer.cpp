#include "buffer.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace slipform {

void prefer_large_pages([[maybe_unused]] void* memory, [[maybe_unused]] size_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  constexpr uintptr_t page = 2 << 20;
  const auto start = reinterpret_cast<uintptr_t>(memory);
  const uintptr_t first = (start + page - 1) / page * page, last = (start + bytes) / page * page;
  if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
#endif
}

BlockPool& BlockPool::instance() {
  static BlockPool* pool = new BlockPool;  // never destroyed: threads may outlive static objects
  return *pool;
}

void* BlockPool::take(size_t& bytes) {
  bytes = (bytes + 63) / 64 * 64;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto best = unused_.end();
    for (auto block = unused_.begin(); block != unused_.end(); ++block)
      if (block->first >= bytes && block->first <= 2 * bytes &&
          (best == unused_.end() || block->first < best->first))
        best = block;
    if (best != unused_.end()) {
      void* data = best->second;
      bytes = best->first;
      unused_bytes_ -= bytes;
      unused_.erase(best);
      return data;
    }
  }
  void* data = std::aligned_alloc(64, bytes);
  if (data == nullptr) throw std::bad_alloc();
  return data;
}

void BlockPool::give_back(void* block, size_t bytes) noexcept {
  try {
    const std::lock_guard<std::mutex> lock(mutex_);
    // The oldest go first: a run of other sizes replaces them.
    while (!unused_.empty() && unused_bytes_ + bytes > KEPT_BYTES) {
      std::free(unused_.front().second);
      unused_bytes_ -= unused_.front().first;
      unused_.erase(unused_.begin());
    }
    if (bytes <= KEPT_BYTES) {
      unused_.emplace_back(bytes, block);
      unused_bytes_ += bytes;
      return;
    }
  } catch (const std::bad_alloc&) {  // no room in the list
  }
  std::free(block);
}

}  // namespace slipform
