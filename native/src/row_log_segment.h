// One segment: its file, and which of its records live. It takes one number, or several that follow each other: that
// is how a segment is larger than the places of a number.
#pragma once

#include <unistd.h>

#include <atomic>
#include <bit>
#include <cstdint>
#include <string>
#include <vector>

#include "sfctr/io_file.h"

namespace sfctr {

struct LogSegment {
  static constexpr std::uint32_t kNone = 0xFFFFFFFF;

  LogSegment(std::uint32_t number, std::uint32_t num_numbers, std::uint64_t sequence, std::uint64_t capacity,
             std::string path, IoFaults* faults)
      : file(std::move(path), faults),
        number(number),
        num_numbers(num_numbers),
        sequence(sequence),
        capacity(capacity),
        lives((capacity + 63) / 64) {}
  // Whoever needs the segment last takes its file away.
  ~LogSegment() {
    if (file.is_open()) ::unlink(file.path().c_str());
  }

  bool is_live(std::uint32_t place) const { return place < used && (lives[place / 64] >> (place % 64) & 1) != 0; }
  void flip(std::uint32_t place) { lives[place / 64] ^= std::uint64_t{1} << (place % 64); }
  std::uint32_t garbage() const { return used - live; }

  // The first live place from `from` on, or kNone.
  std::uint32_t next_live(std::uint32_t from) const {
    if (from >= used) return kNone;
    std::uint64_t word = lives[from / 64] >> (from % 64) << (from % 64);
    for (std::size_t i = from / 64;; word = lives[i]) {
      if (word) return static_cast<std::uint32_t>(i * 64) + static_cast<std::uint32_t>(std::countr_zero(word));
      if (++i == lives.size()) return kNone;
    }
  }

  File file;  // created by the staging thread before `written` leaves 0
  const std::uint32_t number, num_numbers;
  const std::uint64_t sequence, capacity;  // records

  // Of the log's caller.
  std::uint32_t used = 0, live = 0;  // records
  std::vector<std::uint64_t> lives;  // a bit a place
  std::uint64_t last_fetch = 0;      // that has a reference
  bool synced = false;
  bool set_aside = false;  // compaction has met damage in it

  // Set by the staging thread, in this order.
  std::atomic<std::uint32_t> written{0};  // records that the file has
  std::atomic<std::uint64_t> file_bytes{0};
  std::atomic<bool> complete{false};  // footer and all: never written again
};

}  // namespace sfctr
