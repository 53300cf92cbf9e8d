// When rows are used again: the questions about a sequence of accesses that every cache's behaviour follows from.
//
// Pure functions; any threads may run them at once. Accesses are numbered from 0 in order: their number is their time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace sfctr {

inline constexpr std::uint32_t kNever = 0xFFFFFFFF;  // no such time

// A sequence of accesses, cut into batches. `checked` says whether a sequence is one.
struct Accesses {
  std::span<const std::uint32_t> rows;        // [N], each below num_rows
  std::span<const std::int64_t> batch_begin;  // [B + 1], rising from 0 to N: batch b is rows[batch_begin[b], ...)
  std::size_t num_rows;
};

// `accesses`; throws std::invalid_argument where they are not as Accesses says, or where N or num_rows is kNever or
// more.
const Accesses& checked(const Accesses& accesses);

// [N]: the time of the next access to the same row, or kNever.
std::vector<std::uint32_t> next_uses(const Accesses& accesses);

// [num_rows]: how often each row is used.
std::vector<std::uint32_t> use_counts(const Accesses& accesses);

// [B]: entry g counts the accesses whose row was used g batches before, and not since; 0 for the same batch. First uses
// are left out. O(1) an access; 4 bytes a row.
std::vector<std::uint64_t> gap_counts(const Accesses& accesses);

// [B]: the distinct rows of batch b and of the `window` batches after it. O(1) an access; 4 bytes a row.
std::vector<std::int64_t> rows_ahead(const Accesses& accesses, std::size_t window);

// [num_rows + 1]: entry d > 0 counts the accesses whose row was the d-th most recently used of all (d = 1: the one used
// just before), and entry 0 those whose row was used for the first time. So a cache of C rows that evicts the least
// recently used one has as many hits as entries 1 to C add up to (Mattson et al. 1970).
// O(log num_rows) an access; 12 bytes a row beside the result.
std::vector<std::uint64_t> stack_distance_counts(const Accesses& accesses);

}  // namespace sfctr
