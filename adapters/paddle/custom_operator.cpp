// Registers the operator `onernn_rnn`, which computes Paddle's `rnn` and its gradient on the
// kernels, and the operator `onernn_part`, which runs a part of a program of Paddle 2.
#include <dlfcn.h>

#include <algorithm>
#include <thread>

#include "packed_layer.hpp"
#include "program_part.hpp"

namespace {

using namespace onernn_paddle;
using Tensors = std::vector<Tensor>;
using Shape = std::vector<std::int64_t>;

Library library;
Interface interface;
bool is_open = false;

template <class Function>
bool find(void* handle, const char* name, Function*& function) {
  return (function = reinterpret_cast<Function*>(dlsym(handle, name))) != nullptr;
}

const float* numbers(const Tensor& tensor, const char* name) {
  require(tensor.place() == paddle::CPUPlace() && tensor.dtype() == DataType::FLOAT32, name,
          ": expected float32 on a CPU");
  return tensor.data<float>();
}

std::vector<const float*> numbers(const Tensors& tensors, const char* name) {
  std::vector<const float*> result;
  for (const Tensor& each : tensors) result.push_back(numbers(each, name));
  return result;
}

using Owners = std::vector<std::shared_ptr<const void>>;

Owners owners(const Tensors& tensors) {
  Owners result;
#if ONERNN_PADDLE > 2  // only its programs have parameters that never change
  for (const Tensor& each : tensors) result.push_back(dense(each).Holder());
#endif
  return result;
}

Layer layer_of(const Tensor& x, const Tensors& weights, const std::string& mode,
               const std::vector<int>& gates, int layers, bool bidirectional, int units, int stored,
               int threads) {
  require(is_open, "the kernels are not loaded");
  const bool gru = mode == "GRU", lstm = mode == "LSTM";
  require(gru || lstm || mode == "RNN_TANH" || mode == "RNN_RELU", "mode ", mode);
  std::vector<bool> seen(gru ? 3 : lstm ? 4 : 1);
  require(gates.size() == seen.size(), "gates of ", mode);
  for (int gate : gates) {
    require(gate >= 0 && std::size_t(gate) < seen.size() && !seen[gate], "gates");
    seen[gate] = true;
  }
  require(stored == ONERNN_F32 || stored == ONERNN_BF16 || stored == ONERNN_F16, "stored ", stored);
  require(x.shape().size() == 3, "X: expected 3 axes, got ", x.shape().size());
  require(layers > 0 && std::size_t(layers) <= weights.size() && units > 0,
          "num_layers or hidden_size of other weights");
  // A negative number means exactly so many threads, for tests.
  require(threads != 0 && threads >= -64 && threads <= 64, "threads: expected 1 to 64, got ",
          threads);
  static const int cpus = int(std::thread::hardware_concurrency());  // of this machine
  Layer layer{gru    ? ONERNN_LBR_GRU
              : lstm ? ONERNN_LSTM
                     : ONERNN_RNN,
              mode == "RNN_TANH"   ? ONERNN_TANH
              : mode == "RNN_RELU" ? ONERNN_RELU
                                   : ONERNN_SIGMOID,
              stored,
              layers,
              bidirectional ? 2 : 1,
              std::min(threads, cpus),
              x.shape()[2],
              units,
              gates};
  const std::size_t expected = 4 * std::size_t(layer.parts());
  require(weights.size() == expected, "WeightList: expected ", expected, " tensors, got ",
          weights.size());
  for (std::size_t k = 0; k < weights.size(); ++k)
    require(weights[k].numel() == layer.size_of(k), "WeightList[", k, "]: expected ",
            layer.size_of(k), " numbers, got ", weights[k].numel());
  return layer;
}

Batch batch_of(const Tensor& x, const paddle::optional<Tensor>& lengths, bool time_major) {
  Batch batch{x.shape()[time_major ? 0 : 1], x.shape()[time_major ? 1 : 0], time_major, {}};
  constexpr std::int64_t kMost = std::int64_t(1) << 31;  // sizes are products of T, N
  require(batch.T < kMost && batch.N < kMost && batch.T * batch.N < kMost, "X: too many steps");
  if (!lengths) return batch;
  const bool wide = lengths->dtype() == DataType::INT64;
  require(lengths->numel() == batch.N && (wide || lengths->dtype() == DataType::INT32),
          "SequenceLength: expected ", batch.N, " numbers of int32 or int64");
  for (std::int64_t n = 0; n < batch.N; ++n) {
    batch.lengths.push_back(wide ? lengths->data<std::int64_t>()[n]
                                 : lengths->data<std::int32_t>()[n]);
    require(batch.lengths[n] >= 0 && batch.lengths[n] <= batch.T, "SequenceLength[", n,
            "]: ", batch.lengths[n], " of ", batch.T, " steps");
  }
  return batch;
}

void check_states(const Tensors& states, const Layer& layer, std::int64_t N) {
  const std::size_t count = layer.cell == ONERNN_LSTM ? 2 : 1;
  require(states.size() == count, "PreState: expected ", count, " tensors");
  for (const Tensor& each : states)
    require(each.shape() == Shape({layer.parts(), N, layer.units}), "PreState: expected (",
            layer.parts(), ", ", N, ", ", layer.units, ")");
}

Tensor new_tensor(const Shape& shape) { return paddle::empty(shape, DataType::FLOAT32); }

/// Returns the gradient, or zeros for an unused result, which has no gradient.
Tensor or_zeros(const Tensor& gradient, const Tensor& result) {
  if (!gradient.defined()) return paddle::zeros(result.shape(), DataType::FLOAT32);
  require(gradient.shape() == result.shape(), "a gradient of another shape than its result");
  return gradient;
}

/// Returns h and an LSTM's c in one tensor (components, layers * directions, N, units). Paddle's
/// executor does not support a list of outputs together with other outputs.
Tensor new_states(const Layer& layer, const Batch& batch) {
  const std::int64_t components = layer.cell == ONERNN_LSTM ? 2 : 1;
  return new_tensor({components, layer.parts(), batch.N, layer.units});
}
template <class Number>
Number* second(const Layer& layer, Number* states, const Batch& batch) {
  return layer.cell == ONERNN_LSTM ? states + layer.parts() * batch.N * layer.units : nullptr;
}

/// Returns the tape's last number, which is 0 if the tape is incomplete or backward has used it.
float& is_whole(Tensor& tape) { return tape.data<float>()[tape.numel() - 1]; }

/// The inputs x, initial states and weights. They are one list, because a gradient supports only
/// one list.
struct Arguments {
  Arguments(const Tensors& inputs, const std::string& mode) {
    const std::size_t states = mode == "LSTM" ? 2 : 1;
    require(inputs.size() > states, "Inputs: expected X, states and weights");
    x = inputs[0];
    before.assign(inputs.begin() + 1, inputs.begin() + 1 + states);
    weights.assign(inputs.begin() + 1 + states, inputs.end());
  }
  const float* h() const { return numbers(before[0], "PreState"); }
  const float* c() const { return before.size() > 1 ? numbers(before[1], "PreState") : nullptr; }

  Tensor x;
  Tensors before, weights;
};

Tensors Forward(const Tensors& inputs, const paddle::optional<Tensor>& lengths,
                const std::string& mode, const std::vector<int>& gates, int num_layers,
                bool is_bidirec, int hidden_size, bool time_major, bool is_test, bool fixed,
                int stored, int threads) try {
  const Arguments arguments(inputs, mode);
  const Layer layer = layer_of(arguments.x, arguments.weights, mode, gates, num_layers, is_bidirec,
                               hidden_size, stored, threads);
  const Batch batch = batch_of(arguments.x, lengths, time_major);
  check_states(arguments.before, layer, batch.N);
  Tensor y = new_tensor({arguments.x.shape()[0], arguments.x.shape()[1], layer.wide()});
  Tensor after = new_states(layer, batch), tape = new_tensor({1});
  float* end = after.data<float>();
  const States states{arguments.h(), arguments.c(), end, second(layer, end, batch)};
  const float* x = numbers(arguments.x, "X");
  const auto weights = numbers(arguments.weights, "WeightList");
  if (!batch.words()) {
    std::fill_n(y.data<float>(), y.numel(), 0.f);
    for (const Tensor& each : arguments.before)
      end = std::copy_n(each.data<float>(), each.numel(), end);
  } else if (is_test) {
    run_layer(library, layer, {weights, fixed ? owners(arguments.weights) : Owners()}, batch, x,
              states, y.data<float>());
  } else {
    const Training training(library, layer, batch);
    tape = new_tensor({training.tape_size() + 1});
    training.forward(weights, x, states, y.data<float>(), tape.data<float>());
  }
  is_whole(tape) = tape.numel() > 1;
  return {y, after, tape};
} catch (...) {
  fail_again();
}

Tensors Backward(const Tensors& inputs, const paddle::optional<Tensor>& lengths,
                 const Tensor& given, const Tensor& outer, const Tensor& end,
                 const std::string& mode, const std::vector<int>& gates, int num_layers,
                 bool is_bidirec, int hidden_size, bool time_major, bool, bool, int stored,
                 int threads) try {
  const Arguments arguments(inputs, mode);
  const Layer layer = layer_of(arguments.x, arguments.weights, mode, gates, num_layers, is_bidirec,
                               hidden_size, stored, threads);
  require(stored != ONERNN_F16, "no training in f16; use bf16 or f32");
  const Batch batch = batch_of(arguments.x, lengths, time_major);
  check_states(arguments.before, layer, batch.N);
  Tensor y = new_tensor({arguments.x.shape()[0], arguments.x.shape()[1], layer.wide()});
  Tensor after = new_states(layer, batch);
  const Tensor dy = or_zeros(outer, y), dafter = or_zeros(end, after);
  const float* end_of = numbers(dafter, "States@GRAD");
  Tensors result;
  for (const Tensor& each : inputs) result.push_back(new_tensor(each.shape()));
  if (!batch.words()) {
    for (Tensor& each : result) std::fill_n(each.data<float>(), each.numel(), 0.f);
    for (std::size_t k = 0; k < arguments.before.size(); ++k, end_of += dafter.numel() / 2)
      std::copy_n(end_of, result[1 + k].numel(), result[1 + k].data<float>());
    return result;
  }
  const Training training(library, layer, batch);
  const auto weights = numbers(arguments.weights, "WeightList");
  Tensor tape = given;
  numbers(tape, "Tape");
  if (tape.numel() != training.tape_size() + 1 || !is_whole(tape)) {  // already used, or missing
    tape = new_tensor({training.tape_size() + 1});
    float* unread = after.data<float>();
    training.forward(weights, numbers(arguments.x, "X"),
                     {arguments.h(), arguments.c(), unread, second(layer, unread, batch)},
                     y.data<float>(), tape.data<float>());
  }
  is_whole(tape) = 0;
  std::vector<float*> into;
  for (std::size_t k = 1 + arguments.before.size(); k < result.size(); ++k)
    into.push_back(result[k].data<float>());
  float* dc = arguments.before.size() > 1 ? result[2].data<float>() : nullptr;
  training.backward(weights, numbers(dy, "Out@GRAD"),
                    {end_of, second(layer, end_of, batch), result[1].data<float>(), dc},
                    result[0].data<float>(), into, tape.data<float>());
  return result;
} catch (...) {
  fail_again();
}

/// Without this operator Paddle would silently use zeros as gradients of gradients.
Tensors TwiceBackward(const Tensors&, const Tensors&) {
  fail("onernn_rnn: no gradients of gradients (create_graph=True)");
}

std::vector<Shape> InferShape(const std::vector<Shape>& inputs, const paddle::optional<Shape>&,
                              const std::string& mode, const std::vector<int>&, int num_layers,
                              bool is_bidirec, int hidden_size, bool time_major, bool, bool, int,
                              int) {
  require(!inputs.empty() && inputs[0].size() == 3, "X: expected 3 axes");
  const Shape& x = inputs[0];
  const int directions = is_bidirec ? 2 : 1;
  return {{x[0], x[1], directions * hidden_size},
          {mode == "LSTM" ? 2 : 1, num_layers * directions, x[time_major ? 1 : 0], hidden_size},
          {-1}};
}

std::vector<DataType> InferDtype(const std::vector<DataType>& inputs,
                                 const paddle::optional<DataType>&) {
  require(!inputs.empty(), "Inputs: expected X");
  return std::vector<DataType>(3, inputs[0]);
}

Python python = nullptr;

void RunPart(paddle::CustomOpKernelContext* context) {
  const auto [begin, end] = context->InputRangeAt(0);
  const auto [first, last] = context->OutputRangeAt(0);
  const Tensors inputs = context->InputsBetween(begin, end);
  for (const Tensor& each : inputs)
    if (each.place() != paddle::CPUPlace()) fail("onernn_part: expected tensors on a CPU");
  run_part(interface, python,
           {context->AttrAt<std::int64_t>(0), context->AttrAt<std::int64_t>(1),
            context->AttrAt<bool>(2), inputs, context->MutableOutputBetween(first, last)});
}

void RunPartBackward(paddle::CustomOpKernelContext*) {
  fail(
      "no gradients: a program is optimized for inference; train it as it was, or optimize a"
      " paddle.nn.Layer");
}

}  // namespace

#define ONERNN_VISIBLE extern "C" __attribute__((visibility("default")))

/// Sets the Python function that runs calls without a compiled model.
ONERNN_VISIBLE void onernn_paddle_python(Python function) { python = function; }
/// Sets an output of a call.
ONERNN_VISIBLE void onernn_paddle_result(PythonCall* call, std::int64_t index, const char* type,
                                         const std::int64_t* dims, std::int64_t rank,
                                         const void* numbers) {
  call->guarded([=] {
    Tensor& y = *call->call.outputs.at(std::size_t(index));
    y = paddle::empty(Shape(dims, dims + rank), type_of(type));
    std::memcpy(y.data(), numbers, bytes_of(y));
  });
}
/// Sets a compiled model for calls like this one.
ONERNN_VISIBLE void onernn_paddle_model(PythonCall* call, const void* bytes, std::int64_t size,
                                        std::int64_t threads, std::int64_t most_bytes,
                                        std::int64_t most_steps) {
  call->guarded([=] {
    const CompiledPart::Model model{bytes, size, most_bytes, most_steps, std::int32_t(threads)};
    call->made = std::make_shared<CompiledPart>(call->interface, call->call, model);
  });
}
ONERNN_VISIBLE void onernn_paddle_failed(PythonCall* call, const char* why) { call->failure = why; }

/// Opens the kernels' library. Returns 0, or 1 if this file was compiled for another library.
ONERNN_VISIBLE int onernn_paddle_open(const char* path) {
  if (is_open) return 0;
  void* handle = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  decltype(&onernn_abi) abi = nullptr;
  if (!handle || !find(handle, "onernn_abi", abi) || abi() != ONERNN_ABI) return 1;
  is_open = find(handle, "onernn_stack_new", library.stack_new) &&
            find(handle, "onernn_stack_run", library.stack_run) &&
            find(handle, "onernn_stack_run_unpacked", library.stack_run_unpacked) &&
            find(handle, "onernn_stack_free", library.stack_free) &&
            find(handle, "onernn_training_new", library.training_new) &&
            find(handle, "onernn_training_forward", library.training_forward) &&
            find(handle, "onernn_training_backward", library.training_backward) &&
            find(handle, "onernn_training_free", library.training_free) &&
            find(handle, "onernn_open_bytes", interface.open) &&
            find(handle, "onernn_close", interface.close) &&
            find(handle, "onernn_message", interface.message) &&
            find(handle, "onernn_dtype", interface.dtype) &&
            find(handle, "onernn_rank", interface.rank) &&
            find(handle, "onernn_stream_open", interface.stream_open) &&
            find(handle, "onernn_stream_close", interface.stream_close) &&
            find(handle, "onernn_limit", interface.limit) &&
            find(handle, "onernn_give", interface.give) &&
            find(handle, "onernn_give_offsets", interface.give_offsets) &&
            find(handle, "onernn_take", interface.take) &&
            find(handle, "onernn_prepare", interface.prepare) &&
            find(handle, "onernn_run", interface.run) &&
            find(handle, "onernn_numbers", interface.numbers) &&
            find(handle, "onernn_size", interface.size);
  return !is_open;
}

#define ONERNN_ATTRIBUTES                          \
  {"mode: std::string", "gates: std::vector<int>", \
   "num_layers: int",   "is_bidirec: bool",        \
   "hidden_size: int",  "time_major: bool",        \
   "is_test: bool",     "fixed: bool",             \
   "stored: int",       "threads: int"}

PD_BUILD_OP(onernn_rnn)
    .Inputs({paddle::Vec("Inputs"), paddle::Optional("SequenceLength")})
    .Outputs({"Out", "States", "Tape"})
    .Attrs(ONERNN_ATTRIBUTES)
    .SetKernelFn(PD_KERNEL(Forward))
    .SetInferShapeFn(PD_INFER_SHAPE(InferShape))
    .SetInferDtypeFn(PD_INFER_DTYPE(InferDtype));

PD_BUILD_GRAD_OP(onernn_rnn)
    .Inputs({paddle::Vec("Inputs"), paddle::Optional("SequenceLength"), "Tape", paddle::Grad("Out"),
             paddle::Grad("States")})
    .Outputs({paddle::Grad(paddle::Vec("Inputs"))})
    .Attrs(ONERNN_ATTRIBUTES)
    .SetKernelFn(PD_KERNEL(Backward));

PD_BUILD_DOUBLE_GRAD_OP(onernn_rnn)
    .Inputs({paddle::Vec("Inputs"), paddle::Grad(paddle::Grad(paddle::Vec("Inputs")))})
    .Outputs({paddle::Grad(paddle::Grad("Out"))})
    .SetKernelFn(PD_KERNEL(TwiceBackward));

PD_BUILD_OP(onernn_part)
    .Inputs({paddle::Vec("Inputs")})
    .Outputs({paddle::Vec("Out")})
    .Attrs({"number: int64_t", "data: int64_t", "fixed: bool"})
    .SetKernelFn(RunPart);

/// Without this operator Paddle would silently use zeros as gradients.
PD_BUILD_GRAD_OP(onernn_part)
    .Inputs({paddle::Vec("Inputs"), paddle::Grad(paddle::Vec("Out"))})
    .Outputs({paddle::Grad(paddle::Vec("Inputs"))})
    .SetKernelFn(RunPartBackward);
