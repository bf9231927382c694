"""What goes wrong in a recurrent layer's numbers, as changes of one layer in one direction.

Each change maps (spec, weights) to what somebody with that fault would compute, or undoes it; None
where the layer has nothing of the kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from onernn.core.arrays import Array
from onernn.core.spec import Cell, RnnSpec
from onernn.core.weights import RnnWeights
from onernn.verification.diagnosis.gate_faults import (
    Change,
    SpecAndWeights,
    WeightFault,
    partial_permutations,
    projected_spec,
    projecting,
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
    yield from _transposed()
    yield from partial_permutations(spec)


def _updates(spec: RnnSpec) -> Iterator[WeightFault]:
    if not spec.cell.is_gru:
        return

    def turned(spec: RnnSpec, weights: RnnWeights, _: RnnWeights | None) -> SpecAndWeights:
        return replace(spec, update="replace" if spec.update == "keep" else "keep"), weights

    sign = "the update gate has the other sign (u keeps the new state, not the old one)"
    yield WeightFault("update_sign", sign, turned)
    for arrays in (
        ("bias",),
        ("layer", "iter"),
        ("iter",),
        ("layer",),
        ("iter", "bias"),
        ("layer", "bias"),
    ):
        where = " and ".join(
            {"layer": "input weights", "iter": "recurrent weights"}.get(a, a) for a in arrays
        )

        def negated(
            spec: RnnSpec,
            weights: RnnWeights,
            _: RnnWeights | None,
            arrays: tuple[str, ...] = arrays,
        ) -> SpecAndWeights | None:
            weights = projecting(spec, weights)
            new: dict[str, Array] = {}
            for name in arrays:
                array = getattr(weights, name)
                if array is None:
                    return None
                new[name] = array.copy()
                new[name][..., 0, :] *= -1
            made = replace(weights, **new)
            return projected_spec(spec, made), made

        yield WeightFault(
            "update_sign", f"the update gate has the other sign in the {where} only", negated
        )


def _resets(spec: RnnSpec) -> Iterator[WeightFault]:
    if spec.cell in _LINEAR:
        after = "the reset gate is applied after the recurrent product (linear before reset)"
        for inside in (0.0, 1.0, 0.5, None):

            def later(
                spec: RnnSpec,
                weights: RnnWeights,
                other: RnnWeights | None,
                inside: float | None = inside,
            ) -> SpecAndWeights | None:
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

            yield WeightFault("reset_placement", after, later)
    elif spec.cell in _PLAIN:

        def sooner(spec: RnnSpec, weights: RnnWeights, _: RnnWeights | None) -> SpecAndWeights:
            bias = None if weights.bias is None else _merged(weights.bias)[..., :3, :]
            return replace(spec, cell=_PLAIN[spec.cell]), replace(weights, bias=bias)

        before = "the reset gate is applied before the recurrent product, to the state"
        yield WeightFault("reset_placement", before, sooner)


def _merged(bias: Array) -> Array:
    """Both rows of an LBR cell's candidate as one, outside r*(...)."""
    out = bias.copy()
    out[..., 2, :] += out[..., 3, :]
    out[..., 3, :] = 0
    return out


def _biases(spec: RnnSpec) -> Iterator[WeightFault]:
    def rows(function: Callable[[Array], Array]) -> Change:
        def change(
            spec: RnnSpec, weights: RnnWeights, _: RnnWeights | None
        ) -> SpecAndWeights | None:
            if weights.bias is None:
                return None
            return spec, replace(weights, bias=function(weights.bias))

        return change

    def scaled(row: int, factor: float) -> Callable[[Array], Array]:
        def scale(bias: Array) -> Array:
            out = bias.copy()
            out[..., row, :] *= bias.dtype.type(factor)
            return out

        return scale

    yield WeightFault(
        "bias_doubled",
        "its bias is halved: it is added twice",
        rows(lambda b: b * b.dtype.type(0.5)),
    )
    yield WeightFault("bias_doubled", "its bias is doubled", rows(lambda b: b * b.dtype.type(2)))
    if not spec.cell.linear_before_reset:
        return
    merged = "both biases of the candidate are merged into one outside the reset gate's product"
    yield WeightFault("bias_merged", merged, rows(_merged))
    for row, name in ((3, "recurrent"), (2, "input")):
        yield WeightFault(
            "bias_merged", f"the candidate's {name} bias is left out", rows(scaled(row, 0))
        )
        for factor, how in ((0.5, "halved: it is added twice"), (2, "doubled")):
            text = f"the candidate's {name} bias is {how}"
            yield WeightFault("bias_doubled", text, rows(scaled(row, factor)))


def borrowed_bias(
    spec: RnnSpec, weights: RnnWeights, other: RnnWeights | None
) -> SpecAndWeights | None:
    """The layer with the other model's bias; None where that is the same."""
    if other is None:
        return None
    zeros = np.zeros((1, 1, spec.cell.bias_rows, spec.hidden_size), weights.iter.dtype)
    mine, theirs = (zeros if w.bias is None else w.bias for w in (weights, other))
    if theirs.shape != mine.shape or np.array_equal(mine, theirs):
        return None
    return spec, replace(weights, bias=theirs.astype(weights.iter.dtype))


def _clips(spec: RnnSpec) -> Iterator[WeightFault]:
    for name, what in (("gate_clip", "gates are"), ("cell_clip", "the cell state is")):

        def unclipped(
            spec: RnnSpec, weights: RnnWeights, _: RnnWeights | None, name: str = name
        ) -> SpecAndWeights | None:
            if getattr(spec, name) is None:
                return None
            if name == "gate_clip":
                return replace(spec, gate_clip=None), weights
            return replace(spec, cell_clip=None, cell_clip_nan=False), weights

        yield WeightFault("clip_ignored", f"{what} not clipped", unclipped)


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
    def per_gate(array: Array) -> Array:
        return np.swapaxes(array, 2, 4)

    def as_rows(array: Array) -> Array:  # read as (R, G*O) where the file holds (G*O, R)
        flat = np.moveaxis(array, 2, 4).reshape(-1)
        return flat.reshape(array.shape)

    def as_columns(array: Array) -> Array:  # and the other way round
        one, d, r, g, o = array.shape
        return np.moveaxis(array.reshape(one, d, g, o, r), 4, 2)

    ways = (
        (per_gate, "is transposed, gate by gate"),
        (as_rows, "is read row by row"),
        (as_columns, "is read column by column"),
    )
    for name, called in (("iter", "recurrent weight"), ("layer", "input weight")):
        for function, how in ways:

            def change(
                spec: RnnSpec,
                weights: RnnWeights,
                _: RnnWeights | None,
                name: str = name,
                function: Callable[[Array], Array] = function,
            ) -> SpecAndWeights | None:
                array = getattr(weights, name)
                if array is None or function is per_gate and array.shape[2] != array.shape[4]:
                    return None
                return spec, replace(weights, **{name: function(array)})

            yield WeightFault("weight_transposed", f"the {called} {how}", change)
