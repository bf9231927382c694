"""In which numbers one recurrent layer of a graph computes, where not in those of the session."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np

from onernn.ir.arrays import Array, frozen
from onernn.ir.errors import ShapeError, UnsupportedError
from onernn.ir.pickling import Immutable
from onernn.ir.records import dataclass
from onernn.ir.spec import RnnSpec


class Scale(NamedTuple):
    """A byte q = x * factor + shift, rounded to the nearest, halves to even, and saturated.

    oneDNN's data scale and shift (RNN developer guide, rnn_data_qparams). QuantizeLinear has the
    scale 1 / factor and the zero point ``shift``.
    """

    factor: float
    shift: float


UNIT: Final = Scale(127.0, 128.0)
"""[-1, 1], where every state of an LSTM or GRU without projection lies."""


@dataclass(frozen=True, eq=False)
class PartScales(Immutable):
    """The scales of one layer in one direction; None: of its own numbers, as the kernel finds them.

    ``data``: of the input; ``state``: of h, that of a projection where there is one.
    Weights are signed bytes w * factor, by output channel: ``layer`` and ``iter`` (G, O),
    ``projection`` (R,), float32. Raises `ShapeError` for a scale that is not positive and finite,
    and a shift that is no whole number from 0 to 255.
    """

    data: Scale | None = None
    state: Scale | None = None
    layer: Array | None = None
    iter: Array | None = None
    projection: Array | None = None

    def __post_init__(self) -> None:
        for name in ("data", "state"):
            given = getattr(self, name)
            if given is None:
                continue
            scale = Scale(*map(float, given))
            if not 0 < scale.factor < math.inf or scale.shift not in range(256):
                raise ShapeError(
                    f"scale of {name}: expected a positive factor and a shift of 0 to 255,"
                    f" got {scale.factor:g} and {scale.shift:g}"
                )
            object.__setattr__(self, name, scale)
        for name in ("layer", "iter", "projection"):
            factors = getattr(self, name)
            if factors is None:
                continue
            factors = np.asarray(factors, np.float32)
            if not (np.isfinite(factors) & (factors > 0)).all():
                raise ShapeError(f"scales of weights {name}: expected positive, finite numbers")
            object.__setattr__(self, name, frozen(factors))

    def check(self, spec: RnnSpec, part: str) -> None:
        """Raises `ShapeError` naming scales of weights that are not of a cell's shape."""
        rows = (spec.gates, spec.hidden_size)
        expected = {"layer": rows, "iter": rows, "projection": (spec.projection_size,)}
        for name, shape in expected.items():
            factors = getattr(self, name)
            if factors is not None and factors.shape != shape:
                raise ShapeError(
                    f"{part}: scales of weights {name}: expected {shape}, got {factors.shape}"
                )


NO_SCALES: Final = PartScales()


def own_factors(matrix: Array, axis: int) -> Array:
    """127 / the largest number along an axis, float32: what a kernel finds for each column."""
    largest = np.abs(matrix).max(axis=axis, initial=1e-30)
    return np.asarray(127 / largest, np.float32)


@dataclass(frozen=True, eq=False)
class LayerPrecision(Immutable):
    """How a recurrent node computes: ``dtype`` as in `Session`, "" for the session's own.

    ``parts``: in u8 the scales of each layer and direction, in the order of `ir.rnn.parts`;
    () where the kernel finds all of them. They belong to what the node reads and to its weights:
    who changes one of these drops the node's precision or refuses.
    """

    dtype: str = ""
    parts: tuple[PartScales, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "parts", tuple(self.parts))
        if self.parts and self.dtype != "u8":
            raise ShapeError(f"scales belong to dtype 'u8', not to {self.dtype!r}")

    def __bool__(self) -> bool:
        """Whether it says anything."""
        return bool(self.dtype)

    @property
    def is_narrow(self) -> bool:
        """Whether the numbers that products read are rounded: then the input may not change."""
        return self.dtype not in ("", "f32", "f64")

    def check(self, spec: RnnSpec) -> None:
        """Raises `ShapeError` where there is not one part for each layer and direction."""
        expected = spec.layers * spec.directions
        if self.parts and len(self.parts) != expected:
            raise ShapeError(
                f"precision: expected scales of {spec.layers} layers in {spec.directions}"
                f" directions, {expected} parts, got {len(self.parts)}"
            )
        for at, part in enumerate(self.parts):
            layer, direction = divmod(at, spec.directions)
            part.check(spec, f"layer {layer}, direction {direction}")

    def refuse(self, who: str) -> None:
        """Raises `UnsupportedError` where it says anything and ``who`` cannot say that."""
        if self.dtype:
            raise UnsupportedError(
                f"{who} cannot say that this layer computes in {self.dtype}; give the model from"
                " which it was quantized"
            )

    def of(self, first: int, count: int = 1) -> LayerPrecision:
        """That of ``count`` parts from the ``first`` on."""
        return LayerPrecision(self.dtype, self.parts[first : first + count])


OWN: Final = LayerPrecision()
"""Of a node that computes as the session says."""


def joined(*each: LayerPrecision) -> LayerPrecision | None:
    """The precision of parts that follow each other.

    None where they compute in different dtypes, or only some of them have scales.
    """
    if len({(one.dtype, bool(one.parts)) for one in each}) > 1:
        return None
    return LayerPrecision(each[0].dtype, tuple(part for one in each for part in one.parts))
