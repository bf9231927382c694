// onernn.h for C++17: destructors close what was opened, and functions that fail throw.
#ifndef ONERNN_ONERNN_HPP
#define ONERNN_ONERNN_HPP

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "onernn.h"

namespace onernn {

/// An error whose text is onernn_message. `status` is one of the ONERNN_ constants.
struct Error : std::runtime_error {
  explicit Error(int code) : std::runtime_error(onernn_message()), status(code) {}
  int status;
};
inline void check(int status) {
  if (status) throw Error(status);
}

/// A compiled model. All threads may share it, and its copies are the same model.
class Model {
 public:
  explicit Model(const std::string& path, int threads = 0) {
    if (onernn_interface() < ONERNN_INTERFACE) throw std::runtime_error("libonernn is too old");
    onernn_model* opened = nullptr;
    check(onernn_open(path.c_str(), threads, &opened));
    model_.reset(opened, onernn_close);
  }
  onernn_model* get() const { return model_.get(); }
  int inputs() const { return onernn_inputs(get()); }
  int outputs() const { return onernn_outputs(get()); }
  /// Returns the number of an input or output.
  int value(const std::string& name) const {
    std::string known;
    for (int number = 0; const char* each = onernn_name(get(), number); ++number) {
      if (name == each) return number;
      known += (number ? ", " : "") + std::string(each);
    }
    throw std::invalid_argument("no value is named " + name + "; expected one of " + known);
  }

 private:
  std::shared_ptr<onernn_model> model_;
};

/// Runs a model and keeps its states. One thread at a time may use it. Pointers are to memory of
/// the caller, which must live as long as the stream uses it: see onernn.h.
class Stream {
 public:
  explicit Stream(const Model& model) : model_(model) {
    onernn_stream* opened = nullptr;
    check(onernn_stream_open(model.get(), &opened));
    stream_.reset(opened);
  }
  onernn_stream* get() const { return stream_.get(); }
  void limit(std::int64_t bytes, std::int64_t steps) { check(onernn_limit(get(), bytes, steps)); }
  /// Sets the memory of an input. If `dims` is omitted, the model must declare all sizes.
  void give(int value, const void* numbers, const std::vector<std::int64_t>& dims = {}) {
    const int rank = onernn_rank(model_.get(), value);
    if (!dims.empty() && rank >= 0 && dims.size() != static_cast<std::size_t>(rank))
      throw std::invalid_argument("expected " + std::to_string(rank) + " sizes, got " +
                                  std::to_string(dims.size()));
    check(onernn_give(get(), value, numbers, dims.empty() ? nullptr : dims.data()));
  }
  void give_offsets(int value, int level, const std::vector<std::int64_t>& offsets) {
    const auto sequences = static_cast<std::int64_t>(offsets.size()) - 1;
    check(onernn_give_offsets(get(), value, level, offsets.data(), sequences));
  }
  void give_offsets(int value, int level, std::vector<std::int64_t>&& temporary) = delete;
  void take(int value, void* numbers, std::int64_t bytes) {
    check(onernn_take(get(), value, numbers, bytes));
  }
  void prepare() { check(onernn_prepare(get())); }
  void run() { check(onernn_run(get())); }
  void reset() { check(onernn_reset(get())); }

  /// Returns the elements of an output after a run, which are valid until the next call. `Number`
  /// is the type that onernn_dtype names.
  template <class Number>
  const Number* numbers(int value) const {
    return static_cast<const Number*>(onernn_numbers(get(), value));
  }
  std::int64_t size(int value, int axis) const { return onernn_size(get(), value, axis); }
  std::int64_t most_bytes(int value) const { return onernn_most_bytes(get(), value); }
  const std::int64_t* offsets(int value, int level) const {
    return onernn_offsets(get(), value, level);
  }
  std::int64_t sequences(int value, int level) const {
    return onernn_sequences(get(), value, level);
  }

 private:
  struct Close {
    void operator()(onernn_stream* stream) const { onernn_stream_close(stream); }
  };
  Model model_;
  std::unique_ptr<onernn_stream, Close> stream_;
};

/// Many clients of a model that `onernn compile --streams` wrote: their frames run as one batch.
/// One thread at a time may use it.
class Clients {
 public:
  /// `capacity`: how many clients may be open. `queue`: how many frames of a client may wait.
  Clients(const Model& model, std::int64_t capacity, int states, std::int64_t queue)
      : model_(model), states_(states) {
    onernn_clients* opened = nullptr;
    check(onernn_clients_open(model.get(), capacity, states, queue, &opened));
    clients_.reset(opened);
  }
  onernn_clients* get() const { return clients_.get(); }
  /// Returns the id of a new client, whose states are zeros.
  std::int64_t open() {
    std::int64_t id = -1;
    check(onernn_client_open(get(), &id));
    return id;
  }
  void close(std::int64_t id) { check(onernn_client_close(get(), id)); }
  /// `frames`: for each input that is not a state, an array with a row for each id.
  void push(const std::vector<std::int64_t>& ids, const std::vector<const void*>& frames) {
    count("inputs", model_.inputs(), frames.size());
    check(onernn_push(get(), ids.data(), static_cast<std::int64_t>(ids.size()), frames.data()));
  }
  /// `results`: for each output that is not a state, memory with a row for each id. If the model
  /// refused a frame, returns the index of its id in `ids`, else -1.
  std::int64_t pull(const std::vector<std::int64_t>& ids, const std::vector<void*>& results) {
    count("outputs", model_.outputs(), results.size());
    std::int64_t refused = -1;
    const auto clients = static_cast<std::int64_t>(ids.size());
    check(onernn_pull(get(), ids.data(), clients, results.data(), &refused));
    return refused;
  }

 private:
  void count(const char* what, int all, std::size_t got) const {
    const int expected = all - states_;
    if (expected >= 0 && got == static_cast<std::size_t>(expected)) return;
    throw std::invalid_argument("expected " + std::to_string(expected) + " " + what + ", got " +
                                std::to_string(got));
  }
  struct Close {
    void operator()(onernn_clients* clients) const { onernn_clients_close(clients); }
  };
  Model model_;
  int states_;
  std::unique_ptr<onernn_clients, Close> clients_;
};

}  // namespace onernn

#endif
