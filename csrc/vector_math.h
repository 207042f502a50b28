// Branch-free scalar functions that compilers turn into vector code inside simd loops.
#pragma once

#include <cstdint>
#include <cstring>

namespace slipform {

// e^x to about 1 ulp: x = n ln 2 + r, |r| <= ln 2 / 2, a polynomial in r, then 2^n by exponent
// bits. Below the smallest normal number it is 0 (also at -inf); above 88 it saturates; nan stays
// nan.
static inline float exp_f32(float x) {
  constexpr float lowest = -87.33654f, highest = 88.37f, log2e = 1.44269504f;
  constexpr float ln2_high = 0.693359375f, ln2_low = -2.12194440e-4f;
  constexpr float to_integer = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  float t = x < lowest ? lowest : x;
  t = t > highest ? highest : t;
  float shifted = t * log2e + to_integer;
  float n = shifted - to_integer;
  float r = t - n * ln2_high;
  r = r - n * ln2_low;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  uint32_t bits;
  std::memcpy(&bits, &shifted, sizeof bits);
  bits = (bits + 127u) << 23;
  float power;
  std::memcpy(&power, &bits, sizeof power);
  return x < lowest ? 0.0f : p * power;
}

// Round to nearest even; nan stays nan.
static inline uint16_t bf16_of(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  return static_cast<uint16_t>(x != x ? 0x7fc0u : rounded);
}

}  // namespace slipform
