// A compiled model: what a file says, once every number in it has been checked.
#ifndef ONERNN_COMPILED_HPP
#define ONERNN_COMPILED_HPP

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bounds.hpp"
#include "exported.hpp"

namespace onernn {
inline namespace ONERNN_ISA {

/// Why a call of the public interface does not succeed.
struct Failure {
  std::int32_t status;
  std::string why;
};

/// Bytes of a file, which is mapped, or a copy; they begin at a multiple of 64.
class Bytes {
 public:
  explicit Bytes(const char* path);
  Bytes(const void* bytes, std::int64_t size);
  ~Bytes();
  Bytes(const Bytes&) = delete;

  const unsigned char* begin = nullptr;
  std::int64_t size = 0;

 private:
  bool mapped_ = false;
};

struct Axis {
  std::int64_t size, least, most;  // -1: open
};

/// Offsets of a value: an input's, or a place and the size that is how many sequences there are.
struct Level {
  std::int64_t input, level, place, count;
};

struct Described {
  std::string name, dtype;
  std::int64_t width, place;
  std::vector<Axis> axes;
};

struct Input : Described {
  Numbers levels;       // places of offsets
  bool counts_longest;  // the rows of the longest sequence are one of the dims
  std::int64_t next;    // the output that is the next state; -1: none
  const void* first;    // the first state; null: zeros
  std::int64_t first_bytes;
  std::int64_t numbers;  // the size that is how many numbers it has
  Numbers offsets;       // of each level: the place of its offsets
};

struct Output : Described {
  Numbers sizes;  // of its axes
  std::vector<Level> levels;
  std::int64_t most = -1;  // of memory that a caller may pass; -1: it is elsewhere
  bool known = true;       // the sizes of inputs decide all of its sizes
};

struct StoredLayer {
  onernn_spec spec;
  std::vector<onernn_part> parts;
  const void* numbers;
};

/// Multiplications that count as one operator: _WORK of ir/budget.py.
constexpr std::int64_t kWork = 1 << 18;

/// The limit of a step's cost; a layer's cost follows from its rows and steps.
struct Cost {
  std::int64_t step, rows, steps, runs, work;
};

struct Compiled {
  explicit Compiled(std::unique_ptr<Bytes> bytes);
  ~Compiled() { onernn_plan_free(plan); }
  Compiled(const Compiled&) = delete;

  std::unique_ptr<Bytes> bytes;
  std::vector<StoredLayer> layers;
  Numbers words;
  std::vector<Guarded> steps;
  onernn_plan* plan = nullptr;
  std::vector<Input> inputs;
  std::vector<Output> outputs;
  struct Memory {
    std::int64_t place, most, width;
  };
  std::vector<Memory> written;  // what callers get; the library's own if they pass none
  Numbers axes;                 // sizes that may not be negative
  std::vector<Cost> costs;
  std::int64_t dims = 0, share = 0;
  bool loops = false;
};

}  // namespace ONERNN_ISA
}  // namespace onernn

#endif
