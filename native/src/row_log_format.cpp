#include "row_log_format.h"

#include <bit>

static_assert(std::endian::native == std::endian::little, "segments are little-endian");

namespace sfctr {
namespace {

constexpr std::uint32_t kVersion = 1;

// Puts values one after the other, at last the hash of all before it.
class PageWriter {
 public:
  PageWriter(std::byte* page, const char* magic) : page_(page) {
    std::memset(page, 0, kSector);
    std::memcpy(page, magic, 8);
  }
  template <class T>
  PageWriter& put(T value) {
    std::memcpy(page_ + at_, &value, sizeof value);
    at_ += sizeof value;
    return *this;
  }
  void end() { put(xxh3_64(reinterpret_cast<const std::uint8_t*>(page_), at_)); }

 private:
  std::byte* page_;
  std::size_t at_ = 8;
};

}  // namespace

void write_header(std::byte* page, const LogLayout& layout, std::uint64_t sequence) {
  PageWriter(page, "SFCTRSEG")
      .put(kVersion)
      .put(static_cast<std::uint32_t>(layout.record_bytes))
      .put(static_cast<std::uint32_t>(layout.unit_bytes))
      .put(layout.unit_records)
      .put(sequence)
      .end();
}

void write_footer(std::byte* page, std::uint32_t num_records, std::uint64_t sequence) {
  PageWriter(page, "SFCTREND").put(kVersion).put(num_records).put(sequence).end();
}

}  // namespace sfctr
