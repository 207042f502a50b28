// Small kernels that exist twice: with one fault, which the emulation must reject for the right
// reason whatever the order of the threads, and without it, when they must pass and compute.
#pragma once

#include <initializer_list>

#include "cases.h"
#include "device_memory.h"

namespace slipform {
namespace gpu {

constexpr uint32_t threads = 64;

SLIPFORM_DEVICE uint32_t slot(uint32_t i) { return shared_base() + 4 * i; }

template <class Run>
void in_all_orders(Run run) {
  for (const char* text : {"forward", "reverse", "random:1", "random:2", "random"}) {
    host::set_order(text);
    const std::string order = host::order().text();
    try {
      run();
    } catch (const std::exception& error) {
      throw std::runtime_error("order " + order + ": " + error.what());
    }
  }
}

// Of `reasons`, the message must have one; of "race" the order decides who is found out.
template <class Run>
void rejects(std::initializer_list<const char*> reasons, Run run) {
  in_all_orders([&] {
    std::string message = "nothing";
    bool right = false;
    try {
      run();
    } catch (const Error& error) {
      message = error.what();
      for (const char* reason : reasons) {
        right |= message.find(reason) != std::string::npos;
      }
    }
    expect(right, std::string("expected '") + *reasons.begin() + "', got: " + message);
  });
}

using Kernel = void (*)(float*);

inline void run(Kernel kernel, uint32_t shared_bytes = 4 * threads,
                uint32_t thread_count = threads) {
  Array<float> out(thread_count);
  launch(kernel, "kernel", Grid{1, 1}, thread_count, shared_bytes, nullptr, out.get());
}

// The twins of a kernel that writes 1 for each thread.
inline void compare(Kernel with_fault, Kernel without, std::initializer_list<const char*> reasons,
                    uint32_t shared_bytes = 4 * threads) {
  rejects(reasons, [&] { run(with_fault, shared_bytes); });
  in_all_orders([&] {
    Array<float> out(threads);
    launch(without, "kernel", Grid{1, 1}, threads, shared_bytes, nullptr, out.get());
    for (uint32_t i = 0; i < threads; ++i) expect_equal(out[i], 1.0f, "thread's result");
  });
}

}  // namespace gpu
}  // namespace slipform
