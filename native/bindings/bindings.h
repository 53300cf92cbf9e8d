// What each binding file adds to the module. One file per noun.
#pragma once

#include <nanobind/nanobind.h>

namespace sfctr {
class RowGroup;
}

void bind_hash(nanobind::module_& m);
void bind_threads(nanobind::module_& m);
void bind_working_set(nanobind::module_& m);
void bind_row_group(nanobind::module_& m);
void bind_travel(nanobind::class_<sfctr::RowGroup>& group);
void bind_lines(nanobind::class_<sfctr::RowGroup>& group);
void bind_trace(nanobind::module_& m);

// What a call of the core gives that needs no Python.
template <class Call>
auto released(Call&& call) {
  const nanobind::gil_scoped_release release;
  return call();
}
