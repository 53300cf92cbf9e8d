// Static, because the kernels of every SIMD level include it (see kernels.h).
#pragma once

#include <cstdint>

namespace sfctr {

// base^exponent by repeated squaring: the same bits on every machine, which a library's pow does not promise.
static inline double power(double base, std::uint64_t exponent) {
  double result = 1;
  for (; exponent > 0; exponent >>= 1) {
    if (exponent & 1) result *= base;
    base *= base;
  }
  return result;
}

}  // namespace sfctr
