// The rows of one group on disk, log-structured: rows are appended to segments, which are sealed when full and never
// change again; rows released become garbage; compaction moves the rows that live out of the segments with the most of
// it. The files are described in docs/format/segments.md. They are working files: the log begins with none, and takes
// its own away when it ends; who wants to keep sealed segments links them elsewhere.
//
// A log belongs to one directory and locks it. Its caller calls everything but Fetch::run from one thread at a time
// (it holds a lock over its own index anyway); Fetch::run may run beside that in any number of threads. Full staging
// buffers are written by a thread of the log.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "sfctr/io_errors.h"
#include "sfctr/io_faults.h"
#include "sfctr/io_reader.h"

namespace sfctr {

// Where a record is: first number of its segment * records of the smallest segments + place in it. Below 2^31.
using Location = std::uint32_t;

struct RecordId {
  std::uint64_t key;
  std::uint32_t table;  // native table number

  bool operator==(const RecordId&) const = default;
};

struct LogOptions {
  std::string directory;         // made if it is not there
  std::size_t record_bytes = 0;  // of a row, without the 16 bytes that the log puts before it
  // What it costs. A segment is an open file and the unit of compaction. The first 32 have segment_bytes, the next 32
  // twice that, and so on, so that a terabyte is 300 files of 64 MiB and more, and none is much beyond a sixteenth of
  // all. Staging is what append fills while earlier rows are being written.
  std::size_t segment_bytes = std::size_t{64} << 20;
  std::size_t staging_bytes = std::size_t{4} << 20;
  double max_garbage = 0.3;                            // share of the records, above which compact() works; in (0, 1)
  std::uint64_t max_records = std::uint64_t{1} << 31;  // locations that there may be, at most 2^31
  IoKind io = IoKind::kAuto;
  unsigned depth = 256;        // reads in flight of one Fetch::run
  unsigned num_readers = 2;    // Fetch::run that read from disk beside each other; more wait
  IoFaults* faults = nullptr;  // for tests; outlives the log
};

struct LogCounters {
  std::uint64_t live = 0, garbage = 0;  // records
  std::uint64_t segments = 0, file_bytes = 0;
  std::uint64_t records_written = 0, records_moved = 0, bytes_written = 0;   // appended; moved by compaction; to files
  std::uint64_t records_read = 0, records_from_staging = 0, bytes_read = 0;  // all; of those from memory; from files
  double write_wait_s = 0;                                                   // that append waited for writes
  std::size_t num_rings = 0;  // io_uring instances that read; 0 where threads do
};

struct LogSegment;
struct StagingBuffer;
struct LogLayout;
struct ReadCounts;
class LogDirectory;
class Staging;

// Records that can be read until it ends, though released, moved or dropped meanwhile. REQUIRES: its log outlives it.
class Fetch {
 public:
  Fetch(Fetch&&) noexcept;
  Fetch& operator=(Fetch&&) noexcept;
  ~Fetch();

  std::size_t size() const { return items_.size(); }

  // out[i] gets the row at the i-th location, which must be that of ids[i]. Waits for no write. Safe beside everything.
  // Throws DiskError, or ChecksumError where a record is damaged or another one; what out points to is then undefined.
  // REQUIRES: ids.size() == size(), and out has as many pointers to record_bytes each.
  void run(std::span<const RecordId> ids, std::byte* const* out) const;

 private:
  friend class RowLog;
  struct Item {
    const LogSegment* segment;
    StagingBuffer* staged;  // that held the record when the fetch began, or null
    std::uint64_t use;      // of that buffer
    std::uint32_t place;
  };
  Fetch(const LogLayout& layout, Readers& readers, ReadCounts& counts);
  std::vector<std::uint32_t> copy_staged(std::span<const RecordId> ids, std::byte* const* out) const;
  void read_files(std::span<const std::uint32_t> wanted, std::span<const RecordId> ids, std::byte* const* out) const;

  const LogLayout* layout_;
  Readers* readers_;
  ReadCounts* counts_;
  std::vector<std::shared_ptr<LogSegment>> segments_;  // keeps their files
  std::vector<Item> items_;
};

class RowLog {
 public:
  using Holds = std::function<bool(RecordId id, Location at)>;
  using Moved = std::function<void(RecordId id, Location old, Location now)>;

  // Throws std::invalid_argument for options that cannot be met.
  static void require_valid(const LogOptions& options);
  // The least of staging_bytes with which rows of this size are written while others are appended: four buffers.
  static std::size_t least_staging_bytes(std::size_t record_bytes);

  // Removes segments that an earlier process left in the directory, and raises the process's soft limit of open files
  // to the hard one. Throws as require_valid, DiskError where the directory cannot be used or another log has it,
  // std::bad_alloc.
  explicit RowLog(const LogOptions& options);
  ~RowLog();
  RowLog(const RowLog&) = delete;
  RowLog& operator=(const RowLog&) = delete;

  // out[i] gets the location of record i, whose row is the record_bytes at records[i]. It can be read from now on.
  // Waits where all staging buffers are being written. Throws DiskError if a write has failed, now or ever before, and
  // LocationsExhaustedError; nothing of the call is then accepted, and all that was accepted before stays readable.
  // REQUIRES: what the log had under the same id is released before compact() is called, or the file order of the two
  // could be turned round.
  void append(std::span<const RecordId> ids, const std::byte* const* records, Location* out);

  // A bound on the locations that there have been, and those of the next `num_records` records.
  std::uint64_t reach(std::uint64_t num_records) const;

  // Throws std::logic_error where no record lives at a location; nothing is then changed (for release: those before it
  // are released).
  Fetch begin_read(std::span<const Location> locations);
  void release(std::span<const Location> locations);

  // If more than max_garbage of the records is garbage: takes the complete segment with the most of it, moves its live
  // records to the head, tells of each, and drops the segment; reads about budget_bytes at most. True while there is
  // more to do. A segment that cannot be read, with a damaged record, or with one of which `holds` says that the caller
  // has another one there, is set aside: nothing more of it is moved, and its garbage is kept until all its records
  // have gone. Whoever wants the damaged record meets the error. A budget of compaction_bytes(records appended) for
  // each append keeps the files within live / (1 - max_garbage) and the segments not yet complete. Throws what append
  // throws, and `holds`; a record is then either moved and told of, or where it was. REQUIRES: `moved` does not throw,
  // and neither calls the log.
  bool compact(std::size_t budget_bytes, const Holds& holds, const Moved& moved);

  // What so many records appended ask of compact(): the bytes that they take in files, over max_garbage.
  std::size_t compaction_bytes(std::size_t num_records) const;

  // Seals the segment at the head, however short, and waits until all accepted records are written; with sync, until
  // they are on the disk. Throws DiskError. Each call that finds new records makes a file: once a snapshot, not a step.
  void flush(bool sync = false);

  // Staging, read buffers, bitmaps of live records and segments. A Fetch has some 70 bytes a record beyond that.
  std::size_t memory_bytes() const;
  LogCounters counters() const;

 private:
  using Put = std::function<void(std::size_t record, std::byte* to)>;

  void place(std::size_t num_records, Location* out, const Put& put);
  void require_room(std::size_t num_records) const;
  void open_segment();
  std::uint32_t find_numbers(std::uint32_t& count) const;
  void submit_head(bool last);
  std::vector<LogSegment*> all_segments() const;
  LogSegment& segment_of(Location location) const;
  std::uint32_t place_of(const LogSegment& segment, Location location) const;
  void kill(LogSegment& segment, std::uint32_t place);
  void drop(LogSegment& segment);
  bool has_excess() const;
  LogSegment* find_victim() const;
  std::size_t move_some(LogSegment& victim, std::size_t budget_bytes, const Holds& holds, const Moved& moved);
  bool read_chunk(const LogSegment& victim, std::uint32_t begin, std::size_t num_bytes, const Holds& holds);

  std::unique_ptr<const LogLayout> layout_;
  double max_garbage_;
  std::uint32_t max_numbers_;
  IoFaults* faults_;
  std::unique_ptr<LogDirectory> directory_;
  std::unique_ptr<Readers> readers_;
  std::unique_ptr<ReadCounts> read_counts_;
  std::vector<std::shared_ptr<LogSegment>> segments_;  // by number, once for each that it has; null where free
  std::uint32_t num_segments_ = 0, num_taken_ = 0;     // the latter: numbers
  std::unique_ptr<Staging> staging_;
  LogSegment* head_ = nullptr;            // takes records
  StagingBuffer* head_buffer_ = nullptr;  // of head_; null until it is needed
  std::uint64_t num_sequence_ = 0, num_fetches_ = 0;
  std::uint64_t live_ = 0, used_ = 0, moved_ = 0, appended_ = 0;
  std::uint32_t victim_ = 0, cursor_ = 0;  // the segment being compacted, and the place reached in it
  bool compacting_ = false;
  std::size_t chunk_units_;
  Pages chunk_;                        // a part of a victim
  std::vector<std::uint32_t> places_;  // of live records in chunk_
  std::vector<Location> targets_;      // where they go
};

}  // namespace sfctr
