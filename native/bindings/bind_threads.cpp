// Threads and SIMD levels: what changes speed and never a result.
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>

#include "bindings.h"
#include "sfctr/memory.h"
#include "sfctr/simd.h"
#include "sfctr/thread_pool.h"

namespace nb = nanobind;
using namespace nb::literals;

void bind_threads(nb::module_& m) {
  m.def("num_threads", &sfctr::num_threads, "Threads that native loops use, the caller's included. At first 1.");
  m.def("set_num_threads", &sfctr::set_num_threads, "n"_a, nb::call_guard<nb::gil_scoped_release>(),
        "Let native loops use n threads (1 to 1024), the caller's included. No result depends on it.");
  m.def(
      "empty_floats",
      [](std::size_t size) {
        auto buffer = std::make_unique<sfctr::Buffer<float>>(std::max<std::size_t>(size, 1));
        float* const data = buffer->data();
        const nb::capsule owner(buffer.release(),
                                [](void* kept) noexcept { delete static_cast<sfctr::Buffer<float>*>(kept); });
        return nb::ndarray<nb::numpy, float, nb::ndim<1>>(data, {size}, owner);
      },
      "size"_a,
      "float32 [size] whose contents are undefined. It begins at a cache line, and the memory of a large one is that "
      "of\n"
      "an array which was given back, where there is one: fresh pages would cost a fault each.");
  m.def("simd_level", &sfctr::simd_level, "The level of the kernels in use: the best of simd_levels() unless set.");
  m.def("simd_levels", &sfctr::simd_levels, "Levels that this processor can run, the plainest first.");
  m.def(
      "set_simd_level", [](const std::string& level) { sfctr::set_simd_level(level); }, "level"_a,
      "Use the kernels of another level, while none is running. No result depends on it: this is for tests.");
}
