// Lists gathered from several pieces of a ragged column into one: how shuffled batches get theirs.
//
// Output row i is row rows[i] of piece pieces[i]. REQUIRES: pieces and rows are equally long, every piece index is
// below the number of pieces and every row below that piece's rows (the bindings check this). Safe to call from any
// thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace sfctr {

struct Picks {
  std::span<const std::uint32_t> pieces;
  std::span<const std::uint32_t> rows;

  std::size_t size() const noexcept { return pieces.size(); }
};

// Offsets of the gathered ragged rows: out_offsets has one entry more than picks, and the last is the number of items.
// Row r of piece p has offsets[p][r + 1] - offsets[p][r] items.
void gather_offsets(std::span<const std::int64_t* const> offsets, const Picks& picks,
                    std::span<std::int64_t> out_offsets) noexcept;

// The items of the gathered ragged rows, `item_bytes` bytes each, in the places that gather_offsets gave.
void gather_items(std::span<const std::byte* const> items, std::span<const std::int64_t* const> offsets,
                  std::size_t item_bytes, const Picks& picks, std::span<const std::int64_t> out_offsets,
                  std::byte* out) noexcept;

}  // namespace sfctr
