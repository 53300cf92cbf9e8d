// What the fetches of a log count, together.
#pragma once

#include <atomic>
#include <cstdint>

namespace sfctr {

struct ReadCounts {
  std::atomic<std::uint64_t> records{0}, records_from_staging{0}, bytes{0};
};

}  // namespace sfctr
