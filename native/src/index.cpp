#include "sfctr/index.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include "sfctr/simd.h"

namespace sfctr {
namespace {

constexpr std::size_t kAhead = 16;       // look-ups whose cache lines are on their way
constexpr std::size_t kBlock = 32;       // the same where they move in blocks
constexpr Bucket kNoKeys{};              // of a shard without buckets
constexpr std::uint32_t kMostBits = 16;  // keeps the directory small even if hashes were chosen to collide
constexpr std::uint16_t kStuck = std::numeric_limits<std::uint16_t>::max();

}  // namespace

Index::Index(bool stamped) : directory_{0}, stamped_(stamped) { shards_.emplace_back(); }

// By about 1.3 or 1.15, and by at least one.
std::uint64_t Index::grown(std::uint64_t num_buckets) const {
  return num_buckets + num_buckets * (stamped_ ? 15 : 30) / 100 + 1;
}

Index::Shard Index::make_shard(std::uint64_t num_buckets, std::uint32_t depth, std::uint32_t prefix) const {
  Shard shard;
  shard.pages = Pages(num_buckets * sizeof(Bucket));
  if (stamped_) shard.stamp_pages = Pages(num_buckets * kEntries * sizeof(std::uint32_t));
  shard.num_buckets = static_cast<std::uint32_t>(num_buckets);
  shard.depth = depth;
  shard.prefix = prefix;
  return shard;
}

// Of a few buckets all may have been passed: the search ends where it began.
Index::Spot Index::spot_of(const Shard& shard, std::uint32_t home, std::uint64_t key) {
  std::uint32_t b = home;
  do {
    const Bucket& bucket = shard.buckets()[b];
    if (const unsigned found = match(bucket, key)) return {b, static_cast<std::uint32_t>(std::countr_zero(found))};
    if (bucket.passed == 0) return {kNone, 0};
    b = shard.next(b);
  } while (b != home);
  return {kNone, 0};
}

std::uint32_t Index::probe(const Shard& shard, std::uint32_t home, std::uint64_t key) const {
  if (shard.num_keys == 0) return kNone;
  const Spot spot = spot_of(shard, home, key);
  return spot.bucket == kNone ? kNone : shard.buckets()[spot.bucket].slots[spot.entry];
}

std::uint32_t Index::find(std::uint64_t key) const {
  const std::uint64_t hash = mix(key);
  const Shard& shard = shards_[shard_of(hash)];
  return probe(shard, shard.home(hash), key);
}

// The home bucket of a key, on its way to the cache.
const Bucket* Index::home_of(std::uint64_t key) const {
  const std::uint64_t hash = mix(key);
  const Shard& shard = shards_[shard_of(hash)];
  const Bucket* const home = shard.num_keys == 0 ? &kNoKeys : shard.buckets() + shard.home(hash);
  __builtin_prefetch(home);
  return home;
}

// Blocks of keys move through three stages, so that no line is waited for: their home buckets are asked for; these are
// compared, and the next buckets of keys that are not there, and may have gone on, are asked for; these keys are found.
void Index::find(std::span<const std::uint64_t> keys, std::uint32_t* slots) const {
  struct Block {
    std::size_t begin = 0, size = 0, num_late = 0;
    const Bucket* homes[kBlock];
    std::uint32_t late[kBlock];
  };
  Block blocks[3];
  const std::size_t num_blocks = (keys.size() + kBlock - 1) / kBlock;
  for (std::size_t n = 0; n < num_blocks + 2; ++n) {
    if (n < num_blocks) {
      Block& asked = blocks[n % 3];
      asked.begin = n * kBlock;
      asked.size = std::min(kBlock, keys.size() - asked.begin);
      for (std::size_t i = 0; i < asked.size; ++i) asked.homes[i] = home_of(keys[asked.begin + i]);
    }
    if (n >= 1 && n - 1 < num_blocks) {
      Block& compared = blocks[(n - 1) % 3];
      compared.num_late = kernels().probe({.homes = compared.homes,
                                           .keys = keys.data() + compared.begin,
                                           .num_keys = compared.size,
                                           .slots = slots + compared.begin,
                                           .late = compared.late});
    }
    if (n < 2) continue;
    const Block& found = blocks[(n - 2) % 3];
    for (std::size_t i = 0; i < found.num_late; ++i) {
      slots[found.begin + found.late[i]] = find(keys[found.begin + found.late[i]]);
    }
  }
}

// Apart from the look-up without stamps, whose loop should hold nothing else.
void Index::find(std::span<const std::uint64_t> keys, std::uint32_t* slots, std::uint32_t* stamps) const {
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (i + kAhead < keys.size()) {
      const std::uint64_t ahead = mix(keys[i + kAhead]);
      const Shard& shard = shards_[shard_of(ahead)];
      const std::uint32_t home = shard.home(ahead);
      __builtin_prefetch(shard.buckets() + home);
      __builtin_prefetch(shard.stamps() + std::size_t{home} * kEntries);
    }
    const std::uint64_t hash = mix(keys[i]);
    const Shard& shard = shards_[shard_of(hash)];
    slots[i] = kNone;
    if (shard.num_keys == 0) continue;
    const Spot spot = spot_of(shard, shard.home(hash), keys[i]);
    if (spot.bucket == kNone) continue;
    slots[i] = shard.buckets()[spot.bucket].slots[spot.entry];
    stamps[i] = shard.stamp(spot.bucket, spot.entry);
  }
}

void Index::Shard::place(std::uint64_t hash, std::uint64_t key, std::uint32_t slot, std::uint32_t stamp) {
  constexpr unsigned kFull = (1u << kEntries) - 1;
  for (std::uint32_t b = home(hash);; b = next(b)) {
    Bucket& bucket = buckets()[b];
    if (bucket.used != kFull) {
      const int entry = std::countr_one(bucket.used);
      bucket.keys[entry] = key;
      bucket.slots[entry] = slot;
      if (stamps()) stamps()[std::size_t{b} * kEntries + static_cast<unsigned>(entry)] = stamp;
      bucket.used = static_cast<std::uint8_t>(bucket.used | 1u << entry);
      break;
    }
    if (bucket.passed != kStuck) ++bucket.passed;
  }
  ++num_keys;
}

void Index::insert(std::uint64_t key, std::uint32_t slot, std::uint32_t stamp) {
  const std::uint64_t hash = mix(key);
  if (!shards_[shard_of(hash)].has_room()) make_room(hash);
  shards_[shard_of(hash)].place(hash, key, slot, stamp);
  ++num_keys_;
}

std::uint32_t Index::erase(std::uint64_t key) {
  const std::uint64_t hash = mix(key);
  Shard& shard = shards_[shard_of(hash)];
  const std::uint32_t home = shard.num_keys == 0 ? 0 : shard.home(hash);
  const std::uint32_t slot = probe(shard, home, key);
  if (slot == kNone) return kNone;
  for (std::uint32_t b = home;; b = shard.next(b)) {
    Bucket& bucket = shard.buckets()[b];
    if (const unsigned found = match(bucket, key)) {
      bucket.used = static_cast<std::uint8_t>(bucket.used & ~found);
      break;
    }
    if (bucket.passed != kStuck) --bucket.passed;
  }
  --shard.num_keys;
  --num_keys_;
  return slot;
}

std::uint32_t* Index::slot_of(std::uint64_t key) {
  const std::uint64_t hash = mix(key);
  Shard& shard = shards_[shard_of(hash)];
  if (shard.num_keys == 0) return nullptr;
  const Spot spot = spot_of(shard, shard.home(hash), key);
  return spot.bucket == kNone ? nullptr : &shard.buckets()[spot.bucket].slots[spot.entry];
}

Index::Entry Index::entry_of(std::uint64_t key) {
  const std::uint64_t hash = mix(key);
  Shard& shard = shards_[shard_of(hash)];
  if (shard.num_keys == 0) return {};
  const Spot spot = spot_of(shard, shard.home(hash), key);
  if (spot.bucket == kNone) return {};
  return {&shard.buckets()[spot.bucket].slots[spot.entry],
          &shard.stamps()[std::size_t{spot.bucket} * kEntries + spot.entry]};
}

// Shards cut the hashes into ranges, so their entries come one shard after the other.
std::optional<std::uint64_t> Index::in_order(std::uint64_t from, std::size_t limit,
                                             std::vector<Listed>& entries) const {
  const auto before = [](const Listed& a, const Listed& b) { return a.hash < b.hash; };
  entries.clear();
  for (std::uint64_t begin = from;;) {
    const Shard& shard = shards_[shard_of(begin)];
    const std::size_t first = entries.size();
    shard.for_each([&](std::uint64_t key, std::uint32_t slot, std::uint32_t stamp) {
      if (const std::uint64_t hash = mix(key); hash >= begin) entries.push_back({hash, key, slot, stamp});
    });
    const auto here = entries.begin() + static_cast<std::ptrdiff_t>(first);
    if (entries.size() > limit) {
      std::nth_element(here, entries.begin() + static_cast<std::ptrdiff_t>(limit), entries.end(), before);
      const std::uint64_t next = entries[limit].hash;
      entries.resize(limit);
      std::sort(here, entries.end(), before);
      return next;
    }
    std::sort(here, entries.end(), before);
    const std::uint64_t end = shard.last_hash() + 1;
    if (end == 0) return std::nullopt;  // the last of all hashes
    begin = end;
    if (entries.size() == limit) return begin;
  }
}

void Index::make_room(std::uint64_t hash) {
  const std::size_t shard = shard_of(hash);
  const std::uint64_t num_buckets = grown(shards_[shard].num_buckets);
  if (may_split(num_buckets, shards_[shard])) {
    split(shard);
    if (!shards_[shard_of(hash)].has_room()) make_room(hash);  // all keys went the same way
  } else {
    grow(shards_[shard], num_buckets);
  }
}

bool Index::may_split(std::uint64_t num_buckets, const Shard& shard) {
  return num_buckets * sizeof(Bucket) > kLargestShard && shard.depth < kMostBits;
}

void Index::grow(Shard& shard, std::uint64_t num_buckets) {
  Shard larger = make_shard(num_buckets, shard.depth, shard.prefix);
  shard.for_each(
      [&](std::uint64_t key, std::uint32_t slot, std::uint32_t stamp) { larger.place(mix(key), key, slot, stamp); });
  shard = std::move(larger);
}

// Everything that may fail comes before the first change.
void Index::split(std::size_t old) {
  const std::uint32_t depth = shards_[old].depth + 1;
  const auto half_of = [depth](std::uint64_t hash) { return hash >> (64 - depth) & 1; };
  std::uint64_t counts[2] = {0, 0};
  shards_[old].for_each([&](std::uint64_t key, std::uint32_t, std::uint32_t) { ++counts[half_of(mix(key))]; });
  Shard halves[2];
  for (std::uint32_t half : {0u, 1u}) {
    const std::uint64_t num_buckets = counts[half] == 0 ? 0 : grown(buckets_for(counts[half]));
    halves[half] = make_shard(num_buckets, depth, shards_[old].prefix << 1 | half);
  }
  std::vector<std::uint32_t> directory = wide_directory(depth);
  shards_.emplace_back();

  shards_[old].for_each([&](std::uint64_t key, std::uint32_t slot, std::uint32_t stamp) {
    const std::uint64_t hash = mix(key);
    halves[half_of(hash)].place(hash, key, slot, stamp);
  });
  bits_ = std::max(bits_, depth);
  const std::size_t span = std::size_t{1} << (bits_ - depth);
  std::fill_n(directory.begin() + static_cast<std::ptrdiff_t>(halves[1].prefix * span), span,
              static_cast<std::uint32_t>(shards_.size() - 1));
  directory_ = std::move(directory);
  shards_[old] = std::move(halves[0]);
  shards_.back() = std::move(halves[1]);
}

std::vector<std::uint32_t> Index::wide_directory(std::uint32_t depth) const {
  if (depth <= bits_) return directory_;
  std::vector<std::uint32_t> wide(directory_.size() * 2);
  for (std::size_t i = 0; i < wide.size(); ++i) wide[i] = directory_[i / 2];
  return wide;
}

void Index::expect(const ShardSet& ranges) {
  const ShardSet expected = ranges.none() ? ShardSet().set() : ranges;
  for (std::uint64_t range = 1; range < kNumShards; ++range) {
    if (expected[range] != expected[range - 1]) cut_at(range << (64 - kShardBits));
  }
  expected_ = expected;
}

// Makes shards end before `hash`, which must not be 0 and must have no more than kShardBits leading bits.
void Index::cut_at(std::uint64_t hash) {
  while (shard_of(hash - 1) == shard_of(hash)) split(shard_of(hash));
}

// Of the keys that are expected, how many will be this shard's.
double Index::expected_part(const Shard& shard) const {
  const auto all = static_cast<double>(expected_.count());
  if (shard.depth > kShardBits) {
    return expected_[shard.prefix >> (shard.depth - kShardBits)]
               ? std::ldexp(1 / all, static_cast<int>(kShardBits) - static_cast<int>(shard.depth))
               : 0;
  }
  const std::uint64_t num_ranges = kNumShards >> shard.depth, first = shard.prefix * num_ranges;
  std::uint64_t count = 0;
  for (std::uint64_t range = first; range < first + num_ranges; ++range) count += expected_[range];
  return static_cast<double>(count) / all;
}

void Index::reserve(std::uint64_t num_keys) {
  for (std::size_t i = 0; i < shards_.size();) {
    const double share = static_cast<double>(num_keys) * expected_part(shards_[i]);
    if (share == 0) {
      ++i;
      continue;
    }
    const std::uint64_t num_buckets = buckets_for(static_cast<std::uint64_t>(share + 4 * std::sqrt(share)) + 1);
    if (may_split(num_buckets, shards_[i])) {
      split(i);
      continue;
    }
    if (num_buckets > shards_[i].num_buckets) grow(shards_[i], num_buckets);
    ++i;
  }
}

double Index::mean_probes() const {
  std::uint64_t total = 0;
  for (const Shard& shard : shards_) {
    for (std::uint32_t b = 0; b < shard.num_buckets; ++b) {
      shard.visit(b, [&](std::uint64_t key, std::uint32_t, std::uint32_t) {
        const std::uint32_t home = shard.home(mix(key));
        total += 1 + (b >= home ? b - home : b + shard.num_buckets - home);
      });
    }
  }
  return num_keys_ == 0 ? 0 : static_cast<double>(total) / static_cast<double>(num_keys_);
}

std::size_t Index::memory_bytes() const {
  std::size_t total = shards_.capacity() * sizeof(Shard) + directory_.capacity() * sizeof(std::uint32_t);
  for (const Shard& shard : shards_)
    total += shard.num_buckets * (sizeof(Bucket) + (stamped_ ? kEntries * sizeof(std::uint32_t) : 0));
  return total;
}

}  // namespace sfctr
