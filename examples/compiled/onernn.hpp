// onernn.h for C++17: what is opened is closed, and what fails throws.
#ifndef ONERNN_HPP
#define ONERNN_HPP

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "onernn.h"

namespace onernn {

struct Error : std::runtime_error {
  explicit Error(int status) : std::runtime_error(onernn_message()), status(status) {}
  int status;
};
inline void check(int status) {
  if (status) throw Error(status);
}

/// A compiled model; all threads may share it.
class Model {
 public:
  explicit Model(const std::string& path, int threads = 0) {
    if (onernn_interface() < ONERNN_INTERFACE) throw std::runtime_error("libonernn is too old");
    onernn_model* made = nullptr;
    check(onernn_open(path.c_str(), threads, &made));
    model_.reset(made, onernn_close);
  }
  onernn_model* get() const { return model_.get(); }
  /// The number of an input or output.
  int value(const std::string& name) const {
    for (int at = 0; const char* found = onernn_name(get(), at); ++at)
      if (name == found) return at;
    throw std::invalid_argument("no value is named " + name);
  }

 private:
  std::shared_ptr<onernn_model> model_;
};

/// Runs a model, for one thread at a time; keeps its states.
class Stream {
 public:
  explicit Stream(const Model& model) {
    onernn_stream* made = nullptr;
    check(onernn_stream_open(model.get(), &made));
    stream_.reset(made);
  }
  void give(int value, const void* numbers, const std::vector<std::int64_t>& dims = {}) {
    check(onernn_give(stream_.get(), value, numbers, dims.empty() ? nullptr : dims.data()));
  }
  void give_offsets(int value, int level, const std::vector<std::int64_t>& offsets) {
    check(onernn_give_offsets(stream_.get(), value, level, offsets.data(),
                              static_cast<std::int64_t>(offsets.size()) - 1));
  }
  void run() { check(onernn_run(stream_.get())); }
  void reset() { check(onernn_reset(stream_.get())); }
  template <class Number>
  const Number* numbers(int value) const {
    return static_cast<const Number*>(onernn_numbers(stream_.get(), value));
  }
  std::int64_t size(int value, int axis) const { return onernn_size(stream_.get(), value, axis); }

 private:
  struct Close {
    void operator()(onernn_stream* stream) const { onernn_stream_close(stream); }
  };
  std::unique_ptr<onernn_stream, Close> stream_;
};

}  // namespace onernn

#endif
