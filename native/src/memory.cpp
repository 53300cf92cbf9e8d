#include "sfctr/memory.h"

#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <mutex>
#include <new>
#include <vector>

namespace sfctr {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::align_val_t kLine{64};
#ifdef __SANITIZE_ADDRESS__
constexpr bool kKeep = false;  // each buffer its own allocation, so that an overrun is seen
#else
constexpr bool kKeep = true;
#endif

constexpr std::size_t round_up(std::size_t n, std::size_t unit) { return (n + unit - 1) / unit * unit; }

// Four sizes to a doubling: a block fits batches of slightly different size and wastes at most a quarter.
std::size_t size_class(std::size_t num_bytes) { return round_up(num_bytes, std::bit_floor(num_bytes) / 4); }

std::byte* map_pages(std::size_t num_bytes) {
  void* const got =
      mmap(nullptr, num_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (got == MAP_FAILED) throw std::bad_alloc();
  return static_cast<std::byte*>(got);
}

// The kernel makes huge pages only at addresses that are multiples of their size.
std::byte* map_aligned(std::size_t num_bytes) {
  std::byte* const wide = map_pages(num_bytes + kHugePage);
  const std::size_t before = -reinterpret_cast<std::size_t>(wide) % kHugePage;
  if (before > 0) munmap(wide, before);
  munmap(wide + before + num_bytes, kHugePage - before);
  madvise(wide + before, num_bytes, MADV_HUGEPAGE);  // advice: where refused, small pages do
  return wide + before;
}

detail::Block map(std::size_t num_bytes) {
  const std::size_t rounded = round_up(num_bytes, kPage);
  return {rounded >= kHugePage ? map_aligned(rounded) : map_pages(rounded), rounded};
}

class BlockCache {
  static constexpr std::size_t kEpoch = 1024;

 public:
  BlockCache() {
    // A fork while another thread holds the mutex must not leave the child with a locked one.
    pthread_atfork([] { instance().mutex_.lock(); }, [] { instance().mutex_.unlock(); },
                   [] { instance().mutex_.unlock(); });
  }

  static BlockCache& instance() {
    static BlockCache* const cache = new BlockCache;  // outlives every buffer, also those of other static objects
    return *cache;
  }

  detail::Block take(std::size_t num_bytes) {
    {
      std::lock_guard lock(mutex_);
      std::size_t best = free_.size();  // the least that fits, and of those the one given back last
      for (std::size_t i = free_.size(); i-- > 0;) {
        if (free_[i].num_bytes < num_bytes || free_[i].num_bytes > num_bytes * 2) continue;
        if (best == free_.size() || free_[i].num_bytes < free_[best].num_bytes) best = i;
      }
      if (best < free_.size()) {
        const detail::Block found = free_[best];
        free_.erase(free_.begin() + static_cast<std::ptrdiff_t>(best));
        kept_ -= found.num_bytes;
        count_in(found.num_bytes);
        return found;
      }
    }
    const detail::Block made = map(size_class(num_bytes));
    std::lock_guard lock(mutex_);
    ++num_blocks_;
    free_.reserve(num_blocks_);  // so that giving back cannot fail
    count_in(made.num_bytes);
    return made;
  }

  void give(detail::Block block) noexcept {
    std::lock_guard lock(mutex_);
    in_use_ -= block.num_bytes;
    kept_ += block.num_bytes;
    free_.push_back(block);
    if (++num_given_ % kEpoch == 0) {
      most_before_ = most_in_use_;
      most_in_use_ = in_use_;
    }
    drop_excess();
  }

  std::size_t num_bytes() {
    std::lock_guard lock(mutex_);
    return in_use_ + kept_;
  }

 private:
  void count_in(std::size_t num_bytes) {
    in_use_ += num_bytes;
    most_in_use_ = std::max(most_in_use_, in_use_);
    drop_excess();
  }

  void drop_excess() noexcept {
    const std::size_t most = std::max(most_before_, most_in_use_);
    while (kept_ > 0 && in_use_ + kept_ > most + most / 4) drop_oldest();
  }

  void drop_oldest() noexcept {
    const detail::Block oldest = free_.front();
    free_.erase(free_.begin());
    kept_ -= oldest.num_bytes;
    --num_blocks_;
    munmap(oldest.data, oldest.num_bytes);
  }

  std::mutex mutex_;
  std::vector<detail::Block> free_;  // those not in use, the oldest first
  std::size_t num_blocks_ = 0;       // in use and free
  std::size_t in_use_ = 0, kept_ = 0;
  std::size_t num_given_ = 0;                      // blocks; kEpoch of them are an epoch
  std::size_t most_in_use_ = 0, most_before_ = 0;  // in this epoch, in the one before
};

}  // namespace

Pages::Pages(std::size_t num_bytes) {
  if (num_bytes == 0) return;
  if (num_bytes >= kMapped) {
    const detail::Block block = map(num_bytes);
    data_ = block.data;
    num_bytes_ = block.num_bytes;
  } else {
    data_ = static_cast<std::byte*>(::operator new(num_bytes, kLine));
    std::memset(data_, 0, num_bytes);
    num_bytes_ = num_bytes;
  }
}

Pages::~Pages() {
  if (!data_) return;
  if (num_bytes_ >= kMapped) {
    munmap(data_, num_bytes_);
  } else {
    ::operator delete(data_, kLine);
  }
}

void Pages::release_from(std::size_t offset) noexcept {
  const std::size_t first = round_up(offset, kPage);
  if (num_bytes_ >= kMapped && first < num_bytes_) madvise(data_ + first, num_bytes_ - first, MADV_DONTNEED);
}

std::size_t scratch_bytes() { return BlockCache::instance().num_bytes(); }

detail::Block detail::acquire_block(std::size_t num_bytes) {
  if (num_bytes == 0) return {};
  if (kKeep && num_bytes >= kMapped) return BlockCache::instance().take(num_bytes);
  return {static_cast<std::byte*>(::operator new(num_bytes, kLine)), num_bytes};
}

void detail::release_block(Block block) noexcept {
  if (!block.data) return;
  if (kKeep && block.num_bytes >= kMapped) return BlockCache::instance().give(block);
  ::operator delete(block.data, kLine);
}

}  // namespace sfctr
