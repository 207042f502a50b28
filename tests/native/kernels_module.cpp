// The Python module of the tests: the kernels' bindings over the emulation, and its settings.
#include <pybind11/pybind11.h>

#include <string>

#include "primitives.cuh"

void register_cuda(pybind11::module_&);

PYBIND11_MODULE(emulated, m) {
  register_cuda(m);
  m.def("set_order", [](const std::string& text) { slipform::gpu::host::set_order(text); });
  m.def("level", [] { return "emulated"; });
}
