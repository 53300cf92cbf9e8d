// Records on their way from disk: of a planned batch into its frames, of a view into copies of its own.
#include <algorithm>
#include <stdexcept>
#include <unordered_map>
#include <utility>

#include "key_blocks.h"
#include "sfctr/row_group.h"
#include "sfctr/thread_pool.h"

namespace sfctr {
namespace {

constexpr std::size_t kBlock = 2048;

RecordId id_of(const WorkingSet& ws, std::uint32_t u) {
  const auto table_begin = ws.table_begin();
  const auto after = std::ranges::upper_bound(table_begin, static_cast<std::int64_t>(u));
  return {ws.keys()[u], static_cast<std::uint32_t>(after - table_begin.begin() - 1)};
}

void read_loads(WorkingSet& ws) {
  std::vector<RecordId> ids;
  std::vector<std::byte*> records;
  for (const Load& load : ws.located.loads) {
    ids.push_back(id_of(ws, load.key));
    records.push_back(reinterpret_cast<std::byte*>(ws.located.records[load.key]));
  }
  ws.located.reading->run(ids, records.data());
  ws.located.reading.reset();
}

}  // namespace

void RowGroup::fetch(WorkingSet& ws) {
  if (ws.located.group != number_ || !ws.located.train) throw std::runtime_error("plan this working set first");
  if (ws.located.fetched) return;
  try {
    if (!ws.located.loads.empty()) read_loads(ws);
    std::lock_guard lock(mutex_);
    require_no_orphans(ws);
    std::vector<Location> read;
    for (const Load& load : ws.located.loads) {
      const Place place = Place::from_bits(ws.located.places[load.key]);
      if (!place.is_in_ram()) continue;
      read.push_back(load.location);
      frames_.drop_tags(place.frame(), RowTags::kUnread);
    }
    if (!read.empty()) log().release(read);
    end_loading(ws);
  } catch (...) {
    discard(ws);
    throw;
  }
  ws.located.fetched = true;
}

// A batch shares the frames of those before it, and a frame that never got its record holds no row.
void RowGroup::require_no_orphans(const WorkingSet& ws) const {
  if (orphans_.empty()) return;
  for (const std::uint32_t bits : ws.located.places.span()) {
    const Place place = Place::from_bits(bits);
    if (!place.is_in_ram() || !orphans_.contains(place.frame())) continue;
    throw std::runtime_error("a batch planned before this one ended before its rows were read; plan this one again");
  }
}

void RowGroup::end_loading(WorkingSet& ws) {
  ws.located.loads.clear();
  ws.located.reading.reset();
  std::erase(loading_, &ws);
}

// The rows that batches in flight have not read yet are on disk as well: replaces their frames by where.
void RowGroup::read_around(std::span<std::uint32_t> places) const {
  std::unordered_map<std::uint32_t, Location> loads;
  for (const WorkingSet* const ws : loading_) {
    for (const Load& load : ws->located.loads) {
      const Place place = Place::from_bits(ws->located.places[load.key]);
      if (place.is_in_ram()) loads.emplace(place.frame(), load.location);
    }
  }
  if (loads.empty()) return;
  for (std::uint32_t& bits : places) {
    const Place place = Place::from_bits(bits);
    if (!place.is_in_ram()) continue;
    if (const auto found = loads.find(place.frame()); found != loads.end()) bits = Place::on_disk(found->second).bits();
  }
}

// Keeps garbage within its bound by moving rows in proportion to those appended since. Rows that are being loaded are
// on disk as well, until they are read, and may move there.
void RowGroup::compact() {
  if (num_uncompacted_ == 0) return;
  const std::size_t budget_bytes = log().compaction_bytes(std::exchange(num_uncompacted_, 0));
  if (tracking_.is_on) {
    tracking_.locations.cover(log().reach(budget_bytes / (layout_.num_floats() * sizeof(float))));
  }
  std::unordered_map<Location, std::pair<const WorkingSet*, Load*>> loads;  // made when the first record is to move
  bool made = false;
  const auto find_loads = [&] {
    if (std::exchange(made, true)) return;
    for (WorkingSet* const ws : loading_) {
      for (Load& load : ws->located.loads) loads[load.location] = {ws, &load};
    }
  };
  const auto holds = [&](RecordId id, Location at) {
    find_loads();
    if (const auto found = loads.find(at); found != loads.end()) {
      return id_of(*found->second.first, found->second.second->key) == id;
    }
    if (id.table >= tables_.size()) return false;
    const std::uint32_t* const slot = tables_[id.table].index.slot_of(id.key);
    return slot && *slot == Place::on_disk(at).bits();
  };
  log().compact(budget_bytes, holds, [&](RecordId id, Location old, Location now) {
    set_tags(Place::on_disk(now), tags_of(Place::on_disk(old)));
    if (const auto found = loads.find(old); found != loads.end()) {
      found->second.second->location = now;
    } else {
      *tables_[id.table].index.slot_of(id.key) = Place::on_disk(now).bits();
    }
  });
}

// The rows are on disk as before; frames that batches in flight share belong to nobody until those end.
void RowGroup::return_loads(WorkingSet& ws) {
  const auto table_begin = ws.table_begin();
  for (const Load& load : ws.located.loads) {
    const Place place = Place::from_bits(ws.located.places[load.key]);
    if (!place.is_in_ram()) continue;
    const auto after = std::ranges::upper_bound(table_begin, static_cast<std::int64_t>(load.key));
    const auto native_table = static_cast<std::size_t>(after - table_begin.begin() - 1);
    std::uint32_t* const slot = tables_[native_table].index.slot_of(ws.keys()[load.key]);
    const std::uint8_t tags = frames_.tags(place.frame());
    frames_.drop_tags(place.frame(), 0xFF);
    if (Place::from_bits(*slot).is_provisional()) {  // removed meanwhile
      log().release({&load.location, 1});
      continue;
    }
    *slot = Place::on_disk(load.location).bits();
    set_tags(Place::on_disk(load.location), tags);
    ws.located.places[load.key] = Place::none().bits();
    if (frames_.unpin(place.frame()) == 0) {
      frames_.give(place.frame());
    } else {
      orphans_.insert(place.frame());
    }
  }
  end_loading(ws);
}

void RowGroup::view(WorkingSet& ws) {
  require_tables(ws);
  if (ws.located.group == number_ && ws.located.train) discard(ws);
  {
    std::lock_guard lock(mutex_);
    drain();
    start(ws, false);
    ws.located.num_changes = num_changes_;
    find_places(ws);
    read_around(ws.located.places.span());
    point_view(ws);
    begin_reading(ws);
  }
  if (!ws.located.loads.empty()) read_loads(ws);
  ws.located.loads.clear();
  ws.located.fetched = true;
  ws.located.group = number_;
}

// Where rows may leave RAM, now or soon, each is copied, because nothing pins it for a reader.
void RowGroup::point_view(WorkingSet& ws) {
  Located& located = ws.located;
  const std::size_t num_floats = layout_.num_floats();
  if (disk_ || forgets_) located.copies.resize(ws.num_unique() * num_floats);
  parallel_ranges(ws.num_unique(), kBlock, [&](std::size_t begin, std::size_t end) {
    for (std::size_t u = begin; u < end; ++u) {
      const Place place = Place::from_bits(located.places[u]);
      if (place.is_none()) {
        located.kinds[u] = static_cast<std::uint8_t>(RecordKind::kAbsent);
        located.records[u] = zeros_.data();
      } else if (disk_ || forgets_) {
        float* const copy = located.copies.data() + u * num_floats;
        if (place.is_in_ram()) std::copy_n(frames_.record(place.frame()), num_floats, copy);
        located.records[u] = copy;
      }
    }
  });
  for (std::size_t t = 0; t < inits_.size(); ++t) {
    if (!ws.has_rare(t)) continue;
    for (auto u = ws.table_begin()[2 * t]; u < ws.table_begin()[2 * t + 1]; ++u) {
      const auto key = static_cast<std::size_t>(u);
      if (Place::from_bits(located.places[key]).is_none()) located.records[key] = located.records[ws.rare_id(t)];
    }
  }
  for (std::uint32_t u = 0; u < ws.num_unique(); ++u) {
    const Place place = Place::from_bits(located.places[u]);
    if (place.is_on_disk()) located.loads.push_back({u, place.location()});
  }
}

void RowGroup::locate(WorkingSet& ws, bool train) {
  if (!train) return view(ws);
  if (!plan(ws)) throw std::runtime_error("batches in flight hold the frames that this working set needs");
  fetch(ws);
}

}  // namespace sfctr
