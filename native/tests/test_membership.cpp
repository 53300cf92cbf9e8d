// Shares, the order of removal, and event time, against sorted lists and by hand.
#include <algorithm>
#include <map>
#include <random>
#include <stdexcept>
#include <vector>

#include "check.h"
#include "sfctr/hash.h"
#include "sfctr/membership.h"

namespace {

using sfctr::BoundedKeys;
using sfctr::EventClock;
using sfctr::Index;
using sfctr::mix;

std::uint64_t shard_of(std::uint64_t key, unsigned bits) { return bits == 0 ? 0 : mix(key) >> (64 - bits); }

// Keys come, are used again and go; after each step each shard holds its youngest.
void the_oldest_of_each_shard_leave(std::uint64_t bound, unsigned bits) {
  std::mt19937_64 random(bound);
  Index index(true);
  BoundedKeys bounded(bound);
  std::map<std::uint64_t, std::uint32_t> twin;
  for (std::uint32_t step = 1; step <= 60; ++step) {
    for (std::uint64_t i = 0; i < bound / 4 + 3; ++i) {
      const std::uint64_t key = random() % (2 * bound + 5);
      if (twin.emplace(key, step).second) {
        index.insert(key, 0, step);
        bounded.add(key);
      }
      twin[key] = *index.entry_of(key).stamp = step;
    }
    bounded.enforce(index, [&](std::uint64_t key, std::uint32_t stamp) {
      CHECK(twin.at(key) == stamp);
      index.erase(key);
      bounded.drop(key);
    });
    const std::uint64_t num_shards = std::uint64_t{1} << bits;
    for (std::uint64_t s = 0; s < num_shards; ++s) {
      std::vector<std::pair<std::uint32_t, std::uint64_t>> mine;
      for (const auto& [key, stamp] : twin) {
        if (shard_of(key, bits) == s) mine.emplace_back(stamp, mix(key));
      }
      std::ranges::sort(mine);
      const std::uint64_t share = bound / num_shards + (s < bound % num_shards);
      const std::uint64_t surplus = mine.size() > share ? mine.size() - share : 0;
      std::erase_if(twin, [&](const auto& each) {
        if (shard_of(each.first, bits) != s) return false;
        const auto place = std::ranges::lower_bound(mine, std::pair(each.second, mix(each.first)));
        return static_cast<std::uint64_t>(place - mine.begin()) < surplus;
      });
    }
    CHECK(index.size() == twin.size() && bounded.size() == twin.size());
    for (const auto& [key, stamp] : twin) CHECK(*index.entry_of(key).stamp == stamp);
  }
}

void keys_that_the_index_has_not_are_an_error() {
  Index index(true);
  BoundedKeys bounded(1);
  for (std::uint64_t key = 0; key < 3; ++key) bounded.add(key);
  CHECK_THROWS(std::logic_error, bounded.enforce(index, [](std::uint64_t, std::uint32_t) {}));
}

void event_time_never_goes_back() {
  EventClock clock;
  CHECK(clock.first_within(5) == 0);
  clock.advance(1, EventClock::kNoTime);
  CHECK(clock.points().empty());
  clock.advance(2, 100);  // and steps 0 and 1 count as of then
  clock.advance(3, 90);
  clock.advance(4, 107);
  clock.advance(6, 112);
  CHECK(clock.points().size() == 3);
  CHECK(clock.first_within(0) == 6);
  CHECK(clock.first_within(5) == 4);
  CHECK(clock.first_within(11) == 4);
  CHECK(clock.first_within(12) == 0);
  clock.forget_beyond(11);
  CHECK(clock.points().size() == 2);
  CHECK(clock.first_within(11) == 4);
  clock.advance(7, std::numeric_limits<std::int64_t>::min() + 1);
  CHECK(clock.first_within(std::numeric_limits<std::int64_t>::max()) == 4);
}

}  // namespace

int main() {
  the_oldest_of_each_shard_leave(1, 0);
  the_oldest_of_each_shard_leave(127, 0);
  the_oldest_of_each_shard_leave(128, 1);
  the_oldest_of_each_shard_leave(3000, 5);
  the_oldest_of_each_shard_leave(20'001, 8);
  keys_that_the_index_has_not_are_an_error();
  event_time_never_goes_back();
}
