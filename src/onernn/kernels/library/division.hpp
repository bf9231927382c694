// How the threads of a team divide the work of a recurrent layer.
#ifndef ONERNN_DIVISION_HPP
#define ONERNN_DIVISION_HPP

#include <cstdint>
#include <vector>

#include "../batch.hpp"
#include "../isa.hpp"

namespace onernn {
inline namespace ONERNN_ISA {

/// A layer in one direction, and a batch: what its cost depends on.
struct Work {
  std::int64_t sequences, words, steps;  // steps: of the longest sequence
  std::int64_t units;
  std::int64_t input, recurrent;  // multiplications of a step, with x and with h
  std::int64_t bytes;             // of the matrices that are multiplied with h
  std::int64_t meetings;          // products with h in a step, one after the other
  std::int64_t directions;        // that may run side by side
};

/// Which cache of a core holds so many bytes: 2 or 3; 4: memory.
std::int32_t cache_of(std::int64_t bytes);
/// Nanoseconds that a layer takes on `members` threads, of which not all need take part; see
/// `groups_of`.
double cost(const Work& work, std::int64_t members, std::int64_t groups);
/// Into how many groups a batch's sequences are dealt out: nobody meets, everybody reads all
/// weights. 0: all threads share each step, by units; each keeps its part of the weights in its
/// cache, and they meet after every product. Sizes alone decide, and the results do not depend on
/// the decision.
std::int64_t groups_of(const Work& work, std::int64_t members);
/// Sequences dealt out to groups, the longest ones first, each to the group that has the fewest
/// steps: the shares of many sequences differ by less than the shortest one.
class Deal {
 public:
  void operator()(const Batch& batch, std::int64_t groups);
  /// The sequences of a group.
  Batch part(const Batch& batch, std::int64_t group) const;

 private:
  std::vector<std::vector<std::int64_t>> orders_;
};

}  // namespace ONERNN_ISA
}  // namespace onernn

#endif
