// The optimizers, one row at a time; docs/optimizers.md has each formula with its source. Loops over columns are plain,
// for the compiler to vectorise: each column's arithmetic is independent of the others, so lanes cannot matter.

// The gradient as the rule sees it: scaled by clipping, with L2 where decay is not decoupled.
struct Gradient {
  const float* __restrict gradient;
  float scale;
  float weight_decay;

  SFCTR_INLINE float at(std::size_t c, float weight) const {
    float value = gradient[c];
    if (scale != 1) value *= scale;
    if (weight_decay != 0) value += weight_decay * weight;
    return value;
  }
  template <int W>
  SFCTR_INLINE Vec<W> vector(std::size_t c, const float* weights) const {
    Vec<W> value = load<W>(gradient + c);
    if (scale != 1) value *= scale;
    if (weight_decay != 0) value += weight_decay * load<W>(weights);
    return value;
  }
};

template <class Dim>
SFCTR_INLINE void update_sgd(const UpdateArgs& a, Gradient g, Dim dim, float* __restrict w) {
  for (std::size_t c = 0; c < dim; ++c) w[c] -= a.lr * g.at(c, w[c]);
}

template <class Dim>
SFCTR_INLINE void update_momentum(const UpdateArgs& a, Gradient g, Dim dim, float* __restrict w, float* __restrict m) {
  for (std::size_t c = 0; c < dim; ++c) {
    const float gradient = g.at(c, w[c]);
    m[c] = a.momentum * m[c] + gradient;
    w[c] -= a.lr * (a.flag ? gradient + a.momentum * m[c] : m[c]);
  }
}

template <class Dim>
SFCTR_INLINE void update_adagrad(const UpdateArgs& a, Gradient g, Dim dim, float* __restrict w, float* __restrict s) {
  for (std::size_t c = 0; c < dim; ++c) {
    const float gradient = g.at(c, w[c]);
    s[c] += gradient * gradient;
    w[c] -= a.lr * gradient / (__builtin_sqrtf(s[c]) + a.eps);
  }
}

template <class Dim>
SFCTR_INLINE void update_rowwise_adagrad(const UpdateArgs& a, Gradient g, Dim dim, float* __restrict w, float* s) {
  Vec<16> lanes = {};
  std::size_t c = 0;
  for (; c + 16 <= dim; c += 16) {
    const Vec<16> gradient = g.vector<16>(c, w + c);
    lanes += gradient * gradient;
  }
  for (std::size_t i = 0; c + i < dim; ++i) {
    const float gradient = g.at(c + i, w[c + i]);
    lanes[i] += gradient * gradient;
  }
  *s += add_lanes(lanes) / static_cast<float>(static_cast<std::size_t>(dim));
  const float factor = a.lr / (__builtin_sqrtf(*s) + a.eps);
  for (std::size_t i = 0; i < dim; ++i) w[i] -= factor * g.at(i, w[i]);
}

template <class Dim>
SFCTR_INLINE void update_adam(const UpdateArgs& a, Gradient g, float step_size, Dim dim, float* __restrict w,
                              float* __restrict m, float* __restrict v) {
  for (std::size_t c = 0; c < dim; ++c) {
    const float gradient = g.at(c, w[c]);
    if (a.flag) w[c] *= a.decay;
    m[c] += (gradient - m[c]) * a.one_minus_beta1;
    v[c] += (gradient * gradient - v[c]) * a.one_minus_beta2;
    w[c] -= step_size * (m[c] / (__builtin_sqrtf(v[c]) + a.eps));
  }
}

// Counts this update in *count, exactly up to 2^24, where it stays: the correction is 1 long before.
SFCTR_INLINE float counted_step_size(const UpdateArgs& a, float* count) {
  *count += 1;
  const auto t = static_cast<std::uint32_t>(*count);
  return static_cast<float>(a.lr64 * __builtin_sqrt(1 - power(a.beta2_64, t)) / (1 - power(a.beta1_64, t)));
}

template <class Dim>
SFCTR_INLINE void update_ftrl(const UpdateArgs& a, Gradient g, Dim dim, float* __restrict w, float* __restrict n,
                              float* __restrict z) {
  for (std::size_t c = 0; c < dim; ++c) {
    const float gradient = g.at(c, w[c]);
    const float before = __builtin_sqrtf(n[c]);
    n[c] += gradient * gradient;
    const float after = __builtin_sqrtf(n[c]);
    const float sigma = (after - before) / a.lr;
    z[c] += gradient - sigma * w[c];
    const float shrunk = z[c] < 0 ? z[c] + a.l1 : z[c] - a.l1;
    const float magnitude = z[c] < 0 ? -z[c] : z[c];
    w[c] = magnitude <= a.l1 ? 0 : -shrunk / ((a.beta + after) / a.lr + a.l2);
  }
}

template <Rule R, class Dim>
SFCTR_INLINE void update_row(const UpdateArgs& a, Gradient g, Dim dim, float* w, float* state) {
  if constexpr (R == Rule::kSgd) update_sgd(a, g, dim, w);
  if constexpr (R == Rule::kMomentum) update_momentum(a, g, dim, w, state);
  if constexpr (R == Rule::kAdagrad) update_adagrad(a, g, dim, w, state);
  if constexpr (R == Rule::kRowWiseAdagrad) update_rowwise_adagrad(a, g, dim, w, state);
  if constexpr (R == Rule::kAdam) update_adam(a, g, a.step_size, dim, w, state, state + dim);
  if constexpr (R == Rule::kAdamRow) {
    update_adam(a, g, counted_step_size(a, state + 2 * dim), dim, w, state, state + dim);
  }
  if constexpr (R == Rule::kFtrl) update_ftrl(a, g, dim, w, state, state + dim);
}

// Calls body(u, record) for every key that was reached.
template <class Body>
SFCTR_INLINE void for_reached(const UpdateArgs& a, Body body) {
  constexpr std::size_t kAhead = 8;  // records that are on their way
  const std::size_t to_state = a.state_offset - a.weight_offset;
  for (std::size_t u = a.begin; u < a.end; ++u) {
    if (u + kAhead < a.end) prefetch_row<1>(a.records[u + kAhead] + a.weight_offset, to_state);
    if (a.reached[u] & a.bit) body(u, a.records[u]);
  }
}

template <Rule R, class Dim>
SFCTR_INLINE void update_floats(const UpdateArgs& a, float weight_decay, Dim dim) {
  for_reached(a, [&](std::size_t u, float* record) __attribute__((always_inline)) {
    const Gradient gradient{a.gradients + u * dim, a.scale, weight_decay};
    update_row<R>(a, gradient, dim, record + a.weight_offset, record + a.state_offset);
  });
}

template <Rule R, class Dim>
SFCTR_INLINE void update_bf16(const UpdateArgs& a, float weight_decay, Dim dim) {
  RoundingBits rounding(a);
  float weights[kMaxDim];
  for_reached(a, [&](std::size_t u, float* record) __attribute__((always_inline)) {
    const auto stored = reinterpret_cast<Bf16*>(record + a.weight_offset);
    const Gradient gradient{a.gradients + u * dim, a.scale, weight_decay};
    const std::uint16_t* const bits = rounding.of(u);
    copy_row(stored, dim, weights);
    update_row<R>(a, gradient, dim, weights, record + a.state_offset);
    for_pieces(dim, [&](auto piece, std::size_t c) __attribute__((always_inline)) {
      constexpr int W = piece.kWidth;
      for (int v = 0; v < piece.kCount; ++v) {
        store_rounded<W>(stored + c + v * W, load<W>(weights + c + v * W), load_halves<W>(bits + c + v * W));
      }
    });
  });
}

template <Rule R>
void update_rows(const UpdateArgs& a) {
  const float weight_decay = a.flag && (R == Rule::kAdam || R == Rule::kAdamRow) ? 0 : a.weight_decay;
  with_dim(a.dim, [&](auto dim) {
    if (a.element == Element::kBfloat16) return update_bf16<R>(a, weight_decay, dim);
    update_floats<R>(a, weight_decay, dim);
  });
}

void update(const UpdateArgs& a) {
  switch (a.rule) {
    case Rule::kNone:
      return;
    case Rule::kSgd:
      return update_rows<Rule::kSgd>(a);
    case Rule::kMomentum:
      return update_rows<Rule::kMomentum>(a);
    case Rule::kAdagrad:
      return update_rows<Rule::kAdagrad>(a);
    case Rule::kRowWiseAdagrad:
      return update_rows<Rule::kRowWiseAdagrad>(a);
    case Rule::kAdam:
      return update_rows<Rule::kAdam>(a);
    case Rule::kAdamRow:
      return update_rows<Rule::kAdamRow>(a);
    case Rule::kFtrl:
      // At rate 0 the rule's 1 / lr has no value; like every other rule, nothing then moves.
      if (a.lr != 0) update_rows<Rule::kFtrl>(a);
  }
}
