// Unique keys against a map, over several features and tables, for any number of threads.
#include <map>
#include <random>
#include <vector>

#include "check.h"
#include "sfctr/hash.h"
#include "sfctr/thread_pool.h"
#include "sfctr/working_set.h"

namespace {

using sfctr::FeatureKeys;
using sfctr::Pooling;
using sfctr::WorkingSet;

struct Feature {
  int table;
  std::vector<std::uint64_t> keys;
  std::vector<std::uint8_t> nulls;
  std::uint64_t buckets;
};

Feature random_feature(std::mt19937_64& random, int table, std::size_t num_rows, std::uint64_t num_values) {
  Feature feature{table, {}, {}, table == 1 ? num_values / 2 + 1 : 0};
  for (std::size_t n = 0; n < num_rows; ++n) {
    feature.keys.push_back((random() % num_values) << 32);
    if (table != 2) feature.nulls.push_back(random() % 3 == 0);
  }
  return feature;
}

// Key of a position as (native table, key).
std::pair<int, std::uint64_t> key_of(const Feature& feature, std::size_t n) {
  if (!feature.nulls.empty() && feature.nulls[n]) return {2 * feature.table + 1, 0};
  const std::uint64_t key = feature.keys[n];
  return {2 * feature.table, feature.buckets ? sfctr::bucket_of(key, feature.buckets) : key};
}

void unique_keys_are_those_of_a_map(std::size_t num_rows, std::uint64_t num_values) {
  std::mt19937_64 random(num_rows + num_values);
  std::vector<Feature> features;
  for (int table : {1, 0, 2, 1, 0}) features.push_back(random_feature(random, table, num_rows, num_values));
  std::vector<FeatureKeys> given;
  for (const Feature& f : features) {
    given.push_back({.table = f.table,
                     .pooling = Pooling::kOne,
                     .keys = f.keys,
                     .offsets = {},
                     .nulls = f.nulls,
                     .weights = {},
                     .max_length = 0,
                     .buckets = f.buckets});
  }
  const WorkingSet ws(3, num_rows, given);
  std::map<std::pair<int, std::uint64_t>, std::int32_t> number;
  std::vector<std::int64_t> counts(6, 0);
  for (const Feature& f : features) {
    for (std::size_t n = 0; n < num_rows; ++n) {
      const auto key = key_of(f, n);
      if (number.emplace(key, static_cast<std::int32_t>(counts[static_cast<std::size_t>(key.first)])).second) {
        ++counts[static_cast<std::size_t>(key.first)];
      }
    }
  }
  CHECK(ws.num_unique() == number.size());
  for (std::size_t t = 0; t < 6; ++t) CHECK(ws.table_begin()[t + 1] - ws.table_begin()[t] == counts[t]);
  for (std::size_t f = 0; f < features.size(); ++f) {
    for (std::size_t n = 0; n < num_rows; ++n) {
      const auto key = key_of(features[f], n);
      const std::int64_t expected = ws.table_begin()[static_cast<std::size_t>(key.first)] + number.at(key);
      CHECK(ws.virtual_ids(f)[n] == expected);
      CHECK(ws.keys()[static_cast<std::size_t>(expected)] == key.second);
    }
  }
}

void a_feature_that_does_not_fit_is_refused() {
  const std::vector<std::uint64_t> keys(4);
  const FeatureKeys one{.table = 0,
                        .pooling = Pooling::kOne,
                        .keys = keys,
                        .offsets = {},
                        .nulls = {},
                        .weights = {},
                        .max_length = 0,
                        .buckets = 0};
  CHECK(WorkingSet(1, 4, {one}).num_unique() == 1);
  CHECK_THROWS(std::invalid_argument, WorkingSet(1, 5, {one}));
  CHECK_THROWS(std::invalid_argument, WorkingSet(0, 4, {one}));
}

}  // namespace

int main() {
  for (int threads : {1, 3}) {
    sfctr::set_num_threads(threads);
    unique_keys_are_those_of_a_map(0, 1);
    unique_keys_are_those_of_a_map(1, 1);
    unique_keys_are_those_of_a_map(1000, 3);
    unique_keys_are_those_of_a_map(5000, 1'000'000);
    unique_keys_are_those_of_a_map(90'000, 50'000);  // a table beyond a core's cache
  }
  a_feature_that_does_not_fit_is_refused();
}
