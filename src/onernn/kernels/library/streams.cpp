// onernn.h: models, and streams that run them. No exception leaves, and no state is shared but
// what a model is, which nobody changes.
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include "compiled.hpp"
#include "scratch.hpp"

using namespace onernn;

struct onernn_model {
  std::shared_ptr<const Compiled> compiled;
  std::int32_t threads;
};

namespace {

thread_local char message[512] = "";

std::int32_t failed(std::int32_t status, const char* why) {
  std::snprintf(message, sizeof message, "%s", why);
  return status;
}

/// The status of a function; whatever it throws stays here.
template <class Function>
std::int32_t guarded(Function function) try {
  function();
  return ONERNN_DONE;
} catch (const Failure& failure) {
  return failed(failure.status, failure.why.c_str());
} catch (...) {
  return failed(ONERNN_NO_MEMORY, "the system has no memory, or no thread, left");
}

[[noreturn]] void misused(const std::string& why) { throw Failure{ONERNN_MISUSED, why}; }
[[noreturn]] void misfit(const std::string& why) { throw Failure{ONERNN_MISFIT, why}; }

struct FreeStack {
  void operator()(onernn_stack* one) const { onernn_stack_free(one); }
};
struct FreeWorkspace {
  void operator()(onernn_workspace* one) const { onernn_workspace_free(one); }
};

std::int32_t usable_cpus() {
  cpu_set_t usable;
  CPU_ZERO(&usable);
  const int count = sched_getaffinity(0, sizeof usable, &usable) ? 1 : CPU_COUNT(&usable);
  return (std::max)(1, (std::min)(count, 64));
}

bool is_at(const void* memory, std::int64_t align) {
  return reinterpret_cast<std::uintptr_t>(memory) % static_cast<std::uintptr_t>(align) == 0;
}

}  // namespace

struct onernn_stream {
  explicit onernn_stream(const onernn_model& of)
      : model(of.compiled),
        bounds_(model->steps),
        given_(model->inputs.size()),
        taken_(model->outputs.size()),
        memory_(model->written.size()),
        dims_(static_cast<std::size_t>(model->dims)),
        bound_(dims_.size(), -1),
        costs_(model->steps.size()) {
    for (const StoredLayer& each : model->layers) {
      onernn_stack* stack = nullptr;
      const std::int32_t status =
          onernn_stack_new(&each.spec, each.parts.data(), each.numbers, of.threads, &stack);
      if (status == ONERNN_UNKNOWN) throw Failure{ONERNN_DAMAGED, "a layer of an unknown kind"};
      if (status) throw std::bad_alloc();
      owned_.emplace_back(stack);
      stacks_.push_back(stack);
    }
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
    if (bytes < 1 || steps < 1) misused("limits: expected 1 or more");
    most_bytes_ = (std::min)(bytes, std::int64_t(1) << 56);
    most_steps_ = steps;
    prepared_ = false;
    bound_.assign(bound_.size(), -1);  // no size of inputs
  }

  void give(std::size_t at, const void* numbers, const std::int64_t* dims) {
    const Input& input = model->inputs[at];
    Given& given = given_[at];
    if (!numbers) {
      if (input.next < 0) misused("input '" + input.name + "': NULL, and it is no state");
      given.numbers = nullptr;
      return;
    }
    if (!is_at(numbers, input.width))
      misused("input '" + input.name + "': its memory is not aligned to " + input.dtype);
    Numbers sizes;
    for (std::size_t axis = 0; axis < input.axes.size(); ++axis) {
      const Axis& known = input.axes[axis];
      const std::int64_t size = sizes.emplace_back(dims ? dims[axis] : known.size);
      if (!dims && size < 0) misused("input '" + input.name + "': its dims are not declared");
      if (size < 0 || (known.size >= 0 && size != known.size) || size < known.least ||
          size > known.most)
        misfit("input '" + input.name + "': axis " + std::to_string(axis) + " is " +
               std::to_string(size) + ", the model takes " + expected(known));
    }
    prepared_ = prepared_ && given.numbers && given.dims == sizes;
    given.dims = std::move(sizes);
    given.numbers = numbers;
  }

  void give_offsets(std::size_t at, std::int32_t level, const std::int64_t* offsets,
                    std::int64_t sequences) {
    const Input& input = model->inputs[at];
    if (level < 0 || static_cast<std::size_t>(level) >= input.levels.size())
      misused("input '" + input.name + "' has no level " + std::to_string(level));
    if (!offsets || !is_at(offsets, 8))
      misused("input '" + input.name + "': its offsets are missing, or not aligned to int64");
    if (!((Count(sequences) + 1) * 8).within(INT64_MAX))
      misused("input '" + input.name + "': " + std::to_string(sequences) + " sequences");
    given_[at].levels[static_cast<std::size_t>(level)] = {offsets, sequences};
    prepared_ = ran_ = false;  // offsets of outputs may be these, which are not checked yet
  }

  void take(std::size_t at, void* numbers, std::int64_t bytes) {
    const Output& output = model->outputs[at];
    if (numbers && (bytes < 0 || !is_at(numbers, output.width)))
      misused("output '" + output.name + "': its memory is not aligned to " + output.dtype);
    taken_[at] = {numbers, numbers ? bytes : 0};
  }

  void prepare() {
    ran_ = false;
    std::size_t at = 0;
    std::int64_t taken = 0, states = 0;
    for (std::size_t i = 0; i < given_.size(); ++i) {
      const Input& input = model->inputs[i];
      Given& given = given_[i];
      if (!given.numbers && input.next < 0) misused("input '" + input.name + "' is missing");
      for (const std::int64_t size : given.dims) dims_[at++] = size;
      Count count = 1;
      for (const std::int64_t size : given.dims) count = count * size;
      if (!(count * input.width).within(INT64_MAX - taken))
        misfit("input '" + input.name + "': more numbers than any memory has");
      given.count = count.value();
      const std::int64_t bytes = given.count * input.width;
      taken += bytes;
      if (input.next >= 0) states += bytes;
      std::int64_t longest = 0;
      for (std::size_t k = 0; k < given.levels.size(); ++k) {
        const auto [offsets, sequences] = given.levels[k];
        if (!offsets) misused("input '" + input.name + "': its offsets are missing");
        const bool last = k + 1 == given.levels.size();
        const std::int64_t rows =
            last ? given.dims.empty() ? 0 : given.dims[0] : given.levels[k + 1].sequences;
        if (!are_offsets(offsets, sequences) || offsets[sequences] != rows)
          misfit("input '" + input.name + "': offsets that do not go from 0 to " +
                 std::to_string(rows) + " without falling");
        dims_[at++] = sequences;
        for (std::int64_t n = 0; last && n < sequences; ++n)
          longest = (std::max)(longest, offsets[n + 1] - offsets[n]);
      }
      if (input.counts_longest) dims_[at++] = longest;
    }
    if (states > most_bytes_)
      throw Failure{ONERNN_TOO_MUCH, "its states take " + std::to_string(states) +
                                         " bytes, more than " + std::to_string(most_bytes_)};
    if (prepared_ && dims_ == bound_) return;
    prepared_ = false;
    bound_.assign(bound_.size(), -1);
    const std::int32_t status = onernn_workspace_bind(workspace_.get(), dims_.data(), most_bytes_);
    if (status == ONERNN_NO_MEMORY) throw std::bad_alloc();
    bool fits = status == ONERNN_DONE;
    for (const std::int64_t size : model->axes) fits = fits && sizes_[size] >= 0;
    for (std::size_t i = 0; fits && i < given_.size(); ++i) {
      const Input& input = model->inputs[i];
      fits = sizes_[input.numbers] == given_[i].count;
      for (std::size_t k = 0; fits && k < input.levels.size(); ++k)
        fits = sizes_[input.offsets[k]] == given_[i].levels[k].sequences + 1;
    }
    if (!fits)
      misfit(
          "inputs whose sizes do not fit the model or each other, or that would take more than " +
          std::to_string(most_bytes_) + " bytes");
    for (std::size_t o = 0; o < taken_.size(); ++o) {  // so that callers may get memory for them
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
    if (!prepared_ || is_ragged_) prepare();  // offsets are read anew
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
      // Zeros at first: bytes that no step writes are nobody's.
      places_[wanted.place] = memory ? memory : memory_[k].of<char>(bytes);
    }
    std::int32_t step[2] = {-1, budget_};
    ran_ = false;
    const std::int32_t status = onernn_workspace_run(workspace_.get(), costs_.data(), step);
    if (status == ONERNN_NO_MEMORY) throw std::bad_alloc();
    if (status)
      throw Failure{status, (status == ONERNN_UNSOUND
                                 ? "a step would read what none has written, or leave its memory: "
                                 : "a step found an index or a length that it does not take: ") +
                                name_of(step[0])};
    if (step[0] != static_cast<std::int32_t>(costs_.size()))
      throw Failure{ONERNN_TOO_MUCH, "its loops and layers would run more than " +
                                         std::to_string(most_steps_) + " operators"};
    results_.resize(taken_.size());
    for (std::size_t o = 0; o < taken_.size(); ++o) results_[o] = checked(o);
    keep();
    copy();
    states_.swap(next_);
    ran_ = true;
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

  std::string name_of(std::int32_t step) const {
    const std::string number = "step " + std::to_string(step);
    if (step < 0 || static_cast<std::size_t>(step) >= model->steps.size()) return number;
    const Function* const function = model->steps[static_cast<std::size_t>(step)].function;
    return function ? number + ", " + function->name : number;
  }

  /// States at their first values.
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

  static constexpr std::int64_t kMostOperators = INT32_MAX / 2;  // what is left stays in 32 bits

  /// What steps cost. Layers need not be counted where all of them are within the budget.
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

  /// Memory that a caller has given.
  struct Part {
    std::uintptr_t begin, end;
    Part(const void* from, std::int64_t bytes)
        : begin(reinterpret_cast<std::uintptr_t>(from)),
          end(begin + static_cast<std::uintptr_t>(bytes)) {}
    bool meets(const Part& other) const {
      return begin < other.end && other.begin < end && begin && other.begin;
    }
  };

  /// The most that a run writes to the memory of an output.
  Part taken(std::size_t at) const {
    const Output& output = model->outputs[at];
    const std::int64_t bytes = taken_[at].bytes;
    return {taken_[at].at,
            output.most < 0 ? bytes : (std::min)(bytes, sizes_[output.most] * output.width)};
  }
  /// Whether the memory of an output is an input's, too.
  bool is_given(std::size_t at) const {
    const Part own = taken(at);
    for (std::size_t i = 0; i < given_.size(); ++i) {
      const Given& given = given_[i];
      if (own.meets({given.numbers, given.count * model->inputs[i].width})) return true;
      for (const Offsets& each : given.levels)
        if (own.meets({each.offsets, (each.sequences + 1) * 8}))
          misused("output '" + model->outputs[at].name + "': its memory holds offsets of input '" +
                  model->inputs[i].name + "'");
    }
    return false;
  }
  /// Whether it is that of another output.
  bool is_shared(std::size_t at) const {
    for (std::size_t o = 0; o < taken_.size(); ++o)
      if (o != at && taken(o).meets(taken(at))) return true;
    return false;
  }

  /// The bytes of an output, which have to be within those of its memory.
  std::int64_t expect_within(std::size_t at, std::int64_t bytes) const {
    const Output& output = model->outputs[at];
    const Count wanted = count(output) * output.width;
    if (!wanted.within(bytes))
      throw Failure{ONERNN_UNSOUND, "output '" + output.name + "' is larger than its memory"};
    return wanted.value();
  }

  /// Where an output stands, once its sizes, its offsets and the caller's memory fit.
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
          throw Failure{ONERNN_UNSOUND, "output '" + output.name + "' has offsets that fall"};
      }
    if (taken_[at].at && bytes > taken_[at].bytes)
      misfit("output '" + output.name + "' has " + std::to_string(bytes) + " bytes, its memory " +
             std::to_string(taken_[at].bytes));
    return places_[output.place];
  }

  /// Copies outputs to the caller's memory. First those that stand in an input, as that memory may
  /// be the input's; the others of these then need memory of their own.
  void copy() {
    views_.resize(taken_.size());
    for (const bool is_written : {false, true})
      for (std::size_t o = 0; o < taken_.size(); ++o) {
        const Output& output = model->outputs[o];
        if ((output.most >= 0) != is_written) continue;
        const std::int64_t bytes = (count(output) * output.width).value();
        void* to = taken_[o].at;
        if (!to && !is_written && shares_) to = views_[o].of<char>(bytes);
        if (!to) continue;
        if (bytes > 0 && to != results_[o])
          std::memmove(to, results_[o], static_cast<std::size_t>(bytes));
        results_[o] = to;
      }
  }

  /// Copies the next states. Those of this run stay, as outputs may stand in them.
  void keep() {
    for (std::size_t i = 0; i < given_.size(); ++i) {
      const Input& input = model->inputs[i];
      if (input.next < 0) continue;
      const auto next = static_cast<std::size_t>(input.next);
      for (std::size_t axis = 0; axis < input.axes.size(); ++axis)
        if (sizes_[model->outputs[next].sizes[axis]] != input.axes[axis].size)
          misfit("state '" + input.name + "': the next one has other sizes");
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
  std::int64_t most_bytes_ = 0, most_steps_ = 0;
  std::int32_t budget_ = 0;
  bool prepared_ = false, ran_ = false, begins_ = true, is_ragged_ = false;
  bool shares_ = false;  // a run writes outputs to the memory of inputs
};

namespace {

/// An input, or behind these an output; null: there is none.
const Described* described(const onernn_model* model, std::int32_t value) {
  if (!model || value < 0) return nullptr;
  const auto at = static_cast<std::size_t>(value);
  const std::size_t inputs = model->compiled->inputs.size();
  if (at < inputs) return &model->compiled->inputs[at];
  return at - inputs < model->compiled->outputs.size() ? &model->compiled->outputs[at - inputs]
                                                       : nullptr;
}

onernn_stream& of(onernn_stream* stream) {
  if (!stream) misused("no stream");
  return *stream;
}
std::size_t input_of(const onernn_stream& stream, std::int32_t value) {
  if (value < 0 || static_cast<std::size_t>(value) >= stream.model->inputs.size())
    misused("value " + std::to_string(value) + " is no input");
  return static_cast<std::size_t>(value);
}
/// The number of an output, if it is one.
std::optional<std::size_t> output_of(const onernn_stream* stream, std::int32_t value) {
  if (!stream || value < 0) return {};
  const std::size_t inputs = stream->model->inputs.size(), at = static_cast<std::size_t>(value);
  if (at < inputs || at - inputs >= stream->model->outputs.size()) return {};
  return at - inputs;
}

std::int32_t opened(std::unique_ptr<Bytes> bytes, std::int32_t threads, onernn_model** model) {
  const std::int32_t cpus = usable_cpus();
  const std::int32_t team = threads < 0 ? (std::max)(threads, -64)
                            : threads   ? (std::min)(threads, cpus)
                                        : cpus;
  auto compiled = std::make_shared<const Compiled>(std::move(bytes));
  *model = new onernn_model{std::move(compiled), team};
  return ONERNN_DONE;
}

}  // namespace

std::int32_t onernn_interface() { return ONERNN_INTERFACE; }
const char* onernn_message() { return message; }

std::int32_t onernn_open(const char* path, std::int32_t threads, onernn_model** model) {
  return guarded([=] {
    if (!path || !model) misused("no path, or nowhere to put the model");
    *model = nullptr;
    try {
      opened(std::make_unique<Bytes>(path), threads, model);
    } catch (Failure& failure) {
      if (failure.status != ONERNN_NO_FILE) failure.why = std::string(path) + ": " + failure.why;
      throw;
    }
  });
}

std::int32_t onernn_open_bytes(const void* bytes, std::int64_t size, std::int32_t threads,
                               onernn_model** model) {
  return guarded([=] {
    if (!bytes || size < 0 || !model) misused("no bytes, or nowhere to put the model");
    *model = nullptr;
    opened(std::make_unique<Bytes>(bytes, size), threads, model);
  });
}

void onernn_close(onernn_model* model) { delete model; }

std::int32_t onernn_inputs(const onernn_model* model) {
  return model ? static_cast<std::int32_t>(model->compiled->inputs.size()) : -1;
}
std::int32_t onernn_outputs(const onernn_model* model) {
  return model ? static_cast<std::int32_t>(model->compiled->outputs.size()) : -1;
}
const char* onernn_name(const onernn_model* model, std::int32_t value) {
  const Described* const known = described(model, value);
  return known ? known->name.c_str() : nullptr;
}
const char* onernn_dtype(const onernn_model* model, std::int32_t value) {
  const Described* const known = described(model, value);
  return known ? known->dtype.c_str() : nullptr;
}
std::int32_t onernn_rank(const onernn_model* model, std::int32_t value) {
  const Described* const known = described(model, value);
  return known ? static_cast<std::int32_t>(known->axes.size()) : -1;
}
std::int64_t onernn_dim(const onernn_model* model, std::int32_t value, std::int32_t axis) {
  const Described* const known = described(model, value);
  const bool there = known && axis >= 0 && static_cast<std::size_t>(axis) < known->axes.size();
  return there ? known->axes[static_cast<std::size_t>(axis)].size : -1;
}
std::int32_t onernn_levels(const onernn_model* model, std::int32_t value) {
  if (!described(model, value)) return -1;
  const auto at = static_cast<std::size_t>(value);
  const std::size_t inputs = model->compiled->inputs.size();
  return static_cast<std::int32_t>(at < inputs
                                       ? model->compiled->inputs[at].levels.size()
                                       : model->compiled->outputs[at - inputs].levels.size());
}
std::int32_t onernn_next(const onernn_model* model, std::int32_t value) {
  if (!described(model, value) || value >= onernn_inputs(model)) return -1;
  const std::int64_t next = model->compiled->inputs[static_cast<std::size_t>(value)].next;
  return next < 0 ? -1 : onernn_inputs(model) + static_cast<std::int32_t>(next);
}

std::int32_t onernn_stream_open(onernn_model* model, onernn_stream** stream) {
  return guarded([=] {
    if (!model || !stream) misused("no model, or nowhere to put the stream");
    *stream = nullptr;
    *stream = new onernn_stream(*model);
  });
}
void onernn_stream_close(onernn_stream* stream) { delete stream; }

std::int32_t onernn_limit(onernn_stream* stream, std::int64_t bytes, std::int64_t steps) {
  return guarded([=] { of(stream).limit(bytes, steps); });
}
std::int32_t onernn_give(onernn_stream* stream, std::int32_t value, const void* numbers,
                         const std::int64_t* dims) {
  return guarded([=] { of(stream).give(input_of(*stream, value), numbers, dims); });
}
std::int32_t onernn_give_offsets(onernn_stream* stream, std::int32_t value, std::int32_t level,
                                 const std::int64_t* offsets, std::int64_t sequences) {
  return guarded(
      [=] { of(stream).give_offsets(input_of(*stream, value), level, offsets, sequences); });
}
std::int32_t onernn_take(onernn_stream* stream, std::int32_t value, void* numbers,
                         std::int64_t bytes) {
  return guarded([=] {
    onernn_stream& own = of(stream);
    const auto at = output_of(stream, value);
    if (!at) misused("value " + std::to_string(value) + " is no output");
    own.take(*at, numbers, bytes);
  });
}
std::int32_t onernn_prepare(onernn_stream* stream) {
  return guarded([=] { of(stream).prepare(); });
}
std::int32_t onernn_run(onernn_stream* stream) {
  return guarded([=] { of(stream).run(); });
}
std::int32_t onernn_reset(onernn_stream* stream) {
  return guarded([=] { of(stream).reset(); });
}

const void* onernn_numbers(const onernn_stream* stream, std::int32_t value) {
  const auto at = output_of(stream, value);
  return at ? stream->numbers(*at) : nullptr;
}
std::int64_t onernn_size(const onernn_stream* stream, std::int32_t value, std::int32_t axis) {
  const auto at = output_of(stream, value);
  return at && axis >= 0 ? stream->size(*at, static_cast<std::size_t>(axis)) : -1;
}
std::int64_t onernn_most_bytes(const onernn_stream* stream, std::int32_t value) {
  const auto at = output_of(stream, value);
  return at ? stream->most_bytes(*at) : -1;
}
const std::int64_t* onernn_offsets(const onernn_stream* stream, std::int32_t value,
                                   std::int32_t level) {
  const auto at = output_of(stream, value);
  return at ? stream->level(*at, level).offsets : nullptr;
}
std::int64_t onernn_sequences(const onernn_stream* stream, std::int32_t value, std::int32_t level) {
  const auto at = output_of(stream, value);
  return at ? stream->level(*at, level).sequences : -1;
}
