// Sixteen numbers at once, for any target: loops that the compiler vectorizes as it can.
#ifndef ONERNN_LANES_LOOPS_HPP
#define ONERNN_LANES_LOOPS_HPP

#include <cstdint>
#include <cstring>

#include "isa.hpp"
#include "stored.hpp"

namespace onernn {
inline namespace ONERNN_ISA {

template <class Real>
struct Loops {
  Real v[16];
};

template <class Real>
inline Loops<Real> broadcast(Real a) {
  Loops<Real> out;
  for (Real& v : out.v) v = a;
  return out;
}
template <class Real>
inline Loops<Real> load(const Real* p) {
  Loops<Real> out;
  for (int i = 0; i < 16; ++i) out.v[i] = p[i];
  return out;
}
template <class Real>
inline void store(Real* p, Loops<Real> a) {
  for (int i = 0; i < 16; ++i) p[i] = a.v[i];
}
template <class Real>
inline Loops<Real> operator+(Loops<Real> a, Loops<Real> b) {
  for (int i = 0; i < 16; ++i) a.v[i] = a.v[i] + b.v[i];
  return a;
}
template <class Real>
inline Loops<Real> operator-(Loops<Real> a, Loops<Real> b) {
  for (int i = 0; i < 16; ++i) a.v[i] = a.v[i] - b.v[i];
  return a;
}
template <class Real>
inline Loops<Real> operator*(Loops<Real> a, Loops<Real> b) {
  for (int i = 0; i < 16; ++i) a.v[i] = a.v[i] * b.v[i];
  return a;
}
template <class Real>
inline Loops<Real> operator/(Loops<Real> a, Loops<Real> b) {
  for (int i = 0; i < 16; ++i) a.v[i] = a.v[i] / b.v[i];
  return a;
}
/// a * b + c
template <class Real>
inline Loops<Real> multiply_add(Loops<Real> a, Loops<Real> b, Loops<Real> c) {
  for (int i = 0; i < 16; ++i) c.v[i] += a.v[i] * b.v[i];
  return c;
}
template <class Real>
inline Loops<Real> minimum(Loops<Real> a, Loops<Real> b) {
  for (int i = 0; i < 16; ++i) a.v[i] = a.v[i] < b.v[i] ? a.v[i] : b.v[i];
  return a;
}
template <class Real>
inline Loops<Real> maximum(Loops<Real> a, Loops<Real> b) {
  for (int i = 0; i < 16; ++i) a.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i];
  return a;
}

inline Loops<float> round_to_even(Loops<float> a) {
  for (float& v : a.v) v = (v + 12582912.0f) - 12582912.0f;  // adding 1.5 * 2^23 leaves no fraction
  return a;
}
inline Loops<float> times_power_of_two(Loops<float> a, Loops<float> n) {
  for (int i = 0; i < 16; ++i) {
    // If n is NaN, a is NaN as well, and stays NaN whatever its factor is.
    const std::int32_t whole = n.v[i] == n.v[i] ? static_cast<std::int32_t>(n.v[i]) : 0;
    // Multiplies by two powers of two: if the result is subnormal or infinite, 2^n alone may not be
    // a finite normal number.
    const std::int32_t half = whole / 2;
    const std::int32_t bits[] = {(half + 127) * (1 << 23), (whole - half + 127) * (1 << 23)};
    float powers[2];
    std::memcpy(powers, bits, sizeof powers);
    a.v[i] = a.v[i] * powers[0] * powers[1];
  }
  return a;
}
inline Loops<float> times_normal_power_of_two(Loops<float> a, Loops<float> n) {
  for (int i = 0; i < 16; ++i) {
    const std::int32_t bits =
        ((n.v[i] == n.v[i] ? static_cast<std::int32_t>(n.v[i]) : 0) + 127) * (1 << 23);
    float power;
    std::memcpy(&power, &bits, sizeof power);
    a.v[i] = a.v[i] * power;
  }
  return a;
}

}  // namespace ONERNN_ISA
}  // namespace onernn

#endif
