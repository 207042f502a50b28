// Epilogue of the backward: dL of a tile, and its sums.
//
//     dL_ij = a_i exp(L_ij - row_rest_i) off row i's positive, b_i at it; columns likewise
//
// Where a tile's log-sum-exps lie close together, one exponential serves both directions: with a
// common reference c, dL_ij = exp(L_ij - c) (a_i exp(c - row_rest_i) + a'_j exp(c - col_rest_j)).
// Tiles with positives, margins, groups or edges take the formula as it stands.
#pragma once

#include "special.cuh"
#include "store.cuh"

namespace slipform {
namespace gpu {

// Shared memory: what the formula takes of every row and column, rows first, then what warps
// exchange.
template <class Layout>
struct GradientMemory {
  static constexpr uint32_t KIND = SpecialMemory<Layout>::ENTRIES * 4;
  static constexpr uint32_t REST = SpecialMemory<Layout>::BYTES, WEIGHT = REST + KIND,
                            POSITIVE = WEIGHT + KIND, EXTREMES = POSITIVE + KIND,
                            ROW_SUMS = EXTREMES + 2 * WARPS * 4,
                            COL_SUMS = ROW_SUMS + Exchange<Layout>::ROW_BYTES,
                            BYTES = COL_SUMS + Exchange<Layout>::COL_BYTES;

  SLIPFORM_DEVICE static uint32_t at(uint32_t kind, int entry) {
    return shared_base() + kind + entry * 4;
  }
  SLIPFORM_DEVICE static uint32_t row(uint32_t kind, int i) { return at(kind, Layout::row(i)); }
  SLIPFORM_DEVICE static uint32_t col(uint32_t kind, int j) {
    return at(kind, Layout::ROWS + Layout::col(j));
  }
};

// The largest and the smallest finite rest of a tile, in base 2.
struct RestRange {
  float high, low;
};

// Fills shared memory. The block waits here.
template <class Layout>
SLIPFORM_DEVICE RestRange share_weights(const Operands& o, const Place<Layout>& p,
                                        const Weights& w) {
  using Memory = GradientMemory<Layout>;
  RestRange range = {NEG_INF, INFINITY};
  for_entries(o, p, [&](int entry, bool of_row, int64_t index) {
    float rest = INFINITY, weight = 0.0f, positive = 0.0f;
    if (index >= 0) {
      rest = (of_row ? w.row_rest : w.col_rest)[index] * LOG2E;
      weight = (of_row ? w.row_rest_grad : w.col_rest_grad)[index];
      positive = (of_row ? w.row_positive_grad : w.col_positive_grad)[index];
    }
    store_shared(Memory::at(Memory::REST, entry), rest);
    store_shared(Memory::at(Memory::WEIGHT, entry), weight);
    store_shared(Memory::at(Memory::POSITIVE, entry), positive);
    if (fabsf(rest) < INFINITY) range = {fmaxf(range.high, rest), fminf(range.low, rest)};
  });
  range = {over_warp(range.high, Max()), over_warp(range.low, Min())};
  const int warp = static_cast<int>(warp_id());
  if (lane_id() == 0) {
    store_shared(Memory::at(Memory::EXTREMES, 2 * warp), range.high);
    store_shared(Memory::at(Memory::EXTREMES, 2 * warp + 1), range.low);
  }
  block_sync();
  SLIPFORM_UNROLL
  for (int n = 0; n < static_cast<int>(WARPS); ++n) {
    range.high = fmaxf(range.high, load_shared<float>(Memory::at(Memory::EXTREMES, 2 * n)));
    range.low = fminf(range.low, load_shared<float>(Memory::at(Memory::EXTREMES, 2 * n + 1)));
  }
  return range;
}

// Weights become factors: weight * exp(reference - rest). The block waits here.
template <class Layout>
SLIPFORM_DEVICE void share_factors(const Operands& o, const Place<Layout>& p, float reference) {
  using Memory = GradientMemory<Layout>;
  for_entries(o, p, [&](int entry, bool, int64_t) {
    const float rest = load_shared<float>(Memory::at(Memory::REST, entry));
    const uint32_t at = Memory::at(Memory::WEIGHT, entry);
    store_shared(at, load_shared<float>(at) * exp2(reference - rest));
  });
  block_sync();
}

// A thread's part of a row's sum, reduced and put into shared memory.
template <class Layout>
SLIPFORM_DEVICE void share_row_sum(int i, float part) {
  const float sum = over_row<Layout>(part, Add());
  if (lane_id() % Layout::ROW_LANES == 0) {
    const uint32_t base = shared_base() + GradientMemory<Layout>::ROW_SUMS;
    store_shared(Exchange<Layout>::row(base, Layout::warp_across(), Layout::row(i)), sum);
  }
}

template <class Layout>
SLIPFORM_DEVICE void share_col_sums(const Values<Layout>& grad) {
  SLIPFORM_UNROLL
  for (int j = 0; j < WIDTH; ++j) {
    float sum = 0.0f;
    SLIPFORM_UNROLL
    for (int i = 0; i < Layout::HEIGHT; ++i) sum += grad.at(i, j);
    sum = over_col<Layout>(sum, Add());
    if (lane_id() < Layout::ROW_LANES) {
      const uint32_t base = shared_base() + GradientMemory<Layout>::COL_SUMS;
      store_shared(Exchange<Layout>::col(base, Layout::warp_down(), Layout::col(j)), sum);
    }
  }
}

// dL with one exponential a value, in place of the similarities; sum_j dL_ij similarity_ij to
// shared memory.
template <class Layout>
SLIPFORM_DEVICE void plain_tile(const Operands& o, const Place<Layout>& p, float reference,
                                Values<Layout>& values) {
  using Memory = GradientMemory<Layout>;
  const float scale = *o.scale * LOG2E;
  float shift[WIDTH], col_factor[WIDTH];
  load_bias(o, p, shift);
  SLIPFORM_UNROLL
  for (int j = 0; j < WIDTH; ++j) {
    shift[j] -= reference;
    col_factor[j] = load_shared<float>(Memory::col(Memory::WEIGHT, j));
  }
  SLIPFORM_UNROLL
  for (int i = 0; i < Layout::HEIGHT; ++i) {
    const float row_factor = load_shared<float>(Memory::row(Memory::WEIGHT, i));
    float sum = 0.0f;
    SLIPFORM_UNROLL
    for (int j = 0; j < WIDTH; ++j) {
      const float similarity = values.at(i, j);
      const float grad = exp2(scale * similarity + shift[j]) * (row_factor + col_factor[j]);
      sum += grad * similarity;
      values.at(i, j) = grad;
    }
    share_row_sum<Layout>(i, sum);
  }
}

// The same for any tile, by the formula; 0 past the end. The similarities have their margins.
// SPECIAL says whether there can be marks.
template <bool SPECIAL, class Layout>
SLIPFORM_DEVICE void exact_tile(const Operands& o, const Place<Layout>& p, Values<Layout>& values) {
  using Memory = GradientMemory<Layout>;
  const float scale = *o.scale * LOG2E;
  float bias[WIDTH];
  load_bias(o, p, bias);
  SLIPFORM_UNROLL
  for (int i = 0; i < Layout::HEIGHT; ++i) {
    const Marks marks = SPECIAL ? load_marks<Layout>(i) : Marks{0};
    const float row_rest = load_shared<float>(Memory::row(Memory::REST, i));
    const float row_weight = load_shared<float>(Memory::row(Memory::WEIGHT, i));
    const float row_positive = load_shared<float>(Memory::row(Memory::POSITIVE, i));
    float sum = 0.0f;
    SLIPFORM_UNROLL
    for (int j = 0; j < WIDTH; ++j) {
      const float similarity = values.at(i, j), logit = scale * similarity + bias[j];
      float by_row = row_weight * exp2(logit - row_rest);
      float by_col = load_shared<float>(Memory::col(Memory::WEIGHT, j)) *
                     exp2(logit - load_shared<float>(Memory::col(Memory::REST, j)));
      if (marks.closed(j)) by_row = by_col = 0.0f;
      if (marks.row_positive(j)) by_row = row_positive;
      if (marks.col_positive(j)) by_col = load_shared<float>(Memory::col(Memory::POSITIVE, j));
      const float grad = by_row + by_col;
      // Where dL is 0 the similarity may be nan: the product of a row past the end.
      sum += grad == 0.0f ? 0.0f : grad * similarity;
      values.at(i, j) = grad;
    }
    share_row_sum<Layout>(i, sum);
  }
}

template <class Layout>
SLIPFORM_DEVICE void write_margin_grad(const Operands& o, const Place<Layout>& p,
                                       const Values<Layout>& grad, float* margin_grad) {
  const float scale = *o.scale;
  for_hard_columns(o, p,
                   [&](int i, int j, int64_t at) { margin_grad[at] = scale * grad.at(i, j); });
}

// Sum of COUNT floats in shared memory, `step` bytes apart.
template <int COUNT>
SLIPFORM_DEVICE float sum_shared(uint32_t address, uint32_t step) {
  float sum = 0.0f;
  SLIPFORM_UNROLL
  for (int n = 0; n < COUNT; ++n) sum += load_shared<float>(address + n * step);
  return sum;
}

template <class Layout>
SLIPFORM_DEVICE void write_sums(const Operands& o, const Place<Layout>& p, const LogitsGrad& out) {
  using Part = Exchange<Layout>;
  using Memory = GradientMemory<Layout>;
  for_entries(o, p, [&](int entry, bool of_row, int64_t index) {
    if (index < 0) return;
    if (of_row && out.scale_grad != nullptr) {
      out.scale_grad[p.col_tile * o.rows + index] = sum_shared<Layout::WARPS_ACROSS>(
          Part::row(shared_base() + Memory::ROW_SUMS, 0, entry), Layout::ROWS * 4);
    } else if (!of_row && out.bias_grad != nullptr) {
      const int col = entry - Layout::ROWS;
      out.bias_grad[p.row_tile * o.cols + index] = sum_shared<Layout::WARPS_DOWN>(
          Part::col(shared_base() + Memory::COL_SUMS, 0, col), Layout::COLS * 4);
    }
  });
}

// The whole epilogue, after share_special and share_weights.
template <class T, class Layout>
SLIPFORM_DEVICE void write_gradient(const Operands& o, const Place<Layout>& p, bool special,
                                    const RestRange& range, Values<Layout>& values,
                                    const LogitsGrad& out) {
  if (!special && range.high - range.low < RANGE) {
    const float reference = range.high == NEG_INF ? 0.0f : range.high;
    share_factors(o, p, reference);
    plain_tile(o, p, reference, values);
  } else if (!special) {
    exact_tile<false>(o, p, values);
  } else {
    share_marks(o, p);
    add_margins(o, p, values);
    exact_tile<true>(o, p, values);
    if (out.margin_grad != nullptr) write_margin_grad(o, p, values, out.margin_grad);
  }
  store_tile<T>(o, p, values, out);
  if (out.scale_grad == nullptr && out.bias_grad == nullptr) return;
  if (out.bias_grad != nullptr) share_col_sums(values);
  block_sync();
  write_sums(o, p, out);
}

}  // namespace gpu
}  // namespace slipform
