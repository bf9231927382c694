// The layers that nodes inside ONNX Runtime name by numbers.
#ifndef ONERNN_ORT_LAYER_HPP
#define ONERNN_ORT_LAYER_HPP

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include "../isa.hpp"
#include "../memory.hpp"
#include "any_stack.hpp"
#include "exported.hpp"

namespace onernn {
inline namespace ONERNN_ISA {
namespace ort {

/// Memory that grows.
class Scratch {
 public:
  template <class Real>
  Real* of(std::int64_t count) {
    const std::int64_t bytes = count * static_cast<std::int64_t>(sizeof(Real));
    if (!memory_ || bytes > size_) {
      memory_.reset();  // before there is more
      memory_.emplace(bytes);
      size_ = bytes;
    }
    return reinterpret_cast<Real*>(memory_->data());
  }

 private:
  std::optional<Memory<char>> memory_;
  std::int64_t size_ = 0;
};

/// The memory of a layer's run, used by one thread at a time.
struct Worker {
  ~Worker() { onernn_stack_free(stack); }
  onernn_stack* stack = nullptr;
  Scratch y, h, c, h_n, c_n, lengths;
};

class Layer {
 public:
  Layer(const onernn_spec& told, const onernn_part* parts, const void* numbers, std::int64_t size,
        bool batch_major)
      : spec(told),
        batch_major(batch_major),
        bytes(size),
        parts_(parts, parts + std::int64_t(told.layers) * told.directions),
        numbers_(size) {
    std::memcpy(numbers_.data(), numbers, static_cast<std::size_t>(size));
    give(made());  // a layer without memory is refused now
  }
  ~Layer() {
    for (auto& place : idle_) delete place.load();
  }

  /// An idle one, or a new one. No lock: a child that is forked meanwhile never waits.
  Worker* take() {
    for (auto& place : idle_)
      if (Worker* found = place.exchange(nullptr)) return found;
    return made();
  }

  void give(Worker* worker) {
    for (auto& place : idle_) {
      Worker* none = nullptr;
      if (place.compare_exchange_strong(none, worker)) return;
    }
    delete worker;
  }

  const onernn_spec spec;
  const bool batch_major;    // ONNX's layout=1
  const std::int64_t bytes;  // of the numbers

 private:
  /// Without a thread of its own: ONNX Runtime lends one.
  Worker* made() {
    auto worker = std::make_unique<Worker>();
    if (onernn_stack_new(&spec, parts_.data(), numbers_.data(), 1, &worker->stack))
      throw std::bad_alloc();
    return worker.release();
  }

  std::vector<onernn_part> parts_;
  Memory<char> numbers_;
  std::array<std::atomic<Worker*>, 16> idle_{};
};

/// A worker for as long as this lives.
class Lease {
 public:
  explicit Lease(Layer& layer) : layer_(layer), worker_(layer.take()) {}
  ~Lease() { layer_.give(worker_); }
  Lease(const Lease&) = delete;
  Worker* operator->() const { return worker_; }

 private:
  Layer& layer_;
  Worker* worker_;
};

/// The layers that nodes may name.
struct Registry {
  std::mutex mutex;
  std::map<std::int64_t, std::shared_ptr<Layer>> layers;
  std::int64_t last = 0;
};
inline Registry& registry() {
  static Registry& one = *new Registry;  // never destroyed: sessions may outlive static objects
  return one;
}

}  // namespace ort
}  // namespace ONERNN_ISA
}  // namespace onernn

#endif
