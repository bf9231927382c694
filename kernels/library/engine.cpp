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
#include "nests.hpp"

using namespace onernn;

namespace {

using Numbers = std::vector<std::int64_t>;

/// A sum of products of sizes, by a number. What is rounded is never negative.
struct Polynomial {
  struct Term {
    std::int64_t by;
    Numbers names;
  };
  std::int64_t divisor;
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
    *out /= divisor;
    return true;
  }
};

/// A value in the arena: how many bytes it takes, from its first step to its last one.
struct Buffer {
  std::int64_t place, numbers, width, first, last;
};

struct Step {
  enum Kind { kCall, kNest, kLayer, kOutside, kView, kJump, kRefuse };
  std::int64_t kind;
  const std::int64_t* words;
};

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
      Polynomial made{next(), {}};
      for (std::int64_t terms = next(); terms > 0; --terms) {
        const std::int64_t by = next();
        made.terms.push_back({by, list()});
      }
      sizes.push_back(std::move(made));
    }
    const std::int64_t count = static_cast<std::int64_t>(names.size());
    std::vector<bool> told(sizes.size());
    for (std::size_t size = 0; size < sizes.size(); ++size) {
      for (const Polynomial::Term& term : sizes[size].terms)
        for (const std::int64_t name : term.names)
          if (name < count ? names[static_cast<std::size_t>(name)] < 0
                           : told[static_cast<std::size_t>(name - count)])
            told[size] = true;
      if (told[size]) inner.push_back(static_cast<std::int64_t>(size));
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
  Numbers inner;                  // those of them that steps tell
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
        places_(static_cast<std::size_t>(given.places)) {
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
        if (finds && !evaluate_inner()) return false;
      } else if (now.kind == Step::kNest) {
        nests_.run(frame, Words(now.words));
      } else if (now.kind == Step::kView) {
        void* const around = places_[static_cast<std::size_t>(now.words[1])];
        places_[static_cast<std::size_t>(now.words[0])] =
            static_cast<char*>(around) +
            sizes_[static_cast<std::size_t>(now.words[2])] * now.words[3];
      } else if (now.kind == Step::kJump) {  // unless the condition holds, if there is one
        const std::int64_t place = now.words[0];
        if (place < 0 ||
            !*static_cast<const std::uint8_t*>(places_[static_cast<std::size_t>(place)])) {
          const std::int32_t to = static_cast<std::int32_t>(now.words[1]);
          if (to <= *step && (step[1] -= static_cast<std::int32_t>(now.words[2])) <= 0)
            return *step = to, true;
          *step = to - 1;
        }
      } else {
        if (now.kind == Step::kRefuse || !layer(frame, Words(now.words))) return false;
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

  /// Those that a step has told.
  bool evaluate_inner() {
    std::int64_t* to = sizes_.data() + plan_.names.size();
    for (const std::int64_t at : plan_.inner)
      if (!plan_.sizes[static_cast<std::size_t>(at)].value(sizes_.data(), to + at)) return false;
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
    const std::int64_t of_x = words.next(), of_h = words.next();
    if (of_h < 0) return true;
    const auto any = [&](const void* numbers, std::int64_t count, bool (*is)(float)) {
      const float* const first = static_cast<const float*>(numbers);
      return first && std::any_of(first, first + frame.sizes[count], is);
    };
    const auto is_infinite = [](float one) { return std::isinf(one); };
    // NaN of NaN is right, but bytes make it of infinity, too.
    return !any(arrays.h_n, of_h, [](float one) { return std::isnan(one); }) ||
           (!any(arrays.x, of_x, is_infinite) && !any(arrays.h, of_h, is_infinite));
  }

  const onernn_plan& plan_;
  Team team_;
  onernn_stack* const* stacks_;
  bool bound_ = false;
  Numbers dims_, sizes_;
  std::vector<void*> places_;
  std::unique_ptr<Memory<unsigned char>> arena_;
  std::int64_t size_ = 0;
  Nests nests_;
};

const void* onernn_call(const char* name, const char** takes) {
  for (const Functions& table :
       {moves(), sequences(), axes(), products(), convolutions(), quantized()})
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
