// The whole loss on AVX-512: similarities, statistics and gradients tile by tile, the matrix
// nowhere.
//
// Forward computes a tile of similarities and takes its statistics while it is in cache. Backward
// walks over parts of the matrix: the tiles of a part leave dL in a workspace, and two products add
// dL Y and dL^T X to the features' gradients. Every sum has a fixed order, whatever the number of
// threads.
//
// Compiled without these instruction sets, it is a stub that says so.
#include "fused_cpu.h"

#ifdef __AVX512BF16__

#include <algorithm>
#include <cmath>
#include <vector>

#include "fused_cpu_gradient.h"
#include "fused_cpu_operands.h"

namespace slipform {
namespace {

// The part of the matrix whose sums are merged at a time.
constexpr int64_t FORWARD_ROWS = 384 * TILE_ROWS, FORWARD_COLS = 4 * TILE_COLS;

// Log-sum-exps in the making.
struct Running {
  std::vector<float> maximum, sum;
  explicit Running(int64_t count) : maximum(count, NEG_INF), sum(count, 0.0f) {}
  float rest(int64_t n) const { return maximum[n] + std::log(sum[n]); }
};

void write_row_rests(const Operands& o, const Running& running, int64_t first, int64_t last,
                     const Rests& out) {
  for (int64_t i = first; i < last; ++i) {
    const int64_t j = o.block.row_target[i];
    out.row_rest[i] = running.rest(i);
    out.row_positive[i] = j < 0 ? 0 : o.positive_logit(i, j);
  }
}

void write_col_rests(const Operands& o, const Running& running, int64_t first, int64_t last,
                     const Rests& out) {
  for (int64_t j = first; j < last; ++j) {
    const int64_t i = o.block.col_target[j];
    out.col_rest[j] = running.rest(j);
    out.col_positive[j] = i < 0 ? 0 : o.positive_logit(i, j);
  }
}

// Statistics of one part, added to those of the others before it.
void add_statistics(const Operands& o, const Part& part, const uint32_t* packed, Running& of_rows,
                    Running& of_cols, const Rests& out, int threads) {
  const int64_t down = part.down(), across = part.across(), width = part.width();
  std::vector<float> row_max(part.height() * across), row_sum(part.height() * across);
  std::vector<float> col_max(down * width), col_sum(down * width);
  parallel_for(down * across, threads, [&](int64_t task) {
    const Tile t = part.tile(task);
    alignas(64) float scratch[TILE_ROWS][TILE_COLS];
    TileOf tile(o, t, scratch);
    tile.compute(o, t, part, packed);
    tile.keep_part(o, t);
    const int64_t rows_at = (t.row0 - part.row0) * across + task / down;
    const int64_t cols_at = task % down * width + t.col0 - part.col0;
    tile_statistics(tile.block, o.by_row, t, &row_max[rows_at], &row_sum[rows_at], across,
                    &col_max[cols_at], &col_sum[cols_at]);
  });
  // What has met its last part is complete.
  const bool last_cols = part.row1 == o.block.rows, last_rows = part.col1 == o.block.cols;
  parallel_for(down + across, threads, [&](int64_t task) {
    if (task < down) {
      const int64_t row0 = task * TILE_ROWS, row1 = std::min(row0 + TILE_ROWS, part.height());
      for (int64_t i = row0; i < row1; ++i)
        merge(&row_max[i * across], &row_sum[i * across], across, 1, of_rows.maximum[part.row0 + i],
              of_rows.sum[part.row0 + i]);
      if (last_rows) write_row_rests(o, of_rows, part.row0 + row0, part.row0 + row1, out);
      return;
    }
    const int64_t col0 = (task - down) * TILE_COLS, col1 = std::min(col0 + TILE_COLS, width);
    for (int64_t j = col0; j < col1; ++j)
      merge(&col_max[j], &col_sum[j], down, width, of_cols.maximum[part.col0 + j],
            of_cols.sum[part.col0 + j]);
    if (last_cols) write_col_rests(o, of_cols, part.col0 + col0, part.col0 + col1, out);
  });
}

void statistics(const Block& b, const Features& f, const Kept& kept, const Rests& out,
                int threads) {
  const Operands o(b, f, kept, threads);
  Running of_rows(b.rows), of_cols(b.cols);
  const int64_t width = std::min(b.cols, FORWARD_COLS);
  const Buffer<uint32_t> packed(panels(width) * PANEL * o.unit.words(f.depth));
  for (int64_t col0 = 0; col0 < b.cols; col0 += FORWARD_COLS) {
    const int64_t col1 = std::min(col0 + FORWARD_COLS, b.cols);
    pack_all({{o.cols.band(col0, col1), true, o.unit, packed.get()}}, threads);
    for (int64_t row0 = 0; row0 < b.rows; row0 += FORWARD_ROWS) {
      const Part part{{row0, std::min(row0 + FORWARD_ROWS, b.rows), col0, col1}};
      add_statistics(o, part, packed.get(), of_rows, of_cols, out, threads);
    }
  }
}

// Log-sum-exps for backward: +inf in place of -inf, so that every exponential of an empty one is 0.
std::vector<float> closed(const float* rest, int64_t count) {
  std::vector<float> result(rest, rest + count);
  for (float& value : result)
    if (value == NEG_INF) value = -value;
  return result;
}

void gradients(const Block& b, const Features& f, const Kept& kept, Gradient g, bool rounded,
               const Gradients& out, int threads) {
  const Operands o(b, f, kept, threads);
  const Unit unit = unit_of(rounded, f.amx);
  const auto row_rest = closed(g.row_rest, b.rows), col_rest = closed(g.col_rest, b.cols);
  g.row_rest = row_rest.data();
  g.col_rest = col_rest.data();
  const int64_t height = std::min(b.rows, BACKWARD_ROWS), width = std::min(b.cols, BACKWARD_COLS);
  const int64_t across = panels(f.depth) * PANEL;
  const Sum of_rows(out.rows, o.rows, out.factor, height),
      of_cols(out.cols, o.cols, out.factor, b.cols);
  const Buffer<uint32_t> columns(
      kept.rows >= b.rows ? 0 : panels(width) * PANEL * o.unit.words(f.depth));
  const Buffer<uint32_t> by_cols(of_rows.needed() ? across * unit.words(width) : 0);
  const Buffer<uint32_t> by_rows(of_cols.needed() ? across * unit.words(height) : 0);
  Workspace workspace(b, rounded);
  if (g.margin_grad != nullptr) std::fill_n(g.margin_grad, b.rows * b.hard, 0.0f);
  for (int64_t row0 = 0; row0 < b.rows; row0 += BACKWARD_ROWS) {
    const int64_t row1 = std::min(row0 + BACKWARD_ROWS, b.rows);
    const Packed rows{o.rows.band(row0, row1), false, unit, by_rows.get()};
    for (int64_t col0 = 0; col0 < b.cols; col0 += BACKWARD_COLS) {
      const Part part{{row0, row1, col0, std::min(col0 + BACKWARD_COLS, b.cols)}};
      const Matrix band = o.cols.band(col0, part.col1);
      const Packed cols{band, false, unit, by_cols.get()};
      std::vector<Packed> operands{cols};
      if (row1 > kept.rows) operands.push_back({band, true, o.unit, columns.get()});
      if (col0 == 0) operands.push_back(rows);
      pack_all(operands, threads);
      workspace.fill(o, part, g, columns.get(), out.scale, threads);
      const Matrix logits = workspace.logits(part);
      if (of_rows.needed())
        add_to_rows(unit, of_rows, logits, cols, part, part.col1 == b.cols, threads);
      if (of_cols.needed()) add_to_cols(unit, of_cols, logits, rows, part, row1 == b.rows, threads);
    }
  }
}

}  // namespace

const Fused* fused_avx512() {
  static const Fused fused{statistics, gradients};
  return &fused;
}

// Below this many operations of one product, a call's overhead outweighs the library's better rate
// on processors where its fp32 product is the faster one.
constexpr int64_t SMALL = 1 << 26;

bool fused_serves(bool bf16, bool amx, int64_t rows, int64_t cols, int64_t depth) {
  if (!__builtin_cpu_supports("x86-64-v4")) return false;
  if (bf16) return amx || __builtin_cpu_supports("avx512bf16");
  return __builtin_cpu_is("amd") || rows * cols * depth <= SMALL;
}

}  // namespace slipform

#else

namespace slipform {

const Fused* fused_avx512() { return nullptr; }

bool fused_serves(bool, bool, int64_t, int64_t, int64_t) { return false; }

}  // namespace slipform

#endif
