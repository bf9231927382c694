// Functions that move elements, or fill arrays with one number. Sizes count elements: `outer` is
// the product of the axes before the axis that a function works along, `inner` the product of the
// axes after it. Indices are checked.
#ifndef ONERNN_MOVES_HPP
#define ONERNN_MOVES_HPP

#include <algorithm>
#include <cstdint>

#include "formulas.hpp"
#include "isa.hpp"
#include "status.hpp"

namespace onernn {
inline namespace ONERNN_ISA {

/// Sizes of axes, or strides along axes.
struct Dims {
  static constexpr int kMost = 16;
  std::int64_t count, size[kMost];
  std::int64_t operator[](std::int64_t at) const { return size[at]; }
};

/// Sets `size`, the size of an If's result, to the size in the branch that was taken.
inline void choose(std::int64_t& size, const std::uint8_t* condition, std::int64_t then,
                   std::int64_t otherwise) {
  size = *condition ? then : otherwise;
}

/// Sets a size that a step of the plan computes.
inline void tell_size(std::int64_t& size, std::int64_t number) { size = number; }

/// Reads a size from memory. It must be from 0 to `most`.
template <class I>
Status read_size(std::int64_t& size, const I* number, std::int64_t most) {
  if (*number < 0 || *number > most) return Status::bad_sizes;
  size = *number;
  return Status::ok;
}

/// Says whether a loop continues: its condition is true, and the turn is below `limit` and, if it
/// is not null, below `*most`.
inline void has_turn(std::uint8_t* out, const std::uint8_t* going, const std::int64_t* most,
                     std::int64_t turn, std::int64_t limit) {
  *out = *going && turn < limit && (most == nullptr || turn < *most);
}

/// Checks that a size is not negative.
inline Status natural(std::int64_t size) { return size < 0 ? Status::bad_sizes : Status::ok; }

/// Checks that integers may be divisors: neither 0 nor -1, because the lowest integer / -1
/// overflows.
template <class T>
Status are_divisors(std::int64_t count, const T* x) {
  for (std::int64_t i = 0; i < count; ++i)
    if (x[i] == 0 || x[i] == -1) return Status::bad_sizes;
  return Status::ok;
}

/// Writes sizes as integers.
template <class T>
void tell(T* out, const Dims& sizes) {
  for (std::int64_t at = 0; at < sizes.count; ++at) out[at] = static_cast<T>(sizes[at]);
}

template <class T>
void copy(T* out, const T* x, std::int64_t count) {
  std::copy_n(x, count, out);
}

/// out[i, j, ...] = x[i, j, ...]. Each array has its own strides; `to` and `from` are the indices
/// of the first elements.
template <class T>
void arrange(T* out, const T* x, std::int64_t to, std::int64_t from, const Dims& sizes,
             const Dims& to_strides, const Dims& from_strides) {
  const std::int64_t last = sizes.count - 1;
  // If x has a stride above 1 along the last axis: the axis along which its stride is 1.
  std::int64_t turned = last;
  for (std::int64_t axis = 0; axis <= last; ++axis) {
    if (sizes[axis] <= 0) return;
    if (from_strides[last] > 1 && from_strides[axis] == 1) turned = axis;
  }
  out += to;
  x += from;
  if (last < 0) return copy(out, x, 1);
  constexpr std::int64_t kTile = 16;  // rows of out that are written at the same time
  const std::int64_t count = sizes[last], write = to_strides[last], read = from_strides[last];
  std::int64_t index[Dims::kMost] = {};
  for (;;) {
    if (turned != last) {
      for (std::int64_t tile = 0; tile < sizes[turned]; tile += kTile)
        for (std::int64_t i = 0; i < count; ++i)
          for (std::int64_t k = tile; k < (std::min)(tile + kTile, sizes[turned]); ++k)
            out[k * to_strides[turned] + i * write] = x[k + i * read];
    } else if (write == 1 && read == 1) {
      std::copy_n(x, count, out);
    } else {
      for (std::int64_t i = 0; i < count; ++i) out[i * write] = x[i * read];
    }
    std::int64_t axis = last - 1;
    for (; axis >= 0; --axis) {
      if (axis == turned) continue;
      const std::int64_t step = ++index[axis] < sizes[axis] ? 1 : 1 - sizes[axis];
      out += step * to_strides[axis];
      x += step * from_strides[axis];
      if (step == 1) break;
      index[axis] = 0;
    }
    if (axis < 0) return;
  }
}

template <class T, class Number>
void fill(T* out, std::int64_t count, Number value) {
  std::fill_n(out, count, cast<T>(value));
}

template <class T>
void range(T* out, std::int64_t start, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) out[i] = static_cast<T>(start + i);
}

/// Returns the row of an index, or -1 if there is no such row. With `negative`, negative indices
/// count from the end.
template <class I>
std::int64_t row_of(I index, std::int64_t rows, std::int64_t negative) {
  std::int64_t row = index;
  if (negative && row < 0) row += rows;
  return row < 0 || row >= rows ? -1 : row;
}

/// out (outer, count, inner) = the rows of table (outer, rows, inner) that `indices` (count) name.
template <class T, class I>
Status gather(T* out, const T* table, const I* indices, std::int64_t rows, std::int64_t count,
              std::int64_t outer, std::int64_t inner, std::int64_t negative) {
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t row = row_of(indices[i], rows, negative);
    if (row < 0) return Status::bad_index;
    for (std::int64_t k = 0; k < outer; ++k)
      std::copy_n(table + (k * rows + row) * inner, inner, out + (k * count + i) * inner);
  }
  return Status::ok;
}

/// out (outer, count, inner) = elements of table (outer, rows, inner). Each element of `indices`,
/// which have the shape of out, names a row.
template <class T, class I>
Status gather_elements(T* out, const T* table, const I* indices, std::int64_t rows,
                       std::int64_t count, std::int64_t outer, std::int64_t inner,
                       std::int64_t negative) {
  for (std::int64_t i = 0; i < outer; ++i)
    for (std::int64_t k = 0; k < count; ++k)
      for (std::int64_t j = 0; j < inner; ++j) {
        const std::int64_t place = (i * count + k) * inner + j;
        const std::int64_t row = row_of(indices[place], rows, negative);
        if (row < 0) return Status::bad_index;
        out[place] = table[(i * rows + row) * inner + j];
      }
  return Status::ok;
}

/// out (batch, count, inner) = slices of table (batch, sizes..., inner). `indices` (batch, count,
/// number of sizes) has an index along each of `sizes` for each slice.
template <class T, class I>
Status gather_nd(T* out, const T* table, const I* indices, const Dims& sizes, std::int64_t batch,
                 std::int64_t count, std::int64_t inner, std::int64_t negative) {
  for (std::int64_t n = 0; n < batch; ++n)
    for (std::int64_t k = 0; k < count; ++k) {
      const std::int64_t pick = n * count + k;
      std::int64_t place = n;
      for (std::int64_t at = 0; at < sizes.count; ++at) {
        const std::int64_t row = row_of(indices[pick * sizes.count + at], sizes[at], negative);
        if (row < 0) return Status::bad_index;
        place = place * sizes[at] + row;
      }
      std::copy_n(table + place * inner, inner, out + pick * inner);
    }
  return Status::ok;
}

/// How an update is combined with the element at its place.
enum : std::int64_t { kReplace = 0, kAdd = 1, kMultiply = 2, kMost = 3, kLeast = 4 };

template <class T>
inline void meet(T& there, T number, std::int64_t how) {
  if (how == kReplace)
    there = number;
  else if (how == kAdd)
    there = plus(there, number);
  else if (how == kMultiply)
    there = times(there, number);
  else
    there = how == kMost ? most(there, number) : least(there, number);
}

/// out = x, in which each update is combined with the element at its index along `axis`, an axis of
/// `rows` elements. `indices` and `updates` have the shape `sizes`; `strides` are the strides of x.
/// If two updates replace the same element, the last one stays.
template <class T, class I>
Status scatter_elements(T* out, const T* x, const I* indices, const T* updates, std::int64_t count,
                        std::int64_t axis, std::int64_t rows, const Dims& sizes,
                        const Dims& strides, std::int64_t how) {
  std::copy_n(x, count, out);
  std::int64_t index[Dims::kMost] = {}, left = 1;
  for (std::int64_t at = 0; at < sizes.count; ++at) left *= sizes[at];
  for (; left > 0; --left, ++indices, ++updates) {
    const std::int64_t row = row_of(*indices, rows, 1);
    if (row < 0) return Status::bad_index;
    std::int64_t place = row * strides[axis];
    for (std::int64_t at = 0; at < sizes.count; ++at)
      if (at != axis) place += index[at] * strides[at];
    meet(out[place], *updates, how);
    for (std::int64_t at = sizes.count - 1; at >= 0 && ++index[at] == sizes[at]; --at)
      index[at] = 0;
  }
  return Status::ok;
}

/// out = x (sizes..., inner), in which each row of updates (count, inner) is combined with a row of
/// out. `indices` (count, number of sizes) has an index along each of `sizes` for each row.
template <class T, class I>
Status scatter_nd(T* out, const T* x, const I* indices, const T* updates, const Dims& sizes,
                  std::int64_t count, std::int64_t inner, std::int64_t how) {
  std::int64_t all = inner;
  for (std::int64_t at = 0; at < sizes.count; ++at) all *= sizes[at];
  std::copy_n(x, all, out);
  for (std::int64_t k = 0; k < count; ++k) {
    std::int64_t place = 0;
    for (std::int64_t at = 0; at < sizes.count; ++at, ++indices) {
      const std::int64_t row = row_of(*indices, sizes[at], 1);
      if (row < 0) return Status::bad_index;
      place = place * sizes[at] + row;
    }
    for (std::int64_t i = 0; i < inner; ++i) meet(out[place * inner + i], *updates++, how);
  }
  return Status::ok;
}

/// How `around` fills elements outside of x.
enum : std::int64_t { kConstant = 0, kEdge = 1, kReflect = 2, kWrap = 3 };

/// Returns which of `left` elements has the value of index `at`, which may be outside of them; -1
/// for the constant.
inline std::int64_t place_around(std::int64_t at, std::int64_t left, std::int64_t mode) {
  if (at >= 0 && at < left) return at;
  if (mode == kConstant) return -1;
  if (mode == kEdge) return at < 0 ? 0 : left - 1;
  const std::int64_t turn = mode == kReflect ? most<std::int64_t>(2 * left - 2, 1) : left;
  const std::int64_t there = (at % turn + turn) % turn;
  return mode == kReflect && there >= left ? turn - there : there;
}

/// Pads x to out (shape). Along each axis, `low` elements of padding come before the `left`
/// elements of x that stay, the first of which is x's element `cut`. In the constant mode, padding
/// is *value, or 0 if `value` is null.
template <class T>
void around(T* out, const T* x, Optional<const T> value, const Dims& shape, const Dims& low,
            const Dims& left, const Dims& cut, const Dims& strides, std::int64_t mode) {
  const std::int64_t last = shape.count - 1;
  const T given = value ? *value : T();
  if (last < 0) return copy(out, x, 1);
  std::int64_t index[Dims::kMost] = {}, rows = 1;
  for (std::int64_t axis = 0; axis < last; ++axis) rows *= shape[axis];
  for (; rows > 0; --rows, out += shape[last]) {
    const T* from = x + cut[last];
    bool inside = true;
    for (std::int64_t axis = 0; axis < last; ++axis) {
      const std::int64_t at = place_around(index[axis] - low[axis], left[axis], mode);
      inside = inside && at >= 0;
      if (inside) from += (at + cut[axis]) * strides[axis];
    }
    if (!inside) std::fill_n(out, shape[last], given);
    for (std::int64_t k = 0; inside && k < shape[last]; ++k) {
      if (k == low[last] && left[last] > 0) {
        std::copy_n(from, left[last], out + k);
        k += left[last] - 1;
        continue;
      }
      const std::int64_t at = place_around(k - low[last], left[last], mode);
      out[k] = at < 0 ? given : from[at];
    }
    for (std::int64_t axis = last - 1; axis >= 0 && ++index[axis] == shape[axis]; --axis)
      index[axis] = 0;
  }
}

/// Reverses the steps of each sequence of x: (time, count, inner) if `time_major`, else (count,
/// time, inner).
template <class T, class I>
Status reverse(T* out, const T* x, const I* lengths, std::int64_t time, std::int64_t count,
               std::int64_t inner, std::int64_t time_major) {
  for (std::int64_t n = 0; n < count; ++n) {
    const std::int64_t length = lengths[n];
    if (length < 0 || length > time) return Status::bad_lengths;
    const auto row = [=](std::int64_t t) {
      return (time_major ? t * count + n : n * time + t) * inner;
    };
    for (std::int64_t t = 0; t < time; ++t)
      std::copy_n(x + row(t < length ? length - 1 - t : t), inner, out + row(t));
  }
  return Status::ok;
}

/// out (outer, depth, inner) = values[1] at the indices (outer, inner) along the axis `depth`, else
/// values[0].
template <class T, class I>
void one_hot(T* out, const I* indices, const T* values, std::int64_t outer, std::int64_t inner,
             std::int64_t depth) {
  for (std::int64_t i = 0; i < outer; ++i)
    for (std::int64_t k = 0; k < depth; ++k)
      for (std::int64_t j = 0; j < inner; ++j) {
        const std::int64_t hot = indices[i * inner + j];
        out[(i * depth + k) * inner + j] = values[(hot < 0 ? hot + depth : hot) == k];
      }
}

/// out (outer, chosen, inner) = the elements of x (outer, size, inner) whose condition is true.
template <class T>
Status compress(T* out, const T* x, const Truth* condition, std::int64_t given,
                std::int64_t& chosen, std::int64_t size, std::int64_t outer, std::int64_t inner) {
  std::int64_t found = 0;
  for (std::int64_t k = 0; k < given; ++k) {
    if (!condition[k]) continue;
    if (k >= size) return Status::bad_index;
    ++found;
  }
  chosen = found;
  for (std::int64_t i = 0; i < outer; ++i)
    for (std::int64_t k = 0, to = i * found; k < given; ++k)
      if (condition[k]) std::copy_n(x + (i * size + k) * inner, inner, out + to++ * inner);
  return Status::ok;
}

/// out (axes, chosen) = the indices of the elements of x (sizes) that are not 0.
template <class T>
void non_zero(std::int64_t* out, const T* x, std::int64_t& chosen, const Dims& sizes,
              const Dims& strides, std::int64_t count) {
  std::int64_t found = 0;
  for (std::int64_t k = 0; k < count; ++k) found += truth(x[k]);
  chosen = found;
  for (std::int64_t k = 0, to = 0; k < count; ++k) {
    if (!truth(x[k])) continue;
    for (std::int64_t axis = 0; axis < sizes.count; ++axis)
      out[axis * found + to] = k / strides[axis] % sizes[axis];
    ++to;
  }
}

/// out (outer, rows, columns) = x on and above diagonal k if `upper`, else on and below it; 0
/// elsewhere.
template <class T>
void trilu(T* out, const T* x, std::int64_t outer, std::int64_t rows, std::int64_t columns,
           std::int64_t k, std::int64_t upper) {
  for (std::int64_t n = 0; n < outer; ++n)
    for (std::int64_t i = 0; i < rows; ++i)
      for (std::int64_t j = 0; j < columns; ++j) {
        const std::int64_t place = (n * rows + i) * columns + j;
        out[place] = (upper ? j - i >= k : j - i <= k) ? x[place] : T();
      }
}

}  // namespace ONERNN_ISA
}  // namespace onernn

#endif
