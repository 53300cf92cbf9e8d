// What the tests of the row log share: directories that go away, rows that can be told apart, and a log with its twin.
#pragma once

#include <stdlib.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "sfctr/row_log.h"

namespace rig {

using sfctr::IoCall;
using sfctr::IoFaults;
using sfctr::IoKind;
using sfctr::Location;
using sfctr::LogOptions;
using sfctr::RecordId;
using sfctr::RowLog;
using Row = std::vector<std::byte>;

class TempDir {
 public:
  explicit TempDir(const std::string& parent = std::filesystem::temp_directory_path()) {
    std::string made = parent + "/row_log_XXXXXX";
    CHECK(mkdtemp(made.data()) != nullptr);
    path_ = made;
  }
  ~TempDir() { std::filesystem::remove_all(path_); }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::string& path() const { return path_; }
  std::vector<std::string> files() const {
    std::vector<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator(path_)) found.push_back(entry.path());
    return found;
  }

 private:
  std::string path_;
};

// Small segments and buffers, so that a few thousand rows go through all states.
inline LogOptions small_options(const TempDir& directory, std::size_t record_bytes, IoKind io = IoKind::kAuto) {
  LogOptions options;
  options.directory = directory.path();
  options.record_bytes = record_bytes;
  options.segment_bytes = 256 << 10;
  options.staging_bytes = 128 << 10;
  options.depth = 32;
  options.io = io;
  return options;
}

// Different for every id and version.
inline Row row_of(const RecordId& id, std::uint64_t version, std::size_t num_bytes) {
  std::minstd_rand random(static_cast<std::uint32_t>(id.key * 31 + id.table * 17 + version * 1009 + 1));
  Row row(num_bytes);
  for (std::byte& byte : row) byte = static_cast<std::byte>(random() >> 8);
  return row;
}

inline std::vector<RecordId> ids_from(std::uint64_t first, std::size_t count, std::uint32_t table = 0) {
  std::vector<RecordId> ids;
  for (std::size_t i = 0; i < count; ++i) ids.push_back({first + i, table});
  return ids;
}

inline std::vector<Location> append_rows(RowLog& log, const std::vector<RecordId>& ids, const std::vector<Row>& rows) {
  std::vector<const std::byte*> pointers;
  for (const Row& row : rows) pointers.push_back(row.data());
  std::vector<Location> locations(ids.size());
  log.append(ids, pointers.data(), locations.data());
  return locations;
}

// What a fetch brings, in memory that a sanitizer guards.
inline std::vector<Row> run_fetch(const sfctr::Fetch& fetch, const std::vector<RecordId>& ids, std::size_t num_bytes) {
  std::vector<Row> rows(ids.size(), Row(num_bytes));
  std::vector<std::byte*> out;
  for (Row& row : rows) out.push_back(row.data());
  fetch.run(ids, out.data());
  return rows;
}

// A log, and a map that says what must be in it. Rows are written by version, which append raises.
class Twins {
 public:
  explicit Twins(const LogOptions& options) : log(options), num_bytes_(options.record_bytes) {}

  // What was under the ids before becomes garbage. Their places are given up only once the new ones are there.
  void append(const std::vector<RecordId>& ids) {
    ++version_;
    std::vector<Row> rows;
    for (const RecordId& id : ids) rows.push_back(row_of(id, version_, num_bytes_));
    const std::vector<Location> locations = append_rows(log, ids, rows);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const auto old = rows_.find(key_of(ids[i]));
      if (old != rows_.end()) log.release(std::vector<Location>{old->second.location});
      rows_[key_of(ids[i])] = {version_, locations[i]};
    }
  }

  void release(const std::vector<RecordId>& ids) {
    std::vector<Location> locations;
    for (const RecordId& id : ids) {
      const auto found = rows_.find(key_of(id));
      if (found == rows_.end()) continue;
      locations.push_back(found->second.location);
      rows_.erase(found);
    }
    log.release(locations);
  }

  bool compact(std::size_t budget_bytes) {
    const auto holds = [this](RecordId id, Location at) {
      const auto found = rows_.find(key_of(id));
      return found != rows_.end() && found->second.location == at;
    };
    return log.compact(budget_bytes, holds, [&](RecordId id, Location old, Location now) {
      CHECK(holds(id, old));
      rows_.at(key_of(id)).location = now;
    });
  }

  // Ids that are there.
  std::vector<RecordId> some(std::size_t count, std::mt19937& random) const {
    std::vector<RecordId> ids;
    for (std::size_t i = 0; i < count && !rows_.empty(); ++i) {
      auto at = rows_.lower_bound({random() % (rows_.rbegin()->first.first + 1), 0});
      if (at == rows_.end()) at = rows_.begin();
      ids.push_back({at->first.first, at->first.second});
    }
    return ids;
  }
  std::vector<RecordId> all() const {
    std::vector<RecordId> ids;
    for (const auto& [key, value] : rows_) ids.push_back({key.first, key.second});
    return ids;
  }

  sfctr::Fetch begin_read(const std::vector<RecordId>& ids) {
    std::vector<Location> locations;
    for (const RecordId& id : ids) locations.push_back(rows_.at(key_of(id)).location);
    return log.begin_read(locations);
  }
  std::vector<Row> expected(const std::vector<RecordId>& ids) const {
    std::vector<Row> rows;
    for (const RecordId& id : ids) rows.push_back(row_of(id, rows_.at(key_of(id)).version, num_bytes_));
    return rows;
  }
  void check(const std::vector<RecordId>& ids) { CHECK(run_fetch(begin_read(ids), ids, num_bytes_) == expected(ids)); }

  std::size_t num_rows() const { return rows_.size(); }

  RowLog log;

 private:
  using Key = std::pair<std::uint64_t, std::uint32_t>;
  struct Value {
    std::uint64_t version;
    Location location;
  };
  static Key key_of(const RecordId& id) { return {id.key, id.table}; }

  std::size_t num_bytes_;
  std::uint64_t version_ = 0;
  std::map<Key, Value> rows_;
};

// Whether this machine permits io_uring; where it does not, kAuto reads by threads and half of the tests with it.
inline bool has_uring() { return sfctr::Readers({.depth = 1, .num_rings = 1}).num_rings() > 0; }

}  // namespace rig
