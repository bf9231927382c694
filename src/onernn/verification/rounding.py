"""What rounding errors make of a model's outputs: the reason for a wider tolerance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from onernn.engine.session import Session
from onernn.ir.arrays import Array
from onernn.ir.errors import OnernnError
from onernn.ir.graph import Graph
from onernn.ir.ragged import Batch, Ragged, data_of
from onernn.ir.rnn import Recurrent
from onernn.verification.aligning import in_one_form
from onernn.verification.comparing import Tolerance, differences
from onernn.verification.graph_changes import with_layers
from onernn.verification.tracing import fast_backend

_DRAWS = 3
_MULTIPLE = 8
"""Two right implementations round at some steps each, a draw rounds once: a small multiple."""
_MOST = 1e-3
"""Of the largest value: a chaotic model is not excused, its outputs cannot be compared."""


def rounding(
    model: Graph,
    inputs: Mapping[str, Batch],
    expected: Mapping[str, Batch],
    asked: Mapping[str, Tolerance],
) -> dict[str, Tolerance]:
    """For each output its tolerance asked for, widened by what moves it when all numbers round.

    All floats of inputs and weights are moved by one unit in the last place of float32, up or
    down at random; a small multiple of the largest change is allowed, at most a thousandth of the
    output's largest value.
    """
    out = dict(asked)
    rng = np.random.default_rng(0)
    try:
        still = _run(model, inputs)
        for _ in range(_DRAWS):
            moved = {name: _moved(value, rng) for name, value in inputs.items()}
            other = _run(_moved_graph(model, rng), moved)
            for name, want in expected.items():
                out[name] = _wider(out[name], still[name], other[name], want)
    except OnernnError:
        return dict(asked)
    return out


def _run(model: Graph, inputs: Mapping[str, Batch]) -> dict[str, Batch]:
    return Session(model, backend=fast_backend(), threads=1).run(inputs)


def _wider(found: Tolerance, one: Batch, other: Batch, want: Batch) -> Tolerance:
    a, b = data_of(one), data_of(other)
    reference = data_of(in_one_form(one, want)[1])
    if a.dtype.kind != "f" or a.shape != b.shape or not reference.size:
        return found
    apart = differences(a, b)
    largest = np.abs(reference[np.isfinite(reference)]).max(initial=0)
    allowed = _MULTIPLE * float(apart[np.isfinite(apart)].max(initial=0))
    return replace(found, atol=max(found.atol, min(allowed, _MOST * float(largest))))


def _moved(value: Any, rng: np.random.Generator) -> Any:
    """Floats one unit in the last place up or down; everything else as it is."""
    if isinstance(value, Ragged):
        return value.with_data(_moved(value.data, rng))
    array: Array = np.asarray(value)
    if array.dtype.kind != "f":
        return value
    eps = np.finfo(np.float32).eps
    return (array * (1 + eps * rng.choice([-1.0, 1.0], array.shape))).astype(array.dtype)


def _moved_graph(model: Graph, rng: np.random.Generator) -> Graph:
    def moved(rnn: Recurrent) -> Recurrent:
        layers = [each.mapped(lambda array: _moved(array, rng)) for each in rnn.layers]
        return replace(rnn, weights=layers)

    constants = {name: _moved(array, rng) for name, array in model.constants.items()}
    return replace(with_layers(model, moved) or model, constants=constants)
