// A compiled model: the contents of a file, after every number in it has been checked.
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

/// The bytes of a file, which is mapped, or a copy of bytes. The first one is at a multiple of 64.
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
  std::int64_t size, least, most;  // -1: not fixed
};

/// One level of an output's offsets: level `level` of input `input`, or the offsets at `place`,
/// where size number `count` says how many sequences there are.
struct Level {
  std::int64_t input, level, place, count;
};

struct Described {
  std::string name, dtype;
  std::int64_t width, place;
  std::vector<Axis> axes;
};

struct Input : Described {
  Numbers levels;       // The place of each level's offsets.
  bool counts_longest;  // The length of the longest sequence is one of the dims.
  std::int64_t next;    // The output that is the next state; -1: not a state.
  const void* first;    // The first state; null: zeros.
  std::int64_t first_bytes;
  std::int64_t numbers;  // The index of the size that counts its elements.
  Numbers offsets;       // Per level: the index of the size that counts its offsets.
};

struct Output : Described {
  Numbers sizes;  // Per axis: the index of its size.
  std::vector<Level> levels;
  std::int64_t most = -1;  // The index of the memory's size; -1: no memory of its own.
  bool known = true;       // The inputs' sizes decide all of its sizes.
};

struct StoredLayer {
  onernn_spec spec;
  std::vector<onernn_part> parts;
  const void* numbers;
};

/// Multiplications that count as one operator: the same as _WORK in ir/budget.py.
constexpr std::int64_t kWork = 1 << 18;

/// Limits a step's cost. A layer's cost follows from its rows and steps.
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
  std::vector<Memory> written;  // Memory of outputs; the library's own if callers pass none.
  Numbers axes;                 // Indices of sizes that must not be negative.
  std::vector<Cost> costs;
  std::vector<std::string> labels;  // The model's operators, in messages.
  std::int64_t dims = 0, share = 0;
  bool loops = false;
};

}  // namespace ONERNN_ISA
}  // namespace onernn

#endif
