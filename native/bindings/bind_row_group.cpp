// TableInit and RowGroup: the rows of the tables of one group.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <stdexcept>
#include <string>

#include "bind_membership.h"
#include "bind_snapshot.h"
#include "bindings.h"
#include "sfctr/row_group.h"
#include "working_set.h"

namespace nb = nanobind;
using namespace nb::literals;
using sfctr::RowGroup;

namespace {

using Floats = arrays::Vector<float>;
using Release = nb::gil_scoped_release;

void init_table(sfctr::TableInit* self, std::uint64_t seed, std::uint64_t null_seed, const std::string& kind, double a,
                double b, float state0, float linear_state0, bool frozen,
                const std::optional<sfctr::MembershipRule>& membership) {
  if (kind != "normal" && kind != "uniform") {
    throw std::invalid_argument("kind is '" + kind + "' and must be 'normal' or 'uniform'");
  }
  new (self) sfctr::TableInit{seed,
                              null_seed,
                              kind == "normal",
                              a,
                              b,
                              state0,
                              linear_state0,
                              frozen,
                              membership.value_or(sfctr::MembershipRule{})};
}

sfctr::Policy policy_named(const std::string& name) {
  if (name == "lru") return sfctr::Policy::kLru;
  if (name == "lfu") return sfctr::Policy::kLfu;
  throw std::invalid_argument("policy is '" + name + "' and must be 'lru' or 'lfu'");
}

sfctr::IoKind io_named(const std::string& name) {
  if (name == "auto") return sfctr::IoKind::kAuto;
  if (name == "uring") return sfctr::IoKind::kUring;
  if (name == "threads") return sfctr::IoKind::kThreads;
  throw std::invalid_argument("io is '" + name + "' and must be 'auto', 'uring' or 'threads'");
}

void init_group(RowGroup* self, std::size_t dim, bool linear, const std::string& vector_rule,
                const std::optional<std::string>& linear_rule, std::vector<sfctr::TableInit> tables,
                std::shared_ptr<sfctr::Budget> budget, const std::optional<std::string>& disk,
                const std::string& policy, std::size_t segment_bytes, std::size_t staging_bytes, const std::string& io,
                const std::string& dtype, std::size_t snapshot_bytes, std::shared_ptr<sfctr::RowFaults> faults,
                bool forgets) {
  if (dtype != "fp32" && dtype != "bf16") {
    throw std::invalid_argument("dtype is '" + dtype + "' and must be 'fp32' or 'bf16'");
  }
  sfctr::GroupTiers tiers;
  if (budget) tiers.budget = std::move(budget);
  tiers.policy = policy_named(policy);
  tiers.faults = std::move(faults);
  tiers.forgets = forgets;
  tiers.snapshot_bytes = snapshot_bytes;
  if (disk) {
    tiers.disk.emplace();
    tiers.disk->directory = *disk;
    tiers.disk->segment_bytes = segment_bytes;
    tiers.disk->staging_bytes = staging_bytes;
    tiers.disk->io = io_named(io);
  }
  new (self) RowGroup(dim, sfctr::rule_named(vector_rule), sfctr::rule_named(linear_rule.value_or("none")), linear,
                      std::move(tables), std::move(tiers),
                      dtype == "bf16" ? sfctr::Element::kBfloat16 : sfctr::Element::kFloat32);
}

nb::dict row_counters(const sfctr::RowCounters& rows) {
  nb::dict counts;
  counts["requested"] = rows.requested;
  counts["unique"] = rows.unique;
  counts["hits"] = rows.hits;
  counts["fresh"] = rows.fresh;
  counts["fetched"] = rows.fetched;
  counts["evicted"] = rows.evicted;
  counts["device_hits"] = rows.device_hits;
  counts["lifted"] = rows.lifted;
  counts["lowered"] = rows.lowered;
  counts["device_scratch"] = rows.device_scratch;
  return counts;
}

nb::list table_counters(RowGroup& group) {
  nb::list tables;
  for (const sfctr::RowCounters& rows : released([&] { return group.table_counters(); })) {
    tables.append(row_counters(rows));
  }
  return tables;
}

nb::dict counters(RowGroup& group) {
  const sfctr::GroupCounters rows = released([&] { return group.counters(); });
  const sfctr::LogCounters log = released([&] { return group.log_counters(); });
  const sfctr::LineCounters lines = released([&] { return group.line_counters(); });
  nb::dict counts = row_counters(rows);
  counts["scratch"] = rows.scratch;
  counts["waits"] = rows.waits;
  counts["shrinks"] = rows.shrinks;
  counts["device_waits"] = rows.device_waits;
  counts["device_rows"] = lines.rows;
  counts["device_dirty"] = lines.dirty;
  counts["device_batches"] = lines.batches;
  counts["disk_rows"] = log.live;
  counts["disk_bytes"] = log.file_bytes;
  counts["disk_bytes_read"] = log.bytes_read;
  counts["disk_bytes_written"] = log.bytes_written;
  counts["disk_rows_moved"] = log.records_moved;
  counts["disk_rings"] = log.num_rings;
  counts["disk_write_wait_us"] = static_cast<std::uint64_t>(log.write_wait_s * 1e6);
  return counts;
}

nb::dict layout(const RowGroup& group) {
  const sfctr::Layout& layout = group.layout();
  nb::dict parts;
  parts["vector"] = nb::make_tuple(0, layout.vector_words);
  parts["linear"] = nb::make_tuple(layout.linear_offset(), layout.linear);
  parts["vector_state"] = nb::make_tuple(layout.vector_state_offset(), layout.vector_state);
  parts["linear_state"] = nb::make_tuple(layout.linear_state_offset(), layout.linear_state);
  return parts;
}

arrays::nb::ndarray<nb::numpy, std::int64_t, nb::ndim<1>> unseen(const RowGroup& group, const PyWorkingSet& ws) {
  const std::vector<std::int64_t> counts = released([&] { return group.unseen(ws.core); });
  auto array = arrays::make<std::int64_t, 1>({counts.size()});
  std::copy(counts.begin(), counts.end(), array.data());
  return array;
}

void forward(const RowGroup& group, const PyWorkingSet& ws, std::size_t begin, std::size_t end, Floats out,
             std::optional<arrays::Matrix<float>> linear_out) {
  const std::span<float> linear = linear_out ? std::span(linear_out->data(), linear_out->size()) : std::span<float>();
  if (linear_out && linear_out->size() > 0 &&
      (linear_out->shape(0) != ws.features.size() || linear_out->shape(1) != end - begin)) {
    throw std::invalid_argument("linear_out must be [" + std::to_string(ws.features.size()) + ", " +
                                std::to_string(end - begin) + "], or empty");
  }
  Release release;
  group.forward(ws.core, begin, end, arrays::span(out), linear);
}

// The arrays of a list, None as an empty span. `kept` holds the references while the spans are in use.
std::vector<std::span<const float>> gradient_list(
    nb::list list, const char* name, std::vector<nb::ndarray<const float, nb::c_contig, nb::device::cpu>>& kept,
    std::size_t first = 0) {
  std::vector<std::span<const float>> spans;
  for (nb::handle item : list) {
    if (item.is_none()) {
      spans.emplace_back();
      continue;
    }
    nb::ndarray<const float, nb::c_contig, nb::device::cpu> array;
    if (!nb::try_cast(item, array, false)) {
      throw nb::type_error((std::string(name) + "[" + std::to_string(first + spans.size()) +
                            "] must be a contiguous float32 array, or None")
                               .c_str());
    }
    spans.emplace_back(array.data(), array.size());
    kept.push_back(std::move(array));
  }
  return spans;
}

// The same of gradients of vectors, whose rows may be apart: a matrix whose columns are neighbours is taken as it lies.
std::vector<sfctr::GradientRows> gradient_rows(
    nb::list list, std::size_t num_rows, std::vector<nb::ndarray<const float, nb::ndim<2>, nb::device::cpu>>& kept,
    std::vector<nb::ndarray<const float, nb::c_contig, nb::device::cpu>>& kept_whole) {
  std::vector<sfctr::GradientRows> rows;
  for (nb::handle item : list) {
    nb::ndarray<const float, nb::ndim<2>, nb::device::cpu> matrix;
    if (!item.is_none() && nb::try_cast(item, matrix, false) && matrix.shape(0) == num_rows && matrix.stride(1) == 1 &&
        matrix.stride(0) >= 0) {
      rows.emplace_back(matrix.data(), num_rows, matrix.shape(1), static_cast<std::size_t>(matrix.stride(0)));
      kept.push_back(std::move(matrix));
      continue;
    }
    nb::list one;
    one.append(item);
    rows.emplace_back(gradient_list(one, "grads", kept_whole, rows.size()).front());
  }
  return rows;
}

void backward(const RowGroup& group, PyWorkingSet& ws, std::size_t begin, std::size_t end, nb::list grads,
              nb::list linear_grads) {
  std::vector<nb::ndarray<const float, nb::c_contig, nb::device::cpu>> kept;
  std::vector<nb::ndarray<const float, nb::ndim<2>, nb::device::cpu>> kept_rows;
  const auto vectors = gradient_rows(grads, end - begin, kept_rows, kept);
  const auto linear = gradient_list(linear_grads, "linear_grads", kept);
  Release release;
  group.backward(ws.core, begin, end, vectors, linear);
}

nb::tuple gradients(const RowGroup& group, nb::handle_t<PyWorkingSet> owner) {
  PyWorkingSet& ws = nb::cast<PyWorkingSet&>(owner);
  group.require_gradients(ws.core);
  sfctr::Gradients& all = ws.core.gradients;
  const std::size_t num_unique = ws.core.num_unique(), dim = group.layout().dim;
  return nb::make_tuple(nb::ndarray<nb::numpy, const float, nb::ndim<2>>(all.vectors.data(), {num_unique, dim}, owner),
                        arrays::view<const float>(all.linear.data(), all.linear.size(), owner),
                        arrays::view<const std::uint8_t>(all.reached.data(), num_unique, owner));
}

std::span<const sfctr::Hyper> hyper_lines(const std::optional<arrays::Matrix<const double>>& array, const char* name) {
  if (!array || array->size() == 0) return {};
  if (array->shape(1) != std::size(sfctr::kHyperColumns)) {
    throw std::invalid_argument(std::string(name) + " has " + std::to_string(array->shape(1)) +
                                " columns and needs those of hyper_columns()");
  }
  return {reinterpret_cast<const sfctr::Hyper*>(array->data()), array->shape(0)};
}

void update(RowGroup& group, PyWorkingSet& ws, std::uint64_t step, float scale, arrays::Matrix<const double> hyper,
            std::optional<arrays::Matrix<const double>> linear_hyper) {
  const auto lines = hyper_lines(hyper, "hyper"), linear_lines = hyper_lines(linear_hyper, "linear_hyper");
  Release release;
  group.update(ws.core, step, scale, lines, linear_lines);
}

auto find(RowGroup& group, std::size_t native_table, arrays::Vector<const std::uint64_t> keys,
          arrays::Matrix<float> records) {
  auto found = arrays::make<std::uint8_t, 1>({keys.size()});
  Release release;
  group.find(native_table, arrays::span(keys), arrays::span(records), {found.data(), keys.size()});
  return found;
}

nb::tuple export_rows(RowGroup& group, std::size_t native_table, std::uint64_t from, std::size_t count) {
  std::vector<std::uint64_t> keys;
  std::vector<float> records;
  std::optional<std::uint64_t> next;
  {
    Release release;
    next = group.export_rows(native_table, from, count, keys, records);
  }
  auto key_array = arrays::make<std::uint64_t, 1>({keys.size()});
  auto record_array = arrays::make<float, 2>({keys.size(), group.layout().num_floats()});
  std::ranges::copy(keys, key_array.data());
  std::ranges::copy(records, record_array.data());
  return nb::make_tuple(key_array, record_array, next ? nb::cast(*next) : nb::none());
}

sfctr::ShardSet shard_set(arrays::Vector<const bool> chosen) {
  if (chosen.size() != sfctr::kNumShards) {
    throw std::invalid_argument("shards has " + std::to_string(chosen.size()) + " entries and must have " +
                                std::to_string(sfctr::kNumShards));
  }
  sfctr::ShardSet shards;
  for (std::size_t s = 0; s < sfctr::kNumShards; ++s) shards[s] = chosen.data()[s];
  return shards;
}

void bind_table_init(nb::module_& m) {
  nb::class_<sfctr::TableInit>(m, "TableInit", "How the rows of one table begin, and whether they change.")
      .def("__init__", &init_table, "seed"_a, "null_seed"_a, "kind"_a, "a"_a, "b"_a, "state0"_a = 0.0f,
           "linear_state0"_a = 0.0f, "frozen"_a = false, "membership"_a = nb::none(),
           "seed: of the Philox words that first values and the rounding of bf16 are made of; null_seed: the same for "
           "the\n"
           "row of a missing value.\n"
           "kind 'normal' with mean a and standard deviation b, or 'uniform' in [a, b). state0, linear_state0: first "
           "value\n"
           "of Adagrad's accumulators. frozen: rows are neither trained nor added.\n"
           "membership: who has a row; None: every key that was trained.");
}

void bind_faults(nb::module_& m) {
  using sfctr::RowFaults;
  nb::class_<RowFaults>(m, "RowFaults", "Ways in which keeping rows can go wrong, by name, for tests.")
      .def(nb::init<>())
      .def(
          "arm",
          [](RowFaults& self, const std::string& fault, std::uint64_t skip, std::optional<std::uint64_t> times) {
            self.arm(RowFaults::named(fault), skip, times.value_or(RowFaults::kForever));
          },
          "fault"_a, "skip"_a = 0, "times"_a = nb::none(),
          "Let `skip` occasions pass and strike on the next `times` (None: all). fault: 'fetch_early', "
          "'drop_write_back',\n"
          "'apply_twice', 'lose_state' or 'use_wrong_slot'; row_faults.h says what each does.")
      .def(
          "num_struck",
          [](const RowFaults& self, const std::string& fault) { return self.num_struck(RowFaults::named(fault)); },
          "fault"_a, "How often it has struck.");
}

void bind_training(nb::class_<RowGroup>& group) {
  group
      .def(
          "announce",
          [](nb::handle_t<RowGroup> self, PyWorkingSet& ws) {
            told(self, ws, [&](RowGroup& g) { g.announce(ws.core); });
          },
          "ws"_a,
          "Say that the batch will be planned after those announced before it: its rows are then spared where they can "
          "be.\n"
          "It must be planned, or discarded, in its turn, and kept until then.")
      .def(
          "plan",
          [](nb::handle_t<RowGroup> self, PyWorkingSet& ws) {
            return told(self, ws, [&](RowGroup& g) { return g.plan(ws.core); });
          },
          "ws"_a,
          "Give every unique key its place in RAM, pinned until update or discard. False, with nothing changed, where\n"
          "batches in flight hold frames that it needs. Raises RamFull, IndexOutgrown, DiskError.")
      .def(
          "fetch",
          [](RowGroup& self, PyWorkingSet& ws) {
            Release release;
            self.fetch(ws.core);
          },
          "ws"_a, "Read what the plan needs from disk. Raises DiskError, ChecksumError.")
      .def(
          "locate",
          [](nb::handle_t<RowGroup> self, PyWorkingSet& ws, bool train) {
            told(self, ws, [&](RowGroup& g) { g.locate(ws.core, train); });
          },
          "ws"_a, "train"_a,
          "train: plan and fetch. Otherwise find the records for reading alone: nothing is added, moved or counted, "
          "and "
          "a\n"
          "key without a row reads as zeros; good until rows change: by update, remove_rows, import_rows. Forgets what "
          "was\n"
          "located or merged before.")
      .def(
          "discard",
          [](RowGroup& self, PyWorkingSet& ws) {
            Release release;
            self.discard(ws.core);
          },
          "ws"_a, "End the use of a batch that was announced, planned or located, without training it.")
      .def("unseen", &unseen, "ws"_a, "int64 [F]: look-ups of each feature whose key has no row.")
      .def(
          "forward_floats",
          [](const RowGroup& self, const PyWorkingSet& ws, std::size_t num_rows) {
            return self.forward_floats(ws.core, num_rows);
          },
          "ws"_a, "num_rows"_a, "Length of forward's `out` for so many rows.")
      .def("forward", &forward, "ws"_a, "begin"_a, "end"_a, "out"_a.noconvert(),
           "linear_out"_a.noconvert() = nb::none(),
           "Pool rows [begin, end) of the batch, n of them. out: the features in order, each n * dim floats, or\n"
           "n * max_length * dim for a sequence (left aligned, zeros after). linear_out [F, n]: first-order weights, "
           "pooled\n"
           "alike (summed for a sequence); None leaves them out.")
      .def("backward", &backward, "ws"_a, "begin"_a, "end"_a, "grads"_a, "linear_grads"_a,
           nb::sig(
               "def backward(self, ws: WorkingSet, begin: int, end: int, grads: list[NDArray[numpy.float32] | None], "
               "linear_grads: list[NDArray[numpy.float32] | None]) -> None"),
           "Add the gradients of rows [begin, end) to those of their unique keys. grads[f] holds as many floats as\n"
           "forward's part of feature f, and as a matrix with a line a row it may be one of neighbouring columns of a\n"
           "larger one; linear_grads[f] one a row; None: the feature is not reached. linear_grads may "
           "be\n"
           "an empty list.")
      .def("gradients", &gradients, "ws"_a,
           nb::sig("def gradients(self, ws: WorkingSet) -> tuple[NDArray[numpy.float32], NDArray[numpy.float32], "
                   "NDArray[numpy.uint8]]"),
           "Views: vectors [U, dim], first-order weights [U] (or [0]), and reached [U], whose bit 1 says that the "
           "vector\n"
           "was reached and bit 2 the weight. Gradients that were not reached are undefined.")
      .def(
          "grad_norm_squared",
          [](const RowGroup& self, const PyWorkingSet& ws) {
            Release release;
            return self.grad_norm_squared(ws.core);
          },
          "ws"_a, "Sum of the squares of all merged gradients, vectors and first-order weights, in double.")
      .def(
          "update", &update, "ws"_a, "step"_a, "scale"_a, "hyper"_a.noconvert(),
          "linear_hyper"_a.noconvert() = nb::none(),
          "Multiply the gradient of every key that was reached by scale, and apply the optimizers; those without a row "
          "have\n"
          "one from now on. step counts committed steps from 1. hyper, linear_hyper: float64 [T, "
          "len(hyper_columns())].\n"
          "The working set must then be located again before further use.");
}

void bind_rows(nb::class_<RowGroup>& group) {
  group
      .def("num_rows", &RowGroup::num_rows, "native_table"_a, nb::call_guard<Release>(),
           "Rows of native table 2t (table t) or 2t + 1 (its missing value).")
      .def("memory_bytes", &RowGroup::memory_bytes, nb::call_guard<Release>(),
           "Bytes of RAM that rows, indexes and buffers of the disk take.")
      .def("counters", &counters, nb::sig("def counters(self) -> dict[str, int]"),
           "Positions requested, unique keys, hits in RAM, fresh, fetched and evicted rows, rows in scratch and plans "
           "put "
           "off,\n"
           "since the group was made; the same of the device, with the rows there, those newer than RAM's, and the\n"
           "batches in flight there; rows and bytes on disk, and microseconds for which evictions waited for it.")
      .def(
          "table_counters", &table_counters, nb::sig("def table_counters(self) -> list[dict[str, int]]"),
          "For each table, since the group was made: positions requested, unique keys, hits in RAM, fresh, fetched\n"
          "and evicted rows; unique keys found on the device, rows lifted there and lowered from there, and keys that\n"
          "found no line.")
      .def_prop_ro("num_in_flight", &RowGroup::num_in_flight, nb::call_guard<Release>(),
                   "Batches planned and not yet ended.")
      .def_prop_ro("is_spilling", &RowGroup::is_spilling, "Whether rows have begun to leave RAM.")
      .def_prop_ro("is_shrinking", &RowGroup::is_shrinking,
                   "Whether the last plan() was put off only until frames could go for more keys.")
      .def("find", &find, "native_table"_a, "keys"_a.noconvert(), "records"_a.noconvert(),
           nb::sig("def find(self, native_table: int, keys: NDArray[numpy.uint64], records: NDArray[numpy.float32]) -> "
                   "NDArray[numpy.uint8]"),
           "Copy the record of every key that has a row into records [n, record_floats]; returns uint8 [n], 1 where it "
           "has.")
      .def(
          "initial_records",
          [](const RowGroup& self, std::size_t native_table, arrays::Vector<const std::uint64_t> keys,
             arrays::Matrix<float> records) {
            Release release;
            self.initial_records(native_table, arrays::span(keys), arrays::span(records));
          },
          "native_table"_a, "keys"_a.noconvert(), "records"_a.noconvert(),
          "Write what the rows of keys [n] begin as into records [n, record_floats]; adds nothing.")
      .def("export_rows", &export_rows, "native_table"_a, "from_hash"_a, "count"_a,
           nb::sig("def export_rows(self, native_table: int, from_hash: int, count: int) -> "
                   "tuple[NDArray[numpy.uint64], NDArray[numpy.float32], int | None]"),
           "Keys [m] and records [m, record_floats] in the order of the keys' hashes from from_hash on, at most count, "
           "and\n"
           "the hash to go on from (None after the last). Begin with 0.")
      .def(
          "import_rows",
          [](RowGroup& self, std::size_t native_table, arrays::Vector<const std::uint64_t> keys,
             arrays::Matrix<const float> records, std::optional<arrays::Vector<const std::uint32_t>> last) {
            Release release;
            self.import_rows(native_table, arrays::span(keys), arrays::span(records), arrays::span(last));
          },
          "native_table"_a, "keys"_a.noconvert(), "records"_a.noconvert(), "last"_a.noconvert() = nb::none(),
          "Add rows, or overwrite those there are: records [n, record_floats] of keys [n]. last [n]: the step that "
          "trained\n"
          "each last; None: the last one committed.")
      .def(
          "expect_shards",
          [](RowGroup& self, std::size_t t, arrays::Vector<const bool> shards) {
            const sfctr::ShardSet chosen = shard_set(shards);
            Release release;
            self.expect_shards(t, chosen);
          },
          "t"_a, "shards"_a.noconvert(),
          "Say that keys of table t will be of these shards, bool [256] (see shards_of), and few of others: finding\n"
          "them is then as fast as if they were of all. Changes no row.")
      .def("mean_probes", &RowGroup::mean_probes, "native_table"_a, nb::call_guard<Release>(),
           "How many buckets of the index finding a key looks at, on the average: about 1, unless keys crowd.\n"
           "Of keys that have a row or of those that wait, whichever is more.")
      .def("reserve", &RowGroup::reserve, "native_table"_a, "num_rows"_a, nb::call_guard<Release>(),
           "Make room in the index for so many rows in all: before rows are imported in the order of their hashes.");
}

}  // namespace

void bind_row_group(nb::module_& m) {
  nb::exception<sfctr::RamFull>(m, "RamFull", PyExc_MemoryError);
  nb::exception<sfctr::IndexOutgrown>(m, "IndexOutgrown", PyExc_MemoryError);
  nb::exception<sfctr::DiskError>(m, "DiskError", PyExc_OSError);
  nb::exception<sfctr::ChecksumError>(m, "ChecksumError", PyExc_OSError);
  nb::exception<sfctr::LocationsExhaustedError>(m, "LocationsExhausted", PyExc_MemoryError);
  nb::class_<sfctr::Budget>(m, "Budget", "Bytes of RAM that the groups of a store share.")
      .def(nb::init<std::uint64_t>(), "limit"_a)
      .def_prop_ro("limit", &sfctr::Budget::limit)
      .def_prop_ro("used", &sfctr::Budget::used, "Of frames and indexes, as they are counted.");
  bind_membership_rule(m);
  bind_table_init(m);
  bind_faults(m);
  m.def("least_staging_bytes", &sfctr::RowLog::least_staging_bytes, "record_bytes"_a,
        "The least of RowGroup's staging_bytes with which records of this size are written while others come.");
  m.def(
      "hyper_columns",
      [] { return std::vector<std::string>(std::begin(sfctr::kHyperColumns), std::end(sfctr::kHyperColumns)); },
      "Names of the columns of update's hyper, in order. A column that a table's rule does not name is ignored.");
  nb::class_<RowGroup> group(
      m, "RowGroup",
      "The rows of all tables of one group in memory: locate, forward, backward, update.\n\n"
      "A record is float32: vector [dim], first-order weight [1, if linear], state of the vector's\n"
      "rule, state of the weight's rule. With dtype 'bf16' the vector is dim halves of float32 words, in\n"
      "order of address, and a zero half after an odd dim. One thread plans and fetches, another may train and read.");
  group
      .def(
          "__init__", &init_group, "dim"_a, "linear"_a, "vector_rule"_a, "linear_rule"_a.none(), "tables"_a,
          "budget"_a = nb::none(), "disk"_a = nb::none(), "policy"_a = "lru", "segment_bytes"_a = std::size_t{64} << 20,
          "staging_bytes"_a = std::size_t{4} << 20, "io"_a = "auto", "dtype"_a = "fp32",
          "snapshot_bytes"_a = std::size_t{1} << 20, "faults"_a = nb::none(), "forgets"_a = false,
          "Rules: 'sgd', 'momentum', 'adagrad', 'rowwise_adagrad', 'adam', 'adam_row', 'ftrl'; 'none' for a vector of\n"
          "dim 0; None for the weight where linear is False. budget: of RAM; None: no bound. disk: a directory for "
          "rows "
          "that\n"
          "the budget has no room for; None: they are refused. policy: 'lru' or 'lfu', whose rows leave first.\n"
          "segment_bytes, staging_bytes: of a file there, and of buffers. io: 'auto', 'uring' or 'threads'. dtype: "
          "'fp32' or\n"
          "'bf16', of the vectors alone. snapshot_bytes: of rows that training changes before a snapshot took them; a "
          "step\n"
          "waits where there are more. faults: for tests. forgets: rows are copies, and those that the budget has no "
          "room "
          "for\n"
          "are forgotten.")
      .def_prop_ro(
          "record_floats", [](const RowGroup& self) { return self.layout().num_floats(); }, "Length of a record.")
      .def("layout", &layout, nb::sig("def layout(self) -> dict[str, tuple[int, int]]"),
           "Offset and length, in float32 words, of 'vector', 'linear', 'vector_state' and 'linear_state'.");
  bind_training(group);
  bind_members(group);
  bind_rows(group);
  bind_travel(group);
  bind_lines(group);
  bind_snapshots(group);
  bind_changes(group);
}
