"""Random RNN, GRU and LSTM models of ONNX, and what they mean, in float64.

The oracle goes through sentences one by one, gate by gate, with the equations of ONNX's operator
specification and the meanings of ONNX Runtime where that leaves a choice; it knows no layout but
ONNX's and shares nothing with the package.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper

from support.onnx_models import GATES, model

FUNCTIONS = {"RNN": ["Tanh"], "GRU": ["Sigmoid", "Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"]}
INPUTS = {"RNN": "X W R B sequence_lens initial_h", "GRU": "X W R B sequence_lens initial_h"}
INPUTS["LSTM"] = "X W R B sequence_lens initial_h initial_c P"
OUTPUTS = {"RNN": "Y Y_h", "GRU": "Y Y_h", "LSTM": "Y Y_h Y_c"}
WEIGHTS = ("W", "R", "B", "P")
# name: (whether it takes alpha, beta, the function); the ones with alpha and beta grow slowly.
KNOWN: dict[str, tuple[bool, bool, Any]] = {
    "Relu": (False, False, lambda x, a, b: max(x, 0)),
    "Tanh": (False, False, lambda x, a, b: math.tanh(x)),
    "Sigmoid": (False, False, lambda x, a, b: 1 / (1 + math.exp(-x))),
    "Softsign": (False, False, lambda x, a, b: x / (1 + abs(x))),
    "Softplus": (False, False, lambda x, a, b: math.log(1 + math.exp(x))),
    "Affine": (True, True, lambda x, a, b: a * x + b),
    "LeakyRelu": (True, False, lambda x, a, b: x if x >= 0 else a * x),
    "ThresholdedRelu": (True, False, lambda x, a, b: x if x > a else 0),
    "ScaledTanh": (True, True, lambda x, a, b: a * math.tanh(b * x)),
    "HardSigmoid": (True, True, lambda x, a, b: min(max(a * x + b, 0), 1)),
    "Elu": (True, False, lambda x, a, b: x if x >= 0 else a * (math.exp(x) - 1)),
}
DEFAULT = {"LeakyRelu": (0.01, 0), "Elu": (1, 0), "HardSigmoid": (0.2, 0.5)}


@dataclass
class Case:
    """An operator with its attributes and arrays, by ONNX's names."""

    op: str
    attributes: dict[str, Any]
    arrays: dict[str, np.ndarray]
    outputs: list[str]
    opset: int = 14
    hidden: int = 1

    @property
    def batch_major(self) -> bool:
        return bool(self.attributes.get("layout", 0))

    def model(self, *, constants: tuple[str, ...] = WEIGHTS) -> onnx.ModelProto:
        names = [n if n in self.arrays else "" for n in INPUTS[self.op].split()]
        while not names[-1]:
            names.pop()
        outputs = [n if n in self.outputs else "" for n in OUTPUTS[self.op].split()]
        node = helper.make_node(self.op, names, outputs, **self.attributes)
        kept = {n: a for n, a in self.arrays.items() if n in constants}
        fed = {n: a for n, a in self.arrays.items() if n not in constants}
        return model([node], fed, self.outputs, self.opset, kept)

    def feed(self) -> dict[str, np.ndarray]:
        return {n: a for n, a in self.arrays.items() if n not in WEIGHTS}


def array_of(tensor: dict[str, Any]) -> np.ndarray:
    """Of ONNX Runtime's cases, as they are recorded in JSON."""
    return np.array(tensor["data"], tensor["dtype"]).reshape(tensor["dims"])


def ort_case(found: dict[str, Any]) -> Case:
    attributes = dict(found["attributes"])
    if "clip" in attributes:
        attributes["clip"] = float(attributes["clip"])  # 9999 is one, too
    arrays = {tensor["name"]: array_of(tensor) for tensor in found["inputs"] if tensor}
    wanted = [tensor["name"] for tensor in found["outputs"] if tensor]
    return Case(found["op"], attributes, arrays, wanted)


def random_case(seed: int) -> Case:
    rng = np.random.default_rng(seed)

    def maybe(probability: float = 0.5) -> bool:
        return bool(rng.random() < probability)

    op = str(rng.choice(["RNN", "GRU", "LSTM"]))
    direction = str(rng.choice(["forward", "reverse", "bidirectional"]))
    d, gates = 2 if direction == "bidirectional" else 1, GATES[op]
    t, n, i, h = (int(rng.integers(1, most)) for most in (7, 5, 6, 6))
    opset = int(rng.choice([7, 13, 14, 17, 22]))
    layout = int(opset >= 14 and maybe(0.2))
    dtype = np.float64 if maybe(0.1) else np.float32
    bound = 1 / math.sqrt(h)

    def uniform(*shape: int, by: float = bound) -> np.ndarray:
        return rng.uniform(-by, by, shape).astype(dtype)

    arrays = {"X": uniform(*((n, t, i) if layout else (t, n, i)), by=2.0)}
    arrays |= {"W": uniform(d, gates * h, i), "R": uniform(d, gates * h, h)}
    state = (n, d, h) if layout else (d, n, h)
    if maybe(0.7):
        arrays["B"] = uniform(d, 2 * gates * h)
    if maybe():
        arrays["sequence_lens"] = rng.integers(0, t + 1, n).astype(np.int32)
    if maybe():
        arrays["initial_h"] = uniform(*state, by=1.0)
    if op == "LSTM" and maybe():
        arrays["initial_c"] = uniform(*state, by=1.0)
    if op == "LSTM" and maybe():
        arrays["P"] = uniform(d, 3 * h)

    attributes: dict[str, Any] = {}
    if direction != "forward" or maybe(0.2):
        attributes["direction"] = direction
    if maybe(0.9):
        attributes["hidden_size"] = h
    if layout or (opset >= 14 and maybe(0.2)):
        attributes["layout"] = layout
    if op == "GRU" and maybe():
        attributes["linear_before_reset"] = int(maybe(0.8))
    if op == "LSTM" and maybe(0.4):
        attributes["input_forget"] = int(maybe(0.8))
    if maybe(0.4):
        attributes["clip"] = 0.0 if maybe(0.15) else float(np.float32(rng.uniform(0.05, 1.5)))
    if maybe(0.6):
        attributes |= _activations(rng, len(FUNCTIONS[op]) * d)
    wanted = [name for name in OUTPUTS[op].split() if maybe(0.8)] or ["Y_h"]
    return Case(op, attributes, arrays, wanted, opset, h)


def _activations(rng: np.random.Generator, count: int) -> dict[str, Any]:
    names = [str(name) for name in rng.choice(list(KNOWN), count)]
    found: dict[str, Any] = {"activations": names}
    needed = [[name for name in names if KNOWN[name][k]] for k in (0, 1)]
    # What has no default that all agree on is given, and the numbers before it.
    for k, key in enumerate(("activation_alpha", "activation_beta")):
        must = [at + 1 for at, name in enumerate(needed[k]) if name not in DEFAULT]
        given = int(rng.integers(max(must, default=0), len(needed[k]) + 1))
        if given:
            numbers = rng.uniform(0.1, 0.9, given).astype(np.float32)
            found[key] = [float(number) for number in numbers]
    if rng.random() < 0.3:  # ONNX Runtime's RNN knows them by their own spelling only
        found["activations"] = [str(rng.choice([n, n.lower(), n.upper()])) for n in names]
    return found


def functions_of(case: Case) -> list[Any]:
    """One function of a float for each name, in order."""
    d = 2 if case.attributes.get("direction") == "bidirectional" else 1
    by_lower = {name.lower(): name for name in KNOWN}
    given = case.attributes.get("activations", FUNCTIONS[case.op] * d)
    names = [by_lower[name.lower()] for name in given]
    left = [list(case.attributes.get(f"activation_{k}", [])) for k in ("alpha", "beta")]
    found = []
    for name in names:
        *takes, function = KNOWN[name]
        defaults = DEFAULT.get(name, (0, 0))
        numbers = [
            given.pop(0) if take and given else default
            for take, given, default in zip(takes, left, defaults, strict=True)
        ]
        found.append(np.vectorize(lambda x, f=function, n=numbers: float(f(x, *n)), otypes=[float]))
    return found


def run_oracle(case: Case) -> dict[str, np.ndarray]:
    """All outputs in float64, in the case's own layout."""
    arrays = {k: v.astype(np.float64) for k, v in case.arrays.items() if k != "sequence_lens"}
    for name in ("X", "initial_h", "initial_c") if case.batch_major else ():
        if name in arrays:
            arrays[name] = arrays[name].swapaxes(0, 1)
    x = arrays["X"]
    (t, n, _), h, d = x.shape, case.hidden, len(arrays["W"])
    lengths = case.arrays.get("sequence_lens", np.full(n, t))
    functions, count = functions_of(case), len(FUNCTIONS[case.op])
    y, ends, zeros = np.zeros((t, d, n, h)), np.zeros((2, d, n, h)), np.zeros((d, n, h))
    for k, s in np.ndindex(d, n):
        backwards = k == 1 or case.attributes.get("direction") == "reverse"
        own = functions[k * count : (k + 1) * count]
        held = [arrays.get(name, zeros)[k, s] for name in ("initial_h", "initial_c")]
        for step in range(lengths[s])[:: -1 if backwards else 1]:
            held = _step(case, arrays, k, x[step, s], held, own)
            y[step, k, s] = held[0]
        if lengths[s]:  # a sequence without steps ends with zeros, whatever it began with
            ends[:, k, s] = held
    if case.batch_major:
        y, ends = y.transpose(2, 0, 1, 3), ends.swapaxes(1, 2)
    return {"Y": y, "Y_h": ends[0], "Y_c": ends[1]}


def _step(case: Case, arrays: dict, k: int, x: np.ndarray, held: list, functions: list) -> list:
    h, c = held
    size, gates = case.hidden, GATES[case.op]
    clip = case.attributes.get("clip", 0) or np.inf
    w, r = arrays["W"][k].reshape(gates, size, -1), arrays["R"][k].reshape(gates, size, size)
    b = arrays["B"][k] if "B" in arrays else np.zeros(2 * gates * size)
    wb, rb = b.reshape(2, gates, size)
    p = arrays["P"][k].reshape(3, size) if "P" in arrays else np.zeros((3, size))

    def clipped(a: np.ndarray) -> np.ndarray:
        return np.clip(a, -clip, clip)

    def gate(g: int, state: np.ndarray = h) -> np.ndarray:
        return w[g] @ x + r[g] @ state + wb[g] + rb[g]

    if case.op == "RNN":
        return [functions[0](clipped(gate(0))), c]
    if case.op == "GRU":
        f, g = functions
        z, reset = f(clipped(gate(0))), f(clipped(gate(1)))
        if case.attributes.get("linear_before_reset"):
            inner = w[2] @ x + reset * (r[2] @ h + rb[2]) + wb[2]
        else:
            inner = w[2] @ x + r[2] @ (reset * h) + rb[2] + wb[2]
        return [(1 - z) * g(clipped(inner)) + z * h, c]
    f, g, of_cell = functions
    i = f(clipped(gate(0) + p[0] * c))
    forget = 1 - i if case.attributes.get("input_forget") else f(clipped(gate(2) + p[2] * c))
    new = forget * c + i * g(clipped(gate(3)))
    o = f(clipped(gate(1) + p[1] * new))
    return [o * of_cell(new), new]
