"""Known faults of a recurrent layer's weights and settings; each fault is defined once.

A search applies these faults to a model's layers until the outputs match. The comparison of two
models looks for the fault that turns the model's layer into the reference's layer.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, is_dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from onernn.adapters.common.fault import Fault
from onernn.ir.arrays import Array, bfloat16_bits, widen_bfloat16
from onernn.ir.rnn import Recurrent
from onernn.ir.spec import Activation, Cell, RnnSpec
from onernn.ir.weights import RnnWeights

CLOSE = 1e-6
"""Arrays count as equal if they differ by at most this part of the largest element, because
constant folding rounds.
"""
_SAMPLE = 2048
"""Number of elements that are compared first, because a sample shows most differences."""

Layer = tuple[RnnSpec, RnnWeights]
"""One layer in one direction."""
LayerFault = Fault[Layer]
Part = tuple[RnnSpec, str, Array]
"""One array of a layer: the layer's spec, the array's name in `RnnWeights`, and the array."""
PartFault = Fault[Part]

PARTS = (("iter",), ("layer",), ("bias",), ("layer", "iter"), ("iter", "bias"), ("layer", "bias"))
"""The arrays that one fault may affect without affecting the others."""
MATRICES = ("iter", "layer")
_CALLED = {"layer": "input weights", "iter": "recurrent weights", "bias": "bias"}
_GATES = {"u": "update", "r": "reset", "i": "input", "f": "forget", "c": "candidate"}


def name_arrays(arrays: Iterable[str]) -> str:
    """Returns the names of arrays in messages."""
    return " and ".join(_CALLED.get(name, name) for name in arrays)


def gate_name(spec: RnnSpec, gate: str) -> str:
    """Returns a gate's name in messages, such as "u (update)". A GRU's gate o is called
    candidate.
    """
    name = _GATES.get(gate) or ("output" if spec.cell is Cell.LSTM else "candidate")
    return f"{gate} ({name})"


def alike(one: Array, other: Array) -> bool:
    """Returns whether arrays are equal up to `CLOSE`; integers must be equal."""
    if one.shape != other.shape:
        return False
    if one.dtype.kind != "f" or other.dtype.kind != "f":
        return np.array_equal(one, other)
    allowed = CLOSE * np.abs(other).max(initial=0)
    few = slice(None, None, one.size // _SAMPLE + 1)
    pairs = ((one.reshape(-1)[part], other.reshape(-1)[part]) for part in (few, slice(None)))
    return all(np.abs(a.astype(np.float64) - b).max(initial=0) <= allowed for a, b in pairs)


def as_stored(value: Any) -> str:
    """Returns a setting as text, with its floats rounded to float32, because most formats store
    float32.
    """
    if is_dataclass(value):
        return repr([(each.name, as_stored(getattr(value, each.name))) for each in fields(value)])
    if isinstance(value, tuple | list):
        return repr([*map(as_stored, value)])
    return repr(float(np.float32(value)) if isinstance(value, float) else value)


def bias_of(spec: RnnSpec, weights: RnnWeights) -> Array:
    """Returns the bias of one layer and direction; zeros if it has none."""
    if weights.bias is not None:
        return weights.bias
    return np.zeros((1, 1, spec.cell.bias_rows, spec.hidden_size), weights.iter.dtype)


def merge_rows(bias: Array) -> Array:
    """Returns a bias of an LBR cell whose candidate's recurrent bias is added to its input bias."""
    out = bias.copy()
    out[..., 2, :] += out[..., 3, :]
    out[..., 3, :] = 0
    return out


# --- faults of layers, made from faults of arrays


def in_arrays(fault: PartFault, names: tuple[str, ...] = (), text: str = "") -> LayerFault:
    """Returns the fault of a layer that has ``fault`` in the arrays ``names``, by default in all
    weights and the bias.

    A layer without one of ``names`` cannot have it. If the input is already projected, its weights
    are the identity.
    """

    def apply(layer: Layer) -> Layer | None:
        spec, weights = layer
        chosen = names or ("layer", "iter", *(() if weights.bias is None else ("bias",)))
        weights = _add_projection(spec, weights) if "layer" in chosen else weights
        new: dict[str, Any] = {}
        for name in chosen:
            array = weights.arrays.get(name)
            new[name] = None if array is None else fault.apply((spec, name, array))
            if new[name] is None:
                return None
        weights = replace(weights, **new)
        if weights.layer is not None:
            spec = replace(spec, input_size=weights.layer.shape[2])
        return spec, weights

    only = f" in the {name_arrays(names)} only" if names else ""
    return Fault(fault.id, text or f"{fault.text}{only}", apply)


def _add_projection(spec: RnnSpec, weights: RnnWeights) -> RnnWeights:
    if weights.layer is not None:
        return weights
    width = spec.gates * spec.hidden_size
    eye = np.eye(width, dtype=weights.iter.dtype)
    return replace(weights, layer=eye.reshape(1, 1, width, spec.gates, spec.hidden_size))


# --- gates


def permutations(spec: RnnSpec) -> Iterator[PartFault]:
    """Yields faults in which gates are in a different order; swaps of two gates come first."""
    gates = spec.cell.gates
    every = list(itertools.permutations(range(len(gates))))[1:]
    for order in sorted(every, key=lambda order: sum(a != b for a, b in enumerate(order))):
        moved = [gates[a] for a, b in enumerate(order) if a != b]
        if len(moved) == 2:
            text = f"gates {' and '.join(gate_name(spec, gate) for gate in moved)} are swapped"
        else:
            text = f"gates {', '.join(gates)} are taken from {', '.join(gates[b] for b in order)}"
        yield Fault("gates_swapped", text, partial(_permute, order=list(order)))


def _permute(part: Part, order: list[int]) -> Array | None:
    """Puts gate order[k] in the place of gate k. If an LBR cell's candidate moves, its two biases
    are merged.
    """
    _, name, array = part
    if name not in ("layer", "iter", "bias"):
        return None
    rest = array[..., len(order) :, :]  # the candidate's recurrent bias of an LBR cell
    if rest.size and order[2] != 2:
        array, rest = merge_rows(array), rest * 0
    return np.concatenate([array[..., order, :], rest], axis=-2)


def _negate_update(part: Part) -> Array | None:
    return scale(part[2], 0, -1) if part[0].cell.is_gru else None


UPDATE_NEGATED: PartFault = Fault(
    "update_sign", "the update gate has the other sign", _negate_update
)


def scale(array: Array, rows: int | slice, by: float) -> Array:
    """Returns an array with the elements of some gates multiplied."""
    out = array.copy()
    out[..., rows, :] *= array.dtype.type(by)
    return out


def transpose_fault(name: str) -> PartFault:
    """Returns the fault of a matrix that the file stores as (out, in) and the model reads as (in,
    out).
    """

    def apply(part: Part) -> Array | None:
        _, read, array = part
        square = read == name and array.shape[2] == array.shape[4]
        return np.swapaxes(array, 2, 4) if square else None

    text = f"the {_CALLED[name].removesuffix('s')} is transposed, gate by gate"
    return Fault("weight_transposed", text, apply)


# --- settings


_SETTINGS = {
    "cell": "reset_placement",
    "update": "update_sign",
    "direction": "direction_swapped",
    "activations": "activation_changed",
    "gate_clip": "clip_ignored",
    "cell_clip": "clip_ignored",
    "cell_clip_nan": "clip_ignored",
}
"""The id of a fault by the field of a spec that differs; for other fields it is
attribute_changed.
"""


def _show(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(map(_show, value))})"
    return str(value.value if isinstance(value, Cell) else value)


def setting(name: str, value: Any) -> LayerFault:
    """Returns the fault that a field of a layer's spec has this value."""

    def apply(layer: Layer) -> Layer | None:
        spec, weights = layer
        if getattr(spec, name) == value:
            return None
        return replace(spec, **{name: value}), weights

    return Fault(_SETTINGS[name], f"{name} is {_show(value)}", apply)


_LINEAR = {Cell.GRU: Cell.LBR_GRU, Cell.AUGRU: Cell.LBR_AUGRU}
_PLAIN = {linear: plain for plain, linear in _LINEAR.items()}


def resets(spec: RnnSpec) -> Iterator[LayerFault]:
    """Yields faults that move the reset gate from before the recurrent product to after it, or the
    reverse.
    """
    other = {**_PLAIN, **_LINEAR}.get(spec.cell, spec.cell)
    known = "reset_placement", f"cell is {_show(other)}"
    if spec.cell in _PLAIN:
        yield Fault(*known, _reset_sooner)
    elif spec.cell in _LINEAR:
        for inside in (0.0, 1.0, 0.5):
            yield Fault(*known, partial(_reset_later, inside=inside))


def _reset_later(layer: Layer, inside: float) -> Layer | None:
    """Moves the reset gate after the product. ``inside``: the part of the candidate's bias that the
    reset gate multiplies.
    """
    spec, weights = layer
    bias = weights.bias
    if bias is not None:
        o = bias[..., 2:3, :]
        bias = np.concatenate([bias[..., :2, :], (1 - inside) * o, inside * o], axis=-2)
    elif inside:
        return None
    return replace(spec, cell=_LINEAR[spec.cell]), replace(weights, bias=bias)


def _reset_sooner(layer: Layer) -> Layer | None:
    spec, weights = layer
    bias = None if weights.bias is None else merge_rows(weights.bias)[..., :3, :]
    return replace(spec, cell=_PLAIN[spec.cell]), replace(weights, bias=bias)


_OF_GATES = (
    Activation("sigmoid"),
    Activation("hardsigmoid", 0.2, 0.5),
    Activation("hardsigmoid", 1 / 6, 0.5),
)
_OF_STATES = tuple(map(Activation, ("tanh", "relu", "sigmoid", "softsign")))
"""The activations that a search tries: `_OF_GATES` for gates, these for candidates and states. The
hard sigmoid is x / 6 + 0.5 in Keras 3, and x / 5 + 0.5 in ONNX.
"""


def _functions(spec: RnnSpec) -> Iterator[LayerFault]:
    """Yields faults that replace the activation of the gates (index 0), the candidate (1) or the
    cell state (2).
    """
    every = spec.functions
    for indices in ((0,), (1,), (1, 2), (2,)):
        gates = indices == (0,) and len(every) > 1
        for other in (_OF_GATES if gates else _OF_STATES) if indices[-1] < len(every) else ():
            functions = tuple(other if k in indices else each for k, each in enumerate(every))
            if functions != every:
                yield setting("activations", functions)


# --- biases


_TWICE = ((0.5, "halved: it is added twice"), (2, "doubled"))


def bias_faults(two: bool) -> Iterator[PartFault]:
    """Yields faults of a bias, such as a bias that is added twice. ``two``: whether the candidate
    has two biases, each of which may have a fault.
    """

    def fault(id: str, text: str, change: Callable[[Array], Array]) -> PartFault:
        return Fault(id, text, lambda part: change(part[2]) if part[1] == "bias" else None)

    for by, how in _TWICE:
        change = partial(scale, rows=slice(None), by=by)
        yield fault("bias_doubled", f"its bias is {how}", change)
    if two:
        text = "both biases of the candidate are merged into one outside the reset gate's product"
        yield fault("bias_merged", text, merge_rows)
        for row, name in ((3, "recurrent"), (2, "input")):
            text = f"the candidate's {name} bias is"
            yield fault("bias_merged", f"{text} left out", partial(scale, rows=row, by=0))
            for by, how in _TWICE:
                yield fault("bias_doubled", f"{text} {how}", partial(scale, rows=row, by=by))


def _biases(spec: RnnSpec) -> Iterator[LayerFault]:
    for fault in bias_faults(spec.cell.linear_before_reset):
        yield in_arrays(fault, ("bias",), fault.text)
    if spec.cell is Cell.LSTM:
        for by, how in ((1, "larger"), (-1, "smaller")):
            text = f"the bias of gate f (forget) is {how} by 1"
            yield Fault("bias_shifted", text, partial(_shift_forget, by=by))


def _shift_forget(layer: Layer, by: float) -> Layer:
    spec, weights = layer
    bias = bias_of(spec, weights).copy()
    bias[..., 1, :] += bias.dtype.type(by)
    return spec, replace(weights, bias=bias)


# --- all faults of a layer


def layer_faults(spec: RnnSpec) -> Iterator[LayerFault]:
    """Yields the faults that a layer with this spec can have, frequent faults first."""
    yield from map(in_arrays, permutations(spec))
    if spec.cell.is_gru:
        yield setting("update", "replace" if spec.update == "keep" else "keep")
        yield in_arrays(UPDATE_NEGATED)
    yield from resets(spec)
    yield from _biases(spec)
    for name in ("gate_clip", "cell_clip"):
        if getattr(spec, name) is not None:
            yield setting(name, None)
    yield from _functions(spec)
    for name in MATRICES:
        matrix = transpose_fault(name)
        yield in_arrays(matrix, (name,), matrix.text)
    swaps = (fault for fault in permutations(spec) if " and " in fault.text)
    yield from (in_arrays(fault, arrays) for fault in swaps for arrays in PARTS)


# --- differences of weights and settings between a layer and its matched layer


_CLEAR = 10
"""A factor or shift counts if it is this many times larger than rounding errors."""
_EVEN = 0.01
"""Tolerance of the distance between int8 levels, as a part of this distance, because float32
rounds.
"""
_ROUNDED = 2.0**-7
"""Tolerance of a sum of two rounded biases, as a part of the largest element."""


class Relation(NamedTuple):
    """A difference between arrays or settings of both models.

    ``id``: the fault's id. ``text``: describes it; the text fits between "the model" and "in" a
    layer. ``apart``: the largest difference, 0 if ``text`` already describes the difference.
    """

    id: str
    text: str
    apart: float = 0.0


def relate(one: Array, other: Array) -> Relation:
    """Returns the difference between a constant of the model and the reference's constant."""
    if one.shape != other.shape:
        turned = one.ndim == other.ndim == 2 and alike(one.T, other)
        if turned:
            return Relation("weight_transposed", "is transposed")
        return Relation(
            "constant_changed", f"is of shape {one.shape}, the reference's {other.shape}"
        )
    if one.size == 1:
        said = f"is {one.reshape(-1)[0]:g}, the reference's {other.reshape(-1)[0]:g}"
        return Relation("constant_changed", said)
    if one.dtype.kind != "f" or other.dtype.kind != "f":
        return Relation(
            "constant_changed", f"is {_list_numbers(one)}, the reference's {_list_numbers(other)}"
        )
    if rounded := _narrow_type(one, other):
        return Relation("weights_rounded", f"is rounded to {rounded}")
    if one.ndim == 2 and one.shape[0] == one.shape[1] and alike(one.T, other):
        return Relation("weight_transposed", "is transposed")
    rule, said, apart = _rule(one, other, "is")
    if not rule and alike(np.sort(one, axis=None), np.sort(other, axis=None)):
        return Relation("constant_changed", "has the reference's numbers in another order")
    return Relation("constant_changed", said, apart)


def _rule(one: Array, other: Array, verb: str) -> tuple[str, str, float]:
    """Returns how floats differ from the reference's floats: a rule, its text, and the largest
    difference.

    The rule is "zeroed", "scaled", "shifted" or "". The returned difference is 0 if the text
    already describes it. ``verb``: "is" or "are".
    """
    if not one.any():
        return "zeroed", f"{verb} zero, the reference's {verb} not", 0.0
    if not other.any():
        return "", f"{verb} not zero, the reference's {verb}", 0.0
    if factor := _factor(one, other):
        return "scaled", f"{verb} {factor:g} times the reference's", 0.0
    if (shift := _shift(one, other)) is not None:
        way = "larger" if shift > 0 else "smaller"
        return "shifted", f"{verb} {abs(shift):g} {way} than the reference's", 0.0
    apart = float(np.abs(one.astype(np.float64) - other).max())
    return "", f"{'differs' if verb == 'is' else 'differ'} from the reference's", apart


def _list_numbers(array: Array) -> str:
    return str(array.tolist()) if array.size <= 8 else "other integers"


def _narrow_type(one: Array, other: Array) -> str:
    """Returns the narrow dtype to which the reference's array was rounded, or ""."""
    if one.shape != other.shape:
        return ""
    with np.errstate(over="ignore"):
        if np.array_equal(one, other.astype(np.float16).astype(one.dtype)):
            return "float16"
    cut = (np.ascontiguousarray(other, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    for bits in (cut, bfloat16_bits(other)):
        if np.array_equal(one, widen_bfloat16(bits)):
            return "bfloat16"
    levels = np.unique(one).astype(np.float64)
    if not 2 < len(levels) <= 256 < len(np.unique(other)):
        return ""
    step = float(np.diff(levels).min())
    places = (levels - levels[0]) / step
    even = np.abs(places - np.round(places)).max() <= _EVEN
    near = np.abs(one.astype(np.float64) - other).max() <= step * (0.5 + _EVEN)
    return f"{len(levels)} levels, as int8 has them" if even and near else ""


def _factor(one: Array, other: Array) -> float:
    """Returns the factor between two arrays, 0 if it is not the same for all elements."""
    square = float(np.vdot(other, other))
    factor = float(np.vdot(one, other)) / square if square else 0.0
    plain = abs(factor - 1) > _CLEAR * CLOSE and factor != 0
    return round(factor, 6) if plain and alike(one, other * factor) else 0.0


def _shift(one: Array, other: Array) -> float | None:
    """Returns the difference of two arrays, None if it is not the same for all elements."""
    apart = one.astype(np.float64) - other
    middle = float(np.median(apart))
    spread = np.abs(apart - middle).max(initial=0)
    close = spread * _CLEAR <= abs(middle) and alike(one, other + middle)
    return float(f"{middle:.6g}") if middle and close else None


def relate_layers(mine: Recurrent, theirs: Recurrent) -> Iterator[Relation]:
    """Yields the differences of two layers, each of one direction, settings first."""
    now, then = (
        {e.name: getattr(s.spec, e.name) for e in fields(s.spec)}
        | {"activations": s.spec.functions}
        for s in (mine, theirs)
    )
    if now["hidden_size"] == then["hidden_size"]:
        now["input_size"] = then["input_size"]  # the weights' shapes show this difference
    one, other = now["cell"], then["cell"]
    if (one.gates, one.has_attention) != (other.gates, other.has_attention):
        text = f"has a cell {_show(one)} where the reference has {_show(other)},"
        yield Relation("operator_changed", text)
        return
    if one.linear_before_reset == other.linear_before_reset:
        now["cell"] = other  # simple RNNs, whose activations are compared below
    for name, value in now.items():
        if as_stored(value) != as_stored(then[name]):
            text = f"has {name} {_show(value)}, the reference {_show(then[name])},"
            yield Relation(_SETTINGS.get(name, "attribute_changed"), text)
    yield from _relate_weights(mine.spec, mine.layers[0], theirs.spec, theirs.layers[0])


def _relate_weights(
    spec: RnnSpec, mine: RnnWeights, their: RnnSpec, theirs: RnnWeights
) -> Iterator[Relation]:
    """Yields the differences of the weights: first known faults, then other relations."""
    pairs = {
        name: (one, other)
        for name, one in mine.arrays.items()
        if (other := theirs.arrays.get(name)) is not None
    }
    biases = (bias_of(spec, mine), bias_of(their, theirs))
    if biases[0].shape != biases[1].shape:  # only one cell is LBR: merge its candidate's biases
        one, other = (merge_rows(b)[..., :3, :] if b.shape[2] == 4 else b for b in biases)
        biases = one, other
    pairs["bias"] = biases
    left = [name for name, both in pairs.items() if not alike(*both)]
    matrices = [transpose_fault(name) for name in MATRICES]
    for fault in (*permutations(spec), UPDATE_NEGATED, *matrices):
        hit = [name for name in left if _explains(fault, spec, name, *pairs[name])]
        if not hit:
            continue
        rest = [name for name in ("layer", "iter", "bias") if name in pairs and name not in hit]
        every = fault in matrices or all(_explains(fault, spec, n, *pairs[n]) for n in rest)
        only = "" if every else f" in the {name_arrays(hit)} only"
        yield Relation(fault.id, f"matches when {fault.text}{only}")
        left = [name for name in left if name not in hit]
    rounded = {name: kind for name in left if (kind := _narrow_type(*pairs[name]))}
    for kind in dict.fromkeys(rounded.values()):
        yield Relation("weights_rounded", f"has weights rounded to {kind}")
    for name in (name for name in left if name not in rounded):
        one, other = pairs[name]
        if name == "bias":
            near = np.abs(one - other).max() <= _ROUNDED * np.abs(other).max()
            # The sum of two rounded biases is near the reference's bias.
            if not (rounded and near):
                yield _relate_biases(spec, one, other)
        elif name in ("layer", "iter"):
            yield _relate_numbers(spec, name, one, other)
        else:
            result = relate(one, other)
            cause = result.id if result.id != "constant_changed" else "weights_changed"
            yield Relation(cause, f"has a {name} that {result.text}")


def _explains(fault: PartFault, spec: RnnSpec, name: str, one: Array, other: Array) -> bool:
    """Returns whether the fault turns the model's array into the reference's array."""
    changed = fault.apply((spec, name, one)) if one.shape == other.shape else None
    if changed is None:
        return False
    if name == "bias" and changed.shape[2] == 4:
        faulty = fault.apply((spec, name, other))
        if faulty is not None and not faulty[..., 3, :].any():
            other = merge_rows(other)  # the fault merges two rows
    return alike(changed, other)


def _by_gate(spec: RnnSpec, one: Array, other: Array) -> tuple[str, str, str, float]:
    """Returns the names of the gates that differ, "" if all do, and their `_rule`."""
    rows = [k for k in range(one.shape[-2]) if not alike(one[..., k, :], other[..., k, :])]
    gates = spec.cell.gates
    listed = [
        gate_name(spec, gates[k]) if k < len(gates) else "the candidate, inside r*(...),"
        for k in rows
    ]
    every = len(rows) == one.shape[-2]
    called = "" if every else f"gate{'s' * (len(rows) > 1)} {' and '.join(listed)}"
    rule, said, apart = _rule(one[..., rows, :], other[..., rows, :], "are")
    return called, rule, said + "," * (rule == "zeroed"), apart


def _relate_biases(spec: RnnSpec, one: Array, other: Array) -> Relation:
    two = spec.cell.linear_before_reset and one.shape[-2] == spec.cell.bias_rows
    for fault in bias_faults(two):
        for mine, theirs, where in ((one, other, " "), (other, one, ", in the reference, ")):
            changed = fault.apply((spec, "bias", mine))
            if alike(changed, theirs):
                return Relation(fault.id, f"matches when{where}{fault.text}")
    return _relate_numbers(spec, "bias", one, other)


_OF_RULES = {"zeroed": "bias_zeroed", "shifted": "bias_shifted"}


def _relate_numbers(spec: RnnSpec, name: str, one: Array, other: Array) -> Relation:
    called = "biases" if name == "bias" else _CALLED[name]
    if one.shape != other.shape:
        said = f"has {called} of shape {one.shape}, the reference {other.shape},"
        return Relation("weights_changed", said)
    gates, rule, said, apart = _by_gate(spec, one, other)
    if not rule and alike(np.sort(one, axis=None), np.sort(other, axis=None)):
        said = "are the reference's in another order"
    id = _OF_RULES.get(rule, "bias_changed") if name == "bias" else "weights_changed"
    return Relation(id, f"has {called}{gates and f' of {gates}'} that {said}", apart)
