// Faults outside of shared memory, which the compilers' checks must find although the kernels run
// on stacks of their own. Each case must end the program, or fail.
#include "cases.h"
#include "device_memory.h"

namespace slipform {
namespace gpu {

constexpr uint32_t threads = 32;

SLIPFORM_KERNEL(threads, 1) void read_past(float* out, const float* in) {
  out[thread_id()] = in[thread_id() + 1];
}
CASE(read_past_a_global_array) {
  Array<float> out(threads), in(threads);
  launch(read_past, "read_past", Grid{1, 1}, threads, 0, nullptr, out.get(), in.get());
}

SLIPFORM_KERNEL(threads, 1) void copy_past(const float* in, uint32_t bytes) {
  cp_async_16(shared_base() + 16 * thread_id(), in + 4 * thread_id(), bytes);
}
CASE(copy_past_a_global_array) {
  // The last thread's 16 bytes end one float beyond; 12 would be right.
  Array<float> in(4 * threads - 1);
  launch(copy_past, "copy_past", Grid{1, 1}, threads, 16 * threads, nullptr, in.get(), 16);
}

SLIPFORM_KERNEL(threads, 1) void index_registers(float* out, uint32_t count) {
  float registers[4] = {};
  for (uint32_t i = 0; i < count; ++i) registers[i] = shuffle_xor(1.0f, 1);
  out[thread_id()] = registers[0] + registers[3];
}
CASE(register_index) {
  Array<float> out(threads);
  launch(index_registers, "index_registers", Grid{1, 1}, threads, 0, nullptr, out.get(), 5);
}

SLIPFORM_KERNEL(threads, 1) void read_vector(float* out, const unsigned char* in) {
  out[thread_id()] = reinterpret_cast<const Vec4*>(in)->f[0];
}
CASE(misaligned_pointer) {
  Array<float> out(threads);
  Array<unsigned char> in(64);
  launch(read_vector, "read_vector", Grid{1, 1}, threads, 0, nullptr, out.get(), in.get() + 8);
}

SLIPFORM_KERNEL(threads, 1) void step_past_registers(float* out, uint32_t steps) {
  float registers[4] = {1, 2, 3, 4};
  const float* last = registers;
  for (uint32_t i = 0; i < steps; ++i) {
    block_sync();
    ++last;
  }
  out[thread_id()] = *last;
}
CASE(pointer_past_registers) {
  Array<float> out(threads);
  launch(step_past_registers, "step_past_registers", Grid{1, 1}, threads, 0, nullptr, out.get(), 4);
}

SLIPFORM_KERNEL(threads, 1) void accumulate(float* out) {
  float d[4];
  const uint32_t a[4] = {}, b[2] = {};
  mma_16816<bf16>(d, a, b);
  out[thread_id()] = d[0];
}
CASE(uninitialised_accumulator) {
  Array<float> out(threads);
  launch(accumulate, "accumulate", Grid{1, 1}, threads, 0, nullptr, out.get());
  for (uint32_t i = 0; i < threads; ++i) expect_equal(out[i], 0.0f, "product of zeros");
}

}  // namespace gpu
}  // namespace slipform
