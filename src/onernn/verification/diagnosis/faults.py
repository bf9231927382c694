"""Known faults of a recurrent layer's numbers and settings: each has one definition.

A search makes them in a model's layers until the outputs match, and the comparison of two models
asks which of them makes the reference's layer of the model's.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from onernn.adapters.common.fault import Fault
from onernn.ir.arrays import Array
from onernn.ir.spec import Activation, Cell, RnnSpec
from onernn.ir.weights import RnnWeights

CLOSE = 1e-6
"""Of the largest number: what folding a constant into another one may round."""
_SAMPLE = 2048
"""Numbers that tell most arrays apart before all of them are compared."""

Layer = tuple[RnnSpec, RnnWeights]
"""One layer in one direction."""
LayerFault = Fault[Layer]
Part = tuple[RnnSpec, str, Array]
"""One array of a layer: the spec, the array's name in `RnnWeights`, and its numbers."""
PartFault = Fault[Part]

PARTS = (("iter",), ("layer",), ("bias",), ("layer", "iter"), ("iter", "bias"), ("layer", "bias"))
"""Arrays that somebody may have treated unlike the others."""
_CALLED = {"layer": "input weights", "iter": "recurrent weights", "bias": "bias"}
_GATES = {"u": "update", "r": "reset", "i": "input", "f": "forget", "c": "candidate"}


def named(arrays: Iterable[str]) -> str:
    """The names of arrays in words."""
    return " and ".join(_CALLED.get(name, name) for name in arrays)


def gate_name(spec: RnnSpec, gate: str) -> str:
    """As "u (update)": o is the output gate of an LSTM, and the candidate of a GRU."""
    name = _GATES.get(gate) or ("output" if spec.cell is Cell.LSTM else "candidate")
    return f"{gate} ({name})"


def alike(one: Array, other: Array) -> bool:
    """Whether arrays are the same but for rounding."""
    if one.shape != other.shape:
        return False
    if one.dtype.kind != "f" or other.dtype.kind != "f":
        return np.array_equal(one, other)
    allowed = CLOSE * np.abs(other).max(initial=0)
    few = slice(None, None, one.size // _SAMPLE + 1)
    pairs = ((one.reshape(-1)[part], other.reshape(-1)[part]) for part in (few, slice(None)))
    return all(np.abs(a.astype(np.float64) - b).max(initial=0) <= allowed for a, b in pairs)


def bias_of(spec: RnnSpec, weights: RnnWeights) -> Array:
    """The bias of one layer and direction, zeros where it has none."""
    if weights.bias is not None:
        return weights.bias
    return np.zeros((1, 1, spec.cell.bias_rows, spec.hidden_size), weights.iter.dtype)


def merged(bias: Array) -> Array:
    """Both rows of an LBR cell's candidate as one, outside r*(...)."""
    out = bias.copy()
    out[..., 2, :] += out[..., 3, :]
    out[..., 3, :] = 0
    return out


# --- from an array to a layer


def in_arrays(fault: PartFault, names: Iterable[str], text: str = "") -> LayerFault:
    """The fault in these arrays, and in no other; a layer that lacks one cannot have it.

    Where the input is projected already, its weights are the identity.
    """
    chosen = tuple(names)

    def apply(layer: Layer) -> Layer | None:
        spec, weights = layer
        weights = _projecting(spec, weights) if "layer" in chosen else weights
        new: dict[str, Any] = {}
        for name in chosen:
            array = getattr(weights, name)
            new[name] = None if array is None else fault.apply((spec, name, array))
            if new[name] is None:
                return None
        weights = replace(weights, **new)
        if weights.layer is not None:
            spec = replace(spec, input_size=weights.layer.shape[2])
        return spec, weights

    return Fault(fault.id, text or f"{fault.text} in the {named(chosen)} only", apply)


def in_layer(fault: PartFault, *also: str) -> LayerFault:
    """The fault in the weights and the bias, where there is one; in ``also``, too."""

    def apply(layer: Layer) -> Layer | None:
        names = ("layer", "iter", *(() if layer[1].bias is None else ("bias",)), *also)
        made: Layer | None = in_arrays(fault, names).apply(layer)
        return made

    return Fault(fault.id, fault.text, apply)


def _projecting(spec: RnnSpec, weights: RnnWeights) -> RnnWeights:
    if weights.layer is not None:
        return weights
    width = spec.gates * spec.hidden_size
    eye = np.eye(width, dtype=weights.iter.dtype)
    return replace(weights, layer=eye.reshape(1, 1, width, spec.gates, spec.hidden_size))


# --- gates


def permutations(spec: RnnSpec, most: int = 4) -> Iterator[PartFault]:
    """Gates taken for each other, at most so many at once; those that swap two of them first."""
    gates = spec.cell.gates
    every = list(itertools.permutations(range(len(gates))))[1:]
    for order in sorted(every, key=_moved):
        moved = [gates[a] for a, b in enumerate(order) if a != b]
        if len(moved) == 2:
            text = f"gates {' and '.join(gate_name(spec, gate) for gate in moved)} are swapped"
        else:
            text = f"gates {', '.join(gates)} are taken from {', '.join(gates[b] for b in order)}"
        if len(moved) <= most:
            yield Fault("gates_swapped", text, _permuting(order))


def _moved(order: tuple[int, ...]) -> int:
    return sum(a != b for a, b in enumerate(order))


def _permuting(order: tuple[int, ...]) -> Callable[[Part], Array | None]:
    """Gate k becomes gate order[k]."""

    def apply(part: Part) -> Array | None:
        spec, name, array = part
        if name == "bias":
            return permuted_bias(spec, array, order)
        if name in ("layer", "iter"):
            return array[..., list(order), :]
        if name == "peephole" and order[2] == 2:  # the candidate has no peephole
            return array[..., [(0, 1, 3).index(order[k]) for k in (0, 1, 3)], :]
        return None

    return apply


def permuted_bias(spec: RnnSpec, bias: Array, order: tuple[int, ...]) -> Array:
    """Rows as gates. LBR cells hold the candidate's in two rows; any other gate has their sum."""
    if spec.cell.linear_before_reset and order[2] != 2:
        return np.concatenate([merged(bias)[..., list(order), :], bias[..., 3:, :] * 0], axis=-2)
    return np.concatenate([bias[..., list(order), :], bias[..., len(order) :, :]], axis=-2)


def signs(spec: RnnSpec) -> Iterator[PartFault]:
    """The update gate with the other sign; swapped where a reader turns the sign (Paddle)."""
    if spec.cell.is_gru:
        text = "the update gate has the other sign"
        yield Fault("update_sign", text, lambda part: scaled(part[2], 0, -1))
        swap = _permuting((1, 0, 2))

        def swapped(part: Part) -> Array | None:
            array = swap(part)
            return None if array is None else scaled(array, slice(0, 2), -1)

        gates = " and ".join(gate_name(spec, gate) for gate in "ur")
        yield Fault("gates_swapped", f"gates {gates} are swapped, with origin_mode=False", swapped)


def scaled(array: Array, rows: int | slice, by: float) -> Array:
    """With some gates' numbers multiplied."""
    out = array.copy()
    out[..., rows, :] *= array.dtype.type(by)
    return out


_FILED = {4: ((0, 1, 2, 3), (0, 3, 1, 2), (2, 0, 1, 3)), 3: ((0, 1, 2), (1, 0, 2)), 1: ((0,),)}
"""The gates in the order of files: PyTorch's, MXNet's and Keras's, ONNX's, Paddle's."""


def transposes(spec: RnnSpec) -> Iterator[tuple[str, PartFault]]:
    """A matrix that was read in another layout than the file has it in, and its array."""
    for name in ("iter", "layer"):
        called = _CALLED[name].removesuffix("s")
        text = f"the {called} is transposed, gate by gate"
        yield name, Fault("weight_transposed", text, _reading(_per_gate, _FILED[1][0], (name,)))
        for read, how in ((as_rows, "row by row"), (as_columns, "column by column")):
            for order in _FILED[spec.gates]:
                text = f"the {called} is read {how}"
                yield name, Fault("weight_transposed", text, _reading(read, order, (name,)))


def interleaved(spec: RnnSpec) -> Iterator[PartFault]:
    """Gates one number after the other, read as if they were blocks."""
    text = "gates are interleaved: the numbers of each unit stand together"
    for order in _FILED[spec.gates] if spec.gates > 1 else ():
        read = _reading(_interleaved, order, ("layer", "iter", "bias"))
        yield Fault("gates_swapped", text, read)


def _reading(
    read: Callable[[Array], Array | None], order: tuple[int, ...], names: tuple[str, ...]
) -> Callable[[Part], Array | None]:
    """What an array is where a file's numbers, with the gates in that order, were read so."""

    def apply(part: Part) -> Array | None:
        _, name, array = part
        if name not in names:
            return None
        if len(order) == 1:
            return read(array)
        if array.shape[-2] != len(order):  # an LBR cell's bias
            return None
        made = read(array[..., list(order), :])
        return None if made is None else made[..., np.argsort(order), :]

    return apply


def _per_gate(array: Array) -> Array | None:
    return np.swapaxes(array, 2, 4) if array.shape[2] == array.shape[4] else None


def as_rows(array: Array) -> Array:
    """As read as (R, G*O) where the file holds (G*O, R)."""
    return np.moveaxis(array, 2, 4).reshape(array.shape)


def as_columns(array: Array) -> Array:
    """As read as (G*O, R) where the file holds (R, G*O)."""
    one, d, r, g, o = array.shape
    return np.moveaxis(array.reshape(one, d, g, o, r), 4, 2)


def _interleaved(array: Array) -> Array | None:
    """As read as (G, O) where the file holds (O, G)."""
    *rest, gates, units = array.shape
    return np.swapaxes(array.reshape(*rest, units, gates), -1, -2)


# --- settings


def setting(id: str, text: str, **values: Any) -> LayerFault:
    """Another specification, of the same numbers."""

    def apply(layer: Layer) -> Layer | None:
        spec, weights = layer
        if all(getattr(spec, name) == value for name, value in values.items()):
            return None
        return replace(spec, **values), weights

    return Fault(id, text, apply)


def other_update(spec: RnnSpec) -> LayerFault:
    other = "replace" if spec.update == "keep" else "keep"
    text = "the update gate has the other sign (u keeps the new state, not the old one)"
    return setting("update_sign", text, update=other)


_LINEAR = {Cell.GRU: Cell.LBR_GRU, Cell.AUGRU: Cell.LBR_AUGRU}
_PLAIN = {linear: plain for plain, linear in _LINEAR.items()}


def resets(spec: RnnSpec) -> Iterator[LayerFault]:
    """The reset gate on the other side of the recurrent product."""
    if spec.cell in _PLAIN:
        text = "the reset gate is applied before the recurrent product, to the state"
        yield Fault("reset_placement", text, _reset_sooner)
    elif spec.cell in _LINEAR:
        text = "the reset gate is applied after the recurrent product (linear before reset)"
        for inside in (0.0, 1.0, 0.5):
            yield Fault("reset_placement", text, partial(_reset_later, inside=inside))


def _reset_later(layer: Layer, inside: float) -> Layer | None:
    """``inside``: the part of the candidate's bias that is reset, too."""
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
    bias = None if weights.bias is None else merged(weights.bias)[..., :3, :]
    return replace(spec, cell=_PLAIN[spec.cell]), replace(weights, bias=bias)


_OF_GATES = (
    Activation("sigmoid"),
    Activation("hardsigmoid", 0.2, 0.5),
    Activation("hardsigmoid", 1 / 6, 0.5),
)
_OF_STATES = tuple(map(Activation, ("tanh", "relu", "sigmoid", "softsign")))
"""What frameworks have by default, or may be asked for; Keras 3 divides by 6, ONNX by 5."""


def function_fault(spec: RnnSpec, places: tuple[int, ...], other: Activation) -> LayerFault:
    """Another function: of the gates (0), the candidate (1), the cell (2)."""
    several = len(spec.functions) > 1
    called = ("the gates", "the candidate", "the cell") if several else ("the state",)
    what = " and ".join(called[k] for k in places)
    functions = tuple(other if k in places else f for k, f in enumerate(spec.functions))
    return setting(
        "activation_changed", f"the function of {what} is {other}", activations=functions
    )


def _functions(spec: RnnSpec) -> Iterator[LayerFault]:
    places: tuple[tuple[int, ...], ...] = ((0,), (1,), (1, 2), (2,))
    if len(spec.functions) < 3:
        places = places[: len(spec.functions)]
    for indices in places:
        gates = indices == (0,) and len(spec.functions) > 1
        for other in _OF_GATES if gates else _OF_STATES:
            if any(spec.functions[k] != other for k in indices):
                yield function_fault(spec, indices, other)


def clip_fault(name: str, bound: float | tuple[float, float] | None) -> LayerFault:
    """Other clips: "gate_clip", or "cell_clip" to (low, high); None: no clip."""
    what = "gates are" if name == "gate_clip" else "the cell state is"
    if bound is None:
        values: dict[str, Any] = {"cell_clip_nan": False} if name == "cell_clip" else {}
        return setting("clip_ignored", f"{what} not clipped", **{name: None}, **values)
    low, high = bound if isinstance(bound, tuple) else (-bound, bound)
    text = f"{what} clipped to [{low:.6g}, {high:.6g}]"
    return setting("clip_ignored", text, **{name: bound if name == "gate_clip" else (low, high)})


# --- biases


def _biases(spec: RnnSpec) -> Iterator[LayerFault]:
    def fault(id: str, text: str, function: Callable[[Array], Array]) -> LayerFault:
        return in_arrays(Fault(id, text, lambda part: function(part[2])), ("bias",), text)

    halved, doubled = "halved: it is added twice", "doubled"
    for by, how in ((0.5, halved), (2, doubled)):
        yield fault("bias_doubled", f"its bias is {how}", partial(scaled, rows=slice(None), by=by))
    if spec.cell is Cell.LSTM:
        for by, how in ((1, "larger"), (-1, "smaller")):
            text = f"the bias of gate f (forget) is {how} by 1"
            yield Fault("bias_shifted", text, partial(_shifted, by=by))
    if not spec.cell.linear_before_reset:
        return
    text = "both biases of the candidate are merged into one outside the reset gate's product"
    yield fault("bias_merged", text, merged)
    for row, name in ((3, "recurrent"), (2, "input")):
        text = f"the candidate's {name} bias is left out"
        yield fault("bias_merged", text, partial(scaled, rows=row, by=0))
        for by, how in ((0.5, halved), (2, doubled)):
            text = f"the candidate's {name} bias is {how}"
            yield fault("bias_doubled", text, partial(scaled, rows=row, by=by))


def _shifted(layer: Layer, by: float) -> Layer:
    spec, weights = layer
    bias = bias_of(spec, weights).copy()
    bias[..., 1, :] += bias.dtype.type(by)
    return spec, replace(weights, bias=bias)


# --- all of them


def layer_faults(spec: RnnSpec) -> Iterator[LayerFault]:
    """The faults that layers like this one can have, the frequent ones first."""
    for fault in permutations(spec):
        yield in_layer(fault)
        if spec.peephole:
            yield in_layer(fault, "peephole")
    if spec.cell.is_gru:
        yield other_update(spec)
        sign, swap = signs(spec)
        yield from (in_arrays(sign, arrays) for arrays in PARTS)
        yield in_layer(swap)
    yield from resets(spec)
    yield from _biases(spec)
    for name in ("gate_clip", "cell_clip"):
        if getattr(spec, name) is not None:
            yield clip_fault(name, None)
    yield from _functions(spec)
    for name, fault in transposes(spec):
        yield in_arrays(fault, (name,), fault.text)
    yield from map(in_layer, interleaved(spec))
    for arrays in PARTS:
        yield from (in_arrays(fault, arrays) for fault in permutations(spec, most=2))
    if spec.peephole:
        for fault in peephole_orders():
            yield in_arrays(fault, ("peephole",), fault.text)


def rare_faults(spec: RnnSpec) -> Iterator[LayerFault]:
    """Many that hardly anybody makes, to be tried after all others."""
    usual = {fault.text for fault in permutations(spec, most=2)}
    for arrays in PARTS:
        for fault in permutations(spec):
            if fault.text not in usual:
                yield in_arrays(fault, arrays)


def peephole_orders() -> Iterator[PartFault]:
    """Peepholes taken for each other."""
    for order in list(itertools.permutations(range(3)))[1:]:
        text = f"peepholes i, f, o are taken from {', '.join('ifo'[k] for k in order)}"
        yield Fault("gates_swapped", text, partial(_rows, order=list(order)))


def _rows(part: Part, order: list[int]) -> Array | None:
    return part[2][..., order, :] if part[1] == "peephole" else None
