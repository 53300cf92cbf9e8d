#include "sfctr/optimizer.h"

#include <cmath>
#include <stdexcept>
#include <string>

#include "sfctr/power.h"

namespace sfctr {
namespace {

constexpr std::string_view kNames[] = {"none", "sgd",      "momentum", "adagrad", "rowwise_adagrad",
                                       "adam", "adam_row", "ftrl"};

}  // namespace

Rule rule_named(std::string_view name) {
  std::string known;
  for (std::size_t i = 0; i < std::size(kNames); ++i) {
    if (name == kNames[i]) return static_cast<Rule>(i);
    known += (i == 0 ? "" : ", ") + std::string(kNames[i]);
  }
  throw std::invalid_argument("there is no optimizer rule '" + std::string(name) + "'; there are " + known);
}

std::size_t state_floats(Rule rule, std::size_t dim) {
  switch (rule) {
    case Rule::kNone:
    case Rule::kSgd:
      return 0;
    case Rule::kMomentum:
    case Rule::kAdagrad:
      return dim;
    case Rule::kRowWiseAdagrad:
      return 1;
    case Rule::kAdam:
    case Rule::kFtrl:
      return 2 * dim;
    case Rule::kAdamRow:
      return 2 * dim + 1;
  }
  return 0;
}

bool has_accumulator(Rule rule) { return rule == Rule::kAdagrad || rule == Rule::kRowWiseAdagrad; }

UpdateArgs update_args(Rule rule, const Hyper& hyper, std::uint64_t step, float scale) {
  UpdateArgs args{};
  args.rule = rule;
  args.flag = rule == Rule::kMomentum ? hyper.nesterov != 0 : hyper.decoupled != 0;
  args.scale = scale;
  args.lr = static_cast<float>(hyper.lr);
  args.eps = static_cast<float>(hyper.eps);
  args.weight_decay = static_cast<float>(hyper.weight_decay);
  args.momentum = static_cast<float>(hyper.momentum);
  const double correction2 = std::sqrt(1 - power(hyper.beta2, step));
  args.step_size = static_cast<float>(hyper.lr * correction2 / (1 - power(hyper.beta1, step)));
  args.lr64 = hyper.lr;
  args.beta1_64 = hyper.beta1;
  args.beta2_64 = hyper.beta2;
  args.one_minus_beta1 = static_cast<float>(1 - hyper.beta1);
  args.one_minus_beta2 = static_cast<float>(1 - hyper.beta2);
  args.decay = static_cast<float>(1 - hyper.lr * hyper.weight_decay);
  args.l1 = static_cast<float>(hyper.l1);
  args.l2 = static_cast<float>(hyper.l2);
  args.beta = static_cast<float>(hyper.beta);
  args.step = step;
  return args;
}

}  // namespace sfctr
