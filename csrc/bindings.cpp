// The Python module slipform_kernels._native: addresses and sizes in, nothing of torch.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdlib>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "amx.h"
#include "block.h"
#include "buffer.h"
#include "fused_cpu.h"
#include "positives.h"

namespace py = pybind11;
using namespace slipform;

#ifdef SLIPFORM_CUDA
void register_cuda(py::module_& module);
#endif

namespace {

struct Level {
  const char* name;
  const Kernels& kernels;
};

// What this CPU can run, fastest first. "amx" is AVX-512 but for the fused kernels' bf16 products.
std::vector<Level> usable_levels() {
  std::vector<Level> levels;
#ifdef SLIPFORM_LEVELS_X86
  __builtin_cpu_init();
  if (__builtin_cpu_supports("x86-64-v4")) {
    if (fused_avx512() != nullptr && amx_available()) levels.push_back({"amx", kernels_avx512()});
    levels.push_back({"avx512", kernels_avx512()});
  }
  if (__builtin_cpu_supports("x86-64-v3")) levels.push_back({"avx2", kernels_avx2()});
#endif
  levels.push_back({"baseline", kernels_baseline()});
  return levels;
}

std::string names(const std::vector<Level>& levels) {
  std::string joined;
  for (const Level& level : levels)
    joined += (joined.empty() ? "" : ", ") + std::string(level.name);
  return joined;
}

// The fastest level, or the one that SLIPFORM_CPU_LEVEL names.
Level chosen_level() {
  static const std::vector<Level> levels = usable_levels();
  const char* wanted = std::getenv("SLIPFORM_CPU_LEVEL");
  if (wanted == nullptr || *wanted == '\0') return levels.front();
  for (const Level& level : levels)
    if (level.name == std::string(wanted)) return level;
  throw std::runtime_error("SLIPFORM_CPU_LEVEL: got '" + std::string(wanted) +
                           "'; expected one that this build and CPU have: " + names(levels));
}

template <class T>
T* at(uintptr_t address) {
  return reinterpret_cast<T*>(address);
}

// The operands of all kernels; the similarities are named apart.
Block block_of(int64_t rows, int64_t cols, int64_t hard, float scale, float scalar_bias,
               uintptr_t bias, uintptr_t row_target, uintptr_t col_target, uintptr_t hard_cols,
               uintptr_t margin, uintptr_t row_group, uintptr_t col_group, uintptr_t similarities,
               int64_t stride) {
  return {rows,
          cols,
          hard,
          scale,
          scalar_bias,
          at<const float>(bias),
          at<const int64_t>(row_target),
          at<const int64_t>(col_target),
          at<const int64_t>(hard_cols),
          at<const float>(margin),
          at<const int64_t>(row_group),
          at<const int64_t>(col_group),
          at<const float>(similarities),
          {0, 0, stride}};
}

void statistics(int64_t rows, int64_t cols, int64_t hard, float scale, float scalar_bias,
                uintptr_t bias, uintptr_t row_target, uintptr_t col_target, uintptr_t hard_cols,
                uintptr_t margin, uintptr_t row_group, uintptr_t col_group, uintptr_t similarities,
                int64_t stride, uintptr_t row_max, uintptr_t row_sum, uintptr_t col_max,
                uintptr_t col_sum, int threads) {
  Block block = block_of(rows, cols, hard, scale, scalar_bias, bias, row_target, col_target,
                         hard_cols, margin, row_group, col_group, similarities, stride);
  Statistics out{at<float>(row_max), at<float>(row_sum), at<float>(col_max), at<float>(col_sum)};
  chosen_level().kernels.statistics(block, out, threads);
}

void gradient(int64_t rows, int64_t cols, int64_t hard, float scale, float scalar_bias,
              uintptr_t bias, uintptr_t row_target, uintptr_t col_target, uintptr_t hard_cols,
              uintptr_t margin, uintptr_t row_group, uintptr_t col_group, uintptr_t similarities,
              int64_t stride, uintptr_t row_rest, uintptr_t row_rest_grad,
              uintptr_t row_positive_grad, uintptr_t col_rest, uintptr_t col_rest_grad,
              uintptr_t col_positive_grad, uintptr_t logits_grad, bool bf16, uintptr_t scale_grad,
              uintptr_t bias_grad, uintptr_t margin_grad, int threads) {
  Block block = block_of(rows, cols, hard, scale, scalar_bias, bias, row_target, col_target,
                         hard_cols, margin, row_group, col_group, similarities, stride);
  Gradient out{at<const float>(row_rest),
               at<const float>(row_rest_grad),
               at<const float>(row_positive_grad),
               at<const float>(col_rest),
               at<const float>(col_rest_grad),
               at<const float>(col_positive_grad),
               at<void>(logits_grad),
               {0, 0, cols},
               bf16,
               at<float>(scale_grad),
               at<float>(bias_grad),
               at<float>(margin_grad)};
  chosen_level().kernels.gradient(block, out, threads);
}

double losses_of(int64_t count, uintptr_t rest, uintptr_t positive, uintptr_t target,
                 uintptr_t loss) {
  return positive_losses(
      {count, at<const float>(rest), at<const float>(positive), at<const int64_t>(target)},
      at<float>(loss));
}

void pulls_of(int64_t count, uintptr_t rest, uintptr_t positive, uintptr_t target, uintptr_t grad,
              int64_t grad_stride, float factor, uintptr_t pull, uintptr_t minus_pull) {
  pulls({count, at<const float>(rest), at<const float>(positive), at<const int64_t>(target)},
        at<const float>(grad), grad_stride, factor, at<float>(pull), at<float>(minus_pull));
}

bool uses_amx() { return chosen_level().name == std::string("amx"); }

// Whether the fused kernels serve; they need the levels that they are written for.
bool fused(bool bf16, int64_t rows, int64_t cols, int64_t depth) {
  const bool level = uses_amx() || chosen_level().name == std::string("avx512");
  return level && fused_avx512() != nullptr && fused_serves(bf16, uses_amx(), rows, cols, depth);
}

const Fused& fused_kernels() {
  if (fused_avx512() == nullptr) throw std::runtime_error("fused: not available in this build");
  return *fused_avx512();
}

void fused_statistics(int64_t rows, int64_t cols, int64_t hard, float scale, float scalar_bias,
                      uintptr_t bias, uintptr_t row_target, uintptr_t col_target,
                      uintptr_t hard_cols, uintptr_t margin, uintptr_t row_group,
                      uintptr_t col_group, int64_t depth, uintptr_t row_features,
                      uintptr_t col_features, bool bf16, uintptr_t kept, int64_t kept_rows,
                      uintptr_t row_rest, uintptr_t row_positive, uintptr_t col_rest,
                      uintptr_t col_positive, int threads) {
  const Block block = block_of(rows, cols, hard, scale, scalar_bias, bias, row_target, col_target,
                               hard_cols, margin, row_group, col_group, 0, 0);
  const Features features{at<const void>(row_features), at<const void>(col_features), depth, bf16,
                          uses_amx()};
  const Rests out{at<float>(row_rest), at<float>(row_positive), at<float>(col_rest),
                  at<float>(col_positive)};
  fused_kernels().statistics(block, features, {at<float>(kept), kept_rows}, out, threads);
}

// Returns the scale's gradient, where it is wanted.
double fused_gradients(int64_t rows, int64_t cols, int64_t hard, float scale, float scalar_bias,
                       uintptr_t bias, uintptr_t row_target, uintptr_t col_target,
                       uintptr_t hard_cols, uintptr_t margin, uintptr_t row_group,
                       uintptr_t col_group, int64_t depth, uintptr_t row_features,
                       uintptr_t col_features, bool bf16, uintptr_t kept, int64_t kept_rows,
                       uintptr_t row_rest, uintptr_t row_rest_grad, uintptr_t row_positive_grad,
                       uintptr_t col_rest, uintptr_t col_rest_grad, uintptr_t col_positive_grad,
                       bool rounded, uintptr_t row_sum, uintptr_t row_out, bool row_add,
                       uintptr_t col_sum, uintptr_t col_out, bool col_add, float factor,
                       bool scale_wanted, uintptr_t bias_grad, uintptr_t margin_grad, int threads) {
  const Block block = block_of(rows, cols, hard, scale, scalar_bias, bias, row_target, col_target,
                               hard_cols, margin, row_group, col_group, 0, 0);
  const Features features{at<const void>(row_features), at<const void>(col_features), depth, bf16,
                          uses_amx()};
  const Gradient weights{at<const float>(row_rest),
                         at<const float>(row_rest_grad),
                         at<const float>(row_positive_grad),
                         at<const float>(col_rest),
                         at<const float>(col_rest_grad),
                         at<const float>(col_positive_grad),
                         nullptr,
                         {},
                         rounded,
                         nullptr,
                         at<float>(bias_grad),
                         at<float>(margin_grad)};
  double scale_grad = 0;
  const Gradients out{{at<float>(row_sum), at<void>(row_out), row_add},
                      {at<float>(col_sum), at<void>(col_out), col_add},
                      factor,
                      scale_wanted ? &scale_grad : nullptr};
  fused_kernels().gradients(block, features, {at<float>(kept), kept_rows}, weights, rounded, out,
                            threads);
  return scale_grad;
}

}  // namespace

PYBIND11_MODULE(_native, m) {
  m.doc() = "Element-wise kernels of slipform_kernels; see csrc/block.h for every argument.";
  m.def(
      "levels",
      [] {
        std::vector<std::string> result;
        for (const Level& level : usable_levels()) result.emplace_back(level.name);
        return result;
      },
      "Instruction sets that this build and CPU have, fastest first.");
  m.def(
      "level", [] { return std::string(chosen_level().name); },
      "The instruction set in use; RuntimeError where SLIPFORM_CPU_LEVEL names another.");
  m.def(
      "fused", &fused, py::arg("bf16"), py::arg("rows"), py::arg("cols"), py::arg("depth"),
      "Whether the fused kernels serve here and are worth it; SLIPFORM_CPU_LEVEL can rule it out.");
  py::class_<Memory>(m, "Memory", py::buffer_protocol(), py::module_local(),
                     "Bytes to hand on between calls.")
      .def(py::init<size_t>(), py::arg("bytes"))
      .def_buffer([](Memory& memory) {
        return py::buffer_info(memory.get(), static_cast<py::ssize_t>(memory.size()));
      });
  auto unlocked = py::call_guard<py::gil_scoped_release>();
  m.def("statistics", &statistics, unlocked, py::arg("rows"), py::arg("cols"), py::arg("hard"),
        py::arg("scale"), py::arg("scalar_bias"), py::arg("bias"), py::arg("row_target"),
        py::arg("col_target"), py::arg("hard_cols"), py::arg("margin"), py::arg("row_group"),
        py::arg("col_group"), py::kw_only(), py::arg("similarities"), py::arg("stride"),
        py::arg("row_max"), py::arg("row_sum"), py::arg("col_max"), py::arg("col_sum"),
        py::arg("threads"));
  m.def("gradient", &gradient, unlocked, py::arg("rows"), py::arg("cols"), py::arg("hard"),
        py::arg("scale"), py::arg("scalar_bias"), py::arg("bias"), py::arg("row_target"),
        py::arg("col_target"), py::arg("hard_cols"), py::arg("margin"), py::arg("row_group"),
        py::arg("col_group"), py::kw_only(), py::arg("similarities"), py::arg("stride"),
        py::arg("row_rest"), py::arg("row_rest_grad"), py::arg("row_positive_grad"),
        py::arg("col_rest"), py::arg("col_rest_grad"), py::arg("col_positive_grad"),
        py::arg("logits_grad"), py::arg("bf16"), py::arg("scale_grad"), py::arg("bias_grad"),
        py::arg("margin_grad"), py::arg("threads"));
  m.def("positive_losses", &losses_of, unlocked, py::arg("count"), py::arg("rest"),
        py::arg("positive"), py::arg("target"), py::arg("loss"));
  m.def("pulls", &pulls_of, unlocked, py::arg("count"), py::arg("rest"), py::arg("positive"),
        py::arg("target"), py::arg("grad"), py::arg("grad_stride"), py::arg("factor"),
        py::arg("pull"), py::arg("minus_pull"));
  m.def("fused_statistics", &fused_statistics, unlocked, py::arg("rows"), py::arg("cols"),
        py::arg("hard"), py::arg("scale"), py::arg("scalar_bias"), py::arg("bias"),
        py::arg("row_target"), py::arg("col_target"), py::arg("hard_cols"), py::arg("margin"),
        py::arg("row_group"), py::arg("col_group"), py::kw_only(), py::arg("depth"),
        py::arg("row_features"), py::arg("col_features"), py::arg("bf16"), py::arg("kept"),
        py::arg("kept_rows"), py::arg("row_rest"), py::arg("row_positive"), py::arg("col_rest"),
        py::arg("col_positive"), py::arg("threads"));
  m.def("fused_gradients", &fused_gradients, unlocked, py::arg("rows"), py::arg("cols"),
        py::arg("hard"), py::arg("scale"), py::arg("scalar_bias"), py::arg("bias"),
        py::arg("row_target"), py::arg("col_target"), py::arg("hard_cols"), py::arg("margin"),
        py::arg("row_group"), py::arg("col_group"), py::kw_only(), py::arg("depth"),
        py::arg("row_features"), py::arg("col_features"), py::arg("bf16"), py::arg("kept"),
        py::arg("kept_rows"), py::arg("row_rest"), py::arg("row_rest_grad"),
        py::arg("row_positive_grad"), py::arg("col_rest"), py::arg("col_rest_grad"),
        py::arg("col_positive_grad"), py::arg("rounded"), py::arg("row_sum"), py::arg("row_out"),
        py::arg("row_add"), py::arg("col_sum"), py::arg("col_out"), py::arg("col_add"),
        py::arg("factor"), py::arg("scale_wanted"), py::arg("bias_grad"), py::arg("margin_grad"),
        py::arg("threads"));
#ifdef SLIPFORM_CUDA
  register_cuda(m);
#endif
}
