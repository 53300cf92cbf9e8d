// What a snapshot gives out is what there was when it began, whatever happens until then: by hand, and against a copy.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <functional>
#include <thread>

#include "snapshot_rig.h"

namespace {

using namespace rig;

struct Life {
  GroupSetup setup{};
  std::uint64_t seed = 0;
  std::size_t num_lines = 0;  // on a device; 0: rows are trained in RAM
  bool has_taker = false;     // a thread that takes; else rows are taken now and then
  std::size_t num_turns = 1500;
  std::size_t num_keys = 60;  // of each table; where some may wait the setup has room for more
};

// A group that is planned ahead, trained, added to and cut back while snapshots are taken of it, one after the other.
class Living {
 public:
  explicit Living(const Life& life)
      : life_(life),
        random_(life.seed),
        group_(make_group(life.setup, directory_)),
        saver_(*group_),
        follower_(*group_) {
    if (life_.num_lines > 0) group_->keep_lines(life_.num_lines);
    lines_.resize(life_.num_lines, Record(kFloats));
  }

  void run() {
    for (std::size_t turn = 0; turn < life_.num_turns; ++turn) {
      switch (random_() % 8) {
        case 0:
        case 1:
        case 2:
          if (flight_.size() < 3) {
            begin_batch();
          } else {
            end_oldest();
          }
          break;
        case 3:
        case 4:
          if (!flight_.empty()) end_oldest();
          break;
        case 5:
          if (random_() % 4 == 0) change_by_hand();
          if (random_() % 4 == 0) send();
          break;
        default:
          turn_of_snapshot();
      }
    }
    while (!flight_.empty()) end_oldest();
    if (saver_.is_open()) end_snapshot(true);
    send();
  }

  std::size_t num_deltas() const { return num_deltas_; }
  std::size_t num_full() const { return num_full_; }
  std::size_t num_changes() const { return num_changes_; }
  sfctr::GroupCounters counters() const { return group_->counters(); }
  std::uint64_t num_gone() {
    std::uint64_t waiting;
    const sfctr::MembershipCounters counters = group_->membership(0, waiting);
    return counters.expired + counters.removed;
  }

 private:
  bool has_membership() const { return group_->has_membership(); }

  void begin_batch() {
    auto batch = Batch::random(random_, life_.num_keys, 6);
    while (!group_->plan(batch->ws)) end_oldest();
    if (random_() % 8 == 0) return group_->discard(batch->ws);
    group_->fetch(batch->ws);
    flight_.push_back(std::move(batch));
  }

  void end_oldest() {
    const std::unique_ptr<Batch> batch = std::move(flight_.front());
    flight_.pop_front();
    group_->settle(batch->ws, sfctr::EventClock::kNoTime);
    if (!batch->is_trained) return group_->discard(batch->ws);
    ++step_;
    for (std::size_t f = 0; f < 2; ++f) {
      for (std::size_t row = 0; row < batch->size() && batch->reached[f]; ++row) touch(batch->id(f, row));
    }
    life_.num_lines > 0 ? train_on_device(*batch) : train(*batch);
  }

  void train(Batch& batch) {
    std::array<Record, 2> gradients;
    for (std::size_t f = 0; f < 2; ++f) {
      if (batch.reached[f]) gradients[f].resize(batch.size() * kDim, static_cast<float>(step_ % 7) - 3);
    }
    group_->backward(
        batch.ws, 0, batch.size(),
        std::vector<sfctr::GradientRows>{std::span<const float>(gradients[0]), std::span<const float>(gradients[1])},
        {});
    sfctr::Hyper hyper{};
    hyper.lr = kRate;
    hyper.momentum = kMomentum;
    group_->update(batch.ws, step_, 1, std::vector(2, hyper), {});
  }

  // Adds the step to each number of a row.
  void train_on_device(Batch& batch) {
    CHECK(group_->plan_lines(batch.ws));  // for it is the only one there
    sfctr::OnDevice& on = batch.ws.on_device;
    lower(on.leaving);
    group_->lines_lowered(batch.ws);
    Record record(kFloats);
    for (const std::uint32_t u : on.rising) group_->gather(batch.ws, std::vector{u}, lines_[on.lines[u]]);
    group_->lines_ready(batch.ws);
    std::vector<std::uint8_t> reached(batch.ws.num_unique());
    for (std::size_t f = 0; f < 2; ++f) {
      for (std::size_t row = 0; row < batch.size() && batch.reached[f]; ++row) {
        reached[static_cast<std::size_t>(batch.ws.virtual_ids(f)[row])] = 1;
      }
    }
    const auto add = [&](Record& to) {
      for (float& number : to) number += static_cast<float>(step_);
    };
    for (std::uint32_t u = 0; u < reached.size(); ++u) {
      if (reached[u] && on.lines[u] != sfctr::DeviceLines::kNone) add(lines_[on.lines[u]]);
    }
    for (const std::uint32_t u : on.spilled) {
      if (!reached[u]) continue;
      group_->gather(batch.ws, std::vector{u}, record);
      add(record);
      group_->scatter(batch.ws, std::vector{u}, record);
    }
    group_->end_step(batch.ws, step_, reached);
  }

  void lower(const std::vector<std::uint32_t>& lines) {
    for (const std::uint32_t line : lines) group_->lower(std::vector{line}, lines_[line]);
  }
  void lower_all() {
    if (life_.num_lines > 0) lower(group_->dirty_lines());
  }

  void change_by_hand() {
    if (!has_membership() || random_() % 4 == 0) {
      while (!flight_.empty()) end_oldest();
    }
    if (life_.num_lines > 0) {
      lower_all();
      group_->drop_lines();
    }
    std::vector<std::uint64_t> keys;
    for (int i = 0; i < 5; ++i) keys.push_back(random_() % life_.num_keys);
    std::ranges::sort(keys);
    keys.erase(std::ranges::unique(keys).begin(), keys.end());
    const std::uint32_t table = random_() % 2 * 2;
    if (random_() % 2 == 0) {
      group_->remove_rows(table, keys);
    } else if (flight_.empty()) {
      Record records(keys.size() * kFloats, static_cast<float>(random_() % 100));
      std::vector<std::uint32_t> last(keys.size(), static_cast<std::uint32_t>(step_));
      group_->import_rows(table, keys, records, last);
      for (const std::uint64_t key : keys) touch({table, key});
    }
  }

  void touch(const Rows::key_type& id) {
    touched_.insert(id);
    unsent_.insert(id);
  }

  void send() {
    lower_all();
    const bool is_kept = random_() % 4 != 0;
    const auto changed = follower_.send(is_kept, 1 + random_() % 9);
    CHECK(changed.has_value() == has_base_);
    has_base_ |= is_kept;
    if (changed) {
      ++num_deltas_;
      CHECK(std::ranges::includes(unsent_, *changed));
      CHECK(has_membership() || std::ranges::all_of(unsent_, [&](const auto& id) {
              return changed->contains(id) || !all_rows(*group_).contains(id);
            }));
    }
    if (is_kept) unsent_.clear();
  }

  void turn_of_snapshot() {
    if (!saver_.is_open()) {
      if (random_() % 2 == 0) begin_snapshot();
    } else if (life_.has_taker ? is_taken_.load() : !saver_.take(1 + random_() % 9)) {
      end_snapshot(random_() % 8 != 0);
    } else if (random_() % 128 == 0) {
      end_snapshot(false);
    }
  }

  void begin_snapshot() {
    lower_all();
    CHECK(group_->needs_full() == !has_kept_);
    is_full_ = !has_kept_ || random_() % 6 == 0;
    saver_.begin(is_full_);
    due_.clear();
    for (const auto& [id, row] : saver_.expected()) {
      if (is_full_ || touched_.contains(id)) due_.insert(id);
    }
    touched_.clear();
    if (!life_.has_taker) return;
    is_taken_ = false;
    taker_ = std::thread([this] {
      while (saver_.take(7)) continue;
      is_taken_ = true;
    });
  }

  void end_snapshot(bool kept) {
    if (taker_.joinable()) taker_.join();
    saver_.end(kept);
    has_kept_ = kept;
    if (!kept) return;
    ++(is_full_ ? num_full_ : num_changes_);
    CHECK(has_membership() || saver_.taken() == due_);  // with membership not all that is touched is trained
    CHECK(std::ranges::includes(due_, saver_.taken()));
  }

  TempDir directory_;
  const Life life_;
  std::mt19937_64 random_;
  std::unique_ptr<RowGroup> group_;
  Saver saver_;
  Follower follower_;
  std::deque<std::unique_ptr<Batch>> flight_;
  std::vector<Record> lines_;
  std::set<Rows::key_type> touched_, due_;  // since the last snapshot began; before it
  std::uint64_t step_ = 0;
  std::set<Rows::key_type> unsent_;  // since the follower had all
  std::size_t num_full_ = 0, num_changes_ = 0, num_deltas_ = 0;
  bool has_base_ = false, is_full_ = false, has_kept_ = false;
  std::atomic<bool> is_taken_ = false;
  std::thread taker_;
};

const sfctr::MembershipRule kRule{.capacity = 40, .admit_after = 2, .expire_after_steps = 25};

void a_snapshot_is_what_there_was_when_it_began(bool has_taker) {
  std::uint64_t seed = has_taker ? 1000 : 0, full = 0, changes = 0, scratch = 0, evicted = 0, device_scratch = 0,
                gone = 0, deltas = 0;
  const std::size_t num_turns = kSanitized ? 600 : 2500;
  for (const std::optional<std::size_t> num_frames :
       {std::optional<std::size_t>(), std::optional<std::size_t>(0), std::optional<std::size_t>(3),
        std::optional<std::size_t>(8), std::optional<std::size_t>(30)}) {
    for (const bool has_rule : {false, true}) {
      for (const std::size_t num_lines : {0, 4, 64}) {
        if (has_rule && num_lines > 0) continue;
        const GroupSetup setup{.num_keys = has_rule ? std::size_t{72} : std::size_t{60},
                               .num_frames = num_frames,
                               .io = seed % 2 == 0 ? IoKind::kAuto : IoKind::kThreads,
                               .snapshot_bytes = has_taker ? std::size_t{100} : std::size_t{1} << 20,
                               .rule = has_rule ? kRule : sfctr::MembershipRule{}};
        Living living({setup, ++seed, num_lines, has_taker, num_turns});
        living.run();
        full += living.num_full();
        changes += living.num_changes();
        deltas += living.num_deltas();
        scratch += living.counters().scratch;
        evicted += living.counters().evicted;
        device_scratch += living.counters().device_scratch;
        gone += living.num_gone();
      }
    }
  }
  CHECK(full > 50 && changes > 50 && deltas > 50);
  CHECK(scratch > 0 && evicted > 0 && device_scratch > 0 && gone > 0);
}

// Four rows in RAM; those of keys 0 and 1 are trained after the snapshot began.
struct Four {
  explicit Four(std::size_t snapshot_bytes = 1 << 20) {
    group = make_group({.has_disk = false, .snapshot_bytes = snapshot_bytes}, directory);
    twin = std::make_unique<RowTwin>(*group);
    train({0, 1, 2, 3});
  }
  void train(std::vector<std::uint64_t> keys) {
    Batch batch(keys, keys);
    batch.reached[1] = false;
    place(*group, batch);
    twin->end(batch);
  }
  std::vector<std::uint64_t> take() {
    const auto rows = group->take_snapshot(100);
    if (!rows) return {};
    std::vector<std::uint64_t> keys = rows->keys;
    std::ranges::sort(keys);
    return keys;
  }

  TempDir directory;
  std::unique_ptr<RowGroup> group;
  std::unique_ptr<RowTwin> twin;
};

using Keys = std::vector<std::uint64_t>;
constexpr std::uint64_t kMostGone = (1 << 17) + 4;  // of four rows

void rows_that_were_changed_come_first_as_they_were() {
  Four four;
  const Rows before = four.twin->rows;
  four.group->begin_snapshot(true);
  four.train({0, 1});
  const auto rows = four.group->take_snapshot(100);
  CHECK(rows && rows->native_table == 0 && rows->keys.size() == 2);
  for (std::size_t i = 0; i < 2; ++i) {
    const auto at = rows->records.begin() + static_cast<std::ptrdiff_t>(i * kFloats);
    CHECK(rows->keys[i] < 2 && before.at({0, rows->keys[i]}) == Record(at, at + kFloats));
    CHECK(before.at({0, rows->keys[i]}) != four.twin->rows.at({0, rows->keys[i]}));
  }
  CHECK((four.take() == Keys{2, 3}));
  CHECK(four.take().empty() && four.take().empty());
  four.group->end_snapshot(true);
}

void only_what_has_changed_since_the_last_one_began_is_taken() {
  Four four;
  CHECK(four.group->needs_full());
  CHECK_THROWS(std::runtime_error, four.group->begin_snapshot(false));
  four.group->begin_snapshot(true);
  CHECK_THROWS(std::runtime_error, four.group->begin_snapshot(true));
  four.train({2});  // belongs to the next
  while (!four.take().empty()) continue;
  four.group->end_snapshot(true);
  CHECK(!four.group->needs_full());
  four.train({3, 9});
  four.group->begin_snapshot(false);
  CHECK((four.take() == Keys{2, 3, 9}));
  CHECK(four.take().empty());
  four.group->end_snapshot(true);
  four.group->begin_snapshot(false);
  CHECK(four.take().empty());
  four.group->end_snapshot(true);
}

void one_that_was_not_kept_is_followed_by_a_full_one() {
  Four four;
  four.group->begin_snapshot(true);
  CHECK_THROWS(std::runtime_error, four.group->end_snapshot(true));  // its rows were not taken
  while (!four.take().empty()) continue;
  four.group->end_snapshot(true);
  four.train({1});
  four.group->begin_snapshot(false);
  four.group->end_snapshot(false);
  CHECK(four.group->needs_full());
  CHECK_THROWS(std::runtime_error, four.group->begin_snapshot(false));
  CHECK_THROWS(std::runtime_error, four.group->take_snapshot(1));
  CHECK_THROWS(std::runtime_error, four.group->end_snapshot(false));
  four.group->begin_snapshot(true);
  CHECK((four.take() == Keys{0, 1, 2, 3}));
}

void what_was_loaded_counts_as_changed_until_it_is_marked_as_saved() {
  Four four;
  four.group->mark_saved();
  CHECK(!four.group->needs_full());
  four.twin->import_rows(0, {{{0, 7}, Record(kFloats, 1)}});
  four.group->begin_snapshot(false);
  CHECK_THROWS(std::runtime_error, four.group->mark_saved());
  CHECK((four.take() == Keys{7}));
  CHECK(four.take().empty());
  four.group->end_snapshot(true);
  four.twin->import_rows(0, {{{0, 8}, Record(kFloats, 1)}});
  four.group->remove_rows(0, Keys{0});
  four.group->mark_saved();
  four.group->begin_snapshot(false);
  CHECK(four.take().empty() && four.group->take_tombstones()[0].empty());
}

void keys_that_went_are_told_once() {
  Four four;
  four.group->begin_snapshot(true);
  four.group->remove_rows(0, Keys{3, 2, 77});  // while they are still to be taken
  CHECK(four.group->take_tombstones()[0].empty());
  std::vector<std::uint64_t> keys;
  for (Keys some; !(some = four.take()).empty();) keys.insert(keys.end(), some.begin(), some.end());
  std::ranges::sort(keys);
  CHECK((keys == Keys{0, 1, 2, 3}));
  four.group->end_snapshot(true);
  Batch again({3}, {3});  // comes back
  place(*four.group, again);
  const Record one(kDim, 1);
  four.group->backward(again.ws, 0, 1, std::vector<sfctr::GradientRows>{std::span<const float>(one), {}}, {});
  four.group->update(again.ws, 2, 1, std::vector(2, sfctr::Hyper{}), {});
  four.group->begin_snapshot(false);
  const auto tombstones = four.group->take_tombstones();
  CHECK((tombstones.size() == kNativeTables && tombstones[0] == Keys{2, 3} && tombstones[2].empty()));
  CHECK(four.group->take_tombstones()[0].empty());
  CHECK((four.take() == Keys{3}));
}

void more_keys_than_are_worth_a_list_make_the_next_a_full_one() {
  Four four;
  four.group->mark_saved();
  const auto come_and_go = [&](std::uint64_t count) {
    Keys keys(count);
    for (std::uint64_t i = 0; i < count; ++i) keys[i] = 100 + i;
    four.group->import_rows(0, keys, Record(count * kFloats, 0));
    four.group->remove_rows(0, keys);
  };
  four.group->begin_snapshot(false);
  CHECK(four.take().empty());
  four.group->end_snapshot(true);
  come_and_go(kMostGone);
  CHECK(!four.group->needs_full());
  come_and_go(1);
  CHECK(four.group->needs_full());
  four.group->begin_snapshot(true);
  while (!four.take().empty()) continue;
  four.group->end_snapshot(true);
  CHECK(!four.group->needs_full());
}

std::pair<Keys, Keys> unsent(RowGroup& group) {
  Keys keys;
  Record records;
  CHECK(!group.unsent_rows(0, 0, 100, keys, &records));
  std::ranges::sort(keys);
  return {keys, group.unsent_gone(0)};
}

void a_follower_is_sent_what_changed_since_it_had_all_whatever_snapshots_were_taken() {
  Four four;
  RowGroup& group = *four.group;
  Keys keys;
  Record records;
  CHECK(group.needs_base());
  CHECK_THROWS(std::runtime_error, group.unsent_rows(0, 0, 1, keys, &records));
  CHECK_THROWS(std::runtime_error, group.unsent_gone(0));
  CHECK_THROWS(std::runtime_error, group.mark_unsent(0, keys, keys));
  group.mark_sent();
  CHECK(!group.needs_base() && unsent(group) == std::pair(Keys{}, Keys{}));
  four.train({2, 9});
  group.begin_snapshot(true);
  while (!four.take().empty()) continue;
  group.end_snapshot(true);
  group.remove_rows(0, Keys{3, 9});
  CHECK(unsent(group) == std::pair(Keys{2}, Keys{3, 9}));
  CHECK(unsent(group) == std::pair(Keys{2}, Keys{3, 9}));  // until it is said to be sent
  group.mark_sent();
  CHECK(unsent(group) == std::pair(Keys{}, Keys{}));
  group.begin_snapshot(false);
  CHECK((group.take_tombstones()[0] == Keys{3, 9} && four.take().empty()));
}

void a_group_that_was_loaded_goes_on_with_what_its_follower_has_not() {
  Four four;
  four.group->mark_sent();
  four.group->mark_unsent(0, Keys{1, 77}, Keys{88});
  CHECK(unsent(*four.group) == std::pair(Keys{1}, Keys{88}));
  four.train({3});
  CHECK(unsent(*four.group) == std::pair(Keys{1, 3}, Keys{88}));
}

void a_follower_is_sent_all_where_more_went_than_are_worth_a_list() {
  Four four;
  four.group->mark_sent();
  Keys keys(kMostGone);
  for (std::uint64_t i = 0; i < keys.size(); ++i) keys[i] = 100 + i;
  four.group->mark_unsent(0, {}, keys);
  CHECK(!four.group->needs_base());
  four.group->mark_unsent(0, {}, Keys{5});
  CHECK(four.group->needs_base());
  four.group->mark_sent();
  CHECK(!four.group->needs_base());
}

void a_step_waits_where_too_many_rows_are_kept(bool is_taken) {
  Four four(1);
  four.group->begin_snapshot(true);
  four.train({0});
  std::atomic<bool> is_over = false;
  std::thread trainer([&] {
    four.train({1});
    is_over = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(!is_over);
  if (is_taken) {
    CHECK((four.take() == Keys{0}));
  } else {
    four.group->end_snapshot(false);
  }
  trainer.join();
  CHECK(four.twin->num_wrong() == 0);
}

void a_snapshot_whose_rows_cannot_be_read_is_not_kept() {
  TempDir directory;
  IoFaults faults;
  const auto group = make_group({.num_keys = 400, .num_frames = 4, .io_faults = &faults}, directory);
  RowTwin twin(*group);
  for (std::uint64_t key = 0; key < 400; ++key) {
    Batch batch({key}, {key});
    place(*group, batch);
    twin.end(batch);
  }
  group->begin_snapshot(true);
  faults.fail(IoCall::kRead, EIO);
  CHECK_THROWS(sfctr::DiskError, [&] {
    while (group->take_snapshot(50)) continue;
  }());
  CHECK_THROWS(sfctr::DiskError, group->take_snapshot(50));
  CHECK_THROWS(std::runtime_error, group->end_snapshot(true));
  group->end_snapshot(false);
  group->begin_snapshot(true);
  std::size_t num_rows = 0;
  while (const auto rows = group->take_snapshot(50)) num_rows += rows->keys.size();
  CHECK(num_rows == twin.rows.size());
}

void what_is_asked_too_early_is_refused() {
  TempDir directory;
  const auto group = make_group({.has_disk = false}, directory);
  CHECK_THROWS(std::invalid_argument, group->take_snapshot(0));
  CHECK_THROWS(std::runtime_error, group->take_snapshot(1));
  group->keep_lines(8);
  Batch batch({1}, {2});
  place(*group, batch);
  CHECK(group->plan_lines(batch.ws));
  group->lines_lowered(batch.ws);
  group->lines_ready(batch.ws);
  group->end_step(batch.ws, 1, std::vector<std::uint8_t>(batch.ws.num_unique(), 1));
  CHECK_THROWS(std::runtime_error, group->begin_snapshot(true));  // a line is dirty

  TempDir other;
  const auto members = make_group({.has_disk = false, .rule = kRule}, other);
  Batch open({1}, {2});
  place(*members, open);
  members->settle(open.ws, sfctr::EventClock::kNoTime);
  CHECK_THROWS(std::runtime_error, members->begin_snapshot(true));  // a batch is in training
  members->discard(open.ws);
  members->begin_snapshot(true);
}

}  // namespace

int main() {
  alarm(280);
  rows_that_were_changed_come_first_as_they_were();
  only_what_has_changed_since_the_last_one_began_is_taken();
  one_that_was_not_kept_is_followed_by_a_full_one();
  what_was_loaded_counts_as_changed_until_it_is_marked_as_saved();
  keys_that_went_are_told_once();
  more_keys_than_are_worth_a_list_make_the_next_a_full_one();
  a_follower_is_sent_what_changed_since_it_had_all_whatever_snapshots_were_taken();
  a_group_that_was_loaded_goes_on_with_what_its_follower_has_not();
  a_follower_is_sent_all_where_more_went_than_are_worth_a_list();
  for (const bool is_taken : {false, true}) a_step_waits_where_too_many_rows_are_kept(is_taken);
  a_snapshot_whose_rows_cannot_be_read_is_not_kept();
  what_is_asked_too_early_is_refused();
  for (const bool has_taker : {false, true}) a_snapshot_is_what_there_was_when_it_began(has_taker);
}
