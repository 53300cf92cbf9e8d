// What a RowGroup gives out while training goes on.
#pragma once

#include <nanobind/nanobind.h>

#include "sfctr/row_group.h"

void bind_snapshots(nanobind::class_<sfctr::RowGroup>& group);
void bind_changes(nanobind::class_<sfctr::RowGroup>& group);
