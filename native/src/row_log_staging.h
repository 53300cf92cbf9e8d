// The buffers in which records wait for the disk, and the thread that writes them.
//
// A buffer holds consecutive records of one segment, laid out as the file has them. It goes from free to open (the
// log's caller fills it) to queued (written in turn, in one large write) to free. What it held stays in it until it is
// opened anew, so whoever reads compares `use` under its mutex, and finds the records in the file if it has changed.
// After a failed write nothing is written any more: what is queued stays, and stays readable.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "row_log_layout.h"
#include "row_log_segment.h"
#include "sfctr/memory.h"

namespace sfctr {

struct StagingBuffer {
  std::byte* data = nullptr;  // of the first record; a sector lies before it and one behind the last, for pages
  std::shared_ptr<LogSegment> segment;  // guarded by the staging's mutex
  std::mutex mutex;
  std::uint64_t use = 0;                  // times opened; changed under `mutex`, by the log's caller
  std::uint32_t first = 0;                // place in the segment; so changed too
  std::uint32_t capacity = 0, count = 0;  // records
  bool last = false;                      // of its segment
};

class Staging {
 public:
  // Throws std::invalid_argument where staging_bytes holds no two buffers of a unit each.
  static void require_room(const LogLayout& layout, std::size_t staging_bytes);
  // REQUIRES: require_room. Throws std::bad_alloc, std::system_error.
  Staging(const LogLayout& layout, std::size_t staging_bytes);
  // Writes nothing any more.
  ~Staging();

  // What follows is for the log's caller alone.
  // A buffer for the records of a segment from `first` on. Waits for a free one. Throws DiskError as `check` does.
  StagingBuffer& open(std::shared_ptr<LogSegment> segment, std::uint32_t first);
  // Hands an open buffer to the thread; with `last`, the footer follows the records.
  void submit(StagingBuffer& buffer, bool last);
  // Throws DiskError if a write has failed.
  void check();
  // Waits until all that was submitted is written. Throws DiskError.
  void wait_idle();
  // The buffer that has the record, or null: then the file has it.
  StagingBuffer* find(const LogSegment& segment, std::uint32_t place);
  // Lets the thread close the file, which takes the file system long.
  void discard(std::shared_ptr<LogSegment> segment);

  double wait_s() const { return wait_s_; }
  std::uint64_t bytes_written() const { return bytes_written_.load(std::memory_order_relaxed); }
  std::size_t memory_bytes() const { return memory_.num_bytes(); }

 private:
  void work();
  void write_next(std::unique_lock<std::mutex>& lock);
  void write(StagingBuffer& buffer);

  const LogLayout& layout_;
  std::uint32_t buffer_records_;
  Pages memory_;
  std::vector<StagingBuffer> buffers_;
  double wait_s_ = 0;
  std::atomic<std::uint64_t> bytes_written_{0};

  std::mutex mutex_;
  std::condition_variable wake_, written_;
  std::vector<StagingBuffer*> free_;
  std::deque<StagingBuffer*> queue_;
  std::vector<std::shared_ptr<LogSegment>> discarded_;
  std::exception_ptr error_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace sfctr
