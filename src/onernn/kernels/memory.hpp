// Memory that is allocated once, at the start of a cache line, and never grows.
#ifndef ONERNN_MEMORY_HPP
#define ONERNN_MEMORY_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <type_traits>

#include "isa.hpp"

namespace onernn {
inline namespace ONERNN_ISA {

/// An array of `count` numbers, which are zeros at first.
template <class T>
class Memory {
  static_assert(std::is_trivially_copyable_v<T>, "plain numbers only");

 public:
  explicit Memory(std::int64_t count)
      : own_(static_cast<T*>(::operator new(bytes(count), std::align_val_t{64}))) {
    std::uninitialized_fill_n(own_.get(), (std::max)(count, std::int64_t(1)), T());
  }
  T* data() { return own_.get(); }
  const T* data() const { return own_.get(); }

 private:
  /// Returns the bytes of `count` numbers. If these exceed an int64, it returns more than any
  /// memory has.
  static std::size_t bytes(std::int64_t count) {
    constexpr std::int64_t kMost = PTRDIFF_MAX, kSize = sizeof(T);
    return static_cast<std::size_t>(
        count > kMost / kSize ? kMost : (std::max)(count, std::int64_t(1)) * kSize);
  }
  struct Free {
    void operator()(T* p) const { ::operator delete(p, std::align_val_t{64}); }
  };
  std::unique_ptr<T, Free> own_;
};

}  // namespace ONERNN_ISA
}  // namespace onernn

#endif
