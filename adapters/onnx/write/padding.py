"""Ragged values in ONNX: padded tensors (N, T, ...) and their lengths."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from onernn.adapters.onnx.write.protobuf import GraphProto


@dataclass(frozen=True)
class Batch:
    """A value of a graph as tensors of ONNX.

    ``data`` is what ONNX calls it: a dense tensor, or, where there are ``lengths`` (N,) int32, a
    padded one (N, T, ...) in which anything may stand behind the sentences.
    """

    data: str
    dtype: str
    rank: int
    lengths: str = ""

    @property
    def padded_rank(self) -> int:
        return self.rank + 1


class Batches:
    """Emits what padded batches need; steps and masks once for each pair of lengths and time."""

    def __init__(self, graph: GraphProto) -> None:
        self.graph = graph
        self._masks: dict[tuple[str, str], str] = {}

    def size(self, tensor: str, axis: int) -> str:
        """One size of a tensor, (1,) int64."""
        shape = self.graph.emit("Shape", tensor)
        return self.graph.emit("Gather", shape, self.graph.ints(axis), axis=0)

    def steps(self, time: str) -> str:
        """0, 1, ... T-1 as (T,) int64, from T (1,)."""
        scalar = self.graph.emit("Squeeze", time, self.graph.ints(0))
        zero, one = (self.graph.constant(k, "int64") for k in (0, 1))
        return self.graph.emit("Range", zero, scalar, one)

    def mask(self, lengths: str, time: str) -> str:
        """(N, T) bool: true inside the sentences."""
        columns = self.graph.emit("Unsqueeze", lengths, self.graph.ints(1))
        wide = self.graph.emit("Cast", columns, to=7)
        return self.graph.emit("Less", self.steps(time), wide)

    def mask_of(self, batch: Batch) -> str:
        """(N, T) bool of a ragged value."""
        key = (batch.data, batch.lengths)
        if key not in self._masks:
            self._masks[key] = self.mask(batch.lengths, self.size(batch.data, 1))
        return self._masks[key]

    def filled(self, batch: Batch, number: float = 0, name: str = "") -> str:
        """The padded tensor with a number behind each sentence."""
        mask = self.mask_of(batch)
        if batch.padded_rank > 2:
            mask = self.graph.emit("Unsqueeze", mask, self.graph.ints(*range(2, batch.padded_rank)))
        rest = self.graph.constant(number, batch.dtype)
        return self.graph.emit("Where", mask, batch.data, rest, name=name)

    def words(self, batch: Batch) -> str:
        """The words of a ragged value (W, ...), sentence by sentence."""
        flat = self.graph.emit("Reshape", self.mask_of(batch), self.graph.ints(-1))
        sizes = self.graph.emit("Shape", batch.data)
        inner = self.graph.emit("Slice", sizes, self.graph.ints(2), self.graph.ints(2**31))
        shape = self.graph.emit("Concat", self.graph.ints(-1), inner, axis=0)
        rows = self.graph.emit("Reshape", batch.data, shape)
        return self.graph.emit("Compress", rows, flat, axis=0)

    def from_words(self, words: str, lengths: str, time: str, dtype: str, rank: int) -> Batch:
        """Words (W, ...) under lengths (N,), padded to T (1,)."""
        graph = self.graph
        wide = graph.emit("Cast", lengths, to=7)
        starts = graph.emit("CumSum", wide, graph.constant(0, "int64"), exclusive=1)
        columns = graph.emit("Unsqueeze", starts, graph.ints(1))
        at = graph.emit("Add", columns, self.steps(time))
        last = graph.emit("Sub", self.size(words, 0), graph.ints(1))
        return Batch(graph.emit("Gather", words, graph.emit("Min", at, last)), dtype, rank, lengths)

    def with_time(self, batch: Batch, time: str) -> Batch:
        """The same value padded to T (1,), which is as long as the longest sentence at least."""
        graph = self.graph
        cut = graph.emit("Slice", batch.data, graph.ints(0), time, graph.ints(1))
        more = graph.emit("Sub", time, self.size(cut, 1))
        before = graph.ints(*[0] * batch.padded_rank, 0)
        after = [graph.ints(*[0] * (batch.padded_rank - 2))] if batch.padded_rank > 2 else []
        pads = graph.emit("Concat", before, more, *after, axis=0)
        return Batch(graph.emit("Pad", cut, pads), batch.dtype, batch.rank, batch.lengths)

    def longest(self, lengths: str) -> str:
        """The longest sentence's length, (1,) int64."""
        return self.graph.emit("Cast", self.graph.emit("ReduceMax", lengths, keepdims=1), to=7)


def zero_of(dtype: str) -> np.generic:
    return np.dtype(dtype).type(0)
