// Logs against maps, and replays against a plain least-recently-used list and sums of stack distances.
#include <algorithm>
#include <list>
#include <map>
#include <numeric>
#include <random>
#include <vector>

#include "check.h"
#include "sfctr/access_log.h"
#include "sfctr/replay.h"
#include "sfctr/thread_pool.h"

namespace {

using sfctr::Accesses;
using sfctr::AccessLog;
using sfctr::ReplayPolicy;

struct Sequence {
  std::vector<std::uint32_t> rows;
  std::vector<std::int64_t> batch_begin;
  std::size_t num_rows;

  Accesses accesses() const { return {rows, batch_begin, num_rows}; }
};

Sequence random_sequence(std::size_t num_accesses, std::uint32_t num_rows, std::size_t batch_size) {
  std::mt19937 random(num_rows);
  Sequence made{{}, {0}, num_rows};
  for (std::size_t n = 0; n < num_accesses; ++n) {
    made.rows.push_back(std::min(random() % num_rows, random() % num_rows));
    if (made.rows.size() % batch_size == 0) made.batch_begin.push_back(static_cast<std::int64_t>(made.rows.size()));
  }
  if (made.batch_begin.back() != static_cast<std::int64_t>(num_accesses)) {
    made.batch_begin.push_back(static_cast<std::int64_t>(num_accesses));
  }
  return made;
}

// [num_rows + 1], by walking a list.
std::vector<std::uint64_t> distances_by_list(const Sequence& sequence) {
  std::vector<std::uint64_t> counts(sequence.num_rows + 1, 0);
  std::list<std::uint32_t> order;
  for (const std::uint32_t row : sequence.rows) {
    const auto found = std::find(order.begin(), order.end(), row);
    if (found == order.end()) {
      ++counts[0];
    } else {
      ++counts[static_cast<std::size_t>(std::distance(order.begin(), found)) + 1];
      order.erase(found);
    }
    order.push_front(row);
  }
  return counts;
}

void stack_distances_are_places_in_a_list(std::size_t num_accesses, std::uint32_t num_rows) {
  const Sequence sequence = random_sequence(num_accesses, num_rows, 7);
  const std::vector<std::uint64_t> counts = sfctr::stack_distance_counts(sequence.accesses());
  CHECK(counts == distances_by_list(sequence));
  for (std::uint64_t capacity : {1u, num_rows / 3 + 1, num_rows}) {
    const std::uint64_t sum =
        std::accumulate(counts.begin() + 1, counts.begin() + 1 + static_cast<long>(capacity), 0ull);
    CHECK(sfctr::replay(sequence.accesses(), ReplayPolicy::kLru, {{capacity}}, 0)[0] == sum);
  }
}

void no_policy_beats_the_optimum_and_a_whole_table_misses_nothing() {
  const Sequence sequence = random_sequence(3000, 100, 11);
  const std::vector<std::uint64_t> capacities = {1, 5, 20, 60, 100};
  const auto best = sfctr::replay(sequence.accesses(), ReplayPolicy::kOptimal, capacities, 0);
  for (const char* name : {"lru", "clock", "lfu", "frequency", "window"}) {
    const auto found = sfctr::replay(sequence.accesses(), sfctr::policy_named(name), capacities, 2);
    for (std::size_t i = 0; i < capacities.size(); ++i) CHECK(found[i] <= best[i]);
    CHECK(found.back() == best.back());
  }
  CHECK(sfctr::replay(sequence.accesses(), ReplayPolicy::kWindow, capacities, 1u << 20) == best);
}

// 40 batches of random keys, from `keys` on; every third asks for the row of a missing value too.
AccessLog filled_log(std::size_t halve_before) {
  std::mt19937_64 random(3);
  AccessLog log;
  for (std::size_t batch = 0; batch < 40; ++batch) {
    if (batch == halve_before) log.halve();
    std::map<std::uint64_t, int> keys;
    for (int n = 0; n < 50; ++n) keys[random() % 400] = 0;
    std::vector<std::uint64_t> distinct;
    for (const auto& [key, unused] : keys) distinct.push_back(key);
    log.add(distinct, batch % 3 == 0);
  }
  return log;
}

void it_makes_no_difference_when_a_log_was_halved() {
  const AccessLog early = filled_log(0), late = filled_log(39), whole = filled_log(100);
  CHECK(early.rows() == late.rows());
  CHECK(std::ranges::equal(early.batch_begin(), late.batch_begin()));
  CHECK(early.num_rows() > 150 && early.num_rows() < 250 && whole.num_rows() == 401);
  const AccessLog parts[] = {whole.part(0, 1), whole.part(1, 1)};
  CHECK(parts[0].rows() == early.rows());
  CHECK(parts[0].rows().size() + parts[1].rows().size() == whole.rows().size());
  CHECK(parts[0].num_rows() + parts[1].num_rows() == whole.num_rows());
  CHECK(early.memory_bytes() < whole.memory_bytes());
}

void what_is_no_sequence_of_accesses_is_refused() {
  const std::vector<std::uint32_t> rows = {0, 1, 2};
  const std::vector<std::int64_t> good = {0, 3}, late = {1, 3}, falling = {0, 4, 3};
  CHECK(sfctr::checked({rows, good, 3}).num_rows == 3);
  CHECK_THROWS(std::invalid_argument, sfctr::checked({rows, good, 2}));
  CHECK_THROWS(std::invalid_argument, sfctr::checked({rows, late, 3}));
  CHECK_THROWS(std::invalid_argument, sfctr::checked({rows, falling, 3}));
  CHECK_THROWS(std::invalid_argument, sfctr::checked({rows, {}, 3}));
  CHECK_THROWS(std::invalid_argument, sfctr::replay({rows, good, 3}, ReplayPolicy::kLru, {{0}}, 0));
  CHECK_THROWS(std::invalid_argument, sfctr::policy_named("fifo"));
}

}  // namespace

int main() {
  for (int threads : {1, 3}) {
    sfctr::set_num_threads(threads);
    stack_distances_are_places_in_a_list(0, 1);
    stack_distances_are_places_in_a_list(500, 1);
    stack_distances_are_places_in_a_list(5000, 40);  // a line of times that is drawn anew many times
    stack_distances_are_places_in_a_list(3000, 900);
    no_policy_beats_the_optimum_and_a_whole_table_misses_nothing();
  }
  it_makes_no_difference_when_a_log_was_halved();
  what_is_no_sequence_of_accesses_is_refused();
}
