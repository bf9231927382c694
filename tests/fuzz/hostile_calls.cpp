// Calls of onernn.h by chance. Wrong ones are refused and change nothing: one stream gets all
// calls, another one only those that the first one took, and their runs have the same bytes. Every
// array is as large as the call says and no larger, and memory of a refused call is freed.
//
// hostile_calls ROUNDS FILES...
#include <memory>
#include <string>
#include <vector>

#include "draws.hpp"
#include "library/onernn.h"

namespace {

using Numbers = std::vector<std::int64_t>;
using Held = std::shared_ptr<Exact>;

constexpr std::int64_t kFar[] = {-1, INT64_MIN, INT64_MAX, std::int64_t(1) << 40};

/// Two streams of a model, and the memory that they have been given.
class Program {
 public:
  explicit Program(onernn_model* model)
      : model_(model), inputs_(onernn_inputs(model)), values_(inputs_ + onernn_outputs(model)) {
    for (Side& each : sides_) {
      check(!onernn_stream_open(model, &each.stream), onernn_message());
      each.given.resize(std::size_t(inputs_));
      each.offsets.resize(std::size_t(inputs_));
      each.taken.resize(std::size_t(values_));
    }
    give_all();
  }
  ~Program() {
    for (Side& each : sides_) onernn_stream_close(each.stream);
  }

  /// One call; whether it was a run that succeeded.
  bool call() {
    const std::int32_t value = any_value();
    switch (any_below(16)) {
      case 0:
        give_all();
        return false;
      case 1:
      case 2:
        give(value);
        return false;
      case 3:
      case 4:
        give_wrong(value);
        return false;
      case 5:
        give_offsets(value, one_in(4) ? std::int32_t(any_below(3)) - 1 : 0, one_in(2));
        return false;
      case 6:
      case 7:
        take(value);
        return false;
      case 8:
        limit();
        return false;
      case 9:
        done([](Side& side) { return onernn_prepare(side.stream); });
        return false;
      case 10:
        done([](Side& side) { return onernn_reset(side.stream); });
        return false;
      case 11:
        ask(value);
        return false;
      default:
        return run();
    }
  }

 private:
  struct Side {
    onernn_stream* stream = nullptr;
    std::vector<Held> given;
    std::vector<std::vector<Held>> offsets;
    std::vector<Held> taken;
  };

  /// Whether a call succeeds; where the first stream takes it, the other one does.
  template <class Function>
  bool done(Function function) {
    if (function(sides_[0]) != ONERNN_DONE) {
      check(*onernn_message(), "an error without words");
      return false;
    }
    check(function(sides_[1]) == ONERNN_DONE, "a refused call has changed a stream");
    return true;
  }

  std::int32_t any_value() const {
    return one_in(12) ? std::int32_t(any_below(1000)) - 500
                      : std::int32_t(any_below(std::uint64_t(values_)));
  }
  bool is_input(std::int32_t value) const { return value >= 0 && value < inputs_; }

  std::size_t width(std::int32_t value) const {
    const std::string dtype = onernn_dtype(model_, value);
    const auto has = [&dtype](const char* bits) { return dtype.find(bits) != std::string::npos; };
    return has("64") ? 8 : has("32") ? 4 : has("16") ? 2 : 1;
  }

  /// Sizes of an input that the model takes.
  Numbers dims_of(std::int32_t input) const {
    Numbers dims;
    for (std::int32_t axis = 0; axis < onernn_rank(model_, input); ++axis) {
      const std::int64_t declared = onernn_dim(model_, input, axis);
      const bool is_ragged = axis == 0 && onernn_levels(model_, input) > 0;
      dims.push_back(declared >= 0 ? declared
                     : is_ragged   ? rows_
                     : one_in(6)   ? std::int64_t(any_below(5))
                                   : open_);
    }
    return dims;
  }

  /// Small numbers of an input, the same ones for both streams.
  std::vector<Held> numbers(std::int32_t input, const Numbers& dims, std::size_t past = 0) const {
    const std::size_t size = width(input);
    std::size_t count = 1;
    for (const std::int64_t dim : dims) count *= std::size_t(dim);
    check(count < 1 << 20, "an input that is too large to be tried");
    std::vector<Held> both;
    for (int side = 0; side < 2; ++side)
      both.push_back(std::make_shared<Exact>(count * size, past));
    const bool is_float = std::string(onernn_dtype(model_, input)).find("float") == 0;
    for (std::size_t at = 0; at < count; ++at) {
      std::int64_t number = std::int64_t(any_below(dtype_is_bool(input) ? 2 : 4));
      const float real = float(number) / 3;
      const double wide = double(number) / 3;
      const void* from = &number;
      if (is_float && size == 4) from = &real;
      if (is_float && size == 8) from = &wide;
      for (const Held& each : both) std::memcpy(each->data() + at * size, from, size);
    }
    return both;
  }
  bool dtype_is_bool(std::int32_t value) const {
    return !std::strcmp(onernn_dtype(model_, value), "bool");
  }

  void hold(std::vector<Held> Side::* where, std::int32_t value, const std::vector<Held>& both) {
    for (int side = 0; side < 2; ++side)
      (sides_[side].*where)[std::size_t(value)] = both[std::size_t(side)];
  }

  template <class Give>
  bool give(std::int32_t input, const std::vector<Held>& both, Give give) {
    const bool given = done([&](Side& side) {
      return give(side.stream, both[side.stream == sides_[1].stream]->data());
    });
    if (given) hold(&Side::given, input, both);
    return given;
  }

  void give(std::int32_t value) {
    if (!is_input(value)) return;
    const Numbers dims = dims_of(value);
    give(value, numbers(value, dims), [&](onernn_stream* stream, const void* from) {
      return onernn_give(stream, value, from, dims.data());
    });
  }

  void give_wrong(std::int32_t value) {
    if (!is_input(value)) {
      const std::int64_t dims[16] = {};
      check(onernn_give(sides_[0].stream, value, dims, dims) == ONERNN_MISUSED, "no input");
      return;
    }
    Numbers dims = dims_of(value);
    const std::size_t past = width(value) > 1 && one_in(3) ? 1 : 0;
    const std::vector<Held> both = numbers(value, dims, past);
    if (past) {
      check(!give(value, both,
                  [&](onernn_stream* stream, const void* from) {
                    return onernn_give(stream, value, from, dims.data());
                  }),
            "memory that is not aligned");
    } else if (one_in(4)) {
      const bool is_state = onernn_next(model_, value) >= 0;
      check(done([&](Side& side) { return onernn_give(side.stream, value, nullptr, nullptr); }) ==
                is_state,
            "no numbers");
      if (is_state) hold(&Side::given, value, {nullptr, nullptr});
    } else if (!dims.empty()) {  // the axes before a wrong one are larger than the memory
      const std::size_t wrong = any_below(dims.size());
      for (std::size_t axis = 0; axis < dims.size(); ++axis) {
        const bool is_open = onernn_dim(model_, value, std::int32_t(axis)) < 0;
        if (axis == wrong)
          dims[axis] = is_open ? kFar[any_below(2)] : dims[axis] + kFar[any_below(4)];
        else if (is_open)
          dims[axis] += 1000;
      }
      check(!give(value, both,
                  [&](onernn_stream* stream, const void* from) {
                    return onernn_give(stream, value, from, dims.data());
                  }),
            "sizes that the model does not take");
    }
  }

  /// So many offsets that end at `end`, or that fall, on both sides.
  std::vector<Held> offsets(std::int64_t sequences, std::int64_t end, bool fall) const {
    Numbers made{0};
    for (std::int64_t n = 1; n <= sequences; ++n)
      made.push_back(n == sequences
                         ? end
                         : made.back() +
                               std::int64_t(any_below(std::uint64_t(end - made.back() + 1))));
    if (fall) made[any_below(made.size())] = kFar[any_below(4)];
    std::vector<Held> both;
    for (int side = 0; side < 2; ++side) {
      both.push_back(std::make_shared<Exact>(made.size() * 8));
      std::memcpy(both.back()->data(), made.data(), made.size() * 8);
    }
    return both;
  }

  void give_offsets(std::int32_t value, std::int32_t level, bool is_wrong) {
    const std::int32_t levels = is_input(value) ? onernn_levels(model_, value) : 0;
    const bool is_last = level + 1 == levels;
    const std::int64_t sequences = is_last ? 2 : 1, end = is_last ? rows_ : 2;
    const std::vector<Held> both = offsets(sequences, end, is_wrong && one_in(2));
    const std::int64_t count = is_wrong && one_in(4) ? kFar[any_below(3)] : sequences;
    const std::size_t past = is_wrong && one_in(8) ? 4 : 0;
    const bool is_null = is_wrong && one_in(8);
    const bool given = done([&](Side& side) {
      const auto* const at = both[side.stream == sides_[1].stream]->data() + past;
      return onernn_give_offsets(side.stream, value, level,
                                 is_null ? nullptr : reinterpret_cast<const std::int64_t*>(at),
                                 count);
    });
    check(!given || (level >= 0 && level < levels && count == sequences && !past && !is_null),
          "offsets that cannot be");
    for (int side = 0; given && side < 2; ++side) {
      std::vector<Held>& own = sides_[side].offsets[std::size_t(value)];
      own.resize(std::size_t(levels));
      own[std::size_t(level)] = both[std::size_t(side)];
    }
  }

  void give_all() {
    rows_ = std::int64_t(any_below(6));
    open_ = std::int64_t(any_below(5));
    for (std::int32_t input = 0; input < inputs_; ++input) {
      give(input);
      for (std::int32_t level = 0; level < onernn_levels(model_, input); ++level)
        give_offsets(input, level, false);
    }
  }

  /// Memory of an output: as much as it may take, or another number of bytes; an input's, too.
  void take(std::int32_t value) {
    const std::int64_t most = onernn_most_bytes(sides_[0].stream, value);
    std::size_t bytes = most < 0 || one_in(6) ? any_below(200) : std::size_t(most);
    std::vector<Held> both{nullptr, nullptr};
    std::size_t past = one_in(10) ? 1 : 0;
    if (!one_in(6)) {
      const Held& input = sides_[0].given[any_below(std::uint64_t(inputs_) + (inputs_ == 0))];
      const bool is_shared = inputs_ > 0 && input && !is_taken(input) && one_in(3);
      if (is_shared) bytes = input->bytes();
      both = {is_shared ? input : std::make_shared<Exact>(bytes + past),
              std::make_shared<Exact>(bytes + past)};
      past = is_shared ? 0 : past;
    }
    const std::int64_t size = both[0] && one_in(10) ? kFar[any_below(2)] : std::int64_t(bytes);
    const bool taken = done([&](Side& side) {
      const Held& own = both[side.stream == sides_[1].stream];
      return onernn_take(side.stream, value, own ? own->data() + past : nullptr, size);
    });
    check(!taken || (value >= inputs_ && value < values_ && size >= 0), "no output");
    if (taken) hold(&Side::taken, value, both);
  }

  bool is_taken(const Held& memory) const {
    for (const Held& each : sides_[0].taken)
      if (each == memory) return true;
    return false;
  }

  void limit() {
    const bool is_small = one_in(2);
    const std::int64_t bytes = one_in(4) ? kFar[any_below(4)] : is_small ? 500 : 1 << 22;
    const std::int64_t steps = one_in(4) ? kFar[any_below(4)] : is_small ? 3 : 5000;
    const bool is_set = done([&](Side& side) { return onernn_limit(side.stream, bytes, steps); });
    check(is_set == (bytes > 0 && steps > 0), "limits");
    if (is_set && !one_in(3))
      check(done([](Side& side) { return onernn_limit(side.stream, 1 << 22, 5000); }), "limits");
  }

  /// Questions have answers, whatever is asked.
  void ask(std::int32_t value) const {
    const onernn_stream* const stream = sides_[0].stream;
    const auto axis = std::int32_t(any_below(40)) - 20;
    onernn_name(model_, value), onernn_dtype(model_, value), onernn_next(model_, value);
    onernn_rank(model_, value), onernn_dim(model_, value, axis), onernn_levels(model_, value);
    onernn_size(stream, value, axis), onernn_most_bytes(stream, value);
    onernn_numbers(stream, value), onernn_offsets(stream, value, axis);
    check(onernn_sequences(stream, value, axis) >= -1, "a count of sequences");
  }

  bool run() {
    if (!done([](Side& side) { return onernn_run(side.stream); })) return false;
    for (std::int32_t value = inputs_; value < values_; ++value) {
      std::size_t bytes = width(value);
      for (std::int32_t axis = 0; axis < onernn_rank(model_, value); ++axis)
        bytes *= std::size_t(
            same([&](const onernn_stream* one) { return onernn_size(one, value, axis); }));
      const auto all_are_same = [&](const void* one, const void* other, std::size_t size) {
        check(one && other && (!size || !std::memcmp(one, other, size)),
              "a refused call, or memory that is shared, has changed a result");
      };
      all_are_same(onernn_numbers(sides_[0].stream, value), onernn_numbers(sides_[1].stream, value),
                   bytes);
      for (std::int32_t level = 0; level < onernn_levels(model_, value); ++level) {
        const auto sequences =
            same([&](const onernn_stream* one) { return onernn_sequences(one, value, level); });
        all_are_same(onernn_offsets(sides_[0].stream, value, level),
                     onernn_offsets(sides_[1].stream, value, level),
                     std::size_t(sequences + 1) * 8);
      }
    }
    bool is_shared = false;
    for (const Held& each : sides_[0].given) is_shared = is_shared || (each && is_taken(each));
    if (is_shared) give_all();  // outputs stand in the place of inputs
    return true;
  }

  template <class Function>
  std::int64_t same(Function function) const {
    const std::int64_t number = function(sides_[0].stream);
    check(number >= 0 && number == function(sides_[1].stream), "a size");
    return number;
  }

  onernn_model* model_;
  std::int32_t inputs_, values_;
  Side sides_[2];
  std::int64_t rows_ = 0, open_ = 0;
};

void misuse() {
  onernn_model* model = nullptr;
  onernn_stream* stream = nullptr;
  const char text[64] = "onernn\r\n";
  check(onernn_open(nullptr, 1, &model) == ONERNN_MISUSED, "no path");
  check(onernn_open("/", 1, &model) == ONERNN_NO_FILE, "a folder");
  check(onernn_open(text, 1, nullptr) == ONERNN_MISUSED, "nowhere to put a model");
  check(onernn_open_bytes(nullptr, 8, 1, &model) == ONERNN_MISUSED, "no bytes");
  check(onernn_open_bytes(text, -1, 1, &model) == ONERNN_MISUSED, "fewer bytes than none");
  for (int size = 0; size < 64; ++size)
    check(onernn_open_bytes(text, size, 1, &model) && !model, "a file of one word");
  check(onernn_stream_open(nullptr, &stream) == ONERNN_MISUSED, "no model");
  check(onernn_limit(nullptr, 1, 1) == ONERNN_MISUSED, "no stream");
  check(onernn_give(nullptr, 0, text, nullptr) == ONERNN_MISUSED, "no stream");
  check(onernn_give_offsets(nullptr, 0, 0, nullptr, 0) == ONERNN_MISUSED, "no stream");
  check(onernn_take(nullptr, 0, nullptr, 0) == ONERNN_MISUSED, "no stream");
  check(onernn_prepare(nullptr) == ONERNN_MISUSED, "no stream");
  check(onernn_run(nullptr) == ONERNN_MISUSED, "no stream");
  check(onernn_reset(nullptr) == ONERNN_MISUSED, "no stream");
  check(onernn_inputs(nullptr) == -1 && onernn_outputs(nullptr) == -1, "no model");
  check(!onernn_name(nullptr, 0) && !onernn_dtype(nullptr, 0), "no model");
  check(onernn_rank(nullptr, 0) == -1 && onernn_dim(nullptr, 0, 0) == -1, "no model");
  check(onernn_levels(nullptr, 0) == -1 && onernn_next(nullptr, 0) == -1, "no model");
  check(!onernn_numbers(nullptr, 0) && onernn_size(nullptr, 0, 0) == -1, "no stream");
  check(onernn_most_bytes(nullptr, 0) == -1 && !onernn_offsets(nullptr, 0, 0), "no stream");
  check(onernn_sequences(nullptr, 0, 0) == -1, "no stream");
  onernn_stream_close(nullptr);
  onernn_close(nullptr);
}

}  // namespace

int main(int count, char** arguments) {
  misuse();
  const long rounds = count > 1 ? std::atol(arguments[1]) : 0;
  long all = 0, silent = 0;
  for (int file = 2; file < count; ++file) {
    onernn_model* model = nullptr;
    check(!onernn_open(arguments[file], 1, &model), onernn_message());
    check(onernn_stream_open(model, nullptr) == ONERNN_MISUSED, "nowhere to put a stream");
    long runs = 0;
    for (long round = 0; round < rounds; ++round) {
      Program program(model);
      for (int calls = 0; calls < 40; ++calls) runs += program.call();
    }
    onernn_close(model);
    silent += !runs;
    all += runs;
  }
  std::printf("%d files, %ld runs, %ld files without one\n", count - 2, all, silent);
  return count > 2 && silent * 10 < count ? 0 : 1;
}
