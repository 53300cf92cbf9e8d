#include "sfctr/row_log.h"

#include <sys/resource.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "row_log_directory.h"
#include "row_log_fetch.h"
#include "row_log_format.h"
#include "row_log_segment.h"
#include "row_log_staging.h"

namespace sfctr {
namespace {

constexpr std::uint64_t kMostRecords = std::uint64_t{1} << 31;
constexpr std::size_t kLargestRow = std::size_t{1} << 30;
constexpr std::size_t kLine = 64, kLinesAhead = 16;
constexpr std::size_t kChunkBytes = std::size_t{1} << 20;  // that compaction reads at once
constexpr std::uint32_t kSegmentsOfASize = 32;             // before the next is twice as large
constexpr std::uint32_t kMostDoublings = 16;

void require(bool holds, const std::string& otherwise) {
  if (!holds) throw std::invalid_argument(otherwise);
}

const LogOptions& checked(const LogOptions& options) {
  require(options.record_bytes >= 1 && options.record_bytes <= kLargestRow,
          "record_bytes is " + std::to_string(options.record_bytes) + " and must be 1 to 2^30");
  require(options.max_garbage > 0 && options.max_garbage < 1,
          "max_garbage is " + std::to_string(options.max_garbage) + " and must lie between 0 and 1");
  require(options.max_records >= 1 && options.max_records <= kMostRecords,
          "max_records is " + std::to_string(options.max_records) + " and must be 1 to 2^31");
  require(options.depth >= 1 && options.depth <= 4096,
          "depth is " + std::to_string(options.depth) + " and must be 1 to 4096");
  require(options.num_readers >= 1, "num_readers is 0 and must be at least 1");
  return options;
}

std::unique_ptr<const LogLayout> make_layout(const LogOptions& options) {
  auto layout = std::make_unique<const LogLayout>(options.record_bytes, options.segment_bytes);
  require(layout->segment_records <= options.max_records,
          "a segment of " + std::to_string(options.segment_bytes) + " bytes has " +
              std::to_string(layout->segment_records) + " records and max_records is " +
              std::to_string(options.max_records) + "; make segment_bytes smaller");
  Staging::require_room(*layout, options.staging_bytes);
  return layout;
}

// A segment is an open file, and the usual soft limit is 1024 where the hard one is a million.
void raise_limit_of_open_files() noexcept {
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

void fetch_ahead(const std::byte* row, std::size_t num_bytes) {
  const std::size_t lines = std::min((num_bytes + kLine - 1) / kLine, kLinesAhead);
  for (std::size_t line = 0; line < lines; ++line) __builtin_prefetch(row + line * kLine);
}

}  // namespace

void RowLog::require_valid(const LogOptions& options) { make_layout(checked(options)); }

std::size_t RowLog::least_staging_bytes(std::size_t record_bytes) {
  return 4 * (LogLayout(record_bytes, 0).unit_bytes + 2 * kSector);
}

RowLog::RowLog(const LogOptions& options)
    : layout_(make_layout(checked(options))),
      max_garbage_(options.max_garbage),
      max_numbers_(static_cast<std::uint32_t>(options.max_records / layout_->segment_records)),
      faults_(options.faults),
      directory_(std::make_unique<LogDirectory>(options.directory, options.faults)),
      readers_(std::make_unique<Readers>(ReaderOptions{.io = options.io,
                                                       .depth = options.depth,
                                                       .num_rings = options.num_readers,
                                                       .slot_bytes = layout_->span_bytes(),
                                                       .faults = options.faults})),
      read_counts_(std::make_unique<ReadCounts>()),
      staging_(std::make_unique<Staging>(*layout_, options.staging_bytes)),
      chunk_units_(std::clamp<std::size_t>(kChunkBytes / layout_->unit_bytes, 1, layout_->segment_units)),
      chunk_(io_memory(chunk_units_ * layout_->unit_bytes)) {
  raise_limit_of_open_files();
}

RowLog::~RowLog() = default;

void RowLog::append(std::span<const RecordId> ids, const std::byte* const* records, Location* out) {
  constexpr std::size_t kAhead = 4;
  place(ids.size(), out, [&](std::size_t i, std::byte* to) {
    if (i + kAhead < ids.size()) fetch_ahead(records[i + kAhead], layout_->record_bytes);
    write_record(to, ids[i], records[i], *layout_);
  });
  appended_ += ids.size();
}

// put(i, to) writes record i at `to`. Records live once all are placed; until then, and if an exception ends the call
// before, their places are garbage.
void RowLog::place(std::size_t num_records, Location* out, const Put& put) {
  staging_->check();
  require_room(num_records);
  for (std::size_t i = 0; i < num_records;) {
    if (!head_) open_segment();
    if (!head_buffer_) head_buffer_ = &staging_->open(segments_[head_->number], head_->used);
    StagingBuffer& buffer = *head_buffer_;
    const std::size_t end = std::min<std::size_t>(num_records, i + (buffer.capacity - buffer.count));
    const Location first = layout_->location(head_->number, buffer.first);
    for (; i < end; ++i, ++buffer.count, ++head_->used, ++used_) {
      put(i, buffer.data + layout_->offset(buffer.count));
      out[i] = first + buffer.count;
    }
    if (buffer.count == buffer.capacity) submit_head(head_->used == head_->capacity);
  }
  for (std::size_t i = 0; i < num_records; ++i) {
    LogSegment& segment = *segments_[layout_->number_of(out[i])];
    segment.flip(place_of(segment, out[i]));
    ++segment.live;
  }
  live_ += num_records;
}

void RowLog::require_room(std::size_t num_records) const {
  const std::uint64_t room =
      std::uint64_t{max_numbers_ - num_taken_} * layout_->segment_records + (head_ ? head_->capacity - head_->used : 0);
  if (num_records <= room) return;
  throw LocationsExhaustedError("the log in " + directory_->path() + " has " + std::to_string(room) + " of " +
                                std::to_string(max_numbers_ * layout_->segment_records) + " locations left and " +
                                std::to_string(num_records) +
                                " are needed; let it compact more often, or raise max_records");
}

void RowLog::open_segment() {
  std::uint32_t count = std::uint32_t{1} << std::min(num_segments_ / kSegmentsOfASize, kMostDoublings);
  const std::uint32_t number = find_numbers(count);
  const std::uint64_t sequence = num_sequence_ + 1;
  const auto segment = std::make_shared<LogSegment>(number, count, sequence, count * layout_->segment_records,
                                                    directory_->segment_path(sequence), faults_);
  if (segments_.size() < number + count) segments_.resize(number + count);
  std::fill_n(segments_.begin() + number, count, segment);
  head_ = segment.get();
  num_sequence_ = sequence;
  num_taken_ += count;
  ++num_segments_;
}

// The first of so many free numbers in a row; where there are none, of half as many, and so on. REQUIRES: one is free.
std::uint32_t RowLog::find_numbers(std::uint32_t& count) const {
  for (;; count /= 2) {
    std::uint32_t in_a_row = 0;
    for (std::uint32_t number = 0; number < max_numbers_; ++number) {
      in_a_row = number < segments_.size() && segments_[number] ? 0 : in_a_row + 1;
      if (in_a_row == count) return number + 1 - count;
    }
  }
}

std::vector<LogSegment*> RowLog::all_segments() const {
  std::vector<LogSegment*> all;
  all.reserve(num_segments_);
  for (std::size_t n = 0; n < segments_.size(); ++n) {
    if (segments_[n] && segments_[n]->number == n) all.push_back(segments_[n].get());
  }
  return all;
}

void RowLog::submit_head(bool last) {
  staging_->submit(*std::exchange(head_buffer_, nullptr), last);
  if (last) head_ = nullptr;
}

std::uint64_t RowLog::reach(std::uint64_t num_records) const {
  const std::uint64_t largest = std::uint64_t{2} << std::min(num_segments_ / kSegmentsOfASize, kMostDoublings);
  return (segments_.size() + num_records / layout_->segment_records + 2 * largest) * layout_->segment_records;
}

LogSegment& RowLog::segment_of(Location location) const {
  const std::uint32_t number = layout_->number_of(location);
  if (number >= segments_.size() || !segments_[number] ||
      !segments_[number]->is_live(place_of(*segments_[number], location))) {
    throw std::logic_error("no record lives at location " + std::to_string(location));
  }
  return *segments_[number];
}

std::uint32_t RowLog::place_of(const LogSegment& segment, Location location) const {
  return location - layout_->location(segment.number, 0);
}

Fetch RowLog::begin_read(std::span<const Location> locations) {
  Fetch fetch(*layout_, *readers_, *read_counts_);
  fetch.items_.reserve(locations.size());
  const std::uint64_t number = ++num_fetches_;
  for (const Location location : locations) {
    LogSegment& segment = segment_of(location);
    const std::uint32_t place = place_of(segment, location);
    const bool in_file = place < segment.written.load(std::memory_order_acquire);
    StagingBuffer* const staged = in_file ? nullptr : staging_->find(segment, place);
    fetch.items_.push_back({&segment, staged, staged ? staged->use : 0, place});
    if (std::exchange(segment.last_fetch, number) != number) fetch.segments_.push_back(segments_[segment.number]);
  }
  return fetch;
}

void RowLog::release(std::span<const Location> locations) {
  for (const Location location : locations) {
    LogSegment& segment = segment_of(location);
    kill(segment, place_of(segment, location));
  }
}

void RowLog::kill(LogSegment& segment, std::uint32_t place) {
  segment.flip(place);
  --live_;
  if (--segment.live == 0 && segment.complete.load(std::memory_order_acquire)) drop(segment);
}

void RowLog::drop(LogSegment& segment) {
  used_ -= segment.used;
  if (compacting_ && victim_ == segment.number) compacting_ = false;
  --num_segments_;
  num_taken_ -= segment.num_numbers;
  const auto first = segments_.begin() + segment.number;
  std::fill_n(first + 1, segment.num_numbers - 1, nullptr);
  staging_->discard(std::move(*first));
}

void RowLog::flush(bool sync) {
  staging_->check();
  if (head_) {
    if (!head_buffer_) head_buffer_ = &staging_->open(segments_[head_->number], head_->used);
    submit_head(true);
  }
  staging_->wait_idle();
  if (!sync) return;
  for (LogSegment* const segment : all_segments()) {
    if (segment->synced) continue;
    segment->file.sync();
    segment->synced = true;
  }
  directory_->sync();
}

std::size_t RowLog::memory_bytes() const {
  std::size_t total = staging_->memory_bytes() + readers_->memory_bytes() + chunk_.num_bytes() +
                      segments_.capacity() * sizeof(segments_[0]) +
                      (places_.capacity() + targets_.capacity()) * sizeof(std::uint32_t);
  for (const LogSegment* const segment : all_segments()) {
    total += sizeof(LogSegment) + segment->lives.size() * sizeof(std::uint64_t);
  }
  return total;
}

LogCounters RowLog::counters() const {
  LogCounters counters{.live = live_,
                       .garbage = used_ - live_,
                       .segments = num_segments_,
                       .records_written = appended_,
                       .records_moved = moved_,
                       .bytes_written = staging_->bytes_written(),
                       .records_read = read_counts_->records.load(std::memory_order_relaxed),
                       .records_from_staging = read_counts_->records_from_staging.load(std::memory_order_relaxed),
                       .bytes_read = read_counts_->bytes.load(std::memory_order_relaxed),
                       .write_wait_s = staging_->wait_s(),
                       .num_rings = readers_->num_rings()};
  for (const LogSegment* const segment : all_segments()) {
    counters.file_bytes += segment->file_bytes.load(std::memory_order_relaxed);
  }
  return counters;
}

}  // namespace sfctr
