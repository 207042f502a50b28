// A block's threads as fibres, and who runs when.
//
// A thread runs until it calls a collective, then the next lane of its warp does. When the last
// lane has come, all must have come to the same call; the collective is carried out for the warp,
// and its lanes go on, one after the other. A warp whose lanes are at a barrier of the block makes
// way for the other warps. Whatever cannot be brought together in this way is an error: lanes at
// different calls, lanes or warps that have returned while others wait.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "banks.h"
#include "fibre.h"
#include "order.h"
#include "report.h"
#include "shadow.h"

namespace slipform {
namespace gpu {
namespace host {

constexpr uint32_t warp_lanes = 32;

struct Warp;

// A collective that a lane has come to; what it brings and takes follows in derived types.
struct Request {
  const char* name;
  Site site;
  void (*execute)(Warp&);  // for all lanes of the warp; null for barriers of the block
};

// A barrier of the block: brings a value each, takes whether any was true.
struct Barrier : Request {
  bool value;
};

// A copy from global to shared memory that has not arrived.
struct Copy {
  uint32_t address;
  uint32_t group;
  std::array<unsigned char, 16> bytes;
  Site site;
};

struct Thread {
  explicit Thread(size_t stack_bytes) : fibre(stack_bytes) {}

  Fibre fibre;
  uint32_t id = 0, lane = 0;
  Warp* warp = nullptr;
  Request* request = nullptr;  // null: has returned
  std::vector<Copy> copies;
  uint32_t groups_committed = 0;
};

struct Warp {
  enum State { ready, at_barrier, finished };

  template <class R>
  R& request(uint32_t lane) {
    return *static_cast<R*>(threads[lane]->request);
  }

  uint32_t id = 0, sync_epoch = 0;
  State state = ready;
  uint32_t turn = 0;                      // of the lane that runs
  std::array<uint8_t, warp_lanes> lanes;  // in the order of their turns
  std::array<Thread*, warp_lanes> threads;
  Banks banks;
};

struct Counters {
  Conflicts load_shared, store_shared, cp_async, ldmatrix;
  uint64_t barriers = 0, mma = 0;
};

inline Counters counters;

class Block {
 public:
  // What the primitives of a kernel refer to.
  inline static Block* running = nullptr;

  // Runs body(arguments) in each of the threads. Throws what one of them threw; the others are
  // then abandoned where they are.
  void run(uint32_t thread_count, uint32_t shared_bytes, void (*kernel_body)(void*),
           void* kernel_arguments) {
    prepare(thread_count, shared_bytes);
    body = kernel_body;
    arguments = kernel_arguments;
    running = this;
    current = choose();
    Fibre::switch_to(main, current->fibre);
    running = nullptr;
    for (uint32_t i = 0; i < thread_count; ++i) threads[i]->fibre.forget();
    if (failure) std::rethrow_exception(failure);
  }

  Thread& self() { return *current; }

  // Returns when all threads that the collective is for have come and it has been carried out.
  void wait(Request& request) {
    current->request = &request;
    Thread* to = next();
    if (to == current) return;
    Thread* from = current;
    current = to;
    Fibre::switch_to(from->fibre, to->fibre);
  }

  Access access(const Thread& thread, const Site& site) const {
    return {site, thread.id, epoch, thread.warp->sync_epoch};
  }

  Shadow shadow;
  std::unique_ptr<unsigned char[]> shared;
  unsigned char* shared_at(uint32_t address) { return shared.get() + (address - Shadow::base); }

 private:
#ifdef SLIPFORM_ASAN
  static constexpr size_t stack_bytes = 512 * 1024;
#else
  static constexpr size_t stack_bytes = 256 * 1024;
#endif

  void prepare(uint32_t count, uint32_t shared_bytes) {
    while (threads.size() < count) threads.push_back(std::make_unique<Thread>(stack_bytes));
    warps.resize(count / warp_lanes);
    for (uint32_t w = 0; w < warps.size(); ++w) {
      Warp& warp = warps[w] = Warp{};
      warp.id = w;
      order().arrange(warp.lanes.data(), warp_lanes);
      for (uint32_t lane = 0; lane < warp_lanes; ++lane) {
        Thread& thread = *threads[w * warp_lanes + lane];
        thread.id = w * warp_lanes + lane;
        thread.lane = lane;
        thread.warp = &warp;
        thread.copies.clear();
        thread.fibre.start(thread_main);
        warp.threads[lane] = &thread;
      }
    }
    // Exactly as large as asked for, so that AddressSanitizer sees the end as well.
    shared.reset(new unsigned char[shared_bytes]);
    std::memset(shared.get(), 0xff, shared_bytes);
    shadow.reset(shared_bytes);
    epoch = 0;
    last_turn = static_cast<uint32_t>(warps.size()) - 1;
    failure = nullptr;
  }

  static void thread_main() {
    Block& block = *running;
    Fibre* to = &block.main;
    Thread* self = block.current;
    try {
      block.body(block.arguments);
      self->request = nullptr;
      if (Thread* thread = block.next()) {
        block.current = thread;
        to = &thread->fibre;
      }
    } catch (...) {
      block.failure = std::current_exception();
    }
    Fibre::end(self->fibre, *to);
  }

  // Who runs after the current thread; null at the end of the block.
  Thread* next() {
    Warp& warp = *current->warp;
    if (++warp.turn < warp_lanes) return warp.threads[warp.lanes[warp.turn]];
    settle(warp);
    return choose();
  }

  // All lanes of the warp have come to a collective or returned.
  void settle(Warp& warp) {
    warp.banks.settle();
    for (Thread* thread : warp.threads) check_together(*warp.threads[0], *thread);
    const Request* request = warp.threads[0]->request;
    if (request == nullptr) {
      warp.state = Warp::finished;
    } else if (request->execute == nullptr) {
      warp.state = Warp::at_barrier;
    } else {
      request->execute(warp);
    }
  }

  // The first lane of the warp that runs next.
  Thread* choose() {
    Warp* warp = choose_warp();
    if (warp == nullptr) {
      for (const Warp& other : warps) {
        check_together(*warps[0].threads[0], *other.threads[0]);
      }
      if (warps[0].state == Warp::finished) return nullptr;
      pass_barrier();
      warp = choose_warp();
    }
    if (order().is_random()) order().arrange(warp->lanes.data(), warp_lanes);
    warp->turn = 0;
    return warp->threads[warp->lanes[0]];
  }

  // Forward: a warp goes on until it comes to a barrier. Reverse: the warps take turns at each
  // collective. Random: any warp at each collective.
  Warp* choose_warp() {
    const auto count = static_cast<uint32_t>(warps.size());
    const bool reverse = order().kind == Order::reverse;
    const uint32_t start = order().is_random() ? order().below(count) : reverse ? last_turn + 1 : 0;
    for (uint32_t i = 0; i < count; ++i) {
      const uint32_t turn = (start + i) % count;
      Warp& warp = warps[reverse ? count - 1 - turn : turn];
      if (warp.state != Warp::ready) continue;
      last_turn = turn;
      return &warp;
    }
    return nullptr;
  }

  void pass_barrier() {
    ++epoch;
    ++counters.barriers;
    bool any = false;
    for (Warp& warp : warps) {
      warp.state = Warp::ready;
      for (uint32_t lane = 0; lane < warp_lanes; ++lane) any |= warp.request<Barrier>(lane).value;
    }
    for (Warp& warp : warps) {
      for (uint32_t lane = 0; lane < warp_lanes; ++lane) warp.request<Barrier>(lane).value = any;
    }
  }

  static void check_together(const Thread& a, const Thread& b) {
    if (a.request == nullptr && b.request == nullptr) return;
    if (a.request != nullptr && b.request != nullptr && a.request->site == b.request->site &&
        std::strcmp(a.request->name, b.request->name) == 0) {
      return;
    }
    const Thread& waiting = a.request == nullptr ? b : a;
    const Thread& other = a.request == nullptr ? a : b;
    fail(waiting.id, waiting.request->site,
         std::string("divergent: waits in ") + waiting.request->name + ", but thread " +
             std::to_string(other.id) +
             (other.request == nullptr ? std::string(" has returned")
                                       : std::string(" is in ") + other.request->name + " at " +
                                             other.request->site.text()));
  }

  std::vector<std::unique_ptr<Thread>> threads;  // kept for later blocks, which may have fewer
  std::vector<Warp> warps;
  Fibre main;
  Thread* current = nullptr;
  uint32_t epoch = 0;
  uint32_t last_turn = 0;
  void (*body)(void*) = nullptr;
  void* arguments = nullptr;
  std::exception_ptr failure;
};

// The block and the thread whose primitive this is.
inline Block& block() { return *Block::running; }
inline Thread& self() { return Block::running->self(); }

}  // namespace host
}  // namespace gpu
}  // namespace slipform
