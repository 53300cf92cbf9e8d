// RowGroup's rows on a device: which lines hold them, and the copies on their way there and back.
#include <algorithm>

#include "bindings.h"
#include "sfctr/row_group.h"
#include "working_set.h"

namespace nb = nanobind;
using namespace nb::literals;
using sfctr::RowGroup;

namespace {

using Release = nb::gil_scoped_release;
using Numbers = arrays::Vector<const std::uint32_t>;

auto numbers(const std::vector<std::uint32_t>& values) {
  auto array = arrays::make<std::uint32_t, 1>({values.size()});
  std::ranges::copy(values, array.data());
  return array;
}

auto lines(RowGroup& group, const PyWorkingSet& ws) {
  const std::span<const std::uint32_t> found = ws.core.on_device.lines.span();
  const auto num_lines = static_cast<std::int64_t>(group.num_lines());
  auto array = arrays::make<std::int64_t, 1>({found.size()});
  std::ranges::transform(found, array.data(), [&](std::uint32_t line) {
    return line == sfctr::DeviceLines::kNone ? num_lines : std::int64_t{line};
  });
  return array;
}

nb::tuple line_moves(const PyWorkingSet& ws) {
  const sfctr::OnDevice& on = ws.core.on_device;
  return nb::make_tuple(numbers(on.leaving), numbers(on.rising), numbers(on.spilled));
}

auto dirty_lines(RowGroup& group) {
  std::vector<std::uint32_t> found;
  {
    Release release;
    found = group.dirty_lines();
  }
  return numbers(found);
}

template <auto method>
void with_working_set(RowGroup& group, PyWorkingSet& ws) {
  Release release;
  (group.*method)(ws.core);
}

void bind_planning(nb::class_<RowGroup>& group) {
  group
      .def("keep_lines", &RowGroup::keep_lines, "num_lines"_a, nb::call_guard<Release>(),
           "Rows may be in so many lines on a device from now on, and are then trained there alone. Called once.")
      .def("lines_bound", &RowGroup::lines_bound, nb::call_guard<Release>(),
           "Lines that may be in use: all, but no more than half of the rows that RAM holds once rows leave it.")
      .def(
          "plan_lines",
          [](RowGroup& self, PyWorkingSet& ws) {
            Release release;
            return self.plan_lines(ws.core);
          },
          "ws"_a,
          "Choose a line for every key of a fetched batch, pinned until end_step or discard. False, with nothing\n"
          "changed, where batches in flight hold lines that it needs. Then, in this order: lower the lines that\n"
          "leave, lines_lowered, put the records of rising keys (gather) into their lines, lines_ready.")
      .def("lines", &lines, "ws"_a,
           "int64 [U]: the line of each unique key; the number of lines for a key without one.")
      .def(
          "line_moves", [](const RowGroup&, const PyWorkingSet& ws) { return line_moves(ws); }, "ws"_a,
          nb::sig("def line_moves(self, ws: WorkingSet) -> tuple[NDArray[numpy.uint32], NDArray[numpy.uint32], "
                  "NDArray[numpy.uint32]]"),
          "uint32: lines that leave; unique keys whose record must be put into their line; unique keys without one.\n"
          "Of the last, what was trained must be scattered before end_step; no other batch is ready until then.")
      .def("lines_lowered", &with_working_set<&RowGroup::lines_lowered>, "ws"_a,
           "The lines that leave were lowered; the rows are in RAM alone.")
      .def("lines_ready", &with_working_set<&RowGroup::lines_ready>, "ws"_a,
           "The records of rising keys are in lines.");
}

void bind_copies(nb::class_<RowGroup>& group) {
  group
      .def(
          "gather",
          [](const RowGroup& self, const PyWorkingSet& ws, Numbers keys, arrays::Matrix<float> records) {
            Release release;
            self.gather(ws.core, arrays::span(keys), arrays::span(records));
          },
          "ws"_a, "keys"_a.noconvert(), "records"_a.noconvert(),
          "Copy the records of unique keys, uint32 [n], as they are in RAM, to records [n, record_floats].")
      .def(
          "scatter",
          [](RowGroup& self, const PyWorkingSet& ws, Numbers keys, arrays::Matrix<const float> records) {
            Release release;
            self.scatter(ws.core, arrays::span(keys), arrays::span(records));
          },
          "ws"_a, "keys"_a.noconvert(), "records"_a.noconvert(), "Copy records to the unique keys' places in RAM.")
      .def("dirty_lines", &dirty_lines, "uint32: lines whose record is newer than RAM's.")
      .def(
          "lower",
          [](RowGroup& self, Numbers lines, arrays::Matrix<const float> records) {
            Release release;
            self.lower(arrays::span(lines), arrays::span(records));
          },
          "lines"_a.noconvert(), "records"_a.noconvert(),
          "Copy records [n, record_floats] of lines, uint32 [n], to RAM; the lines are then clean.")
      .def("drop_lines", &RowGroup::drop_lines, nb::call_guard<Release>(),
           "No row is on the device any more. Raises RuntimeError where lines are dirty, or batches in flight there.")
      .def(
          "end_step",
          [](RowGroup& self, PyWorkingSet& ws, std::uint64_t step, arrays::Vector<const std::uint8_t> reached) {
            Release release;
            self.end_step(ws.core, step, arrays::span(reached));
          },
          "ws"_a, "step"_a, "reached"_a.noconvert(),
          "End a batch that was trained on the device: keys whose reached, uint8 [U], is not 0 now have a row.");
}

}  // namespace

void bind_lines(nb::class_<RowGroup>& group) {
  bind_planning(group);
  bind_copies(group);
}
