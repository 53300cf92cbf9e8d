// The optimizers that rows can be updated by: names, state, and the numbers each takes. docs/optimizers.md has the
// formulas.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "sfctr/kernels.h"

namespace sfctr {

// "none", "sgd", "momentum", "adagrad", "rowwise_adagrad", "adam", "adam_row" or "ftrl"; throws std::invalid_argument
// for another name.
Rule rule_named(std::string_view name);

// Floats of state that a vector of dim floats needs.
std::size_t state_floats(Rule rule, std::size_t dim);

// Whether the state begins at the accumulator's first value rather than at 0.
bool has_accumulator(Rule rule);

// What one table's update takes; fields that a rule does not name are ignored by it.
struct Hyper {
  double lr;
  double eps;
  double weight_decay;
  double momentum;
  double nesterov;  // 0 or 1
  double beta1, beta2;
  double decoupled;     // Adam: 1 makes weight_decay decoupled (AdamW)
  double l1, l2, beta;  // FTRL
};
inline constexpr const char* kHyperColumns[] = {"lr",    "eps",       "weight_decay", "momentum", "nesterov", "beta1",
                                                "beta2", "decoupled", "l1",           "l2",       "beta"};
static_assert(sizeof(Hyper) == sizeof(double) * (sizeof(kHyperColumns) / sizeof(kHyperColumns[0])));

// The numbers of one table's update in the form of the kernels, at committed step `step` (from 1). What is not a number
// of the rule is left for the caller.
UpdateArgs update_args(Rule rule, const Hyper& hyper, std::uint64_t step, float scale);

}  // namespace sfctr
