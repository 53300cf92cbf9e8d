// The positions of a batch sorted by the key that they train: for each key, where its gradient contributions lie, in
// the order feature, row, position. A stable counting sort, one task a table.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sfctr/working_set.h"

namespace sfctr {

// A feature's gradients for rows [begin, end); both null: the feature takes no part.
struct FeatureGradient {
  const float* vectors = nullptr;  // a row is shaped as one of forward's part of the feature
  std::size_t stride = 0;          // floats from one row to the next
  const float* linear = nullptr;   // [end - begin]

  bool any() const { return vectors || linear; }
};

struct HotKey {
  std::size_t key;
  bool scaled;
};

// Key u owns contributions [first(u), ends[u]). `vectors` and `linear` say which of the two were asked for; where a
// feature lacks one that was asked for, it takes no part at all, so ask for them apart if they differ.
struct Transpose {
  Buffer<std::uint32_t> ends;  // [U]
  Buffer<const float*> rows;   // of vectors
  Buffer<Scale> scales;        // of vectors; empty if no feature scales
  Buffer<float> linear;        // contributions to first-order weights, scaled already
  std::vector<bool> scaled;    // table -> whether its scales count
  std::vector<HotKey> hot;     // keys with more than kMergeChunk contributions, rising

  std::size_t first(std::size_t u) const { return u == 0 ? 0 : ends[u - 1]; }
};

// REQUIRES: all features with any() have the same parts. Throws std::bad_alloc.
Transpose transpose(const WorkingSet& ws, std::size_t begin, std::size_t end, std::size_t dim,
                    std::span<const FeatureGradient> gradients);

}  // namespace sfctr
