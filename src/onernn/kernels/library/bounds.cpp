// Rules that say how many elements each function reads and writes, given its arguments.
#include "bounds.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <optional>

#include "../status.hpp"
#include "../windows.hpp"
#include "any_stack.hpp"

namespace onernn {
inline namespace ONERNN_ISA {

namespace {

constexpr std::int64_t kFar = std::int64_t(1) << 40;
constexpr std::int64_t kSide = std::int64_t(1) << 31;  // limits sides of planes and windows

std::int64_t up(std::int64_t count, std::int64_t by) { return (count + by - 1) / by; }

/// The arguments of a call, which its rule reads by their index.
class Args {
 public:
  /// `most`: the bytes that a run may use.
  Args(const Function& function, const std::int64_t* words, const std::int64_t* sizes,
       const Frame* frame, std::int64_t most)
      : name_(function.name), frame_(frame), most_(most) {
    const std::int64_t* at = words + 2;
    int of_dims = 0;
    for (std::size_t i = 0; function.takes[i]; ++i) switch (function.takes[i]) {
        case 'r':
        case 'w':
          place_[i] = *at++;
          number_[i] = *at++;
          number_[i] = place_[i] < 0 ? 0 : sizes[number_[i]];
          break;
        case 's':
        case 'f':
          number_[i] = sizes[*at++];
          break;
        case 'd':
          ++at;
          break;
        case 'D': {
          Dims& dims = dims_[of_dims];
          number_[i] = of_dims++;
          dims.count = *at++;
          for (std::int64_t k = 0; k < dims.count; ++k) dims.size[k] = sizes[*at++];
        }
      }
  }

  std::int64_t operator[](int i) const { return number_[i]; }
  /// Returns a size argument as a Count, for products.
  Count of(int i) const { return number_[i]; }
  const Dims& dims(int i) const { return dims_[number_[i]]; }
  Count all(int i) const {
    Count result = 1;
    for (std::int64_t k = 0; k < dims(i).count; ++k) result = result * dims(i)[k];
    return result;
  }
  bool has(int i, Count count) const { return place_[i] >= 0 && count.within(number_[i]); }
  bool may(int i, Count count) const { return place_[i] < 0 || has(i, count); }
  /// Says whether the function may allocate so many bytes.
  bool takes(Count bytes) const { return bytes.within(most_); }
  /// Returns `count` integers of argument i, or null if a step has not written so many.
  const std::int64_t* numbers(int i, Count count) const {
    if (!has(i, count) || !count.within(frame_->readable[place_[i]] / 8)) return nullptr;
    return static_cast<const std::int64_t*>(frame_->places[place_[i]]);
  }
  /// Says whether argument i holds valid offsets of `sequences` sequences, and argument `of` has
  /// all of their rows of `inner` numbers.
  bool divides(int i, std::int64_t sequences, int of, Count inner) const {
    const std::int64_t* const offsets = numbers(i, Count(sequences) + 1);
    return offsets && are_offsets(offsets, sequences) && has(of, Count(offsets[sequences]) * inner);
  }
  std::int64_t rows(int i, std::int64_t sequences) const {
    return numbers(i, Count(sequences) + 1)[sequences];
  }
  /// Returns the number at the end of the function's name.
  std::int64_t beside() const { return std::atoi(std::strrchr(name_, ',') + 1); }

 private:
  static constexpr int kMostArguments = 24, kMostDims = 6;

  const char* name_;
  const Frame* frame_;
  std::int64_t most_;
  std::int64_t place_[kMostArguments], number_[kMostArguments];
  Dims dims_[kMostDims];
};

/// Returns how many elements an array must have so that these strides stay inside. Axis `but` is
/// left out.
Count reach(const Dims& sizes, const Dims& strides, std::int64_t but = -1) {
  Count last = 0;
  for (std::int64_t at = 0; at < sizes.count; ++at)
    if (at != but) last = last + Count(sizes[at] - 1) * strides[at];
  return last + 1;
}

/// Windows over planes, if all sums and products of their sizes are within 64 bits.
std::optional<Windows> windows(const Dims& x, const Dims& y, const Dims& of) {
  if (x.count < 2 || y.count < 2 || of.count != 8) return {};
  for (const Dims* each : {&x, &y, &of})
    for (std::int64_t k = 0; k < each->count; ++k)
      if ((*each)[k] < 0 || (*each)[k] >= kSide) return {};
  for (int k = 0; k < 6; ++k)
    if (of[k] < 1) return {};
  const Windows w(x, y, of);
  if (w.taps() >= kFar || w.row.extent() >= kFar || w.column.extent() >= kFar) return {};
  return w;
}
/// The same for channels of planes, in `groups` groups.
std::optional<Windows> windows(const Dims& x, const Dims& y, const Dims& of, std::int64_t groups) {
  if (x.count < 3 || y.count < 3 || groups < 1 || x[0] % groups || y[0] % groups) return {};
  return windows(x, y, of);
}

bool convolves(const Args& a) {
  const Dims &x = a.dims(7), &y = a.dims(8);
  const std::int64_t groups = a[10], G = a.beside();
  const auto w = windows(x, y, a.dims(9), groups);
  if (!w) return false;
  const std::int64_t M = y[0] / groups;
  const Count K = Count(w->taps()) * (x[0] / groups);
  const Surroundings around(*w);
  const Count copy = Count(around.phase_rows) * around.phase_columns * around.rows * around.columns;
  return a.has(0, a.of(6) * y[0] * w->places()) && a.has(1, a.of(6) * x[0] * w->seen()) &&
         a.has(2, Count(groups) * up(M, G * 16) * K * (G * 16)) && a.may(3, y[0]) && a.has(5, K) &&
         (w->are_few(M) ? a.has(4, K * 24) : !around.copied || a.has(4, copy * x[0]));
}

/// Returns the bytes of rows of K numbers in quads.
Count bytes_of_rows(Count rows, std::int64_t K) { return rows * (Count(up(K, 16)) * 32 + 20); }

bool convolves_bytes(const Args& a) {
  const Dims &x = a.dims(7), &y = a.dims(8);
  const std::int64_t groups = a[10], G = a.beside();
  const auto w = windows(x, y, a.dims(9), groups);
  if (!w) return false;
  const std::int64_t C = x[0] / groups;
  const Count K = Count(w->taps()) * C, channels = Count(up(y[0] / groups, G * 16)) * (G * 16);
  return K.within(kFar) && a.has(0, a.of(6) * y[0] * w->places()) &&
         a.has(1, a.of(6) * x[0] * w->seen()) && a.may(2, 1) &&
         a.takes(bytes_of_rows(48, K.value())) &&
         a.has(3, Count(groups) * (2 + up(K.value(), 4)) * channels * 4) &&
         a.may(4, Count(groups) * channels) &&
         a.has(5, Count(w->row.span()) * w->column.span() * C);
}

/// Products of rows of x and panels of bytes: the arguments are y, x, rows, K, panels, columns.
bool multiplies_bytes(const Args& a) {
  const std::int64_t K = a[4], G = a.beside();
  if (K < 0 || K > kFar || a[7] < 0 || a[7] > kFar) return false;
  const Count columns = Count(up(a[7], G * 16)) * (G * 16);
  return a.has(0, a.of(3) * a.of(7)) && a.has(1, a.of(3) * K) && a.may(2, 1) &&
         a.takes(bytes_of_rows(a.of(3), K)) && a.has(5, columns * (2 + up(K, 4)) * 4) &&
         a.may(6, columns);
}

bool runs_lstm(const Args& a) {
  const std::int64_t I = a[10], O = a[11], D = a[12];
  if (I < 0 || O < 0 || D < 1 || D > 2 || I > kSide || O > kSide) return false;
  const std::int64_t panels = up(O, 16);
  const Count words = a.of(8) * a.of(9), wide = Count(D) * panels * 64;
  const Count state = Count(D) * a.of(9) * O;
  const Count own =
      bytes_of_rows(words, I) + bytes_of_rows(a.of(9), O) + a.of(9) * (Count(panels) * 128 + 16);
  return a.takes(own) && a.has(0, words * D * O) && a.may(1, state) && a.may(2, state) &&
         a.has(3, words * panels * 64) && a.has(4, words * I) && a.may(5, a.of(9)) &&
         a.may(6, state) && a.may(7, state) && a.has(14, wide * (2 + up(I, 4)) * 4) &&
         a.has(15, wide * (2 + up(O, 4)) * 4) && a.may(16, wide) && a.may(17, wide) &&
         a.has(18, wide) && a.has(19, Count(D) * panels * 48);
}

/// Padding: along every axis, `low` elements come first, then the `left` elements of x that stay,
/// then further padding.
bool pads(const Args& a) {
  const Dims &shape = a.dims(3), &low = a.dims(4), &left = a.dims(5), &cut = a.dims(6);
  const Dims& strides = a.dims(7);
  for (const Dims* each : {&low, &left, &cut, &strides})
    if (each->count != shape.count) return false;
  Count end = 1;
  bool empty = false;
  for (std::int64_t k = 0; k < shape.count; ++k) {
    if (!Count(low[k]).within(kFar) || !(Count(low[k]) + left[k]).within(shape[k])) return false;
    empty = empty || left[k] == 0;
    end = end + (Count((std::max)(left[k], std::int64_t(1)) - 1) + cut[k]) * strides[k];
  }
  return a.has(0, a.all(3)) && a.may(2, 1) && (shape.count == 0 || strides[shape.count - 1] == 1) &&
         (empty ? a[8] == 0 || a.all(3).value() == 0 : a.has(1, end));
}

/// Each sequence of x is appended to the same sequence of out. The arguments are out, ends,
/// offsets, x, offsets of x.
bool joins(const Args& a) {
  const std::int64_t count = a[5];
  if (!a.divides(4, count, 3, a.of(6)) || !a.has(1, a.of(5)) || !a.divides(2, count, 0, a.of(6)))
    return false;
  const std::int64_t *const from = a.numbers(4, a.of(5) + 1), *const ends =
                                                                  a.numbers(a[7] ? 2 : 1, a.of(5));
  if (!ends) return false;
  for (std::int64_t n = 0; n < count; ++n)
    if (!a.has(0, (Count(ends[n]) + (from[n + 1] - from[n])) * a.of(6))) return false;
  return true;
}

/// Updates are written to elements of out, a copy of x. The arguments are out, x, indices, updates.
bool scatters(const Args& a) {
  const Dims &sizes = a.dims(7), &strides = a.dims(8);
  const std::int64_t axis = a[5];
  if (axis < 0 || axis >= sizes.count || strides.count != sizes.count) return false;
  const Count count = a.all(7), last = Count((std::max)(a[6], std::int64_t(1)) - 1) * strides[axis];
  return a.has(0, a.of(4)) && a.has(1, a.of(4)) && a.has(2, count) && a.has(3, count) &&
         (count.value() == 0 || a.has(0, reach(sizes, strides, axis) + last));
}

bool finds_places(const Args& a) {
  const Dims &sizes = a.dims(3), &strides = a.dims(4);
  for (std::int64_t k = 0; k < sizes.count; ++k)
    if (a[5] > 0 && (k >= strides.count || sizes[k] < 1 || strides[k] < 1)) return false;
  return a.has(0, a.of(5) * sizes.count) && a.has(1, a.of(5));
}

bool pools(const Args& a) {
  const auto w = windows(a.dims(3), a.dims(4), a.dims(5));
  return w && w->taps() <= kSide / 2048 && a.has(0, a.of(2) * w->places()) &&
         a.has(1, a.of(2) * w->seen());
}

bool convolves_back(const Args& a) {
  const Dims &x = a.dims(5), &y = a.dims(6);
  const std::int64_t groups = a[8];
  const auto w = windows(y, x, a.dims(7), groups);  // windows go over y
  return w && a.has(0, a.of(4) * y[0] * w->seen()) && a.has(1, a.of(4) * x[0] * w->places()) &&
         a.has(2, Count(x[0]) * (y[0] / groups) * w->taps()) && a.may(3, y[0]);
}

bool transforms(const Args& a) {
  const std::int64_t count = a[11], parts = a[7], results = a[10];
  const auto one_or_two = [](std::int64_t number) { return number == 1 || number == 2; };
  if (count < 1 || count >= kSide || !one_or_two(parts) || !one_or_two(results)) return false;
  const auto rows = [&](int i, const Dims& sizes, const Dims& strides, std::int64_t width) {
    if (sizes.count != 3 || strides.count != 3) return false;
    bool empty = false;
    for (int k = 0; k < 3; ++k) {
      if (sizes[k] < 0 || strides[k] < 0) return false;
      empty = empty || sizes[k] == 0;
    }
    return (Count(sizes[0]) * sizes[1] * count).within(kFar) &&
           (empty || a.has(i, reach(sizes, strides) + (width - 1)));
  };
  const Dims &from = a.dims(5), &to = a.dims(8);
  return rows(1, from, a.dims(6), parts) && rows(0, to, a.dims(9), results) && to[2] <= count &&
         from[0] == to[0] && from[1] == to[1] && a.may(2, from[2]) && a.has(3, Count(count) * 2) &&
         a.has(4, Count(count) * 6);
}

bool sentences(const Args& a, int out, Count inner) {
  return a.divides(2, a[3], 1, inner) && a.has(out, Count(a.rows(2, a[3])) * inner);
}
/// Says whether each pointer has as many elements as `counts` says.
bool fits(const Counts& counts, const char* takes, const Args& a) {
  const Counts::Pointer* pointer = counts.pointer;
  for (int i = 0; takes[i]; ++i) {
    if (takes[i] != 'r' && takes[i] != 'w') continue;
    Count count = 1;
    for (int k = 0; k < pointer->sizes; ++k) count = count * a.of(pointer->size[k]);
    if (!(pointer->may ? a.may(i, count) : a.has(i, count))) return false;
    ++pointer;
  }
  return true;
}
bool near(std::int64_t number) { return number > -kFar && number < kFar; }

}  // namespace

/// `contents`: the function reads some arguments twice, such as offsets. So the rule is checked in
/// every run, and the function may not write to what the rule has read.
struct Rule {
  const char* function;
  bool contents;
  bool (*holds)(const Args&);
};

namespace {
#define RULE(name, condition) {name, false, [](const Args& a) -> bool { return condition; }}
#define IN_EVERY_RUN(name, condition) {name, true, [](const Args& a) -> bool { return condition; }}
constexpr Rule kRules[] = {
    {"scatter_elements", false, scatters},
    RULE("scatter_nd", a.has(0, a.all(4) * a.of(6)) && a.has(1, a.all(4) * a.of(6)) &&
                           a.has(2, a.of(5) * a.dims(4).count) && a.has(3, a.of(5) * a.of(6))),
    RULE("tell", a.has(0, a.dims(1).count)),
    RULE("range", a.has(0, a.of(2)) && near(a[1])),
    RULE("gather_nd", a.has(0, a.of(4) * a.of(5) * a.of(6)) &&
                          a.has(1, a.of(4) * a.all(3) * a.of(6)) &&
                          a.has(2, a.of(4) * a.of(5) * a.dims(3).count)),
    RULE("one_hot",
         a.has(0, a.of(3) * a.of(5) * a.of(4)) && a.has(1, a.of(3) * a.of(4)) && a.has(2, 2)),
    {"around", false, pads},
    IN_EVERY_RUN("compress", a.has(0, a.of(6) * (std::min)(a[3], a[5]) * a.of(7)) &&
                                 a.has(1, a.of(6) * a.of(5) * a.of(7)) && a.has(2, a.of(3))),
    {"non_zero", true, finds_places},
    RULE("find_longest", a.has(1, a.of(2) + 1)),
    RULE("take_offsets", a.has(0, a.of(2) + 1) && a.has(1, a.of(2) + 1)),
    IN_EVERY_RUN("append_offsets", a.has(0, a.of(2) + a.of(4) + 1) && a.has(1, a.of(4) + 1)),
    RULE("append", a.has(0, a.of(2) + a.of(3)) && a.has(1, a.of(3))),
    RULE("add_offsets", a.has(0, a.of(2) + 1) && a.has(1, a.of(2) + 1)),
    {"join", true, joins},
    RULE("lengths", a.has(0, a.of(2)) && a.has(1, a.of(2) + 1)),
    IN_EVERY_RUN("pad", a.divides(2, a[6], 1, a.of(7)) && a.has(0, a.of(5) * a.of(6) * a.of(7)) &&
                            (a[4] ? a.has(3, a.of(7)) : a.may(3, 1))),
    RULE("unpad", a.has(0, a.of(5) * a.of(6) * a.of(7)) && a.has(1, a.of(5) * a.of(6) * a.of(7)) &&
                      a.has(2, a.of(6)) && a.has(3, a.of(6) + 1)),
    IN_EVERY_RUN("pool", a.divides(2, a[3], 1, a.of(4)) && a.has(0, a.of(3) * a.of(4))),
    IN_EVERY_RUN("reverse_sentences", sentences(a, 0, a.of(4))),
    IN_EVERY_RUN("sentence_softmax", sentences(a, 0, 1)),
    IN_EVERY_RUN("context", a.divides(2, a[3], 1, a.of(4)) && near(a[5]) && near(a[6]) &&
                                a.has(0, Count(a.rows(2, a[3])) * a.of(5) * a.of(4))),
    IN_EVERY_RUN("expand", a.divides(2, a[3], 0, a.of(4)) && a.has(1, a.of(3) * a.of(4))),
    IN_EVERY_RUN("viterbi", a.divides(3, a[4], 1, a.of(5)) && a.has(2, (a.of(5) + 2) * a.of(5)) &&
                                a.has(0, a.rows(3, a[4])) && a.has(6, a.of(5) * 2) &&
                                a.has(7, Count(a.rows(3, a[4])) * a.of(5)) && a[5] > 0),
    RULE("group_norm", a.has(0, a.of(4) * a.of(5) * a.of(6)) &&
                           a.has(1, a.of(4) * a.of(5) * a.of(6)) && a.has(2, a.of(5)) &&
                           a.has(3, a.of(5)) && a[7] <= (std::max)(a[5], std::int64_t(1))),
    IN_EVERY_RUN("top_k",
                 a.has(0, a.of(4) * a.of(7) * a.of(6)) && a.may(1, a.of(4) * a.of(7) * a.of(6)) &&
                     a.has(2, a.of(4) * a.of(5) * a.of(6)) && a.has(3, a.of(5)) && a[7] <= a[5]),
    RULE("dense", near(a[6]) && a.has(0, a.of(2) * a.of(6)) && a.has(1, a.of(2) * a.of(3)) &&
                      a.has(4, Count(up(a[6], a.beside() * 16)) * (a.beside() * 16) * a.of(3)) &&
                      a.may(5, a.of(6))),
    RULE("pack", near(a[3]) && a.has(1, a.of(2) * a.of(3) * a.of(4)) &&
                     a.has(0, a.of(2) * up(a[3], a.beside() * 16) * (a.beside() * 16) * a.of(4))),
    {"convolve", false, convolves},
    {"convolve_back", false, convolves_back},
    {"max_pool", false, pools},
    {"average_pool", false, pools},
    {"dense_bytes", false, multiplies_bytes},
    {"convolve_bytes", false, convolves_bytes},
    {"quantized_lstm", false, runs_lstm},
    {"spectra", false, transforms},
};
}  // namespace

bool are_offsets(const std::int64_t* offsets, std::int64_t count) {
  for (std::int64_t n = 0; n < count; ++n)
    if (offsets[n] > offsets[n + 1]) return false;
  return offsets[0] == 0;
}

const Rule* rule_of(const char* function) {
  const std::size_t length = std::strcspn(function, ":");
  for (const Rule& each : kRules)
    if (std::strlen(each.function) == length && !std::strncmp(each.function, function, length))
      return &each;
  return nullptr;
}

bool depends_on_contents(const Rule* rule) { return rule && rule->contents; }

Count bytes_of_panels(std::int32_t stored, std::int64_t K, std::int64_t gates, std::int64_t units) {
  std::int64_t rows = K, width = 4;
  if (stored == ONERNN_F16) width = 2;
  if (stored == ONERNN_F64) width = 8;
  if (stored == ONERNN_BF16) rows = up(K, 2);
  if (stored == ONERNN_S8) rows = 2 + up(K, 4);
  if (stored == ONERNN_W8) rows = up(K, 1 << 16) + up(K, 4);
  return Count(rows) * gates * up(units, 16) * 16 * width;
}

bool are_parts(const onernn_spec& spec, const onernn_part* parts, std::int64_t bytes) {
  constexpr std::int64_t kMost = 1 << 24;
  const auto flag = [](std::int32_t one) { return one == 0 || one == 1; };
  for (const std::int32_t one :
       {spec.backwards, spec.added, spec.joined, spec.cell_nan_is_low, spec.attention,
        spec.replaces, spec.peephole, spec.input_forget, spec.projection})
    if (!flag(one)) return false;
  for (const std::int64_t size : {spec.inputs, spec.units, spec.width})
    if (size < 1 || size > kMost) return false;
  const bool lstm = spec.cell == ONERNN_LSTM, gru = spec.cell == ONERNN_GRU;
  if ((!spec.projection && spec.width != spec.units) ||
      ((spec.projection || spec.peephole) && !lstm) ||
      (spec.attention && !gru && spec.cell != ONERNN_LBR_GRU))
    return false;
  const std::int64_t real = spec.stored == ONERNN_F64 ? 8 : 4, gates = gates_of(spec);
  const std::int64_t rows_of_bias = spec.cell == ONERNN_LBR_GRU ? 4 : gates;
  const auto fits = [bytes](std::int64_t begin, Count size) {
    return begin >= 0 && begin % 64 == 0 && (Count(begin) + size).within(bytes);
  };
  const auto panels = [&](std::int64_t K, std::int64_t matrices, std::int64_t units) {
    return bytes_of_panels(spec.stored, K, matrices, units);
  };
  const Count units = Count(up(spec.units, 16)) * 16 * real;
  for (std::int64_t at = 0; at < std::int64_t(spec.layers) * spec.directions; ++at) {
    const onernn_part& part = parts[at];
    const std::int64_t inputs = at < spec.directions ? spec.inputs
                                : spec.joined        ? joined_width(spec)
                                                     : spec.width;
    if (!fits(part.bias, units * rows_of_bias) ||
        !fits(part.recurrent, panels(spec.width, gru ? 2 : gates, spec.units)) ||
        (gru && !fits(part.candidate, panels(spec.width, 1, spec.units))) ||
        (spec.peephole && !fits(part.peephole, units * 3)) ||
        (spec.projection && !fits(part.projection, panels(spec.units, 1, spec.width))))
      return false;
    if (part.input < 0 ? inputs != gates * spec.units
                       : !fits(part.input, panels(inputs, gates, spec.units)))
      return false;
  }
  return true;
}

bool Bounds::bind(const std::int64_t* sizes, std::int64_t most) {
  most_ = most;
  for (std::size_t at = 0; at < steps_.size(); ++at)
    settled_[at] = !steps_[at].always && holds(steps_[at], sizes, nullptr, most);
  return true;
}

bool Bounds::holds(const Guarded& step, const std::int64_t* sizes, const Frame* frame,
                   std::int64_t most) const {
  const std::int64_t* at = step.words;
  if (step.kind == kCall) {
    const Function& function = *step.function;
    const Args args(function, at, sizes, frame, most);
    return function.counts ? fits(*function.counts, function.takes, args) : step.rule->holds(args);
  }
  if (step.kind == kNest) {
    Count turns = 1;
    for (std::int64_t axis = 0; axis < at[0]; ++axis)
      turns = turns * (std::max)(sizes[at[1 + axis]], std::int64_t(0));
    return turns.within((Count(sizes[step.room]) * 8).value());
  }
  if (step.kind != kLayer) return true;
  const onernn_spec& spec = *step.spec;
  const auto& layer = *reinterpret_cast<const LayerWords*>(at);
  const std::int64_t N = sizes[layer.sequences];
  const auto has = [&](const LayerWords::Array& one, Count count) {
    return one.place < 0 || count.within(sizes[one.numbers]);
  };
  Count words = Count(sizes[layer.steps]) * N;
  if (layer.layout == ONERNN_LOD) {
    const std::int64_t place = layer.offsets.place;
    const auto* const offsets = static_cast<const std::int64_t*>(frame->places[place]);
    if (!has(layer.offsets, Count(N) + 1) || !(Count(N) + 1).within(frame->readable[place] / 8) ||
        !are_offsets(offsets, N))
      return false;
    words = offsets[N];
  }
  const Count states = Count(spec.layers) * spec.directions * N;
  const Count own = (words + N + 64) * (spec.inputs + 8 * (spec.units + spec.width)) * 8;
  return own.within(most) && has(layer.x, words * spec.inputs) && has(layer.attention, words) &&
         has(layer.h, states * spec.width) && has(layer.c, states * spec.units) &&
         has(layer.y, words * joined_width(spec)) && has(layer.h_n, states * spec.width) &&
         has(layer.c_n, states * spec.units) && has(layer.cells, words * spec.units);
}

}  // namespace ONERNN_ISA
}  // namespace onernn
