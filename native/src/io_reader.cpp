#include "sfctr/io_reader.h"

#include <algorithm>

#include "io_threads.h"
#include "io_uring.h"

namespace sfctr {

Readers::Readers(const ReaderOptions& options) : options_(options) {
  int error = 0;
  while (options.io != IoKind::kThreads && num_rings_ < options.num_rings) {
    auto ring = UringReader::make(options.depth, options.slot_bytes, options.faults, error);
    if (!ring) break;
    ring_bytes_ = ring->memory_bytes();
    idle_.push_back(std::move(ring));
    ++num_rings_;
  }
  if (num_rings_ > 0) return;
  if (options.io == IoKind::kUring) throw DiskError("set up", "io_uring", error);
  threads();
}

Readers::~Readers() = default;

// Waits while all rings are at work; null when there is none any more.
std::unique_ptr<UringReader> Readers::take_ring() {
  std::unique_lock lock(mutex_);
  returned_.wait(lock, [&] { return num_rings_ == 0 || !idle_.empty(); });
  if (num_rings_ == 0) return nullptr;
  auto ring = std::move(idle_.back());
  idle_.pop_back();
  return ring;
}

// Null gives up a ring for good.
void Readers::give_back(std::unique_ptr<UringReader> ring) {
  {
    std::lock_guard lock(mutex_);
    if (ring) {
      idle_.push_back(std::move(ring));
    } else {
      --num_rings_;
    }
  }
  returned_.notify_all();
}

ThreadReader& Readers::threads() {
  std::lock_guard lock(mutex_);
  if (!threads_) {
    threads_ = std::make_unique<ThreadReader>(std::clamp(options_.depth, 1U, kMaxThreads), options_.slot_bytes);
  }
  return *threads_;
}

void Readers::read(std::span<const ReadRequest> requests, const Deliver& deliver) {
  if (requests.empty()) return;
  while (auto ring = take_ring()) {
    bool all;
    try {
      all = ring->read(requests, deliver);
    } catch (...) {
      give_back(std::move(ring));
      throw;
    }
    if (!all) ring.reset();
    give_back(std::move(ring));
    if (all) return;
  }
  threads().read(requests, deliver);
}

std::size_t Readers::num_rings() const {
  std::lock_guard lock(mutex_);
  return num_rings_;
}

std::size_t Readers::memory_bytes() const {
  std::lock_guard lock(mutex_);
  return num_rings_ * ring_bytes_ + (threads_ ? threads_->memory_bytes() : 0);
}

}  // namespace sfctr
