// Snapshots: the rows of a group as they are between two steps, given out while training goes on.
//
// A row that a snapshot has and that was not given out yet is pending (snapshot.h). Beginning one is a pass over tags;
// no record is copied. A pending row has its record as it was, until someone copies it: either take_snapshot(), or
// whoever is about to change or remove the row, who keeps it beside (KeptRows). The rules:
//  1. Whoever changes the record of a row, its stamp, or the fact that it is one, has first seen that it is not
//  pending,
//     or kept it. Those that hold mutex_ do so by keep_rows(); a step, which does not, by keep_batch().
//  2. The pending tag of a frame is taken away only under the mutex of KeptRows, in the same breath in which its record
//     is copied. So a step that has gone through its keys under that mutex may change them: nobody is copying.
//     On disk nothing changes, and a read that has begun stays good: there mutex_ is enough.
//  3. Tags go where the row goes, under mutex_: moving a row is no change.
//  4. A stamp is changed by commit_members() and imports alone. So until a row is kept, its stamp in the index is that
//     of the snapshot; a step has read it in settle(), which runs when all steps before have ended.
//  5. Provisional records are no rows: begin_snapshot() sees kRow in the tags of a frame.
//  6. Whoever waits for room in KeptRows holds no lock, so that take_snapshot() can make it. Where rows leave while
//     mutex_ is held (capacity, expiry), they are kept beyond the bound; import_rows(), remove_rows() and lower() wait
//     before they begin.
#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <utility>

#include "sfctr/row_group.h"

namespace sfctr {
namespace {

constexpr std::uint64_t kLastHash = ~std::uint64_t{0};
constexpr std::size_t kRowsAtOnce = 2048;        // given out while mutex_ is held
constexpr std::uint64_t kMostKeys = 1 << 15;     // looked at while it is
constexpr std::size_t kCopiesAtOnce = 128;       // under the mutex of KeptRows
constexpr std::size_t kReadsAtOnce = 1024;       // kept as one
constexpr std::size_t kAhead = 8;                // frames whose cache lines are on their way
constexpr std::uint64_t kMostGone = 1 << 17;     // keys that are listed whatever the number of rows
constexpr std::chrono::microseconds kPause{20};  // for those who wait for mutex_, which is not fair

std::uint32_t native_table_of(const WorkingSet& ws, std::uint32_t u) {
  const auto table_begin = ws.table_begin();
  const auto after = std::ranges::upper_bound(table_begin, static_cast<std::int64_t>(u));
  return static_cast<std::uint32_t>(after - table_begin.begin() - 1);
}

}  // namespace

std::uint8_t RowGroup::tags_of(Place place) const {
  if (place.is_in_ram()) return frames_.tags(place.frame());
  return tracking_.is_on ? tracking_.locations.of(place.location()) : 0;
}

void RowGroup::set_tags(Place place, std::uint8_t tags) {
  if (place.is_in_ram()) {
    frames_.set_tags(place.frame(), tags);
  } else if (tracking_.is_on) {
    tracking_.locations.set(place.location(), tags);
  }
}

void RowGroup::drop_tags(Place place, std::uint8_t tags) {
  if (place.is_in_ram()) {
    frames_.drop_tags(place.frame(), tags);
  } else {
    set_tags(place, tags_of(place) & static_cast<std::uint8_t>(~tags));
  }
}

// Nothing is kept of changes before the first snapshot. REQUIRES: between two steps.
void RowGroup::begin_tracking() {
  if (tracking_.is_on) return;
  frames_.fix_tags();
  if (log_) tracking_.locations.cover(log_->reach(0));
  tracking_.gone.begin(tables_.size(), most_gone());
  tracking_.is_on = true;
}

void RowGroup::require_between_steps() const {
  if (members_ && members_->is_settled) throw std::runtime_error("a batch is in training; end it first");
  if (lines_ && lines_->num_dirty() > 0) throw std::runtime_error("lower the dirty lines first");
}

void RowGroup::let_stale_go() {
  for (std::size_t t = 0; t < inits_.size(); ++t) remove_stale(t, 0, kLastHash);
}

void RowGroup::begin_snapshot(bool full) {
  std::lock_guard lock(mutex_);
  drain();
  if (kept_.is_open()) throw std::runtime_error("a snapshot is under way; end it first");
  require_between_steps();
  begin_tracking();
  let_stale_go();
  if (!full && (tracking_.is_unsaved || tracking_.gone.is_lost())) {
    throw std::runtime_error("there is no snapshot that this one could follow; it must be full");
  }
  frames_.retag(full ? RowTags::kRow : RowTags::kChanged, RowTags::kChanged | RowTags::kPending, RowTags::kPending);
  tracking_.locations.begin(full);
  tracking_.tombstones = tracking_.gone.take();
  tracking_.gone.begin(tables_.size(), most_gone());
  tracking_.table = 0;
  tracking_.from = 0;
  tracking_.num_keys = kRowsAtOnce;
  tracking_.deferred.clear();
  tracking_.is_complete = false;
  tracking_.failure = nullptr;
  kept_.open();
}

void RowGroup::end_snapshot(bool kept) {
  std::lock_guard lock(mutex_);
  if (!kept_.is_open()) throw std::runtime_error("no snapshot is under way");
  if (kept && !tracking_.is_complete) throw std::runtime_error("take all rows of a snapshot before it is kept");
  tracking_.is_unsaved = !kept;
  tracking_.tombstones.clear();
  kept_.close();
}

bool RowGroup::needs_full() {
  std::lock_guard lock(mutex_);
  drain();
  return tracking_.is_unsaved || tracking_.gone.is_lost();
}

void RowGroup::mark_saved() {
  std::lock_guard lock(mutex_);
  drain();
  if (kept_.is_open()) throw std::runtime_error("a snapshot is under way; end it first");
  begin_tracking();
  frames_.retag(0, RowTags::kChanged | RowTags::kPending, 0);
  tracking_.locations.drop(RowTags::kChanged | RowTags::kPending);
  tracking_.gone.begin(tables_.size(), most_gone());
  tracking_.is_unsaved = false;
}

// Where more went than these, all rows cost no more than the list would.
std::uint64_t RowGroup::most_gone() const {
  std::uint64_t most = kMostGone;
  for (const NativeTable& table : tables_) most += table.index.size();
  return most;
}

void RowGroup::note_gone(std::uint32_t native_table, std::uint64_t key) {
  if (!tracking_.is_unsaved || kept_.is_open()) tracking_.gone.add(native_table, key);  // or else the next is full
  if (tracking_.is_followed) tracking_.unsent.add(native_table, key);
}

std::vector<std::vector<std::uint64_t>> RowGroup::take_tombstones() {
  std::lock_guard lock(mutex_);
  std::vector<std::vector<std::uint64_t>> tombstones = std::exchange(tracking_.tombstones, {});
  tombstones.resize(tables_.size());
  for (std::vector<std::uint64_t>& keys : tombstones) {
    std::ranges::sort(keys);
    keys.erase(std::ranges::unique(keys).begin(), keys.end());
  }
  return tombstones;
}

// What a snapshot says of when a row was trained last: rows beside the keys have no age.
std::uint32_t RowGroup::stamp_of(std::uint32_t native_table, std::uint32_t stamp) const {
  return members_ && native_table % 2 == 0 ? stamp : 0;
}

// Of the batch that is trained now.
void RowGroup::tag_trained(const WorkingSet& ws) {
  const auto places = ws.located.places.span();
  for (std::size_t u = 0; u < places.size(); ++u) {
    if (u + kAhead < places.size()) {
      const Place ahead = Place::from_bits(places[u + kAhead]);
      if (ahead.is_in_ram()) frames_.prefetch(ahead.frame());
    }
    const Place place = Place::from_bits(places[u]);
    if (place.is_in_ram() && ws.gradients.any_trained(u)) frames_.add_tags(place.frame(), RowTags::kTouched);
  }
}

void RowGroup::keep_trained(const WorkingSet& ws) {
  std::vector<std::uint32_t> keys;
  for (std::uint32_t u = 0; u < ws.num_unique(); ++u) {
    if (ws.gradients.any_trained(u)) keys.push_back(u);
  }
  keep_batch(ws, keys);
}

// Of a batch that is about to be trained; its frames stay where they are. What has none store_scratch() keeps.
void RowGroup::keep_batch(const WorkingSet& ws, std::span<const std::uint32_t> keys) {
  for (std::size_t begin = 0; begin < keys.size(); begin += kCopiesAtOnce) {
    const auto some = keys.subspan(begin, std::min(kCopiesAtOnce, keys.size() - begin));
    const std::unique_lock lock = kept_.wait_for_room();
    if (!kept_.is_open()) return;
    for (const std::uint32_t u : some) {
      const Place place = Place::from_bits(ws.located.places[u]);
      if (!place.is_in_ram() || (frames_.tags(place.frame()) & RowTags::kPending) == 0) continue;
      const std::uint32_t n = native_table_of(ws, u);
      kept_.keep({ws.keys()[u], n}, members_ ? stamp_of(n, ws.located.stamps[u]) : 0, ws.located.records[u]);
      frames_.drop_tags(place.frame(), RowTags::kPending);
    }
  }
}

void RowGroup::keep_rows(std::uint32_t native_table, std::span<const std::uint64_t> keys) {
  if (!kept_.is_open()) return;
  std::vector<RecordId> ids;
  for (const std::uint64_t key : keys) ids.push_back({key, native_table});
  keep_rows(ids);
}

// Those that are pending, wherever they are.
void RowGroup::keep_rows(std::span<const RecordId> ids) {
  if (!kept_.is_open()) return;
  for (std::size_t begin = 0; begin < ids.size(); begin += kReadsAtOnce) {
    keep_some(ids.subspan(begin, std::min(kReadsAtOnce, ids.size() - begin)));
  }
}

void RowGroup::keep_some(std::span<const RecordId> ids) {
  std::vector<RecordId> on_disk;
  std::vector<std::uint32_t> last, places;
  std::vector<Location> locations;
  const std::unique_lock lock = kept_.lock();
  for (const RecordId& id : ids) {
    Index& index = tables_[id.table].index;
    const Index::Entry entry = members_ ? index.entry_of(id.key) : Index::Entry{index.slot_of(id.key)};
    if (!entry) continue;
    const Place place = Place::from_bits(*entry.slot);
    const std::uint8_t tags = tags_of(place);
    if ((tags & RowTags::kPending) == 0) continue;
    const std::uint32_t stamp = entry.stamp ? stamp_of(id.table, *entry.stamp) : 0;
    if (place.is_in_ram() && (tags & RowTags::kUnread) == 0) {
      kept_.keep(id, stamp, frames_.record(place.frame()));
    } else {
      on_disk.push_back(id);
      last.push_back(stamp);
      places.push_back(place.bits());
    }
    drop_tags(place, RowTags::kPending);
  }
  if (on_disk.empty()) return;
  try {
    read_around(places);
    for (const std::uint32_t bits : places) locations.push_back(Place::from_bits(bits).location());
    kept_.keep(std::move(on_disk), std::move(last), log().begin_read(locations));
  } catch (...) {
    tracking_.failure = std::current_exception();
    throw;
  }
}

// Of a line whose record is about to be put into RAM.
void RowGroup::keep_line(std::uint32_t line) {
  if (!kept_.is_open() || (frames_.tags(lines_->frame(line)) & RowTags::kPending) == 0) return;
  const Owner owner = lines_->owner(line);
  keep_some(std::vector{RecordId{owner.key, owner.table}});
}

// Of a batch that is about to be settled: rows that have expired, which begin anew in the frame in which they are; and
// notes the stamps of the others.
void RowGroup::keep_stale(WorkingSet& ws) {
  std::vector<std::uint32_t> slots(ws.num_unique());
  std::vector<RecordId> stale;
  ws.located.stamps.resize(ws.num_unique());
  for (std::uint32_t n = 0; n < tables_.size(); ++n) {
    const auto begin = static_cast<std::size_t>(ws.table_begin()[n]);
    const auto keys = ws.keys().subspan(begin, static_cast<std::size_t>(ws.table_begin()[n + 1]) - begin);
    tables_[n].index.find(keys, slots.data(), ws.located.stamps.data() + begin);
    if (n % 2 == 1 || !members_->tables[n / 2].rule().expires()) continue;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const std::uint32_t stamp = ws.located.stamps[begin + i];
      if (slots[i] != Index::kNone && members_->tables[n / 2].is_stale(stamp)) stale.push_back({keys[i], n});
    }
  }
  keep_rows(stale);
}

std::optional<SnapshotRows> RowGroup::take_snapshot(std::size_t count) {
  if (count == 0) throw std::invalid_argument("count is 0 and must be at least 1");
  SnapshotRows rows;
  try {
    while (true) {
      bool is_walked;
      {
        std::lock_guard lock(mutex_);
        if (!kept_.is_open()) throw std::runtime_error("no snapshot is under way");
        if (tracking_.failure) std::rethrow_exception(tracking_.failure);
        is_walked = tracking_.table == tables_.size();
      }
      if (kept_.take(count, rows)) return rows;
      if (is_walked) {
        std::lock_guard lock(mutex_);
        tracking_.is_complete = true;
        return std::nullopt;
      }
      if (walk(count, rows)) return rows;
    }
  } catch (...) {
    std::lock_guard lock(mutex_);
    if (kept_.is_open()) tracking_.failure = std::current_exception();
    throw;
  }
}

// Takes the next pending rows of one native table; false where it came to the end of the table without one.
bool RowGroup::walk(std::size_t count, SnapshotRows& rows) {
  rows = SnapshotRows();
  for (bool goes_on = false; rows.keys.size() < count && !(goes_on && kept_.is_short_of_room());) {
    if (goes_on) std::this_thread::sleep_for(kPause);
    std::unique_lock lock(mutex_);
    if (!kept_.is_open()) return false;
    rows.native_table = tracking_.table;
    if (!tracking_.from) {
      keep_deferred();
      break;
    }
    const std::vector<Index::Listed> pending = next_pending(std::min(kRowsAtOnce, count - rows.keys.size()));
    goes_on = tracking_.from.has_value();
    take_pending(lock, pending, rows);
  }
  return !rows.keys.empty();
}

// At most `count` entries of rows that are pending, in the order of their hashes, among the keys that come next: as
// many of them as have held few enough so far.
std::vector<Index::Listed> RowGroup::next_pending(std::size_t count) {
  const Index& index = tables_[tracking_.table].index;
  const std::uint64_t from = *tracking_.from, part = kLastHash / (index.size() / tracking_.num_keys + 1);
  std::uint64_t last = from > kLastHash - part ? kLastHash : from + part;
  std::vector<Index::Listed> found;
  index.for_each_in(from, last, [&](const Index::Listed& entry) {
    if ((tags_of(Place::from_bits(entry.slot)) & RowTags::kPending) != 0) found.push_back(entry);
  });
  std::ranges::sort(found, {}, &Index::Listed::hash);
  if (found.size() > count) {
    found.resize(count);
    last = found.back().hash;
    tracking_.num_keys = std::max<std::uint64_t>(kRowsAtOnce, tracking_.num_keys / 2);
  } else if (found.size() < kRowsAtOnce / 4) {
    tracking_.num_keys = std::min(kMostKeys, tracking_.num_keys * 2);
  }
  tracking_.from = last == kLastHash ? std::nullopt : std::optional(last + 1);
  return found;
}

// Adds those that are still pending, and defers those on their way from disk. Gives mutex_ up to read the others there.
void RowGroup::take_pending(std::unique_lock<std::mutex>& lock, std::span<const Index::Listed> pending,
                            SnapshotRows& rows) {
  const std::size_t num_floats = layout_.num_floats();
  std::vector<RecordId> ids;
  std::vector<Location> locations;
  std::vector<std::byte*> out;
  rows.records.resize((rows.keys.size() + pending.size()) * num_floats);
  for (std::size_t begin = 0; begin < pending.size(); begin += kCopiesAtOnce) {
    const std::unique_lock copying = kept_.lock();
    for (const Index::Listed& entry : pending.subspan(begin, std::min(kCopiesAtOnce, pending.size() - begin))) {
      const Place place = Place::from_bits(entry.slot);
      const std::uint8_t tags = tags_of(place);
      if ((tags & RowTags::kPending) == 0) continue;
      if (place.is_in_ram() && (tags & RowTags::kUnread) != 0) {
        tracking_.deferred.push_back(entry.key);
        continue;
      }
      float* const record = rows.records.data() + rows.keys.size() * num_floats;
      if (place.is_in_ram()) {
        std::copy_n(frames_.record(place.frame()), num_floats, record);
      } else {
        ids.push_back({entry.key, tracking_.table});
        locations.push_back(place.location());
        out.push_back(reinterpret_cast<std::byte*>(record));
      }
      rows.keys.push_back(entry.key);
      rows.last.push_back(stamp_of(tracking_.table, entry.stamp));
      drop_tags(place, RowTags::kPending);
    }
  }
  rows.records.resize(rows.keys.size() * num_floats);
  if (ids.empty()) return;
  const Fetch fetch = log().begin_read(locations);
  lock.unlock();
  fetch.run(ids, out.data());
}

// Of a table that was walked through: some of the rows that were passed over; after the last, the next table's turn
// begins.
void RowGroup::keep_deferred() {
  std::vector<std::uint64_t>& deferred = tracking_.deferred;
  const std::size_t left = deferred.size() - std::min(deferred.size(), kCopiesAtOnce);
  keep_rows(tracking_.table, std::span(deferred).subspan(left));
  deferred.resize(left);
  if (left > 0) return;
  ++tracking_.table;
  tracking_.from = 0;
}

}  // namespace sfctr
