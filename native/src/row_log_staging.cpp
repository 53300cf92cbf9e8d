#include "row_log_staging.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <string>

#include "row_log_format.h"

namespace sfctr {
namespace {

constexpr std::size_t kWriteBytes = std::size_t{1} << 20;  // of one write: larger ones are no faster

// Of a buffer: whole units with a sector before and one behind, at least four buffers where there is room for them.
std::size_t buffer_units(const LogLayout& layout, std::size_t staging_bytes) {
  const std::size_t share = std::min(kWriteBytes, staging_bytes / 4);
  const std::size_t units = share > 2 * kSector ? (share - 2 * kSector) / layout.unit_bytes : 0;
  return std::clamp<std::size_t>(units, 1, layout.segment_units);
}

std::size_t buffer_bytes(const LogLayout& layout, std::size_t staging_bytes) {
  return buffer_units(layout, staging_bytes) * layout.unit_bytes + 2 * kSector;
}

}  // namespace

void Staging::require_room(const LogLayout& layout, std::size_t staging_bytes) {
  const std::size_t needed = 2 * buffer_bytes(layout, staging_bytes);
  if (staging_bytes >= needed) return;
  throw std::invalid_argument("staging_bytes is " + std::to_string(staging_bytes) + " and must be at least " +
                              std::to_string(needed) + " for rows of " + std::to_string(layout.record_bytes) +
                              " bytes");
}

Staging::Staging(const LogLayout& layout, std::size_t staging_bytes)
    : layout_(layout),
      buffer_records_(static_cast<std::uint32_t>(buffer_units(layout, staging_bytes) * layout.unit_records)) {
  const std::size_t size = buffer_bytes(layout, staging_bytes);
  const std::size_t num_buffers = staging_bytes / size;
  memory_ = io_memory(num_buffers * size);
  buffers_ = std::vector<StagingBuffer>(num_buffers);
  free_.reserve(num_buffers);
  for (std::size_t i = num_buffers; i-- > 0;) {
    buffers_[i].data = memory_.data() + i * size + kSector;
    free_.push_back(&buffers_[i]);
  }
  thread_ = std::thread([this] { work(); });
}

Staging::~Staging() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

StagingBuffer& Staging::open(std::shared_ptr<LogSegment> segment, std::uint32_t first) {
  std::unique_lock lock(mutex_);
  if (free_.empty() && !error_) {
    const auto begin = std::chrono::steady_clock::now();
    written_.wait(lock, [&] { return error_ || !free_.empty(); });
    wait_s_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
  if (error_) std::rethrow_exception(error_);
  StagingBuffer& buffer = *free_.back();
  free_.pop_back();
  buffer.segment = std::move(segment);
  lock.unlock();
  std::lock_guard readers(buffer.mutex);
  ++buffer.use;
  buffer.first = first;
  buffer.capacity = static_cast<std::uint32_t>(
      std::min<std::uint64_t>(buffer_records_, buffer.segment->capacity - std::uint64_t{first}));
  buffer.count = 0;
  return buffer;
}

void Staging::submit(StagingBuffer& buffer, bool last) {
  buffer.last = last;
  {
    std::lock_guard lock(mutex_);
    queue_.push_back(&buffer);
  }
  wake_.notify_one();
}

void Staging::check() {
  std::lock_guard lock(mutex_);
  if (error_) std::rethrow_exception(error_);
}

void Staging::wait_idle() {
  std::unique_lock lock(mutex_);
  written_.wait(lock, [&] { return error_ || queue_.empty(); });
  if (error_) std::rethrow_exception(error_);
}

StagingBuffer* Staging::find(const LogSegment& segment, std::uint32_t place) {
  std::lock_guard lock(mutex_);
  for (StagingBuffer& buffer : buffers_) {
    if (buffer.segment.get() == &segment && place - buffer.first < buffer.count) return &buffer;
  }
  return nullptr;
}

void Staging::discard(std::shared_ptr<LogSegment> segment) {
  {
    std::lock_guard lock(mutex_);
    discarded_.push_back(std::move(segment));
  }
  wake_.notify_one();
}

void Staging::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    const auto may_write = [&] { return !queue_.empty() && !error_; };
    wake_.wait(lock, [&] { return stopping_ || may_write() || !discarded_.empty(); });
    if (stopping_) return;
    std::vector<std::shared_ptr<LogSegment>> closing;
    closing.swap(discarded_);
    if (may_write()) write_next(lock);
    lock.unlock();
    closing.clear();
    lock.lock();
  }
}

// REQUIRES: holds the mutex, which is given up while it writes.
void Staging::write_next(std::unique_lock<std::mutex>& lock) {
  StagingBuffer& buffer = *queue_.front();
  lock.unlock();
  std::exception_ptr error;
  try {
    write(buffer);
  } catch (...) {
    error = std::current_exception();
  }
  lock.lock();
  if (error) {
    error_ = std::move(error);
  } else {
    buffer.segment.reset();
    queue_.pop_front();
    free_.push_back(&buffer);
  }
  written_.notify_all();
}

void Staging::write(StagingBuffer& buffer) {
  LogSegment& segment = *buffer.segment;
  const std::size_t num_bytes = layout_.bytes_of(buffer.count);
  std::byte *begin = buffer.data, *end = buffer.data + num_bytes;
  std::uint64_t offset = layout_.file_offset(buffer.first);
  if (buffer.count > 0) {
    // Behind the last record may be what the buffer held before.
    std::byte* const tail = buffer.data + layout_.offset(buffer.count - 1) + layout_.stride;
    std::memset(tail, 0, static_cast<std::size_t>(end - tail));
  }
  if (buffer.first == 0) {
    segment.file.create();
    begin -= kSector;
    offset -= kSector;
    write_header(begin, layout_, segment.sequence);
  }
  if (buffer.last) {
    write_footer(end, buffer.first + buffer.count, segment.sequence);
    end += kSector;
  }
  const std::span<const std::byte> bytes(begin, end);
  segment.file.write(bytes, offset);
  if (buffer.last) std::memset(end - kSector, 0, kSector);  // it may lie where the gap behind a unit is to be zero
  segment.file_bytes.store(offset + bytes.size(), std::memory_order_relaxed);
  bytes_written_.fetch_add(bytes.size(), std::memory_order_relaxed);
  segment.written.store(buffer.first + buffer.count, std::memory_order_release);
  if (buffer.last) segment.complete.store(true, std::memory_order_release);
}

}  // namespace sfctr
