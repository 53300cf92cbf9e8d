// Snapshots one after the other, and a twin of each: everything, copied when it began.
#pragma once

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "row_group_rig.h"

namespace rig {

struct StampedRecord {
  Record record;
  std::uint32_t last = 0;
  bool operator==(const StampedRecord&) const = default;
};
using StampedRows = std::map<Rows::key_type, StampedRecord>;

inline StampedRows all_rows(RowGroup& group) {
  StampedRows rows;
  for (std::uint32_t table = 0; table < kNativeTables; ++table) {
    for (std::optional<std::uint64_t> from = 0; from;) {
      std::vector<std::uint64_t> keys;
      std::vector<float> records;
      from = group.export_rows(table, *from, 50, keys, records);
      std::vector<std::uint32_t> last(keys.size());
      group.last_trained(table, keys, last);
      for (std::size_t i = 0; i < keys.size(); ++i) {
        const auto at = records.begin() + static_cast<std::ptrdiff_t>(i * kFloats);
        rows[{table, keys[i]}] = {Record(at, at + kFloats), last[i]};
      }
    }
  }
  return rows;
}

// Full snapshots and changes upon them, as whoever loads them has them.
class Saver {
 public:
  explicit Saver(RowGroup& group) : group_(group) {}

  void begin(bool full) {
    expected_ = all_rows(group_);
    group_.begin_snapshot(full);
    taken_.clear();
    after_ = full ? StampedRows() : saved_;
    const auto tombstones = group_.take_tombstones();
    for (std::uint32_t table = 0; !full && table < kNativeTables; ++table) {
      for (const std::uint64_t key : tombstones[table]) after_.erase({table, key});
    }
    is_open_ = true;
  }

  // False: there are no more.
  bool take(std::size_t count) {
    const std::optional<sfctr::SnapshotRows> rows = group_.take_snapshot(count);
    if (!rows) return false;
    CHECK(!rows->keys.empty() && rows->keys.size() <= count && rows->last.size() == rows->keys.size());
    CHECK(rows->records.size() == rows->keys.size() * kFloats);
    for (std::size_t i = 0; i < rows->keys.size(); ++i) {
      const auto at = rows->records.begin() + static_cast<std::ptrdiff_t>(i * kFloats);
      const Rows::key_type id{rows->native_table, rows->keys[i]};
      CHECK(taken_.insert(id).second);
      after_[id] = {Record(at, at + kFloats), rows->last[i]};
    }
    return true;
  }

  void end(bool kept) {
    if (kept) {
      while (take(100)) continue;
      CHECK(after_ == expected_);
      saved_ = std::move(after_);
    }
    group_.end_snapshot(kept);
    is_open_ = false;
  }

  bool is_open() const { return is_open_; }
  const std::set<Rows::key_type>& taken() const { return taken_; }
  const StampedRows& expected() const { return expected_; }

 private:
  RowGroup& group_;
  StampedRows saved_, expected_, after_;
  std::set<Rows::key_type> taken_;
  bool is_open_ = false;
};

// One who follows the rows by deltas.
class Follower {
 public:
  explicit Follower(RowGroup& group) : group_(group) {}

  // kept: it has what it was sent, and will be sent no more of it. Returns whose rows came as changed; nothing where it
  // was sent all.
  std::optional<std::set<Rows::key_type>> send(bool kept, std::size_t count) {
    std::optional<std::set<Rows::key_type>> changed;
    Rows rows = rows_;
    if (group_.needs_base()) {
      rows = now();
    } else {
      changed.emplace();
      for (std::uint32_t table = 0; table < kNativeTables; ++table) take(table, count, rows, *changed);
      CHECK(rows == now());
    }
    if (!kept) return changed;
    group_.mark_sent();
    rows_ = std::move(rows);
    return changed;
  }

 private:
  Rows now() {
    Rows rows;
    for (auto& [id, row] : all_rows(group_)) rows[id] = row.record;
    return rows;
  }

  void take(std::uint32_t table, std::size_t count, Rows& rows, std::set<Rows::key_type>& changed) {
    const std::vector<std::uint64_t> gone = group_.unsent_gone(table);
    CHECK(std::ranges::is_sorted(gone) && std::ranges::adjacent_find(gone) == gone.end());
    for (const std::uint64_t key : gone) rows.erase({table, key});
    std::uint64_t last = 0;
    for (std::optional<std::uint64_t> from = 0; from;) {
      std::vector<std::uint64_t> keys;
      std::vector<float> records;
      from = group_.unsent_rows(table, *from, count, keys, &records);
      CHECK(keys.size() <= count && records.size() == keys.size() * kFloats);
      for (std::size_t i = 0; i < keys.size(); ++i) {
        const auto at = records.begin() + static_cast<std::ptrdiff_t>(i * kFloats);
        CHECK(sfctr::mix(keys[i]) >= std::exchange(last, sfctr::mix(keys[i])));
        CHECK(changed.insert({table, keys[i]}).second && !std::ranges::binary_search(gone, keys[i]));
        rows[{table, keys[i]}] = Record(at, at + kFloats);
      }
    }
  }

  RowGroup& group_;
  Rows rows_;
};

}  // namespace rig
