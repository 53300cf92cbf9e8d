// Who has a row in a table: fixed capacity, admission by count, expiry by steps or event time.
//
// Everything here follows from committed steps alone, in their order, and is decided shard by shard of the hashes, so
// it is the same for any window, tier sizes and number of threads, and for any sharing of shards among processes.
//
//  Count. A key's count is the number of committed steps whose backward reached it. It has a row from the step on in
//    which its count comes to `admit_after`; until then it is refused, and its count waits in a table of bounded size,
//    from which the key that was seen longest ago is forgotten.
//  Age. A row is as old as the step that trained it last, L. It is alive for steps up to L + `expire_after_steps`; or
//    while now - now(L) <= `expire_after_ns`, where now is the greatest event time of committed batches and now(L) what
//    it was after step L. Thereafter its key begins anew: first values, count one, and it must be admitted again. A
//    stale row may still be in the index; every reader passes over it (is_stale), so when it leaves decides nothing.
//  Capacity. At the end of a committed step, while a shard has more rows than its share, the row trained longest ago
//    leaves; of several the one with the smaller hash. Rows of that very step go only when no others are left.
//
// Not thread-safe, except that const members may run beside each other.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <vector>

#include "sfctr/hash.h"
#include "sfctr/index.h"

namespace sfctr {

// 0 in capacity and expire_after: no bound.
struct MembershipRule {
  std::uint64_t capacity = 0;            // rows
  std::uint32_t admit_after = 1;         // steps that must have held the key, the one that admits it included
  std::uint64_t expire_after_steps = 0;  // at most one of the two
  std::int64_t expire_after_ns = 0;
  bool rare = false;                   // what is refused reads and trains the table's rare row; else it reads as zeros
  std::uint64_t most_waiting = 65536;  // keys whose count waits

  bool tracks() const { return capacity > 0 || admit_after > 1 || expires(); }
  bool expires() const { return expire_after_steps > 0 || expire_after_ns > 0; }
};

// Keys, since the table was made or loaded with what was counted before.
struct MembershipCounters {
  std::uint64_t admitted = 0;   // got a row, those that came back included
  std::uint64_t refused = 0;    // reached by a committed step without a row for it; once a step
  std::uint64_t expired = 0;    // lost their row to age
  std::uint64_t removed = 0;    // lost it to capacity
  std::uint64_t withdrawn = 0;  // lost it by hand
  std::uint64_t forgotten = 0;  // whose count the table of those that wait had no room for
};

// The stamp of a key whose record is there without being a row; all others are steps.
inline constexpr std::uint32_t kUnborn = 0xFFFFFFFF;

// A bound on the keys of a stamped index, cut into shares by the leading bits of their hashes: 2^k of them, k up to 8
// the largest with bound / 2^k >= 64. Shares are as even as can be, the first ones larger by one.
class BoundedKeys {
 public:
  explicit BoundedKeys(std::uint64_t bound);  // 0: none, and nothing is kept but how many there are

  // Tells of a key that has come or gone; its stamp must be the largest of all, or forget_order() follows.
  void add(std::uint64_t key);
  void drop(std::uint64_t key);
  std::uint64_t size() const { return size_; }
  std::size_t num_shares() const { return bound_ == 0 ? kNumShards : shards_.size(); }
  void forget_order();

  // Calls remove(key, stamp) for the oldest key of every shard that has more than its share, until none has. Throws
  // std::logic_error where a shard was told of more keys than the index has. REQUIRES: remove erases the key from the
  // index, or makes it unborn, and drops it here.
  template <class Remove>
  void enforce(const Index& index, Remove&& remove) {
    for (std::size_t s = 0; s < shards_.size(); ++s) {
      while (shards_[s].size > share(s)) {
        const Aged oldest = pop_oldest(index, s);
        remove(oldest.key, oldest.stamp);
      }
    }
  }

  std::size_t memory_bytes() const;

 private:
  struct Aged {
    std::uint64_t key;
    std::uint32_t stamp;
  };
  // Candidates were the oldest of the shard when it was last looked through; whatever has come or been trained since is
  // younger. One that has gone or been trained is passed over.
  struct Shard {
    std::uint64_t size = 0;
    std::vector<Aged> candidates;  // from `next` on, oldest first
    std::size_t next = 0;
  };

  std::size_t shard_of(std::uint64_t key) const { return bits_ == 0 ? 0 : mix(key) >> (64 - bits_); }
  std::uint64_t share(std::size_t shard) const { return bound_ / shards_.size() + (shard < bound_ % shards_.size()); }
  Aged pop_oldest(const Index& index, std::size_t shard);
  void look_through(const Index& index, std::size_t shard);

  std::uint64_t bound_, size_ = 0;
  unsigned bits_ = 0;
  std::vector<Shard> shards_;  // none without a bound
};

// Event time as committed steps moved it on.
class EventClock {
 public:
  static constexpr std::int64_t kNoTime = std::numeric_limits<std::int64_t>::min();
  struct Point {
    std::uint32_t step;
    std::int64_t now;  // after it and until the next point; ns since 1970
  };

  // The greatest event time of a committed batch, or kNoTime. Steps before the first time count as of that time.
  void advance(std::uint32_t step, std::int64_t time);
  // The first step after which event time was no longer than `span` ago.
  std::uint32_t first_within(std::int64_t span) const;
  void forget_beyond(std::int64_t span);  // points that first_within of such spans no longer needs

  const std::deque<Point>& points() const { return points_; }
  void set_points(std::deque<Point> points) { points_ = std::move(points); }

 private:
  std::int64_t bound_of(std::int64_t span) const;

  std::deque<Point> points_;  // both rise
};

// The keys of one table.
class Membership {
 public:
  explicit Membership(const MembershipRule& rule);

  const MembershipRule& rule() const { return rule_; }

  // As the step after the last committed one sees it.
  bool is_stale(std::uint32_t stamp) const { return stamp < oldest_alive_; }
  bool admits(std::uint64_t key) const;  // of a key without a row

  // A committed step has trained the key's row, whose entry this is. Returns whether its count waits no longer.
  bool note_trained(std::uint64_t key, Index::Entry entry, std::uint32_t step);
  // A committed step has reached the key and found it refused. Returns whether it waits from now on.
  bool note_refused(std::uint64_t key, std::uint32_t step);
  // The step is committed, and the clock has moved on.
  void end_step(std::uint32_t step, const EventClock& clock);
  // Forgets those that wait beyond their bound; returns how many.
  std::uint64_t forget_surplus();
  // Forgets all that wait; returns how many.
  std::uint64_t forget_waiting();
  // Forgets the key's count; returns whether there was one.
  bool forget(std::uint64_t key);
  void restore_waiting(std::uint64_t key, std::uint32_t count, std::uint32_t step);

  // Keys of stale rows among those whose hash is in [first, last].
  std::vector<std::uint64_t> stale_rows(const Index& rows, std::uint64_t first, std::uint64_t last) const;

  BoundedKeys& rows() { return rows_; }
  const BoundedKeys& rows() const { return rows_; }
  const Index& waiting() const { return waiting_; }  // slot: its count; stamp: the last step that reached it
  BoundedKeys& waiting_bound() { return waiting_bound_; }
  std::size_t num_shares() const { return std::min(rows_.num_shares(), waiting_bound_.num_shares()); }
  std::size_t memory_bytes() const;

  MembershipCounters counters;

 private:
  MembershipRule rule_;
  std::uint32_t oldest_alive_ = 0;
  BoundedKeys rows_, waiting_bound_;
  Index waiting_{true};
};

}  // namespace sfctr
