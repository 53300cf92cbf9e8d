// What can go wrong between the rows and the disk. Messages say what was tried, on which file, and why it failed.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace sfctr {

// The system refused: `code` is its errno, `path` the file or directory.
class DiskError : public std::runtime_error {
 public:
  // The message is "cannot <doing> <path>: <what errno says>; <advice>", with an advice of its own for a full disk and
  // for too many open files.
  DiskError(const std::string& doing, std::string path, int code, const std::string& advice = "");

  const std::string& path() const { return path_; }
  int code() const { return code_; }

 private:
  std::string path_;
  int code_;
};

// The file holds other bytes than were written to it, or fewer: `offset` is where the damaged record begins.
class ChecksumError : public std::runtime_error {
 public:
  // The message is "<path> is damaged at byte <offset>: <found>".
  ChecksumError(const std::string& found, std::string path, std::uint64_t offset);

  const std::string& path() const { return path_; }
  std::uint64_t offset() const { return offset_; }

 private:
  std::string path_;
  std::uint64_t offset_;
};

// Every location that a log may give is taken.
class LocationsExhaustedError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace sfctr
