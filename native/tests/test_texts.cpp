// Texts as spans: hashed, parsed and split, with answers known beforehand, and at the edges of their buffers.
#include <clocale>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "check.h"
#include "sfctr/cross.h"
#include "sfctr/spans.h"
#include "sfctr/xxh3.h"

namespace {

using sfctr::Spans;

// Texts laid end to end in memory that ends with the last of them, so that a sanitizer sees a byte read too far.
template <class O>
struct Laid {
  std::vector<std::uint8_t> data;
  std::vector<O> starts, ends;

  explicit Laid(const std::vector<std::string>& texts) {
    for (const std::string& text : texts) {
      starts.push_back(static_cast<O>(data.size()));
      data.insert(data.end(), text.begin(), text.end());
      ends.push_back(static_cast<O>(data.size()));
    }
    data.shrink_to_fit();
  }
  Spans<O> spans() const { return {data.data(), starts, ends}; }
};

std::uint64_t hash(const std::string& text) {
  return sfctr::xxh3_64(reinterpret_cast<const std::uint8_t*>(text.data()), text.size());
}

void hashes_are_those_of_the_specification() {
  CHECK(sfctr::xxh3_64(nullptr, 0) == 0x2D06800538D394C2ULL);
  CHECK(hash("a") == 0xE6C632B61E964E1FULL);
  CHECK(hash("abc") == 0x78AF5F94892F3950ULL);
  for (std::size_t size = 0; size < 3000; ++size) hash(std::string(size, 'x'));  // reads no byte beyond its own
}

template <class O>
void only_utf8_is_hashed() {
  const Laid<O> texts(
      {"", "plain", "h\xC3\xA9", "\xF0\x9F\x98\x80", "\xED\xA0\x80"});  // the last: half a surrogate pair
  std::vector<std::uint64_t> out(5);
  CHECK(sfctr::hash_spans(texts.spans(), std::span(out)) == 4);
  for (const char* bad : {"\x80", "\xC0\x80", "\xE2\x82", "\xF5\x80\x80\x80", "12345678\xFF", "\xF4\x90\x80\x80"}) {
    CHECK(sfctr::hash_spans(Laid<O>({bad}).spans(), std::span(out).first(1)) == 0);
  }
}

template <class O>
void integers_and_numbers_are_read_to_their_bounds() {
  std::vector<std::int64_t> integers(4);
  const Laid<O> good({"", "-9223372036854775808", "9223372036854775807", "1234567812345678"});
  CHECK(sfctr::parse_int64s(good.spans(), std::span(integers)) == -1);
  CHECK(integers[0] == 0 && integers[1] == INT64_MIN && integers[2] == INT64_MAX && integers[3] == 1234567812345678);
  CHECK(sfctr::parse_int64s(Laid<O>({"1", "9223372036854775808"}).spans(), std::span(integers).first(2)) == 1);
  std::vector<double> numbers(4);
  const Laid<O> texts({"", "123456789012345", " +2.5e-3\t", "1e400"});
  CHECK(sfctr::parse_doubles(texts.spans(), std::span(numbers)) == -1);
  CHECK(std::isnan(numbers[0]) && numbers[1] == 123456789012345.0 && numbers[2] == 0.0025 && std::isinf(numbers[3]));
  std::vector<std::uint64_t> keys = {7, 7, 7, 7};
  const Laid<O> mixed({"-1", "18446744073709551615", "x", ""});
  sfctr::overlay_integers(mixed.spans(), std::span(keys));
  CHECK(keys[0] == UINT64_MAX && keys[1] == UINT64_MAX && keys[2] == 7 && keys[3] == 7);
}

// In any locale: a comma for a point is none here.
template <class O>
void numbers_out_of_range_are_infinite_or_zero() {
  std::setlocale(LC_ALL, "de_DE.UTF-8");
  const std::string zeros(400, '0');
  const std::vector<std::string> large = {"1.5e400", "0." + zeros + "1e800",      "1" + zeros, "1" + zeros + ".5",
                                          "2e308",   "1e99999999999999999999999", "0.9e310"};
  const std::vector<std::string> small = {"1.5e-400", "0." + zeros + "1", "1" + zeros + "e-800",
                                          "1e-99999999999999999999", "0.1E-330"};
  std::vector<double> out(1);
  for (const bool negative : {false, true}) {
    const std::string sign = negative ? "-" : "";
    for (const std::string& text : large) {
      CHECK(sfctr::parse_doubles(Laid<O>({sign + text}).spans(), std::span(out)) == -1);
      CHECK(std::isinf(out[0]) && std::signbit(out[0]) == negative);
    }
    for (const std::string& text : small) {
      CHECK(sfctr::parse_doubles(Laid<O>({sign + text}).spans(), std::span(out)) == -1);
      CHECK(out[0] == 0.0 && std::signbit(out[0]) == negative);
    }
  }
  std::setlocale(LC_ALL, "C");
  for (const char* bad : {"nan(foo)", "nan()", "-nan(1)", "1)"}) {
    CHECK(sfctr::parse_doubles(Laid<O>({bad}).spans(), std::span(out)) == 0);
  }
}

template <class O>
void tokens_lie_between_separators() {
  const Laid<O> texts({"", "a||b", "|", "cc"});
  std::vector<std::int64_t> offsets(5);
  sfctr::count_tokens(texts.spans(), "|", std::span(offsets));
  CHECK((offsets == std::vector<std::int64_t>{0, 0, 3, 5, 6}));
  std::vector<std::int64_t> starts(6), ends(6);
  sfctr::find_tokens(texts.spans(), "|", std::span(starts), std::span(ends));
  std::string joined;
  for (std::size_t i = 0; i < 6; ++i) {
    joined.append(texts.data.begin() + starts[i], texts.data.begin() + ends[i]).append(",");
  }
  CHECK(joined == "a,,b,,,cc,");
  std::vector<std::int64_t> last(4);
  sfctr::find_last(texts.spans(), "|", std::span(last));
  CHECK(last[0] == -1 && last[1] == 2 && last[2] == 4 && last[3] == -1);
}

void floats_are_widened_to_their_shortest_decimals() {
  const std::vector<float> values = {0.1F, -123.25F, 16777217.0F, 3.4e38F, 1e-45F, 0.333333343F, NAN};
  std::vector<double> out(values.size());
  sfctr::widen_floats(values, out);
  CHECK(out[0] == 0.1 && out[1] == -123.25 && out[2] == 16777216.0 && out[3] == 3.4e38 && out[4] == 1e-45);
  CHECK(out[5] == 0.33333334 && std::isnan(out[6]));
}

void a_cross_takes_nine_bytes_a_part() {
  const std::uint64_t first = 1, second = 7;
  const std::uint8_t missing = 1;
  std::uint64_t key = 0;
  const std::uint64_t* keys[] = {&first, &second};
  const std::uint8_t* nulls[] = {nullptr, &missing};
  sfctr::cross_keys(keys, nulls, {&key, 1});
  std::string bytes(18, '\0');
  bytes[0] = bytes[1] = 1;
  CHECK(key == hash(bytes));
}

}  // namespace

int main() {
  hashes_are_those_of_the_specification();
  only_utf8_is_hashed<std::int32_t>();
  only_utf8_is_hashed<std::int64_t>();
  integers_and_numbers_are_read_to_their_bounds<std::int32_t>();
  integers_and_numbers_are_read_to_their_bounds<std::int64_t>();
  numbers_out_of_range_are_infinite_or_zero<std::int32_t>();
  numbers_out_of_range_are_infinite_or_zero<std::int64_t>();
  tokens_lie_between_separators<std::int32_t>();
  tokens_lie_between_separators<std::int64_t>();
  floats_are_widened_to_their_shortest_decimals();
  a_cross_takes_nine_bytes_a_part();
}
