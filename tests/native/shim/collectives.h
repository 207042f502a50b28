// Barriers, shuffles and ballots.
#pragma once

#include <cstdint>

#include "schedule.h"

namespace slipform {
namespace gpu {
namespace host {

struct Ballot : Request {
  bool value;
  uint32_t result;

  static void execute_all(Warp& warp) {
    uint32_t bits = 0;
    for (uint32_t lane = 0; lane < warp_lanes; ++lane) {
      bits |= static_cast<uint32_t>(warp.request<Ballot>(lane).value) << lane;
    }
    for (uint32_t lane = 0; lane < warp_lanes; ++lane) warp.request<Ballot>(lane).result = bits;
  }
};

template <class T>
struct Shuffle : Request {
  T value;
  uint32_t source;
  T result;

  static void execute_all(Warp& warp) {
    for (uint32_t lane = 0; lane < warp_lanes; ++lane) {
      auto& request = warp.request<Shuffle>(lane);
      request.result = warp.request<Shuffle>(request.source).value;
    }
  }
};

template <class T>
T shuffle_from(const char* name, T value, uint32_t source, const Site& site) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "shuffles move 4 or 8 bytes");
  Shuffle<T> request{{name, site, Shuffle<T>::execute_all}, value, source, T{}};
  block().wait(request);
  return request.result;
}

}  // namespace host

inline void block_sync(host::Site site = host::Site::here()) {
  host::Barrier request{{"block_sync", site, nullptr}, false};
  host::block().wait(request);
}
inline bool block_any(bool value, host::Site site = host::Site::here()) {
  host::Barrier request{{"block_any", site, nullptr}, value};
  host::block().wait(request);
  return request.value;
}
inline void warp_sync(host::Site site = host::Site::here()) {
  host::Request request{"warp_sync", site, [](host::Warp& warp) { ++warp.sync_epoch; }};
  host::block().wait(request);
}
template <class T>
T shuffle_xor(T value, int mask, host::Site site = host::Site::here()) {
  const uint32_t lane = host::self().lane;
  if (mask < 0 || mask > 31) host::fail(host::self().id, site, "shuffle_xor: mask beyond a warp");
  return host::shuffle_from("shuffle_xor", value, lane ^ static_cast<uint32_t>(mask), site);
}
template <class T>
T shuffle_down(T value, int delta, host::Site site = host::Site::here()) {
  const uint32_t lane = host::self().lane, source = lane + static_cast<uint32_t>(delta);
  return host::shuffle_from("shuffle_down", value, source < host::warp_lanes ? source : lane, site);
}
template <class T>
T shuffle(T value, int lane, host::Site site = host::Site::here()) {
  return host::shuffle_from("shuffle", value, static_cast<uint32_t>(lane) % host::warp_lanes, site);
}
inline uint32_t ballot(bool value, host::Site site = host::Site::here()) {
  host::Ballot request{{"ballot", site, host::Ballot::execute_all}, value, 0};
  host::block().wait(request);
  return request.result;
}

}  // namespace gpu
}  // namespace slipform
