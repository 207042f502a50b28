// Loads and stores of shared memory, copies into it, and the 16-byte ones of global memory.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>

#include "schedule.h"

namespace slipform {
namespace gpu {
namespace host {

// Of a thread of the running block, not always the current one.
inline Access touch_shared(Thread& thread, uint32_t address, uint32_t bytes, const Site& site,
                           Conflicts& total) {
  const Access now = block().access(thread, site);
  block().shadow.check_bounds(address, bytes, now);
  thread.warp->banks.note(thread.lane, {site, address, bytes, &total});
  return now;
}

template <class T>
void store(uint32_t address, const T& value, const Site& site) {
  const Access now = touch_shared(self(), address, sizeof(T), site, counters.store_shared);
  block().shadow.write(address, sizeof(T), now);
  std::memcpy(block().shared_at(address), &value, sizeof(T));
}

inline void check_global(const void* global, const Site& site) {
  if (reinterpret_cast<uintptr_t>(global) % 16 != 0) {
    fail(self().id, site, "misaligned: a global address that is no multiple of 16");
  }
}

}  // namespace host

inline uint32_t shared_base() { return host::Shadow::base; }

template <class T>
T load_shared(uint32_t address, host::Site site = host::Site::here()) {
  static_assert(sizeof(T) % 4 == 0, "the smallest access has 4 bytes");
  const host::Access now =
      host::touch_shared(host::self(), address, sizeof(T), site, host::counters.load_shared);
  host::block().shadow.read(address, sizeof(T), now);
  T value;
  std::memcpy(&value, host::block().shared_at(address), sizeof(T));
  return value;
}

inline void store_shared(uint32_t address, float value, host::Site site = host::Site::here()) {
  host::store(address, value, site);
}
inline void store_shared(uint32_t address, uint32_t value, host::Site site = host::Site::here()) {
  host::store(address, value, site);
}
inline void store_shared(uint32_t address, int32_t value, host::Site site = host::Site::here()) {
  host::store(address, value, site);
}
inline void store_shared(uint32_t address, int64_t value, host::Site site = host::Site::here()) {
  host::store(address, value, site);
}
inline void store_shared(uint32_t address, Vec4 value, host::Site site = host::Site::here()) {
  host::store(address, value, site);
}

// The bytes are read now and written when waited for: as late as the hardware may.
inline void cp_async_16(uint32_t address, const void* global, uint32_t bytes,
                        host::Site site = host::Site::here()) {
  host::Thread& thread = host::self();
  host::check_global(global, site);
  if (bytes > 16) host::fail(thread.id, site, "cp_async_16: more than 16 bytes");
  const host::Access now = host::touch_shared(thread, address, 16, site, host::counters.cp_async);
  host::block().shadow.issue(address, 16, now);
  host::Copy copy{address, thread.groups_committed, {}, site};
  if (bytes > 0) std::memcpy(copy.bytes.data(), global, bytes);
  thread.copies.push_back(copy);
}
inline void cp_async_commit() { ++host::self().groups_committed; }
template <int N>
void cp_async_wait() {
  static_assert(N >= 0, "a count of groups");
  host::Thread& thread = host::self();
  host::Block& block = host::block();
  auto copy = thread.copies.begin();
  for (; copy != thread.copies.end() && copy->group + N < thread.groups_committed; ++copy) {
    std::memcpy(block.shared_at(copy->address), copy->bytes.data(), 16);
    block.shadow.arrive(copy->address, 16, block.access(thread, copy->site));
  }
  thread.copies.erase(thread.copies.begin(), copy);
}

inline Vec4 load_global_16(const void* global, host::Site site = host::Site::here()) {
  host::check_global(global, site);
  Vec4 value;
  std::memcpy(&value, global, sizeof value);
  return value;
}
inline void store_global_16(void* global, Vec4 value, host::Site site = host::Site::here()) {
  host::check_global(global, site);
  std::memcpy(global, &value, sizeof value);
}

}  // namespace gpu
}  // namespace slipform
