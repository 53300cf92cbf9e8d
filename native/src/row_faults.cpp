// The faults, and what a group does where they strike.
#include "sfctr/row_faults.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "key_blocks.h"
#include "sfctr/row_group.h"

namespace sfctr {
namespace {

constexpr std::string_view kNames[] = {"fetch_early", "drop_write_back", "apply_twice", "lose_state", "use_wrong_slot"};

}  // namespace

RowFault RowFaults::named(std::string_view name) {
  const auto* const found = std::ranges::find(kNames, name);
  if (found != std::end(kNames)) return static_cast<RowFault>(found - kNames);
  throw std::invalid_argument("there is no fault of rows '" + std::string(name) + "'");
}

void RowFaults::arm(RowFault fault, std::uint64_t skip, std::uint64_t times) {
  std::lock_guard lock(mutex_);
  Rule& rule = rules_[static_cast<std::size_t>(fault)];
  rule.skip = skip;
  rule.times = times;
}

std::uint64_t RowFaults::num_struck(RowFault fault) const {
  std::lock_guard lock(mutex_);
  return rules_[static_cast<std::size_t>(fault)].struck;
}

bool RowFaults::strikes(RowFault fault) {
  std::lock_guard lock(mutex_);
  Rule& rule = rules_[static_cast<std::size_t>(fault)];
  if (rule.times == 0) return false;
  if (rule.skip > 0) {
    --rule.skip;
    return false;
  }
  if (rule.times != kForever) --rule.times;
  ++rule.struck;
  return true;
}

// Of a batch that has been planned.
void RowGroup::strike_plan(WorkingSet& ws) {
  Located& located = ws.located;
  const auto is_kept = [&](std::size_t u) { return Place::from_bits(located.places[u]).is_in_ram(); };
  if (num_in_flight_ > 1 && faults_->strikes(RowFault::kFetchEarly)) {
    located.copies.resize(ws.num_unique() * layout_.num_floats());
    for (std::size_t u = 0; u < ws.num_unique(); ++u) {
      if (!is_kept(u)) continue;
      const bool is_read = std::ranges::any_of(located.loads, [&](const Load& load) { return load.key == u; });
      if (is_read) continue;
      float* const copy = located.copies.data() + u * layout_.num_floats();
      std::copy_n(located.records[u], layout_.num_floats(), copy);
      located.records[u] = copy;
    }
  }
  for (const KeyBlock& block : key_blocks(ws, ws.num_unique())) {
    if (block.end - block.begin < 2 || !is_kept(block.begin) || !is_kept(block.begin + 1)) continue;
    if (!faults_->strikes(RowFault::kUseWrongSlot)) continue;
    std::swap(located.records[block.begin], located.records[block.begin + 1]);
  }
}

// Has the records that are struck replaced by others, which it returns.
std::vector<std::vector<float>> RowGroup::faulty_copies(std::span<const RecordId> ids,
                                                        std::span<const std::byte*> records) const {
  std::vector<std::vector<float>> copies;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const bool drops = faults_->strikes(RowFault::kDropWriteBack), forgets = faults_->strikes(RowFault::kLoseState);
    if (!drops && !forgets) continue;
    std::vector<float>& copy = copies.emplace_back(layout_.num_floats());
    float* const target = copy.data();
    initialize_rows(ids[i].table, {&ids[i].key, 1}, &target);
    if (!drops) std::copy_n(reinterpret_cast<const float*>(records[i]), layout_.vector_state_offset(), target);
    records[i] = reinterpret_cast<const std::byte*>(target);
  }
  return copies;
}

// What was read early is written where it belongs all the same.
void RowGroup::strike_update(WorkingSet& ws) {
  Located& located = ws.located;
  if (!located.scratch.empty() || faults_->num_struck(RowFault::kFetchEarly) == 0) return;
  std::lock_guard lock(mutex_);
  for (std::size_t u = 0; u < ws.num_unique(); ++u) {
    const Place place = Place::from_bits(located.places[u]);
    if (place.is_in_ram()) located.records[u] = frames_.record(place.frame());
  }
}

// The keys whose gradients are to be applied once more.
std::vector<KeyBlock> RowGroup::struck_twice(const WorkingSet& ws) const {
  std::vector<std::uint32_t> counts(ws.num_unique(), 0);
  for (std::size_t f = 0; f < ws.features().size(); ++f) {
    for (const std::int32_t id : ws.virtual_ids(f)) ++counts[static_cast<std::size_t>(id)];
  }
  std::vector<KeyBlock> keys = key_blocks(ws, 1);
  std::erase_if(keys,
                [&](const KeyBlock& key) { return counts[key.begin] < 2 || !ws.gradients.any_trained(key.begin); });
  if (keys.empty() || !faults_->strikes(RowFault::kApplyTwice)) keys.clear();
  return keys;
}

}  // namespace sfctr
