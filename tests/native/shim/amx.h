// AMX's tile instructions on any processor, for csrc/amx_products.cpp: included before it by the
// compiler's command. Faults that the processor would raise end the process.
#pragma once

#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbf16ps

namespace slipform_amx {

struct State {
  bool configured = false;
  uint8_t rows[8];
  uint16_t row_bytes[8];
  uint8_t data[8][16][64];
};

inline State& state() {
  thread_local State tiles;
  return tiles;
}

inline void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "AMX: %s\n", what);
  std::abort();
}

inline void load_config(const void* config) {
  const auto* bytes = static_cast<const uint8_t*>(config);
  State& s = state();
  require(bytes[0] == 1 && bytes[1] == 0, "palette 1 and start row 0");
  for (int n = 2; n < 16; ++n) require(bytes[n] == 0, "reserved bytes of the configuration are 0");
  for (int n = 0; n < 8; ++n) {
    std::memcpy(&s.row_bytes[n], bytes + 16 + 2 * n, 2);
    s.rows[n] = bytes[48 + n];
    require(s.row_bytes[n] <= 64 && s.rows[n] <= 16, "at most 16 rows of 64 bytes");
  }
  for (int n = 32; n < 48; ++n) require(bytes[n] == 0, "there are eight tiles");
  std::memset(s.data, 0, sizeof s.data);
  s.configured = true;
}

inline void release() { state().configured = false; }

inline uint8_t (&tile(int n))[16][64] {
  require(state().configured, "no configuration is loaded");
  return state().data[n];
}

inline void zero(int n) { std::memset(tile(n), 0, 16 * 64); }

inline void load(int n, const void* base, int64_t stride) {
  auto& to = tile(n);
  std::memset(to, 0, sizeof to);
  for (int row = 0; row < state().rows[n]; ++row)
    std::memcpy(to[row], static_cast<const char*>(base) + row * stride, state().row_bytes[n]);
}

inline void store(int n, void* base, int64_t stride) {
  const auto& from = tile(n);
  for (int row = 0; row < state().rows[n]; ++row)
    std::memcpy(static_cast<char*>(base) + row * stride, from[row], state().row_bytes[n]);
}

inline float number(const uint8_t* bytes) {
  uint32_t bits = (uint32_t{bytes[1]} << 24) | (uint32_t{bytes[0]} << 16);
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return std::fpclassify(value) == FP_SUBNORMAL ? 0.0f : value;
}

// sums[m][n] += a[m][2k] b[k][2n] + a[m][2k + 1] b[k][2n + 1]
inline void multiply(int sums, int a, int b) {
  const State& s = state();
  auto& out = tile(sums);
  require(s.row_bytes[a] == 4 * s.rows[b], "the depths are one");
  require(s.rows[sums] == s.rows[a] && s.row_bytes[sums] == s.row_bytes[b], "the sizes are one");
  for (int m = 0; m < s.rows[sums]; ++m) {
    for (int n = 0; n < s.row_bytes[sums] / 4; ++n) {
      float sum;
      std::memcpy(&sum, &out[m][4 * n], sizeof sum);
      for (int k = 0; k < s.rows[b]; ++k)
        for (int half = 0; half < 4; half += 2)
          sum += number(&s.data[a][m][4 * k + half]) * number(&s.data[b][k][4 * n + half]);
      std::memcpy(&out[m][4 * n], &sum, sizeof sum);
    }
  }
}

}  // namespace slipform_amx

#define _tile_loadconfig(config) slipform_amx::load_config(config)
#define _tile_release() slipform_amx::release()
#define _tile_loadd(n, base, stride) slipform_amx::load(n, base, stride)
#define _tile_stored(n, base, stride) slipform_amx::store(n, base, stride)
#define _tile_zero(n) slipform_amx::zero(n)
#define _tile_dpbf16ps(sums, a, b) slipform_amx::multiply(sums, a, b)
