// Numbers the distinct keys of one table in the order of their first appearance.
#pragma once

#include <cstdint>
#include <span>

namespace sfctr {

// Keys of one feature of the table, and where their numbers go.
struct UniqueInput {
  std::span<const std::uint64_t> keys;
  std::span<const std::uint8_t> nulls;  // empty, or 1 where the key is to be left out
  std::uint64_t buckets;                // above 0: keys are hashed into so many first
  std::int32_t* ids;                    // [keys], kLeftOutId where left out
};

inline constexpr std::size_t kUniqueSpare = 3;
inline constexpr std::int32_t kLeftOutId = -1;

// Numbers keys from `base` on through all inputs in order, and writes key base + i to unique[i]. Returns how many there
// are. REQUIRES: unique has room for all keys of the inputs and kUniqueSpare more; base and their number together are
// below 2^31 - 2.
// Takes constant time a key for any keys not chosen against the hash. Any threads may run it at once. Throws
// std::bad_alloc.
std::size_t number_unique(std::span<const UniqueInput> inputs, std::uint64_t* unique, std::uint32_t base = 0);

}  // namespace sfctr
