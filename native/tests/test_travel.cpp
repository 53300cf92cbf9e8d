// Rows that travel: the keys of others merged, and copies of rows beside the rows, planned by one thread and trained by
// another in caches of a few rows.
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>

#include "row_group_rig.h"

namespace {

using namespace rig;

constexpr std::size_t kSteps = kSanitized ? 300 : 3000;

// Keys of the two tables of the rig, the missing value of the first among them.
struct Keys {
  std::vector<std::uint64_t> keys;
  std::vector<std::int64_t> table_begin{0};

  explicit Keys(std::mt19937_64& random) {
    for (std::size_t n = 0; n < kNativeTables; ++n) {
      std::set<std::uint64_t> drawn;
      for (std::size_t i = 0; n % 2 == 0 && i < 1 + random() % 6; ++i) drawn.insert(random() % (1 + random() % 40));
      if (n == 1 && random() % 3 == 0) drawn.insert(0);
      keys.insert(keys.end(), drawn.begin(), drawn.end());
      table_begin.push_back(static_cast<std::int64_t>(keys.size()));
    }
  }
  sfctr::KeyList list() const { return {keys, table_begin}; }
};

// What several others ask for, where the rows are held and where they are copied.
struct Step {
  WorkingSet held, copies;

  explicit Step(const std::vector<sfctr::KeyList>& sources)
      : held(WorkingSet::of_sources(2, sources)), copies(WorkingSet::of_sources(2, sources)) {}
};

void every_key_of_a_source_has_the_number_of_its_unique_key() {
  std::mt19937_64 random(1);
  for (int round = 0; round < 100; ++round) {
    const std::vector<Keys> keys{Keys(random), Keys(random), Keys(random)};
    const WorkingSet ws = WorkingSet::of_sources(2, std::vector{keys[0].list(), keys[1].list(), keys[2].list()});
    std::set<Id> seen;
    std::vector<std::uint64_t> numbered;
    for (std::size_t n = 0; n < kNativeTables; ++n) {
      for (std::size_t p = 0; p < keys.size(); ++p) {
        for (auto i = keys[p].table_begin[n]; i < keys[p].table_begin[n + 1]; ++i) {
          const std::uint64_t key = keys[p].keys[static_cast<std::size_t>(i)];
          if (seen.insert({static_cast<std::uint32_t>(n), key}).second) numbered.push_back(key);
          CHECK(ws.keys()[static_cast<std::size_t>(ws.source_ids(p)[static_cast<std::size_t>(i)])] == key);
          CHECK(ws.source_ids(p)[static_cast<std::size_t>(i)] < ws.table_begin()[n + 1]);
        }
      }
    }
    CHECK(std::ranges::equal(ws.keys(), numbered));
  }
}

// One thread plans steps ahead in both groups; this one asks the holder for what is missing, and trains both.
class Copies {
 public:
  Copies(std::size_t num_frames, std::size_t ahead) : ahead_(ahead) {
    GroupTiers tiers;
    tiers.forgets = true;
    budget_ = tiers.budget = std::make_shared<Budget>(num_frames * (kFrameBytes + sfctr::kIndexBytes));
    const sfctr::TableInit init{.seed = 1, .null_seed = 2, .normal = false, .a = -1, .b = 1};
    copies_ = std::make_unique<RowGroup>(kDim, sfctr::Rule::kMomentum, sfctr::Rule::kNone, false,
                                         std::vector{init, init}, std::move(tiers));
  }

  void run() {
    std::thread planner([this] { plan_all(); });
    std::mt19937_64 random(2);
    for (std::size_t n = 0; n < kSteps; ++n) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return !ready_.empty(); });
      const std::unique_ptr<Step> step = std::move(ready_.front());
      ready_.pop_front();
      lock.unlock();
      end(*step, random);
      lock.lock();
      ++num_ended_;
      changed_.notify_all();
    }
    planner.join();
    CHECK(copies_->num_in_flight() == 0 && holder_->num_in_flight() == 0);
  }

  std::size_t num_missing() const { return num_missing_; }
  sfctr::GroupCounters counters() const { return copies_->counters(); }
  std::uint64_t used() const { return budget_->used(); }
  std::uint64_t limit() const { return budget_->limit(); }

 private:
  void plan_all() {
    std::mt19937_64 random(3);
    for (std::size_t n = 0; n < kSteps; ++n) {
      const std::vector<Keys> keys{Keys(random), Keys(random)};
      auto step = std::make_unique<Step>(std::vector{keys[0].list(), keys[1].list()});
      plan(*holder_, step->held);
      plan(*copies_, step->copies);
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return ready_.size() <= ahead_; });
      ready_.push_back(std::move(step));
      changed_.notify_all();
    }
  }

  void plan(RowGroup& group, WorkingSet& ws) {
    group.announce(ws);
    for (;;) {
      std::size_t before;
      {
        std::lock_guard lock(mutex_);
        before = num_ended_;
      }
      if (group.plan(ws)) break;
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return num_ended_ != before; });
    }
    group.fetch(ws);
  }

  void end(Step& step, std::mt19937_64& random) {
    const std::size_t num_unique = step.held.num_unique();
    const std::vector<std::int64_t> missing = copies_->missing(step.copies);
    num_missing_ += missing.size();
    std::vector<float> records(missing.size() * kFloats);
    holder_->gather(step.held, std::vector<std::uint32_t>(missing.begin(), missing.end()), records);
    copies_->fill(step.copies, missing, records);
    std::vector<float> held(num_unique * kDim), copied(num_unique * kDim, -1);
    holder_->weights(step.held, held);
    copies_->weights(step.copies, copied);
    CHECK(std::memcmp(held.data(), copied.data(), held.size() * sizeof(float)) == 0);
    if (random() % 6 == 0) {
      holder_->discard(step.held);
      return copies_->discard(step.copies);
    }
    std::vector<std::int32_t> ids;
    std::vector<std::uint8_t> reached;
    std::vector<float> gradients;
    for (std::size_t u = 0; u < num_unique; ++u) {
      ids.push_back(static_cast<std::int32_t>(u));
      reached.push_back(random() % 3 != 0);
      for (std::size_t c = 0; c < kDim; ++c) gradients.push_back(static_cast<float>(random() % 100) / 7);
    }
    sfctr::Hyper of_table{};
    of_table.lr = kRate, of_table.momentum = kMomentum;
    const std::vector hyper(2, of_table);
    ++num_steps_;
    for (auto [group, ws] : {std::pair{holder_.get(), &step.held}, std::pair{copies_.get(), &step.copies}}) {
      group->add_gradients(*ws, ids, gradients, {}, reached);
      group->update(*ws, num_steps_, 1, hyper, {});
    }
  }

  const std::size_t ahead_;
  TempDir directory_;
  std::shared_ptr<Budget> budget_;
  std::unique_ptr<RowGroup> holder_ = make_group({.has_disk = false}, directory_), copies_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::unique_ptr<Step>> ready_;
  std::size_t num_ended_ = 0, num_missing_ = 0;
  std::uint64_t num_steps_ = 0;
};

void copies_have_the_bits_of_the_rows(std::size_t num_frames, std::size_t ahead, bool is_small) {
  Copies copies(num_frames, ahead);
  copies.run();
  CHECK(copies.num_missing() > 0);
  CHECK((copies.counters().evicted > 0) == (num_frames < 80));
  CHECK((copies.counters().scratch > 0) == is_small);
  CHECK(copies.used() <= copies.limit());
}

}  // namespace

int main() {
  every_key_of_a_source_has_the_number_of_its_unique_key();
  for (const std::size_t ahead : {0, 3}) {
    copies_have_the_bits_of_the_rows(1000, ahead, false);
    copies_have_the_bits_of_the_rows(50, ahead, false);
    copies_have_the_bits_of_the_rows(6, ahead, true);
  }
}
