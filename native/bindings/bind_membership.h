// MembershipRule, and what a RowGroup tells of membership.
#pragma once

#include <nanobind/nanobind.h>

#include "sfctr/row_group.h"

namespace nb = nanobind;

void bind_membership_rule(nb::module_& m);
void bind_members(nb::class_<sfctr::RowGroup>& group);
