// FeatureKeys and WorkingSet: the unique keys of one batch.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "bindings.h"
#include "sfctr/hash.h"
#include "sfctr/memory.h"
#include "working_set.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

sfctr::Pooling pooling_named(const std::string& name) {
  if (name == "one") return sfctr::Pooling::kOne;
  if (name == "sum") return sfctr::Pooling::kSum;
  if (name == "mean") return sfctr::Pooling::kMean;
  if (name == "sequence") return sfctr::Pooling::kSequence;
  throw std::invalid_argument("pooling is '" + name + "' and must be 'one', 'sum', 'mean' or 'sequence'");
}

const char* name_of(sfctr::Pooling pooling) {
  switch (pooling) {
    case sfctr::Pooling::kOne:
      return "one";
    case sfctr::Pooling::kSum:
      return "sum";
    case sfctr::Pooling::kMean:
      return "mean";
    default:
      return "sequence";
  }
}

void init_feature_keys(PyFeatureKeys* self, int table, const std::string& pooling,
                       arrays::Vector<const std::uint64_t> keys,
                       std::optional<arrays::Vector<const std::int64_t>> offsets,
                       std::optional<arrays::Vector<const std::uint8_t>> nulls,
                       std::optional<arrays::Vector<const float>> weights, std::size_t max_length,
                       std::uint64_t buckets) {
  const sfctr::FeatureKeys core{.table = table,
                                .pooling = pooling_named(pooling),
                                .keys = arrays::span(keys),
                                .offsets = arrays::span(offsets),
                                .nulls = arrays::span(nulls),
                                .weights = arrays::span(weights),
                                .max_length = max_length,
                                .buckets = buckets};
  new (self) PyFeatureKeys{core, std::move(keys), std::move(offsets), std::move(nulls), std::move(weights)};
}

void init_working_set(PyWorkingSet* self, int num_tables, std::size_t num_rows, std::vector<PyFeatureKeys> features,
                      const std::vector<int>& rare_tables) {
  std::vector<sfctr::FeatureKeys> keys;
  for (const PyFeatureKeys& feature : features) keys.push_back(feature.keys);
  const auto unique = [&] {
    nb::gil_scoped_release release;
    return sfctr::WorkingSet(num_tables, num_rows, std::move(keys), rare_tables);
  };
  new (self) PyWorkingSet{std::move(features), unique()};
}

using Source = std::pair<arrays::Vector<const std::uint64_t>, arrays::Vector<const std::int64_t>>;

std::unique_ptr<PyWorkingSet> of_sources(int num_tables, nb::list sources) {
  std::vector<Source> kept;
  std::vector<sfctr::KeyList> lists;
  for (nb::handle item : sources) {
    arrays::Vector<const std::uint64_t> keys;
    arrays::Vector<const std::int64_t> begin;
    if (!nb::isinstance<nb::tuple>(item) || nb::len(item) != 2 || !nb::try_cast(item[0], keys, false) ||
        !nb::try_cast(item[1], begin, false)) {
      throw nb::type_error(("sources[" + std::to_string(lists.size()) +
                            "] must be a tuple of contiguous arrays: keys uint64 [n], table_begin int64 [2T + 1]")
                               .c_str());
    }
    lists.push_back({arrays::span(keys), arrays::span(begin)});
    kept.emplace_back(std::move(keys), std::move(begin));
  }
  const auto merged = [&] {
    nb::gil_scoped_release release;
    return sfctr::WorkingSet::of_sources(num_tables, lists);
  };
  return std::make_unique<PyWorkingSet>(std::vector<PyFeatureKeys>(), merged());
}

auto source_ids(nb::handle_t<PyWorkingSet> self, std::size_t p) {
  const sfctr::WorkingSet& ws = nb::cast<const PyWorkingSet&>(self).core;
  if (p >= ws.num_sources()) throw std::out_of_range("there is no source " + std::to_string(p));
  const auto ids = ws.source_ids(p);
  return arrays::view(ids.data(), ids.size(), self);
}

void bind_feature_keys(nb::module_& m) {
  nb::class_<PyFeatureKeys>(m, "FeatureKeys", "The keys that one feature looks up for a batch of B rows.")
      .def("__init__", &init_feature_keys, "table"_a, "pooling"_a, "keys"_a.noconvert(),
           "offsets"_a.noconvert() = nb::none(), "nulls"_a.noconvert() = nb::none(),
           "weights"_a.noconvert() = nb::none(), "max_length"_a = 0, "buckets"_a = 0,
           "table: number of the table in its group. pooling: 'one', 'sum', 'mean' or 'sequence'.\n"
           "keys uint64 [N]; offsets int64 [B + 1] for all but 'one', where N = B; nulls uint8 [N] for 'one', 1 where "
           "the\n"
           "value is missing; weights float32 [N] for 'sum' and 'mean'. max_length: vectors a row of a sequence "
           "becomes;\n"
           "no row may have more keys. buckets: above 0, keys are hashed into so many.\n"
           "The arrays are kept, not copied: nobody may change them while a working set uses them.")
      .def_prop_ro("table", [](const PyFeatureKeys& self) { return self.keys.table; })
      .def_prop_ro("pooling", [](const PyFeatureKeys& self) { return name_of(self.keys.pooling); })
      .def_prop_ro("offsets", [](const PyFeatureKeys& self) { return self.offsets; })
      .def_prop_ro("weights", [](const PyFeatureKeys& self) { return self.weights; })
      .def_prop_ro("max_length", [](const PyFeatureKeys& self) { return self.keys.max_length; });
}

void bind_working_set_class(nb::module_& m) {
  nb::class_<PyWorkingSet>(
      m, "WorkingSet",
      "The unique keys of a batch for the tables of one group. One thread at a time may use it.\n\n"
      "Table t is native tables 2t (its keys) and 2t + 1 (the row of a missing value, key 0).\n"
      "Keys are numbered by native table, then by first appearance (feature, then position).")
      .def("__init__", &init_working_set, "num_tables"_a, "num_rows"_a, "features"_a,
           "rare_tables"_a = std::vector<int>(),
           "Raises ValueError, naming the feature by its number, where shapes or options do not fit together.\n"
           "rare_tables: numbers of the tables that list their rare row, key 1 of native table 2t + 1, with every "
           "batch.")
      .def_static("of_sources", &of_sources, "num_tables"_a, "sources"_a,
                  nb::sig("def of_sources(num_tables: int, sources: list[tuple[NDArray[numpy.uint64], "
                          "NDArray[numpy.int64]]]) -> WorkingSet"),
                  "The unique keys of other working sets, each given as (keys [n], table_begin [2T + 1]): numbered by "
                  "native\n"
                  "table, then by first appearance (source, then position). It has no features and no rows. Raises "
                  "ValueError.")
      .def("source_ids", &source_ids, "source"_a,
           "int32 [n] of one source: for each of its keys the number of the unique key. A view.")
      .def_prop_ro(
          "has_gradients", [](const PyWorkingSet& ws) { return ws.core.gradients.any; },
          "Whether gradients have come to it since it was located.")
      .def_prop_ro(
          "num_rows", [](const PyWorkingSet& ws) { return ws.core.num_rows(); }, "B, rows of the batch.")
      .def_prop_ro(
          "features", [](const PyWorkingSet& ws) { return ws.features; }, "What each feature looks up, in order.")
      .def_prop_ro(
          "num_unique", [](const PyWorkingSet& ws) { return ws.core.num_unique(); }, "U, unique keys of all tables.")
      .def(
          "keys",
          [](nb::handle_t<PyWorkingSet> self) {
            const auto keys = nb::cast<const PyWorkingSet&>(self).core.keys();
            return arrays::view(keys.data(), keys.size(), self);
          },
          "uint64 [U], hashed already where the feature has buckets. A view.")
      .def(
          "table_begin",
          [](nb::handle_t<PyWorkingSet> self) {
            const auto begin = nb::cast<const PyWorkingSet&>(self).core.table_begin();
            return arrays::view(begin.data(), begin.size(), self);
          },
          "int64 [2T + 1]: native table n owns unique keys table_begin[n] to table_begin[n + 1]. A view.")
      .def(
          "virtual_ids",
          [](nb::handle_t<PyWorkingSet> self, std::size_t feature) {
            const sfctr::WorkingSet& ws = nb::cast<const PyWorkingSet&>(self).core;
            if (feature >= ws.features().size())
              throw std::out_of_range("there is no feature " + std::to_string(feature));
            const auto ids = ws.virtual_ids(feature);
            return arrays::view(ids.data(), ids.size(), self);
          },
          "feature"_a, "int32 [N] of one feature: for each position the number of its unique key. A view.");
}

void bucket_keys(arrays::Vector<const std::uint64_t> keys, std::uint64_t buckets, arrays::Vector<std::uint64_t> out) {
  if (buckets == 0 || out.size() != keys.size()) {
    throw std::invalid_argument("buckets must be above 0, and out as long as keys");
  }
  nb::gil_scoped_release release;
  for (std::size_t i = 0; i < keys.size(); ++i) out.data()[i] = sfctr::bucket_of(keys.data()[i], buckets);
}

void shards_of(arrays::Vector<const std::uint64_t> keys, arrays::Vector<std::uint8_t> out) {
  if (out.size() != keys.size()) throw std::invalid_argument("out must be as long as keys");
  nb::gil_scoped_release release;
  for (std::size_t i = 0; i < keys.size(); ++i) out.data()[i] = sfctr::shard_of(keys.data()[i]);
}

}  // namespace

void bind_working_set(nb::module_& m) {
  m.def("shards_of", &shards_of, "keys"_a.noconvert(), "out"_a.noconvert(),
        "out[i] = the shard, one of 256, of keys[i]: the leading bits of the hash in whose order rows are exported.");
  m.def("bucket_keys", &bucket_keys, "keys"_a.noconvert(), "buckets"_a, "out"_a.noconvert(),
        "out[i] = the row, below buckets, that keys[i] shares with other keys by the hashing trick.");
  bind_feature_keys(m);
  bind_working_set_class(m);
  m.def("scratch_bytes", &sfctr::scratch_bytes,
        "Bytes that working sets hold for keys, gradients and first values, kept for the next one included.");
}
