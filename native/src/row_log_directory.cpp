#include "row_log_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "sfctr/io_errors.h"
#include "sfctr/io_file.h"

namespace sfctr {
namespace {

constexpr std::string_view kPrefix = "segment-", kSuffix = ".rows";
constexpr std::size_t kDigits = 16;

bool is_segment_name(std::string_view name) {
  if (name.size() != kPrefix.size() + kDigits + kSuffix.size()) return false;
  if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix)) return false;
  const std::string_view digits = name.substr(kPrefix.size(), kDigits);
  return digits.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

}  // namespace

LogDirectory::LogDirectory(std::string path, IoFaults* faults) : path_(std::move(path)), faults_(faults) {
  std::error_code error;
  std::filesystem::create_directories(path_, error);
  if (error) throw DiskError("make directory", path_, error.value());
  fd_ = ::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd_ < 0) throw DiskError("open directory", path_, errno);
  try {
    lock();
    remove_segments();
  } catch (...) {
    ::close(fd_);
    throw;
  }
}

LogDirectory::~LogDirectory() { ::close(fd_); }

void LogDirectory::lock() const {
  if (flock(fd_, LOCK_EX | LOCK_NB) == 0) return;
  const int code = errno;
  throw DiskError("lock directory", path_, code,
                  code == EWOULDBLOCK ? "another log has it: end that one or choose another directory" : "");
}

// Whoever wrote them is gone, or the lock would be taken.
void LogDirectory::remove_segments() const {
  std::vector<std::filesystem::path> found;
  std::error_code error;
  for (std::filesystem::directory_iterator it(path_, error), end; !error && it != end; it.increment(error)) {
    if (is_segment_name(it->path().filename().native())) found.push_back(it->path());
  }
  if (error) throw DiskError("read directory", path_, error.value());
  for (const auto& file : found) {
    if (::unlink(file.c_str()) != 0) throw DiskError("remove", file.native(), errno);
  }
}

std::string LogDirectory::segment_path(std::uint64_t sequence) const {
  char digits[kDigits + 1];
  std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(sequence));
  return path_ + "/" + std::string(kPrefix) + digits + std::string(kSuffix);
}

void LogDirectory::sync() const {
  const std::int64_t got = io_call(faults_, IoCall::kSync, nullptr, [this] { return ::fsync(fd_); });
  if (got < 0) throw DiskError("sync", path_, static_cast<int>(-got));
}

}  // namespace sfctr
