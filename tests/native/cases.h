// A test program of named cases: runs those named on its command line, or all of them. After
// --print it also writes what the cases record.
//
// A case fails by throwing. Kernels' own errors arrive as slipform::gpu::Error.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

struct Case {
  const char* name;
  void (*run)();
};

inline std::vector<Case>& cases() {
  static std::vector<Case> all;
  return all;
}

inline bool add_case(const char* name, void (*run)()) {
  cases().push_back({name, run});
  return true;
}

#define CASE(name)                                                             \
  static void name();                                                          \
  [[maybe_unused]] static const bool name##_is_a_case = add_case(#name, name); \
  static void name()

inline void expect(bool condition, const std::string& what) {
  if (!condition) throw std::runtime_error(what);
}

template <class T>
void expect_equal(T got, T expected, const std::string& what) {
  if (got != expected) {
    throw std::runtime_error(what + ": got " + std::to_string(got) + ", expected " +
                             std::to_string(expected));
  }
}

inline bool& printing() {
  static bool on = false;
  return on;
}

// A line of the array's 4-byte words.
template <class Values>
void record(const char* name, Values& values) {
  if (!printing()) return;
  std::printf("%s", name);
  for (size_t i = 0; i < values.size; ++i) {
    uint32_t bits;
    static_assert(sizeof values[i] == sizeof bits, "words");
    std::memcpy(&bits, &values[i], sizeof bits);
    std::printf(" %08x", bits);
  }
  std::printf("\n");
}

inline int run_cases(const std::vector<std::string>& names) {
  int failures = 0;
  size_t found = 0;
  for (const Case& test : cases()) {
    bool chosen = names.empty();
    for (const auto& name : names) chosen |= name == test.name;
    if (!chosen) continue;
    ++found;
    try {
      test.run();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s: %s\n", test.name, error.what());
      ++failures;
    }
  }
  if (names.empty() ? found == 0 : found != names.size()) {
    std::fprintf(stderr, "no such case\n");
    return 2;
  }
  return failures == 0 ? 0 : 1;
}

int main(int count, char** arguments) {
  std::vector<std::string> names(arguments + 1, arguments + count);
  if (!names.empty() && names[0] == "--print") {
    printing() = true;
    names.erase(names.begin());
  }
  return run_cases(names);
}
