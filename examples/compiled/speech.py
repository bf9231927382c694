"""Speech in a recording, frame by frame: python speech.py silero.onernn samples.f32

LIBONERNN: the path of libonernn.so, if the system does not find it.
"""

import os
import sys
from ctypes import CDLL, POINTER, byref, c_char_p, c_float, c_int32, c_int64, c_void_p, sizeof

CONTEXT, STEP = 64, 512  # samples of the frame before, and new ones

library = CDLL(os.environ.get("LIBONERNN", "libonernn.so"))
library.onernn_message.restype = c_char_p
ARGUMENTS = {
    "onernn_open": (c_char_p, c_int32, POINTER(c_void_p)),
    "onernn_close": (c_void_p,),
    "onernn_inputs": (c_void_p,),
    "onernn_stream_open": (c_void_p, POINTER(c_void_p)),
    "onernn_stream_close": (c_void_p,),
    "onernn_give": (c_void_p, c_int32, c_void_p, POINTER(c_int64)),
    "onernn_take": (c_void_p, c_int32, c_void_p, c_int64),
    "onernn_run": (c_void_p,),
}
for name, arguments in ARGUMENTS.items():  # without them an integer has 32 bits
    getattr(library, name).argtypes = arguments


def check(status):
    if status:
        raise RuntimeError(library.onernn_message().decode())


if len(sys.argv) != 3:
    sys.exit("usage: speech.py silero.onernn samples.f32")
model, stream = c_void_p(), c_void_p()
check(library.onernn_open(os.fsencode(sys.argv[1]), 1, byref(model)))
check(library.onernn_stream_open(model, byref(stream)))

frame, probability = (c_float * (CONTEXT + STEP))(), c_float()
check(library.onernn_give(stream, 0, frame, (c_int64 * 2)(1, len(frame))))
check(
    library.onernn_take(
        stream, library.onernn_inputs(model), byref(probability), sizeof(probability)
    )
)
with open(sys.argv[2], "rb") as samples:
    new = memoryview(frame).cast("B")[CONTEXT * sizeof(c_float) :]
    while samples.readinto(new) == len(new):
        check(library.onernn_run(stream))  # the state stays in the stream
        print(f"{probability.value:.4f}")
        frame[:CONTEXT] = frame[STEP:]
library.onernn_stream_close(stream)
library.onernn_close(model)
