// What a group of rows is made from: how its rows begin, how a record is laid out, and where rows may be.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "sfctr/budget.h"
#include "sfctr/clock.h"
#include "sfctr/kernels.h"
#include "sfctr/membership.h"
#include "sfctr/row_faults.h"
#include "sfctr/row_log.h"

namespace sfctr {

// How the rows of one table begin, and whether they change.
struct TableInit {
  std::uint64_t seed = 0;       // of first values, and of the rounding of bf16
  std::uint64_t null_seed = 0;  // of the row of a missing value
  bool normal = true;           // a is the mean, b the standard deviation; else uniform in [a, b)
  double a = 0, b = 0;
  float state0 = 0;         // first value of Adagrad's accumulators
  float linear_state0 = 0;  // the same for the first-order weight
  bool frozen = false;      // rows are neither trained nor added
  MembershipRule membership{};
};

// Where the parts of a record lie, in words the size of a float.
struct Layout {
  std::size_t dim, linear;  // linear: 0 or 1 floats
  std::size_t vector_state, linear_state;
  Element element;
  std::size_t vector_words;  // what dim elements take

  std::size_t linear_offset() const { return vector_words; }
  std::size_t vector_state_offset() const { return vector_words + linear; }
  std::size_t linear_state_offset() const { return vector_words + linear + vector_state; }
  std::size_t num_floats() const { return vector_words + linear + vector_state + linear_state; }
};

// Where rows may be.
struct GroupTiers {
  std::shared_ptr<Budget> budget = std::make_shared<Budget>();  // of RAM
  std::optional<LogOptions> disk;  // none: rows that the budget has no room for are refused
  bool forgets = false;            // or forgotten, being copies: neither with disk nor with membership
  Policy policy = Policy::kLru;
  std::shared_ptr<RowFaults> faults{};                // for tests
  std::size_t snapshot_bytes = std::size_t{1} << 20;  // of rows kept for a snapshot
};

}  // namespace sfctr
