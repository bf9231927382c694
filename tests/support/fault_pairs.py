"""Pairs of ONNX files for `onernn verify`: a sound tagger, and the same with faults planted in it.

A tagger: a dense layer with relu, one or two recurrent layers, a layer normalization, scores.
Arrays are in ONNX's own layout: W (D, G*H, I), R (D, G*H, H), B (D, 2*G*H); gates z, r, h of GRU,
i, o, f, c of LSTM.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from support.onnx_models import parsed

INPUT, TAGS = 5, 7
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


@dataclass
class Tagger:
    """The content of a file; faults and rewritings change it. ``before``, ``after`` the layers:
    nodes that read {x}, and their result."""

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
    before: tuple[str, str] | None = None
    after: tuple[str, str] | None = None
    gemm: bool = False
    split: bool = False
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
    made = Tagger(op, hidden, layers, directions)
    rows, bound = GATES[op] * hidden, 1 / np.sqrt(hidden)
    made.arrays["P"] = rng.normal(0, 0.6, (INPUT, hidden))
    made.arrays["p"] = rng.normal(0, 0.3, hidden)
    width = hidden
    for k in range(layers):
        made.arrays[f"W{k}"] = rng.uniform(-bound, bound, (directions, rows, width))
        made.arrays[f"R{k}"] = rng.uniform(-bound, bound, (directions, rows, hidden))
        made.arrays[f"B{k}"] = rng.uniform(-0.5, 0.5, (directions, 2 * rows))
        made.attributes.append({"linear_before_reset": 1} if op == "GRU" else {})
        made.lengths.append(True)
        made.states.append(["h0", "c0"][: 1 + (op == "LSTM")])
        made.rows.append(k * directions)
        made.order.append(k)
        made.ways.append("bidirectional" if directions == 2 else "forward")
        width = made.width
    made.arrays["scale"] = rng.uniform(0.5, 1.5, made.width)
    made.arrays["shift"] = rng.normal(0, 0.3, made.width)
    made.arrays["S"] = rng.normal(0, 1.0, (made.width, TAGS))
    made.arrays["s"] = rng.normal(0, 0.3, TAGS)
    made.arrays = {k: a.astype(np.float32) for k, a in made.arrays.items()}
    return made


def file(tagger: Tagger) -> bytes:
    """The model as a file: X (T, N, I), lens (N,), h0 and c0 (L*D, N, H) -> tags (T, N, TAGS)."""
    d = tagger.directions
    arrays = dict(tagger.arrays)
    numbers = {"shape": [0, 0, -1], "flat": [-1, tagger.width], "tag_count": [TAGS]}
    numbers |= {"pads": [1, 0, 0, 0, 0, 0]} | {f"i{n}": [n] for n in range(5)} | {"last": [-1]}
    arrays |= {name: np.array(each) for name, each in numbers.items()}
    lines = ["projected = MatMul (X, P) biased = Add (projected, p)"]
    add, x = lines.append, "biased"
    if tagger.relu:
        add(f"hidden = {tagger.relu} (biased)")
        x = "hidden"
    if tagger.before:
        add(tagger.before[0].format(x=x))
        x = tagger.before[1]
    first = x
    for place, k in enumerate(tagger.order):
        x, row = first if tagger.skip else x, tagger.rows[place]
        states = [f"{name}_{place}{at}" for at, name in enumerate(tagger.states[place])]
        for name, state in zip(tagger.states[place], states, strict=True):
            add(f"{state} = Slice ({name}, i{row}, i{row + d}, i0)")
        sides = [(tagger.ways[place], "")]
        if tagger.split and d == 2:
            sides = [("forward", "0"), ("reverse", "1")]
        results = []
        for way, side in sides:
            given = {"hidden_size": tagger.hidden, "direction": way, **tagger.attributes[place]}
            names, own = [f"{name}{k}" for name in "WRB"], states
            lens = "lens" if tagger.lengths[place] else ""
            if side:
                at = int(side)
                arrays |= {f"{n}_{side}": arrays[n][at : at + 1] for n in names}
                names = [f"{name}_{side}" for name in names]
                own = [f"{state}_{side}" for state in states]
                for state in states:
                    add(f"{state}_{side} = Slice ({state}, i{at}, i{at + 1}, i0)")
                lens = "" if at and tagger.padded_reverse else lens
                if "activations" in given:
                    given["activations"] = given["activations"][: len(given["activations"]) // 2]
            said = ", ".join(f"{key} = {json.dumps(value)}" for key, value in given.items())
            read = ", ".join([x, *names, lens, *own]).rstrip(", ")
            results.append(f"Y{place}{side}")
            add(f"{results[-1]} = {tagger.op} <{said}> ({read})")
        if len(results) == 1 and d == 2:
            add(f"T{place} = Transpose <perm = [0, 2, 1, 3]> ({results[0]})")
            add(f"y{place} = Reshape (T{place}, shape)")
        else:
            for result in results:
                add(f"{result}_flat = Squeeze ({result}, i1)")
            flat = ", ".join(f"{result}_flat" for result in results)
            add(f"y{place} = Concat <axis = 2> ({flat})")
        x = f"y{place}"
    if d == 1:
        add(f"residual = Add ({x}, {'biased' if tagger.early else first})")
        x = "residual"
    if tagger.after:
        add(tagger.after[0].format(x=x))
        x = tagger.after[1]
    add(f"normal = LayerNormalization <epsilon = {tagger.epsilon}, axis = -1> ({x}, scale, shift)")
    if tagger.gemm:
        add("rows = Reshape (normal, flat) gemm = Gemm (rows, S, s)")
        add("size = Shape <start = 0, end = 2> (X) sizes = Concat <axis = 0> (size, tag_count)")
        add("scores = Reshape (gemm, sizes)")
    else:
        add("product = MatMul (normal, S) scores = Add (product, s)")
    add("tags = Softmax <axis = -1> (scores)")
    kept = [f"float[{tagger.layers * d}, N, {tagger.hidden}] {n}" for n in ("h0", "c0")]
    kept = kept[: 1 + (tagger.op == "LSTM")]
    inputs = ", ".join([f"float[T, N, {INPUT}] X", "int32[N] lens", *kept])
    text = f"({inputs}) => (float[T, N, {TAGS}] tags) {{ {' '.join(lines)} }}"
    used = {name: np.ascontiguousarray(array) for name, array in arrays.items() if name in text}
    return bytes(parsed(text, used).SerializeToString())


# --- faults: each changes a tagger in one layer, and returns the id it is to be called by

Fault = Callable[[Tagger, int], str]
FAULTS: dict[str, Fault] = {}


def fault(cause: str) -> Callable[[Callable[[Tagger, int], Any]], Any]:
    def register(change: Callable[[Tagger, int], Any]) -> Any:
        def plant(tagger: Tagger, k: int) -> str:
            change(tagger, k)
            return cause

        FAULTS[change.__name__] = plant
        return change

    return register


def _reorder(t: Tagger, k: int, order: list[int], names: str = "WRB") -> None:
    for name in names:
        index = [*order, *(len(order) + j for j in order)] if name == "B" else order
        array = t.arrays[f"{name}{k}"]
        t.arrays[f"{name}{k}"] = t.blocks(f"{name}{k}")[:, index].reshape(array.shape)


@fault("gates_swapped")
def gates(t: Tagger, k: int) -> None:
    _reorder(t, k, {"GRU": [1, 0, 2], "LSTM": [0, 1, 3, 2]}[t.op])


@fault("gates_swapped")
def gates_of_torch(t: Tagger, k: int) -> None:
    """i, f, g, o read as i, o, f, c; r, z, n as z, r, h."""
    _reorder(t, k, {"GRU": [1, 0, 2], "LSTM": [0, 2, 3, 1]}[t.op])


@fault("gates_swapped")
def gates_of_the_recurrent_weights(t: Tagger, k: int) -> None:
    _reorder(t, k, {"GRU": [1, 0, 2], "LSTM": [1, 0, 2, 3]}[t.op], "R")


@fault("gates_swapped")
def gates_of_one_direction(t: Tagger, k: int) -> None:
    kept = {n: t.arrays[f"{n}{k}"].copy() for n in "WRB"}
    _reorder(t, k, {"GRU": [1, 0, 2], "LSTM": [3, 1, 2, 0]}[t.op])
    for name, array in kept.items():
        t.arrays[f"{name}{k}"][0] = array[0]


@fault("update_sign")
def update_negated(t: Tagger, k: int) -> None:
    for name in "WR":
        t.blocks(f"{name}{k}")[:, 0] *= -1
    t.blocks(f"B{k}")[:, [0, 3]] *= -1


@fault("reset_placement")
def reset_before(t: Tagger, k: int) -> None:
    t.attributes[k]["linear_before_reset"] = 0


@fault("activation_changed")
def hard_sigmoid(t: Tagger, k: int) -> None:
    names = {"GRU": ["HardSigmoid", "Tanh"], "LSTM": ["HardSigmoid", "Tanh", "Tanh"]}[t.op]
    t.attributes[k] |= {"activations": names * t.directions}


@fault("activation_changed")
def relu_for_tanh(t: Tagger, k: int) -> None:
    names = {"GRU": ["Sigmoid", "Relu"], "LSTM": ["Sigmoid", "Relu", "Tanh"], "RNN": ["Relu"]}
    t.attributes[k] |= {"activations": names[t.op] * t.directions}


@fault("bias_shifted")
def forget_bias(t: Tagger, k: int) -> None:
    t.blocks(f"B{k}")[:, 2] += 1


@fault("bias_changed")
def bias_of_one_gate(t: Tagger, k: int) -> None:
    rng = np.random.default_rng(5)
    block = t.blocks(f"B{k}")[:, 1]
    block += rng.normal(0, 0.5, block.shape).astype(np.float32)


@fault("bias_zeroed")
def biases_zeroed(t: Tagger, k: int) -> None:
    t.arrays[f"B{k}"][...] = 0


@fault("bias_doubled")
def bias_doubled(t: Tagger, k: int) -> None:
    t.arrays[f"B{k}"] *= 2


@fault("bias_merged")
def candidate_biases_merged(t: Tagger, k: int) -> None:
    bias = t.blocks(f"B{k}")
    bias[:, 2] += bias[:, 5]
    bias[:, 5] = 0


@fault("bias_changed")
def recurrent_bias_left_out(t: Tagger, k: int) -> None:
    t.blocks(f"B{k}")[:, GATES[t.op] :] = 0


@fault("weight_transposed")
def recurrent_weights_transposed(t: Tagger, k: int) -> None:
    array = t.arrays[f"R{k}"]
    turned = np.swapaxes(t.blocks(f"R{k}"), 2, 3)
    t.arrays[f"R{k}"] = np.ascontiguousarray(turned).reshape(array.shape)


@fault("direction_swapped")
def directions_exchanged(t: Tagger, k: int) -> None:
    for name in "WRB":
        t.arrays[f"{name}{k}"] = t.arrays[f"{name}{k}"][::-1].copy()


@fault("direction_swapped")
def runs_backwards(t: Tagger, k: int) -> None:
    t.ways[k] = "reverse"


@fault("mask_ignored")
def lengths_dropped(t: Tagger, k: int) -> None:
    t.lengths[k] = False


@fault("reverse_padded")
def backward_begins_at_the_end_of_the_padding(t: Tagger, k: int) -> None:
    t.split = t.padded_reverse = True


@fault("h0_dropped")
def states_dropped(t: Tagger, k: int) -> None:
    t.states[k] = []


@fault("h0_dropped")
def cell_state_dropped(t: Tagger, k: int) -> None:
    t.states[k] = ["h0"]


@fault("states_exchanged")
def h0_and_c0_exchanged(t: Tagger, k: int) -> None:
    t.states[k] = ["c0", "h0"]


@fault("states_exchanged")
def states_of_layers_exchanged(t: Tagger, k: int) -> None:
    t.rows.reverse()


@fault("states_exchanged")
def hidden_state_as_cell_state(t: Tagger, k: int) -> None:
    t.states[k] = ["h0", "h0"]


@fault("operator_missing")
def layer_left_out(t: Tagger, k: int) -> None:
    t.skip = True


@fault("input_exchanged")
def residual_from_before_the_relu(t: Tagger, k: int) -> None:
    t.early = True


@fault("layers_exchanged")
def order_of_the_stack(t: Tagger, k: int) -> None:
    t.order.reverse()


@fault("clip_ignored")
def clipped(t: Tagger, k: int) -> None:
    t.attributes[k]["clip"] = 0.3


@fault("weights_rounded")
def rounded_to_float16(t: Tagger, k: int) -> None:
    t.arrays = {n: a.astype(np.float16).astype(np.float32) for n, a in t.arrays.items()}


@fault("attribute_changed")
def epsilon(t: Tagger, k: int) -> None:
    t.epsilon = 1e-2


@fault("operator_missing")
def relu_dropped(t: Tagger, k: int) -> None:
    t.relu = ""


@fault("operator_changed")
def relu_is_tanh(t: Tagger, k: int) -> None:
    t.relu = "Tanh"


@fault("operator_added")
def padded(t: Tagger, k: int) -> None:
    """A shift in time: one step of zeros in front, the last one cut off."""
    t.before = ("padded = Pad ({x}, pads) cut = Slice (padded, i0, last, i0)", "cut")


@fault("operator_added")
def relu_added(t: Tagger, k: int) -> None:
    t.after = ("more = Relu ({x})", "more")


@fault("constant_changed")
def dense_scaled(t: Tagger, k: int) -> None:
    t.arrays["S"] *= np.float32(1.1)


@fault("constant_changed")
def dense_bias_zeroed(t: Tagger, k: int) -> None:
    t.arrays["s"] *= 0


@fault("weights_changed")
def some_recurrent_weights(t: Tagger, k: int) -> None:
    rng = np.random.default_rng(6)
    array = t.arrays[f"R{k}"]
    array += rng.normal(0, 0.1 / np.sqrt(t.hidden), array.shape).astype(np.float32)


@fault("gates_swapped")
def gates_of_the_biases(t: Tagger, k: int) -> None:
    _reorder(t, k, {"GRU": [1, 0, 2], "LSTM": [0, 1, 3, 2]}[t.op], "B")


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


def _one_bias(tagger: Tagger) -> None:
    """Both biases in the input's; a GRU's candidate keeps its own."""
    for k in range(tagger.layers):
        bias, gates = tagger.blocks(f"B{k}"), GATES[tagger.op]
        kept = gates - (tagger.op == "GRU")
        bias[:, :kept] += bias[:, gates : gates + kept]
        bias[:, gates : gates + kept] = 0


def _round(tagger: Tagger) -> None:
    rng, eps = np.random.default_rng(2), np.finfo(np.float32).eps
    for array in tagger.arrays.values():
        array *= 1 + eps * rng.choice([-1, 1], array.shape).astype(np.float32)


def _all_at_once(tagger: Tagger) -> None:
    tagger.gemm = tagger.split = True
    _one_bias(tagger)


REWRITINGS: dict[str, Callable[[Tagger], Any]] = {
    "moved_by_one_ulp": _round,
    "gemm": lambda t: setattr(t, "gemm", True),
    "directions_in_two_nodes": lambda t: setattr(t, "split", True),
    "biases_in_one_vector": _one_bias,
    "all_at_once": _all_at_once,
}
"""Normalizations and softmax in parts: tests/fuse_passes/test_normal_forms.py."""


def across(seed: int = 3) -> Iterator[tuple[str, Callable[[], Pair]]]:
    """Each fault, where the sound file is written otherwise."""
    for at, name in enumerate(FAULTS):
        for kind in [*REWRITINGS][1:]:
            shape = fitting(name, 0)
            if kind == "directions_in_two_nodes":
                shape = next((s for k in range(8) if (s := fitting(name, k))[3] == 2), shape)
            label = f"{name}-across-{kind}-{'-'.join(map(str, shape))}"
            yield label, _made((name,), shape, seed + at, REWRITINGS[kind])
