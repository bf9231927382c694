"""ONNX files for `onernn verify`: sound ones, and the same with planted faults.

A file has one recurrent layer (`model`), or is a tagger: a dense layer with relu, one or two
recurrent layers, a layer normalization, scores. Arrays are in ONNX's own layout: W (D, G*H, I),
R (D, G*H, H), B (D, 2*G*H); gates z, r, h of GRU, i, o, f, c of LSTM.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnxruntime

from onernn import Graph
from onernn.adapters.onnx.lower import lower
from onernn.adapters.onnx.read import parse_model
from onernn.verification.recording import INPUTS, OUTPUTS, key_arrays
from onernn.verification.references import Against
from onernn.verification.verifying import Report, verify
from support.onnx_models import parsed, quiet

INPUT, HIDDEN = 4, 4
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
Arrays = dict[str, np.ndarray]
Shape = tuple[str, int, int, int]
"""Of a tagger: op, H, L and D."""


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


def blocks(array: np.ndarray, hidden: int = HIDDEN) -> np.ndarray:
    """A view (D, blocks of H rows, H, ...)."""
    return array.reshape(array.shape[0], -1, hidden, *array.shape[2:])


def reordered(
    arrays: Arrays,
    order: tuple[int, ...],
    names: str = "WRB",
    layer: str = "",
    hidden: int = HIDDEN,
) -> Arrays:
    """Gate k is what gate order[k] was, in these arrays of a layer."""
    new = {}
    for name in names:
        index = [*order, *(len(order) + k for k in order)] if name == "B" else list(order)
        array = arrays[name + layer]
        new[name + layer] = blocks(array, hidden)[:, index].reshape(array.shape)
    return changed(arrays, **new)


def said(attributes: dict[str, Any]) -> str:
    return ", ".join(f"{key} = {json.dumps(value)}" for key, value in attributes.items())


def model(
    op: str,
    arrays: Arrays,
    *,
    lengths: bool = True,
    states: bool = True,
    **attributes: Any,
) -> bytes:
    """A file with one layer: X, lens, h0 (and c0) -> Y, Y_h (and Y_c).

    Without ``lengths`` or ``states`` the file still takes these inputs, and ignores them. Biases
    may be missing, and peepholes P may be there.
    """
    directions, cell = len(arrays["W"]), op == "LSTM"
    way = "bidirectional" if directions == 2 else "forward"
    kept = ["h0", "c0"][: 1 + cell]
    places = ["X", "W", "R", "B" * ("B" in arrays), "lens" * lengths]
    places += [*(name * states for name in kept), "P" * ("P" in arrays)]
    read = ", ".join(places).rstrip(", ")
    outputs = ", ".join(["Y", "Y_h", "Y_c"][: 2 + cell])
    given = said({"hidden_size": HIDDEN, "direction": way, **attributes})
    inputs = [f"float[T, N, {INPUT}] X", "int32[N] lens"]
    inputs += [f"float[{directions}, N, {HIDDEN}] {name}" for name in kept]
    text = f"({', '.join(inputs)}) => ({outputs}) {{ {outputs} = {op} <{given}> ({read}) }}"
    return bytes(parsed(text, arrays, opset=15).SerializeToString())


def swapped() -> tuple[bytes, bytes]:
    """A sound file, and one whose gates z and r are swapped."""
    arrays = weights("GRU")
    return model("GRU", arrays), model("GRU", reordered(arrays, (1, 0, 2)))


def write_swapped(folder: Path) -> tuple[Path, Path]:
    paths = folder / "sound.onnx", folder / "wrong.onnx"
    for path, data in zip(paths, swapped(), strict=True):
        path.write_bytes(data)
    return paths


def read(data: bytes) -> Graph:
    return lower(parse_model(data, Path("planted.onnx")))


def compared(wrong: bytes, right: bytes, **options: Any) -> Report:
    return verify(read(wrong), against=Against(read(right)), **options)


def named(report: Report) -> list[tuple[str, str]]:
    """The causes, and how sure they are."""
    return [(each.id, each.evidence) for each in report.causes]


def feed(data: bytes) -> Arrays:
    """Sentences of length 0, 1 and long ones, words behind their ends, states that are not zero."""
    rng = np.random.default_rng(1)
    given: Arrays = {}
    for value in onnxruntime.InferenceSession(data, quiet()).get_inputs():
        steps, scale = (9, 2) if value.name == "X" else (value.shape[0], 1)
        given[value.name] = np.array([4, 0, 9, 1, 7], np.int32)
        if value.name != "lens":
            array = scale * rng.uniform(-1, 1, (steps, 5, value.shape[2]))
            given[value.name] = array.astype(np.float32)
    return given


def outputs(data: bytes, given: Arrays) -> Arrays:
    """What ONNX Runtime makes of a file."""
    session = onnxruntime.InferenceSession(data, quiet())
    taken = {each.name: given[each.name] for each in session.get_inputs()}
    names = [each.name for each in session.get_outputs()]
    return dict(zip(names, session.run(names, taken), strict=True))


def recording(data: bytes, given: Arrays | None = None) -> Arrays:
    given = given or feed(data)
    return key_arrays(INPUTS, given) | key_arrays(OUTPUTS, outputs(data, given))


# --- taggers


CHANNELS, TAGS = 5, 7


@dataclass
class Tagger:
    """The content of a file; faults and rewritings change it. ``before``, ``after`` the layers:
    nodes that read {x}, and their result. Lists have an element for each layer."""

    op: str
    hidden: int
    layers: int
    directions: int
    attributes: list[dict[str, Any]]
    lengths: list[bool]
    states: list[list[str]]
    rows: list[int]
    order: list[int]
    ways: list[str]
    arrays: Arrays = field(default_factory=dict)
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
        return blocks(self.arrays[name], self.hidden)


def sound(op: str, hidden: int, layers: int = 1, directions: int = 1, seed: int = 0) -> Tagger:
    """Contractive weights within 1 / sqrt(H), all biases there."""
    rng = np.random.default_rng(seed)
    made = Tagger(
        op,
        hidden,
        layers,
        directions,
        attributes=[{"linear_before_reset": 1} if op == "GRU" else {} for _ in range(layers)],
        lengths=[True] * layers,
        states=[["h0", "c0"][: 1 + (op == "LSTM")]] * layers,
        rows=[k * directions for k in range(layers)],
        order=[*range(layers)],
        ways=["bidirectional" if directions == 2 else "forward"] * layers,
    )
    rows, bound = GATES[op] * hidden, 1 / np.sqrt(hidden)
    arrays = {"P": rng.normal(0, 0.6, (CHANNELS, hidden)), "p": rng.normal(0, 0.3, hidden)}
    for k in range(layers):
        width = made.width if k else hidden
        arrays[f"W{k}"] = rng.uniform(-bound, bound, (directions, rows, width))
        arrays[f"R{k}"] = rng.uniform(-bound, bound, (directions, rows, hidden))
        arrays[f"B{k}"] = rng.uniform(-0.5, 0.5, (directions, 2 * rows))
    arrays["scale"] = rng.uniform(0.5, 1.5, made.width)
    arrays["shift"] = rng.normal(0, 0.3, made.width)
    arrays["S"] = rng.normal(0, 1.0, (made.width, TAGS))
    arrays["s"] = rng.normal(0, 0.3, TAGS)
    made.arrays = {k: a.astype(np.float32) for k, a in arrays.items()}
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

    def add_step(step: tuple[str, str] | None) -> None:
        nonlocal x
        if step:
            add(step[0].format(x=x))
            x = step[1]

    add_step((f"hidden = {tagger.relu} ({{x}})", "hidden") if tagger.relu else None)
    add_step(tagger.before)
    first, kept = x, ("h0", "c0")[: 1 + (tagger.op == "LSTM")]
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
            read = ", ".join([x, *names, lens, *own]).rstrip(", ")
            results.append(f"Y{place}{side}")
            add(f"{results[-1]} = {tagger.op} <{said(given)}> ({read})")
        if len(results) == 1 and d == 2:
            add(f"T{place} = Transpose <perm = [0, 2, 1, 3]> ({results[0]})")
            add(f"y{place} = Reshape (T{place}, shape)")
        else:
            for result in results:
                add(f"{result}_flat = Squeeze ({result}, i1)")
            flat = ", ".join(f"{result}_flat" for result in results)
            add(f"y{place} = Concat <axis = 2> ({flat})")
        x = f"y{place}"
    early = "biased" if tagger.early else first
    add_step((f"residual = Add ({{x}}, {early})", "residual") if d == 1 else None)
    add_step(tagger.after)
    add(f"normal = LayerNormalization <epsilon = {tagger.epsilon}, axis = -1> ({x}, scale, shift)")
    if tagger.gemm:
        add("rows = Reshape (normal, flat) gemm = Gemm (rows, S, s)")
        add("size = Shape <start = 0, end = 2> (X) sizes = Concat <axis = 0> (size, tag_count)")
        add("scores = Reshape (gemm, sizes)")
    else:
        add("product = MatMul (normal, S) scores = Add (product, s)")
    add("tags = Softmax <axis = -1> (scores)")
    states = [f"float[{tagger.layers * d}, N, {tagger.hidden}] {name}" for name in kept]
    inputs = ", ".join([f"float[T, N, {CHANNELS}] X", "int32[N] lens", *states])
    text = f"({inputs}) => (float[T, N, {TAGS}] tags) {{ {' '.join(lines)} }}"
    used = {name: np.ascontiguousarray(array) for name, array in arrays.items() if name in text}
    return bytes(parsed(text, used).SerializeToString())


# --- faults: each changes a tagger in one layer, and has the id that it is to be called by


Change = Callable[[Tagger, int], Any]


class Fault(NamedTuple):
    """``cause``: the id. ``op``, ``layers``, ``directions``: of the models that can have it."""

    cause: str
    change: Change
    op: str | None = None
    layers: int | None = None
    directions: int | None = None

    def __call__(self, tagger: Tagger, k: int = 0) -> str:
        self.change(tagger, k)
        return self.cause

    def fits(self, shape: Shape) -> bool:
        wanted = (self.op, None, self.layers, self.directions)
        return all(a in (None, b) for a, b in zip(wanted, shape, strict=True))


def reorder(gru: str, lstm: str, names: str = "WRB") -> Change:
    """Gives gates the places of others in arrays of a layer."""

    def change(t: Tagger, k: int) -> None:
        order = tuple(map(int, gru if t.op == "GRU" else lstm))
        t.arrays = reordered(t.arrays, order, names, str(k), t.hidden)

    return change


def edit(names: str, function: Callable[[Any], Any], rows: Any = slice(None)) -> Change:
    """Gives blocks of a layer's arrays, all or these, other values."""

    def change(t: Tagger, k: int) -> None:
        for name in names:
            block = t.blocks(f"{name}{k}")
            block[:, rows] = function(block[:, rows])

    return change


def edit_dense(name: str, factor: float) -> Change:
    return lambda t, _: t.arrays.update({name: t.arrays[name] * np.float32(factor)})


def add_noise(seed: int, deviation: float) -> Callable[[Any], Any]:
    """``deviation``: times the square root of H."""

    def add(array: np.ndarray) -> np.ndarray:
        scale = deviation / np.sqrt(array.shape[-1])
        return array + np.random.default_rng(seed).normal(0, scale, array.shape)

    return add


def merge_candidate(bias: np.ndarray) -> np.ndarray:
    merged = bias.copy()
    merged[:, 2] += merged[:, 5]
    merged[:, 5] = 0
    return merged


def reorder_one_direction(t: Tagger, k: int) -> None:
    kept = t.arrays
    reorder("102", "3120")(t, k)
    for name in "WRB":
        t.arrays[f"{name}{k}"][0] = kept[f"{name}{k}"][0]


def negate_update(t: Tagger, k: int) -> None:
    for name, rows in (("W", [0]), ("R", [0]), ("B", [0, 3])):
        edit(name, np.negative, rows)(t, k)


def round_all(t: Tagger, _: int) -> None:
    t.arrays = {n: a.astype(np.float16).astype(np.float32) for n, a in t.arrays.items()}


def activations(*names: str) -> Change:
    def change(t: Tagger, k: int) -> None:
        t.attributes[k]["activations"] = [*names[: 2 + (t.op == "LSTM")]] * t.directions

    return change


def setting(name: str, value: Any) -> Change:
    """Gives a field of a tagger, or its element for the layer, another value."""

    def change(t: Tagger, k: int) -> None:
        if isinstance(getattr(t, name), list):
            getattr(t, name)[k] = value
        else:
            setattr(t, name, value)

    return change


PADDED = "backward_begins_at_the_end_of_the_padding"
FAULTS = {
    "gates": Fault("gates_swapped", reorder("102", "0132")),
    # i, f, g, o read as i, o, f, c; r, z, n as z, r, h.
    "gates_of_torch": Fault("gates_swapped", reorder("102", "0231")),
    "gates_of_the_recurrent_weights": Fault("gates_swapped", reorder("102", "1023", "R")),
    "gates_of_one_direction": Fault("gates_swapped", reorder_one_direction, directions=2),
    "gates_of_the_biases": Fault("gates_swapped", reorder("102", "0132", "B")),
    "update_negated": Fault("update_sign", negate_update, "GRU"),
    "reset_before": Fault(
        "reset_placement", lambda t, k: t.attributes[k].update(linear_before_reset=0), "GRU"
    ),
    "hard_sigmoid": Fault("activation_changed", activations("HardSigmoid", "Tanh", "Tanh")),
    "relu_for_tanh": Fault("activation_changed", activations("Sigmoid", "Relu", "Tanh")),
    "forget_bias": Fault("bias_shifted", edit("B", lambda bias: bias + 1, [2]), "LSTM"),
    "bias_of_one_gate": Fault("bias_changed", edit("B", add_noise(5, 1.5), [1])),
    "biases_zeroed": Fault("bias_zeroed", edit("B", np.zeros_like)),
    "bias_doubled": Fault("bias_doubled", edit("B", lambda bias: 2 * bias)),
    "candidate_biases_merged": Fault("bias_merged", edit("B", merge_candidate), "GRU"),
    "recurrent_bias_left_out": Fault(
        "bias_changed", edit("B", np.zeros_like, slice(4, None)), "LSTM"
    ),
    "recurrent_weights_transposed": Fault(
        "weight_transposed", edit("R", lambda weights: weights.swapaxes(2, 3))
    ),
    "directions_exchanged": Fault(
        "direction_swapped", edit("WRB", lambda array: array[::-1]), directions=2
    ),
    "runs_backwards": Fault("direction_swapped", setting("ways", "reverse"), directions=1),
    # In the first of two layers only a backward direction would show it.
    "lengths_dropped": Fault("mask_ignored", setting("lengths", False), layers=1),
    PADDED: Fault("reverse_padded", setting("padded_reverse", True), directions=2),
    "states_dropped": Fault("h0_dropped", setting("states", [])),
    "cell_state_dropped": Fault("h0_dropped", setting("states", ["h0"]), "LSTM"),
    "h0_and_c0_exchanged": Fault("states_exchanged", setting("states", ["c0", "h0"]), "LSTM"),
    "states_of_layers_exchanged": Fault(
        "states_exchanged", lambda t, _: t.rows.reverse(), layers=2
    ),
    "hidden_state_as_cell_state": Fault(
        "states_exchanged", setting("states", ["h0", "h0"]), "LSTM"
    ),
    "layer_left_out": Fault("operator_missing", setting("skip", True), layers=2, directions=1),
    "residual_from_before_the_relu": Fault("input_exchanged", setting("early", True), directions=1),
    "order_of_the_stack": Fault("layers_exchanged", lambda t, _: t.order.reverse(), layers=2),
    "clipped": Fault("clip_ignored", lambda t, k: t.attributes[k].update(clip=0.3)),
    "rounded_to_float16": Fault("weights_rounded", round_all),
    "epsilon": Fault("attribute_changed", setting("epsilon", 1e-2)),
    "relu_dropped": Fault("operator_missing", setting("relu", "")),
    "relu_is_tanh": Fault("operator_changed", setting("relu", "Tanh")),
    "padded": Fault(  # a shift in time: a step of zeros in front, the last one cut off
        "operator_added",
        setting("before", ("padded = Pad ({x}, pads) cut = Slice (padded, i0, last, i0)", "cut")),
    ),
    "relu_added": Fault("operator_added", setting("after", ("more = Relu ({x})", "more"))),
    "dense_scaled": Fault("constant_changed", edit_dense("S", 1.1)),
    "dense_bias_zeroed": Fault("constant_changed", edit_dense("s", 0)),
    "some_recurrent_weights": Fault("weights_changed", edit("R", add_noise(6, 0.1))),
}


# --- pairs of files


class Pair(NamedTuple):
    """A sound file and one with faults, and their ids."""

    sound: bytes
    wrong: bytes
    causes: tuple[str, ...]


def planted_pair(name: str, layer: int = 0) -> tuple[Graph, Graph]:
    """A sound graph of two layers in both directions, and one with a fault."""
    good, bad = (sound("GRU", HIDDEN, 2, 2) for _ in range(2))
    FAULTS[name](bad, layer)
    return read(file(good)), read(file(bad))


Made = Callable[[], Pair]
_SHAPES: list[Shape] = [
    ("LSTM", 4, 1, 2),
    ("GRU", 12, 2, 1),
    ("LSTM", 33, 2, 2),
    ("GRU", 64, 1, 2),
    ("GRU", 8, 2, 2),
    ("LSTM", 16, 1, 1),
]
_CHOSEN: list[tuple[str, Shape]] = [
    ("gates+lengths_dropped", ("GRU", 8, 2, 1)),
    ("forget_bias+relu_dropped", ("LSTM", 16, 2, 1)),
    ("hard_sigmoid+epsilon", ("LSTM", 12, 1, 2)),
    ("recurrent_weights_transposed+biases_zeroed", ("LSTM", 24, 2, 2)),
    ("reset_before+dense_scaled", ("GRU", 32, 2, 1)),
    ("padded+gates", ("LSTM", 8, 1, 1)),
    ("states_dropped+clipped", ("GRU", 16, 2, 2)),
    ("update_negated+bias_of_one_gate", ("GRU", 20, 2, 1)),
    ("h0_and_c0_exchanged+some_recurrent_weights", ("LSTM", 8, 2, 1)),
    ("relu_for_tanh+directions_exchanged", ("GRU", 16, 2, 2)),
    ("gates", ("LSTM", 512, 2, 2)),
    ("forget_bias", ("LSTM", 512, 2, 2)),
    ("reset_before", ("GRU", 512, 2, 2)),
    ("rounded_to_float16", ("LSTM", 256, 2, 1)),
    ("recurrent_weights_transposed", ("LSTM", 512, 2, 2)),
    ("lengths_dropped", ("GRU", 512, 1, 2)),
    ("lengths_dropped", ("LSTM", 33, 2, 2)),
]
"""Two faults at once, and large models."""


def fitting(name: str, at: int = 0) -> Shape:
    """The shape of a model that can have a fault."""
    fits = [shape for shape in _SHAPES if FAULTS[name].fits(shape)]
    return fits[at % len(fits)]


def labelled(name: str, shape: Shape) -> str:
    return f"{name}-{'-'.join(map(str, shape))}"


def pairs() -> dict[str, Made]:
    """All of them by name: each fault alone in two models, and the chosen ones."""
    every = [(*each, len(each[0])) for each in _CHOSEN]
    for at, name in enumerate(FAULTS):
        every += [(name, fitting(name, at + 3 * turn), at) for turn in range(2)]
    return {labelled(*each[:2]): _made(*each) for each in every}


def _made(
    faults: str, shape: Shape, seed: int, otherwise: Callable[[Tagger], Any] = lambda _: None
) -> Made:
    """``faults``: joined by +; ``otherwise`` writes the sound file in another way."""

    def made() -> Pair:
        names = list(filter(None, faults.split("+")))
        good = sound(*shape, seed=seed)
        good.split = PADDED in names
        if "order_of_the_stack" in names:
            good.arrays["W0"] = good.arrays["W0"][..., : good.width]
            if good.directions == 2:  # layers that can change places read equally many channels
                rng = np.random.default_rng(seed)
                good.arrays["P"] = rng.normal(0, 0.6, (CHANNELS, good.width)).astype(np.float32)
                good.arrays["p"] = rng.normal(0, 0.3, good.width).astype(np.float32)
                good.arrays["W0"] = rng.permuted(good.arrays["W1"], axis=1)
        bad = deepcopy(good)
        causes = tuple(FAULTS[name](bad, at % bad.layers) for at, name in enumerate(names))
        otherwise(good)
        return Pair(file(good), file(bad), causes)

    return made


# --- rewritings: the same function, written otherwise


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


def rewritten() -> dict[str, Made]:
    """Pairs of files that are equal but for rounding."""
    shapes: list[Shape] = [("LSTM", 8, 1, 2), ("GRU", 12, 2, 2)]
    return {
        labelled(name, shape): _made("", shape, len(name), change)
        for name, change in REWRITINGS.items()
        for shape in shapes
    }


def across() -> dict[str, Made]:
    """Each fault, where the sound file is written otherwise."""
    result = {}
    for at, name in enumerate(FAULTS):
        for kind in [*REWRITINGS][1:]:
            shape = fitting(name)
            if kind == "directions_in_two_nodes":
                shape = next((s for k in range(8) if (s := fitting(name, k))[3] == 2), shape)
            label = labelled(f"{name}-across-{kind}", shape)
            result[label] = _made(name, shape, 3 + at, REWRITINGS[kind])
    return result
