// The order in which blocks, warps and lanes take their turns: any order is a legal one.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <random>
#include <string>
#include <vector>

namespace slipform {
namespace gpu {
namespace host {

class Order {
 public:
  enum Kind { forward, reverse, random };

  Order() = default;
  explicit Order(Kind order, uint32_t seed = 1) : kind(order), state(seed == 0 ? 1 : seed) {}

  // "forward", "reverse", "random" (a new seed) or "random:SEED".
  static Order parse(const std::string& text) {
    if (text == "forward") return Order(forward);
    if (text == "reverse") return Order(reverse);
    if (text == "random") return Order(random, std::random_device{}());
    if (text.rfind("random:", 0) == 0) {
      return Order(random, static_cast<uint32_t>(std::stoul(text.substr(7))));
    }
    throw Error("order of the emulation: got '" + text +
                "', expected forward, reverse, random or random:SEED");
  }

  // What parse() makes an order of that goes on as this one will.
  std::string text() const {
    if (kind == random) return "random:" + std::to_string(state);
    return kind == forward ? "forward" : "reverse";
  }

  bool is_random() const { return kind == random; }

  // xorshift32
  uint32_t below(uint32_t bound) {
    state ^= state << 13;
    state ^= state >> 17;
    state ^= state << 5;
    return state % bound;
  }

  template <class T>
  void arrange(T* indices, uint32_t count) {
    std::iota(indices, indices + count, T{0});
    if (kind == reverse) {
      for (uint32_t i = 0; i < count; ++i) indices[i] = static_cast<T>(count - 1 - i);
    } else if (kind == random) {
      for (uint32_t i = count; i > 1; --i) std::swap(indices[i - 1], indices[below(i)]);
    }
  }

  Kind kind = forward;

 private:
  uint32_t state = 1;
};

// Of all launches that follow; at first what SLIPFORM_SHIM_ORDER says.
inline Order& order() {
  static Order chosen = [] {
    const char* text = std::getenv("SLIPFORM_SHIM_ORDER");
    return text == nullptr ? Order() : Order::parse(text);
  }();
  return chosen;
}

inline void set_order(const std::string& text) { order() = Order::parse(text); }

}  // namespace host
}  // namespace gpu
}  // namespace slipform
