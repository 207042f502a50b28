// Faults in the use of shared memory, which a GPU would only sometimes get wrong.
#include "twins.h"

namespace slipform {
namespace gpu {

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

enum class Between { nothing, warp, block };

// Thread 0 writes a word, `first` and `second` read it, `writer` writes it again.
template <uint32_t first, uint32_t second, uint32_t writer, Between between>
SLIPFORM_KERNEL(threads, 1)
void write_after_reads(float* out) {
  if (thread_id() == 0) store_shared(slot(0), 1.0f);
  block_sync();
  if (warp_id() == 1) warp_sync();
  out[thread_id()] = 1;
  if (thread_id() == first || thread_id() == second) {
    out[thread_id()] = load_shared<float>(slot(0));
  }
  // Brings the lanes together, so that all have read, but puts nothing in order.
  shuffle(1.0f, 0);
  if (between == Between::warp) warp_sync();
  if (between == Between::block) block_sync();
  if (thread_id() == writer) store_shared(slot(0), 2.0f);
}
CASE(write_after_the_read_of_another_lane) {
  compare(write_after_reads<0, 0, 5, Between::nothing>, write_after_reads<0, 0, 5, Between::warp>,
          {"no warp_sync"});
}
CASE(write_after_the_reads_of_two_lanes) {
  compare(write_after_reads<0, 1, 1, Between::nothing>, write_after_reads<0, 1, 1, Between::warp>,
          {"were read by thread 0"});
  compare(write_after_reads<0, 1, 0, Between::nothing>, write_after_reads<0, 1, 0, Between::warp>,
          {"were read by thread 1"});
}
CASE(write_after_the_reads_of_two_warps) {
  compare(write_after_reads<0, 32, 32, Between::warp>, write_after_reads<0, 32, 32, Between::block>,
          {"no block_sync"});
  compare(write_after_reads<0, 33, 32, Between::warp>, write_after_reads<0, 33, 32, Between::block>,
          {"no block_sync"});
}
CASE(write_after_the_read_of_another_warp) {
  compare(write_after_reads<32, 32, 5, Between::warp>, write_after_reads<32, 32, 5, Between::block>,
          {"no block_sync"});
}
CASE(write_after_own_reads) {
  // Thread 0, since the word was its own before.
  in_all_orders([] { run(write_after_reads<0, 0, 0, Between::nothing>); });
}

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
void store_over_a_copy(float* out) {
  out[thread_id()] = 1;
  cp_async_16(shared_base() + 16 * thread_id(), out + thread_id() / 4 * 4, 16);
  cp_async_commit();
  if (!fault) cp_async_wait<0>();
  store_shared(shared_base() + 16 * thread_id(), 1.0f);
}
CASE(store_over_a_copy_on_its_way) {
  compare(store_over_a_copy<true>, store_over_a_copy<false>, {"in flight"}, 16 * threads);
}

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

}  // namespace gpu
}  // namespace slipform
