// Compaction: the records that live leave the segments with most garbage, one part of a segment after the other.
#include <algorithm>
#include <cstring>

#include "row_log_fetch.h"
#include "row_log_format.h"
#include "row_log_segment.h"
#include "sfctr/row_log.h"

namespace sfctr {

bool RowLog::has_excess() const {
  return static_cast<double>(used_ - live_) > max_garbage_ * static_cast<double>(used_);
}

// Only segments that exceed the bound themselves are worth their copying. If all complete ones keep it, so do they
// together, and the rest of the garbage is in segments that are not yet complete, or set aside.
LogSegment* RowLog::find_victim() const {
  LogSegment* found = nullptr;
  double most = max_garbage_;
  for (LogSegment* const segment : all_segments()) {
    if (segment->set_aside || !segment->complete.load(std::memory_order_acquire)) continue;
    const double share = static_cast<double>(segment->garbage()) / static_cast<double>(segment->used);
    if (share <= most) continue;
    most = share;
    found = segment;
  }
  return found;
}

std::size_t RowLog::compaction_bytes(std::size_t num_records) const {
  const double a_record = static_cast<double>(layout_->unit_bytes) / layout_->unit_records;
  return static_cast<std::size_t>(static_cast<double>(num_records) * a_record / max_garbage_) + 1;
}

bool RowLog::compact(std::size_t budget_bytes, const Holds& holds, const Moved& moved) {
  for (std::size_t read = 0; read < budget_bytes && has_excess();) {
    if (!compacting_) {
      const LogSegment* const victim = find_victim();
      if (!victim) return false;
      victim_ = victim->number;
      cursor_ = 0;
      compacting_ = true;
    }
    read += move_some(*segments_[victim_], budget_bytes - read, holds, moved);
  }
  return has_excess() && (compacting_ || find_victim() != nullptr);
}

// Moves the live records of the next part of the victim, and drops it when that was the last. Gives the bytes read.
std::size_t RowLog::move_some(LogSegment& victim, std::size_t budget_bytes, const Holds& holds, const Moved& moved) {
  if (victim.live == 0) {
    drop(victim);
    return 0;
  }
  const std::size_t units = std::clamp<std::size_t>(budget_bytes / layout_->unit_bytes, 1, chunk_units_);
  const std::uint32_t first_live = victim.next_live(cursor_);
  const std::uint32_t begin = first_live / layout_->unit_records * layout_->unit_records;
  const std::uint64_t end = begin + units * layout_->unit_records;
  places_.clear();
  for (std::uint32_t at = first_live; at < end; at = victim.next_live(at + 1)) places_.push_back(at);
  const std::size_t num_bytes = layout_->bytes_of(places_.back() + 1) - layout_->offset(begin);
  if (!read_chunk(victim, begin, num_bytes, holds)) {
    victim.set_aside = true;
    compacting_ = false;
    return num_bytes;
  }
  const auto record_at = [&](std::uint32_t at) { return chunk_.data() + layout_->offset(at) - layout_->offset(begin); };

  targets_.resize(places_.size());
  place(places_.size(), targets_.data(),
        [&](std::size_t i, std::byte* to) { std::memcpy(to, record_at(places_[i]), layout_->stride); });
  moved_ += places_.size();
  cursor_ = places_.back() + 1;
  const Location base = layout_->location(victim.number, 0);
  for (std::size_t i = 0; i < places_.size(); ++i) {
    kill(victim, places_[i]);  // the last may end the victim
    moved(id_of(record_at(places_[i])), base + places_[i], targets_[i]);
  }
  return num_bytes;
}

// Reads num_bytes from the unit on that starts at `begin`. False where that fails, or one of places_ is damaged or
// holds another record than the caller has there.
bool RowLog::read_chunk(const LogSegment& victim, std::uint32_t begin, std::size_t num_bytes, const Holds& holds) {
  try {
    victim.file.read({chunk_.data(), num_bytes}, layout_->file_offset(begin));
  } catch (const DiskError&) {
    return false;
  } catch (const ChecksumError&) {
    return false;
  }
  read_counts_->bytes.fetch_add(num_bytes, std::memory_order_relaxed);
  const Location base = layout_->location(victim.number, 0);
  return std::ranges::all_of(places_, [&](std::uint32_t at) {
    const std::byte* const record = chunk_.data() + layout_->offset(at) - layout_->offset(begin);
    return is_intact(record, *layout_) && holds(id_of(record), base + at);
  });
}

}  // namespace sfctr
