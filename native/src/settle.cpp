// Membership of the rows of a group: who has a row when a batch is handed out, and what a committed step changes.
#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

#include "key_blocks.h"
#include "sfctr/row_group.h"
#include "sfctr/thread_pool.h"

namespace sfctr {
namespace {

constexpr std::size_t kBlock = 2048;
constexpr std::uint64_t kLastHash = ~std::uint64_t{0};
constexpr unsigned kSweepBits = 8;  // a committed step looks through one of 2^8 parts of the hashes for stale rows

}  // namespace

RowGroup::Members::Members(std::span<const TableInit> inits) {
  for (const TableInit& init : inits) {
    tables.emplace_back(init.membership);
    longest_ns = std::max(longest_ns, init.membership.expire_after_ns);
  }
}

Membership* RowGroup::members_of(std::size_t t) {
  if (t >= inits_.size()) {
    throw std::out_of_range("table " + std::to_string(t) + " of " + std::to_string(inits_.size()));
  }
  return members_ ? &members_->tables[t] : nullptr;
}

bool RowGroup::is_row(std::size_t native_table, std::uint32_t slot, std::uint32_t stamp) const {
  const Place place = Place::from_bits(slot);
  if (place.is_none() || place.is_provisional()) return false;
  return !members_ || native_table % 2 == 1 || !members_->tables[native_table / 2].is_stale(stamp);
}

// Slots of the keys that have a row, Index::kNone of others.
void RowGroup::find_rows(std::size_t native_table, std::span<const std::uint64_t> keys, std::uint32_t* slots) const {
  const Index& index = tables_[native_table].index;
  std::vector<std::uint32_t> stamps(members_ ? keys.size() : 0);
  if (members_) {
    index.find(keys, slots, stamps.data());
  } else {
    index.find(keys, slots);
  }
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (!is_row(native_table, slots[i], members_ ? stamps[i] : 0)) slots[i] = Index::kNone;
  }
}

void RowGroup::settle(WorkingSet& ws, std::int64_t time) {
  if (!members_) return;
  Located& located = ws.located;
  if (located.group != number_ || !located.train || !located.fetched) {
    throw std::runtime_error("plan and fetch this working set first");
  }
  if (located.adopted) require_own(ws);
  if (located.settled) return;
  std::lock_guard lock(mutex_);
  drain();
  if (kept_.is_open()) keep_stale(ws);
  const std::vector<KeyBlock> blocks = key_blocks(ws, kBlock);
  parallel_for(blocks.size(), [&](std::size_t b) { settle_block(ws, blocks[b]); });
  redirect_refused(ws);
  located.time = time;
  located.settled = members_->is_settled = true;
}

void RowGroup::settle_block(WorkingSet& ws, const KeyBlock& block) {
  Located& located = ws.located;
  const std::size_t n = block.native_table, t = n / 2;
  if (inits_[t].frozen) return;
  const Membership& members = members_->tables[t];
  const auto keys = ws.keys().subspan(block.begin, block.end - block.begin);
  float* const refused = ws.has_rare(t) ? located.records[ws.rare_id(t)] : zeros_.data();
  std::uint32_t slots[kBlock];
  std::uint64_t fresh[kBlock];
  float* records[kBlock];
  std::size_t num_fresh = 0;
  find_rows(n, keys, slots);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const std::size_t u = block.begin + i;
    RecordKind kind = RecordKind::kStored;
    if (slots[i] == Index::kNone) {
      kind = n % 2 == 1 || members.admits(keys[i]) ? RecordKind::kFresh : RecordKind::kRefused;
    }
    located.kinds[u] = static_cast<std::uint8_t>(kind);
    if (kind == RecordKind::kRefused) located.records[u] = refused;
    if (kind != RecordKind::kFresh) continue;
    fresh[num_fresh] = keys[i];
    records[num_fresh++] = located.records[u];
  }
  if (num_fresh > 0) initialize_rows(n, {fresh, num_fresh}, records);
}

// What comes to a refused key trains its table's rare row.
void RowGroup::redirect_refused(WorkingSet& ws) const {
  constexpr auto kRefused = static_cast<std::uint8_t>(RecordKind::kRefused);
  const std::uint8_t* const kinds = ws.located.kinds.data();
  std::vector<bool> redirects(inits_.size());
  for (std::size_t t = 0; t < inits_.size(); ++t) {
    const auto begin = kinds + ws.table_begin()[2 * t], end = kinds + ws.table_begin()[2 * t + 1];
    redirects[t] = ws.has_rare(t) && std::find(begin, end, kRefused) != end;
  }
  if (std::ranges::find(redirects, true) == redirects.end()) return;
  ws.redirect();
  parallel_for(ws.features().size(), [&](std::size_t f) {
    const auto t = static_cast<std::size_t>(ws.features()[f].table);
    if (!redirects[t]) return;
    const auto rare = static_cast<std::int32_t>(ws.rare_id(t));
    for (std::int32_t& id : ws.trained_ids(f)) id = kinds[id] == kRefused ? rare : id;
  });
}

std::vector<RowGroup::Seen> RowGroup::seen_keys(const WorkingSet& ws) const {
  std::vector<Seen> seen;
  if (!ws.gradients.any) return seen;
  for (std::uint32_t t = 0; t < inits_.size(); ++t) {
    for (auto u = static_cast<std::size_t>(ws.table_begin()[2 * t]);
         u < static_cast<std::size_t>(ws.table_begin()[2 * t + 1]); ++u) {
      const std::uint8_t reached = ws.gradients.reached[u];
      if (reached != 0) seen.push_back({t, (reached & Gradients::kRefused) != 0, ws.keys()[u]});
    }
  }
  return seen;
}

void RowGroup::commit_members(const Ended& batch) {
  Members& members = *members_;
  const auto step = static_cast<std::uint32_t>(batch.step);
  for (const Seen& seen : batch.seen) {
    Membership& table = members.tables[seen.table];
    if (seen.refused) {
      budget_->take_keys(table.note_refused(seen.key, step));
    } else {
      const Index::Entry entry = tables_[2 * seen.table].index.entry_of(seen.key);
      budget_->give_keys(table.note_trained(seen.key, entry, step));
    }
  }
  members.step = step;
  if (members.longest_ns > 0) {
    members.clock.advance(step, batch.time);
    members.clock.forget_beyond(members.longest_ns);
  }
  const std::uint64_t part = std::uint64_t{step} << (64 - kSweepBits);
  for (std::size_t t = 0; t < members.tables.size(); ++t) {
    Membership& table = members.tables[t];
    table.end_step(step, members.clock);
    remove_stale(t, part, part + (kLastHash >> kSweepBits));
    table.rows().enforce(tables_[2 * t].index, [&](std::uint64_t key, std::uint32_t stamp) {
      ++(table.is_stale(stamp) ? table.counters.expired : table.counters.removed);
      take_out(2 * t, key);
    });
    budget_->give_keys(table.forget_surplus());
  }
}

// Stale rows among the keys whose hash is in [first, last].
void RowGroup::remove_stale(std::size_t t, std::uint64_t first, std::uint64_t last) {
  if (!members_) return;
  Membership& table = members_->tables[t];
  const std::vector<std::uint64_t> keys = table.stale_rows(tables_[2 * t].index, first, last);
  keep_rows(static_cast<std::uint32_t>(2 * t), keys);
  for (const std::uint64_t key : keys) {
    ++table.counters.expired;
    take_out(2 * t, key);
  }
}

// The key has a row no more. Batches in flight keep its frame.
void RowGroup::take_out(std::size_t native_table, std::uint64_t key) {
  NativeTable& table = tables_[native_table];
  keep_rows(static_cast<std::uint32_t>(native_table), {&key, 1});
  if (tracking_.is_on) note_gone(static_cast<std::uint32_t>(native_table), key);
  std::uint32_t* const slot = table.index.slot_of(key);
  const Place place = Place::from_bits(*slot);
  const bool is_key = native_table % 2 == 0;  // or else the row of missing values, or of rare keys: no rule holds there
  if (members_ && is_key) members_->tables[native_table / 2].rows().drop(key);
  if (lists_gone_ && is_key) {
    const auto t = static_cast<std::uint32_t>(native_table / 2);
    if (gone_.empty() || gone_.back().table != t) gone_.push_back({t, {}});
    gone_.back().keys.push_back(key);
  }
  if (place.is_in_ram() && frames_.num_pins(place.frame()) > 0) {
    *slot = Place::provisional(place.frame()).bits();
    frames_.drop_tags(place.frame(), RowTags::kRow | RowTags::kTravelling);
    *table.index.entry_of(key).stamp = kUnborn;
    ++table.num_provisional;
    return;
  }
  if (place.is_in_ram()) {
    frames_.give(place.frame());
  } else {
    const Location location = place.location();
    log().release({&location, 1});
    ++num_uncompacted_;  // garbage, as a row that is written again leaves it
  }
  table.index.erase(key);
  budget_->give_keys(1);
}

std::uint64_t RowGroup::remove_rows(std::size_t native_table, std::span<const std::uint64_t> keys) {
  if (kept_.is_open()) kept_.wait_for_room();
  std::lock_guard lock(mutex_);
  drain();
  table(native_table);  // refuses one that is not there
  if (members_ ? members_->is_settled : num_in_flight_ > 0) {
    throw std::runtime_error("rows cannot be removed while a batch that may hold them is in flight; end it first");
  }
  if (lines_ && lines_->num_taken() > 0) throw std::runtime_error("drop the lines first: rows are on a device");
  Membership* const members = native_table % 2 == 0 ? members_of(native_table / 2) : nullptr;
  ++num_changes_;
  std::uint64_t count = 0;
  keep_rows(static_cast<std::uint32_t>(native_table), keys);
  for (const std::uint64_t key : keys) {
    if (members) budget_->give_keys(members->forget(key));
    std::uint32_t slot;
    find_rows(native_table, {&key, 1}, &slot);
    if (slot == Index::kNone) continue;
    take_out(native_table, key);
    ++count;
  }
  if (members) members->counters.withdrawn += count;
  return count;
}

std::size_t RowGroup::num_shares(std::size_t t) {
  const Membership* const members = members_of(t);
  return members ? members->num_shares() : kNumShards;
}

MembershipCounters RowGroup::membership(std::size_t t, std::uint64_t& num_waiting) {
  std::lock_guard lock(mutex_);
  drain();
  const Membership* const members = members_of(t);
  num_waiting = members ? members->waiting().size() : 0;
  if (!members) return {};
  remove_stale(t, 0, kLastHash);
  return members->counters;
}

RowGroup::Waiting RowGroup::waiting(std::size_t t) {
  std::lock_guard lock(mutex_);
  drain();
  Waiting found;
  const Membership* const members = members_of(t);
  if (!members) return found;
  std::vector<Index::Listed> listed;
  members->waiting().in_order(0, std::numeric_limits<std::size_t>::max(), listed);
  for (const Index::Listed& each : listed) {
    found.keys.push_back(each.key);
    found.counts.push_back(each.slot);
    found.last.push_back(each.stamp);
  }
  return found;
}

void RowGroup::last_trained(std::size_t native_table, std::span<const std::uint64_t> keys,
                            std::span<std::uint32_t> out) {
  std::lock_guard lock(mutex_);
  drain();
  std::fill(out.begin(), out.end(), 0);
  NativeTable& table = this->table(native_table);
  if (!members_ || native_table % 2 == 1) return;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const Index::Entry entry = table.index.entry_of(keys[i]);
    if (entry && is_row(native_table, *entry.slot, *entry.stamp)) out[i] = *entry.stamp;
  }
}

std::deque<EventClock::Point> RowGroup::clock() {
  std::lock_guard lock(mutex_);
  drain();
  return members_ ? members_->clock.points() : std::deque<EventClock::Point>{};
}

void RowGroup::restore_membership(std::size_t t, const MembershipCounters& counters, const Waiting& waiting) {
  std::lock_guard lock(mutex_);
  drain();
  Membership* const members = members_of(t);
  if (!members) return;
  members->counters = counters;
  budget_->give_keys(members->forget_waiting());
  for (std::size_t i = 0; i < waiting.keys.size(); ++i) {
    budget_->take_keys(!members->forget(waiting.keys[i]));
    members->restore_waiting(waiting.keys[i], waiting.counts[i], waiting.last[i]);
  }
  members->waiting_bound().forget_order();
}

void RowGroup::restore_clock(std::uint64_t step, std::deque<EventClock::Point> points) {
  std::lock_guard lock(mutex_);
  drain();
  if (!members_) return;
  members_->step = static_cast<std::uint32_t>(step);
  ++num_changes_;
  if (members_->longest_ns > 0) members_->clock.set_points(std::move(points));
  for (Membership& table : members_->tables) table.end_step(members_->step, members_->clock);
}

// The key's row was trained last in this step, says who imports it.
void RowGroup::stamp(RecordId id, std::uint32_t step) {
  if (!members_) return;
  const Index::Entry entry = tables_[id.table].index.entry_of(id.key);
  BoundedKeys& rows = members_->tables[id.table / 2].rows();
  if (std::exchange(*entry.stamp, step) == kUnborn && id.table % 2 == 0) rows.add(id.key);
}

void RowGroup::list_gone(bool on) {
  std::lock_guard lock(mutex_);
  lists_gone_ = on;
  if (!on) gone_.clear();
}

std::vector<RowGroup::Gone> RowGroup::take_gone() {
  std::lock_guard lock(mutex_);
  drain();
  return std::exchange(gone_, {});
}

}  // namespace sfctr
