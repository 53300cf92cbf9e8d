// AccessLog, stack distances and replays: what a data set's ids ask of a cache.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <stdexcept>
#include <string>

#include "bindings.h"
#include "sfctr/access_log.h"
#include "sfctr/replay.h"
#include "working_set.h"

namespace nb = nanobind;
using namespace nb::literals;
using sfctr::AccessLog;

namespace {

using Release = nb::gil_scoped_release;
using Rows = arrays::Vector<const std::uint32_t>;
using Begins = arrays::Vector<const std::int64_t>;

template <class T, class From>
auto copied(const From& values) {
  auto array = arrays::make<T, 1>({values.size()});
  std::ranges::copy(values, array.data());
  return array;
}

void log_working_set(const PyWorkingSet& ws, std::vector<AccessLog*> logs) {
  if (logs.size() != static_cast<std::size_t>(ws.core.num_tables())) {
    throw std::invalid_argument("there are " + std::to_string(logs.size()) + " logs and the working set has " +
                                std::to_string(ws.core.num_tables()) + " tables");
  }
  Release release;
  for (std::size_t t = 0; t < logs.size(); ++t) {
    const std::int64_t* const begin = ws.core.table_begin().data() + 2 * t;
    const auto first = static_cast<std::size_t>(begin[0]), end = static_cast<std::size_t>(begin[1]);
    logs[t]->add(ws.core.keys().subspan(first, end - first), begin[2] > begin[1]);
  }
}

void bind_log(nb::module_& m) {
  nb::class_<AccessLog>(m, "AccessLog",
                        "What the batches of one table asked for: one access for each distinct key of a batch, in "
                        "order.\nOne thread at a time may use it.")
      .def(nb::init<>())
      .def("halve", &AccessLog::halve, nb::call_guard<Release>(),
           "Forget the keys in the upper half of the hashes kept, and every access to them.")
      .def(
          "part",
          [](const AccessLog& log, unsigned number, unsigned bits) {
            if (bits > 16 || number >> bits != 0 || log.halvings() + bits > 63) {
              throw std::invalid_argument("there is no part " + std::to_string(number) + " of 2^" +
                                          std::to_string(bits));
            }
            Release release;
            return log.part(number, bits);
          },
          "number"_a, "bits"_a, "The log with only the keys of one of 2^bits equal parts of its hashes.")
      .def_prop_ro("halvings", &AccessLog::halvings, "The share of keys kept is 2^-halvings.")
      .def_prop_ro("num_rows", &AccessLog::num_rows, "D, distinct rows.")
      .def_prop_ro(
          "num_accesses", [](const AccessLog& log) { return log.rows().size(); }, "N.")
      .def_prop_ro("memory_bytes", &AccessLog::memory_bytes, "Bytes that it takes.")
      .def(
          "rows", [](const AccessLog& log) { return copied<std::uint32_t>(log.rows()); },
          "uint32 [N], numbers from 0 by first appearance. A copy.")
      .def(
          "batch_begin", [](const AccessLog& log) { return copied<std::int64_t>(log.batch_begin()); },
          "int64 [B + 1]: batch b is accesses batch_begin[b] to batch_begin[b + 1]. A copy.");
  m.def("log_working_set", &log_working_set, "working_set"_a, "logs"_a,
        "Add a batch to the logs of its tables, one a table: its unique keys, and the row of a missing value if asked "
        "for.");
}

// What ask(accesses) returns, as an array.
template <class Ask>
auto answered(const Rows& rows, const Begins& batch_begin, std::size_t num_rows, Ask ask) {
  const auto found = [&] {
    Release release;
    const sfctr::Accesses accesses{arrays::span(rows), arrays::span(batch_begin), num_rows};
    return ask(sfctr::checked(accesses));
  }();
  return copied<typename decltype(found)::value_type>(found);
}

void bind_reuse(nb::module_& m) {
  m.def(
      "stack_distance_counts",
      [](const Rows& rows, const Begins& batch_begin, std::size_t num_rows) {
        return answered(rows, batch_begin, num_rows, sfctr::stack_distance_counts);
      },
      "rows"_a.noconvert(), "batch_begin"_a.noconvert(), "num_rows"_a,
      "uint64 [D + 1]: entry d counts the accesses whose row was the d-th most recently used, entry 0 first uses.\n"
      "rows uint32 [N], each below D; batch_begin int64 [B + 1] from 0 to N. Raises ValueError.");
  m.def(
      "gap_counts",
      [](const Rows& rows, const Begins& batch_begin, std::size_t num_rows) {
        return answered(rows, batch_begin, num_rows, sfctr::gap_counts);
      },
      "rows"_a.noconvert(), "batch_begin"_a.noconvert(), "num_rows"_a,
      "uint64 [B]: entry g counts the accesses whose row was used g batches before, and not since.");
  m.def(
      "rows_ahead",
      [](const Rows& rows, const Begins& batch_begin, std::size_t num_rows, std::size_t window) {
        return answered(rows, batch_begin, num_rows,
                        [&](const sfctr::Accesses& accesses) { return sfctr::rows_ahead(accesses, window); });
      },
      "rows"_a.noconvert(), "batch_begin"_a.noconvert(), "num_rows"_a, "window"_a,
      "int64 [B]: distinct rows of each batch and the `window` batches after it.");
}

void bind_replay(nb::module_& m) {
  m.def(
      "replay",
      [](const Rows& rows, const Begins& batch_begin, std::size_t num_rows, const std::string& policy,
         const arrays::Vector<const std::uint64_t>& capacities, std::size_t window) {
        return answered(rows, batch_begin, num_rows, [&](const sfctr::Accesses& accesses) {
          return sfctr::replay(accesses, sfctr::policy_named(policy), arrays::span(capacities), window);
        });
      },
      "rows"_a.noconvert(), "batch_begin"_a.noconvert(), "num_rows"_a, "policy"_a, "capacities"_a.noconvert(),
      "window"_a = 0,
      "uint64 [C]: hits of a cache of each capacity (uint64 [C], from 1 on), first uses not counted.\n"
      "policy: 'lru', 'clock', 'lfu', 'frequency', 'window', 'optimal' or 'hot_set'; native/include/sfctr/replay.h has "
      "their rules.\nwindow: batches known after the current one, for 'window' alone. Raises ValueError.");
}

}  // namespace

void bind_trace(nb::module_& m) {
  bind_log(m);
  bind_reuse(m);
  bind_replay(m);
}
