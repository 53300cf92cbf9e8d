#include "sfctr/clock.h"

#include <algorithm>

namespace sfctr {

std::uint32_t Clock::grow() {
  const std::uint32_t place = metas_.grow();
  give(place);
  return place;
}

void Clock::truncate(std::uint32_t end) {
  metas_.truncate(end);
  if (hand_ >= end) hand_ = 0;
}

void Clock::note_use(std::uint32_t place) {
  Meta& here = meta(place);
  here.mark = policy_ == Policy::kLru ? 1 : static_cast<std::uint8_t>(std::min<int>(kMostMarks, here.mark + 1)) & 15;
}

void Clock::retag(std::uint8_t having, std::uint8_t drop, std::uint8_t add) {
  metas_.for_stretches([&](std::byte* records, std::size_t count) {
    Meta* const metas = reinterpret_cast<Meta*>(records);
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint8_t tags = metas[i].tags;
      metas[i].tags = static_cast<std::uint8_t>((tags & ~drop) | ((tags & having) != 0 ? add : 0));
    }
  });
}

// Whether the hand goes on; a mark that holds it off is used up by that.
bool Clock::pass_over(Meta& meta) const {
  if (meta.flags != kTaken || meta.pins != 0) return true;
  if (meta.mark == 0) return false;
  meta.mark = policy_ == Policy::kLru ? 0 : meta.mark >> 1 & 15;
  return true;
}

std::vector<std::uint32_t> Clock::choose(std::size_t n, const NextUse& next_use) {
  struct Later {
    std::uint64_t next_use;
    std::uint32_t place;
  };
  std::vector<std::uint32_t> victims;
  std::vector<Later> later;
  victims.reserve(std::min<std::size_t>(n, end()));
  const auto unmark = [&] {
    for (const Later& each : later) meta(each.place).flags = kTaken;
    for (const std::uint32_t place : victims) meta(place).flags = kTaken;
  };
  const std::uint64_t passes = policy_ == Policy::kLru ? 2 : 5;  // after so many no mark can be left
  for (std::uint64_t left = passes * end(); left > 0 && victims.size() < n; --left) {
    hand_ = hand_ + 1 < end() ? hand_ + 1 : 0;
    Meta& here = meta(hand_);
    if (pass_over(here)) continue;
    const std::uint64_t next = next_use(hand_);
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
    return a.next_use != b.next_use ? a.next_use > b.next_use : a.place < b.place;
  });
  for (std::size_t i = 0; i < later.size() && victims.size() < n; ++i) victims.push_back(later[i].place);
  return victims;
}

}  // namespace sfctr
