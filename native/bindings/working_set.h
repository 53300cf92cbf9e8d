// The Python objects behind a working set: they keep the arrays alive that the core only points to.
#pragma once

#include "arrays.h"
#include "sfctr/working_set.h"

struct PyFeatureKeys {
  sfctr::FeatureKeys keys;  // spans of the arrays below
  arrays::Vector<const std::uint64_t> key_array;
  std::optional<arrays::Vector<const std::int64_t>> offsets;
  std::optional<arrays::Vector<const std::uint8_t>> nulls;
  std::optional<arrays::Vector<const float>> weights;
};

struct PyWorkingSet {
  std::vector<PyFeatureKeys> features;
  sfctr::WorkingSet core;
};
