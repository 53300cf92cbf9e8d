// Copies of rows that other processes hold. A key without one has a provisional frame, or none at all, until fill();
// kinds then says that it has a row.
#include <algorithm>
#include <stdexcept>
#include <string>

#include "key_blocks.h"
#include "sfctr/row_group.h"
#include "sfctr/thread_pool.h"

namespace sfctr {
namespace {

constexpr std::size_t kRecords = 512;  // of a task that copies
constexpr auto kFresh = static_cast<std::uint8_t>(RecordKind::kFresh);
constexpr auto kStored = static_cast<std::uint8_t>(RecordKind::kStored);

}  // namespace

void RowGroup::require_copies() const {
  if (!forgets_) throw std::logic_error("the rows of this group are its own, and no copies");
}

// A view has none that are missing: what is not there it reads as absent.
void RowGroup::require_filled(const WorkingSet& ws) const {
  if (std::ranges::find(ws.located.kinds.span(), kFresh) == ws.located.kinds.span().end()) return;
  throw std::runtime_error("ask which copies are missing, and fill all of them, before their rows are used");
}

std::vector<std::int64_t> RowGroup::missing(WorkingSet& ws) {
  require_copies();
  require_own(ws);
  std::lock_guard lock(mutex_);
  drain();
  std::vector<std::int64_t> ids;
  for (std::size_t n = 0; n < tables_.size(); ++n) {
    for (auto u = ws.table_begin()[n]; u < ws.table_begin()[n + 1]; ++u) {
      std::uint8_t& kind = ws.located.kinds[static_cast<std::size_t>(u)];
      if (kind != kFresh) continue;
      // Planned without a copy; a batch before may have brought one since.
      const std::uint32_t* const slot = tables_[n].index.slot_of(ws.keys()[static_cast<std::size_t>(u)]);
      if (slot && !Place::from_bits(*slot).is_provisional()) {
        kind = kStored;
      } else {
        ids.push_back(u);
      }
    }
  }
  return ids;
}

void RowGroup::fill(WorkingSet& ws, std::span<const std::int64_t> ids, std::span<const float> records) {
  require_copies();
  require_own(ws);
  if (!ws.located.train) throw std::runtime_error("this working set was located for reading, not for training");
  require_shape(ids.size(), records.size());
  for (const std::int64_t u : ids) {
    if (u >= 0 && static_cast<std::size_t>(u) < ws.num_unique()) continue;
    throw std::invalid_argument("unique key " + std::to_string(u) + " of " + std::to_string(ws.num_unique()));
  }
  const std::size_t num_floats = layout_.num_floats();
  parallel_ranges(ids.size(), kRecords, [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      std::copy_n(records.data() + i * num_floats, num_floats, ws.located.records[static_cast<std::size_t>(ids[i])]);
    }
  });
  std::lock_guard lock(mutex_);
  drain();
  for (const std::int64_t id : ids) {
    const auto u = static_cast<std::size_t>(id);
    ws.located.kinds[u] = kStored;
    const Place place = Place::from_bits(ws.located.places[u]);
    if (!place.is_in_ram()) continue;  // it found no frame, and goes with its batch
    const auto after = std::ranges::upper_bound(ws.table_begin(), id);
    const auto native_table = static_cast<std::uint32_t>(after - ws.table_begin().begin() - 1);
    become_row({native_table, place.frame(), ws.keys()[u], true});
  }
}

void RowGroup::forget_all() {
  require_copies();
  std::lock_guard lock(mutex_);
  drain();
  if (num_in_flight_ > 0) throw std::runtime_error("copies cannot be forgotten while batches are in flight");
  ++num_changes_;
  for (std::size_t n = 0; n < tables_.size(); ++n) {
    std::vector<std::uint64_t> keys;
    tables_[n].index.for_each([&](std::uint64_t key, std::uint32_t) { keys.push_back(key); });
    for (const std::uint64_t key : keys) take_out(n, key);
  }
}

}  // namespace sfctr
