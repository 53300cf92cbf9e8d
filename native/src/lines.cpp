// Rows on a device: which line holds the row of which frame, and what must move so that a batch can be trained there.
//
// A batch takes free lines, then those of rows that may leave. A clean row leaves at once; a dirty one is in its line
// until its record has been lowered. Nothing is said to be in a line that the batch brings before lines_ready(), so a
// batch can be given up at any point.
#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "sfctr/row_group.h"
#include "sfctr/thread_pool.h"

namespace sfctr {
namespace {

using State = OnDevice::State;

constexpr std::size_t kRecords = 512;  // of a task that copies
constexpr std::uint32_t kNone = DeviceLines::kNone;

Owner owner_of(const WorkingSet& ws, std::uint32_t u) {
  const auto table_begin = ws.table_begin();
  const auto after = std::ranges::upper_bound(table_begin, static_cast<std::int64_t>(u));
  return {ws.keys()[u], static_cast<std::uint32_t>(after - table_begin.begin() - 1)};
}

// Lines pinned for a batch whose plan may yet come to nothing; they are then let go.
class Claim {
 public:
  explicit Claim(DeviceLines& lines) : lines_(lines) {}
  Claim(const Claim&) = delete;
  ~Claim() {
    for (const std::uint32_t line : held_) {
      lines_.unpin(line);
      if (!lines_.is_full(line)) lines_.give(line);
    }
  }
  void hold(std::uint32_t line) {
    held_.push_back(line);
    lines_.pin(line);
  }
  void stands() { held_.clear(); }

 private:
  DeviceLines& lines_;
  std::vector<std::uint32_t> held_;
};

}  // namespace

void RowGroup::require_device() const {
  if (!lines_) throw std::runtime_error("this group keeps no lines on a device");
}

void RowGroup::keep_lines(std::size_t num_lines) {
  std::lock_guard lock(mutex_);
  drain();
  if (lines_ || num_in_flight_ > 0) throw std::runtime_error("lines are kept once, before batches are in flight");
  if (members_) throw std::runtime_error("rows that may be removed are trained in RAM: keep no lines for them");
  if (layout_.element != Element::kFloat32) throw std::runtime_error("rows in bf16 are trained in RAM: keep no lines");
  lines_ = std::make_unique<DeviceLines>(num_lines, policy_, budget_);
}

std::size_t RowGroup::lines_bound() {
  std::lock_guard lock(mutex_);
  require_device();
  bind_lines();
  return lines_->bound();
}

// Rows on the device pin their frames: others must be left for rows that come from disk.
void RowGroup::bind_lines() {
  lines_->set_bound(evicts_ ? frames_.end() / 2 : kNone);
  lines_->shrink();
}

bool RowGroup::plan_lines(WorkingSet& ws) {
  require_own(ws);
  require_device();
  if (!ws.located.train || !ws.located.fetched) throw std::runtime_error("plan and fetch this working set first");
  if (ws.on_device.state == State::kReady) throw std::runtime_error("this working set is ready on the device already");
  std::lock_guard lock(mutex_);
  return_lines(ws);
  drain();
  if (spilled_on_device_ || !claim_lines(ws)) {
    ++counters_.device_waits;
    return false;
  }
  OnDevice& on = ws.on_device;
  on.state = State::kPlanned;
  ++num_on_device_;
  spilled_on_device_ = !on.spilled.empty();
  count_lines(ws);
  return true;
}

// The batch's lines were planned: what it has in lines, and does not bring there, was there.
void RowGroup::count_lines(const WorkingSet& ws) {
  const OnDevice& on = ws.on_device;
  const std::span<const std::int64_t> begin = ws.table_begin();
  for (std::size_t t = 0; t < table_counters_.size(); ++t) {
    const auto first = static_cast<std::size_t>(begin[2 * t]), last = static_cast<std::size_t>(begin[2 * t + 2]);
    const auto lines = on.lines.span().subspan(first, last - first);
    table_counters_[t].device_hits += lines.size() - static_cast<std::size_t>(std::ranges::count(lines, kNone));
  }
  for (const std::uint32_t u : on.rising) --table_counters_[owner_of(ws, u).table / 2].device_hits;
  for (const std::uint32_t u : on.spilled) ++table_counters_[owner_of(ws, u).table / 2].device_scratch;
}

bool RowGroup::claim_lines(WorkingSet& ws) {
  OnDevice& on = ws.on_device;
  Claim claim(*lines_);
  bind_lines();
  find_lines(ws);
  for (const std::uint32_t line : on.lines.span()) {
    if (line == kNone) continue;
    claim.hold(line);
    lines_->note_use(line);
  }
  for (const std::uint32_t line : lines_to_give_up()) {
    if (!lines_->is_dirty(line)) {
      release_line(line);
      continue;
    }
    claim.hold(line);
    on.leaving.push_back(line);
  }
  on.num_parting = on.leaving.size();
  std::vector<std::uint32_t> lines;
  for (std::uint32_t line = 0; lines.size() < on.rising.size() && (line = lines_->take()) != kNone;) {
    claim.hold(line);
    lines.push_back(line);
  }
  const std::vector<std::uint32_t> victims = choose_lines(on.rising.size() - lines.size());
  for (const std::uint32_t line : victims) claim.hold(line);
  lines.insert(lines.end(), victims.begin(), victims.end());
  if (lines.size() < on.rising.size()) {
    on.spilled.insert(on.spilled.end(), on.rising.begin() + static_cast<std::ptrdiff_t>(lines.size()), on.rising.end());
    on.rising.resize(lines.size());
  }
  if (!on.spilled.empty() && num_on_device_ > 0) return false;
  on.leaving.reserve(on.leaving.size() + victims.size());
  lines_->reserve(lines.size());
  claim.stands();
  for (std::size_t i = 0; i < lines.size(); ++i) {
    on.lines[on.rising[i]] = lines[i];
    lines_->note_use(lines[i]);
  }
  for (const std::uint32_t line : victims) {
    if (lines_->is_dirty(line)) {
      on.leaving.push_back(line);
    } else {
      vacate(line);
    }
  }
  return true;
}

// What is in a line already, what needs one, and what has no frame and so cannot have one.
void RowGroup::find_lines(WorkingSet& ws) const {
  OnDevice& on = ws.on_device;
  const std::size_t num_unique = ws.num_unique();
  Buffer<std::uint64_t> frames(num_unique);
  for (std::size_t u = 0; u < num_unique; ++u) {
    const Place place = Place::from_bits(ws.located.places[u]);
    frames[u] = place.is_in_ram() ? place.frame() : std::uint64_t{Frames::kNone};
  }
  on.lines.resize(num_unique);
  lines_->find(frames.span(), on.lines.data());
  on.rising.clear(), on.leaving.clear(), on.spilled.clear();
  for (std::uint32_t u = 0; u < num_unique; ++u) {
    if (on.lines[u] != kNone || ws.located.kinds[u] == static_cast<std::uint8_t>(RecordKind::kAbsent)) continue;
    (frames[u] != Frames::kNone ? on.rising : on.spilled).push_back(u);
  }
}

// Lines whose frames RAM wants back for keys, and those beyond the bound.
std::vector<std::uint32_t> RowGroup::lines_to_give_up() {
  std::vector<std::uint32_t> lines;
  const auto bound = static_cast<std::uint32_t>(lines_->bound());
  const auto in_the_way = static_cast<std::uint32_t>(std::min<std::size_t>(num_excess_frames(), frames_.end()));
  for (std::uint32_t frame = frames_.end() - in_the_way; frame < frames_.end(); ++frame) {
    const std::uint32_t line = lines_->find(frame);
    if (line < bound && lines_->num_pins(line) == 0) lines.push_back(line);
  }
  for (std::uint32_t line = bound; line < lines_->end(); ++line) {
    if (lines_->is_full(line) && lines_->num_pins(line) == 0) lines.push_back(line);
  }
  return lines;
}

std::vector<std::uint32_t> RowGroup::choose_lines(std::size_t n) {
  return lines_->choose(n, [&](const Owner& owner) { return next_uses_.of(owner.table, owner.key); });
}

// The row of a clean line is in RAM alone.
void RowGroup::vacate(std::uint32_t line) { frames_.unpin(lines_->empty(line)); }

void RowGroup::release_line(std::uint32_t line) {
  vacate(line);
  lines_->give(line);
}

void RowGroup::lines_lowered(WorkingSet& ws) {
  std::lock_guard lock(mutex_);
  OnDevice& on = ws.on_device;
  if (on.state != State::kPlanned) throw std::runtime_error("plan the lines of this working set first");
  for (const std::uint32_t line : on.leaving) {
    if (lines_->is_dirty(line)) throw std::runtime_error("lower every line that leaves first");
  }
  for (std::size_t i = 0; i < on.leaving.size(); ++i) {
    vacate(on.leaving[i]);
    if (i >= on.num_parting) continue;
    lines_->unpin(on.leaving[i]);
    lines_->give(on.leaving[i]);
  }
  on.leaving.clear();
  on.state = State::kWritten;
}

void RowGroup::lines_ready(WorkingSet& ws) {
  std::lock_guard lock(mutex_);
  OnDevice& on = ws.on_device;
  if (on.state != State::kWritten) throw std::runtime_error("say lines_lowered() first");
  for (const std::uint32_t u : on.rising) {
    const std::uint32_t frame = Place::from_bits(ws.located.places[u]).frame();
    const Owner owner = owner_of(ws, u);
    lines_->fill(on.lines[u], frame, owner);
    frames_.pin(frame);
    ++table_counters_[owner.table / 2].lifted;
  }
  on.rising.clear();
  on.state = State::kReady;
}

// A plan that came to nothing: rows that were to leave stay, and lines that were to be filled are free.
void RowGroup::return_lines(WorkingSet& ws) {
  OnDevice& on = ws.on_device;
  if (on.state != State::kPlanned && on.state != State::kWritten) return;
  for (const std::uint32_t line : on.leaving) lines_->unpin(line);
  for (const std::uint32_t u : on.rising) {
    const std::uint32_t line = std::exchange(on.lines[u], kNone);
    if (lines_->is_full(line)) continue;
    lines_->unpin(line);
    lines_->give(line);
  }
  for (const std::uint32_t line : on.lines.span()) {
    if (line != kNone) lines_->unpin(line);
  }
  on.state = State::kNone;
  --num_on_device_;
  spilled_on_device_ = false;
}

void RowGroup::end_on_device(const Ended& batch) {
  for (const std::uint32_t line : batch.dirtied) lines_->set_dirty(line, true);
  for (const std::uint32_t line : batch.lines.span()) {
    if (line != kNone) lines_->unpin(line);
  }
  --num_on_device_;
  spilled_on_device_ = false;  // had it not been this one, there would have been no other
}

void RowGroup::end_step(WorkingSet& ws, std::uint64_t step, std::span<const std::uint8_t> reached) {
  require_located(ws);
  if (ws.on_device.state != State::kReady) throw std::runtime_error("this working set is not ready on the device");
  if (step == 0) throw std::invalid_argument("steps are counted from 1");
  if (reached.size() != ws.num_unique()) {
    throw std::invalid_argument("reached has " + std::to_string(reached.size()) + " keys and needs " +
                                std::to_string(ws.num_unique()));
  }
  ws.gradients.reached.resize(reached.size());
  std::ranges::copy(reached, ws.gradients.reached.data());
  ws.gradients.any = true;
  end_batch(ws, step);
  ws.gradients.any = false;
}

void RowGroup::require_at_hand(const WorkingSet& ws, std::span<const std::uint32_t> keys,
                               std::size_t num_floats) const {
  require_own(ws);
  if (!ws.located.fetched) throw std::runtime_error("fetch this working set first");
  require_shape(keys.size(), num_floats);
  for (const std::uint32_t u : keys) {
    if (u < ws.num_unique()) continue;
    throw std::invalid_argument("unique key " + std::to_string(u) + " of " + std::to_string(ws.num_unique()));
  }
}

void RowGroup::gather(const WorkingSet& ws, std::span<const std::uint32_t> keys, std::span<float> records) const {
  require_at_hand(ws, keys, records.size());
  const std::size_t num_floats = layout_.num_floats();
  parallel_ranges(keys.size(), kRecords, [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      std::copy_n(ws.located.records[keys[i]], num_floats, records.data() + i * num_floats);
    }
  });
}

void RowGroup::scatter(const WorkingSet& ws, std::span<const std::uint32_t> keys, std::span<const float> records) {
  require_at_hand(ws, keys, records.size());
  const std::size_t num_floats = layout_.num_floats();
  for (const std::uint32_t u : keys) {
    if (ws.located.kinds[u] != static_cast<std::uint8_t>(RecordKind::kAbsent)) continue;
    throw std::invalid_argument("unique key " + std::to_string(u) + " is absent: there is no record of it to write");
  }
  if (kept_.is_open()) keep_batch(ws, keys);
  parallel_ranges(keys.size(), kRecords, [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      std::copy_n(records.data() + i * num_floats, num_floats, ws.located.records[keys[i]]);
    }
  });
}

std::vector<std::uint32_t> RowGroup::dirty_lines() {
  std::lock_guard lock(mutex_);
  require_device();
  drain();
  std::vector<std::uint32_t> lines;
  lines.reserve(lines_->num_dirty());
  for (std::uint32_t line = 0; lines.size() < lines_->num_dirty(); ++line) {
    if (lines_->is_dirty(line)) lines.push_back(line);
  }
  return lines;
}

void RowGroup::lower(std::span<const std::uint32_t> lines, std::span<const float> records) {
  require_shape(lines.size(), records.size());
  if (kept_.is_open()) kept_.wait_for_room();
  std::lock_guard lock(mutex_);
  require_device();
  for (const std::uint32_t line : lines) {
    if (line < lines_->end() && lines_->is_full(line)) continue;
    throw std::invalid_argument("line " + std::to_string(line) + " holds no row");
  }
  for (const std::uint32_t line : lines) keep_line(line);
  const std::size_t num_floats = layout_.num_floats();
  parallel_ranges(lines.size(), kRecords, [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      std::copy_n(records.data() + i * num_floats, num_floats, frames_.record(lines_->frame(lines[i])));
    }
  });
  for (const std::uint32_t line : lines) {
    lines_->set_dirty(line, false);
    ++table_counters_[lines_->owner(line).table / 2].lowered;
  }
}

void RowGroup::drop_lines() {
  std::lock_guard lock(mutex_);
  require_device();
  drain();
  if (num_on_device_ > 0 || lines_->num_dirty() > 0) {
    throw std::runtime_error("lines cannot be dropped while they are dirty, or batches in flight on the device");
  }
  for (std::uint32_t line = 0; line < lines_->end(); ++line) {
    if (lines_->is_full(line)) release_line(line);
  }
}

LineCounters RowGroup::line_counters() {
  std::lock_guard lock(mutex_);
  if (!lines_) return {};
  drain();
  return {lines_->num_taken(), lines_->num_dirty(), num_on_device_};
}

}  // namespace sfctr
