// Every SIMD level and any number of threads give the same bits, for all poolings and optimizers together.
#include <cstring>
#include <random>
#include <vector>

#include "check.h"
#include "sfctr/optimizer.h"
#include "sfctr/row_group.h"
#include "sfctr/simd.h"
#include "sfctr/thread_pool.h"

namespace {

using sfctr::Element;
using sfctr::FeatureKeys;
using sfctr::Hyper;
using sfctr::Pooling;
using sfctr::RowGroup;
using sfctr::Rule;
using sfctr::WorkingSet;

constexpr std::size_t kRows = 300, kLongest = 5;

struct Batch {
  std::vector<std::uint64_t> keys;
  std::vector<std::int64_t> offsets{0};
  std::vector<float> weights;
  std::vector<std::uint64_t> single;
  std::vector<std::uint8_t> nulls;

  explicit Batch(std::uint64_t seed) {
    std::mt19937_64 random(seed);
    for (std::size_t b = 0; b < kRows; ++b) {
      for (std::size_t n = random() % (kLongest + 1); n > 0; --n) {
        keys.push_back(random() % 4 == 0 ? 1 : random() % 100);
        weights.push_back(static_cast<float>(random() % 1000) / 300);
      }
      offsets.push_back(static_cast<std::int64_t>(keys.size()));
      single.push_back(random() % 2 == 0 ? 1 : random() % 1000);
      nulls.push_back(random() % 5 == 0);
    }
  }

  WorkingSet working_set() const {
    const auto bag = [&](Pooling pooling, bool weighted) {
      return FeatureKeys{.table = 0,
                         .pooling = pooling,
                         .keys = keys,
                         .offsets = offsets,
                         .nulls = {},
                         .weights = weighted ? std::span<const float>(weights) : std::span<const float>(),
                         .max_length = kLongest,
                         .buckets = 0};
    };
    const FeatureKeys one{.table = 1,
                          .pooling = Pooling::kOne,
                          .keys = single,
                          .offsets = {},
                          .nulls = nulls,
                          .weights = {},
                          .max_length = 0,
                          .buckets = 0};
    return WorkingSet(2, kRows,
                      {one, bag(Pooling::kSum, true), bag(Pooling::kMean, false), bag(Pooling::kMean, true),
                       bag(Pooling::kSequence, false)});
  }
};

// Everything that a few steps computed, in one list.
std::vector<float> run(std::size_t dim, Rule rule, Element element) {
  const sfctr::TableInit normal{.seed = 1, .null_seed = 2, .normal = true, .a = 0, .b = 0.1};
  const sfctr::TableInit uniform{.seed = 3, .null_seed = 4, .normal = false, .a = -1, .b = 1};
  RowGroup group(dim, dim == 0 ? Rule::kNone : rule, rule, true, {normal, uniform}, {}, element);
  Hyper hyper{.lr = 0.05,
              .eps = 1e-6,
              .weight_decay = 0.01,
              .momentum = 0.9,
              .nesterov = 1,
              .beta1 = 0.9,
              .beta2 = 0.99,
              .decoupled = 0,
              .l1 = 0.01,
              .l2 = 0.1,
              .beta = 1};
  const std::vector<Hyper> lines(2, hyper);
  std::vector<float> all;
  for (std::uint64_t step = 1; step <= 3; ++step) {
    const Batch batch(step % 2);
    WorkingSet ws = batch.working_set();
    group.locate(ws, true);
    sfctr::Buffer<float> out(group.forward_floats(ws, kRows));
    std::vector<float> linear(5 * kRows);
    group.forward(ws, 0, kRows, out.span(), linear);
    std::vector<sfctr::GradientRows> grads;
    std::vector<std::span<const float>> linear_grads;
    for (std::size_t f = 0, offset = 0; f < 5; ++f) {
      const std::size_t size = kRows * ws.features()[f].vectors_a_row() * dim;
      grads.emplace_back(std::span<const float>(out.data() + offset, size));
      linear_grads.emplace_back(linear.data() + f * kRows, kRows);
      offset += size;
    }
    group.backward(ws, 0, kRows, grads, linear_grads);
    all.push_back(static_cast<float>(group.grad_norm_squared(ws)));
    group.update(ws, step, 0.5f, lines, lines);
    all.insert(all.end(), out.data(), out.data() + out.size());
    all.insert(all.end(), linear.begin(), linear.end());
  }
  for (std::size_t table = 0; table < 4; ++table) {
    std::vector<std::uint64_t> keys;
    std::vector<float> records;
    CHECK(!group.export_rows(table, 0, 1'000'000, keys, records) && keys.size() == group.num_rows(table));
    all.insert(all.end(), records.begin(), records.end());
  }
  return all;
}

void levels_and_threads_agree(std::size_t dim, Rule rule, Element element) {
  sfctr::set_num_threads(1);
  sfctr::set_simd_level("baseline");
  const std::vector<float> expected = run(dim, rule, element);
  for (const std::string& level : sfctr::simd_levels()) {
    sfctr::set_simd_level(level);
    for (int threads : {1, 3}) {
      sfctr::set_num_threads(threads);
      const std::vector<float> found = run(dim, rule, element);
      CHECK(found.size() == expected.size());
      CHECK(std::memcmp(found.data(), expected.data(), found.size() * sizeof(float)) == 0);
    }
  }
}

// Large outputs go past the caches, but for those that do not lie on a line.
void streamed_vectors_are_the_rows(std::size_t dim) {
  constexpr std::size_t kMany = 66'000;
  std::vector<std::uint64_t> keys;
  for (std::size_t b = 0; b < kMany; ++b) keys.push_back(b * b % 100);
  RowGroup group(dim, Rule::kSgd, Rule::kNone, false, {{.seed = 1, .null_seed = 2, .normal = true, .a = 0, .b = 1}});
  for (const std::string& level : sfctr::simd_levels()) {
    sfctr::set_simd_level(level);
    for (const std::size_t offset : {0, 1}) {
      WorkingSet ws(1, kMany,
                    {{.table = 0, .pooling = Pooling::kOne, .keys = keys, .offsets = {}, .nulls = {}, .weights = {}}});
      group.locate(ws, true);
      sfctr::Buffer<float> out(kMany * dim + offset);
      const std::span<float> vectors = out.span().subspan(offset);
      group.forward(ws, 0, kMany, vectors, {});
      for (std::size_t b = 0; b < kMany; ++b) {
        const float* const row = ws.located.records[static_cast<std::size_t>(ws.virtual_ids(0)[b])];
        CHECK(std::memcmp(vectors.data() + b * dim, row, dim * sizeof(float)) == 0);
      }
      group.discard(ws);
    }
  }
}

void an_unknown_level_or_rule_is_refused() {
  CHECK_THROWS(std::invalid_argument, sfctr::set_simd_level("sse9"));
  CHECK_THROWS(std::invalid_argument, sfctr::rule_named("lion"));
  CHECK(sfctr::rule_named("rowwise_adagrad") == Rule::kRowWiseAdagrad);
}

}  // namespace

int main() {
  for (std::size_t dim : {0, 1, 7, 16, 40, 64, 100}) {
    for (Rule rule : {Rule::kSgd, Rule::kMomentum, Rule::kAdagrad, Rule::kRowWiseAdagrad, Rule::kAdam, Rule::kAdamRow,
                      Rule::kFtrl}) {
      for (Element element : {Element::kFloat32, Element::kBfloat16}) levels_and_threads_agree(dim, rule, element);
    }
  }
  // A row of bf16 that takes more random words than are made at once.
  levels_and_threads_agree(1030, Rule::kSgd, Element::kBfloat16);
  for (const std::size_t dim : {32, 40, 48}) streamed_vectors_are_the_rows(dim);
  an_unknown_level_or_rule_is_refused();
}
