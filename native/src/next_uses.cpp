#include "sfctr/next_uses.h"

#include <algorithm>

namespace sfctr {

void NextUses::enter(WorkingSet& ws) {
  leave(ws);
  known_.push_back(&ws);
  try {
    add(ws);
  } catch (...) {
    forget_all();
    throw;
  }
}

void NextUses::add(WorkingSet& ws) {
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
        uses_.emplace_back();
        free_.reserve(uses_.capacity());
        free_.push_back(static_cast<std::uint32_t>(uses_.size() - 1));
      }
      tables_[n].insert(key, free_.back());
      uses_[free_.back()] = here;
      free_.pop_back();
    }
  }
}

void NextUses::leave(WorkingSet& ws) noexcept {
  if (std::ranges::find(known_, &ws) == known_.end()) return;
  if (known_.front() != &ws) return forget_all();
  known_.pop_front();
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

// What is forgotten costs foresight, and no number.
void NextUses::forget_all() noexcept {
  for (WorkingSet* const ws : known_) ws->known = {};
  known_.clear();
  for (Index& table : tables_) table = Index();
  free_.clear();
  uses_.clear();
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
