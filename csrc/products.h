// The operands of a product [rows, depth] [depth, cols] in fp32, of fp32 or bf16 numbers.
//
// A word is one fp32 number, or two bf16 numbers that are neighbours in depth. The right operand is
// packed in panels of 64 columns, word by word of the depth: panel[word][column], with zeros for
// columns past the last. The left operand lies as it is.
#pragma once

#include <cstdint>

namespace slipform {

constexpr int64_t PANEL = 64;
// Packed depths are whole multiples of this where AMX multiplies: a tile's row is 16 words.
constexpr int64_t AMX_WORDS = 16;

// The words of row `i` start at base + i * row_stride, in bytes; there are `words` of them.
struct Left {
  const char* base;
  int64_t row_stride, words;
  Left from(int64_t row) const { return {base + row * row_stride, row_stride, words}; }
};

// Where the product goes: added to what is there, or in place of it.
struct Target {
  float* out;
  int64_t stride;  // numbers from one row to the next
  int64_t cols;    // of the product; the right operand has as many panels as they fill
  bool add;
};

// `rows` rows of the left operand against panels of `words` words.
using Multiply = void (*)(Left left, int64_t rows, const uint32_t* panels, int64_t words,
                          Target target);

}  // namespace slipform
