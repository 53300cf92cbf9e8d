// RowGroup's rows on their way to other processes, and their gradients back.
#include <nanobind/stl/optional.h>

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "bindings.h"
#include "sfctr/row_group.h"
#include "working_set.h"

namespace nb = nanobind;
using namespace nb::literals;
using sfctr::RowGroup;

namespace {

using Release = nb::gil_scoped_release;
using Kinds = arrays::Vector<const std::uint8_t>;

template <class Array>
void require_shape(const char* name, const Array& array, std::size_t rows, std::size_t columns) {
  if (array.shape(0) == rows && array.shape(1) == columns) return;
  throw std::invalid_argument(std::string(name) + " has shape [" + std::to_string(array.shape(0)) + ", " +
                              std::to_string(array.shape(1)) + "] and must have [" + std::to_string(rows) + ", " +
                              std::to_string(columns) + "]");
}

void weights(const RowGroup& group, const PyWorkingSet& ws, arrays::Matrix<float> out,
             std::optional<arrays::Vector<const std::int32_t>> ids) {
  require_shape("out", out, ids ? ids->size() : ws.core.num_unique(), group.wire_words());
  Release release;
  if (ids) {
    group.weights(ws.core, arrays::span(*ids), arrays::span(out));
  } else {
    group.weights(ws.core, arrays::span(out));
  }
}

auto kinds(const RowGroup& group, const PyWorkingSet& ws) {
  const std::span<const std::uint8_t> found = group.kinds(ws.core);
  auto array = arrays::make<std::uint8_t, 1>({found.size()});
  std::ranges::copy(found, array.data());
  return array;
}

void adopt(nb::handle_t<RowGroup> self, PyWorkingSet& ws, arrays::Matrix<const float> weights,
           std::optional<Kinds> kinds, bool train) {
  require_shape("weights", weights, ws.core.num_unique(), nb::cast<RowGroup&>(self).wire_words());
  told(self, ws, [&](RowGroup& group) { group.adopt(ws.core, arrays::span(weights), arrays::span(kinds), train); });
  ws.adopted = std::move(weights);
}

void add_gradients(const RowGroup& group, PyWorkingSet& ws, arrays::Vector<const std::int32_t> ids,
                   arrays::Matrix<const float> vectors, arrays::Vector<const float> linear, Kinds reached) {
  require_shape("vectors", vectors, ids.size(), group.layout().dim);
  Release release;
  group.add_gradients(ws.core, arrays::span(ids), arrays::span(vectors), arrays::span(linear), arrays::span(reached));
}

auto missing(RowGroup& group, PyWorkingSet& ws) {
  const std::vector<std::int64_t> ids = released([&] { return group.missing(ws.core); });
  auto array = arrays::make<std::int64_t, 1>({ids.size()});
  std::ranges::copy(ids, array.data());
  return array;
}

void bind_copies(nb::class_<RowGroup>& group) {
  group
      .def("missing", &missing, "ws"_a, nb::sig("def missing(self, ws: WorkingSet) -> NDArray[numpy.int64]"),
           "int64 [m]: unique keys of a fetched batch, the next to train, that have no copy now. All are to be filled.")
      .def(
          "fill",
          [](RowGroup& self, PyWorkingSet& ws, arrays::Vector<const std::int64_t> ids,
             arrays::Matrix<const float> records) {
            Release release;
            self.fill(ws.core, arrays::span(ids), arrays::span(records));
          },
          "ws"_a, "ids"_a.noconvert(), "records"_a.noconvert(),
          "The records [m, record_floats] of unique keys, int64 [m], are copies of rows from now on.")
      .def("forget_all", &RowGroup::forget_all, nb::call_guard<Release>(),
           "There are no copies any more. Raises RuntimeError while a batch is in flight.");
}

}  // namespace

void bind_travel(nb::class_<RowGroup>& group) {
  bind_copies(group);
  group
      .def_prop_ro("wire_words", &RowGroup::wire_words,
                   "W, float32 words of a row's weights: its vector and its first-order weight, as a record begins.")
      .def("weights", &weights, "ws"_a, "out"_a.noconvert(), "ids"_a.noconvert() = nb::none(),
           "Write the weights of unique keys, int32 [n], as they are in RAM now, to out [n, W]; of all of them where "
           "ids is\n"
           "None. Zeros of one that is absent or refused. The working set is located, and settled if it is to be "
           "trained.")
      .def("kinds", &kinds, "ws"_a, nb::sig("def kinds(self, ws: WorkingSet) -> NDArray[numpy.uint8]"),
           "uint8 [U]: 0 for a key that has a row, 1 for one that is absent, 2 for one that is refused in training, 3\n"
           "for one that is being given a row.")
      .def("adopt", &adopt, "ws"_a, "weights"_a.noconvert(), "kinds"_a.noconvert().none(), "train"_a,
           "From now on the rows of this batch are weights [U, W] and kinds [U] (None: all have a row), as another\n"
           "process gave them; until discard it is then pooled and merged as if it had been located. Nothing is "
           "pinned,\n"
           "and plan, settle and update refuse it. The array is kept, not copied.")
      .def(
          "add_gradients", &add_gradients, "ws"_a, "ids"_a.noconvert(), "vectors"_a.noconvert(), "linear"_a.noconvert(),
          "reached"_a.noconvert(),
          "Add gradients to those of unique keys, int32 [n], each there once; what comes first to a key is taken as it "
          "is.\n"
          "vectors [n, dim] and linear [n] (or [0]) count where reached, uint8 [n], has bit 1 and bit 2; bit 4 says "
          "that a\n"
          "refused key was reached. What comes to a frozen table is dropped, and what a refused key would be trained "
          "by.")
      .def("num_shares", &RowGroup::num_shares, "t"_a,
           "In how many equal ranges of hashes table t's rule of membership counts; 256 where it has none.");
}
