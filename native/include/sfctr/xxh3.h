// XXH3-64 with seed 0, as the public xxHash specification states it: the key of a string is this hash of its UTF-8
// bytes. Portable scalar code; the result depends on the bytes alone. Safe to call from any thread.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sfctr {

// REQUIRES: `data` points to `size` readable bytes (it may be null when size is 0).
std::uint64_t xxh3_64(const std::uint8_t* data, std::size_t size) noexcept;

}  // namespace sfctr
