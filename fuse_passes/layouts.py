"""What is certain about the values of a graph: LoD depth and number of axes, as kernels make them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from weakref import WeakKeyDictionary

from onernn.core.graph import Graph, Node


class Layout(NamedTuple):
    """None: not known. ``lod`` 0: dense."""

    rank: int | None = None
    lod: int | None = None


_KEEPS_RANK = frozenset(
    "Identity Dropout Neg Abs Exp Log Sqrt Floor Ceil Round Sign Reciprocal Sin Cos Not Cast CastLike"
    " Erf Gelu Relu Tanh Sigmoid Softplus Softsign LeakyRelu ThresholdedRelu HardSigmoid HardSwish"
    " Elu Selu Celu Clip Softmax LogSoftmax LayerNormalization BatchNormalization CumSum"
    " GateLayout Slice Split Concat Transpose SequenceReverse SequenceSoftmax SequenceContext"
    " SequenceAppend".split()
)
_BROADCAST = frozenset(
    "Add Sub Mul Div Pow Min Max Sum Mean PRelu Where Equal Less LessOrEqual Greater GreaterOrEqual"
    " And Or Xor".split()
)
_ROW_WISE = _KEEPS_RANK | _BROADCAST | {"Reshape", "Flatten", "Expand", "MatMul", "Gemm"}
"""Ragged where an input is."""
_DENSE = frozenset(
    "Shape Size Einsum ConstantOfShape Tile Pad GatherND ReverseSequence Compress NonZero"
    " SequencePad SequenceData SequenceFill SequenceLengths".split()
)
_ONE_LEVEL = frozenset({"SequenceUnpad", "SequenceReset", "SequenceConcat"})


def layout(graph: Graph, name: str) -> Layout:
    """What is known of a value. The inputs of a body count as what they are declared."""
    if graph not in _TABLES:
        _TABLES[graph] = _table(graph)
    return _TABLES[graph].get(name, Layout())


def is_dense(graph: Graph, *names: str) -> bool:
    """Whether all values are surely without offsets; absent ones are."""
    return all(layout(graph, name).lod == 0 for name in names if name)


def sizes(graph: Graph, name: str) -> tuple[int | None, ...]:
    """Those of a constant or an input, () where they are not told."""
    if name in graph.constants:
        return graph.constants[name].shape
    return next((value.shape or () for value in graph.inputs if value.name == name), ())


def _table(graph: Graph) -> dict[str, Layout]:
    known = {name: Layout(array.ndim, 0) for name, array in graph.constants.items()}
    for value in graph.inputs:
        rank = None if value.shape is None else len(value.shape)
        known[value.name] = Layout(rank, value.lod_depth)
    for node in graph.nodes:
        inputs = [known.get(name, Layout()) for name in node.inputs if name]
        made = Layout(_rank(graph, node, inputs), _lod(graph, node, inputs))
        for at, name in enumerate(node.outputs):
            known[name] = made if at == 0 or node.op == "Split" else Layout(None, made.lod)
            if node.op == "Rnn" and at:
                known[name] = Layout(4, 0) if at < 1 + _states(node) else made
    return known


def _states(rnn: Node) -> int:
    return len(rnn.attributes["spec"].cell.states)


def _lod(graph: Graph, node: Node, inputs: Sequence[Layout]) -> int | None:
    op, lods = node.op, [each.lod for each in inputs]
    if op in _DENSE:
        return 0
    if op in _ONE_LEVEL:
        return 1
    if op == "SequenceLike":
        return lods[1]
    bodies = [body for body in node.attributes.values() if isinstance(body, Graph)]
    if any(layout(body, value.name).lod != 0 for body in bodies for value in body.outputs):
        return None
    if not any(lod != 0 for lod in lods):
        return 0
    if op == "Rnn":
        return lods[0]
    if op in ("SequencePool", "SequenceExpand") and lods[0] is not None:
        return max(lods[0] - 1, 0) if op == "SequencePool" else min(lods[0], 1)
    if op in ("Squeeze", "Unsqueeze"):
        axes = graph.constants.get(node.input(1))
        return lods[0] if axes is not None and (axes > 0).all() else None
    if op == "Gather":
        axis, rank = node.attributes.get("axis", 0), inputs[0].rank
        if None in lods or rank is None:
            return None
        return lods[1] if axis in (0, -rank) else lods[0]
    rows_stay = op in _ROW_WISE or op.startswith("Reduce")
    return next(lod for lod in lods if lod != 0) if rows_stay else None


def _rank(graph: Graph, node: Node, inputs: Sequence[Layout]) -> int | None:
    op, first = node.op, inputs[0].rank if inputs else None
    if op == "Rnn":
        return {0: 3, None: None}.get(inputs[0].lod, 2)
    if op in ("Gemm", "Flatten"):
        return 2
    if op == "Transpose" and "perm" in node.attributes:
        return len(node.attributes["perm"])
    if op == "Einsum":
        source, _, target = node.attributes["equation"].replace(" ", "").partition("->")
        if "." not in target:
            return len(target) if target else None
        return first if sorted(source) == sorted(target) else None
    if op in ("Concat", "MatMul", *_BROADCAST):
        ranks = [each.rank for each in inputs]
        if op == "Concat":
            return next((rank for rank in ranks if rank is not None), None)
        known = [rank for rank in ranks if rank is not None]
        vectors = op == "MatMul" and min(known, default=0) < 2
        return None if None in ranks or vectors else max(known)
    if op in _KEEPS_RANK:
        return first
    numbers = graph.constants.get(node.input(1))
    if op == "Reshape" and numbers is not None:
        return numbers.size
    if op in ("Squeeze", "Unsqueeze") and numbers is not None and first is not None:
        return first + numbers.size * (1 if op == "Unsqueeze" else -1)
    if op == "Gather" and first is not None and inputs[1].rank is not None:
        return first + inputs[1].rank - 1
    return None


_TABLES: WeakKeyDictionary[Graph, dict[str, Layout]] = WeakKeyDictionary()
