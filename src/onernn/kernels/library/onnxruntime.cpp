// Recurrent layers as operators of ONNX Runtime. This library is also a library of custom operators
// for it.
//
// A node holds its layer, which `onernn plug` has put into the model; nothing in it is trusted. Or
// the node has the number of a layer that Python has made. Python drops such layers when the
// session has been made.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "any_stack.hpp"
#include "exported.hpp"
#include "ort_interface.hpp"
#include "ort_layer.hpp"

namespace {

using namespace onernn;

/// A call of ONNX Runtime that failed, with its status.
struct Failed {
  ort::Status* status;
};

void check(ort::Status* status) {
  if (status) throw Failed{status};
}

/// Turns an exception into a status of ONNX Runtime.
template <class Function>
ort::Status* guarded(const ort::Api& api, Function function) try {
  function();
  return nullptr;
} catch (const Failed& failed) {
  return failed.status;
} catch (const ort::Refused& refused) {
  return api.CreateStatus(refused.code, refused.why.c_str());
} catch (...) {
  return api.CreateStatus(ort::kFail, "the system has no memory, or no thread, for this");
}

struct Kernel {
  const ort::Api& api;
  std::shared_ptr<ort::Layer> layer;
};

std::string text_of(const std::int64_t* dimensions, std::size_t count) {
  std::string text = "(";
  for (std::size_t at = 0; at < count; ++at)
    text += (at ? ", " : "") + std::to_string(dimensions[at]);
  return text + ")";
}

/// An input. `data` is null if it is absent, and may be null if it is empty.
struct Tensor {
  const char* name = nullptr;
  bool given = false;
  const void* data = nullptr;
  std::vector<std::int64_t> shape;

  void expect(std::initializer_list<std::int64_t> wanted) const {
    if (given && !std::equal(shape.begin(), shape.end(), wanted.begin(), wanted.end()))
      throw ort::Refused{ort::kInvalidArgument, std::string(name) + ": expected shape " +
                                                    text_of(wanted.begin(), wanted.size()) +
                                                    ", got " + text_of(shape.data(), shape.size())};
  }
};

/// The inputs and outputs of a call.
struct Node {
  const ort::Api& api;
  ort::Context* context;

  Tensor input(std::size_t at, const char* name) const {
    Tensor found;
    found.name = name;
    const ort::Value* value = nullptr;
    check(api.KernelContext_GetInput(context, at, &value));
    if (!value) return found;
    ort::Shape* shape = nullptr;
    check(api.GetTensorTypeAndShape(value, &shape));
    const std::unique_ptr<ort::Shape, void (*)(ort::Shape*)> own(shape,
                                                                 api.ReleaseTensorTypeAndShapeInfo);
    std::size_t count = 0;
    check(api.GetDimensionsCount(shape, &count));
    found.shape.resize(count);
    check(api.GetDimensions(shape, found.shape.data(), count));
    void* data = nullptr;
    check(api.GetTensorMutableData(const_cast<ort::Value*>(value), &data));
    found.data = data;
    found.given = true;
    return found;
  }

  /// Returns null if the output is not requested.
  template <class Real>
  Real* output(std::size_t at, std::initializer_list<std::int64_t> shape) const {
    ort::Value* value = nullptr;
    check(api.KernelContext_GetOutput(context, at, shape.begin(), shape.size(), &value));
    void* data = nullptr;
    if (value) check(api.GetTensorMutableData(value, &data));
    return static_cast<Real*>(data);
  }
};

/// (outer, a, b, width) -> (outer, b, a, width).
template <class Real>
void swap_axes(const Real* from, Real* to, std::int64_t outer, std::int64_t a, std::int64_t b,
               std::int64_t width) {
  for (std::int64_t i = 0; i < outer; ++i, to += a * b * width)
    for (std::int64_t j = 0; j < a; ++j)
      for (std::int64_t k = 0; k < b; ++k, from += width)
        std::copy_n(from, width, to + (k * a + j) * width);
}

/// Raises an error if one of `count` numbers is infinite, because bytes cannot represent it.
template <class Real>
void refuse_infinity(const Real* numbers, std::int64_t count, const char* name,
                     std::int32_t stored) {
  if (!std::any_of(numbers, numbers + count, [](Real a) { return std::isinf(a); })) return;
  const char* const dtype = stored == ONERNN_W8 ? "int8-weights" : "u8";
  throw ort::Refused{ort::kInvalidArgument,
                     std::string(name) + ": " + dtype + " holds finite numbers, got inf"};
}

/// One state of a layer in the layout of a stack, (D, N, O): the caller's memory, or a copy if the
/// caller's layout is (N, D, O).
template <class Real>
class State {
 public:
  State(const Tensor& given, Real* wanted, Scratch& in, Scratch& out, bool turned, bool needed,
        std::int64_t D, std::int64_t N, std::int64_t O)
      : D_(D), N_(N), O_(O), wanted_(wanted), turned_(turned) {
    begin = static_cast<const Real*>(given.data);
    if (begin && turned) {
      Real* copy = in.of<Real>(D * N * O);
      swap_axes(begin, copy, 1, N, D, O);
      begin = copy;
    }
    end = wanted && !turned ? wanted : wanted || needed ? out.of<Real>(D * N * O) : nullptr;
  }

  /// Sets the final state of a sequence without steps to zeros, whatever its initial state is.
  void clear(std::int64_t n) {
    if (end && begin)
      for (std::int64_t d = 0; d < D_; ++d) std::fill_n(end + (d * N_ + n) * O_, O_, Real(0));
  }

  void hand_out() {
    if (wanted_ && turned_) swap_axes(end, wanted_, 1, D_, N_, O_);
  }

  const Real* begin;
  Real* end;  // null: not wanted

 private:
  std::int64_t D_, N_, O_;
  Real* wanted_;
  bool turned_;
};

/// One more thread is used for so many bytes of weights, counted in every step.
constexpr std::int64_t kShared = 1 << 22;

/// Asked only once, because the system library reads a file, which takes 7 us.
const double kCores = std::thread::hardware_concurrency();

/// Runs a stack; if there is enough to do, threads of ONNX Runtime help.
void run_stack(const Node& node, const ort::Layer& layer, onernn_stack* stack,
               const onernn_batch& batch, const onernn_arrays& arrays) {
  struct Shared {
    onernn_stack* stack;
    const onernn_batch& batch;
    const onernn_arrays& arrays;
    std::atomic<bool> begun{false};
    std::int32_t status = ONERNN_DONE;

    /// The first thread to come runs the stack; later threads help it.
    void join() {
      if (begun.exchange(true)) return stack->team().help();
      status = onernn_stack_run(stack, &batch, &arrays);
      stack->team().recall();
    }
  } shared{stack, batch, arrays};
  // In double precision, because the product of sizes may exceed 64 bits.
  const double worth =
      double(layer.bytes) * double(batch.steps) * double(batch.sequences) / kShared;
  const int threads = static_cast<int>((std::min)(worth + 1, kCores));
  if (threads > 1) {
    stack->team().lend(threads - 1);
    const auto join = [](void* both, std::size_t) { static_cast<Shared*>(both)->join(); };
    check(node.api.KernelContext_ParallelFor(node.context, join, threads, 0, &shared));
  } else {
    shared.join();
  }
  if (shared.status) throw std::bad_alloc();
}

template <class Real>
void run(const Kernel& kernel, ort::Context* context) {
  ort::Layer& layer = *kernel.layer;
  const onernn_spec& spec = layer.spec;
  const bool major = layer.batch_major, in_bytes = spec.stored >= ONERNN_S8;
  const Node node{kernel.api, context};

  const Tensor x = node.input(0, "X"), lens = node.input(1, "sequence_lens");
  const Tensor initial_h = node.input(2, "initial_h"), initial_c = node.input(3, "initial_c");
  if (x.shape.size() != 3)
    throw ort::Refused{ort::kInvalidArgument,
                       "X: expected 3 axes, got " + std::to_string(x.shape.size())};
  x.expect({x.shape[0], x.shape[1], spec.inputs});
  const std::int64_t T = x.shape[major], N = x.shape[!major], D = spec.directions, O = spec.width;
  const std::int64_t row = D * O;
  lens.expect({N});
  const ort::Lease worker(layer);
  std::int64_t* lengths = nullptr;
  if (lens.given) {
    lengths = worker->lengths.of<std::int64_t>(N);
    std::copy_n(static_cast<const std::int32_t*>(lens.data), N, lengths);
    for (std::int64_t n = 0; n < N; ++n)
      if (lengths[n] < 0 || lengths[n] > T)
        throw ort::Refused{ort::kInvalidArgument, "sequence_lens: expected 0 to " +
                                                      std::to_string(T) + ", got " +
                                                      std::to_string(lengths[n])};
  }

  const std::int64_t outer = major ? N : D, inner = major ? D : N;
  for (const Tensor* state : {&initial_h, &initial_c}) state->expect({outer, inner, O});
  Real* const wanted =
      major ? node.output<Real>(0, {N, T, D, O}) : node.output<Real>(0, {T, D, N, O});
  Real* const h_n = node.output<Real>(1, {outer, inner, O});
  Real* const c_n = spec.cell == ONERNN_LSTM ? node.output<Real>(2, {outer, inner, O}) : nullptr;

  // The stack writes both directions of a step next to each other. With one sequence, ONNX's layout
  // is the same.
  const bool both = D == 2 && N != 1, turned = both && !major;
  State<Real> h(initial_h, h_n, worker->h, worker->h_n, both && major, in_bytes, D, N, O);
  State<Real> c(initial_c, c_n, worker->c, worker->c_n, both && major, false, D, N, O);
  Real* const y = wanted && !turned ? wanted : worker->y.of<Real>(T * N * row);
  const onernn_batch batch{major ? ONERNN_NTC : ONERNN_TNC, T, N, lengths};
  const onernn_arrays arrays{x.data, nullptr, h.begin, c.begin, y, h.end, c.end, nullptr};
  run_stack(node, layer, worker->stack, batch, arrays);

  const auto word = [&](std::int64_t n, std::int64_t t) { return major ? n * T + t : t * N + n; };
  if (in_bytes && std::any_of(h.end, h.end + D * N * O, [](Real a) { return std::isnan(a); })) {
    for (std::int64_t n = 0; n < N; ++n)
      for (std::int64_t t = 0; t < (lengths ? lengths[n] : T); ++t)
        refuse_infinity(static_cast<const Real*>(x.data) + word(n, t) * spec.inputs, spec.inputs,
                        "X", spec.stored);
    if (h.begin) refuse_infinity(h.begin, D * N * O, "initial_h", spec.stored);
  }
  for (std::int64_t n = 0; lengths && n < N; ++n) {
    for (std::int64_t t = lengths[n]; t < T; ++t) std::fill_n(y + word(n, t) * row, row, Real(0));
    if (lengths[n] == 0) {
      h.clear(n);
      c.clear(n);
    }
  }
  if (wanted && turned) swap_axes(y, wanted, T, N, D, O);
  h.hand_out();
  c.hand_out();
}

std::shared_ptr<ort::Layer> layer_of(std::int64_t number) {
  ort::Registry& known = ort::registry();
  const std::lock_guard<std::mutex> lock(known.mutex);
  const auto found = known.layers.find(number);
  return found == known.layers.end() ? nullptr : found->second;
}

std::shared_ptr<ort::Layer> layer_of(const ort::Api& api, const ort::KernelInfo* info) {
  std::size_t size = 0;
  if (ort::Status* const other = api.KernelInfoGetAttribute_string(info, "layer", nullptr, &size)) {
    api.ReleaseStatus(other);
    std::int64_t number = 0;
    check(api.KernelInfoGetAttribute_int64(info, "layer", &number));
    if (auto found = layer_of(number)) return found;
    throw ort::Refused{ort::kInvalidArgument,
                       "layer " + std::to_string(number) +
                           " is not there: onernn.adapters.onnx.optimize makes such models, and no"
                           " other session can load them; load the model that it was given"};
  }
  Memory<char> bytes(static_cast<std::int64_t>(size));
  check(api.KernelInfoGetAttribute_string(info, "layer", bytes.data(), &size));
  return std::make_shared<ort::Layer>(std::move(bytes), static_cast<std::int64_t>(size) - 1);
}

/// Returns the operator: inputs X, sequence_lens, initial_h and initial_c, outputs Y, Y_h and Y_c,
/// like ONNX's RNN, GRU and LSTM.
template <class Real>
ort::Operator described() {
  ort::Operator op;
  constexpr ort::Element kReal = sizeof(Real) == 4 ? ort::kFloat : ort::kDouble;
  op.GetName = [](const ort::Operator*) { return sizeof(Real) == 4 ? "Layer" : "Layer64"; };
  op.GetExecutionProviderType = [](const ort::Operator*) -> const char* { return nullptr; };
  op.GetInputTypeCount = [](const ort::Operator*) { return std::size_t(4); };
  op.GetInputType = [](const ort::Operator*, std::size_t at) {
    return at == 1 ? ort::kInt32 : kReal;
  };
  op.GetInputCharacteristic = [](const ort::Operator*, std::size_t at) {
    return at ? ort::kOptional : ort::kRequired;
  };
  op.GetOutputTypeCount = [](const ort::Operator*) { return std::size_t(3); };
  op.GetOutputType = [](const ort::Operator*, std::size_t) { return kReal; };
  op.GetOutputCharacteristic = [](const ort::Operator*, std::size_t) { return ort::kOptional; };
  op.GetInputMemoryType = [](const ort::Operator*, std::size_t) { return 0; };
  op.CreateKernelV2 = [](const ort::Operator*, const ort::Api* api, const ort::KernelInfo* info,
                         void** kernel) {
    return guarded(*api, [&] {
      auto layer = layer_of(*api, info);
      if ((layer->spec.stored == ONERNN_F64) != (sizeof(Real) == 8))
        throw ort::Refused{ort::kInvalidArgument, "the layer has numbers of another type"};
      *kernel = new Kernel{*api, std::move(layer)};
    });
  };
  op.KernelComputeV2 = [](void* given, ort::Context* context) {
    const Kernel& kernel = *static_cast<const Kernel*>(given);
    return guarded(kernel.api, [&] { run<Real>(kernel, context); });
  };
  op.KernelDestroy = [](void* kernel) { delete static_cast<Kernel*>(kernel); };
  return op;
}

/// Returns the domain "onernn" for one copy of ONNX Runtime. It is made once.
ort::Domain* domain_of(const ort::Api& api) {
  static const ort::Operator operators[] = {described<float>(), described<double>()};
  static std::map<const ort::Api*, ort::Domain*>& made =
      *new std::map<const ort::Api*, ort::Domain*>;
  const std::lock_guard<std::mutex> lock(ort::registry().mutex);
  ort::Domain*& domain = made[&api];
  if (!domain) {
    ort::Domain* fresh = nullptr;
    check(api.CreateCustomOpDomain("onernn", &fresh));
    for (const ort::Operator& each : operators) check(api.CustomOpDomain_Add(fresh, &each));
    domain = fresh;
  }
  return domain;
}

}  // namespace

int32_t onernn_ort_layer_new(const void* bytes, int64_t size, int64_t* layer) try {
  Memory<char> copy(size);
  std::memcpy(copy.data(), bytes, static_cast<std::size_t>(size));
  auto made = std::make_shared<ort::Layer>(std::move(copy), size);
  ort::Registry& known = ort::registry();
  const std::lock_guard<std::mutex> lock(known.mutex);
  known.layers.emplace(++known.last, std::move(made));
  *layer = known.last;
  return ONERNN_DONE;
} catch (const ort::Refused&) {
  return ONERNN_DAMAGED;
} catch (...) {
  return ONERNN_NO_MEMORY;
}

void onernn_ort_layer_free(int64_t layer) {
  std::shared_ptr<ort::Layer> last;  // destroyed after the lock is released
  ort::Registry& known = ort::registry();
  const std::lock_guard<std::mutex> lock(known.mutex);
  const auto found = known.layers.find(layer);
  if (found == known.layers.end()) return;
  last = std::move(found->second);
  known.layers.erase(found);
}

void* RegisterCustomOps(void* options, const void* api_base) {
  const auto* base = static_cast<const ort::ApiBase*>(api_base);
  const char* version = base->GetVersionString();
  const ort::Api* api = std::strncmp(version, "1.", 2) == 0 ? base->GetApi(ort::kVersion) : nullptr;
  if (!api) {
    const ort::Api* first = base->GetApi(1);  // every version can make a status with it
    char why[128];
    std::snprintf(why, sizeof why,
                  "onernn's operators know ONNX Runtime 1.17 and later ones of version 1, this is"
                  " %.32s",
                  version);
    return first ? first->CreateStatus(ort::kNotImplemented, why) : nullptr;
  }
  return guarded(*api, [&] {
    check(api->AddCustomOpDomain(static_cast<ort::SessionOptions*>(options), domain_of(*api)));
  });
}
