// Of every 4 bytes of shared memory: what was done to them last, by whom, and before which barrier.
//
// Two accesses of which one is a write are in order if they are of one thread, or if a barrier of
// the block, or warp_sync for lanes of one warp, lies between. Everything else is an error here,
// whether or not the values come out right.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "report.h"

namespace slipform {
namespace gpu {
namespace host {

struct Access {
  Site site;
  uint32_t thread;
  uint32_t block_epoch;  // barriers that the block has passed
  uint32_t warp_epoch;   // warp_syncs that the thread's warp has passed
};

inline bool same_warp(const Access& a, const Access& b) { return a.thread / 32 == b.thread / 32; }

inline bool in_order(const Access& before, const Access& after) {
  return before.thread == after.thread || before.block_epoch < after.block_epoch ||
         (same_warp(before, after) && before.warp_epoch < after.warp_epoch);
}

class Shadow {
 public:
  // Not zero, as on the newer GPUs: an address that forgets shared_base() is out of bounds.
  static constexpr uint32_t base = 1024;

  void reset(uint32_t bytes) {
    size = bytes;
    words.assign((bytes + 3) / 4, Word{});
  }

  void check_bounds(uint32_t address, uint32_t bytes, const Access& now) const {
    if (address % bytes != 0) {
      fail(now.thread, now.site,
           "misaligned: shared address " + std::to_string(address) + " is no multiple of " +
               std::to_string(bytes));
    }
    if (address < base || address - base > size || bytes > size - (address - base)) {
      fail(now.thread, now.site,
           "out of bounds: " + where(address, bytes) + ", launched with " + std::to_string(size) +
               " bytes");
    }
  }

  void read(uint32_t address, uint32_t bytes, const Access& now) {
    for (uint32_t i = first(address); i < first(address + bytes); ++i) {
      Word& word = words[i];
      if (word.state != written) reject_unwritten(word, address, bytes, now);
      if (!in_order(word.write, now)) {
        reject(address, bytes, now, "read", "written", word.write);
      }
      note_reader(word, now);
    }
  }

  void write(uint32_t address, uint32_t bytes, const Access& now) {
    check_writable(address, bytes, now);
    for (uint32_t i = first(address); i < first(address + bytes); ++i) {
      words[i].state = written;
      words[i].readers = Readers::none;
      words[i].write = now;
    }
  }

  // A copy that arrives at some time between its issue and its thread's wait.
  void issue(uint32_t address, uint32_t bytes, const Access& now) {
    write(address, bytes, now);
    for (uint32_t i = first(address); i < first(address + bytes); ++i) words[i].state = in_flight;
  }
  void arrive(uint32_t address, uint32_t bytes, const Access& now) {
    for (uint32_t i = first(address); i < first(address + bytes); ++i) {
      words[i].state = written;
      words[i].write = now;
    }
  }

 private:
  enum State : uint8_t { unwritten, in_flight, written };
  // Threads that have read since the last write and the last barrier; those of a warp also since
  // its last warp_sync.
  enum class Readers : uint8_t { none, one, lanes, warps };

  struct Word {
    State state = unwritten;
    Readers readers = Readers::none;
    Access write{}, read{};
    Access other_read{};  // of another lane or warp, as `readers` says
  };

  static uint32_t first(uint32_t address) { return (address - base) / 4; }

  static std::string where(uint32_t address, uint32_t bytes) {
    const int64_t offset = static_cast<int64_t>(address) - base;
    return "shared bytes " + std::to_string(offset) + " to " + std::to_string(offset + bytes - 1);
  }

  static void note_reader(Word& word, const Access& now) {
    const bool stale = word.readers == Readers::none || word.read.block_epoch < now.block_epoch ||
                       (word.readers != Readers::warps && same_warp(word.read, now) &&
                        word.read.warp_epoch < now.warp_epoch);
    if (stale) {
      word.readers = Readers::one;
      word.read = now;
    } else if (word.readers != Readers::warps && !same_warp(word.read, now)) {
      word.readers = Readers::warps;
      word.other_read = now;
    } else if (word.readers == Readers::one && word.read.thread != now.thread) {
      word.readers = Readers::lanes;
      word.other_read = now;
    }
  }

  // One that is not of the thread itself, nor, where there is a choice, of its warp.
  static const Access& reader_in_the_way(const Word& word, const Access& now) {
    const bool own =
        word.readers == Readers::warps ? same_warp(word.read, now) : word.read.thread == now.thread;
    return own ? word.other_read : word.read;
  }

  static bool readers_done(const Word& word, const Access& now) {
    if (word.readers == Readers::none || word.read.block_epoch < now.block_epoch) return true;
    if (word.readers == Readers::warps || !same_warp(word.read, now)) return false;
    return word.read.warp_epoch < now.warp_epoch ||
           (word.readers == Readers::one && word.read.thread == now.thread);
  }

  void check_writable(uint32_t address, uint32_t bytes, const Access& now) const {
    for (uint32_t i = first(address); i < first(address + bytes); ++i) {
      const Word& word = words[i];
      if (word.state == in_flight) reject_unwritten(word, address, bytes, now);
      if (word.state == written && !in_order(word.write, now)) {
        reject(address, bytes, now, "overwritten", "written", word.write);
      }
      if (!readers_done(word, now)) {
        reject(address, bytes, now, "overwritten", "read", reader_in_the_way(word, now));
      }
    }
  }

  [[noreturn]] static void reject(uint32_t address, uint32_t bytes, const Access& now,
                                  const char* what, const char* before, const Access& other) {
    const bool lanes = same_warp(other, now);
    fail(now.thread, now.site,
         "race: " + where(address, bytes) + " are " + what + ", were " + before + " by thread " +
             std::to_string(other.thread) + " at " + other.site.text() + ", no " +
             (lanes ? "warp_sync or block_sync" : "block_sync") + " in between");
  }

  [[noreturn]] static void reject_unwritten(const Word& word, uint32_t address, uint32_t bytes,
                                            const Access& now) {
    if (word.state == unwritten) {
      fail(now.thread, now.site, "uninitialised: nothing has written " + where(address, bytes));
    }
    fail(now.thread, now.site,
         "in flight: " + where(address, bytes) + " have a cp_async_16 of thread " +
             std::to_string(word.write.thread) + " at " + word.write.site.text() +
             " on the way, not waited for");
  }

  uint32_t size = 0;
  std::vector<Word> words;
};

}  // namespace host
}  // namespace gpu
}  // namespace slipform
