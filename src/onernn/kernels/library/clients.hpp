// Many clients of one model: their frames run as one batch.
#ifndef ONERNN_CLIENTS_HPP
#define ONERNN_CLIENTS_HPP

#include <deque>
#include <unordered_map>
#include <utility>

#include "stream.hpp"

/// Queues and states of clients. Axis 0 of all values of the model counts clients.
struct onernn_clients {
  onernn_clients(const onernn_model& of, std::int64_t capacity, std::int32_t states,
                 std::int64_t queue)
      : stream_(of), capacity_(capacity), queue_(queue) {
    const Compiled& model = *stream_.model;
    if (capacity < 1 || queue < 1)
      misused("capacity, queue: expected 1 or more, got " + std::to_string(capacity) + " and " +
              std::to_string(queue));
    const std::size_t inputs = model.inputs.size(), outputs = model.outputs.size();
    const auto kept = static_cast<std::size_t>(states);
    if (states < 0 || kept > inputs || kept > outputs)
      misused("states: expected at most the number of inputs and of outputs, got " +
              std::to_string(states));
    for (const Input& input : model.inputs) taken_.push_back(row_of(input, true));
    for (const Output& output : model.outputs) made_.push_back(row_of(output, false));
    frames_ = inputs - kept;
    results_ = outputs - kept;
    for (std::size_t k = 0; k < kept; ++k) {
      const Input& input = model.inputs[frames_ + k];
      const Output& output = model.outputs[results_ + k];
      if (taken_[frames_ + k] != made_[results_ + k] || input.dtype != output.dtype)
        misfit("state '" + input.name +
               "': expected the sizes and dtype of its next value, output '" + output.name + "'");
    }
    for (std::size_t k = 0; k < inputs; ++k) {
      (k < frames_ ? frame_bytes_ : state_bytes_) += taken_[k];
    }
    for (std::size_t k = 0; k < results_; ++k) result_bytes_ += made_[k];
    std::int64_t all = 0;  // a file may declare any sizes, so this may overflow
    for (const auto* rows : {&taken_, &made_})
      for (const std::size_t bytes : *rows)
        if (__builtin_add_overflow(all, bytes, &all) || all > INT64_MAX / capacity)
          throw Failure{ONERNN_TOO_LARGE, "the values of " + std::to_string(capacity) +
                                              " clients exceed any memory; open fewer"};
    gathered_.resize(inputs);
  }

  std::int64_t open() {
    if (static_cast<std::int64_t>(clients_.size()) >= capacity_)
      throw Failure{ONERNN_TOO_MUCH,
                    "all " + std::to_string(capacity_) + " clients are open; close one first"};
    clients_[next_].state.resize(state_bytes_);  // zeros
    return next_++;
  }

  void close(std::int64_t id) {
    find(id);
    clients_.erase(id);
  }

  void push(const std::int64_t* ids, std::int64_t count, const void* const* frames) {
    check(ids, count);
    for (std::size_t k = 0; k < frames_; ++k)
      if (count && (!frames || !frames[k]))
        misused("input '" + stream_.model->inputs[k].name + "' is missing; pass its frames");
    std::unordered_map<std::int64_t, std::int64_t> more;
    for (std::int64_t at = 0; at < count; ++at)
      if (static_cast<std::int64_t>(find(ids[at]).waiting.size()) + ++more[ids[at]] > queue_)
        throw Failure{ONERNN_TOO_MUCH,
                      named(ids[at]) + ": its queue of " + std::to_string(queue_) +
                          " frames is full, no frame was added; pull results first"};
    std::vector<Row> rows(static_cast<std::size_t>(count));
    for (std::size_t at = 0; at < rows.size(); ++at) {
      rows[at].resize(frame_bytes_);
      char* to = rows[at].data();
      for (std::size_t k = 0; k < frames_; to += taken_[k++])
        std::memcpy(to, static_cast<const char*>(frames[k]) + at * taken_[k], taken_[k]);
    }
    std::int64_t at = 0;
    try {
      for (; at < count; ++at)
        find(ids[at]).waiting.push_back(std::move(rows[static_cast<std::size_t>(at)]));
    } catch (...) {
      while (at-- > 0) find(ids[at]).waiting.pop_back();
      throw;
    }
  }

  void pull(const std::int64_t* ids, std::int64_t count, void* const* results,
            std::int64_t* refused) {
    check(ids, count);
    if (refused) *refused = -1;
    for (std::size_t k = 0; k < results_; ++k)
      if (count && (!results || !results[k]))
        misused("output '" + stream_.model->outputs[k].name +
                "': expected memory for its rows, got NULL");
    std::unordered_map<std::int64_t, std::size_t> wanted;
    for (std::int64_t at = 0; at < count; ++at) {
      const Client& client = find(ids[at]);
      if (client.done.size() + client.waiting.size() < ++wanted[ids[at]])
        misused(named(ids[at]) +
                ": more results are wanted than frames were pushed; no result was pulled");
    }
    const auto lacks = [&] {
      for (const auto& each : wanted)
        if (clients_[each.first].done.size() < each.second) return true;
      return false;
    };
    while (lacks()) tick(&wanted);
    std::unordered_map<std::int64_t, std::size_t> seen;
    for (std::int64_t at = 0; at < count; ++at) {
      std::deque<Result>& done = clients_[ids[at]].done;
      const std::size_t own = seen[ids[at]]++;
      if (!done[own].status) continue;
      const Result failed = std::move(done[own]);
      done.erase(done.begin() + static_cast<std::ptrdiff_t>(own));
      if (refused) *refused = at;
      throw Failure{failed.status, named(ids[at]) + ": its frame was skipped: " + failed.why};
    }
    for (std::int64_t at = 0; at < count; ++at) {
      std::deque<Result>& done = clients_[ids[at]].done;
      const char* from = done.front().row.data();
      for (std::size_t k = 0; k < results_; from += made_[k++])
        std::memcpy(static_cast<char*>(results[k]) + static_cast<std::size_t>(at) * made_[k], from,
                    made_[k]);
      done.pop_front();
    }
  }

 private:
  using Row = std::vector<char>;
  struct Result {
    Row row;
    std::int32_t status = ONERNN_DONE;
    std::string why;
  };
  struct Client {
    Row state;
    std::deque<Row> waiting;
    std::deque<Result> done;
  };

  /// Returns the bytes of one client's row in a value.
  static std::size_t row_of(const Described& value, bool is_input) {
    const std::string what = (is_input ? "input '" : "output '") + value.name + "'";
    if (value.axes.empty() || value.axes[0].size >= 0)
      misused(what +
              ": expected an open first axis for the clients; compile the model with --streams");
    std::int64_t bytes = value.width;
    for (std::size_t axis = 1; axis < value.axes.size(); ++axis)
      if (value.axes[axis].size < 0 || __builtin_mul_overflow(bytes, value.axes[axis].size, &bytes))
        misused(what + ": axis " + std::to_string(axis) +
                " has no fixed size; compile the model with --input");
    return static_cast<std::size_t>(bytes);
  }

  static std::string named(std::int64_t id) { return "client " + std::to_string(id); }

  Client& find(std::int64_t id) {
    const auto found = clients_.find(id);
    if (found == clients_.end()) misused(named(id) + " is not open; open it first");
    return found->second;
  }

  void check(const std::int64_t* ids, std::int64_t count) {
    if (count < 0 || (count && (!ids || !is_at(ids, 8))))
      misused("ids: expected a count of 0 or more and memory that is aligned to int64");
    for (std::int64_t at = 0; at < count; ++at) find(ids[at]);
  }

  /// Runs the oldest frame of each client that has one, and that either has room for the result or
  /// is in `wanted`.
  void tick(const std::unordered_map<std::int64_t, std::size_t>* wanted) {
    std::vector<Client*> batch;
    for (auto& each : clients_) {
      Client& client = each.second;
      if (!client.waiting.empty() &&
          (static_cast<std::int64_t>(client.done.size()) < queue_ || wanted->count(each.first)))
        batch.push_back(&client);
    }
    run(batch.data(), batch.size());
  }

  void run(Client** batch, std::size_t count) {
    std::vector<Result> made(count);
    std::vector<Row> states(count);
    try {
      attempt(batch, count, made, states);
    } catch (const Failure& failure) {
      if (count > 1) {  // runs each frame alone to find the wrong one
        for (std::size_t at = 0; at < count; ++at) run(batch + at, 1);
        return;
      }
      made[0] = {Row(), failure.status, failure.why};
      states[0] = batch[0]->state;
    }
    for (std::size_t at = 0; at < count; ++at) {
      batch[at]->done.push_back(std::move(made[at]));
      batch[at]->waiting.pop_front();
      batch[at]->state.swap(states[at]);
    }
  }

  void attempt(Client** batch, std::size_t count, std::vector<Result>& made,
               std::vector<Row>& states) {
    const Compiled& model = *stream_.model;
    std::size_t before = 0;
    for (std::size_t k = 0; k < taken_.size(); ++k) {
      if (k == frames_) before = 0;
      const auto bytes = static_cast<std::int64_t>(count * taken_[k]);
      char* const to = gathered_[k].of<char>((std::max)(bytes, std::int64_t(1)));
      for (std::size_t at = 0; at < count; ++at) {
        const Row& row = k < frames_ ? batch[at]->waiting.front() : batch[at]->state;
        std::memcpy(to + at * taken_[k], row.data() + before, taken_[k]);
      }
      before += taken_[k];
      Numbers dims;
      for (const Axis& axis : model.inputs[k].axes) dims.push_back(axis.size);
      dims[0] = static_cast<std::int64_t>(count);
      stream_.give(k, to, dims.data());
    }
    stream_.run();
    for (std::size_t at = 0; at < count; ++at) {
      made[at].row.resize(result_bytes_);
      states[at].resize(state_bytes_);
    }
    before = 0;
    for (std::size_t k = 0; k < made_.size(); ++k) {
      if (k == results_) before = 0;
      if (stream_.size(k, 0) != static_cast<std::int64_t>(count))
        misfit("output '" + model.outputs[k].name + "': expected one row per client");
      const char* const from = static_cast<const char*>(stream_.numbers(k));
      for (std::size_t at = 0; at < count; ++at) {
        Row& row = k < results_ ? made[at].row : states[at];
        std::memcpy(row.data() + before, from + at * made_[k], made_[k]);
      }
      before += made_[k];
    }
  }

  onernn_stream stream_;
  std::int64_t capacity_, queue_, next_ = 0;
  std::size_t frames_ = 0, results_ = 0;  // inputs and outputs that are not states
  std::vector<std::size_t> taken_, made_;
  std::size_t frame_bytes_ = 0, state_bytes_ = 0, result_bytes_ = 0;
  std::vector<Scratch> gathered_;
  std::unordered_map<std::int64_t, Client> clients_;
};

#endif
