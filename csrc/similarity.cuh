// The tensor-core main loop: <x_i, y_j> of a 128 x 128 tile in registers.
//
// Features come through shared memory in slices of 64 bytes of depth, STAGES of them in flight.
// A row's slice is four chunks of 16 bytes, placed so that ldmatrix, which reads a chunk of eight
// rows at once, finds them in different banks. Eight warps compute 64 x 32 each.
#pragma once

#include "tile.cuh"

namespace slipform {
namespace gpu {

struct tf32 {};

constexpr int STAGES = 3;
constexpr int32_t SLICE = 64;
constexpr uint32_t CHUNK = 16;
constexpr uint32_t OPERAND_BYTES = FUSED_TILE.rows * SLICE, STAGE_BYTES = 2 * OPERAND_BYTES;
constexpr uint32_t PIPELINE_BYTES = STAGES * STAGE_BYTES;
static_assert(FUSED_TILE.rows == FUSED_TILE.cols, "both operands have the same place");

// Where a chunk of a row lies in its operand's part of a stage.
SLIPFORM_DEVICE uint32_t chunk_at(uint32_t row, uint32_t chunk) {
  return row * SLICE + (chunk ^ (row / 2 & 3)) * CHUNK;
}

// A thread's share of the copies: its chunk of two rows of one operand. Past the last row or the
// end of the depth it copies zeros.
class Source {
 public:
  SLIPFORM_DEVICE Source(const void* features, int64_t first, int64_t count, int32_t row_bytes)
      : row_bytes_(row_bytes) {
    SLIPFORM_UNROLL
    for (int n = 0; n < 2; ++n) {
      const int64_t row = first + row_of(n);
      inside_[n] = row < count;
      from_[n] = static_cast<const char*>(features) + (inside_[n] ? row : 0) * row_bytes;
    }
  }

  // The slice that starts at byte `depth` of every row, to the operand's part of a stage.
  SLIPFORM_DEVICE void copy(int32_t depth, uint32_t to) const {
    const int32_t at = depth + static_cast<int32_t>(thread_id() % 4 * CHUNK);
    SLIPFORM_UNROLL
    for (int n = 0; n < 2; ++n) {
      const bool inside = inside_[n] && at < row_bytes_;
      cp_async_16(to + chunk_at(row_of(n), thread_id() % 4), from_[n] + (inside ? at : 0),
                  inside ? CHUNK : 0);
    }
  }

 private:
  SLIPFORM_DEVICE static uint32_t row_of(int n) { return thread_id() / 4 + n * THREADS / 4; }

  const char* from_[2];
  bool inside_[2];
  int32_t row_bytes_;
};

template <class T>
SLIPFORM_DEVICE void multiply_add(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  mma_16816<T>(d, a, b);
}
template <>
SLIPFORM_DEVICE void multiply_add<tf32>(float (&d)[4], const uint32_t (&a)[4],
                                        const uint32_t (&b)[2]) {
  mma_1688_tf32(d, a, b);
}

template <class T>
SLIPFORM_DEVICE void round_fragment(uint32_t (&)[4]) {}
template <>
SLIPFORM_DEVICE void round_fragment<tf32>(uint32_t (&words)[4]) {
  SLIPFORM_UNROLL
  for (int n = 0; n < 4; ++n) {
    Vec4 word;
    word.u[0] = words[n];
    words[n] = to_tf32(word.f[0]);
  }
}

// values += the stage's slice. An mma takes 32 bytes of depth, whatever the type: the fragments
// have the same places.
template <class T>
SLIPFORM_DEVICE void multiply_slice(uint32_t stage, Values<ProductLayout>& values) {
  const uint32_t lane = lane_id();
  const uint32_t rows = stage + ProductLayout::warp_down() * 64 * SLICE;
  const uint32_t cols = stage + OPERAND_BYTES + ProductLayout::warp_across() * 32 * SLICE;
  SLIPFORM_UNROLL
  for (uint32_t step = 0; step < SLICE / 32; ++step) {
    // Of the four 8 x 16-byte matrices that a warp reads at once, lane l addresses a row of l / 8.
    uint32_t b[2][4];
    SLIPFORM_UNROLL
    for (uint32_t n = 0; n < 2; ++n) {
      const uint32_t col = n * 16 + lane / 16 * 8 + lane % 8, chunk = step * 2 + lane / 8 % 2;
      ldmatrix_x4(cols + chunk_at(col, chunk), b[n]);
      round_fragment<T>(b[n]);
    }
    SLIPFORM_UNROLL
    for (uint32_t m = 0; m < 4; ++m) {
      uint32_t a[4];
      ldmatrix_x4(rows + chunk_at(m * 16 + lane % 16, step * 2 + lane / 16), a);
      round_fragment<T>(a);
      SLIPFORM_UNROLL
      for (uint32_t n = 0; n < 4; ++n)
        multiply_add<T>(values.fragment[m][n], a, {b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]});
    }
  }
}

// The similarities of the tile, 0 past the end of rows and columns (nan where the other operand is
// not finite). Afterwards the block's shared memory is free.
template <class T>
SLIPFORM_DEVICE void compute_similarities(const Features& f, const Operands& o,
                                          const Place<ProductLayout>& p,
                                          Values<ProductLayout>& values) {
  const int32_t row_bytes = static_cast<int32_t>(f.depth * (f.type == Type::f32 ? 4 : 2));
  const Source rows(f.rows, p.row0(), o.rows, row_bytes), cols(f.cols, p.col0(), o.cols, row_bytes);
  const auto copy = [&](int32_t slice) {
    if (slice * SLICE < row_bytes) {
      const uint32_t to = shared_base() + static_cast<uint32_t>(slice % STAGES) * STAGE_BYTES;
      rows.copy(slice * SLICE, to);
      cols.copy(slice * SLICE, to + OPERAND_BYTES);
    }
    cp_async_commit();  // an empty group past the end keeps the count right
  };
  values.clear();
  SLIPFORM_UNROLL
  for (int slice = 0; slice < STAGES - 1; ++slice) copy(slice);
  SLIPFORM_NO_UNROLL
  for (int32_t slice = 0; slice * SLICE < row_bytes; ++slice) {
    cp_async_wait<STAGES - 2>();
    // Everyone's copies have arrived, and everyone is done with the stage that is filled next.
    block_sync();
    copy(slice + STAGES - 1);
    multiply_slice<T>(shared_base() + static_cast<uint32_t>(slice % STAGES) * STAGE_BYTES, values);
  }
  block_sync();
}

}  // namespace gpu
}  // namespace slipform
