// Faults of a disk, by name, for tests: given to whatever does I/O, which asks it around each system call. Without one
// (a null pointer) nothing is asked. Safe to call from any thread.
//
// Calls of a kind are counted from when a fault is set up: `skip` of them pass, the next `times` are hit.
#pragma once

#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <mutex>
#include <vector>

namespace sfctr {

enum class IoCall : std::uint8_t { kOpen, kWrite, kRead, kSync, kRingSetup, kRingRegister, kRingEnter };

class IoFaults {
 public:
  static constexpr std::uint64_t kForever = std::numeric_limits<std::uint64_t>::max();

  // The call is not made and fails with this errno.
  void fail(IoCall call, int error, std::uint64_t skip = 0, std::uint64_t times = 1);
  // A read or write is said to have moved no more than `bytes`.
  void shorten(IoCall call, std::size_t bytes, std::uint64_t skip = 0, std::uint64_t times = 1);
  // Byte `at` of what a read brings is changed.
  void flip_byte(std::size_t at, std::uint64_t skip = 0);
  // Writes fail with ENOSPC once this many bytes more are written; the one that reaches the end is short.
  void disk_full(std::uint64_t after_bytes);
  // Calls wait until resumed. Not for reads through a ring, where it would stop those in flight from being answered.
  void stall(IoCall call);
  void resume(IoCall call);

  // Calls made so far, those that failed here included; and how many were under way at once.
  std::uint64_t calls(IoCall call) const;
  std::size_t most_in_flight(IoCall call) const;

  // For whoever does I/O: the errno to fail with before the call is made, or 0; then end() must follow with its result
  // (bytes, or -errno) and gives the result to go on with.
  int begin(IoCall call);
  std::int64_t end(IoCall call, std::int64_t result, std::byte* data);

 private:
  static constexpr std::size_t kNumCalls = 7;
  enum class Kind : std::uint8_t { kFail, kShorten, kFlip };
  struct Rule {
    Kind kind;
    IoCall call;
    std::size_t value;  // errno, bytes, or place of the byte
    std::uint64_t skip, times;
  };
  struct Seen {
    std::uint64_t calls = 0;
    std::size_t in_flight = 0, most_in_flight = 0;
    bool stalled = false;
  };

  void add(Rule rule);
  Seen& seen(IoCall call) { return seen_[static_cast<std::size_t>(call)]; }
  const Seen& seen(IoCall call) const { return seen_[static_cast<std::size_t>(call)]; }
  const Rule* hit(Kind kind, IoCall call);

  mutable std::mutex mutex_;
  std::condition_variable resumed_;
  std::vector<Rule> rules_;
  std::array<Seen, kNumCalls> seen_;
  std::uint64_t room_ = kForever;  // bytes that may be written yet
};

}  // namespace sfctr
