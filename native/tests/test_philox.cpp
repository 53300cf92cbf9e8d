// Philox4x32-10 against the known answers that Random123 publishes.
#include <algorithm>

#include "check.h"
#include "sfctr/philox.h"

namespace {

struct Answer {
  std::uint32_t counter[4];
  std::uint32_t key[2];
  std::uint32_t words[4];
};

constexpr Answer kAnswers[] = {
    {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
    {{~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
    {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
     {0xa4093822, 0x299f31d0},
     {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
};

void published_answers_are_met() {
  for (const Answer& answer : kAnswers) {
    std::uint32_t words[4];
    std::copy_n(answer.counter, 4, words);
    sfctr::philox4x32_10<1>(words, answer.key[0], answer.key[1]);
    CHECK(std::equal(words, words + 4, answer.words));
  }
}

void many_counters_at_once_are_each_alone() {
  constexpr int kCounters = 16;
  std::uint32_t together[4 * kCounters];
  for (std::uint32_t i = 0; i < 4 * kCounters; ++i) together[i] = i * 0x9E3779B9u;
  std::uint32_t alone[kCounters][4];
  for (int l = 0; l < kCounters; ++l) {
    for (int j = 0; j < 4; ++j) alone[l][j] = together[j * kCounters + l];
    sfctr::philox4x32_10<1>(alone[l], 7, 9);
  }
  sfctr::philox4x32_10<kCounters>(together, 7, 9);
  for (int l = 0; l < kCounters; ++l) {
    for (int j = 0; j < 4; ++j) CHECK(together[j * kCounters + l] == alone[l][j]);
  }
}

}  // namespace

int main() {
  published_answers_are_met();
  many_counters_at_once_are_each_alone();
}
