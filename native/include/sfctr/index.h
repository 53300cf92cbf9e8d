// Where the row of a key is: 64-bit key -> 32-bit slot. Every key value is an ordinary key.
//
// Keys lie in buckets of one cache line: five keys, their slots, and a count of the keys that would have liked this
// bucket but went on to a later one. A look-up stops at the first bucket with count 0, so erasing leaves no tombstone.
// Buckets form shards by the leading bits of the key's hash. A shard grows by about 1.3 when it is 85 % full, and
// splits in two when it would exceed kLargestShard, so no insertion ever copies more than that, and a table of any size
// beyond a few hundred keys takes at most 20 bytes a key (12.8 at 100 %, 15.1 at 85 %, 19.6 just grown).
//
// A stamped index keeps 32 bits more for each key, in an array beside the buckets. Its shards grow by about 1.15, so
// that it stays at 24 bytes a key (19.8 at 85 %, 22.7 just grown).
//
// A bucket is chosen by where the hash lies in its shard's range, so keys of a part of that range would crowd into a
// part of the buckets. Whoever knows that keys will be of a part of all hashes says so first, by expect().
//
// Look-ups may run beside look-ups; whoever inserts, erases or reserves must be alone.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "sfctr/bucket.h"
#include "sfctr/hash.h"
#include "sfctr/memory.h"

namespace sfctr {

class Index {
 public:
  static constexpr std::uint32_t kNone = 0xFFFFFFFF;  // no slot

  explicit Index(bool stamped = false);

  // slots[i] becomes the slot of keys[i], or kNone. Overlaps the cache misses of neighbours.
  // REQUIRES: slots has room for keys.size().
  void find(std::span<const std::uint64_t> keys, std::uint32_t* slots) const;
  std::uint32_t find(std::uint64_t key) const;
  // The same, and stamps[i] becomes the stamp of keys[i] where it is there. REQUIRES: the index is stamped.
  void find(std::span<const std::uint64_t> keys, std::uint32_t* slots, std::uint32_t* stamps) const;

  // REQUIRES: key is absent; slot != kNone; the index is stamped, or stamp is 0. Throws std::bad_alloc; nothing is then
  // changed.
  void insert(std::uint64_t key, std::uint32_t slot, std::uint32_t stamp = 0);

  // Where the key's slot is kept, to be read or written before the next insert or erase; null if it is absent.
  std::uint32_t* slot_of(std::uint64_t key);
  // The same with the stamp. REQUIRES: the index is stamped.
  struct Entry {
    std::uint32_t* slot = nullptr;
    std::uint32_t* stamp = nullptr;
    explicit operator bool() const { return slot != nullptr; }
  };
  Entry entry_of(std::uint64_t key);

  // The slot that key had, or kNone if it was absent.
  std::uint32_t erase(std::uint64_t key);

  // Keys will be of these of the kNumShards ranges of hashes by which processes share rows (hash.h), and few others: as
  // many of them take as much time and, but for a few KB, as many bytes as keys of all hashes. Cuts shards where these
  // ranges begin and end, at most 8 times for each such place; no key and no order is another. None: nothing is known.
  // Throws std::bad_alloc; what was expected before then holds.
  void expect(const ShardSet& ranges);

  // Makes room for num_keys keys in all, of what is expected, so that inserting them copies nothing. Throws
  // std::bad_alloc.
  void reserve(std::uint64_t num_keys);

  std::uint64_t size() const { return num_keys_; }
  std::size_t memory_bytes() const;
  // How many buckets a look-up of a key that is there looks at, on the average: 1 is the best. Passes over all keys.
  double mean_probes() const;

  struct Listed {
    std::uint64_t hash, key;
    std::uint32_t slot, stamp;  // stamp: 0 where the index is not stamped
  };
  // Replaces `entries` by those whose hash is at least `from`, at most about `limit` of them, in the order of their
  // hashes: an order that depends on nothing but the keys. Returns the hash to go on from, or nothing at the end.
  std::optional<std::uint64_t> in_order(std::uint64_t from, std::size_t limit, std::vector<Listed>& entries) const;

  // Calls body(key, slot) for every key, in no order that means anything.
  template <class Body>
  void for_each(Body&& body) const {
    for (const Shard& shard : shards_) {
      shard.for_each([&](std::uint64_t key, std::uint32_t slot, std::uint32_t) { body(key, slot); });
    }
  }

  // Calls body(listed) for every key whose hash is in [first, last], in no order that means anything; looks at little
  // else.
  template <class Body>
  void for_each_in(std::uint64_t first, std::uint64_t last, Body&& body) const {
    for (std::uint64_t from = first;;) {
      const Shard& shard = shards_[shard_of(from)];
      const std::uint64_t end = shard.last_hash();
      if (shard.num_keys > 0) shard.for_each_in(from, std::min(last, end), body);
      if (end >= last) return;
      from = end + 1;
    }
  }

 private:
  static constexpr unsigned kEntries = kBucketEntries;
  static constexpr std::size_t kLargestShard = std::size_t{8} << 20;  // bytes; half a million keys, a few ms to copy

  static unsigned match(const Bucket& bucket, std::uint64_t key) {  // bit i: entry i is this key
    unsigned mask = 0;
    for (unsigned i = 0; i < kEntries; ++i) mask |= static_cast<unsigned>(bucket.keys[i] == key) << i;
    return mask & bucket.used;
  }

  struct Shard {               // keys whose hashes share their `depth` leading bits
    Pages pages, stamp_pages;  // the latter: empty, or a stamp for each entry
    std::uint32_t num_buckets = 0;
    std::uint32_t num_keys = 0;
    std::uint32_t depth = 0;
    std::uint32_t prefix = 0;  // those bits

    Bucket* buckets() const { return reinterpret_cast<Bucket*>(pages.data()); }
    std::uint32_t* stamps() const { return reinterpret_cast<std::uint32_t*>(stamp_pages.data()); }
    std::uint32_t stamp(std::uint32_t bucket, unsigned entry) const {
      return stamps() ? stamps()[std::size_t{bucket} * kEntries + entry] : 0;
    }
    std::uint64_t last_hash() const {
      return depth == 0 ? ~std::uint64_t{0} : ((std::uint64_t{prefix} + 1) << (64 - depth)) - 1;
    }
    bool has_room() const { return num_keys + 1 <= capacity(num_buckets); }
    std::uint32_t home(std::uint64_t hash) const {
      return static_cast<std::uint32_t>(multiply_high(hash << depth, num_buckets));
    }
    std::uint32_t next(std::uint32_t bucket) const { return bucket + 1 == num_buckets ? 0 : bucket + 1; }
    void place(std::uint64_t hash, std::uint64_t key, std::uint32_t slot, std::uint32_t stamp);
    template <class Body>
    void for_each(Body&& body) const {  // body(key, slot, stamp)
      for (std::uint32_t b = 0; b < num_buckets; ++b) visit(b, body);
    }
    // Homes rise with hashes; what went on from its home lies behind it, up to a bucket that nothing went on from.
    template <class Body>
    void for_each_in(std::uint64_t first, std::uint64_t last, Body&& body) const {
      const std::uint32_t last_home = home(last);
      std::uint32_t b = home(first);
      for (std::uint32_t left = num_buckets, behind = 0; left > 0; --left, b = next(b)) {
        visit(b, [&](std::uint64_t key, std::uint32_t slot, std::uint32_t stamp) {
          if (const std::uint64_t hash = mix(key); hash >= first && hash <= last) body(Listed{hash, key, slot, stamp});
        });
        behind |= b == last_home;
        if (behind && buckets()[b].passed == 0) return;
      }
    }
    template <class Body>
    void visit(std::uint32_t b, Body&& body) const {
      const Bucket& bucket = buckets()[b];
      for (unsigned i = 0; i < kEntries; ++i) {
        if (bucket.used >> i & 1) body(bucket.keys[i], bucket.slots[i], stamp(b, i));
      }
    }
  };

  // 85 % of the entries, so that few keys miss their home bucket.
  static std::uint64_t capacity(std::uint64_t num_buckets) { return num_buckets * 17 / 4; }
  static std::uint64_t buckets_for(std::uint64_t num_keys) { return (num_keys * 4 + 16) / 17; }
  static bool may_split(std::uint64_t num_buckets, const Shard& shard);
  Shard make_shard(std::uint64_t num_buckets, std::uint32_t depth, std::uint32_t prefix) const;
  std::uint64_t grown(std::uint64_t num_buckets) const;
  std::size_t shard_of(std::uint64_t hash) const { return directory_[bits_ == 0 ? 0 : hash >> (64 - bits_)]; }
  struct Spot {
    std::uint32_t bucket, entry;  // bucket is kNone where the key is not
  };
  static Spot spot_of(const Shard& shard, std::uint32_t home, std::uint64_t key);
  const Bucket* home_of(std::uint64_t key) const;
  std::uint32_t probe(const Shard& shard, std::uint32_t home, std::uint64_t key) const;
  void make_room(std::uint64_t hash);
  void grow(Shard& shard, std::uint64_t num_buckets);
  void split(std::size_t old);
  void cut_at(std::uint64_t hash);
  double expected_part(const Shard& shard) const;
  std::vector<std::uint32_t> wide_directory(std::uint32_t depth) const;

  std::vector<Shard> shards_;
  std::vector<std::uint32_t> directory_;  // leading bits_ bits of a hash -> shard; never empty
  std::uint32_t bits_ = 0;
  std::uint64_t num_keys_ = 0;
  ShardSet expected_ = ShardSet().set();  // never empty
  bool stamped_;
};

}  // namespace sfctr
