// The submodule `cuda` of slipform_kernels._native: device addresses and sizes in.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

#include "cuda_kernels.h"

// Architectures that the kernels are compiled for, as "80;90;120+PTX"; set by the build.
#ifndef SLIPFORM_CUDA_ARCHS
#define SLIPFORM_CUDA_ARCHS ""
#endif

namespace py = pybind11;
using namespace slipform::gpu;

namespace {

template <class T>
T* at(uintptr_t address) {
  return reinterpret_cast<T*>(address);
}

Type type_of(const std::string& name) {
  if (name == "float32") return Type::f32;
  if (name == "bfloat16") return Type::bf16;
  if (name == "float16") return Type::f16;
  throw std::invalid_argument("dtype: got '" + name + "'; expected float32, bfloat16 or float16");
}

Operands operands(int64_t rows, int64_t cols, int64_t first_row, int64_t first_col, int32_t hard,
                  int32_t bias_step, uintptr_t scale, uintptr_t bias, uintptr_t row_target,
                  uintptr_t col_target, uintptr_t hard_cols, uintptr_t margin, uintptr_t row_group,
                  uintptr_t col_group) {
  return {rows,
          cols,
          first_row,
          first_col,
          hard,
          bias_step,
          at<const float>(scale),
          at<const float>(bias),
          at<const int64_t>(row_target),
          at<const int64_t>(col_target),
          at<const int64_t>(hard_cols),
          at<const float>(margin),
          at<const int64_t>(row_group),
          at<const int64_t>(col_group)};
}

Similarities similarities(uintptr_t values, int64_t stride) {
  return {at<const float>(values), stride};
}

Features features(uintptr_t rows, uintptr_t cols, int64_t depth, const std::string& dtype) {
  return {at<const void>(rows), at<const void>(cols), depth, type_of(dtype)};
}

Partials partials(uintptr_t row_max, uintptr_t row_sum, uintptr_t col_max, uintptr_t col_sum) {
  return {at<float>(row_max), at<float>(row_sum), at<float>(col_max), at<float>(col_sum)};
}

Weights weights(uintptr_t row_rest, uintptr_t row_rest_grad, uintptr_t row_positive_grad,
                uintptr_t col_rest, uintptr_t col_rest_grad, uintptr_t col_positive_grad) {
  return {at<const float>(row_rest),          at<const float>(row_rest_grad),
          at<const float>(row_positive_grad), at<const float>(col_rest),
          at<const float>(col_rest_grad),     at<const float>(col_positive_grad)};
}

LogitsGrad logits_grad(uintptr_t values, int64_t stride, const std::string& dtype,
                       uintptr_t scale_grad, uintptr_t bias_grad, uintptr_t margin_grad) {
  return {at<void>(values),     stride,
          type_of(dtype),       at<float>(scale_grad),
          at<float>(bias_grad), at<float>(margin_grad)};
}

// The structs of cuda_kernels.h, opaque: Python makes them and hands them on. Local, so that
// another build of this file can be loaded beside this one.
void register_operands(py::module_& m) {
  py::class_<Operands>(m, "Operands", py::module_local())
      .def(py::init(&operands), py::kw_only(), py::arg("rows"), py::arg("cols"),
           py::arg("first_row"), py::arg("first_col"), py::arg("hard"), py::arg("bias_step"),
           py::arg("scale"), py::arg("bias"), py::arg("row_target"), py::arg("col_target"),
           py::arg("hard_cols"), py::arg("margin"), py::arg("row_group"), py::arg("col_group"));
  py::class_<Similarities>(m, "Similarities", py::module_local())
      .def(py::init(&similarities), py::arg("values"), py::arg("stride"));
  py::class_<Features>(m, "Features", py::module_local())
      .def(py::init(&features), py::arg("rows"), py::arg("cols"), py::arg("depth"),
           py::arg("dtype"));
  py::class_<Partials>(m, "Partials", py::module_local())
      .def(py::init(&partials), py::arg("row_max"), py::arg("row_sum"), py::arg("col_max"),
           py::arg("col_sum"));
  py::class_<Weights>(m, "Weights", py::module_local())
      .def(py::init(&weights), py::arg("row_rest"), py::arg("row_rest_grad"),
           py::arg("row_positive_grad"), py::arg("col_rest"), py::arg("col_rest_grad"),
           py::arg("col_positive_grad"));
  py::class_<LogitsGrad>(m, "LogitsGrad", py::module_local())
      .def(py::init(&logits_grad), py::arg("values"), py::arg("stride"), py::arg("dtype"),
           py::kw_only(), py::arg("scale_grad"), py::arg("bias_grad"), py::arg("margin_grad"));
}

}  // namespace

// Called by bindings.cpp where the extension is built with CUDA.
void register_cuda(py::module_& native) {
  py::module_ m = native.def_submodule("cuda", "GPU kernels; see csrc/cuda_kernels.h.");
  m.attr("ARCHITECTURES") = SLIPFORM_CUDA_ARCHS;
  m.attr("ELEMENTWISE_TILE") = std::pair(ELEMENTWISE_TILE.rows, ELEMENTWISE_TILE.cols);
  m.attr("FUSED_TILE") = std::pair(FUSED_TILE.rows, FUSED_TILE.cols);
  register_operands(m);
  m.def(
      "elementwise_statistics",
      [](const Similarities& s, const Operands& o, const Partials& out, uintptr_t stream) {
        elementwise_statistics(s, o, out, at<void>(stream));
      },
      py::arg("similarities"), py::arg("operands"), py::arg("out"), py::arg("stream"));
  m.def(
      "elementwise_gradient",
      [](const Similarities& s, const Operands& o, const Weights& w, const LogitsGrad& out,
         uintptr_t stream) { elementwise_gradient(s, o, w, out, at<void>(stream)); },
      py::arg("similarities"), py::arg("operands"), py::arg("weights"), py::arg("out"),
      py::arg("stream"));
  m.def(
      "fused_statistics",
      [](const Features& f, const Operands& o, const Partials& out, uintptr_t stream) {
        fused_statistics(f, o, out, at<void>(stream));
      },
      py::arg("features"), py::arg("operands"), py::arg("out"), py::arg("stream"));
  m.def(
      "fused_gradient",
      [](const Features& f, const Operands& o, const Weights& w, const LogitsGrad& out,
         uintptr_t stream) { fused_gradient(f, o, w, out, at<void>(stream)); },
      py::arg("features"), py::arg("operands"), py::arg("weights"), py::arg("out"),
      py::arg("stream"));
  m.def(
      "merge",
      [](uintptr_t part_max, uintptr_t part_sum, int64_t parts, int64_t count, uintptr_t maximum,
         uintptr_t sum, uintptr_t stream) {
        merge(at<const float>(part_max), at<const float>(part_sum), parts, count,
              at<float>(maximum), at<float>(sum), at<void>(stream));
      },
      py::arg("part_max"), py::arg("part_sum"), py::arg("parts"), py::arg("count"),
      py::arg("maximum"), py::arg("sum"), py::arg("stream"));
}
