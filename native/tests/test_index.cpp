// The index against std::unordered_map: the same answers after any schedule, for ordinary and for awkward keys.
#include <random>
#include <unordered_map>
#include <vector>

#include "check.h"
#include "sfctr/hash.h"
#include "sfctr/index.h"

namespace {

using sfctr::Index;
using Map = std::unordered_map<std::uint64_t, std::uint32_t>;

void check_same(const Index& index, const Map& map, const std::vector<std::uint64_t>& asked) {
  CHECK(index.size() == map.size());
  std::vector<std::uint32_t> slots(asked.size());
  index.find(asked, slots.data());
  for (std::size_t i = 0; i < asked.size(); ++i) {
    const auto found = map.find(asked[i]);
    CHECK(slots[i] == (found == map.end() ? Index::kNone : found->second));
    CHECK(slots[i] == index.find(asked[i]));
  }
  Map seen;
  index.for_each([&](std::uint64_t key, std::uint32_t slot) { CHECK(seen.emplace(key, slot).second); });
  CHECK(seen == map);
}

// Inserts and erases keys of a range that is visited again and again, so that buckets fill, overflow and empty.
void random_schedule(std::uint64_t seed, std::uint64_t num_keys, std::uint64_t stride) {
  std::mt19937_64 random(seed);
  Index index;
  Map map;
  std::vector<std::uint64_t> asked;
  for (std::uint64_t i = 0; i < num_keys; ++i) asked.push_back(i * stride);
  for (int phase = 0; phase < 6; ++phase) {
    const std::uint64_t erase_in_8 = phase % 2 == 0 ? 1 : 6;
    for (std::uint64_t i = 0; i < num_keys * 2; ++i) {
      const std::uint64_t key = asked[random() % num_keys];
      if (random() % 8 < erase_in_8) {
        const auto found = map.find(key);
        CHECK(index.erase(key) == (found == map.end() ? Index::kNone : found->second));
        map.erase(key);
      } else if (!map.contains(key)) {
        const auto slot = static_cast<std::uint32_t>(i);
        index.insert(key, slot);
        map.emplace(key, slot);
      }
    }
    check_same(index, map, asked);
  }
}

// Stamps stay with their keys while shards grow and split, and a range of hashes lists what lies in it.
void stamps_and_ranges_are_those_of_a_map(std::uint64_t seed, std::uint64_t num_keys) {
  std::mt19937_64 random(seed);
  Index index(true);
  Map map;
  for (std::uint64_t i = 0; i < num_keys; ++i) {
    const std::uint64_t key = random() % (2 * num_keys);
    if (map.contains(key) && random() % 3 == 0) {
      index.erase(key);
      map.erase(key);
    } else if (map.emplace(key, static_cast<std::uint32_t>(i)).second) {
      index.insert(key, 1, static_cast<std::uint32_t>(i));
    } else {
      map[key] = *index.entry_of(key).stamp = static_cast<std::uint32_t>(i);
    }
  }
  for (std::uint64_t key = 0; key < 2 * num_keys; ++key) {
    const Index::Entry entry = index.entry_of(key);
    CHECK(map.contains(key) == static_cast<bool>(entry));
    std::uint32_t slot = 0, stamp = 0;
    index.find({&key, 1}, &slot, &stamp);
    CHECK(slot == (entry ? 1 : Index::kNone));
    if (entry) CHECK(*entry.stamp == map.at(key) && stamp == map.at(key));
  }
  for (int bits : {0, 1, 3, 8}) {
    Map seen;
    for (std::uint64_t part = 0; part < std::uint64_t{1} << bits; ++part) {
      const std::uint64_t first = bits == 0 ? 0 : part << (64 - bits), last = first + (~std::uint64_t{0} >> bits);
      index.for_each_in(first, last, [&](const Index::Listed& each) {
        CHECK(each.hash == sfctr::mix(each.key) && each.hash >= first && each.hash <= last);
        CHECK(seen.emplace(each.key, each.stamp).second);
      });
    }
    CHECK(seen == map);
  }
}

// The same, at 24 bytes a key with its stamp.
void a_stamped_index_takes_few_bytes(std::uint32_t num_keys) {
  Index index(true);
  for (std::uint32_t i = 0; i < num_keys; ++i) {
    index.insert(std::uint64_t{i} << 32, i, i);
    if (i > 500 && i % 64 == 0) CHECK(index.memory_bytes() <= std::uint64_t{i} * 24 + 600);
  }
}

void no_key_value_is_special() {
  Index index;
  const std::vector<std::uint64_t> keys{0, ~0ull, 1ull << 63, (1ull << 63) - 1, 1};
  for (std::uint64_t key : keys) CHECK(index.find(key) == Index::kNone);
  for (std::uint32_t i = 0; i < keys.size(); ++i) index.insert(keys[i], i);
  for (std::uint32_t i = 0; i < keys.size(); ++i) CHECK(index.find(keys[i]) == i);
  for (std::uint32_t i = 0; i < keys.size(); ++i) CHECK(index.erase(keys[i]) == i);
  for (std::uint64_t key : keys) CHECK(index.find(key) == Index::kNone);
}

void a_small_index_stays_small() {
  Index index;
  const std::size_t empty = index.memory_bytes();
  for (std::uint32_t i = 0; i < 3; ++i) index.insert(i, i);
  CHECK(empty < 128 && index.memory_bytes() < 256);
}

// Grows through many shards; at no time more than 24 bytes a key beyond a few hundred, the larger copy included.
void many_keys_take_few_bytes_and_no_long_pause(std::uint32_t num_keys) {
  Index index;
  for (std::uint32_t i = 0; i < num_keys; ++i) {
    index.insert(std::uint64_t{i} << 32, i);
    if (i > 500 && i % 64 == 0) CHECK(index.memory_bytes() <= std::uint64_t{i} * 20 + 600);
  }
  std::vector<std::uint64_t> keys(num_keys);
  for (std::uint32_t i = 0; i < num_keys; ++i) keys[i] = std::uint64_t{i} << 32;
  std::vector<std::uint32_t> slots(num_keys);
  index.find(keys, slots.data());
  for (std::uint32_t i = 0; i < num_keys; ++i) CHECK(slots[i] == i);
  CHECK(index.find(5) == Index::kNone);
}

void reserving_first_changes_no_answer() {
  constexpr std::uint32_t kKeys = 2'000'000;
  Index index;
  index.insert(7, 7);
  index.reserve(kKeys);
  const std::size_t reserved = index.memory_bytes();
  CHECK(index.find(7) == 7);
  for (std::uint32_t i = 8; i < kKeys; ++i) index.insert(i, i);
  CHECK(index.memory_bytes() == reserved);
  for (std::uint32_t i = 7; i < kKeys; ++i) CHECK(index.find(i) == i);
}

}  // namespace

int main() {
  no_key_value_is_special();
  a_small_index_stays_small();
  random_schedule(1, 5, 1);
  random_schedule(2, 300, std::uint64_t{1} << 32);
  random_schedule(3, 20'000, 0x9E3779B97F4A7C15u);
  many_keys_take_few_bytes_and_no_long_pause(3'000'000);
  reserving_first_changes_no_answer();
  for (std::uint64_t num_keys : {0, 1, 7, 40, 3000, 1'500'000})
    stamps_and_ranges_are_those_of_a_map(num_keys, num_keys);
  a_stamped_index_takes_few_bytes(2'000'000);
}
