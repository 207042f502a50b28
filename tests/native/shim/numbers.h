// bf16, f16 and tf32 from and to float, as the GPU's conversions round.
#pragma once

#include <cstdint>
#include <cstring>

namespace slipform {
namespace gpu {
namespace host {

inline uint32_t bits_of(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}
inline float float_of(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

inline uint16_t bf16_of(float x) {
  if (x != x) return 0x7fff;
  const uint32_t bits = bits_of(x);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

inline uint16_t f16_of(float x) {
  if (x != x) return 0x7fff;
  const uint32_t sign = (bits_of(x) >> 16) & 0x8000u, size = bits_of(x) & 0x7fffffffu;
  uint32_t half;
  if (size >= bits_of(65536.0f)) {
    half = 0x7c00;
  } else if (size < bits_of(0x1p-14f)) {
    // Subnormal: in the sum, 2^-24 is the last bit.
    half = bits_of(float_of(size) + 0.5f) - bits_of(0.5f);
  } else {
    half = (size + 0xfffu + ((size >> 13) & 1u) - (112u << 23)) >> 13;
  }
  return static_cast<uint16_t>(sign | half);
}

inline float float_of_bf16(uint16_t bits) { return float_of(static_cast<uint32_t>(bits) << 16); }

inline float float_of_f16(uint16_t bits) {
  const uint32_t sign = (bits & 0x8000u) << 16, size = bits & 0x7fffu;
  // The exponent's offset is 112 larger in a float; the product also makes subnormal numbers right.
  const uint32_t value =
      size >= 0x7c00 ? (size << 13) + (112u << 24) : bits_of(float_of(size << 13) * 0x1p112f);
  return float_of(sign | value);
}

inline uint32_t tf32_of(float x) {
  if (x != x) return 0x7fffffffu;
  const uint32_t bits = bits_of(x);
  return (bits & 0x7f800000u) == 0x7f800000u ? bits : (bits + 0x1000u) & ~0x1fffu;
}

}  // namespace host
}  // namespace gpu
}  // namespace slipform
