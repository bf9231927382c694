// Sixteen numbers in registers of any width. An operation on sixteen numbers applies the target's
// operation to each register.
#ifndef ONERNN_LANES_REGISTERS_HPP
#define ONERNN_LANES_REGISTERS_HPP

#include "isa.hpp"

namespace onernn {
inline namespace ONERNN_ISA {

template <class Register>
struct One {
  Register v;
};
template <class Register>
struct Two {
  Register low, high;
};
template <class Register>
struct Four {
  Register a, b, c, d;
};

/// Calls a function of single registers for each register of the arguments.
template <class Function, class... R>
[[gnu::always_inline]] inline auto in_each(Function function, One<R>... x) {
  return One<decltype(function(x.v...))>{function(x.v...)};
}
template <class Function, class... R>
[[gnu::always_inline]] inline auto in_each(Function function, Two<R>... x) {
  return Two<decltype(function(x.low...))>{function(x.low...), function(x.high...)};
}
template <class Function, class... R>
[[gnu::always_inline]] inline auto in_each(Function function, Four<R>... x) {
  using Register = decltype(function(x.a...));
  return Four<Register>{function(x.a...), function(x.b...), function(x.c...), function(x.d...)};
}

}  // namespace ONERNN_ISA
}  // namespace onernn

#endif
