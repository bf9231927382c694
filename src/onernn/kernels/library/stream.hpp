// A stream of a compiled model: inputs that it was given, states, and runs.
#ifndef ONERNN_STREAM_HPP
#define ONERNN_STREAM_HPP

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include "compiled.hpp"
#include "scratch.hpp"

namespace onernn {

[[noreturn]] inline void misused(const std::string& why) { throw Failure{ONERNN_MISUSED, why}; }
[[noreturn]] inline void misfit(const std::string& why) { throw Failure{ONERNN_MISFIT, why}; }
[[noreturn]] inline void too_large(const std::string& what, std::int64_t bytes, std::int64_t most) {
  throw Failure{ONERNN_TOO_LARGE, what + ": expected at most " + std::to_string(most) +
                                      " bytes, got " + std::to_string(bytes) + "; raise the limit"};
}

struct FreeStack {
  void operator()(onernn_stack* one) const { onernn_stack_free(one); }
};
struct FreeWorkspace {
  void operator()(onernn_workspace* one) const { onernn_workspace_free(one); }
};

inline bool is_at(const void* memory, std::int64_t align) {
  return reinterpret_cast<std::uintptr_t>(memory) % static_cast<std::uintptr_t>(align) == 0;
}

}  // namespace onernn

using namespace onernn;  // the structures of onernn.h are in the global namespace

struct onernn_model {
  std::shared_ptr<const Compiled> compiled;
  std::int32_t threads;
};

struct onernn_stream {
  explicit onernn_stream(const onernn_model& of)
      : model(of.compiled),
        bounds_(model->steps),
        given_(model->inputs.size()),
        taken_(model->outputs.size()),
        memory_(model->written.size()),
        dims_(static_cast<std::size_t>(model->dims)),
        bound_(dims_.size(), -1),
        costs_(model->steps.size()),
        threads_(of.threads) {
    make_stacks();
    onernn_workspace* workspace = nullptr;
    if (onernn_workspace_new(model->plan, of.threads, stacks_.data(), &workspace))
      throw std::bad_alloc();
    workspace_.reset(workspace);
    set_guard(*workspace, &bounds_);
    sizes_ = onernn_workspace_sizes(workspace);
    places_ = onernn_workspace_places(workspace);
    for (std::size_t at = 0; at < given_.size(); ++at) {
      const Input& input = model->inputs[at];
      given_[at].levels.resize(input.levels.size());
      is_ragged_ = is_ragged_ || !input.levels.empty();
      for (const Axis& axis : input.axes) given_[at].dims.push_back(axis.size);
    }
    const std::int64_t memory =
        std::int64_t(sysconf(_SC_PHYS_PAGES)) * std::int64_t(sysconf(_SC_PAGE_SIZE));
    limit(memory / 4 * 3, 500000);
  }

  void limit(std::int64_t bytes, std::int64_t steps) {
    if (bytes < 1 || steps < 1)
      misused("limits: expected 1 or more, got " + std::to_string(bytes) + " bytes and " +
              std::to_string(steps) + " steps");
    bytes = (std::min)(bytes, std::int64_t(1) << 56);
    if (bytes < most_bytes_ && was_bound_) {  // its memory may exceed the new limit
      make_stacks();
      release(*workspace_);
      memory_ = std::vector<Scratch>(memory_.size());
      views_.clear();
      ran_ = false;
    }
    most_bytes_ = bytes;
    most_steps_ = steps;
    prepared_ = false;
    bound_.assign(bound_.size(), -1);  // -1 is not a size of any input
  }

  void give(std::size_t at, const void* numbers, const std::int64_t* dims) {
    const Input& input = model->inputs[at];
    Given& given = given_[at];
    if (!numbers) {
      if (input.next < 0)
        misused("input '" + input.name + "': expected memory, got NULL; only a state may be NULL");
      given.numbers = nullptr;
      return;
    }
    if (!is_at(numbers, input.width))
      misused("input '" + input.name + "': expected memory that is aligned to " + input.dtype);
    bool is_same = given.numbers;
    for (std::size_t axis = 0; axis < input.axes.size(); ++axis) {
      const Axis& known = input.axes[axis];
      const std::int64_t size = dims ? dims[axis] : known.size;
      is_same = is_same && size == given.dims[axis];
      if (!dims && size < 0)
        misused("input '" + input.name + "': the model declares no size of an axis; pass dims");
      if (size < 0 || (known.size >= 0 && size != known.size) || size < known.least ||
          size > known.most)
        misfit("input '" + input.name + "': axis " + std::to_string(axis) + ": expected " +
               expected(known) + ", got " + std::to_string(size));
    }
    prepared_ = prepared_ && is_same;
    for (std::size_t axis = 0; axis < input.axes.size(); ++axis)
      given.dims[axis] = dims ? dims[axis] : input.axes[axis].size;
    given.numbers = numbers;
  }

  void give_offsets(std::size_t at, std::int32_t level, const std::int64_t* offsets,
                    std::int64_t sequences) {
    const Input& input = model->inputs[at];
    if (level < 0 || static_cast<std::size_t>(level) >= input.levels.size())
      misused("input '" + input.name + "': expected one of " + std::to_string(input.levels.size()) +
              " levels of offsets, got level " + std::to_string(level));
    if (!offsets || !is_at(offsets, 8))
      misused("input '" + input.name + "': expected offsets that are aligned to int64");
    if (!((Count(sequences) + 1) * 8).within(INT64_MAX))
      misused("input '" + input.name +
              "': " + "expected a number of sequences that memory can hold, got " +
              std::to_string(sequences));
    given_[at].levels[static_cast<std::size_t>(level)] = {offsets, sequences};
    prepared_ = ran_ = false;  // outputs may use these offsets, which are not checked yet
  }

  void take(std::size_t at, void* numbers, std::int64_t bytes) {
    const Output& output = model->outputs[at];
    if (numbers && (bytes < 0 || !is_at(numbers, output.width)))
      misused("output '" + output.name + "': expected memory that is aligned to " + output.dtype);
    taken_[at] = {numbers, numbers ? bytes : 0};
  }

  void prepare() {
    ran_ = false;
    std::size_t at = 0;
    std::int64_t taken = 0, states = 0;
    for (std::size_t i = 0; i < given_.size(); ++i) {
      const Input& input = model->inputs[i];
      Given& given = given_[i];
      if (!given.numbers && input.next < 0)
        misused("input '" + input.name + "' is missing; pass it");
      for (const std::int64_t size : given.dims) dims_[at++] = size;
      Count count = 1;
      for (const std::int64_t size : given.dims) count = count * size;
      if (!(count * input.width).within(INT64_MAX - taken))
        misfit("input '" + input.name + "': its values exceed any memory");
      given.count = count.value();
      const std::int64_t bytes = given.count * input.width;
      taken += bytes;
      if (input.next >= 0) states += bytes;
      std::int64_t longest = 0;
      for (std::size_t k = 0; k < given.levels.size(); ++k) {
        const auto [offsets, sequences] = given.levels[k];
        if (!offsets) misused("input '" + input.name + "': its offsets are missing; pass them");
        const bool last = k + 1 == given.levels.size();
        const std::int64_t rows =
            last ? given.dims.empty() ? 0 : given.dims[0] : given.levels[k + 1].sequences;
        if (!are_offsets(offsets, sequences) || offsets[sequences] != rows)
          misfit("input '" + input.name + "': expected offsets from 0 to " + std::to_string(rows) +
                 " that never decrease, got " + std::to_string(offsets[0]) + " to " +
                 std::to_string(offsets[sequences]));
        dims_[at++] = sequences;
        for (std::int64_t n = 0; last && n < sequences; ++n)
          longest = (std::max)(longest, offsets[n + 1] - offsets[n]);
      }
      if (input.counts_longest) dims_[at++] = longest;
    }
    if (states > most_bytes_) too_large("memory of the states", states, most_bytes_);
    if (prepared_ && dims_ == bound_) return;
    prepared_ = false;
    bound_.assign(bound_.size(), -1);
    was_bound_ = true;
    const std::int32_t status = onernn_workspace_bind(workspace_.get(), dims_.data(), most_bytes_);
    if (status == ONERNN_NO_MEMORY) throw std::bad_alloc();
    const Misfit& why = misfit_of(*workspace_);
    if (status == ONERNN_TOO_LARGE)
      too_large("memory of a run with " + inputs(), why.bytes, most_bytes_);
    if (why.dim >= 0)
      misfit(name_of_dim(why.dim) + ", expected " + std::to_string(why.expected) +
             " because of the other sizes: " + inputs());
    bool fits = status == ONERNN_DONE;
    for (const std::int64_t size : model->axes) fits = fits && sizes_[size] >= 0;
    for (std::size_t i = 0; fits && i < given_.size(); ++i) {
      const Input& input = model->inputs[i];
      fits = sizes_[input.numbers] == given_[i].count;
      for (std::size_t k = 0; fits && k < input.levels.size(); ++k)
        fits = sizes_[input.offsets[k]] == given_[i].levels[k].sequences + 1;
    }
    if (!fits) misfit("an operator of the model has no result for these sizes: " + inputs());
    for (std::size_t o = 0; o < taken_.size();
         ++o) {  // so that callers can allocate memory for the outputs
      const Output& output = model->outputs[o];
      const Count elsewhere = Count(taken) + most_bytes_ + model->bytes->size;
      if (output.known)
        expect_within(o, output.most >= 0 ? sizes_[output.most] * output.width
                                          : elsewhere.value_to(INT64_MAX));
    }
    choose(taken);
    bound_ = dims_;
    prepared_ = true;
  }

  void run() {
    if (!prepared_ || is_ragged_) prepare();  // offsets may have changed
    if (begins_) begin();
    for (std::size_t i = 0; i < given_.size(); ++i) {
      const Input& input = model->inputs[i];
      const void* const numbers = given_[i].numbers ? given_[i].numbers : state(i).data();
      places_[input.place] = const_cast<void*>(numbers);
      for (std::size_t k = 0; k < input.levels.size(); ++k)
        places_[input.levels[k]] = const_cast<std::int64_t*>(given_[i].levels[k].offsets);
    }
    shares_ = false;
    for (std::size_t o = 0; o < taken_.size(); ++o) shares_ = is_given(o) || shares_;
    for (std::size_t k = 0; k < memory_.size(); ++k) {
      const Compiled::Memory& wanted = model->written[k];
      const std::int64_t bytes = sizes_[wanted.most] * wanted.width;
      void* memory = nullptr;
      for (std::size_t o = 0; o < taken_.size(); ++o)
        if (model->outputs[o].place == wanted.place && taken_[o].at && taken_[o].bytes >= bytes &&
            !shares_ && !is_shared(o))
          memory = taken_[o].at;
      // New memory is zeros, because there may be bytes that no step writes.
      places_[wanted.place] = memory ? memory : memory_[k].of<char>(bytes);
    }
    std::int32_t step[2] = {-1, budget_};
    ran_ = false;
    const std::int32_t status = onernn_workspace_run(workspace_.get(), costs_.data(), step);
    if (status == ONERNN_NO_MEMORY) throw std::bad_alloc();
    if (status) throw Failure{status, why_refused(status, step[0]) + name_of(step[0])};
    if (step[0] != static_cast<std::int32_t>(costs_.size()))
      throw Failure{ONERNN_TOO_MUCH, "loops and layers: expected at most " +
                                         std::to_string(most_steps_) +
                                         " operators, got more; raise the limit"};
    results_.resize(taken_.size());
    for (std::size_t o = 0; o < taken_.size(); ++o) results_[o] = checked(o);
    keep();
    copy();
    states_.swap(next_);
    ran_ = true;
  }

  void run_on(void* const* memory) {
    for (std::size_t i = 0; i < given_.size(); ++i)
      if (!memory[i] && model->inputs[i].next < 0)
        misused("input '" + model->inputs[i].name + "' is missing; pass it");
    for (Given& each : given_) each.numbers = *memory++;
    for (Taken& each : taken_) each.at = *memory++;
    run();
  }

  void reset() { begins_ = true; }

  const void* numbers(std::size_t at) const { return ran_ ? results_[at] : nullptr; }
  std::int64_t size(std::size_t at, std::size_t axis) const {
    const Output& output = model->outputs[at];
    return axis < output.sizes.size() && (ran_ || (prepared_ && output.known))
               ? sizes_[output.sizes[axis]]
               : -1;
  }
  std::int64_t most_bytes(std::size_t at) const {
    const Output& output = model->outputs[at];
    if (!prepared_) return -1;
    if (output.most >= 0) return sizes_[output.most] * output.width;
    return (count(output) * output.width).value();
  }
  struct Offsets {
    const std::int64_t* offsets = nullptr;
    std::int64_t sequences = 0;
  };
  Offsets level(std::size_t at, std::int32_t level) const {
    const std::vector<Level>& levels = model->outputs[at].levels;
    if (!ran_ || level < 0 || static_cast<std::size_t>(level) >= levels.size())
      return {nullptr, -1};
    const Level& one = levels[static_cast<std::size_t>(level)];
    if (one.input < 0)
      return {static_cast<const std::int64_t*>(places_[one.place]), sizes_[one.count]};
    const Given& given = given_[static_cast<std::size_t>(one.input)];
    return given.levels[static_cast<std::size_t>(one.level)];
  }

  const std::shared_ptr<const Compiled> model;

 private:
  struct Given {
    const void* numbers = nullptr;
    Numbers dims;
    std::vector<Offsets> levels;
    std::int64_t count = 0;
  };
  struct Taken {
    void* at = nullptr;
    std::int64_t bytes = 0;
  };

  static std::string expected(const Axis& axis) {
    if (axis.size >= 0) return std::to_string(axis.size);
    if (axis.most == INT64_MAX) return std::to_string(axis.least) + " or more";
    return std::to_string(axis.least) + " to " + std::to_string(axis.most);
  }

  std::string why_refused(std::int32_t status, std::int32_t step) const {
    if (status == ONERNN_UNSOUND) return "an operator would read or write outside its memory: ";
    if (status != ONERNN_TOO_LARGE) {
      const Function* const function = model->steps[static_cast<std::size_t>(step)].function;
      if (!function || std::strcmp(function->name, "natural:"))
        return "an index or a length is outside its range: ";
      return "an operator takes more elements than there are, for inputs " + inputs() +
             "; compile the model for these sizes with --input: ";
    }
    return "memory of a run with " + inputs() + ": expected at most " +
           std::to_string(most_bytes_) + " bytes, got more; raise the limit; ";
  }

  /// Returns a list of the inputs with their current sizes, such as "x (3, 4), lengths (7) in 2
  /// sequences".
  std::string inputs() const {
    std::string all;
    for (std::size_t i = 0; i < given_.size(); ++i) {
      all += (i ? ", " : "") + model->inputs[i].name + " (";
      for (std::size_t axis = 0; axis < given_[i].dims.size(); ++axis)
        all += (axis ? ", " : "") + std::to_string(given_[i].dims[axis]);
      all += ")";
      for (const Offsets& level : given_[i].levels)
        all += " in " + std::to_string(level.sequences) + " sequences";
    }
    return all;
  }

  /// Returns the name of the input whose size is `dims_[dim]`, and that size.
  std::string name_of_dim(std::int64_t dim) const {
    const std::string size = std::to_string(dims_[static_cast<std::size_t>(dim)]);
    for (std::size_t i = 0; i < given_.size(); ++i) {
      const Input& input = model->inputs[i];
      const std::string name = "input '" + input.name + "': ";
      const auto axes = static_cast<std::int64_t>(input.axes.size());
      const auto levels = static_cast<std::int64_t>(input.levels.size());
      if (dim < axes) return name + "axis " + std::to_string(dim) + " is " + size;
      dim -= axes;
      if (dim < levels)
        return name + "level " + std::to_string(dim) + " has " + size + " sequences";
      dim -= levels;
      if (input.counts_longest && dim-- == 0) return name + "its longest sequence has " + size;
    }
    return "a size is " + size;
  }

  /// Makes the stacks of the layers, without the memory of earlier runs.
  void make_stacks() {
    std::vector<std::unique_ptr<onernn_stack, FreeStack>> owned;
    for (const StoredLayer& each : model->layers) {
      onernn_stack* stack = nullptr;
      const std::int32_t status =
          onernn_stack_new(&each.spec, each.parts.data(), each.numbers, threads_, &stack);
      if (status == ONERNN_UNKNOWN)
        throw Failure{ONERNN_DAMAGED, "a layer has an unknown kind; compile the model again"};
      if (status) throw std::bad_alloc();
      owned.emplace_back(stack);
    }
    stacks_.resize(owned.size());  // where the workspace reads them
    for (std::size_t at = 0; at < owned.size(); ++at) stacks_[at] = owned[at].get();
    owned_ = std::move(owned);
  }

  std::string name_of(std::int32_t step) const {
    std::string number = "step " + std::to_string(step);
    if (step < 0 || static_cast<std::size_t>(step) >= model->steps.size()) return number;
    const Guarded& guarded = model->steps[static_cast<std::size_t>(step)];
    const std::string& label = model->labels[static_cast<std::size_t>(guarded.label)];
    if (!label.empty()) number = label + ", " + number;
    if (guarded.spec) return number + ", a layer";
    return guarded.function ? number + ", " + guarded.function->name : number;
  }

  /// Sets the states to their first values.
  void begin() {
    for (std::size_t i = 0; i < given_.size(); ++i) {
      const Input& input = model->inputs[i];
      if (input.next < 0) continue;
      const std::int64_t bytes = given_[i].count * input.width;
      char* const memory = state(i).of<char>(bytes);
      if (input.first)
        std::memcpy(memory, input.first, static_cast<std::size_t>(bytes));
      else
        std::memset(memory, 0, static_cast<std::size_t>(bytes));
    }
    begins_ = false;
  }

  Scratch& state(std::size_t input) {
    states_.resize(given_.size());
    return states_[input];
  }

  Count count(const Output& output) const {
    Count result = 1;
    for (const std::int64_t size : output.sizes) result = result * sizes_[size];
    return result;
  }

  // So that the rest of the budget fits 32 bits.
  static constexpr std::int64_t kMostOperators = INT32_MAX / 2;

  /// Decides which steps' costs are counted. Layers need not be counted if all of them together are
  /// within the budget.
  void choose(std::int64_t taken) {
    Count all = 0, most = Count(taken) * model->share + most_steps_;
    std::fill(costs_.begin(), costs_.end(), 0);
    for (const Cost& each : model->costs) {
      const Count one =
          Count((std::max)(sizes_[each.steps], std::int64_t(0))) * each.runs +
          (Count((std::max)(sizes_[each.rows], std::int64_t(0))) * each.work).value_to(INT64_MAX) /
              kWork;
      costs_[static_cast<std::size_t>(each.step)] =
          static_cast<std::int32_t>(one.value_to(kMostOperators));
      all = all + one;
    }
    budget_ = static_cast<std::int32_t>(most.value_to(kMostOperators));
    if (!model->loops && all.value_to(INT64_MAX) <= most.value_to(INT64_MAX - 1))
      std::fill(costs_.begin(), costs_.end(), 0);
  }

  /// A range of memory that the caller has passed.
  struct Part {
    std::uintptr_t begin, end;
    Part(const void* from, std::int64_t bytes)
        : begin(reinterpret_cast<std::uintptr_t>(from)),
          end(begin + static_cast<std::uintptr_t>(bytes)) {}
    bool meets(const Part& other) const {
      return begin < other.end && other.begin < end && begin && other.begin;
    }
  };

  /// Returns the range of an output's memory that a run may write.
  Part taken(std::size_t at) const {
    const Output& output = model->outputs[at];
    const std::int64_t bytes = taken_[at].bytes;
    return {taken_[at].at,
            output.most < 0 ? bytes : (std::min)(bytes, sizes_[output.most] * output.width)};
  }
  /// Says whether the memory of an output is also an input's.
  bool is_given(std::size_t at) const {
    const Part own = taken(at);
    for (std::size_t i = 0; i < given_.size(); ++i) {
      const Given& given = given_[i];
      if (own.meets({given.numbers, given.count * model->inputs[i].width})) return true;
      for (const Offsets& each : given.levels)
        if (own.meets({each.offsets, (each.sequences + 1) * 8}))
          misused("output '" + model->outputs[at].name +
                  "': expected memory of its own, got the offsets of input '" +
                  model->inputs[i].name + "'");
    }
    return false;
  }
  /// Says whether two outputs share this memory.
  bool is_shared(std::size_t at) const {
    for (std::size_t o = 0; o < taken_.size(); ++o)
      if (o != at && taken(o).meets(taken(at))) return true;
    return false;
  }

  /// Checks that the bytes of an output fit into its memory.
  std::int64_t expect_within(std::size_t at, std::int64_t bytes) const {
    const Output& output = model->outputs[at];
    const Count wanted = count(output) * output.width;
    if (!wanted.within(bytes))
      throw Failure{ONERNN_UNSOUND, "output '" + output.name + "' is larger than its memory"};
    return wanted.value();
  }

  /// Returns the address of an output, after a check of its sizes, its offsets and the caller's
  /// memory.
  const void* checked(std::size_t at) const {
    const Output& output = model->outputs[at];
    const std::int64_t bytes =
        expect_within(at, output.most >= 0 ? sizes_[output.most] * output.width
                                           : readable(*workspace_, output.place));
    for (const Level& level : output.levels)
      if (level.input < 0) {
        const std::int64_t sequences = sizes_[level.count];
        if (!((Count(sequences) + 1) * 8).within(readable(*workspace_, level.place)) ||
            !are_offsets(static_cast<const std::int64_t*>(places_[level.place]), sequences))
          throw Failure{ONERNN_UNSOUND, "output '" + output.name + "': its offsets decrease"};
      }
    if (taken_[at].at && bytes > taken_[at].bytes)
      misfit("output '" + output.name + "': expected memory of " + std::to_string(bytes) +
             " bytes, got " + std::to_string(taken_[at].bytes));
    return places_[output.place];
  }

  /// Copies outputs to the caller's memory. If that memory is also an input's, outputs inside of
  /// inputs are copied to memory of their own before.
  void copy() {
    views_.resize(taken_.size());
    for (const bool is_taken : {false, true})
      for (std::size_t o = 0; o < taken_.size(); ++o) {
        const Output& output = model->outputs[o];
        const std::int64_t bytes = (count(output) * output.width).value();
        void* to = taken_[o].at;
        if (!is_taken) to = output.most < 0 && shares_ ? views_[o].of<char>(bytes) : nullptr;
        if (!to) continue;
        if (bytes > 0 && to != results_[o])
          std::memmove(to, results_[o], static_cast<std::size_t>(bytes));
        results_[o] = to;
      }
  }

  /// Copies the next states. The states of this run stay, as outputs may be inside them.
  void keep() {
    for (std::size_t i = 0; i < given_.size(); ++i) {
      const Input& input = model->inputs[i];
      if (input.next < 0) continue;
      const auto next = static_cast<std::size_t>(input.next);
      for (std::size_t axis = 0; axis < input.axes.size(); ++axis)
        if (sizes_[model->outputs[next].sizes[axis]] != input.axes[axis].size)
          misfit("state '" + input.name + "': its next value has different sizes");
      const std::int64_t bytes = given_[i].count * input.width;
      next_.resize(given_.size());
      char* const memory = next_[i].of<char>(bytes);
      if (bytes > 0) std::memcpy(memory, results_[next], static_cast<std::size_t>(bytes));
    }
  }

  Bounds bounds_;
  std::vector<std::unique_ptr<onernn_stack, FreeStack>> owned_;
  std::vector<onernn_stack*> stacks_;
  std::unique_ptr<onernn_workspace, FreeWorkspace> workspace_;
  const std::int64_t* sizes_ = nullptr;
  void** places_ = nullptr;
  std::vector<Given> given_;
  std::vector<Taken> taken_;
  std::vector<Scratch> memory_, states_, next_, views_;
  std::vector<const void*> results_;
  Numbers dims_, bound_;
  std::vector<std::int32_t> costs_;
  const std::int32_t threads_;
  std::int64_t most_bytes_ = 0, most_steps_ = 0;
  std::int32_t budget_ = 0;
  bool was_bound_ = false, prepared_ = false, ran_ = false, begins_ = true, is_ragged_ = false;
  bool shares_ = false;  // a run writes outputs to the memory of inputs
};

#endif
