#include "division.hpp"

#include <algorithm>

#include "../team.hpp"

namespace onernn {
inline namespace ONERNN_ISA {

/// The constants of the cost model, which are the same for all machines. Times are in nanoseconds,
/// and were measured on cores with AVX-512, in f32 (design/0072); constants that need many cores
/// are estimates.
namespace machine {

// Multiplications that a core does per nanosecond, for many rows and a matrix in its cache: 47 to
// 50 on a Zen 4.
constexpr double kMultiplying = 50;
// Bytes of a matrix that one core reads per nanosecond for the product with one row. It reads 90 to
// 99 from L2 on a Zen 4; from L3 55 to 85 on a Zen 4, and 49 on a Xeon; from memory 27 to 32 on a
// Zen 4.
constexpr double kReading[] = {90, 60, 25};
// The same for all cores together. The numbers for L3 and memory are estimates.
constexpr double kAllReading[] = {90 * Workers::kMost, 400, 100};
// The smallest L2 that cores have had since 2021, and a common size of an L3.
constexpr std::int64_t kNear = 1 << 20, kFar = 24 << 20;
// Times per unit and row: of the functions of gates, which threads share, and of moving x, h and y,
// which one thread does.
constexpr double kFunctions = 0.8, kMoving = 0.2;
// The time that the end of a turn takes, and how much each member adds to it. 280 was measured with
// two members that compute little; the second number is an estimate.
constexpr double kMeeting = 300, kEachMore = 30;

}  // namespace machine

std::int32_t cache_of(std::int64_t bytes) {
  return bytes <= machine::kNear ? 2 : bytes <= machine::kFar ? 3 : 4;
}

double cost(const Work& work, std::int64_t members, std::int64_t groups) {
  const auto steps = static_cast<double>((std::max)(work.steps, std::int64_t(1)));
  const double running = static_cast<double>(work.words) / steps;
  // Returns the time of one step of `rows` rows, if each of `cores` cores multiplies the fraction
  // `part`.
  const auto step = [&work](double rows, double part, double cores) {
    const auto input = static_cast<double>(work.input);
    const auto recurrent = static_cast<double>(work.recurrent);
    const double bytes = static_cast<double>(work.bytes) * part;
    const std::int32_t cache = cache_of(static_cast<std::int64_t>(bytes)) - 2;
    const double pace = (std::min)(machine::kReading[cache], machine::kAllReading[cache] / cores);
    return part * rows * input / machine::kMultiplying +
           (std::max)(part * rows * recurrent / machine::kMultiplying, bytes / pace) +
           rows * static_cast<double>(work.units) * (part * machine::kFunctions + machine::kMoving);
  };
  if (groups == 0) {
    const double job = running * static_cast<double>(work.recurrent / work.meetings);
    const std::int64_t most = static_cast<std::int64_t>(job) / Team::kWorth;
    const auto taking = static_cast<double>((std::max)((std::min)(members, most), std::int64_t(1)));
    const double meeting = taking > 1 ? machine::kMeeting + machine::kEachMore * taking : 0;
    return static_cast<double>(work.directions) * steps *
           (step(running, 1 / taking, taking) + static_cast<double>(work.meetings) * meeting);
  }
  const std::int64_t pieces = groups * work.directions, turns = (pieces + members - 1) / members;
  return static_cast<double>(turns) * steps *
         step((std::max)(running / static_cast<double>(groups), 1.0), 1,
              static_cast<double>((std::min)(pieces, members)));
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
    // A sequence without steps counts as one, because it also has a state to return.
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
