// Planning: which records of a batch are in RAM, which must be read or made, and whose frames they get.
#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "key_blocks.h"
#include "sfctr/row_group.h"
#include "sfctr/thread_pool.h"

namespace sfctr {
namespace {

constexpr std::size_t kBlock = 2048;
constexpr std::size_t kAhead = 8;  // frames whose cache lines are on their way

// The native table of a unique key, for keys asked about in rising order.
class TableOf {
 public:
  explicit TableOf(const WorkingSet& ws) : table_begin_(ws.table_begin()) {}
  std::size_t operator()(std::size_t u) {
    while (static_cast<std::size_t>(table_begin_[table_ + 1]) <= u) ++table_;
    return table_;
  }

 private:
  std::span<const std::int64_t> table_begin_;
  std::size_t table_ = 0;
};

}  // namespace

void RowGroup::require_tables(const WorkingSet& ws) const {
  if (static_cast<std::size_t>(ws.num_tables()) != inits_.size()) {
    throw std::invalid_argument("the working set has " + std::to_string(ws.num_tables()) + " tables and the group " +
                                std::to_string(inits_.size()));
  }
  if (ws.is_of_sources()) return;
  for (std::size_t t = 0; t < inits_.size(); ++t) {
    if (ws.has_rare(t) == inits_[t].membership.rare) continue;
    throw std::invalid_argument(
        "table " + std::to_string(t) + " has a rare row in the " +
        (ws.has_rare(t) ? "working set and not in the group" : "group and not in the working set"));
  }
}

void RowGroup::announce(WorkingSet& ws) {
  require_tables(ws);
  std::lock_guard lock(mutex_);
  if (evicts_ || lines_) next_uses_.enter(ws);
}

bool RowGroup::plan(WorkingSet& ws) {
  require_tables(ws);
  if (ws.located.group == number_ && ws.located.adopted) require_own(ws);
  if (ws.located.group == number_ && ws.located.train) discard(ws);
  std::lock_guard lock(mutex_);
  return plan_locked(ws);
}

bool RowGroup::plan_locked(WorkingSet& ws) {
  is_shrinking_ = false;
  drain();
  if (refused_) std::rethrow_exception(std::exchange(refused_, nullptr));
  if (scratch_in_flight_ || (is_full_ && !start_evicting())) {
    ++counters_.waits;
    return false;
  }
  compact();  // before places are looked up: it moves rows
  is_shrinking_ = !shrink_to_budget() && num_in_flight_ > 0;
  if (is_shrinking_) {
    ++counters_.shrinks;
    return false;
  }
  start(ws, true);
  const Found found = find_places(ws);
  if (!forgets_) budget_->require_index(found.fresh);
  ws.located.fresh.reserve(ws.num_unique());  // so that pinning, and noting what is new, cannot fail
  budget_->take_keys(found.fresh);
  if (pins_all() || found.provisional > 0) pin_found(ws);
  std::vector<std::uint32_t> frames;
  const auto undo = [&] {
    for (const std::uint32_t frame : frames) frames_.give(frame);
    unpin_found(ws);
    budget_->give_keys(found.fresh);
  };
  try {
    frames = free_frames(found.num_missing());
    if (frames.size() < found.num_missing() && !disk_ && !forgets_) {
      throw RamFull(budget_->used() + (found.num_missing() - frames.size()) * frames_.frame_bytes());
    }
  } catch (...) {
    undo();
    throw;
  }
  if (frames.size() < found.num_missing() && (num_in_flight_ > 0 || !evicts_)) {
    undo();
    is_full_ = !evicts_;
    if (num_in_flight_ == 0) return plan_locked(ws);
    ++counters_.waits;
    return false;
  }
  ++num_in_flight_;
  if (found.num_missing() > 0) place_missing(ws, frames, found.fresh);
  ws.located.group = number_;
  next_uses_.leave(ws);
  count(ws, found.tables);
  if (faults_) strike_plan(ws);
  return true;
}

void RowGroup::start(WorkingSet& ws, bool train) {
  Located& located = ws.located;
  located.group = 0;
  located.train = train;
  located.adopted = false;
  located.fetched = false;
  located.settled = false;
  located.trained_ids.resize(0);
  located.records.resize(ws.num_unique());
  located.kinds.resize(ws.num_unique());
  located.places.resize(ws.num_unique());
  located.fresh.clear();
  located.scratch.clear();
  located.loads.clear();
  located.reading.reset();
  ws.on_device.state = OnDevice::State::kNone;
  ws.gradients.any = false;
}

RowGroup::Found RowGroup::find_places(WorkingSet& ws) {
  const std::vector<KeyBlock> blocks = key_blocks(ws, kBlock);
  std::vector<Found> parts(blocks.size());
  parallel_for(blocks.size(), [&](std::size_t b) { parts[b] = find_block(ws, blocks[b]); });
  Found found;
  found.tables.resize(inits_.size());
  for (std::size_t t = 0; t < inits_.size(); ++t) {
    found.tables[t].requested = ws.num_positions(t);
    found.tables[t].unique = static_cast<std::uint64_t>(ws.table_begin()[2 * t + 2] - ws.table_begin()[2 * t]);
    found.tables[t].hits = found.tables[t].unique;
  }
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    RowCounters& table = found.tables[blocks[b].native_table / 2];
    table.fetched += parts[b].on_disk;
    table.fresh += parts[b].fresh;
    table.hits -= parts[b].num_missing();
    found.on_disk += parts[b].on_disk;
    found.fresh += parts[b].fresh;
    found.provisional += parts[b].provisional;
  }
  return found;
}

RowGroup::Found RowGroup::find_block(WorkingSet& ws, const KeyBlock& block) {
  Located& located = ws.located;
  const auto keys = ws.keys().subspan(block.begin, block.end - block.begin);
  std::uint32_t* const places = located.places.data() + block.begin;
  if (located.train) {
    tables_[block.native_table].index.find(keys, places);
  } else {
    find_rows(block.native_table, keys, places);
  }
  const bool frozen = inits_[block.native_table / 2].frozen;
  const auto without = static_cast<std::uint8_t>(frozen ? RecordKind::kAbsent : RecordKind::kFresh);
  Found found;
  for (std::size_t u = block.begin; u < block.end; ++u) {
    const Place place = Place::from_bits(located.places[u]);
    const bool stored = !place.is_none() && !place.is_provisional();
    located.kinds[u] = stored ? static_cast<std::uint8_t>(RecordKind::kStored) : without;
    located.records[u] = place.is_in_ram() ? frames_.record(place.frame()) : zeros_.data();
    found.on_disk += place.is_on_disk();
    found.fresh += place.is_none() && !frozen;
    found.provisional += place.is_in_ram() && place.is_provisional();
  }
  return found;
}

// Where rows never leave RAM only provisional ones need a pin, which keeps them from being dropped; with membership
// all, so that none that is removed loses its frame.
void RowGroup::pin_found(WorkingSet& ws) {
  const Located& located = ws.located;
  for (std::size_t u = 0; u < ws.num_unique(); ++u) {
    if (pins_all() && u + kAhead < ws.num_unique()) {
      const Place ahead = Place::from_bits(located.places[u + kAhead]);
      if (ahead.is_in_ram()) frames_.prefetch(ahead.frame());
    }
    const Place place = Place::from_bits(located.places[u]);
    if (!place.is_in_ram() || !(pins_all() || place.is_provisional())) continue;
    frames_.pin(place.frame());
    if (evicts_) frames_.note_use(place.frame());
    if (members_ || place.is_provisional()) ws.located.fresh.push_back(static_cast<std::uint32_t>(u));
  }
}

void RowGroup::unpin_found(WorkingSet& ws) {
  for (std::size_t u = 0; u < ws.num_unique(); ++u) {
    const Place place = Place::from_bits(ws.located.places[u]);
    if (place.is_in_ram() && (pins_all() || place.is_provisional())) frames_.unpin(place.frame());
  }
}

// As many of num_frames as can be had; rows leave for them where they may.
std::vector<std::uint32_t> RowGroup::free_frames(std::size_t num_frames) {
  std::vector<std::uint32_t> frames;
  frames.reserve(num_frames);
  const auto take = [&] {
    while (frames.size() < num_frames) {
      const std::uint32_t frame = frames_.take();
      if (frame == Frames::kNone) return;
      frames.push_back(frame);
    }
  };
  try {
    take();
    if (!evicts_ || frames.size() == num_frames) return frames;
    for (const std::uint32_t frame : frames) frames_.pin(frame);  // they have no owner and are no victims
    const auto unpin = [&] {
      for (const std::uint32_t frame : frames) frames_.unpin(frame);
    };
    try {
      evict(frames_.choose(num_frames - frames.size(),
                           [&](const Owner& owner) { return next_uses_.of(owner.table, owner.key); }));
    } catch (...) {
      unpin();
      throw;
    }
    unpin();
    take();
    return frames;
  } catch (...) {
    for (const std::uint32_t frame : frames) frames_.give(frame);
    throw;
  }
}

// Until RAM is full for the first time nothing is kept for evictions: frames have no owners, and rows that are there to
// stay no pins. So it begins between batches.
bool RowGroup::start_evicting() {
  if (num_in_flight_ > 0) return false;
  frames_.keep_owners();
  for (std::uint32_t n = 0; n < tables_.size(); ++n) {
    tables_[n].index.for_each(
        [&](std::uint64_t key, std::uint32_t bits) { frames_.set_owner(Place::from_bits(bits).frame(), {key, n}); });
  }
  evicts_ = true;
  is_full_ = false;
  return true;
}

// Keys take what they need, so that frames may have to go: each group gives its share of what is too much, and of what
// is spared for keys to come.
std::size_t RowGroup::num_excess_frames() const {
  if (!evicts_ || !budget_->is_over() || frames_.end() == 0) return 0;
  budget_->spare_for_keys();
  const double over = static_cast<double>(budget_->used() + budget_->spare() - budget_->limit());
  const double share = over / static_cast<double>(std::max<std::uint64_t>(1, budget_->frame_bytes()));
  return std::min<std::size_t>(frames_.end(), static_cast<std::size_t>(share * frames_.end()) + 1);
}

// False where pinned frames at the end of RAM are in the way.
bool RowGroup::shrink_to_budget() {
  const std::size_t num_frames = num_excess_frames();
  if (num_frames == 0) return true;
  const std::size_t end = frames_.end();
  evict(frames_.tail(num_frames));
  frames_.shrink(num_frames);
  return end - frames_.end() == num_frames;
}

void RowGroup::evict(std::span<const std::uint32_t> victims) {
  if (victims.empty()) return;
  if (forgets_) return forget(victims);
  std::vector<RecordId> ids(victims.size());
  std::vector<const std::byte*> records(victims.size());
  std::vector<Location> locations(victims.size());
  for (std::size_t i = 0; i < victims.size(); ++i) {
    const Owner owner = frames_.owner(victims[i]);
    ids[i] = {owner.key, owner.table};
    records[i] = reinterpret_cast<const std::byte*>(frames_.record(victims[i]));
  }
  append(ids, records, locations.data());
  for (std::size_t i = 0; i < victims.size(); ++i) {
    *tables_[ids[i].table].index.slot_of(ids[i].key) = Place::on_disk(locations[i]).bits();
    set_tags(Place::on_disk(locations[i]), frames_.tags(victims[i]));
    frames_.give(victims[i]);
    ++table_counters_[ids[i].table / 2].evicted;
  }
}

void RowGroup::forget(std::span<const std::uint32_t> victims) {
  for (const std::uint32_t frame : victims) {
    const Owner owner = frames_.owner(frame);
    take_out(owner.table, owner.key);
    ++table_counters_[owner.table / 2].evicted;
  }
}

// Throws what RowLog::append does.
void RowGroup::append(std::span<const RecordId> ids, std::span<const std::byte* const> records, Location* locations) {
  if (tracking_.is_on) tracking_.locations.cover(log().reach(ids.size()));
  if (!faults_) {
    log().append(ids, records.data(), locations);
  } else {
    std::vector<const std::byte*> written(records.begin(), records.end());
    const std::vector<std::vector<float>> copies = faulty_copies(ids, written);
    log().append(ids, written.data(), locations);
  }
  num_uncompacted_ += ids.size();
}

// num_keys: those that the budget was asked for, for keys without a row.
void RowGroup::place_missing(WorkingSet& ws, std::vector<std::uint32_t>& frames, std::size_t num_keys) {
  Located& located = ws.located;
  std::vector<std::uint32_t> added;
  TableOf table_of(ws);
  try {
    for (std::uint32_t u = 0; u < ws.num_unique(); ++u) {
      const Place place = Place::from_bits(located.places[u]);
      const bool is_fresh = located.kinds[u] == static_cast<std::uint8_t>(RecordKind::kFresh);
      if (place.is_in_ram() || (place.is_none() && !is_fresh)) continue;
      if (is_fresh) added.push_back(u);
      if (frames.empty()) {
        located.scratch.push_back(u);
        if (place.is_on_disk()) located.loads.push_back({u, place.location()});
        continue;
      }
      place_key(ws, table_of(u), u, frames.back());
      num_keys -= is_fresh;
      frames.pop_back();
    }
    budget_->give_keys(std::exchange(num_keys, 0));  // of scratch, until they are rows
    located.copies.resize(located.scratch.size() * layout_.num_floats());
    for (std::size_t i = 0; i < located.scratch.size(); ++i) {
      located.records[located.scratch[i]] = located.copies.data() + i * layout_.num_floats();
    }
    begin_reading(ws);
    if (!members_ && !forgets_) fill_fresh(ws, added);  // else settle() and fill() do
  } catch (...) {
    for (const std::uint32_t frame : frames) frames_.give(frame);
    budget_->give_keys(num_keys);
    located.scratch.clear();
    return_loads(ws);
    end_batch(ws, 0);
    throw;
  }
  scratch_in_flight_ = !located.scratch.empty();
}

// Gives the key a pinned frame; whatever may fail comes before the first change.
void RowGroup::place_key(WorkingSet& ws, std::size_t native_table, std::uint32_t u, std::uint32_t frame) {
  Located& located = ws.located;
  NativeTable& table = tables_[native_table];
  const std::uint64_t key = ws.keys()[u];
  const Place before = Place::from_bits(located.places[u]);
  const bool is_fresh = before.is_none();
  const Place place = is_fresh ? Place::provisional(frame) : Place::in_ram(frame);
  if (is_fresh || members_) located.fresh.push_back(u);
  if (is_fresh) {
    table.index.insert(key, place.bits(), members_ ? kUnborn : 0);
    ++table.num_provisional;
  } else {
    located.loads.push_back({u, before.location()});
    *table.index.slot_of(key) = place.bits();
    frames_.set_tags(frame, RowTags::kRow | RowTags::kUnread | tags_of(before));
  }
  frames_.set_owner(frame, {key, static_cast<std::uint32_t>(native_table)});
  frames_.pin(frame);
  if (evicts_) frames_.note_use(frame);
  located.places[u] = place.bits();
  located.records[u] = frames_.record(frame);
}

void RowGroup::begin_reading(WorkingSet& ws) {
  if (ws.located.loads.empty()) return;
  if (ws.located.train) loading_.push_back(&ws);
  std::vector<Location> locations;
  for (const Load& load : ws.located.loads) locations.push_back(load.location);
  ws.located.reading = std::make_shared<Fetch>(log().begin_read(locations));
}

void RowGroup::fill_fresh(WorkingSet& ws, std::span<const std::uint32_t> added) const {
  const std::vector<KeyBlock> blocks = key_blocks(ws, kBlock);
  parallel_for(blocks.size(), [&](std::size_t b) {
    std::uint64_t keys[kBlock];
    float* records[kBlock];
    std::size_t count = 0;
    for (auto u = std::ranges::lower_bound(added, blocks[b].begin); u != added.end() && *u < blocks[b].end; ++u) {
      keys[count] = ws.keys()[*u];
      records[count++] = ws.located.records[*u];
    }
    if (count > 0) initialize_rows(blocks[b].native_table, {keys, count}, records);
  });
}

}  // namespace sfctr
