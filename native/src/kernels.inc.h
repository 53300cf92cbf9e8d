// All kernels of one SIMD level: included once by each of kernels_{baseline,avx2,avx512}.cpp, which name the level.
// Everything but table() has internal linkage: if two levels shared an inline function, the linker could give the plain
// level code that only a newer processor runs.
#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include "sfctr/kernels.h"
#include "sfctr/philox.h"
#include "sfctr/power.h"

#pragma GCC diagnostic ignored \
    "-Wpsabi"  // vectors wider than the level's registers are passed between inlined functions only

namespace sfctr::SFCTR_LEVEL {
namespace {
#include "kernels_vector.inc.h"
// (in this order)
#include "kernels_random.inc.h"
// (in this order)
#include "kernels_init.inc.h"
#include "kernels_pool.inc.h"
#include "kernels_probe.inc.h"
#include "kernels_update.inc.h"
}  // namespace

const Kernels& table() {
  static constexpr Kernels kTable{SFCTR_LEVEL_NAME, pool, merge, sum_rows, sum_of_squares, update, initialize, probe};
  return kTable;
}

}  // namespace sfctr::SFCTR_LEVEL
