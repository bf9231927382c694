"""Recurrent layers as Paddle's operators: gru and lstm over LoD, or fused, and rnn over padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from onernn.adapters.paddle.write.emitting import Padded, Writing, Written, ragged, rule
from onernn.adapters.paddle.write.offsets import (
    lengths_of,
    padded,
    pooled,
    reversed_words,
    steps_of_words,
    swapped,
    unpadded,
    words_of_steps,
)
from onernn.adapters.paddle.write.sequences import laid_out
from onernn.core.arrays import Array
from onernn.core.errors import Refusal, UnsupportedError
from onernn.core.graph import Node
from onernn.core.limits import Limits, why_not
from onernn.core.rnn import Part, Recurrent, parts
from onernn.core.spec import Cell, RnnSpec
from onernn.core.weights import RnnWeights
from onernn.reorders import paddle
from onernn.reorders.gates import GateLayout, bias_back, input_layer_back

_MODES = {cell: mode for mode, (cell, _) in paddle.RNN_CELLS.items()}
"""The cells of the operator rnn."""
_OVER_WORDS = Limits(
    who="Paddle",
    cells=(Cell.GRU, Cell.LSTM),
    functions=("sigmoid", "tanh", "relu", "identity"),
    parameters=False,
    gate_clip=False,
    cell_clip=False,
    input_forget=False,
    projection=False,
    apart=False,
    dtypes=("float32",),
)
_OVER_STEPS = replace(
    _OVER_WORDS, cells=tuple(_MODES), functions=(), replaces=False, peephole=False, projected=False
)
_SIDE = {
    "gru": ("BatchGate", "BatchResetHiddenPrev", "BatchHidden"),
    "fusion_gru": ("ReorderedH0", "XX", "BatchedInput", "BatchedOut"),
    "lstm": ("Cell", "BatchGate", "BatchCellPreAct"),
    "fusion_lstm": (
        *("Cell", "XX", "BatchedInput", "BatchedHidden", "BatchedCell"),
        *("ReorderedH0", "ReorderedC0", "CheckedCell"),
    ),
}


@rule("Rnn")
def _recurrent(w: Writing, node: Node, inputs: list[str]) -> Written:
    rnn = Recurrent.of(node)
    rnn.precision.refuse("a Paddle program")
    limits = _OVER_WORDS if rnn.spec.cell in _OVER_WORDS.cells else _OVER_STEPS
    if reason := why_not(rnn.spec, rnn.layers, limits):
        raise UnsupportedError(reason)
    if w.of(inputs[0]).depth > 1:
        raise UnsupportedError("two LoD levels: Paddle's recurrent operators take one")
    states = [name and w.value(name) for name in rnn.states]
    if rnn.spec.cell in _OVER_WORDS.cells and not _came_padded(w, rnn):
        y, finals, cells = _over_words(w, rnn, inputs[0], states)
    else:
        y, finals = _over_steps(w, rnn, inputs[0], states)
        cells = ""
    return (*(y, *finals, "")[:3], cells)


def _came_padded(w: Writing, rnn: Recurrent) -> bool:
    """Whether the layer runs over padding, as the operator rnn does."""
    is_padded = rnn.x in w.padded or not w.types[rnn.x].depth
    return is_padded and not w.wants(rnn.cells) and not why_not(rnn.spec, rnn.layers, _OVER_STEPS)


# Over padding: the operator rnn.


def _over_steps(w: Writing, rnn: Recurrent, x: str, given: Sequence[str]) -> tuple[str, list[str]]:
    """y, and the final states that somebody reads."""
    spec = rnn.spec
    backwards, total = spec.direction == "right2left", spec.layers * spec.directions
    steps, lengths, like = x, "", ""
    if w.of(x).depth and (backwards or rnn.x not in w.padded):
        if backwards:
            x = reversed_words(w, x)
        rows, lengths = padded(w, x)
        steps = swapped(w, rows)
    elif w.of(x).depth:
        known = w.padded[rnn.x]
        steps, lengths, like = known.data, known.lengths, known.like
    elif backwards:
        steps = _flipped(w, x)
    shape = [total, -1, spec.hidden_size]
    states = [w.reshape(each, shape) if each else _zeros(w, steps, shape, 1) for each in given]
    summed = spec.direction == "bidirectional_sum"
    finals: list[list[str]] = [[] for _ in states]
    for layers in [[each] for each in rnn.layers] if summed else [rnn.layers]:  # added after each
        at = len(finals[0]) * spec.directions
        cut = {0: (at, at + spec.directions)}
        own = states if len(layers) == spec.layers else [w.take(each, cut) for each in states]
        steps, ends = _rnn(w, rnn, layers, steps, own, lengths)
        for ends_of_state, end in zip(finals, ends, strict=True):
            ends_of_state.append(end)
        if summed:
            steps = w.add(*w.split(steps, 2, 2))
    if not w.types[rnn.y].depth:
        y = _flipped(w, steps) if backwards else steps
    else:
        y = unpadded(w, swapped(w, steps), lengths)
        if backwards:
            y = reversed_words(w, y)
        elif like:
            w.padded[rnn.y] = Padded(steps, lengths, like)
    return y, _finals(w, rnn, finals)


def _rnn(
    w: Writing,
    rnn: Recurrent,
    layers: Sequence[RnnWeights],
    x: str,
    states: Sequence[str],
    lengths: str,
) -> tuple[str, list[str]]:
    """(T, N, D*O) and the final states (L*D, N, O) of one operator over some of the layers."""
    spec, mode = rnn.spec, _MODES[rnn.spec.cell]
    arrays = paddle.rnn_weights_back([_with_bias(spec, each) for each in layers], mode)
    slots = {
        "Input": x,
        "PreState": states,
        "WeightList": [w.constant(array, f"{rnn.y}.w") for array in arrays],
        "SequenceLength": lengths,
    }
    assert layers[0].layer is not None  # by the limits
    made = w.emit_all(
        "rnn",
        slots,
        {"Out": 1, "Reserve": 1, "DropoutState": 1, "State": len(states)},
        mode=mode,
        num_layers=len(layers),
        hidden_size=spec.hidden_size,
        input_size=layers[0].layer.shape[2],
        is_bidirec=spec.directions == 2,
        is_test=True,
        dropout_prob=0.0,
        seed=0,
    )
    return made["Out"][0], made["State"]


def _finals(w: Writing, rnn: Recurrent, finals: Sequence[Sequence[str]]) -> list[str]:
    """States (L*D, N, O), or parts of them, as (L, D, N, O)."""
    shape = [rnn.spec.layers, rnn.spec.directions, -1, rnn.spec.hidden_size]
    return [
        w.reshape(ends[0] if len(ends) == 1 else w.concat(ends, 0), shape) if w.wants(name) else ""
        for name, ends in zip(rnn.finals, finals, strict=True)
    ]


def _with_bias(spec: RnnSpec, weights: RnnWeights) -> RnnWeights:
    """Paddle wants biases."""
    shape = (1, spec.directions, spec.cell.bias_rows, spec.hidden_size)
    zeros = np.zeros(shape, weights.iter.dtype)
    return weights if weights.bias is not None else replace(weights, bias=zeros)


def _zeros(w: Writing, like: str, shape: list[int], axis: int) -> str:
    """Of a shape that has as many sequences along ``axis`` as ``like`` has there."""
    return w.emit(
        "fill_constant_batch_size_like",
        {"Input": like},
        shape=shape,
        input_dim_idx=axis,
        output_dim_idx=axis,
        value=0.0,
        dtype=5,
    )


def _flipped(w: Writing, x: str) -> str:
    return w.emit("flip", {"X": x}, axis=[0])


# Over words: gru and lstm.


def _over_words(
    w: Writing, rnn: Recurrent, x: str, given: Sequence[str]
) -> tuple[str, list[str], str]:
    """y, the final states that somebody reads, and the cells of all words."""
    spec, steps = rnn.spec, "" if w.of(x).depth else x
    x = source = words_of_steps(w, x) if steps else x
    finals: list[list[str]] = [[] for _ in given]
    cells, halves = "", list[str]()
    for part in parts(spec):
        states = [
            _state(w, name, variable, part, spec) if variable else ""
            for name, variable in zip(rnn.states, given, strict=True)
        ]
        hidden, cells = _direction(w, rnn, part, x, states, source)
        halves.append(hidden)
        ends = zip(rnn.finals, finals, (hidden, cells), states, strict=False)
        for name, ends_of_state, words, start in ends:
            if w.wants(name):
                ends_of_state.append(_last(w, words, start, part.backwards))
        if len(halves) == spec.directions:
            x, halves = _together(w, spec, halves), []
    y = steps_of_words(w, x, steps) if steps else x
    return y, _finals(w, rnn, finals), cells if w.wants(rnn.cells) else ""


def _together(w: Writing, spec: RnnSpec, halves: Sequence[str]) -> str:
    if spec.direction == "bidirectional_concat":
        return w.concat(halves, 1)
    return w.add(*halves) if spec.direction == "bidirectional_sum" else halves[0]


def _direction(
    w: Writing, rnn: Recurrent, part: Part, x: str, states: Sequence[str], source: str
) -> tuple[str, str]:
    """Hidden states, and an LSTM's cells, of every word; ``source`` has the sentences, too."""
    spec, weights = part.spec, rnn.layers[part.layer].part(0, part.direction)
    is_lstm, (layout, origin_mode) = spec.cell is Cell.LSTM, _layout(spec)
    gate, candidate, *cell = (each.name for each in spec.functions)
    numbers = {"is_reverse": part.backwards, "gate_activation": gate}
    if is_lstm:
        numbers |= {"candidate_activation": candidate, "cell_activation": cell[0]}
        numbers |= {"use_peepholes": spec.peephole}
    else:
        numbers |= {"activation": candidate, "origin_mode": origin_mode}
    name, fused = ("lstm" if is_lstm else "gru"), w.fused and weights.layer is not None
    fused = fused and not origin_mode  # Paddle's fusion_gru does not read it
    placed = fused and _placed(w, rnn, states)
    if any(states) or fused and not placed:
        # Without H0 the native fused kernels go wrong over sentences without words.
        zeros = [-1, spec.hidden_size]
        states = [state or _zeros(w, source, zeros, 0) for state in states]
    slots = dict(zip(("H0", "C0"), states, strict=False))
    bias = _bias(spec, weights, layout)
    slots["Bias"] = "" if bias is None else w.constant(bias, f"{rnn.y}.b")
    recurrent = input_layer_back(weights.iter, layout)
    if not is_lstm:
        recurrent = paddle.weight_h_back(weights.iter, layout)
    if fused:
        name = f"fusion_{name}"
        assert weights.layer is not None
        slots |= {"WeightX": w.constant(input_layer_back(weights.layer, layout), f"{rnn.y}.wx")}
        slots |= {"WeightH": w.constant(recurrent, f"{rnn.y}.wh")}
        numbers |= {"use_seq": True, "use_mkldnn": placed}
        slots = {"X": ragged(w, x), **slots}
    else:
        # Something between, or paddle.inference fuses the two, and then drops states, cells and
        # functions, and goes wrong over sentences without words.
        projected = ragged(w, w.copy(_projected(w, rnn, weights, layout, x)))
        slots = {"Input": projected, "Weight": w.constant(recurrent, f"{rnn.y}.w"), **slots}
    made = w.emit_all(name, slots, {"Hidden": 1, **dict.fromkeys(_SIDE[name], 1)}, **numbers)
    return made["Hidden"][0], made["Cell"][0] if is_lstm else ""


def _layout(spec: RnnSpec) -> tuple[GateLayout, bool]:
    """Paddle's gates, and origin_mode: the default one wherever a sign can say it."""
    if spec.cell is Cell.LSTM:
        return paddle.LSTM, False
    gate = spec.functions[0].name
    origin_mode = gate != "sigmoid" and spec.update == "keep"
    flips = gate == "sigmoid" and spec.update == "keep"
    return GateLayout((0, 1, 2), (-1 if flips else 1, 1, 1)), origin_mode


def _bias(spec: RnnSpec, weights: RnnWeights, layout: GateLayout) -> Array | None:
    bias = weights.bias
    if spec.cell is not Cell.LSTM:
        return None if bias is None else bias_back(bias, layout)
    zeros = np.zeros((1, 1, 4, spec.hidden_size), weights.iter.dtype)
    return paddle.lstm_bias_back(zeros if bias is None else bias, weights.peephole)


def _projected(w: Writing, rnn: Recurrent, weights: RnnWeights, layout: GateLayout, x: str) -> str:
    """x times the input weights; what is projected already is put into Paddle's gates."""
    if weights.layer is not None:
        matrix = w.constant(input_layer_back(weights.layer, layout), f"{rnn.y}.wx")
        return w.emit("mul", {"X": x, "Y": matrix}, x_num_col_dims=1, y_num_col_dims=1)
    maker = w.graph.producer(rnn.x)
    if maker is not None and maker.op == "GateLayout" and maker.at.layout == layout:
        return w.value(maker.inputs[0])
    return laid_out(w, x, layout.inverse)


def _placed(w: Writing, rnn: Recurrent, states: Sequence[str]) -> bool:
    """Whether the operator may ask for oneDNN: where Paddle's kernel for it is right."""
    if w.place != "onednn":
        return False
    reason = ""
    if any(states):
        reason = "Paddle's oneDNN kernel keeps the initial state of an earlier batch"
    elif rnn.spec.activations is not None:
        reason = "Paddle's oneDNN kernel knows sigmoid and tanh only"
    elif w.wants(rnn.c_final) or w.wants(rnn.cells):
        reason = "Paddle's oneDNN kernel writes no cell states"
    if reason:
        w.unplaced.append(Refusal(reason, rnn.y))
    return not reason


def _state(w: Writing, name: str, variable: str, part: Part, spec: RnnSpec) -> str:
    """(N, O) of a layer and direction from (L, D, N, O): the value it was made of, if it shows."""
    at, left = (part.layer, part.direction), [spec.layers, spec.directions]
    while (maker := w.graph.producer(name)) is not None and maker.op == "Concat":
        axis = maker.at.axis
        if axis not in (0, 1) or left[axis] != len(maker.inputs):
            break
        name = maker.inputs[at[axis]]
        left[axis] = 1
    if maker is not None and maker.op == "Unsqueeze" and left == [1, 1]:
        axes = w.graph.constants.get(maker.inputs[1])
        if axes is not None and axes.tolist() == [0, 1]:
            return w.value(maker.inputs[0])
    return w.take(variable, {axis: (at[axis], at[axis] + 1) for axis in (0, 1)}, [0, 1])


def _last(w: Writing, words: str, start: str, backwards: bool) -> str:
    """(1, N, O): the state where a direction ends; a sentence without words keeps ``start``."""
    end = pooled(w, words, "first" if backwards else "last")
    if start:
        empty = w.binary("equal", lengths_of(w, words), w.constant(np.zeros(1, np.int64)))
        end = w.add(end, w.times(start, w.cast(empty, "float32")))
    return w.emit("unsqueeze2", {"X": end}, also=("XShape",), axes=[0])
