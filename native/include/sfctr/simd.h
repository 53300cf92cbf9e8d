// The kernels come in one build a SIMD level, all with the same bits; the best that this processor has is chosen at
// load.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "sfctr/kernels.h"

namespace sfctr {

// The kernels in use. May be called by any thread.
const Kernels& kernels();

// Levels that this processor can run, the plainest first: "baseline", then on x86-64 "avx2" and "avx512".
std::vector<std::string> simd_levels();

std::string simd_level();

// For tests. REQUIRES: no kernel is running. Throws std::invalid_argument if the level is not among simd_levels().
void set_simd_level(std::string_view level);

}  // namespace sfctr
