"""The numbers of a recurrent layer, in oneDNN's canonical layouts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from onernn.ir.arrays import Array, frozen, sealed
from onernn.ir.cached import cached_property
from onernn.ir.errors import ShapeError, UnsupportedError
from onernn.ir.pickling import Immutable
from onernn.ir.records import dataclass
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
            array = np.asarray(array)
            if array.dtype != dtype:
                raise ShapeError(
                    f"weights {field.name}: expected {dtype} as weights iter, got {array.dtype}"
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
        """From layer (L, D, G, O, I) and iter (L, D, G, O, R) in ldgoi, projection in ldoi.

        The projection is (L, D, R, O) there; bias and peephole are the same in both. Raises
        `ShapeError` naming the array.
        """
        given = {"layer": layer, "iter": iter, "projection": projection}
        axes = {"layer": (0, 1, 4, 2, 3), "iter": (0, 1, 4, 2, 3), "projection": (0, 1, 3, 2)}
        turned: dict[str, Any] = {}
        for name, array in given.items():
            if array is not None and np.ndim(array) != _RANKS[name]:
                expected, got = _RANKS[name], np.shape(array)
                raise ShapeError(f"weights {name}: expected {expected} axes, got {got}")
            turned[name] = None if array is None else np.transpose(array, axes[name])
        return cls(**turned, bias=bias, peephole=peephole)

    def check(self, spec: RnnSpec) -> None:
        """Nothing, or `ShapeError` naming the first array that does not fit ``spec``."""
        stack = (spec.layers, spec.directions)
        units, width, gates = spec.hidden_size, spec.recurrent_size, spec.gates
        expected = {
            "layer": (*stack, spec.input_size, gates, units),
            "iter": (*stack, width, gates, units),
            "bias": (*stack, spec.cell.bias_rows, units),
            "peephole": (*stack, 3, units) if spec.peephole else None,
            "projection": (*stack, units, width) if spec.projection_size else None,
        }
        for name, shape in expected.items():
            array = getattr(self, name)
            if array is None and (name in ("layer", "bias") or shape is None):
                continue
            if array is None or shape is None or array.shape != shape:
                got = "none" if array is None else array.shape
                raise ShapeError(f"weights {name}: expected {shape or 'none'}, got {got}")
        if self.layer is None and spec.input_size != gates * units:
            raise ShapeError(
                f"input_size: an input that is projected already has G*O = {gates * units}"
                f" channels, got {spec.input_size}"
            )

    def of_layer(self, layer: int) -> RnnWeights:
        """The weights of one layer: (1, D, ...) views."""
        return self._at(layer)

    def part(self, layer: int, direction: int) -> RnnWeights:
        """The weights of one layer and direction: (1, 1, ...) views."""
        return self._at(layer, direction)

    def _at(self, *place: int) -> RnnWeights:
        stack = self.iter.shape[:2]
        if not all(0 <= index < count for index, count in zip(place, stack, strict=False)):
            raise IndexError(f"weights of {stack} layers and directions have no part {place}")
        at = tuple(slice(index, index + 1) for index in place)
        return self.mapped(lambda array: array[at])

    @property
    def arrays(self) -> dict[str, Array]:
        """Those that are there, by name."""
        found = ((field.name, getattr(self, field.name)) for field in fields(self))
        return {name: array for name, array in found if array is not None}

    @cached_property
    def infinite(self) -> str:
        """Which array has numbers that are not finite, "" where all are.

        Nothing a layer gives would be a number, and some kernels make 0 of NaN.
        """
        for name, array in self.arrays.items():
            with np.errstate(all="ignore"):
                if np.isfinite(array.sum()):  # what is not finite makes a sum that is not, either
                    continue
            if bad := array.size - int(np.count_nonzero(np.isfinite(array))):
                return (
                    f"weights {name}: expected finite numbers, {bad} of {array.size} are not:"
                    " did its training diverge?"
                )
        return ""

    @classmethod
    def joined(cls, parts: Sequence[RnnWeights], axis: int) -> RnnWeights:
        """Layers (axis 0) or directions (axis 1) as one. Raises `ShapeError` naming an array."""
        if len(parts) == 1:
            return parts[0]
        arrays = [part.arrays for part in parts]
        for other in arrays:
            if differing := arrays[0].keys() ^ other.keys():
                which = ("layers", "directions")[axis]
                raise ShapeError(f"only some {which} have {', '.join(sorted(differing))} weights")
            for name, array in other.items():
                if (np.delete(arrays[0][name].shape, axis) != np.delete(array.shape, axis)).any():
                    raise ShapeError(f"weights {name}: {arrays[0][name].shape} and {array.shape}")
        whole: Any = {
            name: sealed(np.concatenate([each[name] for each in arrays], axis))
            for name in arrays[0]
        }
        return cls(**{"layer": None, **whole})

    def mapped(self, function: Callable[[Array], Array]) -> RnnWeights:
        """The weights with each array replaced by what the function makes of it."""
        made: Any = {name: function(array) for name, array in self.arrays.items()}
        return RnnWeights(**{"layer": None, **made})


class Layers(tuple[RnnWeights, ...]):
    """One-layer weights (1, D, ...) for each layer of a stack, checked."""

    @cached_property
    def packed(self) -> dict[Any, Any]:
        """What a backend made of them, by its own key: it finds that again."""
        return {}


Weights = RnnWeights | Sequence[RnnWeights]


def layers_of(spec: RnnSpec, weights: Weights) -> Layers:
    """The weights of each layer of a stack, checked.

    A list holds the layers one by one, and may differ in their input sizes; one `RnnWeights` of
    L > 1 layers cannot, so its input size must be what a layer hands to the next. Raises
    `ShapeError`, and `UnsupportedError` for weights that are not finite.
    """
    for one in (weights,) if isinstance(weights, RnnWeights) else weights:
        if one.infinite:
            raise UnsupportedError(one.infinite)
    handed_on = spec.reads(1)
    if spec.stacking == "onednn" and spec.layers > 1 and spec.input_size != handed_on:
        raise ShapeError(
            "input_size: stacking='onednn' needs src_layer = dst_layer in every direction,"
            f" {handed_on} channels, got {spec.input_size}; stacking='framework' does not"
        )
    if isinstance(weights, RnnWeights):
        weights.check(spec)
        if spec.layers > 1 and spec.input_size != handed_on:
            raise ShapeError(
                f"input_size: layers of one array need src_layer = dst_layer, {handed_on} channels,"
                f" got {spec.input_size}; give the layers as a list of one-layer weights"
            )
        return Layers(weights.of_layer(layer) for layer in range(spec.layers))
    if len(weights) != spec.layers:
        raise ShapeError(f"weights: expected {spec.layers} layers, got {len(weights)}")
    for layer, one in enumerate(weights):
        if one.iter.dtype != weights[0].iter.dtype:
            expected, got = weights[0].iter.dtype, one.iter.dtype
            raise ShapeError(f"weights: layer 0 is {expected}, layer {layer} is {got}")
        one.check(spec.one_layer(spec.reads(layer), spec.direction))
    return weights if isinstance(weights, Layers) else Layers(weights)
