// Launchers of the GPU kernels: device addresses, sizes and a stream in; nothing of torch or CUDA.
//
// None of them allocates or waits for the device; a failed launch throws gpu::Error. Whoever calls
// makes the device of the addresses the current one.
#pragma once

#include <cstdint>

namespace slipform {
namespace gpu {

// Of features and of dL. fp32 features are rounded to tf32 by the fused kernels.
enum class Type { f32, bf16, f16 };

// A rectangle of the similarity matrix, as `Block` of block.h with everything in device memory:
//
//     L_ij = scale * (similarity_ij + sum_k margin_ik [hard_cols_ik = j]) + bias_j
//
// Targets and hard columns count from the start of the whole problem, in which this rectangle
// starts at (first_row, first_col); what points elsewhere is none here. A null pointer stands for
// "not given".
struct Operands {
  int64_t rows, cols;
  int64_t first_row, first_col;
  int32_t hard;       // hard columns a row, 0 where there are no margins
  int32_t bias_step;  // 1: a bias a column, 0: one for all
  const float* scale;
  const float* bias;
  const int64_t* row_target;  // [rows]
  const int64_t* col_target;  // [cols]
  const int64_t* hard_cols;   // [rows, hard]
  const float* margin;        // [rows, hard]
  const int64_t* row_group;   // [rows]
  const int64_t* col_group;   // [cols]
};

// What the element-wise kernels start from.
struct Similarities {
  const float* values;  // [rows, stride]
  int64_t stride;
};

// What the fused kernels start from: dense rows of 16-byte aligned starts and multiples of 16
// bytes.
struct Features {
  const void *rows, *cols;  // [rows, depth], [cols, depth]
  int64_t depth;
  Type type;
};

// The (maximum, sum of exponentials relative to it) of each tile's logits in a row's (column's)
// rest, that is without its positive and without pairs of one group; in base 2. An empty rest has
// the lowest finite number and 0.
struct Partials {
  float *row_max, *row_sum;  // [col tiles, rows]
  float *col_max, *col_sum;  // [row tiles, cols]
};

// Upstream gradients, see `Gradient` of block.h.
struct Weights {
  const float *row_rest, *row_rest_grad, *row_positive_grad;  // [rows]
  const float *col_rest, *col_rest_grad, *col_positive_grad;  // [cols]
};

// Results of the gradient; the last three may be null.
struct LogitsGrad {
  void* values;  // [rows, stride] dL; fp32 may be the similarities themselves
  int64_t stride;
  Type type;
  float* scale_grad;   // [col tiles, rows] sum_j dL_ij (similarity_ij + margin_ij)
  float* bias_grad;    // [row tiles, cols] sum_i dL_ij
  float* margin_grad;  // [rows, hard] scale * dL; only what lies in this rectangle is written
};

struct TileShape {
  int32_t rows, cols;
};
constexpr TileShape ELEMENTWISE_TILE = {32, 256}, FUSED_TILE = {128, 128};

void elementwise_statistics(const Similarities&, const Operands&, const Partials&, void* stream);
void elementwise_gradient(const Similarities&, const Operands&, const Weights&, const LogitsGrad&,
                          void* stream);

// Compute capability 8.0 and newer.
void fused_statistics(const Features&, const Operands&, const Partials&, void* stream);
void fused_gradient(const Features&, const Operands&, const Weights&, const LogitsGrad&,
                    void* stream);

// (maximum, sum) [count] <- their union with `parts` others [parts, count], in order.
void merge(const float* part_max, const float* part_sum, int64_t parts, int64_t count,
           float* maximum, float* sum, void* stream);

}  // namespace gpu
}  // namespace slipform
