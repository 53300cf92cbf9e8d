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
    : policy_(policy),
      budget_(std::move(budget)),
      records_(record_bytes),
      metas_(sizeof(Meta)),
      frame_bytes_(record_bytes + sizeof(Meta)) {}

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
    metas_.grow();
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
  if (metas_.end() > end) metas_.truncate(end);
  if (owners_ && owners_->end() > end) owners_->truncate(end);
}

std::uint32_t Frames::use(std::uint32_t frame) {
  meta(frame) = {0, 0, kTaken};
  ++num_taken_;
  return frame;
}

void Frames::give(std::uint32_t frame) noexcept {
  meta(frame) = {0, 0, 0};
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

void Frames::pin(std::uint32_t frame) { ++meta(frame).pins; }

std::uint32_t Frames::unpin(std::uint32_t frame) { return --meta(frame).pins; }

void Frames::note_use(std::uint32_t frame) {
  std::uint8_t& mark = meta(frame).mark;
  mark = policy_ == Policy::kLru ? 1 : static_cast<std::uint8_t>(std::min<int>(kMostMarks, mark + 1));
}

// Whether the hand goes on; a mark that holds it off is used up by that.
bool Frames::pass_over(Meta& meta) const {
  if (meta.flags != kTaken || meta.pins != 0) return true;
  if (meta.mark == 0) return false;
  meta.mark = policy_ == Policy::kLru ? 0 : static_cast<std::uint8_t>(meta.mark / 2);
  return true;
}

std::vector<std::uint32_t> Frames::choose(std::size_t n, const NextUse& next_use) {
  struct Later {
    std::uint64_t next_use;
    std::uint32_t frame;
  };
  std::vector<std::uint32_t> victims;
  std::vector<Later> later;
  victims.reserve(std::min(n, num_taken_));
  const auto unmark = [&] {
    for (const Later& each : later) meta(each.frame).flags = kTaken;
    for (const std::uint32_t frame : victims) meta(frame).flags = kTaken;
  };
  const std::uint64_t passes = policy_ == Policy::kLru ? 2 : 5;  // after so many no mark can be left
  for (std::uint64_t left = passes * end(); left > 0 && victims.size() < n; --left) {
    hand_ = hand_ + 1 < end() ? hand_ + 1 : 0;
    Meta& here = meta(hand_);
    if (pass_over(here)) continue;
    const std::uint64_t next = next_use(owner(hand_));
    try {
      if (next != 0) later.push_back({next, hand_});
    } catch (...) {
      unmark();
      throw;
    }
    if (next == 0) victims.push_back(hand_);
    here.flags |= next != 0 ? kDeferred : kChosen;
  }
  unmark();
  std::ranges::sort(later, [](const Later& a, const Later& b) {
    return a.next_use != b.next_use ? a.next_use > b.next_use : a.frame < b.frame;
  });
  for (std::size_t i = 0; i < later.size() && victims.size() < n; ++i) victims.push_back(later[i].frame);
  return victims;
}

std::vector<std::uint32_t> Frames::tail(std::size_t n) const {
  std::vector<std::uint32_t> frames;
  const std::uint64_t stop = end() - std::min<std::uint64_t>(n, end());
  for (std::uint64_t frame = end(); frame > stop; --frame) {
    const auto f = static_cast<std::uint32_t>(frame - 1);
    if (meta(f).pins != 0) break;
    if (meta(f).flags & kTaken) frames.push_back(f);
  }
  return frames;
}

void Frames::shrink(std::size_t n) {
  std::uint32_t last = end();
  while (n > 0 && last > 0 && !(meta(last - 1).flags & kTaken)) --n, --last;
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
  if (hand_ >= last) hand_ = 0;
}

std::size_t Frames::memory_bytes() const {
  return records_.memory_bytes() + metas_.memory_bytes() + (owners_ ? owners_->memory_bytes() : 0);
}

}  // namespace sfctr
