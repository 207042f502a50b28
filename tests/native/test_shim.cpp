// Faults in collectives and launches, which a GPU would only sometimes get wrong; what errors say;
// the orders in which threads run.
#include <thread>

#include "twins.h"

namespace slipform {
namespace gpu {

template <bool fault>
SLIPFORM_KERNEL(threads, 1)
void reuse(float* out) {
  store_shared(slot(thread_id()), 1.0f);
  block_sync();
  out[thread_id()] = load_shared<float>(slot(threads - 1 - thread_id()));
  if (!fault) block_sync();
  store_shared(slot(thread_id()), 2.0f);
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

// As a backward pass may be.
CASE(launches_from_other_threads) {
  for (int i = 0; i < 3; ++i) {
    std::string failure;
    std::thread([&] {
      try {
        compare(conditional_shuffle<true>, conditional_shuffle<false>, {"divergent"});
      } catch (const std::exception& error) {
        failure = error.what();
      }
    }).join();
    expect(failure.empty(), failure);
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

SLIPFORM_KERNEL(threads, 1) void note_order(float* out) {
  static float turn;
  out[thread_id()] = turn++;
}
SLIPFORM_KERNEL(32, 1) void note_block(float* out) {
  static float turn;
  if (lane_id() == 0) out[3 * block_y() + block_x()] = turn++;
}
CASE(order_of_blocks) {
  const auto last_is_first = [](const std::string& text) {
    host::set_order(text);
    Array<float> out(6);
    launch(note_block, "note_block", Grid{3, 2}, 32, 0, nullptr, out.get());
    return out[5] < out[0];
  };
  expect(!last_is_first("forward"), "forward");
  expect(last_is_first("reverse"), "reverse");
}

// The order of a random launch is the same again with the seed that its errors show.
CASE(orders_are_repeatable_and_differ) {
  const auto turns = [](const std::string& text) {
    host::set_order(text);
    Array<float> out(threads);
    launch(note_order, "note_order", Grid{1, 1}, threads, 0, nullptr, out.get());
    std::vector<float> relative;
    for (uint32_t i = 0; i < threads; ++i) relative.push_back(out[i] - out[0]);
    return relative;
  };
  const auto forward = turns("forward"), reverse = turns("reverse");
  for (uint32_t i = 0; i < threads; ++i) {
    expect_equal(forward[i], static_cast<float>(i), "turn, forward");
    expect_equal(reverse[i], -static_cast<float>(i), "turn, reverse");
  }
  expect(turns("random:3") == turns("random:3"), "a seed gives two orders");
  expect(turns("random:3") != turns("random:4"), "two seeds give one order");
  expect(turns("random:3") != forward, "a seed gives no order of its own");
}

}  // namespace gpu
}  // namespace slipform
