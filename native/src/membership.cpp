#include "sfctr/membership.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace sfctr {
namespace {

constexpr std::uint64_t kLeastShare = 64;
constexpr std::size_t kLeastCandidates = 64;
constexpr std::size_t kCandidatesIn = 16;  // of so many keys one is made a candidate: a byte a key

}  // namespace

BoundedKeys::BoundedKeys(std::uint64_t bound) : bound_(bound) {
  if (bound == 0) return;
  while (bits_ < kShardBits && bound >> (bits_ + 1) >= kLeastShare) ++bits_;
  shards_.resize(std::size_t{1} << bits_);
}

void BoundedKeys::add(std::uint64_t key) {
  ++size_;
  if (bound_ > 0) ++shards_[shard_of(key)].size;
}

void BoundedKeys::drop(std::uint64_t key) {
  --size_;
  if (bound_ > 0) --shards_[shard_of(key)].size;
}

void BoundedKeys::forget_order() {
  for (Shard& shard : shards_) shard.candidates.clear(), shard.next = 0;
}

BoundedKeys::Aged BoundedKeys::pop_oldest(const Index& index, std::size_t s) {
  Shard& shard = shards_[s];
  for (;;) {
    if (shard.next == shard.candidates.size()) look_through(index, s);
    const Aged oldest = shard.candidates[shard.next++];
    std::uint32_t slot, stamp = kUnborn;
    index.find({&oldest.key, 1}, &slot, &stamp);
    if (slot != Index::kNone && stamp == oldest.stamp) return oldest;
  }
}

void BoundedKeys::look_through(const Index& index, std::size_t s) {
  struct Found {
    std::uint32_t stamp;
    std::uint64_t hash, key;
  };
  const auto before = [](const Found& a, const Found& b) {
    return a.stamp != b.stamp ? a.stamp < b.stamp : a.hash < b.hash;
  };
  const std::uint64_t first = bits_ == 0 ? 0 : std::uint64_t{s} << (64 - bits_);
  std::vector<Found> found;
  index.for_each_in(first, first + (~std::uint64_t{0} >> bits_), [&](const Index::Listed& each) {
    if (each.stamp != kUnborn) found.push_back({each.stamp, each.hash, each.key});
  });
  if (found.empty()) throw std::logic_error("a bound counts keys that are not in the index");
  const std::size_t count = std::min(found.size(), found.size() / kCandidatesIn + kLeastCandidates);
  const auto end = found.begin() + static_cast<std::ptrdiff_t>(count);
  std::nth_element(found.begin(), count < found.size() ? end : found.end() - 1, found.end(), before);
  std::sort(found.begin(), end, before);
  shards_[s].candidates.clear();
  shards_[s].next = 0;
  for (auto each = found.begin(); each != end; ++each) shards_[s].candidates.push_back({each->key, each->stamp});
}

std::size_t BoundedKeys::memory_bytes() const {
  std::size_t total = shards_.capacity() * sizeof(Shard);
  for (const Shard& shard : shards_) total += shard.candidates.capacity() * sizeof(Aged);
  return total;
}

void EventClock::advance(std::uint32_t step, std::int64_t time) {
  if (time == kNoTime) return;
  if (points_.empty()) {
    points_.push_back({0, time});
  } else if (time > points_.back().now) {
    points_.push_back({step, time});
  }
}

std::int64_t EventClock::bound_of(std::int64_t span) const {
  std::int64_t bound;
  return __builtin_sub_overflow(points_.back().now, span, &bound) ? std::numeric_limits<std::int64_t>::min() : bound;
}

std::uint32_t EventClock::first_within(std::int64_t span) const {
  if (points_.empty()) return 0;
  const auto before = [](const Point& point, std::int64_t now) { return point.now < now; };
  return std::lower_bound(points_.begin(), points_.end(), bound_of(span), before)->step;
}

void EventClock::forget_beyond(std::int64_t span) {
  if (points_.empty()) return;
  const std::int64_t bound = bound_of(span);
  while (points_.front().now < bound) points_.pop_front();
}

Membership::Membership(const MembershipRule& rule)
    : rule_(rule), rows_(rule.capacity), waiting_bound_(rule.admit_after > 1 ? rule.most_waiting : 0) {}

bool Membership::admits(std::uint64_t key) const {
  if (rule_.admit_after <= 1) return true;
  const std::uint32_t count = waiting_.find(key);
  return (count == Index::kNone ? 0 : count) + 1 >= rule_.admit_after;
}

bool Membership::note_trained(std::uint64_t key, Index::Entry entry, std::uint32_t step) {
  const std::uint32_t before = std::exchange(*entry.stamp, step);
  if (before == kUnborn) rows_.add(key);
  if (before != kUnborn && !is_stale(before)) return false;
  counters.expired += before != kUnborn;
  ++counters.admitted;
  return forget(key);
}

bool Membership::note_refused(std::uint64_t key, std::uint32_t step) {
  ++counters.refused;
  if (const Index::Entry entry = waiting_.entry_of(key)) {
    ++*entry.slot;
    *entry.stamp = step;
    return false;
  }
  restore_waiting(key, 1, step);
  return true;
}

void Membership::restore_waiting(std::uint64_t key, std::uint32_t count, std::uint32_t step) {
  waiting_.insert(key, count, step);
  waiting_bound_.add(key);
}

std::uint64_t Membership::forget_waiting() {
  std::vector<std::uint64_t> keys;
  waiting_.for_each([&](std::uint64_t key, std::uint32_t) { keys.push_back(key); });
  for (const std::uint64_t key : keys) forget(key);
  return keys.size();
}

bool Membership::forget(std::uint64_t key) {
  if (waiting_.size() == 0 || waiting_.erase(key) == Index::kNone) return false;
  waiting_bound_.drop(key);
  return true;
}

void Membership::end_step(std::uint32_t step, const EventClock& clock) {
  if (rule_.expire_after_steps > 0) {
    const std::uint64_t next = std::uint64_t{step} + 1;
    oldest_alive_ = next > rule_.expire_after_steps ? static_cast<std::uint32_t>(next - rule_.expire_after_steps) : 0;
  }
  if (rule_.expire_after_ns > 0) oldest_alive_ = clock.first_within(rule_.expire_after_ns);
}

std::uint64_t Membership::forget_surplus() {
  std::uint64_t count = 0;
  waiting_bound_.enforce(waiting_, [&](std::uint64_t key, std::uint32_t) { count += forget(key); });
  counters.forgotten += count;
  return count;
}

std::vector<std::uint64_t> Membership::stale_rows(const Index& rows, std::uint64_t first, std::uint64_t last) const {
  std::vector<std::uint64_t> keys;
  if (!rule_.expires() || oldest_alive_ == 0) return keys;
  rows.for_each_in(first, last, [&](const Index::Listed& each) {
    if (is_stale(each.stamp)) keys.push_back(each.key);
  });
  return keys;
}

std::size_t Membership::memory_bytes() const {
  return rows_.memory_bytes() + waiting_bound_.memory_bytes() + waiting_.memory_bytes();
}

}  // namespace sfctr
