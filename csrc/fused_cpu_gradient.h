// Backward's pieces: dL of a part of the matrix in a workspace, and its products with the features.
//
// All of it stands in an anonymous namespace, for AVX-512.
#pragma once

#include <algorithm>
#include <vector>

#include "fused_cpu_operands.h"

namespace slipform {
namespace {

// The part of the matrix whose dL is in the workspace at a time.
constexpr int64_t BACKWARD_ROWS = 63 * TILE_ROWS, BACKWARD_COLS = 2 * TILE_COLS;

// dL of one part of the matrix, and the sums over it.
class Workspace {
 public:
  Workspace(const Block& b, bool bf16)
      : bf16_(bf16),
        // an even number of columns, and not a power of two, whose rows would share cache sets
        stride_(tiles(std::min(b.cols, BACKWARD_COLS), 32) * 32 + 32),
        rows_(std::min(b.rows, BACKWARD_ROWS)),
        logits_(rows_ * stride_ * (bf16 ? 2 : 4)) {
    // Of an odd number of bf16 columns, a row's last word holds one more: 0, or what a former part
    // left in the same row. It meets a zero of the right operand.
    std::fill_n(logits_.get(), rows_ * stride_ * (bf16 ? 2 : 4), 0);
  }

  // Writes dL of the part, and adds to the sums.
  void fill(const Operands& o, const Part& part, Gradient g, const uint32_t* packed, double* scale,
            int threads) {
    const int64_t down = part.down(), across = part.across(), width = part.width();
    float* bias = g.bias_grad;
    std::vector<float> scale_part(scale != nullptr ? part.height() * across : 0);
    std::vector<float> bias_part(bias != nullptr ? down * width : 0);
    g.logits_grad = logits_.get();
    g.window = {part.row0, part.col0, stride_};
    g.bf16 = bf16_;
    parallel_for(down * across, threads, [&](int64_t task) {
      const Tile t = part.tile(task);
      alignas(64) float scratch[TILE_ROWS][TILE_COLS];
      TileOf tile(o, t, scratch);
      if (!o.keeps(t)) tile.compute(o, t, part, packed);
      float* of_rows = scale ? &scale_part[(t.row0 - part.row0) * across + task / down] : nullptr;
      float* of_cols = bias ? &bias_part[task % down * width + t.col0 - part.col0] : nullptr;
      tile_gradient(tile.block, g, o.by_row, t, of_rows, across, of_cols);
    });
    for (const float value : scale_part) *scale += value;
    for (int64_t n = 0; n < static_cast<int64_t>(bias_part.size()); ++n)
      bias[part.col0 + n % width] += bias_part[n];
  }

  Matrix logits(const Part& part) const {
    return {logits_.get(), part.height(), part.width(), bf16_, stride_};
  }

 private:
  bool bf16_;
  int64_t stride_, rows_;
  Buffer<char> logits_;
};

// A piece of a gradient of features that one task adds to: rows and columns, and whether it is the
// first or the last time that they are added to.
struct Piece {
  int64_t row0, row1, col0, col1;
  bool first, last;
};

// The gradient of one of the features: factor times the sum over parts of dL Z, [n, depth].
class Sum {
 public:
  // `rows` of the sum are in the making at a time.
  Sum(const FeatureGradient& g, const Matrix& features, float factor, int64_t rows)
      : g_(g),
        bf16_(features.bf16),
        factor_(factor),
        depth_(features.cols),
        own_(needs_own() ? rows * depth_ : 0) {}

  bool needed() const { return g_.sum != nullptr || g_.out != nullptr; }

  // += left packed, or = for the first time. `start` is the first row in the making.
  void add(const Unit& unit, const Left& left, const Packed& packed, int64_t start,
           const Piece& piece) const {
    const int64_t width = piece.col1 - piece.col0;
    const bool add = !piece.first || (g_.sum != nullptr && g_.add);
    unit.multiply(left, piece.row1 - piece.row0, packed.out + piece.col0 * packed.words(),
                  packed.words(), {at(start, piece.row0) + piece.col0, depth_, width, add});
    for (int64_t row = piece.row0; piece.last && g_.out != nullptr && row < piece.row1; ++row)
      finish(at(start, row) + piece.col0, row * depth_ + piece.col0, width);
  }

 private:
  // fp32 gradients are summed in their own place.
  bool needs_own() const { return g_.out != nullptr && bf16_; }

  float* at(int64_t start, int64_t row) const {
    if (g_.sum != nullptr) return g_.sum + row * depth_;
    if (needs_own()) return own_.get() + (row - start) * depth_;
    return static_cast<float*>(g_.out) + row * depth_;
  }

  // out <- factor * sum, in the features' dtype.
  void finish(const float* sum, int64_t place, int64_t count) const {
    if (bf16_) {
      auto* out = static_cast<uint16_t*>(g_.out) + place;
#pragma omp simd
      for (int64_t n = 0; n < count; ++n) out[n] = bf16_of(factor_ * sum[n]);
    } else {
      auto* out = static_cast<float*>(g_.out) + place;
      for (int64_t n = 0; n < count; ++n) out[n] = factor_ * sum[n];
    }
  }

  FeatureGradient g_;
  bool bf16_;
  float factor_;
  int64_t depth_;
  Buffer<float> own_;
};

// The columns of a sum are shared out as well where its rows are too few for the threads.
int64_t columns_a_task(int64_t bands, int64_t depth, int threads) {
  return bands >= 2 * threads ? std::max(depth, PANEL) : TILE_COLS;
}

// Adds dL Y of the part, or its rows' first share; bands of rows are tasks.
void add_to_rows(const Unit& unit, const Sum& sum, const Matrix& logits, const Packed& packed,
                 const Part& part, bool last_part, int threads) {
  const int64_t bands = part.down(), depth = packed.cols();
  const int64_t width = columns_a_task(bands, depth, threads);
  parallel_for(bands * tiles(depth, width), threads, [&](int64_t task) {
    const int64_t row = task % bands * TILE_ROWS, col = task / bands * width;
    const Left left{logits.row(row), logits.stride * (logits.bf16 ? 2 : 4),
                    words_of(logits.cols, logits.bf16)};
    sum.add(unit, left, packed, part.row0,
            {part.row0 + row, part.row0 + std::min(row + TILE_ROWS, part.height()), col,
             std::min(col + width, depth), part.col0 == 0, last_part});
  });
}

// Adds dL^T X; bands of columns are tasks, which turn their dL round.
void add_to_cols(const Unit& unit, const Sum& sum, const Matrix& logits, const Packed& packed,
                 const Part& part, bool last_part, int threads) {
  const int64_t bands = tiles(part.width(), TILE_ROWS), depth = packed.cols();
  const int64_t width = columns_a_task(bands, depth, threads);
  const int64_t stride = tiles(packed.words(), LANES) * LANES + LANES;
  parallel_for(bands * tiles(depth, width), threads, [&](int64_t task) {
    const int64_t first = task % bands * TILE_ROWS, col = task / bands * width;
    const int64_t last = std::min(first + TILE_ROWS, part.width());
    const Buffer<uint32_t> turned(TILE_ROWS * stride);
    pack_left(logits, first, last, stride, turned.get());
    const Left left{reinterpret_cast<const char*>(turned.get()), stride * 4, packed.words()};
    sum.add(unit, left, packed, 0,
            {part.col0 + first, part.col0 + last, col, std::min(col + width, depth), part.row0 == 0,
             last_part});
  });
}

}  // namespace
}  // namespace slipform
