// A tile of the matrix in the registers of a block: which thread holds what, and what is special.
//
// Every thread holds HEIGHT x WIDTH values, at indices that are known at compile time. Two layouts
// say where these lie in the tile; the epilogues serve both.
#pragma once

#include <cfloat>
#include <cmath>
#include <cstdint>

#include "cuda_kernels.h"
#include "primitives.cuh"

// Values stay in registers only if all loops over them are unrolled; elsewhere unrolling costs
// registers that there are not.
#ifdef __CUDACC__
#define SLIPFORM_UNROLL _Pragma("unroll")
#define SLIPFORM_NO_UNROLL _Pragma("unroll 1")
#else
#define SLIPFORM_UNROLL
#define SLIPFORM_NO_UNROLL
#endif

namespace slipform {
namespace gpu {

constexpr uint32_t THREADS = 256, WARPS = THREADS / 32;
constexpr int WIDTH = 8;  // columns of a thread
constexpr float LOG2E = 1.4426950408889634f;
constexpr float NEG_INF = -INFINITY;
// The maximum of nothing: unlike -inf, exponents relative to it are no nan.
constexpr float LOWEST = -FLT_MAX;

// One exponential serves both directions where the maxima, or the log-sum-exps, of rows and columns
// lie this close together, in base 2: what then underflows is below 2^-46 of its row's sum.
constexpr float RANGE = 80.0f;

// Rows of a tile over the warps, columns over the lanes: for similarities from memory.
struct MemoryLayout {
  static constexpr int ROWS = ELEMENTWISE_TILE.rows, COLS = ELEMENTWISE_TILE.cols;
  static constexpr int HEIGHT = 4;  // rows of a thread
  static constexpr int WARPS_DOWN = 8, WARPS_ACROSS = 1;
  static constexpr int ROW_LANES = 32;  // lanes that share a row

  SLIPFORM_DEVICE static int warp_down() { return static_cast<int>(warp_id()); }
  SLIPFORM_DEVICE static int warp_across() { return 0; }
  SLIPFORM_DEVICE static int row(int i) { return warp_down() * HEIGHT + i; }
  SLIPFORM_DEVICE static int col(int j) { return static_cast<int>(lane_id()) * WIDTH + j; }
};

// The accumulators of mma.m16n8: 8 warps as 2 x 4, each with 64 x 32.
struct ProductLayout {
  static constexpr int ROWS = FUSED_TILE.rows, COLS = FUSED_TILE.cols;
  static constexpr int HEIGHT = 8;
  static constexpr int WARPS_DOWN = 2, WARPS_ACROSS = 4;
  static constexpr int ROW_LANES = 4;

  SLIPFORM_DEVICE static int warp_down() { return static_cast<int>(warp_id()) / WARPS_ACROSS; }
  SLIPFORM_DEVICE static int warp_across() { return static_cast<int>(warp_id()) % WARPS_ACROSS; }
  SLIPFORM_DEVICE static int row(int i) {
    return warp_down() * 64 + static_cast<int>(lane_id()) / 4 + (i / 2 * 16 + i % 2 * 8);
  }
  SLIPFORM_DEVICE static int col(int j) {
    return warp_across() * 32 + static_cast<int>(lane_id()) % 4 * 2 + (j / 2 * 8 + j % 2);
  }
};

// A thread's values, in the order of tensor-core fragments: 2 x 2 of each 16 x 8.
template <class Layout>
struct Values {
  float fragment[Layout::HEIGHT / 2][WIDTH / 2][4];

  SLIPFORM_DEVICE void clear() {
    SLIPFORM_UNROLL
    for (int i = 0; i < Layout::HEIGHT; ++i) {
      SLIPFORM_UNROLL
      for (int j = 0; j < WIDTH; ++j) at(i, j) = 0.0f;
    }
  }
  SLIPFORM_DEVICE float& at(int i, int j) { return fragment[i / 2][j / 2][i % 2 * 2 + j % 2]; }
  SLIPFORM_DEVICE float at(int i, int j) const { return fragment[i / 2][j / 2][i % 2 * 2 + j % 2]; }
};

// Where a tile lies in the rectangle.
template <class Layout>
struct Place {
  int32_t row_tile, col_tile;

  SLIPFORM_DEVICE int64_t row0() const { return int64_t{row_tile} * Layout::ROWS; }
  SLIPFORM_DEVICE int64_t col0() const { return int64_t{col_tile} * Layout::COLS; }
};

SLIPFORM_DEVICE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// The number of tiles, of which a launch has fewer than 2^31.
SLIPFORM_DEVICE int32_t tiles(int64_t size, int64_t tile) {
  return static_cast<int32_t>((size + tile - 1) / tile);
}

// The same for launchers.
inline uint32_t blocks(int64_t size, int64_t tile) {
  return static_cast<uint32_t>((size + tile - 1) / tile);
}

template <class Layout>
Grid grid_of(const Operands& o) {
  return {blocks(o.rows, Layout::ROWS) * blocks(o.cols, Layout::COLS), 1};
}

// The block's tile. Blocks that run at the same time share operands if their tiles are neighbours
// in both directions, so tiles are numbered column by column within bands of BAND rows of tiles.
template <class Layout>
SLIPFORM_DEVICE Place<Layout> place_of_block(const Operands& o) {
  constexpr int32_t BAND = 16;
  const int32_t down = tiles(o.rows, Layout::ROWS), across = tiles(o.cols, Layout::COLS);
  const int32_t band = static_cast<int32_t>(block_x() / (int64_t{BAND} * across));
  const int32_t in_band = static_cast<int32_t>(block_x() - int64_t{band} * BAND * across);
  const int32_t height = down - band * BAND < BAND ? down - band * BAND : BAND;
  return {band * BAND + in_band % height, in_band / height};
}

// The bias of a thread's columns in base 2, 0 past the end.
template <class Layout>
SLIPFORM_DEVICE void load_bias(const Operands& o, const Place<Layout>& p, float (&bias)[WIDTH]) {
  SLIPFORM_UNROLL
  for (int j = 0; j < WIDTH; ++j) {
    const int64_t col = p.col0() + Layout::col(j);
    const bool given = o.bias != nullptr && col < o.cols;
    bias[j] = given ? o.bias[col * o.bias_step] * LOG2E : 0.0f;
  }
}

// Reductions over the lanes that share a row or a column; every lane gets the result.
struct Add {
  SLIPFORM_DEVICE float operator()(float a, float b) const { return a + b; }
};
struct Max {
  SLIPFORM_DEVICE float operator()(float a, float b) const { return fmaxf(a, b); }
};
struct Min {
  SLIPFORM_DEVICE float operator()(float a, float b) const { return fminf(a, b); }
};

template <class Combine>
SLIPFORM_DEVICE float over_lanes(float value, int from, int to, const Combine& combine) {
  SLIPFORM_UNROLL
  for (int mask = from; mask < to; mask *= 2) value = combine(value, shuffle_xor(value, mask));
  return value;
}

template <class Layout, class Combine>
SLIPFORM_DEVICE float over_row(float value, const Combine& combine) {
  return over_lanes(value, 1, Layout::ROW_LANES, combine);
}

template <class Layout, class Combine>
SLIPFORM_DEVICE float over_col(float value, const Combine& combine) {
  return over_lanes(value, Layout::ROW_LANES, 32, combine);
}

template <class Combine>
SLIPFORM_DEVICE float over_warp(float value, const Combine& combine) {
  return over_lanes(value, 1, 32, combine);
}

// Shared memory of an epilogue: for every row (column) a float from each of the warps that hold a
// part of it.
template <class Layout>
struct Exchange {
  static constexpr uint32_t ROW_BYTES = Layout::WARPS_ACROSS * Layout::ROWS * 4;
  static constexpr uint32_t COL_BYTES = Layout::WARPS_DOWN * Layout::COLS * 4;

  SLIPFORM_DEVICE static uint32_t row(uint32_t base, int warp, int row) {
    return base + (warp * Layout::ROWS + row) * 4;
  }
  SLIPFORM_DEVICE static uint32_t col(uint32_t base, int warp, int col) {
    return base + (warp * Layout::COLS + col) * 4;
  }
};

}  // namespace gpu
}  // namespace slipform
