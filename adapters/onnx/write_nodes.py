"""How each canonical operator is written as ONNX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from onernn.adapters.common.lowering import Names, Rules
from onernn.adapters.onnx import write_layers
from onernn.adapters.onnx.rules import became_inputs
from onernn.adapters.onnx.writer import (
    ABSENT,
    GraphWriter,
    OnnxValue,
    ProtoGraph,
    Written,
    dense,
    ragged,
    value_info,
)
from onernn.fuse_passes.mapping import Mapper
from onernn.ir.errors import UnsupportedError
from onernn.ir.graph import Graph, Node, Value
from onernn.ops import OPERATORS
from onernn.ops.control import types_inside

# Scans that ONNX's cannot say as Loops.


def loop_of_scan(w: GraphWriter) -> None:
    """Turns from a Scan to a Loop that does what it does: its states may change their shapes."""
    node, inputs, at = w.node, w.inputs, w.node.attributes
    states, scanned, body = at["states"], at["scanned"], at["body"]
    if any((*at["input_directions"], *at["output_axes"], *at["output_directions"])):
        raise UnsupportedError(
            "its states change their shapes, and it does not go plainly forwards"
        )
    known = {*body.constants, *(value.name for value in body.inputs)}
    known.update(name for each in body.nodes for name in each.outputs)
    fresh = Names(dict.fromkeys(known, 0)).fresh
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
    w.node = Node("Loop", given, node.outputs, {"body": loop, "carried": states}, node.origin)
    w.inputs = [turns, ABSENT, *inputs]


# Operators of our own domain in ONNX: gates, offsets, tag sequences.

RULES = Rules[Callable[[GraphWriter], Written]]()
Outputs = str | list[str]
RAGGED = Rules[Callable[[GraphWriter, OnnxValue], Outputs]]()
"""What an operator on the words of its first ragged input becomes, where it is not `batched`."""


@RULES("GateLayout")
def _gate_layout(w: GraphWriter) -> Written:
    """A gather of columns, and a minus where a sign turns."""
    (x,) = w.inputs
    layout = w.attrs.layout
    if x.padded_rank < 2:
        raise UnsupportedError("expected columns")
    sizes = w.emit("Shape", x.data)
    blocks = w.emit("Slice", sizes, [0], [-1])
    gates = len(layout.permutation)
    apart = w.joined(blocks, [gates, -1])
    out = w.emit("Gather", w.emit("Reshape", x.data, apart), layout.permutation, axis=-2)
    if min(layout.signs) < 0:
        signs = np.array(layout.signs, x.dtype)[:, None]
        out = w.emit("Mul", out, w.constant(signs))
    return [w.emit("Reshape", out, sizes)], x.lengths


@RULES("SequenceData")
def _sequence_data(w: GraphWriter) -> Written:
    return w.words(w.x)


@RULES("SequenceLike")
def _sequence_like(w: GraphWriter) -> Written:
    like = ragged(w.inputs[1], "what offsets are taken from")
    if w.x.lengths == like.lengths:
        return [w.x.data], like.lengths
    return [w.from_words(w.words(w.x), like.lengths, w.size(like.data, 1))], like.lengths


@RULES("SequenceReset")
def _sequence_reset(w: GraphWriter) -> Written:
    words = w.words(w.x)
    wide = w.cast(dense(w.inputs[1], "offsets"), "int64")
    ends = w.emit("Slice", wide, [1], [2**31])
    starts = w.emit("Slice", wide, [0], [-1])
    lengths = w.cast(w.emit("Sub", ends, starts), "int32")
    return [w.from_words(words, lengths, w.longest(lengths))], lengths


@RULES("SequenceAppend")
def _sequence_append(w: GraphWriter) -> Written:
    parts = [ragged(each, "what is appended") for each in w.inputs]
    times = w.joined(*(w.size(each.data, 1) for each in parts))
    time = w.reduce("ReduceMax", times, (0,), keepdims=1)
    padded = [w.with_time(each, time).data for each in parts]
    lengths = w.joined(*(each.lengths for each in parts))
    return [w.joined(*padded)], lengths


@RULES("SequenceUnpad")
def _sequence_unpad(w: GraphWriter) -> Written:
    x, lengths = dense(w.x, "what is padded"), dense(w.inputs[1], "lengths")
    if w.attrs.time_major:
        x = w.swapped(x, w.x.rank)
    flat = w.reshaped(w.cast(lengths, "int32"), -1)
    return [x], flat


@RULES("SequencePad")
def _sequence_pad(w: GraphWriter) -> Written:
    x, time_major = ragged(w.x, "what is to be padded"), bool(w.attrs.time_major)
    if w.node.input(1):
        like = w.inputs[1]
        time = w.size(like.data, 0 if time_major and not like.lengths else 1)
    else:
        time = w.longest(x.lengths)
    out = w.filled(w.with_time(x, time))
    return w.swapped(out, x.padded_rank) if time_major else out


# Tag decoding as Scans.


def crf_decode(w: GraphWriter) -> Written:
    """Viterbi decoding by two Scans: best scores forwards, tags backwards.

    In the first step and beyond its end a sentence keeps its best scores, and points from every
    tag to itself. Ties go to the lower tag, as ArgMax has it.
    """
    emission = ragged(w.x, "the emission")
    transition = w.array(1, "the transition")
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
    return [w.transposed(path, 1, 0, 2)], emission.lengths


def _later(w: GraphWriter, emission: OnnxValue) -> str:
    """(T, N, 1) bool: inside the sentences, but for the first step, before which there is none."""
    inside = w.transposed(w.mask_of(emission), 1, 0)
    steps = w.steps(w.size(emission.data, 1))
    second = w.emit("Greater", w.unsqueezed(steps, 1), [0])
    return w.unsqueezed(w.emit("And", inside, second), 2)


# Operators over whole sentences in ONNX: pooled, reversed, repeated, joined, padded.


@RULES("SequencePool")
def _pool(w: GraphWriter) -> Written:
    x, kind = ragged(w.x, "its input"), w.attrs.kind
    if w.types[w.node.outputs[0]].depth:
        raise UnsupportedError("rows under upper LoD levels are not written")
    out = _pooled(w, x, kind)
    some = _column(w, w.cast(x.lengths, "bool"), x)
    return w.emit("Where", some, out, w.constant(w.attrs.empty, x.dtype))


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
def _softmax(w: GraphWriter) -> Written:
    x = ragged(w.x, "its input")
    return [w.emit("Softmax", w.filled(x, -np.inf), axis=1)], x.lengths


@RULES("SequenceReverse")
def _reverse(w: GraphWriter) -> Written:
    x = ragged(w.x, "its input")
    lengths = w.cast(x.lengths, "int64")
    out = w.emit("ReverseSequence", x.data, lengths, batch_axis=0, time_axis=1)
    return [out], x.lengths


@RULES("SequenceContext")
def _context(w: GraphWriter) -> Written:
    x, length, start = ragged(w.x, "its input"), w.attrs.length, w.attrs.start
    before, after = max(0, -start), max(0, start + length - 1)
    time = w.size(x.data, 1)
    wide = w.emit("Pad", w.filled(x), [0, before, 0, 0, after, 0])
    parts = []
    for k in range(before + start, before + start + length):
        end = w.emit("Add", time, [k])
        parts.append(w.emit("Slice", wide, [k], end, [1]))
    return [w.emit("Concat", *parts, axis=2)], x.lengths


@RULES("SequenceExpand")
def _expand(w: GraphWriter) -> Written:
    like = ragged(w.inputs[1], "what is counted")
    x, level = dense(w.x, "what is repeated"), w.attrs.level
    if level not in (-1, w.types[w.node.inputs[1]].depth - 1):
        raise UnsupportedError("upper LoD levels are not written")
    sizes = w.emit("Shape", x)
    inner = w.emit("Slice", sizes, [1], [2**31])
    outer = w.emit("Slice", w.emit("Shape", like.data), [0], [2])
    shape = w.joined(outer, inner)
    wide = w.emit("Expand", w.unsqueezed(x, 1), shape)
    return w.words(OnnxValue(wide, like.dtype, w.x.rank, like.lengths))


@RULES("SequenceConcat")
def _concat(w: GraphWriter) -> Written:
    """Side by side in time; a place beyond the end of one goes on where the next one starts."""
    parts = [ragged(each, "what is joined") for each in w.inputs]
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
    return [w.emit("GatherND", whole, places, batch_dims=1)], lengths


@RULES("SequenceLengths")
def _lengths(w: GraphWriter) -> Written:
    return w.cast(ragged(w.x, "its input").lengths, "int64")


@RULES("SequenceFill")
def _fill(w: GraphWriter) -> Written:
    x, value = ragged(w.x, "its input"), dense(w.inputs[1], "what stands behind")
    fixed = w.attrs.time
    time = w.longest(x.lengths) if fixed is None else w.ints(fixed)
    if w.inputs[1].rank >= x.rank:
        value = w.reshaped(value, 1)
    return w.filled(w.with_time(x, time), value)


# Operators on the words of ragged values, over padded batches: the words' axis is batch and time.


@RAGGED("Reshape")
def _reshape(w: GraphWriter, like: OnnxValue) -> Outputs:
    """(W, ...) -> (W, ...): sizes of 0 stay at their place, which moves by one."""
    first, *sizes = w.array(1, "shape").tolist()
    if first not in (0, -1) or w.attrs.allowzero:
        raise UnsupportedError(f"shape {(first, *sizes)} may split or join the words of a LoD")
    return w.reshaped(like.data, 0, 0, *sizes)


@RAGGED("Flatten")
def _flatten(w: GraphWriter, like: OnnxValue) -> Outputs:
    if w.attrs.axis != 1:
        raise UnsupportedError("only words are flattened, each into a row")
    return w.reshaped(like.data, 0, 0, -1)


@RAGGED("Expand")
def _expand_words(w: GraphWriter, like: OnnxValue) -> Outputs:
    raise UnsupportedError("its shape counts the words of a LoD")


@RAGGED("MatMul MatMulInteger")
def _product(w: GraphWriter, like: OnnxValue) -> Outputs:
    if w.x is not like or w.inputs[1].rank != 2 or w.inputs[1].lengths or like.rank < 2:
        raise UnsupportedError("only words times a matrix")
    return _of_sentences(w, like)


def _write_ragged(w: GraphWriter) -> Written:
    """Writes an operator of which at least one input is ragged."""
    like = next(each for each in w.inputs if each.lengths)
    if not any(w.types[name].depth for name in w.node.outputs if name):
        raise UnsupportedError("no form over padded batches is known")
    result = RAGGED.get(w.node.op, _of_sentences)(w, like)
    return [result] if isinstance(result, str) else result, like.lengths


def _of_sentences(w: GraphWriter, like: OnnxValue) -> Outputs:
    """The operator over one more axis, that of sentences: `Operator.batched` says how."""
    node, values = w.node, dict[str, OnnxValue]()
    for index, name in enumerate(node.inputs):
        if name:
            values[name] = _operand(w, index, like)
    mapped = {name for name, value in values.items() if value.lengths}
    known = {k: w.graph.constants[k] for k in values if k in w.graph.constants and k not in mapped}
    inputs = []
    for name in [each for each in values if each not in known]:
        dtype, sizes = w.types[name].dtype, w.types[name].counts
        inputs.append(Value(name, dtype, (None, *sizes[1:]) if name in mapped else sizes))
    outputs = tuple(Value(name) for name in node.outputs if name)
    mapper = Mapper(Graph("a sentence", tuple(inputs), outputs, (node,), known), mapped=mapped)
    mapper.add(node)
    if mapper.mapped.isdisjoint(node.outputs):
        raise UnsupportedError("its result takes nothing from its ragged input")
    whole = mapper.whole()
    inner = GraphWriter(w.proto, w.opset, whole, whole.types, w.functions, w)
    for name, array in mapper.constants.items():
        inner.bind(name, OnnxValue(w.constant(array), str(array.dtype), array.ndim))
    for name, value in values.items():
        inner.bind(name, replace(value, rank=value.rank + (name in mapped), lengths=""))
    for each in whole.nodes:
        write_node(inner, each)
    return [name and inner.value(name).data for name in node.outputs]


def _operand(w: GraphWriter, index: int, like: OnnxValue) -> OnnxValue:
    """An input of an operator; rows without offsets, one for each word, are padded as ``like``."""
    value, name, operator = w.inputs[index], w.node.inputs[index], OPERATORS[w.node.op]
    if value.lengths and value.rank == like.rank:  # anything may stand behind the sentences
        is_index = operator.slot(index).name == "indices"
        return replace(value, data=w.filled(value)) if is_index else value
    together = operator.batched in ("stretched", "joined")
    if value.lengths or together and value.rank > like.rank:
        raise UnsupportedError(f"{name!r} of {value.rank} axes beside words of {like.rank}")
    one_row = name in w.graph.constants and w.graph.constants[name].shape[:1] == (1,)
    if not together or value.rank < like.rank or one_row:
        return value
    rows = w.from_words(value.data, like.lengths, w.size(like.data, 1))
    return replace(value, data=rows, lengths=like.lengths)


# The node of ONNX that each node of a graph becomes.

RULES.update(Rnn=write_layers.rnn, CrfDecode=crf_decode)
DENSE = Rules[Callable[[GraphWriter], Written]]()
"""What is not copied where no input is ragged."""


def write_node(w: GraphWriter, node: Node) -> None:
    """Raises `UnsupportedError` for what ONNX cannot say."""
    w.begin(node)
    made = _rule_of(w)(w)
    w.give(*(([made], "") if isinstance(made, str) else made))


def _rule_of(w: GraphWriter) -> Callable[[GraphWriter], Written]:
    op, since = w.node.op, OPERATORS[w.node.op].since
    if w.opset < since:
        raise UnsupportedError(f"needs opset {since}, {w.opset} is to be written")
    if op in RULES:
        return RULES[op]
    if not since:
        raise UnsupportedError(f"ONNX has no {op}")
    if any(value.lengths for value in w.inputs):
        return _write_ragged
    plain = _with_axes_as_attribute if w.opset < became_inputs(op)[0] else _copy
    return DENSE.get(op, plain)


def _copy(w: GraphWriter) -> Written:
    """The operator as it stands."""
    return w.copy(w.tensors, **w.attributes()), ""


def _with_axes_as_attribute(w: GraphWriter) -> Written:
    """A Reduce operator of opsets before 18."""
    if w.attrs.noop_with_empty_axes:
        raise UnsupportedError("noop_with_empty_axes needs opset 18")
    more: dict[str, Any] = {"keepdims": w.attrs.keepdims}
    if axes := w.numbers(1, "axes"):
        more["axes"] = axes
    return w.emit(w.node.op, dense(w.x, "its input"), **more)


@RULES("Dropout")
def _dropout(w: GraphWriter) -> Written:
    if any(w.node.outputs[1:]):
        raise UnsupportedError("the mask of a Dropout is not written")
    return [w.x.data], w.x.lengths


@DENSE("Shape")
def _shape(w: GraphWriter) -> Written:
    """A part of a shape is cut before opset 15."""
    if w.opset >= 15:
        return _copy(w)
    whole, end = w.emit("Shape", w.x.data), w.attrs.end
    return w.sliced(whole, [w.attrs.start], [2**31 if end is None else end])


@DENSE("CastLike")
def _cast_like(w: GraphWriter) -> Written:
    """A Cast where the dtype is known: CastLike came with opset 15."""
    dtype = w.types[w.node.outputs[0]].dtype
    if not dtype:
        return _copy(w)
    return w.cast(dense(w.x, "its input"), dtype)


@DENSE("QuantizeLinear DequantizeLinear")
def _quantized(w: GraphWriter) -> Written:
    dtypes = {w.types[name].dtype for name in (*w.node.inputs, *w.node.outputs) if name}
    if w.opset < 21 and dtypes & {"uint16", "int16"}:
        raise UnsupportedError("numbers of 16 bits need opset 21")
    return _copy(w)


@DENSE("DynamicQuantizeLSTM")
def _quantized_lstm(w: GraphWriter) -> Written:
    """ONNX Runtime refuses clip=0."""
    given = {key: value for key, value in w.attributes().items() if key != "clip" or value}
    return w.copy(w.tensors, **given), ""


_REDUCTIONS = {"none": 11, "add": 16, "mul": 16, "max": 18, "min": 18}
"""Since which opset elements that are put to a place meet what is there."""


@DENSE("ScatterElements ScatterND")
def _scatter(w: GraphWriter) -> Written:
    how = w.attrs.reduction
    if w.opset < _REDUCTIONS[how]:
        raise UnsupportedError(f"attribute reduction={how!r} needs opset {_REDUCTIONS[how]}")
    given = {k: v for k, v in w.node.attributes.items() if (k, v) != ("reduction", "none")}
    return w.copy(w.tensors, **given), ""


@DENSE("DFT")
def _dft(w: GraphWriter) -> Written:
    """The axis is an attribute before opset 20."""
    if w.opset >= 20:
        return _copy(w)
    axis = -2 if not w.node.input(2) else w.numbers(2, "axis")[0]
    axis %= len(w.types[w.node.inputs[0]].counts)  # it counts from the front there
    return w.copy(w.tensors[:2], axis=axis, **w.attributes()), ""


@DENSE("STFT")
def _stft(w: GraphWriter) -> Written:
    """onnx's checker takes another default of ``onesided`` than ONNX has."""
    return w.copy(w.tensors, onesided=w.attrs.onesided), ""


@DENSE("Resize")
def _resize(w: GraphWriter) -> Written:
    if w.opset < 11:
        raise UnsupportedError("needs opset 11")
    attributes = w.attributes()
    tensors = [*w.tensors, "", "", ""][:4]
    if scales := attributes.pop("scales", None):
        tensors[2] = w.constant(np.asarray(scales, np.float32))
    return w.copy(tensors if tensors[3] else tensors[:3], **attributes), ""


@DENSE("If")
def _conditional(w: GraphWriter) -> Written:
    behind = 1 + w.attrs.then_taken
    branches = {"then_branch": w.tensors[1:behind], "else_branch": w.tensors[behind:]}
    bodies = {key: _body(w, key, taken) for key, taken in branches.items()}
    return _nested(w, 1, **bodies)


@DENSE("Loop")
def _loop(w: GraphWriter) -> Written:
    own = 2 + w.attrs.carried
    return _nested(w, own, body=_body(w, "body", w.tensors[own:]))


@DENSE("Scan")
def _scan(w: GraphWriter) -> Written:
    if _grows(w):
        loop_of_scan(w)
        return _loop(w)
    own = w.attrs.states + w.attrs.scanned
    kinds = ("input_axes", "input_directions", "output_axes", "output_directions")
    axes = {f"scan_{kind}": w.node.attributes[kind] for kind in kinds}
    body = _body(w, "body", w.tensors[own:])
    return _nested(w, own, num_scan_inputs=w.attrs.scanned, **axes, body=body)


def _grows(w: GraphWriter) -> bool:
    """Whether a state changes its shape, which ONNX's Scan forbids; unknown ones may."""
    states = zip(w.node.inputs, w.node.outputs[: w.attrs.states], strict=False)
    types = [(w.types[one], w.types[other]) for one, other in states if other]
    return any(one.shape is None or one.shape != other.shape for one, other in types)


def _nested(w: GraphWriter, own: int, **attributes: Any) -> Written:
    """An operator with bodies, of so many inputs of its own."""
    outs = [w.fresh(name or "unused") for name in w.node.outputs]
    w.add(w.node.op, *w.tensors[:own], outputs=outs, **attributes)
    return outs, ""


def _body(w: GraphWriter, key: str, taken: Sequence[str]) -> GraphWriter:
    """The graph in an attribute; what it takes from outside it sees by name."""
    node, body = w.node, w.node.attributes[key]
    types = types_inside(node, key, [w.types.get(name) for name in node.inputs])
    inputs = [value.name for value in body.inputs]
    inner = w.writer_of(body, body.typed(dict(zip(inputs, types, strict=True))))
    own = len(inputs) - len(taken)
    names = [inner.fresh(name) for name in inputs[:own]] + [*taken]
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
