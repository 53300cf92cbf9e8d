#include "sfctr/cross.h"

#include <cstring>
#include <vector>

#include "sfctr/xxh3.h"

namespace sfctr {

void cross_keys(std::span<const std::uint64_t* const> keys, std::span<const std::uint8_t* const> nulls,
                std::span<std::uint64_t> out) {
  constexpr std::size_t kPart = 9;
  std::vector<std::uint8_t> text(kPart * keys.size());
  for (std::size_t i = 0; i < out.size(); ++i) {
    for (std::size_t part = 0; part < keys.size(); ++part) {
      const bool missing = nulls[part] != nullptr && nulls[part][i] != 0;
      const std::uint64_t key = missing ? 0 : keys[part][i];
      text[part * kPart] = missing ? 0 : 1;
      std::memcpy(text.data() + part * kPart + 1, &key, sizeof key);
    }
    out[i] = xxh3_64(text.data(), text.size());
  }
}

}  // namespace sfctr
