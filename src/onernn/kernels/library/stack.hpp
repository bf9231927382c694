// A stack: layers of cells in one or two directions, run one after the other.
#ifndef ONERNN_STACK_HPP
#define ONERNN_STACK_HPP

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "../batch.hpp"
#include "../isa.hpp"
#include "../memory.hpp"
#include "../recurrent.hpp"
#include "../team.hpp"
#include "any_stack.hpp"
#include "exported.hpp"
#include "runtime_traits.hpp"

namespace onernn {
inline namespace ONERNN_ISA {

/// The sequences and the words of a batch.
struct Extent {
  std::int64_t sequences, words;
};
inline Extent extent_of(const onernn_batch& batch) {
  const std::int64_t T = batch.steps, N = batch.sequences, *offsets = batch.offsets;
  if (batch.layout == ONERNN_LOD) return {N, offsets[N]};
  if (batch.layout == ONERNN_PACKED) return {T ? offsets[1] : 0, offsets[T]};
  return {N, T * N};
}
inline Batch batch_of(Batching& batching, const onernn_batch& batch) {
  if (batch.layout == ONERNN_LOD) return batching.lod(batch.offsets, batch.sequences);
  if (batch.layout == ONERNN_PACKED) return batching.packed(batch.offsets, batch.steps);
  if (batch.layout == ONERNN_NTC) return batching.ntc(batch.steps, batch.sequences, batch.offsets);
  return batching.tnc(batch.steps, batch.sequences, batch.offsets);
}

template <template <class> class Kernel, class Real, class Stored>
class Stack final : public onernn_stack {
  using Cell = Kernel<RuntimeTraits<Real, Stored>>;
  using Weights = typename Cell::Weights;

 public:
  explicit Stack(const Arguments& given) : spec_(given.spec), team_(given.threads) {
    const auto at = [&given](auto*& field, std::int64_t place) {
      const void* found = place < 0 ? nullptr : static_cast<const char*>(given.numbers) + place;
      field = static_cast<std::decay_t<decltype(field)>>(found);
    };
    for (std::int64_t i = 0; i < std::int64_t(spec_.layers) * spec_.directions; ++i) {
      const onernn_part& part = given.parts[i];
      Weights weights;
      at(weights.bias, part.bias);
      at(weights.input, part.input);
      at(weights.recurrent, part.recurrent);
      at(weights.candidate, part.candidate);
      at(weights.peephole, part.peephole);
      at(weights.projection, part.projection);
      if (part.x_step > 0) weights.of_x = {static_cast<float>(part.x_step), part.x_shift};
      if (part.h_step > 0) weights.of_h = {static_cast<float>(part.h_step), part.h_shift};
      weights_.push_back(weights);
    }
  }

  void run(const onernn_batch& given, const onernn_arrays& arrays) override {
    const Extent extent = extent_of(given);
    grow(extent);
    const Batch batch = batch_of(room_->batching, given);
    const Real *x = static_cast<const Real*>(arrays.x), *both = x;
    for (std::int32_t layer = 0, D = spec_.directions; layer < spec_.layers; ++layer) {
      const bool last = layer + 1 == spec_.layers, joins = last || spec_.joined;
      Real* const out = last ? static_cast<Real*>(arrays.y) : room_->between[layer % 2].data();
      for (std::int32_t d = 0; d < D; ++d) {
        // Where directions do not meet, each has memory of its own.
        const std::int64_t own = d * extent.words * spec_.width;
        const Real* read = layer == 0 || spec_.joined ? both : both + own;
        const bool added = joins && spec_.added && d == 1;
        const std::int64_t row = joins ? joined_width() : spec_.width;
        Real* const y = !joins ? out + own : added ? out : out + d * (row - spec_.width);
        Recurrent<Cell>& cells = layer == 0 ? room_->first : room_->upper;
        cells.run(weights_[static_cast<std::size_t>(layer * D + d)], batch,
                  {read, static_cast<const Real*>(arrays.attention), y, row,
                   D == 2 ? d == 1 : spec_.backwards != 0, added, static_cast<Real*>(arrays.cells)},
                  states(arrays, layer * D + d, extent.sequences), team_);
      }
      both = out;
    }
  }

  Team& team() override { return team_; }

 private:
  /// Memory for batches of some size.
  struct Room {
    Room(const onernn_spec& spec, const onernn_spec& above, Extent most)
        : batching(most.sequences),
          first(most.sequences, Cell(spec)),
          upper(spec.layers > 1 ? most.sequences : 0, Cell(above)),
          between{Memory<Real>(spec.layers > 1 ? most.words * spec.directions * spec.width : 0),
                  Memory<Real>(spec.layers > 2 ? most.words * spec.directions * spec.width : 0)} {}
    Batching batching;
    Recurrent<Cell> first, upper;
    Memory<Real> between[2];  // what one layer writes and the next one reads, in turn
  };

  void grow(Extent extent) {
    if (room_ && extent.sequences <= most_.sequences && extent.words <= most_.words) return;
    room_.reset();  // before there is more
    most_ = {(std::max)(extent.sequences, most_.sequences), (std::max)(extent.words, most_.words)};
    onernn_spec above = spec_;  // as the layers above the first one know it
    above.inputs = spec_.joined ? joined_width() : spec_.width;
    room_ = std::make_unique<Room>(spec_, above, most_);
  }

  /// Channels of y.
  std::int64_t joined_width() const {
    return spec_.width * (spec_.directions == 2 && !spec_.added ? 2 : 1);
  }

  /// Those of one layer and direction.
  typename Recurrent<Cell>::States states(const onernn_arrays& arrays, std::int64_t part,
                                          std::int64_t N) const {
    const auto read = [&](const void* from, std::int64_t width) {
      return from ? static_cast<const Real*>(from) + part * N * width : nullptr;
    };
    const auto write = [&](void* to, std::int64_t width) {
      return to ? static_cast<Real*>(to) + part * N * width : nullptr;
    };
    return {read(arrays.h, spec_.width), read(arrays.c, spec_.units),
            write(arrays.h_n, spec_.width), write(arrays.c_n, spec_.units)};
  }

  onernn_spec spec_;
  std::vector<Weights> weights_;
  Team team_;
  Extent most_{0, 0};
  std::unique_ptr<Room> room_;
};

template <template <class> class Kernel, class Real, class Stored>
onernn_stack* new_stack(const Arguments& arguments) {
  return new Stack<Kernel, Real, Stored>(arguments);
}

}  // namespace ONERNN_ISA
}  // namespace onernn

#endif
