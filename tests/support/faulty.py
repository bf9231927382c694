"""A framework that errs in one of the ways in which converters err; for tests that must find it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from onernn import Cell, Ragged, RnnWeights
from onernn.backend import reference_stack
from onernn.verification.sample_layers import DIRECTIONS
from onernn.verification.suite import Case

GRUS, LSTMS = ("gru", "lbr_gru"), ("lstm", "lstm_peephole", "lstm_projection")
CLIPPED = ("lstm_cell_clip", "lstm_gate_clip", "gru_gate_clip", "lbr_gru_gate_clip")
PLAIN = ("rnn_tanh", "rnn_relu", "rnn_sigmoid")


Outputs = tuple[list[np.ndarray], tuple[np.ndarray, ...]]


def run(case: Case) -> Outputs:
    """What a framework without faults gives, in float32."""
    layer = reference_stack(case.spec, case.weights)
    y, state = layer.run(case.x, case.state, case.attention)
    assert isinstance(y, Ragged)
    return y.to_list(), state


def over_padding(case: Case) -> Outputs:
    """The padding belongs to the sentences."""
    layer = reference_stack(case.spec, case.weights)
    y, state = layer.run(case.padded(time_major=True), case.state)
    return case.cut(y, time_major=True), state


def reversed_in_padding(case: Case) -> Outputs:
    """Rows are turned round as they stand in the batch, so that the padding comes first."""
    rows = case.padded()[:, ::-1]
    forward = replace(case.spec, direction="left2right")
    words = case.x.with_data(np.concatenate(case.cut(rows)))
    y, state = run(replace(case, x=words, spec=forward))
    return case.cut(words.with_data(np.concatenate(y)).to_padded()[:, ::-1]), state


def weights(case: Case, change: Callable[[RnnWeights], RnnWeights]) -> Case:
    return replace(case, weights=tuple(change(each) for each in case.weights))


def gates(case: Case, change: Callable[[np.ndarray], np.ndarray]) -> Case:
    """``change`` of all gates, (..., G, O); a fourth row of biases stays where it is."""
    count = case.spec.gates

    def changed(part: RnnWeights) -> RnnWeights:
        bias = np.concatenate([change(part.bias[..., :count, :]), part.bias[..., count:, :]], -2)
        return replace(part, layer=change(part.layer), iter=change(part.iter), bias=bias)

    return weights(case, changed)


def swapped(array: np.ndarray) -> np.ndarray:
    """The first two gates have changed places."""
    return np.concatenate([array[..., 1::-1, :], array[..., 2:, :]], axis=-2)


def turned(array: np.ndarray) -> np.ndarray:
    """The first gate has the other sign."""
    return array * np.reshape([-1, 1, 1], (3, 1)).astype(array.dtype)


def other_reset(case: Case) -> Case:
    """The reset gate stands on the other side of the product."""
    behind = case.spec.cell is Cell.LBR_GRU

    def changed(part: RnnWeights) -> RnnWeights:
        rows, extra = part.bias[..., :3, :], part.bias[..., 2:3, :]
        return replace(part, bias=rows if behind else np.concatenate([rows, extra * 0], -2))

    cell = Cell.GRU if behind else Cell.LBR_GRU
    return replace(weights(case, changed), spec=replace(case.spec, cell=cell))


def merged_bias(part: RnnWeights) -> RnnWeights:
    bias = part.bias.copy()
    bias[..., 2, :] += bias[..., 3, :]
    bias[..., 3, :] = 0
    return replace(part, bias=bias)


def unclipped(case: Case) -> Case:
    return replace(case, spec=replace(case.spec, gate_clip=None, cell_clip=None))


def other_directions(case: Case) -> Case:
    """Both directions have each other's weights; a single one runs the other way."""
    if case.spec.directions == 1:
        way = "left2right" if case.spec.direction == "right2left" else "right2left"
        return replace(case, spec=replace(case.spec, direction=way))
    parts = ("layer", "iter", "bias", "peephole", "projection")

    def changed(part: RnnWeights) -> RnnWeights:
        arrays = (getattr(part, name) for name in parts)
        return RnnWeights(*(None if a is None else a[:, ::-1] for a in arrays))

    return weights(case, changed)


def of(change: Callable[[Case], Case]) -> Callable[[Case], Outputs]:
    """A framework that runs another layer than it was given."""
    return lambda case: run(change(case))


def doubled_bias(part: RnnWeights) -> RnnWeights:
    return replace(part, bias=2 * part.bias)


def transposed(part: RnnWeights) -> RnnWeights:
    return replace(part, iter=np.swapaxes(part.iter, 2, 4))


ALL = (*GRUS, *LSTMS, *PLAIN)
FAULTS: dict[str, tuple[tuple[str, ...], Sequence[str], Callable[[Case], Outputs]]] = {
    "gates_swapped": ((*GRUS, *LSTMS), DIRECTIONS, of(lambda case: gates(case, swapped))),
    "update_sign": (GRUS, DIRECTIONS, of(lambda case: gates(case, turned))),
    "reset_placement": (GRUS, DIRECTIONS, of(other_reset)),
    "bias_merged": (("lbr_gru",), DIRECTIONS, of(lambda case: weights(case, merged_bias))),
    "bias_doubled": (ALL, DIRECTIONS, of(lambda case: weights(case, doubled_bias))),
    "h0_dropped": (ALL, DIRECTIONS, of(lambda case: replace(case, state=None))),
    "mask_ignored": (ALL, DIRECTIONS, over_padding),
    "reverse_padded": (ALL, ("right2left",), reversed_in_padding),
    "clip_ignored": (CLIPPED, DIRECTIONS, of(unclipped)),
    "weight_transposed": (
        (*GRUS, "lstm", *PLAIN),
        DIRECTIONS,
        of(lambda c: weights(c, transposed)),
    ),
    "direction_swapped": (ALL, DIRECTIONS, of(other_directions)),
}
"""By the ids of `onernn verify`'s causes: cells and directions it concerns, and what it gives."""
