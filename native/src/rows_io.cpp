// Rows in and out of a group, apart from training.
#include <algorithm>
#include <stdexcept>
#include <string>

#include "sfctr/row_group.h"
#include "sfctr/thread_pool.h"

namespace sfctr {
namespace {

constexpr std::size_t kBlock = 2048;
constexpr std::uint64_t kSmallestWindow = std::uint64_t{1} << 20;

}  // namespace

// A window of a sixteenth of the slots bounds a whole export to sixteen passes over the index.
std::uint64_t KeysBySlot::load(const Index& index, std::size_t source, std::uint64_t version, std::uint64_t begin,
                               std::uint64_t end) {
  if (source != source_ || version != version_ || begin < begin_ || begin >= begin_ + keys_.size()) {
    const std::uint64_t size = std::min(std::max(kSmallestWindow, end / 16), end - begin);
    clear();
    keys_.resize(size);
    used_.assign(size, 0);
    index.for_each([&](std::uint64_t key, std::uint32_t slot) {
      if (slot < begin || slot - begin >= size) return;
      keys_[slot - begin] = key;
      used_[slot - begin] = 1;
    });
    source_ = source;
    version_ = version;
    begin_ = begin;
  }
  return begin_ + keys_.size();
}

void RowGroup::require_shape(std::size_t num_keys, std::size_t num_floats) const {
  if (num_floats == num_keys * layout_.num_floats()) return;
  throw std::invalid_argument("records must be [" + std::to_string(num_keys) + ", " +
                              std::to_string(layout_.num_floats()) + "], one for each key");
}

void RowGroup::find(std::size_t native_table, std::span<const std::uint64_t> keys, std::span<float> records,
                    std::span<std::uint8_t> found) const {
  std::shared_lock lock(mutex_);
  const NativeTable& table = this->table(native_table);
  require_shape(keys.size(), records.size());
  const std::size_t num_floats = layout_.num_floats();
  parallel_ranges(keys.size(), kBlock, [&](std::size_t begin, std::size_t end) {
    std::uint32_t slots[kBlock];
    table.index.find(keys.subspan(begin, end - begin), slots);
    for (std::size_t i = begin; i < end; ++i) {
      found[i] = slots[i - begin] != Index::kNone;
      if (found[i]) std::copy_n(record(table, slots[i - begin]), num_floats, records.data() + i * num_floats);
    }
  });
}

void RowGroup::initial_records(std::size_t native_table, std::span<const std::uint64_t> keys,
                               std::span<float> records) const {
  static_cast<void>(table(native_table));
  require_shape(keys.size(), records.size());
  parallel_ranges(keys.size(), kBlock, [&](std::size_t begin, std::size_t end) {
    float* targets[kBlock];
    for (std::size_t i = begin; i < end; ++i) targets[i - begin] = records.data() + i * layout_.num_floats();
    initialize_rows(native_table, keys.subspan(begin, end - begin), targets);
  });
}

std::size_t RowGroup::export_rows(std::size_t native_table, std::uint64_t start, std::span<std::uint64_t> keys,
                                  std::span<float> records) const {
  std::shared_lock lock(mutex_);
  const NativeTable& table = this->table(native_table);
  require_shape(keys.size(), records.size());
  const std::uint64_t end = std::min<std::uint64_t>(start + keys.size(), table.slab.end());
  const std::size_t num_floats = layout_.num_floats();
  std::size_t num_found = 0;
  std::lock_guard exporting(export_mutex_);
  std::uint64_t loaded = start;
  for (std::uint64_t slot = start; slot < end; ++slot) {
    if (slot == loaded) loaded = keys_by_slot_.load(table.index, native_table, version_, slot, table.slab.end());
    if (!keys_by_slot_.get(slot, keys[num_found])) continue;
    std::copy_n(record(table, static_cast<std::uint32_t>(slot)), num_floats, records.data() + num_found * num_floats);
    ++num_found;
  }
  if (end == table.slab.end()) keys_by_slot_.clear();
  return num_found;
}

float* RowGroup::add_row(NativeTable& table, std::uint64_t key) {
  const std::uint32_t slot = table.slab.allocate();
  try {
    table.index.insert(key, slot);
  } catch (...) {
    table.slab.free(slot);
    throw;
  }
  return record(table, slot);
}

void RowGroup::import_rows(std::size_t native_table, std::span<const std::uint64_t> keys,
                           std::span<const float> records) {
  std::unique_lock lock(mutex_);
  NativeTable& table = this->table(native_table);
  require_shape(keys.size(), records.size());
  const std::size_t num_floats = layout_.num_floats();
  ++version_;
  for (std::size_t begin = 0; begin < keys.size(); begin += kBlock) {
    const auto block = keys.subspan(begin, std::min(kBlock, keys.size() - begin));
    std::uint32_t slots[kBlock];
    table.index.find(block, slots);
    for (std::size_t i = 0; i < block.size(); ++i) {
      // Looked up once more before it is added: the block may hold a key twice.
      if (slots[i] == Index::kNone) slots[i] = table.index.find(block[i]);
      float* const to = slots[i] == Index::kNone ? add_row(table, block[i]) : record(table, slots[i]);
      std::copy_n(records.data() + (begin + i) * num_floats, num_floats, to);
    }
  }
}

void RowGroup::reserve(std::size_t native_table, std::uint64_t num_rows) {
  std::unique_lock lock(mutex_);
  table(native_table).index.reserve(num_rows);
}

}  // namespace sfctr
