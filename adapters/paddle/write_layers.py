"""Writes recurrent layers and sequence operators as Paddle's operators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from onernn.adapters.paddle.write_rules import convolve
from onernn.adapters.paddle.writer import Padded, Variable, Writing, integers, rule
from onernn.ir.arrays import Array
from onernn.ir.errors import Refusal, UnsupportedError
from onernn.ir.rnn import Limits, Part, Recurrent, parts, why_not
from onernn.ir.spec import Cell, RnnSpec
from onernn.ir.weights import RnnWeights
from onernn.reorders import paddle
from onernn.reorders.gates import GateLayout, bias_back, input_layer_back

# Writes sequence operators as arithmetic on offsets and as row lookups by lookup_table_v2.
#
# Paddle 3 no longer has sequence_pad, _unpad, _reverse and _concat. Both versions run the operators
# that are written here. Counts and positions of steps are int64 of the shape (N, 1) for N
# sequences, (W, 1) for all W steps of a batch, (1,) or (1, T).


def pool(x: Variable, kind: str, empty: float = 0.0) -> Variable:
    """Reduces each sequence to one row, and keeps the outer LoD levels."""
    return x.sequence_pool(pooltype=kind.upper(), pad_value=float(empty), is_test=True)


def lengths_of(x: Variable) -> Variable:
    """Returns the lengths (N, 1) of a ragged variable. The lengths are float32 sums of ones, which
    are exact below 2**24.
    """
    w = x.w
    words = w.fill(w.concat([x.size(0), w.number(1)], 0), np.ones((), np.float32))
    return pool(words.under(x.check_levels()), "sum").cast("int64")


def with_offsets(x: Variable, offsets: Variable) -> Variable:
    return x.lod_reset(Y=offsets.dense.cast("int32"), append=False)


def rows(x: Variable, index: Variable) -> Variable:
    """Returns rows of a table (R, ...). The axes of ``index`` replace the first axis."""
    table, held = x.dense, x.dtype
    dtype = held if held in ("float32", "float64") else "float64"
    inner = [size or 0 for size in x.sizes[1:]]
    if held == "int64" or len(inner) > 1 and 0 in inner:
        raise UnsupportedError(
            f"steps of {held} {x.sizes[1:]}: expected no int64, and sizes known before a run"
        )
    if len(inner) != 1:
        table = table.reshape(0, -1)
    made = index.lookup_table_v2(W=table.cast(dtype), padding_idx=-1)
    if len(inner) != 1:
        made = made.reshape(*[0] * index.rank, *inner)
    return made.cast(held)


def reverse_words(x: Variable) -> Variable:
    """Returns the steps of each sequence in reverse order."""
    lengths = lengths_of(x)
    mirrored = _of_words(lengths.before(0) * 2 + lengths + -1, x)
    return rows(x, (mirrored - _places(x)).reshape(-1)).under(x)


def append(x: Variable, y: Variable) -> Variable:
    """Returns sequence n of x followed by sequence n of y."""
    first, second = lengths_of(x), lengths_of(y)
    both = first + second
    words = _words(both)
    at = _places(words) - _of_words(both.before(0), words)
    own = _of_words(first, words)
    starts, later = (_of_words(each.before(0), words) for each in (first, second))
    index = _choose(at.binary("less_than", own), starts + at, later + (at - own) + x.size(0))
    return rows(x.w.concat([x.dense, y.dense], 0), index.reshape(-1)).under(words)


def pad(
    x: Variable, value: Variable | None = None, time: Variable | None = None
) -> tuple[Variable, Variable]:
    """Returns the padded form (N, T, ...) and the lengths (N,) of a ragged variable.

    T is the longest length, or ``time``, of shape (1,), if that is larger. ``value``: the padding,
    which is a number or a step (None: zero).
    """
    w, lengths = x.w, lengths_of(x)
    longest = lengths.reduce_max(dim=[0], keep_dim=False)
    longest = longest.binary("elementwise_max", time) if time else longest
    at = w.ones(w.number(1), longest).before(1)
    padding = x.size(0)  # the row after all steps
    index = _choose(at.binary("less_than", lengths), at + lengths.before(0), padding)
    sizes = (x.size(axis) for axis in range(1, x.rank))
    zeros = (w.ones(w.number(1), *sizes) - 1).cast(x.dtype)
    table = w.concat([x.dense, zeros + value if value else zeros], 0)
    return rows(table, index), lengths.reshape(-1)


def unpad(x: Variable, lengths: Variable) -> Variable:
    """Returns the ragged form of a padded x (N, T, ...) with int64 lengths (N,)."""
    w, lengths = x.w, lengths.reshape(-1, 1)
    words = _words(lengths)
    sequences = w.ones(lengths.size(0), w.number(1)).before(0)
    starts = sequences * x.size(1) - lengths.before(0)
    index = _of_words(starts, words) + _places(words)
    table = x.resize(-1, *(x.size_or_number(axis) for axis in range(2, x.rank)))
    return rows(table, index.reshape(-1)).under(words)


def words_of_steps(x: Variable) -> Variable:
    """Returns x (T, N, I) as a ragged variable of N sequences of length T."""
    w, (steps, sequences, width) = x.w, (x.size(axis) for axis in range(3))
    table = x.swap().resize(-1, width)
    return with_offsets(table, w.ones(sequences + 1).before(0) * steps)


def steps_of_words(words: Variable, x: Variable) -> Variable:
    """Returns ``words`` as (T, N, ...), the reverse of `words_of_steps` for ``x``."""
    return words.dense.resize(x.size(1), x.size(0), words.size(1)).swap()


def _choose(truth: Variable, x: Variable, y: Variable) -> Variable:
    chosen = truth.cast("int64")
    return chosen * x + (x.w.number(1) - chosen) * y


def _words(lengths: Variable) -> Variable:
    """Returns ones (W, 1) with the LoD of these lengths (N, 1)."""
    w = lengths.w
    ends = (lengths.before(0) + lengths).reshape(-1)
    words = w.ones(lengths.reduce_sum(dim=[0], keep_dim=False), w.number(1))
    return with_offsets(words, w.concat([w.number(0), ends], 0))


def _of_words(x: Variable, words: Variable) -> Variable:
    """Returns x (N, 1) as (W, 1): each step gets the element of its sequence."""
    return x.sequence_expand(Y=words, ref_level=0)


def _places(words: Variable) -> Variable:
    """Returns the positions of all steps, 0, 1, 2, ..., as (W, 1)."""
    return words.w.ones(words.size(0), words.w.number(1)).before(0)


# Writes onernn's own operators on gates and sequences.


def order_gates(x: Variable, layout: GateLayout) -> Variable:
    """Returns the columns of x with their gates reordered, and some gates negated."""
    gates = len(layout.permutation)
    if layout == GateLayout(tuple(range(gates)), (1,) * gates):
        return x
    parts = x.split(x.rank - 1, gates)
    chosen = [
        parts[gate] if sign > 0 else parts[gate].scale_by(-1)
        for gate, sign in zip(layout.permutation, layout.signs, strict=True)
    ]
    return x.w.concat(chosen, x.rank - 1)


@rule("GateLayout")
def gate_layout(x, *, layout):
    steps = order_gates(x, layout)
    return x.copy() if steps is x else steps


@rule("SequenceData")
def sequence_data(x):
    return x.dense


@rule("SequenceLike")
def sequence_like(x, like):
    return x.under(like)


@rule("SequenceReset")
def sequence_reset(x, like):
    """Writes a lod_reset. Constant offsets become an attribute, computed offsets an int32 input."""
    if like.known is None:
        return with_offsets(x, like)
    return x.lod_reset(target_lod=integers(like), append=False)


@rule("SequenceAppend")
def sequence_append(*values, w):
    """Concatenates steps. Paddle's concat also joins the LoD of its inputs."""
    return w.concat(values, 0)


@rule("SequencePool")
def sequence_pool(x, *, kind, empty):
    return pool(x, kind, empty)


@rule("SequenceReverse")
def sequence_reverse(x):
    return reverse_words(x)


@rule("SequenceContext")
def sequence_context(x, *, length, start, w):
    """Writes a sequence_conv with the identity matrix. If a MatMul reads the result, it writes a
    sequence_conv with its own matrix instead.
    """
    width = x.sizes[-1]
    if width is None:
        raise UnsupportedError("expected steps of a width that is known before a run")
    return convolve(w.node, w.constant(np.eye(width * length, dtype=x.dtype)))


@rule("SequenceExpand")
def sequence_expand(x, like, *, level, w):
    if not x.depth and w.types[w.node.outputs[0]].depth:
        raise UnsupportedError("expected an input with a LoD, because the result has one")
    return x.sequence_expand(Y=like, ref_level=level)


@rule("ReverseSequence")
def reverse_sequence(x, lengths, *, time_axis, batch_axis):
    """Reverses the steps of each sequence within its length. The padding is unchanged."""
    if {time_axis, batch_axis} != {0, 1}:
        raise UnsupportedError(
            f"attributes {time_axis=}, {batch_axis=}: expected 0 and 1; transpose the input first"
        )
    w, batch = x.w, x.swap() if time_axis == 0 else x
    count, time = batch.size(0), batch.size(1)
    lengths = lengths.cast("int64").reshape(-1, 1)
    at = w.ones(w.number(1), time).before(1)
    place = _choose(at.binary("less_than", lengths), lengths - at - 1, at + lengths - lengths)
    table = batch.resize(-1, *(batch.size_or_number(axis) for axis in range(2, x.rank)))
    out = rows(table, place + w.ones(count, w.number(1)).before(0) * time)
    return out.swap() if time_axis == 0 else out


@rule("SequenceConcat")
def sequence_concat(whole, *others):
    for other in others:
        whole = append(whole, other)
    return whole if others else whole.copy()


@rule("SequenceLengths")
def sequence_lengths(x):
    return pad(x)[1]


@rule("SequenceFill")
def sequence_fill(x, value, *, time, w):
    return pad(x, value, None if time is None else w.number(time))[0]


@rule("SequenceUnpad")
def sequence_unpad(x, lengths, *, time_major, w):
    """Removes padding. Stores the padded variable for later operators that need it."""
    lengths = lengths.reshape(-1).cast("int64")
    steps, sequences = (x, x.swap()) if time_major else (x.swap(), x)
    known = Padded(steps, lengths, w.node.inputs[0], bool(time_major), zeros=False)
    w.padded[w.node.outputs[0]] = known
    return unpad(sequences, lengths)


@rule("SequencePad")
def sequence_pad(x, like=None, *, time_major, w):
    known, source = w.padded.get(w.node.inputs[0]), w.node.input(1)
    if known and known.zeros and (known.like, known.time_major) == (source, bool(time_major)):
        return known.data.copy() if time_major else known.data.swap()
    padded, _ = pad(x, time=like and like.size(0 if time_major else 1))
    return padded.swap() if time_major else padded


@rule("CrfDecode")
def crf_decode(x, transitions):
    return x.check_levels().crf_decoding(Transition=transitions)


# Writes recurrent layers: as gru and lstm (or fused) over a LoD, and as rnn over padded sequences.

_MODES = {cell: mode for mode, (cell, _) in paddle.RNN_CELLS.items()}
"""The ``mode`` of the operator rnn by cell."""
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
def recurrent(x, *_, spec, weights, precision, w):
    rnn = Recurrent.of(w.node)
    rnn.precision.refuse("a Paddle program")
    limits = _OVER_WORDS if spec.cell in _OVER_WORDS.cells else _OVER_STEPS
    if reason := why_not(spec, rnn.layers, limits):
        raise UnsupportedError(reason)
    if x.depth > 1:
        raise UnsupportedError(f"input {rnn.x!r}: expected at most one LoD level, got {x.depth}")
    states = [w.value(name) if name else None for name in rnn.states]
    if spec.cell in _OVER_WORDS.cells and not _came_padded(w, rnn):
        y, finals, cells = _over_words(w, rnn, x, states)
    else:
        (y, finals), cells = _over_steps(w, rnn, x, states), None
    return (*(y, *finals, None)[:3], cells)


def _came_padded(w: Writing, rnn: Recurrent) -> bool:
    """Returns whether the layer's input is padded, and the operator rnn can run the layer."""
    is_padded = rnn.x in w.padded or not w.types[rnn.x].depth
    return (
        is_padded
        and not w.graph.is_read(rnn.cells)
        and not why_not(rnn.spec, rnn.layers, _OVER_STEPS)
    )


def _over_steps(
    w: Writing, rnn: Recurrent, x: Variable, initial: Sequence[Variable | None]
) -> tuple[Variable, list[Variable | None]]:
    """Returns y, and the final states that other nodes read."""
    spec = rnn.spec
    backwards, total = spec.direction == "right2left", spec.layers * spec.directions
    steps, lengths, known = x, None, None
    if x.depth and (backwards or rnn.x not in w.padded):
        padded, lengths = pad(reverse_words(x) if backwards else x)
        steps = padded.swap()
    elif x.depth:
        known = w.padded[rnn.x]
        steps, lengths = known.data, known.lengths
    elif backwards:
        steps = x.flip(axis=[0])
    shape = [total, -1, spec.hidden_size]
    states = [each.reshape(*shape) if each else _zeros(steps, shape, 1) for each in initial]
    summed = spec.direction == "bidirectional_sum"
    finals: list[list[Variable]] = [[] for _ in states]
    # A layer that sums its directions needs an rnn of its own.
    for layers in [[each] for each in rnn.layers] if summed else [rnn.layers]:
        at = len(finals[0]) * spec.directions
        cut = {0: (at, at + spec.directions)}
        own = states if len(layers) == spec.layers else [each.take(cut) for each in states]
        steps, ends = _rnn(w, rnn, layers, steps, own, lengths)
        for ends_of_state, end in zip(finals, ends, strict=True):
            ends_of_state.append(end)
        if summed:
            forward, backward = steps.split(2, 2)
            steps = forward + backward
    if lengths is None:
        y = steps.flip(axis=[0]) if backwards else steps
    else:
        y = unpad(steps.swap(), lengths)
        if backwards:
            y = reverse_words(y)
        elif known:
            w.padded[rnn.y] = replace(known, data=steps, zeros=True)
    return y, _finals(w, rnn, finals)


def _rnn(
    w: Writing,
    rnn: Recurrent,
    layers: Sequence[RnnWeights],
    x: Variable,
    states: Sequence[Variable],
    lengths: Variable | None,
) -> tuple[Variable, Sequence[Variable]]:
    """Returns the output (T, N, D*O) and the final states (L*D, N, O) of one operator for
    ``layers``.
    """
    spec, mode = rnn.spec, _MODES[rnn.spec.cell]
    arrays = paddle.rnn_weights_back([_with_bias(spec, each) for each in layers], mode)
    assert layers[0].layer is not None  # `why_not` has refused the rest
    results = w.emit_all(
        "rnn",
        x,
        {"Out": 1, "Reserve": 1, "DropoutState": 1, "State": len(states)},
        PreState=states,
        WeightList=[w.constant(array, f"{rnn.y}.w") for array in arrays],
        SequenceLength=lengths,
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


def _finals(
    w: Writing, rnn: Recurrent, finals: Sequence[Sequence[Variable]]
) -> list[Variable | None]:
    """Returns each final state (L, D, N, O) from its parts along L*D, None if no node reads it."""
    shape = [rnn.spec.layers, rnn.spec.directions, -1, rnn.spec.hidden_size]
    return [
        (ends[0] if len(ends) == 1 else w.concat(ends, 0)).reshape(*shape)
        if w.graph.is_read(name)
        else None
        for name, ends in zip(rnn.finals, finals, strict=True)
    ]


def _with_bias(spec: RnnSpec, weights: RnnWeights) -> RnnWeights:
    """Returns the weights with biases, which Paddle requires."""
    shape = (1, spec.directions, spec.cell.bias_rows, spec.hidden_size)
    zeros = np.zeros(shape, weights.iter.dtype)
    return weights if weights.bias is not None else replace(weights, bias=zeros)


def _zeros(like: Variable, shape: list[int], axis: int) -> Variable:
    """Returns zeros of a shape. The size of ``axis`` comes from ``like``."""
    return like.fill_constant_batch_size_like(
        shape=shape, input_dim_idx=axis, output_dim_idx=axis, value=0.0, dtype=5
    )


def _over_words(
    w: Writing, rnn: Recurrent, x: Variable, initial: Sequence[Variable | None]
) -> tuple[Variable, list[Variable | None], Variable | None]:
    """Returns y, the final states that other nodes read, and the cell states of all steps."""
    spec, steps = rnn.spec, None if x.depth else x
    x = source = words_of_steps(steps) if steps else x
    finals: list[list[Variable]] = [[] for _ in initial]
    cells, halves = None, list[Variable]()
    for part in parts(spec):
        states = [
            variable and _state(name, variable, part, spec)
            for name, variable in zip(rnn.states, initial, strict=True)
        ]
        hidden, cells = _direction(w, rnn, part, x, states, source)
        halves.append(hidden)
        ends = zip(rnn.finals, finals, (hidden, cells), states, strict=False)
        for name, ends_of_state, words, start in ends:
            if w.graph.is_read(name):
                ends_of_state.append(_last(words, start, part.backwards))
        if len(halves) == spec.directions:
            concat = spec.direction == "bidirectional_concat"
            x = w.concat(halves, 1) if concat else halves[0]
            if spec.direction == "bidirectional_sum":
                x = halves[0] + halves[1]
            halves = []
    cells = cells if w.graph.is_read(rnn.cells) else None
    if steps:
        x, cells = steps_of_words(x, steps), cells and steps_of_words(cells, steps)
    return x, _finals(w, rnn, finals), cells


def _direction(
    w: Writing,
    rnn: Recurrent,
    part: Part,
    x: Variable,
    states: Sequence[Variable | None],
    source: Variable,
) -> tuple[Variable, Any]:
    """Returns the hidden states, and an LSTM's cell states, of every step.

    ``source``: the layer's input, from which initial states of zeros get the number of sequences.
    """
    spec, weights = part.spec, rnn.layers[part.layer].part(0, part.direction)
    is_lstm, (layout, origin_mode) = spec.cell is Cell.LSTM, _layout(spec)
    gate, candidate, *cell = (each.name for each in spec.functions)
    more: dict[str, Any] = {"is_reverse": part.backwards, "gate_activation": gate}
    if is_lstm:
        more |= {"candidate_activation": candidate, "cell_activation": cell[0]}
        more |= {"use_peepholes": spec.peephole}
    else:
        more |= {"activation": candidate, "origin_mode": origin_mode}
    name, fused = ("lstm" if is_lstm else "gru"), w.fused and weights.layer is not None
    fused = fused and not origin_mode  # Paddle's fusion_gru ignores origin_mode
    placed = fused and _is_placed(w, rnn, states)
    if any(states) or fused and not placed:
        # Without H0, Paddle's fused kernels are wrong for sequences without steps.
        states = [state or _zeros(source, [-1, spec.hidden_size], 0) for state in states]
    more |= zip(("H0", "C0"), states, strict=False)
    bias = _bias(spec, weights, layout)
    more["Bias"] = None if bias is None else w.constant(bias, f"{rnn.y}.b")
    back = input_layer_back if is_lstm else paddle.weight_h_back
    recurrent_weights = back(weights.iter, layout)
    if fused:
        name = f"fusion_{name}"
        assert weights.layer is not None
        more["WeightX"] = w.constant(input_layer_back(weights.layer, layout), f"{rnn.y}.wx")
        more["WeightH"] = w.constant(recurrent_weights, f"{rnn.y}.wh")
        more |= {"use_seq": True, "use_mkldnn": placed}
        x = x.check_levels()
    else:
        # The copy prevents paddle.inference from fusing the projection and the layer. The fused
        # operator would lose initial states, cell states and activations, and would be wrong for
        # sequences without steps.
        x = _project(w, rnn, weights, layout, x).copy().check_levels()
        more["Weight"] = w.constant(recurrent_weights, f"{rnn.y}.w")
    results = w.emit_all(name, x, {"Hidden": 1, **dict.fromkeys(_SIDE[name], 1)}, **more)
    return results["Hidden"][0], results["Cell"][0] if is_lstm else None


def _layout(spec: RnnSpec) -> tuple[GateLayout, bool]:
    """Returns the order and signs of Paddle's gates, and origin_mode. origin_mode is false if
    negating a gate can express the cell.
    """
    if spec.cell is Cell.LSTM:
        return paddle.LSTM, False
    is_sigmoid, keeps = spec.functions[0].name == "sigmoid", spec.update == "keep"
    return GateLayout(
        (0, 1, 2), (-1 if is_sigmoid and keeps else 1, 1, 1)
    ), keeps and not is_sigmoid


def _bias(spec: RnnSpec, weights: RnnWeights, layout: GateLayout) -> Array | None:
    bias = weights.bias
    if spec.cell is not Cell.LSTM:
        return None if bias is None else bias_back(bias, layout)
    zeros = np.zeros((1, 1, 4, spec.hidden_size), weights.iter.dtype)
    return paddle.lstm_bias_back(zeros if bias is None else bias, weights.peephole)


def _project(
    w: Writing, rnn: Recurrent, weights: RnnWeights, layout: GateLayout, x: Variable
) -> Variable:
    """Returns x times the input weights. For a layer without input weights, returns x with its
    gates in Paddle's order.
    """
    if weights.layer is not None:
        matrix = w.constant(input_layer_back(weights.layer, layout), f"{rnn.y}.wx")
        return x.mul(Y=matrix, x_num_col_dims=1, y_num_col_dims=1)
    maker = w.graph.producer(rnn.x)
    if maker is not None and maker.op == "GateLayout" and maker.attrs.layout == layout:
        return w.value(maker.inputs[0])
    return order_gates(x, layout.inverse)


def _is_placed(w: Writing, rnn: Recurrent, states: Sequence[Variable | None]) -> bool:
    """Returns whether to set use_mkldnn, because Paddle's oneDNN kernel is correct for the
    layer.
    """
    if w.place != "onednn":
        return False
    reason = ""
    if any(states):
        reason = "Paddle's oneDNN kernel keeps the initial state of an earlier batch"
    elif rnn.spec.activations is not None:
        reason = "Paddle's oneDNN kernel supports sigmoid and tanh only"
    elif w.graph.is_read(rnn.c_final) or w.graph.is_read(rnn.cells):
        reason = "Paddle's oneDNN kernel writes no cell states"
    if reason:
        w.unplaced.append(Refusal(reason, rnn.y))
    return not reason


def _state(name: str, variable: Variable, part: Part, spec: RnnSpec) -> Variable:
    """Returns the state (N, O) of a layer and direction from the states (L, D, N, O).

    If the graph concatenates the states from states (N, O), returns the variable of this part,
    without a slice.
    """
    w, at, left = variable.w, (part.layer, part.direction), [spec.layers, spec.directions]
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
    return variable.take({axis: (at[axis], at[axis] + 1) for axis in (0, 1)}, [0, 1])


def _last(words: Variable, start: Variable | None, backwards: bool) -> Variable:
    """Returns the final state (1, N, O) of a direction.

    For a sequence without steps it is ``start``.
    """
    end = pool(words, "first" if backwards else "last")
    if start:
        empty = lengths_of(words).binary("equal", words.w.constant(np.zeros(1, np.int64)))
        end = end + start * empty.cast("float32")
    return end.unsqueeze2(axes=[0])
