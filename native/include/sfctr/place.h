// Where the row of a key is, in the 32 bits that the index has for it: a frame in RAM, perhaps only provisional, or a
// location on disk.
#pragma once

#include <cstdint>

namespace sfctr {

// In RAM a row lies in a frame (frames.h). It is provisional from when a batch that brings a new key is planned until a
// committed step has reached it: the record is there, but no row is, and whoever only reads sees none.
class Place {
 public:
  static constexpr std::uint32_t kMostFrames = std::uint32_t{1} << 30;
  static constexpr std::uint32_t kMostLocations = (std::uint32_t{1} << 31) - 1;

  static Place none() { return Place(0xFFFFFFFF); }
  static Place in_ram(std::uint32_t frame) { return Place(frame); }
  static Place provisional(std::uint32_t frame) { return Place(frame | kProvisional); }
  static Place on_disk(std::uint32_t location) { return Place(location | kDisk); }
  static Place from_bits(std::uint32_t bits) { return Place(bits); }

  std::uint32_t bits() const { return bits_; }
  bool is_none() const { return bits_ == 0xFFFFFFFF; }
  bool is_on_disk() const { return (bits_ & kDisk) != 0 && !is_none(); }
  bool is_in_ram() const { return (bits_ & kDisk) == 0; }
  bool is_provisional() const { return (bits_ & (kDisk | kProvisional)) == kProvisional; }
  std::uint32_t frame() const { return bits_ & ~kProvisional; }  // REQUIRES: is_in_ram()
  std::uint32_t location() const { return bits_ & ~kDisk; }      // REQUIRES: is_on_disk()

 private:
  static constexpr std::uint32_t kDisk = 0x80000000, kProvisional = 0x40000000;
  explicit Place(std::uint32_t bits) : bits_(bits) {}
  std::uint32_t bits_;
};

}  // namespace sfctr
