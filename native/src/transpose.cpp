#include "transpose.h"

#include <algorithm>

#include "sfctr/thread_pool.h"

namespace sfctr {
namespace {

struct Part {  // of one call
  const WorkingSet& ws;
  std::size_t begin, end;  // rows
  std::size_t dim;
  std::span<const FeatureGradient> gradients;
  Transpose& out;

  std::size_t num_positions(std::size_t f) const {
    return ws.features()[f].first_position(end) - ws.features()[f].first_position(begin);
  }
};

bool scales(const FeatureKeys& feature) { return feature.pooling == Pooling::kMean || !feature.weights.empty(); }

// What forward divided the row's bag by, and 0 of its gradient where that was nothing.
Scale scale_of_bag(const FeatureKeys& feature, std::size_t first, std::size_t last) {
  if (feature.pooling != Pooling::kMean) return {1, 1};
  float sum = static_cast<float>(last - first);
  if (!feature.weights.empty()) {
    sum = 0;
    for (std::size_t n = first; n < last; ++n) sum += feature.weights[n];
  }
  return sum == 0 ? Scale{1, 0} : Scale{sum, 1};
}

void place_one(const Part& part, std::size_t f, bool scaled) {
  const std::int32_t* const ids = part.ws.trained_ids(f).data();
  const FeatureGradient gradient = part.gradients[f];
  std::uint32_t* const next = part.out.ends.data();
  for (std::size_t b = part.begin; b < part.end; ++b) {
    const std::uint32_t k = next[ids[b]]++;
    if (gradient.vectors) part.out.rows[k] = gradient.vectors + (b - part.begin) * gradient.stride;
    if (scaled) part.out.scales[k] = {1, 1};
    if (gradient.linear) part.out.linear[k] = gradient.linear[b - part.begin];
  }
}

void place_bag(const Part& part, std::size_t f, bool scaled) {
  const FeatureKeys& feature = part.ws.features()[f];
  const std::int32_t* const ids = part.ws.trained_ids(f).data();
  const FeatureGradient gradient = part.gradients[f];
  std::uint32_t* const next = part.out.ends.data();
  const std::size_t step = feature.pooling == Pooling::kSequence ? part.dim : 0;
  for (std::size_t b = part.begin; b < part.end; ++b) {
    const std::size_t row = b - part.begin, first = feature.first_position(b), last = feature.first_position(b + 1);
    const Scale of_bag = scale_of_bag(feature, first, last);
    for (std::size_t n = first; n < last; ++n) {
      const std::uint32_t k = next[ids[n]]++;
      const float weight = feature.weights.empty() ? of_bag.weight : of_bag.weight * feature.weights[n];
      if (gradient.vectors) part.out.rows[k] = gradient.vectors + row * gradient.stride + (n - first) * step;
      if (scaled) part.out.scales[k] = {of_bag.denominator, weight};
      if (gradient.linear) part.out.linear[k] = gradient.linear[row] / of_bag.denominator * weight;
    }
  }
}

// Turns the table's part of ends from nothing into ends, by way of counts and beginnings.
void sort_table(const Part& part, std::size_t table, std::span<const std::size_t> features, std::uint32_t base,
                std::vector<HotKey>& hot) {
  const auto first = static_cast<std::size_t>(part.ws.table_begin()[2 * table]);
  const auto last = static_cast<std::size_t>(part.ws.table_begin()[2 * table + 2]);
  std::uint32_t* const ends = part.out.ends.data();
  std::fill(ends + first, ends + last, 0);
  for (std::size_t f : features) {
    const auto ids =
        part.ws.trained_ids(f).subspan(part.ws.features()[f].first_position(part.begin), part.num_positions(f));
    for (const std::int32_t id : ids) ++ends[id];
  }
  for (std::size_t u = first; u < last; ++u) {
    if (ends[u] > kMergeChunk) hot.push_back({u, part.out.scaled[table]});
    base += std::exchange(ends[u], base);
  }
  for (std::size_t f : features) {
    if (part.ws.features()[f].pooling == Pooling::kOne) {
      place_one(part, f, part.out.scaled[table]);
    } else {
      place_bag(part, f, part.out.scaled[table]);
    }
  }
}

}  // namespace

Transpose transpose(const WorkingSet& ws, std::size_t begin, std::size_t end, std::size_t dim,
                    std::span<const FeatureGradient> gradients) {
  Transpose out;
  const Part part{ws, begin, end, dim, gradients, out};
  const auto num_tables = static_cast<std::size_t>(ws.num_tables());
  std::vector<std::vector<std::size_t>> features_of(num_tables);
  std::vector<std::size_t> num_positions(num_tables, 0);
  out.scaled.resize(num_tables, false);
  bool vectors = false, linear = false, any_scaled = false;
  for (std::size_t f = 0; f < gradients.size(); ++f) {
    if (!gradients[f].any()) continue;
    const auto table = static_cast<std::size_t>(ws.features()[f].table);
    features_of[table].push_back(f);
    num_positions[table] += part.num_positions(f);
    out.scaled[table] = out.scaled[table] || scales(ws.features()[f]);
    any_scaled = any_scaled || out.scaled[table];
    vectors = vectors || gradients[f].vectors;
    linear = linear || gradients[f].linear;
  }
  std::vector<std::uint32_t> base(num_tables + 1, 0);
  for (std::size_t t = 0; t < num_tables; ++t) base[t + 1] = base[t] + static_cast<std::uint32_t>(num_positions[t]);
  out.ends.resize(ws.num_unique());
  if (vectors) out.rows.resize(base.back());
  if (any_scaled) out.scales.resize(base.back());
  if (linear) out.linear.resize(base.back());
  std::vector<std::vector<HotKey>> hot(num_tables);
  parallel_for(num_tables, [&](std::size_t t) { sort_table(part, t, features_of[t], base[t], hot[t]); });
  for (const auto& of_table : hot) out.hot.insert(out.hot.end(), of_table.begin(), of_table.end());
  return out;
}

}  // namespace sfctr
