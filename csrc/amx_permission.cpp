// Whether AMX may be used: the build's, the processor's and the system's word.
#include "amx.h"

#if defined(__AMX_BF16__) && defined(__linux__)

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace slipform {
namespace {

bool processor_has_it() {
  constexpr unsigned bf16 = 1u << 22, tile = 1u << 24;  // of leaf 7's edx
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) return false;
  return (edx & bf16) != 0 && (edx & tile) != 0;
}

// Linux keeps the tiles' state for processes that have asked for it.
bool system_permits_it() {
  constexpr long request_permission = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM, XTILEDATA
  return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
}

}  // namespace

bool amx_available() {
  static const bool available = processor_has_it() && system_permits_it();
  return available;
}

}  // namespace slipform

#else

namespace slipform {

bool amx_available() { return false; }

}  // namespace slipform

#endif
