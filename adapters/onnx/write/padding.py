"""Ragged values in ONNX: padded tensors (N, T, ...) and their lengths."""

from __future__ import annotations

from typing import Any

from onernn.adapters.onnx.write.protobuf import ProtoGraph
from onernn.core.records import dataclass


@dataclass(frozen=True)
class OnnxValue:
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


class PaddedGraph(ProtoGraph):
    """A graph that works on padded values; masks and exchanged axes are made once for each."""

    def __init__(self, proto: Any = None, around: ProtoGraph | None = None) -> None:
        super().__init__(proto, around)
        self._masks: dict[tuple[str, str], str] = {}
        self._swapped: dict[str, str] = {}

    def swapped(self, tensor: str, rank: int) -> str:
        """With batch and time, or time and batch, exchanged; what was exchanged is taken back."""
        if tensor not in self._swapped:
            out = self.emit("Transpose", tensor, perm=(1, 0, *range(2, rank)))
            self._swapped |= {tensor: out, out: tensor}
        return self._swapped[tensor]

    def size(self, tensor: str, axis: int) -> str:
        """One size of a tensor, (1,) int64."""
        shape = self.emit("Shape", tensor)
        return self.emit("Gather", shape, self.ints(axis), axis=0)

    def steps(self, time: str) -> str:
        """0, 1, ... T-1 as (T,) int64, from T (1,)."""
        scalar = self.emit("Squeeze", time, self.ints(0))
        zero, one = (self.constant(k, "int64") for k in (0, 1))
        return self.emit("Range", zero, scalar, one)

    def mask(self, lengths: str, time: str) -> str:
        """(N, T) bool: true inside the sentences."""
        columns = self.emit("Unsqueeze", lengths, self.ints(1))
        wide = self.emit("Cast", columns, to=7)
        return self.emit("Less", self.steps(time), wide)

    def mask_of(self, value: OnnxValue) -> str:
        """(N, T) bool of a ragged value."""
        key = (value.data, value.lengths)
        if key not in self._masks:
            self._masks[key] = self.mask(value.lengths, self.size(value.data, 1))
        return self._masks[key]

    def filled(self, value: OnnxValue, number: float = 0) -> str:
        """The padded tensor with a number behind each sentence."""
        mask = self.mask_of(value)
        if value.padded_rank > 2:
            mask = self.emit("Unsqueeze", mask, self.ints(*range(2, value.padded_rank)))
        rest = self.constant(number, value.dtype)
        return self.emit("Where", mask, value.data, rest)

    def words(self, value: OnnxValue) -> str:
        """The words of a ragged value (W, ...), sentence by sentence."""
        flat = self.emit("Reshape", self.mask_of(value), self.ints(-1))
        sizes = self.emit("Shape", value.data)
        inner = self.emit("Slice", sizes, self.ints(2), self.ints(2**31))
        shape = self.emit("Concat", self.ints(-1), inner, axis=0)
        rows = self.emit("Reshape", value.data, shape)
        return self.emit("Compress", rows, flat, axis=0)

    def from_words(self, words: str, lengths: str, time: str, dtype: str, rank: int) -> OnnxValue:
        """Words (W, ...) under lengths (N,), padded to T (1,)."""
        wide = self.emit("Cast", lengths, to=7)
        starts = self.emit("CumSum", wide, self.constant(0, "int64"), exclusive=1)
        columns = self.emit("Unsqueeze", starts, self.ints(1))
        at = self.emit("Add", columns, self.steps(time))
        last = self.emit("Sub", self.size(words, 0), self.ints(1))
        return OnnxValue(
            self.emit("Gather", words, self.emit("Min", at, last)), dtype, rank, lengths
        )

    def with_time(self, value: OnnxValue, time: str) -> OnnxValue:
        """The same value padded to T (1,), which is as long as the longest sentence at least."""
        cut = self.emit("Slice", value.data, self.ints(0), time, self.ints(1))
        more = self.emit("Sub", time, self.size(cut, 1))
        before = self.ints(*[0] * value.padded_rank, 0)
        after = [self.ints(*[0] * (value.padded_rank - 2))] if value.padded_rank > 2 else []
        pads = self.emit("Concat", before, more, *after, axis=0)
        return OnnxValue(self.emit("Pad", cut, pads), value.dtype, value.rank, value.lengths)

    def longest(self, lengths: str) -> str:
        """The longest sentence's length, (1,) int64."""
        return self.emit("Cast", self.emit("ReduceMax", lengths, keepdims=1), to=7)
