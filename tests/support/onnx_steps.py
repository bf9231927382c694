"""Cells written out operator by operator, for the bodies of loops and scans."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from onernn import fuse
from support.onnx_models import read

RNG = np.random.default_rng(2)
X = RNG.uniform(-1, 1, (6, 3, 4)).astype(np.float32)  # (T, N, I)
WEIGHTS = {
    "W": RNG.uniform(-0.5, 0.5, (4, 9)).astype(np.float32),
    "U": RNG.uniform(-0.5, 0.5, (3, 9)).astype(np.float32),
    "h0": np.zeros((3, 3), np.float32),
    "one": np.array(1, np.float32),
}


def value(name: str, dtype: int = TensorProto.FLOAT, shape: Any = None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def gru_step(x: str, h: str, out: str) -> list[onnx.NodeProto]:
    """A GRU cell without biases, as an exporter writes one that it finds inside a loop."""
    return [
        helper.make_node("MatMul", [x, "W"], ["xw"]),
        helper.make_node("MatMul", [h, "U"], ["hu"]),
        helper.make_node("Split", ["xw"], ["xz", "xr", "xn"], axis=1),
        helper.make_node("Split", ["hu"], ["hz", "hr", "hn"], axis=1),
        helper.make_node("Add", ["xz", "hz"], ["az"]),
        helper.make_node("Sigmoid", ["az"], ["z"]),
        helper.make_node("Add", ["xr", "hr"], ["ar"]),
        helper.make_node("Sigmoid", ["ar"], ["r"]),
        helper.make_node("Mul", ["r", "hn"], ["rhn"]),
        helper.make_node("Add", ["xn", "rhn"], ["an"]),
        helper.make_node("Tanh", ["an"], ["n"]),
        helper.make_node("Sub", ["one", "z"], ["rest"]),
        helper.make_node("Mul", ["rest", "n"], ["new"]),
        helper.make_node("Mul", ["z", h], ["kept"]),
        helper.make_node("Add", ["new", "kept"], [out]),
    ]


def kinds(proto: onnx.ModelProto) -> set[str]:
    """The operators of a model after fusion."""
    return {node.op for node in fuse(read(proto)).model.nodes}
