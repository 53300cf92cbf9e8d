// An open-addressing table of entries into the list of distinct keys. The pass has no branch that data could make
// unpredictable except the one on a collision, which a low load keeps rare: entries of 2 bytes, while they can number
// the keys, have eight slots a key in the bytes of four of the others.
#include "sfctr/unique.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "sfctr/hash.h"
#include "sfctr/memory.h"

namespace sfctr {
namespace {

constexpr std::size_t kAhead = 16;
constexpr std::size_t kPrefetchFrom = std::size_t{1} << 20;  // bytes: a table beyond the cache of a core

// Entry 0 means empty. Entry 1 is kept for keys left out: the slot after the last holds it for good, and they are sent
// there instead of to the slot of a hash. Entry n + 2 is distinct key n.
constexpr std::uint32_t kEmpty = 0, kLeftOut = 1, kFirst = 2;

// The entries of a thread, all empty between uses.
template <class Entry>
class Entries {
 public:
  Entry* start(std::size_t num_slots) {
    if (num_slots + 1 > entries_.size()) {
      entries_ = Buffer<Entry>();
      entries_.resize(num_slots + 1);
      std::fill_n(entries_.data(), entries_.size(), Entry{kEmpty});
    }
    entries_[num_slots] = kLeftOut;
    return entries_.data();
  }

  void finish(std::size_t num_slots) { std::memset(entries_.data(), kEmpty, (num_slots + 1) * sizeof(Entry)); }

 private:
  Buffer<Entry> entries_;
};

template <class Entry>
struct Pass {
  Entry* entries;
  std::size_t num_slots;  // a power of two
  std::uint64_t* keys;    // entry -> key; keys[kLeftOut] is 0
  std::uint32_t base;     // what distinct key 0 is numbered
  std::uint32_t next = kFirst;

  template <bool Nulls, bool Buckets, bool Prefetch>
  void run(const UniqueInput& input) {
    const std::size_t num_keys = input.keys.size(), mask = num_slots - 1;
    const int shift = 64 - std::countr_zero(num_slots);
    const std::uint64_t* const given = input.keys.data();
    std::uint64_t* const known = keys;
    Entry* const table = entries;
    std::int32_t* const ids = input.ids;
    const std::uint32_t to_id = base - kFirst;
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
      table[slot] = static_cast<Entry>(entry);
      fresh += is_new;
      std::uint32_t id = entry + to_id;
      if constexpr (Nulls) id |= -static_cast<std::uint32_t>(entry == kLeftOut);
      ids[n] = static_cast<std::int32_t>(id);
    }
    next = fresh;
  }
};

template <class Entry>
void run(Pass<Entry>& pass, const UniqueInput& input) {
  const bool nulls = !input.nulls.empty(), buckets = input.buckets > 0;
  const bool prefetch = pass.num_slots * sizeof(Entry) >= kPrefetchFrom;
  const auto choose = [&]<bool Nulls, bool Buckets>() {
    if (prefetch) return pass.template run<Nulls, Buckets, true>(input);
    pass.template run<Nulls, Buckets, false>(input);
  };
  if (nulls && buckets) return choose.template operator()<true, true>();
  if (nulls) return choose.template operator()<true, false>();
  if (buckets) return choose.template operator()<false, true>();
  choose.template operator()<false, false>();
}

template <class Entry>
std::size_t number(std::span<const UniqueInput> inputs, std::uint64_t* unique, std::uint32_t base,
                   std::size_t num_slots) {
  thread_local Entries<Entry> entries;
  Pass<Entry> pass{.entries = entries.start(num_slots), .num_slots = num_slots, .keys = unique, .base = base};
  unique[kLeftOut] = 0;
  for (const UniqueInput& input : inputs) run(pass, input);
  entries.finish(num_slots);
  const std::size_t num_unique = pass.next - kFirst;
  std::copy_n(unique + kFirst, num_unique, unique);
  return num_unique;
}

}  // namespace

std::size_t number_unique(std::span<const UniqueInput> inputs, std::uint64_t* unique, std::uint32_t base) {
  std::size_t num_keys = 0;
  for (const UniqueInput& input : inputs) num_keys += input.keys.size();
  const auto slots = [&](std::size_t a_key) { return std::bit_ceil(std::max<std::size_t>(16, num_keys * a_key)); };
  if (num_keys + kFirst <= std::numeric_limits<std::uint16_t>::max()) {
    return number<std::uint16_t>(inputs, unique, base, slots(8));
  }
  return number<std::uint32_t>(inputs, unique, base, slots(4));
}

}  // namespace sfctr
