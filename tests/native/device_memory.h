// Arrays that kernels and the test program both reach, and the wait for kernels to end.
#pragma once

#include <cstddef>
#include <memory>

#include "primitives.cuh"

#ifdef __CUDACC__

template <class T>
class Array {
 public:
  explicit Array(size_t count) : size(count) {
    slipform::gpu::check(cudaMallocManaged(&values, count * sizeof(T)), "Array", "memory");
    for (size_t i = 0; i < count; ++i) values[i] = T{};
  }
  ~Array() { cudaFree(values); }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  T* get() { return values; }
  T& operator[](size_t i) { return values[i]; }

  const size_t size;

 private:
  T* values = nullptr;
};

inline void finish() { slipform::gpu::check(cudaDeviceSynchronize(), "finish", "execution"); }

#else

// Exactly as large as asked for, on the heap: AddressSanitizer sees each step beyond.
template <class T>
class Array {
 public:
  explicit Array(size_t count) : size(count), values(new T[count]()) {}
  T* get() { return values.get(); }
  T& operator[](size_t i) { return values[i]; }

  const size_t size;

 private:
  std::unique_ptr<T[]> values;
};

inline void finish() {}

#endif
