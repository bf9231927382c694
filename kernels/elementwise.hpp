// Functions of single numbers that operators are written with.
#ifndef ONERNN_ELEMENTWISE_HPP
#define ONERNN_ELEMENTWISE_HPP

#include <limits>

#include "isa.hpp"

namespace onernn {
inline namespace ONERNN_ISA {

/// The larger one, as NumPy has it: a NaN stays one.
template <class T>
inline T most(T a, T b) {
  return a > b || a != a ? a : b;
}
/// The smaller one.
template <class T>
inline T least(T a, T b) {
  return a < b || a != a ? a : b;
}
/// 1, 0 or -1; a NaN stays one.
template <class T>
inline T sign(T a) {
  return a > 0 ? T(1) : a < 0 ? T(-1) : a;
}
/// The whole number towards zero; the lowest one for what is none, as x86 does it.
template <class T, class Real>
inline T whole(Real a) {
  const Real bound = static_cast<Real>((std::numeric_limits<T>::max)());
  return a >= -bound && a < bound ? static_cast<T>(a) : (std::numeric_limits<T>::min)();
}

}  // namespace ONERNN_ISA
}  // namespace onernn

#endif
