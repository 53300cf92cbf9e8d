// Look-ups of random keys that are there, in batches as a step makes them: ours, absl's where it was found, and lines
// of memory read at random, which is the least that any table of this size can cost.
//
//   bench_index NUM_KEYS ROUNDS      one line of JSON: nanoseconds a key, of each round, and bytes
//
// Contenders take turns, each over the same kBatches batches, with one thread, whose processor time counts. Lines are
// read from huge pages of as many bytes as our index has; their numbers are given, so nothing is hashed or compared.
// absl's memory is of the pages that malloc gives: of huge ones, like ours, with GLIBC_TUNABLES=glibc.malloc.hugetlb=1;
// `huge_share` tells. It would measure something else with keys that fit the processor's cache, or with a skew, whose
// frequent keys stay there.
#include <algorithm>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "sfctr/hash.h"
#include "sfctr/index.h"
#include "sfctr/memory.h"

#ifdef SFCTR_ABSL
#include <absl/container/flat_hash_map.h>
#endif

namespace {

constexpr std::size_t kLookups = 8192 * 26;
constexpr std::size_t kBatches = 16;
constexpr std::size_t kAhead = 16;  // look-ups whose lines are on their way, where a contender asks for lines ahead
constexpr std::size_t kLine = 64;

std::uint64_t key_of(std::uint64_t number) { return number * 0x9E3779B97F4A7C15u; }

// Numbers below `end`, drawn evenly.
std::vector<std::uint64_t> drawn(std::uint64_t end, std::uint64_t seed) {
  std::vector<std::uint64_t> numbers(kLookups * kBatches);
  std::uint64_t state = seed << 32;
  for (std::uint64_t& number : numbers) number = sfctr::multiply_high(sfctr::mix(++state), end);
  return numbers;
}

// Processor time of body(batch) over all batches, as nanoseconds a look-up.
template <class Body>
double ns_of(Body&& body) {
  const std::clock_t began = std::clock();
  for (std::size_t b = 0; b < kBatches; ++b) body(b);
  return static_cast<double>(std::clock() - began) * (1e9 / CLOCKS_PER_SEC) / static_cast<double>(kLookups * kBatches);
}

void must_be_equal(const std::vector<std::uint32_t>& found, const std::vector<std::uint32_t>& expected,
                   const char* who) {
  if (found == expected) return;
  std::fprintf(stderr, "bench_index: %s found other slots\n", who);
  std::exit(1);
}

struct Built {
  sfctr::Index index;
  double most_bytes_a_key = 0;  // while it grew from a tenth of its keys on
};

void build(std::uint64_t num_keys, Built& built) {
  const std::uint64_t looks = std::max<std::uint64_t>(1, num_keys / 500);
  for (std::uint64_t i = 0; i < num_keys; ++i) {
    built.index.insert(key_of(i), static_cast<std::uint32_t>(i));
    if (i < num_keys / 10 || i % looks != 0) continue;
    const double bytes = static_cast<double>(built.index.memory_bytes()) / static_cast<double>(built.index.size());
    built.most_bytes_a_key = std::max(built.most_bytes_a_key, bytes);
  }
}

class Lines {
 public:
  explicit Lines(std::size_t num_bytes) : pages_(num_bytes), numbers_(drawn(num_bytes / kLine, 2)) {
    std::memset(pages_.data(), 1, num_bytes);
  }
  std::uint32_t read(std::size_t i) const {
    std::uint32_t word;
    std::memcpy(&word, pages_.data() + numbers_[i] * kLine, sizeof word);
    return word;
  }
  void gather(std::size_t batch, std::uint32_t* out) const {
    for (std::size_t i = 0; i < kLookups; ++i) out[i] = read(batch * kLookups + i);
  }
  void gather_ahead(std::size_t batch, std::uint32_t* out) const {
    const std::uint64_t* const numbers = numbers_.data() + batch * kLookups;
    for (std::size_t i = 0; i < kLookups; ++i) {
      if (i + kAhead < kLookups) __builtin_prefetch(pages_.data() + numbers[i + kAhead] * kLine);
      out[i] = read(batch * kLookups + i);
    }
  }

 private:
  sfctr::Pages pages_;
  std::vector<std::uint64_t> numbers_;
};

#ifdef SFCTR_ABSL
class Absl {
 public:
  explicit Absl(std::uint64_t num_keys) {
    map_.reserve(num_keys);
    for (std::uint64_t i = 0; i < num_keys; ++i) map_.emplace(key_of(i), static_cast<std::uint32_t>(i));
  }
  void find(std::span<const std::uint64_t> keys, std::uint32_t* slots) const {
    for (std::size_t i = 0; i < keys.size(); ++i) slots[i] = map_.find(keys[i])->second;
  }
  void find_ahead(std::span<const std::uint64_t> keys, std::uint32_t* slots) const {
    for (std::size_t i = 0; i < keys.size(); ++i) {
      if (i + kAhead < keys.size()) map_.prefetch(keys[i + kAhead]);
      slots[i] = map_.find(keys[i])->second;
    }
  }

 private:
  absl::flat_hash_map<std::uint64_t, std::uint32_t> map_;
};
#endif

// Of this process's memory.
double huge_share() {
  std::ifstream rollup("/proc/self/smaps_rollup");
  std::map<std::string, double> kilobytes;
  for (std::string line; std::getline(rollup, line);) {
    if (const std::size_t colon = line.find(':'); colon < 20) {
      kilobytes[line.substr(0, colon)] = std::atof(line.c_str() + colon + 1);
    }
  }
  return kilobytes["AnonHugePages"] / std::max(kilobytes["Anonymous"], 1.0);
}

using Rounds = std::map<std::string, std::vector<double>>;

struct Found {
  Rounds ns;
  double huge_share = 0;
};

Found measure(std::uint64_t num_keys, int rounds, const sfctr::Index& index) {
  const std::vector<std::uint64_t> numbers = drawn(num_keys, 1);
  std::vector<std::uint64_t> keys(numbers.size());
  for (std::size_t i = 0; i < keys.size(); ++i) keys[i] = key_of(numbers[i]);
  const auto batch = [&](std::size_t b) { return std::span(keys).subspan(b * kLookups, kLookups); };
  const std::vector<std::uint32_t> last(numbers.end() - kLookups, numbers.end());  // the slots of the last batch
  std::vector<std::uint32_t> slots(kLookups);
  const Lines lines(index.memory_bytes());
#ifdef SFCTR_ABSL
  const Absl absl(num_keys);
#endif
  Found found;
  for (int round = 0; round < rounds; ++round) {
    found.ns["index"].push_back(ns_of([&](std::size_t b) { index.find(batch(b), slots.data()); }));
    must_be_equal(slots, last, "the index");
    found.ns["line"].push_back(ns_of([&](std::size_t b) { lines.gather(b, slots.data()); }));
    found.ns["line_ahead"].push_back(ns_of([&](std::size_t b) { lines.gather_ahead(b, slots.data()); }));
#ifdef SFCTR_ABSL
    found.ns["absl"].push_back(ns_of([&](std::size_t b) { absl.find(batch(b), slots.data()); }));
    must_be_equal(slots, last, "absl");
    found.ns["absl_ahead"].push_back(ns_of([&](std::size_t b) { absl.find_ahead(batch(b), slots.data()); }));
    must_be_equal(slots, last, "absl, asked ahead,");
#endif
  }
  found.huge_share = huge_share();
  return found;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "bench_index NUM_KEYS ROUNDS\n");
    return 2;
  }
  const auto num_keys = static_cast<std::uint64_t>(std::strtoull(argv[1], nullptr, 10));
  double most_stamped = 0;
  if (num_keys <= 20'000'000) {  // which grows by other steps, and is not looked up here
    Built stamped{.index = sfctr::Index(true)};
    build(num_keys, stamped);
    most_stamped = stamped.most_bytes_a_key;
  }
  Built plain;
  build(num_keys, plain);
  const Found found = measure(num_keys, std::atoi(argv[2]), plain.index);
  std::printf("{\"keys\": %" PRIu64 ", \"bytes\": %zu, \"huge_share\": %.3f", num_keys, plain.index.memory_bytes(),
              found.huge_share);
  std::printf(", \"most_bytes_a_key\": %.2f, \"most_bytes_a_key_stamped\": %.2f", plain.most_bytes_a_key, most_stamped);
  for (const auto& [name, values] : found.ns) {
    std::printf(", \"%s\": [", name.c_str());
    for (std::size_t i = 0; i < values.size(); ++i) std::printf("%s%.3f", i == 0 ? "" : ", ", values[i]);
    std::printf("]");
  }
  std::printf("}\n");
  return 0;
}
