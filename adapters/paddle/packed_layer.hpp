// Runs layers with their weights in Paddle's memory, or with packed weights.
#ifndef ONERNN_PADDLE_PACKED_LAYER_HPP
#define ONERNN_PADDLE_PACKED_LAYER_HPP

#include <pthread.h>

#include <list>
#include <mutex>
#include <utility>

#include "recurrent_layer.hpp"
#include "stored.hpp"

namespace onernn_paddle {

/// Returns the mutex of all state that calls share. It is locked for a few instructions only. A
/// fork waits for it, so that it is unlocked in the child process.
inline std::mutex& guard() {
  static std::mutex* const shared = [] {
    static std::mutex mutex;
    pthread_atfork([] { mutex.lock(); }, [] { mutex.unlock(); }, [] { mutex.unlock(); });
    return &mutex;
  }();
  return *shared;
}

/// The packed weights of a layer, as kernels/products.hpp reads them. backend/compiled/packing.py
/// packs the same in NumPy. Each matrix consists of panels of sixteen units, and begins at a
/// multiple of 64 bytes.
class Numbers {
 public:
  explicit Numbers(std::int32_t stored) : stored_(stored) {}

  /// Appends a matrix (K, G, O), and returns its first byte's index. `narrow`: whether its dtype is
  /// `stored_`, otherwise float32.
  std::int64_t add(const float* matrix, std::int64_t K, std::int64_t G, std::int64_t O,
                   bool narrow) {
    const std::int64_t panels = (O + kLanes - 1) / kLanes;
    const std::int64_t beside = 4 * G <= 4 && panels % 4 == 0   ? 4
                                : 2 * G <= 4 && panels % 2 == 0 ? 2
                                                                : 1;
    const bool half = narrow && stored_ != ONERNN_F32;
    const std::int64_t rows = half ? K + K % 2 : K, across = beside * G * kLanes;
    const std::int64_t begin = std::int64_t(bytes_.size());
    const std::int64_t size = panels / beside * rows * across * (half ? 2 : 4);
    bytes_.resize(begin + (size + 63) / 64 * 64);
    for (std::int64_t p = 0; p < panels; ++p)
      for (std::int64_t k = 0; k < K; ++k)
        for (std::int64_t g = 0; g < G; ++g)
          for (std::int64_t lane = 0; lane < kLanes; ++lane) {
            const std::int64_t o = p * kLanes + lane;
            if (o >= O) break;
            const std::int64_t column = ((p % beside) * G + g) * kLanes + lane;
            const float number = matrix[(k * G + g) * O + o];
            const std::int64_t panel = p / beside * rows;
            if (half)  // two rows interleaved
              put(begin, ((panel + k / 2 * 2) * across) + column * 2 + k % 2, narrowed(number));
            else
              put(begin, (panel + k) * across + column, number);
          }
    return begin;
  }

  /// Returns a copy whose address is a multiple of 64.
  std::shared_ptr<char> aligned() const {
    void* memory = nullptr;
    if (posix_memalign(&memory, 64, (std::max)(bytes_.size(), std::size_t(64))))
      throw std::bad_alloc();
    std::memcpy(memory, bytes_.data(), bytes_.size());
    return {static_cast<char*>(memory), [](char* p) { free(p); }};
  }

 private:
  static constexpr std::int64_t kLanes = 16;

  template <class Number>
  void put(std::int64_t begin, std::int64_t at, Number number) {
    std::memcpy(bytes_.data() + begin + at * std::int64_t(sizeof number), &number, sizeof number);
  }
  /// Rounds to bf16 or f16, half to even.
  std::uint16_t narrowed(float number) const {
    if (stored_ == ONERNN_BF16) return std::uint16_t(onernn::brain_bits(number));
    if (!(std::abs(number) < 65520))
      throw std::runtime_error("f16: a weight is beyond 65504; use bf16");
    return onernn::halved(number).bits;
  }

  std::int32_t stored_;
  std::vector<char> bytes_;
};

/// The weights of a layer. `owners`: the owners of memory that does not change while they exist,
/// otherwise empty.
struct LayerTensors {
  std::vector<const float*> numbers;
  std::vector<std::shared_ptr<const void>> owners;
};

/// A layer without its weights, and the onernn_stacks that no call uses now.
class Runner {
 public:
  Runner(const Library& library, const Layer& layer) : library_(library), layer_(layer) {}
  Runner(const Runner&) = delete;
  ~Runner() {
    for (onernn_stack* each : idle_) library_.stack_free(each);
  }

  bool is_of(const Layer& other) const {
    const Layer &a = layer_, &b = other;
    return a.cell == b.cell && a.function == b.function && a.stored == b.stored &&
           a.layers == b.layers && a.directions == b.directions && a.threads == b.threads &&
           a.inputs == b.inputs && a.units == b.units && a.gates == b.gates;
  }

  /// `weights`: the weights of this call, null for those of `parts_`.
  void run(const Batch& batch, const float* x, const States& states, float* y,
           const onernn_unpacked* weights = nullptr) {
    onernn_stack* stack = take();
    const onernn_batch sizes{batch.time_major ? ONERNN_TNC : ONERNN_NTC, batch.T, batch.N,
                             batch.lengths.empty() ? nullptr : batch.lengths.data()};
    const onernn_arrays arrays{x, nullptr, states.h, states.c, y, states.h_n, states.c_n, nullptr};
    const std::int32_t status = weights
                                    ? library_.stack_run_unpacked(stack, &sizes, &arrays, weights)
                                    : library_.stack_run(stack, &sizes, &arrays);
    {
      std::lock_guard<std::mutex> locked(guard());
      idle_.push_back(stack);
    }
    check(status);
    batch.clear_padding(y, layer_.wide());
  }

 protected:
  const Library& library_;
  const Layer layer_;
  std::vector<onernn_part> parts_;  // empty if each run passes its weights
  std::shared_ptr<char> numbers_;

 private:
  onernn_stack* take() {
    {
      std::lock_guard<std::mutex> locked(guard());
      if (!idle_.empty()) {
        onernn_stack* stack = idle_.back();
        idle_.pop_back();
        return stack;
      }
    }
    onernn_stack* result = nullptr;
    const onernn_spec spec = layer_.spec();
    check(library_.stack_new(&spec, parts_.empty() ? nullptr : parts_.data(), numbers_.get(),
                             layer_.threads, &result));
    return result;
  }

  std::vector<onernn_stack*> idle_;
};

class Packed : public Runner {
 public:
  Packed(const Library& library, const Layer& layer, const LayerTensors& tensors)
      : Runner(library, layer),
        weights_(tensors.numbers),
        owners_(tensors.owners.begin(), tensors.owners.end()) {
    const std::vector<const float*>& weights = tensors.numbers;
    Numbers numbers(layer.stored);
    const std::int64_t O = layer.units, G = std::int64_t(layer.gates.size());
    for (int part = 0; part < layer.parts(); ++part) {
      const std::int64_t I = layer.inputs_of(part / layer.directions);
      const Plain plain = layer.plain(weights, part);
      const std::int64_t bias = numbers.add(plain.bias.data(), 1, layer.bias_rows(), O, false);
      const std::int64_t input = numbers.add(plain.input.data(), I, G, O, true);
      const std::int64_t recurrent = numbers.add(plain.recurrent.data(), O, G, O, true);
      parts_.push_back({bias, input, recurrent, -1, -1, -1});
    }
    for (std::size_t k = 0; owners_.empty() && k < weights.size(); ++k)
      copies_.emplace_back(weights[k], weights[k] + layer.size_of(k));
    numbers_ = numbers.aligned();
  }

  bool is_of(const Layer& layer, const LayerTensors& tensors) const {
    return tensors.numbers == weights_ && tensors.owners.empty() == owners_.empty() &&
           Runner::is_of(layer);
  }
  /// Returns whether the weights are still those that were packed. Trainers change weights in
  /// place, and new weights may have the address of freed ones.
  bool holds(const LayerTensors& tensors) const {
    for (std::size_t k = 0; k < owners_.size(); ++k)
      if (owners_[k].lock() != tensors.owners[k]) return false;
    for (std::size_t k = 0; k < copies_.size(); ++k)
      if (std::memcmp(weights_[k], copies_[k].data(), copies_[k].size() * sizeof(float)))
        return false;
    return true;
  }

 private:
  std::vector<const float*> weights_;
  std::vector<std::weak_ptr<const void>> owners_;
  std::vector<std::vector<float>> copies_;
};

constexpr std::size_t kMostKept = 64;  // layers in a cache; layers in use are never freed

/// Returns the cached runner for layers with this description.
inline std::shared_ptr<Runner> runner(const Library& library, const Layer& layer) {
  static auto& recent =
      *new std::list<std::shared_ptr<Runner>>;  // never freed, not even at process exit
  std::shared_ptr<Runner> dropped;              // freed after the mutex is unlocked
  std::lock_guard<std::mutex> locked(guard());
  for (auto each = recent.begin(); each != recent.end(); ++each)
    if ((*each)->is_of(layer)) {
      recent.splice(recent.begin(), recent, each);
      return recent.front();
    }
  recent.push_front(std::make_shared<Runner>(library, layer));
  if (recent.size() > kMostKept) {
    dropped = recent.back();
    recent.pop_back();
  }
  return recent.front();
}

/// Returns the layer with these packed weights, the same one as long as the weights do not change.
inline std::shared_ptr<Packed> packed(const Library& library, const Layer& layer,
                                      const LayerTensors& weights) {
  static auto& recent =
      *new std::list<std::shared_ptr<Packed>>;  // never freed, not even at process exit
  std::shared_ptr<Packed> match;
  {
    std::lock_guard<std::mutex> locked(guard());
    for (auto each = recent.begin(); each != recent.end(); ++each)
      if ((*each)->is_of(layer, weights)) {
        match = *each;
        recent.splice(recent.begin(), recent, each);
        break;
      }
  }
  if (match && match->holds(weights)) return match;
  auto result = std::make_shared<Packed>(library, layer, weights);
  std::list<std::shared_ptr<Packed>> dropped;  // freed after the mutex is unlocked
  std::lock_guard<std::mutex> locked(guard());
  for (auto each = recent.begin(); each != recent.end();) {
    auto next = std::next(each);
    if ((*each)->is_of(layer, weights)) dropped.splice(dropped.begin(), recent, each);
    each = next;
  }
  recent.push_front(result);
  if (recent.size() > kMostKept) dropped.splice(dropped.begin(), recent, std::prev(recent.end()));
  return result;
}

/// Runs a layer. Packs its weights if they never change, or if they are f16, which may have to be
/// refused. Otherwise reads them from Paddle's memory.
inline void run_layer(const Library& library, const Layer& layer, const LayerTensors& tensors,
                      const Batch& batch, const float* x, const States& states, float* y) {
  if (tensors.owners.empty() && layer.stored != ONERNN_F16)
    return runner(library, layer)->run(batch, x, states, y, layer.unpacked(tensors.numbers).data());
  packed(library, layer, tensors)->run(batch, x, states, y);
}

}  // namespace onernn_paddle

#endif
