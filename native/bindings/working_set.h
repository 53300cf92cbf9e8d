// WorkingSet as Python holds it: with the arrays that its keys are views of, and the group that has it in flight.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "arrays.h"
#include "sfctr/row_group.h"
#include "sfctr/working_set.h"

struct PyFeatureKeys {
  sfctr::FeatureKeys keys;
  arrays::Vector<const std::uint64_t> key_array;
  std::optional<arrays::Vector<const std::int64_t>> offsets;
  std::optional<arrays::Vector<const std::uint8_t>> nulls;
  std::optional<arrays::Vector<const float>> weights;
};

// A batch that is forgotten is discarded: its group outlives it, and must not be left with pins for nobody.
struct PyWorkingSet {
  std::vector<PyFeatureKeys> features;
  sfctr::WorkingSet core;
  arrays::nb::object group;                            // the last one that was told of it
  std::optional<arrays::Matrix<const float>> adopted;  // weights that its records are

  PyWorkingSet(std::vector<PyFeatureKeys> features, sfctr::WorkingSet core)
      : features(std::move(features)), core(std::move(core)) {}
  PyWorkingSet(const PyWorkingSet&) = delete;
  ~PyWorkingSet() {
    if (!group.is_valid()) return;
    sfctr::RowGroup& told = arrays::nb::cast<sfctr::RowGroup&>(group);
    arrays::nb::gil_scoped_release release;
    told.discard(core);
  }
};

// Calls a group with a working set that it may hold on to.
template <class Call>
auto told(arrays::nb::handle_t<sfctr::RowGroup> self, PyWorkingSet& ws, Call&& call) {
  if (ws.group.is_valid() && !ws.group.is(self)) {
    sfctr::RowGroup& other = arrays::nb::cast<sfctr::RowGroup&>(ws.group);
    const arrays::nb::gil_scoped_release release;
    other.discard(ws.core);
  }
  ws.group = arrays::nb::borrow(self);
  sfctr::RowGroup& group = arrays::nb::cast<sfctr::RowGroup&>(self);
  const arrays::nb::gil_scoped_release release;
  return call(group);
}
