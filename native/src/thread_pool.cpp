// A list of running loops under one mutex; workers take tasks from the oldest loop that has some left.
#include "sfctr/thread_pool.h"

#include <pthread.h>

#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace sfctr {
namespace {

#if defined(__x86_64__)
using FloatMode = unsigned int;
FloatMode float_mode() { return _mm_getcsr() & ~0x3Fu; }  // without the sticky exception flags
void set_float_mode(FloatMode mode) { _mm_setcsr(mode); }
#elif defined(__aarch64__)
using FloatMode = unsigned long;
FloatMode float_mode() {
  FloatMode mode;
  asm volatile("mrs %0, fpcr" : "=r"(mode));
  return mode;
}
void set_float_mode(FloatMode mode) { asm volatile("msr fpcr, %0" : : "r"(mode)); }
#else
using FloatMode = int;
FloatMode float_mode() { return 0; }
void set_float_mode(FloatMode) {}
#endif

struct Loop {
  detail::Task run;
  void* body;
  std::size_t num_tasks;
  FloatMode mode;
  std::atomic<std::size_t> next{0};
  int num_helpers = 0;         // workers inside; guarded by the pool's mutex
  std::exception_ptr error{};  // the first; guarded by the pool's mutex

  bool has_tasks() const { return next.load(std::memory_order_relaxed) < num_tasks; }
};

class Pool {
 public:
  void resize(int num_workers) {
    std::lock_guard alone(resize_mutex_);  // else a worker told to stop might read a later, larger size and stay
    std::vector<std::thread> stopped;
    {
      std::lock_guard lock(mutex_);
      wanted_ = num_workers;
      for (; workers_.size() > static_cast<std::size_t>(num_workers); workers_.pop_back()) {
        stopped.push_back(std::move(workers_.back()));
      }
      while (workers_.size() < static_cast<std::size_t>(num_workers)) {
        const int index = static_cast<int>(workers_.size());
        workers_.emplace_back([this, index] { work(index); });
      }
    }
    wake_.notify_all();
    for (std::thread& thread : stopped) thread.join();
  }

  void run(Loop& loop) {
    {
      std::lock_guard lock(mutex_);
      loops_.push_back(&loop);
    }
    if (loop.num_tasks == 2) {
      wake_.notify_one();
    } else {
      wake_.notify_all();
    }
    drain(loop);
    std::unique_lock lock(mutex_);
    std::erase(loops_, &loop);
    done_.wait(lock, [&] { return loop.num_helpers == 0; });
  }

  void drain(Loop& loop) noexcept {
    while (true) {
      const std::size_t task = loop.next.fetch_add(1, std::memory_order_relaxed);
      if (task >= loop.num_tasks) return;
      try {
        loop.run(loop.body, task);
      } catch (...) {
        std::lock_guard lock(mutex_);
        if (!loop.error) loop.error = std::current_exception();
        loop.next.store(loop.num_tasks, std::memory_order_relaxed);
      }
    }
  }

 private:
  Loop* find_loop() {
    for (Loop* loop : loops_) {
      if (loop->has_tasks()) return loop;
    }
    return nullptr;
  }

  void work(int index) {
    std::unique_lock lock(mutex_);
    while (true) {
      Loop* loop = nullptr;
      wake_.wait(lock, [&] { return index >= wanted_ || (loop = find_loop()) != nullptr; });
      if (index >= wanted_) return;
      ++loop->num_helpers;
      lock.unlock();
      set_float_mode(loop->mode);
      drain(*loop);
      lock.lock();
      if (--loop->num_helpers == 0) done_.notify_all();
    }
  }

  std::mutex resize_mutex_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable done_;
  std::vector<Loop*> loops_;          // guarded by mutex_
  std::vector<std::thread> workers_;  // guarded by mutex_
  int wanted_ = 0;                    // guarded by mutex_
};

// How many threads were asked for outlives a fork; the pool of the parent does not (its threads are not there, and its
// mutex may be held by one of them), so the child leaks it and begins anew.
std::atomic<int> asked_threads{1};
std::atomic<Pool*> the_pool{nullptr};

void forget_pool() { the_pool.store(nullptr, std::memory_order_relaxed); }

Pool& pool() {
  Pool* found = the_pool.load(std::memory_order_acquire);
  if (found) return *found;
  static const int registered = pthread_atfork(nullptr, nullptr, forget_pool);
  static_cast<void>(registered);
  auto made = std::make_unique<Pool>();
  if (the_pool.compare_exchange_strong(found, made.get(), std::memory_order_acq_rel)) {
    Pool* const kept = made.release();  // lives as long as the process: a worker may outlive static destructors
    kept->resize(asked_threads.load() - 1);
    return *kept;
  }
  return *found;
}

}  // namespace

int num_threads() { return asked_threads.load(); }

void set_num_threads(int n) {
  if (n < 1 || n > 1024) {
    throw std::invalid_argument("the number of threads is " + std::to_string(n) + " and must be 1 to 1024");
  }
  asked_threads.store(n);
  pool().resize(n - 1);
}

void detail::run_tasks(std::size_t num_tasks, Task run, void* body) {
  if (num_tasks <= 1 || num_threads() == 1) {
    for (std::size_t task = 0; task < num_tasks; ++task) run(body, task);
    return;
  }
  Loop loop{.run = run, .body = body, .num_tasks = num_tasks, .mode = float_mode()};
  pool().run(loop);
  if (loop.error) std::rethrow_exception(loop.error);
}

}  // namespace sfctr
