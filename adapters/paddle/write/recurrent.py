"""Recurrent layers as Paddle's operators: gru and lstm over LoD, or fused, and rnn over padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from onernn.adapters.paddle.write.emitting import Padded, Writing, rule
from onernn.adapters.paddle.write.sequences import (
    laid_out,
    lengths_of,
    of_one_length,
    padded,
    pooled,
    ragged,
    steps_of,
    swapped,
    turned,
    unpadded,
)
from onernn.core.arrays import Array
from onernn.core.errors import Refusal, UnsupportedError
from onernn.core.graph import Node
from onernn.core.spec import Cell, RnnSpec
from onernn.core.weights import RnnWeights, layers_of
from onernn.reorders import paddle
from onernn.reorders.gates import GateLayout, bias_back, input_layer_back

_FUNCTIONS = ("sigmoid", "tanh", "relu", "identity")
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
def rnn(w: Writing, node: Node, inputs: list[str]) -> None:
    spec: RnnSpec = node.attributes["spec"]
    layers = layers_of(spec, node.attributes["weights"])
    if reason := obstacle(spec, layers):
        raise UnsupportedError(reason)
    if w.of(inputs[0]).depth > 1:
        raise UnsupportedError("two LoD levels: Paddle's recurrent operators take one")
    if _is_padded(w, node, spec, layers):
        _over_steps(w, node, spec, layers, inputs)
    else:
        _over_words(w, node, spec, layers, inputs)


def obstacle(spec: RnnSpec, layers: Sequence[RnnWeights]) -> str:
    """What no operator of Paddle can say of a layer; "" where one can."""
    modes = {cell for cell, _ in paddle.RNN_CELLS.values()}
    if spec.cell not in (*modes, Cell.GRU):
        return f"Paddle has no {spec.cell.name}"
    if spec.projection_size:
        return "Paddle's LSTM has no projection"
    if spec.cell_clip is not None or spec.gate_clip is not None:
        return "Paddle's recurrent operators do not clip"
    if spec.input_forget:
        return "Paddle's LSTM does not couple its input and forget gates"
    if spec.stacking == "onednn" and spec.layers > 1:
        return "stacking='onednn': each direction would have a stack of its own"
    if layers[0].iter.dtype != np.float32:
        return f"{layers[0].iter.dtype} weights, only float32 layers are written"
    if spec.cell not in (Cell.GRU, Cell.LSTM):
        if spec.activations is not None:
            return f"Paddle's {spec.cell.name} has no other functions"
        if layers[0].layer is None:
            return f"Paddle's {spec.cell.name} takes no input that is projected already"
    for each in spec.functions:
        if each.name not in _FUNCTIONS or each.alpha is not None or each.beta is not None:
            return f"function {each}: Paddle's gates know {', '.join(_FUNCTIONS)}"
    return ""


def _is_padded(w: Writing, node: Node, spec: RnnSpec, layers: Sequence[RnnWeights]) -> bool:
    """Whether the operator ``rnn`` is the one for it: its cells, and LSTM where x came padded."""
    if spec.cell is not Cell.LSTM:
        return spec.cell is not Cell.GRU
    plain = not spec.peephole and spec.activations is None and layers[0].layer is not None
    came_padded = node.inputs[0] in w.padded or not w.types[node.inputs[0]].depth
    return plain and came_padded and not w.wants(node, 3)


# Over padding: the operator rnn.


def _over_steps(
    w: Writing, node: Node, spec: RnnSpec, layers: Sequence[RnnWeights], inputs: list[str]
) -> None:
    x, *given = [*inputs, "", ""][:3]
    backwards, total = spec.direction == "right2left", spec.layers * spec.directions
    steps, lengths, like = x, "", ""
    if w.of(x).depth and (backwards or node.inputs[0] not in w.padded):
        if backwards:
            x = turned(w, x)
        rows, lengths = padded(w, x)
        steps = swapped(w, rows)
    elif w.of(x).depth:
        known = w.padded[node.inputs[0]]
        steps, lengths, like = known.data, known.lengths, known.like
    elif backwards:
        steps = _flipped(w, x)
    shape = [total, -1, spec.hidden_size]
    states = [
        w.reshape(state, shape) if state else _zeros(w, steps, shape)
        for _, state in zip(spec.cell.states, given, strict=False)
    ]
    step = 1 if spec.direction == "bidirectional_sum" else spec.layers  # where halves are added
    finals: list[list[str]] = [[] for _ in states]
    for first in range(0, spec.layers, step):
        own = states if step == spec.layers else [_rows(w, s, first, spec) for s in states]
        steps, ends = _rnn(
            w, node.outputs[0], spec, layers[first : first + step], steps, own, lengths
        )
        for ends_of_state, end in zip(finals, ends, strict=True):
            ends_of_state.append(end)
        if spec.direction == "bidirectional_sum":
            numbers = {"axis": 2, "num": 2, "sections": list[int]()}
            sizes = (None, None, spec.hidden_size)
            steps = w.add(*w.emit_many("split", {"X": steps}, 2, sizes, attributes=numbers))
    if not w.types[node.outputs[0]].depth:
        w.give(node, _flipped(w, steps) if backwards else steps)
    else:
        words = unpadded(w, swapped(w, steps), lengths)
        if backwards:
            words = turned(w, words)
        elif like:
            w.padded[node.outputs[0]] = Padded(steps, lengths, like)
        w.give(node, words)
    _give_finals(w, node, spec, finals)


def _rnn(
    w: Writing,
    stem: str,
    spec: RnnSpec,
    layers: Sequence[RnnWeights],
    x: str,
    states: list[str],
    lengths: str,
) -> tuple[str, list[str]]:
    """(T, N, D*O) and the final states (L*D, N, O) of one operator."""
    mode = next(mode for mode, (cell, _) in paddle.RNN_CELLS.items() if cell is spec.cell)
    whole = [_with_bias(spec, each) for each in layers]
    arrays = paddle.rnn_weights_back(whole, mode)
    slots = {
        "Input": x,
        "PreState": states,
        "WeightList": [w.constant(array, f"{stem}.w") for array in arrays],
        "SequenceLength": lengths,
    }
    numbers = {"mode": mode, "num_layers": len(layers), "hidden_size": spec.hidden_size}
    assert layers[0].layer is not None  # by `obstacle`
    numbers |= {"input_size": layers[0].layer.shape[2], "is_bidirec": spec.directions == 2}
    out = w.emit(
        "rnn",
        slots,
        (None, None, spec.hidden_size * spec.directions),
        also=("Reserve", "DropoutState"),
        lod="",
        attributes={**numbers, "is_test": True, "dropout_prob": 0.0, "seed": 0},
    )
    ends = [w.program.fresh("rnn.State") for _ in states]
    for end in ends:
        w.program.variables[end] = replace(w.of(states[0]))
    w.program.operations[-1].outputs["State"] = list(ends)
    return out, ends


def _with_bias(spec: RnnSpec, weights: RnnWeights) -> RnnWeights:
    """Paddle wants biases."""
    shape = (1, spec.directions, spec.cell.bias_rows, spec.hidden_size)
    zeros = np.zeros(shape, weights.iter.dtype)
    return weights if weights.bias is not None else replace(weights, bias=zeros)


def _zeros(w: Writing, steps: str, rows: list[int]) -> str:
    """(L*D, N, O) of zeros for (T, N, ...)."""
    numbers = {"shape": rows, "input_dim_idx": 1, "output_dim_idx": 1, "value": 0.0, "dtype": 5}
    sizes = (rows[0], None, rows[2])
    return w.emit(
        "fill_constant_batch_size_like", {"Input": steps}, sizes, lod="", attributes=numbers
    )


def _rows(w: Writing, state: str, layer: int, spec: RnnSpec) -> str:
    """The states of one layer, from those of all."""
    d = spec.directions
    return w.take(state, {0: (layer * d, layer * d + d)}, [])


def _flipped(w: Writing, x: str) -> str:
    return w.emit("flip", {"X": x}, lod="", attributes={"axis": [0]})


def _give_finals(w: Writing, node: Node, spec: RnnSpec, finals: Sequence[Sequence[str]]) -> None:
    """States (L*D, N, O), or parts of them, as (L, D, N, O)."""
    for at, ends in enumerate(finals, 1):
        if w.wants(node, at):
            whole = ends[0] if len(ends) == 1 else w.concat(ends, 0)
            shape = [spec.layers, spec.directions, -1, spec.hidden_size]
            w.give(node, w.reshape(whole, shape), at)


# Over words: gru and lstm.


@dataclass(frozen=True)
class _Direction:
    spec: RnnSpec
    weights: RnnWeights
    backwards: bool


def _over_words(
    w: Writing, node: Node, spec: RnnSpec, layers: Sequence[RnnWeights], inputs: list[str]
) -> None:
    x, *given = [*inputs, "", ""][:3]
    is_dense = not w.of(x).depth
    x = source = of_one_length(w, x) if is_dense else x
    finals: list[list[str]] = [[] for _ in spec.cell.states]
    cells = ""
    for layer, weights in enumerate(layers):
        halves = []
        for d in range(spec.directions):
            part = _Direction(spec, weights.part(0, d), d == 1 or spec.direction == "right2left")
            states = [
                _state(w, node.inputs[at], given[at - 1], (layer, d), spec) if given[at - 1] else ""
                for at in range(1, 1 + len(finals))
            ]
            hidden, cells = _direction(w, node, part, x, states, source)
            halves.append(hidden)
            for at, words in enumerate((hidden, cells)[: len(finals)]):
                if w.wants(node, at + 1):
                    finals[at].append(_last(w, words, states[at], part.backwards))
        x = halves[0]
        if spec.direction == "bidirectional_concat":
            x = w.concat(halves, 1)
        elif spec.direction == "bidirectional_sum":
            x = w.add(*halves)
    if w.wants(node, 3):
        w.give(node, cells, 3)
    w.give(node, steps_of(w, x, inputs[0]) if is_dense else x)
    _give_finals(w, node, spec, finals)


def _direction(
    w: Writing, node: Node, part: _Direction, x: str, states: list[str], source: str
) -> tuple[str, str]:
    """Hidden states, and an LSTM's cells, of every word; ``source`` has the sentences, too."""
    spec, weights, is_lstm = part.spec, part.weights, part.spec.cell is Cell.LSTM
    layout, origin_mode = _layout(spec)
    stem = node.outputs[0]  # in a name that a user finds again
    gate, candidate, *cell = (each.name for each in spec.functions)
    numbers = {"is_reverse": part.backwards, "gate_activation": gate}
    if is_lstm:
        numbers |= {"candidate_activation": candidate, "cell_activation": cell[0]}
        numbers |= {"use_peepholes": spec.peephole}
    else:
        numbers |= {"activation": candidate, "origin_mode": origin_mode}
    name, fused = ("lstm" if is_lstm else "gru"), w.fused and weights.layer is not None
    fused = fused and not origin_mode  # Paddle's fusion_gru does not read it
    placed = fused and _placed(w, node, spec, states)
    if any(states) or fused and not placed:
        # Without H0 the native fused kernels go wrong over sentences without words.
        states = [state or _zero_state(w, source, spec.hidden_size) for state in states]
    slots = dict(zip(("H0", "C0"), states, strict=False))
    bias = _bias(spec, weights, layout)
    slots["Bias"] = "" if bias is None else w.constant(bias, f"{stem}.b")
    recurrent = _weight_h(weights, layout, is_lstm)
    if fused:
        name = f"fusion_{name}"
        assert weights.layer is not None
        slots |= {"WeightX": w.constant(input_layer_back(weights.layer, layout), f"{stem}.wx")}
        slots |= {"WeightH": w.constant(recurrent, f"{stem}.wh")}
        numbers |= {"use_seq": True, "use_mkldnn": placed}
        slots = {"X": ragged(w, x), **slots}
    else:
        # Something between, or paddle.inference fuses the two, and then drops states, cells and
        # functions, and goes wrong over sentences without words.
        projected = w.emit("assign", {"X": _projected(w, node, weights, layout, x)})
        slots = {
            "Input": ragged(w, projected),
            "Weight": w.constant(recurrent, f"{stem}.w"),
            **slots,
        }
    made = w.emit(
        name,
        slots,
        (None, spec.hidden_size),
        out="Hidden",
        also=_SIDE[name],
        attributes=numbers,
    )
    return made, w.side(made, "Cell") if is_lstm else ""


def _layout(spec: RnnSpec) -> tuple[GateLayout, bool]:
    """Paddle's gates, and origin_mode: the default one wherever a sign can say it."""
    if spec.cell is Cell.LSTM:
        return paddle.LSTM, False
    gate = spec.functions[0].name
    origin_mode = gate != "sigmoid" and spec.update == "keep"
    flips = gate == "sigmoid" and spec.update == "keep"
    return GateLayout((0, 1, 2), (-1 if flips else 1, 1, 1)), origin_mode


def _weight_h(weights: RnnWeights, layout: GateLayout, is_lstm: bool) -> Array:
    if is_lstm:
        return input_layer_back(weights.iter, layout)
    return paddle.weight_h_back(weights.iter, layout)


def _bias(spec: RnnSpec, weights: RnnWeights, layout: GateLayout) -> Array | None:
    bias = weights.bias
    if spec.cell is not Cell.LSTM:
        return None if bias is None else bias_back(bias, layout)
    zeros = np.zeros((1, 1, 4, spec.hidden_size), weights.iter.dtype)
    return paddle.lstm_bias_back(zeros if bias is None else bias, weights.peephole)


def _projected(w: Writing, node: Node, weights: RnnWeights, layout: GateLayout, x: str) -> str:
    """x times the input weights; what is projected already is put into Paddle's gates."""
    if weights.layer is not None:
        matrix = input_layer_back(weights.layer, layout)
        sizes = (None, matrix.shape[1])
        slots = {"X": x, "Y": w.constant(matrix, f"{node.outputs[0]}.wx")}
        return w.emit("mul", slots, sizes, attributes={"x_num_col_dims": 1, "y_num_col_dims": 1})
    maker = w.graph.producer(node.inputs[0])
    if maker is not None and maker.op == "GateLayout" and maker.attributes["layout"] == layout:
        return w.value(maker.inputs[0])
    return laid_out(w, x, layout.inverse)


def _placed(w: Writing, node: Node, spec: RnnSpec, states: list[str]) -> bool:
    """Whether the operator may ask for oneDNN: where Paddle's kernel for it is right."""
    if w.place != "onednn":
        return False
    reason = ""
    if any(states):
        reason = "Paddle's oneDNN kernel keeps the initial state of an earlier batch"
    elif spec.activations is not None:
        reason = "Paddle's oneDNN kernel knows sigmoid and tanh only"
    elif spec.cell is Cell.LSTM and (w.wants(node, 2) or w.wants(node, 3)):
        reason = "Paddle's oneDNN kernel writes no cell states"
    if reason:
        w.unplaced.append(Refusal(reason, node.outputs[0]))
    return not reason


def _zero_state(w: Writing, x: str, width: int) -> str:
    """(N, O) for the N sentences of a ragged variable."""
    numbers = {"shape": [-1, width], "input_dim_idx": 0, "output_dim_idx": 0}
    numbers |= {"value": 0.0, "dtype": 5}
    sizes = (None, width)
    type_ = "fill_constant_batch_size_like"
    return w.emit(type_, {"Input": x}, sizes, "float32", lod="", attributes=numbers)


def _state(w: Writing, name: str, variable: str, at: tuple[int, int], spec: RnnSpec) -> str:
    """(N, O) of a layer and direction from (L, D, N, O): the value it was made of, where it shows."""
    parts = dict(zip((0, 1), (spec.layers, spec.directions), strict=True))
    while (maker := w.graph.producer(name)) is not None and maker.op == "Concat":
        axis = maker.attributes["axis"]
        if parts.get(axis) != len(maker.inputs):
            break
        name = maker.inputs[at[axis]]
        parts[axis] = 1
    if maker is not None and maker.op == "Unsqueeze" and set(parts.values()) == {1}:
        axes = w.graph.constants.get(maker.inputs[1])
        if axes is not None and axes.tolist() == [0, 1]:
            return w.value(maker.inputs[0])
    return w.take(variable, {axis: (at[axis], at[axis] + 1) for axis in (0, 1)}, [0, 1])


def _last(w: Writing, words: str, start: str, backwards: bool) -> str:
    """(1, N, O): the state where a direction ends; a sentence without words keeps ``start``."""
    end = pooled(w, words, "first" if backwards else "last")
    if start:
        empty = w.add(lengths_of(w, words), w.constant(np.zeros(1, np.int64)), "equal", "bool")
        end = w.add(end, w.add(start, w.cast(empty, "float32"), "elementwise_mul"))
    shape = {"axes": [0]}
    sizes = (1, *w.of(end).sizes)
    return w.emit("unsqueeze2", {"X": end}, sizes, also=("XShape",), lod="", attributes=shape)
