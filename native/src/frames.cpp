#include "sfctr/frames.h"

#include <algorithm>
#include <stdexcept>

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
  if (!free_.empty()) {
    const std::uint32_t frame = free_.back();
    free_.pop_back();
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

std::uint32_t Frames::add() {
  if (end() == Place::kMostFrames) throw std::length_error("tables of one kind hold at most 2^30 rows in RAM");
  const std::uint32_t frame = records_.grow();
  metas_.grow();
  if (owners_) owners_->grow();
  return use(frame);
}

std::uint32_t Frames::use(std::uint32_t frame) {
  meta(frame) = {0, 0, kTaken};
  ++num_taken_;
  return frame;
}

void Frames::give(std::uint32_t frame) {
  meta(frame) = {0, 0, 0};
  free_.push_back(frame);
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
  const std::uint64_t passes = policy_ == Policy::kLru ? 2 : 5;  // after so many no mark can be left
  for (std::uint64_t left = passes * end(); left > 0 && victims.size() < n; --left) {
    hand_ = hand_ + 1 < end() ? hand_ + 1 : 0;
    Meta& here = meta(hand_);
    if (pass_over(here)) continue;
    const std::uint64_t next = next_use(owner(hand_));
    if (next != 0) later.push_back({next, hand_});
    if (next == 0) victims.push_back(hand_);
    here.flags |= next != 0 ? kDeferred : kChosen;
  }
  std::ranges::sort(later, [](const Later& a, const Later& b) {
    return a.next_use != b.next_use ? a.next_use > b.next_use : a.frame < b.frame;
  });
  for (const Later& each : later) {
    meta(each.frame).flags = kTaken;
    if (victims.size() < n) victims.push_back(each.frame);
  }
  for (const std::uint32_t frame : victims) meta(frame).flags = kTaken;
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
  std::erase_if(free_, [&](std::uint32_t frame) { return frame >= last; });
  records_.truncate(last);
  metas_.truncate(last);
  if (owners_) owners_->truncate(last);
  if (hand_ >= last) hand_ = 0;
}

std::size_t Frames::memory_bytes() const {
  return records_.memory_bytes() + metas_.memory_bytes() + (owners_ ? owners_->memory_bytes() : 0) +
         free_.capacity() * sizeof(std::uint32_t);
}

}  // namespace sfctr
