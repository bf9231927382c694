/* The C interface of the kernels' library inside of this package: declarations only, Python's
   bindings are made of them and of onernn.h, which has the statuses.
   After an edit: python -m onernn.backend.generate */
#ifndef ONERNN_KERNELS_H
#define ONERNN_KERNELS_H

#include "onernn.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The checksum of this file as the library was built with it. */
uint32_t onernn_abi(void);

/* The instruction set that this library is compiled for: "v2", "avx2", ... */
const char *onernn_isa(void);

/* Those that this CPU and operating system run, with spaces between them, the least demanding one
   first: "v2 avx2 avx512"; "" where not even v2. */
const char *onernn_cpu(void);

enum { ONERNN_RNN = 0, ONERNN_GRU = 1, ONERNN_LBR_GRU = 2, ONERNN_LSTM = 3 };

/* How matrices are stored. x, states and y are float, with ONERNN_F64 double. ONERNN_S8: x and h
   are rounded to bytes for the product; what is not finite in a row makes all that reads it NaN.
   ONERNN_W8: codes of 8 bits; x and h keep 24 bits, else as ONERNN_S8. */
enum {
  ONERNN_F32 = 0,
  ONERNN_F16 = 1,
  ONERNN_BF16 = 2,
  ONERNN_F64 = 3,
  ONERNN_S8 = 4,
  ONERNN_W8 = 5
};

enum {
  ONERNN_IDENTITY = 0,
  ONERNN_SIGMOID = 1,
  ONERNN_TANH = 2,
  ONERNN_RELU = 3,
  ONERNN_AFFINE = 4,
  ONERNN_SCALEDTANH = 5,
  ONERNN_HARDSIGMOID = 6,
  ONERNN_SOFTSIGN = 7,
  ONERNN_SOFTPLUS = 8,
  ONERNN_LEAKYRELU = 9,
  ONERNN_THRESHOLDEDRELU = 10,
  ONERNN_ELU = 11
};

/* Rows of x and y: a sequence behind the other; (T, N); (N, T); or all first words, then all second
   ones (PyTorch's packed sequence). */
enum { ONERNN_LOD = 0, ONERNN_TNC = 1, ONERNN_NTC = 2, ONERNN_PACKED = 3 };

/* A function of a gate, and its numbers as ONNX has them; 0 where it has none. */
typedef struct {
  int32_t kind;
  double alpha, beta;
} onernn_function;

/* What a stack computes. Whatever is told by yes or no is 1 or 0. */
typedef struct {
  int32_t cell, stored;
  int32_t layers, directions;
  int32_t backwards; /* one direction: from the last word to the first one */
  int32_t added;     /* two directions: y is their sum; else they stand side by side */
  int32_t joined;    /* two directions: a layer reads both of the one below; else only its own */
  int64_t inputs, units, width; /* of x, of c, and of h: units, but where a projection follows */
  onernn_function gate, candidate, output;    /* output: LSTM, what c goes through */
  double gate_clip;                           /* of what goes into a gate; infinite: none */
  double cell_low, cell_high;                 /* LSTM: bounds of c; infinite: none */
  int32_t cell_nan_is_low;                    /* LSTM: NaN in c becomes cell_low */
  int32_t attention;                          /* GRU: u becomes (1 - attention) u */
  int32_t replaces;                           /* GRU: u is the part of h that is replaced */
  int32_t peephole, input_forget, projection; /* LSTM; input_forget: the forget gate is 1 - i */
} onernn_spec;

/* Where the matrices of one layer in one direction begin, in bytes from the first number; -1 where
   one is absent. Panels: see products.hpp; each begins at a multiple of 64. */
typedef struct {
  int64_t bias;
  int64_t input; /* absent: a row of x is what the input adds to the gates */
  int64_t recurrent, candidate, peephole, projection;
  /* S8: x and h as bytes number / step + shift; a step of 0: each row's largest number / 127. */
  double x_step, h_step;
  int32_t x_shift, h_shift; /* of steps that are given; else it is 128 */
} onernn_part;

/* A matrix as a framework keeps it: row k and column o of gate g is number k * row + o * column
   from gates[g] on. Gates are those of the cell, in its order; of a projection there is one. */
typedef struct {
  const void *gates[4];
  int64_t row, column;
} onernn_matrix;

/* The weights of one layer in one direction as a framework keeps them. A row of the bias is the sum
   of two arrays (units), NULL: zeros. */
typedef struct {
  onernn_matrix input, recurrent; /* (inputs, units) and (width, units) of each gate */
  onernn_matrix projection;       /* (units, width), where the spec says so */
  const void *bias[4][2];
} onernn_unpacked;

/* A batch. offsets: LOD: (N + 1), where each sequence begins, and the end; PACKED: (T + 1), where
   each step begins, and the end; else NULL, or (N) where sequences are padded: how many of its T
   words each one has. Rows of y behind them are not written. Nothing of it is checked. */
typedef struct {
  int32_t layout;
  int64_t steps, sequences; /* LOD needs no steps, PACKED no sequences */
  const int64_t *offsets;
} onernn_batch;

/* Arrays as they stand in memory. States: (layers, directions, N, width or units); NULL: zeros, or
   not wanted. They may be the same arrays. */
typedef struct {
  const void *x;         /* (words, inputs) */
  const void *attention; /* (words), where the spec says so */
  const void *h, *c;
  void *y; /* (words, width), twice the width where two directions stand side by side */
  void *h_n, *c_n;
  void *cells; /* LSTM, one layer in one direction: (words, units), c of every word */
} onernn_arrays;

typedef struct onernn_stack onernn_stack;

/* A stack for one caller at a time, on so many threads at most; negative: on exactly so many,
   however little there is to do. `parts`: layer by layer, its
   directions side by side. The numbers stay the caller's: they are read, never copied, and many
   stacks may share them. `parts` NULL: the stack has no weights, each run brings them; these are
   float with ONERNN_F32 and ONERNN_BF16 and double with ONERNN_F64, and there are no peepholes. */
int32_t onernn_stack_new(const onernn_spec *spec, const onernn_part *parts, const void *numbers,
                         int32_t threads, onernn_stack **stack);

/* Memory grows with the largest batch, and stays. */
int32_t onernn_stack_run(onernn_stack *stack, const onernn_batch *batch,
                         const onernn_arrays *arrays);

/* The same of a stack without weights, which reads these, layer by layer, its directions side by
   side. It gives the bits of a stack that has packed them. What it packs it frees before it
   returns. */
int32_t onernn_stack_run_unpacked(onernn_stack *stack, const onernn_batch *batch,
                                  const onernn_arrays *arrays, const onernn_unpacked *weights);

/* Of one thread. */
typedef struct {
  int64_t products; /* multiplications */
  int64_t read;     /* bytes of matrices, again in each product */
  int64_t held;     /* of these, the bytes of one direction that differ */
} onernn_share;

/* How the threads of a stack share one layer of a batch. */
typedef struct {
  int64_t groups;  /* of sequences, each for one thread; 0: all threads share each step */
  int64_t threads; /* that take part in most turns */
  int64_t turns;   /* how often threads wait for each other */
  int32_t cache;   /* as the cost model has it, what holds the most of `held`: 2 or 3; 4: memory */
  double seconds;  /* that the cost model foretells */
  onernn_share shares[64];
} onernn_account;

/* What the threads of a stack would do in onernn_stack_run, by the sizes of a batch: of each layer.
   This thread does it, and multiplies nothing: what it writes to the arrays means nothing. */
int32_t onernn_stack_account(onernn_stack *stack, const onernn_batch *batch,
                             const onernn_arrays *arrays, onernn_account *accounts);

/* NULL is fine. */
void onernn_stack_free(onernn_stack *stack);

/* Inside ONNX Runtime: nodes "Layer" of the domain "onernn", "Layer64" with ONERNN_F64, run the
   layer that their attribute `layer` tells. Inputs X, sequence_lens, initial_h, initial_c, outputs
   Y, Y_h, Y_c as of ONNX's RNN, GRU and LSTM. */

/* A layer that nodes of sessions may name by its number from now on. `bytes` are copied: what a
   node's attribute holds in a model of its own, see ort_layer.hpp. */
int32_t onernn_ort_layer_new(const void *bytes, int64_t size, int64_t *layer);

/* No further session finds it; those that found it keep it. */
void onernn_ort_layer_free(int64_t layer);

/* Training of one layer, of sorted sequences step by step: the words of step t are the rows
   begin[t] to begin[t + 1]. All numbers are float and stand row by row. */

/* The weights, or what is added to: their gradients. NULL where one is absent. */
typedef struct {
  float *input;      /* (inputs, gates, units); absent: a row of x is what it adds to the gates */
  float *recurrent;  /* (width, gates, units) */
  float *bias;       /* (gates, units); ONERNN_LBR_GRU: four rows */
  float *peephole;   /* (3, units) */
  float *projection; /* (units, width) */
} onernn_weights;

/* What the way forward leaves for the way back, which overwrites it. */
typedef struct {
  const float *x;         /* (words, inputs) */
  const float *attention; /* (words) */
  float *gates;           /* (words, gates, units) */
  float *h;               /* (words, width) */
  float *one;             /* (words, units), but for ONERNN_RNN */
  float *two, *three;     /* (words, units), for ONERNN_LSTM */
} onernn_tape;

typedef struct onernn_training onernn_training;

/* Of one direction. Copies the weights; of the spec it takes one layer and direction, ONERNN_F32 or
   ONERNN_BF16, the functions up to ONERNN_RELU, and no gate_clip. Many callers may use it at once;
   `threads` as in onernn_stack_new. */
int32_t onernn_training_new(const onernn_spec *spec, const onernn_weights *weights, int32_t threads,
                            onernn_training **training);

/* One direction of a layer on the way forward, or back. */
typedef struct {
  const onernn_training *training;
  onernn_tape tape;
  float *y; /* (words, width), rows y_row apart: written, or the gradient by it */
  int64_t y_row;
  float *h, *c; /* (N, width), (N, units): the initial states, which become the final ones, or the
                   gradients by the final ones, which become those by the initial ones */
  float *dx, *dattention;   /* (words, inputs), (words): written on the way back */
  onernn_weights gradients; /* added to on the way back */
} onernn_trained;

/* One direction or two; any number of threads gives the same bits. */
int32_t onernn_training_forward(const onernn_trained *directions, int32_t count,
                                const int64_t *begin, int64_t steps);
int32_t onernn_training_backward(const onernn_trained *directions, int32_t count,
                                 const int64_t *begin, int64_t steps);

/* NULL is fine. */
void onernn_training_free(onernn_training *training);

/* A plan: what a graph does, as numbers that Python writes (engine/encoding.py). */

/* A function that steps call, such as "gather:u4,int64"; NULL where there is none. `takes`: a
   letter for each argument: pointer to read or to write, size, found size, double, Dims, team. */
const void *onernn_call(const char *name, const char **takes);

/* The name of function number 0, 1, ...; NULL after the last one. */
const char *onernn_call_name(int32_t number);

/* A function of single numbers, such as "plus:float32"; NULL where there is none. */
const void *onernn_formula(const char *name);

typedef struct onernn_plan onernn_plan;
typedef struct onernn_workspace onernn_workspace;

/* Copies the words. That they are a plan is not checked; whether its steps stay in the memory of
   values that have been written is, by every step in every call. */
int32_t onernn_plan_new(const int64_t *words, int64_t count, onernn_plan **plan);
void onernn_plan_free(onernn_plan *plan);

/* Memory for runs of a plan, by one thread at a time; plan and stacks must outlive it. */
int32_t onernn_workspace_new(const onernn_plan *plan, int32_t threads, onernn_stack *const *stacks,
                             onernn_workspace **workspace);
void onernn_workspace_free(onernn_workspace *workspace);

/* For inputs of these sizes, one axis after the other: ONERNN_MISFIT if they are not as the plan
   takes them, ONERNN_TOO_LARGE if it would take more than `most` bytes. */
int32_t onernn_workspace_bind(onernn_workspace *workspace, const int64_t *dims, int64_t most);

/* Sizes, by their numbers in the plan. */
const int64_t *onernn_workspace_sizes(const onernn_workspace *workspace);

/* Where values stand, by their numbers in the plan; those of inputs and outputs are set by Python
   before each call, and have the sizes that the workspace is bound to. */
void **onernn_workspace_places(onernn_workspace *workspace);

/* A value that Python has made: it stands there from now on, or is copied to its place in another
   value. ONERNN_UNSOUND where it is longer than that. */
int32_t onernn_workspace_put(onernn_workspace *workspace, int64_t place, const void *numbers,
                             int64_t bytes, int32_t copies);

/* Runs the steps from number `*step` on, -1 where a call begins, up to the next one that Python
   runs, and tells it: one whose cost is negative. Costs of others, and operators of loops, are
   taken from `step[1]`; at a step that costs, or back in a loop, it comes back when nothing is
   left. */
int32_t onernn_workspace_run(onernn_workspace *workspace, const int32_t *costs, int32_t *step);

/* onernn_run with other memory for each input and output, as aligned and as large as what they have
   been given; NULL: a state of the run before, the library's own memory. */
int32_t onernn_run_on(onernn_stream *stream, void *const *memory);

/* A number that changes with every damage of at most eight bytes: that of a compiled model. */
int64_t onernn_checksum(const void *bytes, int64_t size);

#ifdef __cplusplus
}
#endif

#endif
