// Threads and SIMD levels: what changes speed and never a result.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"
#include "sfctr/simd.h"
#include "sfctr/thread_pool.h"

namespace nb = nanobind;
using namespace nb::literals;

void bind_threads(nb::module_& m) {
  m.def("num_threads", &sfctr::num_threads, "Threads that native loops use, the caller's included. At first 1.");
  m.def("set_num_threads", &sfctr::set_num_threads, "n"_a, nb::call_guard<nb::gil_scoped_release>(),
        "Let native loops use n threads (1 to 1024), the caller's included. No result depends on it.");
  m.def("simd_level", &sfctr::simd_level, "The level of the kernels in use: the best of simd_levels() unless set.");
  m.def("simd_levels", &sfctr::simd_levels, "Levels that this processor can run, the plainest first.");
  m.def(
      "set_simd_level", [](const std::string& level) { sfctr::set_simd_level(level); }, "level"_a,
      "Use the kernels of another level, while none is running. No result depends on it: this is for tests.");
}
