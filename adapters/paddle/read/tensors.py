"""Paddle's tensor stream: what a .pdiparams file, or one file a parameter, holds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from onernn.adapters.byte_stream import ByteStream
from onernn.adapters.paddle import messages
from onernn.core.arrays import Array

# Bounds that keep a hostile length field from costing time or memory before it is found out.
_MOST_AXES = 9  # DDim::kMaxRank of Paddle
_MOST_LEVELS = 16  # of LoD; nobody nests as deep
_MOST_DESCRIPTION = 4096  # bytes of a TensorDesc; 9 axes make 101


def read_tensors(file: Path, elements: Mapping[str, int | None]) -> dict[str, Array]:
    """The tensors by name, read-only, of a file that holds these in this order and nothing else.

    ``elements``: how many each must have, None where the program does not tell. Each tensor is
    read straight into an aligned array of its own: mapped memory would be at odd addresses, and
    would change or vanish under a running model when the file is saved again.
    """
    with _Stream.opened(file) as stream:
        tensors = {name: stream.tensor(name, count) for name, count in elements.items()}
        if stream.left:
            raise stream.error(
                f"{stream.left} bytes are left after the last of {len(elements)} parameters;"
                " it belongs to another program"
            )
    return tensors


class _Stream(ByteStream):
    def tensor(self, name: str, elements: int | None) -> Array:
        """u32 0 | LoD, ignored | u32 0 | i32 length, TensorDesc | data."""
        what = f"parameter {name!r}"
        self._version(what)
        start = self.at
        if (levels := self.integer("<Q", what)) > _MOST_LEVELS:
            raise self.error(f"{what}: {levels} LoD levels", start)
        for level in range(levels):
            start = self.at
            if (length := self.integer("<Q", what)) % 8:
                raise self.error(f"{what}: LoD level {level} of {length} bytes", start)
            self.take(length, what)
        self._version(what)
        start = self.at
        dims, kind = self._description(what)
        if elements not in (None, math.prod(dims)):
            raise self.error(f"{what}: the program wants {elements} elements, got {dims}", start)
        array = self.numbers(dims, kind, f"{what}, {kind} {dims}")
        array.flags.writeable = False
        return array

    def _description(self, what: str) -> tuple[tuple[int, ...], str]:
        start = self.at
        length = self.integer("<i", what)
        if not 0 < length <= _MOST_DESCRIPTION:
            raise self.error(f"{what}: a description of {length} bytes", start)
        start = self.at
        desc = messages.parse("TensorDesc", self.take(length, what), Path(self.file), start)
        if desc.data_type not in messages.DTYPES:
            raise self.error(f"{what}: unknown data type {desc.data_type}", start)
        dims = self.checked_shape(desc.dims, _MOST_AXES, what, start)
        return dims, messages.DTYPES[desc.data_type]

    def _version(self, what: str) -> None:
        start = self.at
        if version := self.integer("<I", what):
            raise self.error(f"{what}: expected tensor version 0, got {version}", start)
