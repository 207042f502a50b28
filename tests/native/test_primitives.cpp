// Every primitive against what its manual says: those for single threads, warps and blocks.
//
// The same source is a program for a GPU (device_primitives.cu), so that the emulation and the
// hardware answer to one table. With --print the words of the exact results go to stdout as well,
// and the two programs must print the same.
#include <cmath>
#include <cstdlib>
#include <limits>
#include <random>

#include "cases.h"
#include "device_memory.h"
#include "float_bits.h"

namespace slipform {
namespace gpu {

constexpr uint32_t lanes = 32;

template <class T>
void expect_all(Array<T>& got, const std::vector<T>& expected, const char* what) {
  expect_equal(got.size, expected.size(), std::string(what) + ": count");
  for (size_t i = 0; i < expected.size(); ++i) {
    expect_equal(got[i], expected[i], std::string(what) + " " + std::to_string(i));
  }
}

// ---- indices ----

SLIPFORM_KERNEL(64, 1) void write_indices(uint32_t* out) {
  const uint32_t block = block_y() * grid_x() + block_x();
  uint32_t* own = out + 8 * (block * block_threads() + thread_id());
  const uint32_t values[] = {thread_id(), block_threads(), block_x(), block_y(),
                             grid_x(),    grid_y(),        lane_id(), warp_id()};
  for (int i = 0; i < 8; ++i) own[i] = values[i];
}
CASE(indices) {
  Array<uint32_t> out(8 * 64 * 6);
  launch(write_indices, "write_indices", Grid{3, 2}, 64, 0, nullptr, out.get());
  finish();
  std::vector<uint32_t> expected;
  for (uint32_t y = 0; y < 2; ++y) {
    for (uint32_t x = 0; x < 3; ++x) {
      for (uint32_t t = 0; t < 64; ++t) {
        for (uint32_t value : {t, 64u, x, y, 3u, 2u, t % 32, t / 32}) expected.push_back(value);
      }
    }
  }
  expect_all(out, expected, "index");
  record("indices", out);
}

// ---- collectives ----

template <class T>
SLIPFORM_KERNEL(lanes, 1)
void shuffle_all(uint32_t* out) {
  // A value beyond 32 bits for the types that have them.
  const T value = static_cast<T>((sizeof(T) == 8 ? int64_t{1} << 40 : 0) + 3 + 5 * lane_id());
  uint32_t* own = out + lane_id();
  const auto keep = [&](T got) {
    const auto lane = static_cast<int64_t>(got) - (sizeof(T) == 8 ? int64_t{1} << 40 : 0) - 3;
    *own = static_cast<uint32_t>(lane / 5);
    own += lanes;
  };
  for (int mask = 1; mask < 32; mask *= 2) keep(shuffle_xor(value, mask));
  keep(shuffle_xor(value, 21));
  keep(shuffle_down(value, 1));
  keep(shuffle_down(value, 17));
  keep(shuffle(value, 0));
  keep(shuffle(value, 30));
  keep(shuffle(value, static_cast<int>(7 * lane_id() % 32)));
}
template <class T>
void check_shuffles(const char* name) {
  Array<uint32_t> out(11 * lanes);
  launch(shuffle_all<T>, "shuffle_all", Grid{1, 1}, lanes, 0, nullptr, out.get());
  finish();
  std::vector<uint32_t> expected;
  for (uint32_t mask : {1, 2, 4, 8, 16, 21}) {
    for (uint32_t lane = 0; lane < lanes; ++lane) expected.push_back(lane ^ mask);
  }
  for (uint32_t delta : {1, 17}) {
    for (uint32_t i = 0; i < lanes; ++i) expected.push_back(i + delta < lanes ? i + delta : i);
  }
  for (uint32_t i = 0; i < lanes; ++i) expected.push_back(0);
  for (uint32_t i = 0; i < lanes; ++i) expected.push_back(30);
  for (uint32_t i = 0; i < lanes; ++i) expected.push_back(7 * i % 32);
  expect_all(out, expected, name);
  record(name, out);
}
CASE(shuffles) {
  check_shuffles<float>("shuffle_float");
  check_shuffles<int32_t>("shuffle_int32");
  check_shuffles<uint32_t>("shuffle_uint32");
  check_shuffles<int64_t>("shuffle_int64");
}

SLIPFORM_KERNEL(96, 1) void vote(uint32_t* out) {
  uint32_t* own = out + 4 * thread_id();
  own[0] = ballot(lane_id() % 3 == warp_id());
  own[1] = block_any(thread_id() == 70);
  own[2] = block_any(false);
  own[3] = ballot(block_any(true));
}
CASE(votes) {
  Array<uint32_t> out(4 * 96);
  launch(vote, "vote", Grid{1, 1}, 96, 0, nullptr, out.get());
  finish();
  std::vector<uint32_t> expected;
  for (uint32_t thread = 0; thread < 96; ++thread) {
    uint32_t bits = 0;
    for (uint32_t lane = 0; lane < 32; ++lane) {
      if (lane % 3 == thread / 32) bits += 1u << lane;
    }
    for (uint32_t value : {bits, 1u, 0u, 0xffffffffu}) expected.push_back(value);
  }
  expect_all(out, expected, "vote");
  record("votes", out);
}

// ---- shared and global memory ----

SLIPFORM_KERNEL(64, 1) void through_shared(uint32_t* out) {
  const uint32_t t = thread_id(), other = 63 - t;
  uint32_t* own = out + 8 * t;
  const uint32_t floats = shared_base(), signs = floats + 256, words = signs + 256,
                 wides = words + 256, vectors = wides + 512;
  store_shared(floats + 4 * t, 0.5f * static_cast<float>(t));
  store_shared(signs + 4 * t, -static_cast<int32_t>(t));
  store_shared(words + 4 * t, 0xfffffff0u + t);
  store_shared(wides + 8 * t, -(int64_t{1} << 33) - t);
  store_shared(vectors + 16 * t, Vec4{{t, t + 1, t + 2, t + 3}});
  block_sync();
  own[0] = static_cast<uint32_t>(2 * load_shared<float>(floats + 4 * other));
  own[1] = static_cast<uint32_t>(-load_shared<int32_t>(signs + 4 * other));
  own[2] = load_shared<uint32_t>(words + 4 * other) - 0xfffffff0u;
  own[3] = static_cast<uint32_t>(-load_shared<int64_t>(wides + 8 * other) - (int64_t{1} << 33));
  const Vec4 vector = load_shared<Vec4>(vectors + 16 * other);
  for (int i = 0; i < 4; ++i) own[4 + i] = vector.u[i];
}
CASE(shared_memory) {
  Array<uint32_t> out(8 * 64);
  launch(through_shared, "through_shared", Grid{1, 1}, 64, 1280 + 1024, nullptr, out.get());
  finish();
  std::vector<uint32_t> expected;
  for (uint32_t t = 0; t < 64; ++t) {
    const uint32_t other = 63 - t;
    for (uint32_t value : {other, other, other, other, other, other + 1, other + 2, other + 3}) {
      expected.push_back(value);
    }
  }
  expect_all(out, expected, "shared");
  record("shared_memory", out);
}

// Lanes of a warp exchange through shared memory, each warp in its own time.
SLIPFORM_KERNEL(64, 1) void rotate(uint32_t* out) {
  const uint32_t own = shared_base() + 4 * thread_id();
  const uint32_t next = shared_base() + 4 * (32 * warp_id() + (lane_id() + 1) % 32);
  store_shared(own, thread_id());
  for (uint32_t turn = 0; turn < 5 * (1 + warp_id()); ++turn) {
    warp_sync();
    const uint32_t value = load_shared<uint32_t>(next);
    warp_sync();
    store_shared(own, value);
  }
  out[thread_id()] = load_shared<uint32_t>(own);
}
CASE(exchange_within_warps) {
  Array<uint32_t> out(64);
  launch(rotate, "rotate", Grid{1, 1}, 64, 256, nullptr, out.get());
  finish();
  for (uint32_t i = 0; i < 64; ++i) {
    expect_equal(out[i], i / 32 * 32 + (i % 32 + 5 * (1 + i / 32)) % 32, "rotated");
  }
  record("exchange_within_warps", out);
}

// More shared memory than a kernel has without asking.
SLIPFORM_KERNEL(32, 1) void last_word(uint32_t* out, uint32_t shared_bytes) {
  const uint32_t address = shared_base() + shared_bytes - 4 * (32 - thread_id());
  store_shared(address, thread_id());
  out[thread_id()] = load_shared<uint32_t>(address);
}
CASE(large_shared_memory) {
  Array<uint32_t> out(32);
  const uint32_t bytes = 96 * 1024;
  launch(last_word, "last_word", Grid{1, 1}, 32, bytes, nullptr, out.get(), bytes);
  finish();
  for (uint32_t i = 0; i < 32; ++i) expect_equal(out[i], i, "last words");
}

// Copies of 16, 12, 8, 4 and 0 bytes; what is left of the 16 becomes zero.
SLIPFORM_KERNEL(64, 1) void copy_parts(uint32_t* out, const uint32_t* in) {
  const uint32_t t = thread_id(), place = shared_base() + 16 * t;
  store_shared(place, Vec4{{7, 7, 7, 7}});
  cp_async_16(place, in + 4 * t, 16 - 4 * (t % 5));
  cp_async_commit();
  cp_async_wait<0>();
  block_sync();
  store_global_16(out + 4 * t, load_shared<Vec4>(shared_base() + 16 * (t ^ 32)));
}
CASE(asynchronous_copies) {
  Array<uint32_t> out(4 * 64), in(4 * 64);
  for (uint32_t i = 0; i < in.size; ++i) in[i] = 1000 + i;
  launch(copy_parts, "copy_parts", Grid{1, 1}, 64, 16 * 64, nullptr, out.get(), in.get());
  finish();
  std::vector<uint32_t> expected;
  for (uint32_t t = 0; t < 64; ++t) {
    for (uint32_t i = 0; i < 4; ++i) {
      expected.push_back(i < 4 - (t ^ 32) % 5 ? 1000 + 4 * (t ^ 32) + i : 0);
    }
  }
  expect_all(out, expected, "copied");
  record("asynchronous_copies", out);
}

// Groups arrive in the order of their commits, and empty ones count.
SLIPFORM_KERNEL(32, 1) void copy_groups(uint32_t* out, const uint32_t* in) {
  const uint32_t t = thread_id();
  for (uint32_t group = 0; group < 4; ++group) {
    if (group != 2)
      cp_async_16(shared_base() + 16 * (32 * group + t), in + 4 * (32 * group + t), 16);
    cp_async_commit();
  }
  cp_async_wait<3>();
  uint32_t sum = load_shared<uint32_t>(shared_base() + 16 * t);
  cp_async_wait<1>();
  sum += load_shared<uint32_t>(shared_base() + 16 * (32 + t));
  cp_async_wait<0>();
  sum += load_shared<uint32_t>(shared_base() + 16 * (96 + t));
  out[t] = sum;
}
CASE(groups_of_copies) {
  Array<uint32_t> out(32), in(4 * 128);
  for (uint32_t i = 0; i < in.size; ++i) in[i] = i;
  launch(copy_groups, "copy_groups", Grid{1, 1}, 32, 16 * 128, nullptr, out.get(), in.get());
  finish();
  for (uint32_t t = 0; t < 32; ++t) expect_equal(out[t], 4 * (128 + 3 * t), "sum of groups");
  record("groups_of_copies", out);
}

SLIPFORM_KERNEL(32, 1) void copy_vectors(float* out, const float* in) {
  Vec4 v = load_global_16(in + 4 * thread_id());
  for (int i = 0; i < 4; ++i) v.f[i] += 1;
  store_global_16(out + 4 * (31 - thread_id()), v);
}
CASE(global_vectors) {
  Array<float> out(128), in(128);
  for (uint32_t i = 0; i < 128; ++i) in[i] = static_cast<float>(i);
  launch(copy_vectors, "copy_vectors", Grid{1, 1}, 32, 0, nullptr, out.get(), in.get());
  finish();
  for (uint32_t i = 0; i < 128; ++i) {
    expect_equal(out[i], static_cast<float>(4 * (31 - i / 4) + i % 4 + 1), "vector");
  }
  record("global_vectors", out);
}

// ---- numbers ----

template <class T>
SLIPFORM_KERNEL(256, 1)
void widen_all(float* out) {
  const uint32_t i = 256 * block_x() + thread_id();
  out[i] = to_float(T{static_cast<uint16_t>(i)});
}
float value_of(bf16 x) { return float_of(static_cast<uint32_t>(x.bits) << 16); }
float value_of(f16 x) {
  const int exponent = x.bits >> 10 & 31, fraction = x.bits & 1023;
  const float sign = x.bits >> 15 != 0 ? -1.0f : 1.0f;
  if (exponent == 31) return fraction == 0 ? sign * INFINITY : NAN;
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(fraction), -24);
  return sign * std::ldexp(static_cast<float>(1024 + fraction), exponent - 25);
}
template <class T>
void check_widening(const char* name) {
  Array<float> out(65536);
  launch(widen_all<T>, "widen_all", Grid{256, 1}, 256, 0, nullptr, out.get());
  finish();
  for (uint32_t i = 0; i < 65536; ++i) {
    const float expected = value_of(T{static_cast<uint16_t>(i)});
    const bool same =
        std::isnan(expected) ? std::isnan(out[i]) : bits_of(out[i]) == bits_of(expected);
    expect(same, std::string(name) + " of " + std::to_string(i));
  }
}
CASE(floats_of_halves) {
  check_widening<bf16>("bf16");
  check_widening<f16>("f16");
}

// Values around every number of the narrow types: the numbers, halfway to the next, and one float
// to either side.
template <class T>
SLIPFORM_KERNEL(256, 1)
void narrow_all(uint32_t* out, const float* in) {
  const uint32_t i = 256 * block_x() + thread_id();
  out[i] = from_float<T>(in[i]).bits;
}
template <class T>
void check_narrowing(const char* name, uint32_t infinity) {
  const uint32_t count = infinity;
  Array<uint32_t> out(4 * 2 * 32768);
  Array<float> in(out.size);
  for (uint32_t i = 0; i < count; ++i) {
    const float low = value_of(T{static_cast<uint16_t>(i)});
    // Beyond the largest number, rounding goes by the next power of two.
    const double next = i + 1 < infinity ? value_of(T{static_cast<uint16_t>(i + 1)})
                                         : 2.0 * low - value_of(T{static_cast<uint16_t>(i - 1)});
    const auto middle = static_cast<float>((low + next) / 2);
    const float around[] = {low, std::nextafter(middle, 0.0f), middle,
                            std::nextafter(middle, INFINITY)};
    for (uint32_t k = 0; k < 4; ++k) {
      in[8 * i + k] = around[k];
      in[8 * i + 4 + k] = -around[k];
    }
  }
  launch(narrow_all<T>, "narrow_all", Grid{static_cast<uint32_t>(out.size / 256), 1}, 256, 0,
         nullptr, out.get(), in.get());
  finish();
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t even = i % 2 == 0 ? i : i + 1;
    const uint32_t expected[] = {i, i, even, i + 1};
    for (uint32_t k = 0; k < 8; ++k) {
      expect_equal(out[8 * i + k], expected[k % 4] | (k < 4 ? 0 : 0x8000u),
                   std::string(name) + " near " + std::to_string(i));
    }
  }
  record(name, out);
}
CASE(halves_of_floats) {
  check_narrowing<bf16>("from_float_bf16", 0x7f80);
  check_narrowing<f16>("from_float_f16", 0x7c00);
}

template <class T>
SLIPFORM_KERNEL(32, 1)
void narrow_nan(uint32_t* out) {
  const float sign = lane_id() % 2 == 0 ? 1.0f : -1.0f;
  out[2 * lane_id()] = from_float<T>(sign * INFINITY).bits;
  out[2 * lane_id() + 1] = from_float<T>(NAN).bits;
}
template <class T>
void check_nan() {
  Array<uint32_t> out(64);
  launch(narrow_nan<T>, "narrow_nan", Grid{1, 1}, 32, 0, nullptr, out.get());
  finish();
  expect(value_of(T{static_cast<uint16_t>(out[0])}) == INFINITY, "infinity");
  expect(value_of(T{static_cast<uint16_t>(out[2])}) == -INFINITY, "minus infinity");
  expect(std::isnan(value_of(T{static_cast<uint16_t>(out[1])})), "nan");
}
CASE(halves_of_infinity_and_nan) {
  check_nan<bf16>();
  check_nan<f16>();
}

SLIPFORM_KERNEL(32, 1) void round_to_tf32(uint32_t* out, const float* in) {
  out[thread_id()] = to_tf32(in[thread_id()]);
}
CASE(tf32_of_floats) {
  // Ten bits of fraction; ties go away from zero.
  const struct {
    uint32_t from, to;
  } table[] = {{0x00000000, 0x00000000}, {0x3f800000, 0x3f800000}, {0x3f800fff, 0x3f800000},
               {0x3f801000, 0x3f802000}, {0x3f801001, 0x3f802000}, {0x3f803000, 0x3f804000},
               {0xbf801000, 0xbf802000}, {0xbf800fff, 0xbf800000}, {0x3fffffff, 0x40000000},
               {0x7f7fe000, 0x7f7fe000}, {0x7f800000, 0x7f800000}, {0xff800000, 0xff800000}};
  Array<uint32_t> out(32);
  Array<float> in(32);
  size_t count = 0;
  for (const auto& row : table) in[count++] = float_of(row.from);
  launch(round_to_tf32, "round_to_tf32", Grid{1, 1}, 32, 0, nullptr, out.get(), in.get());
  finish();
  for (size_t i = 0; i < count; ++i) expect_equal(out[i], table[i].to, "tf32");
  record("tf32_of_floats", out);
}

SLIPFORM_KERNEL(256, 1)
void powers_and_logarithms(float* powers, float* logarithms, const float* in,
                           const float* positive) {
  const uint32_t i = 256 * block_x() + thread_id();
  powers[i] = exp2(in[i]);
  logarithms[i] = log2(positive[i]);
}
CASE(exp2_and_log2) {
  Array<float> powers(4096), logarithms(4096), in(4096), positive(4096);
  std::mt19937 random(7);
  std::uniform_real_distribution<float> uniform(-125, 127);
  for (size_t i = 0; i < in.size; ++i) {
    in[i] = uniform(random);
    positive[i] = i % 2 == 0 ? std::exp2(in[i]) : 1 + in[i] / 512;
  }
  launch(powers_and_logarithms, "powers_and_logarithms", Grid{16, 1}, 256, 0, nullptr, powers.get(),
         logarithms.get(), in.get(), positive.get());
  finish();
  for (size_t i = 0; i < in.size; ++i) {
    // PTX ISA: ex2.approx to 2^-22 relative, lg2.approx to 2^-22 absolute near 1, 2^-21 relative
    // (here with room for the float itself).
    const double power = std::exp2(static_cast<double>(in[i]));
    expect(std::abs(powers[i] - power) <= 0x1p-21 * power, "exp2 of " + std::to_string(in[i]));
    const double logarithm = std::log2(static_cast<double>(positive[i]));
    expect(std::abs(logarithms[i] - logarithm) <= 0x1p-21 * std::max(1.0, std::abs(logarithm)),
           "log2 of " + std::to_string(positive[i]));
  }
}
CASE(exp2_and_log2_at_the_ends) {
  Array<float> powers(256), logarithms(256), in(256), positive(256);
  const float tiny = 0x1p-130f;  // subnormal: counts as zero
  const float ends[] = {-INFINITY, INFINITY, NAN, 0.0f, tiny, -125.0f, -127.0f, 128.0f, -200.0f};
  const float logarithm_ends[] = {0.0f, INFINITY, NAN, -1.0f, tiny, 1.0f, 0x1p-126f};
  for (size_t i = 0; i < 9; ++i) in[i] = ends[i];
  for (size_t i = 0; i < 7; ++i) positive[i] = logarithm_ends[i];
  launch(powers_and_logarithms, "powers_and_logarithms", Grid{1, 1}, 256, 0, nullptr, powers.get(),
         logarithms.get(), in.get(), positive.get());
  finish();
  const float expected[] = {0, INFINITY, NAN, 1, 1, 0x1p-125f, 0, INFINITY, 0};
  const float expected_logarithms[] = {-INFINITY, INFINITY, NAN, NAN, -INFINITY, 0, -126};
  const auto same = [](float a, float b) {
    return std::isnan(b) ? std::isnan(a) : a == b || std::abs(a - b) <= 0x1p-21f * std::abs(b);
  };
  for (size_t i = 0; i < 9; ++i) {
    expect(same(powers[i], expected[i]), "exp2 of " + std::to_string(in[i]));
  }
  for (size_t i = 0; i < 7; ++i) {
    expect(same(logarithms[i], expected_logarithms[i]), "log2 of " + std::to_string(positive[i]));
  }
}

}  // namespace gpu
}  // namespace slipform
