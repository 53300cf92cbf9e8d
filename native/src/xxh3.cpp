// XXH3-64, seed 0, written from the xxHash specification (doc/xxhash_spec.md of its repository).
// Four length classes: 0-16 bytes, 17-128, 129-240, and longer inputs in stripes of 64 bytes.
#include "sfctr/xxh3.h"

#include <array>
#include <bit>
#include <cstring>

static_assert(std::endian::native == std::endian::little, "keys are defined on little-endian words");

namespace sfctr {
namespace {

using u8 = std::uint8_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;

constexpr u64 kPrime32_1 = 0x9E3779B1U, kPrime32_2 = 0x85EBCA77U, kPrime32_3 = 0xC2B2AE3DU;
constexpr u64 kPrime64_1 = 0x9E3779B185EBCA87ULL, kPrime64_2 = 0xC2B2AE3D27D4EB4FULL;
constexpr u64 kPrime64_3 = 0x165667B19E3779F9ULL, kPrime64_4 = 0x85EBCA77C2B2AE63ULL;
constexpr u64 kPrime64_5 = 0x27D4EB2F165667C5ULL;
constexpr u64 kPrimeMx1 = 0x165667919E3779F9ULL, kPrimeMx2 = 0x9FB21C651E98DF25ULL;

constexpr std::size_t kSecretSize = 192, kStripe = 64, kSecretStep = 8;
constexpr std::size_t kStripesPerBlock = (kSecretSize - kStripe) / kSecretStep;
constexpr std::size_t kMidStart = 3, kMidLast = 17, kSecretSizeMin = 136, kLastStripe = 7, kMergeStart = 11;

constexpr std::array<u8, kSecretSize> kSecret = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c, 0xde, 0xd4,
    0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f, 0xcb, 0x79, 0xe6, 0x4e,
    0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21, 0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43,
    0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c, 0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb,
    0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3, 0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19,
    0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8, 0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7,
    0xc7, 0x0b, 0x4f, 0x1d, 0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78,
    0x73, 0x64, 0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e, 0x2b, 0x16,
    0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce, 0x45, 0xcb, 0x3a, 0x8f,
    0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e};

template <class T>
T read(const u8* at) noexcept {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

u64 secret64(std::size_t at) noexcept { return read<u64>(kSecret.data() + at); }

u64 fold_product(u64 a, u64 b) noexcept {
  __extension__ using u128 = unsigned __int128;
  const u128 product = static_cast<u128>(a) * b;
  return static_cast<u64>(product) ^ static_cast<u64>(product >> 64);
}

u64 avalanche(u64 h) noexcept {
  h = (h ^ (h >> 37)) * kPrimeMx1;
  return h ^ (h >> 32);
}

u64 avalanche_short(u64 h) noexcept {
  h = (h ^ (h >> 33)) * kPrime64_2;
  h = (h ^ (h >> 29)) * kPrime64_3;
  return h ^ (h >> 32);
}

u64 mix16(const u8* in, std::size_t secret) noexcept {
  return fold_product(read<u64>(in) ^ secret64(secret), read<u64>(in + 8) ^ secret64(secret + 8));
}

u64 hash_0_to_16(const u8* in, std::size_t size) noexcept {
  if (size > 8) {
    const u64 low = read<u64>(in) ^ (secret64(24) ^ secret64(32));
    const u64 high = read<u64>(in + size - 8) ^ (secret64(40) ^ secret64(48));
    return avalanche(size + __builtin_bswap64(low) + high + fold_product(low, high));
  }
  if (size >= 4) {
    const u64 word = read<u32>(in + size - 4) + (static_cast<u64>(read<u32>(in)) << 32);
    u64 h = word ^ (secret64(8) ^ secret64(16));
    h ^= std::rotl(h, 49) ^ std::rotl(h, 24);
    h *= kPrimeMx2;
    h ^= (h >> 35) + size;
    h *= kPrimeMx2;
    return h ^ (h >> 28);
  }
  if (size > 0) {
    const u32 combined = (static_cast<u32>(in[0]) << 16) | (static_cast<u32>(in[size >> 1]) << 24) | in[size - 1] |
                         (static_cast<u32>(size) << 8);
    return avalanche_short(combined ^ (read<u32>(kSecret.data()) ^ read<u32>(kSecret.data() + 4)));
  }
  return avalanche_short(secret64(56) ^ secret64(64));
}

u64 hash_17_to_128(const u8* in, std::size_t size) noexcept {
  u64 acc = size * kPrime64_1;
  for (std::size_t i = (size - 1) / 32; i != static_cast<std::size_t>(-1); --i) {
    acc += mix16(in + 16 * i, 32 * i);
    acc += mix16(in + size - 16 * (i + 1), 32 * i + 16);
  }
  return avalanche(acc);
}

u64 hash_129_to_240(const u8* in, std::size_t size) noexcept {
  u64 acc = size * kPrime64_1;
  for (std::size_t i = 0; i < 8; ++i) acc += mix16(in + 16 * i, 16 * i);
  acc = avalanche(acc);
  for (std::size_t i = 8; i < size / 16; ++i) acc += mix16(in + 16 * i, 16 * (i - 8) + kMidStart);
  acc += mix16(in + size - 16, kSecretSizeMin - kMidLast);
  return avalanche(acc);
}

using Lanes = std::array<u64, 8>;

void accumulate(Lanes& acc, const u8* in, std::size_t secret) noexcept {
  for (std::size_t i = 0; i < 8; ++i) {
    const u64 value = read<u64>(in + 8 * i);
    const u64 keyed = value ^ secret64(secret + 8 * i);
    acc[i ^ 1] += value;
    acc[i] += (keyed & 0xFFFFFFFFU) * (keyed >> 32);
  }
}

void scramble(Lanes& acc) noexcept {
  for (std::size_t i = 0; i < 8; ++i) {
    acc[i] ^= acc[i] >> 47;
    acc[i] ^= secret64(kSecretSize - kStripe + 8 * i);
    acc[i] *= kPrime32_1;
  }
}

u64 hash_long(const u8* in, std::size_t size) noexcept {
  Lanes acc = {kPrime32_3, kPrime64_1, kPrime64_2, kPrime64_3, kPrime64_4, kPrime32_2, kPrime64_5, kPrime32_1};
  const std::size_t stripes = (size - 1) / kStripe;
  for (std::size_t s = 0; s < stripes; ++s) {
    accumulate(acc, in + s * kStripe, (s % kStripesPerBlock) * kSecretStep);
    if (s % kStripesPerBlock == kStripesPerBlock - 1) scramble(acc);
  }
  accumulate(acc, in + size - kStripe, kSecretSize - kStripe - kLastStripe);
  u64 h = size * kPrime64_1;
  for (std::size_t i = 0; i < 4; ++i) {
    const std::size_t at = kMergeStart + 16 * i;
    h += fold_product(acc[2 * i] ^ secret64(at), acc[2 * i + 1] ^ secret64(at + 8));
  }
  return avalanche(h);
}

}  // namespace

u64 xxh3_64(const u8* data, std::size_t size) noexcept {
  if (size <= 16) return hash_0_to_16(data, size);
  if (size <= 128) return hash_17_to_128(data, size);
  if (size <= 240) return hash_129_to_240(data, size);
  return hash_long(data, size);
}

}  // namespace sfctr
