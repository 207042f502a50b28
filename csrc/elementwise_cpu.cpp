// Statistics and gradient over a block of similarities that a library product wrote, tile by tile.
// Compiled once for each instruction set (SLIPFORM_LEVEL).
#include <algorithm>
#include <cstdint>
#include <vector>

#include "block.h"
#include "parallel.h"
#include "tiles.h"

#define SLIPFORM_JOIN_(a, b) a##b
#define SLIPFORM_JOIN(a, b) SLIPFORM_JOIN_(a, b)

namespace slipform {
namespace {

Tile tile_of(const Block& b, int64_t task) {
  int64_t across = tiles(b.cols, TILE_COLS);
  int64_t row0 = task / across * TILE_ROWS, col0 = task % across * TILE_COLS;
  return {row0, std::min(row0 + TILE_ROWS, b.rows), col0, std::min(col0 + TILE_COLS, b.cols)};
}

void statistics(const Block& b, const Statistics& out, int threads) {
  const ColumnsByRow by_row(b);
  const int64_t down = tiles(b.rows, TILE_ROWS), across = tiles(b.cols, TILE_COLS);
  std::vector<float> row_max(b.rows * across), row_sum(b.rows * across);
  std::vector<float> col_max(down * b.cols), col_sum(down * b.cols);
  parallel_for(down * across, threads, [&](int64_t task) {
    Tile t = tile_of(b, task);
    int64_t of_rows = t.row0 * across + task % across, of_cols = task / across * b.cols + t.col0;
    tile_statistics(b, by_row, t, &row_max[of_rows], &row_sum[of_rows], across, &col_max[of_cols],
                    &col_sum[of_cols]);
  });
  std::fill_n(out.row_max, b.rows, NEG_INF);
  std::fill_n(out.row_sum, b.rows, 0.0f);
  std::fill_n(out.col_max, b.cols, NEG_INF);
  std::fill_n(out.col_sum, b.cols, 0.0f);
  parallel_for(down + across, threads, [&](int64_t task) {
    if (task < down) {
      for (int64_t i = task * TILE_ROWS; i < std::min((task + 1) * TILE_ROWS, b.rows); ++i)
        merge(&row_max[i * across], &row_sum[i * across], across, 1, out.row_max[i],
              out.row_sum[i]);
      return;
    }
    int64_t col0 = (task - down) * TILE_COLS, col1 = std::min(col0 + TILE_COLS, b.cols);
    for (int64_t j = col0; j < col1; ++j)
      merge(&col_max[j], &col_sum[j], down, b.cols, out.col_max[j], out.col_sum[j]);
  });
}

void gradient(const Block& b, const Gradient& g, int threads) {
  const ColumnsByRow by_row(b);
  const int64_t down = tiles(b.rows, TILE_ROWS), across = tiles(b.cols, TILE_COLS);
  std::vector<float> scale_grad(g.scale_grad != nullptr ? b.rows * across : 0);
  std::vector<float> bias_grad(g.bias_grad != nullptr ? down * b.cols : 0);
  if (g.margin_grad != nullptr) std::fill_n(g.margin_grad, b.rows * b.hard, 0.0f);
  parallel_for(down * across, threads, [&](int64_t task) {
    Tile t = tile_of(b, task);
    float* scale_part = g.scale_grad ? &scale_grad[t.row0 * across + task % across] : nullptr;
    float* bias_part = g.bias_grad ? &bias_grad[task / across * b.cols + t.col0] : nullptr;
    tile_gradient(b, g, by_row, t, scale_part, across, bias_part);
  });
  for (int64_t i = 0; g.scale_grad != nullptr && i < b.rows; ++i) {
    float sum = 0;
    for (int64_t n = 0; n < across; ++n) sum += scale_grad[i * across + n];
    g.scale_grad[i] = sum;
  }
  for (int64_t j = 0; g.bias_grad != nullptr && j < b.cols; ++j) {
    float sum = 0;
    for (int64_t n = 0; n < down; ++n) sum += bias_grad[n * b.cols + j];
    g.bias_grad[j] = sum;
  }
}

}  // namespace

const Kernels& SLIPFORM_JOIN(kernels_, SLIPFORM_LEVEL)() {
  static const Kernels kernels{statistics, gradient};
  return kernels;
}

}  // namespace slipform
