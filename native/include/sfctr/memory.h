// Memory by the page and by the step. `Pages` holds what lives as long as a table; `Buffer` holds what a batch needs
// and gives back, through a cache, because fresh pages cost a fault each and a working set would pay thousands a step.
#pragma once

#include <cstddef>
#include <span>
#include <utility>

namespace sfctr {

inline constexpr std::size_t kHugePage = std::size_t{2} << 20;
inline constexpr std::size_t kMapped = std::size_t{64} << 10;

// Zeroed memory aligned to a cache line. From kMapped bytes on it comes straight from the system, so that untouched
// parts take nothing; from the size of a huge page on it is aligned to one and advised to consist of them. Throws
// std::bad_alloc.
class Pages {
 public:
  Pages() = default;
  explicit Pages(std::size_t num_bytes);
  Pages(Pages&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), num_bytes_(std::exchange(other.num_bytes_, 0)) {}
  Pages& operator=(Pages&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(num_bytes_, other.num_bytes_);
    return *this;
  }
  ~Pages();

  std::byte* data() const { return data_; }
  std::size_t num_bytes() const { return num_bytes_; }
  // Gives the system back the whole pages from `offset` on; they read as zero until written again.
  void release_from(std::size_t offset) noexcept;

 private:
  std::byte* data_ = nullptr;
  std::size_t num_bytes_ = 0;
};

// Bytes that buffers hold, those kept for reuse included. With those in use the cache has at most five
// quarters of what was in use at a time lately, that is among the last one or two thousand buffers given back: batches
// differ in size, and one that needs other blocks should not cost the largest of those kept.
std::size_t scratch_bytes();

namespace detail {
struct Block {
  std::byte* data = nullptr;
  std::size_t num_bytes = 0;
};
Block acquire_block(std::size_t num_bytes);
void release_block(Block block) noexcept;
}  // namespace detail

// An array of plain values, aligned to a cache line, whose contents are undefined until written. One thread at a time
// may resize it; different buffers are independent.
template <class T>
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(std::size_t size) { resize(size); }
  Buffer(Buffer&& other) noexcept : block_(std::exchange(other.block_, {})), size_(std::exchange(other.size_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(block_, other.block_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~Buffer() { detail::release_block(block_); }

  // What it held is lost. Throws std::bad_alloc; the buffer is then empty.
  void resize(std::size_t size) {
    size_ = 0;
    if (size * sizeof(T) > block_.num_bytes) {
      detail::release_block(std::exchange(block_, {}));
      block_ = detail::acquire_block(size * sizeof(T));
    }
    size_ = size;
  }

  T* data() { return reinterpret_cast<T*>(block_.data); }
  const T* data() const { return reinterpret_cast<const T*>(block_.data); }
  std::size_t size() const { return size_; }
  T& operator[](std::size_t i) { return data()[i]; }
  const T& operator[](std::size_t i) const { return data()[i]; }
  std::span<T> span() { return {data(), size_}; }
  std::span<const T> span() const { return {data(), size_}; }

 private:
  detail::Block block_;
  std::size_t size_ = 0;
};

}  // namespace sfctr
