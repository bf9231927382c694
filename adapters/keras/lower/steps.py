"""The steps that a recurrent layer goes through: all of a padded batch, or those of a mask."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from onernn.adapters.keras.lower.layer import KerasLayer, Tensor

_END = -(2**62)


class Steps(Protocol):
    """``given``: what the first cell takes.

    ``all`` makes the output of every step of what an Rnn gives, in time's order; ``reversed`` from
    the end, ``finished`` as Keras has it. ``last``: the output behind the last step of a run.
    ``zeros``: masked steps give zeros, else what the step before gave.
    """

    given: str

    def all(self, y: str, backwards: bool, *, zeros: bool) -> str: ...

    def reversed(self, y: str) -> str: ...

    def finished(self, y: str) -> str: ...

    def last(self, h: str, backwards: bool, *, zeros: bool, given: bool) -> str: ...


class Padded:
    """Every step of (N, T, I)."""

    def __init__(self, op: KerasLayer, x: str, time_major: bool) -> None:
        self._op, self._time_major = op, time_major
        self.given = x if time_major else op.transposed(x, 1, 0, 2)

    def all(self, y: str, backwards: bool, *, zeros: bool) -> str:
        return y

    def reversed(self, y: str) -> str:
        return turned(self._op, y, 0)

    def finished(self, y: str) -> str:
        return y if self._time_major else self._op.transposed(y, 1, 0, 2)

    def last(self, h: str, backwards: bool, *, zeros: bool, given: bool) -> str:
        return h


class _Table(NamedTuple):
    """Of a mask: of each sequence the words and where they begin, of each step those up to it."""

    flags: str
    some: str
    far: str
    counts: str
    starts: str
    offsets: str


class Masked:
    """The steps where a mask is true, of each sequence behind one another: a ragged batch."""

    def __init__(self, op: KerasLayer, tensor: Tensor, width: int) -> None:
        self._op = op
        x, mask, words = tensor
        tables = op.lowering.tables
        if mask not in tables:
            tables[mask] = _table(op, mask)
        self._table: _Table = tables[mask]
        if not words:
            rows = op.emit("Reshape", x, op.ints(-1, width))
            chosen = op.emit("Reshape", mask, op.ints(-1))
            words = op.emit("Compress", rows, chosen, axis=0)
            words = op.emit("SequenceReset", words, self._table.offsets)
        self.given = words

    def all(self, y: str, backwards: bool, *, zeros: bool) -> str:
        """Row 0 of a table is zeros, the words come behind; each step takes one of them."""
        op, table = self._op, self._table
        data = op.emit("SequenceData", y)
        width = op.shape(data)[-1]
        begin = op.constant(np.zeros((1, width or 1), op.compute), "zeros")
        rows = op.emit("Concat", begin, data, axis=0)
        starts = op.emit("Unsqueeze", table.starts, op.ints(1))
        if backwards:  # the first word at or behind a step, as long as there is one
            before = op.emit("Sub", table.far, table.some)
            place = op.emit("Add", op.emit("Add", starts, before), op.ints(1))
            left = op.emit("Sub", op.emit("Unsqueeze", table.counts, op.ints(1)), before)
            reached = op.emit("Greater", left, op.ints(0))
        else:
            place = op.emit("Add", starts, table.far)
            reached = op.emit("Greater", table.far, op.ints(0))
        at = op.emit("Where", table.flags if zeros else reached, place, op.ints(0))
        return op.emit("Gather", rows, at, axis=0)

    def reversed(self, y: str) -> str:
        return turned(self._op, y, 1)

    def finished(self, y: str) -> str:
        return y

    def last(self, h: str, backwards: bool, *, zeros: bool, given: bool) -> str:
        """Where a sequence has no words Keras gives zeros, whatever its initial state is."""
        op, table = self._op, self._table
        if zeros:
            end = op.constant(np.array(0 if backwards else -1), "end")
            kept = op.emit("Gather", table.flags, end, axis=1)
        elif given:
            kept = op.emit("Greater", table.counts, op.ints(0))
        else:
            return h
        return op.emit("Where", op.emit("Unsqueeze", kept, op.ints(1)), h, op.scalar(0, h))


def _table(op: KerasLayer, mask: str) -> _Table:
    some = op.emit("Cast", mask, to="int64")
    counts = op.emit("ReduceSum", some, op.ints(1), keepdims=0)
    ends = op.emit("CumSum", counts, op.ints(0))
    return _Table(
        mask,
        some,
        op.emit("CumSum", some, op.ints(1)),
        counts,
        op.emit("Sub", ends, counts),
        op.emit("Concat", op.ints(0), ends, axis=0),
    )


def turned(op: KerasLayer, value: str, axis: int) -> str:
    """An axis from its end."""
    return op.emit("Slice", value, *(op.ints(number) for number in (-1, _END, axis, -1)))
