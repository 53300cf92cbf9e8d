// An open-addressing table of 4-byte entries into the list of distinct keys. The pass has no branch that data could
// make unpredictable except the one on a collision, which a load of at most a quarter keeps rare.
#include "sfctr/unique.h"

#include <algorithm>
#include <bit>

#include "sfctr/hash.h"
#include "sfctr/memory.h"

namespace sfctr {
namespace {

constexpr std::size_t kAhead = 16;
constexpr std::size_t kPrefetchFrom = std::size_t{1} << 18;  // entries: a table beyond the cache of a core

// Entry 0 means empty. Entry 1 is kept for keys left out: the slot after the last holds it for good, and they are sent
// there instead of to the slot of a hash. Entry n + 2 is distinct key n.
constexpr std::uint32_t kEmpty = 0, kLeftOut = 1, kFirst = 2;

// The entries of a thread, all empty between uses.
class Entries {
 public:
  std::uint32_t* start(std::size_t num_slots) {
    if (num_slots + 1 > entries_.size()) {
      entries_ = Buffer<std::uint32_t>();
      entries_.resize(num_slots + 1);
      std::fill_n(entries_.data(), entries_.size(), kEmpty);
    }
    entries_[num_slots] = kLeftOut;
    return entries_.data();
  }

  void finish(std::size_t num_slots) { std::fill_n(entries_.data(), num_slots + 1, kEmpty); }

 private:
  Buffer<std::uint32_t> entries_;
};

struct Pass {
  std::uint32_t* entries;
  std::size_t num_slots;  // a power of two
  std::uint64_t* keys;    // entry -> key; keys[kLeftOut] is 0
  std::uint32_t next = kFirst;

  template <bool Nulls, bool Buckets, bool Prefetch>
  void run(const UniqueInput& input) {
    const std::size_t num_keys = input.keys.size(), mask = num_slots - 1;
    const int shift = 64 - std::countr_zero(num_slots);
    const std::uint64_t* const given = input.keys.data();
    std::uint64_t* const known = keys;
    std::uint32_t* const table = entries;
    std::uint32_t fresh = next;  // in a register: stores to the table could change a member
    for (std::size_t n = 0; n < num_keys; ++n) {
      if constexpr (Prefetch) {
        const std::uint64_t ahead = given[std::min(n + kAhead, num_keys - 1)];
        __builtin_prefetch(table + spread(Buckets ? bucket_of(ahead, input.buckets) : ahead, shift), 1);
      }
      std::uint64_t key = Buckets ? bucket_of(given[n], input.buckets) : given[n];
      std::size_t slot = spread(key, shift);
      if constexpr (Nulls) {
        const bool out = input.nulls[n] != 0;
        key = out ? 0 : key;
        slot = out ? num_slots : slot;
      }
      // The key is written where a new one would go, so that one comparison serves the new and the known; masks stand
      // in for a branch on which of the two it is, which nothing could predict.
      known[fresh] = key;
      std::uint32_t found = table[slot];
      std::uint32_t is_new = found == kEmpty;
      std::uint32_t entry = found + (fresh & -is_new);
      while (known[entry] != key) [[unlikely]] {
        slot = (slot + 1) & mask;
        found = table[slot];
        is_new = found == kEmpty;
        entry = found + (fresh & -is_new);
      }
      table[slot] = entry;
      fresh += is_new;
      input.ids[n] = static_cast<std::int32_t>(entry - kFirst);
    }
    next = fresh;
  }
};

void run(Pass& pass, const UniqueInput& input) {
  const bool nulls = !input.nulls.empty(), buckets = input.buckets > 0, prefetch = pass.num_slots >= kPrefetchFrom;
  const auto choose = [&]<bool Nulls, bool Buckets>() {
    if (prefetch) return pass.run<Nulls, Buckets, true>(input);
    pass.run<Nulls, Buckets, false>(input);
  };
  if (nulls && buckets) return choose.template operator()<true, true>();
  if (nulls) return choose.template operator()<true, false>();
  if (buckets) return choose.template operator()<false, true>();
  choose.template operator()<false, false>();
}

}  // namespace

std::size_t number_unique(std::span<const UniqueInput> inputs, std::uint64_t* unique) {
  thread_local Entries entries;
  std::size_t num_keys = 0;
  for (const UniqueInput& input : inputs) num_keys += input.keys.size();
  const std::size_t num_slots = std::bit_ceil(std::max<std::size_t>(16, num_keys * 4));
  Pass pass{.entries = entries.start(num_slots), .num_slots = num_slots, .keys = unique};
  unique[kLeftOut] = 0;
  for (const UniqueInput& input : inputs) run(pass, input);
  entries.finish(num_slots);
  const std::size_t num_unique = pass.next - kFirst;
  std::copy_n(unique + kFirst, num_unique, unique);
  return num_unique;
}

}  // namespace sfctr
