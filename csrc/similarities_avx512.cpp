// Similarities of fp32 or bf16 features, in fp32, on AVX-512 CPUs where no library computes them
// well: torch's bf16 product returns bf16 on a CPU, too coarse for logits, and its fp32 product
// (MKL) leaves half of an AMD CPU's units idle.
//
// Columns are packed in panels of 64, depth by depth; a strip of 6 rows against a panel keeps 24
// accumulators in registers. A word is one fp32 number or two bf16 numbers, neighbours in depth.
//
// Compiled without these instruction sets, it is a stub that says so.
#include "block.h"

#ifdef __AVX512BF16__

#if defined(__GNUC__) && !defined(__clang__)
// GCC 12 warns inside its own intrinsics.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "parallel.h"

namespace slipform {
namespace {

constexpr int64_t PANEL = 64, LANES = 16, STRIP = 6, TASK_ROWS = 16 * STRIP;

struct Fp32 {
  static int64_t words(int64_t depth) { return depth; }

  // 16 words of a row from `word`, zeros past its end.
  static __m512i load(const void* row, int64_t depth, int64_t word) {
    const __mmask16 present = depth - word >= LANES ? 0xffff : (1u << (depth - word)) - 1;
    return _mm512_maskz_loadu_epi32(present, static_cast<const float*>(row) + word);
  }

  static __m512i broadcast(const void* row, int64_t, int64_t word) {
    return _mm512_castps_si512(_mm512_set1_ps(static_cast<const float*>(row)[word]));
  }

  static __m512 multiply_add(__m512 sum, __m512i a, __m512i b) {
    return _mm512_fmadd_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b), sum);
  }
};

struct Bf16 {
  static int64_t words(int64_t depth) { return (depth + 1) / 2; }

  static __m512i load(const void* row, int64_t depth, int64_t word) {
    const int64_t left = depth - 2 * word;
    const __mmask32 present = left >= 2 * LANES ? ~0u : (1u << left) - 1;
    return _mm512_maskz_loadu_epi16(present, static_cast<const uint16_t*>(row) + 2 * word);
  }

  static __m512i broadcast(const void* row, int64_t depth, int64_t word) {
    const uint16_t* pair = static_cast<const uint16_t*>(row) + 2 * word;
    if (2 * word + 1 == depth) return _mm512_set1_epi32(*pair);
    int32_t both;
    std::memcpy(&both, pair, sizeof both);
    return _mm512_set1_epi32(both);
  }

  static __m512 multiply_add(__m512 sum, __m512i a, __m512i b) {
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
  }
};

const void* row_of(const Product& p, const void* matrix, int64_t row) {
  return static_cast<const char*>(matrix) + row * p.depth * (p.bf16 ? 2 : 4);
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

// packed[word][column of the panel]; zeros stand for columns past the last.
template <class Type>
void pack(const Product& p, int64_t first_col, uint32_t* packed) {
  const int64_t words = Type::words(p.depth);
  for (int64_t group = 0; group < PANEL; group += LANES) {
    for (int64_t word = 0; word < words; word += LANES) {
      __m512i v[16];
      for (int64_t lane = 0; lane < LANES; ++lane) {
        const int64_t col = first_col + group + lane;
        v[lane] = col < p.col_count ? Type::load(row_of(p, p.cols, col), p.depth, word)
                                    : _mm512_setzero_si512();
      }
      transpose(v);
      for (int64_t n = 0; n < std::min(LANES, words - word); ++n)
        _mm512_storeu_si512(packed + (word + n) * PANEL + group, v[n]);
    }
  }
}

// ROWS rows from `row` against a packed panel.
template <class Type, int ROWS>
void strip(const Product& p, int64_t row, int64_t first_col, const uint32_t* packed) {
  const void* rows[ROWS];
  for (int i = 0; i < ROWS; ++i) rows[i] = row_of(p, p.rows, row + i);
  __m512 sum[ROWS][4];
  for (auto& of_row : sum)
    for (auto& lanes : of_row) lanes = _mm512_setzero_ps();
  for (int64_t word = 0; word < Type::words(p.depth); ++word) {
    __m512i cols[4];
    for (int n = 0; n < 4; ++n) cols[n] = _mm512_loadu_si512(packed + word * PANEL + n * LANES);
#pragma GCC unroll 6
    for (int i = 0; i < ROWS; ++i) {
      const __m512i own = Type::broadcast(rows[i], p.depth, word);
      for (int n = 0; n < 4; ++n) sum[i][n] = Type::multiply_add(sum[i][n], own, cols[n]);
    }
  }
  for (int i = 0; i < ROWS; ++i) {
    float* out = p.out + (row + i) * p.col_count;
    for (int n = 0; n < 4; ++n) {
      const int64_t col = std::min(first_col + n * LANES, p.col_count);
      const int64_t left = std::min(p.col_count - col, LANES);
      _mm512_mask_storeu_ps(out + col, static_cast<__mmask16>((1u << left) - 1), sum[i][n]);
    }
  }
}

template <class Type>
void similarities(const Product& p, int threads) {
  using Strip = void (*)(const Product&, int64_t, int64_t, const uint32_t*);
  static constexpr Strip strips[] = {strip<Type, 1>, strip<Type, 2>, strip<Type, 3>,
                                     strip<Type, 4>, strip<Type, 5>, strip<Type, 6>};
  const int64_t panels = (p.col_count + PANEL - 1) / PANEL;
  const int64_t panel_words = Type::words(p.depth) * PANEL;
  std::vector<uint32_t> packed(panels * panel_words);
  parallel_for(panels, threads,
               [&](int64_t n) { pack<Type>(p, n * PANEL, packed.data() + n * panel_words); });
  const int64_t bands = (p.row_count + TASK_ROWS - 1) / TASK_ROWS;
  parallel_for(bands * panels, threads, [&](int64_t task) {
    const int64_t panel = task / bands, first = task % bands * TASK_ROWS;
    const int64_t last = std::min(first + TASK_ROWS, p.row_count);
    for (int64_t row = first; row < last; row += STRIP)
      strips[std::min(STRIP, last - row) - 1](p, row, panel * PANEL,
                                              packed.data() + panel * panel_words);
  });
}

}  // namespace

bool has_similarities(bool bf16) {
  return bf16 ? __builtin_cpu_supports("avx512bf16")
              : __builtin_cpu_supports("x86-64-v4") && __builtin_cpu_is("amd");
}

void similarities(const Product& p, int threads) {
  p.bf16 ? similarities<Bf16>(p, threads) : similarities<Fp32>(p, threads);
}

}  // namespace slipform

#else

namespace slipform {

bool has_similarities(bool) { return false; }

void similarities(const Product&, int) {}

}  // namespace slipform

#endif
