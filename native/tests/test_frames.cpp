// Frames against plain twins: what is pinned stays, who leaves first, and what the budget is told; and the budget
// alone.
#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <vector>

#include "check.h"
#include "sfctr/budget.h"
#include "sfctr/frames.h"
#include "sfctr/place.h"

namespace {

using sfctr::Budget;
using sfctr::Frames;
using sfctr::Owner;
using sfctr::Place;
using sfctr::Policy;

constexpr std::size_t kRecordBytes = 8, kPlain = kRecordBytes + 4, kOwned = kPlain + 12;
using Victims = std::vector<std::uint32_t>;

std::uint64_t never(const Owner&) { return 0; }

// Frames 0, 1 ... of keys 100, 101 ..., owners kept.
struct Taken {
  explicit Taken(std::uint32_t count, Policy policy = Policy::kLru) : frames(kRecordBytes, policy, budget) {
    frames.keep_owners();
    for (std::uint32_t i = 0; i < count; ++i) {
      CHECK(frames.take() == i);
      frames.set_owner(i, {100 + i, i % 3});
    }
  }
  std::shared_ptr<Budget> budget = std::make_shared<Budget>();
  Frames frames;
};

void the_budget_counts_what_it_gives() {
  Budget budget(100);
  CHECK(budget.bounded() && budget.try_take_frame(60) && !budget.try_take_frame(41) && budget.try_take_frame(40));
  CHECK(budget.used() == 100 && !budget.is_over());
  budget.take_keys(2);
  CHECK(budget.is_over() && budget.index_bytes() == 48 && budget.frame_bytes() == 100 && !budget.try_take_frame(0));
  budget.give_frame(48);
  CHECK(!budget.is_over());
  budget.require_index(2);
  CHECK_THROWS(sfctr::IndexOutgrown, budget.require_index(3));
  budget.give_keys(2);
  budget.give_frame(52);
  CHECK(budget.used() == 0);
  budget.take_frame(1000);
  CHECK(budget.is_over());
}

void buffers_count_where_they_are_a_small_part() {
  Budget budget(800);
  CHECK(budget.take_buffers(101) == 0 && budget.used() == 0);
  CHECK(budget.take_buffers(100) == 100 && budget.used() == 100);
  CHECK(budget.try_take_frame(700) && !budget.try_take_frame(1));
  budget.give_buffers(100);
  CHECK(budget.used() == 700);
  budget.spare_for_keys();
  CHECK(budget.spare() == 12 && !budget.try_take_frame(89) && budget.try_take_frame(88));
  Budget unbounded;
  CHECK(unbounded.take_buffers(5) == 0 && unbounded.used() == 0);
}

void a_budget_without_a_bound_is_never_over() {
  Budget budget;
  CHECK(!budget.bounded() && budget.try_take_frame(std::numeric_limits<std::uint64_t>::max()));
  budget.take_keys(10);
  budget.require_index(std::uint64_t{1} << 40);
  CHECK(!budget.is_over() && budget.used() == 240);
}

void a_place_is_one_of_four_things() {
  CHECK(Place::none().is_none() && !Place::none().is_in_ram() && !Place::none().is_on_disk());
  CHECK(!Place::none().is_provisional());
  for (const std::uint32_t number : {0u, 1u, Place::kMostFrames - 1}) {
    const Place ram = Place::in_ram(number), fresh = Place::provisional(number), disk = Place::on_disk(number);
    CHECK(ram.is_in_ram() && !ram.is_provisional() && !ram.is_on_disk() && !ram.is_none() && ram.frame() == number);
    CHECK(fresh.is_in_ram() && fresh.is_provisional() && !fresh.is_none() && fresh.frame() == number);
    CHECK(disk.is_on_disk() && !disk.is_in_ram() && !disk.is_provisional() && disk.location() == number);
    CHECK(Place::from_bits(fresh.bits()).frame() == number);
  }
  const Place last = Place::on_disk(Place::kMostLocations - 1);
  CHECK(last.is_on_disk() && !last.is_none() && last.location() == Place::kMostLocations - 1);
  CHECK(Place::on_disk(Place::kMostLocations).is_none());  // so this location may not be used
}

void frames_are_taken_while_the_budget_lasts() {
  const auto budget = std::make_shared<Budget>(3 * kPlain + 5);
  {
    Frames frames(kRecordBytes, Policy::kLru, budget);
    for (std::uint32_t i = 0; i < 3; ++i) CHECK(frames.take() == i);
    CHECK(frames.take() == Frames::kNone && budget->used() == 3 * kPlain && frames.num_taken() == 3);
    frames.give(1);
    frames.give(0);
    CHECK(budget->used() == 3 * kPlain && frames.num_taken() == 1);
    CHECK(frames.take() == 0 && frames.take() == 1 && frames.take() == Frames::kNone);
    CHECK(frames.take_beyond() == 3 && budget->is_over());
    frames.keep_owners();
    CHECK(budget->used() == 4 * kOwned && frames.frame_bytes() == kOwned);
  }
  CHECK(budget->used() == 0);
}

void a_record_and_an_owner_stay_where_they_are() {
  Taken taken(5000);
  for (std::uint32_t i = 0; i < 5000; ++i) taken.frames.record(i)[1] = static_cast<float>(i);
  for (std::uint32_t i = 0; i < 5000; i += 2) taken.frames.give(i);
  for (std::uint32_t i = 1; i < 5000; i += 2) {
    CHECK(taken.frames.record(i)[1] == static_cast<float>(i));
    CHECK(taken.frames.owner(i).key == 100 + i && taken.frames.owner(i).table == i % 3);
  }
}

// The hand starts at frame 1 and passes over what is pinned; a row used since it last passed has one chance.
void lru_victims_worked_by_hand() {
  Taken taken(6);
  taken.frames.pin(1);
  for (const std::uint32_t used : {2, 3}) taken.frames.note_use(used);
  CHECK(taken.frames.choose(2, never) == (Victims{4, 5}));  // 2 and 3 lose their marks
  CHECK(taken.frames.choose(2, never) == (Victims{0, 2}));
  taken.frames.note_use(3);
  CHECK(taken.frames.choose(9, never) == (Victims{4, 5, 0, 2, 3}));  // all but the pinned one, 3 in the second round
  CHECK(taken.frames.unpin(1) == 0);
  CHECK(taken.frames.choose(1, never) == (Victims{3}));
  for (const std::uint32_t frame : {4, 5, 0}) taken.frames.give(frame);
  CHECK(taken.frames.choose(9, never) == (Victims{1, 2, 3}));
}

// A mark of n is halved until 0: after 1, 2, 3, 4 passes for marks of 1, 2, 4, 8 and more.
void lfu_victims_worked_by_hand() {
  Taken taken(6, Policy::kLfu);
  const int uses[] = {1, 2, 5, 9, 100, 0};
  for (std::uint32_t frame = 0; frame < 6; ++frame) {
    for (int i = 0; i < uses[frame]; ++i) taken.frames.note_use(frame);
  }
  CHECK(taken.frames.choose(1, never) == (Victims{5}));
  CHECK(taken.frames.choose(2, never) == (Victims{5, 0}));  // marks are now 0, 0, 1, 2, 3
  CHECK(taken.frames.choose(6, never) == (Victims{1, 5, 0, 2, 3, 4}));
}

void known_rows_leave_after_unknown_ones_and_the_farthest_first() {
  Taken taken(6);
  const std::map<std::uint64_t, std::uint64_t> uses{{100, 7}, {101, 9}, {102, 7}, {104, 12}};
  const auto next_use = [&](const Owner& owner) {
    const auto found = uses.find(owner.key);
    return found == uses.end() ? 0 : found->second;
  };
  taken.frames.note_use(3);
  CHECK(taken.frames.choose(6, next_use) == (Victims{5, 3, 4, 1, 0, 2}));
  CHECK(taken.frames.choose(3, next_use) == (Victims{3, 5, 4}));
  taken.frames.pin(4);
  CHECK(taken.frames.choose(3, next_use) == (Victims{3, 5, 1}));
}

void the_tail_ends_at_the_first_pin_and_shrinks_when_free() {
  const auto budget = std::make_shared<Budget>(10 * kOwned);
  Frames frames(kRecordBytes, Policy::kLru, budget);
  frames.keep_owners();
  for (std::uint32_t i = 0; i < 10; ++i) frames.set_owner(frames.take(), {i, 0});
  frames.give(8);
  frames.give(2);
  frames.pin(5);
  CHECK(frames.tail(3) == (Victims{9, 7}) && frames.tail(1) == (Victims{9}) && frames.tail(0).empty());
  CHECK(frames.tail(100) == (Victims{9, 7, 6}));
  frames.shrink(3);  // 9 is taken
  CHECK(frames.end() == 10);
  for (const std::uint32_t frame : {9, 7, 6}) frames.give(frame);
  frames.shrink(3);
  CHECK(frames.end() == 7 && budget->used() == 7 * kOwned);
  frames.shrink(100);
  CHECK(frames.end() == 6 && frames.num_taken() == 5);
  CHECK(frames.take() == 2 && frames.take() == 6);  // the free frames that went are not given out
  CHECK(frames.record(6) != nullptr && frames.num_pins(6) == 0 && frames.num_pins(5) == 1);
}

// Against sets: no frame is given twice, none beyond the budget, victims are unpinned, different and as many as there
// are.
void random_schedule(std::uint32_t seed, Policy policy) {
  std::mt19937 random(seed);
  const std::size_t most = 1 + random() % 60;
  const auto budget = std::make_shared<Budget>(most * kOwned);
  Frames frames(kRecordBytes, policy, budget);
  frames.keep_owners();
  std::map<std::uint32_t, std::uint32_t> pins;  // of those taken
  for (int step = 0; step < 3000; ++step) {
    const auto any = [&] {
      return std::next(pins.begin(), static_cast<std::ptrdiff_t>(random() % pins.size()))->first;
    };
    switch (random() % 8) {
      case 0:
      case 1: {
        const std::uint32_t frame = frames.take();
        CHECK((frame == Frames::kNone) == (pins.size() == most));
        if (frame == Frames::kNone) break;
        CHECK(pins.emplace(frame, 0).second && frames.num_pins(frame) == 0);
        frames.set_owner(frame, {frame + 1000u, 1});
        break;
      }
      case 2:
        if (pins.empty()) break;
        {
          const std::uint32_t frame = any();
          frames.pin(frame);
          ++pins[frame];
        }
        break;
      case 3:
        if (!pins.empty()) frames.note_use(any());
        break;
      case 4: {
        const std::size_t wanted = random() % 10;
        std::size_t unpinned = 0;
        for (const auto& [frame, count] : pins) unpinned += count == 0;
        const auto victims = frames.choose(wanted, [](const Owner& owner) { return owner.key % 3; });
        CHECK(victims.size() == std::min(wanted, unpinned));
        CHECK(std::set(victims.begin(), victims.end()).size() == victims.size());
        for (const std::uint32_t victim : victims) {
          CHECK(pins.at(victim) == 0 && frames.owner(victim).key == victim + 1000u);
          if (random() % 2 == 0) continue;
          frames.give(victim);
          pins.erase(victim);
        }
        break;
      }
      case 5: {
        const auto tail = frames.tail(random() % 5);
        for (const std::uint32_t frame : tail) {
          CHECK(pins.at(frame) == 0);
          frames.give(frame);
          pins.erase(frame);
        }
        frames.shrink(random() % 5);
        CHECK(pins.empty() || frames.end() > pins.rbegin()->first);
        CHECK(budget->used() == frames.end() * kOwned);
        break;
      }
      default:
        if (pins.empty()) break;
        const std::uint32_t frame = any();
        CHECK(frames.num_pins(frame) == pins[frame]);
        if (pins[frame] > 0) CHECK(frames.unpin(frame) == --pins[frame]);
    }
    CHECK(frames.num_taken() == pins.size());
  }
}

}  // namespace

int main() {
  the_budget_counts_what_it_gives();
  buffers_count_where_they_are_a_small_part();
  a_budget_without_a_bound_is_never_over();
  a_place_is_one_of_four_things();
  frames_are_taken_while_the_budget_lasts();
  a_record_and_an_owner_stay_where_they_are();
  lru_victims_worked_by_hand();
  lfu_victims_worked_by_hand();
  known_rows_leave_after_unknown_ones_and_the_farthest_first();
  the_tail_ends_at_the_first_pin_and_shrinks_when_free();
  for (std::uint32_t seed = 0; seed < 20; ++seed) {
    for (const Policy policy : {Policy::kLru, Policy::kLfu}) random_schedule(seed, policy);
  }
}
