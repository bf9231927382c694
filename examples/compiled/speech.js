// Speech in a recording, frame by frame, as speech.c does it: node speech.js silero.onernn samples.f32
// LIBONERNN: the path of libonernn.so, where the system does not find it.
const fs = require('fs');
const koffi = require('koffi');

const library = koffi.load(process.env.LIBONERNN || 'libonernn.so');
koffi.opaque('onernn_model');
koffi.opaque('onernn_stream');
const message = library.func('const char *onernn_message(void)');
const inputs = library.func('int32_t onernn_inputs(onernn_model *model)');
const checked = (declaration) => {
  const call = library.func(declaration);
  return (...given) => {
    if (call(...given) !== 0) throw new Error(message());
  };
};
const open = checked('int32_t onernn_open(const char *path, int32_t threads, _Out_ onernn_model **model)');
const openStream = checked('int32_t onernn_stream_open(onernn_model *model, _Out_ onernn_stream **stream)');
const give = checked('int32_t onernn_give(onernn_stream *stream, int32_t value, void *numbers, int64_t *dims)');
const take = checked('int32_t onernn_take(onernn_stream *stream, int32_t value, void *numbers, int64_t bytes)');
const run = checked('int32_t onernn_run(onernn_stream *stream)');
const closeStream = library.func('void onernn_stream_close(onernn_stream *stream)');
const close = library.func('void onernn_close(onernn_model *model)');

const CONTEXT = 64, STEP = 512;
const [path, recording] = process.argv.slice(2);
if (!recording) {
  console.error('usage: speech.js silero.onernn samples.f32');
  process.exit(2);
}
const made = [null];
open(path, 1, made);
const model = made[0];
openStream(model, made);
const stream = made[0];

// Memory that does not move while the library has its address.
const memory = koffi.alloc('float', CONTEXT + STEP + 1);
const numbers = new Float32Array(koffi.view(memory, 4 * (CONTEXT + STEP + 1)));
const frame = numbers.subarray(0, CONTEXT + STEP);
give(stream, 0, memory, [1, CONTEXT + STEP]);
const probability = koffi.alloc('float', 1);
take(stream, inputs(model), probability, 4);
const bytes = fs.readFileSync(recording);
const samples = new Float32Array(bytes.buffer, bytes.byteOffset, bytes.length >> 2);
frame.fill(0);
for (let at = 0; at + STEP <= samples.length; at += STEP) {
  frame.set(samples.subarray(at, at + STEP), CONTEXT);
  run(stream);
  console.log(koffi.decode(probability, 'float').toFixed(4));
  frame.copyWithin(0, STEP);
}
closeStream(stream);
close(model);
