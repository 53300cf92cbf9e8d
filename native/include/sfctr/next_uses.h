// Which keys the batches that are known but not yet planned will use, and when next. Batches come and go in order.
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "sfctr/index.h"
#include "sfctr/working_set.h"

namespace sfctr {

class NextUses {
 public:
  explicit NextUses(std::size_t num_native_tables) : tables_(num_native_tables) {}

  // The batch is known from now on, as the newest. It stays where it is until leave(). Throws std::bad_alloc; no batch
  // is then known.
  void enter(WorkingSet& ws);
  // It is planned, or forgotten. Where it is not the oldest one known, all are forgotten; where it is not known,
  // nothing happens.
  void leave(WorkingSet& ws) noexcept;

  // Number of the next known batch that uses the key (larger is later), 0 for none.
  std::uint64_t of(std::uint32_t native_table, std::uint64_t key) const;

  bool empty() const { return known_.empty(); }
  std::size_t memory_bytes() const;

 private:
  struct Use {  // of one key: the first batch, and where the last one keeps what comes after it
    std::uint64_t first;
    WorkingSet* last;
    std::uint32_t position;
  };

  void add(WorkingSet& ws);
  void forget_all() noexcept;

  std::vector<Index> tables_;  // key -> number of its Use
  std::vector<Use> uses_;
  std::vector<std::uint32_t> free_;  // has room for all of uses_, so that leaving cannot fail
  std::deque<WorkingSet*> known_;    // oldest first
  std::uint64_t newest_ = 0;         // number of the batch that was entered last
};

}  // namespace sfctr
