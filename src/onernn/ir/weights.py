"""The weights of a recurrent layer, in oneDNN's canonical layouts, and its precision."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, Final

import numpy as np

from onernn.ir.arrays import Array, frozen, seal
from onernn.ir.errors import ShapeError, UnsupportedError
from onernn.ir.ragged import as_array
from onernn.ir.records import Immutable, NamedTuple, Renamed, cached_property, dataclass
from onernn.ir.spec import RnnSpec

_RANKS = {"layer": 5, "iter": 5, "bias": 4, "peephole": 4, "projection": 4}


@dataclass(frozen=True, eq=False)
class RnnWeights(Immutable):
    """Read-only float32 (or float64) arrays of L layers and D directions.

    ============  ===============  =====================================================
    layer         (L, D, I, G, O)  ldigo; None: the input is projected already
    iter          (L, D, R, G, O)  ldigo; R is the recurrent width
    bias          (L, D, G', O)    ldgo; LBR cells have one row more; None: zeros
    peephole      (L, D, 3, O)     ldgo, gates i, f, o
    projection    (L, D, O, R)     ldio
    ============  ===============  =====================================================

    Writable arguments are copied. Raises `ShapeError` naming the array.

    >>> layer, iter = np.ones((1, 1, 2, 3, 5), "f4"), np.ones((1, 1, 5, 3, 5), "f4")
    >>> weights = onernn.RnnWeights(layer, iter)
    >>> weights.check(onernn.RnnSpec(onernn.Cell.GRU, input_size=2, hidden_size=5))
    >>> {name: array.shape for name, array in weights.arrays.items()}
    {'layer': (1, 1, 2, 3, 5), 'iter': (1, 1, 5, 3, 5)}
    """

    layer: Array | None
    iter: Array
    bias: Array | None = None
    peephole: Array | None = None
    projection: Array | None = None

    def __post_init__(self) -> None:
        dtype = np.asarray(self.iter).dtype
        if dtype not in (np.float32, np.float64):
            raise ShapeError(f"weights iter: expected float32 or float64, got {dtype}")
        for field in fields(self):
            array = getattr(self, field.name)
            if array is None and field.name != "iter":
                continue
            array = as_array(array, f"weights {field.name}")
            if array.dtype != dtype:
                raise ShapeError(
                    f"weights {field.name}: expected {dtype}, the dtype of weights iter, got"
                    f" {array.dtype}"
                )
            if array.ndim != _RANKS[field.name]:
                raise ShapeError(
                    f"weights {field.name}: expected {_RANKS[field.name]} axes, got {array.shape}"
                )
            object.__setattr__(self, field.name, frozen(array))

    @classmethod
    def from_ldgoi(
        cls,
        layer: Array | None,
        iter: Array,
        bias: Array | None = None,
        peephole: Array | None = None,
        projection: Array | None = None,
    ) -> RnnWeights:
        """Returns weights from layer (L, D, G, O, I), iter (L, D, G, O, R) and projection (L, D, R,
        O).

        oneDNN calls these layouts ldgoi and ldoi; bias and peephole are not reordered. Raises
        `ShapeError` naming the array.
        """

        def turn(array: Any) -> Any:
            return array if np.ndim(array) < 3 else np.moveaxis(np.asarray(array), -1, 2)

        return cls(turn(layer), turn(iter), bias, peephole, turn(projection))

    def check(self, spec: RnnSpec) -> None:
        """Raises `ShapeError` naming the first array that does not fit ``spec``."""
        for name, shape in shapes_of(spec).items():
            array = getattr(self, name)
            if array is None and (name in ("layer", "bias") or shape is None):
                continue
            if array is None or array.shape != shape:
                got = "none" if array is None else array.shape
                raise ShapeError(f"weights {name}: expected {shape or 'none'}, got {got}")
        channels = spec.gates * spec.hidden_size
        if self.layer is None and spec.input_size != channels:
            raise ShapeError(
                f"input_size: expected G*O = {channels} for an input that is already projected,"
                f" got {spec.input_size}"
            )

    def of_layer(self, layer: int) -> RnnWeights:
        """Returns the weights of one layer: (1, D, ...) views. Raises `IndexError`."""
        return self._at(layer)

    def part(self, layer: int, direction: int) -> RnnWeights:
        """Returns the weights of a layer and direction: (1, 1, ...) views. Raises `IndexError`."""
        return self._at(layer, direction)

    def _at(self, *place: int) -> RnnWeights:
        stack = self.iter.shape[:2]
        if not all(0 <= index < count for index, count in zip(place, stack, strict=False)):
            raise IndexError(f"part {place}: expected indices below (layers, directions) = {stack}")
        at = tuple(slice(index, index + 1) for index in place)
        return self.map(lambda array: array[at])

    @property
    def arrays(self) -> dict[str, Array]:
        """The arrays that are not None, by name."""
        result = ((field.name, getattr(self, field.name)) for field in fields(self))
        return {name: array for name, array in result if array is not None}

    @cached_property
    def infinite(self) -> str:
        """The name of an array with values that are not finite, "" if all are finite.

        A layer with such weights would not output valid numbers, and some kernels turn NaN into 0.
        """
        for name, array in self.arrays.items():
            with np.errstate(all="ignore"):
                if np.isfinite(array.sum()):  # the sum is finite only if all values are finite
                    continue
            if bad := array.size - int(np.count_nonzero(np.isfinite(array))):
                return (
                    f"weights {name}: expected finite numbers, {bad} of {array.size} are not:"
                    " did its training diverge?"
                )
        return ""

    @classmethod
    def join(cls, parts: Sequence[RnnWeights], axis: int) -> RnnWeights:
        """Returns the joined weights of layers (axis 0) or directions (axis 1). Raises `ShapeError`
        naming an array that does not fit.
        """
        if len(parts) == 1:
            return parts[0]
        arrays = [part.arrays for part in parts]
        for other in arrays:
            if differing := arrays[0].keys() ^ other.keys():
                which = ("layers", "directions")[axis]
                names = ", ".join(sorted(differing))
                raise ShapeError(f"weights {names}: expected in all {which}, or in none")
            for name, array in other.items():
                if (np.delete(arrays[0][name].shape, axis) != np.delete(array.shape, axis)).any():
                    shapes = f"{arrays[0][name].shape} and {array.shape}"
                    raise ShapeError(f"weights {name}: expected equal shapes, got {shapes}")
        whole: Any = {
            name: seal(np.concatenate([each[name] for each in arrays], axis)) for name in arrays[0]
        }
        return cls(**{"layer": None, **whole})

    def map(self, function: Callable[[Array], Array]) -> RnnWeights:
        """Returns the weights with the function applied to each array."""
        result: Any = {name: function(array) for name, array in self.arrays.items()}
        return RnnWeights(**{"layer": None, **result})

    joined, mapped = Renamed("join"), Renamed("map")


def shapes_of(spec: RnnSpec) -> dict[str, tuple[int, ...] | None]:
    """Returns the shape of each array of a layer, by its name in `RnnWeights`; None: the layer does
    not have it.
    """
    stack, units, width = (spec.layers, spec.directions), spec.hidden_size, spec.recurrent_size
    return {
        "layer": (*stack, spec.input_size, spec.gates, units),
        "iter": (*stack, width, spec.gates, units),
        "bias": (*stack, spec.cell.bias_rows, units),
        "peephole": (*stack, 3, units) if spec.peephole else None,
        "projection": (*stack, units, width) if spec.projection_size else None,
    }


class Layers(tuple[RnnWeights, ...]):
    """The checked weights of a stack: one `RnnWeights` (1, D, ...) for each layer."""

    @cached_property
    def packed(self) -> dict[Any, Any]:
        """A cache for packed weights; each backend chooses its own keys."""
        return {}


Weights = RnnWeights | Sequence[RnnWeights]


def layers_of(spec: RnnSpec, weights: Weights) -> Layers:
    """Returns the weights of each layer of a stack, checked.

    The layers of a list may differ in their input sizes. One `RnnWeights` of L > 1 layers has one
    input size, which must equal the output size of a layer. Raises `ShapeError`, and
    `UnsupportedError` for weights that are not finite.
    """
    for one in (weights,) if isinstance(weights, RnnWeights) else weights:
        if one.infinite:
            raise UnsupportedError(one.infinite)
    handed_on = spec.reads(1)
    if spec.stacking == "onednn" and spec.layers > 1 and spec.input_size != handed_on:
        raise ShapeError(
            "input_size: expected src_layer = dst_layer in every direction for stacking='onednn',"
            f" {handed_on} channels, got {spec.input_size}; use stacking='framework'"
        )
    if isinstance(weights, RnnWeights):
        weights.check(spec)
        if spec.layers > 1 and spec.input_size != handed_on:
            raise ShapeError(
                f"input_size: expected src_layer = dst_layer for layers of one array, {handed_on}"
                f" channels, got {spec.input_size}; pass the layers as a list of one-layer weights"
            )
        return Layers(weights.of_layer(layer) for layer in range(spec.layers))
    if len(weights) != spec.layers:
        raise ShapeError(f"weights: expected {spec.layers} layers, got {len(weights)}")
    for layer, one in enumerate(weights):
        if one.iter.dtype != weights[0].iter.dtype:
            expected, got = weights[0].iter.dtype, one.iter.dtype
            raise ShapeError(f"weights: expected {expected}, as layer 0 is, got {got} in {layer}")
        one.check(spec.one_layer(spec.reads(layer), spec.direction))
    return weights if isinstance(weights, Layers) else Layers(weights)


# The precision of one recurrent layer of a graph, if it differs from the session's.


class Scale(NamedTuple):
    """The quantization of x to a byte q = x * factor + shift, rounded half to even, and saturated.

    This is oneDNN's data scale and shift (RNN developer guide, rnn_data_qparams). QuantizeLinear
    has the scale 1 / factor and the zero point ``shift``.
    """

    factor: float
    shift: float


UNIT: Final = Scale(127.0, 128.0)
"""The scale of [-1, 1], the range of every state of an LSTM or GRU without projection."""


@dataclass(frozen=True, eq=False)
class PartScales(Immutable):
    """The scales of one layer in one direction. The kernel computes a scale that is None from the
    values.

    ``data`` is the scale of the input. ``state`` is the scale of h, after the projection if there
    is one. The other fields hold one float32 factor for each output channel, so that w * factor is
    int8: ``layer`` and ``iter`` (G, O), ``projection`` (R,). Raises `ShapeError` for a scale that
    is not positive and finite, and for a shift that is not an integer from 0 to 255.
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
                raise ShapeError(f"scales of weights {name}: expected positive, finite values")
            object.__setattr__(self, name, frozen(factors))

    def check(self, spec: RnnSpec, part: str) -> None:
        """Raises `ShapeError` naming scales of weights that do not have the cell's shape."""
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
    """Returns 127 / max |matrix| along an axis as float32, the factors that kernels use for
    weights.
    """
    largest = np.abs(matrix).max(axis=axis, initial=1e-30)
    return np.asarray(127 / largest, np.float32)


class PartViews(NamedTuple):
    """Views of one layer's weights in one direction in a framework's memory; each call reads them.

    ``input`` and ``recurrent``: for each gate in oneDNN's order a view (I, O) or (R, O); the views
    of a matrix have the same strides. ``bias``: for each row of the canonical bias the arrays (O,)
    that are added up, at most two. ``projection``: (O, R).
    """

    input: Sequence[Array]
    recurrent: Sequence[Array]
    bias: Sequence[Sequence[Array]]
    projection: Array | None = None


@dataclass(frozen=True, eq=False)
class LayerPrecision(Immutable):
    """The precision in which a recurrent node computes.

    ``dtype``: as in `Session`; "" means the session's own. ``parts``: for u8 the scales of each
    layer and direction, in the order of `ir.rnn.parts`; () if the kernel computes all of them. The
    scales are valid only for the node's inputs and weights. A pass that changes these must remove
    the precision, or must not be applied.
    """

    dtype: str = ""
    parts: tuple[PartScales, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "parts", tuple(self.parts))
        if self.parts and self.dtype != "u8":
            raise ShapeError(f"scales: expected only with dtype 'u8', got {self.dtype!r}")

    def __bool__(self) -> bool:
        """Returns whether the node has a precision of its own."""
        return bool(self.dtype)

    @property
    def is_narrow(self) -> bool:
        """Whether matrix products round their operands. If so, passes must not change the layer's
        input.
        """
        return self.dtype not in ("", "f32", "f64")

    def check(self, spec: RnnSpec) -> None:
        """Raises `ShapeError` unless there is one part for each layer and direction."""
        expected = spec.layers * spec.directions
        if self.parts and len(self.parts) != expected:
            raise ShapeError(
                f"precision: expected scales of {spec.layers} layers in {spec.directions}"
                f" directions, {expected} parts, got {len(self.parts)}"
            )
        for index, part in enumerate(self.parts):
            layer, direction = divmod(index, spec.directions)
            part.check(spec, f"layer {layer}, direction {direction}")

    def refuse(self, who: str) -> None:
        """Raises `UnsupportedError` if a precision is set, because ``who`` (a name for the message)
        cannot express it.
        """
        if self.dtype:
            raise UnsupportedError(
                f"{who} cannot store that this layer computes in {self.dtype}; pass the model from"
                " which it was quantized"
            )

    def of(self, first: int, count: int = 1) -> LayerPrecision:
        """Returns the precision of ``count`` parts of a stack, from index ``first`` on."""
        return LayerPrecision(self.dtype, self.parts[first : first + count])


OWN: Final = LayerPrecision()
"""The precision of a node that uses the session's precision."""


def join(*each: LayerPrecision) -> LayerPrecision | None:
    """Returns one precision for consecutive parts of a stack.

    Returns None if they compute in different dtypes, or if only some of them have scales.
    """
    if len({(one.dtype, bool(one.parts)) for one in each}) > 1:
        return None
    return LayerPrecision(each[0].dtype, tuple(part for one in each for part in one.parts))
