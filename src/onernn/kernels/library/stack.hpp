// A stack: layers of cells in one or two directions, run one after the other.
#ifndef ONERNN_STACK_HPP
#define ONERNN_STACK_HPP

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <numeric>
#include <vector>

#include "../batch.hpp"
#include "../isa.hpp"
#include "../memory.hpp"
#include "../recurrent.hpp"
#include "../team.hpp"
#include "any_stack.hpp"
#include "division.hpp"
#include "exported.hpp"
#include "runtime_traits.hpp"

namespace onernn {
inline namespace ONERNN_ISA {

/// The number of sequences of a batch, and the number of rows of all steps.
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

/// Memory for panels, which begin at multiples of 64 bytes. It is not initialized.
template <class Stored>
class PanelMemory {
 public:
  Stored* more(std::int64_t count) {
    pieces_.emplace_back(static_cast<Stored*>(
        ::operator new(static_cast<std::size_t>(count) * sizeof(Stored), std::align_val_t{64})));
    return pieces_.back().get();
  }

 private:
  struct Free {
    void operator()(Stored* p) const { ::operator delete(p, std::align_val_t{64}); }
  };
  std::vector<std::unique_ptr<Stored, Free>> pieces_;
};

template <template <class> class Kernel, class Real, class Stored>
class Stack final : public onernn_stack {
  using Cell = Kernel<RuntimeTraits<Real, Stored>>;
  using Weights = typename Cell::Weights;
  using Panels = PanelMemory<Stored>;

 public:
  explicit Stack(const Arguments& given) : spec_(given.spec), team_(given.threads) {
    if (!given.parts) {
      without_weights();
      return;
    }
    const auto at = [&given](auto& field, std::int64_t place) {
      const void* found = place < 0 ? nullptr : static_cast<const char*>(given.numbers) + place;
      field = {static_cast<decltype(panels_of_matrix(field))>(found)};
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

  void run(const onernn_batch& given, const onernn_arrays& arrays, onernn_account* accounts,
           const onernn_unpacked* unpacked) override {
    const std::unique_ptr<Paper> paper(accounts ? new Paper : nullptr);
    team_.count_on(paper.get());
    const Team::Lead lead(team_);
    const Extent extent = extent_of(given);
    grow(extent);
    const Batch batch = batch_of(workspace_->batching, given);
    const Real *x = static_cast<const Real*>(arrays.x), *both = x;
    for (std::int32_t layer = 0, D = spec_.directions; layer < spec_.layers; ++layer) {
      [[maybe_unused]] Panels panels;
      if constexpr (kReadsUnpacked<Real, Stored>)
        if (unpacked) read(unpacked + layer * D, layer, batch, extent, &panels);
      const bool last = layer + 1 == spec_.layers, joins = last || spec_.joined;
      const bool added = joins && spec_.added && D == 2;
      const std::int64_t row = joins ? joined_width(spec_) : spec_.width;
      Real* const out = last ? static_cast<Real*>(arrays.y) : workspace_->between[layer % 2].data();
      // Runs some sequences in one direction.
      const auto run_some = [&](std::int64_t d, Recurrent<Cell>& cells, const Batch& some,
                                Team& team) {
        // If the next layer reads only its own direction, each direction has memory of its own.
        const std::int64_t own = d * extent.words * spec_.width;
        const Real* const read = layer == 0 || spec_.joined ? both : both + own;
        Real* const y = !joins ? out + own : added ? out : out + d * (row - spec_.width);
        cells.run(weights_[static_cast<std::size_t>(layer * D + d)], some,
                  {read, static_cast<const Real*>(arrays.attention), y, row,
                   D == 2 ? d == 1 : spec_.backwards != 0, added && d == 1,
                   static_cast<Real*>(arrays.cells)},
                  states(arrays, layer * D + d, extent.sequences), team);
      };
      const std::int64_t beside = added ? 1 : D;
      if (paper) *paper = {};
      const Work work = this->work(batch, extent, layer, beside);
      const std::int64_t job = work.words * (work.input + work.recurrent) * beside;
      const std::int64_t groups = team_.is_worth_it(job) ? groups_of(work, team_.members()) : 0;
      for (std::int64_t d = 0; groups == 0 && d < D; ++d)
        run_some(d, layer == 0 ? workspace_->first : workspace_->upper, batch, team_);
      if (groups > 0) {
        workspace_->deal(batch, groups);
        shares(groups, beside, layer > 0, batch);
        for (std::int64_t first = 0; first < D; first += beside)
          team_.split(groups * beside, job / (groups * beside),
                      [&](std::int64_t piece, std::int64_t end) {
                        // Not Serial: all functions would be compiled a second time for it.
                        Team alone(1, team_);
                        for (; piece < end; ++piece)
                          run_some(first + piece / groups, *share(piece, layer > 0).cells,
                                   workspace_->deal.part(batch, piece % groups), alone);
                      });
      }
      if (paper) accounts[layer] = account(*paper, layer, groups, work);
      both = out;
    }
    team_.count_on(nullptr);
  }

  Team& team() override { return team_; }

 private:
  /// The memory that one member of the team needs for its sequences.
  struct Share {
    std::int64_t most = 0;
    std::unique_ptr<Recurrent<Cell>> cells;
  };

  /// The memory for batches of at most some size.
  struct Workspace {
    Workspace(const onernn_spec& spec, const onernn_spec& above, Extent most)
        : batching(most.sequences),
          first(most.sequences, Cell(spec)),
          upper(spec.layers > 1 ? most.sequences : 0, Cell(above)),
          between{Memory<Real>(spec.layers > 1 ? most.words * spec.directions * spec.width : 0),
                  Memory<Real>(spec.layers > 2 ? most.words * spec.directions * spec.width : 0)} {}
    Batching batching;
    Recurrent<Cell> first, upper;
    Memory<Real> between[2];  // outputs of even layers, and of odd layers
    Deal deal;
    Share shares[2 * Workers::kMost];  // per piece: for the first layer, and for the upper layers
  };

  void grow(Extent extent) {
    if (!workspace_ || extent.sequences > most_.sequences || extent.words > most_.words)
      renew(extent);
  }
  [[gnu::noinline]] void renew(Extent extent) {
    workspace_.reset();  // frees it before more is allocated
    const Extent most{(std::max)(extent.sequences, most_.sequences),
                      (std::max)(extent.words, most_.words)};
    workspace_ = std::make_unique<Workspace>(spec_, above(), most);
    most_ = most;  // only now: a batch that found no memory does not enlarge later ones
  }

  Share& share(std::int64_t piece, bool upper) { return workspace_->shares[2 * piece + upper]; }
  /// Makes the memory of a layer large enough, because members of the team allocate nothing.
  [[gnu::noinline]] void shares(std::int64_t groups, std::int64_t beside, bool upper,
                                const Batch& batch) {
    const std::int64_t pieces = groups * beside;
    for (std::int64_t piece = 0; piece < pieces; ++piece) {
      const std::int64_t count = workspace_->deal.part(batch, piece % groups).sequences;
      Share& own = share(piece, upper);
      if (own.cells && count <= own.most) continue;
      own.cells.reset();  // frees it before more is allocated
      own.most = count;
      own.cells = std::make_unique<Recurrent<Cell>>(count, Cell(upper ? above() : spec_));
    }
  }

  /// Returns the sizes on which the cost of a layer of a batch depends.
  Work work(const Batch& batch, Extent extent, std::int32_t layer, std::int64_t beside) const {
    const std::int64_t inputs = layer > 0 ? above().inputs : spec_.inputs;
    const std::int64_t units = spec_.units, R = spec_.width, gates = Cell::kGates;
    const std::int64_t recurrent = gates * units * R + (spec_.projection ? units * R : 0);
    const std::int64_t longest = batch.sequences ? batch.length[batch.order[0]] : 0;
    const bool twice = spec_.projection || spec_.cell == ONERNN_GRU;
    return {extent.sequences,
            extent.words,
            longest,
            units,
            weights_[static_cast<std::size_t>(layer * spec_.directions)].input
                ? gates * units * inputs
                : 0,
            recurrent,
            recurrent * std::int64_t(sizeof(Stored)) / kRowsOf<Stored>,
            1 + twice,
            beside};
  }

  [[gnu::noinline]] onernn_account account(const Paper& paper, std::int32_t layer,
                                           std::int64_t groups, const Work& work) const {
    // Turns with one member do not count, because no thread waits in them.
    const std::int64_t* const alone = paper.turns + 1;
    const std::int64_t* const all = alone + Workers::kMost;
    const std::int64_t turns = std::accumulate(alone + 1, all, std::int64_t(0));
    const std::int64_t threads = turns ? std::max_element(alone + 1, all) - paper.turns : 1;
    onernn_account made{groups, threads, turns, 0, {}, {}};
    std::int64_t most = 0;
    for (int m = 0; m < Workers::kMost; ++m) {
      const Paper::Member& member = paper.members[m];
      onernn_share& share = made.shares[m] = {member.products, member.read, 0};
      for (std::int32_t d = 0; d < spec_.directions; ++d) {
        const Weights& own = weights_[static_cast<std::size_t>(layer * spec_.directions + d)];
        std::int64_t held = 0;
        for (const Paper::Held& one : member.held)
          for (const auto matrix : {own.input, own.recurrent, own.candidate, own.projection})
            if (one.matrix == identity_of(matrix)) held += one.bytes;
        share.held = (std::max)(share.held, held);
      }
      most = (std::max)(most, share.held);
    }
    made.cache = cache_of(most);
    made.seconds = 1e-9 * cost(work, team_.members(), groups);
    return made;
  }

  /// The matrices and the bias of one layer and direction as a framework keeps them.
  struct Loose {
    Unpacked<Real> input, recurrent, candidate, projection;
    Memory<Real> bias;
  };

  /// Prepares a stack without weights: each run passes its weights.
  void without_weights() {
    if constexpr (kReadsUnpacked<Real, Stored>) {
      const std::int64_t bias = panels_of(spec_.units) * Cell::kBiasRows * 16;
      for (std::int64_t i = 0; i < std::int64_t(spec_.layers) * spec_.directions; ++i) {
        loose_.push_back({{}, {}, {}, {}, Memory<Real>(bias)});
        const Loose& own = loose_.back();
        Weights weights{};
        weights.bias = own.bias.data();
        weights.is_finite = false;  // not checked
        weights_.push_back(weights);
      }
      for (std::size_t i = 0; i < loose_.size(); ++i) place(i);
    }
  }

  /// Makes one layer and direction read its matrices at the framework's addresses.
  void place(std::size_t part) {
    Weights& weights = weights_[part];
    const Loose& loose = loose_[part];
    weights.input = {nullptr, &loose.input};
    weights.recurrent = {nullptr, &loose.recurrent};
    if (spec_.cell == ONERNN_GRU) weights.candidate = {nullptr, &loose.candidate};
    if (spec_.projection) weights.projection = {nullptr, &loose.projection};
  }

  /// Has a layer read a framework's weights. A matrix that the batch reads often is packed into
  /// memory that lives as long as `panels`.
  void read(const onernn_unpacked* given, std::int32_t layer, const Batch& batch, Extent extent,
            Panels* panels) {
    const std::int64_t inputs = layer > 0 ? above().inputs : spec_.inputs;
    const std::int64_t longest = batch.sequences ? batch.length[batch.order[0]] : 0;
    constexpr int G = Cell::kGates, kTogether = Cell::kTogether;
    // The input's matrix is read once per block of rows, see `project`.
    const std::int64_t blocks = extent.words / kRowsInPlace;
    for (std::int32_t d = 0; d < spec_.directions; ++d) {
      const auto part = static_cast<std::size_t>(layer * spec_.directions + d);
      Loose& loose = loose_[part];
      Weights& weights = weights_[part];
      place(part);
      const auto matrix = [](const onernn_matrix& from, int first, std::int64_t columns) {
        Unpacked<Real> made{{}, from.row, from.column, columns};
        for (int g = first; g < 4; ++g)
          made.gates[g - first] = static_cast<const Real*>(from.gates[g]);
        return made;
      };
      loose.input = matrix(given[d].input, 0, spec_.units);
      loose.recurrent = matrix(given[d].recurrent, 0, spec_.units);
      loose.candidate = matrix(given[d].recurrent, 2, spec_.units);
      loose.projection = matrix(given[d].projection, 0, spec_.width);
      add_biases(given[d], loose.bias.data());
      pack<G>(weights.input, inputs, blocks, panels);
      pack<kTogether>(weights.recurrent, spec_.width, longest, panels);
      pack<1>(weights.candidate, spec_.width, longest, panels);
      pack<1>(weights.projection, spec_.units, longest, panels);
    }
  }

  void add_biases(const onernn_unpacked& given, Real* to) const {
    for (int row = 0; row < Cell::kBiasRows; ++row)
      for (std::int64_t o = 0; o < spec_.units; o += 16) {
        Lanes<Real> sum = broadcast(Real(0));
        bool first = true;
        for (const void* one : given.bias[row]) {
          if (!one) continue;
          const Lanes<Real> some = load_some(static_cast<const Real*>(one) + o, spec_.units - o);
          sum = first ? some : sum + some;
          first = false;
        }
        store(to + (o / 16 * Cell::kBiasRows + row) * 16, sum);
      }
  }

  /// Packs a matrix of K rows that the batch reads `times` times, if that is faster.
  template <int G, class Matrix>
  void pack(Matrix& matrix, std::int64_t K, std::int64_t times, Panels* panels) {
    if (!matrix || !pays(K * G * matrix.unpacked->columns, times)) return;
    const Unpacked<Real>& from = *matrix.unpacked;
    const std::int64_t count = panels_of(from.columns);
    const int B = beside<G>(count);
    const std::int64_t size = B * panel_size<G, Stored>(K);
    Stored* const to = panels->more(count / B * size);
    team_.split(count / B, K * B * G * 16, [=, &from](std::int64_t group, std::int64_t end) {
      const auto all = [&](auto sums_a_row) {
        for (; group < end; ++group)
          pack_panel<sums_a_row(), G>(from, group * B, 0, K, to + group * size);
      };
      if constexpr (G == 1)
        if (B == 4) all(Fixed<4>());
      if constexpr (G <= 2)
        if (B == 2) all(Fixed<2 * G>());
      if (B == 1) all(Fixed<G>());
    });
    matrix = {to, nullptr};
  }

  /// Says whether it is faster to pack a matrix of `numbers` numbers that is read `times` times.
  /// Packing takes as long as some products; it takes longer if the matrix, or the new memory for
  /// its panels, is slow to access.
  static bool pays(std::int64_t numbers, std::int64_t times) {
    const std::int64_t bytes = numbers * std::int64_t(sizeof(Real));
    return times >= (bytes <= 1 << 20 ? 3 : bytes <= 4 << 20 ? 10 : 32);
  }

  /// Returns the spec of the layers above the first one.
  onernn_spec above() const {
    onernn_spec spec = spec_;
    spec.inputs = spec_.joined ? joined_width(spec_) : spec_.width;
    return spec;
  }

  /// Returns the states of one layer and direction.
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
  std::vector<Loose> loose_;
  Team team_;
  Extent most_{0, 0};
  std::unique_ptr<Workspace> workspace_;
};

template <template <class> class Kernel, class Real, class Stored>
onernn_stack* new_stack(const Arguments& arguments) {
  return new Stack<Kernel, Real, Stored>(arguments);
}

}  // namespace ONERNN_ISA
}  // namespace onernn

#endif
