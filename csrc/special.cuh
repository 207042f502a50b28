// What is special about a tile: positives, hard columns, groups, edges. Most tiles hold none of it
// and skip the comparisons.
#pragma once

#include "tile.cuh"

namespace slipform {
namespace gpu {

// Shared memory: of every row and column of the tile, rows first, the position in the tile of its
// positive, -1 for none, and its group; of every thread, marks. Epilogues have what follows.
template <class Layout>
struct SpecialMemory {
  static constexpr int ENTRIES = Layout::ROWS + Layout::COLS;
  static constexpr uint32_t TARGET = 0, GROUP = ENTRIES * 4, MARKS = GROUP + ENTRIES * 8,
                            BYTES = MARKS + Layout::HEIGHT * THREADS * 4;

  SLIPFORM_DEVICE static uint32_t target(int entry) { return shared_base() + TARGET + entry * 4; }
  SLIPFORM_DEVICE static uint32_t group(int entry) { return shared_base() + GROUP + entry * 8; }
  SLIPFORM_DEVICE static uint32_t marks(int i) {
    return shared_base() + MARKS + (i * THREADS + thread_id()) * 4;
  }
};

// visit(entry, of_row, index) for this thread's share of the tile's rows and columns; the index is
// -1 past the end.
template <class Layout, class Visit>
SLIPFORM_DEVICE void for_entries(const Operands& o, const Place<Layout>& p, const Visit& visit) {
  for (int n = static_cast<int>(thread_id()); n < Layout::ROWS + Layout::COLS; n += THREADS) {
    const bool of_row = n < Layout::ROWS;
    const int64_t index = of_row ? p.row0() + n : p.col0() + n - Layout::ROWS;
    visit(n, of_row, index < (of_row ? o.rows : o.cols) ? index : -1);
  }
}

// The position in a tile that starts at `start` of an index that counts from -first; -1 outside of
// the tile or past the end.
SLIPFORM_DEVICE int position(int64_t index, int64_t first, int64_t start, int tile, int64_t size) {
  const int64_t at = index - first - start;
  return at >= 0 && at < smaller(tile, size - start) ? static_cast<int>(at) : -1;
}

template <class Layout>
SLIPFORM_DEVICE int col_position(const Operands& o, const Place<Layout>& p, int64_t col) {
  return position(col, o.first_col, p.col0(), Layout::COLS, o.cols);
}

template <class Layout>
SLIPFORM_DEVICE int row_position(const Operands& o, const Place<Layout>& p, int64_t row) {
  return position(row, o.first_row, p.row0(), Layout::ROWS, o.rows);
}

// Fills shared memory; whether the tile is special, the same answer for the whole block, which
// waits here.
template <class Layout>
SLIPFORM_DEVICE bool share_special(const Operands& o, const Place<Layout>& p) {
  using Memory = SpecialMemory<Layout>;
  bool found = p.row0() + Layout::ROWS > o.rows || p.col0() + Layout::COLS > o.cols ||
               o.row_group != nullptr;
  for_entries(o, p, [&](int entry, bool of_row, int64_t index) {
    int target = -1;
    int64_t group = 0;
    if (index >= 0) {
      target = of_row ? col_position(o, p, o.row_target[index])
                      : row_position(o, p, o.col_target[index]);
      if (o.row_group != nullptr) group = (of_row ? o.row_group : o.col_group)[index];
      for (int64_t k = index * o.hard; of_row && k < (index + 1) * o.hard; ++k)
        found |= col_position(o, p, o.hard_cols[k]) >= 0;
    }
    found |= target >= 0;
    store_shared(Memory::target(entry), target);
    store_shared(Memory::group(entry), group);
  });
  return block_any(found);
}

// Of one row of a thread's values, three bits a value. `closed`: of one group, or past the end.
// They wait in shared memory, since an epilogue has no registers to spare.
struct Marks {
  uint32_t bits;

  SLIPFORM_DEVICE static uint32_t row_bit(int j) { return 1u << j; }
  SLIPFORM_DEVICE static uint32_t col_bit(int j) { return 1u << (WIDTH + j); }
  SLIPFORM_DEVICE static uint32_t closed_bit(int j) { return 1u << (2 * WIDTH + j); }

  SLIPFORM_DEVICE bool row_positive(int j) const { return bits & row_bit(j); }
  SLIPFORM_DEVICE bool col_positive(int j) const { return bits & col_bit(j); }
  SLIPFORM_DEVICE bool closed(int j) const { return bits & closed_bit(j); }
};

template <class Layout>
SLIPFORM_DEVICE Marks load_marks(int i) {
  return {load_shared<uint32_t>(SpecialMemory<Layout>::marks(i))};
}

// The closed bits of pairs of one group in a row.
template <class Layout>
SLIPFORM_DEVICE uint32_t find_group(int row) {
  using Memory = SpecialMemory<Layout>;
  const int64_t group = load_shared<int64_t>(Memory::group(row));
  uint32_t bits = 0;
  SLIPFORM_UNROLL
  for (int j = 0; j < WIDTH; ++j) {
    const uint32_t other = Memory::group(Layout::ROWS + Layout::col(j));
    if (load_shared<int64_t>(other) == group) bits |= Marks::closed_bit(j);
  }
  return bits;
}

// Every thread's marks, after share_special.
template <class Layout>
SLIPFORM_DEVICE void share_marks(const Operands& o, const Place<Layout>& p) {
  using Memory = SpecialMemory<Layout>;
  const int rows = static_cast<int>(smaller(o.rows - p.row0(), Layout::ROWS));
  const int cols = static_cast<int>(smaller(o.cols - p.col0(), Layout::COLS));
  int col_target[WIDTH];
  SLIPFORM_UNROLL
  for (int j = 0; j < WIDTH; ++j) {
    const int entry = Layout::ROWS + Layout::col(j);
    col_target[j] = load_shared<int32_t>(Memory::target(entry));
  }
  SLIPFORM_UNROLL
  for (int i = 0; i < Layout::HEIGHT; ++i) {
    const int row = Layout::row(i);
    const int row_target = load_shared<int32_t>(Memory::target(row));
    uint32_t bits = 0;
    SLIPFORM_UNROLL
    for (int j = 0; j < WIDTH; ++j) {
      if (row_target == Layout::col(j)) bits |= Marks::row_bit(j);
      if (col_target[j] == row) bits |= Marks::col_bit(j);
      if (row >= rows || Layout::col(j) >= cols) bits |= Marks::closed_bit(j);
    }
    if (o.row_group != nullptr) bits |= find_group<Layout>(row);
    store_shared(Memory::marks(i), bits);
  }
}

// visit(i, j, at) for every value at a hard column, `at` being its place in [rows, hard].
template <class Layout, class Visit>
SLIPFORM_DEVICE void for_hard_columns(const Operands& o, const Place<Layout>& p,
                                      const Visit& visit) {
  if (o.hard == 0) return;
  SLIPFORM_UNROLL
  for (int i = 0; i < Layout::HEIGHT; ++i) {
    const int64_t row = p.row0() + Layout::row(i);
    for (int k = 0; row < o.rows && k < o.hard; ++k) {
      const int64_t at = row * o.hard + k;
      const int hard = col_position(o, p, o.hard_cols[at]);
      SLIPFORM_UNROLL
      for (int j = 0; j < WIDTH; ++j)
        if (hard == Layout::col(j)) visit(i, j, at);
    }
  }
}

template <class Layout>
SLIPFORM_DEVICE void add_margins(const Operands& o, const Place<Layout>& p,
                                 Values<Layout>& similarity) {
  for_hard_columns(o, p, [&](int i, int j, int64_t at) { similarity.at(i, j) += o.margin[at]; });
}

}  // namespace gpu
}  // namespace slipform
