#include "division.hpp"

#include <algorithm>

namespace onernn {
inline namespace ONERNN_ISA {

/// Nanoseconds that the layer takes on `members` threads. groups == 0: all of them share each step,
/// by units; each keeps its part of the weights in its cache, and they meet after every product.
/// Else the sequences are dealt out to so many groups: nobody meets, everybody reads all weights.
/// The constants are rough: of one core of a Xeon of 2024 and of a Zen 4.
static double cost(const Work& work, std::int64_t members, std::int64_t groups) {
  const auto reading = [](double bytes) {  // from L2, L3 or memory
    return bytes <= (1 << 20) ? bytes / 60 : bytes <= (24 << 20) ? bytes / 25 : bytes / 10;
  };
  const double bytes = static_cast<double>(work.bytes), steps = static_cast<double>(work.steps);
  const double running = static_cast<double>(work.words) / (std::max)(steps, 1.0);
  const double multiplying = static_cast<double>(work.products) / 32;  // of a word
  const double moving = static_cast<double>(work.units) / 5;           // a row of h, and of x
  if (groups == 0) {
    const auto n = static_cast<double>(members);
    const double meeting = members > 1 ? 2 * (300 + 30 * n) : 0;
    const double step = (std::max)(running * multiplying / n, reading(bytes / n));
    return static_cast<double>(work.directions) * steps * (step + meeting + running * moving);
  }
  const double own = (std::max)(running / static_cast<double>(groups), 1.0);
  const std::int64_t turns = (groups * work.directions + members - 1) / members;
  return static_cast<double>(turns) * steps *
         ((std::max)(own * multiplying, reading(bytes)) + own * moving);
}

std::int64_t groups_of(const Work& work, std::int64_t members) {
  if (members < 2) return 0;
  const std::int64_t groups =
      (std::min)(work.sequences, (std::max)(members / work.directions, std::int64_t(1)));
  if (groups < 1 || groups * work.directions < 2) return 0;
  return cost(work, members, groups) < cost(work, members, 0) ? groups : 0;
}

void Deal::operator()(const Batch& batch, std::int64_t groups) {
  std::vector<std::int64_t> load(static_cast<std::size_t>(groups));
  orders_.assign(static_cast<std::size_t>(groups), {});
  for (std::int64_t m = 0; m < batch.sequences; ++m) {
    const auto least = std::min_element(load.begin(), load.end());
    // A sequence without words has a state to hand out, too.
    *least += (std::max)(batch.length[batch.order[m]], std::int64_t(1));
    orders_[static_cast<std::size_t>(least - load.begin())].push_back(batch.order[m]);
  }
}

Batch Deal::part(const Batch& batch, std::int64_t group) const {
  const auto& order = orders_[static_cast<std::size_t>(group)];
  Batch some = batch;
  some.sequences = static_cast<std::int64_t>(order.size());
  some.order = order.data();
  return some;
}

}  // namespace ONERNN_ISA
}  // namespace onernn
