"""A framework that errs in one of the ways in which converters err; for tests that must find it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from onernn import Ragged
from onernn.adapters.common.fault import FaultyModel
from onernn.backend import reference_stack
from onernn.verification.auditing import AuditRun
from onernn.verification.diagnosis.faults import layer_faults
from onernn.verification.suite import DIRECTIONS, Case

GRUS, LSTMS = ("gru", "lbr_gru"), ("lstm", "lstm_peephole", "lstm_projection")
CLIPPED = ("lstm_cell_clip", "lstm_gate_clip", "gru_gate_clip", "lbr_gru_gate_clip")
PLAIN = ("rnn_tanh", "rnn_relu", "rnn_sigmoid")


def predicted(
    model: FaultyModel[Any], path: str, recording: Mapping[str, np.ndarray]
) -> dict[str, Any]:
    """What a framework gives for recorded inputs on one of its paths, by its known faults."""
    run = AuditRun(model, recording)
    return run.outputs(run.faults_on(path))


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
    y, state = layer.run(case.pad(time_major=True), case.state)
    return case.cut(y, time_major=True), state


def reversed_in_padding(case: Case) -> Outputs:
    """Rows are turned round as they stand in the batch, so that the padding comes first."""
    rows = case.pad()[:, ::-1]
    forward = replace(case.spec, direction="left2right")
    words = case.x.with_data(np.concatenate(case.cut(rows)))
    y, state = run(replace(case, x=words, spec=forward))
    return case.cut(words.with_data(np.concatenate(y)).to_padded()[:, ::-1]), state


def faulty(case: Case, id: str) -> Case:
    """The layer with the first fault of this id that `onernn verify` knows of it."""
    for fault in (each for each in layer_faults(case.spec) if each.id == id):
        made = [fault.apply((case.spec, part)) for part in case.weights]
        if None not in made:
            specs, weights = zip(*made, strict=True)
            return replace(case, spec=specs[0], weights=weights)
    raise ValueError(f"{case.name} has no fault {id}")


def known(id: str) -> Callable[[Case], Outputs]:
    """A framework that runs another layer than it was given."""
    return lambda case: run(faulty(case, id))


def without_states(case: Case) -> Outputs:
    return run(replace(case, state=None))


def other_directions(case: Case) -> Outputs:
    """Both directions have each other's weights; a single one runs the other way."""
    if case.spec.directions == 1:
        way = "left2right" if case.spec.direction == "right2left" else "right2left"
        return run(replace(case, spec=replace(case.spec, direction=way)))
    turned = (part.map(lambda array: array[:, ::-1]) for part in case.weights)
    return run(replace(case, weights=tuple(turned)))


ALL = (*GRUS, *LSTMS, *PLAIN)
FAULTS: dict[str, tuple[tuple[str, ...], Sequence[str], Callable[[Case], Outputs]]] = {
    "gates_swapped": ((*GRUS, *LSTMS), DIRECTIONS, known("gates_swapped")),
    "update_sign": (GRUS, DIRECTIONS, known("update_sign")),
    "reset_placement": (GRUS, DIRECTIONS, known("reset_placement")),
    "bias_merged": (("lbr_gru",), DIRECTIONS, known("bias_merged")),
    "bias_doubled": (ALL, DIRECTIONS, known("bias_doubled")),
    "h0_dropped": (ALL, DIRECTIONS, without_states),
    "mask_ignored": (ALL, DIRECTIONS, over_padding),
    "reverse_padded": (ALL, ("right2left",), reversed_in_padding),
    "clip_ignored": (CLIPPED, DIRECTIONS, known("clip_ignored")),
    "weight_transposed": ((*GRUS, "lstm", *PLAIN), DIRECTIONS, known("weight_transposed")),
    "direction_swapped": (ALL, DIRECTIONS, other_directions),
}
"""By the ids of `onernn verify`'s causes: cells and directions it concerns, and what it gives."""
