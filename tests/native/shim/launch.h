// Runs a grid: its blocks one after the other, in the order chosen, in the calling thread.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "schedule.h"

namespace slipform {
namespace gpu {
namespace host {

// Of sm_90; sm_80 has 163 KiB, the smaller cards of their generations 99.
constexpr uint32_t most_shared_bytes = 227 * 1024;

inline void check_launch(const char* name, Grid grid, uint32_t threads, uint32_t shared_bytes) {
  const auto reject = [&](const std::string& what) {
    throw Error(std::string(name) + ": launch: " + what);
  };
  if (threads == 0 || threads > 1024 || threads % warp_lanes != 0) {
    reject(std::to_string(threads) + " threads, expected a multiple of 32 up to 1024");
  }
  if (grid.x == 0 || grid.y == 0 || grid.x > 0x7fffffffu || grid.y > 65535) {
    reject("a grid of " + std::to_string(grid.x) + " x " + std::to_string(grid.y) +
           " blocks, expected 1 to 2^31 - 1 x 1 to 65535");
  }
  if (shared_bytes > most_shared_bytes) {
    reject(std::to_string(shared_bytes) + " bytes of shared memory, at most " +
           std::to_string(most_shared_bytes));
  }
}

// SLIPFORM_SHIM_STREAM, a number, is the only stream that launches may name: a launcher that drops
// its stream would run on the default one.
inline void check_stream(const char* name, void* stream) {
  static const char* const wanted = std::getenv("SLIPFORM_SHIM_STREAM");
  const auto got = reinterpret_cast<uintptr_t>(stream);
  if (wanted != nullptr && got != std::strtoull(wanted, nullptr, 10)) {
    throw Error(std::string(name) + ": launch: on stream " + std::to_string(got) + ", expected " +
                wanted);
  }
}

// One launch at a time, whichever threads call. Fibres and their stacks are kept for the next.
struct Device {
  std::mutex mutex;
  Block block;
  Grid grid{}, block_index{};
  uint32_t threads = 0;
};

inline Device& device() {
  static Device the_device;
  return the_device;
}

template <class Body>
void run_grid(const char* name, Grid grid, uint32_t threads, uint32_t shared_bytes, Body body) {
  check_launch(name, grid, threads, shared_bytes);
  Device& gpu = device();
  const std::lock_guard<std::mutex> lock(gpu.mutex);
  now_running = Launch{name, order().text(), 0, 0};
  gpu.grid = grid;
  gpu.threads = threads;
  std::vector<uint64_t> blocks(static_cast<uint64_t>(grid.x) * grid.y);
  order().arrange(blocks.data(), static_cast<uint32_t>(blocks.size()));
  for (const uint64_t index : blocks) {
    gpu.block_index = {static_cast<uint32_t>(index % grid.x),
                       static_cast<uint32_t>(index / grid.x)};
    now_running.block_x = gpu.block_index.x;
    now_running.block_y = gpu.block_index.y;
    gpu.block.run(
        threads, shared_bytes, [](void* pointer) { (*static_cast<Body*>(pointer))(); }, &body);
  }
}

template <class T>
struct Exactly {
  using type = T;
};

}  // namespace host

inline uint32_t thread_id() { return host::self().id; }
inline uint32_t block_threads() { return host::device().threads; }
inline uint32_t block_x() { return host::device().block_index.x; }
inline uint32_t block_y() { return host::device().block_index.y; }
inline uint32_t grid_x() { return host::device().grid.x; }
inline uint32_t grid_y() { return host::device().grid.y; }
inline uint32_t lane_id() { return host::self().lane; }
inline uint32_t warp_id() { return host::self().warp->id; }

template <class... Parameters>
void launch(void (*kernel)(Parameters...), const char* name, Grid grid, uint32_t threads,
            uint32_t shared_bytes, void* stream,
            typename host::Exactly<Parameters>::type... arguments) {
  host::check_stream(name, stream);
  host::run_grid(name, grid, threads, shared_bytes, [=] { kernel(arguments...); });
}

}  // namespace gpu
}  // namespace slipform
