// Rows in doubly linked lists, each row in one of them or in none: the orders of use that caches keep.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace sfctr {

class RowLists {
 public:
  RowLists(std::size_t num_rows, std::size_t num_lists) : num_rows_(num_rows), links_(num_rows + num_lists) {
    for (std::size_t list = 0; list < num_lists; ++list) links_[num_rows + list] = {head(list), head(list)};
  }

  bool contains(std::uint32_t row) const { return links_[row].next != kNone; }
  bool is_empty(std::size_t list) const { return links_[head(list)].next == head(list); }
  // REQUIRES: the list is not empty.
  std::uint32_t front(std::size_t list) const { return links_[head(list)].next; }

  // REQUIRES: the row is in no list.
  void append(std::size_t list, std::uint32_t row) {
    const std::uint32_t end = head(list), last = links_[end].previous;
    links_[row] = {last, end};
    links_[last].next = links_[end].previous = row;
  }

  // REQUIRES: the row is in a list.
  void remove(std::uint32_t row) {
    const Link link = links_[row];
    links_[link.previous].next = link.next;
    links_[link.next].previous = link.previous;
    links_[row] = {kNone, kNone};
  }

 private:
  static constexpr std::uint32_t kNone = 0xFFFFFFFF;
  struct Link {
    std::uint32_t previous = kNone, next = kNone;
  };

  // A list is a ring through an entry of its own after those of the rows.
  std::uint32_t head(std::size_t list) const { return static_cast<std::uint32_t>(num_rows_ + list); }

  std::size_t num_rows_;
  std::vector<Link> links_;
};

}  // namespace sfctr
