// Many small reads of files at once: through io_uring, or by threads where the system forbids it. Both give the same
// bytes and the same errors.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "sfctr/io_file.h"

namespace sfctr {

enum class IoKind : std::uint8_t { kAuto, kUring, kThreads };

// REQUIRES: whole sectors that were written before.
struct ReadRequest {
  const File* file;
  std::uint64_t offset;
  std::uint32_t num_bytes;
};

// Gets the bytes of a request, which are lost when it returns. Called once a request, in no order, perhaps by several
// threads at once; once more for each if a ring is lost half-way.
using Deliver = std::function<void(std::size_t request, const std::byte* data)>;

class UringReader;
class ThreadReader;

struct ReaderOptions {
  IoKind io = IoKind::kAuto;
  unsigned depth = 256;           // reads of one ring in flight; kMaxThreads at most without rings
  unsigned num_rings = 2;         // calls of read that run beside each other; more wait
  std::size_t slot_bytes = 4096;  // of the largest request
  IoFaults* faults = nullptr;
};

class Readers {
 public:
  static constexpr unsigned kMaxThreads = 32;

  // Throws DiskError where io is kUring and the system refuses it, std::bad_alloc, std::system_error.
  explicit Readers(const ReaderOptions& options);
  ~Readers();

  // Reads all requests and delivers each. Any thread, many at once. Throws DiskError, ChecksumError where a file ends
  // early, or what `deliver` threw: the first of them, once nothing is in flight.
  // REQUIRES: no request exceeds slot_bytes.
  void read(std::span<const ReadRequest> requests, const Deliver& deliver);

  // Rings that work; 0 says that threads read.
  std::size_t num_rings() const;
  std::size_t memory_bytes() const;

 private:
  std::unique_ptr<UringReader> take_ring();
  void give_back(std::unique_ptr<UringReader> ring);
  ThreadReader& threads();

  ReaderOptions options_;
  mutable std::mutex mutex_;
  std::condition_variable returned_;
  std::vector<std::unique_ptr<UringReader>> idle_;
  std::size_t num_rings_ = 0;   // idle and at work
  std::size_t ring_bytes_ = 0;  // of one
  std::unique_ptr<ThreadReader> threads_;
};

}  // namespace sfctr
