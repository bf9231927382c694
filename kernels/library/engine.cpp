// A plan as numbers, and what runs it: sizes are polynomials, values stand in an arena, steps call
// functions by their places in tables. engine/encoding.py writes the words.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "../memory.hpp"
#include "any_stack.hpp"
#include "calls.hpp"
#include "exported.hpp"

using namespace onernn;

namespace {

using Numbers = std::vector<std::int64_t>;

/// A sum of products of sizes.
struct Polynomial {
  struct Term {
    std::int64_t by;
    Numbers names;
  };
  std::vector<Term> terms;

  /// False where it is beyond 64 bits.
  bool value(const std::int64_t* sizes, std::int64_t* out) const {
    *out = 0;
    for (const Term& term : terms) {
      std::int64_t product = term.by;
      for (const std::int64_t name : term.names)
        if (__builtin_mul_overflow(product, sizes[name], &product)) return false;
      if (__builtin_add_overflow(*out, product, out)) return false;
    }
    return true;
  }
};

/// A value in the arena: how many bytes it takes, from its first step to its last one.
struct Buffer {
  std::int64_t place, numbers, width, first, last;
};

struct Step {
  enum Kind { kCall, kNest, kLayer, kOutside, kView };
  std::int64_t kind;
  const std::int64_t* words;
};

constexpr std::int64_t kBlock = 256;
constexpr std::int64_t kOperands = 24;

}  // namespace

struct onernn_plan {
  explicit onernn_plan(Numbers all) : words(std::move(all)) {
    const std::int64_t* at = words.data();
    const auto next = [&at] { return *at++; };
    const auto list = [&next] {
      Numbers found(static_cast<std::size_t>(next()));
      for (std::int64_t& one : found) one = next();
      return found;
    };
    names = list();
    for (std::int64_t count = next(); count > 0; --count) {
      Polynomial made;
      for (std::int64_t terms = next(); terms > 0; --terms) {
        const std::int64_t by = next();
        made.terms.push_back({by, list()});
      }
      sizes.push_back(std::move(made));
    }
    checks = list();
    places = next();
    for (std::int64_t count = next(); count > 0; --count) {
      const std::int64_t place = next(), numbers = next(), width = next(), first = next();
      buffers.push_back({place, numbers, width, first, next()});
    }
    outputs = list();
    constants = list();
    for (std::int64_t count = next(); count > 0; --count) {
      const std::int64_t kind = next(), length = next();
      steps.push_back({kind, at});
      at += length;
    }
  }

  const Numbers words;
  Numbers names;                  // each one's place in the dims of inputs; -1: a step finds it
  std::vector<Polynomial> sizes;  // behind the names
  Numbers checks;                 // the size that each of the dims has to be
  std::int64_t places;
  std::vector<Buffer> buffers;
  Numbers outputs;    // pairs: how many numbers, the bytes of each: memory of the caller
  Numbers constants;  // pairs: a place, an address
  std::vector<Step> steps;
};

struct onernn_room {
  onernn_room(const onernn_plan& given, int threads, onernn_stack* const* stacks)
      : plan_(given),
        team_(threads),
        stacks_(stacks),
        sizes_(given.names.size() + given.sizes.size()),
        places_(static_cast<std::size_t>(given.places)),
        scratch_(kOperands * kBlock) {
    for (std::size_t at = 0; at < given.constants.size(); at += 2)
      places_[static_cast<std::size_t>(given.constants[at])] =
          reinterpret_cast<void*>(given.constants[at + 1]);
  }

  bool bind(const std::int64_t* dims, std::int64_t most) {
    if (bound_ && std::equal(dims_.begin(), dims_.end(), dims)) return true;
    bound_ = false;
    dims_.assign(dims, dims + plan_.checks.size());
    for (std::size_t at = 0; at < plan_.names.size(); ++at)
      sizes_[at] = plan_.names[at] < 0 ? 0 : dims[plan_.names[at]];
    if (!evaluate()) return false;
    for (std::size_t at = 0; at < plan_.checks.size(); ++at)
      if (dims[at] != sizes_[static_cast<std::size_t>(plan_.checks[at])]) return false;
    return bound_ = place(most);
  }

  bool run(const std::uint8_t* stops, std::int32_t* step) {
    Frame frame{places_.data(), sizes_.data(), &team_};
    for (; *step < static_cast<std::int32_t>(plan_.steps.size()); ++*step) {
      if (stops[*step]) return true;
      const Step& now = plan_.steps[static_cast<std::size_t>(*step)];
      if (now.kind == Step::kCall) {
        Words words(now.words);
        const auto* called = reinterpret_cast<const Function*>(words.next());
        const bool finds = words.next() != 0;
        if (called->run(frame, words) != Status::ok) return false;
        if (finds && !evaluate()) return false;
      } else if (now.kind == Step::kNest) {
        nest(frame, Words(now.words));
      } else if (now.kind == Step::kView) {
        void* const around = places_[static_cast<std::size_t>(now.words[1])];
        places_[static_cast<std::size_t>(now.words[0])] =
            static_cast<char*>(around) +
            sizes_[static_cast<std::size_t>(now.words[2])] * now.words[3];
      } else {
        if (!layer(frame, Words(now.words))) return false;
      }
    }
    return true;
  }

  const std::int64_t* sizes() const { return sizes_.data(); }
  void** places() { return places_.data(); }

 private:
  /// The sizes that follow from others.
  bool evaluate() {
    std::int64_t* to = sizes_.data() + plan_.names.size();
    for (const Polynomial& each : plan_.sizes)
      if (!each.value(sizes_.data(), to++)) return false;
    return true;
  }

  /// Gives every value memory that no other one uses at that time.
  bool place(std::int64_t most) {
    struct Taken {
      std::int64_t begin, end, last;
    };
    std::vector<Taken> taken;  // by where they begin
    std::vector<std::int64_t> begins;
    std::int64_t end = 0;
    for (const Buffer& each : plan_.buffers) {
      std::int64_t bytes = sizes_[static_cast<std::size_t>(each.numbers)];
      if (bytes < 0 || bytes > most) return false;
      bytes = (bytes * each.width + 127) / 64 * 64;
      taken.erase(std::remove_if(taken.begin(), taken.end(),
                                 [&](const Taken& one) { return one.last < each.first; }),
                  taken.end());
      std::int64_t begin = 0;
      auto at = taken.begin();
      for (; at != taken.end() && at->begin - begin < bytes; ++at) begin = at->end;
      taken.insert(at, {begin, begin + bytes, each.last});
      begins.push_back(begin);
      end = (std::max)(end, begin + bytes);
      if (end > most) return false;
    }
    std::int64_t left = most - end;
    for (std::size_t at = 0; at < plan_.outputs.size(); at += 2) {
      const std::int64_t count = sizes_[static_cast<std::size_t>(plan_.outputs[at])];
      if (count < 0 || count > left / plan_.outputs[at + 1]) return false;
      left -= count * plan_.outputs[at + 1];
    }
    if (end > size_) {
      arena_.reset();  // before there is more
      size_ = 0;
      arena_ = std::make_unique<Memory<unsigned char>>(end);
      size_ = end;
    }
    for (std::size_t at = 0; at < plan_.buffers.size(); ++at)
      places_[static_cast<std::size_t>(plan_.buffers[at].place)] = arena_->data() + begins[at];
    return true;
  }

  /// False where numbers came out that may have to be refused.
  bool layer(Frame& frame, Words words) {
    onernn_stack* const stack = stacks_[words.next()];
    onernn_batch batch{};
    batch.layout = static_cast<std::int32_t>(words.next());
    batch.steps = frame.sizes[words.next()];
    batch.sequences = frame.sizes[words.next()];
    const auto place = [&]() -> void* {
      const std::int64_t at = words.next();
      return at < 0 ? nullptr : frame.places[at];
    };
    batch.offsets = static_cast<const std::int64_t*>(place());
    onernn_arrays arrays{};
    arrays.x = place();
    arrays.attention = place();
    arrays.h = place();
    arrays.c = place();
    arrays.y = place();
    arrays.h_n = place();
    arrays.c_n = place();
    arrays.cells = place();
    stack->run(batch, arrays);
    const std::int64_t looked_at = words.next();
    const float* h = static_cast<const float*>(arrays.h_n);
    return looked_at < 0 ||
           std::none_of(h, h + frame.sizes[looked_at], [](float one) { return std::isnan(one); });
  }

  /// Loops over all elements, the innermost one in blocks that stay in the cache between formulas.
  void nest(Frame& frame, Words words) {
    struct Operand {
      char* base;
      std::int64_t width, inner, stride[Dims::kMost];
      bool filled;
    };
    const std::int64_t rank = words.next();
    std::int64_t size[Dims::kMost], index[Dims::kMost] = {};
    for (std::int64_t axis = 0; axis < rank; ++axis)
      if ((size[axis] = frame.sizes[words.next()]) <= 0) return;
    const std::int64_t outer = rank > 0 ? rank - 1 : 0, length = rank > 0 ? size[rank - 1] : 1;
    const std::int64_t reads = words.next();
    Operand operands[kOperands];
    const auto own = [&](std::int64_t at) { return scratch_.data() + at * kBlock; };
    bool moves[kOperands];                          // with the outer loops
    for (std::int64_t at = 0; at <= reads; ++at) {  // the output first
      Operand& one = operands[at];
      const std::int64_t place = words.next();
      one.width = words.next();
      one.base = static_cast<char*>(frame.places[place]) + frame.sizes[words.next()] * one.width;
      moves[at] = false;
      for (std::int64_t axis = 0; axis < rank; ++axis) {
        one.stride[axis] = frame.sizes[words.next()] * one.width;
        moves[at] = moves[at] || (axis < outer && one.stride[axis] != 0);
      }
      one.inner = rank > 0 ? one.stride[rank - 1] : 0;
      one.filled = false;
    }
    std::int64_t known = reads + 1;
    for (std::int64_t count = words.next(); count > 0; --count, ++known) {
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
            gather(own(r), from, one.width, one.inner, count);
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
        if (!direct) scatter(to, own(0), out.width, out.inner, count);
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

  template <class T>
  static void fill_as(void* to, const void* from, std::int64_t count) {
    T one;
    std::memcpy(&one, from, sizeof one);
    std::fill_n(static_cast<T*>(to), count, one);
  }
  static void fill(void* to, const void* from, std::int64_t width, std::int64_t count) {
    if (width == 2) return fill_as<std::uint16_t>(to, from, count);
    if (width == 4) return fill_as<std::uint32_t>(to, from, count);
    if (width == 8) return fill_as<std::uint64_t>(to, from, count);
    fill_as<std::uint8_t>(to, from, count);
  }
  template <class T>
  static void move(char* to, std::int64_t to_step, const char* from, std::int64_t from_step,
                   std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i, to += to_step, from += from_step)
      std::memcpy(to, from, sizeof(T));
  }
  static void move(char* to, std::int64_t to_step, const char* from, std::int64_t from_step,
                   std::int64_t width, std::int64_t count) {
    if (width == 2) return move<std::uint16_t>(to, to_step, from, from_step, count);
    if (width == 4) return move<std::uint32_t>(to, to_step, from, from_step, count);
    if (width == 8) return move<std::uint64_t>(to, to_step, from, from_step, count);
    move<std::uint8_t>(to, to_step, from, from_step, count);
  }
  static void gather(void* to, const char* from, std::int64_t width, std::int64_t step,
                     std::int64_t count) {
    move(static_cast<char*>(to), width, from, step, width, count);
  }
  static void scatter(char* to, const void* from, std::int64_t width, std::int64_t step,
                      std::int64_t count) {
    move(to, step, static_cast<const char*>(from), width, width, count);
  }

  const onernn_plan& plan_;
  Team team_;
  onernn_stack* const* stacks_;
  bool bound_ = false;
  Numbers dims_, sizes_;
  std::vector<void*> places_;
  std::unique_ptr<Memory<unsigned char>> arena_;
  std::int64_t size_ = 0;
  Memory<std::int64_t> scratch_;
};

const void* onernn_call(const char* name, const char** takes) {
  for (const Functions& table : {moves(), sequences(), axes(), products()})
    for (const Function* each = table.first; each != table.first + table.count; ++each)
      if (std::strcmp(each->name, name) == 0) return *takes = each->takes, each;
  return nullptr;
}

const void* onernn_formula(const char* name) {
  const Formulas table = formulas();
  for (const Formula* each = table.first; each != table.first + table.count; ++each)
    if (std::strcmp(each->name, name) == 0) return each;
  return nullptr;
}

int32_t onernn_plan_new(const int64_t* words, int64_t count, onernn_plan** plan) try {
  *plan = new onernn_plan(Numbers(words, words + count));
  return ONERNN_DONE;
} catch (...) {
  return ONERNN_NO_MEMORY;
}

void onernn_plan_free(onernn_plan* plan) { delete plan; }

int32_t onernn_room_new(const onernn_plan* plan, int32_t threads, onernn_stack* const* stacks,
                        onernn_room** room) try {
  *room = new onernn_room(*plan, threads, stacks);
  return ONERNN_DONE;
} catch (...) {
  return ONERNN_NO_MEMORY;
}

void onernn_room_free(onernn_room* room) { delete room; }

int32_t onernn_room_bind(onernn_room* room, const int64_t* dims, int64_t most) try {
  return room->bind(dims, most) ? ONERNN_DONE : ONERNN_MISFIT;
} catch (...) {
  return ONERNN_NO_MEMORY;
}

const int64_t* onernn_room_sizes(const onernn_room* room) { return room->sizes(); }

void** onernn_room_places(onernn_room* room) { return room->places(); }

int32_t onernn_room_run(onernn_room* room, const uint8_t* stops, int32_t* step) try {
  return room->run(stops, step) ? ONERNN_DONE : ONERNN_REFUSED;
} catch (...) {
  return ONERNN_NO_MEMORY;
}
