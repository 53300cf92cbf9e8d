// Where records lie in a segment: a page of header, then units of whole sectors with a whole number of records each,
// then a page of footer. A unit is the smallest that leaves no more than an eighth unused, so that small records never
// straddle a sector and one read of a sector gets one. docs/format/segments.md has the whole.
#pragma once

#include <cstddef>
#include <cstdint>

#include "sfctr/io_file.h"

namespace sfctr {

struct LogLayout {
  static constexpr std::size_t kHeaderBytes = 16;  // of a record

  // REQUIRES: 1 <= row_bytes <= 2^30.
  LogLayout(std::size_t row_bytes, std::size_t segment_bytes)
      : record_bytes(row_bytes), stride(kHeaderBytes + row_bytes), unit_bytes(round_to_sectors(stride)) {
    while ((unit_bytes % stride) * 8 > unit_bytes) unit_bytes += kSector;
    unit_records = static_cast<std::uint32_t>(unit_bytes / stride);
    segment_units = segment_bytes / unit_bytes > 0 ? segment_bytes / unit_bytes : 1;
    segment_records = segment_units * unit_records;
  }

  // Of which number a location is; and the location of a place in the segment that begins with a number. REQUIRES:
  // segment_records < 2^32.
  std::uint32_t number_of(std::uint32_t location) const {
    return location / static_cast<std::uint32_t>(segment_records);
  }
  std::uint32_t location(std::uint32_t number, std::uint32_t place) const {
    return static_cast<std::uint32_t>(number * segment_records) + place;
  }

  // Of a record, from the first record.
  std::size_t offset(std::uint32_t place) const {
    return std::size_t{place / unit_records} * unit_bytes + place % unit_records * stride;
  }
  // In the file.
  std::uint64_t file_offset(std::uint32_t place) const { return kSector + offset(place); }
  // Sectors that the first `num_records` records reach into, in bytes.
  std::size_t bytes_of(std::uint32_t num_records) const {
    return num_records == 0 ? 0 : round_to_sectors(offset(num_records - 1) + stride);
  }
  // Of the sectors that one record may lie in.
  std::size_t span_bytes() const { return unit_bytes == kSector ? kSector : round_to_sectors(stride + kSector - 1); }

  std::size_t record_bytes;  // of a row
  std::size_t stride;        // from record to record inside a unit
  std::size_t unit_bytes;
  std::uint32_t unit_records;
  std::uint64_t segment_units, segment_records;  // of the smallest segments
};

}  // namespace sfctr
