// dL of a block of the matrix from the features: the similarities are computed anew, tile by tile.
#include "gradient.cuh"
#include "similarity.cuh"

namespace slipform {
namespace gpu {
namespace {

using Layout = ProductLayout;
static_assert(GradientMemory<Layout>::BYTES <= PIPELINE_BYTES, "the epilogue reuses the stages");

template <class T, class Out>
SLIPFORM_KERNEL(THREADS, 2)
void gradient_kernel(Features f, Operands o, Weights w, LogitsGrad out) {
  const Place<Layout> place = place_of_block<Layout>(o);
  Values<Layout> values;
  compute_similarities<T>(f, o, place, values);
  const bool special = share_special(o, place);
  const RestRange range = share_weights(o, place, w);
  write_gradient<Out>(o, place, special, range, values, out);
}

template <class T, class Out>
void launch_gradient(const Features& f, const Operands& o, const Weights& w, const LogitsGrad& out,
                     void* stream) {
  gpu::launch(gradient_kernel<T, Out>, "fused_gradient", grid_of<Layout>(o), THREADS,
              PIPELINE_BYTES, stream, f, o, w, out);
}

}  // namespace

void fused_gradient(const Features& f, const Operands& o, const Weights& w, const LogitsGrad& out,
                    void* stream) {
  if (f.type == Type::bf16) return launch_gradient<bf16, bf16>(f, o, w, out, stream);
  if (f.type == Type::f16) return launch_gradient<f16, f16>(f, o, w, out, stream);
  launch_gradient<tf32, float>(f, o, w, out, stream);
}

}  // namespace gpu
}  // namespace slipform
