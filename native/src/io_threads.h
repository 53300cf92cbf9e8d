// Reads by a pool of threads, each with one read in flight.
#pragma once

#include <condition_variable>
#include <exception>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "sfctr/io_reader.h"

namespace sfctr {

class ThreadReader {
 public:
  // Throws std::system_error, std::bad_alloc.
  ThreadReader(unsigned num_threads, std::size_t slot_bytes);
  ~ThreadReader();

  // As Readers::read; several callers share the threads, the first to come first.
  void read(std::span<const ReadRequest> requests, const Deliver& deliver);
  std::size_t memory_bytes() const { return slots_.num_bytes(); }

 private:
  struct Batch {  // guarded by mutex_
    std::span<const ReadRequest> requests;
    const Deliver* deliver;
    std::size_t next = 0;
    std::size_t num_busy = 0;
    std::exception_ptr error{};
  };

  void work(std::byte* slot);
  static std::exception_ptr read_one(const ReadRequest& request, std::size_t number, const Deliver& deliver,
                                     std::byte* slot) noexcept;

  Pages slots_;
  std::mutex mutex_;
  std::condition_variable wake_, done_;
  std::vector<Batch*> batches_;  // with requests not yet begun
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace sfctr
