// One thread plans and fetches ahead, or two do, and lifts rows to a device, another trains, removes and reads, a third
// takes snapshots, over caches of a few rows and disks that fail: every read, every snapshot and the end are those of a
// map.
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "snapshot_rig.h"

namespace {

using namespace rig;

struct Plan {
  GroupSetup setup;
  std::uint64_t seed = 0;
  std::size_t num_batches = kSanitized ? 250 : 1500;
  std::size_t most_rows = 6;
  std::size_t known = 2;   // batches announced beyond the one that is planned
  std::size_t unread = 1;  // batches planned and not yet fetched, beyond the one that is
  std::size_t ahead = 3;   // batches fetched and not yet in training
  bool is_saved = true;    // snapshots are taken
  bool beside = false;     // a thread of its own fetches, and no batch is forgotten or refused
};

// Batches on their way from the thread that plans to the one that trains.
class Ready {
 public:
  explicit Ready(std::size_t most) : most_(most) {}

  void push(std::unique_ptr<Batch> batch) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return batches_.size() < most_; });
    batches_.push_back(std::move(batch));
    changed_.notify_all();
  }
  void close() {
    std::lock_guard lock(mutex_);
    is_closed_ = true;
    changed_.notify_all();
  }
  std::unique_ptr<Batch> pop() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return is_closed_ || !batches_.empty(); });
    if (batches_.empty()) return nullptr;
    std::unique_ptr<Batch> batch = std::move(batches_.front());
    batches_.pop_front();
    changed_.notify_all();
    return batch;
  }
  void ended() {
    std::lock_guard lock(mutex_);
    ++num_ended_;
    changed_.notify_all();
  }
  std::size_t num_ended() {
    std::lock_guard lock(mutex_);
    return num_ended_;
  }
  void wait_for_end(std::size_t since) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return num_ended_ != since; });
  }

 private:
  const std::size_t most_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::unique_ptr<Batch>> batches_;
  std::size_t num_ended_ = 0;
  bool is_closed_ = false;
};

class Stress {
 public:
  explicit Stress(const Plan& plan)
      : plan_(plan),
        group_(make_group(plan.setup, directory_, budget_)),
        device_(*group_, plan.setup.num_lines),
        twin_(*group_, plan.setup.rule, plan.setup.num_lines > 0 ? &device_ : nullptr),
        saver_(*group_) {}

  // Until all batches have ended, or the disk has failed for good.
  void run() {
    std::thread planner([this] { plan_.beside ? plan_beside() : plan_all(); });
    std::mt19937_64 random(plan_.seed + 1);
    for (std::size_t n = 0; std::unique_ptr<Batch> batch = ready_.pop(); ++n) {
      twin_.end(*batch);
      ready_.ended();
      if (n % 5 == 0) read_some(random);
      if (plan_.is_saved && n % 7 == 0) save(random);
      CHECK(twin_.num_wrong() == 0);
    }
    planner.join();
    if (taker_.joinable()) end_snapshot(true);
    check_end();
  }

  bool has_failed() const { return has_failed_; }
  std::size_t num_refused() const { return num_refused_; }
  std::size_t num_unread() const { return num_unread_; }
  std::size_t num_saved() const { return num_saved_; }
  sfctr::GroupCounters counters() const { return group_->counters(); }
  sfctr::LogCounters log_counters() const { return group_->log_counters(); }

 private:
  void plan_all() {
    std::mt19937_64 random(plan_.seed);
    for (std::size_t made = 0; !has_failed_;) {
      for (; made < plan_.num_batches && known_.size() <= plan_.known; ++made) {
        known_.push_back(random_batch(random));
        if (plan_.known > 0) group_->announce(known_.back()->ws);
      }
      if (known_.empty() && planned_.empty()) break;
      if (known_.empty() || planned_.size() > plan_.unread) {
        fetch_oldest(random() % 16 == 0);
        continue;
      }
      std::unique_ptr<Batch> batch = std::move(known_.front());
      known_.pop_front();
      if (random() % 16 == 0) {
        group_->discard(batch->ws);
      } else {
        plan_one(std::move(batch));
      }
    }
    for (const auto* waiting : {&planned_, &known_}) {
      for (const std::unique_ptr<Batch>& batch : *waiting) group_->discard(batch->ws);
    }
    ready_.close();
  }

  // Plans while the batches before are being read.
  void plan_beside() {
    std::thread fetcher([this] {
      while (std::unique_ptr<Batch> batch = planned_beside_.pop()) {
        group_->fetch(batch->ws);
        ready_.push(std::move(batch));
      }
      ready_.close();
    });
    std::mt19937_64 random(plan_.seed);
    for (std::size_t made = 0; made < plan_.num_batches || !known_.empty();) {
      for (; made < plan_.num_batches && known_.size() <= plan_.known; ++made) {
        known_.push_back(random_batch(random));
        if (plan_.known > 0) group_->announce(known_.back()->ws);
      }
      std::unique_ptr<Batch> batch = std::move(known_.front());
      known_.pop_front();
      for (std::size_t seen = ready_.num_ended(); !group_->plan(batch->ws); seen = ready_.num_ended()) {
        ready_.wait_for_end(seen);
      }
      planned_beside_.push(std::move(batch));
    }
    planned_beside_.close();
    fetcher.join();
  }

  void plan_one(std::unique_ptr<Batch> batch) {
    const std::size_t seen = ready_.num_ended();
    try {
      if (group_->plan(batch->ws)) return planned_.push_back(std::move(batch));
      known_.push_front(std::move(batch));
      planned_.empty() ? ready_.wait_for_end(seen) : fetch_oldest(false);
    } catch (const sfctr::DiskError& error) {
      refuse(error, std::move(batch));
    }
  }

  // A batch whose rows could not be read, or one that shares them, is planned again.
  void fetch_oldest(bool forget) {
    std::unique_ptr<Batch> batch = std::move(planned_.front());
    planned_.pop_front();
    if (forget) return group_->discard(batch->ws);
    try {
      group_->fetch(batch->ws);
      lift(*batch);
      ready_.push(std::move(batch));
    } catch (const sfctr::DiskError& error) {
      refuse(error, std::move(batch));
    } catch (const sfctr::ChecksumError&) {
      throw;
    } catch (const std::runtime_error&) {
      known_.push_front(std::move(batch));
    }
  }

  std::unique_ptr<Batch> random_batch(std::mt19937_64& random) const {
    return Batch::random(random, plan_.setup.num_keys, plan_.most_rows, plan_.setup.rule.rare);
  }

  void lift(Batch& batch) {
    if (plan_.setup.num_lines == 0) return;
    for (std::size_t seen = ready_.num_ended(); !device_.lift(batch.ws); seen = ready_.num_ended()) {
      ready_.wait_for_end(seen);
    }
  }

  void refuse(const sfctr::DiskError& error, std::unique_ptr<Batch> batch) {
    CHECK(error.code() == EIO || error.code() == ENOSPC);
    ++num_refused_;
    num_unread_ += error.code() == EIO;
    has_failed_ = error.code() == ENOSPC;
    known_.push_front(std::move(batch));
  }

  void read_some(std::mt19937_64& random) {
    const auto batch = random_batch(random);
    std::vector<std::uint64_t> keys;
    for (int i = 0; i < 9; ++i) keys.push_back(random() % (plan_.setup.num_keys + 2));
    std::ranges::sort(keys);
    keys.erase(std::ranges::unique(keys).begin(), keys.end());
    const auto table = static_cast<std::uint32_t>(random() % kNativeTables);
    if (plan_.setup.rule.tracks() && random() % 4 == 0) twin_.remove({keys[0], keys.back()});
    until_read([&] { twin_.view(*batch); });
    until_read([&] { twin_.find(table, keys); });
    if (random() % 8 == 0) until_read([&] { twin_.export_all(); });
    CHECK(group_->memory_bytes() > 0);
  }

  // Ends the snapshot that is under way once all of it was taken, and then begins the next.
  void save(std::mt19937_64& random) {
    if (taker_.joinable()) {
      if (is_taken_) end_snapshot(random() % 8 != 0);
      return;
    }
    if (plan_.setup.num_lines > 0) device_.lower_all();
    saver_.begin(group_->needs_full());
    CHECK(saver_.expected().size() == twin_.rows.size());
    for (const auto& [id, row] : saver_.expected()) CHECK(row.record == twin_.rows.at(id));
    is_taken_ = false;
    taker_ = std::thread([this] {
      while (saver_.take(5)) continue;
      is_taken_ = true;
    });
  }
  void end_snapshot(bool kept) {
    taker_.join();
    saver_.end(kept);
    num_saved_ += kept;
  }

  void until_read(const std::function<void()>& read) {
    while (true) {
      try {
        return read();
      } catch (const sfctr::DiskError& error) {
        CHECK(error.code() == EIO);
        ++num_unread_;
      }
    }
  }

  void check_end() {
    until_read([&] { twin_.export_all(); });
    CHECK(twin_.num_wrong() == 0 && !twin_.rows.empty());
    const sfctr::GroupCounters counters = group_->counters();
    CHECK(counters.hits + counters.fresh + counters.fetched == counters.unique);
    CHECK(group_->log_counters().live <= twin_.rows.size());
    if (has_failed_ || !plan_.setup.num_frames) return;
    Batch none({}, {}, {}, plan_.setup.rule.rare);  // its plan gives back what the index has grown into
    place(*group_, none);
    group_->discard(none.ws);
    std::uint64_t num_waiting = 0;
    group_->membership(0, num_waiting);
    CHECK(num_waiting == twin_.waiting.size());
    CHECK((twin_.rows.size() + num_waiting) * sfctr::kIndexBytes == budget().index_bytes());
    CHECK(!budget().is_over());
  }

  const Budget& budget() const { return *budget_; }

  TempDir directory_;
  Plan plan_;
  std::shared_ptr<Budget> budget_ = std::make_shared<Budget>(plan_.setup.ram_bytes());
  std::unique_ptr<RowGroup> group_;
  Device device_;
  RowTwin twin_;
  Saver saver_;
  std::thread taker_;
  std::atomic<bool> is_taken_ = false;
  std::size_t num_saved_ = 0;
  Ready ready_{plan_.ahead}, planned_beside_{plan_.unread + 1};
  std::deque<std::unique_ptr<Batch>> known_, planned_;  // of the thread that plans
  std::atomic<bool> has_failed_ = false;
  std::size_t num_refused_ = 0;              // by the thread that plans
  std::atomic<std::size_t> num_unread_ = 0;  // reads that a sector refused, of either thread
};

void rows_are_those_of_a_map_at_any_size_of_the_cache(std::uint64_t seed) {
  std::uint64_t records_moved = 0, bytes_read = 0, num_saved = 0;  // in all: how much of one run depends on its threads
  for (const std::size_t num_frames : {0, 1, 3, 8, 20, 200}) {
    for (const Policy policy : {Policy::kLru, Policy::kLfu}) {
      const IoKind io = num_frames % 2 == 0 ? IoKind::kAuto : IoKind::kThreads;
      for (const std::size_t known : {0, 1, 4}) {
        Stress stress({.setup = {.num_frames = num_frames, .policy = policy, .io = io, .snapshot_bytes = 256},
                       .seed = ++seed,
                       .known = known,
                       .unread = seed % 4,
                       .ahead = 1 + seed / 4 % 4});
        stress.run();
        const sfctr::GroupCounters counters = stress.counters();
        CHECK((counters.evicted > 0) == (num_frames < 200));
        CHECK(num_frames > 1 || counters.scratch > 0);
        num_saved += stress.num_saved();
        records_moved += stress.log_counters().records_moved;
        bytes_read += stress.log_counters().bytes_read;
      }
    }
  }
  CHECK(records_moved > 0 && bytes_read > 0 && num_saved > 100);
}

void a_thread_of_its_own_may_fetch(std::uint64_t seed) {
  std::uint64_t records_moved = 0, fetched = 0;
  for (const std::size_t num_frames : {0, 3, 8, 20}) {
    for (const std::size_t unread : {0, 1, 3}) {
      const IoKind io = unread == 1 ? IoKind::kThreads : IoKind::kAuto;
      Stress stress({.setup = {.num_frames = num_frames, .io = io, .snapshot_bytes = 256},
                     .seed = ++seed,
                     .known = unread,
                     .unread = unread,
                     .beside = true});
      stress.run();
      fetched += stress.counters().fetched;
      records_moved += stress.log_counters().records_moved;
    }
  }
  CHECK(fetched > 0 && records_moved > 0);
}

// Window and memory change nothing of who has a row, nor do removals while batches in flight hold the frames.
void members_are_those_of_a_map_at_any_size_of_the_cache(std::uint64_t seed) {
  const MembershipRule rules[] = {
      {.capacity = 20},
      {.admit_after = 3},
      {.admit_after = 2, .rare = true},
      {.expire_after_steps = 9},
      {.capacity = 30, .admit_after = 2, .expire_after_steps = 40, .rare = true},
  };
  std::uint64_t evicted = 0;
  for (const MembershipRule& rule : rules) {
    for (const std::size_t num_frames : {0, 3, 12, 300}) {
      Stress stress({.setup = {.num_frames = num_frames, .rule = rule},
                     .seed = ++seed,
                     .num_batches = kSanitized ? 150U : 600U,
                     .known = seed % 3,
                     .unread = seed % 4,
                     .ahead = 1 + seed / 4 % 4});
      stress.run();
      evicted += stress.counters().evicted;
    }
  }
  CHECK(evicted > 0);
}

// Also where a batch needs more rows than there are lines, or than there are frames.
void rows_on_a_device_are_those_of_a_map(std::uint64_t seed) {
  sfctr::GroupCounters all;
  for (const std::size_t num_lines : {1, 6, 30, 400}) {
    for (const std::optional<std::size_t> num_frames :
         {std::optional<std::size_t>(4), std::optional<std::size_t>(60), std::optional<std::size_t>()}) {
      Stress stress({.setup = {.num_frames = num_frames, .num_lines = num_lines},
                     .seed = ++seed,
                     .num_batches = kSanitized ? 150U : 600U,
                     .known = seed % 3,
                     .unread = seed % 4,
                     .ahead = 1 + seed / 4 % 4});
      stress.run();
      const sfctr::GroupCounters counters = stress.counters();
      all.evicted += counters.evicted;
      all.lowered += counters.lowered;
      all.device_hits += counters.device_hits;
      all.device_scratch += counters.device_scratch;
      all.device_waits += counters.device_waits;
    }
  }
  CHECK(all.evicted > 0 && all.lowered > 0 && all.device_hits > 0 && all.device_scratch > 0 && all.device_waits > 0);
}

void rows_without_a_disk_are_those_of_a_map() {
  Stress stress({.setup = {.has_disk = false}, .seed = 77});
  stress.run();
  CHECK(stress.counters().evicted == 0);
}

void a_sector_that_cannot_be_read_now_and_then_costs_no_row(IoKind io) {
  IoFaults faults;
  for (std::uint64_t n = 0; n < 100; ++n) faults.fail(IoCall::kRead, EIO, n * 4);
  Stress stress({.setup = {.num_frames = 8, .io = io, .io_faults = &faults}, .seed = 78, .is_saved = false});
  stress.run();
  CHECK(stress.num_unread() > 0 || stress.log_counters().bytes_read == 0);  // else all was still in memory
}

void a_full_disk_ends_the_planning_and_costs_no_row(std::size_t num_frames, std::uint64_t after_bytes) {
  IoFaults faults;
  faults.disk_full(after_bytes);
  Stress stress(
      {.setup = {.num_frames = num_frames, .io_faults = &faults}, .seed = after_bytes, .ahead = 4, .is_saved = false});
  stress.run();
  CHECK(stress.has_failed() && stress.num_refused() == 1);
}

void a_slow_disk_changes_nothing() {
  IoFaults faults;
  std::atomic<bool> is_over = false;
  std::thread disk([&] {
    while (!is_over) {
      faults.stall(IoCall::kWrite);
      std::this_thread::sleep_for(std::chrono::milliseconds(3));
      faults.resume(IoCall::kWrite);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  Stress stress({.setup = {.num_frames = 5, .io_faults = &faults}, .seed = 79});
  stress.run();
  is_over = true;
  disk.join();
}

}  // namespace

int main() {
  alarm(280);  // a test that waits for ever ends here
  for (std::uint64_t round = 0; round < (kSanitized ? 1 : 3); ++round) {
    rows_are_those_of_a_map_at_any_size_of_the_cache(1000 * round);
  }
  a_thread_of_its_own_may_fetch(4000);
  members_are_those_of_a_map_at_any_size_of_the_cache(5000);
  rows_on_a_device_are_those_of_a_map(6000);
  rows_without_a_disk_are_those_of_a_map();
  for (const IoKind io : {IoKind::kAuto, IoKind::kThreads}) a_sector_that_cannot_be_read_now_and_then_costs_no_row(io);
  for (const std::size_t num_frames : {0, 4, 16}) {
    for (const std::uint64_t after_bytes : {0, 20'000})
      a_full_disk_ends_the_planning_and_costs_no_row(num_frames, after_bytes);
  }
  a_slow_disk_changes_nothing();
}
