// A parallel loop on torch's own threads.
//
// The GNU OpenMP runtime that torch has loaded is looked up in the process. A second pool beside it
// would fight for the cores, because torch's threads spin for a while after each of its loops.
// Where there is none (other OpenMP runtimes), threads are started for the call.
#pragma once

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace slipform {

using GompParallel = void (*)(void (*)(void*), void*, unsigned, unsigned);

// task(0), ..., task(tasks - 1), each once, on up to `threads` threads. Results must not depend on
// which thread runs a task: then they do not depend on the number of threads either.
template <class Task>
void parallel_for(int64_t tasks, int threads, const Task& task) {
  threads = static_cast<int>(std::min<int64_t>(threads, tasks));
  if (threads <= 1) {
    for (int64_t i = 0; i < tasks; ++i) task(i);
    return;
  }
  struct Shared {
    const Task& task;
    int64_t tasks;
    std::atomic<int64_t> next{0};
  } shared{task, tasks};
  auto work = [](void* data) {
    auto& s = *static_cast<Shared*>(data);
    for (int64_t i; (i = s.next.fetch_add(1, std::memory_order_relaxed)) < s.tasks;) s.task(i);
  };
  static const auto gomp = reinterpret_cast<GompParallel>(dlsym(RTLD_DEFAULT, "GOMP_parallel"));
  if (gomp != nullptr) {
    gomp(work, &shared, static_cast<unsigned>(threads), 0);
    return;
  }
  std::vector<std::thread> helpers;
  for (int t = 1; t < threads; ++t) helpers.emplace_back(work, &shared);
  work(&shared);
  for (auto& helper : helpers) helper.join();
}

}  // namespace slipform
