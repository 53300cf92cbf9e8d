// The optimizers, over every row that a step has reached.
#include <algorithm>
#include <stdexcept>
#include <string>

#include "key_blocks.h"
#include "sfctr/row_group.h"
#include "sfctr/simd.h"
#include "sfctr/thread_pool.h"

namespace sfctr {
namespace {

constexpr std::size_t kKeys =
    512;  // of a task; their records stay in a core's cache from the vector's pass to the weight's

}  // namespace

void RowGroup::update(WorkingSet& ws, std::uint64_t step, float scale, std::span<const Hyper> hyper,
                      std::span<const Hyper> linear_hyper) {
  require_own(ws);
  if (!ws.located.train) throw std::runtime_error("this working set was located for reading, not for training");
  if (lines_) throw std::runtime_error("rows of this group are trained on a device: end_step() says what was reached");
  if (forgets_) require_filled(ws);
  if (step == 0) throw std::invalid_argument("steps are counted from 1");
  if (hyper.size() != num_tables() || linear_hyper.size() != num_tables() * layout_.linear) {
    throw std::invalid_argument("hyper and linear_hyper must have a line for each of the " +
                                std::to_string(num_tables()) + " tables");
  }
  if (faults_) strike_update(ws);
  if (kept_.is_open()) keep_trained(ws);
  if (ws.gradients.any) {
    const std::vector<KeyBlock> blocks = key_blocks(ws, kKeys);
    const auto update = [&](const KeyBlock& block) {
      const std::size_t t = block.native_table / 2;
      update_block(ws, block, update_args(vector_rule_, hyper[t], step, scale),
                   layout_.linear ? update_args(linear_rule_, linear_hyper[t], step, scale) : UpdateArgs{});
    };
    parallel_for(blocks.size(), [&](std::size_t b) { update(blocks[b]); });
    if (faults_) std::ranges::for_each(struck_twice(ws), update);
  }
  end_batch(ws, step);
  ws.gradients.any = false;
}

void RowGroup::update_block(const WorkingSet& ws, const KeyBlock& block, UpdateArgs vector, UpdateArgs linear) const {
  for (UpdateArgs* args : {&vector, &linear}) {
    args->begin = block.begin;
    args->end = block.end;
    args->records = ws.located.records.data();
    args->reached = ws.gradients.reached.data();
  }
  vector.element = layout_.element;
  vector.seed = seed_of(block.native_table);
  vector.keys = ws.keys().data();
  vector.bit = Gradients::kVector;
  vector.dim = layout_.dim;
  vector.weight_offset = 0;
  vector.state_offset = layout_.vector_state_offset();
  vector.gradients = ws.gradients.vectors.data();
  kernels().update(vector);
  if (layout_.linear == 0) return;
  linear.bit = Gradients::kLinear;
  linear.dim = 1;
  linear.weight_offset = layout_.linear_offset();
  linear.state_offset = layout_.linear_state_offset();
  linear.gradients = ws.gradients.linear.data();
  kernels().update(linear);
}

}  // namespace sfctr
