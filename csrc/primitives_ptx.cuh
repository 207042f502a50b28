// The primitives on the GPU. Included by primitives.cuh, which says what each of them means.
#pragma once

#include <cuda_runtime.h>

#include <string>

#define SLIPFORM_KERNEL(...) __global__ __launch_bounds__(__VA_ARGS__)
#define SLIPFORM_DEVICE __device__ __forceinline__

namespace slipform {
namespace gpu {

SLIPFORM_DEVICE uint32_t thread_id() { return threadIdx.x; }
SLIPFORM_DEVICE uint32_t block_threads() { return blockDim.x; }
SLIPFORM_DEVICE uint32_t block_x() { return blockIdx.x; }
SLIPFORM_DEVICE uint32_t block_y() { return blockIdx.y; }
SLIPFORM_DEVICE uint32_t grid_x() { return gridDim.x; }
SLIPFORM_DEVICE uint32_t grid_y() { return gridDim.y; }
SLIPFORM_DEVICE uint32_t lane_id() { return threadIdx.x % 32; }
SLIPFORM_DEVICE uint32_t warp_id() { return threadIdx.x / 32; }

constexpr uint32_t all_lanes = 0xffffffffu;

SLIPFORM_DEVICE void block_sync() { __syncthreads(); }
SLIPFORM_DEVICE bool block_any(bool value) { return __syncthreads_or(value) != 0; }
SLIPFORM_DEVICE void warp_sync() { __syncwarp(all_lanes); }
template <class T>
SLIPFORM_DEVICE T shuffle_xor(T value, int mask) {
  return __shfl_xor_sync(all_lanes, value, mask);
}
template <class T>
SLIPFORM_DEVICE T shuffle_down(T value, int delta) {
  return __shfl_down_sync(all_lanes, value, static_cast<unsigned>(delta));
}
template <class T>
SLIPFORM_DEVICE T shuffle(T value, int lane) {
  return __shfl_sync(all_lanes, value, lane);
}
SLIPFORM_DEVICE uint32_t ballot(bool value) { return __ballot_sync(all_lanes, value); }

SLIPFORM_DEVICE uint32_t shared_base() {
  extern __shared__ Vec4 slipform_shared[];
  return static_cast<uint32_t>(__cvta_generic_to_shared(slipform_shared));
}

// "memory" in everything that touches shared memory: the compiler must not move one past another,
// since it does not see that their addresses may be the same.
template <class T>
SLIPFORM_DEVICE T load_shared(uint32_t address);
template <>
SLIPFORM_DEVICE float load_shared<float>(uint32_t address) {
  float value;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(address) : "memory");
  return value;
}
template <>
SLIPFORM_DEVICE uint32_t load_shared<uint32_t>(uint32_t address) {
  uint32_t value;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
  return value;
}
template <>
SLIPFORM_DEVICE int32_t load_shared<int32_t>(uint32_t address) {
  return static_cast<int32_t>(load_shared<uint32_t>(address));
}
template <>
SLIPFORM_DEVICE int64_t load_shared<int64_t>(uint32_t address) {
  int64_t value;
  asm volatile("ld.shared.b64 %0, [%1];" : "=l"(value) : "r"(address) : "memory");
  return value;
}
template <>
SLIPFORM_DEVICE Vec4 load_shared<Vec4>(uint32_t address) {
  Vec4 v;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.u[0]), "=r"(v.u[1]), "=r"(v.u[2]), "=r"(v.u[3])
               : "r"(address)
               : "memory");
  return v;
}

SLIPFORM_DEVICE void store_shared(uint32_t address, float value) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(value) : "memory");
}
SLIPFORM_DEVICE void store_shared(uint32_t address, uint32_t value) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}
SLIPFORM_DEVICE void store_shared(uint32_t address, int32_t value) {
  store_shared(address, static_cast<uint32_t>(value));
}
SLIPFORM_DEVICE void store_shared(uint32_t address, int64_t value) {
  asm volatile("st.shared.b64 [%0], %1;" ::"r"(address), "l"(value) : "memory");
}
SLIPFORM_DEVICE void store_shared(uint32_t address, Vec4 v) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(v.u[0]), "r"(v.u[1]),
               "r"(v.u[2]), "r"(v.u[3])
               : "memory");
}

// Kernels with these are compiled for older GPUs as well, where they are not launched.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#define SLIPFORM_SM80_ASM(...) __trap()
#else
#define SLIPFORM_SM80_ASM(...) asm volatile(__VA_ARGS__)
#endif

SLIPFORM_DEVICE void cp_async_16(uint32_t address, const void* global, uint32_t bytes) {
  SLIPFORM_SM80_ASM("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address),
                    "l"(__cvta_generic_to_global(global)), "r"(bytes) : "memory");
}
SLIPFORM_DEVICE void cp_async_commit() {
  SLIPFORM_SM80_ASM("cp.async.commit_group;" :: : "memory");
}
template <int N>
SLIPFORM_DEVICE void cp_async_wait() {
  SLIPFORM_SM80_ASM("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

SLIPFORM_DEVICE void ldmatrix_x4(uint32_t address, uint32_t (&r)[4]) {
  SLIPFORM_SM80_ASM("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(r[0]),
                    "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}

template <class T>
SLIPFORM_DEVICE void mma_16816(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]);
template <>
SLIPFORM_DEVICE void mma_16816<bf16>(float (&d)[4], const uint32_t (&a)[4],
                                     const uint32_t (&b)[2]) {
  SLIPFORM_SM80_ASM(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" : "+f"(d[0]),
      "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]),
      "r"(b[1]));
}
template <>
SLIPFORM_DEVICE void mma_16816<f16>(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  SLIPFORM_SM80_ASM(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" : "+f"(d[0]),
      "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]),
      "r"(b[1]));
}
SLIPFORM_DEVICE void mma_1688_tf32(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  SLIPFORM_SM80_ASM(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" : "+f"(d[0]),
      "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]),
      "r"(b[1]));
}
SLIPFORM_DEVICE uint32_t to_tf32(float value) {
  uint32_t bits = 0;
  SLIPFORM_SM80_ASM("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(value));
  return bits;
}

SLIPFORM_DEVICE Vec4 load_global_16(const void* global) {
  const uint4 loaded = __ldg(static_cast<const uint4*>(global));
  return {{loaded.x, loaded.y, loaded.z, loaded.w}};
}
// Not as a uint4: the compiler splits that into four stores where it likes.
SLIPFORM_DEVICE void store_global_16(void* global, Vec4 v) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(global)),
               "r"(v.u[0]), "r"(v.u[1]), "r"(v.u[2]), "r"(v.u[3])
               : "memory");
}

SLIPFORM_DEVICE float exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
SLIPFORM_DEVICE float log2(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

SLIPFORM_DEVICE float to_float(bf16 x) {
  return __uint_as_float(static_cast<uint32_t>(x.bits) << 16);
}
SLIPFORM_DEVICE float to_float(f16 x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  return y;
}

template <class T>
SLIPFORM_DEVICE T from_float(float x);
template <>
SLIPFORM_DEVICE bf16 from_float<bf16>(float x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
  const uint32_t bits = __float_as_uint(x);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  return {static_cast<uint16_t>(x != x ? 0x7fffu : rounded)};
#else
  bf16 y;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
  return y;
#endif
}
template <>
SLIPFORM_DEVICE f16 from_float<f16>(float x) {
  f16 y;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
  return y;
}

template <class T>
struct Exactly {
  using type = T;
};

inline void check(cudaError_t code, const char* name, const char* what) {
  if (code == cudaSuccess) return;
  throw Error(std::string(name) + ": " + what + ": " + cudaGetErrorString(code));
}

template <class... Parameters>
void launch(void (*kernel)(Parameters...), const char* name, Grid grid, uint32_t threads,
            uint32_t shared_bytes, void* stream, typename Exactly<Parameters>::type... arguments) {
  const auto* function = reinterpret_cast<const void*>(kernel);
  // What every kernel may have; more is granted on request.
  constexpr uint32_t shared_default = 48 * 1024;
  if (shared_bytes > shared_default) {
    check(cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(shared_bytes)),
          name, "shared memory");
  }
  void* pointers[] = {&arguments..., nullptr};
  check(cudaLaunchKernel(function, dim3(grid.x, grid.y), dim3(threads), pointers, shared_bytes,
                         static_cast<cudaStream_t>(stream)),
        name, "launch");
}

}  // namespace gpu
}  // namespace slipform
