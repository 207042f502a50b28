// ldmatrix and mma.sync, carried out for a warp at once.
//
// Each element is looked up where the layout puts it: which lane has it, in which register. The
// tests go the other way, from lane and register to row and column, as the PTX manual does.
#pragma once

#include <cstdint>

#include "collectives.h"
#include "memory.h"
#include "numbers.h"

namespace slipform {
namespace gpu {
namespace host {

struct Ldmatrix : Request {
  uint32_t address;
  uint32_t* r;

  // Lane 8 m + i brings the address of row i of matrix m; of its 16 bytes lane 4 i + j gets the
  // j-th 4.
  static void execute_all(Warp& warp) {
    for (uint32_t lane = 0; lane < warp_lanes; ++lane) {
      auto& source = warp.request<Ldmatrix>(lane);
      const Access now =
          touch_shared(*warp.threads[lane], source.address, 16, source.site, counters.ldmatrix);
      block().shadow.read(source.address, 16, now);
      const unsigned char* row = block().shared_at(source.address);
      for (uint32_t j = 0; j < 4; ++j) {
        auto& target = warp.request<Ldmatrix>(4 * (lane % 8) + j);
        std::memcpy(&target.r[lane / 8], row + 4 * j, 4);
      }
    }
  }
};

struct Mma : Request {
  float* d;
  const uint32_t *a, *b;
};

// d += a b, K being 16 or 8. Lane 4 g + t has d's rows g and g + 8, columns 2 t and 2 t + 1.
template <int K>
inline void multiply(Warp& warp, const float (&a)[16][K], const float (&b)[K][8]) {
  ++counters.mma;
  for (uint32_t row = 0; row < 16; ++row) {
    float sums[8];
    for (uint32_t col = 0; col < 8; ++col) {
      sums[col] = warp.request<Mma>(4 * (row % 8) + col / 2).d[2 * (row / 8) + col % 2];
    }
    for (uint32_t k = 0; k < K; ++k) {
      for (uint32_t col = 0; col < 8; ++col) sums[col] += a[row][k] * b[k][col];
    }
    for (uint32_t col = 0; col < 8; ++col) {
      warp.request<Mma>(4 * (row % 8) + col / 2).d[2 * (row / 8) + col % 2] = sums[col];
    }
  }
}

inline float float_of_half(bf16, uint32_t bits) {
  return float_of_bf16(static_cast<uint16_t>(bits));
}
inline float float_of_half(f16, uint32_t bits) { return float_of_f16(static_cast<uint16_t>(bits)); }

template <class T>
struct Mma16816 : Mma {
  // A register has two elements of neighbouring k, the lower half the first.
  static void execute_all(Warp& warp) {
    float a[16][16], b[16][8];
    for (uint32_t g = 0; g < 8; ++g) {
      for (uint32_t t = 0; t < 4; ++t) {
        const Mma& lane = warp.request<Mma>(4 * g + t);
        for (uint32_t half = 0; half < 2; ++half) {
          for (uint32_t r = 0; r < 4; ++r) {
            a[g + 8 * (r % 2)][2 * t + half + 8 * (r / 2)] =
                float_of_half(T{}, lane.a[r] >> (16 * half));
          }
          for (uint32_t r = 0; r < 2; ++r) {
            b[2 * t + half + 8 * r][g] = float_of_half(T{}, lane.b[r] >> (16 * half));
          }
        }
      }
    }
    multiply(warp, a, b);
  }
};

struct Mma1688 : Mma {
  static void execute_all(Warp& warp) {
    float a[16][8], b[8][8];
    // The tensor core does not look at the last 13 bits.
    const auto element = [](uint32_t bits) { return float_of(bits & ~0x1fffu); };
    for (uint32_t k = 0; k < 8; ++k) {
      for (uint32_t row = 0; row < 16; ++row) {
        const Mma& lane = warp.request<Mma>(4 * (row % 8) + k % 4);
        a[row][k] = element(lane.a[row / 8 + 2 * (k / 4)]);
      }
      for (uint32_t col = 0; col < 8; ++col) {
        b[k][col] = element(warp.request<Mma>(4 * col + k % 4).b[k / 4]);
      }
    }
    multiply(warp, a, b);
  }
};

}  // namespace host

inline void ldmatrix_x4(uint32_t address, uint32_t (&r)[4], host::Site site = host::Site::here()) {
  host::Ldmatrix request{{"ldmatrix_x4", site, host::Ldmatrix::execute_all}, address, r};
  host::block().wait(request);
}
template <class T>
void mma_16816(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
               host::Site site = host::Site::here()) {
  host::Mma request{{"mma_16816", site, host::Mma16816<T>::execute_all}, d, a, b};
  host::block().wait(request);
}
inline void mma_1688_tf32(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                          host::Site site = host::Site::here()) {
  host::Mma request{{"mma_1688_tf32", site, host::Mma1688::execute_all}, d, a, b};
  host::block().wait(request);
}

}  // namespace gpu
}  // namespace slipform
