// Counts of what planning moves, by table.
#include "sfctr/row_group.h"

namespace sfctr {

RowCounters& RowCounters::operator+=(const RowCounters& other) {
  requested += other.requested;
  unique += other.unique;
  hits += other.hits;
  fresh += other.fresh;
  fetched += other.fetched;
  evicted += other.evicted;
  device_hits += other.device_hits;
  lifted += other.lifted;
  lowered += other.lowered;
  device_scratch += other.device_scratch;
  return *this;
}

// What the batch asks of each table, by the places that its keys were found at. REQUIRES: find_places() was the last
// that happened to the batch; placing the missing ones changes the answer.
std::vector<RowCounters> RowGroup::tally(const WorkingSet& ws) const {
  std::vector<RowCounters> found(inits_.size());
  const std::span<const std::int64_t> begin = ws.table_begin();
  for (std::size_t t = 0; t < found.size(); ++t) {
    const auto first = static_cast<std::size_t>(begin[2 * t]), last = static_cast<std::size_t>(begin[2 * t + 2]);
    for (std::size_t u = first; u < last; ++u) {
      const Place place = Place::from_bits(ws.located.places[u]);
      found[t].fetched += place.is_on_disk();
      found[t].fresh += place.is_none() && ws.located.kinds[u] == static_cast<std::uint8_t>(RecordKind::kFresh);
    }
    found[t].requested = ws.num_positions(t);
    found[t].unique = last - first;
    found[t].hits = found[t].unique - found[t].fetched - found[t].fresh;
  }
  return found;
}

// A batch was planned.
void RowGroup::count(const WorkingSet& ws, std::span<const RowCounters> tally) {
  for (std::size_t t = 0; t < tally.size(); ++t) table_counters_[t] += tally[t];
  counters_.scratch += ws.located.scratch.size();
}

std::vector<RowCounters> RowGroup::table_counters() {
  std::lock_guard lock(mutex_);
  return table_counters_;
}

GroupCounters RowGroup::counters() {
  std::lock_guard lock(mutex_);
  GroupCounters total = counters_;
  for (const RowCounters& table : table_counters_) total += table;
  return total;
}

}  // namespace sfctr
