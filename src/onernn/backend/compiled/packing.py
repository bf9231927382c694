"""Weights as the kernels read them: panels one behind the other, each on a cache line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import field, replace
from typing import Any, NamedTuple

import numpy as np

from onernn.ir.activations import complete
from onernn.ir.arrays import Array, bfloat16_bits
from onernn.ir.errors import UnsupportedError
from onernn.ir.records import dataclass
from onernn.ir.spec import Cell, RnnSpec
from onernn.ir.weights import NO_SCALES, UNIT, PartScales, RnnWeights, Scale, own_factors

STORED = {"f32": "float", "f16": "Half", "bf16": "BrainPair"}
"""What matrices of float32 are stored as, in C++, by the names of data types."""
BYTES = "ByteQuad"
"""The same of u8."""
CODES = "int8-weights"
"""The data type whose matrices are codes of 8 bits: see kernels/codes.hpp."""
GROUP = 1 << 16
"""So many rows of a column share a step."""
LANES = 16
"""Units a panel: what one AVX-512 register holds, two of AVX2."""
MOST_ROWS = (2**31 - 1) // (255 * 127)
"""Of a matrix of bytes: sums have 32 bits."""

WIDE = ("bias", "peephole")
"""What is stored as it is: nothing is multiplied by rows of it."""


def round_up(size: int) -> int:
    """Returns the next multiple of a panel's width."""
    return -(-size // LANES) * LANES


def panels(matrix: Array) -> Array:
    """Returns (K, G, O) -> (panels, K, panels side by side, G, 16), zeros for units that are not
    there.

    `side_by_side` in kernels/products.hpp tells how many there are. A view of the matrix where all
    units are there.
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
    """Returns whether numbers of an array become shorter."""
    return stored != "float" and array.dtype == np.float32


def narrow_numbers(array: Array, stored: str) -> Array:
    """float32 -> the bits of ``stored``, rounded to nearest even.

    Raises `UnsupportedError` for a number that is too large for a half.
    """
    if not narrows(array, stored):
        return array
    if stored == "Half":
        with np.errstate(over="ignore"):
            half = array.astype(np.float16)
        if not np.isfinite(half).all():
            raise UnsupportedError(
                f"f16: a weight of {np.abs(array).max():.3g} is beyond 65504; use bf16"
            )
        return half
    return bfloat16_bits(array)


def pair(panels: Array) -> Array:
    """Returns (panels, K, ...) -> (panels, (K + 1) // 2, ..., 2): two rows side by side, a zero
    below.
    """
    count, k = panels.shape[:2]
    even = np.zeros((count, k + k % 2, *panels.shape[2:]), panels.dtype)
    even[:, :k] = panels
    return np.stack((even[:, ::2], even[:, 1::2]), axis=-1)


def quads(panels: Array, per_channel: bool, steps: Array | None, shift: int) -> Array:
    """Returns (panels, K, ...) -> (panels, 2 + (K + 3) // 4, ..., 4) bytes: see kernels/quads.hpp.

    Four rows side by side, in the ``steps`` of their columns, laid out as a row of the panels, or
    of each column's largest number / 127, or of the matrix'. Two rows stand before: minus the
    ``shift`` of what is multiplied times the sums of the columns, and the steps. Raises
    `UnsupportedError` for more rows than sums of 32 bits hold.
    """
    k = panels.shape[1]
    if k > MOST_ROWS:
        raise UnsupportedError(
            f"u8: sums of {k} products may not fit 32 bits, those of {MOST_ROWS} do"
        )
    if steps is None:
        factors = own_factors(panels, 1)
        if not per_channel:
            factors[:] = factors.min(initial=factors.max(initial=0))
        steps = np.reciprocal(factors)
    return quad_rows(np.rint(panels / steps[:, None]).clip(-128, 127), steps, shift)


def quad_rows(numbers: Array, step: Array, shift: int = 128) -> Array:
    """Whole numbers (panels, K, ...) and their columns' steps as `quads` stores them."""
    count, k, *rest = numbers.shape
    whole = np.zeros((count, -(-k // 4) * 4, *rest), np.int8)
    whole[:, :k] = numbers
    start = -shift * whole.sum(axis=1, dtype=np.int32)
    head = np.stack((start, step.view(np.int32)), axis=1)[..., None].view(np.int8)
    rows = np.moveaxis(whole.reshape(count, -1, 4, *rest), 2, -1)
    return np.concatenate((head, rows), axis=1)


def _coded_groups(matrix: Array) -> Iterator[tuple[Array, Array]]:
    """Yields (steps (...), codes (rows, ...)) of each `GROUP` rows of (K, ...): see
    kernels/codes.hpp.

    The largest magnitude of a column is 127 steps; codes are float32 whole numbers.
    """
    for first in range(0, len(matrix), GROUP):
        rows = matrix[first : first + GROUP]
        steps = np.maximum(np.abs(rows).max(axis=0), np.float32(1e-30)) / np.float32(127)
        yield steps, np.clip(np.rint(rows / steps), -128, 127)


def rounded_weights(weights: RnnWeights) -> RnnWeights:
    """Weights whose matrices have the numbers that codes hold of them."""
    arrays = {name: getattr(weights, name) for name in ("layer", "iter", "projection")}
    rounded = {
        name: np.concatenate([c * steps for steps, c in _coded_groups(np.moveaxis(array, 2, 0))])
        for name, array in arrays.items()
        if array is not None
    }
    return replace(weights, **{n: np.moveaxis(array, 0, 2) for n, array in rounded.items()})


def encode(panels: Array) -> Array:
    """Returns (panels, K, ..., 16) -> (panels, rows, ..., 16, 4) bytes: see kernels/codes.hpp.

    Raises `UnsupportedError` for numbers that are not finite.
    """
    if not np.isfinite(panels).all():
        raise UnsupportedError(f"{CODES}: a weight is not finite")
    matrix = np.moveaxis(panels, 1, 0)
    parts = [np.zeros((0, *matrix.shape[1:], 4), np.uint8)]
    for steps, codes in _coded_groups(matrix):
        quads = np.full((-(-len(codes) // 4) * 4, *steps.shape), 128, np.uint8)
        quads[: len(codes)] += codes.astype(np.int8).view(np.uint8)
        parts.append(steps[None, ..., None].view(np.uint8))
        parts.append(np.moveaxis(quads.reshape(-1, 4, *steps.shape), 1, -1))
    return np.moveaxis(np.concatenate(parts), 0, 1)


@dataclass
class Numbers:
    """Collects arrays, which nobody may change; equal ones stand there once.

    ``stored``: of matrices, see `STORED`, `BYTES` and `CODES`. Those that are stored as they are
    stay views of the weights until `write` packs them, one at a time.

    ``size``: bytes so far, those in front of the first array among them. ``per_channel``: see
    `quads`.
    """

    stored: str
    per_channel: bool = True
    size: int = 0
    arrays: list[tuple[int, int, Array, Callable[[Array], Array]]] = field(default_factory=list)
    """Where each begins, its bytes, and what packs which."""
    _alike: dict[Any, list[tuple[int, Array]]] = field(default_factory=dict)
    """By what packs them, type, shape and the first numbers."""

    def add(self, array: Array, *, narrow: bool = False) -> int:
        """Returns the byte where it begins."""
        if narrow:
            array = narrow_numbers(array, self.stored)
            array = pair(array) if array.dtype == np.uint16 else array
        return self._place(array, array.nbytes, np.asarray)

    def add_panels(
        self,
        matrix: Array,
        *,
        narrow: bool,
        factors: Array | None = None,
        of_rows: Scale | None = None,
    ) -> int:
        """Returns the byte where the panels of a matrix begin.

        Of bytes: ``factors`` (G, O) of its columns; ``of_rows``: the scale of what it multiplies.
        """
        if narrow and self.stored == BYTES:
            steps = None
            if factors is not None:
                steps = panels(np.reciprocal(factors, dtype=np.float32)[None])[:, 0]
                steps = np.where(steps > 0, steps, np.float32(1))  # of units that are not there
            array = quads(panels(matrix), self.per_channel, steps, int((of_rows or UNIT).shift))
            return self._place(array, array.nbytes, np.asarray)
        if narrow and self.stored == CODES:
            array = encode(panels(matrix))
            return self._place(array, array.nbytes, np.asarray)
        if narrow and narrows(matrix, self.stored):
            return self.add(panels(matrix), narrow=True)
        units = matrix.shape[2]
        return self._place(matrix, matrix.nbytes // units * round_up(units), panels)

    def _place(self, array: Array, nbytes: int, pack: Callable[[Array], Array]) -> int:
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
        """All arrays, into ``size`` bytes."""
        for at, nbytes, array, pack in self.arrays:
            packed = pack(array)
            target[at : at + nbytes].view(packed.dtype).reshape(packed.shape)[...] = packed


def check_bytes(spec: RnnSpec, real: np.dtype[Any], dtype: str = "u8") -> None:
    """Raises `UnsupportedError` for layers that bytes would get wrong."""
    if real == np.float64:
        raise UnsupportedError(f"{dtype} computes from float32 weights, these are float64")
    if any(complete(function)[0] == "thresholdedrelu" for function in spec.functions):
        raise UnsupportedError(f"{dtype}: thresholdedrelu hides what was not finite")


def kernel_of(cell: Cell) -> str:
    """Returns the kernel of a cell: the header that it stands in."""
    if cell.is_gru:
        return "lbr_gru" if cell.linear_before_reset else "gru"
    return "lstm" if len(cell.states) == 2 else "rnn"


class CellMatrices(NamedTuple):
    """What the kernels' CellWeights hold, in that order, as (K, G, O); None where absent."""

    bias: Array
    input: Array | None
    recurrent: Array
    candidate: Array | None
    peephole: Array | None
    projection: Array | None

    @classmethod
    def of(cls, cell: Cell, weights: RnnWeights) -> CellMatrices:
        """``weights``: of one layer and direction."""
        recurrent, candidate = weights.iter[0, 0], None
        if kernel_of(cell) == "gru":  # the candidate waits for the reset gate
            recurrent, candidate = recurrent[:, :2], recurrent[:, 2:]
        bias = np.zeros((1, cell.bias_rows, recurrent.shape[2]), recurrent.dtype)
        if weights.bias is not None:
            bias = weights.bias[0]
        peephole, projection = weights.peephole, weights.projection
        return cls(
            bias,
            None if weights.layer is None else weights.layer[0, 0],
            recurrent,
            candidate,
            None if peephole is None else peephole[0],
            None if projection is None else projection[0, 0][:, None],
        )

    def pack(self, numbers: Numbers, scales: PartScales = NO_SCALES) -> dict[str, int | None]:
        """Where each begins, by its name; ``scales``: of bytes."""
        of_h, factors = scales.iter, scales.projection
        split = self.candidate is not None  # of a GRU's gates
        rows = {
            "input": (scales.layer, scales.data),
            "recurrent": (of_h[:2] if split and of_h is not None else of_h, scales.state),
            "candidate": (of_h[2:] if split and of_h is not None else None, scales.state),
            "projection": (None if factors is None else factors[None], None),
        }
        places: dict[str, int | None] = {}
        for name, matrix in self._asdict().items():
            factors, of_rows = rows.get(name, (None, None))
            places[name] = (
                None
                if matrix is None
                else numbers.add_panels(
                    matrix, narrow=name not in WIDE, factors=factors, of_rows=of_rows
                )
            )
        return places
