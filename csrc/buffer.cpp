#include "buffer.h"

namespace slipform {
namespace {

// At least `bytes` from the system, from a cache line on.
void* from_system(size_t bytes) {
  void* data = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
  if (data == nullptr) throw std::bad_alloc();
  return data;
}

std::mutex spare_mutex;
char* spare = nullptr;  // what the last Memory had
size_t spare_bytes = 0;

}  // namespace

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
  return from_system(bytes);
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

Memory::Memory(size_t bytes) : bytes_(bytes), block_bytes_(bytes) {
  {
    const std::lock_guard<std::mutex> lock(spare_mutex);
    if (spare != nullptr && spare_bytes >= bytes && spare_bytes / 2 <= bytes) {
      data_ = std::exchange(spare, nullptr);
      block_bytes_ = spare_bytes;
      return;
    }
    std::free(std::exchange(spare, nullptr));
  }
  data_ = static_cast<char*>(from_system(bytes));
}

Memory::~Memory() {
  const std::lock_guard<std::mutex> lock(spare_mutex);
  std::free(std::exchange(spare, data_));
  spare_bytes = block_bytes_;
}

}  // namespace slipform
