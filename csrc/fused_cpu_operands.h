// What forward and backward of the fused kernels share: the operands, how a part of the matrix is
// cut into tiles, and a tile's similarities.
//
// All of it stands in an anonymous namespace, for AVX-512.
#pragma once

#include <algorithm>
#include <vector>

#include "amx.h"
#include "buffer.h"
#include "fused_cpu.h"
#include "parallel.h"
#include "strips.h"
#include "tiles.h"

namespace slipform {
namespace {

// The units that multiply, and what they ask of the depth.
struct Unit {
  bool bf16;
  Multiply multiply;
  int64_t multiple;  // of words
  int64_t words(int64_t depth) const { return tiles(words_of(depth, bf16), multiple) * multiple; }
};

Unit unit_of(bool bf16, bool amx) {
  if (!bf16) return {false, multiply_in_strips<Fp32>, 1};
  return amx ? Unit{true, multiply_amx, AMX_WORDS} : Unit{true, multiply_in_strips<Bf16>, 1};
}

constexpr int64_t PACKED_WORDS = 256;  // of a panel in one task

int64_t panels(int64_t cols) { return tiles(cols, PANEL); }

// The tiles of a part of the matrix, column by column, so that a tile's columns stay in cache.
struct Part : Tile {
  int64_t height() const { return row1 - row0; }
  int64_t down() const { return tiles(height(), TILE_ROWS); }
  int64_t across() const { return tiles(width(), TILE_COLS); }
  Tile tile(int64_t task) const {
    const int64_t row = row0 + task % down() * TILE_ROWS, col = col0 + task / down() * TILE_COLS;
    return {row, std::min(row + TILE_ROWS, row1), col, std::min(col + TILE_COLS, col1)};
  }
};

// Features as the left operand. Rows of an odd number of bf16 are copied, to end in a zero.
class LeftRows {
 public:
  LeftRows(const Matrix& m, int threads)
      : left_{m.row(0), m.stride * (m.bf16 ? 2 : 4), words_of(m.cols, m.bf16)},
        copy_(m.bf16 && m.cols % 2 ? m.rows * words_of(m.cols, true) : 0) {
    if (copy_.get() == nullptr) return;
    const int64_t words = words_of(m.cols, true);
    parallel_for(tiles(m.rows, TILE_ROWS), threads, [&](int64_t task) {
      for (int64_t i = task * TILE_ROWS; i < std::min((task + 1) * TILE_ROWS, m.rows); ++i) {
        auto* row = reinterpret_cast<uint16_t*>(copy_.get() + i * words);
        std::copy_n(reinterpret_cast<const uint16_t*>(m.row(i)), m.cols, row);
        row[m.cols] = 0;
      }
    });
    left_ = {reinterpret_cast<const char*>(copy_.get()), words * 4, words};
  }
  Left from(int64_t row) const { return left_.from(row); }

 private:
  Left left_;
  Buffer<uint32_t> copy_;
};

// A right operand that is packed, or to be packed, in tasks of their own.
struct Packed {
  Matrix matrix;
  bool transposed;  // the matrix's rows are the product's columns, else its depth
  Unit unit;
  uint32_t* out;

  int64_t words() const { return unit.words(transposed ? matrix.cols : matrix.rows); }
  int64_t cols() const { return transposed ? matrix.rows : matrix.cols; }
  int64_t parts() const { return transposed ? 1 : tiles(words(), PACKED_WORDS); }
  int64_t tasks() const { return out == nullptr ? 0 : panels(cols()) * parts(); }

  void pack(int64_t task) const {
    const int64_t panel = task / parts(), word = task % parts() * PACKED_WORDS;
    uint32_t* to = out + panel * PANEL * words();
    if (transposed)
      pack_transposed(matrix, panel * PANEL, words(), to);
    else
      slipform::pack(matrix, panel * PANEL, word, std::min(word + PACKED_WORDS, words()), unit.bf16,
                     to);
  }
};

// All of them side by side.
void pack_all(const std::vector<Packed>& operands, int threads) {
  int64_t tasks = 0;
  for (const Packed& operand : operands) tasks += operand.tasks();
  parallel_for(tasks, threads, [&](int64_t task) {
    for (const Packed& operand : operands) {
      if (task < operand.tasks()) return operand.pack(task);
      task -= operand.tasks();
    }
  });
}

float dot(const Matrix& a, int64_t i, const Matrix& b, int64_t j) {
  const auto numbers = [](const Matrix& m, int64_t row, int64_t col, __mmask16 present) {
    return _mm512_castsi512_ps(load_fp32(m, row, col, present));
  };
  __m512 sum[4];
  for (auto& lanes : sum) lanes = _mm512_setzero_ps();
  int64_t col = 0;
  for (; col + 4 * LANES <= a.cols; col += 4 * LANES)
    for (int n = 0; n < 4; ++n)
      sum[n] = _mm512_fmadd_ps(numbers(a, i, col + n * LANES, 0xffff),
                               numbers(b, j, col + n * LANES, 0xffff), sum[n]);
  for (; col < a.cols; col += LANES) {
    const __mmask16 present = first_lanes(a.cols - col);
    sum[0] = _mm512_fmadd_ps(numbers(a, i, col, present), numbers(b, j, col, present), sum[0]);
  }
  return _mm512_reduce_add_ps(
      _mm512_add_ps(_mm512_add_ps(sum[0], sum[1]), _mm512_add_ps(sum[2], sum[3])));
}

// The operands of a call.
struct Operands {
  const Block& block;
  Matrix rows, cols;
  const Kept& kept;
  ColumnsByRow by_row;
  LeftRows left;
  Unit unit;

  Operands(const Block& b, const Features& f, const Kept& k, int threads)
      : block(b),
        rows{f.rows, b.rows, f.depth, f.bf16, f.depth},
        cols{f.cols, b.cols, f.depth, f.bf16, f.depth},
        kept(k),
        by_row(b),
        left(rows, threads),
        unit(unit_of(f.bf16, f.amx)) {}

  bool keeps(const Tile& t) const { return t.row1 <= kept.rows; }

  float positive_logit(int64_t i, int64_t j) const {
    const float bias = block.bias != nullptr ? block.bias[j] : block.scalar_bias;
    return block.scale * (dot(rows, i, cols, j) + margin_at(block, i, j)) + bias;
  }
};

// The tile's similarities: kept ones as they are, others in `scratch`.
struct TileOf {
  Block block;

  TileOf(const Operands& o, const Tile& t, float (&scratch)[TILE_ROWS][TILE_COLS])
      : block(o.block) {
    block.similarities = &scratch[0][0];
    block.window = {t.row0, t.col0, TILE_COLS};
    if (o.keeps(t)) {
      block.similarities = o.kept.similarities;
      block.window = {0, 0, o.block.cols};
    }
  }

  // Of a tile that is kept in part only: those rows. Backward computes all of it anew.
  void keep_part(const Operands& o, const Tile& t) const {
    if (o.keeps(t)) return;
    for (int64_t i = t.row0; i < std::min(t.row1, o.kept.rows); ++i)
      std::copy_n(block.similarities + block.window.at(i, t.col0), t.width(),
                  o.kept.similarities + i * o.block.cols + t.col0);
  }

  // Computes them, with the columns of the part that `packed` holds.
  void compute(const Operands& o, const Tile& t, const Part& part, const uint32_t* packed) {
    const int64_t words = o.unit.words(o.cols.cols);
    float* out = const_cast<float*>(block.similarities) + block.window.at(t.row0, t.col0);
    o.unit.multiply(o.left.from(t.row0), t.row1 - t.row0, packed + (t.col0 - part.col0) * words,
                    words, {out, block.window.stride, t.width(), false});
  }
};

}  // namespace
}  // namespace slipform
