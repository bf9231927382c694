// Memory that grows, for code that runs again with different sizes.
#ifndef ONERNN_SCRATCH_HPP
#define ONERNN_SCRATCH_HPP

#include <cstdint>
#include <optional>

#include "../isa.hpp"
#include "../memory.hpp"

namespace onernn {
inline namespace ONERNN_ISA {

/// When it grows, the old contents are lost, and the new memory is zeros.
class Scratch {
 public:
  template <class T>
  T* of(std::int64_t count) {
    const std::int64_t wanted = count * static_cast<std::int64_t>(sizeof(T));
    if (!memory_ || wanted > bytes_) {
      memory_.reset();  // frees it before more is allocated
      memory_.emplace(wanted);
      bytes_ = wanted;
    }
    return reinterpret_cast<T*>(memory_->data());
  }
  /// The memory that `of` has allocated, and its bytes.
  char* data() { return memory_->data(); }
  std::int64_t bytes() const { return bytes_; }

 private:
  std::optional<Memory<char>> memory_;
  std::int64_t bytes_ = 0;
};

}  // namespace ONERNN_ISA
}  // namespace onernn

#endif
