// Forward: the rows of a working set pooled into a batch.
#include <algorithm>
#include <stdexcept>
#include <string>

#include "sfctr/row_group.h"
#include "sfctr/simd.h"
#include "sfctr/thread_pool.h"

namespace sfctr {
namespace {

constexpr std::size_t kRows = 512;  // of a task
// Vectors of a batch that would push everything else out of a core's caches are written past them.
constexpr std::size_t kStreamedBytes = std::size_t{8} << 20;
constexpr std::size_t kLeastStreamed = 32;  // columns: shorter vectors gain nothing

PoolArgs pool_args(const WorkingSet& ws, std::size_t f, const Layout& layout) {
  const FeatureKeys& feature = ws.features()[f];
  return {.pooling = feature.pooling,
          .element = layout.element,
          .dim = layout.dim,
          .begin = 0,
          .end = 0,
          .max_length = feature.max_length,
          .ids = ws.virtual_ids(f).data(),
          .offsets = feature.offsets.data(),
          .weights = feature.weights.empty() ? nullptr : feature.weights.data(),
          .records = ws.located.records.data(),
          .out = nullptr,
          .linear_out = nullptr,
          .stream = false};
}

}  // namespace

std::size_t RowGroup::forward_floats(const WorkingSet& ws, std::size_t num_rows) const {
  std::size_t total = 0;
  for (const FeatureKeys& feature : ws.features()) total += num_rows * feature.vectors_a_row() * layout_.dim;
  return total;
}

void RowGroup::forward(const WorkingSet& ws, std::size_t begin, std::size_t end, std::span<float> out,
                       std::span<float> linear_out) const {
  require_located(ws);
  ws.require_range(begin, end);
  const std::size_t num_features = ws.features().size(), num_rows = end - begin;
  if (out.size() != forward_floats(ws, num_rows)) {
    throw std::invalid_argument("out has " + std::to_string(out.size()) + " floats and needs " +
                                std::to_string(forward_floats(ws, num_rows)));
  }
  if (!linear_out.empty() && (layout_.linear == 0 || linear_out.size() != num_features * num_rows)) {
    throw std::invalid_argument("linear_out has " + std::to_string(linear_out.size()) + " floats and needs " +
                                std::to_string(layout_.linear * num_features * num_rows));
  }
  std::vector<float*> parts(num_features);
  for (std::size_t f = 0, offset = 0; f < num_features; ++f) {
    parts[f] = out.data() + offset;
    offset += num_rows * ws.features()[f].vectors_a_row() * layout_.dim;
  }
  const std::size_t tasks_a_feature = (num_rows + kRows - 1) / kRows;
  parallel_for(num_features * tasks_a_feature, [&](std::size_t task) {
    const std::size_t f = task / tasks_a_feature, first = task % tasks_a_feature * kRows;
    PoolArgs args = pool_args(ws, f, layout_);
    args.stream = layout_.dim >= kLeastStreamed && out.size_bytes() >= kStreamedBytes;
    args.begin = begin + first;
    args.end = begin + std::min(first + kRows, num_rows);
    args.out = parts[f] + first * ws.features()[f].vectors_a_row() * layout_.dim;
    args.linear_out = linear_out.empty() ? nullptr : linear_out.data() + f * num_rows + first;
    kernels().pool(args);
  });
}

}  // namespace sfctr
