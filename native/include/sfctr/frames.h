// Frames: the places for records in RAM, and the choice of whose record leaves when there is no free one (clock.h).
//
// A frame is pinned by every batch in flight that uses its row, and once more while its row is on a device.
//
// Not thread-safe, except that the records of pinned frames may be read and written beside any call, and tags as said.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "sfctr/budget.h"
#include "sfctr/clock.h"
#include "sfctr/slab.h"

namespace sfctr {

struct Owner {
  std::uint64_t key;
  std::uint32_t table;  // native table
};

class Frames {
 public:
  Frames(std::size_t record_bytes, Policy policy, std::shared_ptr<Budget> budget);
  ~Frames();
  Frames(const Frames&) = delete;

  // A frame that no record is in, or kNone where the budget has none left. Its record and owner are undefined, its pins
  // 0. Throws std::bad_alloc, or std::length_error beyond Place::kMostFrames.
  static constexpr std::uint32_t kNone = 0xFFFFFFFF;
  std::uint32_t take();
  // The same beyond the budget, for a row that has no other place.
  std::uint32_t take_beyond();
  // REQUIRES: taken, without pins.
  void give(std::uint32_t frame) noexcept;
  void set_owner(std::uint32_t frame, Owner owner);  // does nothing unless owners are kept

  // Keeps owners from now on, which choosing victims needs; those of frames that are taken must then be set.
  void keep_owners();

  float* record(std::uint32_t frame) const { return reinterpret_cast<float*>(records_.at(frame)); }
  Owner owner(std::uint32_t frame) const;

  void pin(std::uint32_t frame) { clock_.pin(frame); }
  // Returns the pins that are left.
  std::uint32_t unpin(std::uint32_t frame) { return clock_.unpin(frame); }
  std::uint32_t num_pins(std::uint32_t frame) const { return clock_.num_pins(frame); }
  void prefetch(std::uint32_t frame) const { clock_.prefetch(frame); }
  void note_use(std::uint32_t frame) { clock_.note_use(frame); }

  // What is known of the row in a frame (snapshot.h), as Clock says.
  std::uint8_t tags(std::uint32_t frame) const { return clock_.tags(frame); }
  void set_tags(std::uint32_t frame, std::uint8_t tags) { clock_.set_tags(frame, tags); }
  void add_tags(std::uint32_t frame, std::uint8_t bits) { clock_.add_tags(frame, bits); }
  void drop_tags(std::uint32_t frame, std::uint8_t bits) { clock_.drop_tags(frame, bits); }
  void fix_tags() { clock_.fix_tags(); }
  void retag(std::uint8_t having, std::uint8_t drop, std::uint8_t add) { clock_.retag(having, drop, add); }

  // At most n frames whose records may leave, as Clock::choose() says. The frames stay taken. REQUIRES: owners are
  // kept.
  using NextUse = std::function<std::uint64_t(const Owner&)>;
  std::vector<std::uint32_t> choose(std::size_t n, const NextUse& next_use);

  // Frames in use and without pins among the last n, from the end on, up to the first that is pinned: their records
  // must leave before shrink(). REQUIRES: owners are kept.
  std::vector<std::uint32_t> tail(std::size_t n) const;
  // Gives the free frames at the end back to the system, at most n of them.
  void shrink(std::size_t n);

  std::uint32_t end() const { return records_.end(); }
  std::size_t num_taken() const { return num_taken_; }
  std::size_t frame_bytes() const { return frame_bytes_; }
  // Of frames that records have touched, with what is kept about them.
  std::size_t memory_bytes() const;

 private:
  // A free frame's record holds the free frame that is taken after it: so giving one needs no memory and cannot fail.
  std::uint32_t& after(std::uint32_t frame) const { return *reinterpret_cast<std::uint32_t*>(records_.at(frame)); }
  std::uint32_t add();
  void truncate(std::uint32_t end);
  std::uint32_t use(std::uint32_t frame);

  std::shared_ptr<Budget> budget_;
  Slab records_;
  Clock clock_;
  std::unique_ptr<Slab> owners_;
  std::size_t frame_bytes_;
  std::uint32_t free_ = kNone;  // taken next
  std::size_t num_taken_ = 0;
};

}  // namespace sfctr
