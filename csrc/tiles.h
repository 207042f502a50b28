// Statistics and gradient of one tile of the matrix, whose similarities are given.
//
// A tile stays in cache, and is an independent task: its sums go to places of their own and are
// merged in a fixed order, so results repeat bit for bit and do not depend on the number of
// threads.
//
// All of it stands in an anonymous namespace: every file that includes it compiles it for its own
// instruction set.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "block.h"
#include "vector_math.h"

namespace slipform {
namespace {

constexpr int64_t TILE_ROWS = 32, TILE_COLS = 512;
constexpr float NEG_INF = -std::numeric_limits<float>::infinity();

int64_t tiles(int64_t size, int64_t tile) { return (size + tile - 1) / tile; }

// The columns whose positive is a given row, as lists by row (usually one column each).
struct ColumnsByRow {
  std::vector<int64_t> start, cols;

  explicit ColumnsByRow(const Block& b) : start(b.rows + 1, 0) {
    for (int64_t j = 0; j < b.cols; ++j)
      if (b.col_target[j] >= 0) ++start[b.col_target[j] + 1];
    for (int64_t i = 0; i < b.rows; ++i) start[i + 1] += start[i];
    cols.resize(start[b.rows]);
    std::vector<int64_t> next(start.begin(), start.end() - 1);
    for (int64_t j = 0; j < b.cols; ++j)
      if (b.col_target[j] >= 0) cols[next[b.col_target[j]]++] = j;
  }
};

struct Tile {
  int64_t row0, row1, col0, col1;
  bool holds(int64_t col) const { return col0 <= col && col < col1; }
  int64_t width() const { return col1 - col0; }
};

bool same_group(const Block& b, int64_t i, int64_t j) {
  return b.row_group != nullptr && b.row_group[i] == b.col_group[j];
}

// Sum of the margins on column j of row i (a column may be named more than once).
float margin_at(const Block& b, int64_t i, int64_t j) {
  float sum = 0;
  for (int64_t k = i * b.hard; k < (i + 1) * b.hard; ++k)
    if (b.hard_cols[k] == j) sum += b.margin != nullptr ? b.margin[k] : 0.0f;
  return sum;
}

float logit_at(const Block& b, int64_t i, int64_t j) {
  float bias = b.bias != nullptr ? b.bias[j] : b.scalar_bias;
  return b.scale * (b.similarities[b.window.at(i, j)] + margin_at(b, i, j)) + bias;
}

// L of the tile's part of row i, -inf where the pair is of one group.
void write_logits(const Block& b, const Tile& t, int64_t i, float* __restrict logits) {
  const float* __restrict similarity = b.similarities + b.window.at(i, t.col0);
  const float scale = b.scale, scalar_bias = b.scalar_bias;
  const int64_t n = t.width();
  if (b.bias != nullptr) {
    const float* __restrict bias = b.bias + t.col0;
#pragma omp simd
    for (int64_t j = 0; j < n; ++j) logits[j] = scale * similarity[j] + bias[j];
  } else {
#pragma omp simd
    for (int64_t j = 0; j < n; ++j) logits[j] = scale * similarity[j] + scalar_bias;
  }
  for (int64_t k = 0; b.margin != nullptr && k < b.hard; ++k) {
    int64_t j = b.hard_cols[i * b.hard + k];
    if (t.holds(j)) logits[j - t.col0] = logit_at(b, i, j);
  }
  if (b.row_group != nullptr) {
    const int64_t* __restrict group = b.col_group + t.col0;
    const int64_t own = b.row_group[i];
#pragma omp simd
    for (int64_t j = 0; j < n; ++j) logits[j] = group[j] == own ? NEG_INF : logits[j];
  }
}

// One logit more for a (maximum, sum) pair.
void include(float logit, float& maximum, float& sum) {
  if (logit == NEG_INF) return;
  float larger = std::max(maximum, logit);
  sum = (maximum == NEG_INF ? 0.0f : sum * std::exp(maximum - larger)) + std::exp(logit - larger);
  maximum = larger;
}

struct Single {
  int64_t index;
  float logit;
};

// Takes the positives of row i out of `logits`. A pair that is the positive of one direction only
// still counts in the other: it is remembered there.
void take_out_positives(const Block& b, const ColumnsByRow& by_row, const Tile& t, int64_t i,
                        float* logits, std::vector<Single>& for_rows,
                        std::vector<Single>& for_cols) {
  int64_t own = b.row_target[i];
  if (t.holds(own)) {
    float& logit = logits[own - t.col0];
    if (b.col_target[own] != i) for_cols.push_back({own, logit});
    logit = NEG_INF;
  }
  for (int64_t n = by_row.start[i]; n < by_row.start[i + 1]; ++n) {
    int64_t j = by_row.cols[n];
    if (j == own || !t.holds(j)) continue;
    for_rows.push_back({i, logits[j - t.col0]});
    logits[j - t.col0] = NEG_INF;
  }
}

// Smallest and largest of some numbers that are not -inf.
struct Range {
  float low = std::numeric_limits<float>::infinity(), high = NEG_INF;
  void add(float x) {
    low = std::min(low, x);
    high = std::max(high, x);
  }
  // Whether exponentials relative to the middle neither overflow nor vanish beside one another.
  bool within(float nats) const { return low <= high && high - low <= nats; }
  float middle() const { return low + (high - low) / 2; }
};

// Sums of exponentials of tiles relative to references up to this far from their logits may still
// be merged: what underflows then is 1e-9 of the sum.
constexpr float COMMON_NATS = 60;

// Writes L of the tile without the positives, and returns the range of the rest.
Range write_rest(const Block& b, const ColumnsByRow& by_row, const Tile& t,
                 float (&logits)[TILE_ROWS][TILE_COLS], std::vector<Single>& for_rows,
                 std::vector<Single>& for_cols) {
  Range range;
  for (int64_t i = t.row0; i < t.row1; ++i) {
    float* __restrict row = logits[i - t.row0];
    write_logits(b, t, i, row);
    take_out_positives(b, by_row, t, i, row, for_rows, for_cols);
    float low = range.low, high = range.high;
#pragma omp simd reduction(min : low) reduction(max : high)
    for (int64_t j = 0; j < t.width(); ++j) {
      float present = row[j] == NEG_INF ? low : row[j];
      low = present < low ? present : low;
      high = row[j] > high ? row[j] : high;
    }
    range = {low, high};
  }
  return range;
}

// The tile's sums, all relative to one reference: one exponential serves the row and the column.
void sum_with_common_reference(const Tile& t, const float (&logits)[TILE_ROWS][TILE_COLS],
                               float reference, float* row_max, float* row_sum, int64_t row_stride,
                               float* __restrict col_max, float* __restrict col_sum) {
  for (int64_t i = 0; i < t.row1 - t.row0; ++i) {
    const float* __restrict row = logits[i];
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < t.width(); ++j) {
      float exponential = exp_f32(row[j] - reference);
      sum += exponential;
      col_sum[j] += exponential;
    }
    row_sum[i * row_stride] = sum;
    row_max[i * row_stride] = sum == 0 ? NEG_INF : reference;
  }
#pragma omp simd
  for (int64_t j = 0; j < t.width(); ++j) col_max[j] = col_sum[j] == 0 ? NEG_INF : reference;
}

// The tile's sums, relative to the maximum of each row and of each column.
void sum_with_maxima(const Tile& t, const float (&logits)[TILE_ROWS][TILE_COLS], float* row_max,
                     float* row_sum, int64_t row_stride, float* __restrict col_max,
                     float* __restrict col_sum) {
  const int64_t n = t.width();
  std::fill_n(col_max, n, NEG_INF);
  for (int64_t i = 0; i < t.row1 - t.row0; ++i) {
    const float* __restrict row = logits[i];
    float maximum = NEG_INF;
#pragma omp simd reduction(max : maximum)
    for (int64_t j = 0; j < n; ++j) {
      maximum = row[j] > maximum ? row[j] : maximum;
      col_max[j] = row[j] > col_max[j] ? row[j] : col_max[j];
    }
    row_max[i * row_stride] = maximum;
  }
  alignas(64) float reference[TILE_COLS];
#pragma omp simd
  for (int64_t j = 0; j < n; ++j) reference[j] = col_max[j] == NEG_INF ? 0.0f : col_max[j];
  for (int64_t i = 0; i < t.row1 - t.row0; ++i) {
    const float* __restrict row = logits[i];
    const float maximum = row_max[i * row_stride];
    const float own = maximum == NEG_INF ? 0.0f : maximum;
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < n; ++j) {
      sum += exp_f32(row[j] - own);
      col_sum[j] += exp_f32(row[j] - reference[j]);
    }
    row_sum[i * row_stride] = sum;
  }
}

// References and sums of one tile: row_max, row_sum by row, col_max, col_sum by column of the tile.
void tile_statistics(const Block& b, const ColumnsByRow& by_row, const Tile& t, float* row_max,
                     float* row_sum, int64_t row_stride, float* __restrict col_max,
                     float* __restrict col_sum) {
  alignas(64) float logits[TILE_ROWS][TILE_COLS];
  std::vector<Single> for_rows, for_cols;
  const Range range = write_rest(b, by_row, t, logits, for_rows, for_cols);
  std::fill_n(col_sum, t.width(), 0.0f);
  if (range.within(COMMON_NATS))
    sum_with_common_reference(t, logits, range.middle(), row_max, row_sum, row_stride, col_max,
                              col_sum);
  else
    sum_with_maxima(t, logits, row_max, row_sum, row_stride, col_max, col_sum);
  for (const Single& s : for_rows) {
    int64_t at = (s.index - t.row0) * row_stride;
    include(s.logit, row_max[at], row_sum[at]);
  }
  for (const Single& s : for_cols)
    include(s.logit, col_max[s.index - t.col0], col_sum[s.index - t.col0]);
}

// (maximum, sum) <- its union with `count` such pairs that lie `stride` apart.
void merge(const float* maxima, const float* sums, int64_t count, int64_t stride, float& maximum,
           float& sum) {
  float largest = maximum;
  for (int64_t n = 0; n < count; ++n) largest = std::max(largest, maxima[n * stride]);
  const float own = largest == NEG_INF ? 0.0f : largest;
  float total = sum * exp_f32(maximum - own);
  for (int64_t n = 0; n < count; ++n) total += sums[n * stride] * exp_f32(maxima[n * stride] - own);
  maximum = largest;
  sum = total;
}

// Entries that differ from the rule: at a positive its own weight replaces the exponential.
void write_positives(const Block& b, const Gradient& g, const ColumnsByRow& by_row, const Tile& t,
                     int64_t i, float* grad) {
  int64_t own = b.row_target[i];
  if (t.holds(own)) {
    float by_col = 0;
    if (b.col_target[own] == i) {
      by_col = g.col_positive_grad[own];
    } else if (!same_group(b, i, own)) {
      by_col = g.col_rest_grad[own] * exp_f32(logit_at(b, i, own) - g.col_rest[own]);
    }
    grad[own - t.col0] = g.row_positive_grad[i] + by_col;
  }
  for (int64_t n = by_row.start[i]; n < by_row.start[i + 1]; ++n) {
    int64_t j = by_row.cols[n];
    if (j == own || !t.holds(j)) continue;
    float by_row_rule = 0;
    if (!same_group(b, i, j))
      by_row_rule = g.row_rest_grad[i] * exp_f32(logit_at(b, i, j) - g.row_rest[i]);
    grad[j - t.col0] = by_row_rule + g.col_positive_grad[j];
  }
}

// In a tile whose log-sum-exps lie near one another,
//   dL_ij = exp(L_ij - c) (of_row_i + of_col_j),   of_row_i = row_rest_grad_i exp(c - row_rest_i)
// and so on: one exponential in place of two. Elsewhere dL follows the rule.
struct Common {
  bool reference;
  float middle;
  alignas(64) float of_col[TILE_COLS];

  Common(const Gradient& g, const Tile& t) {
    constexpr float none = std::numeric_limits<float>::infinity();
    Range range;
    for (int64_t i = t.row0; i < t.row1; ++i)
      if (g.row_rest[i] != none) range.add(g.row_rest[i]);
    for (int64_t j = t.col0; j < t.col1; ++j)
      if (g.col_rest[j] != none) range.add(g.col_rest[j]);
    reference = range.within(COMMON_NATS);
    middle = range.middle();
    if (!reference) return;
    const float* __restrict rest = g.col_rest + t.col0;
    const float* __restrict weight = g.col_rest_grad + t.col0;
#pragma omp simd
    for (int64_t j = 0; j < t.width(); ++j) of_col[j] = weight[j] * exp_f32(middle - rest[j]);
  }
};

// dL of the tile's part of row i.
void write_gradient(const Block& b, const Gradient& g, const ColumnsByRow& by_row, const Tile& t,
                    const Common& common, int64_t i, float* __restrict grad) {
  write_logits(b, t, i, grad);
  const float rest = g.row_rest[i], weight = g.row_rest_grad[i];
  if (common.reference) {
    const float middle = common.middle, of_row = weight * exp_f32(middle - rest);
    const float* __restrict of_col = common.of_col;
#pragma omp simd
    for (int64_t j = 0; j < t.width(); ++j)
      grad[j] = exp_f32(grad[j] - middle) * (of_row + of_col[j]);
  } else {
    const float* __restrict col_rest = g.col_rest + t.col0;
    const float* __restrict col_weight = g.col_rest_grad + t.col0;
#pragma omp simd
    for (int64_t j = 0; j < t.width(); ++j)
      grad[j] = weight * exp_f32(grad[j] - rest) + col_weight[j] * exp_f32(grad[j] - col_rest[j]);
  }
  write_positives(b, g, by_row, t, i, grad);
}

// sum_j dL_ij (similarity_ij + margin_ij) over the tile's part of row i.
float scale_gradient(const Block& b, const Tile& t, int64_t i, const float* __restrict grad) {
  const float* __restrict similarity = b.similarities + b.window.at(i, t.col0);
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t j = 0; j < t.width(); ++j) sum += grad[j] * similarity[j];
  for (int64_t k = 0; b.margin != nullptr && k < b.hard; ++k) {
    int64_t j = b.hard_cols[i * b.hard + k];
    if (t.holds(j)) sum += grad[j - t.col0] * b.margin[i * b.hard + k];
  }
  return sum;
}

void store(const Gradient& g, int64_t offset, int64_t n, const float* __restrict grad) {
  if (g.bf16) {
    auto* __restrict out = static_cast<uint16_t*>(g.logits_grad) + offset;
#pragma omp simd
    for (int64_t j = 0; j < n; ++j) out[j] = bf16_of(grad[j]);
  } else {
    std::copy_n(grad, n, static_cast<float*>(g.logits_grad) + offset);
  }
}

// dL of one tile; scale_grad by row and bias_grad by column of the tile, where not null.
void tile_gradient(const Block& b, const Gradient& g, const ColumnsByRow& by_row, const Tile& t,
                   float* scale_grad, int64_t row_stride, float* __restrict bias_grad) {
  alignas(64) float grad[TILE_COLS];
  const Common common(g, t);
  if (bias_grad != nullptr) std::fill_n(bias_grad, t.width(), 0.0f);
  for (int64_t i = t.row0; i < t.row1; ++i) {
    write_gradient(b, g, by_row, t, common, i, grad);
    if (scale_grad != nullptr)
      scale_grad[(i - t.row0) * row_stride] = scale_gradient(b, t, i, grad);
    if (bias_grad != nullptr) {
#pragma omp simd
      for (int64_t j = 0; j < t.width(); ++j) bias_grad[j] += grad[j];
    }
    for (int64_t k = 0; g.margin_grad != nullptr && k < b.hard; ++k) {
      int64_t j = b.hard_cols[i * b.hard + k];
      if (t.holds(j)) g.margin_grad[i * b.hard + k] = b.scale * grad[j - t.col0];
    }
    store(g, g.window.at(i, t.col0), t.width(), grad);
  }
}

}  // namespace
}  // namespace slipform
