// Rows packed into records and picked again are the rows of the columns; so are the items of ragged ones.
#include <cstring>
#include <random>
#include <vector>

#include "check.h"
#include "sfctr/gather.h"
#include "sfctr/records.h"

namespace {

constexpr std::size_t kRecord = 8 + 12 + 1 + 4;

const std::byte* bytes(const void* at) { return static_cast<const std::byte*>(at); }
std::byte* bytes(void* at) { return static_cast<std::byte*>(at); }

void picked_records_are_rows_of_the_columns(std::size_t rows, std::size_t picked) {
  std::mt19937_64 random(rows);
  std::vector<std::uint64_t> keys(rows), out_keys(picked);
  std::vector<float> vectors(rows * 3), out_vectors(picked * 3), numbers(rows), out_numbers(picked);
  std::vector<std::uint8_t> marks(rows), out_marks(picked);
  for (std::size_t i = 0; i < rows; ++i) {
    keys[i] = random();
    numbers[i] = static_cast<float>(i);
    marks[i] = static_cast<std::uint8_t>(random());
  }
  for (float& value : vectors) value = static_cast<float>(random() % 1000);

  const sfctr::Field fields[] = {{0, 8}, {8, 12}, {20, 1}, {21, 4}};
  const std::byte* columns[] = {bytes(keys.data()), bytes(vectors.data()), bytes(marks.data()), bytes(numbers.data())};
  std::vector<std::byte> records(rows * kRecord);
  sfctr::pack_records(columns, fields, kRecord, rows, records.data());

  const std::size_t half = rows / 2;  // two pieces: the records before it, and those from it on
  const std::byte* pieces[] = {records.data(), records.data() + half * kRecord};
  std::vector<std::uint32_t> which(picked), where(picked), source(picked);
  for (std::size_t i = 0; i < picked; ++i) {
    source[i] = static_cast<std::uint32_t>(random() % rows);
    which[i] = source[i] >= half;
    where[i] = which[i] ? source[i] - static_cast<std::uint32_t>(half) : source[i];
  }
  std::byte* outs[] = {bytes(out_keys.data()), bytes(out_vectors.data()), bytes(out_marks.data()),
                       bytes(out_numbers.data())};
  sfctr::gather_records(pieces, kRecord, {which, where}, fields, outs);
  for (std::size_t i = 0; i < picked; ++i) {
    CHECK(out_keys[i] == keys[source[i]] && out_marks[i] == marks[source[i]] && out_numbers[i] == numbers[source[i]]);
    CHECK(std::memcmp(&out_vectors[3 * i], &vectors[3 * source[i]], 12) == 0);
  }
}

void picked_lists_are_rows_of_the_pieces() {
  const std::vector<std::uint64_t> first = {1, 2, 3}, second = {9, 8, 7, 6};
  const std::vector<std::int64_t> first_offsets = {0, 2, 2, 3},
                                  second_offsets = {1, 4};  // a piece may begin in the middle
  const std::int64_t* offsets[] = {first_offsets.data(), second_offsets.data()};
  const std::byte* items[] = {bytes(first.data()), bytes(second.data())};
  const std::vector<std::uint32_t> which = {1, 0, 0, 0}, where = {0, 1, 2, 0};
  std::vector<std::int64_t> bounds(5);
  sfctr::gather_offsets(offsets, {which, where}, bounds);
  CHECK((bounds == std::vector<std::int64_t>{0, 3, 3, 4, 6}));
  std::vector<std::uint64_t> out(6);
  sfctr::gather_items(items, offsets, 8, {which, where}, bounds, bytes(out.data()));
  CHECK((out == std::vector<std::uint64_t>{8, 7, 6, 3, 1, 2}));
}

}  // namespace

int main() {
  picked_records_are_rows_of_the_columns(1, 1);
  picked_records_are_rows_of_the_columns(63, 200);
  picked_records_are_rows_of_the_columns(1000, 129);
  picked_lists_are_rows_of_the_pieces();
}
