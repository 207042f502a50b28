// The primitives of csrc/primitives.cuh on the CPU.
#pragma once

#include <cstdint>

#define SLIPFORM_KERNEL(...)
#define SLIPFORM_DEVICE inline
#define SLIPFORM_SITE const char *file = __builtin_FILE(), int line = __builtin_LINE()

namespace slipform {
namespace gpu {

uint32_t thread_id();
uint32_t block_threads();
uint32_t block_x();
uint32_t block_y();
uint32_t grid_x();
uint32_t grid_y();
uint32_t lane_id();
uint32_t warp_id();

void block_sync(SLIPFORM_SITE);
bool block_any(bool value, SLIPFORM_SITE);
void warp_sync(SLIPFORM_SITE);
template <class T>
T shuffle_xor(T value, int mask, SLIPFORM_SITE);
template <class T>
T shuffle_down(T value, int delta, SLIPFORM_SITE);
template <class T>
T shuffle(T value, int lane, SLIPFORM_SITE);
uint32_t ballot(bool value, SLIPFORM_SITE);

uint32_t shared_base();
template <class T>
T load_shared(uint32_t address, SLIPFORM_SITE);
void store_shared(uint32_t address, float value, SLIPFORM_SITE);
void store_shared(uint32_t address, uint32_t value, SLIPFORM_SITE);
void store_shared(uint32_t address, int32_t value, SLIPFORM_SITE);
void store_shared(uint32_t address, int64_t value, SLIPFORM_SITE);
void store_shared(uint32_t address, Vec4 value, SLIPFORM_SITE);

void cp_async_16(uint32_t address, const void* global, uint32_t bytes, SLIPFORM_SITE);
void cp_async_commit();
template <int N>
void cp_async_wait();

void ldmatrix_x4(uint32_t address, uint32_t (&r)[4], SLIPFORM_SITE);
template <class T>
void mma_16816(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], SLIPFORM_SITE);
void mma_1688_tf32(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], SLIPFORM_SITE);
uint32_t to_tf32(float value);

Vec4 load_global_16(const void* global, SLIPFORM_SITE);
void store_global_16(void* global, Vec4 value, SLIPFORM_SITE);

float exp2(float x);
float log2(float x);
float to_float(bf16 x);
float to_float(f16 x);
template <class T>
T from_float(float x);

template <class T>
struct Exactly {
  using type = T;
};

template <class... Parameters>
void launch(void (*kernel)(Parameters...), const char* name, Grid grid, uint32_t threads,
            uint32_t shared_bytes, void* stream, typename Exactly<Parameters>::type... arguments);

}  // namespace gpu
}  // namespace slipform
