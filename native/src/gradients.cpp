// Backward: the gradients of a batch's positions merged into those of its unique keys. A key's contributions are summed
// in chunks of kMergeChunk and the chunks in order, so that a key which half the batch holds can be shared out.
#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "key_blocks.h"
#include "sfctr/row_group.h"
#include "sfctr/simd.h"
#include "sfctr/thread_pool.h"
#include "transpose.h"

namespace sfctr {
namespace {

constexpr std::size_t kKeys = 1024;  // of a task

void merge_cold_vectors(WorkingSet& ws, const Transpose& sorted, std::size_t dim) {
  const std::vector<KeyBlock> blocks = key_blocks(ws, kKeys);
  parallel_for(blocks.size(), [&](std::size_t b) {
    kernels().merge({.dim = dim,
                     .begin = blocks[b].begin,
                     .end = blocks[b].end,
                     .ends = sorted.ends.data(),
                     .rows = sorted.rows.data(),
                     .scales = sorted.scaled[blocks[b].native_table / 2] ? sorted.scales.data() : nullptr,
                     .gradients = ws.gradients.vectors.data(),
                     .reached = ws.gradients.reached.data(),
                     .bit = Gradients::kVector});
  });
}

void add_hot_key(WorkingSet& ws, std::size_t key, const float* sums, std::size_t num_chunks, std::size_t dim) {
  float* const gradient = ws.gradients.vectors.data() + key * dim;
  std::uint8_t& reached = ws.gradients.reached[key];
  for (std::size_t c = 0; c < dim; ++c) {
    float total = 0;
    for (std::size_t chunk = 0; chunk < num_chunks; ++chunk) total += sums[chunk * dim + c];
    gradient[c] = reached & Gradients::kVector ? gradient[c] + total : total;
  }
  reached |= Gradients::kVector;
}

// Chunks of hot keys are tasks of their own; their sums are then added key by key.
void merge_hot_vectors(WorkingSet& ws, const Transpose& sorted, std::size_t dim) {
  struct Chunk {
    std::size_t first, last;
    bool scaled;
  };
  std::vector<Chunk> chunks;
  for (const HotKey& hot : sorted.hot) {
    for (std::size_t first = sorted.first(hot.key); first < sorted.ends[hot.key]; first += kMergeChunk) {
      chunks.push_back({first, std::min<std::size_t>(first + kMergeChunk, sorted.ends[hot.key]), hot.scaled});
    }
  }
  Buffer<float> sums(chunks.size() * dim);
  parallel_for(chunks.size(), [&](std::size_t c) {
    const Chunk& chunk = chunks[c];
    kernels().sum_rows(sorted.rows.data() + chunk.first, chunk.scaled ? sorted.scales.data() + chunk.first : nullptr,
                       chunk.last - chunk.first, dim, sums.data() + c * dim);
  });
  const float* sum = sums.data();
  for (const HotKey& hot : sorted.hot) {
    const std::size_t num_chunks = (sorted.ends[hot.key] - sorted.first(hot.key) + kMergeChunk - 1) / kMergeChunk;
    add_hot_key(ws, hot.key, sum, num_chunks, dim);
    sum += num_chunks * dim;
  }
}

float chunked_sum(const float* values, std::size_t count) {
  float total = 0;
  for (std::size_t first = 0; first < count; first += kMergeChunk) {
    float sum = 0;
    for (std::size_t i = first; i < std::min(first + kMergeChunk, count); ++i) sum += values[i];
    total += sum;
  }
  return total;
}

void merge_linear(WorkingSet& ws, const Transpose& sorted) {
  Gradients& gradients = ws.gradients;
  parallel_ranges(ws.num_unique(), kKeys, [&](std::size_t begin, std::size_t end) {
    for (std::size_t u = begin; u < end; ++u) {
      const std::size_t first = sorted.first(u), last = sorted.ends[u];
      if (first == last) continue;
      const float sum = chunked_sum(sorted.linear.data() + first, last - first);
      gradients.linear[u] = gradients.reached[u] & Gradients::kLinear ? gradients.linear[u] + sum : sum;
      gradients.reached[u] |= Gradients::kLinear;
    }
  });
}

void merge(WorkingSet& ws, std::size_t begin, std::size_t end, std::size_t dim,
           std::span<const FeatureGradient> gradients) {
  const auto wants = [&](auto part) { return std::ranges::any_of(gradients, part); };
  const bool vectors = wants([](const FeatureGradient& g) { return g.vectors != nullptr; });
  const bool linear = wants([](const FeatureGradient& g) { return g.linear != nullptr; });
  if (!vectors && !linear) return;
  const Transpose sorted = transpose(ws, begin, end, dim, gradients);
  if (vectors) {
    merge_cold_vectors(ws, sorted, dim);
    merge_hot_vectors(ws, sorted, dim);
  }
  if (linear) merge_linear(ws, sorted);
}

void require_size(std::size_t f, const char* what, std::size_t has, std::size_t needs) {
  if (has == 0 || has == needs) return;
  throw std::invalid_argument(std::string(what) + " of feature " + std::to_string(f) + " has " + std::to_string(has) +
                              " floats and needs " + std::to_string(needs));
}

}  // namespace

void RowGroup::start_gradients(WorkingSet& ws) const {
  Gradients& gradients = ws.gradients;
  gradients.vectors.resize(ws.num_unique() * layout_.dim);
  gradients.linear.resize(ws.num_unique() * layout_.linear);
  gradients.reached.resize(ws.num_unique());
  std::fill_n(gradients.reached.data(), ws.num_unique(), 0);
  gradients.any = true;
}

void RowGroup::backward(WorkingSet& ws, std::size_t begin, std::size_t end, std::span<const GradientRows> grads,
                        std::span<const std::span<const float>> linear_grads) const {
  require_located(ws);
  ws.require_range(begin, end);
  const std::size_t num_features = ws.features().size();
  if (grads.size() != num_features || (!linear_grads.empty() && linear_grads.size() != num_features)) {
    throw std::invalid_argument("there are " + std::to_string(grads.size()) + " grads and " +
                                std::to_string(linear_grads.size()) + " linear_grads for " +
                                std::to_string(num_features) + " features");
  }
  std::vector<FeatureGradient> gradients(num_features);
  for (std::size_t f = 0; f < num_features; ++f) {
    const FeatureKeys& feature = ws.features()[f];
    const GradientRows& vectors = grads[f];
    const std::size_t row_floats = feature.vectors_a_row() * layout_.dim;
    const std::span<const float> linear = linear_grads.empty() ? std::span<const float>() : linear_grads[f];
    require_size(f, "the gradient", vectors.num_floats, (end - begin) * row_floats);
    if (vectors.num_rows > 0 && vectors.num_floats > 0 && vectors.num_rows != end - begin) {
      throw std::invalid_argument("the gradient of feature " + std::to_string(f) + " has " +
                                  std::to_string(vectors.num_rows) + " rows and needs " + std::to_string(end - begin));
    }
    require_size(f, "the linear gradient", linear.size(), (end - begin) * layout_.linear);
    if (inits_[static_cast<std::size_t>(feature.table)].frozen) continue;
    gradients[f] = {.vectors = vectors.num_floats == 0 ? nullptr : vectors.data,
                    .stride = vectors.num_rows > 0 ? vectors.stride : row_floats,
                    .linear = linear.empty() ? nullptr : linear.data()};
  }
  if (!ws.gradients.any) start_gradients(ws);
  const auto differs = [](const FeatureGradient& g) { return (g.vectors == nullptr) != (g.linear == nullptr); };
  if (!std::ranges::any_of(gradients, differs)) {
    merge(ws, begin, end, layout_.dim, gradients);
  } else {
    std::vector<FeatureGradient> only = gradients;
    for (FeatureGradient& g : only) g.linear = nullptr;
    merge(ws, begin, end, layout_.dim, only);
    only = gradients;
    for (FeatureGradient& g : only) g.vectors = nullptr;
    merge(ws, begin, end, layout_.dim, only);
  }
  if (members_ && ws.located.train) count_refused(ws, begin, end, gradients);
}

// A refused key was reached, and takes no gradient: of a table with a rare row its positions say so, of another what
// was merged.
void RowGroup::count_refused(WorkingSet& ws, std::size_t begin, std::size_t end,
                             std::span<const FeatureGradient> gradients) const {
  std::uint8_t* const reached = ws.gradients.reached.data();
  for (std::size_t u = 0; u < ws.num_unique(); ++u) {
    if (ws.located.kinds[u] != static_cast<std::uint8_t>(RecordKind::kRefused)) continue;
    if (reached[u] != 0) reached[u] = Gradients::kRefused;
  }
  if (ws.located.trained_ids.size() == 0) return;
  for (std::size_t f = 0; f < gradients.size(); ++f) {
    if (!gradients[f].any()) continue;
    const auto own = std::as_const(ws).virtual_ids(f), trained = std::as_const(ws).trained_ids(f);
    for (std::size_t n = ws.features()[f].first_position(begin); n < ws.features()[f].first_position(end); ++n) {
      if (own[n] != trained[n]) reached[own[n]] = Gradients::kRefused;
    }
  }
}

void RowGroup::require_gradients(const WorkingSet& ws) const {
  require_located(ws);
  if (!ws.gradients.any) throw std::runtime_error("backward has not been called on this working set");
}

double RowGroup::grad_norm_squared(const WorkingSet& ws) const {
  require_located(ws);
  if (!ws.gradients.any) return 0;
  const Gradients& gradients = ws.gradients;
  std::vector<double> sums((ws.num_unique() + kKeys - 1) / kKeys, 0.0);
  parallel_ranges(ws.num_unique(), kKeys, [&](std::size_t begin, std::size_t end) {
    double sum = 0;
    for (std::size_t u = begin; u < end; ++u) {
      const auto reached = gradients.reached[u];
      if (reached & Gradients::kVector) {
        sum += kernels().sum_of_squares(gradients.vectors.data() + u * layout_.dim, layout_.dim);
      }
      if (reached & Gradients::kLinear) sum += static_cast<double>(gradients.linear[u]) * gradients.linear[u];
    }
    sums[begin / kKeys] = sum;
  });
  double total = 0;
  for (const double sum : sums) total += sum;
  return total;
}

}  // namespace sfctr
