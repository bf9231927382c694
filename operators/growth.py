"""How many bytes an operator's results may take, from its attributes and inputs, before it runs."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import zip_longest
from typing import Any

import numpy as np

from onernn.core.arrays import Array
from onernn.core.budget import bytes_of
from onernn.core.ragged import Ragged, data_of


def largest_input(_: Any, *values: Any) -> int:
    return max([bytes_of(data_of(value)) for value in values if value is not None], default=0)


def no_new_bytes(*_: Any) -> int:
    """Of operators that give views or few numbers, or count themselves."""
    return 0


def _elements(sizes: Iterable[Any]) -> int:
    """An empty array counts by its other sizes: a sum over its empty axis has these."""
    return math.prod(max(int(size), 1) for size in sizes)


def broadcast(_: Any, *values: Any) -> int:
    arrays = [data_of(value) for value in values if value is not None]
    return _together([array.shape for array in arrays]) * _item(*arrays)


def _together(shapes: Iterable[tuple[int, ...]]) -> int:
    """The elements of the shape that shapes broadcast to; of more, where they do not."""
    sizes = zip_longest(*(reversed(shape) for shape in shapes), fillvalue=1)
    return _elements(map(max, sizes))


def joined(_: Any, *values: Any) -> int:
    return sum(bytes_of(data_of(value)) for value in values if value is not None)


def wide(_: Any, *values: Any) -> int:
    """As many elements as the largest input, of eight bytes; twice, with their positions."""
    return 16 * max(_elements(data_of(value).shape) for value in values if value is not None)


def matmul(_: Any, a: Any, b: Any) -> int:
    a, b = data_of(a), data_of(b)
    rows, columns = a.shape[-2:-1], b.shape[-1:] if b.ndim > 1 else ()
    return _together([a.shape[:-2], b.shape[:-2]]) * _elements((*rows, *columns)) * _item(a, b)


def matmul_integer(at: Any, a: Any, b: Any, *_: Any) -> int:
    """Sums of 32 bits, twice; factors without their zero points, in two and in four bytes."""
    a, b = data_of(a), data_of(b)
    return 8 * matmul(at, a, b) + 6 * _elements(a.shape) + 6 * _elements(b.shape)


def gemm(at: Any, a: Any, b: Any, c: Any = None) -> int:
    a, b = data_of(a), data_of(b)
    rows = a.shape[bool(at.transA)]
    columns = b.shape[not at.transB]
    return _together([(rows, columns), () if c is None else c.shape]) * _item(a, b)


def _item(*arrays: Array) -> int:
    return max(array.dtype.itemsize for array in arrays)


def einsum(at: Any, *values: Any) -> int:
    """Letters have sizes; "..." stands for the axes that have no letter."""
    arrays = [data_of(value) for value in values]
    inputs, arrow, output = at.equation.replace(" ", "").partition("->")
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


def expand(_: Any, a: Any, shape: Any) -> int:
    a = data_of(a)
    return _together([a.shape, tuple(shape.tolist())]) * _item(a)


def constant_of_shape(_: Any, shape: Any) -> int:
    return 8 * _elements(shape.tolist())


def span(_: Any, start: Any, limit: Any, delta: Any) -> int:
    first, end, step = (np.asarray(each).reshape(-1)[0].item() for each in (start, limit, delta))
    count = (end - first) / step if step else 0
    return 8 * math.ceil(max(count, 0)) if math.isfinite(count) else 2**63


def tile(_: Any, a: Any, repeats: Any) -> int:
    a = data_of(a)
    return bytes_of(a) * _elements(repeats.tolist())


def pad(_: Any, a: Any, pads: Any, value: Any = None, axes: Any = None) -> int:
    a = data_of(a)
    chosen = range(a.ndim) if axes is None else axes.tolist()
    sizes = list(a.shape)
    for axis, around in zip(chosen, np.maximum(pads, 0).reshape(2, -1).T.tolist(), strict=False):
        sizes[axis] += sum(around)
    return _elements(sizes) * _item(a)


def gather(at: Any, data: Any, indices: Any) -> int:
    table, along = data_of(data), at.axis
    rest = [
        size for axis, size in enumerate(table.shape) if axis not in (along, along + table.ndim)
    ]
    return _elements(data_of(indices).shape) * _elements(rest) * _item(table)


def gather_nd(at: Any, data: Any, indices: Any) -> int:
    table, places = data_of(data), data_of(indices)
    depth = places.shape[-1]
    rest = table.shape[at.batch_dims + depth :]
    return _elements(places.shape[:-1]) * (_elements(rest) * _item(table) + 8 * depth)


def one_hot(_: Any, indices: Any, depth: Any, values: Any) -> int:
    return (
        _elements(data_of(indices).shape) * _elements(depth.reshape(-1)[:1]) * (1 + _item(values))
    )


def non_zero(_: Any, a: Any) -> int:
    a = data_of(a)
    return 16 * max(a.ndim, 1) * a.size


def layer_normalization(at: Any, a: Any, *scales: Any) -> int:
    """With two statistics of each row."""
    return broadcast(at, a, *scales) + 8 * _elements(data_of(a).shape)


def _shape_of(value: Any) -> tuple[int, ...]:
    return data_of(value).shape


def sequence_pool(_: Any, x: Any) -> int:
    return len(x) * _elements(_shape_of(x)[1:]) * _item(data_of(x))


def sequence_context(at: Any, x: Any) -> int:
    length = max(int(at.length), 0)
    return length * (bytes_of(data_of(x)) + 16 * len(data_of(x)))


def sequence_expand(at: Any, x: Any, like: Any) -> int:
    if not isinstance(like, Ragged):
        return 0  # the kernel says so
    times = np.diff((*like.outer, like.offsets)[at.level])
    rows: Any = x.lengths if isinstance(x, Ragged) else np.ones(len(x), np.int64)
    count = min(len(times), len(rows))
    words = int(times[:count].astype(float) @ rows[:count].astype(float))
    return words * (_elements(_shape_of(x)[1:]) * _item(data_of(x)) + 24) + 24 * int(times.sum())


def sequence_pad(at: Any, x: Any, like: Any = None) -> int:
    """With its copy in the other order."""
    time = 0 if like is None else _shape_of(like)[0 if at.time_major else 1]
    return _padded(x, time)


def sequence_fill(at: Any, x: Any, _: Any) -> int:
    return _padded(x, at.time or 0)


def _padded(x: Any, time: int) -> int:
    if not isinstance(x, Ragged):
        return 0  # the kernel says so
    longest = max(int(time), int(x.lengths.max(initial=0)), 1)
    return len(x) * longest * (_elements(x.data.shape[1:]) * _item(x.data) + 2)


def crf_decode(_: Any, emission: Any, transition: Any) -> int:
    """One step from every tag to every other, of all sentences; and the best paths to each word."""
    if not isinstance(emission, Ragged):
        return 0
    return (len(emission) * transition.size + 2 * emission.data.size) * 8


def rnn(at: Any, x: Any, *_: Any) -> int:
    """Every word's output, its cell state where the node has it, final states; float32."""
    spec = at.spec
    words, sentences = (
        (len(x.data), len(x))
        if isinstance(x, Ragged)
        else (_elements(x.shape[:2]), x.shape[1] if x.ndim > 1 else 1)
    )
    width = spec.directions * max(spec.hidden_size, spec.recurrent_size)
    words *= 2 if at.outputs > 3 else 1
    return 4 * width * (words + 2 * spec.layers * sentences)


BY_PRODUCT = {largest_input, broadcast, joined, wide, matmul, gemm, einsum, gather}
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
