#include "sfctr/frames.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "sfctr/place.h"

namespace sfctr {
namespace {

struct Packed {  // an Owner without padding: 12 bytes a frame
  std::uint32_t low, high, table;
};

}  // namespace

Frames::Frames(std::size_t record_bytes, Policy policy, std::shared_ptr<Budget> budget)
    : budget_(std::move(budget)), records_(record_bytes), clock_(policy), frame_bytes_(record_bytes + Clock::kBytes) {}

Frames::~Frames() { budget_->give_frame(end() * frame_bytes_); }

std::uint32_t Frames::take() {
  if (free_ != kNone) {
    const std::uint32_t frame = free_;
    free_ = after(frame);
    return use(frame);
  }
  return budget_->try_take_frame(frame_bytes_) ? add() : kNone;
}

std::uint32_t Frames::take_beyond() {
  const std::uint32_t frame = take();
  if (frame != kNone) return frame;
  budget_->take_frame(frame_bytes_);
  return add();
}

// REQUIRES: the budget has been asked for it; it gets it back where an exception ends this.
std::uint32_t Frames::add() {
  const std::uint32_t frame = end();
  try {
    if (frame == Place::kMostFrames) throw std::length_error("tables of one kind hold at most 2^30 rows in RAM");
    clock_.grow();
    if (owners_) owners_->grow();
    records_.grow();
  } catch (...) {
    truncate(frame);
    budget_->give_frame(frame_bytes_);
    throw;
  }
  return use(frame);
}

void Frames::truncate(std::uint32_t end) {
  records_.truncate(end);
  if (clock_.end() > end) clock_.truncate(end);
  if (owners_ && owners_->end() > end) owners_->truncate(end);
}

std::uint32_t Frames::use(std::uint32_t frame) {
  clock_.take(frame);
  ++num_taken_;
  return frame;
}

void Frames::give(std::uint32_t frame) noexcept {
  clock_.give(frame);
  after(frame) = std::exchange(free_, frame);
  --num_taken_;
}

void Frames::set_owner(std::uint32_t frame, Owner owner) {
  if (!owners_) return;
  *reinterpret_cast<Packed*>(owners_->at(frame)) = {static_cast<std::uint32_t>(owner.key),
                                                    static_cast<std::uint32_t>(owner.key >> 32), owner.table};
}

void Frames::keep_owners() {
  auto owners = std::make_unique<Slab>(sizeof(Packed));
  while (owners->end() < end()) owners->grow();
  owners_ = std::move(owners);
  budget_->take_frame(end() * sizeof(Packed));
  frame_bytes_ += sizeof(Packed);
}

Owner Frames::owner(std::uint32_t frame) const {
  const auto& packed = *reinterpret_cast<const Packed*>(owners_->at(frame));
  return {std::uint64_t{packed.high} << 32 | packed.low, packed.table};
}

std::vector<std::uint32_t> Frames::choose(std::size_t n, const NextUse& next_use) {
  return clock_.choose(n, [&](std::uint32_t frame) { return next_use(owner(frame)); });
}

std::vector<std::uint32_t> Frames::tail(std::size_t n) const {
  std::vector<std::uint32_t> frames;
  const std::uint64_t stop = end() - std::min<std::uint64_t>(n, end());
  for (std::uint64_t frame = end(); frame > stop; --frame) {
    const auto f = static_cast<std::uint32_t>(frame - 1);
    if (num_pins(f) != 0) break;
    if (clock_.is_taken(f)) frames.push_back(f);
  }
  return frames;
}

void Frames::shrink(std::size_t n) {
  std::uint32_t last = end();
  while (n > 0 && last > 0 && !clock_.is_taken(last - 1)) --n, --last;
  if (last == end()) return;
  budget_->give_frame((end() - last) * frame_bytes_);
  for (std::uint32_t* next = &free_; *next != kNone;) {
    if (*next >= last) {
      *next = after(*next);
    } else {
      next = &after(*next);
    }
  }
  truncate(last);
}

std::size_t Frames::memory_bytes() const {
  return records_.memory_bytes() + clock_.memory_bytes() + (owners_ ? owners_->memory_bytes() : 0);
}

}  // namespace sfctr
