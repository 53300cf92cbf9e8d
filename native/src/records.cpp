#include "sfctr/records.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace sfctr {
namespace {

constexpr std::size_t kTile = 64;  // records of a few hundred bytes: a tile stays in the first cache
constexpr std::size_t kLine = 64;

// copy(W) for each width that is known at compile time, so that moving a value is one instruction; W = 0 stands for
// others.
template <class Copy>
void by_width(std::size_t bytes, Copy copy) noexcept {
  switch (bytes) {
    case 1:
      return copy.template operator()<1>();
    case 4:
      return copy.template operator()<4>();
    case 8:
      return copy.template operator()<8>();
    default:
      return copy.template operator()<0>();
  }
}

}  // namespace

void pack_records(std::span<const std::byte* const> columns, std::span<const Field> fields, std::size_t record_bytes,
                  std::size_t num_rows, std::byte* records) noexcept {
  for (std::size_t first = 0; first < num_rows; first += kTile) {
    const std::size_t last = std::min(first + kTile, num_rows);
    for (std::size_t f = 0; f < fields.size(); ++f) {
      by_width(fields[f].bytes, [&]<std::size_t W>() noexcept {
        const std::size_t bytes = W == 0 ? fields[f].bytes : W;
        for (std::size_t i = first; i < last; ++i) {
          std::memcpy(records + i * record_bytes + fields[f].offset, columns[f] + i * bytes, bytes);
        }
      });
    }
  }
}

void gather_records(std::span<const std::byte* const> pieces, std::size_t record_bytes, const Picks& picks,
                    std::span<const Field> fields, std::span<std::byte* const> columns) noexcept {
  std::array<const std::byte*, kTile> records;
  for (std::size_t first = 0; first < picks.size(); first += kTile) {
    const std::size_t count = std::min(kTile, picks.size() - first);
    for (std::size_t i = 0; i < count; ++i) {
      records[i] = pieces[picks.pieces[first + i]] + picks.rows[first + i] * record_bytes;
      for (std::size_t at = 0; at < record_bytes; at += kLine) __builtin_prefetch(records[i] + at);
    }
    for (std::size_t f = 0; f < fields.size(); ++f) {
      by_width(fields[f].bytes, [&]<std::size_t W>() noexcept {
        const std::size_t bytes = W == 0 ? fields[f].bytes : W;
        for (std::size_t i = 0; i < count; ++i) {
          std::memcpy(columns[f] + (first + i) * bytes, records[i] + fields[f].offset, bytes);
        }
      });
    }
  }
}

}  // namespace sfctr
