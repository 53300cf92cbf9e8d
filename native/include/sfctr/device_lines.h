// Lines: the places for records on a device, numbered from 0, and whose record lies in each. What is known of them is
// kept on the host; the records are somebody else's.
//
//   taken, empty -> fill() -> full, clean <-> full, dirty -> empty() -> taken, empty -> give()
//
// A row in a line has a frame in RAM as well (frames.h), whose record is the line's unless the line is dirty: then the
// line's is the row. A line is pinned by every batch in flight that uses its row, or that waits for the line.
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "sfctr/budget.h"
#include "sfctr/clock.h"
#include "sfctr/frames.h"
#include "sfctr/index.h"
#include "sfctr/slab.h"

namespace sfctr {

class DeviceLines {
 public:
  static constexpr std::uint32_t kNone = 0xFFFFFFFF;

  // What is kept about a line counts as RAM.
  DeviceLines(std::size_t num_lines, Policy policy, std::shared_ptr<Budget> budget);
  ~DeviceLines();
  DeviceLines(const DeviceLines&) = delete;

  std::size_t num_lines() const { return num_lines_; }
  std::size_t num_taken() const { return num_taken_; }
  std::size_t num_dirty() const { return num_dirty_; }
  std::uint32_t end() const { return contents_.end(); }  // of the lines that were ever taken

  // No line is taken beyond so many.
  void set_bound(std::size_t num_lines) { bound_ = num_lines; }
  std::size_t bound() const { return bound_ < num_lines_ ? bound_ : num_lines_; }

  // lines[i] becomes the line that holds the row of frames[i], or kNone.
  void find(std::span<const std::uint64_t> frames, std::uint32_t* lines) const { of_frame_.find(frames, lines); }
  std::uint32_t find(std::uint32_t frame) const { return of_frame_.find(frame); }

  // An empty line, or kNone where the bound leaves none. Throws std::bad_alloc.
  std::uint32_t take();
  // REQUIRES: empty, without pins.
  void give(std::uint32_t line) noexcept;
  // Gives back what is kept about free lines at the end, down to the bound.
  void shrink();
  // So that filling so many lines cannot fail. Throws std::bad_alloc.
  void reserve(std::size_t num_lines) { of_frame_.reserve(of_frame_.size() + num_lines); }
  // REQUIRES: empty, reserved for.
  void fill(std::uint32_t line, std::uint32_t frame, Owner owner);
  // Returns the frame that the row has. REQUIRES: full, clean.
  std::uint32_t empty(std::uint32_t line);

  bool is_full(std::uint32_t line) const { return content(line).frame != kNone; }
  std::uint32_t frame(std::uint32_t line) const { return content(line).frame; }
  Owner owner(std::uint32_t line) const { return {content(line).key, content(line).table}; }
  bool is_dirty(std::uint32_t line) const { return content(line).dirty; }
  void set_dirty(std::uint32_t line, bool dirty);

  void pin(std::uint32_t line) { clock_.pin(line); }
  void unpin(std::uint32_t line) { clock_.unpin(line); }
  std::uint32_t num_pins(std::uint32_t line) const { return clock_.num_pins(line); }
  void note_use(std::uint32_t line) { clock_.note_use(line); }
  // At most n full lines whose rows may leave the device, as Clock::choose() says.
  std::vector<std::uint32_t> choose(std::size_t n, const Frames::NextUse& next_use);

  std::size_t memory_bytes() const;

 private:
  struct Content {
    std::uint64_t key;
    std::uint32_t table;  // native table
    std::uint32_t frame;  // kNone: empty
    bool dirty;
  };
  static constexpr std::size_t kBytes = sizeof(Content) + Clock::kBytes + kIndexBytes;  // of a line, in RAM

  void add();
  Content& content(std::uint32_t line) const { return *reinterpret_cast<Content*>(contents_.at(line)); }

  const std::size_t num_lines_;
  std::size_t bound_ = kNone;
  std::shared_ptr<Budget> budget_;
  Clock clock_;
  Slab contents_;
  Index of_frame_;
  std::vector<std::uint32_t> free_;
  std::size_t num_taken_ = 0, num_dirty_ = 0;
};

}  // namespace sfctr
