// Bytes of RAM that the groups of one store share: frames with what is kept about them, indexes, and the disk's
// buffers.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>

namespace sfctr {

// What a key is counted as taking in an index; the index itself keeps below it on average (index.h).
inline constexpr std::uint64_t kIndexBytes = 24;

// The rows need more RAM than there may be, and there is no disk to put some of them on.
class RamFull : public std::runtime_error {
 public:
  explicit RamFull(std::uint64_t needed_bytes)
      : std::runtime_error("the rows and their index need " + std::to_string(needed_bytes) + " bytes of RAM"),
        needed(needed_bytes) {}
  std::uint64_t needed;
};

// The index alone needs more RAM than there may be.
class IndexOutgrown : public std::runtime_error {
 public:
  explicit IndexOutgrown(std::uint64_t needed_bytes)
      : std::runtime_error("the index alone needs " + std::to_string(needed_bytes) + " bytes of RAM"),
        needed(needed_bytes) {}
  std::uint64_t needed;
};

// Any thread may call any of it.
class Budget {
 public:
  static constexpr std::uint64_t kUnbounded = std::numeric_limits<std::uint64_t>::max();

  explicit Budget(std::uint64_t limit = kUnbounded) : limit_(limit) {}

  std::uint64_t limit() const { return limit_; }
  bool bounded() const { return limit_ != kUnbounded; }
  std::uint64_t used() const { return frames_.load() + index_.load() + buffers_.load(); }
  std::uint64_t frame_bytes() const { return frames_.load(); }
  std::uint64_t index_bytes() const { return index_.load(); }
  bool is_over() const { return used() > limit_; }

  // Takes bytes for a frame if they are there, and beyond what is spared for keys.
  bool try_take_frame(std::uint64_t bytes) {
    if (!bounded()) return true;
    if (used() + spare_ + bytes > limit_) return false;
    frames_ += bytes;
    return true;
  }
  void take_frame(std::uint64_t bytes) {
    if (bounded()) frames_ += bytes;
  }
  void give_frame(std::uint64_t bytes) {
    if (bounded()) frames_ -= bytes;
  }
  // Frames have had to go for keys. From now on they leave a sixty-fourth of the limit to keys, so that it is long
  // until they have to go again.
  void spare_for_keys() { spare_ = limit_ / 64; }
  std::uint64_t spare() const { return spare_; }
  // Keys go in whatever frames take: frames are given back for them (RowGroup::plan).
  void take_keys(std::uint64_t num_keys) { index_ += num_keys * kIndexBytes; }
  void give_keys(std::uint64_t num_keys) { index_ -= num_keys * kIndexBytes; }
  // Takes bytes for buffers, for which frames will have to go; returns how many: none where they were more than an
  // eighth of the limit, and come on top of it.
  std::uint64_t take_buffers(std::uint64_t bytes) {
    if (!bounded() || bytes > limit_ / 8) return 0;
    buffers_ += bytes;
    return bytes;
  }
  void give_buffers(std::uint64_t bytes) { buffers_ -= bytes; }
  // Throws IndexOutgrown where so many more keys would need more than the limit by themselves.
  void require_index(std::uint64_t num_more_keys) const {
    const std::uint64_t needed = index_.load() + num_more_keys * kIndexBytes;
    if (needed > limit_) throw IndexOutgrown(needed);
  }

 private:
  const std::uint64_t limit_;
  std::atomic<std::uint64_t> frames_{0}, index_{0}, buffers_{0}, spare_{0};
};

}  // namespace sfctr
