// Rows in and out of a group, apart from training.
#include <algorithm>
#include <stdexcept>
#include <string>
#include <unordered_set>

#include "sfctr/row_group.h"
#include "sfctr/thread_pool.h"

namespace sfctr {
namespace {

constexpr std::size_t kBlock = 2048;

}  // namespace

void RowGroup::require_shape(std::size_t num_keys, std::size_t num_floats) const {
  if (num_floats == num_keys * layout_.num_floats()) return;
  throw std::invalid_argument("records must be [" + std::to_string(num_keys) + ", " +
                              std::to_string(layout_.num_floats()) + "], one for each key");
}

void RowGroup::find(std::size_t native_table, std::span<const std::uint64_t> keys, std::span<float> records,
                    std::span<std::uint8_t> found) {
  require_shape(keys.size(), records.size());
  std::vector<std::uint32_t> slots(keys.size());
  std::unique_lock lock(mutex_);
  drain();
  table(native_table);  // refuses one that is not there
  parallel_ranges(keys.size(), kBlock, [&](std::size_t begin, std::size_t end) {
    find_rows(native_table, keys.subspan(begin, end - begin), slots.data() + begin);
  });
  for (std::size_t i = 0; i < keys.size(); ++i) found[i] = slots[i] != Index::kNone;
  read_around(slots);
  copy_rows(lock, native_table, keys, slots, records);
}

// Copies the rows at these places to records; reads from disk once the lock is given up.
void RowGroup::copy_rows(std::unique_lock<std::mutex>& lock, std::size_t native_table,
                         std::span<const std::uint64_t> keys, std::span<const std::uint32_t> slots,
                         std::span<float> records) {
  const std::size_t num_floats = layout_.num_floats();
  std::vector<RecordId> ids;
  std::vector<Location> locations;
  std::vector<std::byte*> out;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const Place place = Place::from_bits(slots[i]);
    if (place.is_none() || place.is_provisional()) continue;
    float* const to = records.data() + i * num_floats;
    if (place.is_in_ram()) {
      std::copy_n(frames_.record(place.frame()), num_floats, to);
      continue;
    }
    ids.push_back({keys[i], static_cast<std::uint32_t>(native_table)});
    locations.push_back(place.location());
    out.push_back(reinterpret_cast<std::byte*>(to));
  }
  if (ids.empty()) return;
  const Fetch fetch = log().begin_read(locations);
  lock.unlock();
  fetch.run(ids, out.data());
}

void RowGroup::initial_records(std::size_t native_table, std::span<const std::uint64_t> keys,
                               std::span<float> records) const {
  if (native_table >= tables_.size()) {
    throw std::out_of_range("native table " + std::to_string(native_table) + " of " + std::to_string(tables_.size()));
  }
  require_shape(keys.size(), records.size());
  parallel_ranges(keys.size(), kBlock, [&](std::size_t begin, std::size_t end) {
    float* targets[kBlock];
    for (std::size_t i = begin; i < end; ++i) targets[i - begin] = records.data() + i * layout_.num_floats();
    initialize_rows(native_table, keys.subspan(begin, end - begin), targets);
  });
}

std::optional<std::uint64_t> RowGroup::export_rows(std::size_t native_table, std::uint64_t from, std::size_t count,
                                                   std::vector<std::uint64_t>& keys, std::vector<float>& records) {
  if (count == 0) throw std::invalid_argument("count is 0 and must be at least 1");
  std::vector<Index::Listed> entries;
  std::unique_lock lock(mutex_);
  drain();
  const std::optional<std::uint64_t> next = table(native_table).index.in_order(from, count, entries);
  std::erase_if(entries, [&](const Index::Listed& e) { return !is_row(native_table, e.slot, e.stamp); });
  std::vector<std::uint32_t> slots;
  keys.clear();
  for (const Index::Listed& entry : entries) {
    keys.push_back(entry.key);
    slots.push_back(entry.slot);
  }
  records.resize(keys.size() * layout_.num_floats());
  read_around(slots);
  copy_rows(lock, native_table, keys, slots, records);
  return next;
}

// Straight to disk where RAM is full: what is loaded before training need not have been used last.
void RowGroup::import_rows(std::size_t native_table, std::span<const std::uint64_t> keys,
                           std::span<const float> records, std::span<const std::uint32_t> last) {
  if (kept_.is_open()) kept_.wait_for_room();
  std::lock_guard lock(mutex_);
  drain();
  NativeTable& table = this->table(native_table);
  require_shape(keys.size(), records.size());
  if (!last.empty() && last.size() != keys.size()) throw std::invalid_argument("last must have an entry for each key");
  if (num_in_flight_ > 0) throw std::runtime_error("rows cannot be imported while batches are in flight");
  if (lines_ && lines_->num_taken() > 0) throw std::runtime_error("drop the lines first: rows are on a device");
  ++num_changes_;
  if (members_) members_->tables[native_table / 2].rows().forget_order();
  const std::vector<std::uint32_t> now(last.empty() ? kBlock : 0, members_ ? members_->step : 0);
  for (std::size_t begin = 0; begin < keys.size(); begin += kBlock) {
    import_block(table, native_table, keys.subspan(begin, std::min(kBlock, keys.size() - begin)),
                 records.data() + begin * layout_.num_floats(), last.empty() ? now.data() : last.data() + begin);
  }
}

void RowGroup::import_block(NativeTable& table, std::size_t native_table, std::span<const std::uint64_t> keys,
                            const float* records, const std::uint32_t* last) {
  const std::size_t num_floats = layout_.num_floats();
  const auto owner = static_cast<std::uint32_t>(native_table);
  std::vector<std::uint32_t> places(keys.size());
  table.index.find(keys, places.data());
  budget_->require_index(static_cast<std::uint64_t>(std::ranges::count(places, Index::kNone)));
  keep_rows(owner, keys);
  compact();
  shrink_to_budget();
  std::vector<RecordId> ids;
  std::vector<const std::byte*> beside;
  std::vector<std::uint32_t> stamps;
  std::unordered_set<std::uint64_t> listed;
  const auto flush = [&] {
    std::size_t done = 0;
    put_on_disk(ids, beside, done, stamps);
    ids.clear(), beside.clear(), stamps.clear(), listed.clear();
  };
  for (std::size_t i = 0; i < keys.size(); ++i, records += num_floats) {
    if (listed.contains(keys[i])) flush();  // the block holds a key twice
    std::uint32_t* const slot = table.index.slot_of(keys[i]);
    const Place place = slot ? Place::from_bits(*slot) : Place::none();
    if (place.is_in_ram()) {
      std::copy_n(records, num_floats, frames_.record(place.frame()));
      frames_.add_tags(place.frame(), RowTags::kTouched);
      stamp({keys[i], owner}, last[i]);
      continue;
    }
    const std::uint32_t frame = frames_.take();
    if (frame == Frames::kNone && !disk_) throw RamFull(budget_->used() + frames_.frame_bytes() + kIndexBytes);
    if (frame == Frames::kNone && !evicts_) start_evicting();
    if (frame == Frames::kNone || place.is_on_disk()) {
      if (frame != Frames::kNone) frames_.give(frame);
      ids.push_back({keys[i], owner});
      beside.push_back(reinterpret_cast<const std::byte*>(records));
      stamps.push_back(last[i]);
      listed.insert(keys[i]);
      continue;
    }
    frames_.set_owner(frame, {keys[i], owner});
    std::copy_n(records, num_floats, frames_.record(frame));
    try {
      set_place({keys[i], owner}, Place::in_ram(frame));
      frames_.set_tags(frame, RowTags::kRow | RowTags::kTouched);
    } catch (...) {
      frames_.give(frame);
      throw;
    }
    stamp({keys[i], owner}, last[i]);
  }
  flush();
}

void RowGroup::expect_shards(std::size_t t, const ShardSet& shards) {
  std::lock_guard lock(mutex_);
  Membership* const members = members_of(t);  // or throws
  tables_[2 * t].index.expect(shards);
  if (members) members->expect(shards);
}

double RowGroup::mean_probes(std::size_t native_table) {
  std::lock_guard lock(mutex_);
  const double of_rows = table(native_table).index.mean_probes();
  const Membership* const members = native_table % 2 == 0 ? members_of(native_table / 2) : nullptr;
  return members ? std::max(of_rows, members->waiting().mean_probes()) : of_rows;
}

void RowGroup::reserve(std::size_t native_table, std::uint64_t num_rows) {
  std::lock_guard lock(mutex_);
  table(native_table).index.reserve(num_rows);
}

}  // namespace sfctr
