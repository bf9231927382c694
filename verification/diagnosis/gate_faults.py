"""Gates taken for each other, in all of a layer's arrays or in some; and what a fault is."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from onernn.core.arrays import Array
from onernn.core.spec import Cell, RnnSpec
from onernn.core.weights import RnnWeights

SpecAndWeights = tuple[RnnSpec, RnnWeights]
Change = Callable[[RnnSpec, RnnWeights, RnnWeights | None], SpecAndWeights | None]
"""Of a layer, given the weights of its counterpart in the other model where there is one."""

NAMES = {"u": "update", "r": "reset", "i": "input", "f": "forget", "c": "candidate"}


class WeightFault(NamedTuple):
    """A cause, what to say of it after "matches when", and the change that shows it.

    ``rare``: one of many that hardly anybody makes, to be tried after all others.
    """

    cause: str
    text: str
    change: Change
    rare: bool = False


def on_arrays(names: tuple[str, ...], function: Callable[[Array], Array]) -> Change:
    """The change of these arrays; None where one is missing.

    Where "layer" is among them and the input is projected already, the projection is the identity.
    """

    def change(spec: RnnSpec, weights: RnnWeights, _: RnnWeights | None) -> SpecAndWeights | None:
        weights = projecting(spec, weights) if "layer" in names else weights
        arrays = {name: getattr(weights, name) for name in names}
        if any(array is None for array in arrays.values()):
            return None
        return _fitting(spec, replace(weights, **{k: function(a) for k, a in arrays.items()}))

    return change


def gate_name(spec: RnnSpec, gate: str) -> str:
    """As "u (update)": o is the output gate of an LSTM, and the candidate of a GRU."""
    name = NAMES.get(gate) or ("output" if spec.cell is Cell.LSTM else "candidate")
    return f"{gate} ({name})"


def permutations(spec: RnnSpec) -> Iterator[tuple[tuple[int, ...], str]]:
    """All but the identity, those that swap two gates first; with what to call them."""
    gates = spec.cell.gates
    every = list(itertools.permutations(range(len(gates))))[1:]
    for order in sorted(every, key=lambda p: sum(a != b for a, b in enumerate(p))):
        moved = [gates[a] for a, b in enumerate(order) if a != b]
        if len(moved) == 2:
            text = f"gates {' and '.join(gate_name(spec, gate) for gate in moved)} are swapped"
        else:
            text = f"gates {', '.join(gates)} are taken from {', '.join(gates[b] for b in order)}"
        yield order, text


def whole_permutations(spec: RnnSpec) -> Iterator[WeightFault]:
    for order, text in permutations(spec):
        yield WeightFault("gates_swapped", text, _permuted(order, ("layer", "iter", "bias")))
        if spec.peephole:
            peephole = ("layer", "iter", "bias", "peephole")
            yield WeightFault("gates_swapped", text, _permuted(order, peephole))
        if spec.cell.linear_before_reset and order[2] != 2:
            what = f"{text}, with the bias of the other model"
            yield WeightFault(
                "gates_swapped", what, _permuted(order, ("layer", "iter"), borrow=True)
            )


PARTS = (("iter",), ("layer",), ("bias",), ("layer", "iter"), ("iter", "bias"), ("layer", "bias"))
"""Arrays that somebody may have treated unlike the others."""


def named(arrays: tuple[str, ...]) -> str:
    """What a reader calls them."""
    called = {"layer": "input weights", "iter": "recurrent weights", "bias": "bias"}
    return " and ".join(called[name] for name in arrays)


def partial_permutations(spec: RnnSpec) -> Iterator[WeightFault]:
    for arrays in PARTS:
        for order, text in permutations(spec):
            told = f"{text} in the {named(arrays)} only"
            rare = sum(a != b for a, b in enumerate(order)) > 2
            yield WeightFault("gates_swapped", told, _permuted(order, arrays), rare)
    if spec.peephole:
        for order in list(itertools.permutations(range(3)))[1:]:
            index = list(order)
            yield WeightFault(
                "gates_swapped",
                f"peepholes i, f, o are taken from {', '.join('ifo'[k] for k in order)}",
                on_arrays(("peephole",), lambda array, index=index: array[..., index, :]),  # type: ignore[misc]
            )


def _permuted(order: tuple[int, ...], arrays: tuple[str, ...], *, borrow: bool = False) -> Change:
    """Gate k becomes gate order[k] in these arrays; with ``borrow`` the bias is the other's."""

    def change(
        spec: RnnSpec, weights: RnnWeights, other: RnnWeights | None
    ) -> SpecAndWeights | None:
        weights = projecting(spec, weights)
        index = list(order)
        new = weights
        if "layer" in arrays and weights.layer is not None:
            new = replace(new, layer=weights.layer[..., index, :])
        if "iter" in arrays:
            new = replace(new, iter=weights.iter[..., index, :])
        if "bias" in arrays and weights.bias is not None:
            new = replace(new, bias=permuted_bias(spec, weights.bias, order))
        if "peephole" in arrays and weights.peephole is not None:
            if order[2] != 2:
                return None  # the candidate has no peephole
            rows = [(0, 1, 3).index(order[k]) for k in (0, 1, 3)]
            new = replace(new, peephole=weights.peephole[..., rows, :])
        if borrow:
            if other is None or other.bias is None or weights.bias is None:
                return None
            if other.bias.shape != weights.bias.shape:
                return None
            new = replace(new, bias=other.bias)
        return _fitting(spec, new)

    return change


def permuted_bias(spec: RnnSpec, bias: Array, order: tuple[int, ...]) -> Array:
    """Rows as gates. LBR cells hold the candidate's in two rows; any other gate has their sum."""
    if not spec.cell.linear_before_reset or order[2] == 2:
        rest = bias[..., len(order) :, :]
        return np.concatenate([bias[..., list(order), :], rest], axis=-2)
    whole = bias[..., :3, :].copy()
    whole[..., 2, :] += bias[..., 3, :]
    whole = whole[..., list(order), :]
    return np.concatenate([whole, np.zeros_like(whole[..., :1, :])], axis=-2)


def projecting(spec: RnnSpec, weights: RnnWeights) -> RnnWeights:
    """With input weights: the identity where the input is projected already."""
    if weights.layer is not None:
        return weights
    width = spec.gates * spec.hidden_size
    eye = np.eye(width, dtype=weights.iter.dtype)
    return replace(weights, layer=eye.reshape(1, 1, width, spec.gates, spec.hidden_size))


def _fitting(spec: RnnSpec, weights: RnnWeights) -> SpecAndWeights:
    """With the input size that the weights have."""
    if weights.layer is None:
        return spec, weights
    return replace(spec, input_size=weights.layer.shape[2]), weights
