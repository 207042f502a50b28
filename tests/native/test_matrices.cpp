// Every primitive against what its manual says: products and their layouts, by the PTX ISA.
//
// The same source is a program for a GPU (device_primitives.cu), so that the emulation and the
// hardware answer to one table. With --print the words of the exact results go to stdout as well,
// and the two programs must print the same.
#include <random>

#include "cases.h"
#include "device_memory.h"
#include "float_bits.h"

namespace slipform {
namespace gpu {

SLIPFORM_KERNEL(32, 1) void load_matrices(uint32_t* out) {
  // Each half says where it is: row of the 32 that the lanes name, column of its 8.
  for (uint32_t i = 0; i < 4; ++i) {
    const uint32_t low = (lane_id() << 8) + 2 * i;
    store_shared(shared_base() + 16 * (31 - lane_id()) + 4 * i, low + ((low + 1) << 16));
  }
  block_sync();
  uint32_t r[4];
  ldmatrix_x4(shared_base() + 16 * (31 - lane_id()), r);
  for (int i = 0; i < 4; ++i) out[4 * lane_id() + i] = r[i];
}
CASE(ldmatrix) {
  Array<uint32_t> out(4 * 32);
  launch(load_matrices, "load_matrices", Grid{1, 1}, 32, 512, nullptr, out.get());
  finish();
  for (uint32_t lane = 0; lane < 32; ++lane) {
    for (uint32_t i = 0; i < 4; ++i) {
      for (uint32_t half = 0; half < 2; ++half) {
        // PTX ISA, ldmatrix: threads 8 i to 8 i + 7 have the addresses of matrix i's rows, and a
        // thread gets row laneid / 4, elements 2 (laneid % 4) and the next, in register i.
        const uint32_t row = 8 * i + lane / 4, col = 2 * (lane % 4) + half;
        expect_equal((out[4 * lane + i] >> (16 * half)) & 0xffffu, (row << 8) + col, "element");
      }
    }
  }
  record("ldmatrix", out);
}

// Where thread `lane` has its elements of a matrix, by the PTX ISA's "Matrix Fragments for mma".
struct Place {
  uint32_t row, col;
};

namespace m16n8k16 {
Place a(uint32_t lane, uint32_t i) {
  const uint32_t group = lane >> 2, in_group = lane % 4;
  return {i < 2 || (4 <= i && i < 6) ? group : group + 8,
          i < 4 ? in_group * 2 + (i & 1) : in_group * 2 + (i & 1) + 8};
}
Place b(uint32_t lane, uint32_t i) {
  const uint32_t group = lane >> 2, in_group = lane % 4;
  return {i < 2 ? in_group * 2 + (i & 1) : in_group * 2 + (i & 1) + 8, group};
}
}  // namespace m16n8k16

namespace m16n8k8_tf32 {
Place a(uint32_t lane, uint32_t i) {
  const uint32_t group = lane >> 2, in_group = lane % 4;
  return {i == 0 || i == 2 ? group : group + 8, i < 2 ? in_group : in_group + 4};
}
Place b(uint32_t lane, uint32_t i) {
  const uint32_t group = lane >> 2, in_group = lane % 4;
  return {i == 0 ? in_group : in_group + 4, group};
}
}  // namespace m16n8k8_tf32

// Of both shapes.
Place d(uint32_t lane, uint32_t i) {
  const uint32_t group = lane >> 2, in_group = lane % 4;
  return {i < 2 ? group : group + 8, in_group * 2 + (i & 1)};
}

struct Product {
  SLIPFORM_DEVICE static void run(bf16, float (&d)[4], const uint32_t (&a)[4],
                                  const uint32_t (&b)[2]) {
    mma_16816<bf16>(d, a, b);
  }
  SLIPFORM_DEVICE static void run(f16, float (&d)[4], const uint32_t (&a)[4],
                                  const uint32_t (&b)[2]) {
    mma_16816<f16>(d, a, b);
  }
  SLIPFORM_DEVICE static void run(float, float (&d)[4], const uint32_t (&a)[4],
                                  const uint32_t (&b)[2]) {
    mma_1688_tf32(d, a, b);
  }
};

// Registers in, registers out: the layout is the host's business.
template <class T>
SLIPFORM_KERNEL(32, 1)
void multiply_registers(float* out, const uint32_t* a_in, const uint32_t* b_in) {
  float d[4];
  uint32_t a[4], b[2];
  for (int i = 0; i < 4; ++i) d[i] = out[4 * lane_id() + i];
  for (int i = 0; i < 4; ++i) a[i] = a_in[4 * lane_id() + i];
  for (int i = 0; i < 2; ++i) b[i] = b_in[2 * lane_id() + i];
  Product::run(T{}, d, a, b);
  for (int i = 0; i < 4; ++i) out[4 * lane_id() + i] = d[i];
}

// Small integers and halves of them are exact in each of the types.
uint32_t bits_of_element(bf16, float x) { return bits_of(x) >> 16; }
uint32_t bits_of_element(f16, float x) {
  if (x == 0) return 0;
  const uint32_t bits = bits_of(x);
  return ((bits >> 16) & 0x8000u) + (((bits & 0x7fffffffu) - (112u << 23)) >> 13);
}
uint32_t bits_of_element(float, float x) { return bits_of(x); }

template <class T>
void check_product(const char* name, Place (*place_a)(uint32_t, uint32_t),
                   Place (*place_b)(uint32_t, uint32_t)) {
  constexpr uint32_t a_register = sizeof(T) == 2 ? 2 : 1, depth = 8 * a_register;
  std::mt19937 random(5);
  const auto draw = [&] { return static_cast<float>(static_cast<int>(random() % 33) - 16) / 2; };
  float a[16][16], b[16][8], c[16][8];
  for (auto& row : a) {
    for (float& x : row) x = draw();
  }
  for (auto& row : b) {
    for (float& x : row) x = draw();
  }
  for (auto& row : c) {
    for (float& x : row) x = draw();
  }
  Array<uint32_t> a_in(4 * 32), b_in(2 * 32);
  Array<float> out(4 * 32);
  for (uint32_t lane = 0; lane < 32; ++lane) {
    for (uint32_t i = 0; i < 4 * a_register; ++i) {
      const Place at = place_a(lane, i);
      a_in[4 * lane + i / a_register] |= bits_of_element(T{}, a[at.row][at.col])
                                         << (16 * (i % a_register));
    }
    for (uint32_t i = 0; i < 2 * a_register; ++i) {
      const Place at = place_b(lane, i);
      b_in[2 * lane + i / a_register] |= bits_of_element(T{}, b[at.row][at.col])
                                         << (16 * (i % a_register));
    }
    for (uint32_t i = 0; i < 4; ++i) out[4 * lane + i] = c[d(lane, i).row][d(lane, i).col];
  }
  launch(multiply_registers<T>, "multiply_registers", Grid{1, 1}, 32, 0, nullptr, out.get(),
         a_in.get(), b_in.get());
  finish();
  for (uint32_t lane = 0; lane < 32; ++lane) {
    for (uint32_t i = 0; i < 4; ++i) {
      const Place at = d(lane, i);
      float sum = c[at.row][at.col];
      for (uint32_t k = 0; k < depth; ++k) sum += a[at.row][k] * b[k][at.col];
      expect_equal(
          out[4 * lane + i], sum,
          std::string(name) + " of lane " + std::to_string(lane) + ", " + std::to_string(i));
    }
  }
  record(name, out);
}
CASE(mma_16816_bf16) { check_product<bf16>("mma_16816_bf16", m16n8k16::a, m16n8k16::b); }
CASE(mma_16816_f16) { check_product<f16>("mma_16816_f16", m16n8k16::a, m16n8k16::b); }
CASE(mma_1688_tf32) { check_product<float>("mma_1688_tf32", m16n8k8_tf32::a, m16n8k8_tf32::b); }

// What the main loop relies on: two ldmatrix of row-major tiles are the operands of a product.
SLIPFORM_KERNEL(32, 1) void multiply_tiles(float* out, const bf16* rows, const bf16* cols) {
  const uint32_t base = shared_base(), lane = lane_id();
  // Sixteen rows of each operand, 32 bytes a row.
  cp_async_16(base + 16 * lane, rows + 8 * lane, 16);
  cp_async_16(base + 512 + 16 * lane, cols + 8 * lane, 16);
  cp_async_commit();
  cp_async_wait<0>();
  block_sync();
  uint32_t a[4], b[4];
  ldmatrix_x4(base + 32 * (lane % 16) + 16 * (lane / 16), a);
  ldmatrix_x4(base + 512 + 32 * (lane % 8 + 8 * (lane / 16)) + 16 * (lane / 8 % 2), b);
  for (int half = 0; half < 2; ++half) {
    float d[4] = {};
    mma_16816<bf16>(d, a, {b[2 * half], b[2 * half + 1]});
    for (uint32_t i = 0; i < 4; ++i) {
      const uint32_t row = lane / 4 + 8 * (i / 2), col = 8 * half + 2 * (lane % 4) + i % 2;
      out[16 * row + col] = d[i];
    }
  }
}
CASE(tiles_by_ldmatrix_and_mma) {
  Array<float> out(256);
  Array<bf16> rows(256), cols(256);
  const auto value = [](uint32_t i) {
    return static_cast<float>(static_cast<int>(i * i % 15) - 7);
  };
  for (uint32_t i = 0; i < 256; ++i) {
    rows[i].bits = static_cast<uint16_t>(bits_of_element(bf16{}, value(i)));
    cols[i].bits = static_cast<uint16_t>(bits_of_element(bf16{}, value(i + 31)));
  }
  launch(multiply_tiles, "multiply_tiles", Grid{1, 1}, 32, 1024, nullptr, out.get(), rows.get(),
         cols.get());
  finish();
  for (uint32_t row = 0; row < 16; ++row) {
    for (uint32_t col = 0; col < 16; ++col) {
      float sum = 0;
      for (uint32_t k = 0; k < 16; ++k) sum += value(16 * row + k) * value(16 * col + k + 31);
      expect_equal(out[16 * row + col], sum, "product");
    }
  }
  record("tiles_by_ldmatrix_and_mma", out);
}

}  // namespace gpu
}  // namespace slipform
