#include "sfctr/access_log.h"

#include <stdexcept>
#include <utility>

#include "sfctr/hash.h"
#include "sfctr/reuse.h"

namespace sfctr {
namespace {

// Independent of the hashes by which the index and the hashing trick spread keys. mix is one-to-one, so keys stay
// distinct.
std::uint64_t sampling_hash(std::uint64_t key) { return mix(key ^ 0xD1B54A32D192ED03u); }
constexpr std::uint64_t kHashOfMissing = 0x5851F42D4C957F2Du;

}  // namespace

void AccessLog::add(std::span<const std::uint64_t> keys, bool missing) {
  kept_.clear();
  for (const std::uint64_t key : keys) {
    const std::uint64_t hash = sampling_hash(key);
    if (keeps(hash)) kept_.push_back(hash);
  }
  if (rows_.size() + kept_.size() + 1 >= kNever) throw std::length_error("a log may hold 2^32 - 2 accesses");
  found_.resize(kept_.size());
  index_.find(kept_, found_.data());
  for (std::size_t n = 0; n < kept_.size(); ++n) {
    std::uint32_t row = found_[n];
    if (row == Index::kNone) {
      row = static_cast<std::uint32_t>(hashes_.size());
      index_.insert(kept_[n], row);
      hashes_.push_back(kept_[n]);
    }
    rows_.push_back(row);
  }
  if (missing && keeps(kHashOfMissing)) rows_.push_back(row_of_missing());
  batch_begin_.push_back(static_cast<std::int64_t>(rows_.size()));
}

std::uint32_t AccessLog::row_of_missing() {
  if (missing_ == Index::kNone) {
    missing_ = static_cast<std::uint32_t>(hashes_.size());
    hashes_.push_back(kHashOfMissing);
  }
  return missing_;
}

void AccessLog::halve() {
  const unsigned halvings = halvings_ + 1;
  *this = filtered(halvings, [&](std::uint64_t hash) { return hash >> (64 - halvings) == 0; });
}

AccessLog AccessLog::part(unsigned number, unsigned bits) const {
  const unsigned halvings = halvings_ + bits;
  return filtered(halvings, [&](std::uint64_t hash) { return bits == 0 || hash >> (64 - halvings) == number; });
}

template <class Keep>
AccessLog AccessLog::filtered(unsigned halvings, Keep keep) const {
  AccessLog result;
  result.halvings_ = halvings;
  std::vector<std::uint32_t> renamed(hashes_.size(), Index::kNone);
  for (std::size_t row = 0; row < hashes_.size(); ++row) {
    if (!keep(hashes_[row])) continue;
    renamed[row] = static_cast<std::uint32_t>(result.hashes_.size());
    result.hashes_.push_back(hashes_[row]);
    if (row == missing_) {
      result.missing_ = renamed[row];
    } else {
      result.index_.insert(hashes_[row], renamed[row]);
    }
  }
  std::size_t time = 0;
  for (std::size_t b = 1; b < batch_begin_.size(); ++b) {
    for (; time < static_cast<std::size_t>(batch_begin_[b]); ++time) {
      if (renamed[rows_[time]] != Index::kNone) result.rows_.push_back(renamed[rows_[time]]);
    }
    result.batch_begin_.push_back(static_cast<std::int64_t>(result.rows_.size()));
  }
  return result;
}

std::size_t AccessLog::memory_bytes() const {
  return index_.memory_bytes() + hashes_.size() * sizeof(std::uint64_t) + rows_.size() * sizeof(std::uint32_t) +
         batch_begin_.size() * sizeof(std::int64_t);
}

}  // namespace sfctr
