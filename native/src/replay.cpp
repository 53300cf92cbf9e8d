// One loop over the accesses for all policies. A policy says which rows it holds, is told of each use and admission,
// and gives up a row when asked; it is never asked while it holds none.
#include "sfctr/replay.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <string>

#include "ordered_bits.h"
#include "row_lists.h"
#include "sfctr/thread_pool.h"

namespace sfctr {
namespace {

template <class Cache>
std::uint64_t hits(const Accesses& accesses, std::uint64_t capacity, Cache cache) {
  std::uint64_t hits = 0, held = 0;
  std::size_t time = 0;
  for (std::size_t batch = 0; batch + 1 < accesses.batch_begin.size(); ++batch) {
    if constexpr (requires { cache.begin_batch(batch); }) cache.begin_batch(batch);
    for (const auto end = static_cast<std::size_t>(accesses.batch_begin[batch + 1]); time < end; ++time) {
      const std::uint32_t row = accesses.rows[time];
      if (cache.holds(row)) {
        ++hits;
        cache.use(row, time);
        continue;
      }
      if (held < capacity) {
        ++held;
      } else {
        cache.evict();
      }
      cache.admit(row, time);
    }
  }
  return hits;
}

class Lru {
 public:
  explicit Lru(std::size_t num_rows) : order_(num_rows, 1) {}
  bool holds(std::uint32_t row) const { return order_.contains(row); }
  void use(std::uint32_t row, std::size_t) {
    order_.remove(row);
    order_.append(0, row);
  }
  void evict() { order_.remove(order_.front(0)); }
  void admit(std::uint32_t row, std::size_t) { order_.append(0, row); }

 private:
  RowLists order_;  // by last use
};

class Clock {
 public:
  explicit Clock(std::size_t num_rows) : marks_(num_rows, kAbsent) {}
  bool holds(std::uint32_t row) const { return marks_[row] != kAbsent; }
  void use(std::uint32_t row, std::size_t) { marks_[row] = kMarked; }
  void evict() {
    for (; marks_[places_[hand_]] == kMarked; advance()) marks_[places_[hand_]] = kClear;
    marks_[places_[hand_]] = kAbsent;
    is_full_ = true;
  }
  void admit(std::uint32_t row, std::size_t) {
    marks_[row] = kMarked;
    if (!is_full_) {
      places_.push_back(row);
      return;
    }
    places_[hand_] = row;
    advance();
  }

 private:
  enum Mark : std::uint8_t { kAbsent, kClear, kMarked };
  void advance() { hand_ = hand_ + 1 == places_.size() ? 0 : hand_ + 1; }

  std::vector<Mark> marks_;            // of each row
  std::vector<std::uint32_t> places_;  // place -> row
  std::size_t hand_ = 0;
  bool is_full_ = false;
};

class Lfu {
 public:
  Lfu(std::size_t num_rows, std::size_t highest_count)
      : counts_(num_rows, 0), counts_held_(highest_count + 1), order_(num_rows, highest_count + 1) {}
  bool holds(std::uint32_t row) const { return order_.contains(row); }
  void use(std::uint32_t row, std::size_t time) {
    remove(row);
    admit(row, time);
  }
  void evict() { remove(order_.front(counts_held_.min())); }
  void admit(std::uint32_t row, std::size_t) {
    const std::uint32_t count = ++counts_[row];
    if (order_.is_empty(count)) counts_held_.insert(count);
    order_.append(count, row);
  }

 private:
  void remove(std::uint32_t row) {
    order_.remove(row);
    if (order_.is_empty(counts_[row])) counts_held_.erase(counts_[row]);
  }

  std::vector<std::uint32_t> counts_;  // of each row's uses, held or not
  OrderedBits counts_held_;            // those of the rows held
  RowLists order_;                     // by last use, a list for each count
};

class Frequency {
 public:
  explicit Frequency(std::span<const std::uint32_t> ranks) : ranks_(ranks), order_(ranks.size()), held_(ranks.size()) {
    for (std::size_t row = 0; row < ranks.size(); ++row) order_[ranks[row]] = static_cast<std::uint32_t>(row);
  }
  bool holds(std::uint32_t row) const { return held_.contains(ranks_[row]); }
  void use(std::uint32_t, std::size_t) {}
  void evict() { held_.erase(held_.max()); }
  void admit(std::uint32_t row, std::size_t) { held_.insert(ranks_[row]); }

 private:
  std::span<const std::uint32_t> ranks_;
  std::vector<std::uint32_t> order_;
  OrderedBits held_;  // ranks
};

class Optimal {
 public:
  Optimal(const Accesses& accesses, std::span<const std::uint32_t> next_uses)
      : rows_(accesses.rows), next_uses_(next_uses), is_held_(accesses.num_rows, 0), coming_(accesses.rows.size()) {}
  bool holds(std::uint32_t row) const { return is_held_[row] != 0; }
  void use(std::uint32_t row, std::size_t time) {
    coming_.erase(time);
    admit(row, time);
  }
  void evict() {
    std::uint32_t row;
    if (spent_.empty()) {
      const std::size_t farthest = coming_.max();
      coming_.erase(farthest);
      row = rows_[farthest];
    } else {
      row = spent_.back();
      spent_.pop_back();
    }
    is_held_[row] = 0;
  }
  void admit(std::uint32_t row, std::size_t time) {
    is_held_[row] = 1;
    if (next_uses_[time] == kNever) {
      spent_.push_back(row);
    } else {
      coming_.insert(next_uses_[time]);
    }
  }

 private:
  std::span<const std::uint32_t> rows_, next_uses_;
  std::vector<std::uint8_t> is_held_;
  OrderedBits coming_;                // next uses of the rows held
  std::vector<std::uint32_t> spent_;  // rows held that are never used again: equals, whichever is evicted
};

class Window {
 public:
  Window(const Accesses& accesses, std::span<const std::uint32_t> next_uses, std::size_t window)
      : accesses_(accesses),
        next_uses_(next_uses),
        window_(window),
        next_(accesses.num_rows, kNever),
        unknown_(accesses.num_rows, 1),
        known_(accesses.rows.size()) {}

  void begin_batch(std::size_t batch) {
    const auto& begin = accesses_.batch_begin;
    const std::size_t last = std::min(begin.size() - 1, batch + 1 + std::min(window_, begin.size()));
    for (const auto end = static_cast<std::size_t>(begin[last]); known_end_ < end; ++known_end_) {
      const std::uint32_t row = accesses_.rows[known_end_];
      if (!unknown_.contains(row)) continue;
      unknown_.remove(row);  // its first use since the last one, or it would be known already
      learn(row, known_end_);
    }
  }

  bool holds(std::uint32_t row) const { return next_[row] != kNever || unknown_.contains(row); }
  void use(std::uint32_t row, std::size_t time) {
    known_.erase(next_[row]);  // the current batch is known
    next_[row] = kNever;
    admit(row, time);
  }
  void evict() {
    if (!unknown_.is_empty(0)) return unknown_.remove(unknown_.front(0));
    const std::size_t farthest = known_.max();
    known_.erase(farthest);
    next_[accesses_.rows[farthest]] = kNever;
  }
  void admit(std::uint32_t row, std::size_t time) {
    if (next_uses_[time] < known_end_) {
      learn(row, next_uses_[time]);
    } else {
      unknown_.append(0, row);
    }
  }

 private:
  void learn(std::uint32_t row, std::size_t time) {
    next_[row] = static_cast<std::uint32_t>(time);
    known_.insert(time);
  }

  const Accesses& accesses_;
  std::span<const std::uint32_t> next_uses_;
  std::size_t window_;
  std::size_t known_end_ = 0;
  std::vector<std::uint32_t> next_;  // the known next use of a row held, else kNever
  RowLists unknown_;                 // rows held without one, by last use
  OrderedBits known_;                // all of next_
};

// [num_rows]: 0 for the row used most often; equals in the order of first appearance.
std::vector<std::uint32_t> ranks_by_use(const Accesses& accesses) {
  const std::vector<std::uint32_t> counts = use_counts(accesses);
  std::vector<std::uint32_t> first(counts.size(), kNever);
  for (std::size_t time = accesses.rows.size(); time-- > 0;) {
    first[accesses.rows[time]] = static_cast<std::uint32_t>(time);
  }
  std::vector<std::uint32_t> order(counts.size()), ranks(counts.size());
  std::iota(order.begin(), order.end(), 0u);
  std::ranges::sort(order, [&](std::uint32_t a, std::uint32_t b) {
    return counts[a] != counts[b] ? counts[a] > counts[b] : first[a] != first[b] ? first[a] < first[b] : a < b;
  });
  for (std::size_t rank = 0; rank < order.size(); ++rank) ranks[order[rank]] = static_cast<std::uint32_t>(rank);
  return ranks;
}

std::uint64_t hot_set_hits(const Accesses& accesses, std::uint64_t capacity, std::span<const std::uint32_t> ranks) {
  std::vector<std::uint8_t> is_used(accesses.num_rows, 0);
  std::uint64_t hits = 0;
  for (const std::uint32_t row : accesses.rows) {
    if (ranks[row] < capacity) hits += is_used[row];
    is_used[row] = 1;
  }
  return hits;
}

// Calls count(capacity) for every capacity.
template <class Count>
std::vector<std::uint64_t> for_each_capacity(std::span<const std::uint64_t> capacities, Count count) {
  std::vector<std::uint64_t> found(capacities.size());
  parallel_for(capacities.size(), [&](std::size_t i) { found[i] = count(capacities[i]); });
  return found;
}

}  // namespace

ReplayPolicy policy_named(std::string_view name) {
  constexpr std::string_view kNames[] = {"lru", "clock", "lfu", "frequency", "window", "optimal", "hot_set"};
  const auto found = std::ranges::find(kNames, name);
  if (found == std::end(kNames)) throw std::invalid_argument("there is no policy '" + std::string(name) + "'");
  return static_cast<ReplayPolicy>(found - std::begin(kNames));
}

std::vector<std::uint64_t> replay(const Accesses& accesses, ReplayPolicy policy,
                                  std::span<const std::uint64_t> capacities, std::size_t window) {
  if (std::ranges::find(capacities, 0u) != capacities.end()) throw std::invalid_argument("a capacity is 0");
  const auto each = [&](auto make) {
    return for_each_capacity(capacities, [&](std::uint64_t c) { return hits(accesses, c, make()); });
  };
  switch (policy) {
    case ReplayPolicy::kLru:
      return each([&] { return Lru(accesses.num_rows); });
    case ReplayPolicy::kClock:
      return each([&] { return Clock(accesses.num_rows); });
    case ReplayPolicy::kLfu: {
      const std::vector<std::uint32_t> counts = use_counts(accesses);
      const std::size_t highest = counts.empty() ? 0 : std::ranges::max(counts);
      return each([&] { return Lfu(accesses.num_rows, highest); });
    }
    case ReplayPolicy::kFrequency:
    case ReplayPolicy::kHotSet: {
      const std::vector<std::uint32_t> ranks = ranks_by_use(accesses);
      if (policy == ReplayPolicy::kFrequency) return each([&] { return Frequency(ranks); });
      return for_each_capacity(capacities, [&](std::uint64_t c) { return hot_set_hits(accesses, c, ranks); });
    }
    case ReplayPolicy::kWindow:
    case ReplayPolicy::kOptimal: {
      const std::vector<std::uint32_t> next = next_uses(accesses);
      if (policy == ReplayPolicy::kOptimal) return each([&] { return Optimal(accesses, next); });
      return each([&] { return Window(accesses, next, window); });
    }
  }
  return {};
}

}  // namespace sfctr
