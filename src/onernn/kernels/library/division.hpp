// How the threads of a team divide the work of a recurrent layer.
#ifndef ONERNN_DIVISION_HPP
#define ONERNN_DIVISION_HPP

#include <cstdint>
#include <vector>

#include "../batch.hpp"
#include "../isa.hpp"

namespace onernn {
inline namespace ONERNN_ISA {

/// The sizes on which the cost of a layer in one direction depends.
struct Work {
  std::int64_t sequences, words, steps;  // words: rows of all steps
  std::int64_t units;
  std::int64_t input, recurrent;  // Multiplications per row of x and of h.
  std::int64_t bytes;             // Bytes of the matrices that are multiplied with h.
  std::int64_t meetings;          // Products with h in a step, one after the other.
  std::int64_t directions;        // Directions that may run at the same time.
};

/// Returns which cache of a core holds so many bytes: 2 for L2, 3 for L3, 4 for memory.
std::int32_t cache_of(std::int64_t bytes);
/// Returns the nanoseconds that a layer takes on `members` threads, some of which may stay idle;
/// see `groups_of`.
double cost(const Work& work, std::int64_t members, std::int64_t groups);
/// Returns into how many groups a batch's sequences are divided. The threads of groups do not wait
/// for each other, and each thread reads all weights. 0: all threads share each step, and divide
/// its units. Then each thread keeps its part of the weights in its cache, and all of them wait for
/// each other after every product. Sizes alone decide; the results do not depend on the decision.
std::int64_t groups_of(const Work& work, std::int64_t members);
/// Divides sequences into groups, the longest ones first: each goes to the group that has the
/// fewest steps so far. With many sequences, the groups differ by fewer steps than the shortest
/// sequence has.
class Deal {
 public:
  void operator()(const Batch& batch, std::int64_t groups);
  /// Returns the sequences of a group as a batch.
  Batch part(const Batch& batch, std::int64_t group) const;

 private:
  std::vector<std::vector<std::int64_t>> orders_;
};

}  // namespace ONERNN_ISA
}  // namespace onernn

#endif
