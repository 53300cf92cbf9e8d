// What the tests of a group of rows share: batches drawn at random, and a twin of the group, which is a map.
//
// Two tables of momentum SGD, one with missing values and, if asked for, a membership rule. Gradients are small whole
// numbers, so that those of a key have the same sum in any order, and the twin's float arithmetic gives the same bits.
// A device is an array of lines.
#pragma once

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "row_log_rig.h"
#include "sfctr/hash.h"
#include "sfctr/row_group.h"

namespace rig {

using sfctr::Budget;
using sfctr::GroupTiers;
using sfctr::MembershipRule;
using sfctr::Policy;
using sfctr::RowFault;
using sfctr::RowFaults;
using sfctr::RowGroup;
using sfctr::WorkingSet;

constexpr std::size_t kDim = 3, kFloats = 2 * kDim;
constexpr std::size_t kFrameBytes = kFloats * sizeof(float) + 20;
constexpr float kRate = 0.25f, kMomentum = 0.5f;
constexpr std::size_t kNativeTables = 4;

using Record = std::vector<float>;
using Id = std::pair<std::uint32_t, std::uint64_t>;  // native table and key
using Rows = std::map<Id, Record>;
constexpr Id kRare{1, 1};

struct GroupSetup {
  std::size_t num_keys = 80;                // of each table
  std::optional<std::size_t> num_frames{};  // that there is room for when all keys have rows; none: no bound
  bool has_disk = true;
  Policy policy = Policy::kLru;
  IoKind io = IoKind::kAuto;
  std::uint64_t max_records = std::uint64_t{1} << 31;
  IoFaults* io_faults = nullptr;
  std::shared_ptr<RowFaults> faults{};
  std::size_t snapshot_bytes = std::size_t{1} << 20;
  MembershipRule rule{};      // of the first table
  std::size_t num_lines = 0;  // on a device; 0: rows are trained in RAM

  std::uint64_t ram_bytes() const {
    const std::size_t num_waiting = rule.tracks() ? num_keys + 1 : 0;  // and the rare row
    return num_frames ? (2 * num_keys + 1 + num_waiting) * sfctr::kIndexBytes + *num_frames * kFrameBytes
                      : Budget::kUnbounded;
  }
};

inline std::unique_ptr<RowGroup> make_group(const GroupSetup& setup, const TempDir& directory,
                                            std::shared_ptr<Budget> budget = nullptr) {
  GroupTiers tiers;
  tiers.budget = budget ? budget : std::make_shared<Budget>(setup.ram_bytes());
  tiers.policy = setup.policy;
  tiers.faults = setup.faults;
  tiers.snapshot_bytes = setup.snapshot_bytes;
  if (setup.has_disk) {
    tiers.disk = small_options(directory, 1, setup.io);
    tiers.disk->directory += "/rows";
    tiers.disk->segment_bytes = 8 << 10;   // two hundred records
    tiers.disk->staging_bytes = 24 << 10;  // two buffers of a hundred records
    tiers.disk->max_records = setup.max_records;
    tiers.disk->faults = setup.io_faults;
  }
  const sfctr::TableInit first{.seed = 1, .null_seed = 2, .normal = false, .a = -1, .b = 1, .membership = setup.rule};
  const sfctr::TableInit second{.seed = 3, .null_seed = 4, .normal = false, .a = -1, .b = 1};
  auto group = std::make_unique<RowGroup>(kDim, sfctr::Rule::kMomentum, sfctr::Rule::kNone, false,
                                          std::vector{first, second}, std::move(tiers));
  if (setup.num_lines > 0) group->keep_lines(setup.num_lines);
  return group;
}

// A batch of one feature of each table. Keys are drawn so that the lower ones come more often.
struct Batch {
  Batch(std::vector<std::uint64_t> first, std::vector<std::uint64_t> second, std::vector<std::uint8_t> missing = {},
        bool has_rare = false)
      : keys{std::move(first), std::move(second)},
        nulls(std::move(missing)),
        ws(2, keys[0].size(), features(), has_rare ? std::vector{0} : std::vector<int>{}) {}
  Batch(const Batch&) = delete;

  static std::unique_ptr<Batch> random(std::mt19937_64& random, std::size_t num_keys, std::size_t most_rows,
                                       bool has_rare = false) {
    const std::size_t size = 1 + random() % most_rows;
    std::array<std::vector<std::uint64_t>, 2> keys;
    std::vector<std::uint8_t> nulls;
    for (std::size_t row = 0; row < size; ++row) {
      for (auto& column : keys) column.push_back(random() % (random() % 3 == 0 ? num_keys : 1 + random() % num_keys));
      nulls.push_back(random() % 8 == 0);
    }
    auto batch = std::make_unique<Batch>(std::move(keys[0]), std::move(keys[1]), std::move(nulls), has_rare);
    for (bool& is_reached : batch->reached) is_reached = random() % 4 != 0;
    batch->is_trained = random() % 6 != 0;
    return batch;
  }

  std::size_t size() const { return keys[0].size(); }
  Id id(std::size_t feature, std::size_t row) const {
    if (feature == 0 && !nulls.empty() && nulls[row]) return {1, 0};
    return {static_cast<std::uint32_t>(2 * feature), keys[feature][row]};
  }

  std::array<std::vector<std::uint64_t>, 2> keys;
  std::vector<std::uint8_t> nulls;
  std::array<bool, 2> reached{true, true};  // by gradients
  bool is_trained = true;                   // or else discarded
  WorkingSet ws;

 private:
  std::vector<sfctr::FeatureKeys> features() const {
    sfctr::FeatureKeys first{
        .table = 0, .pooling = sfctr::Pooling::kOne, .keys = keys[0], .offsets = {}, .nulls = nulls, .weights = {}};
    sfctr::FeatureKeys second{
        .table = 1, .pooling = sfctr::Pooling::kOne, .keys = keys[1], .offsets = {}, .nulls = {}, .weights = {}};
    return {first, second};
  }
};

// The lines of a group on a device, and the records in them. Any thread may call any of it.
class Device {
 public:
  Device(RowGroup& group, std::size_t num_lines) : group_(group), records_(num_lines, Record(kFloats)) {}

  // Has a fetched batch on the device; false where others hold the lines that it needs.
  bool lift(WorkingSet& ws) {
    std::lock_guard lock(mutex_);
    if (!group_.plan_lines(ws)) return false;
    lower(ws.on_device.leaving);
    group_.lines_lowered(ws);
    for (const std::uint32_t u : ws.on_device.rising) {
      group_.gather(ws, std::vector{u}, records_[ws.on_device.lines[u]]);
    }
    group_.lines_ready(ws);
    return true;
  }
  // Has every row in RAM as it is.
  void lower_all() {
    std::lock_guard lock(mutex_);
    lower(group_.dirty_lines());
  }
  // The record of a key of a batch that is there, in its line or beside the lines.
  Record record(const WorkingSet& ws, std::uint32_t u) {
    std::lock_guard lock(mutex_);
    const std::uint32_t line = ws.on_device.lines[u];
    if (line != sfctr::DeviceLines::kNone) return records_[line];
    Record record(kFloats);
    group_.gather(ws, std::vector{u}, record);
    return record;
  }
  void set_record(const WorkingSet& ws, std::uint32_t u, const Record& record) {
    std::lock_guard lock(mutex_);
    const std::uint32_t line = ws.on_device.lines[u];
    if (line != sfctr::DeviceLines::kNone) {
      records_[line] = record;
    } else {
      group_.scatter(ws, std::vector{u}, record);
    }
  }

 private:
  void lower(const std::vector<std::uint32_t>& lines) {
    for (const std::uint32_t line : lines) group_.lower(std::vector{line}, records_[line]);
  }

  RowGroup& group_;
  std::mutex mutex_;
  std::vector<Record> records_;
};

// What the group must hold. Counts what differs.
class RowTwin {
 public:
  explicit RowTwin(RowGroup& group, const MembershipRule& rule = {}, Device* device = nullptr)
      : group_(group), rule_(rule), device_(device) {}

  // Forward, backward and update of a batch that has been fetched, and is on the device if there is one; or its end
  // without.
  void end(Batch& batch) {
    if (rule_.tracks()) group_.settle(batch.ws, sfctr::EventClock::kNoTime);
    device_ ? read_lines(batch.ws) : read(batch, true);
    if (!batch.is_trained) return group_.discard(batch.ws);
    ++step_;
    std::array<Record, 2> gradients;
    std::map<Id, Record> sums;
    std::set<std::uint64_t> refused;
    for (std::size_t f = 0; f < 2; ++f) {
      for (std::size_t row = 0; row < batch.size() && batch.reached[f]; ++row) {
        const Id id = batch.id(f, row);
        if (is_refused(id)) refused.insert(id.second);
        const std::optional<Id> trained = is_refused(id) ? rare() : id;
        Record* const sum = trained ? &sums.try_emplace(*trained, kDim, 0.0f).first->second : nullptr;
        for (std::size_t c = 0; c < kDim; ++c) {
          gradients[f].push_back(static_cast<float>((step_ * 7 + row * 3 + f + c) % 5) - 2);
          if (sum) (*sum)[c] += gradients[f].back();
        }
      }
    }
    for (const auto& [id, sum] : sums) apply(id, sum);
    for (const std::uint64_t key : refused) ++waiting[key];
    device_ ? train_lines(batch.ws, sums) : train(batch, gradients);
    end_members(sums);
  }

  // Reads a batch that has been located; in training a key without a row has its first values.
  void read(const Batch& batch, bool training) {
    Record out(2 * batch.size() * kDim);
    group_.forward(batch.ws, 0, batch.size(), out, {});
    for (std::size_t f = 0; f < 2; ++f) {
      for (std::size_t row = 0; row < batch.size(); ++row) {
        const Record expected = seen(batch.id(f, row), training);
        num_wrong_ += !std::equal(expected.begin(), expected.begin() + kDim,
                                  out.begin() + static_cast<std::ptrdiff_t>((f * batch.size() + row) * kDim));
      }
    }
  }

  void view(Batch& batch) {
    lower();
    group_.view(batch.ws);
    read(batch, false);
  }

  void find(std::uint32_t native_table, const std::vector<std::uint64_t>& keys) {
    Record records(keys.size() * kFloats, 0.0f);
    std::vector<std::uint8_t> found(keys.size());
    lower();
    group_.find(native_table, keys, records, found);
    for (std::size_t i = 0; i < keys.size(); ++i) {
      num_wrong_ += (found[i] != 0) != rows.contains({native_table, keys[i]});
      num_wrong_ +=
          !std::ranges::equal(value({native_table, keys[i]}, false), std::span(records).subspan(i * kFloats, kFloats));
    }
  }

  // Everything, in small pieces.
  void export_all() {
    Rows exported;
    lower();
    for (std::uint32_t table = 0; table < kNativeTables; ++table) {
      std::uint64_t count = 0;
      for (std::optional<std::uint64_t> from = 0; from;) {
        std::vector<std::uint64_t> keys;
        std::vector<float> records;
        from = group_.export_rows(table, *from, 7, keys, records);
        for (std::size_t i = 0; i < keys.size(); ++i) {
          const auto at = records.begin() + static_cast<std::ptrdiff_t>(i * kFloats);
          exported[{table, keys[i]}] = Record(at, at + kFloats);
          ++count;
        }
      }
      num_wrong_ += group_.num_rows(table) != count;
    }
    num_wrong_ += exported != rows;
  }

  void import_rows(std::uint32_t native_table, const Rows& some) {
    std::vector<std::uint64_t> keys;
    std::vector<float> records;
    for (const auto& [id, record] : some) {
      keys.push_back(id.second);
      records.insert(records.end(), record.begin(), record.end());
    }
    group_.import_rows(native_table, keys, records);
    for (const auto& [id, record] : some) rows[id] = record;
  }

  // Keys of the first table begin anew.
  void remove(const std::vector<std::uint64_t>& keys) {
    std::uint64_t count = 0;
    for (const std::uint64_t key : keys) {
      count += rows.erase({0, key});
      waiting.erase(key);
    }
    num_wrong_ += group_.remove_rows(0, keys) != count;
  }

  std::size_t num_wrong() const { return num_wrong_; }

  Rows rows;
  std::map<std::uint64_t, std::uint32_t> waiting;  // counts of the first table's keys without a row

 private:
  std::optional<Id> rare() const { return rule_.rare ? std::optional(kRare) : std::nullopt; }
  bool is_refused(const Id& id) const {
    if (id.first != 0 || rows.contains(id)) return false;
    const auto found = waiting.find(id.second);
    return (found == waiting.end() ? 0 : found->second) + 1 < rule_.admit_after;
  }

  // What a key reads as.
  Record seen(const Id& id, bool training) const {
    const bool is_absent = training ? is_refused(id) : id.first == 0 && !rows.contains(id);
    if (!is_absent) return value(id, training);
    return rule_.rare ? value(kRare, training) : Record(kFloats, 0.0f);
  }

  static Id id_of(const WorkingSet& ws, std::uint32_t u) {
    std::uint32_t table = 0;
    while (ws.table_begin()[table + 1] <= u) ++table;
    return {table, ws.keys()[u]};
  }

  void read_lines(const WorkingSet& ws) {
    for (std::uint32_t u = 0; u < ws.num_unique(); ++u) {
      num_wrong_ += device_->record(ws, u) != value(id_of(ws, u), true);
    }
  }

  void train_lines(WorkingSet& ws, const std::map<Id, Record>& sums) {
    std::vector<std::uint8_t> reached(ws.num_unique());
    for (std::uint32_t u = 0; u < ws.num_unique(); ++u) {
      if (!sums.contains(id_of(ws, u))) continue;
      reached[u] = sfctr::Gradients::kVector;
      device_->set_record(ws, u, rows.at(id_of(ws, u)));
    }
    group_.end_step(ws, step_, reached);
  }

  void train(Batch& batch, const std::array<Record, 2>& gradients) {
    const std::vector<sfctr::GradientRows> spans{std::span<const float>(gradients[0]),
                                                 std::span<const float>(gradients[1])};
    group_.backward(batch.ws, 0, batch.size(), spans, {});
    sfctr::Hyper hyper{};
    hyper.lr = kRate;
    hyper.momentum = kMomentum;
    group_.update(batch.ws, step_, 1, std::vector(2, hyper), {});
  }

  // Counts, ages, and rows that leave for their age or for the capacity, which is that of a single shard.
  void end_members(const std::map<Id, Record>& trained) {
    if (!rule_.tracks()) return;
    for (const auto& [id, sum] : trained) {
      if (id.first != 0) continue;
      waiting.erase(id.second);
      last_[id.second] = step_;
    }
    std::vector<std::tuple<std::uint64_t, std::uint64_t, std::uint64_t>> oldest;  // step, hash, key
    for (const auto& [id, record] : rows) {
      if (id.first == 0) oldest.emplace_back(last_.at(id.second), sfctr::mix(id.second), id.second);
    }
    std::ranges::sort(oldest);
    std::size_t num_rows = oldest.size();
    for (const auto& [step, hash, key] : oldest) {
      const bool is_stale = rule_.expire_after_steps > 0 && step + rule_.expire_after_steps <= step_;
      if (!is_stale && (rule_.capacity == 0 || num_rows <= rule_.capacity)) break;
      rows.erase({0, key});
      --num_rows;
    }
  }

  void lower() {
    if (device_) device_->lower_all();
  }

  Record value(const Rows::key_type& id, bool training) const {
    if (const auto found = rows.find(id); found != rows.end()) return found->second;
    Record record(kFloats, 0.0f);
    if (training) group_.initial_records(id.first, std::vector{id.second}, record);
    return record;
  }

  void apply(const Rows::key_type& id, const Record& sum) {
    Record& record = rows[id] = value(id, true);
    for (std::size_t c = 0; c < kDim; ++c) {
      record[kDim + c] = kMomentum * record[kDim + c] + sum[c];
      record[c] -= kRate * record[kDim + c];
    }
  }

  RowGroup& group_;
  MembershipRule rule_;
  Device* device_;
  std::map<std::uint64_t, std::uint64_t> last_;  // step that trained a key of the first table last
  std::uint64_t step_ = 0;
  std::size_t num_wrong_ = 0;
};

// Plans, waiting for nobody: what is in flight must leave room.
inline void place(RowGroup& group, Batch& batch) {
  CHECK(group.plan(batch.ws));
  group.fetch(batch.ws);
}

}  // namespace rig
