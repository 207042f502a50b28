// How often shared memory's 32 banks of 4 bytes had to serve one access in more turns than needed.
//
// The hardware serves 128 bytes a turn: all lanes' 4 bytes, half the lanes' 8, or eight lanes' 16.
// Each further word that such a group wants of one bank costs a turn more.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "report.h"

namespace slipform {
namespace gpu {
namespace host {

struct Conflicts {
  uint64_t turns = 0;      // that the accesses took
  uint64_t conflicts = 0;  // of them, those that another layout would have saved
};

struct Touch {
  Site site;
  uint32_t address, bytes;  // no bytes: the lane had no such access
  Conflicts* total;
};
using Touches = std::array<Touch, 32>;

// Lanes at one site count as one access.
inline void count_turns(const Touches& touches) {
  std::array<bool, 32> done{};
  for (uint32_t lead = 0; lead < 32; ++lead) {
    if (done[lead] || touches[lead].bytes == 0) continue;
    const uint32_t bytes = touches[lead].bytes, group = 128 / bytes;
    for (uint32_t start = 0; start < 32; start += group) {
      std::array<uint32_t, 128> words;
      uint32_t count = 0;
      for (uint32_t lane = start; lane < start + group; ++lane) {
        const Touch& touch = touches[lane];
        if (touch.bytes != bytes || !(touch.site == touches[lead].site)) continue;
        done[lane] = true;
        for (uint32_t b = 0; b < bytes / 4; ++b) words[count++] = touch.address / 4 + b;
      }
      if (count == 0) continue;
      std::sort(words.begin(), words.begin() + count);
      const auto end = std::unique(words.begin(), words.begin() + count);
      std::array<uint32_t, 32> wanted{};
      for (auto word = words.begin(); word != end; ++word) ++wanted[*word % 32];
      const uint32_t turns = *std::max_element(wanted.begin(), wanted.end());
      touches[lead].total->turns += turns;
      touches[lead].total->conflicts += turns - 1;
    }
  }
}

// A warp's accesses since its last collective, the lanes' first ones together, then the second ...
class Banks {
 public:
  void note(uint32_t lane, const Touch& touch) {
    const uint32_t i = counts[lane]++;
    if (i == used) {
      if (i == touches.size()) touches.emplace_back();
      touches[i] = Touches{};
      ++used;
    }
    touches[i][lane] = touch;
  }
  void settle() {
    for (uint32_t i = 0; i < used; ++i) count_turns(touches[i]);
    used = 0;
    counts = {};
  }

 private:
  std::vector<Touches> touches;
  uint32_t used = 0;
  std::array<uint32_t, 32> counts{};
};

}  // namespace host
}  // namespace gpu
}  // namespace slipform
