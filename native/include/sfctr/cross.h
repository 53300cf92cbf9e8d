// The key of a combination of keys, for crossed columns.
#pragma once

#include <cstdint>
#include <span>

namespace sfctr {

// out[i] = XXH3-64 of 9 bytes a part, in order: 1 and the part's key in little-endian order, or nine zeros where it is
// missing. A part's nulls may be null: none is missing then.
// REQUIRES: as many nulls as keys, at least one; each as long as `out`. Safe to call from any thread.
void cross_keys(std::span<const std::uint64_t* const> keys, std::span<const std::uint8_t* const> nulls,
                std::span<std::uint64_t> out);

}  // namespace sfctr
