// The unique keys of one batch, for the tables of one group: what a step reads, trains and writes, and nothing else.
//
// A table t of the group is two native tables: 2t holds its keys, 2t + 1 the row of a missing value (its only key is
// 0). Unique keys are numbered by native table, then by first appearance (feature, then position): their numbers are
// the virtual ids, and depend neither on threads nor on any table's contents. A table that has one lists its rare row,
// key 1 of native table 2t + 1, with every batch.
//
// A working set of sources has no features and no rows: it lists the unique keys of other working sets, for whoever
// holds the rows that they ask for. A rare row is then one of those keys, and need not be there.
//
// A working set belongs to one thread at a time. RowGroup (row_group.h) leaves in it where each key's record is, and
// the gradients of the step. It may not move or go while a group has it in flight, or knows of it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "sfctr/kernels.h"
#include "sfctr/memory.h"

namespace sfctr {

// What one feature looks up. The spans must outlive the working set.
struct FeatureKeys {
  int table;
  Pooling pooling;
  std::span<const std::uint64_t> keys;    // [N]
  std::span<const std::int64_t> offsets;  // [B + 1], rising from 0 to N; empty for kOne, where N = B
  std::span<const std::uint8_t> nulls;    // [N], 1: the value is missing; empty: none is. kOne alone
  std::span<const float> weights;         // [N] of kSum and kMean, or empty
  std::size_t max_length = 0;             // of kSequence: no row may have more
  std::uint64_t buckets = 0;              // above 0: keys are hashed into so many

  std::size_t first_position(std::size_t row) const {
    return offsets.empty() ? row : static_cast<std::size_t>(offsets[row]);
  }
  // Vectors that one row of the batch becomes.
  std::size_t vectors_a_row() const { return pooling == Pooling::kSequence ? max_length : 1; }
};

// Some of the unique keys of another working set, as it numbers them, wherever that is.
struct KeyList {
  std::span<const std::uint64_t> keys;        // [n]
  std::span<const std::int64_t> table_begin;  // [2 * num_tables + 1], rising from 0 to n
};

class Fetch;

// kAbsent: without a row, reads as zeros or as the table's rare row. kRefused: the same in training, because the key
// must still wait for a row. kFresh: without a row, with its first values in training. The numbers go to other
// processes.
enum class RecordKind : std::uint8_t { kStored = 0, kAbsent = 1, kRefused = 2, kFresh = 3 };

// A record that must be read from disk before the batch is ready.
struct Load {
  std::uint32_t key;  // unique key it belongs to
  std::uint32_t location;
};

// Where records were found, for which group.
struct Located {
  std::uint64_t group = 0;             // RowGroup's number; 0: not located
  bool train = false;                  // located for training: its frames are pinned until update() or discard()
  bool adopted = false;                // its records are the weights of rows from elsewhere, and nothing is pinned
  bool fetched = false;                // every record is there
  bool settled = false;                // and it is decided whose rows they are
  std::uint64_t num_changes = 0;       // of reading: how often rows of the group had changed by then
  std::int64_t time = 0;               // greatest event time of the batch
  Buffer<float*> records;              // [U]
  Buffer<std::uint8_t> kinds;          // [U], a RecordKind
  Buffer<std::uint32_t> places;        // [U], bits of a Place; of training: frames, or none for a record in copies
  Buffer<std::int32_t> trained_ids;    // position -> virtual id that takes its gradient; empty: the position's own
  Buffer<float> copies;                // records of their own: all of a reader's, those of training that found no frame
  std::vector<std::uint32_t> fresh;    // of training: keys without a row when the batch was planned
  std::vector<std::uint32_t> scratch;  // of training: keys whose record is in copies, in its order
  std::vector<Load> loads;
  std::shared_ptr<Fetch> reading;  // of loads
  Buffer<std::uint32_t> stamps;    // [U], with membership and where a snapshot is under way: last step before this one
};

// Where records are on a device, and what must move before the batch is ready there; see lines.cpp.
struct OnDevice {
  enum class State : std::uint8_t { kNone, kPlanned, kWritten, kReady };
  State state = State::kNone;
  Buffer<std::uint32_t> lines;         // [U], DeviceLines::kNone for a key without one
  std::vector<std::uint32_t> rising;   // keys whose record must be put into their line
  std::vector<std::uint32_t> leaving;  // lines whose record must first be put into RAM
  std::size_t num_parting = 0;         // of leaving, the first so many are then free; the others are rising keys'
  std::vector<std::uint32_t> spilled;  // keys that found no line
};

// What a batch that is known but not yet planned says of the future; see next_uses.h.
struct Known {
  std::uint64_t batch = 0;          // its number; 0: not known
  std::vector<std::uint64_t> next;  // [U], number of the next known batch that uses the key, 0 for none
};

// Gradients of unique keys; those of a key are undefined until reached says otherwise.
struct Gradients {
  static constexpr std::uint8_t kVector = 1, kLinear = 2, kRefused = 4;  // bits of reached
  bool any = false;
  Buffer<float> vectors;         // [U, dim]
  Buffer<float> linear;          // [U]
  Buffer<std::uint8_t> reached;  // [U]

  bool any_trained(std::size_t u) const { return any && (reached[u] & (kVector | kLinear)) != 0; }
};

class WorkingSet {
 public:
  // Throws std::invalid_argument naming the feature by number where shapes, offsets or options do not fit together,
  // std::length_error from 2^31 - 2 positions on, std::bad_alloc.
  // rare_tables: numbers of tables that list their rare row.
  WorkingSet(int num_tables, std::size_t num_rows, std::vector<FeatureKeys> features,
             std::span<const int> rare_tables = {});

  // The unique keys of all sources, numbered by native table, then by first appearance (source, then position). Throws
  // std::invalid_argument naming the source by number where its table_begin does not fit, and what the constructor
  // does.
  static WorkingSet of_sources(int num_tables, std::span<const KeyList> sources);

  int num_tables() const { return num_tables_; }
  std::size_t num_rows() const { return num_rows_; }
  std::span<const FeatureKeys> features() const { return features_; }
  std::size_t num_unique() const { return static_cast<std::size_t>(table_begin_.back()); }

  // [U]; hashed already where the feature has buckets.
  std::span<const std::uint64_t> keys() const { return keys_.span().first(num_unique()); }
  // [2 * num_tables + 1]: native table n owns virtual ids [table_begin[n], table_begin[n + 1]).
  std::span<const std::int64_t> table_begin() const { return table_begin_; }
  // [N] of feature f: position -> virtual id.
  std::span<const std::int32_t> virtual_ids(std::size_t f) const {
    return ids_.span().subspan(first_position_[f], features_[f].keys.size());
  }

  bool is_of_sources() const { return num_sources_ > 0; }
  // [n] of source p: its key -> virtual id. REQUIRES: is of sources, and p is one.
  std::span<const std::int32_t> source_ids(std::size_t p) const {
    return ids_.span().subspan(first_position_[p], first_position_[p + 1] - first_position_[p]);
  }
  std::size_t num_sources() const { return num_sources_; }
  // Positions that look something up in table t: of features, or keys of sources.
  std::size_t num_positions(std::size_t t) const { return num_positions_[t]; }

  // The rare row of table t among the unique keys, as a batch lists it. REQUIRES: the table lists one.
  bool has_rare(std::size_t t) const { return has_rare_[t]; }
  std::size_t rare_id(std::size_t t) const { return static_cast<std::size_t>(table_begin_[2 * t + 2]) - 1; }

  // Position -> the virtual id that takes its gradient; to be changed after redirect(), which begins with its own.
  void redirect();
  std::span<const std::int32_t> trained_ids(std::size_t f) const {
    if (located.trained_ids.size() == 0) return virtual_ids(f);
    return located.trained_ids.span().subspan(first_position_[f], features_[f].keys.size());
  }
  std::span<std::int32_t> trained_ids(std::size_t f) {
    return located.trained_ids.span().subspan(first_position_[f], features_[f].keys.size());
  }

  // Throws std::invalid_argument unless begin <= end <= num_rows().
  void require_range(std::size_t begin, std::size_t end) const;

  Known known;
  Located located;
  OnDevice on_device;
  Gradients gradients;

 private:
  explicit WorkingSet(int num_tables);

  void number_sources(std::span<const KeyList> sources);
  void check() const;
  void find_unique();
  void find_unique_apart();
  std::size_t number_table(std::size_t t, std::uint64_t* unique, std::uint32_t base);
  std::int64_t list_beside(std::size_t t, std::int64_t begin);
  void number_missing(std::size_t f, std::int32_t first);
  void number_across_tables(std::span<const std::size_t> region, std::span<const std::size_t> found);

  int num_tables_;
  std::size_t num_rows_;
  std::vector<FeatureKeys> features_;
  std::vector<bool> has_rare_;                         // [num_tables]
  std::vector<std::vector<std::size_t>> features_of_;  // table -> its features, in order
  std::vector<std::size_t> num_positions_;             // [num_tables]
  std::vector<std::size_t> first_position_;            // feature, or source, -> position of its first id in ids_
  std::size_t num_sources_ = 0;
  std::vector<std::int64_t> table_begin_;
  Buffer<std::uint64_t> keys_;
  Buffer<std::int32_t> ids_;
};

}  // namespace sfctr
