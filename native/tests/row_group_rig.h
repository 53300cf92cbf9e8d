// What the tests of a group of rows share: batches drawn at random, and a twin of the group, which is a map.
//
// Two tables of momentum SGD, one with missing values. Gradients are small whole numbers, so that those of a key have
// the same sum in any order, and the twin's float arithmetic gives the same bits.
#pragma once

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "row_log_rig.h"
#include "sfctr/row_group.h"

namespace rig {

using sfctr::Budget;
using sfctr::GroupTiers;
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
using Rows = std::map<std::pair<std::uint32_t, std::uint64_t>, Record>;  // by native table and key

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
  sfctr::MembershipRule rule{};  // of the first table

  std::uint64_t ram_bytes() const {
    return num_frames ? (2 * num_keys + 1) * sfctr::kIndexBytes + *num_frames * kFrameBytes : Budget::kUnbounded;
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
  return std::make_unique<RowGroup>(kDim, sfctr::Rule::kMomentum, sfctr::Rule::kNone, false, std::vector{first, second},
                                    std::move(tiers));
}

// A batch of one feature of each table. Keys are drawn so that the lower ones come more often.
struct Batch {
  Batch(std::vector<std::uint64_t> first, std::vector<std::uint64_t> second, std::vector<std::uint8_t> missing = {})
      : keys{std::move(first), std::move(second)}, nulls(std::move(missing)), ws(2, keys[0].size(), features()) {}
  Batch(const Batch&) = delete;

  static std::unique_ptr<Batch> random(std::mt19937_64& random, std::size_t num_keys, std::size_t most_rows) {
    const std::size_t size = 1 + random() % most_rows;
    std::array<std::vector<std::uint64_t>, 2> keys;
    std::vector<std::uint8_t> nulls;
    for (std::size_t row = 0; row < size; ++row) {
      for (auto& column : keys) column.push_back(random() % (random() % 3 == 0 ? num_keys : 1 + random() % num_keys));
      nulls.push_back(random() % 8 == 0);
    }
    auto batch = std::make_unique<Batch>(std::move(keys[0]), std::move(keys[1]), std::move(nulls));
    for (bool& is_reached : batch->reached) is_reached = random() % 4 != 0;
    batch->is_trained = random() % 6 != 0;
    return batch;
  }

  std::size_t size() const { return keys[0].size(); }
  std::pair<std::uint32_t, std::uint64_t> id(std::size_t feature, std::size_t row) const {
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

// What the group must hold. Counts what differs.
class RowTwin {
 public:
  explicit RowTwin(RowGroup& group) : group_(group) {}

  // Forward, backward and update of a batch that has been fetched, or its end without.
  void end(Batch& batch) {
    read(batch, true);
    if (!batch.is_trained) return group_.discard(batch.ws);
    ++step_;
    std::array<Record, 2> gradients;
    std::map<std::pair<std::uint32_t, std::uint64_t>, Record> sums;
    for (std::size_t f = 0; f < 2; ++f) {
      for (std::size_t row = 0; row < batch.size() && batch.reached[f]; ++row) {
        Record& sum = sums.try_emplace(batch.id(f, row), kDim, 0.0f).first->second;
        for (std::size_t c = 0; c < kDim; ++c) {
          gradients[f].push_back(static_cast<float>((step_ * 7 + row * 3 + f + c) % 5) - 2);
          sum[c] += gradients[f].back();
        }
      }
    }
    const std::vector<std::span<const float>> spans{gradients[0], gradients[1]};
    group_.backward(batch.ws, 0, batch.size(), spans, {});
    sfctr::Hyper hyper{};
    hyper.lr = kRate;
    hyper.momentum = kMomentum;
    group_.update(batch.ws, step_, 1, std::vector(2, hyper), {});
    for (const auto& [id, sum] : sums) apply(id, sum);
  }

  // Reads a batch that has been located; in training a key without a row has its first values.
  void read(const Batch& batch, bool training) {
    Record out(2 * batch.size() * kDim);
    group_.forward(batch.ws, 0, batch.size(), out, {});
    for (std::size_t f = 0; f < 2; ++f) {
      for (std::size_t row = 0; row < batch.size(); ++row) {
        const Record expected = value(batch.id(f, row), training);
        num_wrong_ += !std::equal(expected.begin(), expected.begin() + kDim,
                                  out.begin() + static_cast<std::ptrdiff_t>((f * batch.size() + row) * kDim));
      }
    }
  }

  void view(Batch& batch) {
    group_.view(batch.ws);
    read(batch, false);
  }

  void find(std::uint32_t native_table, const std::vector<std::uint64_t>& keys) {
    Record records(keys.size() * kFloats, 0.0f);
    std::vector<std::uint8_t> found(keys.size());
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

  std::size_t num_wrong() const { return num_wrong_; }

  Rows rows;

 private:
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
  std::uint64_t step_ = 0;
  std::size_t num_wrong_ = 0;
};

// Plans, waiting for nobody: what is in flight must leave room.
inline void place(RowGroup& group, Batch& batch) {
  CHECK(group.plan(batch.ws));
  group.fetch(batch.ws);
}

}  // namespace rig
