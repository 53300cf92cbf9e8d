// What the batches of one table asked for, kept so that caches can be replayed on it: one access for each distinct key
// of a batch, in order. The row of a missing value is a row like others.
//
// A log may keep a share of the keys only, chosen by hash (spatial sampling: Waldspurger et al., FAST 2015). It then
// holds every access to those keys and none to others, whenever the share was decided: halving a log later leaves what
// halving it before the first batch would have left. Rows are numbered by first appearance among those kept.
//
// One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "sfctr/index.h"

namespace sfctr {

class AccessLog {
 public:
  AccessLog() = default;
  AccessLog(AccessLog&&) = default;
  AccessLog& operator=(AccessLog&&) = default;
  AccessLog(const AccessLog&) = delete;  // said, because a vector of what cannot be copied claims that it can be
  AccessLog& operator=(const AccessLog&) = delete;

  // Adds a batch: its keys, and after them the row of a missing value where one was asked for.
  // REQUIRES: keys are distinct. Throws std::length_error at 2^32 - 2 accesses; nothing is then changed. Throws
  // std::bad_alloc, after which the log is good for nothing.
  void add(std::span<const std::uint64_t> keys, bool missing);

  // Forgets the keys in the upper half of the hashes kept. Throws std::bad_alloc; nothing is then changed.
  void halve();

  // The log that this one would be with only the keys of part `number` of 2^bits equal parts of its hashes.
  // REQUIRES: number < 2^bits, halvings() + bits < 64.
  AccessLog part(unsigned number, unsigned bits) const;

  unsigned halvings() const { return halvings_; }                             // the share of keys kept is 2^-halvings
  const std::deque<std::uint32_t>& rows() const { return rows_; }             // [N], below num_rows
  std::span<const std::int64_t> batch_begin() const { return batch_begin_; }  // [B + 1], from 0 to N
  std::size_t num_rows() const { return hashes_.size(); }
  std::size_t memory_bytes() const;

 private:
  bool keeps(std::uint64_t hash) const { return halvings_ == 0 || hash >> (64 - halvings_) == 0; }
  std::uint32_t row_of_missing();
  template <class Keep>
  AccessLog filtered(unsigned halvings, Keep keep) const;

  Index index_;                       // hash of a key -> row; the row of a missing value is not in it
  std::deque<std::uint64_t> hashes_;  // of each row
  std::uint32_t missing_ = Index::kNone;
  std::deque<std::uint32_t> rows_;  // a vector would need thrice its memory when it grows
  std::vector<std::int64_t> batch_begin_ = {0};
  std::vector<std::uint64_t> kept_;   // of the batch being added
  std::vector<std::uint32_t> found_;  // the same
  unsigned halvings_ = 0;
};

}  // namespace sfctr
