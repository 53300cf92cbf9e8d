// A file that is written and read in whole sectors, past the page cache where the file system takes O_DIRECT; else
// through it, with what was written dropped from it behind. Short transfers, EINTR and EAGAIN are seen to here.
//
// One thread at a time may create or write; any number may read what was written.
#pragma once

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "sfctr/io_errors.h"
#include "sfctr/io_faults.h"
#include "sfctr/memory.h"

namespace sfctr {

// The unit of files: offsets, sizes and addresses of transfers are multiples of it. Disks with larger sectors refuse
// O_DIRECT in this unit (EINVAL) and are then read through the page cache.
inline constexpr std::size_t kSector = 4096;

constexpr std::size_t round_to_sectors(std::size_t num_bytes) { return (num_bytes + kSector - 1) / kSector * kSector; }

// Zeroed memory that transfers may use. Throws std::bad_alloc.
inline Pages io_memory(std::size_t num_bytes) { return Pages(num_bytes < kMapped ? kMapped : num_bytes); }

// Makes a system call that gives bytes or -1, under the faults: bytes or -errno.
template <class Call>
std::int64_t io_call(IoFaults* faults, IoCall kind, std::byte* data, Call&& call) {
  if (faults) {
    if (const int error = faults->begin(kind)) return -error;
  }
  std::int64_t result = call();
  if (result < 0) result = -errno;
  return faults ? faults->end(kind, result, data) : result;
}

class File {
 public:
  // Only names it. `faults` may be null.
  explicit File(std::string path, IoFaults* faults = nullptr) : path_(std::move(path)), faults_(faults) {}
  ~File();
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  // Makes the file, which must not be there. Throws DiskError.
  void create();
  bool is_open() const { return fd_ >= 0; }

  // All of `data`. REQUIRES: is_open(), and whole sectors. Throws DiskError.
  void write(std::span<const std::byte> data, std::uint64_t offset);
  // Fills `data`. REQUIRES: as for write. Throws DiskError, or ChecksumError where the file ends before.
  void read(std::span<std::byte> data, std::uint64_t offset) const;
  // What was written is on the disk when this returns. Throws DiskError.
  void sync();

  int fd() const { return fd_; }
  const std::string& path() const { return path_; }
  IoFaults* faults() const { return faults_; }
  bool direct() const { return direct_.load(std::memory_order_relaxed); }
  // From now on through the page cache.
  void leave_direct() const noexcept;

 private:
  void drop_behind(std::uint64_t offset, std::size_t num_bytes) noexcept;

  std::string path_;
  IoFaults* faults_;
  int fd_ = -1;
  mutable std::atomic<bool> direct_{false};
  std::uint64_t dropped_to_ = 0;
};

// What is left of one read or write of a file, from one system call to the next.
class Transfer {
 public:
  Transfer() = default;
  // REQUIRES: call is kRead or kWrite.
  Transfer(const File& file, IoCall call, std::size_t num_bytes, std::uint64_t offset)
      : file_(&file), offset_(offset), num_bytes_(num_bytes), call_(call), direct_(file.direct()) {}

  const File& file() const { return *file_; }
  std::size_t done() const { return done_; }
  std::size_t left() const { return num_bytes_ - done_; }
  std::uint64_t offset() const { return offset_ + done_; }

  // Takes in what a system call for the rest gave (bytes, or -errno). True when all is through, false when the rest is
  // to be called for again. Throws DiskError, or ChecksumError where a file ends before.
  bool advance(std::int64_t result);

 private:
  [[noreturn]] void fail(int error) const;

  const File* file_ = nullptr;
  std::uint64_t offset_ = 0;
  std::size_t num_bytes_ = 0, done_ = 0;
  int tries_ = 0;  // since anything moved
  IoCall call_ = IoCall::kRead;
  bool direct_ = false;
};

}  // namespace sfctr
