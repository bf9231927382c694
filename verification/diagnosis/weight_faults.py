"""What goes wrong in a recurrent layer's numbers, as changes of one layer in one direction.

Each change maps (spec, weights) to what somebody with that fault would compute, or undoes it; None
where the layer has nothing of the kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from onernn.core.arrays import Array
from onernn.core.spec import Activation, Cell, RnnSpec
from onernn.core.weights import RnnWeights
from onernn.verification.diagnosis.gate_faults import (
    PARTS,
    Change,
    SpecAndWeights,
    WeightFault,
    named,
    on_arrays,
    partial_permutations,
    whole_permutations,
)

_LINEAR = {
    Cell.GRU: Cell.LBR_GRU,
    Cell.AUGRU: Cell.LBR_AUGRU,
}
_PLAIN = {linear: plain for plain, linear in _LINEAR.items()}


def weight_faults(spec: RnnSpec) -> Iterator[WeightFault]:
    """The faults that layers like this one can have, the frequent ones first."""
    yield from whole_permutations(spec)
    yield from _updates(spec)
    yield from _resets(spec)
    yield from _biases(spec)
    yield from _clips(spec)
    yield from _activations(spec)
    yield from _transposed()
    yield from partial_permutations(spec)


def _updates(spec: RnnSpec) -> Iterator[WeightFault]:
    if not spec.cell.is_gru:
        return
    sign = "the update gate has the other sign"
    whole = f"{sign} (u keeps the new state, not the old one)"
    yield WeightFault("update_sign", whole, _with_other_update)
    for arrays in PARTS:
        text = f"{sign} in the {named(arrays)} only"
        yield WeightFault("update_sign", text, on_arrays(arrays, partial(_scaled, gate=0, by=-1)))


def _with_other_update(
    spec: RnnSpec, weights: RnnWeights, _: RnnWeights | None
) -> SpecAndWeights | None:
    return replace(spec, update="replace" if spec.update == "keep" else "keep"), weights


def _scaled(array: Array, gate: int | slice, by: float) -> Array:
    """With a gate's numbers multiplied."""
    out = array.copy()
    out[..., gate, :] *= array.dtype.type(by)
    return out


def _resets(spec: RnnSpec) -> Iterator[WeightFault]:
    if spec.cell in _LINEAR:
        after = "the reset gate is applied after the recurrent product (linear before reset)"
        for inside in (0.0, 1.0, 0.5, None):
            yield WeightFault("reset_placement", after, partial(_reset_later, inside=inside))
    elif spec.cell in _PLAIN:
        before = "the reset gate is applied before the recurrent product, to the state"
        yield WeightFault("reset_placement", before, _reset_sooner)


def _reset_later(
    spec: RnnSpec, weights: RnnWeights, other: RnnWeights | None, inside: float | None
) -> SpecAndWeights | None:
    """``inside``: the part of the candidate's bias that is reset, too; None: the other model's."""
    bias = weights.bias
    if inside is None:
        if other is None or other.bias is None or other.bias.shape[2] != 4:
            return None
        bias = other.bias
    elif bias is not None:
        o = bias[..., 2:3, :]
        bias = np.concatenate([bias[..., :2, :], (1 - inside) * o, inside * o], axis=-2)
    elif inside:
        return None
    return replace(spec, cell=_LINEAR[spec.cell]), replace(weights, bias=bias)


def _reset_sooner(
    spec: RnnSpec, weights: RnnWeights, _: RnnWeights | None
) -> SpecAndWeights | None:
    bias = None if weights.bias is None else merged(weights.bias)[..., :3, :]
    return replace(spec, cell=_PLAIN[spec.cell]), replace(weights, bias=bias)


def merged(bias: Array) -> Array:
    """Both rows of an LBR cell's candidate as one, outside r*(...)."""
    out = bias.copy()
    out[..., 2, :] += out[..., 3, :]
    out[..., 3, :] = 0
    return out


def _biases(spec: RnnSpec) -> Iterator[WeightFault]:
    def fault(cause: str, text: str, function: Callable[[Array], Array]) -> WeightFault:
        return WeightFault(cause, text, on_arrays(("bias",), function))

    every = slice(None)
    halved, doubled = "halved: it is added twice", "doubled"
    for by, how in ((0.5, halved), (2, doubled)):
        yield fault("bias_doubled", f"its bias is {how}", partial(_scaled, gate=every, by=by))
    if spec.cell is Cell.LSTM:
        for by, how in ((1, "larger"), (-1, "smaller")):
            text = f"the bias of gate f (forget) is {how} by 1"
            yield WeightFault("bias_shifted", text, partial(_shifted, by=by))
    if not spec.cell.linear_before_reset:
        return
    told = "both biases of the candidate are merged into one outside the reset gate's product"
    yield fault("bias_merged", told, merged)
    for row, name in ((3, "recurrent"), (2, "input")):
        left_out = f"the candidate's {name} bias is left out"
        yield fault("bias_merged", left_out, partial(_scaled, gate=row, by=0))
        for by, how in ((0.5, halved), (2, doubled)):
            text = f"the candidate's {name} bias is {how}"
            yield fault("bias_doubled", text, partial(_scaled, gate=row, by=by))


def _shifted(
    spec: RnnSpec, weights: RnnWeights, _: RnnWeights | None, by: float
) -> SpecAndWeights | None:
    bias = bias_of(spec, weights).copy()
    bias[..., 1, :] += bias.dtype.type(by)
    return spec, replace(weights, bias=bias)


def bias_of(spec: RnnSpec, weights: RnnWeights) -> Array:
    """The bias of one layer and direction, zeros where it has none."""
    if weights.bias is not None:
        return weights.bias
    return np.zeros((1, 1, spec.cell.bias_rows, spec.hidden_size), weights.iter.dtype)


_GATES = (
    Activation("sigmoid"),
    Activation("hardsigmoid", 0.2, 0.5),
    Activation("hardsigmoid", 1 / 6, 0.5),
)
_STATES = tuple(map(Activation, ("tanh", "relu", "sigmoid", "softsign")))
"""What frameworks have by default, or may be asked for; Keras 3 divides by 6, ONNX by 5."""


def _activations(spec: RnnSpec) -> Iterator[WeightFault]:
    """Another function for the gates, for the candidate, for the cell state, or for both."""
    found = spec.functions
    if len(found) == 1:
        places: list[tuple[str, tuple[int, ...]]] = [("the state", (0,))]
    else:
        places = [("the gates", (0,)), ("the candidate", (1,))]
    if len(found) == 3:
        places += [("the candidate and the cell", (1, 2)), ("the cell", (2,))]
    for what, indices in places:
        for other in _GATES if what == "the gates" else _STATES:
            functions = tuple(other if k in indices else f for k, f in enumerate(found))
            if functions != found:
                text = f"the function of {what} is {other}"
                yield WeightFault("activation_changed", text, partial(_with_functions, functions))


def _with_functions(
    functions: tuple[Activation, ...], spec: RnnSpec, weights: RnnWeights, _: RnnWeights | None
) -> SpecAndWeights | None:
    return replace(spec, activations=functions), weights


def _clips(spec: RnnSpec) -> Iterator[WeightFault]:
    for name, what in (("gate_clip", "gates are"), ("cell_clip", "the cell state is")):
        yield WeightFault("clip_ignored", f"{what} not clipped", partial(_unclipped, name=name))


def _unclipped(
    spec: RnnSpec, weights: RnnWeights, _: RnnWeights | None, name: str
) -> SpecAndWeights | None:
    if getattr(spec, name) is None:
        return None
    if name == "gate_clip":
        return replace(spec, gate_clip=None), weights
    return replace(spec, cell_clip=None, cell_clip_nan=False), weights


def clipped(name: str, bound: float) -> Change:
    """Layers without a clip with one: "gate_clip", or "cell_clip" to [-bound, bound]."""

    def change(spec: RnnSpec, weights: RnnWeights, _: RnnWeights | None) -> SpecAndWeights | None:
        if getattr(spec, name) is not None or (name == "cell_clip" and spec.cell is not Cell.LSTM):
            return None
        if name == "gate_clip":
            return replace(spec, gate_clip=bound), weights
        return replace(spec, cell_clip=(-bound, bound)), weights

    return change


def _transposed() -> Iterator[WeightFault]:
    for name, called in (("iter", "recurrent weight"), ("layer", "input weight")):
        for function, how in (
            (per_gate, "is transposed, gate by gate"),
            (as_rows, "is read row by row"),
            (as_columns, "is read column by column"),
        ):
            change = partial(_reread, name=name, function=function)
            yield WeightFault("weight_transposed", f"the {called} {how}", change)


def _reread(
    spec: RnnSpec,
    weights: RnnWeights,
    _: RnnWeights | None,
    name: str,
    function: Callable[[Array], Array],
) -> SpecAndWeights | None:
    array = getattr(weights, name)
    if array is None or function is per_gate and array.shape[2] != array.shape[4]:
        return None
    return spec, replace(weights, **{name: function(array)})


def per_gate(array: Array) -> Array:
    return np.swapaxes(array, 2, 4)


def as_rows(array: Array) -> Array:
    """As read as (R, G*O) where the file holds (G*O, R)."""
    return np.moveaxis(array, 2, 4).reshape(array.shape)


def as_columns(array: Array) -> Array:
    """As read as (G*O, R) where the file holds (R, G*O)."""
    one, d, r, g, o = array.shape
    return np.moveaxis(array.reshape(one, d, g, o, r), 4, 2)
