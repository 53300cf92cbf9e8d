// A bucket of the index, as the kernels see it: plain data, one cache line.
#pragma once

#include <cstdint>

namespace sfctr {

inline constexpr unsigned kBucketEntries = 5;

struct alignas(64) Bucket {
  std::uint64_t keys[kBucketEntries];
  std::uint32_t slots[kBucketEntries];
  std::uint16_t passed;  // keys that went on from here; at its largest it stays there for good
  std::uint8_t used;     // bit i: entry i holds a key
};
static_assert(sizeof(Bucket) == 64);

}  // namespace sfctr
