// A set of numbers below a bound that knows its least and its greatest: bits, and above them words that say which words
// below hold any (a tree of 64-fold branching, so four levels serve 16 million numbers).
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace sfctr {

class OrderedBits {
 public:
  explicit OrderedBits(std::size_t bound) {
    do {
      bound = (bound + 63) / 64;
      levels_.emplace_back(bound, 0);
    } while (bound > 1);
  }

  bool empty() const { return levels_.back().empty() || levels_.back()[0] == 0; }
  bool contains(std::size_t n) const { return levels_[0][n / 64] >> (n % 64) & 1; }

  void insert(std::size_t n) {
    for (std::vector<std::uint64_t>& level : levels_) {
      std::uint64_t& word = level[n / 64];
      const bool known_above = word != 0;
      word |= std::uint64_t{1} << (n % 64);
      if (known_above) return;
      n /= 64;
    }
  }

  void erase(std::size_t n) {
    for (std::vector<std::uint64_t>& level : levels_) {
      std::uint64_t& word = level[n / 64];
      word &= ~(std::uint64_t{1} << (n % 64));
      if (word != 0) return;
      n /= 64;
    }
  }

  // REQUIRES: not empty.
  std::size_t min() const {
    return descend([](std::uint64_t word) { return std::countr_zero(word); });
  }
  std::size_t max() const {
    return descend([](std::uint64_t word) { return 63 - std::countl_zero(word); });
  }

 private:
  template <class Choose>
  std::size_t descend(Choose choose) const {
    std::size_t n = 0;
    for (std::size_t level = levels_.size(); level-- > 0;)
      n = n * 64 + static_cast<std::size_t>(choose(levels_[level][n]));
    return n;
  }

  std::vector<std::vector<std::uint64_t>> levels_;  // the bits first
};

}  // namespace sfctr
