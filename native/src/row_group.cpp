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

Layout layout_of(std::size_t dim, bool linear, Rule vector_rule, Rule linear_rule, Element element) {
  if (dim == 0 && !linear) throw std::invalid_argument("dim is 0 and there is no first-order weight: nothing to hold");
  if (dim > kMaxDim) {
    throw std::invalid_argument("dim is " + std::to_string(dim) + " and must be at most " + std::to_string(kMaxDim));
  }
  if ((dim == 0) != (vector_rule == Rule::kNone)) {
    throw std::invalid_argument("the vector's rule must be 'none' exactly where dim is 0");
  }
  if (linear != (linear_rule != Rule::kNone)) {
    throw std::invalid_argument("linear needs a rule, and a rule for it needs linear");
  }
  return {.dim = dim,
          .linear = linear ? std::size_t{1} : 0,
          .vector_state = state_floats(vector_rule, dim),
          .linear_state = state_floats(linear_rule, 1),
          .element = element,
          .vector_words = element == Element::kBfloat16 ? (dim + 1) / 2 : dim};
}

std::uint64_t next_number() {
  static std::atomic<std::uint64_t> count{0};
  return ++count;
}

}  // namespace

RowGroup::RowGroup(std::size_t dim, Rule vector_rule, Rule linear_rule, bool linear, std::vector<TableInit> tables,
                   GroupTiers tiers, Element element)
    : layout_(layout_of(dim, linear, vector_rule, linear_rule, element)),
      vector_rule_(vector_rule),
      linear_rule_(linear_rule),
      inits_(std::move(tables)),
      budget_(std::move(tiers.budget)),
      policy_(tiers.policy),
      disk_(std::move(tiers.disk)),
      forgets_(tiers.forgets),
      members_(std::ranges::any_of(inits_, [](const TableInit& init) { return init.membership.tracks(); })
                   ? std::make_unique<Members>(inits_)
                   : nullptr),
      frames_(layout_.num_floats() * sizeof(float), policy_, budget_),
      next_uses_(2 * inits_.size()),
      kept_(2 * inits_.size(), layout_.num_floats(), tiers.snapshot_bytes),
      zeros_(layout_.num_floats(), 0.0f),
      faults_(std::move(tiers.faults)),
      number_(next_number()),
      table_counters_(inits_.size()) {
  for (std::size_t n = 0; n < 2 * inits_.size(); ++n) tables_.push_back({.index = Index(members_ != nullptr)});
  if (forgets_ && (disk_ || members_)) throw std::invalid_argument("copies have neither a disk nor membership");
  if (!disk_) return;
  disk_->record_bytes = layout_.num_floats() * sizeof(float);
  disk_->max_records = std::min<std::uint64_t>(disk_->max_records, Place::kMostLocations);
  RowLog::require_valid(*disk_);
}

RowGroup::~RowGroup() {
  budget_->give_buffers(buffer_bytes_);
  for (const NativeTable& table : tables_) budget_->give_keys(table.index.size());
  if (!members_) return;
  for (const Membership& table : members_->tables) budget_->give_keys(table.waiting().size());
}

RowLog& RowGroup::log() {
  if (log_) return *log_;
  std::error_code error;
  const std::filesystem::path directory(disk_->directory);
  if (directory.has_parent_path()) std::filesystem::create_directories(directory.parent_path(), error);
  if (error) throw DiskError("make", directory.parent_path(), error.value());
  log_ = std::make_unique<RowLog>(*disk_);
  buffer_bytes_ = budget_->take_buffers(log_->memory_bytes());
  return *log_;
}

void RowGroup::initialize_rows(std::size_t native_table, std::span<const std::uint64_t> keys,
                               float* const* records) const {
  const TableInit& init = inits_[native_table / 2];
  std::vector<float> tail(layout_.num_floats() - layout_.vector_words, 0.0f);  // weight and states
  float* const state = tail.data() + layout_.linear;
  if (has_accumulator(vector_rule_)) std::fill_n(state, layout_.vector_state, init.state0);
  if (has_accumulator(linear_rule_))
    std::fill_n(state + layout_.vector_state, layout_.linear_state, init.linear_state0);
  kernels().initialize({.element = layout_.element,
                        .seed = seed_of(native_table),
                        .normal = init.normal,
                        .a = init.a,
                        .b = init.b,
                        .dim = layout_.dim,
                        .num_rows = keys.size(),
                        .keys = keys.data(),
                        .records = records});
  for (std::size_t i = 0; i < keys.size(); ++i) std::copy(tail.begin(), tail.end(), records[i] + layout_.vector_words);
}

void RowGroup::require_located(const WorkingSet& ws) const {
  if (ws.located.group != number_) throw std::runtime_error("locate this working set in this group first");
  if (!ws.located.fetched) throw std::runtime_error("fetch this working set first");
  if (members_ && ws.located.train && !ws.located.settled) throw std::runtime_error("settle this working set first");
  if (!ws.located.train && !ws.located.adopted && ws.located.num_changes != num_changes_) {
    throw std::runtime_error("rows have changed since this working set was located for reading; locate it again");
  }
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
  if (native_table % 2 == 0) remove_stale(native_table / 2, 0, ~std::uint64_t{0});
  return table.index.size() - table.num_provisional;
}

std::size_t RowGroup::memory_bytes() {
  std::lock_guard lock(mutex_);
  drain();
  std::size_t total = frames_.memory_bytes() + next_uses_.memory_bytes() + (log_ ? log_->memory_bytes() : 0) +
                      (lines_ ? lines_->memory_bytes() : 0) + kept_.memory_bytes() +
                      tracking_.locations.memory_bytes() + tracking_.gone.memory_bytes() +
                      tracking_.unsent.memory_bytes();
  for (const std::vector<std::uint64_t>& keys : tracking_.tombstones) total += keys.capacity() * sizeof(std::uint64_t);
  for (const NativeTable& table : tables_) total += table.index.memory_bytes();
  if (members_) {
    for (const Membership& table : members_->tables) total += table.memory_bytes();
    total += members_->clock.points().size() * sizeof(EventClock::Point);
  }
  return total;
}

std::size_t RowGroup::num_in_flight() {
  std::lock_guard lock(mutex_);
  drain();
  return num_in_flight_;
}

LogCounters RowGroup::log_counters() {
  std::lock_guard lock(mutex_);
  return log_ ? log_->counters() : LogCounters{};
}

}  // namespace sfctr
