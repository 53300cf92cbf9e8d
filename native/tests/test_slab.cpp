// Records stay where they are, whatever is allocated and freed around them.
#include <cstring>
#include <vector>

#include "check.h"
#include "sfctr/slab.h"

namespace {

void records_never_move_and_never_overlap(std::size_t record_bytes, std::uint32_t num_records) {
  sfctr::Slab slab(record_bytes);
  std::vector<std::byte*> places;
  for (std::uint32_t i = 0; i < num_records; ++i) {
    CHECK(slab.grow() == i);
    places.push_back(slab.at(i));
    std::memset(places.back(), static_cast<int>(i % 251), record_bytes);
  }
  CHECK(slab.end() == num_records);
  for (std::uint32_t i = 0; i < num_records; ++i) {
    CHECK(slab.at(i) == places[i]);
    CHECK(places[i][0] == static_cast<std::byte>(i % 251) && places[i][record_bytes - 1] == places[i][0]);
  }
  CHECK(slab.memory_bytes() >= record_bytes * num_records);
  CHECK(slab.memory_bytes() <= record_bytes * num_records * 101 / 100 + 3 * sfctr::kHugePage);
}

void a_truncated_slab_gives_back_its_memory_and_grows_again() {
  sfctr::Slab slab(1000);
  for (int i = 0; i < 100'000; ++i) std::memset(slab.at(slab.grow()), 7, 1000);
  std::byte* const kept = slab.at(20'000);
  slab.truncate(20'001);
  CHECK(slab.end() == 20'001 && slab.memory_bytes() <= 20'001 * 1000 + 2 * sfctr::kHugePage);
  CHECK(slab.at(20'000) == kept && kept[999] == std::byte{7});
  CHECK(slab.grow() == 20'001);
  std::memset(slab.at(20'001), 8, 1000);
  CHECK(slab.at(20'000)[0] == std::byte{7});
  slab.truncate(0);
  CHECK(slab.end() == 0 && slab.memory_bytes() < 4096 && slab.grow() == 0);
}

void a_slab_of_three_records_is_small() {
  sfctr::Slab slab(136);
  CHECK(slab.memory_bytes() == 0);
  for (int i = 0; i < 3; ++i) slab.grow();
  CHECK(slab.memory_bytes() <= 4200);
}

}  // namespace

int main() {
  records_never_move_and_never_overlap(4, 1000);
  records_never_move_and_never_overlap(68, 300'000);
  records_never_move_and_never_overlap(1028, 200'000);  // beyond the doubling chunks
  records_never_move_and_never_overlap(100'000, 50);
  a_truncated_slab_gives_back_its_memory_and_grows_again();
  a_slab_of_three_records_is_small();
}
