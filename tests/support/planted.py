"""Two ONNX files: a layer, and the same with a fault planted in the file, by ONNX's own layout.

W (D, G*H, I), R (D, G*H, H), B (D, 2*G*H): both biases; gates z, r, h of GRU, i, o, f, c of LSTM.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from onernn import Graph
from onernn.adapters.onnx.lower import lower
from onernn.adapters.onnx.read import parse_model
from support.onnx_models import parsed

INPUT, HIDDEN = 4, 4
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
Arrays = dict[str, np.ndarray]


def weights(op: str, directions: int = 1, seed: int = 0) -> Arrays:
    """Contractive: within 1 / sqrt(H)."""
    rng = np.random.default_rng(seed)
    rows = GATES[op] * HIDDEN
    shapes = {"W": (directions, rows, INPUT), "R": (directions, rows, HIDDEN)}
    shapes["B"] = (directions, 2 * rows)
    bound = 1 / np.sqrt(HIDDEN)
    return {k: rng.uniform(-bound, bound, s).astype(np.float32) for k, s in shapes.items()}


def changed(arrays: Arrays, **new: np.ndarray) -> Arrays:
    return {k: np.ascontiguousarray(new.get(k, a), np.float32) for k, a in arrays.items()}


def blocks(array: np.ndarray) -> np.ndarray:
    """A view (D, blocks of H rows, H, ...)."""
    return array.reshape(array.shape[0], -1, HIDDEN, *array.shape[2:])


def reordered(arrays: Arrays, order: tuple[int, ...], names: str = "WRB") -> Arrays:
    """Gate k is what gate order[k] was, in these arrays."""
    new = {}
    for name in names:
        index = [*order, *(len(order) + k for k in order)] if name == "B" else list(order)
        new[name] = blocks(arrays[name])[:, index].reshape(arrays[name].shape)
    return changed(arrays, **new)


def model(
    op: str,
    arrays: Arrays,
    *,
    lengths: bool = True,
    states: bool = True,
    reverse: bool = False,
    **attributes: Any,
) -> bytes:
    """A file with one layer: X, lens, h0 (and c0) -> Y, Y_h (and Y_c).

    Without ``lengths`` or ``states`` the file still takes these inputs, and ignores them.
    """
    directions, cell = len(arrays["W"]), op == "LSTM"
    way = "bidirectional" if directions == 2 else "reverse" if reverse else "forward"
    said = {"hidden_size": HIDDEN, "direction": way, **attributes}
    given = ", ".join(f"{key} = {json.dumps(value)}" for key, value in said.items())
    inputs = ["X", "W", "R", "B", "lens" * lengths, *["h0", "c0"][: (1 + cell) * states]]
    outputs = ", ".join(["Y", "Y_h", "Y_c"][: 2 + cell])
    text = f"{outputs} = {op} <{given}> ({', '.join(inputs).rstrip(', ')})"
    return file(text, directions, cell, outputs, arrays)


def file(text: str, directions: int, cell: bool, outputs: str, constants: Arrays) -> bytes:
    states = [f"float[{directions}, N, {HIDDEN}] {name}" for name in ("h0", "c0")[: 1 + cell]]
    inputs = ", ".join([f"float[T, N, {INPUT}] X", "int32[N] lens", *states])
    made = parsed(f"({inputs}) => ({outputs}) {{ {text} }}", constants, opset=15)
    return bytes(made.SerializeToString())


def read(data: bytes) -> Graph:
    return lower(parse_model(data, Path("planted.onnx")))


def feed(cell: bool, directions: int) -> Arrays:
    """Sentences of length 0, 1 and long ones, words behind their ends, states that are not zero."""
    rng = np.random.default_rng(1)
    lens = np.array([4, 0, 9, 1, 7], np.int32)
    x = rng.uniform(-2, 2, (9, 5, INPUT)).astype(np.float32)
    names = ("h0", "c0")[: 1 + cell]
    states = {k: rng.uniform(-1, 1, (directions, 5, HIDDEN)).astype(np.float32) for k in names}
    return {"X": x, "lens": lens, **states}


def recording(data: bytes, given: Arrays) -> Arrays:
    """What ONNX Runtime makes of a file, as a recording."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(data, options)
    taken = {each.name: given[each.name] for each in session.get_inputs()}
    outputs = zip([o.name for o in session.get_outputs()], session.run(None, taken), strict=True)
    return {f"in__{k}": a for k, a in given.items()} | {f"out__{k}": a for k, a in outputs}


def tagger(layer: int = -1, direction: int = -1, dense: float = 1.0) -> bytes:
    """Two GRU layers of both directions and a dense layer; z and r swapped in one layer.

    ``direction``: only in that one. ``dense``: a factor on the dense layer's weights. Operators 0
    and 3 are the GRUs.
    """
    rng = np.random.default_rng(3)
    bound = 1 / np.sqrt(HIDDEN)
    constants: Arrays = {"shape": np.array([0, 0, -1])}
    lines, x = [], "X"
    for k, width in enumerate((INPUT, 2 * HIDDEN)):
        arrays = weights("GRU", 2, seed=k)
        arrays["W"] = rng.uniform(-bound, bound, (2, 3 * HIDDEN, width)).astype(np.float32)
        if k == layer:
            wrong = reordered(arrays, (1, 0, 2))
            kept = [d for d in range(2) if direction not in (-1, d)]
            for name, array in wrong.items():
                array[kept] = arrays[name][kept]
            arrays = wrong
        constants |= {f"{name}{k}": array for name, array in arrays.items()}
        said = f'hidden_size = {HIDDEN}, direction = "bidirectional", linear_before_reset = 1'
        lines.append(f"""Y{k} = GRU <{said}> ({x}, W{k}, R{k}, B{k}, lens)
            t{k} = Transpose <perm = [0, 2, 1, 3]> (Y{k})
            y{k} = Reshape (t{k}, shape)""")
        x = f"y{k}"
    constants["P"] = (dense * rng.uniform(-bound, bound, (2 * HIDDEN, 3))).astype(np.float32)
    lines.append(f"scores = MatMul ({x}, P) tags = Softmax <axis = -1> (scores)")
    return file(" ".join(lines), 2, False, "tags", constants)
