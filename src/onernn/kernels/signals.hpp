// Fourier transforms and interpolation. Formulas: ONNX operator specification, DFT, STFT, Resize.
#ifndef ONERNN_SIGNALS_HPP
#define ONERNN_SIGNALS_HPP

#include <algorithm>
#include <cstdint>

#include "isa.hpp"
#include "moves.hpp"
#include "status.hpp"

namespace onernn {
inline namespace ONERNN_ISA {

/// A complex number.
template <class T>
struct Complex {
  T real, imaginary;
  friend Complex operator+(Complex a, Complex b) {
    return {a.real + b.real, a.imaginary + b.imaginary};
  }
  friend Complex operator-(Complex a, Complex b) {
    return {a.real - b.real, a.imaginary - b.imaginary};
  }
  friend Complex operator*(Complex a, Complex b) {
    return {a.real * b.real - a.imaginary * b.imaginary,
            a.real * b.imaginary + a.imaginary * b.real};
  }
};

/// out[k] = sum over j of x[j * stride] * root^(j * k), for `count` numbers. `roots` holds root^0,
/// root^1, ... of the whole transform; this part of it uses every `stride`-th of them. `sums`:
/// memory for `count` numbers.
template <class T>
void transform(Complex<T>* out, const Complex<T>* x, std::int64_t count, std::int64_t stride,
               const Complex<T>* roots, Complex<T>* sums) {
  if (count == 1) {
    *out = *x;
    return;
  }
  std::int64_t factor = 2;  // the smallest factor of `count`
  while (count % factor && factor * factor <= count) ++factor;
  if (count % factor) factor = count;
  const std::int64_t part = count / factor;
  for (std::int64_t r = 0; r < factor; ++r)
    transform(out + r * part, x + r * stride, part, stride * factor, roots, sums);
  if (factor == 2) {
    for (std::int64_t k = 0; k < part; ++k) {
      const Complex<T> even = out[k], odd = out[part + k] * roots[k * stride];
      out[k] = even + odd;
      out[part + k] = even - odd;
    }
    return;
  }
  for (std::int64_t k = 0; k < part; ++k) {
    for (std::int64_t q = 0; q < factor; ++q) {
      Complex<T> sum = out[k];
      std::int64_t power = 0;
      for (std::int64_t r = 1; r < factor; ++r) {
        power += k + q * part;
        if (power >= count) power -= count;
        sum = sum + out[r * part + k] * roots[power * stride];
      }
      sums[q] = sum;
    }
    for (std::int64_t q = 0; q < factor; ++q) out[q * part + k] = sums[q];
  }
}

/// Fourier transforms of rows. x and out have rows (outer, inner). An element has one part, which
/// is real, or two, the real and the imaginary one: `parts` says how many in x, `results` how many
/// in out. `counts` and `from` are the sizes and strides of x along (outer, inner, element); `bins`
/// and `to` are the sizes and strides of out. Rows are cut to `count` numbers or filled with zeros.
/// A `halved` spectrum is continued with the conjugates of its numbers, and the result is real.
/// `scale` multiplies the results; `memory` holds 3 * count complex numbers. Sums are double,
/// because results may be divided by the small end of a window.
template <class T>
void spectra(T* out, const T* x, Optional<const T> window, const double* roots, double* memory,
             const Dims& counts, const Dims& from, std::int64_t parts, const Dims& bins,
             const Dims& to, std::int64_t results, std::int64_t count, std::int64_t halved,
             double scale) {
  auto* const row = reinterpret_cast<Complex<double>*>(memory);
  Complex<double>*const made = row + count, *const sums = made + count;
  const auto* const powers = reinterpret_cast<const Complex<double>*>(roots);
  const std::int64_t taken = (std::min)(counts[2], count);
  for (std::int64_t o = 0; o < counts[0]; ++o)
    for (std::int64_t i = 0; i < counts[1]; ++i) {
      const T* read = x + o * from[0] + i * from[1];
      for (std::int64_t k = 0; k < taken; ++k, read += from[2]) {
        const double by = window ? window[k] : T(1);
        row[k] = {read[0] * by, parts == 2 ? read[1] * by : 0.0};
      }
      std::fill(row + taken, row + count, Complex<double>{0, 0});
      if (halved) {
        row[0].imaginary = 0;
        if (count % 2 == 0) row[count / 2].imaginary = 0;
        for (std::int64_t k = 1; k < (count + 1) / 2; ++k)
          row[count - k] = {row[k].real, -row[k].imaginary};
      }
      transform(made, row, count, 1, powers, sums);
      T* write = out + o * to[0] + i * to[1];
      for (std::int64_t k = 0; k < bins[2]; ++k, write += to[2]) {
        write[0] = static_cast<T>(made[k].real * scale);
        if (results == 2) write[1] = static_cast<T>(made[k].imaginary * scale);
      }
    }
}

/// out (outer, count, inner) = rows between the rows before[k] and after[k] of x (outer, rows,
/// inner); `rest` is the weight of the second row.
template <class T>
Status interpolate(T* out, const T* x, const std::int64_t* before, const std::int64_t* after,
                   const T* rest, std::int64_t rows, std::int64_t count, std::int64_t outer,
                   std::int64_t inner) {
  for (std::int64_t o = 0; o < outer; ++o, x += rows * inner)
    for (std::int64_t k = 0; k < count; ++k, out += inner) {
      // A hostile file may have rows that are out of range.
      const std::int64_t first = before[k], second = after[k];
      if ((std::min)(first, second) < 0 || (std::max)(first, second) >= rows)
        return Status::bad_sizes;
      const T *const a = x + first * inner, *const b = x + second * inner, weight = rest[k];
      for (std::int64_t i = 0; i < inner; ++i) out[i] = a[i] * (1 - weight) + b[i] * weight;
    }
  return Status::ok;
}

}  // namespace ONERNN_ISA
}  // namespace onernn

#endif
