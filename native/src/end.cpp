// The end of a batch: what it reached becomes rows, its frames are unpinned, and what had no frame is put away.
#include <exception>
#include <stdexcept>
#include <utility>

#include "sfctr/row_group.h"

namespace sfctr {

void RowGroup::discard(WorkingSet& ws) {
  const bool is_located = ws.located.group == number_;
  const bool in_flight = is_located && ws.located.train && !ws.located.adopted;
  {
    std::lock_guard lock(mutex_);
    next_uses_.leave(ws);
    if (in_flight && !ws.located.fetched) return_loads(ws);
    return_lines(ws);
  }
  if (!is_located) return;
  if (in_flight) end_batch(ws, 0);
  ws.located.group = 0;
  ws.located.adopted = false;
  ws.gradients.any = false;
}

// Leaves word for the next call that holds mutex_, so that the thread that trains need not wait for one that plans.
// step: 0 where it is discarded.
void RowGroup::end_batch(WorkingSet& ws, std::uint64_t step) {
  Located& located = ws.located;
  located.group = 0;
  if (step > 0 && tracking_.is_on) tag_trained(ws);
  if (step > 0) ++num_changes_;
  if (!located.scratch.empty()) store_scratch(ws, step > 0);
  Ended ended;
  ended.step = step;
  ended.time = located.time;
  if (members_ && step > 0) ended.seen = seen_keys(ws);
  const auto table_begin = ws.table_begin();
  std::size_t native_table = 0;
  for (const std::uint32_t u : located.fresh) {
    const Place place = Place::from_bits(located.places[u]);
    while (table_begin[native_table + 1] <= static_cast<std::int64_t>(u) ||
           table_begin[native_table] > static_cast<std::int64_t>(u)) {
      native_table = table_begin[native_table] > static_cast<std::int64_t>(u) ? 0 : native_table + 1;
    }
    if (!place.is_in_ram()) continue;
    ended.fresh.push_back({static_cast<std::uint32_t>(native_table), place.frame(), ws.keys()[u],
                           step > 0 && ws.gradients.any_trained(u)});
  }
  ended.places = std::move(located.places);
  if (std::exchange(ws.on_device.state, OnDevice::State::kNone) == OnDevice::State::kReady) {
    ended.on_device = true;
    ended.lines = std::move(ws.on_device.lines);
    for (std::size_t u = 0; step > 0 && u < ws.num_unique(); ++u) {
      const std::uint32_t line = ended.lines[u];
      if (line != DeviceLines::kNone && ws.gradients.any_trained(u)) ended.dirtied.push_back(line);
    }
  }
  std::lock_guard lock(ended_mutex_);
  if (members_ && located.settled) members_->is_settled = false;
  ended_.push_back(std::move(ended));
}

// Records of a batch that found no frame: one that was reached goes to a frame if there is one by now, else to disk. If
// the disk refuses, the row stays in RAM, beyond the budget; the next plan will hear of the error. It is also how it
// hears that there was no memory for that either, and rows are lost.
void RowGroup::store_scratch(WorkingSet& ws, bool committed) noexcept {
  std::lock_guard lock(mutex_);
  scratch_in_flight_ = false;
  if (!committed || forgets_) return;
  try {
    put_away_scratch(ws);
  } catch (...) {
    refused_ = std::current_exception();
  }
}

void RowGroup::put_away_scratch(const WorkingSet& ws) {
  const auto table_begin = ws.table_begin();
  std::size_t native_table = 0;
  std::vector<RecordId> ids;
  std::vector<const std::byte*> records;
  for (const std::uint32_t u : ws.located.scratch) {
    while (table_begin[native_table + 1] <= static_cast<std::int64_t>(u)) ++native_table;
    if (!ws.gradients.any_trained(u)) continue;
    ids.push_back({ws.keys()[u], static_cast<std::uint32_t>(native_table)});
    records.push_back(reinterpret_cast<const std::byte*>(ws.located.records[u]));
  }
  keep_rows(ids);
  std::size_t done = 0;
  try {
    put_on_disk(ids, records, done);
  } catch (...) {
    refused_ = std::current_exception();
    put_beyond(std::span(ids).subspan(done), std::span(records).subspan(done));
  }
}

// Appends rows that have no frame to the log, and has the index say so of one after the other. Throws what
// RowLog::append does, with nothing changed, and std::bad_alloc; `done` is how many were put there. stamps: of the
// steps that trained them last, or empty: who calls stamps them.
void RowGroup::put_on_disk(std::span<const RecordId> ids, std::span<const std::byte* const> records, std::size_t& done,
                           std::span<const std::uint32_t> stamps) {
  if (ids.empty()) return;
  std::vector<Location> locations(ids.size());
  append(ids, records, locations.data());
  try {
    for (; done < ids.size(); ++done) {
      set_place(ids[done], Place::on_disk(locations[done]));
      set_tags(Place::on_disk(locations[done]), RowTags::kTouched);
      if (!stamps.empty()) stamp(ids[done], stamps[done]);
    }
  } catch (...) {
    log().release(std::span(locations).subspan(done));
    throw;
  }
}

// Gives them frames that the budget has no room for.
void RowGroup::put_beyond(std::span<const RecordId> ids, std::span<const std::byte* const> records) {
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const std::uint32_t frame = frames_.take_beyond();
    frames_.set_owner(frame, {ids[i].key, ids[i].table});
    std::copy_n(records[i], layout_.num_floats() * sizeof(float), reinterpret_cast<std::byte*>(frames_.record(frame)));
    set_place(ids[i], Place::in_ram(frame));
    set_tags(Place::in_ram(frame), RowTags::kRow | RowTags::kTouched);
  }
}

// Where the row was on disk is garbage from now on. Throws std::bad_alloc with nothing changed.
void RowGroup::set_place(RecordId id, Place place) {
  Index& index = tables_[id.table].index;
  if (std::uint32_t* const slot = index.slot_of(id.key)) {
    const Place before = Place::from_bits(std::exchange(*slot, place.bits()));
    if (!before.is_on_disk()) return;
    const Location location = before.location();
    log().release({&location, 1});
    return;
  }
  index.insert(id.key, place.bits(), members_ ? kUnborn : 0);
  budget_->take_keys(1);
}

void RowGroup::drain() {
  std::vector<Ended> ended;
  {
    std::lock_guard lock(ended_mutex_);
    ended.swap(ended_);
  }
  for (const Ended& batch : ended) {
    for (const Fresh& fresh : batch.fresh) become_row(fresh);
    if (pins_all()) {
      for (const std::uint32_t bits : batch.places.span()) {
        const Place place = Place::from_bits(bits);
        if (place.is_in_ram() && frames_.unpin(place.frame()) == 0 && orphans_.erase(place.frame()) > 0) {
          frames_.give(place.frame());
        }
      }
    } else {
      for (const Fresh& fresh : batch.fresh) frames_.unpin(fresh.frame);
    }
    if (members_ && batch.step > 0) commit_members(batch);
    if (batch.on_device) end_on_device(batch);
    for (const Fresh& fresh : batch.fresh) {
      if (!fresh.reached) drop_if_unused(fresh);
    }
  }
  num_in_flight_ -= ended.size();
}

// What a committed step has reached is a row, whoever planned it.
void RowGroup::become_row(const Fresh& fresh) {
  if (!fresh.reached) return;
  NativeTable& table = tables_[fresh.native_table];
  std::uint32_t* const slot = table.index.slot_of(fresh.key);
  if (!Place::from_bits(*slot).is_provisional()) return;
  *slot = Place::in_ram(fresh.frame).bits();
  frames_.add_tags(fresh.frame, RowTags::kRow);
  --table.num_provisional;
}

void RowGroup::drop_if_unused(const Fresh& fresh) {
  NativeTable& table = tables_[fresh.native_table];
  const std::uint32_t* const slot = table.index.slot_of(fresh.key);
  if (!slot || *slot != Place::provisional(fresh.frame).bits()) return;
  const std::uint32_t line = lines_ ? lines_->find(fresh.frame) : DeviceLines::kNone;
  if (frames_.num_pins(fresh.frame) > (line != DeviceLines::kNone ? 1 : 0)) return;
  if (line != DeviceLines::kNone) release_line(line);
  table.index.erase(fresh.key);
  budget_->give_keys(1);
  --table.num_provisional;
  frames_.give(fresh.frame);
}

}  // namespace sfctr
