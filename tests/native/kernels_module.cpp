// The Python module of the tests: the kernels' bindings over the emulation, and its settings.
#include <pybind11/pybind11.h>

#include <string>

#include "primitives.cuh"

void register_cuda(pybind11::module_&);

namespace host = slipform::gpu::host;

// Turns that accesses to shared memory lost to bank conflicts since the last call.
static pybind11::dict bank_conflicts() {
  const host::Counters& c = host::counters;
  pybind11::dict result;
  result["ldmatrix"] = c.ldmatrix.conflicts;
  result["cp_async"] = c.cp_async.conflicts;
  result["load_shared"] = c.load_shared.conflicts;
  result["store_shared"] = c.store_shared.conflicts;
  host::counters = {};
  return result;
}

// Which of the faults of mutants.py is on; see there.
int planted_fault = 0;

PYBIND11_MODULE(emulated, m) {
  register_cuda(m);
  m.def("level", [] { return "emulated"; });
  m.def("set_order", [](const std::string& text) { host::set_order(text); });
  m.def("bank_conflicts", &bank_conflicts);
  m.def("plant", [](int fault) { planted_fault = fault; });
}
