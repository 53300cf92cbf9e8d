#include "io_uring.h"

#if __has_include(<linux/io_uring.h>)
#include <linux/io_uring.h>
#endif
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>

namespace sfctr {

#ifdef IORING_FEAT_RW_CUR_POS  // headers of Linux 5.6 or later

namespace {

constexpr unsigned kCoopTaskrun = 1U << 8;  // IORING_SETUP_COOP_TASKRUN, Linux 5.19: fewer interrupts of this thread
constexpr unsigned kNeeded = IORING_FEAT_SINGLE_MMAP | IORING_FEAT_NODROP | IORING_FEAT_RW_CUR_POS;  // all in Linux 5.6
constexpr int kMaxRefusals = 1000;

unsigned load_acquire(unsigned* at) { return std::atomic_ref(*at).load(std::memory_order_acquire); }
void store_release(unsigned* at, unsigned value) { std::atomic_ref(*at).store(value, std::memory_order_release); }

void sleep_a_while() {
  const timespec pause{.tv_sec = 0, .tv_nsec = 100'000};
  nanosleep(&pause, nullptr);
}

}  // namespace

// One call of read. A slot is free, or on its way to the kernel (`ready_`), or in flight.
class UringReader::Run {
 public:
  Run(UringReader& ring, std::span<const ReadRequest> requests, const Deliver& deliver)
      : ring_(ring), requests_(requests), deliver_(deliver), wait_for_(std::max(1U, ring.depth_ / 8)) {
    for (std::size_t slot = ring.depth_; slot-- > 0;) free_.push_back(slot);
  }

  bool read() {
    while (true) {
      if (!error_) {
        fill();
        start_ready();
      }
      if (in_flight_ == 0 && (error_ || (ready_.empty() && next_ == requests_.size()))) break;
      if (in_flight_ == 0) continue;
      if (!submit_and_wait()) return false;
      reap();
    }
    if (error_) std::rethrow_exception(error_);
    return true;
  }

 private:
  void fill() {
    for (; !free_.empty() && next_ < requests_.size(); ++next_) {
      const std::size_t slot = free_.back();
      free_.pop_back();
      const ReadRequest& request = requests_[next_];
      ring_.in_slots_[slot] = {Transfer(*request.file, IoCall::kRead, request.num_bytes, request.offset), next_};
      ready_.push_back(slot);
    }
  }

  void start_ready() {
    starting_.swap(ready_);
    for (const std::size_t slot : starting_) {
      const int fault = ring_.faults_ ? ring_.faults_->begin(IoCall::kRead) : 0;
      if (fault) {
        take_in(slot, -fault);
      } else {
        ring_.push(slot);
        ++in_flight_;
      }
    }
    starting_.clear();
  }

  // At least one read is answered when it returns true.
  bool submit_and_wait() {
    for (int refusals = 0; refusals < kMaxRefusals;) {
      const std::int64_t got = ring_.enter(ring_.pushed_, std::min(in_flight_, wait_for_));
      if (got >= 0) ring_.pushed_ -= static_cast<unsigned>(got);
      if (ring_.has_answers()) return true;
      if (got > 0 || got == -EINTR) continue;
      if (got < 0 && got != -EAGAIN && got != -EBUSY) break;
      ++refusals;
      sleep_a_while();
    }
    give_up();
    return false;
  }

  // The ring takes no more calls, but what it took before still writes into our memory: waits until it has.
  void give_up() noexcept {
    in_flight_ -= ring_.pushed_;
    std::size_t slot;
    std::int64_t result;
    while (in_flight_ > 0) {
      if (ring_.pop(slot, result)) {
        --in_flight_;
      } else {
        sleep_a_while();
      }
    }
  }

  void reap() {
    std::size_t slot;
    std::int64_t result;
    while (ring_.pop(slot, result)) {
      --in_flight_;
      if (ring_.faults_) {
        std::byte* const to = ring_.data_of(slot) + ring_.in_slots_[slot].transfer.done();
        result = ring_.faults_->end(IoCall::kRead, result, to);
      }
      take_in(slot, result);
    }
  }

  void take_in(std::size_t slot, std::int64_t result) noexcept {
    try {
      if (!ring_.in_slots_[slot].transfer.advance(result)) {
        ready_.push_back(slot);
        return;
      }
      if (!error_) deliver_(ring_.in_slots_[slot].request, ring_.data_of(slot));
    } catch (...) {
      if (!error_) error_ = std::current_exception();
    }
    free_.push_back(slot);
  }

  UringReader& ring_;
  std::span<const ReadRequest> requests_;
  const Deliver& deliver_;
  unsigned wait_for_;  // answers: few enough to keep the disk busy, enough to be worth a system call
  std::size_t next_ = 0;
  unsigned in_flight_ = 0;  // those pushed and not yet submitted included
  std::vector<std::size_t> free_, ready_, starting_;
  std::exception_ptr error_;
};

UringReader::UringReader(unsigned depth, std::size_t slot_bytes, IoFaults* faults)
    : depth_(depth),
      slot_bytes_(slot_bytes),
      faults_(faults),
      slots_(io_memory(depth * slot_bytes)),
      in_slots_(depth) {}

UringReader::~UringReader() {
  if (sqes_) munmap(sqes_, sqes_bytes_);
  if (ring_) munmap(ring_, ring_bytes_);
  if (fd_ >= 0) ::close(fd_);
}

std::unique_ptr<UringReader> UringReader::make(unsigned depth, std::size_t slot_bytes, IoFaults* faults, int& error) {
  std::unique_ptr<UringReader> made(new UringReader(depth, slot_bytes, faults));
  error = made->set_up();
  return error ? nullptr : std::move(made);
}

int UringReader::set_up() {
  io_uring_params params{};
  const auto set_up_with = [&](unsigned flags) {
    params = {};
    params.flags = flags;
    return io_call(faults_, IoCall::kRingSetup, nullptr, [&] { return syscall(__NR_io_uring_setup, depth_, &params); });
  };
  std::int64_t got = set_up_with(kCoopTaskrun);
  if (got == -EINVAL) got = set_up_with(0);
  if (got < 0) return static_cast<int>(-got);
  fd_ = static_cast<int>(got);
  return (params.features & kNeeded) == kNeeded ? map_rings(&params) : ENOSYS;
}

int UringReader::map_rings(const void* params) {
  const auto& p = *static_cast<const io_uring_params*>(params);
  const auto map = [this](std::size_t num_bytes, off_t what) {
    return mmap(nullptr, num_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd_, what);
  };
  ring_bytes_ = std::max<std::size_t>(p.sq_off.array + p.sq_entries * sizeof(unsigned),
                                      p.cq_off.cqes + p.cq_entries * sizeof(io_uring_cqe));
  void* const ring = map(ring_bytes_, IORING_OFF_SQ_RING);
  if (ring == MAP_FAILED) return errno;
  ring_ = static_cast<std::byte*>(ring);
  sqes_bytes_ = p.sq_entries * sizeof(io_uring_sqe);
  void* const sqes = map(sqes_bytes_, IORING_OFF_SQES);
  if (sqes == MAP_FAILED) return errno;
  sqes_ = static_cast<io_uring_sqe*>(sqes);
  const auto word = [this](unsigned offset) { return reinterpret_cast<unsigned*>(ring_ + offset); };
  sq_tail_ = word(p.sq_off.tail);
  cq_head_ = word(p.cq_off.head);
  cq_tail_ = word(p.cq_off.tail);
  sq_mask_ = *word(p.sq_off.ring_mask);
  cq_mask_ = *word(p.cq_off.ring_mask);
  cqes_ = reinterpret_cast<io_uring_cqe*>(ring_ + p.cq_off.cqes);
  for (unsigned i = 0; i < p.sq_entries; ++i) word(p.sq_off.array)[i] = i;
  fixed_ = register_slots();
  return 0;
}

// Saves the kernel the look-up of our pages for each read. Refused where little memory may be locked.
bool UringReader::register_slots() {
  const iovec all{.iov_base = slots_.data(), .iov_len = slots_.num_bytes()};
  return io_call(faults_, IoCall::kRingRegister, nullptr,
                 [&] { return syscall(__NR_io_uring_register, fd_, IORING_REGISTER_BUFFERS, &all, 1); }) == 0;
}

// REQUIRES: fewer than depth_ are pushed and not submitted.
void UringReader::push(std::size_t slot) {
  const Transfer& transfer = in_slots_[slot].transfer;
  const unsigned tail = *sq_tail_;  // ours alone to change
  io_uring_sqe& sqe = sqes_[tail & sq_mask_];
  std::memset(&sqe, 0, sizeof sqe);
  sqe.opcode = fixed_ ? IORING_OP_READ_FIXED : IORING_OP_READ;
  sqe.fd = transfer.file().fd();
  sqe.off = transfer.offset();
  sqe.addr = reinterpret_cast<std::uint64_t>(data_of(slot) + transfer.done());
  sqe.len = static_cast<unsigned>(transfer.left());
  sqe.user_data = slot;
  store_release(sq_tail_, tail + 1);
  ++pushed_;
}

std::int64_t UringReader::enter(unsigned to_submit, unsigned to_wait_for) {
  return io_call(faults_, IoCall::kRingEnter, nullptr, [&] {
    return syscall(__NR_io_uring_enter, fd_, to_submit, to_wait_for, IORING_ENTER_GETEVENTS, nullptr, 0);
  });
}

bool UringReader::has_answers() const { return load_acquire(cq_tail_) != *cq_head_; }

bool UringReader::pop(std::size_t& slot, std::int64_t& result) {
  if (!has_answers()) return false;
  const unsigned head = *cq_head_;  // ours alone to change
  const io_uring_cqe& cqe = cqes_[head & cq_mask_];
  slot = cqe.user_data;
  result = cqe.res;
  store_release(cq_head_, head + 1);
  return true;
}

bool UringReader::read(std::span<const ReadRequest> requests, const Deliver& deliver) {
  return Run(*this, requests, deliver).read();
}

#else  // built where io_uring was not known: threads read

UringReader::~UringReader() = default;
std::unique_ptr<UringReader> UringReader::make(unsigned, std::size_t, IoFaults*, int& error) {
  error = ENOSYS;
  return nullptr;
}
bool UringReader::read(std::span<const ReadRequest>, const Deliver&) { return false; }

#endif

}  // namespace sfctr
