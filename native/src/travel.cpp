// Rows that travel: their weights to whoever looks them up in another process, and merged gradients back to where they
// are held. What looks up has adopted them: it pools and merges as if they were located, and owns nothing.
#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "sfctr/row_group.h"
#include "sfctr/thread_pool.h"

namespace sfctr {
namespace {

constexpr std::size_t kKeys = 1024;  // of a task
constexpr auto kAbsent = static_cast<std::uint8_t>(RecordKind::kAbsent);
constexpr auto kRefused = static_cast<std::uint8_t>(RecordKind::kRefused);

bool is_none(std::uint8_t kind) { return kind == kAbsent || kind == kRefused; }

void require_size(const char* what, std::size_t has, std::size_t needs) {
  if (has == needs) return;
  throw std::invalid_argument(std::string(what) + " has " + std::to_string(has) + " entries and needs " +
                              std::to_string(needs));
}

}  // namespace

void RowGroup::require_own(const WorkingSet& ws) const {
  require_located(ws);
  if (!ws.located.adopted) return;
  throw std::runtime_error("the rows of this working set are from elsewhere: they are changed where they are held");
}

void RowGroup::weights(const WorkingSet& ws, std::span<float> out) const {
  require_located(ws);
  if (forgets_) require_filled(ws);
  const std::size_t words = wire_words();
  require_size("out", out.size(), ws.num_unique() * words);
  parallel_ranges(ws.num_unique(), kKeys, [&](std::size_t begin, std::size_t end) {
    for (std::size_t u = begin; u < end; ++u) copy_weights(ws, u, out.data() + u * words);
  });
}

void RowGroup::weights(const WorkingSet& ws, std::span<const std::int32_t> ids, std::span<float> out) const {
  require_located(ws);
  if (forgets_) require_filled(ws);
  const std::size_t words = wire_words();
  require_size("out", out.size(), ids.size() * words);
  for (const std::int32_t u : ids) {
    if (u >= 0 && static_cast<std::size_t>(u) < ws.num_unique()) continue;
    throw std::invalid_argument("unique key " + std::to_string(u) + " of " + std::to_string(ws.num_unique()));
  }
  parallel_ranges(ids.size(), kKeys, [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      copy_weights(ws, static_cast<std::size_t>(ids[i]), out.data() + i * words);
    }
  });
}

void RowGroup::copy_weights(const WorkingSet& ws, std::size_t u, float* out) const {
  const float* const record = is_none(ws.located.kinds[u]) ? zeros_.data() : ws.located.records[u];
  std::copy_n(record, wire_words(), out);
}

std::span<const std::uint8_t> RowGroup::kinds(const WorkingSet& ws) const {
  require_located(ws);
  return ws.located.kinds.span();
}

void RowGroup::adopt(WorkingSet& ws, std::span<const float> weights, std::span<const std::uint8_t> kinds, bool train) {
  require_tables(ws);
  if (ws.is_of_sources()) throw std::invalid_argument("rows are adopted by a batch, which looks them up");
  require_size("weights", weights.size(), ws.num_unique() * wire_words());
  if (!kinds.empty()) require_size("kinds", kinds.size(), ws.num_unique());
  for (std::size_t u = 0; u < kinds.size(); ++u) {
    if (kinds[u] <= static_cast<std::uint8_t>(RecordKind::kFresh) && (members_ || kinds[u] != kRefused)) continue;
    throw std::invalid_argument("unique key " + std::to_string(u) + " has kind " + std::to_string(kinds[u]) +
                                ", which no row of this group can have");
  }
  if (ws.located.group == number_) discard(ws);
  start(ws, train);
  Located& located = ws.located;
  std::ranges::fill(located.places.span(), Place::none().bits());
  if (kinds.empty()) {
    std::fill_n(located.kinds.data(), ws.num_unique(), static_cast<std::uint8_t>(RecordKind::kStored));
  } else {
    std::ranges::copy(kinds, located.kinds.data());
  }
  point_adopted(ws, weights);
  if (train && members_) redirect_refused(ws);
  located.adopted = located.fetched = located.settled = true;
  located.group = number_;
}

// A key without a row reads what it reads where the rows are held: see settle_block() and point_view().
void RowGroup::point_adopted(WorkingSet& ws, std::span<const float> weights) {
  Located& located = ws.located;
  // Records are read alone: whatever would write to one refuses a working set that has adopted its rows.
  float* const first = const_cast<float*>(weights.data());
  for (std::size_t n = 0; n < tables_.size(); ++n) {
    const bool rare = n % 2 == 0 && ws.has_rare(n / 2);
    float* none = zeros_.data();
    if (rare && !is_none(located.kinds[ws.rare_id(n / 2)])) none = first + ws.rare_id(n / 2) * wire_words();
    for (auto u = static_cast<std::size_t>(ws.table_begin()[n]); u < static_cast<std::size_t>(ws.table_begin()[n + 1]);
         ++u) {
      const bool reads_rare = located.kinds[u] == kRefused || (located.kinds[u] == kAbsent && !located.train);
      located.records[u] = !is_none(located.kinds[u]) ? first + u * wire_words() : reads_rare ? none : zeros_.data();
    }
  }
}

void RowGroup::require_addable(const WorkingSet& ws, std::span<const std::int32_t> ids,
                               std::span<const std::uint8_t> reached) const {
  std::vector<std::uint8_t> listed(ws.num_unique(), 0);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const auto u = static_cast<std::size_t>(ids[i]);
    if (ids[i] < 0 || u >= ws.num_unique() || listed[u]++) {
      throw std::invalid_argument("ids[" + std::to_string(i) + "] is " + std::to_string(ids[i]) + ", which is " +
                                  (ids[i] >= 0 && u < ws.num_unique()
                                       ? "there twice"
                                       : "none of " + std::to_string(ws.num_unique()) + " unique keys"));
    }
    if ((reached[i] & Gradients::kRefused) == 0 || ws.located.kinds[u] == kRefused) continue;
    throw std::invalid_argument("unique key " + std::to_string(u) + " was reached as one refused and has a row here");
  }
}

void RowGroup::add_gradients(WorkingSet& ws, std::span<const std::int32_t> ids, std::span<const float> vectors,
                             std::span<const float> linear, std::span<const std::uint8_t> reached) const {
  require_own(ws);
  if (!ws.located.train) throw std::runtime_error("this working set was located for reading, not for training");
  if (forgets_) require_filled(ws);
  const std::size_t dim = layout_.dim;
  require_size("vectors", vectors.size(), ids.size() * dim);
  require_size("linear", linear.size(), ids.size() * layout_.linear);
  require_size("reached", reached.size(), ids.size());
  require_addable(ws, ids, reached);
  if (!ws.gradients.any) start_gradients(ws);
  Gradients& to = ws.gradients;
  const auto add = [](float* sum, const float* values, std::size_t size, bool first) {
    for (std::size_t c = 0; c < size; ++c) sum[c] = first ? values[c] : sum[c] + values[c];
  };
  parallel_ranges(ids.size(), kKeys, [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      const auto u = static_cast<std::size_t>(ids[i]);
      if (reached[i] == 0 || is_frozen(ws, u)) continue;
      if (ws.located.kinds[u] == kRefused) {
        to.reached[u] = Gradients::kRefused;
        continue;
      }
      if (reached[i] & Gradients::kVector) {
        add(to.vectors.data() + u * dim, vectors.data() + i * dim, dim, !(to.reached[u] & Gradients::kVector));
      }
      if (layout_.linear != 0 && (reached[i] & Gradients::kLinear)) {
        add(to.linear.data() + u, linear.data() + i, 1, !(to.reached[u] & Gradients::kLinear));
      }
      to.reached[u] |= reached[i] & (Gradients::kVector | Gradients::kLinear);
    }
  });
}

bool RowGroup::is_frozen(const WorkingSet& ws, std::size_t u) const {
  const auto after = std::ranges::upper_bound(ws.table_begin(), static_cast<std::int64_t>(u));
  return inits_[static_cast<std::size_t>(after - ws.table_begin().begin() - 1) / 2].frozen;
}

}  // namespace sfctr
