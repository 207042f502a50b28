// A block of the similarity matrix and what the kernels read and write; pointers, sizes, no torch.
#pragma once

#include <cstdint>

namespace slipform {

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
  const float* similarities;  // [rows, cols]
};

// Of the logits in a row's (column's) rest, that is without its positive and without pairs of one
// group: the maximum, and the sum of exponentials relative to it. An empty rest has -inf and 0.
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
  void* logits_grad;  // [rows, cols] dL; fp32 (may be the similarities themselves) or bf16
  bool bf16;          // type of logits_grad
  float* scale_grad;  // [rows] sum_j dL_ij (similarity_ij + margin_ij), or null
  float* bias_grad;   // [cols] sum_i dL_ij, or null
  float*
      margin_grad;  // [rows, hard] scale * dL at the hard columns, 0 where there is none, or null
};

// The kernels of one instruction set: the same source compiled for each level.
struct Kernels {
  void (*statistics)(const Block&, const Statistics&, int threads);
  void (*gradient)(const Block&, const Gradient&, int threads);
};

// out_ij = <rows_i, cols_j> in fp32; all row-major, rows and cols both fp32 or both bf16.
struct Product {
  int64_t row_count, col_count, depth;
  const void *rows, *cols;
  bool bf16;
  float* out;
};

// Whether this build and CPU have a product of their own that beats the library's.
bool has_similarities(bool bf16);
void similarities(const Product&, int threads);

const Kernels& kernels_avx512();
const Kernels& kernels_avx2();
const Kernels& kernels_baseline();

}  // namespace slipform
