// The similarity matrix, or a block of it, and what the kernels read and write; pointers, sizes, no
// torch.
#pragma once

#include <cstdint>

namespace slipform {

// Where entries of a rectangle of the matrix lie in memory.
struct Window {
  int64_t row0, col0;  // of the first entry
  int64_t stride;      // entries from one row to the next
  int64_t at(int64_t i, int64_t j) const { return (i - row0) * stride + (j - col0); }
};

// L_ij = scale * (similarity_ij + sum_k margin_ik [hard_cols_ik = j]) + bias_j
//
// All indices are relative to the block, -1 where there is no such row or column. A null pointer
// stands for "not given". Matrices are dense and row-major.
struct Block {
  int64_t rows, cols;
  int64_t hard;  // hard columns a row
  float scale, scalar_bias;
  const float* bias;          // [cols]
  const int64_t* row_target;  // [rows]
  const int64_t* col_target;  // [cols]
  const int64_t* hard_cols;   // [rows, hard]
  const float* margin;        // [rows, hard]
  const int64_t* row_group;   // [rows]
  const int64_t* col_group;   // [cols]
  const float* similarities;  // those of `window`
  Window window;
};

// Of the logits in a row's (column's) rest, that is without its positive and without pairs of one
// group: a reference near or at the maximum, and the sum of exponentials relative to it. An empty
// rest has -inf and 0.
struct Statistics {
  float *row_max, *row_sum;  // [rows]
  float *col_max, *col_sum;  // [cols]
};

// dL_ij = row_rest_grad_i exp(L_ij - row_rest_i)   for j in row i's rest,
//         row_positive_grad_i                      at row i's positive, plus the same of the
//         columns.
struct Gradient {
  const float *row_rest, *row_rest_grad, *row_positive_grad;  // [rows]
  const float *col_rest, *col_rest_grad, *col_positive_grad;  // [cols]
  void* logits_grad;  // dL of `window`; fp32 (may be the similarities themselves) or bf16
  Window window;
  bool bf16;          // type of logits_grad
  float* scale_grad;  // [rows] sum_j dL_ij (similarity_ij + margin_ij), or null
  float* bias_grad;   // [cols] sum_i dL_ij, or null
  float*
      margin_grad;  // [rows, hard] scale * dL at the hard columns, 0 where there is none, or null
};

// Element-wise kernels of one instruction set, over similarities from a library product.
struct Kernels {
  void (*statistics)(const Block&, const Statistics&, int threads);
  void (*gradient)(const Block&, const Gradient&, int threads);
};

const Kernels& kernels_avx512();
const Kernels& kernels_avx2();
const Kernels& kernels_baseline();

}  // namespace slipform
