// Unique keys cut into tasks: ranges inside one native table, whose bounds follow from the working set alone.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "sfctr/working_set.h"

namespace sfctr {

struct KeyBlock {
  std::size_t native_table;
  std::size_t begin, end;  // unique keys
};

inline std::vector<KeyBlock> key_blocks(const WorkingSet& ws, std::size_t size) {
  std::vector<KeyBlock> blocks;
  const auto table_begin = ws.table_begin();
  for (std::size_t n = 0; n + 1 < table_begin.size(); ++n) {
    const auto last = static_cast<std::size_t>(table_begin[n + 1]);
    for (auto begin = static_cast<std::size_t>(table_begin[n]); begin < last; begin += size) {
      blocks.push_back({n, begin, std::min(begin + size, last)});
    }
  }
  return blocks;
}

}  // namespace sfctr
