// Vectors of floats, how they are read from and rounded to bf16, and loops over the columns of a row in pieces of 64,
// 16, 8, 4 and 1. The compiler lowers a vector to whatever registers the level has.

#define SFCTR_INLINE inline __attribute__((always_inline))

template <int W>
struct VectorOf {
  typedef float Float __attribute__((vector_size(W * sizeof(float))));
  typedef double Double __attribute__((vector_size(W * sizeof(double))));
  typedef std::uint32_t Word __attribute__((vector_size(W * sizeof(std::uint32_t))));
  typedef std::int32_t Signed __attribute__((vector_size(W * sizeof(std::int32_t))));
  typedef std::uint16_t Half __attribute__((vector_size(W * sizeof(std::uint16_t))));
};
template <int W>
using Vec = typename VectorOf<W>::Float;
template <int W>
using Words = typename VectorOf<W>::Word;

template <int W>
SFCTR_INLINE Vec<W> load(const float* from) {
  Vec<W> vector;
  __builtin_memcpy(&vector, from, sizeof vector);
  return vector;
}

template <int W>
SFCTR_INLINE void store(float* to, const Vec<W>& vector) {
  __builtin_memcpy(to, &vector, sizeof vector);
}

// Past the caches, to an address that is a multiple of the vector's size: what is written so is read by nobody soon.
// Whoever has done so calls end_streaming() before another thread may read it.
template <int W>
SFCTR_INLINE void stream(float* to, const Vec<W>& vector) {
#if defined(__AVX512F__)
  if constexpr (W == 16) return _mm512_stream_ps(to, vector);
#endif
#if defined(__AVX2__)
  if constexpr (W == 16) {
    Vec<8> halves[2];
    __builtin_memcpy(halves, &vector, sizeof halves);
    for (int i = 0; i < 2; ++i) _mm256_stream_ps(to + 8 * i, halves[i]);
    return;
  }
#endif
#if defined(__SSE2__)
  if constexpr (W == 16) {
    Vec<4> quarters[4];
    __builtin_memcpy(quarters, &vector, sizeof quarters);
    for (int i = 0; i < 4; ++i) _mm_stream_ps(to + 4 * i, quarters[i]);
    return;
  }
#endif
  store<W>(to, vector);
}
SFCTR_INLINE void end_streaming() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

template <class To, class From>
SFCTR_INLINE To bits_as(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(&to, &from, sizeof to);
  return to;
}

// The upper half of a float.
struct Bf16 {
  std::uint16_t bits;
};

template <int W>
SFCTR_INLINE Words<W> load_halves(const void* from) {
  typename VectorOf<W>::Half halves;
  __builtin_memcpy(&halves, from, sizeof halves);
  return __builtin_convertvector(halves, Words<W>);
}
template <int W>
SFCTR_INLINE Vec<W> load(const Bf16* from) {
  return bits_as<Vec<W>>(load_halves<W>(from) << 16);
}

// Rounds up where the lower halves and `add`, below 2^16, carry: with a random `add` stochastically. A value that bf16
// has stays, and so does an infinity; NaN stays NaN.
template <int W>
SFCTR_INLINE void store_rounded(Bf16* to, const Vec<W>& vector, const Words<W>& add) {
  const auto bits = bits_as<Words<W>>(vector);
  const auto magnitude = bits_as<typename VectorOf<W>::Signed>(bits & 0x7FFFFFFFu);
  const Words<W> rounded = (bits + add) >> 16, quiet = (bits >> 16) | 0x40u;
  const auto halves = __builtin_convertvector(magnitude > 0x7F800000 ? quiet : rounded, typename VectorOf<W>::Half);
  __builtin_memcpy(to, &halves, sizeof halves);
}
template <int W>
SFCTR_INLINE void store_nearest_even(Bf16* to, const Vec<W>& vector) {
  store_rounded<W>(to, vector, 0x7FFFu + (bits_as<Words<W>>(vector) >> 16 & 1u));
}

// The vector of a record, and the words that it takes there.
template <class Stored>
SFCTR_INLINE const Stored* vector_in(const float* record) {
  return reinterpret_cast<const Stored*>(record);
}
template <class Stored>
SFCTR_INLINE constexpr std::size_t words_of(std::size_t dim) {
  return (dim * sizeof(Stored) + sizeof(float) - 1) / sizeof(float);
}

// A piece of a row: N vectors of W columns.
template <int W, int N>
struct Piece {
  static constexpr int kWidth = W, kCount = N;
};

// Calls body(piece, first column) for pieces that cover [0, dim).
template <class Body>
SFCTR_INLINE void for_pieces(std::size_t dim, Body body) {
  std::size_t c = 0;
  for (; c + 64 <= dim; c += 64) body(Piece<16, 4>{}, c);
  for (; c + 16 <= dim; c += 16) body(Piece<16, 1>{}, c);
  if (dim & 8) {
    body(Piece<8, 1>{}, c);
    c += 8;
  }
  if (dim & 4) {
    body(Piece<4, 1>{}, c);
    c += 4;
  }
  for (; c < dim; ++c) body(Piece<1, 1>{}, c);
}

// Calls body(dim) with the common sizes as constants, so that their loops are unrolled.
template <int D>
struct Constant {
  constexpr operator std::size_t() const { return D; }
};
template <class Body>
SFCTR_INLINE void with_dim(std::size_t dim, Body body) {
  switch (dim) {
    case 1:
      return body(Constant<1>{});
    case 8:
      return body(Constant<8>{});
    case 16:
      return body(Constant<16>{});
    case 32:
      return body(Constant<32>{});
    case 64:
      return body(Constant<64>{});
    default:
      return body(dim);
  }
}

// The 16 lanes pairwise: i with i + 8, then 4, 2, 1.
SFCTR_INLINE float add_lanes(const Vec<16>& lanes) {
  float values[16];
  store<16>(values, lanes);
  const Vec<8> eight = load<8>(values) + load<8>(values + 8);
  store<8>(values, eight);
  const Vec<4> four = load<4>(values) + load<4>(values + 4);
  return (four[0] + four[2]) + (four[1] + four[3]);
}
SFCTR_INLINE double add_lanes(const double (&lanes)[16]) {
  double sum[8];
  for (int i = 0; i < 8; ++i) sum[i] = lanes[i] + lanes[i + 8];
  for (int i = 0; i < 4; ++i) sum[i] += sum[i + 4];
  return (sum[0] + sum[2]) + (sum[1] + sum[3]);
}
