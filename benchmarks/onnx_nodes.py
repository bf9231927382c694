"""Compares parts of models in onernn and ONNX Runtime: ``python -m benchmarks.onnx_nodes [REGEX]``.

The parts are convolutions and pools of a CRNN, a whole CRNN, convolutions of text taggers, matrix
products and layers with few rows, and LSTMs in int8. Each line has the CPU time of a call in ONNX
Runtime and in onernn, how many times as fast onernn is, and the largest difference of outputs. Both
run alternately in one process, on one thread, and the fastest turn counts.
"""

from __future__ import annotations

import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic

import onernn

TURNS, TURN = 25, 5e6
"""The number of turns, and the nanoseconds of a turn."""

Model = tuple[onnx.ModelProto, np.ndarray[Any, Any]]
"""A model with one input ``x`` and one output ``y``, and a value of ``x``."""


class Network:
    """A graph under construction, in which each node reads the output of the node before it."""

    def __init__(self, *shape: int) -> None:
        self.rng = np.random.default_rng(0)
        self.x = self.rng.standard_normal(shape).astype(np.float32)
        self.nodes: list[onnx.NodeProto] = []
        self.arrays: list[onnx.TensorProto] = []
        self.last = "x"

    def add(self, op: str, *arrays: Any, **attributes: Any) -> Network:
        """Appends a node that reads the last node's output and these arrays."""
        names = [f"{len(self.nodes)}.{index}" for index in range(len(arrays))]
        pairs = zip(arrays, names, strict=True)
        self.arrays += [numpy_helper.from_array(np.asarray(array), name) for array, name in pairs]
        output = f"{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, [self.last, *names], [output], **attributes))
        self.last = output
        return self

    def weights(self, *shape: int) -> np.ndarray[Any, Any]:
        scale = np.sqrt(2 / np.prod(shape[1:]))
        return (self.rng.standard_normal(shape) * scale).astype(np.float32)

    def conv(self, channels: int, before: int, *window: int, **attributes: Any) -> Network:
        weights = self.weights(channels, before, *window)
        return self.add("Conv", weights, self.weights(channels, 1)[:, 0], **attributes)

    def lstm(self, size: int, hidden: int, directions: int = 2) -> Network:
        """Appends an LSTM. The output keeps ONNX's axis of directions."""
        matrices = (self.weights(directions, 4 * hidden, k) for k in (size, hidden))
        bias = self.weights(directions, 8 * hidden)
        direction = "bidirectional" if directions == 2 else "forward"
        return self.add("LSTM", *matrices, bias, hidden_size=hidden, direction=direction)

    def model(self) -> Model:
        self.add("Identity")
        self.nodes[-1].output[0] = "y"
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, self.x.shape)
        y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
        graph = helper.make_graph(self.nodes, "part", [x], [y], self.arrays)
        opset = helper.make_opsetid("", 17)
        return helper.make_model(graph, opset_imports=[opset], ir_version=8), self.x


def crnn(width: int, images: int = 1, lstm: bool = True) -> Model:
    """Returns the network of Shi et al. (2015) for images of 32 rows."""
    network, before = Network(images, 1, 32, width), 1
    square = {"kernel_shape": [2, 2], "strides": [2, 2]}
    flat = {"kernel_shape": [2, 2], "strides": [2, 1], "pads": [0, 1, 0, 1]}
    pools = (square, square, None, flat, None, flat, None)
    for channels, pool in zip((64, 128, 256, 256, 512, 512, 512), pools, strict=True):
        side, pad = (2, 0) if before == 512 and pool is None else (3, 1)
        network.conv(channels, before, side, side, pads=[pad] * 4).add("Relu")
        if pool:
            network.add("MaxPool", **pool)
        before = channels
    if lstm:
        network.add("Squeeze", np.array([2])).add("Transpose", perm=[2, 0, 1])
        for _ in range(2):
            network.lstm(512, 256).add("Transpose", perm=[0, 2, 1, 3])
            network.add("Reshape", np.array([0, 0, 512]))
        network.add("MatMul", network.weights(512, 37))
    return network.model()


def gru(steps: int, rows: int) -> Model:
    network = Network(steps, rows, 400)
    arrays = network.weights(1, 1200, 400), network.weights(1, 1200, 400), network.weights(1, 2400)
    return network.add("GRU", *arrays, hidden_size=400, linear_before_reset=1).model()


def on_bytes(hidden: int, directions: int, steps: int, rows: int) -> Model:
    """Returns an LSTM that ONNX Runtime's quantizer has converted to int8."""
    network = Network(steps, rows, hidden)
    model, x = network.lstm(hidden, hidden, directions).model()
    with tempfile.TemporaryDirectory() as folder:
        before, after = Path(folder, "before.onnx"), Path(folder, "after.onnx")
        onnx.save(model, before)
        quantize_dynamic(before, after, weight_type=QuantType.QInt8)
        return onnx.load(after), x


def parts() -> Iterator[tuple[str, Callable[[], Model]]]:
    for width in (100, 160):
        yield f"CRNN, {width} columns", lambda width=width: crnn(width)
    yield "CRNN, 4 images", lambda: crnn(100, 4)
    yield "convolutions of a CRNN", lambda: crnn(100, lstm=False)
    for shape, channels, side, strides in (
        ((1, 1, 32, 100), 64, 3, (1, 1)),
        ((1, 3, 32, 100), 64, 3, (1, 1)),
        ((1, 64, 16, 50), 128, 3, (1, 1)),
        ((1, 128, 8, 25), 256, 3, (1, 1)),
        ((1, 256, 8, 25), 256, 3, (1, 1)),
        ((1, 256, 4, 26), 512, 3, (1, 1)),
        ((1, 512, 4, 26), 512, 3, (1, 1)),
        ((1, 512, 2, 27), 512, 2, (1, 1)),
        ((1, 128, 16, 50), 128, 1, (1, 1)),
        ((1, 512, 4, 26), 256, 1, (1, 1)),
        ((1, 64, 32, 100), 128, 3, (2, 2)),
        ((1, 128, 16, 50), 256, 3, (2, 1)),
        ((1, 512, 7, 7), 512, 3, (1, 1)),
    ):
        pads = [side // 2 if side == 3 else 0] * 4
        yield (
            f"Conv {shape} to {channels}, {side}x{side} / {strides}",
            lambda shape=shape, channels=channels, side=side, strides=strides, pads=pads: (
                Network(*shape)
                .conv(channels, shape[1], side, side, strides=strides, pads=pads)
                .add("Relu")
                .model()
            ),
        )
    for shape, channels, side in (
        ((32, 64, 40), 64, 3),
        ((32, 128, 30), 128, 3),
        ((8, 100, 25), 128, 5),
        ((1, 64, 40), 128, 3),
        ((32, 32, 20), 64, 5),
    ):
        yield (
            f"Conv {shape} to {channels}, {side}",
            lambda shape=shape, channels=channels, side=side: (
                Network(*shape).conv(channels, shape[1], side, pads=[side // 2] * 2).model()
            ),
        )
    for op in ("MaxPool", "AveragePool"):
        yield (
            f"{op} 2x2",
            lambda op=op: (
                Network(1, 64, 32, 100).add(op, kernel_shape=[2, 2], strides=[2, 2]).model()
            ),
        )
    for rows in (1, 2, 3, 4, 20, 300):
        yield f"GRU 400, {rows} rows", lambda rows=rows: gru(20, rows)
        yield (
            f"MatMul {rows}x400x600",
            lambda rows=rows: (
                Network(rows, 400)
                .add("MatMul", np.random.default_rng(1).standard_normal((400, 600), np.float32))
                .model()
            ),
        )
    for hidden, directions, steps, rows in (
        (128, 1, 24, 1),
        (384, 2, 24, 1),
        (512, 1, 1, 1),
        (512, 2, 24, 1),
        (512, 2, 200, 1),
        (1024, 1, 24, 1),
        (256, 1, 24, 4),
    ):
        yield (
            f"DynamicQuantizeLSTM {hidden}, {directions} directions, {steps} steps, {rows} rows",
            lambda given=(hidden, directions, steps, rows): on_bytes(*given),
        )


def spent(call: Callable[[], object], count: int) -> float:
    """Returns the mean CPU time of ``count`` calls in nanoseconds."""
    start = time.process_time_ns()
    for _ in range(count):
        call()
    return (time.process_time_ns() - start) / count


def compare(model: onnx.ModelProto, x: np.ndarray[Any, Any]) -> str:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "part.onnx")
        onnx.save(model, path)
        theirs = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        ours = onernn.Session(path, threads=1)
    calls = (lambda: theirs.run(None, {"x": x}), lambda: ours.run({"x": x}))
    (want,), (got,) = calls[0](), calls[1]().values()
    counts = [max(1, int(TURN / min(spent(call, 1) for _ in range(3)))) for call in calls]
    pairs = list(zip(calls, counts, strict=True))
    turns = np.array([[spent(*each) for each in pairs] for _ in range(TURNS)])
    peer, own = turns.min(0) / 1e3
    return f"{peer:9.1f} {own:9.1f} us  {peer / own:5.2f}  {np.abs(want - got).max():.0e}"


def main(wanted: str) -> int:
    for name, make in parts():
        if re.search(wanted, name):
            print(f"{name:56}", compare(*make()), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(" ".join(sys.argv[1:])))
