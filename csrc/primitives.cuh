// What the GPU kernels use of the hardware: about thirty functions, and plain C++ besides.
//
// nvcc gets them as PTX, any other compiler as the emulation that its include path offers under
// the name primitives_host.h (tests/native/shim): the kernels are the same text for both.
// Kernels live in namespace slipform::gpu; some of the names are also CUDA's or the C library's,
// and from outside a call without gpu:: would be ambiguous.
//
//   SLIPFORM_KERNEL(max_threads, min_blocks) void name(...)   a kernel; blocks are one-dimensional
//   SLIPFORM_DEVICE T name(...)                               a function that kernels call
//
//   uint32_t thread_id() block_threads() block_x() block_y() grid_x() grid_y() lane_id() warp_id()
//
//   void block_sync()               all threads of the block
//   bool block_any(bool)            the same, and whether any thread said true
//   void warp_sync()                all 32 lanes of the warp, as are the following
//   T shuffle_xor(T, int mask)      T is a type of 4 or 8 bytes
//   T shuffle_down(T, int delta)    a lane without a source keeps its own value
//   T shuffle(T, int lane)
//   uint32_t ballot(bool)
//
// Shared memory is one buffer a block, sized at launch, addressed by 32-bit byte offsets that
// start at shared_base(). T is float, int32_t, uint32_t, int64_t or Vec4, aligned to its size.
//   uint32_t shared_base()
//   T load_shared<T>(uint32_t address)
//   void store_shared(uint32_t address, T)
//
// Copies from global to shared memory that run beside the computation (sm_80). Both addresses are
// multiples of 16; of the 16 bytes written, those after the first `bytes` are zero.
//   void cp_async_16(uint32_t address, const void* global, uint32_t bytes)
//   void cp_async_commit()          ends a group: the copies since the last one, if any
//   void cp_async_wait<N>()         all groups but the newest N have arrived, for this thread
//
// Products on tensor cores (sm_80), d += a b, with the fragment layouts of the PTX manual.
//   void ldmatrix_x4(uint32_t address, uint32_t (&r)[4])
//   void mma_16816<T>(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2])  bf16 or f16
//   void mma_1688_tf32(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2])
//   uint32_t to_tf32(float)         round to nearest, ties away from zero
//
//   Vec4 load_global_16(const void*)   through the read-only path: not for what the kernel writes
//   void store_global_16(void*, Vec4)
//
//   float exp2(float) log2(float)   approximate; subnormal numbers count as zero
//   float to_float(bf16) to_float(f16)
//   T from_float<T>(float)          bf16 or f16, round to nearest even
//
//   void launch(kernel, "name", Grid{x, y}, threads, shared_bytes, stream, arguments...)
//       throws Error; neither allocates nor synchronises
#pragma once

#include <cstdint>
#include <stdexcept>

namespace slipform {
namespace gpu {

struct bf16 {
  uint16_t bits;
};

struct f16 {
  uint16_t bits;
};

// Both compilers define reading one member of a union after writing another.
union alignas(16) Vec4 {
  uint32_t u[4];
  float f[4];
};

struct Grid {
  uint32_t x, y;
};

// A launch that failed; the message names the kernel.
class Error : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace gpu
}  // namespace slipform

#ifdef __CUDACC__
#include "primitives_ptx.cuh"
#else
#include "primitives_host.h"
#endif
