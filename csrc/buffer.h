// Memory for workspaces, kept from one call to the next: fresh pages from the system cost as much
// as the arithmetic of a small batch.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

namespace slipform {

// Blocks that nobody uses, at most KEPT_BYTES of them.
class BlockPool {
 public:
  static BlockPool& instance();
  // At least `bytes`, from a cache line on; `bytes` becomes the block's size.
  void* take(size_t& bytes);
  void give_back(void* block, size_t bytes) noexcept;

 private:
  static constexpr size_t KEPT_BYTES = 32 << 20;
  std::mutex mutex_;
  std::vector<std::pair<size_t, void*>> unused_;
  size_t unused_bytes_ = 0;
};

// `count` uninitialised numbers.
template <class T>
class Buffer {
 public:
  explicit Buffer(int64_t count) : bytes_(static_cast<size_t>(count) * sizeof(T)) {
    if (count > 0) data_ = static_cast<T*>(BlockPool::instance().take(bytes_));
  }
  ~Buffer() {
    if (data_ != nullptr) BlockPool::instance().give_back(data_, bytes_);
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  T* get() const { return data_; }

 private:
  size_t bytes_;
  T* data_ = nullptr;
};

// Memory for what a call leaves to a later one. The last block that was given up is kept for the
// next that is no larger, and no less than half as large.
class Memory {
 public:
  explicit Memory(size_t bytes);
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  char* get() const { return data_; }
  size_t size() const { return bytes_; }

 private:
  size_t bytes_, block_bytes_;
  char* data_;
};

}  // namespace slipform
