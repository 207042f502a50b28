// Products on AVX-512: a strip of 6 rows against a panel keeps 24 accumulators in registers.
//
// All of it stands in an anonymous namespace.
#pragma once

#include "panels.h"
#include "products.h"

namespace slipform {
namespace {

constexpr int64_t STRIP = 6;

struct Fp32 {
  static __m512 multiply_add(__m512 sum, __m512i a, __m512i b) {
    return _mm512_fmadd_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b), sum);
  }
};

struct Bf16 {
  static __m512 multiply_add(__m512 sum, __m512i a, __m512i b) {
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
  }
};

template <class Type, int ROWS>
void strip(const Left& left, const uint32_t* panel, int64_t words, Target target) {
  const char* rows[ROWS];
  for (int i = 0; i < ROWS; ++i) rows[i] = left.base + i * left.row_stride;
  __m512 sum[ROWS][4];
  for (auto& of_row : sum)
    for (auto& lanes : of_row) lanes = _mm512_setzero_ps();
  for (int64_t word = 0; word < words; ++word) {
    __m512i cols[4];
    for (int n = 0; n < 4; ++n) cols[n] = _mm512_loadu_si512(panel + word * PANEL + n * LANES);
#pragma GCC unroll 6
    for (int i = 0; i < ROWS; ++i) {
      int32_t bits;
      std::memcpy(&bits, rows[i] + 4 * word, sizeof bits);
      const __m512i own = _mm512_set1_epi32(bits);
      for (int n = 0; n < 4; ++n) sum[i][n] = Type::multiply_add(sum[i][n], own, cols[n]);
    }
  }
  for (int i = 0; i < ROWS; ++i) {
    float* out = target.out + i * target.stride;
    for (int n = 0; n < 4; ++n) {
      const __mmask16 present = first_lanes(target.cols - n * LANES);
      float* at = out + std::min(n * LANES, target.cols);
      if (target.add) sum[i][n] = _mm512_add_ps(sum[i][n], _mm512_maskz_loadu_ps(present, at));
      _mm512_mask_storeu_ps(at, present, sum[i][n]);
    }
  }
}

template <class Type>
void multiply_in_strips(Left left, int64_t rows, const uint32_t* panels, int64_t words,
                        Target target) {
  using Strip = void (*)(const Left&, const uint32_t*, int64_t, Target);
  static constexpr Strip strips[] = {strip<Type, 1>, strip<Type, 2>, strip<Type, 3>,
                                     strip<Type, 4>, strip<Type, 5>, strip<Type, 6>};
  for (int64_t col = 0; col < target.cols; col += PANEL) {
    for (int64_t row = 0; row < rows; row += STRIP) {
      strips[std::min(STRIP, rows - row) - 1](
          left.from(row), panels + col * words, words,
          {target.out + row * target.stride + col, target.stride,
           std::min(PANEL, target.cols - col), target.add});
    }
  }
}

}  // namespace
}  // namespace slipform
