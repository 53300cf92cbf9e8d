#include "sfctr/spans.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "sfctr/xxh3.h"

namespace sfctr {
namespace {

constexpr std::size_t kExactDigits = 15;            // integers of so many digits are exact doubles
constexpr double kExactFloatIntegers = 16777216.0;  // 2^24: up to here a float integer is its own shortest decimal

bool is_ascii(std::string_view text) noexcept {
  const char* at = text.data();
  std::size_t left = text.size();
  std::uint64_t seen = 0;
  for (; left >= 8; at += 8, left -= 8) {
    std::uint64_t word;
    std::memcpy(&word, at, 8);
    seen |= word;
  }
  for (; left > 0; ++at, --left) seen |= static_cast<std::uint8_t>(*at);
  return (seen & 0x8080808080808080ULL) == 0;
}

// Length of the well-formed UTF-8 sequence that begins at `at`, or 0 (table 3-7 of the Unicode standard).
std::size_t sequence_length(const std::uint8_t* at, std::size_t left) noexcept {
  const std::uint8_t lead = at[0];
  if (lead < 0x80) return 1;
  const std::size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || left < length) return 0;
  std::uint8_t low = 0x80, high = 0xBF;
  if (lead == 0xE0) low = 0xA0;
  if (lead == 0xED) high = 0x9F;
  if (lead == 0xF0) low = 0x90;
  if (lead == 0xF4) high = 0x8F;
  if (at[1] < low || at[1] > high) return 0;
  for (std::size_t i = 2; i < length; ++i) {
    if ((at[i] & 0xC0) != 0x80) return 0;
  }
  return length;
}

bool is_utf8(std::string_view text) noexcept {
  if (is_ascii(text)) return true;
  const auto* at = reinterpret_cast<const std::uint8_t*>(text.data());
  for (std::size_t left = text.size(); left > 0;) {
    const std::size_t length = sequence_length(at, left);
    if (length == 0) return false;
    at += length;
    left -= length;
  }
  return true;
}

// Eight ASCII digits in one word (the first in its low byte) to their number; false where one is no digit.
bool parse_eight(const char* at, std::uint64_t& number) noexcept {
  std::uint64_t word;
  std::memcpy(&word, at, 8);
  const std::uint64_t high = 0xF0F0F0F0F0F0F0F0ULL;
  if (((word & high) | (((word + 0x0606060606060606ULL) & high) >> 4)) != 0x3333333333333333ULL) return false;
  word = (word & 0x0F0F0F0F0F0F0F0FULL) * 2561 >> 8;  // pairs, then fours, then all
  word = (word & 0x00FF00FF00FF00FFULL) * 6553601 >> 16;
  number = number * 100000000 + ((word & 0x0000FFFF0000FFFFULL) * 42949672960001ULL >> 32);
  return true;
}

// At most 16 digits and nothing else to their number.
bool parse_digits(std::string_view text, std::uint64_t& number) noexcept {
  if (text.size() > 16) return false;
  number = 0;
  const char* at = text.data();
  std::size_t left = text.size();
  for (; left >= 8; at += 8, left -= 8) {
    if (!parse_eight(at, number)) return false;
  }
  for (; left > 0; ++at, --left) {
    const unsigned digit = static_cast<unsigned char>(*at) - '0';
    if (digit > 9) return false;
    number = number * 10 + digit;
  }
  return true;
}

template <class T>
bool parse_integer(std::string_view text, T& out) noexcept {
  out = 0;
  if (text.empty()) return true;
  const bool negative = text[0] == '-';
  if (negative && !std::is_signed_v<T>) return false;
  const std::string_view digits = text.substr(negative ? 1 : 0);
  if (digits.empty() || (digits[0] == '0' && (digits.size() > 1 || negative))) return false;
  std::uint64_t number;
  if (parse_digits(digits, number)) {
    out = static_cast<T>(negative ? 0 - number : number);
    return true;
  }
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, out);
  return error == std::errc{} && stop == end;
}

// Of a decimal number that is out of range, whether it is so for its size: where its first digit that is not zero
// stands before the point, or behind it, moved by the exponent.
bool is_too_large(std::string_view text) noexcept {
  const std::size_t mark = text.find_first_of("eE");
  const std::string_view digits = text.substr(0, mark);
  const auto point = static_cast<std::int64_t>(std::min(digits.find('.'), digits.size()));
  const auto first = static_cast<std::int64_t>(digits.find_first_of("123456789"));
  std::int64_t exponent = 0;
  if (mark != std::string_view::npos) {
    std::string_view rest = text.substr(mark + 1);
    const bool negative = rest[0] == '-';
    if (negative || rest[0] == '+') rest.remove_prefix(1);
    for (const char digit : rest) exponent = std::min<std::int64_t>(exponent * 10 + (digit - '0'), INT64_C(1) << 53);
    if (negative) exponent = -exponent;
  }
  return point - first + exponent > 0;
}

bool parse_double(std::string_view text, double& out) {
  out = std::numeric_limits<double>::quiet_NaN();
  if (text.empty()) return true;
  std::uint64_t number;
  if (text.size() <= kExactDigits && parse_digits(text, number)) {
    out = static_cast<double>(number);
    return true;
  }
  const std::size_t first = text.find_first_not_of(" \t"), last = text.find_last_not_of(" \t");
  if (first == std::string_view::npos) return false;
  text = text.substr(first, last - first + 1);
  if (text[0] == '+') {
    text.remove_prefix(1);
    if (text.empty() || text[0] == '-') return false;
  }
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, out);
  if (stop != end || end[-1] == ')') return false;  // from_chars knows "nan(text)" as well
  // Out of range: from_chars says so without telling whether it was too large or too small, and strtod asks the locale.
  if (error == std::errc::result_out_of_range) {
    const double size = is_too_large(text) ? std::numeric_limits<double>::infinity() : 0.0;
    out = text[0] == '-' ? -size : size;
  }
  return error == std::errc{} || error == std::errc::result_out_of_range;
}

// Finds the fewest decimals, up to six, with which a fixed-point text names `value`. Both the integer and the power of
// ten are exact doubles, so the quotient is the double nearest to that text.
bool widen_few_decimals(float value, double& out) noexcept {
  constexpr double kPowers[] = {10.0, 100.0, 1e3, 1e4, 1e5, 1e6};
  const double size = std::fabs(static_cast<double>(value));
  if (!(size >= 1e-2 && size < 1e6)) return false;
  for (const double power : kPowers) {
    const double candidate = std::nearbyint(value * power) / power;
    if (static_cast<float>(candidate) == value) {
      out = candidate;
      return true;
    }
  }
  return false;
}

template <class Spans, class Out, class Parse>
std::int64_t parse_all(const Spans& texts, Out out, Parse parse) {
  for (std::size_t i = 0; i < texts.size(); ++i) {
    if (!parse(texts[i], out[i])) return static_cast<std::int64_t>(i);
  }
  return -1;
}

// Calls visit(token) for every token of `text`; see count_tokens.
template <class Visit>
void for_each_token(std::string_view text, std::string_view separator, Visit visit) noexcept {
  if (text.empty()) return;
  for (std::size_t at = 0;;) {
    const std::size_t next = separator.size() == 1 ? text.find(separator[0], at) : text.find(separator, at);
    if (next == std::string_view::npos) return visit(text.substr(at));
    visit(text.substr(at, next - at));
    at = next + separator.size();
  }
}

}  // namespace

template <class O>
std::int64_t hash_spans(const Spans<O>& texts, std::span<std::uint64_t> out) noexcept {
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const std::string_view text = texts[i];
    if (!is_utf8(text)) return static_cast<std::int64_t>(i);
    out[i] = xxh3_64(reinterpret_cast<const std::uint8_t*>(text.data()), text.size());
  }
  return -1;
}

template <class O>
std::int64_t parse_int64s(const Spans<O>& texts, std::span<std::int64_t> out) noexcept {
  return parse_all(texts, out, parse_integer<std::int64_t>);
}

template <class O>
std::int64_t parse_uint64s(const Spans<O>& texts, std::span<std::uint64_t> out) noexcept {
  return parse_all(texts, out, parse_integer<std::uint64_t>);
}

template <class O>
void overlay_integers(const Spans<O>& texts, std::span<std::uint64_t> keys) noexcept {
  for (std::size_t i = 0; i < texts.size(); ++i) {
    std::int64_t low = 0;
    std::uint64_t high = 0;
    if (texts[i].empty()) continue;
    if (parse_integer(texts[i], low)) {
      keys[i] = static_cast<std::uint64_t>(low);
    } else if (parse_integer(texts[i], high)) {
      keys[i] = high;
    }
  }
}

template <class O>
std::int64_t parse_doubles(const Spans<O>& texts, std::span<double> out) {
  return parse_all(texts, out, parse_double);
}

template <class O>
void mark_null_spans(const Spans<O>& texts, std::span<const std::string_view> nulls,
                     std::span<std::uint8_t> out) noexcept {
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const std::string_view text = texts[i];
    out[i] = text.empty() || std::find(nulls.begin(), nulls.end(), text) != nulls.end();
  }
}

template <class O>
void count_tokens(const Spans<O>& texts, std::string_view separator, std::span<std::int64_t> out_offsets) noexcept {
  std::int64_t total = 0;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    out_offsets[i] = total;
    for_each_token(texts[i], separator, [&](std::string_view) { ++total; });
  }
  out_offsets[texts.size()] = total;
}

template <class O>
void find_tokens(const Spans<O>& texts, std::string_view separator, std::span<std::int64_t> out_starts,
                 std::span<std::int64_t> out_ends) noexcept {
  const char* base = reinterpret_cast<const char*>(texts.data);
  std::size_t at = 0;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    for_each_token(texts[i], separator, [&](std::string_view token) {
      out_starts[at] = token.data() - base;
      out_ends[at] = token.data() + token.size() - base;
      ++at;
    });
  }
}

template <class O>
void find_last(const Spans<O>& texts, std::string_view separator, std::span<std::int64_t> out) noexcept {
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const std::size_t at = texts[i].rfind(separator);
    out[i] =
        at == std::string_view::npos ? -1 : static_cast<std::int64_t>(texts.starts[i]) + static_cast<std::int64_t>(at);
  }
}

void widen_floats(std::span<const float> values, std::span<double> out) noexcept {
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float value = values[i];
    out[i] = value;
    if (!std::isfinite(value) || (std::trunc(value) == value && std::fabs(value) <= kExactFloatIntegers)) continue;
    if (widen_few_decimals(value, out[i])) continue;
    char text[32];
    const char* end = std::to_chars(text, text + sizeof text, value, std::chars_format::scientific).ptr;
    std::from_chars(text, end, out[i]);
  }
}

#define SFCTR_INSTANTIATE(O)                                                                                           \
  template std::int64_t hash_spans(const Spans<O>&, std::span<std::uint64_t>) noexcept;                                \
  template std::int64_t parse_int64s(const Spans<O>&, std::span<std::int64_t>) noexcept;                               \
  template std::int64_t parse_uint64s(const Spans<O>&, std::span<std::uint64_t>) noexcept;                             \
  template void overlay_integers(const Spans<O>&, std::span<std::uint64_t>) noexcept;                                  \
  template std::int64_t parse_doubles(const Spans<O>&, std::span<double>);                                             \
  template void mark_null_spans(const Spans<O>&, std::span<const std::string_view>, std::span<std::uint8_t>) noexcept; \
  template void count_tokens(const Spans<O>&, std::string_view, std::span<std::int64_t>) noexcept;                     \
  template void find_tokens(const Spans<O>&, std::string_view, std::span<std::int64_t>,                                \
                            std::span<std::int64_t>) noexcept;                                                         \
  template void find_last(const Spans<O>&, std::string_view, std::span<std::int64_t>) noexcept;

SFCTR_INSTANTIATE(std::int32_t)
SFCTR_INSTANTIATE(std::int64_t)
#undef SFCTR_INSTANTIATE

}  // namespace sfctr
