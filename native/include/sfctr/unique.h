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
  std::int32_t* ids;                    // [keys], -1 where left out
};

inline constexpr std::size_t kUniqueSpare = 3;

// Numbers keys from 0 on through all inputs in order, and writes key i to unique[i]. Returns how many there are.
// REQUIRES: unique has room for all keys of the inputs and kUniqueSpare more; their number is below 2^31 - 2.
// Takes constant time a key for any keys not chosen against the hash. Any threads may run it at once. Throws
// std::bad_alloc.
std::size_t number_unique(std::span<const UniqueInput> inputs, std::uint64_t* unique);

}  // namespace sfctr
