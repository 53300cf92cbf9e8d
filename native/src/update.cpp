// The end of a step: rows that were reached for the first time get their place, then every reached row is updated.
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

std::size_t RowGroup::add_reached(WorkingSet& ws, std::size_t native_table) {
  NativeTable& table = tables_[native_table];
  std::size_t num_added = 0;
  const auto last = static_cast<std::size_t>(ws.table_begin()[native_table + 1]);
  for (auto u = static_cast<std::size_t>(ws.table_begin()[native_table]); u < last; ++u) {
    if (ws.located.kinds[u] != static_cast<std::uint8_t>(RecordKind::kFresh) || ws.gradients.reached[u] == 0) continue;
    float* const row = add_row(table, ws.keys()[u]);
    std::copy_n(ws.located.records[u], layout_.num_floats(), row);
    ws.located.records[u] = row;
    ++num_added;
  }
  return num_added;
}

std::size_t RowGroup::update(WorkingSet& ws, std::uint64_t step, float scale, std::span<const Hyper> hyper,
                             std::span<const Hyper> linear_hyper) {
  std::unique_lock lock(mutex_);
  require_located(ws);
  if (!ws.located.train) throw std::runtime_error("this working set was located for reading, not for training");
  if (ws.located.version != version_) {
    throw std::runtime_error("rows were added since this working set was located; locate it again");
  }
  if (step == 0) throw std::invalid_argument("steps are counted from 1");
  if (hyper.size() != num_tables() || linear_hyper.size() != num_tables() * layout_.linear) {
    throw std::invalid_argument("hyper and linear_hyper must have a line for each of the " +
                                std::to_string(num_tables()) + " tables");
  }
  ws.located.group = 0;
  if (!ws.gradients.any) return 0;
  ws.gradients.any = false;
  std::vector<std::size_t> num_added(tables_.size(), 0);
  if (ws.located.num_fresh > 0) {
    ++version_;
    parallel_for(tables_.size(), [&](std::size_t n) { num_added[n] = add_reached(ws, n); });
  }
  const std::vector<KeyBlock> blocks = key_blocks(ws, kKeys);
  parallel_for(blocks.size(), [&](std::size_t b) {
    const std::size_t t = blocks[b].native_table / 2;
    update_block(ws, blocks[b], update_args(vector_rule_, hyper[t], step, scale),
                 layout_.linear ? update_args(linear_rule_, linear_hyper[t], step, scale) : UpdateArgs{});
  });
  std::size_t total = 0;
  for (const std::size_t count : num_added) total += count;
  return total;
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
