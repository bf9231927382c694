"""Writes each canonical operator as operators of ONNX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from onernn.adapters.common.lowering import Rules
from onernn.adapters.common.signatures import refuse
from onernn.adapters.common.writing import Rule
from onernn.adapters.onnx.write_layers import rnn
from onernn.adapters.onnx.writer import GraphWriter, OnnxValue, ProtoGraph, value_info
from onernn.fuse_passes.mapping import Mapper
from onernn.fuse_passes.rewriting import fresh
from onernn.ir.graph import Graph, Node, Value
from onernn.ops import OPERATORS
from onernn.ops.control import types_inside

# A Scan of onernn that ONNX's Scan cannot express becomes a Loop.


def loop_of_scan(w: GraphWriter) -> None:
    """Replaces the current node, a Scan whose states may change their shapes, by a Loop that
    computes the same.
    """
    node, inputs, at = w.node, w.inputs, w.node.attributes
    states, scanned, body = at["states"], at["scanned"], at["body"]
    if any((*at["input_directions"], *at["output_axes"], *at["output_directions"])):
        refuse(
            "its states change their shapes: expected forward directions only, and results along"
            " axis 0, so that it can be written as a Loop"
        )
    turn, going = fresh(body, "turn"), fresh(body, "going")
    elements = [value.name for value in body.inputs[states : states + scanned]]
    sources = [fresh(body, f"{name}/all") for name in elements]
    steps = [
        Node("Gather", (source, turn), (name,), {"axis": axis})
        for source, name, axis in zip(sources, elements, at["input_axes"], strict=True)
    ]
    taken = body.inputs[states + scanned :]
    loop = replace(
        body,
        inputs=(*map(Value, (turn, going)), *body.inputs[:states], *map(Value, sources), *taken),
        outputs=(Value(going), *body.outputs),
        nodes=(*steps, *body.nodes),
    )
    turns = inputs[states].dense.Shape().Gather(int(at["input_axes"][0]), axis=0)
    given = ("turns", "", *node.inputs)
    w.node = Node("Loop", given, node.outputs, {"body": loop, "carried": states}, node.origin)
    w.inputs = [turns.replace(dtype="int64"), None, *inputs]


# Operators that only onernn has: gate layouts and sequences.


RULES = Rules[Callable[[GraphWriter], Any]](Rule)
"""The functions that write canonical operators, by operator; each returns one output or all
outputs.
"""
DENSE = Rules[Callable[[GraphWriter], Any]](Rule)
"""Rules for operators with dense inputs; an operator without a rule is copied unchanged."""
RAGGED = Rules[Callable[[GraphWriter], Any]](Rule)
"""Rules for operators with ragged inputs; `_write_rows` writes an operator without a rule."""


@RULES("GateLayout")
def gate_layout(x, *, layout):
    """Reorders the gates in the last axis, and negates each gate whose sign differs between the two
    layouts.
    """
    if x.rank < 1:
        refuse("expected an input of 1 axis or more, got 0 axes")
    sizes, last = x.Shape(), x.rank - (not x.lengths)
    apart = sizes.Slice([0], [-1]).join([len(layout.permutation), -1])
    out = x.Reshape(apart).Gather(layout.permutation, axis=last)
    if min(layout.signs) < 0:
        out = out.Mul(np.array(layout.signs, x.dtype)[:, None])
    return out.Reshape(sizes).under(x.lengths)


@RULES("SequenceData")
def sequence_data(x, *_):
    return x.words


@RULES("SequenceLike")
def sequence_like(x, like):
    lengths = like.ragged.lengths
    if x.lengths and x.lengths.name == lengths.name:
        return x
    return x.words.replace(rank=x.rank).spread(lengths, like.size(1))


@RULES("SequenceReset")
def sequence_reset(x, offsets, *, w):
    words, wide = x.words, offsets.dense.cast("int64")
    lengths = _summed(w) or wide.Slice([1], [2**31]) - wide.Slice([0], [-1])
    lengths = lengths.cast("int32")
    return words.spread(lengths, lengths.longest)


def _summed(w):
    """Returns the lengths if the offsets are a CumSum of lengths in the graph, else None."""
    joined = w.graph.producer(w.node.inputs[1], "Concat")
    if joined is None or len(joined.inputs) != 2 or w.graph.number(joined.inputs[0]) != 0:
        return None
    sums = w.graph.producer(joined.inputs[1], "CumSum")
    plain = sums is not None and not (sums.attrs.exclusive or sums.attrs.reverse)
    return w.value(sums.inputs[0]).dense.cast("int64") if plain else None


@RULES("SequenceAppend")
def sequence_append(*parts):
    first, *others = (part.ragged.size(1) for part in parts)
    time = first.join(*others).reduce("ReduceMax", 0, keepdims=1)
    first, *others = (part.with_time(time) for part in parts)
    lengths = parts[0].lengths.join(*(part.lengths for part in parts[1:]))
    return first.join(*others).under(lengths)


@RULES("SequenceUnpad")
def sequence_unpad(x, lengths, *, time_major):
    flat = lengths.dense.cast("int32").reshape(-1)
    return (x.dense.swap_time(x.rank) if time_major else x.dense).under(flat)


@RULES("SequencePad")
def sequence_pad(x, like=None, *, time_major):
    if like:
        time = like.size(0 if time_major and not like.lengths else 1)
    else:
        time = x.ragged.lengths.longest
    out = x.ragged.with_time(time).end_with()
    return out.swap_time(x.rank + 1) if time_major else out


# Tag decoding as Scans.


@RULES("CrfDecode")
def crf_decode(x, *_, w):
    """Finds the best tags with two Scans (Viterbi): the best scores forwards, then the tags
    backwards.

    In the first step and after the end of a sequence, the sequence's scores do not change, and
    every tag points to itself. Of several tags with equal scores, ArgMax chooses the lowest tag.
    """
    emission, transition = x.ragged, w.array(1, "the transition")
    tags = transition.shape[1] if transition.ndim == 2 else 0
    if emission.rank != 2 or transition.shape != (tags + 2, tags) or not tags:
        refuse(
            f"expected emissions (W, K) and a transition (K+2, K), got {emission.rank} axes and"
            f" {transition.shape}"
        )
    start, stop, between = transition[0], transition[1], transition[2:]
    scores = emission.transpose(1, 0, 2)
    begin = scores.Gather(0, axis=0).Add(start)
    second = emission.size(1).steps.unsqueeze(1).Greater([0])
    running = emission.inside.transpose(1, 0).And(second).unsqueeze(2)
    body = ProtoGraph(w.model)
    best, here, on = (body.input(name, x.dtype) for name in ("best", "here", "on"))
    reach = best.unsqueeze(2).Add(between)
    came = reach.ArgMax(axis=1, keepdims=0)
    picked = reach.GatherElements(came.unsqueeze(1), axis=1).squeeze(1)
    body.output(on.Where(picked + here, best), on.Where(came, np.arange(tags)[None]))
    final, pointers = w.scan(body, [begin], [scores, running], ["best", "pointers"])
    last = final.Add(stop).ArgMax(axis=1, keepdims=1)
    back = ProtoGraph(w.model)
    tag, pointed = (back.input(name, "int64") for name in ("tag", "pointed"))
    back.output(pointed.GatherElements(tag, axis=1), tag.Identity())
    _, path = w.scan(back, [last], [pointers], ["tag", "path"], 1)
    return path.transpose(1, 0, 2).under(x.lengths)


# Operators on whole sequences: pooling, reversing, repeating, joining, padding.


def _column(values, x):
    """Returns values (N,) as (N, 1, ...), to broadcast over the other axes of pooled sequences."""
    return values.unsqueeze(*range(1, x.rank)) if x.rank > 1 else values


@RULES("SequencePool")
def pool(x, *, w, kind, empty):
    if w.types[w.node.outputs[0]].depth:
        refuse("its result has LoD levels: expected an input of one LoD level")
    out = _pool(x.ragged, kind)
    return _column(x.lengths.cast("bool"), x).Where(out, x.scalar(empty))


def _pool(x, kind):
    """Returns the pooled sequences (N, ...); the result for a sequence of length zero is
    undefined.
    """
    if kind == "max":
        smallest = -np.inf if np.dtype(x.dtype).kind == "f" else np.iinfo(x.dtype).min
        return x.end_with(smallest).reduce("ReduceMax", 1, keepdims=0)
    if kind == "first":
        return x.Gather(0, axis=1)
    if kind == "last":
        place = x.lengths.cast("int64").Sub([1]).Max([0]).unsqueeze(1)
        return x.GatherND(place, batch_dims=1)
    total = x.end_with().reduce("ReduceSum", 1, keepdims=0)
    if kind == "sum":
        return total
    count = _column(x.lengths.cast(x.dtype), x)
    return total / (count.Sqrt() if kind == "sqrt" else count)


@RULES("SequenceSoftmax")
def softmax(x):
    return _along(x.ragged.end_with(-np.inf), "Softmax", 1, x.rank + 1).under(x.lengths)


@RULES("SequenceReverse")
def reverse(x):
    lengths = x.ragged.lengths.cast("int64")
    return x.ReverseSequence(lengths, batch_axis=0, time_axis=1).under(x.lengths)


@RULES("SequenceContext")
def context(x, *, length, start):
    before, after = max(0, -start), max(0, start + length - 1)
    time = x.ragged.size(1)
    wide = x.end_with().Pad([0, before, 0, 0, after, 0])
    first, *others = (
        wide.Slice([k], time.Add([k]), [1]) for k in range(before + start, before + start + length)
    )
    return first.Concat(*others, axis=2).under(x.lengths)


@RULES("SequenceExpand")
def expand(x, like, *, w, level):
    if level not in (-1, w.types[w.node.inputs[1]].depth - 1):
        refuse(f"attribute level={level}: expected -1, the last LoD level")
    inner = x.dense.Shape().Slice([1], [2**31])
    shape = like.ragged.Shape().Slice([0], [2]).join(inner)
    wide = x.unsqueeze(1).Expand(shape)
    return wide.replace(rank=x.rank, lengths=like.lengths).words


@RULES("SequenceConcat")
def concat(*parts):
    """Joins sequences in time; each part starts after the end of the part before it."""
    first, *others = (part.ragged for part in parts)
    whole, lengths = first.Concat(*others, axis=1), first.lengths
    for part in others:
        lengths = lengths + part.lengths
    at = steps = lengths.longest.steps.unsqueeze(0)
    ends = None
    for part in parts:
        wide = part.lengths.cast("int64").unsqueeze(1)
        ends = ends + wide if ends else wide
        at = at + steps.GreaterOrEqual(ends).cast("int64") * (part.size(1) - wide)
    places = at.Min(whole.size(1).Sub([1])).unsqueeze(2)
    return whole.GatherND(places, batch_dims=1).under(lengths)


@RULES("SequenceLengths")
def lengths(x):
    return x.ragged.lengths.cast("int64")


@RULES("SequenceFill")
def fill(x, value, *, time):
    value = value.dense.reshape(1) if value.rank >= x.rank else value.dense
    longest = x.ragged.lengths.longest
    return x.with_time(longest if time is None else x.constant(np.array([time]))).end_with(value)


# Operators on ragged values, written for padded batches: the axis W becomes the axes batch and
# time.


@RAGGED("Reshape")
def reshape(x, _, *, w, allowzero):
    """Reshapes each step to the sizes of the new shape without the first one, which counts the
    steps.
    """
    first, *sizes = w.array(1, "shape").tolist()
    if first not in (0, -1) or allowzero:
        shape = f"shape {(first, *sizes)}, allowzero={allowzero}"
        refuse(f"{shape}: expected 0 or -1 first, and allowzero=0, to keep the steps of sequences")
    return x.reshape(0, 0, *sizes)


@RAGGED("Flatten")
def flatten(x, *, axis):
    refused = f"attribute axis={axis}: expected 1, to flatten each step of a sequence"
    return x.reshape(0, 0, -1) if axis == 1 else refuse(refused)


@RAGGED("Expand")
def expand_words(*_):
    refuse("its shape contains the number of steps of all sequences, which a padded batch lacks")


@RAGGED("MatMul MatMulInteger")
def product(x, y, *_, w):
    if not x.lengths or y.rank != 2 or y.lengths or x.rank < 2:
        refuse("expected ragged steps (W, K) times a dense matrix")
    return _write_rows(w)


def _write_ragged(w: GraphWriter) -> Any:
    like = next(each for each in w.inputs if each and each.lengths)
    if not any(w.types[name].depth for name in w.node.outputs if name):
        refuse("its ragged inputs have no form in padded batches: expected a ragged result")
    results = RAGGED.get(w.node.op, _write_rows)(w)
    return [each.under(like.lengths) for each in _to_list(results)]


def _write_rows(w: GraphWriter) -> list[OnnxValue]:
    """Writes the operator with an added batch axis; `Operator.batched` says how the axis is
    added.
    """
    node = w.node
    like = next(each for each in w.inputs if each and each.lengths)
    values = {name: _operand(w, at, like) for at, name in enumerate(node.inputs) if name}
    mapped = {name for name, value in values.items() if value.lengths}
    known = {k: w.graph.constants[k] for k in values if k in w.graph.constants and k not in mapped}
    inputs = []
    for name in values:
        dtype, sizes = w.types[name].dtype, w.types[name].counts
        if name not in known:
            inputs.append(Value(name, dtype, (None, *sizes[1:]) if name in mapped else sizes))
    outputs = tuple(Value(name) for name in node.outputs if name)
    mapper = Mapper(Graph("a sentence", tuple(inputs), outputs, (node,), known), mapped=mapped)
    mapper.add(node)
    if mapper.mapped.isdisjoint(node.outputs):
        refuse("expected a result that depends on its ragged input")
    whole = mapper.whole()
    inner = GraphWriter(w.model, whole, whole.types, w.proto)
    for name, array in mapper.constants.items():
        inner.bind(name, inner.constant(array))
    for name, value in values.items():
        inner.bind(name, value.name)
    for each in whole.nodes:
        write_node(inner, each)
    return [OnnxValue(w, name and inner.value(name).name) for name in node.outputs]


def _operand(w: GraphWriter, index: int, like: Any) -> OnnxValue:
    """Returns an input of the node; an array without lengths, but with one row per step, is padded
    like ``like``.
    """
    name, operator = w.node.inputs[index], OPERATORS[w.node.op]
    value = w.value(name)
    if value.lengths and value.rank == like.rank:  # padding may hold any values
        is_index = operator.slot(index).name == "indices"
        return value.replace(name=value.end_with().name) if is_index else value
    together = operator.batched in ("stretched", "joined")
    if value.lengths or together and value.rank > like.rank:
        refuse(f"{name!r}: expected {like.rank} axes, like its ragged input, got {value.rank}")
    one_row = name in w.graph.constants and w.graph.constants[name].shape[:1] == (1,)
    if not together or value.rank < like.rank or one_row:
        return value
    return value.spread(like.lengths, like.size(1))


# The function that writes each node of a graph.

RULES["Rnn"] = rnn


def _to_list(results: Any) -> Sequence[Any]:
    return [results] if isinstance(results, OnnxValue) else results


def write_node(w: GraphWriter, node: Node) -> None:
    """Writes a node. Raises `UnsupportedError` if ONNX cannot express it."""
    outer, w.model.label = w.model.label, node.label
    w.node, w.inputs = node, [w.value(name) if name else None for name in node.inputs]
    results = _to_list(_rule_of(w)(w))
    for name, value in zip(node.outputs, results, strict=False):
        if name and value and value.name:
            w.bind(name, value.name, value.lengths)
    w.model.label = outer


def _rule_of(w: GraphWriter) -> Callable[[GraphWriter], Any]:
    op, since = w.node.op, OPERATORS[w.node.op].since
    w.model.need(since, op)
    if op in RULES:
        return RULES[op]
    if not since:
        refuse(f"ONNX has no operator {op}")
    if any(value and value.lengths for value in w.inputs):
        return _write_ragged
    return DENSE.get(op, _copy)


def _copy(w: GraphWriter) -> Any:
    return w.copy(*w.inputs, **w.attributes())


@RULES("Dropout")
def dropout(x, *_, w):
    refused = "output 1, the mask, cannot be written: expected a mask that nothing reads"
    return x if not any(w.node.outputs[1:]) else refuse(refused)


@DENSE("Shape")
def shape(x, *, w, start, end):
    """Adds a Slice after Shape if the opset is below 15, in which Shape has no start and end."""
    if w.model.opset >= 15:
        return _copy(w)
    return x.Shape().Slice([start], [2**31 if end is None else end])


@DENSE("CastLike")
def cast_like(x, _, *, w):
    """Writes a Cast if the dtype is known, because CastLike needs opset 15."""
    dtype = w.types[w.node.outputs[0]].dtype
    return x.cast(dtype) if dtype else _copy(w)


@DENSE("Softmax LogSoftmax")
def softmax_along(x, *, w, axis):
    if not x.rank:
        w.model.need(13, f"{w.node.op} of a value whose rank is not known")
        return _copy(w)
    return _along(x, w.node.op, axis % x.rank, x.rank)


def _along(x, op, axis, rank):
    """Writes a Softmax along an axis. Before opset 13 a Transpose makes this axis the last one."""
    order, last = [*range(rank)], rank - 1
    if axis == last or x.op.model.opset >= 13:
        return getattr(x, op)(axis=axis)
    order[axis], order[last] = last, axis
    return getattr(x.transpose(*order), op)(axis=last).transpose(*order)


@DENSE("DynamicQuantizeLSTM")
def dynamic_quantize_lstm(*inputs, w):
    """Leaves out clip=0, which ONNX Runtime refuses."""
    given = {key: value for key, value in w.attributes().items() if key != "clip" or value}
    return w.copy(*inputs, **given)


@DENSE("ScatterElements ScatterND")
def scatter(*_, w, reduction):
    if reduction in ("max", "min"):
        w.model.need(18, f"attribute {reduction=} of {w.node.op}")
    return _copy(w)


@DENSE("DFT")
def dft(x, *others, w):
    """Writes the axis as an attribute if the opset is below 20."""
    if w.model.opset >= 20:
        return _copy(w)
    axis = int(w.array(2, "axis").reshape(-1)[0]) if w.node.input(2) else -2
    return w.copy(x, *others[:1], axis=axis % x.rank, **w.attributes())


@DENSE("STFT")
def stft(*inputs, w, onesided):
    """Always writes ``onesided``, because onnx's checker and the ONNX specification have different
    defaults.
    """
    return w.copy(*inputs, onesided=onesided)


@DENSE("Resize")
def resize(x, roi=None, scales=None, sizes=None, *, w):
    w.model.need(11, "Resize with this meaning")
    attributes = w.attributes()
    if factors := attributes.pop("scales", None):
        scales = x.constant(np.asarray(factors, np.float32))
    return w.copy(x, roi, scales, *([sizes] if sizes else []), **attributes)


@DENSE("If")
def conditional(condition, *taken, w, then_taken):
    if any(None in w.types[name].counts or w.types[name].shape is None for name in w.node.outputs):
        w.model.need(11, "If whose branches may differ in sizes")
    branches = {"then_branch": taken[:then_taken], "else_branch": taken[then_taken:]}
    return _nest(w, 1, **{key: _body(w, key, names) for key, names in branches.items()})


@DENSE("Loop")
def loop(*inputs, w, carried):
    return _nest(w, 2 + carried, body=_body(w, "body", inputs[2 + carried :]))


@DENSE("Scan")
def scan(*inputs, w, states, scanned):
    if _grows(w):
        loop_of_scan(w)
        return DENSE["Loop"](w)
    kinds = ("input_axes", "input_directions", "output_axes", "output_directions")
    axes = {f"scan_{kind}": w.node.attributes[kind] for kind in kinds}
    body = _body(w, "body", inputs[states + scanned :])
    return _nest(w, states + scanned, num_scan_inputs=scanned, **axes, body=body)


def _grows(w: GraphWriter) -> bool:
    """Returns whether a state may change its shape, which ONNX's Scan forbids."""
    states = zip(w.node.inputs, w.node.outputs[: w.node.attrs.states], strict=False)
    types = [(w.types[one], w.types[other]) for one, other in states if other]
    return any(one.shape is None or one.shape != other.shape for one, other in types)


def _nest(w: GraphWriter, own: int, **attributes: Any) -> Any:
    """Writes an operator with bodies and its first ``own`` inputs; its bodies read the remaining
    values by name.
    """
    outs = [w.fresh(name or "unused") for name in w.node.outputs]
    names = [value.name if value else "" for value in w.inputs[:own]]
    w.add(w.node.op, *names, outputs=outs, **attributes)
    return [OnnxValue(w, name) for name in outs]


def _body(w: GraphWriter, key: str, taken: Sequence[OnnxValue]) -> GraphWriter:
    node, body = w.node, w.node.attributes[key]
    types = types_inside(node, key, [w.types.get(name) for name in node.inputs])
    inputs = [value.name for value in body.inputs]
    inner = GraphWriter(w.model, body, body.infer_types(dict(zip(inputs, types, strict=True))))
    own = len(inputs) - len(taken)
    for at, name in enumerate(inputs):
        inner.bind(name, taken[at - own].name if at >= own else inner.input(name, "").name)
    for each in body.nodes:
        write_node(inner, each)
    # An output that is an input, or is listed twice, needs its own node.
    inner.output(*(inner.value(value.name).Identity() for value in body.outputs))
    inner.prune()
    if node.op == "Loop":  # ONNX Runtime needs the types of iteration and condition
        for at, dtype in enumerate(("int64", "bool")):
            inner.proto.input[at].CopyFrom(value_info(inner.proto.input[at].name, dtype, ()))
    if node.op != "If":
        # ONNX Runtime needs the ranks of results: of a Scan before opset 16, and of what a Loop
        # collects if the Loop has no iteration. Shapes of carried values may change.
        first = 1 + node.attributes["carried"] if node.op == "Loop" else 0
        for proto, output in zip(inner.proto.output[first:], body.outputs[first:], strict=True):
            known = inner.types[output.name]
            if known.dtype and known.shape is not None:
                proto.CopyFrom(value_info(proto.name, known.dtype, known.counts))
    return inner
