// Every task runs once, whoever calls; exceptions come back; the number of threads changes no result.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <stdexcept>
#include <thread>
#include <vector>

#include "check.h"
#include "sfctr/thread_pool.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace {

void every_task_runs_once() {
  for (std::size_t num_tasks : {0u, 1u, 2u, 3u, 1000u}) {
    std::vector<std::atomic<int>> runs(num_tasks);
    sfctr::parallel_for(num_tasks, [&](std::size_t task) { ++runs[task]; });
    for (const auto& count : runs) CHECK(count == 1);
  }
}

void ranges_cover_all_and_depend_on_the_size_alone() {
  std::vector<int> covered(1003, 0);
  sfctr::parallel_ranges(covered.size(), 100, [&](std::size_t begin, std::size_t end) {
    CHECK(begin % 100 == 0 && end - begin == (begin == 1000 ? 3 : 100));
    for (std::size_t i = begin; i < end; ++i) ++covered[i];
  });
  for (int count : covered) CHECK(count == 1);
}

void an_exception_of_a_task_comes_back_and_the_pool_goes_on() {
  for (int round = 0; round < 50; ++round) {
    std::atomic<int> started{0};
    CHECK_THROWS(std::out_of_range, sfctr::parallel_for(100, [&](std::size_t task) {
                   ++started;
                   if (task == 7) throw std::out_of_range("task 7");
                 }));
    CHECK(started >= 1);
  }
  every_task_runs_once();
}

void an_exception_inside_a_loop_inside_a_task_comes_back() {
  std::atomic<int> inner{0};
  CHECK_THROWS(std::domain_error, sfctr::parallel_for(4, [&](std::size_t) {
                 sfctr::parallel_for(8, [&](std::size_t task) {
                   if (++inner; task == 3) throw std::domain_error("inner");
                 });
               }));
}

void loops_inside_tasks_do_not_wait_for_each_other() {
  std::atomic<int> total{0};
  sfctr::parallel_for(8, [&](std::size_t) { sfctr::parallel_for(50, [&](std::size_t) { ++total; }); });
  CHECK(total == 400);
}

void several_callers_share_the_pool() {
  std::vector<std::thread> callers;
  std::atomic<int> total{0};
  for (int c = 0; c < 4; ++c) {
    callers.emplace_back([&] {
      for (int i = 0; i < 100; ++i) sfctr::parallel_for(20, [&](std::size_t) { ++total; });
    });
  }
  for (std::thread& caller : callers) caller.join();
  CHECK(total == 4 * 100 * 20);
}

void sums_in_fixed_chunks_are_the_same_for_any_number_of_threads() {
  std::vector<float> values(100'000);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = 1.0f / static_cast<float>(i + 1);
  const auto sum = [&] {
    std::vector<float> parts((values.size() + 999) / 1000, 0);
    sfctr::parallel_ranges(values.size(), 1000, [&](std::size_t begin, std::size_t end) {
      for (std::size_t i = begin; i < end; ++i) parts[begin / 1000] += values[i];
    });
    float total = 0;
    for (float part : parts) total += part;
    return total;
  };
  sfctr::set_num_threads(1);
  const float expected = sum();
  for (int threads = 2; threads <= 4; ++threads) {
    sfctr::set_num_threads(threads);
    for (int round = 0; round < 20; ++round) CHECK(sum() == expected);
  }
}

void workers_run_in_the_callers_floating_point_mode() {
#if defined(__x86_64__)
  constexpr unsigned kFlush = 0x8040;  // flush to zero, denormals are zero
  for (unsigned mode : {0x1F80u, 0x1F80u | kFlush, 0x1F80u}) {
    _mm_setcsr(mode);
    for (int round = 0; round < 50; ++round) {
      sfctr::parallel_for(16, [&](std::size_t) {
        CHECK((_mm_getcsr() & kFlush) == (mode & kFlush));
        std::this_thread::yield();
      });
    }
  }
#endif
}

void a_forked_child_has_its_own_workers() {
#if !defined(__SANITIZE_THREAD__)  // which follows no fork of a process with threads
  sfctr::set_num_threads(3);
  every_task_runs_once();
  const pid_t child = fork();
  if (child == 0) {
    every_task_runs_once();
    _exit(0);
  }
  int status = 1;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
#endif
}

void an_impossible_number_of_threads_is_refused() {
  CHECK_THROWS(std::invalid_argument, sfctr::set_num_threads(0));
  CHECK_THROWS(std::invalid_argument, sfctr::set_num_threads(1025));
}

}  // namespace

int main() {
  CHECK(sfctr::num_threads() == 1);
  for (int threads : {1, 2, 4, 3}) {
    sfctr::set_num_threads(threads);
    CHECK(sfctr::num_threads() == threads);
    every_task_runs_once();
    ranges_cover_all_and_depend_on_the_size_alone();
    an_exception_of_a_task_comes_back_and_the_pool_goes_on();
    an_exception_inside_a_loop_inside_a_task_comes_back();
    loops_inside_tasks_do_not_wait_for_each_other();
    several_callers_share_the_pool();
    workers_run_in_the_callers_floating_point_mode();
  }
  sums_in_fixed_chunks_are_the_same_for_any_number_of_threads();
  an_impossible_number_of_threads_is_refused();
  a_forked_child_has_its_own_workers();
}
