// Rows of several columns packed into records of one width, so that picking a row at random touches memory once and not
// once a column. Shuffled batches are put together from them.
//
// A field is a column's share of a record: `bytes` bytes at `offset`. Safe to call from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "sfctr/gather.h"

namespace sfctr {

struct Field {
  std::size_t offset;
  std::size_t bytes;
};

// records[i] gets row i of every column. REQUIRES: as many columns as fields, each of num_rows rows of its field's
// bytes; fields lie inside record_bytes and do not overlap.
void pack_records(std::span<const std::byte* const> columns, std::span<const Field> fields, std::size_t record_bytes,
                  std::size_t num_rows, std::byte* records) noexcept;

// The reverse for picked records: row i of every column comes from record picks.rows[i] of piece picks.pieces[i].
void gather_records(std::span<const std::byte* const> pieces, std::size_t record_bytes, const Picks& picks,
                    std::span<const Field> fields, std::span<std::byte* const> columns) noexcept;

}  // namespace sfctr
