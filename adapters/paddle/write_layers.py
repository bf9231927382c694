"""How recurrent layers and operators on sequences are written as Paddle's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from onernn.adapters.paddle.write_rules import convolution
from onernn.adapters.paddle.writer import Padded, Writing, Written, ragged, rule
from onernn.ir.arrays import Array
from onernn.ir.errors import Refusal, UnsupportedError
from onernn.ir.rnn import Limits, Part, Recurrent, parts, why_not
from onernn.ir.spec import Cell, RnnSpec
from onernn.ir.weights import RnnWeights
from onernn.reorders import paddle
from onernn.reorders.gates import GateLayout, bias_back, input_layer_back

# What sequence operators do, as arithmetic on offsets and rows of lookup_table_v2.
#
# Paddle 3 has no sequence_pad, _unpad, _reverse and _concat any more; both versions run this.
# Numbers of words and places are int64: (N, 1) for N sentences, (W, 1) for W words, (1,), (1, T).


def number(w: Writing, value: int) -> str:
    """A constant (1,)."""
    return w.constant(np.full(1, value), "number")


def size_of(w: Writing, x: str, axis: int) -> str:
    """A size as (1,) int64."""
    sizes = w.emit("shape", {"Input": x})
    return w.cast(w.take(sizes, {0: (axis, axis + 1)}), "int64")


def pooled(w: Writing, x: str, kind: str, empty: float = 0.0) -> str:
    """One row a sentence, under the LoD levels above."""
    attributes = {"pooltype": kind.upper(), "pad_value": float(empty), "is_test": True}
    return w.emit("sequence_pool", {"X": x}, **attributes)


def lengths_of(w: Writing, x: str) -> str:
    """(N, 1) of a ragged variable: ones are summed, exact below 2**24."""
    words = w.filled(w.concat([size_of(w, x, 0), number(w, 1)], 0), np.ones((), np.float32))
    return w.cast(pooled(w, w.under(words, ragged(w, x)), "sum"), "int64")


def with_offsets(w: Writing, x: str, offsets: str) -> str:
    slots = {"X": x, "Y": w.cast(w.dense(offsets), "int32")}
    return w.emit("lod_reset", slots, append=False)


def swapped(w: Writing, x: str) -> str:
    """With the first two axes exchanged: batch and time."""
    return w.transpose(x, [1, 0, *range(2, w.rank(x))])


def rows(w: Writing, x: str, index: str) -> str:
    """Rows of (R, ...) in floats, by an index of any shape, which comes in the row's place."""
    held, table = w.dtype(x), w.dense(x)
    dtype = held if held in ("float32", "float64") else "float64"
    inner = [size or 0 for size in w.sizes(x)[1:]]
    if held == "int64" or len(inner) > 1 and 0 in inner:
        raise UnsupportedError(f"words of {held} {w.sizes(x)[1:]} are not moved")
    if len(inner) != 1:
        table = w.reshape(table, [0, -1])
    slots = {"W": w.cast(table, dtype), "Ids": index}
    made = w.emit("lookup_table_v2", slots, padding_idx=-1)
    if len(inner) != 1:
        made = w.reshape(made, [*[0] * w.rank(index), *inner])
    return w.cast(made, held)


def reversed_words(w: Writing, x: str) -> str:
    """The words of each sentence from its end."""
    lengths = lengths_of(w, x)
    sums = w.add(w.times(_before(w, lengths, 0), number(w, 2)), lengths)
    mirrored = _of_words(w, w.add(sums, number(w, -1)), x)
    index = w.reshape(w.minus(mirrored, _places(w, x)), [-1])
    return w.under(rows(w, x, index), x)


def joined(w: Writing, x: str, y: str) -> str:
    """Sentence n of y behind sentence n of x."""
    first, second = (lengths_of(w, each) for each in (x, y))
    words = _words(w, w.add(first, second))
    at = w.minus(_places(w, words), _of_words(w, _before(w, w.add(first, second), 0), words))
    own = _of_words(w, first, words)
    starts = [_of_words(w, _before(w, each, 0), words) for each in (first, second)]
    behind = w.add(w.add(starts[1], w.minus(at, own)), size_of(w, x, 0))
    index = _chosen(w, w.binary("less_than", at, own), w.add(starts[0], at), behind)
    table = w.concat([w.dense(x), w.dense(y)], 0)
    return w.under(rows(w, table, w.reshape(index, [-1])), words)


def padded(w: Writing, x: str, value: str = "", time: str = "") -> tuple[str, str]:
    """(N, T, ...) and the lengths (N,) of a ragged variable.

    T is the longest, or at least ``time``, (1,). ``value``: one number, or one word, for what
    stands behind; zero by default.
    """
    lengths = lengths_of(w, x)
    longest = w.emit("reduce_max", {"X": lengths}, dim=[0], keep_dim=False)
    longest = w.binary("elementwise_max", longest, time) if time else longest
    at = _before(w, _ones(w, [number(w, 1), longest]), 1)
    index = _chosen(
        w,
        w.binary("less_than", at, lengths),
        w.add(at, _before(w, lengths, 0)),
        size_of(w, x, 0),  # the row behind all words
    )
    sizes = [number(w, 1), *(size_of(w, x, axis) for axis in range(1, w.rank(x)))]
    behind = w.cast(w.minus(_ones(w, sizes), number(w, 1)), w.dtype(x))
    table = w.concat([w.dense(x), w.add(behind, value) if value else behind], 0)
    return rows(w, table, index), w.reshape(lengths, [-1])


def unpadded(w: Writing, x: str, lengths: str) -> str:
    """The words of (N, T, ...) and lengths (N,) int64."""
    lengths = w.reshape(lengths, [-1, 1])
    words = _words(w, lengths)
    sentences = _before(w, _ones(w, [size_of(w, lengths, 0), number(w, 1)]), 0)
    starts = w.minus(w.times(sentences, size_of(w, x, 1)), _before(w, lengths, 0))
    index = w.add(_of_words(w, starts, words), _places(w, words))
    sizes = [number(w, -1), *(size_of(w, x, axis) for axis in range(2, w.rank(x)))]
    return w.under(rows(w, _shaped(w, x, sizes), w.reshape(index, [-1])), words)


def words_of_steps(w: Writing, x: str) -> str:
    """The words of (T, N, I): sentences of one length."""
    steps, sentences, width = (size_of(w, x, axis) for axis in range(3))
    table = _shaped(w, swapped(w, x), [number(w, -1), width])
    places = _before(w, _ones(w, [w.add(sentences, number(w, 1))]), 0)
    return with_offsets(w, table, w.times(places, steps))


def steps_of_words(w: Writing, words: str, x: str) -> str:
    """(T, N, ...) of words as `words_of_steps` made them of ``x``."""
    sizes = [size_of(w, x, 1), size_of(w, x, 0), size_of(w, words, 1)]
    return swapped(w, _shaped(w, w.dense(words), sizes))


def _before(w: Writing, x: str, axis: int) -> str:
    """The sum of what stands before each element along an axis.

    Not an exclusive cumsum: of a single element Paddle gives the element itself.
    """
    x = w.dense(x)
    sums = w.emit("cumsum", {"X": x}, axis=axis, flatten=False, exclusive=False, reverse=False)
    return w.minus(sums, x)


def _ones(w: Writing, sizes: Sequence[str]) -> str:
    """Of a shape given by (1,) int64 each."""
    return w.filled(w.concat(sizes, 0), np.ones((), np.int64))


def _shaped(w: Writing, x: str, sizes: Sequence[str]) -> str:
    """Reshaped to sizes that are (1,) int64 each."""
    return w.reshape(x, [-1] * len(sizes), computed=w.concat(sizes, 0))


def _chosen(w: Writing, truth: str, x: str, y: str) -> str:
    """x where truth holds, else y."""
    chosen = w.cast(truth, "int64")
    return w.add(w.times(chosen, x), w.times(w.minus(number(w, 1), chosen), y))


def _words(w: Writing, lengths: str) -> str:
    """(W, 1) ones under the LoD of these lengths (N, 1)."""
    ends = w.reshape(w.add(_before(w, lengths, 0), lengths), [-1])
    count = w.emit("reduce_sum", {"X": lengths}, dim=[0], keep_dim=False)
    words = _ones(w, [count, number(w, 1)])
    return with_offsets(w, words, w.concat([number(w, 0), ends], 0))


def _of_words(w: Writing, x: str, words: str) -> str:
    """(N, 1) as (W, 1): for each word what its sentence has."""
    return w.emit("sequence_expand", {"X": x, "Y": words}, ref_level=0)


def _places(w: Writing, words: str) -> str:
    """(W, 1): 0, 1, 2, ...."""
    return _before(w, _ones(w, [size_of(w, words, 0), number(w, 1)]), 0)


# Operators of our own domain as Paddle's: gates, offsets, sentences, tags.


def laid_out(w: Writing, x: str, layout: GateLayout) -> str:
    """The columns of x, gate by gate, in another order and with another sign."""
    gates = len(layout.permutation)
    if layout == GateLayout(tuple(range(gates)), (1,) * gates):
        return x
    axis = w.rank(x) - 1
    parts = w.split(x, axis, gates)
    chosen = [
        parts[gate] if sign > 0 else w.scaled(parts[gate], -1)
        for gate, sign in zip(layout.permutation, layout.signs, strict=True)
    ]
    return w.concat(chosen, axis)


@rule("GateLayout", "layout")
def _gate_layout(w: Writing) -> Written:
    steps = laid_out(w, w.x, w.attrs.layout)
    return steps if steps != w.x else w.copy(steps)


@rule("SequenceData")
def _sequence_data(w: Writing) -> Written:
    return w.dense(w.x)


@rule("SequenceLike")
def _sequence_like(w: Writing) -> Written:
    return w.under(*w.inputs)


@rule("SequenceReset")
def _sequence_reset(w: Writing) -> Written:
    """Offsets as a list, or as int32 in a value."""
    x, like = w.inputs
    if w.node.inputs[1] not in w.graph.constants:
        return with_offsets(w, x, like)
    result = [int(number) for number in w.graph.constants[w.node.inputs[1]].reshape(-1)]
    return w.emit("lod_reset", {"X": x}, target_lod=result, append=False)


@rule("SequenceAppend")
def _sequence_append(w: Writing) -> Written:
    """Of values with LoD Paddle's concat along the words joins the LoD, too."""
    return w.concat(w.inputs, 0)


@rule("SequencePool", "kind empty")
def _pool(w: Writing) -> Written:
    return pooled(w, w.x, w.attrs.kind, w.attrs.empty)


@rule("SequenceReverse")
def _reverse(w: Writing) -> Written:
    return reversed_words(w, w.x)


@rule("SequenceContext", "length start")
def _context(w: Writing) -> Written:
    """A convolution with the identity; a product behind it takes its own matrix instead."""
    width = w.sizes(w.x)[-1]
    if width is None:
        raise UnsupportedError("a window of words of unknown width")
    filter_ = np.eye(width * w.attrs.length, dtype=w.dtype(w.x))
    return convolution(w, w.node, w.constant(filter_))


@rule("SequenceExpand", "level")
def _expand(w: Writing) -> Written:
    x, like = w.inputs
    if not w.of(x).depth and w.types[w.node.outputs[0]].depth:
        raise UnsupportedError("repeated rows under a LoD")
    return w.emit("sequence_expand", {"X": x, "Y": like}, ref_level=w.attrs.level)


@rule("SequenceConcat")
def _sequence_concat(w: Writing) -> Written:
    whole, *others = w.inputs
    for other in others:
        whole = joined(w, whole, other)
    return whole if others else w.copy(whole)


@rule("SequenceLengths")
def _lengths(w: Writing) -> Written:
    return padded(w, w.x)[1]


@rule("SequenceFill", "time")
def _fill(w: Writing) -> Written:
    time = "" if w.attrs.time is None else number(w, w.attrs.time)
    return padded(w, w.x, w.inputs[1], time)[0]


@rule("SequenceUnpad", "time_major")
def _sequence_unpad(w: Writing) -> Written:
    """What came padded is remembered so, for operators and users that want it padded."""
    x = w.x
    lengths = w.cast(w.reshape(w.inputs[1], [-1]), "int64")
    turned = swapped(w, x)
    time_major = bool(w.attrs.time_major)
    steps, rows = (x, turned) if time_major else (turned, x)
    known = Padded(steps, lengths, w.node.inputs[0], time_major, zeros=False)
    w.padded[w.node.outputs[0]] = known
    return unpadded(w, rows, lengths)


@rule("SequencePad", "time_major")
def _sequence_pad(w: Writing) -> Written:
    time_major, like = bool(w.attrs.time_major), w.node.input(1)
    known = w.padded.get(w.node.inputs[0])
    if known is not None and known.zeros and (known.like, known.time_major) == (like, time_major):
        return w.copy(known.data if time_major else swapped(w, known.data))
    time = size_of(w, w.inputs[1], 0 if time_major else 1) if like else ""
    padded_steps, _ = padded(w, w.x, time=time)
    return swapped(w, padded_steps) if time_major else padded_steps


@rule("CrfDecode")
def _crf_decode(w: Writing) -> Written:
    slots = {"Emission": ragged(w, w.x), "Transition": w.inputs[1]}
    return w.emit("crf_decoding", slots)


# Recurrent layers as Paddle's operators: gru and lstm over LoD, or fused, and rnn over padding.

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


@rule("Rnn", "spec weights precision")
def _recurrent(w: Writing) -> Written:
    rnn = Recurrent.of(w.node)
    rnn.precision.refuse("a Paddle program")
    limits = _OVER_WORDS if rnn.spec.cell in _OVER_WORDS.cells else _OVER_STEPS
    if reason := why_not(rnn.spec, rnn.layers, limits):
        raise UnsupportedError(reason)
    if w.of(w.x).depth > 1:
        raise UnsupportedError("two LoD levels: Paddle's recurrent operators take one")
    states = [name and w.value(name) for name in rnn.states]
    if rnn.spec.cell in _OVER_WORDS.cells and not _came_padded(w, rnn):
        y, finals, cells = _over_words(w, rnn, w.x, states)
    else:
        y, finals = _over_steps(w, rnn, w.x, states)
        cells = ""
    return (*(y, *finals, "")[:3], cells)


def _came_padded(w: Writing, rnn: Recurrent) -> bool:
    """Whether the layer runs over padding, as the operator rnn does."""
    is_padded = rnn.x in w.padded or not w.types[rnn.x].depth
    return (
        is_padded
        and not w.graph.is_read(rnn.cells)
        and not why_not(rnn.spec, rnn.layers, _OVER_STEPS)
    )


# Over padding: the operator rnn.


def _over_steps(
    w: Writing, rnn: Recurrent, x: str, initial: Sequence[str]
) -> tuple[str, list[str]]:
    """y, and the final states that are read."""
    spec = rnn.spec
    backwards, total = spec.direction == "right2left", spec.layers * spec.directions
    steps, lengths, known = x, "", None
    if w.of(x).depth and (backwards or rnn.x not in w.padded):
        if backwards:
            x = reversed_words(w, x)
        rows, lengths = padded(w, x)
        steps = swapped(w, rows)
    elif w.of(x).depth:
        known = w.padded[rnn.x]
        steps, lengths = known.data, known.lengths
    elif backwards:
        steps = _flipped(w, x)
    shape = [total, -1, spec.hidden_size]
    states = [w.reshape(each, shape) if each else _zeros(w, steps, shape, 1) for each in initial]
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
        elif known:
            w.padded[rnn.y] = replace(known, data=steps, zeros=True)
    return y, _finals(w, rnn, finals)


def _rnn(
    w: Writing,
    rnn: Recurrent,
    layers: Sequence[RnnWeights],
    x: str,
    states: Sequence[str],
    lengths: str,
) -> tuple[str, Sequence[str]]:
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
    results = w.emit_all(
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
    return results["Out"][0], results["State"]


def _finals(w: Writing, rnn: Recurrent, finals: Sequence[Sequence[str]]) -> list[str]:
    """States (L*D, N, O), or parts of them, as (L, D, N, O)."""
    shape = [rnn.spec.layers, rnn.spec.directions, -1, rnn.spec.hidden_size]
    return [
        w.reshape(ends[0] if len(ends) == 1 else w.concat(ends, 0), shape)
        if w.graph.is_read(name)
        else ""
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
    w: Writing, rnn: Recurrent, x: str, initial: Sequence[str]
) -> tuple[str, list[str], str]:
    """y, the final states that are read, and the cells of all words."""
    spec, steps = rnn.spec, "" if w.of(x).depth else x
    x = source = words_of_steps(w, x) if steps else x
    finals: list[list[str]] = [[] for _ in initial]
    cells, halves = "", list[str]()
    for part in parts(spec):
        states = [
            _state(w, name, variable, part, spec) if variable else ""
            for name, variable in zip(rnn.states, initial, strict=True)
        ]
        hidden, cells = _direction(w, rnn, part, x, states, source)
        halves.append(hidden)
        ends = zip(rnn.finals, finals, (hidden, cells), states, strict=False)
        for name, ends_of_state, words, start in ends:
            if w.graph.is_read(name):
                ends_of_state.append(_last(w, words, start, part.backwards))
        if len(halves) == spec.directions:
            x, halves = _together(w, spec, halves), []
    y = steps_of_words(w, x, steps) if steps else x
    return y, _finals(w, rnn, finals), cells if w.graph.is_read(rnn.cells) else ""


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
    results = w.emit_all(name, slots, {"Hidden": 1, **dict.fromkeys(_SIDE[name], 1)}, **numbers)
    return results["Hidden"][0], results["Cell"][0] if is_lstm else ""


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
    if maker is not None and maker.op == "GateLayout" and maker.attrs.layout == layout:
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
    elif w.graph.is_read(rnn.c_final) or w.graph.is_read(rnn.cells):
        reason = "Paddle's oneDNN kernel writes no cell states"
    if reason:
        w.unplaced.append(Refusal(reason, rnn.y))
    return not reason


def _state(w: Writing, name: str, variable: str, part: Part, spec: RnnSpec) -> str:
    """(N, O) of a layer and direction from (L, D, N, O): the value it was made of, if it shows."""
    at, left = (part.layer, part.direction), [spec.layers, spec.directions]
    while (maker := w.graph.producer(name)) is not None and maker.op == "Concat":
        axis = maker.attrs.axis
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
    return w.emit("unsqueeze2", {"X": end}, axes=[0])
