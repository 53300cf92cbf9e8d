// The choice of whose place is given up when there is none free, for places numbered from 0: frames in RAM (frames.h)
// and lines on a device (device_lines.h).
//
// A place is pinned by everyone who needs what is in it. Only a place without pins is ever a victim. Among those, what
// no known batch will use goes first, by CLOCK ("lru": one chance for what was used since the hand last passed) or by
// halving counters ("lfu"); then what will be used, farthest next use first.
//
// Not thread-safe, but for tags.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "sfctr/slab.h"

namespace sfctr {

enum class Policy : std::uint8_t { kLru, kLfu };

class Clock {
 public:
  explicit Clock(Policy policy) : policy_(policy), metas_(sizeof(Meta)) {}

  // The place end(), not taken. Throws as Slab::grow().
  std::uint32_t grow();
  // Drops the places from `end` on. REQUIRES: none of them is taken.
  void truncate(std::uint32_t end);
  std::uint32_t end() const { return metas_.end(); }

  // A place is taken or free; one that is taken begins without pins and unused.
  void take(std::uint32_t place) { meta(place) = {0, 0, kTaken, 0}; }
  void give(std::uint32_t place) noexcept { meta(place) = {0, 0, 0, 0}; }
  bool is_taken(std::uint32_t place) const { return (meta(place).flags & kTaken) != 0; }

  void pin(std::uint32_t place) { ++meta(place).pins; }
  // Returns the pins that are left.
  std::uint32_t unpin(std::uint32_t place) { return --meta(place).pins; }
  std::uint32_t num_pins(std::uint32_t place) const { return meta(place).pins; }
  void note_use(std::uint32_t place);
  void prefetch(std::uint32_t place) const { __builtin_prefetch(metas_.at(place)); }

  // Eight bits for whoever keeps the places, all 0 when one is taken or given. Of a place that stays taken they may be
  // read and changed by many threads, and once fix_tags() has been called beside all other calls.
  std::uint8_t tags(std::uint32_t place) const { return std::atomic_ref(meta(place).tags).load(kRelaxed); }
  void set_tags(std::uint32_t place, std::uint8_t tags) { std::atomic_ref(meta(place).tags).store(tags, kRelaxed); }
  void add_tags(std::uint32_t place, std::uint8_t bits) {
    std::atomic_ref tags(meta(place).tags);
    if ((tags.load(kRelaxed) & bits) != bits) tags.fetch_or(bits, kRelaxed);
  }
  void drop_tags(std::uint32_t place, std::uint8_t bits) {
    std::atomic_ref(meta(place).tags).fetch_and(static_cast<std::uint8_t>(~bits), kRelaxed);
  }
  void fix_tags() { metas_.fix(); }
  // All places lose `drop`; those whose tags had `having` get `add`. REQUIRES: nobody else uses tags.
  void retag(std::uint8_t having, std::uint8_t drop, std::uint8_t add);

  // At most n taken places whose contents may leave, best victims first. next_use says when what is in a place will be
  // used by a batch that is known and not yet planned, 0 for never; it does not throw. The places stay taken. Throws
  // std::bad_alloc.
  using NextUse = std::function<std::uint64_t(std::uint32_t place)>;
  std::vector<std::uint32_t> choose(std::size_t n, const NextUse& next_use);

  static constexpr std::size_t kBytes = 4;  // of a place
  std::size_t memory_bytes() const { return metas_.memory_bytes(); }

 private:
  struct Meta {
    std::uint16_t pins;
    std::uint8_t mark : 4, flags : 4;
    std::uint8_t tags;
  };
  static_assert(sizeof(Meta) == kBytes);
  static constexpr std::uint8_t kTaken = 1, kDeferred = 2, kChosen = 4;
  static constexpr std::uint8_t kMostMarks = 15;
  static constexpr auto kRelaxed = std::memory_order_relaxed;

  Meta& meta(std::uint32_t place) const { return *reinterpret_cast<Meta*>(metas_.at(place)); }
  bool pass_over(Meta& meta) const;

  const Policy policy_;
  Slab metas_;
  std::uint32_t hand_ = 0;
};

}  // namespace sfctr
