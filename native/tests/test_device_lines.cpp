// Lines: taken within the bound, filled and emptied, chosen by use, given back from the end.
#include <memory>
#include <vector>

#include "check.h"
#include "sfctr/device_lines.h"

namespace {

using sfctr::DeviceLines;

constexpr std::uint64_t kManyBytes = 1 << 20;

std::uint32_t filled(DeviceLines& lines, std::uint32_t frame) {
  const std::uint32_t line = lines.take();
  lines.reserve(1);
  lines.fill(line, frame, {frame + 100, 0});
  return line;
}

void a_line_is_found_by_its_frame_while_it_is_full() {
  DeviceLines lines(4, sfctr::Policy::kLru, std::make_shared<sfctr::Budget>());
  const std::uint32_t line = filled(lines, 7);
  CHECK(lines.find(7) == line);
  CHECK(lines.frame(line) == 7);
  const std::vector<std::uint64_t> frames{3, 7};
  std::vector<std::uint32_t> found(2);
  lines.find(frames, found.data());
  CHECK(found[0] == DeviceLines::kNone && found[1] == line);
  CHECK(lines.empty(line) == 7);
  CHECK(lines.find(7) == DeviceLines::kNone);
  CHECK(!lines.is_full(line));
}

void no_line_is_taken_beyond_the_bound() {
  DeviceLines lines(2, sfctr::Policy::kLru, std::make_shared<sfctr::Budget>());
  const std::uint32_t first = lines.take();
  CHECK(lines.take() != DeviceLines::kNone);
  CHECK(lines.take() == DeviceLines::kNone);
  lines.give(first);
  lines.set_bound(1);
  CHECK(lines.take() == DeviceLines::kNone);
  lines.set_bound(5);
  CHECK(lines.take() == first);
}

void dirty_lines_are_counted_once() {
  DeviceLines lines(2, sfctr::Policy::kLru, std::make_shared<sfctr::Budget>());
  const std::uint32_t line = filled(lines, 0);
  for (int i = 0; i < 2; ++i) lines.set_dirty(line, true);
  CHECK(lines.num_dirty() == 1 && lines.is_dirty(line));
  lines.set_dirty(line, false);
  CHECK(lines.num_dirty() == 0 && !lines.is_dirty(line));
}

void a_pinned_row_stays_and_what_is_used_latest_goes_last() {
  DeviceLines lines(4, sfctr::Policy::kLru, std::make_shared<sfctr::Budget>());
  const std::uint32_t pinned = filled(lines, 0), soon = filled(lines, 1), late = filled(lines, 2),
                      unknown = filled(lines, 3);
  lines.pin(pinned);
  const auto next_use = [&](const sfctr::Owner& owner) -> std::uint64_t {
    return owner.key == 101 ? 1 : owner.key == 102 ? 2 : 0;
  };
  CHECK((lines.choose(2, next_use) == std::vector{unknown, late}));
  CHECK((lines.choose(9, next_use) == std::vector{unknown, late, soon}));
}

void what_is_kept_about_lines_counts_as_ram_and_is_given_back_from_the_end() {
  const auto budget = std::make_shared<sfctr::Budget>(kManyBytes);
  {
    DeviceLines lines(3, sfctr::Policy::kLfu, budget);
    const std::uint32_t first = lines.take(), second = lines.take(), third = lines.take();
    const std::uint64_t of_three = budget->used();
    CHECK(of_three > 0);
    lines.give(second);
    lines.set_bound(1);
    lines.shrink();
    CHECK(budget->used() == of_three);  // the last one is in use
    lines.give(third);
    lines.shrink();
    CHECK(budget->used() == of_three / 3 && lines.end() == 1);
    lines.set_bound(3);
    CHECK(lines.take() == second && !lines.is_full(second));
    CHECK(lines.num_taken() == 2);
    lines.give(first);
  }
  CHECK(budget->used() == 0);
}

}  // namespace

int main() {
  a_line_is_found_by_its_frame_while_it_is_full();
  no_line_is_taken_beyond_the_bound();
  dirty_lines_are_counted_once();
  a_pinned_row_stays_and_what_is_used_latest_goes_last();
  what_is_kept_about_lines_counts_as_ram_and_is_given_back_from_the_end();
}
