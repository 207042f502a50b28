// The emulation must reject what a GPU would only sometimes get wrong.
//
// Each kernel exists twice: with one fault, which must be rejected for the right reason whatever
// the order of the threads, and without it, which must pass and compute.
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

void run(Kernel kernel, uint32_t shared_bytes = 4 * threads, uint32_t thread_count = threads) {
  Array<float> out(thread_count);
  launch(kernel, "kernel", Grid{1, 1}, thread_count, shared_bytes, nullptr, out.get());
}

// The twins of a kernel that writes 1 for each thread.
void compare(Kernel with_fault, Kernel without, std::initializer_list<const char*> reasons,
             uint32_t shared_bytes = 4 * threads) {
  rejects(reasons, [&] { run(with_fault, shared_bytes); });
  in_all_orders([&] {
    Array<float> out(threads);
    launch(without, "kernel", Grid{1, 1}, threads, shared_bytes, nullptr, out.get());
    for (uint32_t i = 0; i < threads; ++i) expect_equal(out[i], 1.0f, "thread's result");
  });
}

template <bool fault>
SLIPFORM_KERNEL(threads, 1)
void read_of_another_warp(float* out) {
  store_shared(slot(thread_id()), 0.0f);
  block_sync();
  store_shared(slot(thread_id()), 1.0f);
  if (!fault) block_sync();
  out[thread_id()] = load_shared<float>(slot(thread_id() ^ 32));
}
CASE(missing_barrier_before_a_read) {
  compare(read_of_another_warp<true>, read_of_another_warp<false>, {"race"});
}

template <bool fault>
SLIPFORM_KERNEL(threads, 1)
void reuse(float* out) {
  store_shared(slot(thread_id()), 1.0f);
  block_sync();
  out[thread_id()] = load_shared<float>(slot(threads - 1 - thread_id()));
  if (!fault) block_sync();
  store_shared(slot(thread_id()), 2.0f);
}
CASE(missing_barrier_before_reuse) { compare(reuse<true>, reuse<false>, {"race"}); }

template <bool fault>
SLIPFORM_KERNEL(threads, 1)
void exchange_in_a_warp(float* out) {
  store_shared(slot(thread_id()), 0.0f);
  warp_sync();
  store_shared(slot(thread_id()), 1.0f);
  if (!fault) warp_sync();
  out[thread_id()] = load_shared<float>(slot(thread_id() ^ 1));
}
CASE(missing_warp_sync) {
  compare(exchange_in_a_warp<true>, exchange_in_a_warp<false>, {"no warp_sync"});
}

// A shuffle brings lanes together, but does not order their memory.
template <bool fault>
SLIPFORM_KERNEL(threads, 1)
void shuffle_as_a_fence(float* out) {
  store_shared(slot(thread_id()), 0.0f);
  warp_sync();
  store_shared(slot(thread_id()), 1.0f);
  shuffle(1.0f, 0);
  if (!fault) warp_sync();
  out[thread_id()] = load_shared<float>(slot(thread_id() ^ 1));
}
CASE(shuffle_in_place_of_warp_sync) {
  compare(shuffle_as_a_fence<true>, shuffle_as_a_fence<false>, {"no warp_sync"});
}

template <bool fault>
SLIPFORM_KERNEL(threads, 1)
void warp_sync_for_the_block(float* out) {
  store_shared(slot(thread_id()), 0.0f);
  block_sync();
  store_shared(slot(thread_id()), 1.0f);
  if (fault) {
    warp_sync();
  } else {
    block_sync();
  }
  out[thread_id()] = load_shared<float>(slot(thread_id() ^ 32));
}
CASE(warp_sync_in_place_of_block_sync) {
  compare(warp_sync_for_the_block<true>, warp_sync_for_the_block<false>, {"no block_sync"});
}

template <bool fault>
SLIPFORM_KERNEL(threads, 1)
void everyone_writes(float* out) {
  if (fault || thread_id() == 0) store_shared(slot(0), 1.0f);
  block_sync();
  out[thread_id()] = load_shared<float>(slot(0));
}
CASE(write_of_one_place_by_many) {
  compare(everyone_writes<true>, everyone_writes<false>, {"are overwritten, were written"});
}

enum class Fault { none, wait_count, conditional_commit, live_stage, no_barrier, no_wait };

// Sums tiles of four floats a thread through three stages; each thread reads another's.
template <Fault fault>
SLIPFORM_KERNEL(threads, 1)
void pipeline(float* out, const float* in, int tiles) {
  const auto place = [](int stage, uint32_t thread) {
    return shared_base() + 16 * (static_cast<uint32_t>(stage) * threads + thread);
  };
  const auto fetch = [&](int tile, int stage) {
    const bool inside = tile < tiles;
    if (inside) {
      const float* source = in + 4 * (static_cast<size_t>(tile) * threads + thread_id());
      cp_async_16(place(stage, thread_id()), source, 16);
    }
    if (inside || fault != Fault::conditional_commit) cp_async_commit();
  };
  float sum = 0;
  fetch(0, 0);
  fetch(1, 1);
  for (int tile = 0; tile < tiles; ++tile) {
    if (fault != Fault::no_wait) cp_async_wait<fault == Fault::wait_count ? 2 : 1>();
    if (fault != Fault::no_barrier) block_sync();
    fetch(tile + 2, fault == Fault::live_stage ? tile % 3 : (tile + 2) % 3);
    const Vec4 loaded = load_shared<Vec4>(place(tile % 3, thread_id() ^ 33));
    for (int i = 0; i < 4; ++i) sum += loaded.f[i];
  }
  out[thread_id()] = sum;
}

template <Fault fault>
void run_pipeline() {
  const int tiles = 7;
  Array<float> out(threads), in(size_t{4} * tiles * threads);
  for (size_t i = 0; i < in.size; ++i) in[i] = static_cast<float>(i % 9);
  launch(pipeline<fault>, "pipeline", Grid{1, 1}, threads, 16 * 3 * threads, nullptr, out.get(),
         in.get(), tiles);
  for (uint32_t thread = 0; thread < threads; ++thread) {
    float sum = 0;
    for (uint32_t tile = 0; tile < tiles; ++tile) {
      for (uint32_t i = 0; i < 4; ++i) sum += in[4 * (tile * threads + (thread ^ 33)) + i];
    }
    expect_equal(out[thread], sum, "sum of thread " + std::to_string(thread));
  }
}
CASE(pipeline_without_a_fault) { in_all_orders(run_pipeline<Fault::none>); }
CASE(wrong_wait_count) { rejects({"in flight"}, run_pipeline<Fault::wait_count>); }
CASE(conditional_commit) { rejects({"in flight"}, run_pipeline<Fault::conditional_commit>); }
CASE(overwriting_the_live_stage) {
  rejects({"race", "in flight"}, run_pipeline<Fault::live_stage>);
}
CASE(missing_barrier_after_the_wait) {
  rejects({"race", "in flight", "uninitialised"}, run_pipeline<Fault::no_barrier>);
}
CASE(missing_wait) { rejects({"in flight"}, run_pipeline<Fault::no_wait>); }

template <bool fault>
SLIPFORM_KERNEL(threads, 1)
void partly_written(float* out) {
  if (!fault || thread_id() != 5) store_shared(slot(thread_id()), 1.0f);
  block_sync();
  out[thread_id()] = load_shared<float>(slot(thread_id() ^ 1));
}
CASE(uninitialised_read) {
  compare(partly_written<true>, partly_written<false>, {"thread 4, ", "uninitialised"});
}

// Blocks do not inherit what others have written.
template <bool fault>
SLIPFORM_KERNEL(threads, 1)
void only_the_first_block(float* out) {
  if (!fault || block_x() + block_y() == 0) store_shared(slot(thread_id()), 1.0f);
  out[thread_id()] = load_shared<float>(slot(thread_id()));
}
CASE(shared_memory_of_another_block) {
  Array<float> out(threads);
  const auto run_grid = [&](Kernel kernel) {
    launch(kernel, "kernel", Grid{2, 3}, threads, 4 * threads, nullptr, out.get());
  };
  rejects({"uninitialised"}, [&] { run_grid(only_the_first_block<true>); });
  in_all_orders([&] { run_grid(only_the_first_block<false>); });
}

template <bool fault>
SLIPFORM_KERNEL(threads, 1)
void past_the_end(float* out) {
  store_shared(slot(thread_id()), 1.0f);
  block_sync();
  out[thread_id()] = load_shared<float>(slot((thread_id() + 1) % (fault ? threads + 1 : threads)));
}
CASE(read_past_the_end) {
  compare(past_the_end<true>, past_the_end<false>, {"thread 63, ", "out of bounds"});
}
CASE(too_little_shared_memory) {
  rejects({"out of bounds"}, [] { run(past_the_end<false>, 4 * threads - 4); });
}

template <bool fault>
SLIPFORM_KERNEL(threads, 1)
void absolute_address(float* out) {
  const uint32_t address = (fault ? 0 : shared_base()) + 4 * thread_id();
  store_shared(address, 1.0f);
  out[thread_id()] = load_shared<float>(address);
}
CASE(address_without_the_base) {
  compare(absolute_address<true>, absolute_address<false>, {"out of bounds"});
}

template <bool fault>
SLIPFORM_KERNEL(threads, 1)
void barrier_in_a_branch(float* out) {
  if (fault && lane_id() < 16) {
    block_sync();
  } else {
    block_sync();
  }
  out[thread_id()] = 1;
}
CASE(divergent_barrier_in_a_warp) {
  // Both calls of the branch must be seen as two, so they stand on lines of their own.
  compare(barrier_in_a_branch<true>, barrier_in_a_branch<false>, {"divergent"});
}

template <bool fault>
SLIPFORM_KERNEL(threads, 1)
void barrier_of_one_warp(float* out) {
  if (!fault || warp_id() == 0) block_sync();
  out[thread_id()] = 1;
}
CASE(divergent_barrier_between_warps) {
  compare(barrier_of_one_warp<true>, barrier_of_one_warp<false>, {"has returned"});
}

template <bool fault>
SLIPFORM_KERNEL(threads, 1)
void different_barriers(float* out) {
  if (fault && warp_id() == 0) {
    block_any(true);
  } else {
    block_sync();
  }
  out[thread_id()] = 1;
}
CASE(different_barriers_of_two_warps) {
  compare(different_barriers<true>, different_barriers<false>, {"divergent"});
}

template <bool fault>
SLIPFORM_KERNEL(threads, 1)
void conditional_shuffle(float* out) {
  float value = 1;
  if (!fault || lane_id() != 7) value = shuffle_xor(value, 1);
  block_sync();
  out[thread_id()] = value;
}
CASE(shuffle_in_a_branch) {
  compare(conditional_shuffle<true>, conditional_shuffle<false>, {"divergent"});
}

template <bool fault>
SLIPFORM_KERNEL(threads, 1)
void early_return(float* out) {
  out[thread_id()] = 1;
  if (fault && lane_id() >= 20) return;
  out[thread_id()] = shuffle(out[thread_id()], 3);
}
CASE(early_return_of_lanes) { compare(early_return<true>, early_return<false>, {"has returned"}); }

template <bool fault>
SLIPFORM_KERNEL(threads, 1)
void early_return_before_mma(float* out) {
  if (fault && lane_id() == 31) return;
  float d[4] = {1, 1, 1, 1};
  const uint32_t a[4] = {}, b[2] = {};
  mma_16816<bf16>(d, a, b);
  out[thread_id()] = d[0];
}
CASE(early_return_before_a_product) {
  compare(early_return_before_mma<true>, early_return_before_mma<false>, {"has returned"});
}

template <bool fault>
SLIPFORM_KERNEL(threads, 1)
void vector_in_shared(float* out) {
  const uint32_t address = shared_base() + 16 * thread_id() + (fault ? 8 : 0);
  store_shared(address, Vec4{{1, 1, 1, 1}});
  out[thread_id()] = static_cast<float>(load_shared<Vec4>(address).u[3]);
}
CASE(misaligned_shared_vector) {
  compare(vector_in_shared<true>, vector_in_shared<false>, {"misaligned"}, 16 * threads + 16);
}

template <bool fault>
SLIPFORM_KERNEL(threads, 1)
void copied_to(float* out) {
  out[thread_id()] = 1;
  cp_async_16(shared_base() + 16 * thread_id() + (fault ? 4 : 0), out, 16);
}
CASE(misaligned_target_of_a_copy) {
  compare(copied_to<true>, copied_to<false>, {"misaligned: shared"}, 16 * threads + 16);
}

template <bool fault>
SLIPFORM_KERNEL(threads, 1)
void copied_from(float* out) {
  out[thread_id()] = 1;
  cp_async_16(shared_base() + 16 * thread_id(), out + (fault ? 1 : 4), 16);
}
CASE(misaligned_source_of_a_copy) {
  compare(copied_from<true>, copied_from<false>, {"misaligned: a global"}, 16 * threads);
}

template <bool fault>
SLIPFORM_KERNEL(threads, 1)
void vector_in_global(float* out) {
  out[thread_id()] = 1;
  warp_sync();
  float* group = out + thread_id() / 4 * 4;
  store_global_16(group, load_global_16(group + (fault ? 2 : 0)));
}
CASE(misaligned_global_vector) {
  compare(vector_in_global<true>, vector_in_global<false>, {"misaligned: a global"});
}

template <bool fault>
SLIPFORM_KERNEL(threads, 1)
void matrix_rows(float* out) {
  store_shared(slot(2 * thread_id()), 1.0f);
  store_shared(slot(2 * thread_id() + 1), 1.0f);
  if (!fault) block_sync();
  uint32_t r[4];
  ldmatrix_x4(shared_base() + 16 * lane_id(), r);
  Vec4 v;
  for (int i = 0; i < 4; ++i) v.u[i] = r[i];
  out[thread_id()] = v.f[0] * v.f[1] * v.f[2] * v.f[3];
}
CASE(missing_barrier_before_ldmatrix) {
  compare(matrix_rows<true>, matrix_rows<false>, {"race", "uninitialised"}, 8 * threads);
}

CASE(launches_that_no_gpu_accepts) {
  rejects({"32 threads", "threads"}, [] { run(reuse<false>, 4 * threads, 48); });
  rejects({"shared memory"}, [] { run(reuse<false>, 228 * 1024); });
  Array<float> out(threads);
  rejects({"grid"}, [&] {
    launch(reuse<false>, "kernel", Grid{1, 65536}, threads, 256, nullptr, out.get());
  });
}

// An error names the kernel, the block, the thread, the line and the other side.
CASE(what_an_error_says) {
  host::set_order("reverse");
  try {
    run(reuse<true>);
  } catch (const Error& error) {
    for (const char* part :
         {"kernel: block (0, 0), thread ", "test_shim.cpp:", "race: shared bytes ",
          "were written by thread ", "no block_sync in between", "order reverse"}) {
      expect(std::string(error.what()).find(part) != std::string::npos,
             std::string("no '") + part + "' in: " + error.what());
    }
    return;
  }
  expect(false, "no error");
}

// Fibres that an error has left where they were are started anew by the next launch.
CASE(launch_after_an_error) {
  for (int i = 0; i < 3; ++i) {
    compare(conditional_shuffle<true>, conditional_shuffle<false>, {"divergent"});
    compare(reuse<true>, reuse<false>, {"race"});
  }
}

template <bool swizzled>
SLIPFORM_KERNEL(threads, 1)
void column_of_rows(float* out) {
  // Rows of 64 bytes, as in a tile of 32 halves: a column of 16-byte chunks meets 2 groups of
  // banks.
  for (uint32_t chunk = 0; chunk < 4; ++chunk) {
    const uint32_t place = swizzled ? chunk ^ (thread_id() / 2 % 4) : chunk;
    store_shared(shared_base() + 64 * thread_id() + 16 * place, Vec4{});
  }
  block_sync();
  uint32_t r[4];
  const uint32_t row = thread_id(), place = swizzled ? 1 ^ (row / 2 % 4) : 1;
  ldmatrix_x4(shared_base() + 64 * row + 16 * place, r);
  out[thread_id()] = static_cast<float>(r[0]);
}
CASE(bank_conflicts_are_counted) {
  const auto conflicts = [](Kernel kernel) {
    host::counters = {};
    run(kernel, 64 * threads);
    return host::counters;
  };
  in_all_orders([&] {
    const auto plain = conflicts(column_of_rows<false>), swizzled = conflicts(column_of_rows<true>);
    // Two warps, four matrices each, eight rows in four turns in place of one.
    expect_equal<uint64_t>(plain.ldmatrix.turns, 32, "turns");
    expect_equal<uint64_t>(plain.ldmatrix.conflicts, 24, "conflicts");
    expect_equal<uint64_t>(swizzled.ldmatrix.turns, 8, "turns, swizzled");
    expect_equal<uint64_t>(swizzled.ldmatrix.conflicts, 0, "conflicts, swizzled");
    expect_equal<uint64_t>(plain.store_shared.conflicts, 96, "conflicts of stores");
    expect_equal<uint64_t>(swizzled.store_shared.conflicts, 0, "conflicts of stores, swizzled");
  });
}

// The order of a random launch is the same again with the seed that its errors show.
SLIPFORM_KERNEL(threads, 1) void note_order(float* out) {
  static float turn;
  out[thread_id()] = turn++;
}
CASE(orders_are_repeatable_and_differ) {
  const auto turns = [](const std::string& text) {
    host::set_order(text);
    Array<float> out(threads);
    launch(note_order, "note_order", Grid{1, 1}, threads, 0, nullptr, out.get());
    std::vector<float> relative;
    for (uint32_t i = 1; i < threads; ++i) relative.push_back(out[i] - out[0]);
    return relative;
  };
  expect(turns("random:3") == turns("random:3"), "a seed gives two orders");
  expect(turns("random:3") != turns("random:4"), "two seeds give one order");
  expect(turns("forward") != turns("reverse"), "reverse is forward");
}

}  // namespace gpu
}  // namespace slipform

int main(int count, char** arguments) {
  return run_cases(std::vector<std::string>(arguments + 1, arguments + count));
}
