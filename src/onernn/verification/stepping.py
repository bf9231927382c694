"""Models of one frame as models of sequences, proved equal before anybody uses them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import numpy as np

from onernn.engine.session import Session, checked_given
from onernn.fuse_passes import over_time as forms
from onernn.ir.arrays import Array
from onernn.ir.errors import OnernnError, UnsupportedError
from onernn.ir.graph import Graph, Value, graph_of
from onernn.ir.ragged import Batch, data_of
from onernn.verification.comparing import compare, tolerance_of
from onernn.verification.input_generation import make_inputs

_FRAMES = 7
_NOTHING: Mapping[str, Array] = MappingProxyType({})


def over_time(
    model: Graph | str | Path,
    states: Mapping[str, str],
    *,
    given: Mapping[str, Array] = _NOTHING,
    inputs: Mapping[str, Value] = MappingProxyType({}),
) -> Graph:
    """A model of one frame, over sequences: its inputs and outputs get an axis T in front.

    ``states``: the output that is the state of the next frame, by the input that takes it; they
    stay as they are, before the first frame and behind the last one. ``given``: arrays for inputs
    that the model shall no longer have, such as a sample rate. ``inputs``: what the model leaves
    open of others.

    Both forms run on made inputs, all frames at once, frame by frame, and in two parts. Raises
    `UnsupportedError` where they differ, or naming the operator that stands in the way.
    """
    graph = graph_of(model)
    step = forms.bound(graph, checked_given(graph, given), inputs)
    whole = _sized(forms.over_time(step, states), None)
    frames = _frames(step)
    step = _sized(step, None)
    start = {name: frames[0][name] for name in states}
    once, walked = Session(whole), Session(step)
    for part in (_FRAMES, 1):
        state = dict(start)
        found, expected = [], []
        for at in range(0, _FRAMES, part):
            few = [{**each, **state} for each in frames[at : at + part]]
            found.append(once.run(_stacked(whole, few, states)))
            for each in few:
                made = walked.run({**each, **state})
                state = {name: made[after] for name, after in states.items()}
                expected.append(made)
        _check(whole, states, found, expected)
    return whole


def _frames(step: Graph) -> list[dict[str, Batch]]:
    """Two of each size that is open; where the model does not run on such, what is found."""
    try:
        sized = _sized(step, 2)
        return [make_inputs(sized, empty=False, seed=at) for at in range(_FRAMES)]
    except OnernnError:
        sized = _sized(step, None)
        return [make_inputs(sized, empty=False, seed=at) for at in range(_FRAMES)]


def _sized(model: Graph, size: int | None) -> Graph:
    """The model with this size in the place of every one that is open or has a name."""

    def shape(value: Value) -> tuple[int | None, ...] | None:
        return value.shape and tuple(s if isinstance(s, int) else size for s in value.shape)

    return replace(model, inputs=tuple(replace(v, shape=shape(v)) for v in model.inputs))


def _stacked(
    whole: Graph, frames: list[dict[str, Batch]], states: Mapping[str, str]
) -> dict[str, Batch]:
    first = frames[0]
    framed = {v.name for v in whole.inputs if data_of(first[v.name]).ndim and v.name not in states}
    return {
        name: np.stack([data_of(each[name]) for each in frames]) if name in framed else value
        for name, value in first.items()
    }


def _check(
    whole: Graph,
    states: Mapping[str, str],
    found: list[dict[str, Batch]],
    expected: list[dict[str, Batch]],
) -> None:
    for value in whole.outputs:
        name = value.name
        if name in states.values():
            got, want = data_of(found[-1][name]), data_of(expected[-1][name])
        else:
            got = np.concatenate([data_of(each[name]) for each in found])
            want = np.stack([data_of(each[name]) for each in expected])
        dtype = "f32" if want.dtype.kind == "f" else "exact"
        verdict = compare(name, got, want, tolerance_of(dtype, None, None, want))
        if not verdict.passed:
            raise UnsupportedError(
                f"{whole.name} over time: output {name!r} is {verdict.max_abs:.3g} from that of"
                f" frame after frame {verdict.reason}; nothing is written"
            )
