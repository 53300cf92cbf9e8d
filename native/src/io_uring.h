// Reads through one io_uring, by the kernel's own interface (linux/io_uring.h): no library is needed.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "sfctr/io_reader.h"

struct io_uring_cqe;
struct io_uring_sqe;

namespace sfctr {

class UringReader {
 public:
  // Null where the system does not give one, with `error` the errno: forbidden, unknown, too old (before Linux 5.6), or
  // out of locked memory. Throws std::bad_alloc.
  static std::unique_ptr<UringReader> make(unsigned depth, std::size_t slot_bytes, IoFaults* faults, int& error);
  ~UringReader();

  // As Readers::read, one caller at a time. False if the system took the ring away half-way: nothing is in flight then,
  // the ring is of no further use, and the caller has to read all requests in another way.
  bool read(std::span<const ReadRequest> requests, const Deliver& deliver);
  std::size_t memory_bytes() const { return slots_.num_bytes() + ring_bytes_ + sqes_bytes_; }

 private:
  struct Slot {
    Transfer transfer;
    std::size_t request;
  };
  class Run;

  UringReader(unsigned depth, std::size_t slot_bytes, IoFaults* faults);
  int set_up();
  int map_rings(const void* params);
  bool register_slots();
  std::byte* data_of(std::size_t slot) const { return slots_.data() + slot * slot_bytes_; }
  void push(std::size_t slot);
  std::int64_t enter(unsigned to_submit, unsigned to_wait_for);
  bool has_answers() const;
  bool pop(std::size_t& slot, std::int64_t& result);

  unsigned depth_;
  std::size_t slot_bytes_;
  IoFaults* faults_;
  Pages slots_;
  std::vector<Slot> in_slots_;
  int fd_ = -1;
  bool fixed_ = false;  // slots_ is registered
  // Shared with the kernel; a ring's size is a power of two, and its mask that less one.
  std::byte* ring_ = nullptr;
  std::size_t ring_bytes_ = 0, sqes_bytes_ = 0;
  io_uring_sqe* sqes_ = nullptr;
  io_uring_cqe* cqes_ = nullptr;
  unsigned *sq_tail_ = nullptr, *cq_head_ = nullptr, *cq_tail_ = nullptr;
  unsigned sq_mask_ = 0, cq_mask_ = 0;
  unsigned pushed_ = 0;  // not yet submitted
};

}  // namespace sfctr
