#include "sfctr/simd.h"

#include <atomic>
#include <stdexcept>

namespace sfctr {
namespace {

std::vector<const Kernels*> available() {
  std::vector<const Kernels*> found{&baseline::table()};
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2")) found.push_back(&avx2::table());
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw")) {
    found.push_back(&avx512::table());
  }
#endif
  return found;
}

std::atomic<const Kernels*>& current() {
  static std::atomic<const Kernels*> chosen{available().back()};
  return chosen;
}

}  // namespace

const Kernels& kernels() { return *current().load(std::memory_order_relaxed); }

std::vector<std::string> simd_levels() {
  std::vector<std::string> names;
  for (const Kernels* level : available()) names.emplace_back(level->level);
  return names;
}

std::string simd_level() { return kernels().level; }

void set_simd_level(std::string_view level) {
  for (const Kernels* candidate : available()) {
    if (candidate->level == level) return current().store(candidate);
  }
  throw std::invalid_argument("SIMD level '" + std::string(level) + "' is not available on this processor");
}

}  // namespace sfctr
