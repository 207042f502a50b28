// A block of 32 rows and 32 columns is held in four tiles of 16 x 16 fp32 sums; each step takes 16
// words of depth of two tiles of rows and two of columns. A packed panel is already in the order
// that the instruction wants: a tile's row is one word of 16 columns.
//
// Compiled without AMX, it is a stub.
#include <algorithm>
#include <cstring>

#include "amx.h"

#ifdef __AMX_BF16__

#include <immintrin.h>

#include "buffer.h"

namespace slipform {
namespace {

constexpr int64_t SIDE = 16, BLOCK = 2 * SIDE;
constexpr int64_t PANEL_BYTES = PANEL * 4;  // from one word's row to the next

// Eight tiles of 16 rows of 64 bytes.
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
  TileConfig() {
    std::fill_n(row_bytes, 8, 64);
    std::fill_n(rows, 8, SIDE);
  }
};

// 32 rows of the left operand, padded with zeros to whole tiles.
Left padded(const Left& left, int64_t rows, int64_t words, uint32_t* copy) {
  const int64_t present = std::min(words, left.words);
  std::fill_n(copy, BLOCK * words, 0u);
  for (int64_t i = 0; i < rows; ++i)
    std::memcpy(copy + i * words, left.base + i * left.row_stride, present * 4);
  return {reinterpret_cast<const char*>(copy), words * 4, words};
}

// sums (+)= 32 rows against 32 columns. `sums` has rows of `stride` numbers.
void block(const Left& left, const char* right, int64_t words, float* sums, int64_t stride,
           bool add) {
  float* lower = sums + SIDE * stride;
  if (add) {
    _tile_loadd(0, sums, stride * 4);
    _tile_loadd(1, sums + SIDE, stride * 4);
    _tile_loadd(2, lower, stride * 4);
    _tile_loadd(3, lower + SIDE, stride * 4);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  const char* below = left.base + SIDE * left.row_stride;
  for (int64_t word = 0; word < words; word += AMX_WORDS) {
    const char* columns = right + word * PANEL_BYTES;
    _tile_loadd(4, left.base + word * 4, left.row_stride);
    _tile_loadd(6, columns, PANEL_BYTES);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, columns + SIDE * 4, PANEL_BYTES);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, below + word * 4, left.row_stride);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, sums, stride * 4);
  _tile_stored(1, sums + SIDE, stride * 4);
  _tile_stored(2, lower, stride * 4);
  _tile_stored(3, lower + SIDE, stride * 4);
}

// A block at the edge of the target, by way of a whole one.
void edge(const Left& left, const char* right, int64_t words, int64_t rows, const Target& target) {
  alignas(64) float sums[BLOCK * BLOCK] = {};
  for (int64_t i = 0; target.add && i < rows; ++i)
    std::copy_n(target.out + i * target.stride, target.cols, sums + i * BLOCK);
  block(left, right, words, sums, BLOCK, target.add);
  for (int64_t i = 0; i < rows; ++i)
    std::copy_n(sums + i * BLOCK, target.cols, target.out + i * target.stride);
}

// At most 32 rows against all panels.
void band(Left left, int64_t rows, const uint32_t* panels, int64_t words, const Target& target) {
  const bool whole = rows == BLOCK && left.words >= words;
  const Buffer<uint32_t> copy(whole ? 0 : BLOCK * words);
  if (!whole) left = padded(left, rows, words, copy.get());
  for (int64_t col = 0; col < target.cols; col += BLOCK) {
    const int64_t in_panel = col % PANEL;
    const auto* right = reinterpret_cast<const char*>(panels + (col - in_panel) * words + in_panel);
    const Target part{target.out + col, target.stride, std::min(BLOCK, target.cols - col),
                      target.add};
    if (rows == BLOCK && part.cols == BLOCK)
      block(left, right, words, part.out, part.stride, part.add);
    else
      edge(left, right, words, rows, part);
  }
}

}  // namespace

void multiply_amx(Left left, int64_t rows, const uint32_t* panels, int64_t words, Target target) {
  const TileConfig config;
  _tile_loadconfig(&config);
  for (int64_t row = 0; row < rows; row += BLOCK)
    band(left.from(row), std::min(BLOCK, rows - row), panels, words,
         {target.out + row * target.stride, target.stride, target.cols, target.add});
  _tile_release();
}

}  // namespace slipform

#else

namespace slipform {

void multiply_amx(Left, int64_t, const uint32_t*, int64_t, Target) {}

}  // namespace slipform

#endif
