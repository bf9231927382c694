// Checks what the steps of a plan from a file may read and write: no number in it is trusted.
#ifndef ONERNN_BOUNDS_HPP
#define ONERNN_BOUNDS_HPP

#include <cstdint>
#include <vector>

#include "calls.hpp"
#include "exported.hpp"

namespace onernn {
inline namespace ONERNN_ISA {

/// A number of elements. A count that is negative or exceeds 64 bits is invalid, and so are sums
/// and products with it. `work` is the product with 1 in place of each factor 0: it says how often
/// a function's loops turn, even if they reach no element.
class Count {
 public:
  Count(std::int64_t value) : value_(value), work_(value < 1 ? 1 : value), is_one_(value >= 0) {}

  /// Says whether the count is at most `available`, and loops over it end soon.
  bool within(std::int64_t available) const {
    return is_one_ && value_ <= available && (value_ > 0 || work_ <= kMostTurns);
  }
  /// Returns the count, or -1 if it is invalid.
  std::int64_t value() const { return is_one_ ? value_ : -1; }
  /// Returns the count, or `most` if it is larger or invalid.
  std::int64_t value_to(std::int64_t most) const {
    return is_one_ && value_ < most ? value_ : most;
  }

  friend Count operator*(Count a, Count b) {
    Count result(0);
    result.is_one_ =
        !__builtin_mul_overflow(a.value_, b.value_, &result.value_) && a.is_one_ && b.is_one_;
    if (__builtin_mul_overflow(a.work_, b.work_, &result.work_)) result.work_ = INT64_MAX;
    return result;
  }
  friend Count operator+(Count a, Count b) {
    Count result(0);
    result.is_one_ =
        !__builtin_add_overflow(a.value_, b.value_, &result.value_) && a.is_one_ && b.is_one_;
    if (__builtin_add_overflow(a.work_, b.work_, &result.work_)) result.work_ = INT64_MAX;
    return result;
  }

 private:
  static constexpr std::int64_t kMostTurns = std::int64_t(1) << 31;
  std::int64_t value_, work_;
  bool is_one_;
};

/// Says whether offsets begin with 0 and never decrease.
bool are_offsets(const std::int64_t* offsets, std::int64_t count);

/// Returns the rule of a function by its name. Null: it has no rule, and its type says the counts.
struct Rule;
const Rule* rule_of(const char* function);

/// Says whether the rule also reads the contents of arguments.
bool depends_on_contents(const Rule* rule);

/// Says whether weights of `bytes` bytes contain everything that a layer reads.
bool are_parts(const onernn_spec& spec, const onernn_part* parts, std::int64_t bytes);

/// A step, and what the guard checks.
struct Guarded {
  std::int64_t kind;
  const std::int64_t* words;
  const Function* function;  // Of a call.
  const Rule* rule;          // Of a call whose type does not say the counts.
  const onernn_spec* spec;   // Of a layer.
  std::int64_t room;         // Of a nest: the index of the size of its output's memory.
  std::int64_t label;        // The index of its operator's label.
  bool always;               // It is checked in every run, since more than input sizes decides.
};

class Bounds final : public Guard {
 public:
  explicit Bounds(const std::vector<Guarded>& steps) : steps_(steps), settled_(steps.size()) {}
  bool bind(const std::int64_t* sizes, std::int64_t most) override;
  std::int32_t check(std::int64_t step, const Frame& frame) const override {
    const auto at = static_cast<std::size_t>(step);
    if (settled_[at] || holds(steps_[at], frame.sizes, &frame, most_)) return ONERNN_DONE;
    return holds(steps_[at], frame.sizes, &frame, INT64_MAX) ? ONERNN_TOO_LARGE : ONERNN_UNSOUND;
  }

 private:
  /// `most`: the bytes that the step may use.
  bool holds(const Guarded& step, const std::int64_t* sizes, const Frame* frame,
             std::int64_t most) const;

  const std::vector<Guarded>& steps_;
  std::vector<char> settled_;
  std::int64_t most_ = 0;
};

}  // namespace ONERNN_ISA
}  // namespace onernn

#endif
