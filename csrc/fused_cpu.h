// Statistics and gradients of a whole problem, products included, on CPUs whose units our own
// products use better than the libraries do.
#pragma once

#include <cstdint>

#include "block.h"

namespace slipform {

// Row-major features, fp32 or bf16: rows [rows, depth], cols [cols, depth].
struct Features {
  const void *rows, *cols;
  int64_t depth;
  bool bf16;
  bool amx;  // what multiplies bf16, else AVX-512
};

// The similarities of the first `rows` rows of the matrix, [rows, cols of the problem], which
// forward leaves for backward; or null and 0.
struct Kept {
  float* similarities;
  int64_t rows;
};

// Log-sum-exps over all but the positive, -inf where there is none; logits of the positives, 0
// where there is none.
struct Rests {
  float *row_rest, *row_positive;  // [rows]
  float *col_rest, *col_positive;  // [cols]
};

// Where one gradient of the features goes; all null where it is not needed.
struct FeatureGradient {
  float* sum;  // [n, depth] fp32 dL Z, added to what is there where `add`; or null for
  void* out;   // [n, depth] factor * dL Z, in the features' dtype
  bool add;
};

struct Gradients {
  FeatureGradient rows, cols;
  float factor;
  double* scale;  // sum_ij dL_ij (similarity_ij + margin_ij), or null
};

struct Fused {
  // Block::similarities is not read.
  void (*statistics)(const Block&, const Features&, const Kept&, const Rests&, int threads);
  // dL is kept in bf16 where `rounded`, which only bf16 features may ask for. Of `Gradient`,
  // bias_grad and margin_grad are written; logits_grad and scale_grad are not used.
  void (*gradients)(const Block&, const Features&, const Kept&, Gradient, bool rounded,
                    const Gradients&, int threads);
};

// Null where this build has none.
const Fused* fused_avx512();
// Whether this CPU has the instructions, and gains by them, for features of a type.
bool fused_serves(bool bf16, bool amx, int64_t rows, int64_t cols, int64_t depth);

}  // namespace slipform
