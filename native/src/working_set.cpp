#include "sfctr/working_set.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>

#include "sfctr/thread_pool.h"
#include "sfctr/unique.h"

namespace sfctr {
namespace {

[[noreturn]] void refuse(std::size_t feature, const std::string& what) {
  throw std::invalid_argument("feature " + std::to_string(feature) + ": " + what);
}

void check_lengths(std::size_t f, const FeatureKeys& feature, std::size_t num_rows) {
  const std::size_t num_keys = feature.keys.size();
  const std::string counted = " has " + std::to_string(num_keys) + " keys";
  if (!feature.nulls.empty() && feature.nulls.size() != num_keys) {
    refuse(f, "nulls has " + std::to_string(feature.nulls.size()) + " entries and the feature" + counted);
  }
  if (!feature.weights.empty() && feature.weights.size() != num_keys) {
    refuse(f, "weights has " + std::to_string(feature.weights.size()) + " entries and the feature" + counted);
  }
  if (feature.pooling == Pooling::kOne) {
    if (!feature.offsets.empty() || !feature.weights.empty())
      refuse(f, "pooling 'one' takes no offsets and no weights");
    if (num_keys != num_rows)
      refuse(f, "pooling 'one' needs a key a row, and" + counted + " for " + std::to_string(num_rows) + " rows");
    return;
  }
  if (!feature.nulls.empty()) refuse(f, "nulls belong to pooling 'one'");
  if (feature.pooling == Pooling::kSequence && !feature.weights.empty()) refuse(f, "a sequence takes no weights");
  if (feature.offsets.size() != num_rows + 1) {
    refuse(f, "offsets has " + std::to_string(feature.offsets.size()) + " entries and must have one more than the " +
                  std::to_string(num_rows) + " rows");
  }
}

void check_offsets(std::size_t f, const FeatureKeys& feature) {
  if (feature.offsets.empty()) return;
  const auto last = static_cast<std::int64_t>(feature.keys.size());
  if (feature.offsets.front() != 0 || feature.offsets.back() != last) {
    refuse(f, "offsets must run from 0 to " + std::to_string(last) + ", the number of keys");
  }
  const auto longest = feature.pooling == Pooling::kSequence ? static_cast<std::int64_t>(feature.max_length) : last;
  for (std::size_t row = 0; row + 1 < feature.offsets.size(); ++row) {
    const std::int64_t length = feature.offsets[row + 1] - feature.offsets[row];
    if (length < 0) refuse(f, "offsets fall at row " + std::to_string(row));
    if (length > longest) {
      refuse(f, "row " + std::to_string(row) + " has " + std::to_string(length) + " keys and max_length is " +
                    std::to_string(longest));
    }
  }
}

}  // namespace

WorkingSet::WorkingSet(int num_tables, std::size_t num_rows, std::vector<FeatureKeys> features,
                       std::span<const int> rare_tables)
    : num_tables_(num_tables), num_rows_(num_rows), features_(std::move(features)) {
  check();
  has_rare_.resize(static_cast<std::size_t>(num_tables_), false);
  for (const int t : rare_tables) {
    if (t < 0 || t >= num_tables_) throw std::invalid_argument("rare_tables names table " + std::to_string(t));
    has_rare_[static_cast<std::size_t>(t)] = true;
  }
  features_of_.resize(static_cast<std::size_t>(num_tables_));
  num_positions_.resize(static_cast<std::size_t>(num_tables_), 0);
  std::size_t position = 0;
  for (std::size_t f = 0; f < features_.size(); ++f) {
    features_of_[static_cast<std::size_t>(features_[f].table)].push_back(f);
    num_positions_[static_cast<std::size_t>(features_[f].table)] += features_[f].keys.size();
    first_position_.push_back(position);
    position += features_[f].keys.size();
  }
  if (position >= std::numeric_limits<std::int32_t>::max() - 2) {
    throw std::length_error("a batch has " + std::to_string(position) + " keys in one group and may have 2^31 - 3");
  }
  ids_.resize(position);
  find_unique();
}

void WorkingSet::check() const {
  if (num_tables_ < 0) throw std::invalid_argument("num_tables is " + std::to_string(num_tables_));
  for (std::size_t f = 0; f < features_.size(); ++f) {
    if (features_[f].table < 0 || features_[f].table >= num_tables_) {
      refuse(f, "table is " + std::to_string(features_[f].table) + " and the group has " + std::to_string(num_tables_));
    }
    check_lengths(f, features_[f], num_rows_);
    check_offsets(f, features_[f]);
  }
}

void WorkingSet::redirect() {
  located.trained_ids.resize(ids_.size());
  std::ranges::copy(ids_.span(), located.trained_ids.data());
}

void WorkingSet::require_range(std::size_t begin, std::size_t end) const {
  if (begin <= end && end <= num_rows_) return;
  throw std::invalid_argument("rows [" + std::to_string(begin) + ", " + std::to_string(end) + ") of a batch of " +
                              std::to_string(num_rows_));
}

// Alone, a thread numbers one table after the other, each from where the one before ended. Several number all tables at
// once, and then move them together.
void WorkingSet::find_unique() {
  if (num_threads() > 1 && features_of_.size() > 1) return find_unique_apart();
  std::size_t room = kUniqueSpare + 2 * features_of_.size();
  for (const FeatureKeys& feature : features_) room += feature.keys.size();
  keys_.resize(room);
  std::int64_t begin = 0;
  table_begin_.push_back(begin);
  for (std::size_t t = 0; t < features_of_.size(); ++t) {
    begin += static_cast<std::int64_t>(number_table(t, keys_.data() + begin, static_cast<std::uint32_t>(begin)));
    table_begin_.push_back(begin);
    begin = list_beside(t, begin);
    for (std::size_t f : features_of_[t]) number_missing(f, 0);
  }
}

// The unique keys of a table, from a number on; those of its features that have none are kLeftOutId.
std::size_t WorkingSet::number_table(std::size_t t, std::uint64_t* unique, std::uint32_t base) {
  std::vector<UniqueInput> inputs;
  for (std::size_t f : features_of_[t]) {
    inputs.push_back({features_[f].keys, features_[f].nulls, features_[f].buckets, ids_.data() + first_position_[f]});
  }
  return inputs.empty() ? 0 : number_unique(inputs, unique, base);
}

// Lists what a table has beside its keys, from `begin` on. Returns where it ends.
std::int64_t WorkingSet::list_beside(std::size_t t, std::int64_t begin) {
  const auto has_missing = [&](std::size_t f) {
    return std::ranges::any_of(features_[f].nulls, [](std::uint8_t null) { return null != 0; });
  };
  if (std::ranges::any_of(features_of_[t], has_missing)) keys_[static_cast<std::size_t>(begin++)] = 0;
  if (has_rare_[t]) keys_[static_cast<std::size_t>(begin++)] = 1;
  table_begin_.push_back(begin);
  return begin;
}

// Moves a feature's numbers up by `first`, and gives missing values theirs.
void WorkingSet::number_missing(std::size_t f, std::int32_t first) {
  if (first == 0 && features_[f].nulls.empty()) return;
  const auto of_missing = static_cast<std::int32_t>(table_begin_[2 * static_cast<std::size_t>(features_[f].table) + 1]);
  std::int32_t* const ids = ids_.data() + first_position_[f];
  for (std::size_t n = 0; n < features_[f].keys.size(); ++n) {
    ids[n] = ids[n] == kLeftOutId ? of_missing : ids[n] + first;
  }
}

// Tables are independent: each is one task, and lists its keys in a region of keys_ as large as it could need.
void WorkingSet::find_unique_apart() {
  const std::size_t num_tables = features_of_.size();
  std::vector<std::size_t> region(num_tables + 1, 0);
  for (std::size_t t = 0; t < num_tables; ++t) {
    region[t + 1] = region[t] + kUniqueSpare + 2;  // and the rows of missing values and of refused keys
    for (std::size_t f : features_of_[t]) region[t + 1] += features_[f].keys.size();
  }
  keys_.resize(region[num_tables]);
  std::vector<std::size_t> found(num_tables, 0);
  parallel_for(num_tables, [&](std::size_t t) { found[t] = number_table(t, keys_.data() + region[t], 0); });
  number_across_tables(region, found);
}

// Moves the tables' lists together, and turns numbers inside a table into numbers inside the working set.
void WorkingSet::number_across_tables(std::span<const std::size_t> region, std::span<const std::size_t> found) {
  std::int64_t begin = 0;
  table_begin_.push_back(begin);
  for (std::size_t t = 0; t < found.size(); ++t) {
    std::copy_n(keys_.data() + region[t], found[t], keys_.data() + begin);
    begin += static_cast<std::int64_t>(found[t]);
    table_begin_.push_back(begin);
    begin = list_beside(t, begin);
  }
  parallel_for(features_.size(), [&](std::size_t f) {
    number_missing(f, static_cast<std::int32_t>(table_begin_[2 * static_cast<std::size_t>(features_[f].table)]));
  });
}

}  // namespace sfctr
