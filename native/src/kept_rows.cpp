#include <algorithm>
#include <utility>

#include "sfctr/snapshot.h"

namespace sfctr {

void LocationTags::cover(std::uint64_t num_locations) {
  const std::uint64_t num_words = (num_locations + kRows - 1) / kRows;
  if (num_words > words_.size()) words_.resize(num_words);
}

void LocationTags::set(Location location, std::uint8_t tags) {
  std::uint64_t& word = words_[location / kRows];
  const std::uint64_t here = std::uint64_t{RowTags::kTravelling} << shift(location);
  word = (word & ~here) | (std::uint64_t{tags} << shift(location) & here);
}

void LocationTags::begin(bool full) {
  constexpr std::uint64_t kChangedOfAll = kOneOfEach * RowTags::kChanged, kUnsentOfAll = kOneOfEach * RowTags::kUnsent;
  static_assert(RowTags::kPending == RowTags::kChanged << 1);
  for (std::uint64_t& word : words_) {
    word = (word & kUnsentOfAll) | (full ? kChangedOfAll : word & kChangedOfAll) << 1;
  }
}

void LocationTags::drop(std::uint8_t tags) {
  for (std::uint64_t& word : words_) word &= ~(kOneOfEach * tags);
}

void GoneKeys::begin(std::size_t num_native_tables, std::uint64_t most) {
  lists_.assign(num_native_tables, {});
  num_ = 0;
  most_ = most;
}

void GoneKeys::add(std::uint32_t native_table, std::uint64_t key) {
  if (is_lost()) return;
  if (++num_ <= most_) return lists_[native_table].push_back(key);
  lists_.assign(lists_.size(), {});
}

std::size_t GoneKeys::memory_bytes() const {
  std::size_t total = 0;
  for (const std::vector<std::uint64_t>& keys : lists_) total += keys.capacity() * sizeof(std::uint64_t);
  return total;
}

KeptRows::KeptRows(std::size_t num_native_tables, std::size_t num_floats, std::size_t limit_bytes)
    : num_floats_(num_floats), limit_bytes_(limit_bytes) {
  for (std::uint32_t n = 0; n < num_native_tables; ++n) tables_.emplace_back(n);
}

void KeptRows::open() {
  std::lock_guard lock(mutex_);
  is_open_.store(true, std::memory_order_release);
}

void KeptRows::close() {
  std::lock_guard lock(mutex_);
  is_open_.store(false, std::memory_order_release);
  for (SnapshotRows& table : tables_) table = SnapshotRows(table.native_table);
  readings_.clear();
  count_rows(0);
  has_room_.notify_all();
}

std::unique_lock<std::mutex> KeptRows::wait_for_room() {
  std::unique_lock lock(mutex_);
  has_room_.wait(lock, [&] { return !is_open() || num_rows_ == 0 || num_rows_ * bytes_of_row() < limit_bytes_; });
  return lock;
}

void KeptRows::count_rows(std::size_t num_rows) {
  num_rows_ = num_rows;
  is_short_of_room_.store(num_rows * bytes_of_row() > limit_bytes_ / 2, std::memory_order_relaxed);
}

void KeptRows::keep(RecordId id, std::uint32_t last, const float* record) {
  SnapshotRows& table = tables_[id.table];
  if (table.keys.size() == table.keys.capacity()) {
    const std::size_t room = std::max<std::size_t>(64, 2 * table.keys.size());
    table.records.reserve(room * num_floats_);
    table.last.reserve(room);
    table.keys.reserve(room);
  }
  table.records.insert(table.records.end(), record, record + num_floats_);
  table.keys.push_back(id.key);
  table.last.push_back(last);
  count_rows(num_rows_ + 1);
}

void KeptRows::keep(std::vector<RecordId> ids, std::vector<std::uint32_t> last, Fetch fetch) {
  readings_.push_back({std::move(ids), std::move(last), std::move(fetch)});
}

bool KeptRows::take(std::size_t count, SnapshotRows& rows) {
  std::unique_lock lock(mutex_);
  while (is_open()) {
    const auto table = std::ranges::find_if(tables_, [](const SnapshotRows& each) { return !each.keys.empty(); });
    if (table != tables_.end()) {
      const std::size_t left = table->keys.size() - std::min(count, table->keys.size());
      const auto end_of = [](auto& from, std::size_t begin, auto& to) {
        to.assign(from.begin() + static_cast<std::ptrdiff_t>(begin), from.end());
        from.resize(begin);
      };
      rows.native_table = table->native_table;
      end_of(table->keys, left, rows.keys);
      end_of(table->last, left, rows.last);
      end_of(table->records, left * num_floats_, rows.records);
      count_rows(num_rows_ - rows.keys.size());
      has_room_.notify_all();
      return true;
    }
    if (readings_.empty()) break;
    read_next(lock);
  }
  return false;
}

void KeptRows::read_next(std::unique_lock<std::mutex>& lock) {
  const Reading reading = std::move(readings_.back());
  readings_.pop_back();
  lock.unlock();
  std::vector<float> records(reading.ids.size() * num_floats_);
  std::vector<std::byte*> out(reading.ids.size());
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] = reinterpret_cast<std::byte*>(records.data() + i * num_floats_);
  }
  reading.fetch.run(reading.ids, out.data());
  lock.lock();
  if (!is_open()) return;
  for (std::size_t i = 0; i < out.size(); ++i) keep(reading.ids[i], reading.last[i], records.data() + i * num_floats_);
}

std::size_t KeptRows::memory_bytes() {
  std::lock_guard lock(mutex_);
  std::size_t total = 0;
  for (const SnapshotRows& table : tables_) {
    total += table.keys.capacity() * sizeof(std::uint64_t) +
             (table.last.capacity() + table.records.capacity()) * sizeof(float);
  }
  return total;
}

}  // namespace sfctr
