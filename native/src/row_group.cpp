// Tables and how their rows begin. Planning, fetching, pooling, gradients, updates, the end of a batch and the way of
// rows in and out are in files of their own.
#include "sfctr/row_group.h"

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <mutex>
#include <stdexcept>

#include "key_blocks.h"
#include "sfctr/simd.h"
#include "sfctr/thread_pool.h"

namespace sfctr {
namespace {

Layout layout_of(std::size_t dim, bool linear, Rule vector_rule, Rule linear_rule) {
  if (dim == 0 && !linear) throw std::invalid_argument("dim is 0 and there is no first-order weight: nothing to hold");
  if ((dim == 0) != (vector_rule == Rule::kNone)) {
    throw std::invalid_argument("the vector's rule must be 'none' exactly where dim is 0");
  }
  if (linear != (linear_rule != Rule::kNone)) {
    throw std::invalid_argument("linear needs a rule, and a rule for it needs linear");
  }
  return {dim, linear ? std::size_t{1} : 0, state_floats(vector_rule, dim), state_floats(linear_rule, 1)};
}

std::uint64_t next_number() {
  static std::atomic<std::uint64_t> count{0};
  return ++count;
}

}  // namespace

RowGroup::RowGroup(std::size_t dim, Rule vector_rule, Rule linear_rule, bool linear, std::vector<TableInit> tables,
                   GroupTiers tiers)
    : layout_(layout_of(dim, linear, vector_rule, linear_rule)),
      vector_rule_(vector_rule),
      linear_rule_(linear_rule),
      inits_(std::move(tables)),
      budget_(std::move(tiers.budget)),
      policy_(tiers.policy),
      disk_(std::move(tiers.disk)),
      tables_(2 * inits_.size()),
      frames_(layout_.num_floats() * sizeof(float), policy_, budget_),
      next_uses_(2 * inits_.size()),
      zeros_(layout_.num_floats(), 0.0f),
      number_(next_number()) {
  if (disk_) disk_->record_bytes = layout_.num_floats() * sizeof(float);
}

RowGroup::~RowGroup() {
  for (const NativeTable& table : tables_) budget_->give_keys(table.index.size());
}

RowLog& RowGroup::log() {
  if (log_) return *log_;
  std::error_code error;
  const std::filesystem::path directory(disk_->directory);
  if (directory.has_parent_path()) std::filesystem::create_directories(directory.parent_path(), error);
  if (error) throw DiskError("make", directory.parent_path(), error.value());
  log_ = std::make_unique<RowLog>(*disk_);
  return *log_;
}

bool RowGroup::is_spilling() {
  std::lock_guard lock(mutex_);
  return evicts_;
}

void RowGroup::initialize_rows(std::size_t native_table, std::span<const std::uint64_t> keys,
                               float* const* records) const {
  const TableInit& init = inits_[native_table / 2];
  std::vector<float> tail(layout_.num_floats() - layout_.dim, 0.0f);  // weight and states
  float* const state = tail.data() + layout_.linear;
  if (has_accumulator(vector_rule_)) std::fill_n(state, layout_.vector_state, init.state0);
  if (has_accumulator(linear_rule_))
    std::fill_n(state + layout_.vector_state, layout_.linear_state, init.linear_state0);
  kernels().initialize({.seed = native_table % 2 == 0 ? init.seed : init.null_seed,
                        .normal = init.normal,
                        .a = init.a,
                        .b = init.b,
                        .dim = layout_.dim,
                        .num_rows = keys.size(),
                        .keys = keys.data(),
                        .records = records});
  for (std::size_t i = 0; i < keys.size(); ++i) std::copy(tail.begin(), tail.end(), records[i] + layout_.dim);
}

void RowGroup::require_located(const WorkingSet& ws) const {
  if (ws.located.group != number_) throw std::runtime_error("locate this working set in this group first");
}

std::vector<std::int64_t> RowGroup::unseen(const WorkingSet& ws) const {
  require_located(ws);
  std::vector<std::int64_t> counts(ws.features().size(), 0);
  parallel_for(counts.size(), [&](std::size_t f) {
    const std::uint8_t* const kinds = ws.located.kinds.data();
    for (const std::int32_t id : ws.virtual_ids(f)) {
      counts[f] += kinds[id] != static_cast<std::uint8_t>(RecordKind::kStored);
    }
  });
  return counts;
}

RowGroup::NativeTable& RowGroup::table(std::size_t native_table) {
  if (native_table < tables_.size()) return tables_[native_table];
  throw std::out_of_range("native table " + std::to_string(native_table) + " of " + std::to_string(tables_.size()));
}

std::uint64_t RowGroup::num_rows(std::size_t native_table) {
  std::lock_guard lock(mutex_);
  drain();
  const NativeTable& table = this->table(native_table);
  return table.index.size() - table.num_provisional;
}

std::size_t RowGroup::memory_bytes() {
  std::lock_guard lock(mutex_);
  drain();
  std::size_t total = frames_.memory_bytes() + next_uses_.memory_bytes() + (log_ ? log_->memory_bytes() : 0) +
                      (lines_ ? lines_->memory_bytes() : 0);
  for (const NativeTable& table : tables_) total += table.index.memory_bytes();
  return total;
}

GroupCounters RowGroup::counters() {
  std::lock_guard lock(mutex_);
  return counters_;
}

LogCounters RowGroup::log_counters() {
  std::lock_guard lock(mutex_);
  return log_ ? log_->counters() : LogCounters{};
}

}  // namespace sfctr
