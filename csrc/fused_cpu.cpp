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

#include "amx.h"
#include "buffer.h"
#include "parallel.h"
#include "strips.h"
#include "tiles.h"

namespace slipform {
namespace {

// Parts of the matrix: forward's bound the partial sums, backward's the workspace of dL.
constexpr int64_t FORWARD_ROWS = 384 * TILE_ROWS, FORWARD_COLS = 4 * TILE_COLS;
constexpr int64_t BACKWARD_ROWS = 63 * TILE_ROWS, BACKWARD_COLS = 2 * TILE_COLS;
constexpr int64_t PACKED_WORDS = 256;  // of a panel in one task

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

  // Computes them, with the columns of the part that `packed` holds.
  void compute(const Operands& o, const Tile& t, const Part& part, const uint32_t* packed) {
    const int64_t words = o.unit.words(o.cols.cols);
    float* out = const_cast<float*>(block.similarities) + block.window.at(t.row0, t.col0);
    o.unit.multiply(o.left.from(t.row0), t.row1 - t.row0, packed + (t.col0 - part.col0) * words,
                    words, {out, block.window.stride, t.width(), false});
  }
};

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

// dL of one part of the matrix, and the sums over it.
class Workspace {
 public:
  Workspace(const Block& b, bool bf16)
      : bf16_(bf16),
        // an even number of columns, and not a power of two, whose rows would share cache sets
        stride_(tiles(std::min(b.cols, BACKWARD_COLS), 32) * 32 + 32),
        rows_(std::min(b.rows, BACKWARD_ROWS)),
        logits_(rows_ * stride_ * (bf16 ? 2 : 4)) {
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
    clear_odd_column(part);
  }

  Matrix logits(const Part& part) const {
    return {logits_.get(), part.height(), part.width(), bf16_, stride_};
  }

 private:
  // Of an odd number of bf16 columns, the last word holds one more: a former part's.
  void clear_odd_column(const Part& part) {
    if (!bf16_ || part.width() % 2 == 0) return;
    auto* logits = reinterpret_cast<uint16_t*>(logits_.get());
    for (int64_t i = 0; i < part.height(); ++i) logits[i * stride_ + part.width()] = 0;
  }

  bool bf16_;
  int64_t stride_, rows_;
  Buffer<char> logits_;
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

  // Rows `first` to `last`: += left packed, or = where this is their `first_part`. `start` is the
  // first row in the making.
  void add(const Unit& unit, const Left& left, const Packed& packed, int64_t start, int64_t first,
           int64_t last, int64_t col0, int64_t col1, bool first_part, bool last_part) const {
    float* sum = at(start, first) + col0;
    const bool add = !first_part || (g_.sum != nullptr && g_.add);
    unit.multiply(left, last - first, packed.out + col0 * packed.words(), packed.words(),
                  {sum, depth_, col1 - col0, add});
    for (int64_t row = first; last_part && g_.out != nullptr && row < last; ++row)
      finish(at(start, row) + col0, row * depth_ + col0, col1 - col0);
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
    sum.add(unit, left, packed, part.row0, part.row0 + row,
            part.row0 + std::min(row + TILE_ROWS, part.height()), col, std::min(col + width, depth),
            part.col0 == 0, last_part);
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
    sum.add(unit, left, packed, 0, part.col0 + first, part.col0 + last, col,
            std::min(col + width, depth), part.row0 == 0, last_part);
  });
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
