// The inner loops over rows. Plain data in and out: this header is compiled under the flags of every SIMD level, so it
// must contain nothing that the linker could share between them (no inline functions, no templates).
//
// Arithmetic is single IEEE operations in a fixed order; a sum over the columns of a row runs in 16 lanes (column c in
// lane c % 16), which are then added pairwise: lane i with i + 8, then 4, 2, 1. So all levels give the same bits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "sfctr/bucket.h"

namespace sfctr {

enum class Pooling : std::uint8_t { kOne, kSum, kMean, kSequence };

// What a record keeps its vector in: an element is a float, or the upper half of one. The rest of it is floats.
enum class Element : std::uint8_t { kFloat32, kBfloat16 };

// Of a vector, so that a task can hold a row as floats on its stack.
inline constexpr std::size_t kMaxDim = 4096;

enum class Rule : std::uint8_t { kNone, kSgd, kMomentum, kAdagrad, kRowWiseAdagrad, kAdam, kAdamRow, kFtrl };

// Contributions to one gradient are summed in chunks of this many, and the chunks in order.
inline constexpr std::size_t kMergeChunk = 64;

// Rows [begin, end) of a batch, one feature. Sums start from +0.
struct PoolArgs {
  Pooling pooling;
  Element element;
  std::size_t dim;
  std::size_t begin, end;
  std::size_t max_length;       // of a sequence
  const std::int32_t* ids;      // position -> virtual id
  const std::int64_t* offsets;  // row b owns positions [offsets[b], offsets[b + 1]); null for kOne: position b
  const float* weights;         // of positions, or null
  const float* const* records;  // virtual id -> vector, then after its words the first-order weight
  float* out;                   // (end - begin) * dim, or * max_length * dim; null where dim is 0
  float* linear_out;            // (end - begin), or null
  bool stream;                  // out goes past the caches, where it can
};

// What a position's gradient is divided and multiplied by, in this order, before it is added.
struct Scale {
  float denominator;
  float weight;
};

// Contributions of keys [begin, end): key u owns rows[ends[u - 1] .. ends[u]). Keys with more than kMergeChunk of them
// are left out. The sum is assigned where reached[u] lacks the bit, else added; the bit is then set.
struct MergeArgs {
  std::size_t dim;
  std::size_t begin, end;
  const std::uint32_t* ends;
  const float* const* rows;
  const Scale* scales;  // of contributions, or null
  float* gradients;     // [keys, dim]
  std::uint8_t* reached;
  std::uint8_t bit;
};

// Applies one optimizer to the records of keys [begin, end) whose reached has the bit. A vector in bf16 is computed as
// floats and then rounded stochastically, by words of (seed, key, step, column); see philox.h.
struct UpdateArgs {
  Rule rule;
  Element element;
  bool flag;  // nesterov (kMomentum), decoupled weight decay (Adam)
  std::uint8_t bit;
  std::size_t dim;
  std::size_t weight_offset, state_offset;  // in floats
  std::size_t begin, end;
  float* const* records;
  const float* gradients;  // [keys, dim]
  const std::uint8_t* reached;
  float scale;  // of the gradient; 1 is not multiplied
  float lr, eps, weight_decay;
  float momentum;
  float step_size;                  // of kAdam
  double lr64, beta1_64, beta2_64;  // of kAdamRow
  float one_minus_beta1, one_minus_beta2;
  float decay;  // 1 - lr * weight_decay, of decoupled decay
  float l1, l2, beta;
  std::uint64_t step;  // committed steps, from 1
  std::uint64_t seed;  // this and the keys of virtual ids are read for bf16 alone
  const std::uint64_t* keys;
};

// First values of num_rows vectors, records[i] of keys[i]; see philox.h for the words. With `normal`, a is the mean and
// b the standard deviation, else the range is [a, b). In bf16 they are those of floats, rounded to nearest even.
struct InitArgs {
  Element element;
  std::uint64_t seed;
  bool normal;
  double a, b;
  std::size_t dim;
  std::size_t num_rows;
  const std::uint64_t* keys;
  float* const* records;
};

// Keys to be found in their home buckets. slots[i] becomes the slot of keys[i], or 2^32 - 1; those that are not there
// and may have gone on to the next bucket, which is then on its way, are listed in late [num_keys].
struct ProbeArgs {
  const Bucket* const* homes;
  const std::uint64_t* keys;
  std::size_t num_keys;
  std::uint32_t* slots;
  std::uint32_t* late;
};

struct Kernels {
  const char* level;
  void (*pool)(const PoolArgs& args);
  void (*merge)(const MergeArgs& args);
  // out[c] = sum over the contributions, from +0, in order.
  void (*sum_rows)(const float* const* rows, const Scale* scales, std::size_t num_rows, std::size_t dim, float* out);
  // Sum of the squares of dim floats, in doubles.
  double (*sum_of_squares)(const float* values, std::size_t dim);
  void (*update)(const UpdateArgs& args);
  void (*initialize)(const InitArgs& args);
  std::size_t (*probe)(const ProbeArgs& args);  // how many are late
};

namespace baseline {
const Kernels& table();
}
namespace avx2 {
const Kernels& table();
}
namespace avx512 {
const Kernels& table();
}

}  // namespace sfctr
