"""How many bytes an operator's results may take, before it runs: from their types, or by its own
bound where data decide."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from onernn.ir.budget import bytes_of
from onernn.ir.graph import FAILURES, Context, Node, Sizes
from onernn.ir.operator import OPERATORS
from onernn.ir.ragged import Ragged, data_of
from onernn.ir.types import type_of

_MANY = 32


def results(node: Node, *values: Any) -> int:
    """Those of the results, as the operator's type rule tells them, and its ``scratch``.

    Of types that only a run tells: those of the largest input.
    """
    operator, most = OPERATORS[node.op], largest_input(node, *values)
    try:
        given = (None if value is None else type_of(value) for value in values)
        made = operator.type(Context(node, Sizes()), *given)
    except FAILURES:  # so will the run
        made = ()
    total = 0
    for each in made if isinstance(made, tuple) else (made,):
        if each.shape is None or None in each.counts:
            total += most
        else:
            total += _elements(each.counts) * (np.dtype(each.dtype).itemsize if each.dtype else 8)
    if operator.scratch:
        largest = max(_elements(data_of(value).shape) for value in values if value is not None)
        total += operator.scratch * largest
    return total or most


def largest_input(_: Node, *values: Any) -> int:
    return max([bytes_of(data_of(value)) for value in values if value is not None], default=0)


def wide(_: Node, *values: Any) -> int:
    """As many elements as the largest input, of eight bytes; twice, with their positions."""
    return 16 * max(_elements(data_of(value).shape) for value in values if value is not None)


def no_new_bytes(*_: Any) -> int:
    """Of operators that give views or few numbers, or count themselves."""
    return 0


def joined(_: Node, *values: Any) -> int:
    return sum(bytes_of(data_of(value)) for value in values if value is not None)


def _elements(sizes: Iterable[Any]) -> int:
    """An empty array counts by its other sizes: a sum over its empty axis has these."""
    return math.prod(max(int(size), 1) for size in sizes)


def _word(x: Any) -> int:
    """The bytes of one word."""
    data = data_of(x)
    return _elements(data.shape[1:]) * data.dtype.itemsize


def sequence_pool_bytes(_: Node, x: Any) -> int:
    return len(x) * _word(x)


def sequence_context_bytes(node: Node, x: Any) -> int:
    length = max(int(node.at.length), 0)
    return length * (bytes_of(data_of(x)) + 16 * len(data_of(x)))


def sequence_expand_bytes(node: Node, x: Any, like: Any) -> int:
    if not isinstance(like, Ragged):
        return 0  # the kernel says so
    times = np.diff((*like.outer, like.offsets)[node.at.level])
    rows: Any = x.lengths if isinstance(x, Ragged) else np.ones(len(x), np.int64)
    count = min(len(times), len(rows))
    words = int(times[:count].astype(float) @ rows[:count].astype(float))
    return words * (_word(x) + 24) + 24 * int(times.sum())


def sequence_pad_bytes(node: Node, x: Any, like: Any = None) -> int:
    """With its copy in the other order."""
    time = 0 if like is None else data_of(like).shape[0 if node.at.time_major else 1]
    return _padded(x, time)


def sequence_fill_bytes(node: Node, x: Any, _: Any) -> int:
    return _padded(x, node.at.time or 0)


def _padded(x: Any, time: int) -> int:
    if not isinstance(x, Ragged):
        return 0  # the kernel says so
    longest = max(int(time), int(x.lengths.max(initial=0)), 1)
    return len(x) * longest * (_word(x) + 2)


def crf_decode_bytes(_: Node, emission: Any, transition: Any) -> int:
    """One step from every tag to every other, of all sentences; and the best paths to each word."""
    if not isinstance(emission, Ragged):
        return 0
    return (len(emission) * transition.size + 2 * emission.data.size) * 8


def rnn_bytes(node: Node, x: Any, *_: Any) -> int:
    """Every word's output, its cell state where the node has it, final states; float32."""
    spec = node.at.spec
    words, sentences = (
        (len(x.data), len(x))
        if isinstance(x, Ragged)
        else (_elements(x.shape[:2]), x.shape[1] if x.ndim > 1 else 1)
    )
    width = spec.directions * max(spec.hidden_size, spec.recurrent_size)
    words *= 2 if node.at.outputs > 3 else 1
    return 4 * width * (words + 2 * spec.layers * sentences)


def product_of_sizes(values: Iterable[Any]) -> int:
    """At least the bytes of what can be made of values without a number that says how often.

    0 where an input is empty: then the other sizes tell.
    """
    product = 16
    for value in values:
        if value is not None:
            product *= 2 * (value.data if type(value) is Ragged else value).size
    return product


def product_with_numbers(values: Sequence[Any]) -> int:
    """As `product_of_sizes`, where integers among the values say how often; 0 where many do."""
    product = product_of_sizes(values)
    for value in values:
        if value is not None and (array := data_of(value)).dtype.kind in "iu":
            if array.size > _MANY:
                return 0
            for number in array.reshape(-1).tolist():
                product *= 1 + abs(number)
    return product
