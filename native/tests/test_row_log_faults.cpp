// What a failing disk does to the log, fault by fault, through io_uring and through threads.
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <functional>
#include <string>

#include "row_log_rig.h"

namespace {

using namespace rig;
using sfctr::ChecksumError;
using sfctr::DiskError;

constexpr int kSkip = 77;

// A log of rows of some size with a fault to set up; what goes wrong is told apart by the exception.
struct Faulty {
  explicit Faulty(IoKind io, std::size_t record_bytes = 256) : options(small_options(directory, record_bytes, io)) {
    options.faults = &faults;
  }
  std::vector<RecordId> write_rows(Twins& twins, std::size_t count) const {
    twins.append(ids_from(0, count));
    twins.log.flush();
    return twins.all();
  }

  TempDir directory;
  IoFaults faults;
  LogOptions options;
};

template <class Error>
Error error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error;
  }
  CHECK(!"an error was expected");
  std::abort();
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// Appends until the disk is full: then nothing of the last call is there, and all before it is, though not in files.
void expect_full_disk(Twins& twins, const std::string& directory) {
  std::vector<RecordId> accepted;
  std::vector<Row> expected;
  const DiskError error = error_of<DiskError>([&] {
    for (std::uint64_t first = 0;; first += 700) {
      twins.append(ids_from(first, 700));
      accepted = twins.all();
    }
  });
  CHECK(error.code() == ENOSPC && contains(error.path(), directory + "/segment-"));
  CHECK(contains(error.what(), "cannot write ") && contains(error.what(), "No space left on device; free space"));
  CHECK(twins.num_rows() == accepted.size());
  CHECK(twins.log.counters().live == accepted.size());
  twins.check(accepted);
  CHECK_THROWS(DiskError, twins.append(ids_from(0, 1)));
  CHECK_THROWS(DiskError, twins.log.flush());
  twins.check(accepted);
  twins.release(ids_from(0, 10));
  twins.check(twins.all());
}

void a_full_disk_refuses_what_is_new_and_keeps_the_rest(IoKind io) {
  for (const std::size_t after_bytes : {0, 100, 4096, 300'000, 1'000'000}) {
    Faulty rig(io);
    rig.faults.disk_full(after_bytes);
    Twins twins(rig.options);
    expect_full_disk(twins, rig.directory.path());
  }
}

// Though the buffer that is being filled has room yet.
void a_write_that_failed_behind_refuses_the_next_append() {
  Faulty rig(IoKind::kAuto);
  rig.faults.disk_full(0);
  Twins twins(rig.options);
  rig.faults.stall(IoCall::kWrite);
  twins.append(ids_from(0, 100));  // a buffer has 90
  rig.faults.resume(IoCall::kWrite);
  while (rig.faults.calls(IoCall::kWrite) == 0) usleep(1000);
  usleep(50'000);
  CHECK_THROWS(DiskError, twins.append(ids_from(100, 1)));
  twins.check(twins.all());
}

void a_full_disk_stops_compaction_before_anything_is_lost(IoKind io) {
  Faulty rig(io);
  Twins twins(rig.options);
  rig.write_rows(twins, 5000);
  twins.release(ids_from(0, 3000));
  for (std::uint64_t key = 3000; key < 5000; key += 2) twins.release(ids_from(key, 1));
  rig.faults.disk_full(50'000);
  const auto compact_all = [&] {
    while (twins.compact(100'000)) {
    }
  };
  CHECK_THROWS(DiskError, compact_all());
  twins.check(twins.all());
}

void a_file_that_cannot_be_made_is_named(IoKind io) {
  Faulty rig(io);
  Twins twins(rig.options);
  rig.faults.fail(IoCall::kOpen, EMFILE, 1);
  const DiskError error = error_of<DiskError>([&] { rig.write_rows(twins, 3000); });
  CHECK(contains(error.what(), "cannot create " + rig.directory.path() + "/segment-0000000000000002.rows"));
  CHECK(contains(error.what(), "ulimit -Hn"));
  twins.check(twins.all());
}

void a_failed_sync_is_told() {
  Faulty rig(IoKind::kAuto);
  Twins twins(rig.options);
  rig.write_rows(twins, 100);
  rig.faults.fail(IoCall::kSync, EIO);
  CHECK(error_of<DiskError>([&] { twins.log.flush(true); }).code() == EIO);
  twins.log.flush(true);
  CHECK(rig.faults.calls(IoCall::kSync) == 3);  // the file twice, the directory once
}

void an_unreadable_sector_fails_its_fetch_and_no_other(IoKind io) {
  Faulty rig(io);
  Twins twins(rig.options);
  const std::vector<RecordId> ids = rig.write_rows(twins, 3000);
  for (const std::uint64_t skip : {0, 1, 100, 199}) {
    rig.faults.fail(IoCall::kRead, EIO, skip);
    const DiskError error = error_of<DiskError>([&] { twins.check(ids); });
    CHECK(error.code() == EIO && contains(error.what(), "cannot read 4096 bytes at byte "));
    CHECK(contains(error.path(), rig.directory.path() + "/segment-"));
    twins.check(ids);
  }
}

void a_changed_byte_is_found_wherever_it_is(IoKind io) {
  Faulty rig(io);
  Twins twins(rig.options);
  rig.write_rows(twins, 15);
  const std::vector<RecordId> third = ids_from(2, 1);
  for (std::size_t at = 0; at < 272; at += 3) {  // checksum, table, key and row
    rig.faults.flip_byte(2 * 272 + at);
    const ChecksumError error = error_of<ChecksumError>([&] { twins.check(third); });
    CHECK(error.offset() == 4096 + 2 * 272 && contains(error.path(), rig.directory.path()));
    CHECK(contains(error.what(), "is damaged at byte 4640: the checksum"));
  }
  rig.faults.flip_byte(0);
  twins.check(third);  // a neighbour's damage is not its own
}

// Compaction passes over a damaged segment, and goes on with the others.
void damage_is_not_moved_and_only_who_asks_for_it_hears_of_it(IoKind io, const std::function<void(Faulty&)>& spoil) {
  Faulty rig(io);
  Twins twins(rig.options);
  rig.write_rows(twins, 3 * 960);
  for (const std::uint64_t first : {0, 960, 1920}) twins.release(ids_from(first, 500));
  spoil(rig);
  CHECK(!twins.compact(1 << 20));
  CHECK(twins.log.counters().records_moved == 2 * 460 && twins.log.counters().garbage == 500);
  CHECK(!twins.compact(1 << 20));
  CHECK(twins.log.counters().records_moved == 2 * 460);
  twins.check(ids_from(500 + 20, 440));
  twins.check(ids_from(960 + 500, 460));
  twins.release(ids_from(500, 460));
  CHECK(twins.log.counters().garbage == 0);
}

void change_bytes_of_record(const Faulty& rig, std::uint64_t record, std::uint64_t from) {
  std::fstream file(rig.directory.path() + "/segment-0000000000000001.rows");
  const auto offset = [](std::uint64_t place) {
    return static_cast<std::streamoff>(4096 + place / 15 * 4096 + place % 15 * 272);
  };
  std::string bytes(272, '\0');
  file.seekg(offset(from)).read(bytes.data(), 272);
  if (from == record) bytes[100] ^= 1;
  file.seekp(offset(record)).write(bytes.data(), 272);
  CHECK(file.good());
}

void a_changed_byte_is_not_moved(IoKind io) {
  damage_is_not_moved_and_only_who_asks_for_it_hears_of_it(io,
                                                           [](Faulty& rig) { change_bytes_of_record(rig, 510, 510); });
}

// Whole, but not the row that was written there.
void another_row_is_not_moved(IoKind io) {
  damage_is_not_moved_and_only_who_asks_for_it_hears_of_it(io,
                                                           [](Faulty& rig) { change_bytes_of_record(rig, 510, 511); });
  damage_is_not_moved_and_only_who_asks_for_it_hears_of_it(io,
                                                           [](Faulty& rig) { change_bytes_of_record(rig, 510, 20); });
}

void an_unreadable_sector_is_not_moved(IoKind io) {
  damage_is_not_moved_and_only_who_asks_for_it_hears_of_it(io,
                                                           [](Faulty& rig) { rig.faults.fail(IoCall::kRead, EIO); });
}

void a_file_cut_off_is_damage(IoKind io) {
  Faulty rig(io);
  Twins twins(rig.options);
  const std::vector<RecordId> ids = rig.write_rows(twins, 100);
  CHECK(truncate(rig.directory.files().at(0).c_str(), 8192) == 0);
  const ChecksumError error = error_of<ChecksumError>([&] { twins.check(ids); });
  CHECK(error.offset() >= 8192 && contains(error.what(), "the file ends before it"));
  twins.check(ids_from(0, 15));
}

void short_transfers_and_interruptions_are_gone_on_with(IoKind io) {
  for (const std::size_t record_bytes : {256, 12'288}) {
    Faulty rig(io, record_bytes);
    Twins twins(rig.options);
    for (const std::size_t bytes : {100, 4096, 5000}) {
      rig.faults.shorten(IoCall::kWrite, bytes, 1, 2);
      rig.faults.shorten(IoCall::kRead, bytes, 3, 40);
    }
    for (const int error : {EINTR, EAGAIN}) {
      rig.faults.fail(IoCall::kWrite, error, 2, 3);
      rig.faults.fail(IoCall::kRead, error, 2, 70);
      rig.faults.fail(IoCall::kRingEnter, error, 2, 3);
    }
    const std::vector<RecordId> ids = rig.write_rows(twins, 800'000 / (record_bytes + 1000));
    twins.check(ids);
    twins.check(ids);
  }
}

void a_read_that_never_moves_ends_in_an_error(IoKind io) {
  Faulty rig(io);
  Twins twins(rig.options);
  const std::vector<RecordId> ids = rig.write_rows(twins, 100);
  rig.faults.shorten(IoCall::kRead, 512, 0, 100'000);
  CHECK(error_of<DiskError>([&] { twins.check(ids); }).code() == EIO);
}

void a_file_system_that_refuses_o_direct_is_read_through_the_page_cache(IoKind io) {
  const auto check = [&](IoCall call, std::uint64_t skip) {
    Faulty rig(io);
    rig.faults.fail(call, EINVAL, skip);
    Twins twins(rig.options);
    const std::vector<RecordId> ids = rig.write_rows(twins, 3000);
    twins.check(ids);
    twins.append(ids_from(0, 3000));
    twins.log.flush();
    twins.check(ids);
  };
  check(IoCall::kOpen, 0);
  check(IoCall::kOpen, 1);
  check(IoCall::kWrite, 0);
  check(IoCall::kWrite, 3);
  check(IoCall::kRead, 0);
  check(IoCall::kRead, 20);
}

void no_more_reads_are_in_flight_than_the_depth(IoKind io) {
  for (const unsigned depth : {1U, 3U, 16U}) {
    Faulty rig(io);
    rig.options.depth = depth;
    Twins twins(rig.options);
    twins.check(rig.write_rows(twins, 5000));
    const std::size_t most = rig.faults.most_in_flight(IoCall::kRead);
    CHECK(most >= 1 && most <= depth);
    if (io == IoKind::kAuto && has_uring()) CHECK(most == depth);
  }
}

void forbidden_rings_are_replaced_by_threads(int error) {
  Faulty rig(IoKind::kAuto);
  rig.faults.fail(IoCall::kRingSetup, error, 0, IoFaults::kForever);
  Twins twins(rig.options);
  CHECK(twins.log.counters().num_rings == 0);
  twins.check(rig.write_rows(twins, 1000));
  rig.options.directory += "/other";
  rig.options.io = IoKind::kUring;
  const DiskError refused = error_of<DiskError>([&] { RowLog log(rig.options); });
  CHECK(contains(refused.what(), "cannot set up io_uring: "));
  if (has_uring()) CHECK(refused.code() == error);
}

void the_second_ring_may_be_forbidden_alone() {
  Faulty rig(IoKind::kUring);
  rig.options.num_readers = 3;
  rig.faults.fail(IoCall::kRingSetup, ENOMEM, 1, IoFaults::kForever);
  Twins twins(rig.options);
  CHECK(twins.log.counters().num_rings == 1);
  twins.check(rig.write_rows(twins, 1000));
}

void an_older_kernel_gives_a_ring_without_the_newer_flag() {
  Faulty rig(IoKind::kUring);
  rig.faults.fail(IoCall::kRingSetup, EINVAL, 0, 1);
  Twins twins(rig.options);
  CHECK(twins.log.counters().num_rings == rig.options.num_readers);
  twins.check(rig.write_rows(twins, 1000));
}

void rings_without_registered_memory_serve_as_well() {
  Faulty rig(IoKind::kUring);
  rig.faults.fail(IoCall::kRingRegister, ENOMEM, 0, IoFaults::kForever);
  Twins twins(rig.options);
  CHECK(twins.log.counters().num_rings == rig.options.num_readers);
  twins.check(rig.write_rows(twins, 1000));
}

void rings_taken_away_half_way_are_replaced_by_threads(std::uint64_t after_calls) {
  Faulty rig(IoKind::kUring);
  Twins twins(rig.options);
  const std::vector<RecordId> ids = rig.write_rows(twins, 5000);
  CHECK(twins.log.counters().num_rings == 2);
  rig.faults.fail(IoCall::kRingEnter, EPERM, after_calls, IoFaults::kForever);
  twins.check(ids);
  CHECK(twins.log.counters().num_rings == 0);
  const std::uint64_t calls = rig.faults.calls(IoCall::kRingEnter);
  twins.check(ids);
  CHECK(rig.faults.calls(IoCall::kRingEnter) == calls);
}

bool write_text(const std::string& path, const std::string& text) {
  std::ofstream out(path);
  out << text << std::flush;
  return out.good();
}

// A mount namespace of this process's own, as root of a user namespace where it is not root already.
bool may_mount() {
  const uid_t user = getuid();
  const gid_t group = getgid();
  if (unshare(user == 0 ? CLONE_NEWNS : CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
  if (user != 0) {
    if (!write_text("/proc/self/uid_map", "0 " + std::to_string(user) + " 1")) return false;
    if (!write_text("/proc/self/setgroups", "deny")) return false;
    if (!write_text("/proc/self/gid_map", "0 " + std::to_string(group) + " 1")) return false;
  }
  return mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
}

// A file system in memory of a megabyte and a half.
int fill_a_real_disk() {
  TempDir directory;
  if (!may_mount() || mount("none", directory.path().c_str(), "tmpfs", 0, "size=1536k") != 0) return kSkip;
  for (const IoKind io : {IoKind::kAuto, IoKind::kThreads}) {
    Twins twins(small_options(directory, 256, io));
    expect_full_disk(twins, directory.path());
  }
  umount(directory.path().c_str());
  return 0;
}

// Before any thread is started: a child has none of its parent's.
void a_disk_that_is_really_full_is_refused_alike() {
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    const int result = fill_a_real_disk();
    _exit(result);
  }
  int status = 1;
  CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
  if (WEXITSTATUS(status) == kSkip) std::fprintf(stderr, "no file system may be mounted: full disk not tried\n");
  CHECK(WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == kSkip);
}

}  // namespace

int main() {
  alarm(240);  // a test that waits for ever ends here
  a_disk_that_is_really_full_is_refused_alike();
  for (const IoKind io : {IoKind::kAuto, IoKind::kThreads}) {
    a_full_disk_refuses_what_is_new_and_keeps_the_rest(io);
    a_full_disk_stops_compaction_before_anything_is_lost(io);
    a_file_that_cannot_be_made_is_named(io);
    an_unreadable_sector_fails_its_fetch_and_no_other(io);
    a_changed_byte_is_found_wherever_it_is(io);
    a_changed_byte_is_not_moved(io);
    another_row_is_not_moved(io);
    an_unreadable_sector_is_not_moved(io);
    a_file_cut_off_is_damage(io);
    short_transfers_and_interruptions_are_gone_on_with(io);
    a_read_that_never_moves_ends_in_an_error(io);
    a_file_system_that_refuses_o_direct_is_read_through_the_page_cache(io);
    no_more_reads_are_in_flight_than_the_depth(io);
  }
  a_write_that_failed_behind_refuses_the_next_append();
  a_failed_sync_is_told();
  for (const int error : {ENOSYS, EPERM, ENOMEM}) forbidden_rings_are_replaced_by_threads(error);
  if (!has_uring()) return 0;
  the_second_ring_may_be_forbidden_alone();
  an_older_kernel_gives_a_ring_without_the_newer_flag();
  rings_without_registered_memory_serve_as_well();
  for (const std::uint64_t after_calls : {0, 1, 5}) rings_taken_away_half_way_are_replaced_by_threads(after_calls);
}
