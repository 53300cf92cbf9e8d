#include "bind_membership.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <deque>
#include <map>
#include <stdexcept>
#include <string>

#include "bindings.h"
#include "working_set.h"

using namespace nb::literals;
using sfctr::RowGroup;

namespace {

using Release = nb::gil_scoped_release;

std::uint64_t remove_rows(RowGroup& group, std::size_t native_table, arrays::Vector<const std::uint64_t> keys) {
  Release release;
  return group.remove_rows(native_table, arrays::span(keys));
}

void init_membership(sfctr::MembershipRule* self, std::uint64_t capacity, std::uint32_t admit_after,
                     std::uint64_t expire_after_steps, std::int64_t expire_after_ns, bool rare,
                     std::uint64_t most_waiting) {
  if (admit_after < 1 || admit_after > 1'000'000'000) throw std::invalid_argument("admit_after must be 1 to 10^9");
  if (expire_after_ns < 0 || (expire_after_steps > 0 && expire_after_ns > 0)) {
    throw std::invalid_argument("rows expire by steps or by event time, after a span that is not negative");
  }
  new (self) sfctr::MembershipRule{capacity, admit_after, expire_after_steps, expire_after_ns, rare, most_waiting};
}

// What is kept of one table: its counters, with keys that wait, by name.
nb::dict membership(RowGroup& group, std::size_t t) {
  std::uint64_t waiting = 0;
  sfctr::MembershipCounters counters;
  {
    Release release;
    counters = group.membership(t, waiting);
  }
  nb::dict counts;
  counts["admitted"] = counters.admitted;
  counts["refused"] = counters.refused;
  counts["expired"] = counters.expired;
  counts["removed"] = counters.removed;
  counts["withdrawn"] = counters.withdrawn;
  counts["forgotten"] = counters.forgotten;
  counts["waiting"] = waiting;
  return counts;
}

template <class T>
auto to_array(const std::vector<T>& values) {
  auto array = arrays::make<T, 1>({values.size()});
  std::ranges::copy(values, array.data());
  return array;
}

nb::tuple waiting(RowGroup& group, std::size_t t) {
  const RowGroup::Waiting found = released([&] { return group.waiting(t); });
  return nb::make_tuple(to_array(found.keys), to_array(found.counts), to_array(found.last));
}

void restore_membership(RowGroup& group, std::size_t t, const std::map<std::string, std::uint64_t>& counters,
                        arrays::Vector<const std::uint64_t> keys, arrays::Vector<const std::uint32_t> counts,
                        arrays::Vector<const std::uint32_t> last) {
  if (counts.size() != keys.size() || last.size() != keys.size()) {
    throw std::invalid_argument("keys, counts and last must have one length");
  }
  const auto counter = [&](const char* name) {
    const auto found = counters.find(name);
    return found == counters.end() ? std::uint64_t{0} : found->second;
  };
  const sfctr::MembershipCounters all{counter("admitted"), counter("refused"),   counter("expired"),
                                      counter("removed"),  counter("withdrawn"), counter("forgotten")};
  RowGroup::Waiting given{{keys.data(), keys.data() + keys.size()},
                          {counts.data(), counts.data() + counts.size()},
                          {last.data(), last.data() + last.size()}};
  Release release;
  group.restore_membership(t, all, given);
}

nb::tuple event_clock(RowGroup& group) {
  std::vector<std::uint32_t> steps;
  std::vector<std::int64_t> times;
  for (const sfctr::EventClock::Point& point : released([&] { return group.clock(); }))
    steps.push_back(point.step), times.push_back(point.now);
  return nb::make_tuple(to_array(steps), to_array(times));
}

void restore_clock(RowGroup& group, std::uint64_t step, arrays::Vector<const std::uint32_t> steps,
                   arrays::Vector<const std::int64_t> times) {
  if (steps.size() != times.size()) throw std::invalid_argument("steps and times must have one length");
  std::deque<sfctr::EventClock::Point> points;
  for (std::size_t i = 0; i < steps.size(); ++i) points.push_back({steps.data()[i], times.data()[i]});
  Release release;
  group.restore_clock(step, std::move(points));
}

nb::list take_gone(RowGroup& group) {
  nb::list all;
  for (const RowGroup::Gone& gone : released([&] { return group.take_gone(); }))
    all.append(nb::make_tuple(gone.table, to_array(gone.keys)));
  return all;
}

}  // namespace

void bind_membership_rule(nb::module_& m) {
  nb::class_<sfctr::MembershipRule>(m, "MembershipRule", "Which keys of a table have a row.")
      .def("__init__", &init_membership, "capacity"_a = 0, "admit_after"_a = 1, "expire_after_steps"_a = 0,
           "expire_after_ns"_a = 0, "rare"_a = false, "most_waiting"_a = 65536,
           "capacity: rows; 0: no bound. admit_after: committed steps that must have held a key, the one that admits "
           "it\n"
           "included. expire_after_steps, expire_after_ns: life of a row that is not trained again, one of the two; 0: "
           "for\n"
           "ever. rare: refused keys read and train the table's rare row, else they read as zeros. most_waiting: keys\n"
           "whose count is kept.");
}

void bind_members(nb::class_<RowGroup>& group) {
  group
      .def(
          "settle",
          [](RowGroup& self, PyWorkingSet& ws, std::optional<std::int64_t> time) {
            Release release;
            self.settle(ws.core, time.value_or(sfctr::EventClock::kNoTime));
          },
          "ws"_a, "time"_a = nb::none(),
          "Decide which keys of a fetched batch have a row, are given one or are refused, after the batch before it "
          "has\n"
          "ended. time: its greatest event time, ns since 1970. Needed only where a table has a membership rule.")
      .def("remove_rows", &remove_rows, "native_table"_a, "keys"_a.noconvert(),
           "The keys' rows, and counts that wait, are gone. Returns how many had a row.")
      .def("membership", &membership, "t"_a, nb::sig("def membership(self, t: int) -> dict[str, int]"),
           "Keys of table t that were admitted, refused (once a committed step), expired, removed for capacity, "
           "withdrawn "
           "by\n"
           "hand and forgotten while they waited; and those that wait now.")
      .def("waiting", &waiting, "t"_a,
           nb::sig("def waiting(self, t: int) -> tuple[NDArray[numpy.uint64], NDArray[numpy.uint32], "
                   "NDArray[numpy.uint32]]"),
           "Keys of table t that wait for a row, in the order of their hashes; the committed steps that reached each, "
           "and\n"
           "the last of them.")
      .def(
          "last_trained",
          [](RowGroup& self, std::size_t native_table, arrays::Vector<const std::uint64_t> keys) {
            std::vector<std::uint32_t> steps(keys.size());
            {
              Release release;
              self.last_trained(native_table, arrays::span(keys), steps);
            }
            return to_array(steps);
          },
          "native_table"_a, "keys"_a.noconvert(),
          nb::sig("def last_trained(self, native_table: int, keys: NDArray[numpy.uint64]) -> NDArray[numpy.uint32]"),
          "The step that trained each key's row last; 0 for one without.")
      .def("clock", &event_clock, nb::sig("def clock(self) -> tuple[NDArray[numpy.uint32], NDArray[numpy.int64]]"),
           "Steps at which the greatest event time rose, and what it was then, as far back as a row may live.")
      .def("restore_membership", &restore_membership, "t"_a, "counters"_a, "keys"_a.noconvert(), "counts"_a.noconvert(),
           "last"_a.noconvert(),
           "Set what membership() and waiting() tell of table t; what was counted, and waited, before is forgotten.")
      .def("restore_clock", &restore_clock, "step"_a, "steps"_a.noconvert(), "times"_a.noconvert(),
           "Set the last committed step, and what clock() tells.")
      .def("list_gone", &RowGroup::list_gone, "on"_a, nb::call_guard<Release>(),
           "Whether to list the keys whose rows go, from now on.")
      .def("take_gone", &take_gone, nb::sig("def take_gone(self) -> list[tuple[int, NDArray[numpy.uint64]]]"),
           "Tables and keys whose rows have gone since the last call, in the order of their going.");
}
