"""OpenVINO: padded batches with sequence lengths, one operator per layer; whole models.

INFERENCE_PRECISION_HINT is set: by default OpenVINO computes in bf16 if the CPU supports it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.models import Feed, Model, in_turn
from benchmarks.tasks import Array, Numbers, Prepared, Takes, Task

PACKAGES = ("openvino",)
MODES = {"": Takes("ragged dense stream onnx", "f32 bf16")}
ORDER = {"lbr_gru": (0, 1, 2), "gru": (0, 1, 2), "lstm": (1, 0, 2, 3)}  # z r h; f i c o


def versions() -> dict[str, str]:
    import openvino

    return {"openvino": openvino.__version__.split("-")[0]}


def prepare(task: Task | Model, mode: str) -> Prepared:
    import openvino

    settings = {
        "INFERENCE_NUM_THREADS": task.threads,
        "NUM_STREAMS": 1,
        "INFERENCE_PRECISION_HINT": task.dtype,
    }
    if isinstance(task, Model):
        whole = openvino.Core().compile_model(task.path, "CPU", settings).create_infer_request()

        def run(feed: Feed) -> list[Array]:
            made = whole.infer(feed, share_inputs=True)
            return [made[k] for k in range(len(made))]

        return in_turn(task, run)
    numbers = Numbers(task)
    compiled = openvino.Core().compile_model(_model(task, numbers), "CPU", settings)
    request = compiled.create_infer_request()
    x = np.ascontiguousarray(numbers.padded.swapaxes(0, 1))
    y = request.get_output_tensor(0)
    if task.kind == "stream":
        return _stream(task, numbers, request, x)
    request.set_input_tensor(0, openvino.Tensor(x))
    return Prepared(request.infer, lambda _: numbers.unpadded(y.data.swapaxes(0, 1)))


def _stream(task: Task, numbers: Numbers, request: Any, x: Array) -> Prepared:
    tensors = [request.get_input_tensor(k) for k in range(len(request.model_inputs))]
    results = [request.get_output_tensor(k) for k in range(len(request.model_outputs))]
    steps = [x[:, t : t + 1] for t in range(task.time)]

    def stream() -> list[Array]:
        for tensor in tensors[1:]:
            tensor.data[:] = 0
        ys = []
        for step in steps:
            tensors[0].data[:] = step
            request.infer()
            ys.append(results[0].data.copy())
            for tensor, result in zip(tensors[1:], results[1:], strict=True):
                tensor.data[:] = result.data
        return ys

    def read(ys: list[Array]) -> Array:
        return numbers.unpadded(np.concatenate(ys, axis=1).swapaxes(0, 1))

    return Prepared(stream, read)


def _model(task: Task, numbers: Numbers) -> Any:
    import openvino
    from openvino import opset13 as ops

    n, width, streams = task.batch, task.hidden_size, task.kind == "stream"
    x = ops.parameter([n, 1 if streams else task.time, task.input_size], np.float32)
    lengths = ops.constant(np.asarray([1] if streams else task.lengths, np.int32))
    lstm = task.cell == "lstm"
    state = [n, task.directions, width]
    states = [ops.parameter(state, np.float32) for _ in range(1 + lstm)] if streams else []
    zero = ops.constant(np.zeros(state, np.float32))
    begin = states or [zero] * (1 + lstm)
    y = x
    for layer in range(task.layers):
        made = _sequence(task, numbers, layer, ops, y, begin, lengths)
        turned = ops.transpose(made.output(0), np.array([0, 2, 1, 3]))
        y = ops.reshape(turned, np.array([0, 0, task.directions * width]), special_zero=True)
    ends = [ops.result(made.output(1 + k)) for k in range(len(states))]
    return openvino.Model([ops.result(y), *ends], [x, *states], "stack")


def _sequence(
    task: Task, numbers: Numbers, layer: int, ops: Any, x: Any, begin: list[Any], lengths: Any
) -> Any:
    order, width = ORDER[task.cell], task.hidden_size
    sides = [numbers.rows(order, layer, d) for d in range(task.directions)]
    w, u, b_x, b_h = (np.stack(arrays) for arrays in zip(*sides, strict=True))
    bias = b_x
    if task.cell == "lbr_gru":  # four rows: z, r, then the candidate's two
        bias = np.concatenate([b_x, b_h[:, 2 * width :]], axis=1)
    direction = "bidirectional" if task.bidirectional else "forward"
    constants: list[Any] = [ops.constant(array) for array in (w, u, bias)]
    if task.cell == "lstm":
        return ops.lstm_sequence(x, *begin, lengths, *constants, width, direction)
    make: Callable[..., Any] = ops.gru_sequence
    return make(
        x,
        *begin,
        lengths,
        *constants,
        width,
        direction,
        linear_before_reset=task.cell == "lbr_gru",
    )
