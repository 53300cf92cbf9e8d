// Deltas: which rows have changed since one who follows them had all.
//
// A row is unsent (RowTags::kUnsent) from when it is trained, loaded or new until mark_sent(). The tag goes with the
// row from place to place as those of snapshots do, under the same rules, and nobody else takes it away; where the row
// goes for good it does too, and the key is listed. A key that comes back is a new row. So what is unsent and what is
// listed is all that differs from what the follower has, whatever was evicted, loaded or saved in between. Nothing
// counts as sent before it is said to be: a delta that could not be kept is followed by one with all of it again.
#include <algorithm>
#include <stdexcept>

#include "sfctr/row_group.h"

namespace sfctr {
namespace {

constexpr std::uint64_t kLastHash = ~std::uint64_t{0};
constexpr std::uint64_t kKeysAtOnce = 1 << 15;  // looked at before some of them are given out

}  // namespace

void RowGroup::require_followed() const {
  require_between_steps();
  if (tracking_.is_followed && !tracking_.unsent.is_lost()) return;
  throw std::runtime_error("nothing is known of changes since the follower had all rows: it must be sent all of them");
}

void RowGroup::mark_sent() {
  std::lock_guard lock(mutex_);
  drain();
  require_between_steps();
  begin_tracking();
  let_stale_go();
  frames_.retag(0, RowTags::kUnsent, 0);
  tracking_.locations.drop(RowTags::kUnsent);
  tracking_.unsent.begin(tables_.size(), most_gone());
  tracking_.is_followed = true;
}

bool RowGroup::needs_base() {
  std::lock_guard lock(mutex_);
  drain();
  require_between_steps();
  let_stale_go();
  return !tracking_.is_followed || tracking_.unsent.is_lost();
}

std::optional<std::uint64_t> RowGroup::unsent_rows(std::size_t native_table, std::uint64_t from, std::size_t count,
                                                   std::vector<std::uint64_t>& keys, std::vector<float>* records) {
  if (count == 0) throw std::invalid_argument("count is 0 and must be at least 1");
  std::unique_lock lock(mutex_);
  drain();
  require_followed();
  const Index& index = table(native_table).index;
  const std::uint64_t part = kLastHash / (index.size() / kKeysAtOnce + 1);
  std::vector<Index::Listed> found;
  std::optional<std::uint64_t> next = from;
  while (next && found.size() < count) {
    const std::uint64_t last = *next > kLastHash - part ? kLastHash : *next + part;
    index.for_each_in(*next, last, [&](const Index::Listed& entry) {
      const bool is_unsent = (tags_of(Place::from_bits(entry.slot)) & RowTags::kUnsent) != 0;
      if (is_unsent && is_row(native_table, entry.slot, entry.stamp)) found.push_back(entry);
    });
    next = last == kLastHash ? std::nullopt : std::optional(last + 1);
  }
  std::ranges::sort(found, {}, &Index::Listed::hash);
  if (found.size() > count) {
    next = found[count].hash;
    found.resize(count);
  }
  std::vector<std::uint32_t> slots;
  keys.clear();
  for (const Index::Listed& entry : found) {
    keys.push_back(entry.key);
    slots.push_back(entry.slot);
  }
  if (!records) return next;
  records->resize(keys.size() * layout_.num_floats());
  read_around(slots);
  copy_rows(lock, native_table, keys, slots, *records);
  return next;
}

std::vector<std::uint64_t> RowGroup::unsent_gone(std::size_t native_table) {
  std::lock_guard lock(mutex_);
  drain();
  require_followed();
  table(native_table);  // refuses one that is not there
  if (native_table % 2 == 0) remove_stale(native_table / 2, 0, kLastHash);
  std::vector<std::uint64_t> keys = tracking_.unsent.lists()[native_table];
  std::ranges::sort(keys);
  keys.erase(std::ranges::unique(keys).begin(), keys.end());
  std::vector<std::uint32_t> slots(keys.size());
  find_rows(native_table, keys, slots.data());
  std::size_t kept = 0;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (slots[i] == Index::kNone) keys[kept++] = keys[i];
  }
  keys.resize(kept);
  return keys;
}

void RowGroup::mark_unsent(std::size_t native_table, std::span<const std::uint64_t> rows,
                           std::span<const std::uint64_t> gone) {
  std::lock_guard lock(mutex_);
  drain();
  require_between_steps();
  if (!tracking_.is_followed) throw std::runtime_error("mark what is there as sent first");
  Index& index = table(native_table).index;
  for (const std::uint64_t key : rows) {
    const std::uint32_t* const slot = index.slot_of(key);
    if (!slot) continue;
    const Place place = Place::from_bits(*slot);
    if (place.is_in_ram()) {
      frames_.add_tags(place.frame(), RowTags::kUnsent);
    } else {
      set_tags(place, tags_of(place) | RowTags::kUnsent);
    }
  }
  for (const std::uint64_t key : gone) tracking_.unsent.add(static_cast<std::uint32_t>(native_table), key);
}

}  // namespace sfctr
