// What a group of rows counts.
#pragma once

#include <cstdint>

namespace sfctr {

// What has moved of a table, in rows; since the group was made.
struct RowCounters {
  std::uint64_t requested = 0;       // positions of planned batches
  std::uint64_t unique = 0;          // their unique keys
  std::uint64_t hits = 0;            // of those, in RAM already; or a frozen table's that have no row
  std::uint64_t fresh = 0;           // without a row
  std::uint64_t fetched = 0;         // read from disk
  std::uint64_t evicted = 0;         // written to disk
  std::uint64_t device_hits = 0;     // of unique keys, on the device already
  std::uint64_t lifted = 0;          // from RAM to the device, into lines
  std::uint64_t lowered = 0;         // from lines to RAM
  std::uint64_t device_scratch = 0;  // that found no line

  RowCounters& operator+=(const RowCounters& other);
};

// The same of all tables.
struct GroupCounters : RowCounters {
  std::uint64_t scratch = 0;       // that found no frame
  std::uint64_t waits = 0;         // plans put off because batches in flight held the frames
  std::uint64_t shrinks = 0;       // plans put off because they held frames that had to go for more keys
  std::uint64_t device_waits = 0;  // plans put off because batches in flight held the lines
};

// What a device holds now.
struct LineCounters {
  std::uint64_t rows = 0;
  std::uint64_t dirty = 0;
  std::uint64_t batches = 0;  // in flight there
};

}  // namespace sfctr
