/* A program without Python: c_interface_test MODEL INPUTS OUTPUTS THREADS RUNS.
   INPUTS holds, of each input, its dims, its offsets level by level (a count, then numbers), its
   numbers; counts and sizes are int64. Threads run the model side by side, each on a stream of its
   own; every second one opens the file itself. All have to give the bytes of the first run, which
   become OUTPUTS. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "c_check.h"
#include "onernn.h"

enum { MOST = 16, AXES = 16, LEVELS = 4 };

typedef struct {
  int64_t dims[AXES], sequences[LEVELS], *offsets[LEVELS];
  void *numbers;
} input;

typedef struct {
  char *bytes;
  size_t size;
  int shares; /* the model of all */
} result;

static onernn_model *model;
static const char *path;
static input inputs[MOST];
static int runs;

static int64_t width_of(int32_t value) {
  const char *dtype = onernn_dtype(model, value);
  if (strstr(dtype, "64")) return 8;
  if (strstr(dtype, "32")) return 4;
  return strstr(dtype, "16") ? 2 : 1;
}

static void read_all(FILE *file, void *to, int64_t bytes) {
  CHECK(fread(to, 1, (size_t)bytes, file) == (size_t)bytes);
}

static void read_inputs(const char *path) {
  FILE *file = fopen(path, "rb");
  CHECK(file && onernn_inputs(model) <= MOST);
  for (int32_t at = 0; at < onernn_inputs(model); ++at) {
    int64_t count = width_of(at);
    for (int32_t axis = 0; axis < onernn_rank(model, at); ++axis) {
      read_all(file, &inputs[at].dims[axis], 8);
      count *= inputs[at].dims[axis];
    }
    for (int32_t level = 0; level < onernn_levels(model, at); ++level) {
      int64_t *sequences = &inputs[at].sequences[level];
      read_all(file, sequences, 8);
      inputs[at].offsets[level] = malloc((size_t)(*sequences + 1) * 8);
      read_all(file, inputs[at].offsets[level], (*sequences + 1) * 8);
    }
    inputs[at].numbers = malloc((size_t)count + 1);
    read_all(file, inputs[at].numbers, count);
  }
  fclose(file);
}

/* Outputs one behind the other, as text of sizes and as bytes. */
static char *run(onernn_stream *stream, size_t *size) {
  char *made = NULL;
  FILE *out = open_memstream(&made, size);
  CHECK(out && onernn_run(stream) == ONERNN_DONE);
  const int32_t first = onernn_inputs(model), last = first + onernn_outputs(model);
  for (int32_t value = first; value < last; ++value) {
    int64_t count = width_of(value);
    fprintf(out, "%s", onernn_name(model, value));
    for (int32_t axis = 0; axis < onernn_rank(model, value); ++axis) {
      const int64_t dim = onernn_size(stream, value, axis);
      fprintf(out, " %lld", (long long)dim);
      count *= dim;
    }
    fputc('\n', out);
    for (int32_t level = 0; level < onernn_levels(model, value); ++level)
      fwrite(onernn_offsets(stream, value, level), 8,
             (size_t)onernn_sequences(stream, value, level) + 1, out);
    CHECK(count <= onernn_most_bytes(stream, value));
    fwrite(onernn_numbers(stream, value), 1, (size_t)count, out);
  }
  fclose(out);
  return made;
}

/* Sizes that the model does not take, after axes that are larger than the memory. */
static void give_wrong(onernn_stream *stream) {
  for (int32_t at = 0; at < onernn_inputs(model); ++at) {
    const int32_t last = onernn_rank(model, at) - 1;
    int64_t dims[AXES], number = 0;
    for (int32_t axis = 0; axis < last; ++axis) dims[axis] = inputs[at].dims[axis] + 1000;
    if (last < 0) continue;
    dims[last] = -1;
    CHECK(onernn_give(stream, at, &number, dims) == ONERNN_MISFIT);
  }
}

static void *work(void *made) {
  onernn_stream *stream;
  onernn_model *own;
  size_t size = 0, again;
  char *first = NULL;
  CHECK(onernn_open(path, 0, &own) == ONERNN_DONE);
  CHECK(onernn_stream_open(((result *)made)->shares ? model : own, &stream) == ONERNN_DONE);
  onernn_close(own);
  for (int32_t at = 0; at < onernn_inputs(model); ++at) {
    CHECK(onernn_give(stream, at, inputs[at].numbers, inputs[at].dims) == ONERNN_DONE);
    for (int32_t level = 0; level < onernn_levels(model, at); ++level)
      CHECK(onernn_give_offsets(stream, at, level, inputs[at].offsets[level],
                                inputs[at].sequences[level]) == ONERNN_DONE);
  }
  CHECK(onernn_prepare(stream) == ONERNN_DONE);
  CHECK(onernn_limit(stream, 1, 1) == ONERNN_DONE && onernn_prepare(stream) == ONERNN_TOO_LARGE);
  CHECK(onernn_run(stream) == ONERNN_TOO_LARGE && strstr(onernn_message(), "expected at most"));
  CHECK(onernn_limit(stream, 1 << 30, 500000) == ONERNN_DONE);
  for (int time = 0; time < runs; ++time) {
    give_wrong(stream);
    char *made = run(stream, &again);
    CHECK(!first || (size == again && !memcmp(first, made, size)));
    free(first);
    first = made;
    size = again;
  }
  onernn_stream_close(stream);
  ((result *)made)->bytes = first;
  ((result *)made)->size = size;
  return NULL;
}

static void misuse(void) {
  onernn_model *none = (onernn_model *)&none;
  onernn_stream *stream;
  CHECK(onernn_open("/no/such/file", 1, &none) == ONERNN_NO_FILE && !none);
  CHECK(strstr(onernn_message(), "/no/such/file"));
  CHECK(onernn_open(NULL, 1, &none) == ONERNN_MISUSED);
  CHECK(onernn_open(path, 1, NULL) == ONERNN_MISUSED);
  CHECK(onernn_open(path, -1, &none) == ONERNN_MISUSED && strstr(onernn_message(), "got -1"));
  CHECK(onernn_open_bytes("no model", 8, 1, &none) == ONERNN_DAMAGED);
  CHECK(onernn_stream_open(NULL, &stream) == ONERNN_MISUSED && onernn_run(NULL) == ONERNN_MISUSED);
  CHECK(onernn_inputs(NULL) == -1 && !onernn_name(model, -1) && !onernn_name(model, 999));
  CHECK(onernn_dim(model, 0, 99) == -1 && onernn_rank(model, 999) == -1);
  CHECK(onernn_stream_open(model, &stream) == ONERNN_DONE);
  CHECK(onernn_give(stream, 999, "", NULL) == ONERNN_MISUSED);
  CHECK(onernn_take(stream, 0, NULL, 0) == ONERNN_MISUSED);
  CHECK(onernn_limit(stream, 0, 1) == ONERNN_MISUSED);
  CHECK(onernn_next(model, 0) >= 0 || onernn_run(stream) == ONERNN_MISUSED);
  CHECK(!onernn_numbers(stream, onernn_inputs(model)));
  onernn_stream_close(stream);
  onernn_stream_close(NULL);
  onernn_close(NULL);
}

int main(int count, char **arguments) {
  CHECK(count == 6 && onernn_interface() == ONERNN_INTERFACE);
  path = arguments[1];
  CHECK(onernn_open(path, 1, &model) == ONERNN_DONE);
  misuse();
  read_inputs(arguments[2]);
  runs = atoi(arguments[5]);
  const int threads = atoi(arguments[4]);
  pthread_t all[64];
  result made[64];
  for (int at = 0; at < threads; ++at) {
    made[at].shares = at % 2;
    CHECK(!pthread_create(&all[at], NULL, work, &made[at]));
  }
  for (int at = 0; at < threads; ++at) {
    pthread_join(all[at], NULL);
    CHECK(made[at].size == made[0].size && !memcmp(made[at].bytes, made[0].bytes, made[0].size));
  }
  FILE *out = fopen(arguments[3], "wb");
  CHECK(out && fwrite(made[0].bytes, 1, made[0].size, out) == made[0].size);
  fclose(out);
  for (int at = 0; at < threads; ++at) free(made[at].bytes);
  for (int at = 0; at < onernn_inputs(model); ++at) {
    free(inputs[at].numbers);
    for (int level = 0; level < LEVELS; ++level) free(inputs[at].offsets[level]);
  }
  onernn_close(model);
  return 0;
}
