#include <algorithm>
#include <optional>
#include <vector>

#include "arrays.h"
#include "bind_snapshot.h"

namespace nb = nanobind;
using namespace nb::literals;
using sfctr::RowGroup;

namespace {

using Release = nb::gil_scoped_release;

nb::tuple unsent_rows(RowGroup& group, std::size_t native_table, std::uint64_t from, std::size_t count,
                      bool with_records) {
  std::vector<std::uint64_t> keys;
  std::vector<float> records;
  std::optional<std::uint64_t> next;
  {
    Release release;
    next = group.unsent_rows(native_table, from, count, keys, with_records ? &records : nullptr);
  }
  auto key_array = arrays::make<std::uint64_t, 1>({keys.size()});
  auto record_array = arrays::make<float, 2>({with_records ? keys.size() : 0, group.layout().num_floats()});
  std::ranges::copy(keys, key_array.data());
  std::ranges::copy(records, record_array.data());
  return nb::make_tuple(key_array, record_array, next ? nb::cast(*next) : nb::none());
}

nb::ndarray<nb::numpy, std::uint64_t, nb::ndim<1>> unsent_gone(RowGroup& group, std::size_t native_table) {
  std::vector<std::uint64_t> keys;
  {
    Release release;
    keys = group.unsent_gone(native_table);
  }
  auto array = arrays::make<std::uint64_t, 1>({keys.size()});
  std::ranges::copy(keys, array.data());
  return array;
}

}  // namespace

void bind_changes(nb::class_<RowGroup>& group) {
  group
      .def("mark_sent", &RowGroup::mark_sent, nb::call_guard<Release>(),
           "Between two steps, as the next four: whoever follows the rows has them as they are now.")
      .def("needs_base", &RowGroup::needs_base, nb::call_guard<Release>(),
           "Whether the follower must be sent all rows: it never had any, or more went than are worth being listed.\n"
           "Rows that have expired go now.")
      .def("unsent_rows", &unsent_rows, "native_table"_a, "from_hash"_a, "count"_a, nb::kw_only(),
           "with_records"_a = true,
           nb::sig("def unsent_rows(self, native_table: int, from_hash: int, count: int, *, with_records: bool = True) "
                   "-> tuple[NDArray[numpy.uint64], NDArray[numpy.float32], int | None]"),
           "As export_rows, of the rows that were trained, loaded or new since the follower had all;\n"
           "with_records=False gives their keys alone. Raises RuntimeError where it needs all.")
      .def("unsent_gone", &unsent_gone, "native_table"_a,
           nb::sig("def unsent_gone(self, native_table: int) -> NDArray[numpy.uint64]"),
           "Keys, sorted, whose rows went since then and that have none now. Raises as unsent_rows.")
      .def(
          "mark_unsent",
          [](RowGroup& self, std::size_t native_table, arrays::Vector<const std::uint64_t> rows,
             arrays::Vector<const std::uint64_t> gone) {
            Release release;
            self.mark_unsent(native_table, arrays::span(rows), arrays::span(gone));
          },
          "native_table"_a, "rows"_a.noconvert(), "gone"_a.noconvert(),
          "After mark_sent, of rows that were loaded: keys whose rows the follower has otherwise, or not at all, and\n"
          "keys without a row of which it has one.");
}
