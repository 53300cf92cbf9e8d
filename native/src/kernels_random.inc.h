// Philox words for rows, many counters at a time; philox.h says which counters.

// The counters of rows one after the other, `a_row` of each, taken L at a time.
struct RowCounters {
  const std::uint64_t* keys;
  std::size_t a_row;
  std::size_t row = 0, block = 0;  // of the next counter

  // The next one becomes counter l, whose word j is at words[j * L + l].
  template <int L>
  SFCTR_INLINE void take(std::uint32_t* words, int l) {
    words[l] = static_cast<std::uint32_t>(keys[row]);
    words[L + l] = static_cast<std::uint32_t>(keys[row] >> 32);
    words[2 * L + l] = static_cast<std::uint32_t>(block);
    if (++block == a_row) ++row, block = 0;
  }
};

template <int L>
SFCTR_INLINE void randomize(std::uint32_t* words, std::uint64_t seed) {
  philox4x32_10<L>(words, static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32));
}

// What the elements of bf16 rows are rounded by at one step, made for several neighbouring keys at once.
class RoundingBits {
 public:
  explicit RoundingBits(const UpdateArgs& args)
      : args_(args), a_row_((args.dim + 7) / 8), rows_at_once_(a_row_ < kCounters ? kCounters / a_row_ : 1) {}

  // Of key u, 16 bits for each element in order. REQUIRES: u does not fall from call to call.
  SFCTR_INLINE const std::uint16_t* of(std::size_t u) {
    if (u >= end_) make(u);
    return halves_ + (u - begin_) * a_row_ * 8;
  }

 private:
  // Philox's rounds are a chain of multiplications: of 16 counters each would wait for the last, 64 keep them busy.
  static constexpr int kCounters = 64;

  void make(std::size_t u) {
    begin_ = u;
    end_ = args_.end - u < rows_at_once_ ? args_.end : u + rows_at_once_;
    const std::size_t num_counters = (end_ - begin_) * a_row_;
    RowCounters counters{args_.keys + u, a_row_};
    for (std::size_t done = 0; done < num_counters; done += kCounters) {
      const std::size_t left = num_counters - done;
      make_some(counters, left < kCounters ? static_cast<int>(left) : kCounters, halves_ + done * 8);
    }
  }

  void make_some(RowCounters& counters, int num, std::uint16_t* halves) {
    std::uint32_t words[4 * kCounters] = {}, in_order[4 * kCounters];
    for (int l = 0; l < num; ++l) counters.take<kCounters>(words, l);
    for (int l = 0; l < kCounters; ++l) {
      words[2 * kCounters + l] += static_cast<std::uint32_t>(args_.step >> 32) * 1024;
      words[3 * kCounters + l] = static_cast<std::uint32_t>(args_.step);
    }
    randomize<kCounters>(words, args_.seed);
    for (int l = 0; l < kCounters; ++l) {
      for (int j = 0; j < 4; ++j) in_order[4 * l + j] = words[j * kCounters + l];
    }
    __builtin_memcpy(halves, in_order, sizeof in_order);
  }

  const UpdateArgs& args_;
  std::size_t a_row_, rows_at_once_;
  std::size_t begin_ = 0, end_ = 0;  // keys whose bits are made
  std::uint16_t halves_[kMaxDim];
};
