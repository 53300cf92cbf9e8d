// Texts in one buffer: span i is the bytes data[starts[i] .. ends[i]). What a reader needs to turn them into keys and
// numbers.
//
// REQUIRES of every function here: 0 <= starts[i] <= ends[i] <= size of data, and equal lengths of the per-span
// arguments. Functions that can meet a bad span return the first bad index, or -1; outputs at and after it are then
// unspecified. O is the offset type, int32_t or int64_t. All are safe to call from any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace sfctr {

template <class O>
struct Spans {
  const std::uint8_t* data;
  std::span<const O> starts;
  std::span<const O> ends;

  std::size_t size() const noexcept { return starts.size(); }
  std::string_view operator[](std::size_t i) const noexcept {
    return {reinterpret_cast<const char*>(data) + starts[i], static_cast<std::size_t>(ends[i] - starts[i])};
  }
};

// XXH3-64 of every span. Bad: a span that is not UTF-8 (surrogates and overlong forms are not).
template <class O>
std::int64_t hash_spans(const Spans<O>& texts, std::span<std::uint64_t> out) noexcept;

// Decimal integers in the one form that str() of an integer has: no plus sign, blanks, leading zeros or "-0". An empty
// span gives 0 and is not bad. Bad: any other text, or a value that does not fit the type.
template <class O>
std::int64_t parse_int64s(const Spans<O>& texts, std::span<std::int64_t> out) noexcept;
template <class O>
std::int64_t parse_uint64s(const Spans<O>& texts, std::span<std::uint64_t> out) noexcept;

// Writes the 64 bits of every span that is a canonical integer of int64 or uint64 over its entry of `keys`.
template <class O>
void overlay_integers(const Spans<O>& texts, std::span<std::uint64_t> keys) noexcept;

// Decimal numbers, rounded correctly, with blanks around them and a plus sign allowed; "nan" and "inf" in any case. A
// value beyond the range is infinite. An empty span gives NaN and is not bad. Bad: any other text.
template <class O>
std::int64_t parse_doubles(const Spans<O>& texts, std::span<double> out);

// out[i] = 1 where span i is empty or equals one of `nulls`.
template <class O>
void mark_null_spans(const Spans<O>& texts, std::span<const std::string_view> nulls,
                     std::span<std::uint8_t> out) noexcept;

// Tokens between separators: an empty span has none, any other one more than it has separators (some may be empty).
// out_offsets has one entry more than there are spans; the last is the number of tokens.
// REQUIRES: separator is not empty.
template <class O>
void count_tokens(const Spans<O>& texts, std::string_view separator, std::span<std::int64_t> out_offsets) noexcept;
// REQUIRES: out_starts and out_ends are as long as count_tokens said for the same texts and separator.
template <class O>
void find_tokens(const Spans<O>& texts, std::string_view separator, std::span<std::int64_t> out_starts,
                 std::span<std::int64_t> out_ends) noexcept;

// The last `separator` inside each span, as a position in data; -1 where there is none.
template <class O>
void find_last(const Spans<O>& texts, std::string_view separator, std::span<std::int64_t> out) noexcept;

// Each float as the double that its shortest decimal text names, so that 0.1f reads as 0.1.
void widen_floats(std::span<const float> values, std::span<double> out) noexcept;

}  // namespace sfctr
