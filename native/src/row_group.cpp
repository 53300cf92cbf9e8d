// Tables and where the records of a working set are. Pooling, gradients, updates and the way of rows in and out are in
// files of their own.
#include "sfctr/row_group.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <stdexcept>

#include "key_blocks.h"
#include "sfctr/simd.h"
#include "sfctr/thread_pool.h"

namespace sfctr {
namespace {

constexpr std::size_t kLocateBlock = 2048;

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
                   Element element)
    : layout_(layout_of(dim, linear, vector_rule, linear_rule, element)),
      vector_rule_(vector_rule),
      linear_rule_(linear_rule),
      inits_(std::move(tables)),
      zeros_(layout_.num_floats(), 0.0f),
      number_(next_number()) {
  for (std::size_t n = 0; n < 2 * inits_.size(); ++n) {
    tables_.push_back({Index(), Slab(layout_.num_floats() * sizeof(float))});
  }
}

void RowGroup::locate(WorkingSet& ws, bool train) const {
  if (static_cast<std::size_t>(ws.num_tables()) != inits_.size()) {
    throw std::invalid_argument("the working set has " + std::to_string(ws.num_tables()) + " tables and the group " +
                                std::to_string(inits_.size()));
  }
  std::shared_lock lock(mutex_);
  Located& located = ws.located;
  located.group = 0;
  ws.gradients.any = false;
  located.records.resize(ws.num_unique());
  located.kinds.resize(ws.num_unique());
  const std::vector<KeyBlock> blocks = key_blocks(ws, kLocateBlock);
  std::vector<std::size_t> num_fresh(blocks.size());
  parallel_for(blocks.size(), [&](std::size_t b) { num_fresh[b] = locate_block(ws, blocks[b], train); });
  located.num_fresh = 0;
  for (std::size_t& count : num_fresh) located.num_fresh += std::exchange(count, located.num_fresh);
  located.fresh.resize(located.num_fresh * layout_.num_floats());
  if (located.num_fresh > 0) {
    parallel_for(blocks.size(), [&](std::size_t b) {
      make_fresh(ws, blocks[b], located.fresh.data() + num_fresh[b] * layout_.num_floats());
    });
  }
  located.train = train;
  located.version = version_;
  located.group = number_;
}

// Returns how many keys of the block need first values.
std::size_t RowGroup::locate_block(WorkingSet& ws, const KeyBlock& block, bool train) const {
  const NativeTable& table = tables_[block.native_table];
  const RecordKind if_none = train && !inits_[block.native_table / 2].frozen ? RecordKind::kFresh : RecordKind::kAbsent;
  std::uint32_t slots[kLocateBlock];
  table.index.find(ws.keys().subspan(block.begin, block.end - block.begin), slots);
  std::size_t num_missing = 0;
  for (std::size_t u = block.begin; u < block.end; ++u) {
    const std::uint32_t slot = slots[u - block.begin];
    const bool missing = slot == Index::kNone;
    num_missing += missing;
    ws.located.records[u] = missing ? const_cast<float*>(zeros_.data()) : record(table, slot);
    ws.located.kinds[u] = static_cast<std::uint8_t>(missing ? if_none : RecordKind::kStored);
  }
  return if_none == RecordKind::kFresh ? num_missing : 0;
}

void RowGroup::make_fresh(WorkingSet& ws, const KeyBlock& block, float* records) const {
  std::uint64_t keys[kLocateBlock];
  float* targets[kLocateBlock];
  std::size_t count = 0;
  for (std::size_t u = block.begin; u < block.end; ++u) {
    if (ws.located.kinds[u] != static_cast<std::uint8_t>(RecordKind::kFresh)) continue;
    keys[count] = ws.keys()[u];
    targets[count] = ws.located.records[u] = records + count * layout_.num_floats();
    ++count;
  }
  initialize_rows(block.native_table, {keys, count}, targets);
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
}

std::size_t RowGroup::num_new(const WorkingSet& ws) const {
  require_located(ws);
  return ws.located.num_fresh;
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

const RowGroup::NativeTable& RowGroup::table(std::size_t native_table) const {
  if (native_table < tables_.size()) return tables_[native_table];
  throw std::out_of_range("native table " + std::to_string(native_table) + " of " + std::to_string(tables_.size()));
}

std::uint64_t RowGroup::num_rows(std::size_t native_table) const {
  std::shared_lock lock(mutex_);
  return table(native_table).index.size();
}

std::uint32_t RowGroup::slot_end(std::size_t native_table) const {
  std::shared_lock lock(mutex_);
  return table(native_table).slab.end();
}

std::size_t RowGroup::memory_bytes() const {
  std::shared_lock lock(mutex_);
  std::size_t total = 0;
  for (const NativeTable& table : tables_) total += table.index.memory_bytes() + table.slab.memory_bytes();
  std::lock_guard exporting(export_mutex_);
  return total + keys_by_slot_.memory_bytes();
}

}  // namespace sfctr
