#include "sfctr/frames.h"

#include <algorithm>
#include <stdexcept>

#include "sfctr/place.h"

namespace sfctr {

Frames::Frames(std::size_t record_bytes, Policy policy, std::shared_ptr<Budget> budget)
    : budget_(std::move(budget)), records_(record_bytes), clock_(policy), frame_bytes_(record_bytes + Clock::kBytes) {}

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
  clock_.grow();
  if (owners_) owners_->grow();
  return use(frame);
}

std::uint32_t Frames::use(std::uint32_t frame) {
  clock_.take(frame);
  ++num_taken_;
  return frame;
}

void Frames::give(std::uint32_t frame) {
  clock_.give(frame);
  free_.push_back(frame);
  --num_taken_;
}

void Frames::set_owner(std::uint32_t frame, Owner owner) {
  if (owners_) *reinterpret_cast<Owner*>(owners_->at(frame)) = owner;
}

void Frames::keep_owners() {
  auto owners = std::make_unique<Slab>(sizeof(Owner));
  while (owners->end() < end()) owners->grow();
  owners_ = std::move(owners);
  budget_->take_frame(end() * sizeof(Owner));
  frame_bytes_ += sizeof(Owner);
}

Owner Frames::owner(std::uint32_t frame) const { return *reinterpret_cast<const Owner*>(owners_->at(frame)); }

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
  std::erase_if(free_, [&](std::uint32_t frame) { return frame >= last; });
  records_.truncate(last);
  clock_.truncate(last);
  if (owners_) owners_->truncate(last);
}

std::size_t Frames::memory_bytes() const {
  return records_.memory_bytes() + clock_.memory_bytes() + (owners_ ? owners_->memory_bytes() : 0) +
         free_.capacity() * sizeof(std::uint32_t);
}

}  // namespace sfctr
