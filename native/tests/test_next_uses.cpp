// Next uses against brute force over the list of known batches, whatever order they leave in.
#include <algorithm>
#include <deque>
#include <memory>
#include <random>
#include <vector>

#include "check.h"
#include "sfctr/next_uses.h"

namespace {

using sfctr::NextUses;
using sfctr::WorkingSet;

constexpr std::uint64_t kKeys = 12;

struct Batch {
  Batch(std::vector<std::uint64_t> first, std::vector<std::uint64_t> second)
      : keys{std::move(first), std::move(second)},
        ws(2, keys[0].size(),
           {{.table = 0, .pooling = sfctr::Pooling::kOne, .keys = keys[0], .offsets = {}, .nulls = {}, .weights = {}},
            {.table = 1,
             .pooling = sfctr::Pooling::kOne,
             .keys = keys[1],
             .offsets = {},
             .nulls = {},
             .weights = {}}}) {}
  bool holds(std::uint32_t native_table, std::uint64_t key) const {
    if (native_table % 2 != 0) return false;
    const auto& column = keys[native_table / 2];
    return std::find(column.begin(), column.end(), key) != column.end();
  }
  std::vector<std::uint64_t> keys[2];
  WorkingSet ws;
};

std::unique_ptr<Batch> random_batch(std::mt19937& random) {
  const std::size_t size = random() % 5;
  std::vector<std::uint64_t> columns[2];
  for (std::size_t row = 0; row < size; ++row) {
    for (auto& column : columns) column.push_back(random() % kKeys << 60 | 1);
  }
  return std::make_unique<Batch>(columns[0], columns[1]);
}

// The twin: a key's next use is the first batch in the list that holds it, and later batches have larger numbers.
void check_same(const NextUses& uses, const std::deque<std::unique_ptr<Batch>>& known) {
  std::vector<std::uint64_t> number(known.size(), 0);
  for (std::uint32_t table = 0; table < 4; ++table) {
    for (std::uint64_t key = 0; key < kKeys; ++key) {
      const std::uint64_t next = uses.of(table, key << 60 | 1);
      std::size_t first = 0;
      while (first < known.size() && !known[first]->holds(table, key << 60 | 1)) ++first;
      CHECK((next == 0) == (first == known.size()));
      if (next == 0) continue;
      CHECK(number[first] == 0 || number[first] == next);
      number[first] = next;
    }
  }
  std::uint64_t last = 0;
  for (const std::uint64_t each : number) {
    CHECK(each == 0 || each > last);
    last = std::max(last, each);
  }
  CHECK(uses.empty() == known.empty());
}

void random_schedule(std::uint32_t seed, bool in_order) {
  std::mt19937 random(seed);
  NextUses uses(4);
  std::deque<std::unique_ptr<Batch>> known, forgotten;
  for (int step = 0; step < 400; ++step) {
    if (random() % 2 == 0 && known.size() < 8) {
      known.push_back(random_batch(random));
      uses.enter(known.back()->ws);
    } else if (!known.empty() && (in_order || random() % 8 != 0)) {
      uses.leave(known.front()->ws);
      known.pop_front();
    } else if (known.size() > 1) {
      uses.leave(known[1]->ws);
      forgotten = std::move(known);
      known.clear();
    }
    if (!forgotten.empty()) uses.leave(forgotten[random() % forgotten.size()]->ws);
    check_same(uses, known);
  }
}

void next_uses_worked_by_hand() {
  NextUses uses(4);
  Batch first({5, 6}, {5, 5}), second({6, 6}, {7, 7}), third({5, 9}, {8, 8});
  for (Batch* batch : {&first, &second, &third}) uses.enter(batch->ws);
  CHECK(uses.of(0, 5) == 1 && uses.of(0, 6) == 1 && uses.of(0, 9) == 3);
  CHECK(uses.of(2, 5) == 1 && uses.of(2, 7) == 2 && uses.of(2, 8) == 3);
  CHECK(uses.of(2, 6) == 0 && uses.of(1, 5) == 0);
  uses.leave(first.ws);
  CHECK(uses.of(0, 5) == 3 && uses.of(0, 6) == 2 && uses.of(2, 5) == 0);
  uses.leave(second.ws);
  CHECK(uses.of(0, 6) == 0 && uses.of(0, 5) == 3);
  uses.leave(third.ws);
  CHECK(uses.empty() && uses.of(0, 5) == 0);
}

void a_batch_that_leaves_out_of_turn_has_all_forgotten() {
  NextUses uses(4);
  Batch first({5}, {1}), second({5}, {1}), third({5}, {1}), stranger({5}, {1});
  for (Batch* batch : {&first, &second, &third}) uses.enter(batch->ws);
  uses.leave(stranger.ws);
  CHECK(uses.of(0, 5) == 1);
  uses.leave(second.ws);
  CHECK(uses.empty() && uses.of(0, 5) == 0);
  for (Batch* batch : {&first, &second, &third}) uses.leave(batch->ws);
  uses.enter(third.ws);
  CHECK(uses.of(0, 5) > 0);
}

void a_batch_that_is_entered_twice_is_the_newest() {
  NextUses uses(4);
  Batch first({5}, {1}), second({6}, {1});
  uses.enter(first.ws);
  uses.enter(first.ws);
  CHECK(uses.of(0, 5) == 2);
  uses.enter(second.ws);
  CHECK(uses.of(0, 5) == 2 && uses.of(0, 6) == 3);
  uses.leave(first.ws);
  uses.leave(second.ws);
  CHECK(uses.empty() && uses.of(0, 5) == 0 && uses.of(0, 6) == 0);
}

void what_is_known_again_and_again_takes_no_more_memory() {
  NextUses uses(4);
  std::size_t after_one = 0;
  for (int round = 0; round < 1000; ++round) {
    Batch batch({1, 2, 3}, {4, 5, 6});
    uses.enter(batch.ws);
    if (round == 0) after_one = uses.memory_bytes();
    uses.leave(batch.ws);
  }
  CHECK(uses.memory_bytes() == after_one);
}

}  // namespace

int main() {
  next_uses_worked_by_hand();
  a_batch_that_leaves_out_of_turn_has_all_forgotten();
  a_batch_that_is_entered_twice_is_the_newest();
  what_is_known_again_and_again_takes_no_more_memory();
  for (std::uint32_t seed = 0; seed < 20; ++seed) {
    for (const bool in_order : {true, false}) random_schedule(seed, in_order);
  }
}
