// Union of the tiles' (maximum, sum) pairs, in a fixed order.
#include "tile.cuh"

namespace slipform {
namespace gpu {
namespace {

SLIPFORM_KERNEL(THREADS, 2)
void merge_kernel(const float* part_max, const float* part_sum, int64_t parts, int64_t count,
                  float* maximum, float* sum) {
  const int64_t n = static_cast<int64_t>(block_x()) * THREADS + thread_id();
  if (n >= count) return;
  float largest = maximum[n];
  for (int64_t part = 0; part < parts; ++part) largest = fmaxf(largest, part_max[part * count + n]);
  float total = sum[n] * exp2(maximum[n] - largest);
  for (int64_t part = 0; part < parts; ++part)
    total += part_sum[part * count + n] * exp2(part_max[part * count + n] - largest);
  maximum[n] = largest;
  sum[n] = total;
}

}  // namespace

void merge(const float* part_max, const float* part_sum, int64_t parts, int64_t count,
           float* maximum, float* sum, void* stream) {
  gpu::launch(merge_kernel, "merge", Grid{blocks(count, THREADS), 1}, THREADS, 0, stream, part_max,
              part_sum, parts, count, maximum, sum);
}

}  // namespace gpu
}  // namespace slipform
