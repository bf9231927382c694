"""Data types of a layer, and the scales of u8: known before any library is.

The tables are in `data_types.toml`, as oneDNN's guide and the oneAPI specification have them.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from onernn.core.errors import did_you_mean
from onernn.core.precision import PartScales, Scale
from onernn.core.spec import Cell

_TABLES: dict[str, dict[str, dict[str, Any]]] = tomllib.loads(
    Path(__file__).with_name("data_types.toml").read_text()
)


class Row(NamedTuple):
    """A row of a table of data types, by argument; its notes are written out."""

    propagation: Literal["forward and backward", "forward", "forward inference"]
    cells: Literal["all"] | list[str]
    peephole: bool
    projection: bool
    data: str
    recurrent: str
    cell_state: str
    weights: str
    bias: str
    output: list[str]

    def has(self, cell: Cell, *, peephole: bool, projection: bool, training: bool) -> bool:
        """Whether the row is about such a layer; ``training``: forward and backward."""
        return (
            (self.cells == "all" or cell.name in self.cells)
            and (self.peephole or not peephole)
            and (self.projection or not projection)
            and (self.propagation == "forward and backward" or not training)
        )


GUIDE = {dtype: Row(**row) for dtype, row in _TABLES["guide"].items()}
"""oneDNN's RNN developer guide, by the type of the input data."""
SPECIFICATION = {dtype: Row(**row) for dtype, row in _TABLES["specification"].items()}
"""The oneAPI 1.3 specification, likewise."""


class Ours(NamedTuple):
    """What we make of the guide's row for ``row``: see the file."""

    row: str
    output: str = ""
    since: str = ""
    ran: Sequence[str] = ()
    refused: str = ""

    def is_in(self, version: str) -> bool:
        """Whether a libdnnl of that version has the row."""
        first, this = (tuple(map(int, v.split(".")[:2])) for v in (self.since, version))
        return this >= first


OURS = {dtype: Ours(**{"row": dtype, **told}) for dtype, told in _TABLES["ours"].items()}


class Precision(NamedTuple):
    """Data types by argument, as the guide's table of data types combines them."""

    data: str  # src_layer, src_iter, dst_iter, attention
    weights: str
    bias: str
    cell: str  # src_iter_c, dst_iter_c
    out: str  # dst_layer


PRECISIONS = {
    dtype: Precision(row.data, row.weights, row.bias, row.cell_state, ours.output)
    for dtype, ours, row in ((dtype, ours, GUIDE[ours.row]) for dtype, ours in OURS.items())
    if not ours.refused
}
"""What `prepare` takes as ``dtype``."""


def unknown(dtype: str) -> str:
    """What is wrong with a ``dtype`` that is not one of `PRECISIONS`."""
    why = OURS[dtype].refused if dtype in OURS else ""
    why = f"; {why}" if why else did_you_mean(dtype, PRECISIONS)
    return f"dtype {dtype!r}: expected one of {', '.join(PRECISIONS)}{why}"


class U8Options:
    """How u8 data is scaled: q = x * data_scale + data_shift, for data and states alike.

    Without a scale every batch's own range decides: x / 2**k fits [-1, 1], and 2**k moves into
    the input weights before they are rounded, so that the states keep the whole range.
    ``output``: what y is, "f32", or "u8" by the given scale. ``scales``: of each layer and
    direction, which kernels take in place of the one.
    """

    def __init__(
        self,
        data_scale: float | None,
        data_shift: float,
        per_channel: bool,
        output: str = "f32",
        scales: Sequence[PartScales] = (),
    ) -> None:
        if data_scale is not None and not 0 < data_scale < math.inf:
            raise ValueError(f"data_scale: expected a positive number, got {data_scale}")
        if not 0 <= data_shift <= 255:
            raise ValueError(f"data_shift: expected 0 to 255, got {data_shift}")
        if output not in GUIDE["u8"].output:
            known = " or ".join(map(repr, GUIDE["u8"].output))
            raise ValueError(f"output: expected {known}, got {output!r}")
        if output == "u8" and data_scale is None:
            raise ValueError("output='u8': expected a data_scale, which tells what a byte means")
        if scales and data_scale is not None:
            raise ValueError("data_scale: the scales of each layer and direction are given, too")
        self.per_channel, self.output, self.scales = per_channel, output, tuple(scales)
        self.fixed = None if data_scale is None else Scale(data_scale, data_shift)
