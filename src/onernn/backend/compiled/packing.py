"""Packs weight matrices as panels, the form that the kernels read; each matrix starts on a cache
line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import field, replace
from typing import Any

import numpy as np

from onernn.ir.activations import complete
from onernn.ir.arrays import Array, bfloat16_bits
from onernn.ir.errors import UnsupportedError
from onernn.ir.records import NamedTuple, dataclass
from onernn.ir.spec import Cell, RnnSpec
from onernn.ir.weights import NO_SCALES, UNIT, PartScales, RnnWeights, Scale, own_factors

STORED = {"f32": "float", "f16": "Half", "bf16": "BrainPair"}
"""The C++ types in which float matrices are stored, by data type."""
BYTES = "ByteQuad"
"""The C++ type of matrices in u8 layers."""
CODES = "int8-weights"
"""The data type for which matrices are stored as 8-bit codes: see kernels/codes.hpp."""
GROUP = 1 << 16
"""The number of consecutive rows of a column that have the same step size, for matrices stored as
`CODES`.
"""
LANES = 16
"""The number of units in a panel: one register of AVX-512, or two of AVX2."""
MOST_ROWS = (2**31 - 1) // (255 * 127)
"""The maximum number of rows of an int8 matrix: its sums must fit into 32 bits."""

WIDE = ("bias", "peephole")
"""The arrays of a layer that are never stored in a smaller type, because they are not factors of
matrix products.
"""


FUNCTIONS = ("gate", "candidate", "output")
"""Names of a cell's activations in C++, in their order."""


def round_up(size: int) -> int:
    """Returns the size, rounded up to a multiple of the width of a panel."""
    return -(-size // LANES) * LANES


def panels(matrix: Array) -> Array:
    """Rearranges (K, G, O) as (groups of panels, K, panels of a group, G, 16), with zeros for
    missing units.

    `side_by_side` in kernels/products.hpp determines the group size. Returns a view if no unit is
    missing.
    """
    k, gates, units = matrix.shape
    wide = matrix
    if units % LANES:
        wide = np.zeros((k, gates, round_up(units)), matrix.dtype)
        wide[:, :, :units] = matrix
    count = wide.shape[2] // LANES
    beside = next(n for n in (4, 2, 1) if n * gates <= 4 and count % n == 0)
    split = wide.reshape(k, gates, -1, beside, LANES)
    return split.transpose(2, 0, 3, 1, 4)


def narrows(array: Array, stored: str) -> bool:
    """Returns whether the array takes fewer bytes if it is stored as ``stored``."""
    return stored != "float" and array.dtype == np.float32


def narrow_numbers(array: Array, stored: str) -> Array:
    """Converts float32 to the bits of ``stored``, rounded to nearest even.

    Raises `UnsupportedError` for a value that is too large for float16.
    """
    if not narrows(array, stored):
        return array
    if stored == "Half":
        with np.errstate(over="ignore"):
            half = array.astype(np.float16)
        if not np.isfinite(half).all():
            raise UnsupportedError(
                f"f16: expected weights up to 65504, got {np.abs(array).max():.3g}; use bf16"
            )
        return half
    return bfloat16_bits(array)


def pair(panels: Array) -> Array:
    """Rearranges (panels, K, ...) as (panels, (K + 1) // 2, ..., 2): interleaves pairs of rows.

    If K is odd, the last row is paired with zeros.
    """
    count, k = panels.shape[:2]
    even = np.zeros((count, k + k % 2, *panels.shape[2:]), panels.dtype)
    even[:, :k] = panels
    return np.stack((even[:, ::2], even[:, 1::2]), axis=-1)


def quads(panels: Array, per_channel: bool, steps: Array | None, shift: int) -> Array:
    """Converts (panels, K, ...) to bytes (panels, 2 + (K + 3) // 4, ..., 4): see kernels/quads.hpp.

    Four rows are interleaved. Values are stored as multiples of the ``steps`` of their columns, as
    integers. By default, a step is the largest magnitude of the column, or of the matrix, divided
    by 127. Two rows come first: the sums of the columns times -``shift``, and the steps. ``shift``
    is the shift of the x or h by which the matrix is multiplied. Raises `UnsupportedError` if 32
    bits cannot hold the sums of K products.
    """
    k = panels.shape[1]
    if k > MOST_ROWS:
        raise UnsupportedError(
            f"u8: expected sums of at most {MOST_ROWS} products, which fit 32 bits, got {k}; use"
            " bf16"
        )
    if steps is None:
        factors = own_factors(panels, 1)
        if not per_channel:
            factors[:] = factors.min(initial=factors.max(initial=0))
        steps = np.reciprocal(factors)
    return quad_rows(np.rint(panels / steps[:, None]).clip(-128, 127), steps, shift)


def quad_rows(numbers: Array, step: Array, shift: int = 128) -> Array:
    """Converts integers (panels, K, ...) and the steps of their columns to the layout of
    `quads`.
    """
    count, k, *rest = numbers.shape
    whole = np.zeros((count, -(-k // 4) * 4, *rest), np.int8)
    whole[:, :k] = numbers
    start = -shift * whole.sum(axis=1, dtype=np.int32)
    head = np.stack((start, step.view(np.int32)), axis=1)[..., None].view(np.int8)
    rows = np.moveaxis(whole.reshape(count, -1, 4, *rest), 2, -1)
    return np.concatenate((head, rows), axis=1)


def _encode_groups(matrix: Array) -> Iterator[tuple[Array, Array]]:
    """Yields (step sizes (...), codes (rows, ...)) for each `GROUP` consecutive rows of a matrix
    (K, ...). 127 steps are the largest magnitude of a column. Codes are integers, stored as
    float32: see kernels/codes.hpp.
    """
    for first in range(0, len(matrix), GROUP):
        rows = matrix[first : first + GROUP]
        steps = np.maximum(np.abs(rows).max(axis=0), np.float32(1e-30)) / np.float32(127)
        yield steps, np.clip(np.rint(rows / steps), -128, 127)


def round_weights(weights: RnnWeights) -> RnnWeights:
    """Returns the weights after rounding: each value of a matrix is the value that its 8-bit code
    represents.
    """
    arrays = {name: getattr(weights, name) for name in ("layer", "iter", "projection")}
    rounded = {
        name: np.concatenate([c * steps for steps, c in _encode_groups(np.moveaxis(array, 2, 0))])
        for name, array in arrays.items()
        if array is not None
    }
    return replace(weights, **{n: np.moveaxis(array, 0, 2) for n, array in rounded.items()})


def encode(panels: Array) -> Array:
    """Converts (panels, K, ..., 16) to bytes (panels, rows, ..., 16, 4): see kernels/codes.hpp.

    Raises `UnsupportedError` for infinity and NaN.
    """
    if not np.isfinite(panels).all():
        raise UnsupportedError(f"{CODES}: expected finite weights, got infinity or NaN")
    matrix = np.moveaxis(panels, 1, 0)
    parts = [np.zeros((0, *matrix.shape[1:], 4), np.uint8)]
    for steps, codes in _encode_groups(matrix):
        quads = np.full((-(-len(codes) // 4) * 4, *steps.shape), 128, np.uint8)
        quads[: len(codes)] += codes.astype(np.int8).view(np.uint8)
        parts.append(steps[None, ..., None].view(np.uint8))
        parts.append(np.moveaxis(quads.reshape(-1, 4, *steps.shape), 1, -1))
    return np.moveaxis(np.concatenate(parts), 0, 1)


@dataclass
class Numbers:
    """Collects arrays for one block of memory, in which equal arrays are stored once.

    The arrays must not change. ``stored``: the type of matrices, see `STORED`, `BYTES` and `CODES`.
    Arrays that keep their type remain views of the weights until `write` packs them, one at a time.

    ``size``: the number of bytes so far. ``per_channel``: see `quads`.
    """

    stored: str
    per_channel: bool = True
    size: int = 0
    arrays: list[tuple[int, int, Array, Callable[[Array], Array]]] = field(default_factory=list)
    """For each array: its offset, its size in bytes, the array, and the function that packs it."""
    _alike: dict[Any, list[tuple[int, Array]]] = field(default_factory=dict)
    """The arrays that were added, each with its offset, by packing function, dtype, shape and first
    values.
    """

    def add(self, array: Array, *, narrow: bool = False) -> int:
        """Adds an array and returns its byte offset."""
        if narrow:
            array = narrow_numbers(array, self.stored)
            array = pair(array) if array.dtype == np.uint16 else array
        return self._place(array)

    def add_panels(
        self,
        matrix: Array,
        *,
        narrow: bool,
        factors: Array | None = None,
        of_rows: Scale | None = None,
    ) -> int:
        """Adds the panels of a matrix and returns their byte offset.

        ``factors``, ``of_rows``: for int8, the scales (G, O) of the columns, and the scale of the x
        or h that multiplies the matrix.
        """
        if narrow and self.stored == BYTES:
            steps = None
            if factors is not None:
                steps = panels(np.reciprocal(factors, dtype=np.float32)[None])[:, 0]
                # The step size is 0 for missing units, with which the last panel is filled.
                steps = np.where(steps > 0, steps, np.float32(1))
            array = quads(panels(matrix), self.per_channel, steps, int((of_rows or UNIT).shift))
            return self._place(array)
        if narrow and self.stored == CODES:
            return self._place(encode(panels(matrix)))
        if narrow and narrows(matrix, self.stored):
            return self.add(panels(matrix), narrow=True)
        units = matrix.shape[2]
        return self._place(matrix, panels, matrix.nbytes // units * round_up(units))

    def _place(
        self, array: Array, pack: Callable[[Array], Array] = np.asarray, nbytes: int | None = None
    ) -> int:
        nbytes = array.nbytes if nbytes is None else nbytes
        key = (pack, array.dtype, array.shape, array.flat[:LANES].tobytes())
        alike = self._alike.setdefault(key, [])
        for at, known in alike:
            if known is array or known.tobytes() == array.tobytes():
                return at
        at = self.size
        alike.append((at, array))
        self.arrays.append((at, nbytes, array, pack))
        self.size += -(-nbytes // 64) * 64
        return at

    def write(self, target: Array) -> None:
        """Writes all arrays into ``target``, which has ``size`` bytes."""
        for at, nbytes, array, pack in self.arrays:
            packed = pack(array)
            target[at : at + nbytes].view(packed.dtype).reshape(packed.shape)[...] = packed


def check_bytes(spec: RnnSpec, real: np.dtype[Any], dtype: str = "u8") -> None:
    """Raises `UnsupportedError` for layers that cannot run in int8, because of float64 weights or a
    thresholdedrelu.
    """
    if real == np.float64:
        raise UnsupportedError(f"{dtype}: expected float32 weights, got float64")
    if any(complete(function)[0] == "thresholdedrelu" for function in spec.functions):
        raise UnsupportedError(
            f"{dtype}: expected no thresholdedrelu, which hides infinity and NaN"
        )


def kernel_of(cell: Cell) -> str:
    """Returns the name of a cell's kernel, which is the name of its header."""
    if cell.is_gru:
        return "lbr_gru" if cell.linear_before_reset else "gru"
    return "lstm" if len(cell.states) == 2 else "rnn"


class CellMatrices(NamedTuple):
    """The matrices (K, G, O) of one cell, in the order of the C++ struct CellWeights; None for
    missing ones.
    """

    bias: Array
    input: Array | None
    recurrent: Array
    candidate: Array | None
    peephole: Array | None
    projection: Array | None

    @classmethod
    def of(cls, cell: Cell, weights: RnnWeights) -> CellMatrices:
        """Returns the matrices of one layer and direction."""
        arrays = {name: array[0, 0] for name, array in weights.arrays.items()}
        recurrent, candidate = arrays["iter"], None
        # the candidate's matrix is separate: its product needs the reset gate's result
        if kernel_of(cell) == "gru":
            recurrent, candidate = recurrent[:, :2], recurrent[:, 2:]
        bias = np.zeros((cell.bias_rows, recurrent.shape[2]), recurrent.dtype)
        rows = {"bias": bias, **arrays}
        peephole, projection = arrays.get("peephole"), arrays.get("projection")
        return cls(
            rows["bias"][None],
            arrays.get("layer"),
            recurrent,
            candidate,
            None if peephole is None else peephole[None],
            None if projection is None else projection[:, None],
        )

    def pack(self, numbers: Numbers, scales: PartScales = NO_SCALES) -> dict[str, int | None]:
        """Adds the matrices to ``numbers``; returns the offset of each, None for a missing matrix.

        ``scales``: the scales of int8 matrices.
        """
        of_h, columns, split = scales.iter, scales.projection, self.candidate is not None
        of_gates, of_candidate = (of_h, None) if of_h is None or not split else (of_h[:2], of_h[2:])
        rows = {
            "input": (scales.layer, scales.data),
            "recurrent": (of_gates, scales.state),
            "candidate": (of_candidate, scales.state),
            "projection": (None if columns is None else columns[None], None),
        }
        places: dict[str, int | None] = dict.fromkeys(self._fields)
        for name, matrix in self._asdict().items():
            if matrix is not None:
                factors, of_rows = rows.get(name, (None, None))
                places[name] = numbers.add_panels(
                    matrix, narrow=name not in WIDE, factors=factors, of_rows=of_rows
                )
        return places
