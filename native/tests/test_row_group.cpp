// A group of rows where something goes wrong: each fault that may be met, and each that may be asked for.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <deque>
#include <fstream>
#include <numeric>

#include "row_group_rig.h"

namespace {

using namespace rig;
using sfctr::DiskError;

// A group with room for a few rows. Those of the lower keys are on disk, in files, for many were written after them.
struct Spilled {
  explicit Spilled(IoKind io = IoKind::kAuto)
      : setup{.num_keys = 160, .num_frames = 6, .io = io, .io_faults = &io_faults},
        group(make_group(setup, directory, budget)),
        twin(*group) {
    budget->take_keys(2 * setup.num_keys);  // so that there are as many frames now as there will be
    for (std::uint64_t key = 0; key < setup.num_keys; ++key) {
      budget->give_keys(2);
      train({key}, {key});
    }
  }
  void train(std::vector<std::uint64_t> first, std::vector<std::uint64_t> second) {
    Batch batch(std::move(first), std::move(second));
    place(*group, batch);
    twin.end(batch);
  }
  void check() {
    twin.export_all();
    CHECK(twin.num_wrong() == 0);
  }

  TempDir directory;
  IoFaults io_faults;
  GroupSetup setup;
  std::shared_ptr<Budget> budget = std::make_shared<Budget>(setup.ram_bytes());
  std::unique_ptr<RowGroup> group;
  RowTwin twin;
};

void a_batch_that_cannot_be_read_has_ended(IoKind io) {
  Spilled spilled(io);
  Batch batch({0, 1}, {0, 1});
  CHECK(spilled.group->plan(batch.ws));
  spilled.io_faults.fail(IoCall::kRead, EIO);
  CHECK_THROWS(DiskError, spilled.group->fetch(batch.ws));
  CHECK_THROWS(std::runtime_error, spilled.group->fetch(batch.ws));
  Record out(12);
  CHECK_THROWS(std::runtime_error, spilled.group->forward(batch.ws, 0, 2, out, {}));
  spilled.group->discard(batch.ws);
  spilled.check();
  place(*spilled.group, batch);
  spilled.twin.end(batch);
  spilled.check();
}

void rows_that_a_batch_never_read_are_not_trained_by_the_next(IoKind io, bool fails) {
  Spilled spilled(io);
  Batch first({0}, {1}), second({0}, {2}), third({0}, {3});
  CHECK(spilled.group->plan(first.ws) && spilled.group->plan(second.ws));
  if (fails) spilled.io_faults.fail(IoCall::kRead, EIO);
  if (fails) CHECK_THROWS(DiskError, spilled.group->fetch(first.ws));
  if (!fails) spilled.group->discard(first.ws);
  CHECK(spilled.group->plan(third.ws));  // while a frame without a record is still held
  CHECK_THROWS(std::runtime_error, spilled.group->fetch(second.ws));
  spilled.group->fetch(third.ws);
  spilled.twin.end(third);
  spilled.check();
  place(*spilled.group, second);
  spilled.twin.end(second);
  spilled.check();
}

void nothing_waits_for_a_batch_that_has_not_been_read() {
  Spilled spilled;
  Batch batch({0, 1}, {0, 1}), view({0, 2, 999}, {1, 2, 999});
  CHECK(spilled.group->plan(batch.ws));
  spilled.twin.view(view);
  spilled.twin.find(0, {0, 1, 2, 999});
  spilled.check();
  CHECK_THROWS(std::runtime_error, spilled.group->backward(batch.ws, 0, 2, {}, {}));
  spilled.group->fetch(batch.ws);
  spilled.twin.end(batch);
  spilled.check();
}

void a_view_reads_the_rows_of_batches_in_flight() {
  Spilled spilled;
  Batch first({0}, {1}), second({0}, {1}), view({0}, {1});
  for (Batch* batch : {&first, &second}) place(*spilled.group, *batch);
  spilled.twin.end(first);
  spilled.twin.view(view);
  spilled.twin.end(second);
  spilled.check();
}

void another_group_s_batch_is_left_alone() {
  Spilled one, other;
  Batch known({0}, {1}), planned({2}, {3});
  one.group->announce(known.ws);
  place(*one.group, planned);
  other.group->discard(known.ws);
  other.group->discard(planned.ws);
  one.twin.end(planned);
  place(*one.group, known);
  one.twin.end(known);
  one.check();
}

void batches_may_be_forgotten_out_of_their_turn() {
  Spilled spilled;
  std::vector<std::unique_ptr<Batch>> batches;
  for (std::uint64_t key = 0; key < 6; ++key) {
    batches.push_back(std::make_unique<Batch>(std::vector{key}, std::vector{key}));
    spilled.group->announce(batches.back()->ws);
  }
  for (const std::size_t n : {3, 0, 5}) spilled.group->discard(batches[n]->ws);
  for (const std::size_t n : {4, 1, 2}) {
    place(*spilled.group, *batches[n]);
    spilled.twin.end(*batches[n]);
  }
  spilled.check();
}

void a_group_may_end_with_batches_in_flight() {
  const auto budget = std::make_shared<Budget>(9 * sfctr::kIndexBytes + 6 * kFrameBytes);
  Batch planned({0, 1}, {0, 1}), known({1}, {1});
  {
    TempDir directory;
    const auto group = make_group({.num_keys = 8, .num_frames = 6}, directory, budget);
    for (std::uint64_t key = 0; key < 8; ++key) {
      Batch batch({key}, {key});
      place(*group, batch);
      RowTwin(*group).end(batch);
    }
    group->announce(known.ws);
    CHECK(group->plan(planned.ws));
    planned.ws.located.reading.reset();
  }
  CHECK(budget->used() == 0);
}

// Rows of a batch that is larger than the cache go to RAM where the disk takes none.
void a_refused_batch_beyond_the_cache_keeps_its_rows(bool is_full) {
  TempDir directory;
  IoFaults faults;
  GroupSetup setup{.num_keys = 200, .num_frames = 0, .io_faults = &faults};
  if (!is_full) setup.max_records = 204;  // of one segment
  const auto group = make_group(setup, directory);
  RowTwin twin(*group);
  std::mt19937_64 random(1);
  bool refused = false;
  for (int step = 0; step < 2000 && !refused; ++step) {
    if (is_full && step == 100) faults.disk_full(0);
    const auto batch = Batch::random(random, setup.num_keys, 100);
    try {
      if (!group->plan(batch->ws)) CHECK(!"nothing else is in flight");
      group->fetch(batch->ws);
    } catch (const DiskError&) {
      refused = is_full;
      CHECK(refused);
      continue;
    } catch (const sfctr::LocationsExhaustedError&) {
      refused = !is_full;
      CHECK(refused);
      continue;
    }
    twin.end(*batch);
  }
  twin.export_all();
  CHECK(refused && twin.num_wrong() == 0);
}

// The first segment holds its first record everywhere: whole, but not what the index has there.
void rows_that_are_others_are_neither_moved_nor_read() {
  Spilled spilled;
  for (std::uint64_t key = 0; key < 40; ++key) spilled.train({key}, {key});  // their old records are garbage
  std::fstream file(spilled.directory.path() + "/rows/segment-0000000000000001.rows");
  std::string record(40, '\0');
  file.seekg(4096).read(record.data(), 40);
  for (int place = 0; place < 204; ++place)
    file.seekp(4096 * (1 + place / 102) + place % 102 * 40).write(record.data(), 40);
  file.close();
  for (int round = 0; round < 8; ++round) {
    for (std::uint64_t key = 110; key < 160; ++key) spilled.train({key}, {key});
  }
  CHECK(spilled.group->log_counters().records_moved > 0);
  int num_damaged = 0;
  for (std::uint64_t key = 0; key < 160; ++key) {
    try {
      spilled.twin.find(0, {key});
    } catch (const sfctr::ChecksumError&) {
      ++num_damaged;
    }
  }
  CHECK(num_damaged > 0 && spilled.twin.num_wrong() == 0);
}

void rows_that_the_disk_refuses_are_not_imported_into_ram() {
  TempDir directory;
  IoFaults faults;
  const auto budget = std::make_shared<Budget>(20'000 * sfctr::kIndexBytes);
  const auto group = make_group({.num_frames = 0, .io_faults = &faults}, directory, budget);
  RowTwin twin(*group);
  faults.disk_full(100'000);
  Rows some;
  for (std::uint64_t key = 0; key < 15'000; ++key) some[{0, key}] = Record(kFloats, static_cast<float>(key));
  CHECK_THROWS(DiskError, twin.import_rows(0, some));
  CHECK(budget->frame_bytes() <= budget->limit());
  std::vector<std::uint64_t> keys;
  std::vector<float> records;
  group->export_rows(0, 0, 20'000, keys, records);
  CHECK(!keys.empty() && keys.size() < 15'000 && group->num_rows(0) == keys.size());
  for (std::size_t i = 0; i < keys.size(); ++i) CHECK(records[i * kFloats] == static_cast<float>(keys[i]));
}

void rows_that_are_there_need_no_more_of_the_index() {
  TempDir directory;
  const auto group = make_group({.num_keys = 10, .num_frames = 0}, directory, std::make_shared<Budget>(1000));
  RowTwin twin(*group);
  Rows some;
  for (std::uint64_t key = 0; key < 40; ++key) some[{0, key}] = Record(kFloats, 1.0f);
  for (int round = 0; round < 3; ++round) {
    twin.import_rows(0, some);
    for (auto& [id, record] : some) record[0] += 1;
  }
  twin.export_all();
  CHECK(twin.num_wrong() == 0);
  CHECK_THROWS(sfctr::IndexOutgrown, twin.import_rows(2, {{{2, 1}, Record(kFloats)}, {{2, 2}, Record(kFloats)}}));
}

void a_piece_of_no_rows_cannot_be_exported() {
  Spilled spilled;
  std::vector<std::uint64_t> keys;
  std::vector<float> records;
  CHECK_THROWS(std::invalid_argument, spilled.group->export_rows(0, 0, 0, keys, records));
}

// One float a row, so that most of a record on disk is the log's own.
void rows_of_four_bytes_keep_the_files_within_the_bound() {
  constexpr std::size_t kKeys = 20'000, kBatch = 1500, kSegment = 64 << 10;
  TempDir directory;
  GroupTiers tiers;
  tiers.budget = std::make_shared<Budget>(kKeys * sfctr::kIndexBytes + 3000 * 24);
  tiers.disk = small_options(directory, 1);
  tiers.disk->directory += "/rows";
  tiers.disk->segment_bytes = kSegment;
  RowGroup group(1, sfctr::Rule::kSgd, sfctr::Rule::kNone, false, {sfctr::TableInit{}}, std::move(tiers));
  std::mt19937_64 random(1);
  std::vector<std::uint64_t> keys(kKeys);
  std::iota(keys.begin(), keys.end(), 0);
  group.import_rows(0, keys, Record(kKeys));
  keys.resize(kBatch);
  const Record gradients(kBatch, 1.0f);
  const std::vector<sfctr::GradientRows> spans{std::span<const float>(gradients)};
  for (std::uint64_t step = 1; step <= 300; ++step) {
    for (std::uint64_t& key : keys) key = random() % kKeys;
    WorkingSet ws(
        1, kBatch,
        {{.table = 0, .pooling = sfctr::Pooling::kOne, .keys = keys, .offsets = {}, .nulls = {}, .weights = {}}});
    group.locate(ws, true);
    group.backward(ws, 0, kBatch, spans, {});
    group.update(ws, step, 1, std::vector(1, sfctr::Hyper{}), {});
  }
  const sfctr::LogCounters log = group.log_counters();
  const double a_record = 4096.0 / 204 * (kSegment + 8192) / kSegment;  // with the pages around a segment
  CHECK(log.live > kKeys / 2);
  CHECK(static_cast<double>(log.file_bytes) <= static_cast<double>(log.live) * a_record / 0.7 + 3 * kSegment);
}

// What a run computes with a fault armed, or null for none: the number of wrong reads and rows.
std::size_t num_wrong(std::shared_ptr<RowFaults> faults, std::size_t ahead) {
  TempDir directory;
  const GroupSetup setup{.num_keys = 12, .num_frames = 8, .faults = std::move(faults)};
  const auto group = make_group(setup, directory);
  RowTwin twin(*group);
  std::mt19937_64 random(5);
  std::deque<std::unique_ptr<Batch>> flight;
  for (int step = 0; step < 60; ++step) {
    auto batch = Batch::random(random, setup.num_keys, 3);
    while (flight.size() > ahead || !group->plan(batch->ws)) {
      twin.end(*flight.front());
      flight.pop_front();
    }
    group->fetch(batch->ws);
    flight.push_back(std::move(batch));
  }
  for (; !flight.empty(); flight.pop_front()) twin.end(*flight.front());
  twin.export_all();
  return twin.num_wrong();
}

void every_fault_that_is_asked_for_makes_a_number_wrong() {
  CHECK(num_wrong(nullptr, 2) == 0 && num_wrong(std::make_shared<RowFaults>(), 2) == 0);
  for (const char* name : {"fetch_early", "drop_write_back", "apply_twice", "lose_state", "use_wrong_slot"}) {
    const RowFault fault = RowFaults::named(name);
    const auto always = std::make_shared<RowFaults>(), twice = std::make_shared<RowFaults>();
    always->arm(fault);
    CHECK(num_wrong(always, 2) > 0 && always->num_struck(fault) > 2);
    twice->arm(fault, 5, 2);
    num_wrong(twice, 2);
    CHECK(twice->num_struck(fault) == 2);
  }
  const auto early = std::make_shared<RowFaults>();
  early->arm(RowFault::kFetchEarly);
  CHECK(num_wrong(early, 0) == 0 && early->num_struck(RowFault::kFetchEarly) == 0);  // nothing is ahead of its turn
  CHECK_THROWS(std::invalid_argument, RowFaults::named("fetch_late"));
}

}  // namespace

int main() {
  alarm(240);  // a test that waits for ever ends here
  for (const IoKind io : {IoKind::kAuto, IoKind::kThreads}) {
    a_batch_that_cannot_be_read_has_ended(io);
    for (const bool fails : {false, true}) rows_that_a_batch_never_read_are_not_trained_by_the_next(io, fails);
  }
  nothing_waits_for_a_batch_that_has_not_been_read();
  a_view_reads_the_rows_of_batches_in_flight();
  another_group_s_batch_is_left_alone();
  batches_may_be_forgotten_out_of_their_turn();
  a_group_may_end_with_batches_in_flight();
  for (const bool is_full : {false, true}) a_refused_batch_beyond_the_cache_keeps_its_rows(is_full);
  rows_that_are_others_are_neither_moved_nor_read();
  rows_that_the_disk_refuses_are_not_imported_into_ram();
  rows_that_are_there_need_no_more_of_the_index();
  a_piece_of_no_rows_cannot_be_exported();
  rows_of_four_bytes_keep_the_files_within_the_bound();
  every_fault_that_is_asked_for_makes_a_number_wrong();
}
