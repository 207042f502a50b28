// The primitives of csrc/primitives.cuh on the CPU, for tests: as strict as any GPU could be.
//
// An error names the kernel, block, thread and line. SLIPFORM_SHIM_ORDER (see order.h) chooses in
// which order threads run; host::counters has what can only be counted.
#pragma once

#include <cmath>

#include "collectives.h"
#include "launch.h"
#include "memory.h"
#include "numbers.h"
#include "tensor.h"

#define SLIPFORM_KERNEL(...)
#define SLIPFORM_DEVICE inline

namespace slipform {
namespace gpu {
namespace host {

inline float without_subnormal(float x) {
  return std::fabs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x;
}

}  // namespace host

inline float exp2(float x) { return host::without_subnormal(::exp2f(host::without_subnormal(x))); }
inline float log2(float x) { return ::log2f(host::without_subnormal(x)); }

inline uint32_t to_tf32(float x) { return host::tf32_of(x); }
inline float to_float(bf16 x) { return host::float_of_bf16(x.bits); }
inline float to_float(f16 x) { return host::float_of_f16(x.bits); }

template <class T>
T from_float(float x);
template <>
inline bf16 from_float<bf16>(float x) {
  return {host::bf16_of(x)};
}
template <>
inline f16 from_float<f16>(float x) {
  return {host::f16_of(x)};
}

}  // namespace gpu
}  // namespace slipform
