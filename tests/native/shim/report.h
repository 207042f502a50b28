// Where something happened, and the error that says so.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>

namespace slipform {
namespace gpu {
namespace host {

// A primitive's call in the kernel's source. As a default argument, here() is the caller's line.
struct Site {
  const char* file;
  int line;

  static constexpr Site here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    return {file, line};
  }
  bool operator==(const Site& other) const {
    return line == other.line && (file == other.file || std::strcmp(file, other.file) == 0);
  }
  std::string text() const {
    const char* slash = std::strrchr(file, '/');
    return std::string(slash == nullptr ? file : slash + 1) + ":" + std::to_string(line);
  }
};

// What runs now, for the text of errors.
struct Launch {
  const char* kernel = "";
  std::string order;
  uint32_t block_x = 0, block_y = 0;
};

inline Launch now_running;

[[noreturn]] inline void fail(uint32_t thread, const Site& site, const std::string& what) {
  const Launch& launch = now_running;
  throw Error(std::string(launch.kernel) + ": block (" + std::to_string(launch.block_x) + ", " +
              std::to_string(launch.block_y) + "), thread " + std::to_string(thread) + ", " +
              site.text() + ": " + what + " [order " + launch.order + "]");
}

}  // namespace host
}  // namespace gpu
}  // namespace slipform
