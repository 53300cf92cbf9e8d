// Forward: rows of the working set pooled into a batch. Backward: gradients of positions merged into those of keys.

template <bool Stream = false, class Stored, class Dim>
SFCTR_INLINE void copy_row(const Stored* from, Dim dim, float* to) {
  for_pieces(dim, [=](auto piece, std::size_t c) __attribute__((always_inline)) {
    constexpr int W = piece.kWidth;
    for (int v = 0; v < piece.kCount; ++v) {
      const Vec<W> vector = load<W>(from + c + v * W);
      if constexpr (Stream) {
        stream<W>(to + c + v * W, vector);
      } else {
        store<W>(to + c + v * W, vector);
      }
    }
  });
}

SFCTR_INLINE void zero_row(float* to, std::size_t dim) {
  for (std::size_t c = 0; c < dim; ++c) to[c] = 0;
}

// Asks for the lines that a row begins and ends in, for writing or not: most rows of 16 columns straddle two, and of
// longer ones the processor fetches the middle itself.
template <int kWrite>
SFCTR_INLINE void prefetch_row(const float* row, std::size_t last) {
  __builtin_prefetch(row, kWrite);
  __builtin_prefetch(row + last, kWrite);
}

SFCTR_INLINE bool can_stream(const PoolArgs& a) {
  return a.stream && a.dim % 16 == 0 && reinterpret_cast<std::uintptr_t>(a.out) % 64 == 0;
}

constexpr std::size_t kAhead = 16;  // rows that are on their way

// Of a record, the last word that pooling reads.
template <class Stored>
SFCTR_INLINE std::size_t last_pooled(const PoolArgs& a, std::size_t dim) {
  const std::size_t words = words_of<Stored>(dim);
  return a.linear_out || dim == 0 ? words : words - 1;
}

template <bool Stream, class Stored, class Dim>
SFCTR_INLINE void pool_one(const PoolArgs& a, Dim dim) {
  const std::size_t words = words_of<Stored>(dim), last = last_pooled<Stored>(a, dim);
  for (std::size_t b = a.begin; b < a.end; ++b) {
    if (b + kAhead < a.end) prefetch_row<0>(a.records[a.ids[b + kAhead]], last);
    const float* const record = a.records[a.ids[b]];
    copy_row<Stream>(vector_in<Stored>(record), dim, a.out + (b - a.begin) * dim);
    if (a.linear_out) a.linear_out[b - a.begin] = record[words];
  }
  if constexpr (Stream) end_streaming();
}

// 0 where an average over nothing, or over weights that cancel, is asked for.
SFCTR_INLINE float divided(float sum, float denominator) { return denominator == 0 ? 0 : sum / denominator; }

SFCTR_INLINE float bag_denominator(const PoolArgs& a, std::size_t first, std::size_t last) {
  if (!a.weights) return static_cast<float>(last - first);
  float sum = 0;
  for (std::size_t n = first; n < last; ++n) sum += a.weights[n];
  return sum;
}

template <class Stored, class Dim>
SFCTR_INLINE void pool_bag_vectors(const PoolArgs& a, Dim dim, std::size_t first, std::size_t last, float denominator,
                                   float* out) {
  for_pieces(dim, [&](auto piece, std::size_t c) __attribute__((always_inline)) {
    constexpr int W = piece.kWidth, N = piece.kCount;
    Vec<W> sum[N] = {};
    for (std::size_t n = first; n < last; ++n) {
      const Stored* const row = vector_in<Stored>(a.records[a.ids[n]]) + c;
      for (int v = 0; v < N; ++v) sum[v] += a.weights ? load<W>(row + v * W) * a.weights[n] : load<W>(row + v * W);
    }
    if (a.pooling == Pooling::kMean) {
      for (int v = 0; v < N; ++v) sum[v] = denominator == 0 ? Vec<W>{} : sum[v] / denominator;
    }
    for (int v = 0; v < N; ++v) store<W>(out + c + v * W, sum[v]);
  });
}

template <class Stored, class Dim>
SFCTR_INLINE void pool_bag(const PoolArgs& a, Dim dim) {
  const std::size_t last_word = last_pooled<Stored>(a, dim), end = static_cast<std::size_t>(a.offsets[a.end]);
  for (std::size_t b = a.begin; b < a.end; ++b) {
    const auto first = static_cast<std::size_t>(a.offsets[b]), last = static_cast<std::size_t>(a.offsets[b + 1]);
    for (std::size_t n = first; n < last && n + kAhead < end; ++n) {
      prefetch_row<0>(a.records[a.ids[n + kAhead]], last_word);
    }
    const float denominator = a.pooling == Pooling::kMean ? bag_denominator(a, first, last) : 1;
    pool_bag_vectors<Stored>(a, dim, first, last, denominator, a.out + (b - a.begin) * dim);
    if (!a.linear_out) continue;
    float sum = 0;
    for (std::size_t n = first; n < last; ++n) {
      const float weight = a.records[a.ids[n]][words_of<Stored>(dim)];
      sum += a.weights ? weight * a.weights[n] : weight;
    }
    a.linear_out[b - a.begin] = a.pooling == Pooling::kMean ? divided(sum, denominator) : sum;
  }
}

template <class Stored, class Dim>
SFCTR_INLINE void pool_sequence(const PoolArgs& a, Dim dim) {
  for (std::size_t b = a.begin; b < a.end; ++b) {
    const auto first = static_cast<std::size_t>(a.offsets[b]), last = static_cast<std::size_t>(a.offsets[b + 1]);
    float* const out = a.out + (b - a.begin) * a.max_length * dim;
    float sum = 0;
    for (std::size_t n = first; n < last; ++n) {
      const float* const record = a.records[a.ids[n]];
      copy_row(vector_in<Stored>(record), dim, out + (n - first) * dim);
      if (a.linear_out) sum += record[words_of<Stored>(dim)];
    }
    zero_row(out + (last - first) * dim, (a.max_length - (last - first)) * dim);
    if (a.linear_out) a.linear_out[b - a.begin] = sum;
  }
}

template <class Stored>
void pool_rows(const PoolArgs& a) {
  with_dim(a.dim, [&](auto dim) {
    if (a.pooling == Pooling::kOne && can_stream(a)) return pool_one<true, Stored>(a, dim);
    if (a.pooling == Pooling::kOne) return pool_one<false, Stored>(a, dim);
    if (a.pooling == Pooling::kSequence) return pool_sequence<Stored>(a, dim);
    pool_bag<Stored>(a, dim);
  });
}

void pool(const PoolArgs& a) {
  if (a.element == Element::kBfloat16) return pool_rows<Bf16>(a);
  pool_rows<float>(a);
}

// Contributions [first, last) into out, which is assigned or added to.
template <bool Scaled, class Dim>
SFCTR_INLINE void sum_contributions(const float* const* rows, const Scale* scales, std::size_t first, std::size_t last,
                                    Dim dim, float* out, bool add) {
  for_pieces(dim, [=](auto piece, std::size_t c) __attribute__((always_inline)) {
    constexpr int W = piece.kWidth, N = piece.kCount;
    Vec<W> sum[N] = {};
    for (std::size_t n = first; n < last; ++n) {
      for (int v = 0; v < N; ++v) {
        const Vec<W> gradient = load<W>(rows[n] + c + v * W);
        sum[v] += Scaled ? gradient / scales[n].denominator * scales[n].weight : gradient;
      }
    }
    for (int v = 0; v < N; ++v) store<W>(out + c + v * W, add ? load<W>(out + c + v * W) + sum[v] : sum[v]);
  });
}

template <bool Scaled, class Dim>
SFCTR_INLINE void merge_keys(const MergeArgs& a, Dim dim) {
  std::size_t first = a.begin == 0 ? 0 : a.ends[a.begin - 1];
  for (std::size_t u = a.begin; u < a.end; ++u) {
    const std::size_t last = a.ends[u];
    if (last > first && last - first <= kMergeChunk) {
      sum_contributions<Scaled>(a.rows, a.scales, first, last, dim, a.gradients + u * dim, (a.reached[u] & a.bit) != 0);
      a.reached[u] |= a.bit;
    }
    first = last;
  }
}

void merge(const MergeArgs& a) {
  with_dim(a.dim, [&](auto dim) {
    if (a.scales) return merge_keys<true>(a, dim);
    merge_keys<false>(a, dim);
  });
}

void sum_rows(const float* const* rows, const Scale* scales, std::size_t num_rows, std::size_t dim, float* out) {
  if (scales) return sum_contributions<true>(rows, scales, 0, num_rows, dim, out, false);
  sum_contributions<false>(rows, scales, 0, num_rows, dim, out, false);
}

double sum_of_squares(const float* values, std::size_t dim) {
  double lanes[16] = {};
  std::size_t c = 0;
  for (; c + 16 <= dim; c += 16) {
    for (std::size_t i = 0; i < 16; ++i) {
      lanes[i] += static_cast<double>(values[c + i]) * static_cast<double>(values[c + i]);
    }
  }
  for (std::size_t i = 0; c + i < dim; ++i) {
    lanes[i] += static_cast<double>(values[c + i]) * static_cast<double>(values[c + i]);
  }
  return add_lanes(lanes);
}
