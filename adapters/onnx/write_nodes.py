"""How each canonical operator is written as ONNX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from onernn.adapters.common.lowering import Rules
from onernn.adapters.onnx import write_layers, writer
from onernn.adapters.onnx.rules import became_inputs
from onernn.adapters.onnx.writer import (
    GraphWriter,
    Inputs,
    OnnxValue,
    ProtoGraph,
    dense,
    ragged,
    value_info,
)
from onernn.ir.errors import UnsupportedError
from onernn.ir.graph import Graph, Node, Value
from onernn.ops import OPERATORS
from onernn.ops.control import types_inside

# Scans that ONNX's cannot say as Loops.


def loop_of_scan(w: GraphWriter, node: Node, inputs: Inputs) -> tuple[Node, Inputs]:
    """A Loop that does what a Scan does, and its inputs: its states may change their shapes."""
    at = node.attributes
    states, scanned, body = at["states"], at["scanned"], at["body"]
    if any((*at["input_directions"], *at["output_axes"], *at["output_directions"])):
        raise UnsupportedError(
            "its states change their shapes, and it does not go plainly forwards"
        )
    known = {*body.constants, *(value.name for value in body.inputs)}
    known.update(name for each in body.nodes for name in each.outputs)

    def fresh(hint: str) -> str:
        while hint in known:
            hint += "'"
        known.add(hint)
        return hint

    turn, going = fresh("turn"), fresh("going")
    elements = [value.name for value in body.inputs[states : states + scanned]]
    sources = [fresh(name) for name in elements]
    steps = [
        Node("Gather", (source, turn), (name,), {"axis": axis})
        for source, name, axis in zip(sources, elements, at["input_axes"], strict=True)
    ]
    taken = body.inputs[states + scanned :]
    loop = Graph(
        body.name,
        (Value(turn), Value(going), *body.inputs[:states], *map(Value, sources), *taken),
        (Value(going), *body.outputs),
        (*steps, *body.nodes),
        body.constants,
    )
    sizes = w.emit("Shape", dense(inputs[states], "what it goes through"))
    turns = OnnxValue(w.emit("Gather", sizes, int(at["input_axes"][0]), axis=0), "int64", 0)
    given = ("turns", "", *node.inputs)
    return Node("Loop", given, node.outputs, {"body": loop, "carried": states}, node.origin), [
        turns,
        None,
        *inputs,
    ]


# Operators of our own domain in ONNX: gates, offsets, tag sequences.

RULES = Rules[Callable[..., None]]()


@RULES("GateLayout")
def _gate_layout(w: GraphWriter, node: Node, inputs: Inputs) -> None:
    """A gather of columns, and a minus where a sign turns."""
    (x,) = inputs
    layout = node.attributes["layout"]
    if x is None or x.padded_rank < 2:
        raise UnsupportedError("expected columns")
    sizes = w.emit("Shape", x.data)
    blocks = w.emit("Slice", sizes, [0], [-1])
    gates = len(layout.permutation)
    apart = w.joined(blocks, [gates, -1])
    out = w.emit("Gather", w.emit("Reshape", x.data, apart), layout.permutation, axis=-2)
    if min(layout.signs) < 0:
        signs = np.array(layout.signs, x.dtype)[:, None]
        out = w.emit("Mul", out, w.constant(signs))
    w.give(node, w.emit("Reshape", out, sizes), x.lengths)


@RULES("SequenceData")
def _sequence_data(w: GraphWriter, node: Node, inputs: Inputs) -> None:
    (x,) = inputs
    if x is not None:
        w.give(node, w.words(x) if x.lengths else x.data)


@RULES("SequenceLike")
def _sequence_like(w: GraphWriter, node: Node, inputs: Inputs) -> None:
    x, like = inputs[0], ragged(inputs[1], "what offsets are taken from")
    if x is None:
        raise UnsupportedError("its input is missing")
    words = w.words(x) if x.lengths else x.data
    if x.lengths == like.lengths:
        return w.give(node, x.data, x.lengths)
    time = w.size(like.data, 1)
    out = w.from_words(words, like.lengths, time, x.dtype, x.rank)
    w.give(node, out.data, out.lengths)


@RULES("SequenceReset")
def _sequence_reset(w: GraphWriter, node: Node, inputs: Inputs) -> None:
    x, offsets = inputs
    if x is None:
        raise UnsupportedError("its input is missing")
    words = w.words(x) if x.lengths else x.data
    wide = w.cast(dense(offsets, "offsets"), "int64")
    ends = w.emit("Slice", wide, [1], [2**31])
    starts = w.emit("Slice", wide, [0], [-1])
    lengths = w.cast(w.emit("Sub", ends, starts), "int32")
    time = w.longest(lengths)
    out = w.from_words(words, lengths, time, x.dtype, x.rank)
    w.give(node, out.data, out.lengths)


@RULES("SequenceAppend")
def _sequence_append(w: GraphWriter, node: Node, inputs: Inputs) -> None:
    parts = [ragged(each, "what is appended") for each in inputs]
    times = w.joined(*(w.size(each.data, 1) for each in parts))
    time = w.reduce("ReduceMax", times, (0,), keepdims=1)
    padded = [w.with_time(each, time).data for each in parts]
    lengths = w.joined(*(each.lengths for each in parts))
    w.give(node, w.joined(*padded), lengths)


@RULES("SequenceUnpad")
def _sequence_unpad(w: GraphWriter, node: Node, inputs: Inputs) -> None:
    x, lengths = dense(inputs[0], "what is padded"), dense(inputs[1], "lengths")
    if node.at.time_major and inputs[0] is not None:
        x = w.swapped(x, inputs[0].rank)
    flat = w.reshaped(w.cast(lengths, "int32"), -1)
    w.give(node, x, flat)


@RULES("SequencePad")
def _sequence_pad(w: GraphWriter, node: Node, inputs: Inputs) -> None:
    x, time_major = (
        ragged(inputs[0], "what is to be padded"),
        bool(node.at.time_major),
    )
    if len(inputs) > 1 and inputs[1] is not None:
        time = w.size(inputs[1].data, 0 if time_major and not inputs[1].lengths else 1)
    else:
        time = w.longest(x.lengths)
    out = w.filled(w.with_time(x, time))
    w.give(node, w.swapped(out, x.padded_rank) if time_major else out)


# Tag decoding as Scans.


def crf_decode(w: GraphWriter, node: Node, inputs: Inputs) -> None:
    """Viterbi decoding by two Scans: best scores forwards, tags backwards.

    In the first step and beyond its end a sentence keeps its best scores, and points from every
    tag to itself. Ties go to the lower tag, as ArgMax has it.
    """
    emission = ragged(inputs[0], "the emission")
    transition = w.array(node.inputs[1], "the transition")
    tags = transition.shape[1] if transition.ndim == 2 else 0
    if emission.rank != 2 or transition.shape != (tags + 2, tags) or not tags:
        raise UnsupportedError(f"expected a transition (K+2, K), got {transition.shape}")
    start, stop, between = transition[0], transition[1], transition[2:]
    scores = w.transposed(emission.data, 1, 0, 2)
    first = w.emit("Gather", scores, 0, axis=0)
    begin = w.emit("Add", first, w.constant(start))
    running = _later(w, emission)
    body = ProtoGraph(around=w)
    best, here, on = (body.fresh(name) for name in ("best", "here", "on"))
    reach = body.emit("Add", body.unsqueezed(best, 2), body.constant(between))
    came = body.emit("ArgMax", reach, axis=1, keepdims=0)
    reached = body.unsqueezed(came, 1)
    picked = body.squeezed(body.emit("GatherElements", reach, reached, axis=1), 1)
    better = body.emit("Where", on, body.emit("Add", picked, here), best)
    pointer = body.emit("Where", on, came, body.constant(np.arange(tags)[None]))
    body.faces((best, here, on), (better, pointer))
    final, pointers = (w.fresh(name) for name in ("best", "pointers"))
    w.add("Scan", begin, scores, running, outputs=(final, pointers), body=body, num_scan_inputs=2)
    ended = w.emit("Add", final, w.constant(stop))
    last = w.emit("ArgMax", ended, axis=1, keepdims=1)
    back = ProtoGraph(around=w)
    tag, pointed = back.fresh("tag"), back.fresh("pointed")
    before = back.emit("GatherElements", pointed, tag, axis=1)
    back.faces((tag, pointed), (before, back.emit("Identity", tag)))
    path = w.fresh("path")
    w.add(
        "Scan",
        last,
        pointers,
        outputs=(w.fresh("tag"), path),
        body=back,
        num_scan_inputs=1,
        scan_input_directions=(1,),
        scan_output_directions=(1,),
    )
    w.give(node, w.transposed(path, 1, 0, 2), emission.lengths)


def _later(w: GraphWriter, emission: OnnxValue) -> str:
    """(T, N, 1) bool: inside the sentences, but for the first step, before which there is none."""
    inside = w.transposed(w.mask_of(emission), 1, 0)
    steps = w.steps(w.size(emission.data, 1))
    second = w.emit("Greater", w.unsqueezed(steps, 1), [0])
    return w.unsqueezed(w.emit("And", inside, second), 2)


# Operators over whole sentences in ONNX: pooled, reversed, repeated, joined, padded.


def _sentences(inputs: Inputs) -> OnnxValue:
    return ragged(inputs[0], "its input")


@RULES("SequencePool")
def _pool(w: GraphWriter, node: Node, inputs: Inputs) -> None:
    x, kind = _sentences(inputs), node.attributes["kind"]
    if w.types[node.outputs[0]].depth:
        raise UnsupportedError("rows under upper LoD levels are not written")
    out = _pooled(w, x, kind)
    some = _column(w, w.cast(x.lengths, "bool"), x)
    w.give(node, w.emit("Where", some, out, w.constant(node.attributes["empty"], x.dtype)))


def _column(w: GraphWriter, numbers: str, x: OnnxValue) -> str:
    """(N,) as (N, 1, ...), to stand beside one row a sentence."""
    return w.unsqueezed(numbers, *range(1, x.rank)) if x.rank > 1 else numbers


def _pooled(w: GraphWriter, x: OnnxValue, kind: str) -> str:
    """(N, ...); anything for a sentence without words."""
    if kind == "max":
        least = -np.inf if np.dtype(x.dtype).kind == "f" else np.iinfo(x.dtype).min
        return w.reduce("ReduceMax", w.filled(x, least), (1,), keepdims=0)
    if kind in ("first", "last"):
        if kind == "first":
            return w.emit("Gather", x.data, 0, axis=1)
        last = w.emit("Sub", w.cast(x.lengths, "int64"), [1])
        place = w.unsqueezed(w.emit("Max", last, [0]), 1)
        return w.emit("GatherND", x.data, place, batch_dims=1)
    total = w.reduce("ReduceSum", w.filled(x), (1,), keepdims=0)
    if kind == "sum":
        return total
    count = _column(w, w.cast(x.lengths, x.dtype), x)
    return w.emit("Div", total, w.emit("Sqrt", count) if kind == "sqrt" else count)


@RULES("SequenceSoftmax")
def _softmax(w: GraphWriter, node: Node, inputs: Inputs) -> None:
    x = _sentences(inputs)
    w.give(node, w.emit("Softmax", w.filled(x, -np.inf), axis=1), x.lengths)


@RULES("SequenceReverse")
def _reverse(w: GraphWriter, node: Node, inputs: Inputs) -> None:
    x = _sentences(inputs)
    lengths = w.cast(x.lengths, "int64")
    out = w.emit("ReverseSequence", x.data, lengths, batch_axis=0, time_axis=1)
    w.give(node, out, x.lengths)


@RULES("SequenceContext")
def _context(w: GraphWriter, node: Node, inputs: Inputs) -> None:
    x, length, start = _sentences(inputs), node.attributes["length"], node.attributes["start"]
    before, after = max(0, -start), max(0, start + length - 1)
    time = w.size(x.data, 1)
    wide = w.emit("Pad", w.filled(x), [0, before, 0, 0, after, 0])
    parts = []
    for k in range(before + start, before + start + length):
        end = w.emit("Add", time, [k])
        parts.append(w.emit("Slice", wide, [k], end, [1]))
    w.give(node, w.emit("Concat", *parts, axis=2), x.lengths)


@RULES("SequenceExpand")
def _expand(w: GraphWriter, node: Node, inputs: Inputs) -> None:
    like = ragged(inputs[1], "what is counted")
    x, level = dense(inputs[0], "what is repeated"), node.attributes["level"]
    if level not in (-1, w.types[node.inputs[1]].depth - 1):
        raise UnsupportedError("upper LoD levels are not written")
    rank = inputs[0].rank if inputs[0] else 0
    sizes = w.emit("Shape", x)
    inner = w.emit("Slice", sizes, [1], [2**31])
    outer = w.emit("Slice", w.emit("Shape", like.data), [0], [2])
    shape = w.joined(outer, inner)
    wide = w.emit("Expand", w.unsqueezed(x, 1), shape)
    w.give(node, w.words(OnnxValue(wide, like.dtype, rank, like.lengths)))


@RULES("SequenceConcat")
def _concat(w: GraphWriter, node: Node, inputs: Inputs) -> None:
    """Side by side in time; a place beyond the end of one goes on where the next one starts."""
    parts = [ragged(each, "what is joined") for each in inputs]
    whole = w.emit("Concat", *(each.data for each in parts), axis=1)
    lengths = parts[0].lengths
    for each in parts[1:]:
        lengths = w.emit("Add", lengths, each.lengths)
    time = w.longest(lengths)
    steps = w.unsqueezed(w.steps(time), 0)
    at, ends = steps, ""
    for each in parts:
        wide = w.unsqueezed(w.cast(each.lengths, "int64"), 1)
        ends = w.emit("Add", ends, wide) if ends else wide
        beyond = w.cast(w.emit("GreaterOrEqual", steps, ends), "int64")
        unused = w.emit("Sub", w.size(each.data, 1), wide)
        at = w.emit("Add", at, w.emit("Mul", beyond, unused))
    last = w.emit("Sub", w.size(whole, 1), [1])
    places = w.unsqueezed(w.emit("Min", at, last), 2)
    w.give(node, w.emit("GatherND", whole, places, batch_dims=1), lengths)


@RULES("SequenceLengths")
def _lengths(w: GraphWriter, node: Node, inputs: Inputs) -> None:
    w.give(node, w.cast(_sentences(inputs).lengths, "int64"))


@RULES("SequenceFill")
def _fill(w: GraphWriter, node: Node, inputs: Inputs) -> None:
    x, value = _sentences(inputs), dense(inputs[1], "what stands behind")
    fixed = node.at.time
    time = w.longest(x.lengths) if fixed is None else w.ints(fixed)
    padded = w.with_time(x, time)
    mask = w.mask_of(padded)
    if x.rank > 1:
        mask = w.unsqueezed(mask, *range(2, x.padded_rank))
    if inputs[1] is not None and inputs[1].rank >= x.rank:
        value = w.reshaped(value, 1)
    w.give(node, w.emit("Where", mask, padded.data, value))


# The node of ONNX that each node of a graph becomes.

RULES.update(Rnn=write_layers.rnn, CrfDecode=crf_decode)
DENSE = Rules[Callable[..., None]]()
"""What is not copied where no input is ragged."""


def write_node(w: GraphWriter, node: Node) -> None:
    """Raises `UnsupportedError` for what ONNX cannot say."""
    inputs, since = w.inputs_of(node), OPERATORS[node.op].since
    if w.opset < since:
        raise UnsupportedError(f"needs opset {since}, {w.opset} is to be written")
    if node.op in RULES:
        RULES[node.op](w, node, inputs)
    elif not since:
        raise UnsupportedError(f"ONNX has no {node.op}")
    elif any(value and value.lengths for value in inputs):
        writer.write_ragged(w, node, inputs)
    elif node.op in DENSE:
        DENSE[node.op](w, node, inputs)
    elif w.opset < became_inputs(node.op)[0]:
        _with_axes_as_attribute(w, node, inputs)
    else:
        _copy(w, node, inputs)


def _copy(w: GraphWriter, node: Node, inputs: Inputs) -> None:
    """The operator as it stands."""
    w.copy(node, _tensors(inputs), **w.attributes(node))


def _tensors(inputs: Inputs) -> list[str]:
    return [value.data if value else "" for value in inputs]


def _with_axes_as_attribute(w: GraphWriter, node: Node, inputs: Inputs) -> None:
    """A Reduce operator of opsets before 18."""
    if node.at.noop_with_empty_axes:
        raise UnsupportedError("noop_with_empty_axes needs opset 18")
    more: dict[str, Any] = {"keepdims": node.at.keepdims}
    if node.input(1) and (axes := w.array(node.inputs[1], "axes")).size:
        more["axes"] = axes.reshape(-1).tolist()
    w.give(node, w.emit(node.op, dense(inputs[0], "its input"), **more))


@RULES("Dropout")
def _dropout(w: GraphWriter, node: Node, inputs: Inputs) -> None:
    if any(node.outputs[1:]):
        raise UnsupportedError("the mask of a Dropout is not written")
    if inputs[0]:
        w.give(node, inputs[0].data, inputs[0].lengths)


@DENSE("CastLike")
def _cast_like(w: GraphWriter, node: Node, inputs: Inputs) -> None:
    """A Cast where the dtype is known: CastLike came with opset 15."""
    dtype = w.types[node.outputs[0]].dtype
    if not dtype:
        return _copy(w, node, inputs)
    w.give(node, w.cast(dense(inputs[0], "its input"), dtype))


@DENSE("QuantizeLinear DequantizeLinear")
def _quantized(w: GraphWriter, node: Node, inputs: Inputs) -> None:
    dtypes = {w.types[name].dtype for name in (*node.inputs, *node.outputs) if name}
    if w.opset < 21 and dtypes & {"uint16", "int16"}:
        raise UnsupportedError("numbers of 16 bits need opset 21")
    _copy(w, node, inputs)


@DENSE("DynamicQuantizeLSTM")
def _quantized_lstm(w: GraphWriter, node: Node, inputs: Inputs) -> None:
    """ONNX Runtime refuses clip=0."""
    given = {key: value for key, value in node.attributes.items() if key != "clip" or value}
    w.copy(node, _tensors(inputs), **given)


_REDUCTIONS = {"none": 11, "add": 16, "mul": 16, "max": 18, "min": 18}
"""Since which opset elements that are put to a place meet what is there."""


@DENSE("ScatterElements ScatterND")
def _scatter(w: GraphWriter, node: Node, inputs: Inputs) -> None:
    how = node.at.reduction
    if w.opset < _REDUCTIONS[how]:
        raise UnsupportedError(f"attribute reduction={how!r} needs opset {_REDUCTIONS[how]}")
    given = {k: v for k, v in node.attributes.items() if (k, v) != ("reduction", "none")}
    w.copy(node, _tensors(inputs), **given)


@DENSE("DFT")
def _dft(w: GraphWriter, node: Node, inputs: Inputs) -> None:
    """The axis is an attribute before opset 20."""
    if w.opset >= 20:
        return _copy(w, node, inputs)
    axis = -2 if not node.input(2) else int(w.array(node.inputs[2], "axis").reshape(()))
    axis %= len(w.types[node.inputs[0]].counts)  # it counts from the front there
    w.copy(node, _tensors(inputs[:2]), axis=axis, **w.attributes(node))


@DENSE("STFT")
def _stft(w: GraphWriter, node: Node, inputs: Inputs) -> None:
    """onnx's checker takes another default of ``onesided`` than ONNX has."""
    w.copy(node, _tensors(inputs), onesided=node.at.onesided)


@DENSE("Resize")
def _resize(w: GraphWriter, node: Node, inputs: Inputs) -> None:
    if w.opset < 11:
        raise UnsupportedError("needs opset 11")
    attributes = w.attributes(node)
    tensors = [*_tensors(inputs), "", "", ""][:4]
    if scales := attributes.pop("scales", None):
        tensors[2] = w.constant(np.asarray(scales, np.float32))
    w.copy(node, tensors if tensors[3] else tensors[:3], **attributes)


@DENSE("If")
def _conditional(w: GraphWriter, node: Node, inputs: Inputs) -> None:
    count = node.at.then_taken
    branches = {"then_branch": inputs[1 : 1 + count], "else_branch": inputs[1 + count :]}
    bodies = {key: _body(w, node, key, taken) for key, taken in branches.items()}
    _give_all(w, node, inputs[:1], **bodies)


@DENSE("Loop")
def _loop(w: GraphWriter, node: Node, inputs: Inputs) -> None:
    own = 2 + node.at.carried
    _give_all(w, node, inputs[:own], body=_body(w, node, "body", inputs[own:]))


@DENSE("Scan")
def _scan(w: GraphWriter, node: Node, inputs: Inputs) -> None:
    if _grows(w, node):
        return _loop(w, *loop_of_scan(w, node, inputs))
    own = node.at.states + node.at.scanned
    kinds = ("input_axes", "input_directions", "output_axes", "output_directions")
    axes = {f"scan_{kind}": node.attributes[kind] for kind in kinds}
    body = _body(w, node, "body", inputs[own:])
    _give_all(w, node, inputs[:own], num_scan_inputs=node.at.scanned, **axes, body=body)


def _grows(w: GraphWriter, node: Node) -> bool:
    """Whether a state changes its shape, which ONNX's Scan forbids; unknown ones may."""
    states = zip(node.inputs, node.outputs[: node.at.states], strict=False)
    types = [(w.types[one], w.types[other]) for one, other in states if other]
    return any(one.shape is None or one.shape != other.shape for one, other in types)


def _give_all(w: GraphWriter, node: Node, inputs: Inputs, **attributes: Any) -> None:
    outs = [w.fresh(name or "unused") for name in node.outputs]
    w.add(node.op, *_tensors(inputs), outputs=outs, **attributes)
    for at, out in enumerate(outs):
        w.give(node, out, at=at)


def _body(w: GraphWriter, node: Node, key: str, taken: Inputs) -> GraphWriter:
    """The graph in an attribute; what it takes from outside it sees by name."""
    body: Graph = node.attributes[key]
    types = types_inside(node, key, [w.types.get(name) for name in node.inputs])
    inputs = [value.name for value in body.inputs]
    inner = w.writer_of(body, body.typed(dict(zip(inputs, types, strict=True))))
    own = len(inputs) - len(taken)
    names = [inner.fresh(name) for name in inputs[:own]] + _tensors(taken)
    for value, name, known in zip(inputs, names, types, strict=True):
        inner.bind(value, OnnxValue(name, known.dtype or "", len(known.counts)))
    for each in body.nodes:
        write_node(inner, each)
    # An output that is an input, or stands there twice, needs a node of its own.
    outs = [inner.emit("Identity", inner.value(value.name).data) for value in body.outputs]
    inner.faces(names[:own], outs)
    inner.prune()
    if node.op == "Loop":  # ONNX Runtime wants to know what turn and condition are
        for at, dtype in enumerate(("int64", "bool")):
            inner.proto.input[at].CopyFrom(value_info(names[at], dtype, ()))
    return inner
