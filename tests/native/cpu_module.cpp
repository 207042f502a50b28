// The CPU half of the extension for the tests: one level of the element-wise kernels stands for all,
// and AMX is there, by shim/amx.h.
#include "amx.h"
#include "block.h"

namespace slipform {

const Kernels& kernels_avx512() { return kernels_baseline(); }
const Kernels& kernels_avx2() { return kernels_baseline(); }

bool amx_available() { return true; }

}  // namespace slipform
