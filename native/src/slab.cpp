#include "sfctr/slab.h"

#include <algorithm>
#include <limits>
#include <stdexcept>

namespace sfctr {

Slab::Slab(std::size_t record_bytes)
    : record_bytes_(record_bytes),
      first_bits_(std::bit_width(std::max<std::size_t>(1, kFirst / record_bytes)) - 1),
      largest_bits_(std::bit_width(std::max<std::size_t>(1, kLargest / record_bytes)) - 1),
      first_rows_(std::uint64_t{1} << first_bits_),
      doubling_slots_((std::uint64_t{2} << largest_bits_) - first_rows_),
      num_doubling_(static_cast<std::size_t>(largest_bits_ - first_bits_) + 1) {}

std::size_t Slab::rows_of_chunk(std::size_t chunk) const {
  return std::size_t{1} << std::min(first_bits_ + static_cast<int>(std::min<std::size_t>(chunk, 63)), largest_bits_);
}

void Slab::add_chunk() {
  const std::size_t num_rows = rows_of_chunk(pages_.size());
  chunks_.reserve(pages_.size() + 1);
  pages_.emplace_back(num_rows * record_bytes_);
  chunks_.push_back(pages_.back().data());
  room_ += num_rows;
}

void Slab::fix() {
  const std::uint64_t beyond = (std::uint64_t{std::numeric_limits<std::uint32_t>::max()} >> largest_bits_) + 1;
  chunks_.reserve(num_doubling_ + beyond);
}

std::uint32_t Slab::grow() {
  if (end_ == std::numeric_limits<std::uint32_t>::max()) throw std::length_error("a table holds at most 2^32 - 1 rows");
  if (end_ == room_) add_chunk();
  return end_++;
}

void Slab::truncate(std::uint32_t end) {
  end_ = end;
  while (!pages_.empty() && room_ - rows_of_chunk(pages_.size() - 1) >= end) {
    room_ -= rows_of_chunk(pages_.size() - 1);
    pages_.pop_back();
    chunks_.pop_back();
  }
  if (pages_.empty()) return;
  const std::uint64_t first = room_ - rows_of_chunk(pages_.size() - 1);
  pages_.back().release_from((end - first) * record_bytes_);
}

std::size_t Slab::memory_bytes() const {
  std::size_t touched = chunks_.capacity() * sizeof(std::byte*);
  std::uint64_t rows = end_;
  for (std::size_t chunk = 0; chunk < pages_.size(); ++chunk) {
    const std::uint64_t here = std::min<std::uint64_t>(rows, rows_of_chunk(chunk));
    const std::size_t page = pages_[chunk].num_bytes() >= kHugePage ? kHugePage : 4096;
    touched += std::min(pages_[chunk].num_bytes(), (here * record_bytes_ + page - 1) / page * page);
    rows -= here;
  }
  return touched;
}

}  // namespace sfctr
