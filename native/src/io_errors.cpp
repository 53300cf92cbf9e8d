#include "sfctr/io_errors.h"

#include <cerrno>
#include <system_error>
#include <utility>

namespace sfctr {
namespace {

std::string advice_on(int code) {
  switch (code) {
    case ENOSPC:
    case EDQUOT:
      return "free space on that disk or choose a directory on another";
    case EMFILE:
      return "raise the hard limit of open files (ulimit -Hn): each part of the rows on disk is one";
    default:
      return "";
  }
}

std::string after_semicolon(const std::string& advice) { return advice.empty() ? "" : "; " + advice; }

}  // namespace

DiskError::DiskError(const std::string& doing, std::string path, int code, const std::string& advice)
    : std::runtime_error("cannot " + doing + " " + path + ": " + std::system_category().message(code) +
                         after_semicolon(advice.empty() ? advice_on(code) : advice)),
      path_(std::move(path)),
      code_(code) {}

ChecksumError::ChecksumError(const std::string& found, std::string path, std::uint64_t offset)
    : std::runtime_error(path + " is damaged at byte " + std::to_string(offset) + ": " + found),
      path_(std::move(path)),
      offset_(offset) {}

}  // namespace sfctr
