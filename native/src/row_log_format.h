// The bytes of segment files: records and the pages before and after them. docs/format/segments.md says the same.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "row_log_layout.h"
#include "sfctr/row_log.h"
#include "sfctr/xxh3.h"

namespace sfctr {

// checksum [4] | table [4] | key [8] | row. The checksum is the low half of the XXH3-64 of what follows it.
inline std::uint32_t checksum_of(const std::byte* record, const LogLayout& layout) {
  const auto* const covered = reinterpret_cast<const std::uint8_t*>(record + 4);
  return static_cast<std::uint32_t>(xxh3_64(covered, layout.stride - 4));
}

inline void write_record(std::byte* record, const RecordId& id, const std::byte* row, const LogLayout& layout) {
  std::memcpy(record + 4, &id.table, 4);
  std::memcpy(record + 8, &id.key, 8);
  std::memcpy(record + LogLayout::kHeaderBytes, row, layout.record_bytes);
  const std::uint32_t checksum = checksum_of(record, layout);
  std::memcpy(record, &checksum, 4);
}

inline RecordId id_of(const std::byte* record) {
  RecordId id;
  std::memcpy(&id.table, record + 4, 4);
  std::memcpy(&id.key, record + 8, 8);
  return id;
}

inline bool is_intact(const std::byte* record, const LogLayout& layout) {
  std::uint32_t checksum;
  std::memcpy(&checksum, record, 4);
  return checksum == checksum_of(record, layout);
}

// Each fills a sector.
void write_header(std::byte* page, const LogLayout& layout, std::uint64_t sequence);
void write_footer(std::byte* page, std::uint32_t num_records, std::uint64_t sequence);

}  // namespace sfctr
