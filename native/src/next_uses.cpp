#include "sfctr/next_uses.h"

#include <cassert>

namespace sfctr {

void NextUses::enter(WorkingSet& ws) {
  ws.known.batch = ++newest_;
  ws.known.next.assign(ws.num_unique(), 0);
  const auto table_begin = ws.table_begin();
  for (std::size_t n = 0; n < tables_.size(); ++n) {
    for (auto u = static_cast<std::size_t>(table_begin[n]); u < static_cast<std::size_t>(table_begin[n + 1]); ++u) {
      const std::uint64_t key = ws.keys()[u];
      const Use here{newest_, &ws, static_cast<std::uint32_t>(u)};
      if (const std::uint32_t* const found = tables_[n].slot_of(key)) {
        Use& use = uses_[*found];
        use.last->known.next[use.position] = newest_;
        use.last = here.last;
        use.position = here.position;
        continue;
      }
      if (free_.empty()) {
        free_.push_back(static_cast<std::uint32_t>(uses_.size()));
        uses_.emplace_back();
      }
      tables_[n].insert(key, free_.back());
      uses_[free_.back()] = here;
      free_.pop_back();
    }
  }
}

void NextUses::leave(WorkingSet& ws) {
  if (ws.known.batch == 0) return;
  assert(ws.known.batch == oldest_ + 1);
  oldest_ = ws.known.batch;
  const auto table_begin = ws.table_begin();
  for (std::size_t n = 0; n < tables_.size(); ++n) {
    for (auto u = static_cast<std::size_t>(table_begin[n]); u < static_cast<std::size_t>(table_begin[n + 1]); ++u) {
      const std::uint64_t key = ws.keys()[u];
      if (const std::uint64_t next = ws.known.next[u]) {
        uses_[*tables_[n].slot_of(key)].first = next;
      } else {
        free_.push_back(tables_[n].erase(key));
      }
    }
  }
  ws.known = {};
}

std::uint64_t NextUses::of(std::uint32_t native_table, std::uint64_t key) const {
  const std::uint32_t found = tables_[native_table].find(key);
  return found == Index::kNone ? 0 : uses_[found].first;
}

std::size_t NextUses::memory_bytes() const {
  std::size_t total = uses_.capacity() * sizeof(Use) + free_.capacity() * sizeof(std::uint32_t);
  for (const Index& table : tables_) total += table.memory_bytes();
  return total;
}

}  // namespace sfctr
