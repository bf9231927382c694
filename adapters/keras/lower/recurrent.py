"""The rules of SimpleRNN, LSTM, GRU, RNN of their cells, and Bidirectional.

Formulas: documentation and source of keras.layers of these names. Where Keras's backends differ,
what TensorFlow's does: see design/0057.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from onernn.adapters.keras.lower import activations
from onernn.adapters.keras.lower.layer import KerasLayer, Tensor, rule
from onernn.adapters.keras.lower.steps import Masked, Padded, Steps
from onernn.adapters.keras.read import group_names
from onernn.core.errors import UnsupportedError
from onernn.core.spec import Direction
from onernn.core.weights import RnnWeights
from onernn.reorders import keras as layout
from onernn.reorders.layers import PivotLayer

_CELLS = ("SimpleRNNCell", "LSTMCell", "GRUCell")


class _Layer(NamedTuple):
    """A recurrent layer: its cells from the lowest one, and how it goes through the steps."""

    cells: tuple[PivotLayer, ...]
    backwards: bool
    sequences: bool
    gives_states: bool
    stateful: bool
    zeros: bool
    time_major: bool
    unrolled: bool

    @property
    def widths(self) -> list[int]:
        """Of each state, in Keras's order."""
        return [cell.spec.hidden_size for cell in self.cells for _ in cell.spec.cell.states]


class _Made(NamedTuple):
    """``y``: of every step, in time's order; ``last`` of those that the layer went through."""

    y: str
    last: str
    states: tuple[str, ...]


def _cell(op: KerasLayer, inside: str = "") -> PivotLayer:
    """A cell, or what a layer of one cell says of it; its weights are ``inside``."""
    kind = op.at.type.removesuffix("Cell")
    units = op.integer("units")
    biased = op.flag("use_bias", True)
    names = ("kernel", "recurrent_kernel", "bias")[: 2 + biased]
    arrays = dict(zip(names, op.weights(*names, inside=inside), strict=True))
    gate = "hard_sigmoid" if op.major < 3 else "sigmoid"  # old files do not tell
    told = [op.config.get("activation", "tanh")]
    op.attribute("activation", None)
    if kind != "SimpleRNN":
        told = [op.config.get("recurrent_activation", gate), *told, *told[: kind == "LSTM"]]
        op.attribute("recurrent_activation", None)
    functions = [activations.of_gates(each, op.major) for each in told]
    for each, function in zip(told, functions, strict=True):
        if function is None:
            name = activations.name_of(each)
            raise UnsupportedError(f"{op.at.type} with {name}: no such gate or state is run")
    reset_after = None
    if kind == "GRU":
        after = biased and arrays["bias"].ndim == 2  # Keras before 2.1.4 knows no reset_after
        reset_after = op.flag("reset_after", after)
    known = tuple(function for function in functions if function is not None)
    plain = known[0].name if known[0].name in ("tanh", "relu", "sigmoid") else "tanh"
    layer = layout.read(arrays, reset_after=reset_after, function=plain, activations=known)
    expected = {"SimpleRNN": 1, "LSTM": 4, "GRU": 3}[kind]
    if layer.spec.hidden_size != units or layer.spec.gates != expected:
        raise UnsupportedError(f"attribute units={units}: the weights are those of {layer.spec}")
    return layer


def _cells(op: KerasLayer) -> tuple[PivotLayer, ...]:
    """Those of RNN's attribute cell."""
    told = op.attribute("cell", None)
    if isinstance(told, list):
        raise UnsupportedError("attribute cell: expected one cell")
    cell = op.inner(told, "cell")
    held = [cell]
    if cell.at.type == "StackedRNNCells" and not cell.layer.foreign:
        cell.only("reverse_state_order", False)
        listed = cell.attribute("cells", None)
        groups = group_names(each["class_name"] for each in listed)
        held = [
            cell.inner(each, "cells", group) for each, group in zip(listed, groups, strict=True)
        ]
        cell.read(lambda _: None)
    if not held:
        raise UnsupportedError("StackedRNNCells without cells")
    for each in held:
        if each.at.type not in _CELLS or each.layer.foreign:
            raise UnsupportedError(f"cell {each.at.type}: not known")
    return tuple(each.read(_cell) for each in held)


def _layer(op: KerasLayer) -> _Layer:
    """What a recurrent layer says of itself."""
    if op.layer.foreign:
        raise UnsupportedError(f"{op.at.type} of {op.layer.module}: a class of its user")
    if op.at.type == "RNN":
        cells = _cells(op)
    elif f"{op.at.type}Cell" in _CELLS:
        cells = (_cell(op, "cell"),)
    else:
        raise UnsupportedError(f"around {op.at.type}: only recurrent layers are known")
    return _Layer(
        cells,
        op.flag("go_backwards"),
        op.flag("return_sequences"),
        op.flag("return_state"),
        op.flag("stateful"),
        op.flag("zero_output_for_mask"),
        op.flag("time_major"),
        op.flag("unroll"),
    )


def _through(op: KerasLayer, layer: _Layer, steps: Steps, states: Sequence[str]) -> _Made:
    """Runs the cells over all steps, one cell after the other."""
    side: Direction = "right2left" if layer.backwards else "left2right"
    y, finals, left = steps.given, list[str](), list(states)
    for spec, weights in layer.cells:
        count = len(spec.cell.states)
        begin = [op.emit("Unsqueeze", left.pop(0), op.ints(0, 1)) for _ in range(count) if left]
        y, *ends = op.emit_many(
            "Rnn", 1 + count, y, *begin, spec=replace(spec, direction=side), weights=weights[0]
        )
        last = len(finals)
        finals += [op.emit("Squeeze", end, op.ints(0, 1)) for end in ends]
    return _Made(y, finals[last], tuple(finals))


def _steps(op: KerasLayer, layer: _Layer, tensor: Tensor) -> Steps:
    if op.rank(tensor.value) != 3:
        raise UnsupportedError(f"expected (N, T, I), got {op.rank(tensor.value)} axes")
    width = layer.cells[0].spec.input_size
    if not tensor.mask:
        return Padded(op, tensor.value, layer.time_major)
    if layer.unrolled and layer.zeros:
        raise UnsupportedError(
            "unroll=True and zeros where a mask is: Keras's backends give different numbers"
        )
    if layer.time_major:
        raise UnsupportedError("time_major=True with a mask")
    return Masked(op, tensor, width)


def _called(op: KerasLayer, layers: Sequence[_Layer]) -> tuple[Tensor, list[str]]:
    """(the input, the initial states): tensors behind the first one are states, too."""
    given = op.arguments[0] if isinstance(op.arguments[0], list) else [op.arguments[0]]
    told = op.option("initial_state")
    told = told if isinstance(told, list) or told is None else [told]
    states = _flat([*given[1:], *op.arguments[1:2], *(told or ())])
    if len(op.arguments) > 2 or not all(isinstance(each, Tensor) for each in (given[0], *states)):
        raise UnsupportedError("called with something else than tensors of steps and of states")
    tensor, *states = (op.cast(each) for each in (given[0], *states))
    count = sum(len(layer.widths) for layer in layers)
    if states and len(states) != count:
        raise UnsupportedError(f"called with {len(states)} states, the layer has {count}")
    return tensor, [each.value for each in states]


def _flat(nested: Sequence[Any]) -> list[Any]:
    return [one for each in nested for one in (_flat(each) if isinstance(each, list) else [each])]


def _begin(op: KerasLayer, layer: _Layer, tensor: Tensor, path: str) -> list[str]:
    """The states of a stateful layer: values that come from outside, and go out again."""
    if not layer.stateful:
        return []
    batch = op.shape(tensor.value)[1 if layer.time_major else 0]
    state = op.lowering.state
    return [
        state(f"{path}/state{at}", (batch, width), op.compute)
        for at, width in enumerate(layer.widths)
    ]


def _keep(op: KerasLayer, layer: _Layer, made: _Made, path: str) -> None:
    if layer.stateful:
        for at, end in enumerate(made.states):
            op.lowering.keep(f"{path}/state{at}", end)


def _last(op: KerasLayer, layer: _Layer, steps: Steps, made: _Made, given: bool) -> str:
    """The output of the step that the layer came to last."""
    return steps.last(made.last, layer.backwards, zeros=layer.zeros, given=given)


@rule("SimpleRNN", "LSTM", "GRU", "RNN")
def _recurrent(op: KerasLayer) -> list[Tensor]:
    layer = _layer(op)
    tensor, states = _called(op, [layer])
    steps = _steps(op, layer, tensor)
    states = states or _begin(op, layer, tensor, op.path)
    made = _through(op, layer, steps, states)
    _keep(op, layer, made, op.path)
    if layer.sequences:
        y = steps.all(made.y, layer.backwards, zeros=layer.zeros)
        y = steps.finished(steps.reversed(y) if layer.backwards else y)
        words = made.y if tensor.mask and not layer.backwards else ""
        out = Tensor(y, tensor.mask, words)
    else:
        out = Tensor(_last(op, layer, steps, made, bool(states)))
    return [out, *(Tensor(each) for each in made.states if layer.gives_states)]


@rule("Bidirectional")
def _bidirectional(op: KerasLayer) -> list[Tensor]:
    merge = op.config.get("merge_mode", "concat")
    op.attribute("merge_mode", None)
    told = op.attribute("layer", None)
    behind = op.config.get("backward_layer")
    op.attribute("backward_layer", None)
    if behind is None:
        turned = not told["config"].get("go_backwards")
        behind = {**told, "config": {**told["config"], "go_backwards": turned}}
    first = op.inner(told, "forward_layer").read(_layer)
    second = op.inner(behind, "backward_layer").read(_layer)
    if first.backwards == second.backwards or first[2:5] != second[2:5]:
        raise UnsupportedError("its layers go the same way, or give different things")
    tensor, states = _called(op, [first, second])
    # Keras sets it, whatever the layers say.
    sides = [side._replace(zeros=side.sequences) for side in (first, second)]
    half = len(first.widths)
    steps = _steps(op, sides[0], tensor)
    _steps(op, sides[1], tensor)  # refuses what it cannot
    paths = f"{op.path}/forward", f"{op.path}/backward"
    begins = [states[:half], states[half:]]
    if not states:
        begins = [_begin(op, *each) for each in zip(sides, (tensor, tensor), paths, strict=True)]
    mades = _paired(op, sides, steps, begins)
    if not mades:
        runs = zip(sides, begins, strict=True)
        mades = [_through(op, side, steps, begin) for side, begin in runs]
    ys = []
    for side, made, begin, path in zip(sides, mades, begins, paths, strict=True):
        _keep(op, side, made, path)
        if side.sequences:
            ys.append(steps.all(made.y, side.backwards, zeros=True))
        else:
            ys.append(_last(op, side, steps, made, bool(begin)))
    finals = [Tensor(each) for made in mades for each in made.states if first.gives_states]
    if first.sequences:
        # Both are in time's order; Keras turns the second one's, as that layer gave it, around.
        ys = [steps.reversed(y) for y in ys] if first.backwards else ys
        plain = tensor.mask and merge and not first.backwards
        words = _merged(op, merge, [made.y for made in mades])[0] if plain else ""
        return [
            *(Tensor(steps.finished(y), tensor.mask, words) for y in _merged(op, merge, ys)),
            *finals,
        ]
    return [*map(Tensor, _merged(op, merge, ys)), *finals]


def _paired(
    op: KerasLayer, sides: Sequence[_Layer], steps: Steps, begins: Sequence[Sequence[str]]
) -> list[_Made]:
    """Both directions as one layer where only last states are asked for; [] where that cannot be.

    Where all steps are, a pass pairs the directions: they are joined right behind.
    """
    cells = [cell for side in sides for cell in side.cells]
    (spec, (first,)), (other, (second,)) = cells[0], cells[-1]
    alike = spec == other and (first.bias is None) == (second.bias is None)
    if len(cells) > 2 or not alike or sides[0].backwards or sides[0].sequences:
        return []
    axes = op.ints(0, 1)
    states = [
        op.emit("Concat", *(op.emit("Unsqueeze", state, axes) for state in pair), axis=1)
        for pair in zip(*begins, strict=True)
    ]
    y, *ends = op.emit_many(
        "Rnn",
        1 + len(spec.cell.states),
        steps.given,
        *states,
        spec=replace(spec, direction="bidirectional_concat"),
        weights=RnnWeights.joined([first, second], 1),
    )
    mades = []
    for side in range(2):
        at = op.constant(np.array(side), "side")
        own = tuple(
            op.emit("Squeeze", op.emit("Gather", end, at, axis=1), op.ints(0)) for end in ends
        )
        mades.append(_Made(y, own[0], own))
    return mades


def _merged(op: KerasLayer, merge: Any, ys: Sequence[str]) -> list[str]:
    match merge:
        case None:
            return list(ys)
        case "concat":
            return [op.emit("Concat", *ys, axis=-1)]
        case "sum":
            return [op.emit("Add", *ys)]
        case "mul":
            return [op.emit("Mul", *ys)]
        case "ave":
            total = op.emit("Add", *ys)
            return [op.emit("Mul", total, op.constant(np.array(0.5, op.compute), "half"))]
    raise UnsupportedError(f"attribute merge_mode={merge!r}")
