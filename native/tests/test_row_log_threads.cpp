// One thread appends, releases, compacts and plans reads; others run them beside it, long after the rows have moved.
#include <unistd.h>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "row_log_rig.h"

namespace {

using namespace rig;

constexpr std::size_t kRecordBytes = 240;

struct Planned {
  sfctr::Fetch fetch;
  std::vector<RecordId> ids;
  std::vector<Row> expected;
};

class Queue {
 public:
  void push(Planned planned) {
    {
      std::lock_guard lock(mutex_);
      queue_.push_back(std::move(planned));
    }
    changed_.notify_one();
  }
  void end() {
    {
      std::lock_guard lock(mutex_);
      ended_ = true;
    }
    changed_.notify_all();
  }
  // The newest and the oldest in turn, and leaves some in it: so some are read at once, some long after.
  void check_all(std::size_t keep) {
    std::unique_lock lock(mutex_);
    for (bool newest = true;; newest = !newest) {
      changed_.wait(lock, [&] { return ended_ || queue_.size() > keep; });
      if (queue_.empty()) return;
      const Planned planned = std::move(newest ? queue_.back() : queue_.front());
      newest ? queue_.pop_back() : queue_.pop_front();
      lock.unlock();
      CHECK(run_fetch(planned.fetch, planned.ids, kRecordBytes) == planned.expected);
      lock.lock();
    }
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Planned> queue_;
  bool ended_ = false;
};

void readers_beside_a_writer_get_what_was_there_when_they_were_planned(IoKind io, std::size_t num_readers) {
  TempDir directory;
  LogOptions options = small_options(directory, kRecordBytes, io);
  Twins twins(options);
  Queue queue;
  std::vector<std::thread> readers;
  for (std::size_t r = 0; r < num_readers; ++r) readers.emplace_back([&] { queue.check_all(4 * num_readers); });
  std::mt19937 random(static_cast<std::uint32_t>(num_readers));
  for (int step = 0; step < 150; ++step) {
    std::vector<RecordId> ids = ids_from(random() % 6000, random() % 400 + 1);
    twins.append(ids);
    for (int plan = 0; plan < 2; ++plan) {
      ids = twins.some(random() % 200 + 1, random);
      queue.push({twins.begin_read(ids), ids, twins.expected(ids)});
    }
    twins.release(twins.some(random() % 100, random));
    twins.compact(random() % (256 << 10));
    if (step % 40 == 0) twins.log.flush();
  }
  queue.end();
  for (std::thread& reader : readers) reader.join();
  const auto counters = twins.log.counters();
  CHECK(counters.records_moved > 0 && counters.records_from_staging > 0);
  CHECK(counters.records_read > counters.records_from_staging);
}

void more_callers_than_readers_take_turns(IoKind io) {
  TempDir directory;
  LogOptions options = small_options(directory, kRecordBytes, io);
  options.num_readers = 1;
  Twins twins(options);
  twins.append(ids_from(0, 3000));
  twins.log.flush();
  const std::vector<RecordId> ids = twins.all();
  const auto fetch = twins.begin_read(ids);
  const std::vector<Row> expected = twins.expected(ids);
  std::vector<std::thread> callers;
  for (int c = 0; c < 4; ++c) {
    callers.emplace_back([&] {
      for (int i = 0; i < 5; ++i) CHECK(run_fetch(fetch, ids, kRecordBytes) == expected);
    });
  }
  for (std::thread& caller : callers) caller.join();
}

void rings_lost_under_many_readers_cost_no_row() {
  if (!has_uring()) return;
  TempDir directory;
  IoFaults faults;
  LogOptions options = small_options(directory, kRecordBytes, IoKind::kUring);
  options.faults = &faults;
  Twins twins(options);
  twins.append(ids_from(0, 3000));
  twins.log.flush();
  const std::vector<RecordId> ids = twins.all();
  const auto fetch = twins.begin_read(ids);
  const std::vector<Row> expected = twins.expected(ids);
  faults.fail(IoCall::kRingEnter, EPERM, 30, IoFaults::kForever);
  std::vector<std::thread> callers;
  for (int c = 0; c < 4; ++c) {
    callers.emplace_back([&] {
      for (int i = 0; i < 5; ++i) CHECK(run_fetch(fetch, ids, kRecordBytes) == expected);
    });
  }
  for (std::thread& caller : callers) caller.join();
  CHECK(twins.log.counters().num_rings == 0);
}

void a_log_ends_while_writes_wait() {
  TempDir directory;
  IoFaults faults;
  LogOptions options = small_options(directory, kRecordBytes);
  options.faults = &faults;
  faults.stall(IoCall::kWrite);
  std::thread later([&] {
    usleep(20'000);
    faults.resume(IoCall::kWrite);
  });
  {
    Twins twins(options);
    twins.append(ids_from(0, 300));
  }
  later.join();
  CHECK(directory.files().empty());
}

}  // namespace

int main() {
  alarm(240);  // a test that waits for ever ends here
  for (const IoKind io : {IoKind::kAuto, IoKind::kThreads}) {
    for (const std::size_t num_readers : {1, 3}) {
      readers_beside_a_writer_get_what_was_there_when_they_were_planned(io, num_readers);
    }
    more_callers_than_readers_take_turns(io);
  }
  rings_lost_under_many_readers_cost_no_row();
  a_log_ends_while_writes_wait();
}
