// Statistics and gradient over similarities that a library product wrote: the plain path, for any
// GPU, dtype and depth. A block takes one tile into registers, 16 bytes at a time.
#include "gradient.cuh"
#include "statistics.cuh"

namespace slipform {
namespace gpu {
namespace {

using Layout = MemoryLayout;

// A thread's eight neighbours in a row, of which the first `count` are inside.
SLIPFORM_DEVICE void load_eight(const float* from, int64_t count, int i, Values<Layout>& values) {
  if (count >= WIDTH && aligned(from, sizeof(Vec4))) {
    // Not through the read-only path: dL may overwrite the similarities.
    const Vec4 low = *reinterpret_cast<const Vec4*>(from);
    const Vec4 high = *reinterpret_cast<const Vec4*>(from + 4);
    SLIPFORM_UNROLL
    for (int j = 0; j < 4; ++j) {
      values.at(i, j) = low.f[j];
      values.at(i, j + 4) = high.f[j];
    }
    return;
  }
  SLIPFORM_UNROLL
  for (int j = 0; j < WIDTH; ++j) values.at(i, j) = j < count ? from[j] : 0.0f;
}

SLIPFORM_DEVICE void load_tile(const Similarities& s, const Operands& o, const Place<Layout>& p,
                               Values<Layout>& values) {
  const int64_t col = p.col0() + Layout::col(0);
  SLIPFORM_UNROLL
  for (int i = 0; i < Layout::HEIGHT; ++i) {
    const int64_t row = p.row0() + Layout::row(i);
    const bool inside = row < o.rows;
    load_eight(s.values + (inside ? row : 0) * s.stride + col, inside ? o.cols - col : 0, i,
               values);
  }
}

SLIPFORM_KERNEL(THREADS, 2)
void statistics_kernel(Similarities s, Operands o, Partials out) {
  const Place<Layout> place = place_of_block<Layout>(o);
  const bool special = share_special(o, place);
  Values<Layout> values;
  load_tile(s, o, place, values);
  write_statistics(o, place, special, values, out);
}

template <class T>
SLIPFORM_KERNEL(THREADS, 2)
void gradient_kernel(Similarities s, Operands o, Weights w, LogitsGrad out) {
  const Place<Layout> place = place_of_block<Layout>(o);
  const bool special = share_special(o, place);
  const RestRange range = share_weights(o, place, w);
  Values<Layout> values;
  load_tile(s, o, place, values);
  write_gradient<T>(o, place, special, range, values, out);
}

template <class T>
void launch_gradient(const Similarities& s, const Operands& o, const Weights& w,
                     const LogitsGrad& out, void* stream) {
  gpu::launch(gradient_kernel<T>, "elementwise_gradient", grid_of<Layout>(o), THREADS,
              GradientMemory<Layout>::BYTES, stream, s, o, w, out);
}

}  // namespace

void elementwise_statistics(const Similarities& s, const Operands& o, const Partials& out,
                            void* stream) {
  gpu::launch(statistics_kernel, "elementwise_statistics", grid_of<Layout>(o), THREADS,
              StatisticsMemory<Layout>::BYTES, stream, s, o, out);
}

void elementwise_gradient(const Similarities& s, const Operands& o, const Weights& w,
                          const LogitsGrad& out, void* stream) {
  if (out.type == Type::bf16) return launch_gradient<bf16>(s, o, w, out, stream);
  if (out.type == Type::f16) return launch_gradient<f16>(s, o, w, out, stream);
  launch_gradient<float>(s, o, w, out, stream);
}

}  // namespace gpu
}  // namespace slipform
