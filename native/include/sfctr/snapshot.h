// What a snapshot of a group's rows needs beside them (snapshot.cpp has the rules): bits that belong to the places of
// rows, and rows that are kept because training was about to change them before they were taken.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "sfctr/row_log.h"

namespace sfctr {

// What is known of a row. The first three go with it from place to place. Changes have two readers that know nothing of
// each other, and a bit for each: what is touched has both.
struct RowTags {
  static constexpr std::uint8_t kChanged = 1;  // trained, loaded or new since the last snapshot began
  static constexpr std::uint8_t kPending = 2;  // of the snapshot under way, and neither taken nor kept
  static constexpr std::uint8_t kUnsent = 4;   // trained, loaded or new since the follower had all (changes.cpp)
  static constexpr std::uint8_t kRow = 8;      // of a frame: what is in it is a row, and not a provisional one
  static constexpr std::uint8_t kUnread = 16;  // of a frame: its record is on its way from disk
  static constexpr std::uint8_t kTouched = kChanged | kUnsent;
  static constexpr std::uint8_t kTravelling = kTouched | kPending;
};

// Tags of rows on disk, four bits a location. Those of locations where no row is are undefined. Not thread-safe.
class LocationTags {
 public:
  // Locations below num_locations may be used from now on. Throws std::bad_alloc.
  void cover(std::uint64_t num_locations);
  std::uint8_t of(Location location) const {
    return words_[location / kRows] >> shift(location) & RowTags::kTravelling;
  }
  void set(Location location, std::uint8_t tags);
  // What has changed, or all, is pending; nothing has changed since.
  void begin(bool full);
  // No location has `tags` any more.
  void drop(std::uint8_t tags);
  std::size_t memory_bytes() const { return words_.capacity() * sizeof(std::uint64_t); }

 private:
  static constexpr std::uint32_t kRows = 16;  // of a word
  static constexpr std::uint64_t kOneOfEach = 0x1111111111111111;
  static unsigned shift(Location location) { return location % kRows * 4; }

  std::vector<std::uint64_t> words_;
};

// Keys that lost their rows, by native table, as long as a list of them is worth more than all rows.
class GoneKeys {
 public:
  using Lists = std::vector<std::vector<std::uint64_t>>;

  // Forgets what was listed; `most` are listed from now on.
  void begin(std::size_t num_native_tables, std::uint64_t most);
  void add(std::uint32_t native_table, std::uint64_t key);
  const Lists& lists() const { return lists_; }
  Lists take() { return std::exchange(lists_, Lists(lists_.size())); }
  // Whether there were more than are listed.
  bool is_lost() const { return num_ > most_; }
  std::size_t memory_bytes() const;

 private:
  Lists lists_;
  std::uint64_t num_ = 0, most_ = 0;
};

// Rows of one native table.
struct SnapshotRows {
  explicit SnapshotRows(std::uint32_t table = 0) : native_table(table) {}
  std::uint32_t native_table;
  std::vector<std::uint64_t> keys;
  std::vector<std::uint32_t> last;  // the step that trained each last; 0 without membership, and for rows beside keys
  std::vector<float> records;
};

// Rows as a snapshot has them, until they are taken: a copy of the record, or for one that leaves the disk the way to
// read it. Copies have a bound, beyond which wait_for_room() waits. Safe to call from any thread.
class KeptRows {
 public:
  KeptRows(std::size_t num_native_tables, std::size_t num_floats, std::size_t limit_bytes);

  // A snapshot is under way from open() to close(), which forgets what is kept and lets go whoever waits.
  void open();
  void close();
  // Whether it is time to take some, or else a step may have to wait.
  bool is_short_of_room() const { return is_short_of_room_.load(std::memory_order_relaxed); }
  bool is_open() const { return is_open_.load(std::memory_order_acquire); }

  // Returns holding the mutex under which pending rows of frames are copied and lose their tag. REQUIRES: of the locks
  // of the group at most this one is held.
  std::unique_lock<std::mutex> wait_for_room();
  std::unique_lock<std::mutex> lock() { return std::unique_lock(mutex_); }

  // REQUIRES: the mutex is held. Throws std::bad_alloc; the row is then not kept.
  void keep(RecordId id, std::uint32_t last, const float* record);
  void keep(std::vector<RecordId> ids, std::vector<std::uint32_t> last, Fetch fetch);

  // Replaces `rows` by at most `count` of those kept; false where there are none. Throws what Fetch::run does.
  bool take(std::size_t count, SnapshotRows& rows);

  std::size_t memory_bytes();

 private:
  struct Reading {
    std::vector<RecordId> ids;
    std::vector<std::uint32_t> last;
    Fetch fetch;
  };

  void read_next(std::unique_lock<std::mutex>& lock);
  void count_rows(std::size_t num_rows);
  std::size_t bytes_of_row() const {
    return num_floats_ * sizeof(float) + sizeof(std::uint64_t) + sizeof(std::uint32_t);
  }

  const std::size_t num_floats_, limit_bytes_;
  std::atomic<bool> is_open_{false}, is_short_of_room_{false};
  std::mutex mutex_;
  std::condition_variable has_room_;
  std::vector<SnapshotRows> tables_;
  std::vector<Reading> readings_;
  std::size_t num_rows_ = 0;  // in tables_
};

}  // namespace sfctr
