// The way back from slots to keys, for exports in slot order: the index only leads the other way, and keeping both
// would cost 8 bytes a row for good. A window of slots is filled by one pass over the index, and given up at the last
// slot.
#pragma once

#include <cstdint>
#include <vector>

#include "sfctr/index.h"

namespace sfctr {

// REQUIRES: one thread at a time.
class KeysBySlot {
 public:
  // Makes get() answer for slots from `begin` to at least begin + 1, and returns the first slot it does not answer for
  // (at most end). source and version say what the index is and which state of it: equal ones are not read again.
  // Throws std::bad_alloc.
  std::uint64_t load(const Index& index, std::size_t source, std::uint64_t version, std::uint64_t begin,
                     std::uint64_t end);

  // Whether the slot holds a row; then key is its key. REQUIRES: slot is among those loaded.
  bool get(std::uint64_t slot, std::uint64_t& key) const {
    key = keys_[slot - begin_];
    return used_[slot - begin_] != 0;
  }

  void clear() { *this = KeysBySlot(); }
  std::size_t memory_bytes() const { return keys_.capacity() * sizeof(std::uint64_t) + used_.capacity(); }

 private:
  std::size_t source_ = 0;
  std::uint64_t version_ = 0;
  std::uint64_t begin_ = 0;
  std::vector<std::uint64_t> keys_;  // of slots [begin_, begin_ + size)
  std::vector<std::uint8_t> used_;
};

}  // namespace sfctr
