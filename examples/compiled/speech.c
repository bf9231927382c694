/* Speech in a recording, frame by frame: silero-vad as a stream, without Python.
   speech silero.onernn samples.f32: samples of 16 kHz as floats; prints a probability a frame. */
#include <stdio.h>
#include <string.h>

#include "onernn.h"

enum { CONTEXT = 64, STEP = 512 }; /* samples of the frame before, and new ones */

static int failed(const char *what) {
  fprintf(stderr, "%s: %s\n", what, onernn_message());
  return 1;
}

int main(int count, char **arguments) {
  if (count != 3) return fprintf(stderr, "usage: speech silero.onernn samples.f32\n"), 2;
  FILE *samples = fopen(arguments[2], "rb");
  if (!samples) return perror(arguments[2]), 2;

  onernn_model *model;
  onernn_stream *stream;
  if (onernn_open(arguments[1], 1, &model)) return failed("open");
  if (onernn_stream_open(model, &stream)) return failed("stream");

  float frame[CONTEXT + STEP] = {0}, probability;
  const int64_t dims[] = {1, CONTEXT + STEP};
  if (onernn_give(stream, 0, frame, dims) ||
      onernn_take(stream, onernn_inputs(model), &probability, sizeof probability))
    return failed("memory");
  while (fread(frame + CONTEXT, sizeof *frame, STEP, samples) == STEP) {
    if (onernn_run(stream)) return failed("run"); /* the state stays in the stream */
    printf("%.4f\n", probability);
    memcpy(frame, frame + STEP, CONTEXT * sizeof *frame);
  }
  onernn_stream_close(stream);
  onernn_close(model);
  fclose(samples);
  return 0;
}
