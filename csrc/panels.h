// Packing of the products' operands: see products.h.
//
// All of it stands in an anonymous namespace, for AVX-512.
#pragma once

#if defined(__GNUC__) && !defined(__clang__)
// GCC 12 warns inside its own intrinsics.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "products.h"

namespace slipform {
namespace {

constexpr int64_t LANES = 16;

// A matrix [rows, cols] of fp32 or bf16, row-major.
struct Matrix {
  const void* data;
  int64_t rows, cols;
  bool bf16;
  int64_t stride;  // numbers from one row to the next

  const char* row(int64_t i) const {
    return static_cast<const char*>(data) + i * stride * (bf16 ? 2 : 4);
  }
  Matrix band(int64_t first, int64_t last) const {
    return {row(first), last - first, cols, bf16, stride};
  }
};

int64_t words_of(int64_t depth, bool bf16) { return bf16 ? (depth + 1) / 2 : depth; }

__mmask16 first_lanes(int64_t count) {
  return count >= LANES ? 0xffff : static_cast<__mmask16>((1u << std::max<int64_t>(count, 0)) - 1);
}

__mmask32 first_halves(int64_t count) {
  return count >= 2 * LANES ? ~0u : (1u << std::max<int64_t>(count, 0)) - 1;
}

// v[k][j] <- v[j][k] for 16 x 16 words.
void transpose(__m512i (&v)[16]) {
  __m512i t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(v[i], v[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(v[i], v[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    v[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    v[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    v[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    v[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    const __m512i even = _mm512_shuffle_i32x4(v[i], v[i + 4], 0x88);
    const __m512i odd = _mm512_shuffle_i32x4(v[i], v[i + 4], 0xdd);
    const __m512i even2 = _mm512_shuffle_i32x4(v[i + 8], v[i + 12], 0x88);
    const __m512i odd2 = _mm512_shuffle_i32x4(v[i + 8], v[i + 12], 0xdd);
    t[i] = _mm512_shuffle_i32x4(even, even2, 0x88);
    t[i + 8] = _mm512_shuffle_i32x4(even, even2, 0xdd);
    t[i + 4] = _mm512_shuffle_i32x4(odd, odd2, 0x88);
    t[i + 12] = _mm512_shuffle_i32x4(odd, odd2, 0xdd);
  }
  std::copy_n(t, 16, v);
}

// 16 words of a row of `m` from `word` on; zeros past its end.
__m512i load_words(const Matrix& m, int64_t row, int64_t word) {
  if (word >= words_of(m.cols, m.bf16)) return _mm512_setzero_si512();
  if (m.bf16)
    return _mm512_maskz_loadu_epi16(first_halves(m.cols - 2 * word), m.row(row) + 4 * word);
  return _mm512_maskz_loadu_epi32(first_lanes(m.cols - word), m.row(row) + 4 * word);
}

// The panel of columns `first`, ..., of m^T: the rows of `m` are the product's columns. Words past
// its own are 0.
void pack_transposed(const Matrix& m, int64_t first, int64_t words, uint32_t* panel) {
  for (int64_t group = 0; group < PANEL; group += LANES) {
    for (int64_t word = 0; word < words; word += LANES) {
      __m512i v[16];
      for (int64_t lane = 0; lane < LANES; ++lane) {
        const int64_t row = first + group + lane;
        v[lane] = row < m.rows ? load_words(m, row, word) : _mm512_setzero_si512();
      }
      transpose(v);
      for (int64_t n = 0; n < std::min(LANES, words - word); ++n)
        _mm512_storeu_si512(panel + (word + n) * PANEL + group, v[n]);
    }
  }
}

// Row `row` of `m` from column `col` on, 16 numbers, in fp32.
__m512i load_fp32(const Matrix& m, int64_t row, int64_t col, __mmask16 present) {
  if (!m.bf16) return _mm512_maskz_loadu_epi32(present, m.row(row) + 4 * col);
  const __m256i halves = _mm256_maskz_loadu_epi16(present, m.row(row) + 2 * col);
  return _mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16);
}

// Rows `row` and `row + 1` of `m`, which is bf16, as words; zeros stand for a row past the last.
__m512i load_pairs(const Matrix& m, int64_t row, int64_t col, __mmask16 present) {
  const __m512i low =
      _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(present, m.row(row) + 2 * col));
  if (row + 1 >= m.rows) return low;
  const __m512i high =
      _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(present, m.row(row + 1) + 2 * col));
  return _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
}

// Row `word` of a matrix whose rows are the depth, as words, from column `col` on: of fp32 one row,
// of bf16 two. bf16 may be taken as fp32.
__m512i load_depth(const Matrix& m, int64_t word, int64_t col, bool as_bf16) {
  if (word >= words_of(m.rows, as_bf16)) return _mm512_setzero_si512();
  const __mmask16 present = first_lanes(m.cols - col);
  const int64_t inside = std::min(col, m.cols);
  return as_bf16 ? load_pairs(m, 2 * word, inside, present) : load_fp32(m, word, inside, present);
}

// Both rows of a word of a full panel, 64 columns from `col` on.
void pack_pairs(const Matrix& m, int64_t row, int64_t col, uint32_t* out) {
  const char *low = m.row(row) + 2 * col, *high = m.row(row + 1) + 2 * col;
  for (int64_t group = 0; group < PANEL; group += LANES) {
    const __m256i first = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(low + 2 * group));
    const __m256i second = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(high + 2 * group));
    _mm512_storeu_si512(out + group,
                        _mm512_or_si512(_mm512_cvtepu16_epi32(first),
                                        _mm512_slli_epi32(_mm512_cvtepu16_epi32(second), 16)));
  }
}

// Words `word0` to `word1` of the panel of columns `first`, ..., of `m`, whose rows are the depth.
void pack(const Matrix& m, int64_t first, int64_t word0, int64_t word1, bool as_bf16,
          uint32_t* panel) {
  const bool full = first + PANEL <= m.cols;
  for (int64_t word = word0; word < word1; ++word) {
    uint32_t* out = panel + word * PANEL;
    if (as_bf16 && full && 2 * word + 1 < m.rows) {
      pack_pairs(m, 2 * word, first, out);
      continue;
    }
    for (int64_t group = 0; group < PANEL; group += LANES)
      _mm512_storeu_si512(out + group, load_depth(m, word, first + group, as_bf16));
  }
}

// Columns `first` to `last` of `m`, whose rows are the depth, as rows of `stride` words: a left
// operand. Words are written in groups of 16, with zeros past the last.
void pack_left(const Matrix& m, int64_t first, int64_t last, int64_t stride, uint32_t* out) {
  const int64_t words = words_of(m.rows, m.bf16);
  for (int64_t col = first; col < last; col += LANES) {
    for (int64_t word = 0; word < words; word += LANES) {
      __m512i v[16];
      for (int64_t n = 0; n < LANES; ++n) v[n] = load_depth(m, word + n, col, m.bf16);
      transpose(v);
      for (int64_t n = 0; n < std::min(LANES, last - col); ++n)
        _mm512_storeu_si512(out + (col - first + n) * stride + word, v[n]);
    }
  }
}

}  // namespace
}  // namespace slipform
