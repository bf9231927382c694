"""Checks the inputs of a model and converts them to the dtypes that the model declares."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from onernn.ir.arrays import Array
from onernn.ir.errors import ShapeError, did_you_mean
from onernn.ir.graph import Graph, Value, sizes_by_name
from onernn.ir.ragged import Ragged, as_array, convert, data_of
from onernn.ir.types import Counts

Feed = Mapping[str, Ragged | Array]


def check_feed(expected: tuple[Value, ...], inputs: Feed) -> dict[str, Ragged | Array]:
    """Returns the inputs in the dtypes that the model declares (`onernn.ir.ragged.convert`).

    Raises `ShapeError` naming an input that does not fit, or two inputs in which one named size
    differs.
    """
    _check_names(inputs)
    names = [value.name for value in expected]
    missing = [name for name in names if name not in inputs]
    unknown = [name for name in inputs if name not in names]
    if missing or unknown:
        wrong = (("missing", missing), ("unknown", unknown))
        what = " and ".join(f"{how} {which}" for how, which in wrong if which)
        hint = did_you_mean(unknown[0], names) if unknown else ""
        raise ShapeError(f"inputs: {what}; the model takes {'; '.join(map(str, expected))}{hint}")
    feed = {value.name: _check_value(value, inputs[value.name]) for value in expected}
    if any(value.names for value in expected):
        sizes_by_name(expected, {name: data_of(value).shape for name, value in feed.items()})
    return feed


def check_given(graph: Graph, given: Feed) -> dict[str, Array]:
    """Returns the arrays given for some of the graph's inputs, in the dtypes that the graph
    declares.
    """
    _check_names(given)
    named = tuple(value for value in graph.inputs if value.name in given)
    return {name: data_of(value) for name, value in check_feed(named, given).items()}


def _check_names(inputs: Any) -> None:
    if not isinstance(inputs, Mapping):
        hint = (
            "; Session.run takes run(inputs), and the drop-in"
            " onernn.adapters.onnx.InferenceSession takes run(output_names, inputs)"
        )
        raise ShapeError(
            f"inputs: expected a dict of arrays by name, got {type(inputs).__name__}"
            f"{hint if inputs is None or isinstance(inputs, list) else ''}"
        )
    for name in inputs:
        if not isinstance(name, str):
            raise ShapeError(f"inputs: expected names as keys, got {name!r}")


def _check_value(expected: Value, given: Ragged | Array) -> Ragged | Array:
    if expected.lod_depth and not isinstance(given, Ragged):
        raise ShapeError(
            f"input {expected.name!r} is ragged: expected onernn.Ragged(data, offsets)"
            f" (in an .npz: lod__{expected.name}), got a plain array"
        )
    if isinstance(given, Ragged):
        if not expected.lod_depth:
            raise ShapeError(f"input {expected.name!r} is dense: expected an array, got Ragged")
        if len(given.outer) + 1 != expected.lod_depth:
            raise ShapeError(
                f"input {expected.name!r}: expected {expected.lod_depth} LoD levels,"
                f" got {len(given.outer) + 1}"
            )
        return given.with_data(_check_array(expected, given.data))
    is_array = type(given) is np.ndarray  # skips the slow text for messages
    return _check_array(
        expected, given if is_array else as_array(given, f"input {expected.name!r}")
    )


def _check_array(expected: Value, array: Array) -> Array:
    if expected.shape is not None and (wrong := _misfit(expected.shape, array.shape)):
        raise ShapeError(f"input {expected}: got {array.dtype} {array.shape}; {wrong}")
    for axis, (least, most) in expected.ranges.items():
        if not least <= array.shape[axis] <= most:
            got = f"{array.shape[axis]}, the model takes {least} to {most}"
            raise ShapeError(f"input {expected}: axis {axis} is {got}")
    if expected.dtype is None:
        if array.dtype.kind not in "biuf":
            raise ShapeError(f"input {expected}: expected numbers, got {array.dtype}")
        return array
    if array.dtype == expected.dtype:
        return array
    return convert(array, expected.dtype, f"input {expected}")


def _misfit(expected: Counts, shape: tuple[int, ...]) -> str:
    if len(expected) != len(shape):
        return f"expected {len(expected)} axes, got {len(shape)}"
    for axis, (size, got) in enumerate(zip(expected, shape, strict=True)):
        if size not in (None, got):
            return f"axis {axis}: expected {size}, got {got}"
    return ""
