// Both log-sum-exps' partial sums in one pass over the similarities, which are never stored.
#include "similarity.cuh"
#include "statistics.cuh"

namespace slipform {
namespace gpu {
namespace {

using Layout = ProductLayout;
static_assert(StatisticsMemory<Layout>::BYTES <= PIPELINE_BYTES, "the epilogue reuses the stages");

template <class T>
SLIPFORM_KERNEL(THREADS, 2)
void statistics_kernel(Features f, Operands o, Partials out) {
  const Place<Layout> place = place_of_block<Layout>(o);
  Values<Layout> values;
  compute_similarities<T>(f, o, place, values);
  const bool special = share_special(o, place);
  write_statistics(o, place, special, values, out);
}

template <class T>
void launch_statistics(const Features& f, const Operands& o, const Partials& out, void* stream) {
  gpu::launch(statistics_kernel<T>, "fused_statistics", grid_of<Layout>(o), THREADS, PIPELINE_BYTES,
              stream, f, o, out);
}

}  // namespace

void fused_statistics(const Features& f, const Operands& o, const Partials& out, void* stream) {
  if (f.type == Type::bf16) return launch_statistics<bf16>(f, o, out, stream);
  if (f.type == Type::f16) return launch_statistics<f16>(f, o, out, stream);
  launch_statistics<tf32>(f, o, out, stream);
}

}  // namespace gpu
}  // namespace slipform
