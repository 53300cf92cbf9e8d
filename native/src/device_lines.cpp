#include "sfctr/device_lines.h"

#include <cassert>
#include <utility>

namespace sfctr {

DeviceLines::DeviceLines(std::size_t num_lines, Policy policy, std::shared_ptr<Budget> budget)
    : num_lines_(num_lines), budget_(std::move(budget)), clock_(policy), contents_(sizeof(Content)) {}

DeviceLines::~DeviceLines() { budget_->give_frame(end() * kBytes); }

std::uint32_t DeviceLines::take() {
  if (num_taken_ >= bound()) return kNone;
  if (free_.empty()) add();
  const std::uint32_t line = free_.back();
  free_.pop_back();
  clock_.take(line);
  ++num_taken_;
  return line;
}

// One more free line. The list of those has room for all lines, so that giving one cannot fail.
void DeviceLines::add() {
  const std::uint32_t line = end();
  if (free_.capacity() <= line) free_.reserve(2 * std::size_t{line} + 1);
  clock_.grow();
  try {
    contents_.grow();
  } catch (...) {
    clock_.truncate(line);
    throw;
  }
  content(line) = {0, 0, kNone, false};
  budget_->take_frame(kBytes);
  free_.push_back(line);
}

void DeviceLines::give(std::uint32_t line) noexcept {
  assert(!is_full(line) && num_pins(line) == 0);
  clock_.give(line);
  free_.push_back(line);
  --num_taken_;
}

void DeviceLines::shrink() {
  std::uint32_t last = end();
  while (last > bound() && !clock_.is_taken(last - 1)) --last;
  if (last == end()) return;
  budget_->give_frame((end() - last) * kBytes);
  std::erase_if(free_, [&](std::uint32_t line) { return line >= last; });
  contents_.truncate(last);
  clock_.truncate(last);
}

void DeviceLines::fill(std::uint32_t line, std::uint32_t frame, Owner owner) {
  assert(!is_full(line));
  of_frame_.insert(frame, line);
  content(line) = {owner.key, owner.table, frame, false};
}

std::uint32_t DeviceLines::empty(std::uint32_t line) {
  assert(is_full(line) && !is_dirty(line));
  const std::uint32_t frame = std::exchange(content(line).frame, kNone);
  of_frame_.erase(frame);
  return frame;
}

void DeviceLines::set_dirty(std::uint32_t line, bool dirty) {
  num_dirty_ = num_dirty_ - is_dirty(line) + dirty;
  content(line).dirty = dirty;
}

std::vector<std::uint32_t> DeviceLines::choose(std::size_t n, const Frames::NextUse& next_use) {
  return clock_.choose(n, [&](std::uint32_t line) {
    const Content& here = content(line);
    return next_use({here.key, here.table});
  });
}

std::size_t DeviceLines::memory_bytes() const {
  return clock_.memory_bytes() + contents_.memory_bytes() + free_.capacity() * sizeof(std::uint32_t) +
         of_frame_.memory_bytes();
}

}  // namespace sfctr
