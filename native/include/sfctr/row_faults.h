// Ways in which keeping rows can go wrong, by name, for tests: given to a RowGroup, which then goes wrong where it is
// told to. Without one (a null pointer) nothing is asked. Safe to call from any thread.
//
// A fault has an occasion each time that it could strike: `skip` of them pass, the next `times` are struck.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <mutex>
#include <string_view>

namespace sfctr {

enum class RowFault : std::uint8_t {
  kFetchEarly,     // rows of a batch are read when it is planned, while a batch ahead of it has not trained
  kDropWriteBack,  // a row that leaves RAM is written as it began, not as it was trained
  kApplyTwice,     // the gradients of keys that a batch holds more than once are applied twice
  kLoseState,      // a row that leaves RAM is written without its optimizer state
  kUseWrongSlot,   // two keys of a batch use the rows of each other
};

class RowFaults {
 public:
  static constexpr std::uint64_t kForever = std::numeric_limits<std::uint64_t>::max();

  // "fetch_early", "drop_write_back", "apply_twice", "lose_state" or "use_wrong_slot"; throws std::invalid_argument for
  // another name.
  static RowFault named(std::string_view name);

  void arm(RowFault fault, std::uint64_t skip = 0, std::uint64_t times = kForever);
  std::uint64_t num_struck(RowFault fault) const;

  // For whoever goes wrong: whether it does on this occasion.
  bool strikes(RowFault fault);

 private:
  struct Rule {
    std::uint64_t skip = 0, times = 0, struck = 0;
  };

  mutable std::mutex mutex_;
  std::array<Rule, 5> rules_;
};

}  // namespace sfctr
