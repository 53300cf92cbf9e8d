// The index against std::unordered_map: the same answers after any schedule, for ordinary and for awkward keys.
#include <unistd.h>

#include <algorithm>
#include <map>
#include <random>
#include <unordered_map>
#include <vector>

#include "check.h"
#include "sfctr/hash.h"
#include "sfctr/index.h"
#include "sfctr/simd.h"

namespace {

using sfctr::Index;
using sfctr::kNumShards;
using sfctr::ShardSet;
using Map = std::unordered_map<std::uint64_t, std::uint32_t>;

void check_same(Index& index, const Map& map, const std::vector<std::uint64_t>& asked) {
  CHECK(index.size() == map.size());
  std::vector<std::uint32_t> slots(asked.size());
  index.find(asked, slots.data());
  for (std::size_t i = 0; i < asked.size(); ++i) {
    const auto found = map.find(asked[i]);
    CHECK(slots[i] == (found == map.end() ? Index::kNone : found->second));
    CHECK(slots[i] == index.find(asked[i]));
    const std::uint32_t* const slot = index.slot_of(asked[i]);
    CHECK(slot ? *slot == slots[i] : slots[i] == Index::kNone);
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

// So few buckets that every one of them has been full at some time, and passed keys on.
void a_few_keys_come_and_go(std::uint64_t num_keys) {
  std::mt19937_64 random(num_keys);
  Index index;
  Map map;
  std::vector<std::uint64_t> asked;
  for (std::uint64_t key = 0; key < num_keys; ++key) asked.push_back(key);
  for (std::uint32_t i = 0; i < 3000; ++i) {
    const std::uint64_t key = random() % num_keys;
    if (map.erase(key) > 0) {
      CHECK(index.erase(key) != Index::kNone);
    } else {
      index.insert(key, i);
      map.emplace(key, i);
    }
    if (i % 8 == 0) check_same(index, map, asked);
  }
}

void a_slot_can_be_changed_where_it_is() {
  Index index;
  CHECK(index.slot_of(5) == nullptr);
  for (std::uint32_t key = 0; key < 1000; ++key) index.insert(key, key);
  for (std::uint32_t key = 0; key < 1000; ++key) *index.slot_of(key) = key * 3;
  for (std::uint32_t key = 0; key < 1000; ++key) CHECK(index.find(key) == key * 3);
  CHECK(index.slot_of(1000) == nullptr && index.size() == 1000);
}

// In pieces of any size, from any hash on: what a map by hash gives.
void entries_come_in_the_order_of_their_hashes(std::uint64_t num_keys, std::size_t piece) {
  Index index, backwards;
  for (std::uint32_t i = 0; i < num_keys; ++i) index.insert(std::uint64_t{i} << 40, i);
  for (auto i = static_cast<std::uint32_t>(num_keys); i-- > 0;) backwards.insert(std::uint64_t{i} << 40, i);
  std::map<std::uint64_t, Index::Listed> all;
  std::vector<Index::Listed> entries, others;
  CHECK(!index.in_order(0, num_keys + 1, entries));
  for (const Index::Listed& entry : entries) all.emplace(entry.hash, entry);
  CHECK(all.size() == num_keys && entries.size() == num_keys);
  CHECK(std::ranges::is_sorted(entries, {}, &Index::Listed::hash));
  auto expected = all.begin();
  for (std::optional<std::uint64_t> from = 0; from;) {
    const std::optional<std::uint64_t> next = index.in_order(*from, piece, entries);
    CHECK(backwards.in_order(*from, piece, others) == next && others.size() == entries.size());
    CHECK(entries.size() <= piece && (!next || *next > *from));
    for (std::size_t i = 0; i < entries.size(); ++i, ++expected) {
      CHECK(entries[i].hash == expected->first && entries[i].key == others[i].key);
      CHECK(entries[i].key == std::uint64_t{entries[i].slot} << 40 && index.find(entries[i].key) == entries[i].slot);
    }
    from = next;
  }
  CHECK(expected == all.end());
  if (num_keys == 0) return;
  CHECK(!index.in_order(all.rbegin()->first, 10, entries) && entries.size() == 1);
  index.in_order(all.begin()->first + 1, 1, entries);
  CHECK(num_keys == 1 ? entries.empty() : entries.at(0).hash == std::next(all.begin())->first);
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

ShardSet from_to(std::uint64_t first, std::uint64_t end) {
  ShardSet ranges;
  for (std::uint64_t range = first; range < end; ++range) ranges.set(range);
  return ranges;
}

// The key whose hash this is: mix() undone.
std::uint64_t key_of(std::uint64_t hash) {
  const auto unmultiplied = [](std::uint64_t z, std::uint64_t by) {
    std::uint64_t inverse = by;  // right in its last 3 bits; each round doubles them
    for (int round = 0; round < 5; ++round) inverse *= 2 - by * inverse;
    return z * inverse;
  };
  std::uint64_t z = hash ^ (hash >> 31) ^ (hash >> 62);
  z = unmultiplied(z, 0x94D049BB133111EBu);
  z = z ^ (z >> 27) ^ (z >> 54);
  z = unmultiplied(z, 0xBF58476D1CE4E5B9u);
  z = z ^ (z >> 30) ^ (z >> 60);
  CHECK(sfctr::mix(z) == hash);
  return z;
}

// Keys of these ranges in a random order, and one in `one_in` of any.
std::vector<std::uint64_t> keys_of(const ShardSet& ranges, std::uint64_t num_keys, std::uint64_t one_in) {
  std::mt19937_64 random(num_keys);
  std::vector<std::uint64_t> keys;
  while (keys.size() < num_keys) {
    std::uint64_t range = random() % kNumShards;
    while (!ranges[range] && random() % one_in != 0) range = random() % kNumShards;
    keys.push_back(key_of(range << 56 | random() >> 8));
  }
  return keys;
}

// As if keys were of all hashes: no crowd, few bytes, the same answers.
void keys_that_are_expected_have_the_room(const ShardSet& ranges, std::uint64_t num_keys, bool stamped) {
  Index index(stamped);
  index.expect(ranges);
  CHECK(index.memory_bytes() <= 4096);
  Map map;
  const std::vector<std::uint64_t> keys = keys_of(ranges, num_keys, 10'000);
  for (std::uint32_t i = 0; i < keys.size(); ++i) {
    index.insert(keys[i], i, stamped ? i : 0);
    map.emplace(keys[i], i);
    if (i % 64 == 0) CHECK(index.memory_bytes() <= std::uint64_t{i} * (stamped ? 24 : 20) + 8192);
  }
  CHECK(index.mean_probes() < 1.6);
  check_same(index, map, keys);
  for (std::size_t i = 0; i < keys.size(); i += 3) CHECK(index.erase(keys[i]) == map.at(keys[i]) && map.erase(keys[i]));
  check_same(index, map, keys);
}

// What it is for.
void keys_that_are_not_expected_crowd() {
  Index index;
  std::uint32_t slot = 0;
  for (const std::uint64_t key : keys_of(from_to(64, 128), 5000, 10'000)) index.insert(key, slot++);
  CHECK(index.mean_probes() > 50);
}

// The pieces, and the order in them, are those of an index that was told nothing; whenever it is told.
void what_is_expected_decides_no_order(const ShardSet& ranges, std::size_t piece) {
  Index told, told_late, untold;
  told.expect(ranges);
  std::vector<std::uint64_t> keys = keys_of(ranges, 3000, 5);
  for (std::uint64_t border = 0; border < kNumShards; border += 5) {
    for (const std::uint64_t hash : {border << 56, (border << 56) - 1}) keys.push_back(key_of(hash));
  }
  for (std::uint32_t i = 0; i < keys.size(); ++i) {
    told.insert(keys[i], i);
    told_late.insert(keys[i], i);
    untold.insert(keys[i], i);
    if (i == 1000) told_late.expect(~ranges);
    if (i == 2000) told_late.expect(ranges);
  }
  std::vector<Index::Listed> expected, entries;
  for (std::optional<std::uint64_t> from = 0; from;) {
    const std::optional<std::uint64_t> next = untold.in_order(*from, piece, expected);
    for (const Index* const index : {&told, &told_late}) {
      index->in_order(*from, piece, entries);
      CHECK(std::ranges::equal(entries, expected, [](const Index::Listed& a, const Index::Listed& b) {
        return a.hash == b.hash && a.key == b.key && a.slot == b.slot;
      }));
    }
    from = next;
  }
  for (std::uint64_t range = 0; range < kNumShards;
       ++range) {  // every one begins and ends at a border of shards, or not
    Map found, there;
    const std::uint64_t first = range << 56, last = first + (~std::uint64_t{0} >> 8);
    told.for_each_in(first, last, [&](const Index::Listed& each) { CHECK(found.emplace(each.key, each.slot).second); });
    untold.for_each_in(first, last, [&](const Index::Listed& each) { there.emplace(each.key, each.slot); });
    CHECK(found == there);
  }
}

void room_is_made_where_keys_are_expected(const ShardSet& ranges, std::uint64_t num_keys) {
  Index index;
  index.expect(ranges);
  index.reserve(num_keys);
  const std::size_t reserved = index.memory_bytes();
  CHECK(reserved <= num_keys * 16 + 8192);
  std::uint32_t slot = 0;
  for (const std::uint64_t key : keys_of(ranges, num_keys, ~std::uint64_t{0})) index.insert(key, slot++);
  CHECK(index.memory_bytes() == reserved);
  CHECK(index.mean_probes() < 1.6);
}

void nothing_that_is_expected_is_all_that_is_known() {
  Index index, plain;
  index.expect(ShardSet());
  for (Index* const each : {&index, &plain}) each->reserve(10'000);
  CHECK(index.memory_bytes() == plain.memory_bytes());
}

}  // namespace

void all_levels_find_the_same() {
  for (const std::string& level : sfctr::simd_levels()) {
    sfctr::set_simd_level(level);
    for (std::uint64_t num_keys = 2; num_keys < 40; ++num_keys) a_few_keys_come_and_go(num_keys);
    random_schedule(4, 3000, 1);
  }
}

int main() {
  alarm(240);  // a look-up that goes on for ever ends here
  all_levels_find_the_same();
  no_key_value_is_special();
  a_small_index_stays_small();
  for (std::uint64_t num_keys = 2; num_keys < 40; ++num_keys) a_few_keys_come_and_go(num_keys);
  a_slot_can_be_changed_where_it_is();
  for (const std::size_t piece : {1, 7, 1000}) {
    for (const std::uint64_t num_keys : {0, 1, 8, 500}) entries_come_in_the_order_of_their_hashes(num_keys, piece);
  }
  entries_come_in_the_order_of_their_hashes(1'500'000, 400'000);  // several shards
  random_schedule(1, 5, 1);
  random_schedule(2, 300, std::uint64_t{1} << 32);
  random_schedule(3, 20'000, 0x9E3779B97F4A7C15u);
  many_keys_take_few_bytes_and_no_long_pause(3'000'000);
  reserving_first_changes_no_answer();
  for (std::uint64_t num_keys : {0, 1, 7, 40, 3000, 1'500'000})
    stamps_and_ranges_are_those_of_a_map(num_keys, num_keys);
  a_stamped_index_takes_few_bytes(2'000'000);
  keys_that_are_not_expected_crowd();
  for (const ShardSet& ranges : {from_to(64, 128), from_to(85, 171), ~from_to(85, 171), from_to(255, 256)}) {
    for (const std::uint64_t num_keys : {1, 100, 20'000}) {
      for (const bool stamped : {false, true}) keys_that_are_expected_have_the_room(ranges, num_keys, stamped);
    }
    for (const std::size_t piece : {100, 1'000'000}) what_is_expected_decides_no_order(ranges, piece);
    room_is_made_where_keys_are_expected(ranges, 1000);
  }
  keys_that_are_expected_have_the_room(from_to(64, 128), 700'000, true);  // shards split on the way
  room_is_made_where_keys_are_expected(from_to(255, 256), 700'000);       // shards smaller than the range
  nothing_that_is_expected_is_all_that_is_known();
}
