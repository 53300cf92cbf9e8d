// Vectors of floats, and loops over the columns of a row in pieces of 64, 16, 8, 4 and 1. The compiler lowers a vector
// to whatever registers the level has.

#define SFCTR_INLINE inline __attribute__((always_inline))

template <int W>
struct VectorOf {
  typedef float Float __attribute__((vector_size(W * sizeof(float))));
  typedef double Double __attribute__((vector_size(W * sizeof(double))));
};
template <int W>
using Vec = typename VectorOf<W>::Float;

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
