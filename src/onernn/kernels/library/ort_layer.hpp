// The layers of nodes inside ONNX Runtime: a node holds its layer, or the number of a layer.
#ifndef ONERNN_ORT_LAYER_HPP
#define ONERNN_ORT_LAYER_HPP

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <utility>

#include "../isa.hpp"
#include "../memory.hpp"
#include "any_stack.hpp"
#include "bounds.hpp"
#include "exported.hpp"
#include "ort_interface.hpp"
#include "scratch.hpp"

namespace onernn {
inline namespace ONERNN_ISA {
namespace ort {

/// The reason why a call fails. ONNX Runtime adds the node's name.
struct Refused {
  Code code;
  std::string why;
};

/// The memory of a layer's run, used by one thread at a time.
struct Worker {
  ~Worker() { onernn_stack_free(stack); }
  onernn_stack* stack = nullptr;
  Scratch y, h, c, h_n, c_n, lengths;
};

/// The header before a layer's weights. The function store_layer of backend.py writes the header
/// and the weights.
struct Head {
  std::int64_t format, checksum;  // the checksum is of all bytes after these two
  std::int64_t batch_major;       // ONNX's layout=1.
  onernn_spec spec;
  onernn_part parts[2];  // one per direction
};

class Layer {
 public:
  /// Takes bytes that may come from a file, and checks all of them. Raises `Refused`.
  Layer(Memory<char> all, std::int64_t size)
      : head_(checked(all.data(), size)),
        spec(head_.spec),
        batch_major(head_.batch_major != 0),
        bytes(size - kNumbers),
        memory_(std::move(all)) {
    give(made());  // so that a lack of memory is an error now
  }
  ~Layer() {
    for (auto& place : idle_) delete place.load();
  }

  /// Returns an idle worker, or a new one. It takes no lock, so that a child that is forked
  /// meanwhile never waits.
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

 private:
  const Head head_;

 public:
  const onernn_spec& spec;
  const bool batch_major;
  const std::int64_t bytes;  // of the weights

 private:
  static constexpr std::int64_t kFormat = 1;  // version of the layout of spec, parts and panels
  static constexpr std::int64_t kNumbers = (sizeof(Head) + 63) / 64 * 64;

  static Head checked(const char* all, std::int64_t size) {
    constexpr std::int64_t kSummed = offsetof(Head, batch_major);
    Head head{};
    if (size >= kNumbers) std::memcpy(&head, all, sizeof head);
    if (head.format != kFormat)
      throw Refused{kNotImplemented,
                    "no layer, or of another version of onernn: this one reads"
                    " format 1; plug the model again"};
    if (head.checksum != onernn_checksum(all + kSummed, size - kSummed))
      throw Refused{kInvalidArgument, "the layer is damaged: its checksum differs"};
    const onernn_spec& spec = head.spec;
    if (spec.layers != 1 || (spec.directions != 1 && spec.directions != 2) || spec.attention ||
        spec.added || spec.projection || !are_parts(spec, head.parts, size - kNumbers))
      throw Refused{kInvalidArgument, "the layer is damaged: sizes that do not fit"};
    return head;
  }

  /// Makes a worker whose stack has no thread of its own: ONNX Runtime lends threads.
  Worker* made() {
    auto worker = std::make_unique<Worker>();
    const std::int32_t status =
        onernn_stack_new(&spec, head_.parts, memory_.data() + kNumbers, 1, &worker->stack);
    if (status == ONERNN_UNKNOWN)
      throw Refused{kNotImplemented, "a layer that this version of onernn does not have"};
    if (status) throw std::bad_alloc();
    return worker.release();
  }

  Memory<char> memory_;
  std::array<std::atomic<Worker*>, 16> idle_{};
};

/// Holds a worker of a layer, and returns it at the end of its scope.
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

/// The layers that nodes may name by a number.
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
