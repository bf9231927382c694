"""Cancels or moves views, and determines how a chain of views moves axes. A view is an operator
that changes only the order or the shape of elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from onernn.fuse_passes.bodies import source_of
from onernn.fuse_passes.rewriting import Tape, fresh, hand_on, rewrite
from onernn.ir.graph import Graph, Inference, Node, infer
from onernn.ir.records import NamedTuple
from onernn.ir.rnn import Recurrent
from onernn.ir.types import Shape, Size, dense, sequences_of, volume
from onernn.ops import OPERATORS
from onernn.ops.shaping import perm_of

_LONGEST = 8  # maximum number of consecutive views


class Factor(NamedTuple):
    """A factor of an axis: an axis of size D*O has the factors D and O. The name distinguishes
    factors of equal size.
    """

    name: str
    size: Size


Axis = tuple[Factor, ...]
"""The factors of an axis; () for an axis of size 1."""


def is_view(op: str) -> bool:
    """Returns whether an ONNX operator only changes the order or shape of its input's elements."""
    operator = OPERATORS.get(op)
    return op == "Transpose" or bool(operator and operator.kind == "view" and operator.since)


def views_of(graph: Graph, name: str) -> tuple[str, list[Node]]:
    """Returns the source of a chain of views, and the chain, first view first."""
    chain: list[Node] = []
    while (node := graph.producer(name)) is not None and is_view(node.op) and len(chain) < _LONGEST:
        chain.insert(0, node)
        name = node.inputs[0]
    return name, chain


def move_axes(graph: Graph, chain: Sequence[Node], axes: Sequence[Axis]) -> list[Axis] | None:
    """Returns the axes of a value after a chain of views; None if they are not known.

    The result is correct for any sizes of the factors.
    """
    left = [tuple(factor for factor in axis if factor.size.number != 1) for axis in axes]
    if not chain:
        return left
    types = {name: graph.types[name] for node in chain for name in node.inputs if name}
    types[chain[0].inputs[0]] = dense("float32", [_size(axis) for axis in left])
    types = infer((replace(node) for node in chain), types)
    for node in chain:
        shape = types[node.outputs[0]].shape
        if shape is None or None in shape:
            return None
        if node.op == "Transpose":
            left = [left[index] for index in perm_of(node.attrs, len(left))]
            continue
        dealt = _deal([factor for axis in left for factor in axis], shape)  # type: ignore[arg-type]
        if dealt is None:
            return None
        left = dealt
    return left


def _size(axis: Axis) -> Size:
    return volume(tuple(factor.size for factor in axis))


def _deal(factors: list[Factor], shape: Shape) -> list[Axis] | None:
    """Returns axes with the sizes ``shape``, to which the factors are assigned in their order.
    Returns None if the sizes do not match.
    """
    axes: list[Axis] = []
    for size in shape:
        count = 0
        while _size(tuple(factors[:count])) != size:
            count += 1
            if count > len(factors):
                return None
        axes.append(tuple(factors[:count]))
        factors = factors[count:]
    return None if factors else axes


SWAP = "ab...->ba..."
"""The einsum equation that exchanges time and batch."""


@rewrite("moved_views", "Concat", "Einsum", "Transpose", "Slice")
def move_views(graph: Graph, node: Node) -> Graph | None:
    """Turns ``view(view(x))`` into x, and ``Concat(view(x), view(y))`` into ``view(Concat(x, y))``.

    The views are the exchange of the first two axes, and the reversal of an axis.
    """
    if node.op == "Concat":
        return _sink_views(graph, node)
    second = _view(graph, node)
    first = graph.producer(node.inputs[0]) if second else None
    if first is None or _view(graph, first) != second:
        return None
    return hand_on(graph, node, first.inputs[0])


def _sink_views(graph: Graph, node: Node) -> Graph | None:
    views = [view for name in node.inputs if (view := graph.producer(name))]
    if len(views) < len(node.inputs) or any(_view(graph, view) != SWAP for view in views):
        return None
    axis, rank = node.attributes["axis"], graph.types[node.outputs[0]].rank
    if axis < 0:
        axis = 0 if rank is None else axis + rank  # unknown rank: no rewrite
    if axis < 2 or any(not graph.is_used_only_by(view.outputs[0], node) for view in views):
        return None
    to = Tape(graph, node.outputs[0], node.origin)
    joined = fresh(graph, f"{node.outputs[0]}/Concat")
    to.emit("Concat", *(view.inputs[0] for view in views), output=joined, **node.attributes)
    first = views[0]
    to.nodes.append(replace(first, inputs=(joined, *first.inputs[1:]), outputs=node.outputs))
    return to.replace(node, *views)


def _view(graph: Graph, node: Node) -> str | tuple[int, ...] | None:
    """Returns which view a node is: `SWAP`, the reversed axis as a tuple, or None."""
    if node.op == "Einsum" and node.attributes["equation"] == SWAP:
        return SWAP
    perm = tuple(node.attributes.get("perm", ()))
    if node.op == "Transpose" and perm == (1, 0, *range(2, len(perm))) and len(perm) > 1:
        return SWAP
    if node.op != "Slice" or len(node.inputs) < 5:
        return None
    cuts = [graph.number(name) for name in node.inputs[1:5]]
    if None in cuts:
        return None
    start, end, axis, step = cuts
    return (axis,) if (start, step) == (-1, -1) and end < -(2**31) else None


@rewrite("collected_views", "Scan")
def move_collected_axes(graph: Graph, node: Node) -> Graph | None:
    """Turns ``Scan(...; body outputs Unsqueeze(h, 1))`` into ``Unsqueeze(Scan(...), 2)``.

    Other passes then see a body that is only a cell.
    """
    if any(node.attributes["output_axes"]):
        return None
    body, count = node.attributes["body"], node.attributes["states"]
    for at, value in enumerate(body.outputs[count:], count):
        maker = body.producer(source_of(body, value.name), "Unsqueeze")
        axes = None if maker is None else body.constants.get(maker.input(1))
        if maker is None or axes is None or (axes < 0).any() or not node.outputs[at]:
            continue
        outputs = list(body.outputs)
        outputs[at] = replace(value, name=maker.inputs[0], shape=None)
        inner = replace(body, outputs=tuple(outputs)).prune()
        to = Tape(graph, node.outputs[at], node.origin)
        steps = to.name("steps")
        results = (*node.outputs[:at], steps, *node.outputs[at + 1 :])
        to.nodes.append(
            replace(node, outputs=results, attributes={**node.attributes, "body": inner})
        )
        to.emit("Unsqueeze", steps, axes.reshape(-1) + 1, output=node.outputs[at])
        return to.replace(node)
    return None


# ONNX's layers return (T, D, N, O), and the next layer reads (T, N, D*O). Exporters write a
# transpose and a reshape in between, and adapters add the inverse views to a layer.


_VIEWS = {name for name in OPERATORS if is_view(name) and name != "Identity"}


@rewrite("rnn_views", "SequencePad", "SequenceUnpad", *_VIEWS)
def drop_rnn_views(graph: Graph, node: Node) -> Graph | None:
    """Drops views after a layer that cancel each other: ``views(Rnn(x))`` or
    ``Unpad(Pad(Rnn(x)))``.
    """
    if node.op == "SequencePad":  # if `like` is itself padded like another value, uses that value
        like = graph.producer(node.input(1), "SequencePad")
        if like is None or not like.input(1) or not _agree_on_axes(node, like):
            return None
        return graph.splice((node,), (replace(node, inputs=(node.inputs[0], like.inputs[1])),))
    if node.op == "SequenceUnpad":
        source = _repack(graph, node)
    else:
        source, chain = views_of(graph, node.outputs[0])
        axes = _axes(graph, source)
        if axes is None or graph.types[node.outputs[0]].rank not in (None, 3):
            return None
        if move_axes(graph, chain, axes) != move_axes(graph, [], axes):
            return None
    return hand_on(graph, node, source) if source else None


def _agree_on_axes(*nodes: Node) -> bool:
    return len({bool(each.attributes.get("time_major", 0)) for each in nodes}) == 1


def _repack(graph: Graph, node: Node) -> str:
    """Returns the ragged output of a layer if a node unpads its padded form by the same lengths,
    else "".
    """
    pad = graph.producer(node.input(0), "SequencePad")
    rnn = pad and graph.producer(pad.inputs[0], "Rnn")
    unpad = rnn and graph.producer(rnn.inputs[0], "SequenceUnpad")
    if pad is None or unpad is None or unpad.input(1) != node.input(1):
        return ""
    return pad.inputs[0] if _agree_on_axes(node, pad, unpad) else ""


def _axes(graph: Graph, name: str) -> list[Axis] | None:
    """Returns the axes of a value that is a layer's dense or padded output, else None."""
    counts = graph.types[name].counts or (None, None)
    padded = graph.producer(name, "SequencePad")
    name = padded.inputs[0] if padded else name
    maker = graph.producer(name, "Rnn")
    if maker is None or maker.outputs[0] != name or not (padded or graph.is_dense(name)):
        return None
    spec = Recurrent.of(maker).spec
    sizes = {"D": spec.output_size // spec.recurrent_size, "O": spec.recurrent_size}
    channels = tuple(Factor(each, Size.of(size)) for each, size in sizes.items())
    front = zip(("first", "second"), counts, strict=False)
    return [*((Factor(n, Size.of(n if c is None else c)),) for n, c in front), channels]


@rewrite("sequence_views", "SequenceLike")
def drop_sequence_views(graph: Graph, node: Node) -> Graph | str | None:
    """Turns ``SequenceLike(f(SequenceData(g(x))), x)`` into ``f(g(x))`` for row-wise f and g.

    Paddle's matmul_v2 loses the LoD, and lod_reset restores it. Operators are row-wise if type
    inference shows that their result has x's offsets without these two nodes.
    """
    way, user = list[Node](), node
    name, source = node.inputs
    while name != source:
        maker = graph.producer(name)
        if maker is None:
            return f"{node.inputs[0]!r} does not come from {source!r}"
        if not graph.is_used_only_by(name, user):
            return f"{name!r} has another user"
        if maker.op != "SequenceData" and (
            maker.op not in OPERATORS or OPERATORS[maker.op].offsets
        ):
            return f"{maker.label} is not row-wise"
        way.append(maker)
        name, user = maker.inputs[0], maker
    # Infers only the types of these operators: all remaining types stay the same.
    types = Inference(graph.types)
    for maker in reversed(way):
        if maker.op == "SequenceData":
            types[maker.outputs[0]] = types[maker.inputs[0]]
        else:
            types.add(maker)
    lod = types[node.inputs[0]].lod
    if not lod or lod != graph.types[source].lod:
        return f"the node that makes {node.inputs[0]!r} is not row-wise"
    return graph.bypass((node, *(each for each in way if each.op == "SequenceData")))


# Drops an initial state of zeros: a layer without it multiplies less in its first step.


@rewrite("zero_states", "Rnn")
def drop_zero_states(graph: Graph, node: Node) -> Graph | str | None:
    """Turns ``Rnn(x, zeros)`` into ``Rnn(x)`` if the zeros have one row for each sequence."""
    rnn = Recurrent.of(node)
    zeros = [name for name in rnn.states if name and is_zeros(graph, name)]
    if not zeros:
        return None
    x = graph.types[rnn.x]
    is_dense = x.lod == () and x.shape is not None and len(x.shape) == 3
    rows = x.shape[1] if is_dense and x.shape else sequences_of(x)
    for name in zeros:
        shape = graph.types[name].shape
        if rows is None or shape is None or len(shape) != 4 or shape[2] != rows:
            return f"{name!r} may have a different number of rows than {rnn.x!r} has sequences"
    states = tuple("" if name in zeros else name for name in rnn.states)
    return graph.splice([node], [rnn.with_states(states, rnn.finals).node()])


def is_zeros(graph: Graph, name: str, depth: int = _LONGEST) -> bool:
    """Returns whether all elements of a value are known to be 0, whatever its size is."""
    if name in graph.constants:
        return not graph.constants[name].any()
    node = graph.producer(name)
    if node is None or not depth:
        return False
    if node.op == "ConstantOfShape":
        return not np.any(node.attributes.get("value", 0))
    if node.op == "Concat":
        return all(is_zeros(graph, each, depth - 1) for each in node.inputs)
    moves = node.op in ("Expand", "Gather", "Slice") or is_view(node.op)
    return moves and is_zeros(graph, node.inputs[0], depth - 1)
