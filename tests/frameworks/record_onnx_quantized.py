"""A small CRNN as ONNX Runtime's quantizer writes it, with the outputs of ONNX Runtime.

``PYTHONPATH=tests python -m tests.frameworks.record_onnx_quantized`` records it anew under
tests/data/onnx; it needs onnx and onnxruntime.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnxruntime.quantization import QuantType, quantize_dynamic
from support.onnx_models import parsed, quiet

DATA = Path(__file__).parents[1] / "data" / "onnx"
CHANNELS, UNITS, CLASSES = 4, 6, 7


def crnn() -> onnx.ModelProto:
    """An image (1, 1, 4, width) -> convolution, two directions of an LSTM, a product a step."""
    rng = np.random.default_rng(0)
    shapes = {"conv_w": (CHANNELS, 1, 3, 3), "conv_b": (CHANNELS,), "W": (2, 4 * UNITS, 8)}
    shapes |= {"R": (2, 4 * UNITS, UNITS), "B": (2, 8 * UNITS), "out_w": (2 * UNITS, CLASSES)}
    constants = {k: rng.uniform(-0.5, 0.5, s).astype(np.float32) for k, s in shapes.items()}
    constants |= {"rows": np.array([-1, 1, 8]), "words": np.array([-1, 2 * UNITS])}
    return parsed(
        f"""(float[1, 1, 4, width] image) => (float[N, {CLASSES}] scores) {{
        a = Conv <pads = [1, 1, 1, 1], strides = [2, 1]> (image, conv_w, conv_b)
        b = Relu (a)
        c = Transpose <perm = [3, 0, 1, 2]> (b)
        d = Reshape (c, rows)
        Y = LSTM <direction = "bidirectional", hidden_size = {UNITS}> (d, W, R, B)
        e = Transpose <perm = [0, 2, 1, 3]> (Y)
        f = Reshape (e, words)
        scores = MatMul (f, out_w)
        }}""",
        constants,
    )


def record(folder: Path, kind: QuantType) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    plain = folder / "plain.onnx"
    onnx.save(crnn(), plain)
    quantize_dynamic(plain, folder / "model.onnx", weight_type=kind, per_channel=False)
    plain.unlink()
    session = onnxruntime.InferenceSession(folder / "model.onnx", quiet())
    image = np.random.default_rng(1).uniform(0, 1, (1, 1, 4, 9)).astype(np.float32)
    (scores,) = session.run(None, {"image": image})
    np.savez(folder / "io.npz", in__image=image, out__scores=scores)


if __name__ == "__main__":
    for name, weights in (("signed", QuantType.QInt8), ("unsigned", QuantType.QUInt8)):
        record(DATA / f"onnxruntime_quantized_{name}", weights)
