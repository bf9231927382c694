// A team that consists of this thread only.
#ifndef ONERNN_SERIAL_HPP
#define ONERNN_SERIAL_HPP

#include <cstdint>

#include "isa.hpp"

namespace onernn {
inline namespace ONERNN_ISA {

struct Serial {
  explicit Serial(int = 1) {}
  Serial(int, const Serial&) {}

  static constexpr int members() { return 1; }
  static constexpr bool is_worth_it(std::int64_t) { return false; }
  static constexpr bool counts(std::int64_t, std::int64_t, std::int64_t, const void*,
                               std::int64_t) {
    return false;
  }

  /// Calls function(begin, end) for the range from 0 to `count`.
  template <class Function>
  void split(std::int64_t count, std::int64_t, Function function) {
    function(std::int64_t(0), count);
  }
};

}  // namespace ONERNN_ISA
}  // namespace onernn

#endif
