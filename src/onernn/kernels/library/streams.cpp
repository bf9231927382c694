// Implements onernn.h: models, and streams that run them. Exceptions become a status. Streams share
// only the model, which never changes.
#include <sched.h>

#include <cstdio>
#include <cstdlib>

#include "clients.hpp"

namespace {

thread_local char message[512] = "";

std::int32_t failed(std::int32_t status, const char* why) {
  std::snprintf(message, sizeof message, "%s", why);
  return status;
}

/// Returns the status of a function, also if it throws.
template <class Function>
std::int32_t guarded(Function function) try {
  function();
  return ONERNN_DONE;
} catch (const Failure& failure) {
  return failed(failure.status, failure.why.c_str());
} catch (...) {
  return failed(ONERNN_NO_MEMORY,
                "the system has no memory or no thread left; use fewer threads or smaller batches");
}

std::int32_t usable_cpus() {
  cpu_set_t usable;
  CPU_ZERO(&usable);
  const int count = sched_getaffinity(0, sizeof usable, &usable) ? 1 : CPU_COUNT(&usable);
  return (std::max)(1, (std::min)(count, 64));
}

/// Returns value number `value` of a model, whose inputs come before its outputs; null if there is
/// no such value.
const Described* described(const onernn_model* model, std::int32_t value) {
  if (!model || value < 0) return nullptr;
  const auto at = static_cast<std::size_t>(value);
  const std::size_t inputs = model->compiled->inputs.size();
  if (at < inputs) return &model->compiled->inputs[at];
  return at - inputs < model->compiled->outputs.size() ? &model->compiled->outputs[at - inputs]
                                                       : nullptr;
}

onernn_stream& of(onernn_stream* stream) {
  if (!stream) misused("stream: expected a stream, got NULL");
  return *stream;
}
std::size_t input_of(const onernn_stream& stream, std::int32_t value) {
  if (value < 0 || static_cast<std::size_t>(value) >= stream.model->inputs.size())
    misused("value " + std::to_string(value) + ": expected the number of an input");
  return static_cast<std::size_t>(value);
}
onernn_clients& of(onernn_clients* clients) {
  if (!clients) misused("clients: expected clients, got NULL");
  return *clients;
}
/// Returns the index among the outputs of value number `value`, if it is an output.
std::optional<std::size_t> output_of(const onernn_stream* stream, std::int32_t value) {
  if (!stream || value < 0) return {};
  const std::size_t inputs = stream->model->inputs.size(), at = static_cast<std::size_t>(value);
  if (at < inputs || at - inputs >= stream->model->outputs.size()) return {};
  return at - inputs;
}

std::int32_t opened(std::unique_ptr<Bytes> bytes, std::int32_t threads, onernn_model** model) {
  if (threads < 0) misused("threads: expected 0 or more, got " + std::to_string(threads));
  const std::int32_t cpus = usable_cpus();
  std::int32_t team = threads ? (std::min)(threads, cpus) : cpus;
  // For tests: exactly so many threads.
  if (const char* const wish = std::getenv("ONERNN_TEAM"); wish && *wish) {
    const int exactly = std::atoi(wish);
    if (exactly < 1 || exactly > 64)
      misused(std::string("ONERNN_TEAM=") + wish + ": expected a number from 1 to 64");
    team = -exactly;
  }
  auto compiled = std::make_shared<const Compiled>(std::move(bytes));
  *model = new onernn_model{std::move(compiled), team};
  return ONERNN_DONE;
}

}  // namespace

std::int32_t onernn_interface() { return ONERNN_INTERFACE; }
const char* onernn_message() { return message; }

std::int32_t onernn_open(const char* path, std::int32_t threads, onernn_model** model) {
  return guarded([=] {
    if (!path || !model) misused("path, model: expected memory, got NULL");
    *model = nullptr;
    try {
      opened(std::make_unique<Bytes>(path), threads, model);
    } catch (Failure& failure) {
      if (failure.status != ONERNN_NO_FILE) failure.why = std::string(path) + ": " + failure.why;
      throw;
    }
  });
}

std::int32_t onernn_open_bytes(const void* bytes, std::int64_t size, std::int32_t threads,
                               onernn_model** model) {
  return guarded([=] {
    if (!bytes || size < 0 || !model)
      misused("bytes, model: expected memory, got NULL or a negative size");
    *model = nullptr;
    opened(std::make_unique<Bytes>(bytes, size), threads, model);
  });
}

void onernn_close(onernn_model* model) { delete model; }

std::int32_t onernn_inputs(const onernn_model* model) {
  return model ? static_cast<std::int32_t>(model->compiled->inputs.size()) : -1;
}
std::int32_t onernn_outputs(const onernn_model* model) {
  return model ? static_cast<std::int32_t>(model->compiled->outputs.size()) : -1;
}
const char* onernn_name(const onernn_model* model, std::int32_t value) {
  const Described* const known = described(model, value);
  return known ? known->name.c_str() : nullptr;
}
const char* onernn_dtype(const onernn_model* model, std::int32_t value) {
  const Described* const known = described(model, value);
  return known ? known->dtype.c_str() : nullptr;
}
std::int32_t onernn_rank(const onernn_model* model, std::int32_t value) {
  const Described* const known = described(model, value);
  return known ? static_cast<std::int32_t>(known->axes.size()) : -1;
}
std::int64_t onernn_dim(const onernn_model* model, std::int32_t value, std::int32_t axis) {
  const Described* const known = described(model, value);
  const bool there = known && axis >= 0 && static_cast<std::size_t>(axis) < known->axes.size();
  return there ? known->axes[static_cast<std::size_t>(axis)].size : -1;
}
std::int32_t onernn_levels(const onernn_model* model, std::int32_t value) {
  if (!described(model, value)) return -1;
  const auto at = static_cast<std::size_t>(value);
  const std::size_t inputs = model->compiled->inputs.size();
  return static_cast<std::int32_t>(at < inputs
                                       ? model->compiled->inputs[at].levels.size()
                                       : model->compiled->outputs[at - inputs].levels.size());
}
std::int32_t onernn_next(const onernn_model* model, std::int32_t value) {
  if (!described(model, value) || value >= onernn_inputs(model)) return -1;
  const std::int64_t next = model->compiled->inputs[static_cast<std::size_t>(value)].next;
  return next < 0 ? -1 : onernn_inputs(model) + static_cast<std::int32_t>(next);
}

std::int32_t onernn_stream_open(onernn_model* model, onernn_stream** stream) {
  return guarded([=] {
    if (!model || !stream) misused("model, stream: expected memory, got NULL");
    *stream = nullptr;
    *stream = new onernn_stream(*model);
  });
}
void onernn_stream_close(onernn_stream* stream) { delete stream; }

std::int32_t onernn_limit(onernn_stream* stream, std::int64_t bytes, std::int64_t steps) {
  return guarded([=] { of(stream).limit(bytes, steps); });
}
std::int32_t onernn_give(onernn_stream* stream, std::int32_t value, const void* numbers,
                         const std::int64_t* dims) {
  return guarded([=] { of(stream).give(input_of(*stream, value), numbers, dims); });
}
std::int32_t onernn_give_offsets(onernn_stream* stream, std::int32_t value, std::int32_t level,
                                 const std::int64_t* offsets, std::int64_t sequences) {
  return guarded(
      [=] { of(stream).give_offsets(input_of(*stream, value), level, offsets, sequences); });
}
std::int32_t onernn_take(onernn_stream* stream, std::int32_t value, void* numbers,
                         std::int64_t bytes) {
  return guarded([=] {
    onernn_stream& own = of(stream);
    const auto at = output_of(stream, value);
    if (!at) misused("value " + std::to_string(value) + ": expected the number of an output");
    own.take(*at, numbers, bytes);
  });
}
std::int32_t onernn_prepare(onernn_stream* stream) {
  return guarded([=] { of(stream).prepare(); });
}
std::int32_t onernn_run(onernn_stream* stream) {
  return guarded([=] { of(stream).run(); });
}
std::int32_t onernn_run_on(onernn_stream* stream, void* const* memory) {
  return guarded([=] { stream->run_on(memory); });
}
std::int32_t onernn_reset(onernn_stream* stream) {
  return guarded([=] { of(stream).reset(); });
}

const void* onernn_numbers(const onernn_stream* stream, std::int32_t value) {
  const auto at = output_of(stream, value);
  return at ? stream->numbers(*at) : nullptr;
}
std::int64_t onernn_size(const onernn_stream* stream, std::int32_t value, std::int32_t axis) {
  const auto at = output_of(stream, value);
  return at && axis >= 0 ? stream->size(*at, static_cast<std::size_t>(axis)) : -1;
}
std::int64_t onernn_most_bytes(const onernn_stream* stream, std::int32_t value) {
  const auto at = output_of(stream, value);
  return at ? stream->most_bytes(*at) : -1;
}
const std::int64_t* onernn_offsets(const onernn_stream* stream, std::int32_t value,
                                   std::int32_t level) {
  const auto at = output_of(stream, value);
  return at ? stream->level(*at, level).offsets : nullptr;
}
std::int64_t onernn_sequences(const onernn_stream* stream, std::int32_t value, std::int32_t level) {
  const auto at = output_of(stream, value);
  return at ? stream->level(*at, level).sequences : -1;
}

std::int32_t onernn_clients_open(onernn_model* model, std::int64_t capacity, std::int32_t states,
                                 std::int64_t queue, onernn_clients** clients) {
  return guarded([=] {
    if (!model || !clients) misused("model, clients: expected memory, got NULL");
    *clients = nullptr;
    *clients = new onernn_clients(*model, capacity, states, queue);
  });
}
void onernn_clients_close(onernn_clients* clients) { delete clients; }

std::int32_t onernn_client_open(onernn_clients* clients, std::int64_t* client) {
  return guarded([=] {
    if (!client) misused("client: expected memory, got NULL");
    *client = of(clients).open();
  });
}
std::int32_t onernn_client_close(onernn_clients* clients, std::int64_t client) {
  return guarded([=] { of(clients).close(client); });
}
std::int32_t onernn_push(onernn_clients* clients, const std::int64_t* ids, std::int64_t count,
                         const void* const* frames) {
  return guarded([=] { of(clients).push(ids, count, frames); });
}
std::int32_t onernn_pull(onernn_clients* clients, const std::int64_t* ids, std::int64_t count,
                         void* const* results, std::int64_t* refused) {
  return guarded([=] { of(clients).pull(ids, count, results, refused); });
}
