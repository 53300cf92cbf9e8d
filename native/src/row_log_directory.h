// The directory of a log: made if it is not there, locked for as long as the log lives, and free of earlier segments.
#pragma once

#include <cstdint>
#include <string>

#include "sfctr/io_faults.h"

namespace sfctr {

class LogDirectory {
 public:
  // Throws DiskError where it cannot be made or read, or where another log has it.
  LogDirectory(std::string path, IoFaults* faults);
  ~LogDirectory();
  LogDirectory(const LogDirectory&) = delete;
  LogDirectory& operator=(const LogDirectory&) = delete;

  const std::string& path() const { return path_; }
  std::string segment_path(std::uint64_t sequence) const;
  // The names in it are on the disk when this returns. Throws DiskError.
  void sync() const;

 private:
  void lock() const;
  void remove_segments() const;

  std::string path_;
  IoFaults* faults_;
  int fd_ = -1;
};

}  // namespace sfctr
