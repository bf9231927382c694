// Functions that a plan's steps call by their names. The arguments are read from 64-bit integers.
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

/// The addresses, sizes and threads to which a step's arguments refer. A place is an index into
/// `places`, the table of addresses.
struct Frame {
  void** places;
  std::int64_t* sizes;
  Team* team;
  std::int64_t* readable;     // Per place: bytes that may be read; 0 until a step has written.
  std::int64_t* writable;     // Per place: bytes that may be written.
  const std::int64_t* roots;  // Per place: the place of the value that contains it.
  bool sound = true;          // So far, every step has stayed inside its memory.

  /// Returns the address of an argument that is read. Clears `sound` if fewer than `end` elements
  /// of `width` bytes may be read.
  const void* read(std::int64_t place, std::int64_t end, std::int64_t width) {
    sound = sound && fits(end, width, readable[place]);
    return places[place];
  }
  /// Returns the address of an argument that is written, and lets later steps read it.
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

/// The integers of a step that runs a layer: indices of sizes, and places of arrays. -1 means that
/// an array is absent.
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

/// Reads one argument of a function from a step's integers. `kLetter` is the letter of its type in
/// `takes` of onernn_call.
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

/// The bytes of an element that a pointer argument points to; 0 if the argument is not a pointer.
template <class T>
constexpr std::uint8_t kWidthOf = 0;
template <class T>
constexpr std::uint8_t kWidthOf<T*> = sizeof(T);

/// Says how many elements a pointer argument has: the product of the arguments with these indices,
/// which are sizes; 1 without indices. `May`: the pointer may also be null.
template <int... Sizes>
struct Of {};
template <int... Sizes>
struct May {};
/// Says that the counts are not products of sizes: kRules in bounds.cpp has a rule for the
/// function.
struct ByRule {};

/// How many elements each pointer argument of a function has.
struct Counts {
  struct Pointer {
    bool may;
    int sizes;
    int size[4];  // indices of arguments
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
inline constexpr const Counts* kCounts<ByRule> = nullptr;  // without `inline` Clang would export it

/// A function that steps call. `counts`: null if a rule in bounds.cpp replaces it.
struct Function {
  const char* name;
  const char* takes;
  const std::uint8_t* widths;  // bytes per element, of each argument
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
    std::tuple<Argument<A>...> read{Argument<A>(frame, words)...};  // braces: read in their order
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

/// `Pointers`: an Of or a May for each argument that is a pointer, or ByRule: these limit what the
/// function may access if a file names it.
template <auto F, class... Pointers>
constexpr Function function(const char* name) {
  static_assert(std::is_same_v<std::tuple<Pointers...>, std::tuple<ByRule>> ||
                    sizeof...(Pointers) == Caller<F>::kPointers,
                "say how many numbers each pointer has: Of<...>, May<...>, or ByRule for all");
  return {name, Caller<F>::kTakes, Caller<F>::kWidths, Caller<F>::run, kCounts<Pointers...>};
}

/// Checks each step before it runs. Only plans from files have a guard, not plans that Python has
/// made.
struct Guard {
  virtual ~Guard() = default;
  /// Checks the steps for the sizes that a workspace was bound to. Returns false if a step would
  /// leave its memory.
  virtual bool bind(const std::int64_t* sizes, std::int64_t most) = 0;
  /// Returns whether a step may run: ONERNN_DONE, ONERNN_UNSOUND or ONERNN_TOO_LARGE.
  virtual std::int32_t check(std::int64_t step, const Frame& frame) const = 0;
};
void set_guard(onernn_workspace& workspace, Guard* guard);
/// Why sizes were refused: the index of the wrong one of the inputs' sizes (-1: none is wrong by
/// itself), the number that was expected, and the bytes that a run would take.
struct Misfit {
  std::int64_t dim = -1, expected = 0, bytes = 0;
};
const Misfit& misfit_of(const onernn_workspace& workspace);
/// Frees the memory of values; the workspace has to be bound again.
void release(onernn_workspace& workspace);
/// Returns how many bytes may be read at a place.
std::int64_t readable(const onernn_workspace& workspace, std::int64_t place);

// Functions that only move elements exist for four types: u1, u2, u4 and u8 have one, two, four and
// eight bytes.
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
// Each of these is defined in a source of its own, so that they compile in parallel.
Functions moves();
Functions sequences();
Functions axes();
Functions products();
Functions convolutions();
Functions quantized();

/// A formula: out[i] = a function of element i of each argument.
struct Formula {
  const char* name;
  void (*run)(void* out, const void* const* arguments, std::int64_t count);
  const std::uint8_t* widths;  // bytes per element of the result and of each argument, then 0
};
struct Formulas {
  const Formula* first;
  std::int64_t count;
};
Formulas formulas();

}  // namespace ONERNN_ISA
}  // namespace onernn

#endif
