// The words that initial rows and the rounding of bf16 rows are made of: Philox4x32-10 (Salmon et al., SC 2011), a
// function of counter and key alone, so neither depends on when or where a row is made or updated.
//
//   key                = the low and high word of the table's seed
//   counter, initial   = the low and high word of the row's key, e / 4, 0
//   counter, rounding  = the same words, e / 8 + 1024 * (step / 2^32), step % 2^32   for committed step >= 1
//
// An initial element e takes output word e % 4; for rounding it takes a half of word e % 8 / 2, the lower half where e
// is even. With e < 4096 no counter serves both.
//
// Static, and over plain arrays, because the kernels of every SIMD level include it (see kernels.h).
#pragma once

#include <cstdint>

namespace sfctr {

// Ten rounds on L counters at a time. words[j * L + l] is word j of counter l, and becomes its output word j.
template <int L>
static inline void philox4x32_10(std::uint32_t* words, std::uint32_t key0, std::uint32_t key1) {
  std::uint32_t *const w0 = words, *const w1 = words + L, *const w2 = words + 2 * L, *const w3 = words + 3 * L;
  for (int round = 0; round < 10; ++round) {
    for (int l = 0; l < L; ++l) {
      const std::uint64_t product0 = std::uint64_t{w0[l]} * 0xD2511F53u;
      const std::uint64_t product1 = std::uint64_t{w2[l]} * 0xCD9E8D57u;
      w0[l] = static_cast<std::uint32_t>(product1 >> 32) ^ w1[l] ^ key0;
      w1[l] = static_cast<std::uint32_t>(product1);
      w2[l] = static_cast<std::uint32_t>(product0 >> 32) ^ w3[l] ^ key1;
      w3[l] = static_cast<std::uint32_t>(product0);
    }
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
}

}  // namespace sfctr
