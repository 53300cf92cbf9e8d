#include "bind_snapshot.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "arrays.h"

namespace nb = nanobind;
using namespace nb::literals;
using sfctr::RowGroup;

namespace {

using Release = nb::gil_scoped_release;

nb::object take_snapshot(RowGroup& group, std::size_t count) {
  std::optional<sfctr::SnapshotRows> rows;
  {
    Release release;
    rows = group.take_snapshot(count);
  }
  if (!rows) return nb::none();
  const std::size_t num_rows = rows->keys.size();
  auto keys = arrays::make<std::uint64_t, 1>({num_rows});
  auto last = arrays::make<std::uint32_t, 1>({group.has_membership() ? num_rows : 0});
  auto records = arrays::make<float, 2>({num_rows, group.layout().num_floats()});
  std::ranges::copy(rows->keys, keys.data());
  std::copy_n(rows->last.data(), last.size(), last.data());
  std::ranges::copy(rows->records, records.data());
  return nb::make_tuple(rows->native_table, keys, last, records);
}

nb::list take_tombstones(RowGroup& group) {
  std::vector<std::vector<std::uint64_t>> tombstones;
  {
    Release release;
    tombstones = group.take_tombstones();
  }
  nb::list all;
  for (std::size_t n = 0; n < tombstones.size(); ++n) {
    if (tombstones[n].empty()) continue;
    auto keys = arrays::make<std::uint64_t, 1>({tombstones[n].size()});
    std::ranges::copy(tombstones[n], keys.data());
    all.append(nb::make_tuple(n, keys));
  }
  return all;
}

}  // namespace

void bind_snapshots(nb::class_<RowGroup>& group) {
  group
      .def("begin_snapshot", &RowGroup::begin_snapshot, "full"_a, nb::call_guard<Release>(),
           "Between two steps: from now on the snapshot is the rows as they are now, all of them or those trained,\n"
           "loaded or new since the one before began. Batches may be planned ahead, no line may be dirty. Raises\n"
           "RuntimeError if one is under way, or if it is not full and needs_full.")
      .def(
          "take_snapshot", &take_snapshot, "count"_a,
          nb::sig("def take_snapshot(self, count: int) -> tuple[int, NDArray[numpy.uint64], NDArray[numpy.uint32], "
                  "NDArray[numpy.float32]] | None"),
          "The next rows, at most count, of one native table: its number, keys [n], the step that trained each last\n"
          "([n], or [0] without membership), records [n, record_floats]. None: all were given. From any thread, one at "
          "a\n"
          "time, beside everything else. Raises DiskError and ChecksumError; the snapshot cannot then be kept.")
      .def("take_tombstones", &take_tombstones,
           nb::sig("def take_tombstones(self) -> list[tuple[int, NDArray[numpy.uint64]]]"),
           "Native tables and their keys, sorted, whose rows went for good since the snapshot before began; of those "
           "that\n"
           "came back, the row is in the snapshot. Once for each snapshot; one that had to be full may leave some out.")
      .def("end_snapshot", &RowGroup::end_snapshot, "kept"_a, nb::call_guard<Release>(),
           "kept: all of it was taken, and lies where it will be found again; if not, the next must be full.")
      .def_prop_ro("needs_full", &RowGroup::needs_full,
                   "Whether the next snapshot must hold all rows: none was kept yet, the last was not, or more rows "
                   "went\n"
                   "than are worth being listed.")
      .def("mark_saved", &RowGroup::mark_saved, nb::call_guard<Release>(),
           "The rows are those of a snapshot that was kept: none counts as changed.");
}
