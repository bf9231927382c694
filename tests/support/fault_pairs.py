"""Pairs of ONNX files for `onernn verify`: a sound tagger, and the same with faults planted in it.

A tagger: a dense layer with relu, one or two recurrent layers, a layer normalization, scores.
Arrays are in ONNX's own layout: W (D, G*H, I), R (D, G*H, H), B (D, 2*G*H); gates z, r, h of GRU,
i, o, f, c of LSTM.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

INPUT, TAGS = 5, 7
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


@dataclass
class Tagger:
    """What a file is made of; faults and rewritings change it."""

    op: str
    hidden: int
    layers: int = 1
    directions: int = 1
    attributes: list[dict[str, Any]] = field(default_factory=list)
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    lengths: list[bool] = field(default_factory=list)
    states: list[list[str]] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    order: list[int] = field(default_factory=list)
    ways: list[str] = field(default_factory=list)
    relu: str = "Relu"
    epsilon: float = 1e-5
    norm: str = "op"
    before: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    behind: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    gemm: bool = True
    bias_first: bool = False
    opset: int = 17
    prefix: str = ""
    split: bool = False
    last: str = "Softmax"
    identity: bool = False
    skip: bool = False
    early: bool = False
    padded_reverse: bool = False

    @property
    def width(self) -> int:
        return self.hidden * self.directions

    def blocks(self, name: str) -> np.ndarray:
        """A view (D, blocks of H rows, H, ...)."""
        array = self.arrays[name]
        return array.reshape(array.shape[0], -1, self.hidden, *array.shape[2:])


def sound(op: str, hidden: int, layers: int = 1, directions: int = 1, seed: int = 0) -> Tagger:
    """Contractive weights within 1 / sqrt(H), all biases there."""
    rng = np.random.default_rng(seed)
    found = Tagger(op, hidden, layers, directions)
    rows, bound = GATES[op] * hidden, 1 / np.sqrt(hidden)
    found.arrays["P"] = rng.normal(0, 0.6, (INPUT, hidden))
    found.arrays["p"] = rng.normal(0, 0.3, hidden)
    width = hidden
    for k in range(layers):
        found.arrays[f"W{k}"] = rng.uniform(-bound, bound, (directions, rows, width))
        found.arrays[f"R{k}"] = rng.uniform(-bound, bound, (directions, rows, hidden))
        found.arrays[f"B{k}"] = rng.uniform(-0.5, 0.5, (directions, 2 * rows))
        found.attributes.append({"linear_before_reset": 1} if op == "GRU" else {})
        found.lengths.append(True)
        found.states.append(["h0", "c0"][: 1 + (op == "LSTM")])
        found.rows.append(k * directions)
        found.order.append(k)
        found.ways.append("bidirectional" if directions == 2 else "forward")
        width = found.width
    found.arrays["scale"] = rng.uniform(0.5, 1.5, found.width)
    found.arrays["shift"] = rng.normal(0, 0.3, found.width)
    found.arrays["S"] = rng.normal(0, 1.0, (found.width, TAGS))
    found.arrays["s"] = rng.normal(0, 0.3, TAGS)
    found.arrays = {k: a.astype(np.float32) for k, a in found.arrays.items()}
    return found


def file(found: Tagger) -> bytes:
    """The model as a file: X (T, N, I), lens (N,), h0 and c0 (L*D, N, H) -> tags (T, N, TAGS)."""
    p, cell = found.prefix, found.op == "LSTM"
    constants = {p + k: np.ascontiguousarray(a) for k, a in found.arrays.items()}
    nodes: list[Any] = []

    def add(op: str, inputs: list[str], output: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(op, inputs, [output], **attributes))
        return output

    def number(name: str, value: Any) -> str:
        constants[p + name] = np.asarray(value)
        return p + name

    def chain(x: str, steps: list[tuple[str, dict[str, Any]]], stem: str) -> str:
        for at, (op, attributes) in enumerate(steps):
            given = {k: v for k, v in attributes.items() if k != "inputs"}
            more = [
                number(f"{stem}{at}.{k}", v) for k, v in enumerate(attributes.get("inputs", []))
            ]
            x = add(op, [x, *more], f"{p}{stem}{at}", **given)
        return x

    x = add("MatMul", ["X", p + "P"], p + "projected")
    x = add("Add", [x, p + "p"], p + "biased")
    if found.relu == "Max":
        x = add("Max", [x, number("zero", np.float32(0))], p + "hidden")
    elif found.relu:
        x = add(found.relu, [x], p + "hidden")
    x = chain(x, found.before, "before")
    first = x
    for place, k in enumerate(found.order):
        d = found.directions
        x = first if found.skip else x
        states = []
        for name in found.states[place]:
            if name:
                row = found.rows[place]
                part = f"{p}{name}.{place}"
                if found.layers == 1:
                    states.append(name)
                    continue
                begin, end = (
                    number(f"{name}.begin{place}", [row]),
                    number(f"{name}.end{place}", [row + d]),
                )
                states.append(add("Slice", [name, begin, end, number("axis0", [0])], part))
            else:
                states.append("")
        names = [x, f"{p}W{k}", f"{p}R{k}", f"{p}B{k}", "lens" if found.lengths[place] else ""]
        names += states
        while not names[-1]:
            names.pop()
        if found.split and d == 2:
            halves = []
            given = dict(found.attributes[place])
            if "activations" in given:
                given["activations"] = given["activations"][: len(given["activations"]) // 2]
            for side, way in enumerate(("forward", "reverse")):
                mine = [x]
                for name in names[1:4]:
                    constants[f"{name}.{side}"] = constants[name][side : side + 1].copy()
                    mine.append(f"{name}.{side}")
                mine += [""] if side and found.padded_reverse else names[4:5]
                for at, state in enumerate(states):
                    if state:
                        part = f"{state}.{place}.{side}"
                        begin, end = number(f"side{side}", [side]), number(f"to{side}", [side + 1])
                        add("Slice", [state, begin, end, number("axis0", [0])], part)
                        mine = [*mine, *[""] * (5 + at - len(mine)), part]
                y = f"{p}Y{place}.{side}"
                nodes.append(
                    helper.make_node(
                        found.op,
                        mine,
                        [y],
                        hidden_size=found.hidden,
                        direction=way,
                        **given,
                    )
                )
                halves.append(add("Squeeze", [y, number("axis1", [1])], f"{y}.squeezed"))
            x = add("Concat", halves, f"{p}y{place}", axis=2)
            continue
        nodes.append(
            helper.make_node(
                found.op,
                names,
                [f"{p}Y{place}"],
                hidden_size=found.hidden,
                direction=found.ways[place],
                **found.attributes[place],
            )
        )
        if d == 2:
            x = add("Transpose", [f"{p}Y{place}"], f"{p}turned{place}", perm=[0, 2, 1, 3])
            x = add("Reshape", [x, number("shape", [0, 0, -1])], f"{p}y{place}")
        else:
            x = add("Squeeze", [f"{p}Y{place}", number("axis1", [1])], f"{p}y{place}")
        if found.identity:
            x = add("Identity", [x], f"{p}same{place}")
    if found.directions == 1:
        x = add("Add", [x, p + "biased" if found.early else first], p + "residual")
    x = chain(x, found.behind, "behind")
    if found.norm == "op":
        names = [x, p + "scale", p + "shift"]
        x = add("LayerNormalization", names, p + "normal", epsilon=found.epsilon, axis=-1)
    else:
        mean = add("ReduceMean", [x], p + "mean", axes=[-1])
        apart = add("Sub", [x, mean], p + "apart")
        square = add("Pow", [apart, number("two", np.float32(2))], p + "square")
        variance = add("ReduceMean", [square], p + "variance", axes=[-1])
        safe = add("Add", [variance, number("epsilon", np.float32(found.epsilon))], p + "safe")
        x = add("Div", [apart, add("Sqrt", [safe], p + "root")], p + "unit")
        x = add("Add", [add("Mul", [x, p + "scale"], p + "scaled"), p + "shift"], p + "normal")
    if found.gemm:
        terms = [add("MatMul", [x, p + "S"], p + "product"), p + "s"]
        x = add("Add", terms[:: -1 if found.bias_first else 1], p + "scores")
    else:
        flat = add("Reshape", [x, number("flat", [-1, found.width])], p + "flat")
        x = add("Gemm", [flat, p + "S", p + "s"], p + "gemm")
        size = add(
            "Concat",
            [add("Shape", ["X"], p + "size", start=0, end=2), number("count", [TAGS])],
            p + "sizes",
            axis=0,
        )
        x = add("Reshape", [x, size], p + "scores")
    if found.last == "Softmax":
        add("Softmax", [x], "tags", axis=-1)
    else:
        top = add("ReduceMax", [x], p + "top", axes=[-1])
        grown = add("Exp", [add("Sub", [x, top], p + "lower")], p + "grown")
        total = add("ReduceSum", [grown, number("lastaxis", [-1])], p + "total")
        add("Div", [grown, total], "tags")
    rows = found.layers * found.directions
    inputs = [
        helper.make_tensor_value_info("X", TensorProto.FLOAT, ["T", "N", INPUT]),
        helper.make_tensor_value_info("lens", TensorProto.INT32, ["N"]),
        *(
            helper.make_tensor_value_info(name, TensorProto.FLOAT, [rows, "N", found.hidden])
            for name in ("h0", "c0")[: 1 + cell]
        ),
    ]
    outputs = [helper.make_tensor_value_info("tags", TensorProto.FLOAT, ["T", "N", TAGS])]
    kept = [numpy_helper.from_array(a, name) for name, a in constants.items()]
    graph = helper.make_graph(nodes, "tagger", inputs, outputs, kept)
    opsets = [helper.make_opsetid("", found.opset)]
    return helper.make_model(graph, ir_version=8, opset_imports=opsets).SerializeToString()


# --- faults: each changes a tagger in one layer, and returns the id it is to be called by

Fault = Callable[[Tagger, int], str]
FAULTS: dict[str, Fault] = {}


def fault(function: Fault) -> Fault:
    FAULTS[function.__name__] = function
    return function


def _reorder(found: Tagger, k: int, order: list[int], names: str = "WRB") -> None:
    for name in names:
        index = [*order, *(len(order) + j for j in order)] if name == "B" else order
        array = found.arrays[f"{name}{k}"]
        found.arrays[f"{name}{k}"] = found.blocks(f"{name}{k}")[:, index].reshape(array.shape)


@fault
def gates(found: Tagger, k: int) -> str:
    _reorder(found, k, {"GRU": [1, 0, 2], "LSTM": [0, 1, 3, 2]}[found.op])
    return "gates_swapped"


@fault
def gates_of_torch(found: Tagger, k: int) -> str:
    """i, f, g, o read as i, o, f, c; r, z, n as z, r, h."""
    _reorder(found, k, {"GRU": [1, 0, 2], "LSTM": [0, 2, 3, 1]}[found.op])
    return "gates_swapped"


@fault
def gates_of_the_recurrent_weights(found: Tagger, k: int) -> str:
    _reorder(found, k, {"GRU": [1, 0, 2], "LSTM": [1, 0, 2, 3]}[found.op], "R")
    return "gates_swapped"


@fault
def gates_of_one_direction(found: Tagger, k: int) -> str:
    kept = {n: found.arrays[f"{n}{k}"].copy() for n in "WRB"}
    _reorder(found, k, {"GRU": [1, 0, 2], "LSTM": [3, 1, 2, 0]}[found.op])
    for name, array in kept.items():
        found.arrays[f"{name}{k}"][0] = array[0]
    return "gates_swapped"


@fault
def update_negated(found: Tagger, k: int) -> str:
    for name in "WR":
        found.blocks(f"{name}{k}")[:, 0] *= -1
    found.blocks(f"B{k}")[:, [0, 3]] *= -1
    return "update_sign"


@fault
def reset_before(found: Tagger, k: int) -> str:
    found.attributes[k]["linear_before_reset"] = 0
    return "reset_placement"


@fault
def hard_sigmoid(found: Tagger, k: int) -> str:
    names = {"GRU": ["HardSigmoid", "Tanh"], "LSTM": ["HardSigmoid", "Tanh", "Tanh"]}[found.op]
    found.attributes[k] |= {"activations": names * found.directions}
    return "activation_changed"


@fault
def relu_for_tanh(found: Tagger, k: int) -> str:
    names = {"GRU": ["Sigmoid", "Relu"], "LSTM": ["Sigmoid", "Relu", "Tanh"], "RNN": ["Relu"]}
    found.attributes[k] |= {"activations": names[found.op] * found.directions}
    return "activation_changed"


@fault
def forget_bias(found: Tagger, k: int) -> str:
    found.blocks(f"B{k}")[:, 2] += 1
    return "bias_shifted"


@fault
def bias_of_one_gate(found: Tagger, k: int) -> str:
    rng = np.random.default_rng(5)
    block = found.blocks(f"B{k}")[:, 1]
    block += rng.normal(0, 0.5, block.shape).astype(np.float32)
    return "bias_changed"


@fault
def biases_zeroed(found: Tagger, k: int) -> str:
    found.arrays[f"B{k}"][...] = 0
    return "bias_zeroed"


@fault
def bias_doubled(found: Tagger, k: int) -> str:
    found.arrays[f"B{k}"] *= 2
    return "bias_doubled"


@fault
def candidate_biases_merged(found: Tagger, k: int) -> str:
    bias = found.blocks(f"B{k}")
    bias[:, 2] += bias[:, 5]
    bias[:, 5] = 0
    return "bias_merged"


@fault
def recurrent_bias_left_out(found: Tagger, k: int) -> str:
    found.blocks(f"B{k}")[:, GATES[found.op] :] = 0
    return "bias_changed"


@fault
def recurrent_weights_transposed(found: Tagger, k: int) -> str:
    array = found.arrays[f"R{k}"]
    turned = np.swapaxes(found.blocks(f"R{k}"), 2, 3)
    found.arrays[f"R{k}"] = np.ascontiguousarray(turned).reshape(array.shape)
    return "weight_transposed"


@fault
def directions_exchanged(found: Tagger, k: int) -> str:
    for name in "WRB":
        found.arrays[f"{name}{k}"] = found.arrays[f"{name}{k}"][::-1].copy()
    return "direction_swapped"


@fault
def runs_backwards(found: Tagger, k: int) -> str:
    found.ways[k] = "reverse"
    return "direction_swapped"


@fault
def lengths_dropped(found: Tagger, k: int) -> str:
    found.lengths[k] = False
    return "mask_ignored"


@fault
def backward_begins_at_the_end_of_the_padding(found: Tagger, k: int) -> str:
    found.split = found.padded_reverse = True
    return "reverse_padded"


@fault
def states_dropped(found: Tagger, k: int) -> str:
    found.states[k] = []
    return "h0_dropped"


@fault
def cell_state_dropped(found: Tagger, k: int) -> str:
    found.states[k] = ["h0"]
    return "h0_dropped"


@fault
def h0_and_c0_exchanged(found: Tagger, k: int) -> str:
    found.states[k] = ["c0", "h0"]
    return "states_exchanged"


@fault
def states_of_layers_exchanged(found: Tagger, k: int) -> str:
    found.rows.reverse()
    return "states_exchanged"


@fault
def hidden_state_as_cell_state(found: Tagger, k: int) -> str:
    found.states[k] = ["h0", "h0"]
    return "states_exchanged"


@fault
def layer_left_out(found: Tagger, k: int) -> str:
    found.skip = True
    return "operator_missing"


@fault
def residual_from_before_the_relu(found: Tagger, k: int) -> str:
    found.early = True
    return "input_exchanged"


@fault
def order_of_the_stack(found: Tagger, k: int) -> str:
    found.order.reverse()
    return "layers_exchanged"


@fault
def clipped(found: Tagger, k: int) -> str:
    found.attributes[k]["clip"] = 0.3
    return "clip_ignored"


@fault
def rounded_to_float16(found: Tagger, k: int) -> str:
    found.arrays = {n: a.astype(np.float16).astype(np.float32) for n, a in found.arrays.items()}
    return "weights_rounded"


@fault
def epsilon(found: Tagger, k: int) -> str:
    found.epsilon = 1e-2
    return "attribute_changed"


@fault
def relu_dropped(found: Tagger, k: int) -> str:
    found.relu = ""
    return "operator_missing"


@fault
def relu_is_tanh(found: Tagger, k: int) -> str:
    found.relu = "Tanh"
    return "operator_changed"


@fault
def padded(found: Tagger, k: int) -> str:
    """A shift in time: one step of zeros in front, the last one cut off."""
    found.before += [
        ("Pad", {"inputs": [np.array([1, 0, 0, 0, 0, 0])]}),
        ("Slice", {"inputs": [np.array([0]), np.array([-1]), np.array([0])]}),
    ]
    return "operator_added"


@fault
def relu_added(found: Tagger, k: int) -> str:
    found.behind.append(("Relu", {}))
    return "operator_added"


@fault
def dense_scaled(found: Tagger, k: int) -> str:
    found.arrays["S"] *= np.float32(1.1)
    return "constant_changed"


@fault
def dense_bias_zeroed(found: Tagger, k: int) -> str:
    found.arrays["s"] *= 0
    return "constant_changed"


@fault
def some_recurrent_weights(found: Tagger, k: int) -> str:
    rng = np.random.default_rng(6)
    array = found.arrays[f"R{k}"]
    array += rng.normal(0, 0.1 / np.sqrt(found.hidden), array.shape).astype(np.float32)
    return "weights_changed"


@fault
def gates_of_the_biases(found: Tagger, k: int) -> str:
    _reorder(found, k, {"GRU": [1, 0, 2], "LSTM": [0, 1, 3, 2]}[found.op], "B")
    return "gates_swapped"


@dataclass(frozen=True)
class Pair:
    """A sound file and one with faults: their ids, and the recurrent layers they are in."""

    name: str
    sound: bytes
    wrong: bytes
    causes: tuple[str, ...]


_ONLY = {
    "update_negated": "GRU",
    "reset_before": "GRU",
    "candidate_biases_merged": "GRU",
    "forget_bias": "LSTM",
    "cell_state_dropped": "LSTM",
    "h0_and_c0_exchanged": "LSTM",
    "hidden_state_as_cell_state": "LSTM",
    "recurrent_bias_left_out": "LSTM",
}
_STACKS = {
    "states_of_layers_exchanged",
    "order_of_the_stack",
    "layer_left_out",
}
_ONE_WAY = {"runs_backwards", "layer_left_out", "residual_from_before_the_relu"}
_BOTH_WAYS = {
    "gates_of_one_direction",
    "directions_exchanged",
    "backward_begins_at_the_end_of_the_padding",
}
_SHAPES = [
    ("LSTM", 4, 1, 2),
    ("GRU", 12, 2, 1),
    ("LSTM", 33, 2, 2),
    ("GRU", 64, 1, 2),
    ("GRU", 8, 2, 2),
    ("LSTM", 16, 1, 1),
]


def pairs(seed: int = 0) -> Iterator[tuple[str, Callable[[], Pair]]]:
    """All of them by name: each fault alone in a model of some size, and pairs of faults."""
    for at, name in enumerate(FAULTS):
        for turn in range(2):
            shape = fitting(name, at + 3 * turn)
            yield (f"{name}-{'-'.join(map(str, shape))}", _made((name,), shape, seed + at))
    for one, other, shape in _TWO:
        label = f"{one}+{other}-{'-'.join(map(str, shape))}"
        yield label, _made((one, other), shape, seed + len(label))
    for name, shape in _LARGE:
        yield f"{name}-{'-'.join(map(str, shape))}", _made((name,), shape, seed)


_TWO = [
    ("gates", "lengths_dropped", ("GRU", 8, 2, 1)),
    ("forget_bias", "relu_dropped", ("LSTM", 16, 2, 1)),
    ("hard_sigmoid", "epsilon", ("LSTM", 12, 1, 2)),
    ("recurrent_weights_transposed", "biases_zeroed", ("LSTM", 24, 2, 2)),
    ("reset_before", "dense_scaled", ("GRU", 32, 2, 1)),
    ("padded", "gates", ("LSTM", 8, 1, 1)),
    ("states_dropped", "clipped", ("GRU", 16, 2, 2)),
    ("update_negated", "bias_of_one_gate", ("GRU", 20, 2, 1)),
    ("h0_and_c0_exchanged", "some_recurrent_weights", ("LSTM", 8, 2, 1)),
    ("relu_for_tanh", "directions_exchanged", ("GRU", 16, 2, 2)),
]
_LARGE = [
    ("gates", ("LSTM", 512, 2, 2)),
    ("forget_bias", ("LSTM", 512, 2, 2)),
    ("reset_before", ("GRU", 512, 2, 2)),
    ("rounded_to_float16", ("LSTM", 256, 2, 1)),
    ("recurrent_weights_transposed", ("LSTM", 512, 2, 2)),
    ("lengths_dropped", ("GRU", 512, 1, 2)),
]


def fitting(name: str, at: int) -> tuple[str, int, int, int]:
    """The shape of a model that can have a fault: op, H, L and D."""
    fits = [
        shape
        for shape in _SHAPES
        if _ONLY.get(name, shape[0]) == shape[0]
        and (name not in _STACKS or shape[2] == 2)
        and (name not in _BOTH_WAYS or shape[3] == 2)
        and (name not in _ONE_WAY or shape[3] == 1)
    ]
    return fits[at % len(fits)]


def _made(
    faults: tuple[str, ...],
    shape: tuple[str, int, int, int],
    seed: int,
    otherwise: Callable[[Tagger], Any] = lambda _: None,
) -> Callable[[], Pair]:
    def made() -> Pair:
        good = sound(*shape, seed=seed)
        good.split = "backward_begins_at_the_end_of_the_padding" in faults
        if "order_of_the_stack" in faults:
            good.arrays["W0"] = good.arrays["W0"][..., : good.width]
            if good.directions == 2:  # layers that can change places read equally many channels
                rng = np.random.default_rng(seed)
                good.arrays["P"] = rng.normal(0, 0.6, (INPUT, good.width)).astype(np.float32)
                good.arrays["p"] = rng.normal(0, 0.3, good.width).astype(np.float32)
                good.arrays["W0"] = rng.permuted(good.arrays["W1"], axis=1)
        bad = deepcopy(good)
        causes = tuple(FAULTS[name](bad, at % bad.layers) for at, name in enumerate(faults))
        otherwise(good)
        return Pair("+".join(faults), file(good), file(bad), causes)

    return made


# --- rewritings: the same function, written otherwise


def rewritten() -> Iterator[tuple[str, Callable[[], Pair]]]:
    """Pairs of files that are equal but for rounding."""
    shapes = [("LSTM", 8, 1, 2), ("GRU", 12, 2, 2)]
    for name, change in REWRITINGS.items():
        for shape in shapes:

            def made(change: Any = change, shape: Any = shape, name: str = name) -> Pair:
                good = sound(*shape, seed=len(name))
                other = deepcopy(good)
                change(other)
                return Pair(name, file(good), file(other), ())

            yield f"{name}-{'-'.join(map(str, shape))}", made


def _older(found: Tagger) -> None:
    found.norm, found.opset = "parts", 15


def _one_bias(found: Tagger) -> None:
    """Both biases in the input's; a GRU's candidate keeps its own."""
    for k in range(found.layers):
        bias, gates = found.blocks(f"B{k}"), GATES[found.op]
        kept = gates - (found.op == "GRU")
        bias[:, :kept] += bias[:, gates : gates + kept]
        bias[:, gates : gates + kept] = 0


def _all_at_once(found: Tagger) -> None:
    found.prefix, found.gemm, found.relu, found.last = "m.", False, "Max", "parts"
    found.split = found.identity = True
    _older(found)


def _rounded(found: Tagger) -> None:
    rng, eps = np.random.default_rng(2), np.finfo(np.float32).eps
    for array in found.arrays.values():
        array *= 1 + eps * rng.choice([-1, 1], array.shape).astype(np.float32)


REWRITINGS: dict[str, Callable[[Tagger], Any]] = {
    "moved_by_one_ulp": _rounded,
    "renamed": lambda t: setattr(t, "prefix", "model/"),
    "gemm": lambda t: setattr(t, "gemm", False),
    "bias_first": lambda t: setattr(t, "bias_first", True),
    "decomposed_norm": lambda t: setattr(t, "norm", "parts"),
    "max_for_relu": lambda t: setattr(t, "relu", "Max"),
    "directions_in_two_nodes": lambda t: setattr(t, "split", True),
    "identities": lambda t: setattr(t, "identity", True),
    "softmax_in_parts": lambda t: setattr(t, "last", "parts"),
    "other_opset": _older,
    "biases_in_one_vector": _one_bias,
    "all_at_once": _all_at_once,
}


def across(seed: int = 3) -> Iterator[tuple[str, Callable[[], Pair]]]:
    """Each fault, where the sound file is written otherwise."""
    kinds = ("gemm", "bias_first", "decomposed_norm", "directions_in_two_nodes")
    for at, name in enumerate(FAULTS):
        for kind in (*kinds, "softmax_in_parts", "biases_in_one_vector", "all_at_once"):
            shape = fitting(name, 0)
            if kind == "directions_in_two_nodes":
                shape = next((s for k in range(8) if (s := fitting(name, k))[3] == 2), shape)
            label = f"{name}-across-{kind}-{'-'.join(map(str, shape))}"
            yield label, _made((name,), shape, seed + at, REWRITINGS[kind])
