// How keys are spread over tables.
#pragma once

#include <cstdint>

namespace sfctr {

// The finalizer of splitmix64 (Steele, Lea and Flood 2014): a bijection of 64 bits in which every input bit moves every
// output bit, so rows of consecutive or strided keys spread as well as random ones.
constexpr std::uint64_t mix(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

// What processes share rows by: the leading bits of mix(key), in whose order indexes and shares of membership lie.
inline constexpr unsigned kShardBits = 8;
inline constexpr std::uint64_t kNumShards = std::uint64_t{1} << kShardBits;

constexpr std::uint8_t shard_of(std::uint64_t key) { return static_cast<std::uint8_t>(mix(key) >> (64 - kShardBits)); }

// The leading 64 - shift bits of a multiplicative hash (Knuth, TAOCP 6.4) of the key's halves folded together. Half the
// work of mix; sequences of any stride spread well enough for a table that is at most a quarter full.
constexpr std::uint64_t spread(std::uint64_t key, int shift) {
  return ((key ^ (key >> 32)) * 0xD6E8FEB86659FD93u) >> shift;
}

// floor(a * b / 2^64).
constexpr std::uint64_t multiply_high(std::uint64_t a, std::uint64_t b) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<std::uint64_t>((static_cast<Wide>(a) * b) >> 64);
}

// The hashing trick: which of `buckets` rows a key shares. The increment keeps it independent of mix(key), by which
// rows are spread later.
constexpr std::uint64_t bucket_of(std::uint64_t key, std::uint64_t buckets) {
  return multiply_high(mix(key + 0x9E3779B97F4A7C15u), buckets);
}

}  // namespace sfctr
