// Runs a plan, which is a list of integers. Sizes are polynomials, most values are in one block of
// memory (the arena), and steps call functions of the library. engine/encoding.py writes the
// integers.
#include <algorithm>
#include <array>
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

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

using namespace onernn;

namespace {

/// Under address sanitizer no two values share memory, and an access to the bytes after a value is
/// an error.
#ifdef __SANITIZE_ADDRESS__
constexpr bool kWatched = true;
void watch(const unsigned char* begin, std::int64_t bytes) {
  const std::int64_t whole = (bytes + 127) / 64 * 64;
  __asan_poison_memory_region(begin + bytes, static_cast<std::size_t>(whole - bytes));
}
#else
constexpr bool kWatched = false;
void watch(const unsigned char*, std::int64_t) {}
#endif

/// A sum of products of sizes, divided by a number. The sum is never negative.
struct Polynomial {
  struct Term {
    std::int64_t by;
    Numbers names;
  };
  std::int64_t divisor;
  std::vector<Term> terms;

  /// Computes the sum. Returns false if it exceeds 64 bits.
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

/// An input or output, whose memory belongs to the caller: its place, the index of the size that
/// counts its elements, the index of the largest count, and the bytes per element.
struct Given {
  std::int64_t place, numbers, most, width;
};

/// A value in the arena: its place, the index of the size that counts its elements, the bytes per
/// element, and the first and last step that use it.
struct Buffer {
  std::int64_t place, numbers, width, first, last;
};

struct Step {
  std::int64_t kind;
  const std::int64_t* words;
};

std::array<Functions, 6> all_functions() {
  return {moves(), sequences(), axes(), products(), convolutions(), quantized()};
}

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
      Polynomial polynomial{next(), {}};
      for (std::int64_t terms = next(); terms > 0; --terms) {
        const std::int64_t by = next();
        polynomial.terms.push_back({by, list()});
      }
      sizes.push_back(std::move(polynomial));
    }
    const std::int64_t count = static_cast<std::int64_t>(names.size());
    std::vector<bool> is_inner(sizes.size());
    for (std::size_t size = 0; size < sizes.size(); ++size) {
      for (const Polynomial::Term& term : sizes[size].terms)
        for (const std::int64_t name : term.names)
          if (name < count ? names[static_cast<std::size_t>(name)] < 0
                           : is_inner[static_cast<std::size_t>(name - count)])
            is_inner[size] = true;
      if (is_inner[size]) inner.push_back(static_cast<std::int64_t>(size));
    }
    checks = list();
    roots = list();
    for (std::vector<Given>* const each : {&inputs, &outputs})
      for (std::int64_t count = next(); count > 0; --count) {
        const std::int64_t place = next(), numbers = next(), most = next();
        each->push_back({place, numbers, most, next()});
      }
    for (std::int64_t count = next(); count > 0; --count) {
      const std::int64_t place = next(), numbers = next(), width = next(), first = next();
      buffers.push_back({place, numbers, width, first, next()});
    }
    constants = list();
    for (std::int64_t count = next(); count > 0; --count) {
      const std::int64_t kind = next(), length = next();
      steps.push_back({kind, at});
      at += length;
    }
  }

  const Numbers words;
  Numbers names;  // Per named size: its index in the inputs' dims; -1: a step computes it.
  std::vector<Polynomial> sizes;  // The sizes that follow the named ones, as polynomials.
  Numbers inner;                  // Indices of sizes that depend on a step.
  Numbers checks;                 // Per input size: the index of the size that it must equal.
  Numbers roots;                  // Per place: the value that contains it.
  std::vector<Given> inputs, outputs;
  std::vector<Buffer> buffers;
  Numbers constants;  // per constant: place, address, number of bytes
  std::vector<Step> steps;
};

struct onernn_workspace {
  onernn_workspace(const onernn_plan& given, int threads, onernn_stack* const* stacks)
      : plan_(given),
        team_(threads),
        stacks_(stacks),
        sizes_(given.names.size() + given.sizes.size()),
        places_(given.roots.size()),
        begun_(given.roots.size()),
        readable_(given.roots.size()),
        writable_(given.roots.size()) {
    for (std::size_t at = 0; at < given.constants.size(); at += 3) {
      const auto place = static_cast<std::size_t>(given.constants[at]);
      places_[place] = reinterpret_cast<void*>(given.constants[at + 1]);
      begun_[place] = given.constants[at + 2];
    }
  }

  std::int32_t bind(const std::int64_t* dims, std::int64_t most) {
    if (bound_ && most_ == most && std::equal(dims_.begin(), dims_.end(), dims)) return ONERNN_DONE;
    bound_ = false;
    most_ = most;
    misfit_ = {};
    dims_.assign(dims, dims + plan_.checks.size());
    for (std::size_t at = 0; at < plan_.names.size(); ++at)
      sizes_[at] = plan_.names[at] < 0 ? 0 : dims[plan_.names[at]];
    if (!evaluate()) return ONERNN_MISFIT;
    for (std::size_t at = 0; at < plan_.checks.size(); ++at)
      if (const std::int64_t size = sizes_[static_cast<std::size_t>(plan_.checks[at])];
          dims[at] != size) {
        misfit_ = {static_cast<std::int64_t>(at), size};
        return ONERNN_MISFIT;
      }
    if (const std::int32_t status = place(most)) return status;
    bound_ = !guard_ || guard_->bind(sizes_.data(), most);
    return bound_ ? ONERNN_DONE : ONERNN_MISFIT;
  }
  const Misfit& misfit() const { return misfit_; }

  void release() {
    bound_ = false;
    arena_.reset();
    size_ = 0;
  }

  /// Sets the address of a value, or copies numbers to it. Returns false if they do not fit.
  bool put(std::int64_t place, const void* numbers, std::int64_t bytes, bool copies) {
    const auto at = static_cast<std::size_t>(place);
    if (!copies) {
      places_[at] = const_cast<void*>(numbers);
      readable_[at] = bytes;
      return true;
    }
    if (bytes > writable_[at]) return false;
    if (bytes > 0) std::memcpy(places_[at], numbers, static_cast<std::size_t>(bytes));
    frame().written(place);
    return true;
  }

  std::int32_t run(const std::int32_t* costs, std::int32_t* step) {
    if (*step < 0) {
      readable_ = begun_;
      *step = 0;
    }
    Frame frame = this->frame();
    refusal_ = ONERNN_UNSOUND;
    const Team::Lead lead(team_);
    const bool done = run(frame, costs, step);
    if (done && *step == static_cast<std::int32_t>(plan_.steps.size()))
      for (const Given& each : plan_.outputs) {  // callers must not read what no step has written
        const auto place = static_cast<std::size_t>(each.place);
        if (sizes_[static_cast<std::size_t>(each.numbers)] > 0 && readable_[place] == 0)
          frame.sound = false;
      }
    return !frame.sound ? refusal_ : done ? ONERNN_DONE : ONERNN_REFUSED;
  }

  const std::int64_t* sizes() const { return sizes_.data(); }
  void** places() { return places_.data(); }
  void set_guard(Guard* guard) { guard_ = guard; }
  std::int64_t readable(std::int64_t place) const {
    return readable_[static_cast<std::size_t>(place)];
  }

 private:
  Frame frame() {
    return {places_.data(),   sizes_.data(),    &team_,
            readable_.data(), writable_.data(), plan_.roots.data()};
  }

  bool run(Frame& frame, const std::int32_t* costs, std::int32_t* step) {
    for (; *step < static_cast<std::int32_t>(plan_.steps.size()); ++*step) {
      if (const std::int32_t cost = costs[*step]; cost != 0) {
        if (cost < 0 || step[1] <= 0) return true;
        step[1] -= cost;
      }
      const Step& now = plan_.steps[static_cast<std::size_t>(*step)];
      if (const std::int32_t status = guard_ ? guard_->check(*step, frame) : ONERNN_DONE) {
        refusal_ = status;
        return frame.sound = false;
      }
      if (now.kind == kCall) {
        Words words(now.words);
        const auto* called = reinterpret_cast<const Function*>(words.next());
        const bool finds = words.next() != 0;
        if (called->run(frame, words) != Status::ok) return false;
        if (finds && !evaluate_inner()) return false;
      } else if (now.kind == kNest) {
        nests_.run(frame, Words(now.words));
        if (!frame.sound) return false;
      } else if (now.kind == kView) {
        if (!view(Words(now.words))) return frame.sound = false;
      } else if (now.kind == kJump) {  // jumps unless there is a condition and it is true
        const std::int64_t place = now.words[0];
        const void* const condition = place < 0 ? nullptr : frame.read(place, 1, 1);
        if (!frame.sound) return false;
        if (!condition || !*static_cast<const std::uint8_t*>(condition)) {
          const std::int32_t to = static_cast<std::int32_t>(now.words[1]);
          if (to <= *step && (step[1] -= static_cast<std::int32_t>(now.words[2])) <= 0)
            return *step = to, true;
          *step = to - 1;
        }
      } else {
        if (now.kind == kRefuse || !layer(frame, *reinterpret_cast<const LayerWords*>(now.words)))
          return false;
      }
    }
    return true;
  }

  /// Sets the address of a value that is inside another value, and how many bytes are left from
  /// there. Returns false if the address is outside.
  bool view(Words words) {
    const auto inner = static_cast<std::size_t>(words.next());
    const auto around = static_cast<std::size_t>(words.next());
    const std::int64_t first = sizes_[static_cast<std::size_t>(words.next())];
    const std::int64_t most = (std::max)(readable_[around], writable_[around]);
    const std::int64_t width = words.next();
    if (first < 0 || first > most / width) return false;
    places_[inner] = static_cast<char*>(places_[around]) + first * width;
    readable_[inner] = (std::max)(readable_[around] - first * width, std::int64_t(0));
    writable_[inner] = (std::max)(writable_[around] - first * width, std::int64_t(0));
    return true;
  }

  /// Computes the sizes that follow from others. Returns false if one exceeds 64 bits.
  bool evaluate() {
    std::int64_t* to = sizes_.data() + plan_.names.size();
    for (const Polynomial& each : plan_.sizes)
      if (!each.value(sizes_.data(), to++)) return false;
    return true;
  }

  /// Computes the sizes that depend on sizes which a step has written.
  bool evaluate_inner() {
    std::int64_t* to = sizes_.data() + plan_.names.size();
    for (const std::int64_t at : plan_.inner)
      if (!plan_.sizes[static_cast<std::size_t>(at)].value(sizes_.data(), to + at)) return false;
    return true;
  }

  /// Assigns memory to every value so that values that are needed at the same time do not overlap.
  /// Returns the status.
  std::int32_t place(std::int64_t most) {
    constexpr std::int64_t kFar = std::int64_t(1) << 56;  // sums of a few such numbers fit 64 bits
    const auto too_large = [this](std::int64_t bytes) {
      misfit_.bytes = bytes;
      return ONERNN_TOO_LARGE;
    };
    struct Taken {
      std::int64_t begin, end, last;
    };
    std::vector<Taken> taken;  // sorted by `begin`
    std::vector<std::int64_t> begins;
    std::int64_t end = 0;
    for (const Buffer& each : plan_.buffers) {
      std::int64_t bytes = sizes_[static_cast<std::size_t>(each.numbers)];
      if (bytes < 0) return ONERNN_MISFIT;
      if (bytes > kFar) return too_large(bytes);
      bytes = (bytes * each.width + 127) / 64 * 64;
      if (!kWatched)
        taken.erase(std::remove_if(taken.begin(), taken.end(),
                                   [&](const Taken& one) { return one.last < each.first; }),
                    taken.end());
      std::int64_t begin = 0;
      auto at = taken.begin();
      for (; at != taken.end() && at->begin - begin < bytes; ++at) begin = at->end;
      taken.insert(at, {begin, begin + bytes, each.last});
      begins.push_back(begin);
      end = (std::max)(end, begin + bytes);
      if (end > kFar) return too_large(end);
    }
    std::int64_t all = end;
    for (const Given& each : plan_.outputs) {
      const std::int64_t count = sizes_[static_cast<std::size_t>(each.most)];
      if (count < 0) return ONERNN_MISFIT;
      if (count > kFar / each.width) return too_large(kFar);
      all += writable_[static_cast<std::size_t>(each.place)] = count * each.width;
      if (all > kFar) return too_large(all);
    }
    if (all > most) return too_large(all);
    for (const Given& each : plan_.inputs) {
      const std::int64_t count = sizes_[static_cast<std::size_t>(each.numbers)];
      if (count < 0 || count > INT64_MAX / each.width) return ONERNN_MISFIT;
      begun_[static_cast<std::size_t>(each.place)] = count * each.width;
    }
    if (end > size_ || kWatched) {
      arena_.reset();  // frees it before more is allocated
      size_ = 0;
      arena_ = std::make_unique<Memory<unsigned char>>(end);
      size_ = end;
    }
    for (std::size_t at = 0; at < plan_.buffers.size(); ++at) {
      const Buffer& each = plan_.buffers[at];
      const auto place = static_cast<std::size_t>(each.place);
      places_[place] = arena_->data() + begins[at];
      writable_[place] = sizes_[static_cast<std::size_t>(each.numbers)] * each.width;
      if (kWatched) watch(arena_->data() + begins[at], writable_[place]);
    }
    return ONERNN_DONE;
  }

  /// Runs a layer. Returns false if the layer may not run, or if it returned NaN that may have to
  /// be refused.
  bool layer(Frame& frame, const LayerWords& step) {
    const auto read = [&](const LayerWords::Array& one) -> const void* {
      return one.place < 0 ? nullptr : frame.read(one.place, frame.sizes[one.numbers], one.width);
    };
    const auto write = [&](const LayerWords::Array& one) -> void* {
      return one.place < 0 ? nullptr : frame.write(one.place, frame.sizes[one.numbers], one.width);
    };
    const onernn_batch batch{static_cast<std::int32_t>(step.layout), frame.sizes[step.steps],
                             frame.sizes[step.sequences],
                             static_cast<const std::int64_t*>(read(step.offsets))};
    const onernn_arrays arrays{read(step.x),    read(step.attention), read(step.h),
                               read(step.c),    write(step.y),        write(step.h_n),
                               write(step.c_n), write(step.cells)};
    if (!frame.sound) return false;
    stacks_[step.layer]->run(batch, arrays);
    if (!step.holds_finite) return true;
    const auto any = [&](const void* numbers, const LayerWords::Array& of, bool (*is)(float)) {
      const float* const first = static_cast<const float*>(numbers);
      return first && std::any_of(first, first + frame.sizes[of.numbers], is);
    };
    const auto is_infinite = [](float one) { return std::isinf(one); };
    // NaN that follows from NaN is right, but int8 also turns infinity into NaN.
    return !any(arrays.h_n, step.h_n, [](float one) { return std::isnan(one); }) ||
           (!any(arrays.x, step.x, is_infinite) && !any(arrays.h, step.h, is_infinite));
  }

  const onernn_plan& plan_;
  Team team_;
  onernn_stack* const* stacks_;
  Guard* guard_ = nullptr;
  std::int32_t refusal_ = ONERNN_UNSOUND;  // the status if a step is not sound
  bool bound_ = false;
  Misfit misfit_;
  std::int64_t most_ = 0;
  Numbers dims_, sizes_;
  std::vector<void*> places_;
  // Bytes per place: readable when a run begins, readable now, and writable.
  Numbers begun_, readable_, writable_;
  std::unique_ptr<Memory<unsigned char>> arena_;
  std::int64_t size_ = 0;
  Nests nests_;
};

void onernn::set_guard(onernn_workspace& workspace, Guard* guard) { workspace.set_guard(guard); }
const Misfit& onernn::misfit_of(const onernn_workspace& workspace) { return workspace.misfit(); }
void onernn::release(onernn_workspace& workspace) { workspace.release(); }

std::int64_t onernn::readable(const onernn_workspace& workspace, std::int64_t place) {
  return workspace.readable(place);
}

const void* onernn_call(const char* name, const char** takes) {
  for (const Functions& table : all_functions())
    for (const Function* each = table.first; each != table.first + table.count; ++each)
      if (std::strcmp(each->name, name) == 0) return *takes = each->takes, each;
  return nullptr;
}

const char* onernn_call_name(int32_t number) {
  for (const Functions& table : all_functions()) {
    if (number >= 0 && number < table.count) return table.first[number].name;
    number -= static_cast<int32_t>(table.count);
  }
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

int32_t onernn_workspace_new(const onernn_plan* plan, int32_t threads, onernn_stack* const* stacks,
                             onernn_workspace** workspace) try {
  *workspace = new onernn_workspace(*plan, threads, stacks);
  return ONERNN_DONE;
} catch (...) {
  return ONERNN_NO_MEMORY;
}

void onernn_workspace_free(onernn_workspace* workspace) { delete workspace; }

int32_t onernn_workspace_bind(onernn_workspace* workspace, const int64_t* dims, int64_t most) try {
  return workspace->bind(dims, most);
} catch (...) {
  return ONERNN_NO_MEMORY;
}

const int64_t* onernn_workspace_sizes(const onernn_workspace* workspace) {
  return workspace->sizes();
}

void** onernn_workspace_places(onernn_workspace* workspace) { return workspace->places(); }

int32_t onernn_workspace_put(onernn_workspace* workspace, int64_t place, const void* numbers,
                             int64_t bytes, int32_t copies) {
  return workspace->put(place, numbers, bytes, copies != 0) ? ONERNN_DONE : ONERNN_UNSOUND;
}

int32_t onernn_workspace_run(onernn_workspace* workspace, const int32_t* costs, int32_t* step) try {
  return workspace->run(costs, step);
} catch (...) {
  return ONERNN_NO_MEMORY;
}
