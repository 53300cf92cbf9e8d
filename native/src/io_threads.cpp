#include "io_threads.h"

#include <algorithm>

namespace sfctr {

ThreadReader::ThreadReader(unsigned num_threads, std::size_t slot_bytes) : slots_(io_memory(num_threads * slot_bytes)) {
  threads_.reserve(num_threads);
  try {
    for (unsigned i = 0; i < num_threads; ++i) {
      threads_.emplace_back([this, slot = slots_.data() + i * slot_bytes] { work(slot); });
    }
  } catch (...) {
    if (threads_.empty()) throw;  // fewer do as well
  }
}

ThreadReader::~ThreadReader() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadReader::read(std::span<const ReadRequest> requests, const Deliver& deliver) {
  if (requests.empty()) return;
  Batch batch{.requests = requests, .deliver = &deliver};
  std::unique_lock lock(mutex_);
  batches_.push_back(&batch);
  for (std::size_t i = 0; i < std::min(requests.size(), threads_.size()); ++i) wake_.notify_one();
  done_.wait(lock, [&] { return batch.next == requests.size() && batch.num_busy == 0; });
  if (batch.error) std::rethrow_exception(batch.error);
}

std::exception_ptr ThreadReader::read_one(const ReadRequest& request, std::size_t number, const Deliver& deliver,
                                          std::byte* slot) noexcept {
  try {
    request.file->read({slot, request.num_bytes}, request.offset);
    deliver(number, slot);
    return nullptr;
  } catch (...) {
    return std::current_exception();
  }
}

void ThreadReader::work(std::byte* slot) {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [&] { return stopping_ || !batches_.empty(); });
    if (stopping_) return;
    Batch& batch = *batches_.front();
    const std::size_t number = batch.next++;
    ++batch.num_busy;
    if (batch.next == batch.requests.size()) batches_.erase(batches_.begin());
    lock.unlock();
    std::exception_ptr error = read_one(batch.requests[number], number, *batch.deliver, slot);
    lock.lock();
    if (error && !batch.error) {
      batch.error = std::move(error);
      if (batch.next < batch.requests.size()) std::erase(batches_, &batch);
      batch.next = batch.requests.size();
    }
    if (--batch.num_busy == 0 && batch.next == batch.requests.size()) done_.notify_all();
  }
}

}  // namespace sfctr
