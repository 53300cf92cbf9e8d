// Stack distances by the marks of last uses on a line of time, counted by a Fenwick tree (Bennett and Kruskal 1975,
// Fenwick 1994). The tree has an entry for each 64 marks, which lie in one word, and the line is drawn anew when it is
// full: so both stay small enough for a cache, however long the sequence is.
#include "sfctr/reuse.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <stdexcept>
#include <string>

namespace sfctr {
namespace {

class MarkedTimes {
 public:
  // Room for at least twice the rows, so that a compaction is paid for by as many accesses as it has marks to move.
  explicit MarkedTimes(std::size_t num_rows)
      : num_words_(num_rows / 32 + 1), words_(num_words_), sums_(num_words_ + 1) {
    row_at_.resize(size());
  }

  std::size_t size() const { return num_words_ * 64; }
  std::uint32_t row_at(std::size_t time) const { return row_at_[time]; }

  void mark(std::size_t time, std::uint32_t row) {
    words_[time / 64] |= std::uint64_t{1} << (time % 64);
    row_at_[time] = row;
    ++num_marks_;
    for (std::size_t i = time / 64 + 1; i <= num_words_; i += i & -i) ++sums_[i];
  }

  void unmark(std::size_t time) {
    words_[time / 64] &= ~(std::uint64_t{1} << (time % 64));
    --num_marks_;
    for (std::size_t i = time / 64 + 1; i <= num_words_; i += i & -i) --sums_[i];
  }

  std::size_t marks_from(std::size_t time) const {
    const std::uint64_t before = words_[time / 64] & ((std::uint64_t{1} << (time % 64)) - 1);
    std::size_t sum = static_cast<std::size_t>(std::popcount(before));
    for (std::size_t i = time / 64; i > 0; i -= i & -i) sum += sums_[i];
    return num_marks_ - sum;
  }

  // Moves the marks to the times from 0 on, in order. Returns how many there are.
  std::size_t compact() {
    std::size_t count = 0;
    for (std::size_t w = 0; w < num_words_; ++w) {
      for (std::uint64_t word = words_[w]; word != 0; word &= word - 1) {
        row_at_[count++] = row_at_[w * 64 + static_cast<std::size_t>(std::countr_zero(word))];
      }
    }
    std::ranges::fill(words_, 0);
    std::ranges::fill(sums_, 0);
    num_marks_ = 0;
    for (std::size_t time = 0; time < count; ++time) mark(time, row_at_[time]);
    return count;
  }

 private:
  std::size_t num_words_;
  std::size_t num_marks_ = 0;
  std::vector<std::uint64_t> words_;
  std::vector<std::uint32_t> sums_;  // a Fenwick tree of the words' marks, from 1
  std::vector<std::uint32_t> row_at_;
};

}  // namespace

const Accesses& checked(const Accesses& accesses) {
  const std::size_t size = accesses.rows.size();
  if (size >= kNever || accesses.num_rows >= kNever) throw std::invalid_argument("accesses and rows may be 2^32 - 2");
  const auto& begin = accesses.batch_begin;
  if (begin.empty() || begin.front() != 0 || begin.back() != static_cast<std::int64_t>(size)) {
    throw std::invalid_argument("batch_begin must run from 0 to " + std::to_string(size) + ", the number of accesses");
  }
  if (!std::ranges::is_sorted(begin)) throw std::invalid_argument("batch_begin falls");
  const auto outside = std::ranges::find_if(accesses.rows, [&](std::uint32_t row) { return row >= accesses.num_rows; });
  if (outside != accesses.rows.end()) {
    throw std::invalid_argument("row " + std::to_string(*outside) + " is not below num_rows, " +
                                std::to_string(accesses.num_rows));
  }
  return accesses;
}

std::vector<std::uint32_t> next_uses(const Accesses& accesses) {
  std::vector<std::uint32_t> next(accesses.rows.size()), coming(accesses.num_rows, kNever);
  for (std::size_t time = next.size(); time-- > 0;) {
    next[time] = coming[accesses.rows[time]];
    coming[accesses.rows[time]] = static_cast<std::uint32_t>(time);
  }
  return next;
}

std::vector<std::uint32_t> use_counts(const Accesses& accesses) {
  std::vector<std::uint32_t> counts(accesses.num_rows, 0);
  for (const std::uint32_t row : accesses.rows) ++counts[row];
  return counts;
}

namespace {

// Calls visit(batch, previous) for every access, with the batch that its row was used in before, or kNever.
template <class Visit>
void with_previous_batch(const Accesses& accesses, Visit visit) {
  std::vector<std::uint32_t> last(accesses.num_rows, kNever);
  std::size_t time = 0;
  for (std::size_t batch = 0; batch + 1 < accesses.batch_begin.size(); ++batch) {
    for (; time < static_cast<std::size_t>(accesses.batch_begin[batch + 1]); ++time) {
      std::uint32_t& previous = last[accesses.rows[time]];
      visit(batch, previous);
      previous = static_cast<std::uint32_t>(batch);
    }
  }
}

}  // namespace

std::vector<std::uint64_t> gap_counts(const Accesses& accesses) {
  std::vector<std::uint64_t> counts(accesses.batch_begin.size() - 1, 0);
  with_previous_batch(accesses, [&](std::size_t batch, std::uint32_t previous) {
    if (previous != kNever) ++counts[batch - previous];
  });
  return counts;
}

// An access is the first of its row in the stretches that begin after the batch of the previous use, no later than its
// own batch, and no more than `window` before it: steps holds where these begin and end.
std::vector<std::int64_t> rows_ahead(const Accesses& accesses, std::size_t window) {
  const std::size_t num_batches = accesses.batch_begin.size() - 1;
  std::vector<std::int64_t> steps(num_batches + 1, 0);
  with_previous_batch(accesses, [&](std::size_t batch, std::uint32_t previous) {
    const std::size_t reached = batch - std::min(batch, window);
    ++steps[previous == kNever ? reached : std::max<std::size_t>(reached, previous + 1)];
    --steps[batch + 1];
  });
  steps.pop_back();
  std::inclusive_scan(steps.begin(), steps.end(), steps.begin());
  return steps;
}

std::vector<std::uint64_t> stack_distance_counts(const Accesses& accesses) {
  std::vector<std::uint64_t> counts(accesses.num_rows + 1, 0);
  std::vector<std::uint32_t> last(accesses.num_rows, kNever);  // a row's mark
  MarkedTimes times(accesses.num_rows);
  std::size_t now = 0;
  for (const std::uint32_t row : accesses.rows) {
    if (now == times.size()) {
      now = times.compact();
      for (std::size_t time = 0; time < now; ++time) last[times.row_at(time)] = static_cast<std::uint32_t>(time);
    }
    std::size_t distance = 0;
    if (last[row] != kNever) {
      distance = times.marks_from(last[row]);
      times.unmark(last[row]);
    }
    ++counts[distance];
    times.mark(now, row);
    last[row] = static_cast<std::uint32_t>(now++);
  }
  return counts;
}

}  // namespace sfctr
