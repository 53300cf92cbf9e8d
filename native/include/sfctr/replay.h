// What caches of given sizes would have done with a sequence of accesses: replayed access by access, exactly.
//
// A cache of C rows starts empty. An access to a row that it holds is a hit. Any other row is admitted, and where C
// rows are there already, one is evicted first; which one is all that policies differ in:
//
//   lru        the row used least recently.
//   clock      the hand goes round the places and clears marks until it meets a row without one (Corbato 1968). A use
//              marks the row, its admission too; free places are filled in order; the hand moves on past a new row.
//   lfu        the row used least often so far, counting all of its uses, those before an eviction too; among equals
//   the
//              one used least recently.
//   frequency  the row that the whole sequence uses least often; among equals the one that appears last. The counts are
//              known in advance, as for tables sorted by frequency (ColossalAI's cached embedding).
//   window     the rows of the current batch and of the `window` batches after it are known. Evicts a row without a
//   known
//              use, the one used least recently of them; where all have one, the row whose next use is farthest.
//   optimal    the row whose next use in the whole sequence is farthest, or that has none (Belady 1966): no policy
//              above has more hits.
//   hot_set    evicts nothing and admits nothing: holds the C first rows in the order of `frequency`, and others pass
//              beside it. As they need a place for that, it may be compared with caches of C + 1 rows.
//
// The first use of a row is never a hit, for any policy: there was no row to hold.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "sfctr/reuse.h"

namespace sfctr {

enum class ReplayPolicy { kLru, kClock, kLfu, kFrequency, kWindow, kOptimal, kHotSet };

// By the names above; throws std::invalid_argument for another.
ReplayPolicy policy_named(std::string_view name);

// Hits in a cache of each capacity, all from 1. `window` counts for kWindow alone. O(1) an access for lru, clock and
// hot_set, O(log_64) of rows or accesses for the others. Capacities are divided among the threads of the pool, each of
// which takes up to 16 bytes a row and N / 8 bytes. Throws std::invalid_argument for a capacity of 0, std::bad_alloc.
// REQUIRES: accesses are as checked() wants them.
std::vector<std::uint64_t> replay(const Accesses& accesses, ReplayPolicy policy,
                                  std::span<const std::uint64_t> capacities, std::size_t window);

}  // namespace sfctr
