"""How many bytes an operator's results may take, from its inputs, before it runs.

An operator that is not listed gives at most as many bytes as its largest input.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from itertools import zip_longest
from typing import Any

import numpy as np

from onernn.core.arrays import Array
from onernn.core.budget import bytes_of
from onernn.core.graph import Node
from onernn.core.ragged import Ragged, data_of

Growth = Callable[..., int]


def largest_input(_: Node, *values: Any) -> int:
    return max([bytes_of(data_of(value)) for value in values if value is not None], default=0)


def no_new_bytes(*_: Any) -> int:
    """Of operators that give views or few numbers, or count themselves."""
    return 0


def _elements(sizes: Iterable[Any]) -> int:
    """An empty array counts by its other sizes: a sum over its empty axis has these."""
    return math.prod(max(int(size), 1) for size in sizes)


def _broadcast(_: Node, *values: Any) -> int:
    arrays = [data_of(value) for value in values if value is not None]
    return _together([array.shape for array in arrays]) * _item(*arrays)


def _together(shapes: Iterable[tuple[int, ...]]) -> int:
    """The elements of the shape that shapes broadcast to; of more, where they do not."""
    sizes = zip_longest(*(reversed(shape) for shape in shapes), fillvalue=1)
    return _elements(map(max, sizes))


def _joined(_: Node, *values: Any) -> int:
    return sum(bytes_of(data_of(value)) for value in values if value is not None)


def _wide(_: Node, *values: Any) -> int:
    """As many elements as the largest input, of eight bytes; twice, with their positions."""
    return 16 * max(_elements(data_of(value).shape) for value in values if value is not None)


def _matmul(_: Node, a: Any, b: Any) -> int:
    a, b = data_of(a), data_of(b)
    rows, columns = a.shape[-2:-1], b.shape[-1:] if b.ndim > 1 else ()
    return _together([a.shape[:-2], b.shape[:-2]]) * _elements((*rows, *columns)) * _item(a, b)


def _gemm(node: Node, a: Any, b: Any, c: Any = None) -> int:
    a, b = data_of(a), data_of(b)
    rows = a.shape[bool(node.attributes.get("transA"))]
    columns = b.shape[not node.attributes.get("transB")]
    return _together([(rows, columns), () if c is None else c.shape]) * _item(a, b)


def _item(*arrays: Array) -> int:
    return max(array.dtype.itemsize for array in arrays)


def _einsum(node: Node, *values: Any) -> int:
    """Letters have sizes; "..." stands for the axes that have no letter."""
    arrays = [data_of(value) for value in values]
    inputs, arrow, output = node.attributes["equation"].replace(" ", "").partition("->")
    sizes: dict[str, int] = {}
    others = []
    for term, array in zip(inputs.split(","), arrays, strict=True):
        before, _, after = term.partition("...")
        others.append(array.shape[len(before) : array.ndim - len(after)])
        named = [*zip(before, array.shape, strict=False)]
        named += zip(reversed(after), reversed(array.shape), strict=False)
        for letter, size in named:
            sizes[letter] = max(size, sizes.get(letter, 1))
    if not arrow:
        output = "".join(letter for letter in sizes if inputs.count(letter) == 1) + "..."
    kept = _elements(sizes.get(letter, 1) for letter in output)
    return kept * (_together(others) if "..." in output else 1) * _item(*arrays)


def _expand(_: Node, a: Any, shape: Any) -> int:
    a = data_of(a)
    return _together([a.shape, tuple(shape.tolist())]) * _item(a)


def _constant_of_shape(_: Node, shape: Any) -> int:
    return 8 * _elements(shape.tolist())


def _range(_: Node, start: Any, limit: Any, delta: Any) -> int:
    first, end, step = (np.asarray(each).reshape(-1)[0].item() for each in (start, limit, delta))
    count = (end - first) / step if step else 0
    return 8 * math.ceil(max(count, 0)) if math.isfinite(count) else 2**63


def _tile(_: Node, a: Any, repeats: Any) -> int:
    a = data_of(a)
    return bytes_of(a) * _elements(repeats.tolist())


def _pad(_: Node, a: Any, pads: Any, value: Any = None, axes: Any = None) -> int:
    a = data_of(a)
    chosen = range(a.ndim) if axes is None else axes.tolist()
    sizes = list(a.shape)
    for axis, around in zip(chosen, np.maximum(pads, 0).reshape(2, -1).T.tolist(), strict=False):
        sizes[axis] += sum(around)
    return _elements(sizes) * _item(a)


def _gather(node: Node, data: Any, indices: Any) -> int:
    table, at = data_of(data), data_of(indices)
    rest = [size for axis, size in enumerate(table.shape) if axis != _axis(node, table.ndim)]
    return _elements(at.shape) * _elements(rest) * _item(table)


def _axis(node: Node, rank: int) -> int:
    axis: int = node.attributes.get("axis", 0)
    return axis + rank if axis < 0 else axis


def _gather_nd(node: Node, data: Any, indices: Any) -> int:
    table, at = data_of(data), data_of(indices)
    rest = table.shape[node.attributes.get("batch_dims", 0) + at.shape[-1] :]
    return _elements(at.shape[:-1]) * (_elements(rest) * _item(table) + 8 * at.shape[-1])


def _one_hot(_: Node, indices: Any, depth: Any, values: Any) -> int:
    return (
        _elements(data_of(indices).shape) * _elements(depth.reshape(-1)[:1]) * (1 + _item(values))
    )


def _non_zero(_: Node, a: Any) -> int:
    a = data_of(a)
    return 16 * max(a.ndim, 1) * a.size


def _layer_normalization(node: Node, a: Any, *scales: Any) -> int:
    """With two statistics of each row."""
    return _broadcast(node, a, *scales) + 8 * _elements(data_of(a).shape)


def _batch_normalization(_: Node, a: Any, *columns: Any) -> int:
    """One number a channel; where there are others, it broadcasts."""
    a = data_of(a)
    width = max(data_of(each).size for each in columns)
    return bytes_of(a) * (1 if a.shape[1] == width else width)


def _shape_of(value: Any) -> tuple[int, ...]:
    return data_of(value).shape


def _sequence_pool(_: Node, x: Any) -> int:
    return len(x) * _elements(_shape_of(x)[1:]) * _item(data_of(x))


def _sequence_context(node: Node, x: Any) -> int:
    length = max(int(node.attributes["length"]), 0)
    return length * (bytes_of(data_of(x)) + 16 * len(data_of(x)))


def _sequence_expand(node: Node, x: Any, like: Any) -> int:
    if not isinstance(like, Ragged):
        return 0  # the kernel says so
    times = np.diff((*like.outer, like.offsets)[node.attributes["level"]])
    rows: Any = x.lengths if isinstance(x, Ragged) else np.ones(len(x), np.int64)
    count = min(len(times), len(rows))
    words = int(times[:count].astype(float) @ rows[:count].astype(float))
    return words * (_elements(_shape_of(x)[1:]) * _item(data_of(x)) + 24) + 24 * int(times.sum())


def _sequence_pad(node: Node, x: Any, like: Any = None) -> int:
    """With its copy in the other order."""
    time = 0 if like is None else _shape_of(like)[0 if node.attributes.get("time_major") else 1]
    return _padded(x, time)


def _sequence_fill(node: Node, x: Any, _: Any) -> int:
    return _padded(x, node.attributes.get("time", 0))


def _padded(x: Any, time: int) -> int:
    if not isinstance(x, Ragged):
        return 0  # the kernel says so
    longest = max(int(time), int(x.lengths.max(initial=0)), 1)
    return len(x) * longest * (_elements(x.data.shape[1:]) * _item(x.data) + 2)


def _crf_decode(_: Node, emission: Any, transition: Any) -> int:
    """One step from every tag to every other, of all sentences; and where each came from."""
    if not isinstance(emission, Ragged):
        return 0
    return (len(emission) * transition.size + 2 * emission.data.size) * 8


def _rnn(node: Node, x: Any, *_: Any) -> int:
    """Every word's output, its cell state where that is asked for, final states; float32."""
    spec = node.attributes["spec"]
    words, sentences = (
        (len(x.data), len(x))
        if isinstance(x, Ragged)
        else (_elements(x.shape[:2]), x.shape[1] if x.ndim > 1 else 1)
    )
    width = spec.directions * max(spec.hidden_size, spec.recurrent_size)
    words *= 2 if node.attributes.get("cells") else 1
    return 4 * width * (words + 2 * spec.layers * sentences)


GROWTH: Mapping[str, Growth] = {
    **dict.fromkeys(
        "Add Sub Mul Div Mod Pow Equal Less LessOrEqual Greater GreaterOrEqual And Or Xor Min Max"
        " Sum Mean Clip Where PRelu".split(),
        _broadcast,
    ),
    **dict.fromkeys(
        "Identity Transpose Squeeze Unsqueeze Flatten Slice Split Shape Size"
        " SequenceData SequenceLike SequenceReset SequenceLengths Loop Scan If".split(),
        no_new_bytes,
    ),
    **dict.fromkeys("Concat SequenceAppend SequenceConcat".split(), _joined),
    **dict.fromkeys("Cast CastLike Erf Gelu ArgMax ArgMin TopK".split(), _wide),
    "MatMul": _matmul,
    "Gemm": _gemm,
    "Einsum": _einsum,
    "Expand": _expand,
    "ConstantOfShape": _constant_of_shape,
    "Range": _range,
    "Tile": _tile,
    "Pad": _pad,
    "Gather": _gather,
    "GatherND": _gather_nd,
    "OneHot": _one_hot,
    "NonZero": _non_zero,
    "LayerNormalization": _layer_normalization,
    "BatchNormalization": _batch_normalization,
    "SequencePool": _sequence_pool,
    "SequenceContext": _sequence_context,
    "SequenceExpand": _sequence_expand,
    "SequencePad": _sequence_pad,
    "SequenceFill": _sequence_fill,
    "CrfDecode": _crf_decode,
    "Rnn": _rnn,
}

BY_PRODUCT = {largest_input, _broadcast, _joined, _wide, _matmul, _gemm, _einsum, _gather}
"""Those whose bound is below `product_of_sizes`, which is cheap."""


def product_of_sizes(values: Iterable[Any]) -> int:
    """At least the bytes of what can be made of values without a number that says how often.

    0 where an input is empty: then the other sizes tell.
    """
    product = 16
    for value in values:
        if value is not None:
            product *= 2 * (value.data if type(value) is Ragged else value).size
    return product
