"""A small CRNN as ONNX Runtime's quantizer writes it, with the outputs of ONNX Runtime.

``python -m tests.frameworks.record_onnx_quantized`` records it anew under tests/data/onnx; it needs
onnx and onnxruntime.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic

DATA = Path(__file__).parents[1] / "data" / "onnx"
CHANNELS, UNITS, CLASSES = 4, 6, 7


def crnn() -> onnx.ModelProto:
    """An image (1, 1, 4, width) -> convolution, two directions of an LSTM, a product a step."""
    rng = np.random.default_rng(0)
    shapes = {"conv_w": (CHANNELS, 1, 3, 3), "conv_b": (CHANNELS,), "W": (2, 4 * UNITS, 8)}
    shapes |= {"R": (2, 4 * UNITS, UNITS), "B": (2, 8 * UNITS), "out_w": (2 * UNITS, CLASSES)}
    arrays: dict[str, Any] = {k: rng.uniform(-0.5, 0.5, s) for k, s in shapes.items()}
    constants = {k: v.astype(np.float32) for k, v in arrays.items()}
    constants |= {"rows": np.array([-1, 1, 8]), "words": np.array([-1, 2 * UNITS])}
    make = helper.make_node
    nodes = [
        make("Conv", ["image", "conv_w", "conv_b"], ["a"], pads=[1, 1, 1, 1], strides=[2, 1]),
        make("Relu", ["a"], ["b"]),
        make("Transpose", ["b"], ["c"], perm=[3, 0, 1, 2]),
        make("Reshape", ["c", "rows"], ["d"]),
        make("LSTM", ["d", "W", "R", "B"], ["Y"], direction="bidirectional", hidden_size=UNITS),
        make("Transpose", ["Y"], ["e"], perm=[0, 2, 1, 3]),
        make("Reshape", ["e", "words"], ["f"]),
        make("MatMul", ["f", "out_w"], ["scores"]),
    ]
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 1, 4, "width"])
    scores = helper.make_tensor_value_info("scores", TensorProto.FLOAT, [None, CLASSES])
    initial = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "crnn", [image], [scores], initial)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def record(folder: Path, kind: QuantType) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    plain = folder / "plain.onnx"
    onnx.save(crnn(), plain)
    quantize_dynamic(plain, folder / "model.onnx", weight_type=kind, per_channel=False)
    plain.unlink()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(folder / "model.onnx", options)
    image = np.random.default_rng(1).uniform(0, 1, (1, 1, 4, 9)).astype(np.float32)
    (scores,) = session.run(None, {"image": image})
    np.savez(folder / "io.npz", in__image=image, out__scores=scores)


if __name__ == "__main__":
    for name, weights in (("signed", QuantType.QInt8), ("unsigned", QuantType.QUInt8)):
        record(DATA / f"onnxruntime_quantized_{name}", weights)
