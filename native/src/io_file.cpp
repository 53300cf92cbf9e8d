#include "sfctr/io_file.h"

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>

namespace sfctr {
namespace {

constexpr int kMaxTries = 1000;  // calls in a row that move nothing, before it is an error

}  // namespace

File::~File() {
  if (is_open()) ::close(fd_);
}

void File::create() {
  const auto open_with = [this](int flag) {
    return io_call(faults_, IoCall::kOpen, nullptr,
                   [&] { return ::open(path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | flag, 0666); });
  };
  std::int64_t got = open_with(O_DIRECT);
  direct_ = got >= 0;
  if (got == -EINVAL) {
    ::unlink(path_.c_str());  // some file systems refuse O_DIRECT after they have made the file
    got = open_with(0);
  }
  if (got < 0) throw DiskError("create", path_, static_cast<int>(-got));
  fd_ = static_cast<int>(got);
  // Where reads go through the page cache, read-ahead would fetch a megabyte for a row.
  if (!direct()) posix_fadvise(fd_, 0, 0, POSIX_FADV_RANDOM);
}

void File::leave_direct() const noexcept {
  const int flags = fcntl(fd_, F_GETFL);
  if (flags >= 0) fcntl(fd_, F_SETFL, flags & ~O_DIRECT);
  posix_fadvise(fd_, 0, 0, POSIX_FADV_RANDOM);
  direct_.store(false, std::memory_order_relaxed);
}

void File::write(std::span<const std::byte> data, std::uint64_t offset) {
  Transfer transfer(*this, IoCall::kWrite, data.size(), offset);
  bool all = data.empty();
  while (!all) {
    all = transfer.advance(io_call(faults_, IoCall::kWrite, nullptr, [&] {
      return ::pwrite(fd_, data.data() + transfer.done(), transfer.left(), static_cast<off_t>(transfer.offset()));
    }));
  }
  if (!direct()) drop_behind(offset, data.size());
}

void File::read(std::span<std::byte> data, std::uint64_t offset) const {
  Transfer transfer(*this, IoCall::kRead, data.size(), offset);
  bool all = data.empty();
  while (!all) {
    std::byte* const to = data.data() + transfer.done();
    all = transfer.advance(io_call(faults_, IoCall::kRead, to, [&] {
      return ::pread(fd_, to, transfer.left(), static_cast<off_t>(transfer.offset()));
    }));
  }
}

void File::sync() {
  const std::int64_t got = io_call(faults_, IoCall::kSync, nullptr, [&] { return ::fdatasync(fd_); });
  if (got < 0) throw DiskError("sync", path_, static_cast<int>(-got));
}

// Begins to write out this part, waits for those before it, and drops them: the cache then never holds more than two
// writes. All of it is advice; what fails here costs memory, not rows.
void File::drop_behind(std::uint64_t offset, std::size_t num_bytes) noexcept {
  sync_file_range(fd_, static_cast<off_t>(offset), static_cast<off_t>(num_bytes), SYNC_FILE_RANGE_WRITE);
  if (offset <= dropped_to_) return;
  const off_t from = static_cast<off_t>(dropped_to_), size = static_cast<off_t>(offset - dropped_to_);
  sync_file_range(fd_, from, size, SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
  posix_fadvise(fd_, from, size, POSIX_FADV_DONTNEED);
  dropped_to_ = offset;
}

bool Transfer::advance(std::int64_t result) {
  if (result == -EINVAL && direct_) {
    file_->leave_direct();
    direct_ = false;
    return false;
  }
  if (result < 0 && result != -EINTR && result != -EAGAIN) fail(static_cast<int>(-result));
  if (result == 0 && call_ == IoCall::kRead) {
    throw ChecksumError("the file ends before it", file_->path(), offset());
  }
  const std::size_t before = done_;
  if (result > 0) done_ += std::min(static_cast<std::size_t>(result), left());
  if (done_ == num_bytes_) return true;
  done_ -= done_ % kSector;  // O_DIRECT goes on at whole sectors only
  if (done_ > before) {
    tries_ = 0;
  } else if (++tries_ == kMaxTries) {
    fail(result < 0 ? static_cast<int>(-result) : EIO);
  } else {
    sched_yield();
  }
  return false;
}

void Transfer::fail(int error) const {
  const std::string doing = call_ == IoCall::kRead ? "read " : "write ";
  throw DiskError(doing + std::to_string(left()) + " bytes at byte " + std::to_string(offset()) + " of", file_->path(),
                  error);
}

}  // namespace sfctr
