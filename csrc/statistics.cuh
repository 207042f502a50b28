// Epilogue of the forward: (maximum, sum of exponentials) of a tile's rows and columns.
//
// Each warp reduces its part in registers, the block unites the warps' parts through shared memory,
// and the tile's result goes to a place of its own. Everything in a fixed order.
#pragma once

#include "special.cuh"

namespace slipform {
namespace gpu {

// Of one thread's rows and columns, later of one warp's.
template <class Layout>
struct Extent {
  float row_max[Layout::HEIGHT], row_sum[Layout::HEIGHT], col_max[WIDTH], col_sum[WIDTH];
};

// The similarities become logits in base 2.
template <class Layout>
SLIPFORM_DEVICE void to_logits(const Operands& o, const Place<Layout>& p, Values<Layout>& values) {
  const float scale = *o.scale * LOG2E;
  float bias[WIDTH];
  load_bias(o, p, bias);
  SLIPFORM_UNROLL
  for (int i = 0; i < Layout::HEIGHT; ++i) {
    SLIPFORM_UNROLL
    for (int j = 0; j < WIDTH; ++j) values.at(i, j) = scale * values.at(i, j) + bias[j];
  }
}

template <class Layout>
SLIPFORM_DEVICE void close_pairs(Values<Layout>& logits) {
  SLIPFORM_UNROLL
  for (int i = 0; i < Layout::HEIGHT; ++i) {
    const Marks marks = load_marks<Layout>(i);
    SLIPFORM_UNROLL
    for (int j = 0; j < WIDTH; ++j)
      if (marks.closed(j)) logits.at(i, j) = NEG_INF;
  }
}

// SPECIAL says whether there can be marks.
template <bool SPECIAL, class Layout>
SLIPFORM_DEVICE void find_maxima(const Values<Layout>& logits, Extent<Layout>& e) {
  SLIPFORM_UNROLL
  for (int j = 0; j < WIDTH; ++j) e.col_max[j] = LOWEST;
  SLIPFORM_UNROLL
  for (int i = 0; i < Layout::HEIGHT; ++i) {
    const Marks marks = SPECIAL ? load_marks<Layout>(i) : Marks{0};
    e.row_max[i] = LOWEST;
    SLIPFORM_UNROLL
    for (int j = 0; j < WIDTH; ++j) {
      const float logit = logits.at(i, j);
      e.row_max[i] = fmaxf(e.row_max[i], marks.row_positive(j) ? NEG_INF : logit);
      e.col_max[j] = fmaxf(e.col_max[j], marks.col_positive(j) ? NEG_INF : logit);
    }
    e.row_max[i] = over_row<Layout>(e.row_max[i], Max());
  }
  SLIPFORM_UNROLL
  for (int j = 0; j < WIDTH; ++j) e.col_max[j] = over_col<Layout>(e.col_max[j], Max());
}

// Sums by two exponentials a value, each relative to its own row's or column's maximum.
template <bool SPECIAL, class Layout>
SLIPFORM_DEVICE void add_separately(const Values<Layout>& logits, Extent<Layout>& e) {
  SLIPFORM_UNROLL
  for (int i = 0; i < Layout::HEIGHT; ++i) {
    const Marks marks = SPECIAL ? load_marks<Layout>(i) : Marks{0};
    SLIPFORM_UNROLL
    for (int j = 0; j < WIDTH; ++j) {
      const float logit = logits.at(i, j);
      const float by_row = exp2(logit - e.row_max[i]), by_col = exp2(logit - e.col_max[j]);
      e.row_sum[i] += marks.row_positive(j) ? 0.0f : by_row;
      e.col_sum[j] += marks.col_positive(j) ? 0.0f : by_col;
    }
  }
}

// Sums by one exponential a value, relative to `largest`, which replaces all maxima.
template <class Layout>
SLIPFORM_DEVICE void add_together(const Values<Layout>& logits, float largest, Extent<Layout>& e) {
  SLIPFORM_UNROLL
  for (int i = 0; i < Layout::HEIGHT; ++i) {
    e.row_max[i] = largest;
    SLIPFORM_UNROLL
    for (int j = 0; j < WIDTH; ++j) {
      const float exponential = exp2(logits.at(i, j) - largest);
      e.row_sum[i] += exponential;
      e.col_sum[j] += exponential;
    }
  }
  SLIPFORM_UNROLL
  for (int j = 0; j < WIDTH; ++j) e.col_max[j] = largest;
}

// Sums of a warp without special values, by one exponential or two.
template <class Layout>
SLIPFORM_DEVICE void add_plain(const Values<Layout>& logits, Extent<Layout>& e) {
  find_maxima<false>(logits, e);
  float largest = LOWEST, smallest = INFINITY;
  SLIPFORM_UNROLL
  for (int i = 0; i < Layout::HEIGHT; ++i) {
    largest = fmaxf(largest, e.row_max[i]);
    smallest = fminf(smallest, e.row_max[i]);
  }
  SLIPFORM_UNROLL
  for (int j = 0; j < WIDTH; ++j) smallest = fminf(smallest, e.col_max[j]);
  largest = over_warp(largest, Max());
  smallest = over_warp(smallest, Min());
  if (largest - smallest < RANGE) {
    add_together(logits, largest, e);
  } else {
    add_separately<false>(logits, e);
  }
}

// The statistics of the warp's part of the tile.
template <class Layout>
SLIPFORM_DEVICE void reduce_warp(const Values<Layout>& logits, bool special, Extent<Layout>& e) {
  SLIPFORM_UNROLL
  for (int i = 0; i < Layout::HEIGHT; ++i) e.row_sum[i] = 0.0f;
  SLIPFORM_UNROLL
  for (int j = 0; j < WIDTH; ++j) e.col_sum[j] = 0.0f;
  if (special) {
    find_maxima<true>(logits, e);
    add_separately<true>(logits, e);
  } else {
    add_plain(logits, e);
  }
  SLIPFORM_UNROLL
  for (int i = 0; i < Layout::HEIGHT; ++i) e.row_sum[i] = over_row<Layout>(e.row_sum[i], Add());
  SLIPFORM_UNROLL
  for (int j = 0; j < WIDTH; ++j) e.col_sum[j] = over_col<Layout>(e.col_sum[j], Add());
}

// Shared memory: the warps' (maximum, sum) pairs.
template <class Layout>
struct StatisticsMemory {
  using Part = Exchange<Layout>;
  static constexpr uint32_t ROW_MAX = SpecialMemory<Layout>::BYTES,
                            COL_MAX = ROW_MAX + 2 * Part::ROW_BYTES,
                            BYTES = COL_MAX + 2 * Part::COL_BYTES;

  // Each sum lies a number of bytes after its maximum: Part::ROW_BYTES or Part::COL_BYTES.
  SLIPFORM_DEVICE static uint32_t row(int warp, int row) {
    return Part::row(shared_base() + ROW_MAX, warp, row);
  }
  SLIPFORM_DEVICE static uint32_t col(int warp, int col) {
    return Part::col(shared_base() + COL_MAX, warp, col);
  }
};

template <class Layout>
SLIPFORM_DEVICE void share_extent(const Extent<Layout>& e) {
  using Memory = StatisticsMemory<Layout>;
  const int lane = static_cast<int>(lane_id());
  if (lane % Layout::ROW_LANES == 0) {
    SLIPFORM_UNROLL
    for (int i = 0; i < Layout::HEIGHT; ++i) {
      const uint32_t at = Memory::row(Layout::warp_across(), Layout::row(i));
      store_shared(at, e.row_max[i]);
      store_shared(at + Memory::Part::ROW_BYTES, e.row_sum[i]);
    }
  }
  if (lane < Layout::ROW_LANES) {
    SLIPFORM_UNROLL
    for (int j = 0; j < WIDTH; ++j) {
      const uint32_t at = Memory::col(Layout::warp_down(), Layout::col(j));
      store_shared(at, e.col_max[j]);
      store_shared(at + Memory::Part::COL_BYTES, e.col_sum[j]);
    }
  }
}

struct MaxAndSum {
  float maximum, sum;
};

// Union of COUNT pairs in shared memory, `step` bytes apart.
template <int COUNT>
SLIPFORM_DEVICE MaxAndSum unite(uint32_t maxima, uint32_t sums, uint32_t step) {
  MaxAndSum all = {LOWEST, 0.0f};
  SLIPFORM_UNROLL
  for (int n = 0; n < COUNT; ++n)
    all.maximum = fmaxf(all.maximum, load_shared<float>(maxima + n * step));
  SLIPFORM_UNROLL
  for (int n = 0; n < COUNT; ++n) {
    const float factor = exp2(load_shared<float>(maxima + n * step) - all.maximum);
    all.sum += load_shared<float>(sums + n * step) * factor;
  }
  return all;
}

template <class Layout>
SLIPFORM_DEVICE void write_partials(const Operands& o, const Place<Layout>& p,
                                    const Partials& out) {
  using Memory = StatisticsMemory<Layout>;
  for_entries(o, p, [&](int entry, bool of_row, int64_t index) {
    if (index < 0) return;
    if (of_row) {
      const uint32_t at = Memory::row(0, entry);
      const MaxAndSum all =
          unite<Layout::WARPS_ACROSS>(at, at + Memory::Part::ROW_BYTES, Layout::ROWS * 4);
      out.row_max[p.col_tile * o.rows + index] = all.maximum;
      out.row_sum[p.col_tile * o.rows + index] = all.sum;
    } else {
      const uint32_t at = Memory::col(0, entry - Layout::ROWS);
      const MaxAndSum all =
          unite<Layout::WARPS_DOWN>(at, at + Memory::Part::COL_BYTES, Layout::COLS * 4);
      out.col_max[p.row_tile * o.cols + index] = all.maximum;
      out.col_sum[p.row_tile * o.cols + index] = all.sum;
    }
  });
}

// The whole epilogue, after share_special.
template <class Layout>
SLIPFORM_DEVICE void write_statistics(const Operands& o, const Place<Layout>& p, bool special,
                                      Values<Layout>& values, const Partials& out) {
  if (special) {
    share_marks(o, p);
    add_margins(o, p, values);
  }
  to_logits(o, p, values);
  if (special) close_pairs(values);
  Extent<Layout> extent;
  reduce_warp(values, special, extent);
  share_extent(extent);
  block_sync();
  write_partials(o, p, out);
}

}  // namespace gpu
}  // namespace slipform
