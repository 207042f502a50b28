// The tests of the primitives as a program for a GPU of sm_80 or newer:
//   nvcc -std=c++17 -arch=native -I csrc -I tests/native tests/native/device_primitives.cu
#include "test_matrices.cpp"
#include "test_primitives.cpp"
