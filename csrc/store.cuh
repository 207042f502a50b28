// Writing a tile of dL: 16 bytes at a time where addresses allow, entry by entry at the edges.
#pragma once

#include "tile.cuh"

namespace slipform {
namespace gpu {

SLIPFORM_DEVICE bool aligned(const void* address, uintptr_t bytes) {
  return reinterpret_cast<uintptr_t>(address) % bytes == 0;
}

template <class T>
SLIPFORM_DEVICE uint32_t pack(float low, float high) {
  return from_float<T>(low).bits | static_cast<uint32_t>(from_float<T>(high).bits) << 16;
}

// Eight entries of a row, of which the first `count` are inside.
template <class T>
SLIPFORM_DEVICE void store_eight(T* to, int64_t count, const Vec4& words) {
  if (count >= WIDTH && aligned(to, sizeof words)) {
    store_global_16(to, words);
    return;
  }
  SLIPFORM_UNROLL
  for (int n = 0; n < WIDTH; ++n)
    if (n < count) to[n] = {static_cast<uint16_t>(words.u[n / 2] >> n % 2 * 16)};
}

SLIPFORM_DEVICE void store_eight(float* to, int64_t count, const Vec4& low, const Vec4& high) {
  if (count >= WIDTH && aligned(to, sizeof low)) {
    store_global_16(to, low);
    store_global_16(to + 4, high);
    return;
  }
  SLIPFORM_UNROLL
  for (int n = 0; n < WIDTH; ++n)
    if (n < count) to[n] = n < 4 ? low.f[n] : high.f[n - 4];
}

// Among four neighbouring lanes: word n of lane t becomes word t of lane n.
SLIPFORM_DEVICE void transpose_quad(Vec4& words) {
  SLIPFORM_UNROLL
  for (int bit = 1; bit < 4; bit *= 2) {
    const bool upper = lane_id() & static_cast<uint32_t>(bit);
    SLIPFORM_UNROLL
    for (int n = 0; n < 4; ++n) {
      if (n & bit) continue;
      const uint32_t sent = upper ? words.u[n] : words.u[n | bit];
      const uint32_t received = shuffle_xor(sent, bit);
      (upper ? words.u[n] : words.u[n | bit]) = received;
    }
  }
}

template <class Layout, class T>
struct Store;

// A thread holds eight neighbours in a row.
template <class T>
struct Store<MemoryLayout, T> {
  SLIPFORM_DEVICE static void row(const Values<MemoryLayout>& v, int i, T* to, int64_t count) {
    Vec4 words;
    SLIPFORM_UNROLL
    for (int n = 0; n < 4; ++n) words.u[n] = pack<T>(v.at(i, 2 * n), v.at(i, 2 * n + 1));
    const int col = MemoryLayout::col(0);
    store_eight(to + col, count - col, words);
  }
};

template <>
struct Store<MemoryLayout, float> {
  SLIPFORM_DEVICE static void row(const Values<MemoryLayout>& v, int i, float* to, int64_t count) {
    Vec4 low, high;
    SLIPFORM_UNROLL
    for (int n = 0; n < 4; ++n) {
      low.f[n] = v.at(i, n);
      high.f[n] = v.at(i, n + 4);
    }
    const int col = MemoryLayout::col(0);
    store_eight(to + col, count - col, low, high);
  }
};

// The first of a thread's columns after the transposition.
SLIPFORM_DEVICE int first_col() {
  return ProductLayout::warp_across() * 32 + static_cast<int>(lane_id()) % 4 * WIDTH;
}

// A thread holds four pairs, four neighbouring lanes a warp's part of the row; they exchange words
// until each has eight neighbours.
template <class T>
struct Store<ProductLayout, T> {
  SLIPFORM_DEVICE static void row(const Values<ProductLayout>& v, int i, T* to, int64_t count) {
    Vec4 words;
    SLIPFORM_UNROLL
    for (int n = 0; n < 4; ++n) words.u[n] = pack<T>(v.at(i, 2 * n), v.at(i, 2 * n + 1));
    transpose_quad(words);
    store_eight(to + first_col(), count - first_col(), words);
  }
};

template <>
struct Store<ProductLayout, float> {
  SLIPFORM_DEVICE static void row(const Values<ProductLayout>& v, int i, float* to, int64_t count) {
    Vec4 even, odd;
    SLIPFORM_UNROLL
    for (int n = 0; n < 4; ++n) {
      even.f[n] = v.at(i, 2 * n);
      odd.f[n] = v.at(i, 2 * n + 1);
    }
    transpose_quad(even);
    transpose_quad(odd);
    const Vec4 low = {{even.u[0], odd.u[0], even.u[1], odd.u[1]}};
    const Vec4 high = {{even.u[2], odd.u[2], even.u[3], odd.u[3]}};
    store_eight(to + first_col(), count - first_col(), low, high);
  }
};

template <class T, class Layout>
SLIPFORM_DEVICE void store_tile(const Operands& o, const Place<Layout>& p,
                                const Values<Layout>& values, const LogitsGrad& out) {
  SLIPFORM_UNROLL
  for (int i = 0; i < Layout::HEIGHT; ++i) {
    const int64_t row = p.row0() + Layout::row(i);
    const bool inside = row < o.rows;
    T* to = static_cast<T*>(out.values) + (inside ? row : 0) * out.stride + p.col0();
    Store<Layout, T>::row(values, i, to, inside ? o.cols - p.col0() : 0);
  }
}

}  // namespace gpu
}  // namespace slipform
