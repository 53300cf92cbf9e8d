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

// A batch was planned.
void RowGroup::count(const WorkingSet& ws, std::span<const RowCounters> found) {
  for (std::size_t t = 0; t < found.size(); ++t) table_counters_[t] += found[t];
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
