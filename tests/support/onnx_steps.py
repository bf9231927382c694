"""Cells written out operator by operator, for the bodies of loops and scans."""

from __future__ import annotations

import numpy as np
import onnx

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


def gru_step(h: str, out: str) -> str:
    """A GRU cell without biases, as an exporter writes one that it finds inside a loop."""
    return f"""
        xw = MatMul (x, W)
        hu = MatMul ({h}, U)
        xz, xr, xn = Split <axis = 1> (xw)
        hz, hr, hn = Split <axis = 1> (hu)
        az = Add (xz, hz)
        z = Sigmoid (az)
        ar = Add (xr, hr)
        r = Sigmoid (ar)
        rhn = Mul (r, hn)
        an = Add (xn, rhn)
        n = Tanh (an)
        rest = Sub (one, z)
        new = Mul (rest, n)
        kept = Mul (z, {h})
        {out} = Add (new, kept)
        """


def kinds(proto: onnx.ModelProto) -> set[str]:
    """The operators of a model after fusion."""
    return {node.op for node in fuse(read(proto)).model.nodes}
