// Working sets of the keys that others ask for.
#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "sfctr/thread_pool.h"
#include "sfctr/unique.h"
#include "sfctr/working_set.h"

namespace sfctr {
namespace {

void check_source(std::size_t p, const KeyList& source, std::size_t num_native_tables) {
  const auto begin = source.table_begin;
  const auto refuse = [&](const std::string& what) {
    throw std::invalid_argument("source " + std::to_string(p) + ": table_begin " + what);
  };
  if (begin.size() != num_native_tables + 1) {
    refuse("has " + std::to_string(begin.size()) + " entries and must have " + std::to_string(num_native_tables + 1));
  }
  if (begin.front() != 0 || begin.back() != static_cast<std::int64_t>(source.keys.size())) {
    refuse("must run from 0 to " + std::to_string(source.keys.size()) + ", the number of keys");
  }
  if (!std::ranges::is_sorted(begin)) refuse("falls");
}

}  // namespace

WorkingSet::WorkingSet(int num_tables) : num_tables_(num_tables), num_rows_(0) {
  check();
  has_rare_.resize(static_cast<std::size_t>(num_tables), false);
  features_of_.resize(static_cast<std::size_t>(num_tables));
  num_positions_.resize(static_cast<std::size_t>(num_tables), 0);
}

WorkingSet WorkingSet::of_sources(int num_tables, std::span<const KeyList> sources) {
  WorkingSet ws(num_tables);
  if (sources.empty()) throw std::invalid_argument("a working set of sources needs at least one");
  ws.num_sources_ = sources.size();
  std::size_t position = 0;
  for (std::size_t p = 0; p < sources.size(); ++p) {
    check_source(p, sources[p], 2 * ws.features_of_.size());
    ws.first_position_.push_back(position);
    position += sources[p].keys.size();
    for (std::size_t t = 0; t < ws.num_positions_.size(); ++t) {
      ws.num_positions_[t] +=
          static_cast<std::size_t>(sources[p].table_begin[2 * t + 2] - sources[p].table_begin[2 * t]);
    }
  }
  ws.first_position_.push_back(position);
  if (position >= std::numeric_limits<std::int32_t>::max() - 2) {
    throw std::length_error("sources have " + std::to_string(position) + " keys in one group and may have 2^31 - 3");
  }
  ws.ids_.resize(position);
  ws.number_sources(sources);
  return ws;
}

// As find_unique(): each native table is a task, and lists its keys in a region as large as it could need.
void WorkingSet::number_sources(std::span<const KeyList> sources) {
  const std::size_t num_native = 2 * features_of_.size();
  const auto keys_of = [](const KeyList& source, std::size_t n) {
    const auto first = static_cast<std::size_t>(source.table_begin[n]);
    return source.keys.subspan(first, static_cast<std::size_t>(source.table_begin[n + 1]) - first);
  };
  const auto ids_of = [&](std::size_t p, std::size_t n) {
    return ids_.data() + first_position_[p] + static_cast<std::size_t>(sources[p].table_begin[n]);
  };
  std::vector<std::size_t> region(num_native + 1, 0), found(num_native, 0);
  for (std::size_t n = 0; n < num_native; ++n) {
    region[n + 1] = region[n] + kUniqueSpare;
    for (const KeyList& source : sources) region[n + 1] += keys_of(source, n).size();
  }
  keys_.resize(region[num_native]);
  parallel_for(num_native, [&](std::size_t n) {
    std::vector<UniqueInput> inputs;
    for (std::size_t p = 0; p < sources.size(); ++p) {
      const auto keys = keys_of(sources[p], n);
      if (!keys.empty()) inputs.push_back({.keys = keys, .nulls = {}, .buckets = 0, .ids = ids_of(p, n)});
    }
    if (!inputs.empty()) found[n] = number_unique(inputs, keys_.data() + region[n]);
  });
  table_begin_.assign(1, 0);
  for (std::size_t n = 0; n < num_native; ++n) {
    std::copy_n(keys_.data() + region[n], found[n], keys_.data() + table_begin_.back());
    table_begin_.push_back(table_begin_.back() + static_cast<std::int64_t>(found[n]));
  }
  parallel_for(num_native, [&](std::size_t n) {
    const auto first = static_cast<std::int32_t>(table_begin_[n]);
    for (std::size_t p = 0; p < sources.size(); ++p) {
      std::int32_t* const ids = ids_of(p, n);
      for (std::size_t i = 0; i < keys_of(sources[p], n).size(); ++i) ids[i] += first;
    }
  });
}

}  // namespace sfctr
