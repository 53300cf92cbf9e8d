// First values of rows. Uniform: the upper 24 bits of a word, in float32. Normal: the inverse of the normal
// distribution function at (word + 1/2) / 2^32, in double, by Wichura's algorithm AS 241 (PPND16, Applied Statistics
// 37, 1988), with a logarithm of our own: single IEEE operations and square roots alone, so every machine agrees on
// every bit.

template <int N>
SFCTR_INLINE double polynomial(const double (&coefficients)[N], double x) {  // Horner, the highest power first
  double value = coefficients[0];
  for (int i = 1; i < N; ++i) value = value * x + coefficients[i];
  return value;
}

// |q| <= 0.425, where q is the probability less one half.
SFCTR_INLINE double normal_centre(double q) {
  constexpr double kOver[] = {2.5090809287301226727e+3, 3.3430575583588128105e+4, 6.7265770927008700853e+4,
                              4.5921953931549871457e+4, 1.3731693765509461125e+4, 1.9715909503065514427e+3,
                              1.3314166789178437745e+2, 3.3871328727963666080e+0};
  constexpr double kUnder[] = {
      5.2264952788528545610e+3, 2.8729085735721942674e+4, 3.9307895800092710610e+4, 2.1213794301586595867e+4,
      5.3941960214247511077e+3, 6.8718700749205790830e+2, 4.2313330701600911252e+1, 1.0};
  const double r = 0.180625 - q * q;
  return q * polynomial(kOver, r) / polynomial(kUnder, r);
}

// ln(x) for a normal positive x: x = m * 2^e with m in [sqrt(1/2), sqrt(2)), and ln(m) = 2 atanh((m - 1) / (m + 1)),
// whose series has shrunk below a double's precision after eleven terms.
SFCTR_INLINE double logarithm(double x) {
  constexpr double kSeries[] = {1.0 / 21, 1.0 / 19, 1.0 / 17, 1.0 / 15, 1.0 / 13, 1.0 / 11,
                                1.0 / 9,  1.0 / 7,  1.0 / 5,  1.0 / 3,  1.0};
  constexpr double kLn2 = 0.69314718055994530942;
  std::uint64_t bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  // The mantissa's bits above those of sqrt(2) move the number to the next power, as m / 2.
  const std::uint64_t above = (bits & 0xFFFFFFFFFFFFFu) > 0x6A09E667F3BCCu ? 1 : 0;
  const auto exponent = static_cast<std::int32_t>((bits >> 52) + above) - 1023;
  bits = (bits & 0xFFFFFFFFFFFFFu) | (1023 - above) << 52;
  double m;
  __builtin_memcpy(&m, &bits, sizeof m);
  const double s = (m - 1) / (m + 1);
  return static_cast<double>(exponent) * kLn2 + 2 * s * polynomial(kSeries, s * s);
}

// 0.425 < |q| < 1/2 - 2^-34: AS 241's second region (its third begins beyond what 32 bits reach).
SFCTR_INLINE double normal_tail(double q) {
  constexpr double kOver[] = {7.74545014278341407640e-4, 2.27238449892691845833e-2, 2.41780725177450611770e-1,
                              1.27045825245236838258e+0, 3.64784832476320460504e+0, 5.76949722146069140550e+0,
                              4.63033784615654529590e+0, 1.42343711074968357734e+0};
  constexpr double kUnder[] = {
      1.05075007164441684324e-9, 5.47593808499534494600e-4, 1.51986665636164571966e-2, 1.48103976427480074590e-1,
      6.89767334985100004550e-1, 1.67638483018380384940e+0, 2.05319162663775882187e+0, 1.0};
  const double p = q < 0 ? 0.5 + q : 0.5 - q;
  const double r = __builtin_sqrt(-logarithm(p)) - 1.6;
  const double z = polynomial(kOver, r) / polynomial(kUnder, r);
  return q < 0 ? -z : z;
}

constexpr int kCounters = 16;          // Philox counters at a time
constexpr int kWords = 4 * kCounters;  // and the words they give

// Most words fall in the centre: all are computed there, and the few others (15 %) once more, close together.
void to_normal(const std::uint32_t* words, double mean, double std, float* out) {
  double q[kWords], z[kWords], tail[kWords];
  int where[kWords];
  for (int i = 0; i < kWords; ++i) {
    q[i] = (static_cast<double>(words[i]) + 0.5) * 0x1p-32 - 0.5;
    z[i] = normal_centre(q[i]);
  }
  int num_tail = 0;
  for (int i = 0; i < kWords; ++i) {
    where[num_tail] = i;
    tail[num_tail] = q[i];
    num_tail += __builtin_fabs(q[i]) > 0.425;
  }
  for (int i = 0; i < num_tail; ++i) tail[i] = normal_tail(tail[i]);
  for (int i = 0; i < num_tail; ++i) z[where[i]] = tail[i];
  for (int i = 0; i < kWords; ++i) out[i] = static_cast<float>(mean + std * z[i]);
}

void to_uniform(const std::uint32_t* words, float low, float high, float* out) {
  const float range = high - low;
  for (int i = 0; i < kWords; ++i) out[i] = low + range * (static_cast<float>(words[i] >> 8) * 0x1p-24f);
}

SFCTR_INLINE void store_initial(float* to, float value) { *to = value; }
SFCTR_INLINE void store_initial(Bf16* to, float value) { store_nearest_even<1>(to, Vec<1>{value}); }

// Each row needs ceil(dim / 4) counters; those of consecutive rows are taken together.
template <class Stored>
void initialize_rows(const InitArgs& a) {
  RowCounters counters{a.keys, (a.dim + 3) / 4};
  const std::size_t num_counters = counters.a_row * a.num_rows;
  for (std::size_t done = 0; done < num_counters; done += kCounters) {
    const int num = num_counters - done < kCounters ? static_cast<int>(num_counters - done) : kCounters;
    std::uint32_t words[kWords] = {};
    Stored* targets[kCounters];
    std::size_t widths[kCounters];
    for (int i = 0; i < num; ++i) {
      const std::size_t column = counters.block * 4;
      targets[i] = reinterpret_cast<Stored*>(a.records[counters.row]) + column;
      widths[i] = a.dim - column < 4 ? a.dim - column : 4;
      counters.take<kCounters>(words, i);
    }
    randomize<kCounters>(words, a.seed);
    float values[kWords];
    if (a.normal) {
      to_normal(words, a.a, a.b, values);
    } else {
      to_uniform(words, static_cast<float>(a.a), static_cast<float>(a.b), values);
    }
    for (int i = 0; i < num; ++i) {
      for (std::size_t j = 0; j < widths[i]; ++j) {
        store_initial(targets[i] + j, values[j * kCounters + static_cast<std::size_t>(i)]);
      }
    }
  }
}

void initialize(const InitArgs& a) {
  if (a.element == Element::kFloat32) return initialize_rows<float>(a);
  if (a.dim % 2 == 1) {  // the half that is left over
    for (std::size_t i = 0; i < a.num_rows; ++i) a.records[i][words_of<Bf16>(a.dim) - 1] = 0;
  }
  initialize_rows<Bf16>(a);
}
