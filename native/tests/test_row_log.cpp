// The log gives back what was put into it, from wherever it is, and keeps to its bounds of space and memory.
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <thread>

#include "../src/row_log_layout.h"
#include "row_log_rig.h"

namespace {

using namespace rig;
using sfctr::LogLayout;

constexpr std::size_t kSizes[] = {1, 112, 192, 256, 1384, 4080, 12288};

void small_records_never_straddle_a_sector_and_large_ones_waste_an_eighth_at_most() {
  const LogLayout small(256, 1 << 20);  // 15 * 272 = 4080
  CHECK(small.unit_bytes == 4096 && small.unit_records == 15 && small.segment_records == 256 * 15);
  CHECK(small.offset(14) == 14 * 272 && small.offset(15) == 4096 && small.bytes_of(16) == 8192);
  CHECK(small.file_offset(0) == 4096 && small.span_bytes() == 4096);
  const LogLayout middle(1384, 1 << 20);  // 2 a sector leave 1296, 5 in two leave 1192, 8 in three leave 1088
  CHECK(middle.unit_bytes == 12288 && middle.unit_records == 8);
  for (std::size_t record_bytes = 1; record_bytes < 20'000; record_bytes += 7) {
    const LogLayout layout(record_bytes, 1 << 20);
    const std::size_t unused = layout.unit_bytes - layout.unit_records * layout.stride;
    CHECK(unused * 8 <= layout.unit_bytes);
    for (std::uint32_t place = 0; place < 2 * layout.unit_records; ++place) {
      const std::size_t begin = layout.offset(place), end = begin + layout.stride;
      CHECK(sfctr::round_to_sectors(end) - begin / 4096 * 4096 <= layout.span_bytes());
      CHECK(end <= (place / layout.unit_records + 1) * layout.unit_bytes);
    }
  }
}

void rows_are_the_same_from_a_buffer_a_write_and_a_file(IoKind io) {
  for (const std::size_t record_bytes : kSizes) {
    TempDir directory;
    IoFaults faults;
    LogOptions options = small_options(directory, record_bytes, io);
    options.faults = &faults;
    options.staging_bytes = 512 << 10;
    Twins twins(options);
    faults.stall(IoCall::kWrite);
    const std::size_t a_buffer_and_more = (160 << 10) / (record_bytes + 16) + 1;
    twins.append(ids_from(0, a_buffer_and_more));
    const auto in_buffers = twins.begin_read(twins.all());
    twins.check(twins.all());
    CHECK(twins.log.counters().bytes_read == 0);
    faults.resume(IoCall::kWrite);
    twins.log.flush();
    twins.check(twins.all());
    CHECK(twins.log.counters().bytes_read > 0);
    const auto from_files = twins.log.counters().records_read - twins.log.counters().records_from_staging;
    CHECK(from_files == a_buffer_and_more);
    CHECK(run_fetch(in_buffers, twins.all(), record_bytes) == twins.expected(twins.all()));
  }
}

void a_fetch_begun_in_a_buffer_ends_in_the_file_when_the_buffer_is_used_again(IoKind io) {
  TempDir directory;
  Twins twins(small_options(directory, 256, io));
  twins.append(ids_from(0, 100));
  const std::vector<RecordId> ids = ids_from(0, 100);
  const auto fetch = twins.begin_read(ids);
  const std::vector<Row> expected = twins.expected(ids);
  twins.append(ids_from(1000, 5000));
  CHECK(run_fetch(fetch, ids, 256) == expected);
  CHECK(twins.log.counters().bytes_read > 0);
}

// With a segment of a sector, a schedule goes through several sizes of them.
void any_schedule_gives_what_a_map_gives(IoKind io, std::size_t segment_bytes) {
  for (const std::size_t record_bytes : {1, 192, 1384, 12288}) {
    TempDir directory;
    LogOptions options = small_options(directory, record_bytes, io);
    options.segment_bytes = segment_bytes;
    Twins twins(options);
    std::mt19937 random(static_cast<std::uint32_t>(record_bytes));
    const std::size_t batch = 200'000 / (record_bytes + 200);
    for (int step = 0; step < 100; ++step) {
      const std::size_t count = random() % batch + 1;
      switch (random() % 8) {
        case 0:
        case 1:
        case 2: {
          std::vector<RecordId> ids = ids_from(random() % (4 * batch), count, random() % 2);
          std::shuffle(ids.begin(), ids.end(), random);
          twins.append(ids);
          break;
        }
        case 3:
          twins.release(twins.some(count, random));
          break;
        case 4:
          twins.compact(random() % (400 << 10));
          break;
        case 5:
          if (random() % 4 == 0) twins.log.flush(random() % 2 == 0);
          break;
        default:
          twins.check(twins.some(count, random));
      }
      CHECK(twins.log.counters().live == twins.num_rows());
    }
    while (twins.compact(1 << 20)) {
    }
    twins.check(twins.all());
  }
}

void compaction_keeps_the_files_within_the_bound() {
  for (const double max_garbage : {0.2, 0.5}) {
    TempDir directory;
    LogOptions options = small_options(directory, 256);
    options.max_garbage = max_garbage;
    Twins twins(options);
    std::mt19937 random(7);
    twins.append(ids_from(0, 20'000));
    std::size_t most_bytes = 0;
    for (int step = 0; step < 60; ++step) {
      std::vector<RecordId> ids;
      for (int i = 0; i < 500; ++i) ids.push_back({random() % 20'000, 0});
      std::sort(ids.begin(), ids.end(), [](auto a, auto b) { return a.key < b.key; });
      ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
      twins.append(ids);
      twins.compact(static_cast<std::size_t>(500 * 272 / max_garbage));
      most_bytes = std::max<std::size_t>(most_bytes, twins.log.counters().file_bytes);
    }
    // 15 rows a sector; the segment at the head, one being written, one being compacted, and pages around segments.
    const double bound = 20'000.0 / 15 * 4096 / (1 - max_garbage) * 1.04 + 3 * (256 << 10);
    CHECK(static_cast<double>(most_bytes) < bound);
    CHECK(twins.log.counters().records_moved > 0);
    twins.check(twins.all());
  }
}

// The first 32 segments of two sectors, 32 of four, 32 of eight, 32 of sixteen, and as many of 32 as are needed.
void many_rows_are_in_few_files_of_a_sixteenth_at_most() {
  TempDir directory;
  LogOptions options = small_options(directory, 256);
  options.segment_bytes = 8 << 10;
  Twins twins(options);
  twins.append(ids_from(0, 480 * 30));
  twins.log.flush();
  CHECK(twins.log.counters().segments == 128 && directory.files().size() == 128);
  twins.append(ids_from(20'000, 160 * 30));
  twins.log.flush();
  const auto counters = twins.log.counters();
  CHECK(counters.segments == 128 + 10);
  std::uint64_t largest = 0;
  for (const std::string& file : directory.files()) largest = std::max(largest, std::filesystem::file_size(file));
  CHECK(largest == 34 * 4096 && largest * 16 < counters.file_bytes);
  std::mt19937 random(3);
  twins.release(twins.some(30'000, random));
  while (twins.compact(1 << 20)) {
  }
  twins.check(twins.all());
  const double live_bytes = static_cast<double>(twins.num_rows()) / 15 * 4096;
  CHECK(static_cast<double>(twins.log.counters().file_bytes) <
        live_bytes / 0.7 * 1.5 + 3.0 * static_cast<double>(largest));
  CHECK(twins.log.counters().segments < 100);
}

void larger_segments_leave_no_location_unused() {
  TempDir directory;
  LogOptions options = small_options(directory, 256);
  options.segment_bytes = 8 << 10;
  options.max_records = 101 * 30;  // 32, 32 of two, and five: one of four and one
  Twins twins(options);
  twins.append(ids_from(0, 101 * 30));
  CHECK_THROWS(sfctr::LocationsExhaustedError, twins.append(ids_from(9000, 1)));
  twins.log.flush();
  CHECK(twins.log.counters().segments == 66);
  for (std::uint64_t first = 0; first < 32 * 30; first += 60) twins.release(ids_from(first, 30));  // no two in a row
  twins.append(ids_from(5000, 16 * 30));
  twins.check(twins.all());
}

void a_log_raises_the_limit_of_open_files() {
  rlimit limit;
  CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
  limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, 256);
  CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
  TempDir directory;
  RowLog log(small_options(directory, 8));
  CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur == limit.rlim_max);
}

void compaction_reads_no_more_than_its_budget_and_a_unit() {
  TempDir directory;
  Twins twins(small_options(directory, 256));
  twins.append(ids_from(0, 20'000));
  for (std::uint64_t first = 0; first < 20'000; first += 2) twins.release(ids_from(first, 1));
  twins.log.flush();
  bool more = true;
  for (std::size_t calls = 0; more; ++calls) {
    const auto before = twins.log.counters();
    more = twins.compact(40'000);
    const auto after = twins.log.counters();
    CHECK(after.bytes_read - before.bytes_read <= 40'000 + 4096);
    CHECK(!more || after.records_moved > before.records_moved || after.segments < before.segments);
    CHECK(calls < 1000);
  }
  twins.check(twins.all());
}

void garbage_that_only_the_head_has_moves_nothing() {
  TempDir directory;
  Twins twins(small_options(directory, 256));
  twins.append(ids_from(0, 960 + 500));
  twins.release(ids_from(0, 1));
  twins.release(ids_from(960, 480));
  CHECK(!twins.compact(1 << 20));
  const auto counters = twins.log.counters();
  CHECK(counters.garbage == 481 && counters.records_moved == 0);
}

void rows_released_before_they_are_written_leave_the_head_in_place() {
  TempDir directory;
  Twins twins(small_options(directory, 256));
  for (std::uint64_t first = 0; first < 3000; first += 50) {
    twins.append(ids_from(first, 50));
    twins.check(twins.all());
    twins.release(twins.all());
  }
  twins.append(ids_from(0, 1000));
  twins.log.flush();
  twins.check(twins.all());
}

void a_segment_without_live_rows_goes_at_once_and_its_number_is_used_again() {
  TempDir directory;
  Twins twins(small_options(directory, 256));
  for (int round = 0; round < 20; ++round) {
    twins.append(ids_from(0, 2000));
    twins.log.flush();
  }
  CHECK(twins.log.counters().segments <= 4);
  CHECK(twins.log.counters().garbage == 0);
  twins.check(twins.all());
}

void a_dropped_segment_stays_readable_until_the_last_fetch_ends(IoKind io) {
  TempDir directory;
  Twins twins(small_options(directory, 256, io));
  const std::vector<RecordId> ids = ids_from(0, 500);
  twins.append(ids);
  const std::vector<Row> expected = twins.expected(ids);
  twins.log.flush();
  {
    const auto first = twins.begin_read(ids);
    auto second = twins.begin_read(ids);
    twins.release(ids);
    CHECK(twins.log.counters().segments == 0 && directory.files().size() == 1);
    twins.append(ids_from(1000, 2000));  // takes the number of the dropped one
    twins.log.flush();
    CHECK(run_fetch(first, ids, 256) == expected);
    const auto moved = std::move(second);
    CHECK(run_fetch(moved, ids, 256) == expected);
    CHECK(directory.files().size() == 4);
  }
  // The log's thread may have its reference yet.
  for (int i = 0; i < 1000 && directory.files().size() > 3; ++i) usleep(1000);
  CHECK(directory.files().size() == 3);
}

void append_waits_for_writes_and_reading_does_not(IoKind io) {
  TempDir directory;
  IoFaults faults;
  LogOptions options = small_options(directory, 256, io);
  options.faults = &faults;
  Twins twins(options);
  twins.append(ids_from(0, 300));
  twins.log.flush();
  faults.stall(IoCall::kWrite);
  twins.append(ids_from(300, 300));
  const std::vector<RecordId> ids = twins.all(), more = ids_from(1000, 3000);  // more than all buffers hold
  const auto fetch = twins.begin_read(ids);
  const std::vector<Row> expected = twins.expected(ids), rows(more.size(), Row(256));
  std::atomic<bool> appended{false};
  std::thread writer([&] {
    append_rows(twins.log, more, rows);
    appended = true;
  });
  CHECK(run_fetch(fetch, ids, 256) == expected);
  usleep(200'000);
  CHECK(!appended);
  faults.resume(IoCall::kWrite);
  writer.join();
  CHECK(twins.log.counters().write_wait_s > 0);
  twins.check(ids);
}

void locations_that_run_out_are_refused_and_nothing_is_added() {
  TempDir directory;
  LogOptions options = small_options(directory, 256);
  options.max_records = 3 * 64 * 15;
  Twins twins(options);
  twins.append(ids_from(0, 2000));
  CHECK_THROWS(sfctr::LocationsExhaustedError, twins.append(ids_from(5000, 881)));
  CHECK(twins.log.counters().live == 2000 && twins.log.counters().garbage == 0);
  twins.append(ids_from(5000, 880));
  twins.check(twins.all());
  CHECK_THROWS(sfctr::LocationsExhaustedError, twins.append(ids_from(9000, 1)));
  twins.log.flush();
  twins.release(ids_from(0, 960));
  twins.append(ids_from(9000, 960));
  twins.check(twins.all());
}

void a_location_where_nothing_lives_is_refused() {
  TempDir directory;
  RowLog log(small_options(directory, 8));
  const std::vector<Row> rows(3, Row(8));
  std::vector<Location> at = append_rows(log, ids_from(0, 3), rows);
  log.release(std::vector{at[1]});
  CHECK_THROWS(std::logic_error, log.release(std::vector{at[1]}));
  CHECK_THROWS(std::logic_error, log.begin_read(std::vector{at[1]}));
  CHECK_THROWS(std::logic_error, log.begin_read(std::vector{at[2] + 1}));
  CHECK_THROWS(std::logic_error, log.release(std::vector{Location{0x7FFFFFFF}}));
  CHECK(log.counters().live == 2 && log.counters().garbage == 1);
}

void a_row_asked_for_under_another_id_is_refused(bool flushed) {
  TempDir directory;
  RowLog log(small_options(directory, 8));
  const std::vector<Location> at = append_rows(log, {{7, 1}}, {Row(8)});
  if (flushed) log.flush();
  for (const RecordId other : {RecordId{7, 0}, RecordId{8, 1}}) {
    CHECK_THROWS(sfctr::ChecksumError, run_fetch(log.begin_read(at), {other}, 8));
  }
  CHECK(run_fetch(log.begin_read(at), {{7, 1}}, 8) == std::vector<Row>{Row(8)});
}

void every_key_and_table_is_an_ordinary_id() {
  TempDir directory;
  Twins twins(small_options(directory, 64));
  const std::vector<RecordId> ids = {
      {0, 0}, {0, 1}, {~std::uint64_t{0}, 0}, {std::uint64_t{1} << 63, 0xFFFFFFFF}, {~std::uint64_t{0}, 0xFFFFFFFF}};
  twins.append(ids);
  twins.check(ids);
  twins.log.flush();
  twins.check(ids);
}

void a_directory_is_locked_and_cleared_of_earlier_segments() {
  TempDir directory;
  const std::string left = directory.path() + "/segment-00000000000000ab.rows";
  const std::string others = directory.path() + "/segment-1.rows";
  for (const std::string& path : {left, others}) std::fclose(std::fopen(path.c_str(), "w"));
  {
    Twins twins(small_options(directory, 64));
    CHECK(directory.files() == std::vector<std::string>{others});
    try {
      RowLog second(small_options(directory, 64));
      CHECK(!"two logs in one directory");
    } catch (const sfctr::DiskError& error) {
      const std::string begin = "cannot lock directory " + directory.path() + ": ";
      CHECK(std::string(error.what()).starts_with(begin));
      CHECK(std::string(error.what()).ends_with("; another log has it: end that one or choose another directory"));
    }
    twins.append(ids_from(0, 10'000));
    twins.log.flush(true);
    CHECK(directory.files().size() > 2);
  }
  CHECK(directory.files() == std::vector<std::string>{others});
  RowLog(small_options(directory, 64));
}

void impossible_options_are_refused_before_the_disk_is_touched() {
  TempDir directory;
  const LogOptions good = [&] {
    LogOptions options = small_options(directory, 64);
    options.directory += "/new";
    return options;
  }();
  const auto refused = [&](auto&& spoil) {
    LogOptions options = good;
    spoil(options);
    CHECK_THROWS(std::invalid_argument, RowLog(options));
  };
  refused([](LogOptions& o) { o.record_bytes = 0; });
  refused([](LogOptions& o) { o.max_garbage = 0; });
  refused([](LogOptions& o) { o.max_garbage = 1; });
  refused([](LogOptions& o) { o.max_records = 100; });
  refused([](LogOptions& o) { o.max_records = (std::uint64_t{1} << 31) + 1; });
  refused([](LogOptions& o) { o.depth = 0; });
  refused([](LogOptions& o) { o.num_readers = 0; });
  refused([](LogOptions& o) { o.staging_bytes = 20'000; });
  CHECK(directory.files().empty());
  RowLog log(good);
}

void memory_a_row_on_disk_is_about_a_bit() {
  TempDir directory;
  LogOptions options = small_options(directory, 8);
  options.segment_bytes = 1 << 20;
  RowLog log(options);
  const std::size_t before = log.memory_bytes();
  CHECK(before >= options.staging_bytes / 2 && before < (8 << 20));
  const std::vector<Row> rows(200'000, Row(8));
  append_rows(log, ids_from(0, 200'000), rows);
  const auto added_bits = static_cast<double>(log.memory_bytes() - before) * 8;
  CHECK(added_bits > 200'000 && added_bits < 1.5 * 200'000);
}

void file_systems_in_memory_serve_as_well(IoKind io) {
  if (access("/dev/shm", W_OK) != 0) return;
  TempDir directory("/dev/shm");
  Twins twins(small_options(directory, 256, io));
  for (int round = 0; round < 3; ++round) {
    twins.append(ids_from(1000 * round, 4000));
    twins.compact(1 << 20);
    twins.check(twins.all());
  }
}

}  // namespace

int main() {
  alarm(240);  // a test that waits for ever ends here
  small_records_never_straddle_a_sector_and_large_ones_waste_an_eighth_at_most();
  for (const IoKind io : {IoKind::kAuto, IoKind::kThreads}) {
    rows_are_the_same_from_a_buffer_a_write_and_a_file(io);
    a_fetch_begun_in_a_buffer_ends_in_the_file_when_the_buffer_is_used_again(io);
    for (const std::size_t segment_bytes : {256 << 10, 4096}) any_schedule_gives_what_a_map_gives(io, segment_bytes);
    a_dropped_segment_stays_readable_until_the_last_fetch_ends(io);
    append_waits_for_writes_and_reading_does_not(io);
    file_systems_in_memory_serve_as_well(io);
  }
  compaction_keeps_the_files_within_the_bound();
  many_rows_are_in_few_files_of_a_sixteenth_at_most();
  larger_segments_leave_no_location_unused();
  a_log_raises_the_limit_of_open_files();
  compaction_reads_no_more_than_its_budget_and_a_unit();
  garbage_that_only_the_head_has_moves_nothing();
  rows_released_before_they_are_written_leave_the_head_in_place();
  a_segment_without_live_rows_goes_at_once_and_its_number_is_used_again();
  locations_that_run_out_are_refused_and_nothing_is_added();
  a_location_where_nothing_lives_is_refused();
  a_row_asked_for_under_another_id_is_refused(false);
  a_row_asked_for_under_another_id_is_refused(true);
  every_key_and_table_is_an_ordinary_id();
  a_directory_is_locked_and_cleared_of_earlier_segments();
  impossible_options_are_refused_before_the_disk_is_touched();
  memory_a_row_on_disk_is_about_a_bit();
}
