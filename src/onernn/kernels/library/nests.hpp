// Loops over one expression ("nests"), which a plan's step encodes in integers; see
// engine/encoding.py.
#ifndef ONERNN_NESTS_HPP
#define ONERNN_NESTS_HPP

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "../memory.hpp"
#include "calls.hpp"

namespace onernn {
inline namespace ONERNN_ISA {

/// Runs nests in blocks of elements. Holds the results of a block between two formulas.
class Nests {
 public:
  static constexpr std::int64_t kOperands = 24;

  /// Runs loops over all elements. The innermost loop runs in blocks that stay in the cache between
  /// two formulas. Nothing runs if an operand has fewer elements than the loops reach.
  void run(Frame& frame, Words words) {
    const std::int64_t rank = words.next();
    std::int64_t size[Dims::kMost], index[Dims::kMost] = {};
    bool empty = false;
    for (std::int64_t axis = 0; axis < rank; ++axis) {
      size[axis] = frame.sizes[words.next()];
      empty = empty || size[axis] <= 0;
    }
    const std::int64_t outer = rank > 0 ? rank - 1 : 0, length = rank > 0 ? size[rank - 1] : 1;
    const std::int64_t reads = words.next();
    if (empty) return frame.written(words.next());
    Operand operands[kOperands];
    const auto own = [&](std::int64_t at) { return scratch_.data() + at * kBlock; };
    bool moves[kOperands];                          // whether outer loops change its address
    for (std::int64_t at = 0; at <= reads; ++at) {  // operand 0 is the output
      Operand& one = operands[at];
      const std::int64_t place = words.next();
      one.width = words.next();
      const std::int64_t start = frame.sizes[words.next()];
      Reach reach{start, start};
      moves[at] = false;
      for (std::int64_t axis = 0; axis < rank; ++axis) {
        const std::int64_t stride = frame.sizes[words.next()];
        reach.add(size[axis], stride);
        if (__builtin_mul_overflow(stride, one.width, &one.stride[axis])) frame.sound = false;
        moves[at] = moves[at] || (axis < outer && stride != 0);
      }
      const void* const from = at == 0 ? frame.write(place, reach.end(), one.width)
                                       : frame.read(place, reach.end(), one.width);
      if (!frame.sound) return;
      one.base = static_cast<char*>(const_cast<void*>(from)) + start * one.width;
      one.inner = rank > 0 ? one.stride[rank - 1] : 0;
      one.filled = false;
    }
    const std::int64_t numbers = words.next();
    if (numbers < 0) return copy(operands[0], operands[1], rank, size);
    std::int64_t known = reads + 1;
    for (std::int64_t count = numbers; count > 0; --count, ++known) {
      const std::int64_t bits = words.next();
      const std::int64_t width = words.next();
      fill(own(known), &bits, width, (std::min)(length, kBlock));
    }
    const std::int64_t formulas = words.next();
    const Words program = words;
    for (;;) {
      for (std::int64_t begin = 0; begin < length; begin += kBlock) {
        const std::int64_t count = (std::min)(kBlock, length - begin);
        const void* at[kOperands];
        for (std::int64_t r = 1; r <= reads; ++r) {
          Operand& one = operands[r];
          const char* from = one.base + begin * one.inner;
          if (one.inner == one.width) {
            at[r] = from;
          } else if (one.inner == 0) {
            if (!one.filled) fill(own(r), from, one.width, (std::min)(length, kBlock));
            one.filled = true;
            at[r] = own(r);
          } else {
            move(own(r), one.width, from, one.inner, one.width, count);
            at[r] = own(r);
          }
        }
        for (std::int64_t n = reads + 1; n < known; ++n) at[n] = own(n);
        Words now = program;
        const Operand& out = operands[0];
        char* const to = out.base + begin * out.inner;
        const bool direct = out.inner == out.width || length == 1;
        for (std::int64_t f = 0; f < formulas; ++f) {
          const auto* formula = reinterpret_cast<const Formula*>(now.next());
          const void* arguments[8];
          const std::int64_t takes = now.next();
          for (std::int64_t a = 0; a < takes; ++a) arguments[a] = at[now.next()];
          const bool last = f + 1 == formulas;
          void* const made = last && direct ? to : static_cast<void*>(own(last ? 0 : known + f));
          formula->run(made, arguments, count);
          at[known + f] = made;
        }
        if (!direct) move(to, out.inner, own(0), out.width, out.width, count);
      }
      std::int64_t axis = outer - 1;
      for (; axis >= 0; --axis) {
        ++index[axis];
        const std::int64_t back = index[axis] == size[axis] ? size[axis] - 1 : -1;
        for (std::int64_t r = 0; r <= reads; ++r)
          operands[r].base +=
              back < 0 ? operands[r].stride[axis] : -back * operands[r].stride[axis];
        if (back < 0) break;
        index[axis] = 0;
      }
      if (axis < 0) return;
      for (std::int64_t r = 1; r <= reads; ++r)
        operands[r].filled = operands[r].filled && !moves[r];
    }
  }

 private:
  static constexpr std::int64_t kBlock = 256;

  struct Operand {
    char* base;
    std::int64_t width, inner, stride[Dims::kMost];
    bool filled;
  };

  /// The lowest and the highest index that the loops reach.
  struct Reach {
    std::int64_t low, high;
    bool known = true;
    void add(std::int64_t size, std::int64_t stride) {
      std::int64_t& bound = stride < 0 ? low : high;
      std::int64_t way;
      known = known && !__builtin_mul_overflow(size - 1, stride, &way) &&
              !__builtin_add_overflow(bound, way, &bound);
    }
    /// Returns how many elements an operand must have; -1 if the loops would reach an index below
    /// 0.
    std::int64_t end() const { return known && low >= 0 && high < INT64_MAX ? high + 1 : -1; }
  };

  /// Calls the function with an unsigned integer of `width` bytes.
  template <class Function>
  static void with_width(std::int64_t width, Function function) {
    if (width == 2) return function(std::uint16_t());
    if (width == 4) return function(std::uint32_t());
    if (width == 8) return function(std::uint64_t());
    function(std::uint8_t());
  }

  /// Runs a nest without formulas, which only moves elements.
  static void copy(const Operand& out, const Operand& x, std::int64_t rank,
                   const std::int64_t* size) {
    Dims dims[3];  // sizes, strides of out, strides of x, in elements
    const int shift = __builtin_ctzll(static_cast<unsigned long long>(out.width));
    for (Dims& each : dims) each.count = rank;
    for (std::int64_t axis = 0; axis < rank; ++axis) {
      dims[0].size[axis] = size[axis];
      dims[1].size[axis] = out.stride[axis] >> shift;
      dims[2].size[axis] = x.stride[axis] >> shift;
    }
    with_width(out.width, [&](auto one) {
      arrange(reinterpret_cast<decltype(one)*>(out.base),
              reinterpret_cast<const decltype(one)*>(x.base), 0, 0, dims[0], dims[1], dims[2]);
    });
  }

  static void fill(void* to, const void* from, std::int64_t width, std::int64_t count) {
    with_width(width, [=](auto one) {
      std::memcpy(&one, from, sizeof one);
      std::fill_n(static_cast<decltype(one)*>(to), count, one);
    });
  }
  /// Copies `count` elements that are `from_step` bytes apart to elements that are `to_step` bytes
  /// apart.
  static void move(void* to, std::int64_t to_step, const void* from, std::int64_t from_step,
                   std::int64_t width, std::int64_t count) {
    with_width(width, [=](auto one) {
      char* into = static_cast<char*>(to);
      const char* at = static_cast<const char*>(from);
      for (std::int64_t i = 0; i < count; ++i, into += to_step, at += from_step)
        std::memcpy(into, at, sizeof one);
    });
  }

  Memory<std::int64_t> scratch_{kOperands * kBlock};
};

}  // namespace ONERNN_ISA
}  // namespace onernn

#endif
