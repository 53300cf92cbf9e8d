#include "sfctr/gather.h"

#include <cstring>

namespace sfctr {
void gather_offsets(std::span<const std::int64_t* const> offsets, const Picks& picks,
                    std::span<std::int64_t> out_offsets) noexcept {
  std::int64_t total = 0;
  for (std::size_t i = 0; i < picks.size(); ++i) {
    out_offsets[i] = total;
    const std::int64_t* row = offsets[picks.pieces[i]] + picks.rows[i];
    total += row[1] - row[0];
  }
  out_offsets[picks.size()] = total;
}

void gather_items(std::span<const std::byte* const> items, std::span<const std::int64_t* const> offsets,
                  std::size_t item_bytes, const Picks& picks, std::span<const std::int64_t> out_offsets,
                  std::byte* out) noexcept {
  for (std::size_t i = 0; i < picks.size(); ++i) {
    const std::uint32_t piece = picks.pieces[i];
    const auto first = static_cast<std::size_t>(offsets[piece][picks.rows[i]]);
    const auto count = static_cast<std::size_t>(out_offsets[i + 1] - out_offsets[i]);
    if (count == 0) continue;
    std::memcpy(out + static_cast<std::size_t>(out_offsets[i]) * item_bytes, items[piece] + first * item_bytes,
                count * item_bytes);
  }
}

}  // namespace sfctr
