#include "sfctr/io_faults.h"

#include <algorithm>
#include <cerrno>

namespace sfctr {

void IoFaults::add(Rule rule) {
  std::lock_guard lock(mutex_);
  rules_.push_back(rule);
}

void IoFaults::fail(IoCall call, int error, std::uint64_t skip, std::uint64_t times) {
  add({Kind::kFail, call, static_cast<std::size_t>(error), skip, times});
}

void IoFaults::shorten(IoCall call, std::size_t bytes, std::uint64_t skip, std::uint64_t times) {
  add({Kind::kShorten, call, bytes, skip, times});
}

void IoFaults::flip_byte(std::size_t at, std::uint64_t skip) { add({Kind::kFlip, IoCall::kRead, at, skip, 1}); }

void IoFaults::disk_full(std::uint64_t after_bytes) {
  std::lock_guard lock(mutex_);
  room_ = after_bytes;
}

void IoFaults::stall(IoCall call) {
  std::lock_guard lock(mutex_);
  seen(call).stalled = true;
}

void IoFaults::resume(IoCall call) {
  {
    std::lock_guard lock(mutex_);
    seen(call).stalled = false;
  }
  resumed_.notify_all();
}

std::uint64_t IoFaults::calls(IoCall call) const {
  std::lock_guard lock(mutex_);
  return seen(call).calls;
}

std::size_t IoFaults::most_in_flight(IoCall call) const {
  std::lock_guard lock(mutex_);
  return seen(call).most_in_flight;
}

// The first rule of this kind that hits the call; each that is asked counts it.
const IoFaults::Rule* IoFaults::hit(Kind kind, IoCall call) {
  const Rule* found = nullptr;
  for (Rule& rule : rules_) {
    if (rule.kind != kind || rule.call != call) continue;
    if (rule.skip > 0) {
      --rule.skip;
    } else if (rule.times > 0 && !found) {
      if (rule.times != kForever) --rule.times;
      found = &rule;
    }
  }
  return found;
}

int IoFaults::begin(IoCall call) {
  std::unique_lock lock(mutex_);
  ++seen(call).calls;
  resumed_.wait(lock, [&] { return !seen(call).stalled; });
  if (const Rule* rule = hit(Kind::kFail, call)) return static_cast<int>(rule->value);
  if (call == IoCall::kWrite && room_ == 0) return ENOSPC;
  seen(call).most_in_flight = std::max(seen(call).most_in_flight, ++seen(call).in_flight);
  return 0;
}

std::int64_t IoFaults::end(IoCall call, std::int64_t result, std::byte* data) {
  std::lock_guard lock(mutex_);
  --seen(call).in_flight;
  if (result <= 0) return result;
  if (const Rule* rule = hit(Kind::kShorten, call)) result = std::min(result, static_cast<std::int64_t>(rule->value));
  const Rule* const flip = hit(Kind::kFlip, call);
  if (flip && flip->value < static_cast<std::size_t>(result)) data[flip->value] ^= std::byte{0x10};
  if (call == IoCall::kWrite && room_ != kForever) {
    result = static_cast<std::int64_t>(std::min(static_cast<std::uint64_t>(result), room_));
    room_ -= static_cast<std::uint64_t>(result);
  }
  return result;
}

}  // namespace sfctr
