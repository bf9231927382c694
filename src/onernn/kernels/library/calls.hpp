// Functions that steps of a plan call, by their names, with arguments read from integers of 64
// bits.
#ifndef ONERNN_CALLS_HPP
#define ONERNN_CALLS_HPP

#include <cstdint>
#include <cstring>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "../isa.hpp"
#include "../moves.hpp"
#include "../status.hpp"
#include "../team.hpp"
#include "exported.hpp"

namespace onernn {
inline namespace ONERNN_ISA {

/// The inputs of a step: addresses of values, sizes, and threads.
struct Frame {
  void** places;
  std::int64_t* sizes;
  Team* team;
  std::int64_t* readable;     // bytes from each place on: none before a step has written there
  std::int64_t* writable;     // bytes from each place on
  const std::int64_t* roots;  // the place of the value that contains each one
  bool sound = true;          // so far every step reads and writes only what is there

  /// Returns where a step reads its arguments before argument `end`.
  const void* read(std::int64_t place, std::int64_t end, std::int64_t width) {
    sound = sound && fits(end, width, readable[place]);
    return places[place];
  }
  /// Where it writes them, from now on to be read.
  void* write(std::int64_t place, std::int64_t end, std::int64_t width) {
    sound = sound && fits(end, width, writable[place]);
    written(place);
    return places[place];
  }
  void written(std::int64_t place) {
    readable[place] = writable[place];
    readable[roots[place]] = writable[roots[place]];
  }

 private:
  static bool fits(std::int64_t end, std::int64_t width, std::int64_t bytes) {
    std::int64_t taken;
    return end >= 0 && !__builtin_mul_overflow(end, width, &taken) && taken <= bytes;
  }
};

using Numbers = std::vector<std::int64_t>;

/// The kinds of a plan's steps.
enum : std::int64_t { kCall, kNest, kLayer, kOutside, kView, kJump, kRefuse };

/// The integers of a step that runs a layer: indices of sizes, and places of arrays, -1 for absent
/// ones.
struct LayerWords {
  struct Array {
    std::int64_t place, numbers, width;
  };
  std::int64_t layer, layout, steps, sequences, holds_finite;
  Array offsets, x, attention, h, c, y, h_n, c_n, cells;
};

/// Reads the integers of a step one after the other.
class Words {
 public:
  explicit Words(const std::int64_t* at) : at_(at) {}
  std::int64_t next() { return *at_++; }

 private:
  const std::int64_t* at_;
};

/// How an argument of a function is read; `kLetter` is what kernels.h calls it.
template <class T>
struct Argument;
template <class T>
struct Argument<const T*> {
  static constexpr char kLetter = 'r';
  const T* value;
  Argument(Frame& frame, Words& words) {
    const std::int64_t place = words.next(), count = words.next();
    value = place < 0 ? nullptr
                      : static_cast<const T*>(frame.read(place, frame.sizes[count], sizeof(T)));
  }
};
template <class T>
struct Argument<T*> {
  static constexpr char kLetter = 'w';
  T* value;
  Argument(Frame& frame, Words& words) {
    const std::int64_t place = words.next(), count = words.next();
    value =
        place < 0 ? nullptr : static_cast<T*>(frame.write(place, frame.sizes[count], sizeof(T)));
  }
};
template <>
struct Argument<std::int64_t> {
  static constexpr char kLetter = 's';
  std::int64_t value;
  Argument(Frame& frame, Words& words) : value(frame.sizes[words.next()]) {}
};
template <>
struct Argument<std::int64_t&> {
  static constexpr char kLetter = 'f';
  std::int64_t& value;
  Argument(Frame& frame, Words& words) : value(frame.sizes[words.next()]) {}
};
template <>
struct Argument<double> {
  static constexpr char kLetter = 'd';
  double value;
  Argument(Frame&, Words& words) {
    const std::int64_t bits = words.next();
    std::memcpy(&value, &bits, sizeof value);
  }
};
template <>
struct Argument<const Dims&> {
  static constexpr char kLetter = 'D';
  Dims value;
  Argument(Frame& frame, Words& words) {
    value.count = words.next();
    for (std::int64_t at = 0; at < value.count; ++at) value.size[at] = frame.sizes[words.next()];
  }
};
template <>
struct Argument<Team&> {
  static constexpr char kLetter = 't';
  Team& value;
  Argument(Frame& frame, Words&) : value(*frame.team) {}
};

/// The bytes of a number that an argument points to; 0: it is no pointer.
template <class T>
constexpr std::uint8_t kWidthOf = 0;
template <class T>
constexpr std::uint8_t kWidthOf<T*> = sizeof(T);

/// How many numbers an argument points to: the product of the sizes that these arguments hold, 1
/// for none. `May`: it may be null.
template <int... Sizes>
struct Of {};
template <int... Sizes>
struct May {};
/// More than products decides: kRules of bounds.cpp has a rule of the function's name.
struct ByRule {};

/// The counts of a function's pointers, in their order.
struct Counts {
  struct Pointer {
    bool may;
    int sizes;
    int size[4];  // arguments
  };
  int pointers;
  Pointer pointer[8];
};
template <int... Sizes>
constexpr Counts::Pointer pointer(Of<Sizes...>) {
  return {false, sizeof...(Sizes), {Sizes...}};
}
template <int... Sizes>
constexpr Counts::Pointer pointer(May<Sizes...>) {
  return {true, sizeof...(Sizes), {Sizes...}};
}
template <class... Pointers>
inline constexpr Counts kCountsOf = {sizeof...(Pointers), {pointer(Pointers())...}};
template <class... Pointers>
inline constexpr const Counts* kCounts = &kCountsOf<Pointers...>;
template <>
inline constexpr const Counts* kCounts<ByRule> = nullptr;  // Clang exports it without `inline`

/// A function that steps call. `counts`: null if a rule says them.
struct Function {
  const char* name;
  const char* takes;
  const std::uint8_t* widths;  // of each argument
  Status (*run)(Frame&, Words);
  const Counts* counts;
};

template <auto F>
struct Caller;
template <class R, class... A, R (*F)(A...)>
struct Caller<F> {
  static constexpr char kTakes[] = {Argument<A>::kLetter..., 0};
  static constexpr std::uint8_t kWidths[] = {kWidthOf<A>..., 0};
  static constexpr int kPointers = (0 + ... + int(kWidthOf<A> != 0));

  static Status run(Frame& frame, Words words) {
    std::tuple<Argument<A>...> read{Argument<A>(frame, words)...};  // braces: in their order
    if (!frame.sound) return Status::bad_sizes;
    return std::apply(
        [](auto&... each) {
          if constexpr (std::is_void_v<R>)
            return F(each.value...), Status::ok;
          else
            return F(each.value...);
        },
        read);
  }
};

/// `Pointers`: Of or May for each argument that is a pointer, or ByRule: what a file may name is
/// checked by it.
template <auto F, class... Pointers>
constexpr Function function(const char* name) {
  static_assert(std::is_same_v<std::tuple<Pointers...>, std::tuple<ByRule>> ||
                    sizeof...(Pointers) == Caller<F>::kPointers,
                "say how many numbers each pointer has: Of<...>, May<...>, or ByRule for all");
  return {name, Caller<F>::kTakes, Caller<F>::kWidths, Caller<F>::run, kCounts<Pointers...>};
}

/// Looks at each step before it runs; a plan that Python has made needs none.
struct Guard {
  virtual ~Guard() = default;
  /// For sizes that a workspace was bound to. False if a step would leave its memory.
  virtual bool bind(const std::int64_t* sizes, std::int64_t most) = 0;
  /// Whether a step may run: ONERNN_DONE, ONERNN_UNSOUND or ONERNN_TOO_LARGE.
  virtual std::int32_t check(std::int64_t step, const Frame& frame) const = 0;
};
void set_guard(onernn_workspace& workspace, Guard* guard);
/// Why sizes were refused: one of the dims and the number that it had to be (-1: none is wrong by
/// itself), and the bytes of a run.
struct Misfit {
  std::int64_t dim = -1, expected = 0, bytes = 0;
};
const Misfit& misfit_of(const onernn_workspace& workspace);
/// Frees the memory of values; the workspace has to be bound again.
void release(onernn_workspace& workspace);
/// Bytes that may be read at a place.
std::int64_t readable(const onernn_workspace& workspace, std::int64_t place);

// Of functions for numbers that only move, u1, u2, u4 and u8: of one, two, four and eight bytes.
using u1 = std::uint8_t;
using u2 = std::uint16_t;
using u4 = std::uint32_t;
using u8 = std::uint64_t;
using int32 = std::int32_t;
using int64 = std::int64_t;
#define ONERNN_MOVED(name, ...)                                                                 \
  function<&name<u1>, __VA_ARGS__>(#name ":u1"), function<&name<u2>, __VA_ARGS__>(#name ":u2"), \
      function<&name<u4>, __VA_ARGS__>(#name ":u4"), function<&name<u8>, __VA_ARGS__>(#name ":u8")
#define ONERNN_INDEXED_OF(name, type, ...)                             \
  function<&name<type, int32>, __VA_ARGS__>(#name ":" #type ",int32"), \
      function<&name<type, int64>, __VA_ARGS__>(#name ":" #type ",int64")
#define ONERNN_INDEXED(name, ...)                                                     \
  ONERNN_INDEXED_OF(name, u1, __VA_ARGS__), ONERNN_INDEXED_OF(name, u2, __VA_ARGS__), \
      ONERNN_INDEXED_OF(name, u4, __VA_ARGS__), ONERNN_INDEXED_OF(name, u8, __VA_ARGS__)

/// A table of functions.
struct Functions {
  const Function* first;
  std::int64_t count;
};
// One source each, so that they compile side by side.
Functions moves();
Functions sequences();
Functions axes();
Functions products();
Functions convolutions();
Functions quantized();

/// out[i] = a function of the i-th numbers of all arguments.
struct Formula {
  const char* name;
  void (*run)(void* out, const void* const* arguments, std::int64_t count);
  const std::uint8_t* widths;  // bytes of a result, of each argument; then 0
};
struct Formulas {
  const Formula* first;
  std::int64_t count;
};
Formulas formulas();

}  // namespace ONERNN_ISA
}  // namespace onernn

#endif
