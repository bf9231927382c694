// The operator `onernn_part`, which replaces operators of a program of Paddle 2. It runs compiled
// models (onernn.h). Python compiles them, and runs the calls that they refuse.
#ifndef ONERNN_PADDLE_PROGRAM_PART_HPP
#define ONERNN_PADDLE_PROGRAM_PART_HPP

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "failures.hpp"
#include "kernels.h"
#include "packed_layer.hpp"
#if ONERNN_PADDLE < 3  // a header of Paddle 2 includes a missing file
#define PADDLE_WITH_CUSTOM_KERNEL
#endif
#include "paddle/phi/core/dense_tensor.h"

namespace onernn_paddle {

using paddle::DataType;
using paddle::Tensor;
using Words = std::vector<std::int64_t>;

/// The functions of onernn.h, from the library that was opened.
struct Interface {
  decltype(&::onernn_open_bytes) open;
  decltype(&::onernn_close) close;
  decltype(&::onernn_message) message;
  decltype(&::onernn_dtype) dtype;
  decltype(&::onernn_rank) rank;
  decltype(&::onernn_stream_open) stream_open;
  decltype(&::onernn_stream_close) stream_close;
  decltype(&::onernn_limit) limit;
  decltype(&::onernn_give) give;
  decltype(&::onernn_give_offsets) give_offsets;
  decltype(&::onernn_take) take;
  decltype(&::onernn_prepare) prepare;
  decltype(&::onernn_run) run;
  decltype(&::onernn_numbers) numbers;
  decltype(&::onernn_size) size;
};

inline const phi::DenseTensor& dense(const Tensor& tensor) {
  return *static_cast<const phi::DenseTensor*>(tensor.impl().get());
}

constexpr std::pair<DataType, const char*> kTypes[] = {
    {DataType::FLOAT32, "float32"}, {DataType::INT64, "int64"},     {DataType::INT32, "int32"},
    {DataType::FLOAT64, "float64"}, {DataType::FLOAT16, "float16"}, {DataType::BOOL, "bool"},
    {DataType::UINT8, "uint8"},     {DataType::INT8, "int8"},       {DataType::INT16, "int16"}};

inline const char* name_of(DataType type) {
  for (const auto& [each, name] : kTypes)
    if (each == type) return name;
  return "unknown";
}
inline DataType type_of(const std::string& name) {
  for (const auto& [type, each] : kTypes)
    if (each == name) return type;
  fail("no tensors of " + name);
}

/// The tensors of a call of part `number`. The first `data` inputs are data, the others parameters.
struct PartCall {
  std::int64_t number, data;
  bool fixed;
  const std::vector<Tensor>& inputs;
  std::vector<Tensor*> outputs;

  /// Returns dtype, rank and LoD levels of each data input, for which a model is compiled.
  Words kinds() const {
    Words result;
    for (std::int64_t k = 0; k < data; ++k) {
      const phi::DenseTensor& x = dense(inputs[k]);
      result.insert(result.end(),
                    {std::int64_t(x.dtype()), x.dims().size(), std::int64_t(x.lod().size())});
    }
    return result;
  }
};

inline std::size_t bytes_of(const Tensor& tensor) {
  return std::size_t(tensor.numel()) * phi::SizeOf(tensor.dtype());
}

/// A compiled model for inputs of one `kinds()`, copies of the parameters for which it was
/// compiled, and the streams that no call uses now.
class CompiledPart {
 public:
  struct Model {
    const void* bytes;
    std::int64_t size, most_bytes, most_steps;
    std::int32_t threads;
  };

  CompiledPart(const Interface& interface, const PartCall& call, const Model& model)
      : interface_(interface), limits_(model), kinds_(call.kinds()) {
    if (interface.open(model.bytes, model.size, model.threads, &model_)) fail(interface.message());
    for (std::size_t k = std::size_t(call.data); !call.fixed && k < call.inputs.size(); ++k) {
      const char* bytes = static_cast<const char*>(call.inputs[k].data());
      copies_.emplace_back(bytes, bytes + bytes_of(call.inputs[k]));
    }
  }
  CompiledPart(const CompiledPart&) = delete;
  ~CompiledPart() {
    for (onernn_stream* each : idle_) interface_.stream_close(each);
    interface_.close(model_);
  }

  bool is_for(const Words& kinds) const { return kinds == kinds_; }
  /// Returns whether the parameters equal those of the model. Trainers change them in place.
  bool holds(const PartCall& call) const {
    for (std::size_t k = 0; k < copies_.size(); ++k) {
      const Tensor& now = call.inputs[std::size_t(call.data) + k];
      if (bytes_of(now) != copies_[k].size() ||
          std::memcmp(now.data(), copies_[k].data(), copies_[k].size()))
        return false;
    }
    return true;
  }

  /// Returns false if the model refuses the inputs.
  bool run(const PartCall& call) {
    onernn_stream* stream = take();
    const bool done = stream && run(call, stream);
    std::lock_guard<std::mutex> locked(guard());
    if (stream) idle_.push_back(stream);
    return done;
  }

 private:
  bool run(const PartCall& call, onernn_stream* stream) const {
    for (int k = 0; k < call.data; ++k) {
      const phi::DenseTensor& x = dense(call.inputs[k]);
      if (interface_.give(stream, k, call.inputs[k].data(), x.dims().Get())) return false;
      for (std::size_t level = 0; level < x.lod().size(); ++level) {
        const auto& offsets = x.lod()[level];
        const auto* numbers = reinterpret_cast<const std::int64_t*>(offsets.data());
        if (interface_.give_offsets(stream, k, int(level), numbers,
                                    std::int64_t(offsets.size()) - 1))
          return false;
      }
    }
    if (interface_.prepare(stream)) return false;
    const std::size_t count = call.outputs.size();
    std::vector<bool> is_made(count);
    for (std::size_t k = 0; k < count; ++k) {
      is_made[k] = make(call, stream, k);
      void* memory = is_made[k] ? call.outputs[k]->data() : nullptr;
      const std::size_t bytes = is_made[k] ? bytes_of(*call.outputs[k]) : 0;
      if (interface_.take(stream, int(call.data + k), memory, std::int64_t(bytes))) return false;
    }
    if (interface_.run(stream)) return false;
    for (std::size_t k = 0; k < count; ++k) {
      if (is_made[k]) continue;
      if (!make(call, stream, k)) return false;
      Tensor& y = *call.outputs[k];
      std::memcpy(y.data(), interface_.numbers(stream, int(call.data + k)), bytes_of(y));
    }
    return true;
  }

  /// Allocates an output. Returns false if its sizes are known only after a run.
  bool make(const PartCall& call, onernn_stream* stream, std::size_t k) const {
    const int value = int(call.data + k);
    Words shape;
    for (int axis = 0; axis < interface_.rank(model_, value); ++axis)
      shape.push_back(interface_.size(stream, value, axis));
    if (std::count(shape.begin(), shape.end(), -1)) return false;
    *call.outputs[k] = paddle::empty(shape, type_of(interface_.dtype(model_, value)));
    return true;
  }

  onernn_stream* take() {
    {
      std::lock_guard<std::mutex> locked(guard());
      if (!idle_.empty()) {
        onernn_stream* stream = idle_.back();
        idle_.pop_back();
        return stream;
      }
    }
    onernn_stream* stream = nullptr;
    if (interface_.stream_open(model_, &stream)) return nullptr;
    interface_.limit(stream, limits_.most_bytes, limits_.most_steps);
    return stream;
  }

  const Interface& interface_;
  Model limits_;
  Words kinds_;
  onernn_model* model_ = nullptr;
  std::vector<std::vector<char>> copies_;
  std::vector<onernn_stream*> idle_;
};

/// A call that Python runs. Python sets its outputs, and a compiled model for the next call.
struct PythonCall {
  const Interface& interface;
  const PartCall& call;
  std::shared_ptr<CompiledPart> made;
  std::string failure;

  /// Runs a function that Python calls. Stores its error, which is thrown when Python has returned.
  template <class Function>
  void guarded(const Function& function) try {
    function();
  } catch (const std::exception& error) {
    failure = error.what();
  }

  /// Returns for each input: its address, the address of its dtype's name, its rank, its sizes, its
  /// number of LoD levels, and for each level the address and the number of offsets.
  Words words() const {
    const auto address = [](const void* at) { return std::int64_t(std::intptr_t(at)); };
    Words result;
    for (const Tensor& each : call.inputs) {
      const phi::DenseTensor& x = dense(each);
      result.insert(result.end(),
                    {address(each.data()), address(name_of(x.dtype())), x.dims().size()});
      result.insert(result.end(), x.dims().Get(), x.dims().Get() + x.dims().size());
      result.push_back(std::int64_t(x.lod().size()));
      for (const auto& level : x.lod())
        result.insert(result.end(), {address(level.data()), std::int64_t(level.size())});
    }
    return result;
  }
};

/// The Python function that runs a call of part `number`. `wants`: whether it also compiles a
/// model. The array holds `PythonCall::words`.
using Python = void (*)(PythonCall*, std::int64_t number, std::int32_t wants, const std::int64_t*,
                        std::int64_t count);

/// Runs a part. Calls Python if there is no compiled model for these parameters and inputs.
inline void run_part(const Interface& interface, Python python, const PartCall& call) {
  using Parts = std::vector<std::shared_ptr<CompiledPart>>;
  static auto& parts = *new std::map<std::int64_t, Parts>;  // never freed, also not at exit
  constexpr std::size_t kMost = 16;
  const Words kinds = call.kinds();
  std::shared_ptr<CompiledPart> part;
  {
    std::lock_guard<std::mutex> locked(guard());
    for (const auto& each : parts[call.number])
      if (each->is_for(kinds)) part = each;
  }
  const bool holds = part && part->holds(call);
  if (holds && part->run(call)) return;
  if (!python) fail("onernn_part: it runs in the process that optimized its program only");
  PythonCall asked{interface, call, nullptr, {}};
  const Words words = asked.words();
  python(&asked, call.number, !holds, words.data(), std::int64_t(words.size()));
  if (!asked.failure.empty()) fail(asked.failure);
  if (!asked.made) return;
  Parts dropped;  // freed after the mutex is unlocked
  std::lock_guard<std::mutex> locked(guard());
  Parts& kept = parts[call.number];
  dropped.swap(kept);
  for (const auto& each : dropped)
    if (!each->is_for(kinds) && kept.size() + 1 < kMost) kept.push_back(each);
  kept.push_back(asked.made);
}

}  // namespace onernn_paddle

#endif
