// One pool of worker threads for the whole process. It promises that nothing computed through it depends on how many
// threads there are: the caller cuts its work into tasks whose bounds follow from the data alone, and the pool only
// decides who runs which task.
//
// Workers sleep on a condition variable (a team that spins collapses when a core is contended). Several threads may
// call `parallel_for` at once, and a task may call it again: whoever calls takes part in its own loop, so nothing waits
// for a thread that might never come. A forked child starts with no workers and makes its own.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <type_traits>

namespace sfctr {

// Threads that a loop may use, its caller included. At first 1.
int num_threads();

// REQUIRES: 1 <= n <= 1024, else throws std::invalid_argument and changes nothing. Loops that are running keep the
// workers they have. Throws std::system_error where the system gives no thread; the pool then has those it got.
void set_num_threads(int n);

namespace detail {
using Task = void (*)(void* body, std::size_t task);
void run_tasks(std::size_t num_tasks, Task run, void* body);
}  // namespace detail

// Calls body(i) once for every i in [0, num_tasks), in no order, perhaps on several threads, and returns when all are
// done. Workers run under the caller's floating point mode (denormals, rounding). The first exception that a task
// throws is rethrown here once the tasks in flight have ended; tasks not yet begun are then left out.
template <class Body>
void parallel_for(std::size_t num_tasks, Body&& body) {
  using Plain = std::remove_reference_t<Body>;
  detail::run_tasks(
      num_tasks, [](void* erased, std::size_t task) { (*static_cast<Plain*>(erased))(task); },
      const_cast<std::remove_const_t<Plain>*>(std::addressof(body)));
}

// The same over [0, size) in ranges of `grain`: calls body(begin, end).
template <class Body>
void parallel_ranges(std::size_t size, std::size_t grain, Body&& body) {
  parallel_for((size + grain - 1) / grain, [&](std::size_t task) {
    const std::size_t begin = task * grain;
    body(begin, begin + grain < size ? begin + grain : size);
  });
}

}  // namespace sfctr
