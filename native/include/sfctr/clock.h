// The choice of whose place is given up when there is none free, for places numbered from 0: frames in RAM (frames.h)
// and lines on a device (device_lines.h).
//
// A place is pinned by everyone who needs what is in it. Only a place without pins is ever a victim. Among those, what
// no known batch will use goes first, by CLOCK ("lru": one chance for what was used since the hand last passed) or by
// halving counters ("lfu"); then what will be used, farthest next use first.
//
// Not thread-safe.
#pragma once

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
  void take(std::uint32_t place) { meta(place) = {0, 0, kTaken}; }
  void give(std::uint32_t place) noexcept { meta(place) = {0, 0, 0}; }
  bool is_taken(std::uint32_t place) const { return (meta(place).flags & kTaken) != 0; }

  void pin(std::uint32_t place) { ++meta(place).pins; }
  // Returns the pins that are left.
  std::uint32_t unpin(std::uint32_t place) { return --meta(place).pins; }
  std::uint32_t num_pins(std::uint32_t place) const { return meta(place).pins; }
  void note_use(std::uint32_t place);
  void prefetch(std::uint32_t place) const { __builtin_prefetch(metas_.at(place)); }

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
    std::uint8_t mark;
    std::uint8_t flags;
  };
  static_assert(sizeof(Meta) == kBytes);
  static constexpr std::uint8_t kTaken = 1, kDeferred = 2, kChosen = 4;
  static constexpr std::uint8_t kMostMarks = 15;

  Meta& meta(std::uint32_t place) const { return *reinterpret_cast<Meta*>(metas_.at(place)); }
  bool pass_over(Meta& meta) const;

  const Policy policy_;
  Slab metas_;
  std::uint32_t hand_ = 0;
};

}  // namespace sfctr
