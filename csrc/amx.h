// bf16 products on AMX, in a file of its own: what it needs of the compiler and of the system is
// its own as well.
#pragma once

#include <cstdint>

#include "products.h"

namespace slipform {

// Whether this build, the processor and the system have it. Asks the system's permission, which is
// the process's from then on.
bool amx_available();

// See `Multiply`. `words` is a multiple of AMX_WORDS, and rows of the right operand past the left
// one's depth are 0.
void multiply_amx(Left left, int64_t rows, const uint32_t* panels, int64_t words, Target target);

}  // namespace slipform
