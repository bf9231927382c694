"""The precision that a file tells of an RNN, GRU or LSTM, where the numbers around fit it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from onernn.adapters.lowering import GraphBuilder
from onernn.adapters.onnx.precision import KEY, decoded
from onernn.adapters.onnx.read import Model
from onernn.core.arrays import Array
from onernn.core.errors import ShapeError
from onernn.core.precision import OWN, LayerPrecision, Scale
from onernn.core.spec import RnnSpec
from onernn.core.weights import RnnWeights


class ToldPrecisions:
    """What a file's metadata tells of layers, by their first outputs, and what came of it."""

    def __init__(self, told: Mapping[str, LayerPrecision], note: str = "") -> None:
        self._left, self._notes = dict(told), [note] if note else []

    @classmethod
    def of(cls, model: Model) -> ToldPrecisions:
        """Raises `ModelFormatError` for metadata that are damaged."""
        text = model.metadata.get(KEY)
        return cls({}) if text is None else cls(*decoded(text, model.file))

    def notes(self) -> list[str]:
        """Why layers run in other numbers than the file tells."""
        none = "there is no such layer, its precision is left aside"
        return self._notes + [f"metadata {KEY}: {name!r:.80}: {none}" for name in self._left]

    def take(
        self, builder: GraphBuilder, name: str, x: str, spec: RnnSpec, weights: RnnWeights
    ) -> tuple[str, LayerPrecision]:
        """What a layer reads and its precision; x itself where it has none of its own.

        Bytes are made inside of the layer: it reads what the file rounds in front of it.
        """
        told = self._left.pop(name, OWN)
        try:
            return _rounded_in(builder, x, spec, weights, told), told
        except ShapeError as error:
            self._notes.append(
                f"metadata {KEY}: {name!r:.80}: {error}; the layer computes as the session says"
            )
            return x, OWN


def _rounded_in(
    builder: GraphBuilder, x: str, spec: RnnSpec, weights: RnnWeights, told: LayerPrecision
) -> str:
    """What is rounded in front of a layer. Raises `ShapeError` where numbers are not those told."""
    told.check(spec)
    if not told.parts:
        return x  # what is not told the kernel finds
    for d, part in enumerate(told.parts):
        for role in ("layer", "iter"):
            factors, matrix = getattr(part, role), getattr(weights, role)
            if factors is None or not _holds(matrix[0, d], factors):
                raise ShapeError("the weights are not in its steps")
    (data, *others) = {part.data for part in told.parts}
    if others:
        raise ShapeError("one input is rounded in two ways")
    return x if data is None else _behind(builder, x, data)


def _holds(matrix: Array, factors: Array) -> bool:
    """Whether signed bytes hold the numbers of a matrix (K, G, O), to the last bit."""
    steps = np.reciprocal(factors, dtype=np.float32)
    whole = np.rint(matrix / steps).clip(-128, 127)
    return np.array_equal(whole * steps, matrix)


def _behind(builder: GraphBuilder, x: str, scale: Scale) -> str:
    """What QuantizeLinear and DequantizeLinear make x of, by this scale."""
    known: list[Array] = [np.array(1 / scale.factor, np.float32), np.array(scale.shift, np.uint8)]
    for kind in ("DequantizeLinear", "QuantizeLinear"):
        node = builder.maker(x)
        found = [] if node is None else [builder.constants.get(name) for name in node.inputs[1:]]
        same = len(found) == 2 and all(
            number is not None and (number.dtype, number.size) == (want.dtype, 1) and number == want
            for number, want in zip(found, known, strict=True)
        )
        if node is None or node.op != kind or not same:
            raise ShapeError("the input is not rounded by its scale")
        x = node.inputs[0]
    return x
