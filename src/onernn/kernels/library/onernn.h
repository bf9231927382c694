/* Models that `onernn compile` wrote, run without Python. Link with libonernn.

   A model is opened once and shared by all threads. A stream runs it, by one thread at a time: it
   has the memory of a run, and the states between two runs. Functions return ONERNN_DONE or what
   is wrong, and onernn_message says it in words. Pointers may not be null where nothing else is
   said; a null model or stream, and numbers of values that there are not, are ONERNN_MISUSED.
   A function that fails changes nothing in the stream: the next run has the inputs, outputs,
   limits and states of before. */
#ifndef ONERNN_H
#define ONERNN_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this interface. It grows; what is here keeps its meaning under this number. */
#define ONERNN_INTERFACE 1

enum {
  ONERNN_DONE = 0,
  ONERNN_NO_MEMORY = 1, /* the system has no memory, or no thread, left */
  ONERNN_UNKNOWN = 2,   /* something that this version of the library does not have */
  ONERNN_MISFIT = 3,    /* sizes that do not fit the model, or each other */
  ONERNN_REFUSED = 4,   /* a step found an index or a length that it does not take */
  ONERNN_UNSOUND = 5,   /* a step would read what none has written, or leave its memory */
  ONERNN_NO_FILE = 6,   /* the file cannot be read */
  ONERNN_DAMAGED = 7,   /* no compiled model, or not as it was written */
  ONERNN_MISUSED = 8,   /* an argument that is not allowed, or an input that is missing */
  ONERNN_TOO_MUCH = 9,  /* more steps than onernn_limit allows */
  ONERNN_TOO_LARGE = 10 /* more bytes than onernn_limit allows */
};

/* ONERNN_INTERFACE of the library that was loaded. */
int32_t onernn_interface(void);

/* What was wrong in the last call of this thread that did not succeed. */
const char *onernn_message(void);

typedef struct onernn_model onernn_model;
typedef struct onernn_stream onernn_stream;

/* Opens a compiled model, for so many threads in one run at most, and no more than there are CPUs;
   0: as many as there are CPUs; negative: ONERNN_MISUSED. Its weights stay in the file, which is
   mapped and must not be changed. */
int32_t onernn_open(const char *path, int32_t threads, onernn_model **model);

/* The same of a file's bytes, which are copied. */
int32_t onernn_open_bytes(const void *bytes, int64_t size, int32_t threads, onernn_model **model);

/* Streams that are open keep what they need. NULL is fine. */
void onernn_close(onernn_model *model);

/* Values by number: the inputs, 0 and up, and behind them the outputs. These functions give -1 or
   NULL where there is no such value, axis or level. */
int32_t onernn_inputs(const onernn_model *model);
int32_t onernn_outputs(const onernn_model *model);
const char *onernn_name(const onernn_model *model, int32_t value);
const char *onernn_dtype(const onernn_model *model, int32_t value); /* "float32", "int64", ... */
int32_t onernn_rank(const onernn_model *model, int32_t value);
/* The size of an axis, -1 where calls decide. */
int64_t onernn_dim(const onernn_model *model, int32_t value, int32_t axis);
/* Of ragged values, how many levels of offsets they have; of dense ones 0. */
int32_t onernn_levels(const onernn_model *model, int32_t value);
/* Of an input that is a state, the output that is the next state; else -1. */
int32_t onernn_next(const onernn_model *model, int32_t value);

/* A stream that is at its beginning. */
int32_t onernn_stream_open(onernn_model *model, onernn_stream **stream);
/* NULL is fine. */
void onernn_stream_close(onernn_stream *stream);

/* What a run may take: bytes, and operators in loops and layers beyond those over the rows of the
   inputs. At first three quarters of the machine's memory, and 500,000. The next call of
   onernn_prepare or onernn_run keeps the new limits. If fewer bytes are allowed than before, the
   stream frees its memory at once, except its states. */
int32_t onernn_limit(onernn_stream *stream, int64_t bytes, int64_t steps);

/* The memory of an input, row by row, which every run reads from now on; `dims`: its sizes, NULL
   where the model declares all of them. NULL as numbers: a state comes from the run before again.
 */
int32_t onernn_give(onernn_stream *stream, int32_t value, const void *numbers, const int64_t *dims);

/* The offsets of a ragged input, level 0 is the outermost: sequences + 1 numbers, which begin with
   0 and end with the rows of what they divide. Every run reads them. */
int32_t onernn_give_offsets(onernn_stream *stream, int32_t value, int32_t level,
                            const int64_t *offsets, int64_t sequences);

/* Memory for an output, which every run writes from now on; NULL: the library's own. It may be the
   memory of an input: a run reads its inputs before it writes there. A run that fails may have
   written to it. */
int32_t onernn_take(onernn_stream *stream, int32_t value, void *numbers, int64_t bytes);

/* Finds the sizes of outputs; a run does it, too. */
int32_t onernn_prepare(onernn_stream *stream);

/* One run, which of a model with states is one step: the next one begins with its last states. */
int32_t onernn_run(onernn_stream *stream);

/* Back to the beginning: the first states. */
int32_t onernn_reset(onernn_stream *stream);

/* Of an output, after a run, until the next call with this stream. */
const void *onernn_numbers(const onernn_stream *stream, int32_t value);
/* After a run, or where sizes alone decide after onernn_prepare; -1: only a run tells. */
int64_t onernn_size(const onernn_stream *stream, int32_t value, int32_t axis);
/* The most bytes that it may take, known after onernn_prepare. */
int64_t onernn_most_bytes(const onernn_stream *stream, int32_t value);
const int64_t *onernn_offsets(const onernn_stream *stream, int32_t value, int32_t level);
int64_t onernn_sequences(const onernn_stream *stream, int32_t value, int32_t level);

/* Many clients of one model, whose frames run as one batch, by one thread at a time. `onernn
   compile
   --streams` writes the model: the first axis of all values is that of clients, and the other axes
   are declared. Its last inputs and outputs are the states and the next states. */
typedef struct onernn_clients onernn_clients;

/* Clients of a model, `capacity` at most, with so many states. `queue`: how many frames of a client
   may wait, and how many of its results. */
int32_t onernn_clients_open(onernn_model *model, int64_t capacity, int32_t states, int64_t queue,
                            onernn_clients **clients);
/* NULL is fine. */
void onernn_clients_close(onernn_clients *clients);

/* A client whose states are zeros; no later one gets its id. ONERNN_TOO_MUCH: all are open. */
int32_t onernn_client_open(onernn_clients *clients, int64_t *client);
int32_t onernn_client_close(onernn_clients *clients, int64_t client);

/* A frame of each of `count` clients; an id that comes twice gets two, in this order. `frames`: for
   each input that is not a state, `count` rows, which are copied. A call that fails takes no frame;
   ONERNN_TOO_MUCH: a queue is full. */
int32_t onernn_push(onernn_clients *clients, const int64_t *ids, int64_t count,
                    const void *const *frames);

/* The next result of each of `count` clients; an id that comes twice gets its next two. `results`:
   for each output that is not a state, memory for `count` rows. Runs what they need; each run takes
   the oldest frame of every client that waits. A call that fails pulls nothing. If the model
   refused a frame, the frame is left out and the state of its client is as before; `refused` is its
   place among the ids, else -1, and may be NULL. */
int32_t onernn_pull(onernn_clients *clients, const int64_t *ids, int64_t count,
                    void *const *results, int64_t *refused);

/* For ONNX Runtime, whose RegisterCustomOpsLibrary calls it: OrtSessionOptions and OrtApiBase to
   OrtStatus. Its sessions run models that `onernn plug` wrote from then on. */
void *RegisterCustomOps(void *options, const void *api_base);

#ifdef __cplusplus
}
#endif

#endif
