// Records of one size, numbered by slot. A record never moves, so a pointer to one stays good until its slot is gone.
//
// Chunks double from a few kilobytes to kLargest and stay at that, so that a table of three rows costs little and a
// large one consists of huge pages. Not thread-safe: whoever grows or truncates must be alone; `at` may run beside
// `at`, and after fix() beside all calls for a slot that stays.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "sfctr/memory.h"

namespace sfctr {

class Slab {
 public:
  // REQUIRES: record_bytes is a positive multiple of 4.
  explicit Slab(std::size_t record_bytes);

  // The slot end(); its record's contents are undefined. Throws std::bad_alloc or std::length_error (more than 2^32 - 1
  // records); nothing is then changed.
  std::uint32_t grow();

  // Drops the slots from `end` on, and gives the system back what they alone took. REQUIRES: end <= this->end().
  void truncate(std::uint32_t end);

  // REQUIRES: slot < end().
  std::byte* at(std::uint32_t slot) const {
    if (slot < doubling_slots_) {
      const std::uint64_t shifted = std::uint64_t{slot} + first_rows_;
      const int chunk = std::bit_width(shifted) - 1;
      return chunks_[static_cast<std::size_t>(chunk - first_bits_)] +
             (shifted - (std::uint64_t{1} << chunk)) * record_bytes_;
    }
    const std::uint64_t beyond = slot - doubling_slots_;
    return chunks_[num_doubling_ + (beyond >> largest_bits_)] +
           (beyond & ((std::uint64_t{1} << largest_bits_) - 1)) * record_bytes_;
  }

  // Makes room for the addresses of all chunks that there can be. REQUIRES: alone. Throws std::bad_alloc.
  void fix();

  // Calls body(records, count) for every stretch of records that lie one behind the other.
  template <class Body>
  void for_stretches(Body&& body) const {
    std::uint64_t left = end_;
    for (std::size_t chunk = 0; left > 0; ++chunk) {
      const std::uint64_t count = left < rows_of_chunk(chunk) ? left : rows_of_chunk(chunk);
      body(chunks_[chunk], static_cast<std::size_t>(count));
      left -= count;
    }
  }

  std::size_t record_bytes() const { return record_bytes_; }
  std::uint32_t end() const { return end_; }
  // Memory that records have touched. Reserved address space is not memory.
  std::size_t memory_bytes() const;

 private:
  static constexpr std::size_t kFirst = std::size_t{4} << 10, kLargest = std::size_t{64} << 20;  // bytes of a chunk

  std::size_t rows_of_chunk(std::size_t chunk) const;
  void add_chunk();

  std::size_t record_bytes_;
  int first_bits_, largest_bits_;  // chunk sizes in rows are powers of two
  std::uint64_t first_rows_, doubling_slots_;
  std::size_t num_doubling_;
  std::vector<std::byte*> chunks_;
  std::vector<Pages> pages_;  // owns chunks_
  std::uint32_t end_ = 0;
  std::uint64_t room_ = 0;  // slots that chunks_ have
};

}  // namespace sfctr
