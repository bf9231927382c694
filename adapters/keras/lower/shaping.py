"""The rules of dense layers, and of those that give values another shape.

Formulas: documentation of keras.layers of these names.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onernn.adapters.keras.lower import activations
from onernn.adapters.keras.lower.layer import PASSING, KerasLayer, Made, Tensor, rule
from onernn.adapters.keras.read import inner_layer
from onernn.core.errors import UnsupportedError


@rule("Dense", masks=True)
def _dense(op: KerasLayer) -> str:
    units = op.integer("units")
    kernel, *bias = op.weights("kernel", *["bias"] * op.flag("use_bias", True))
    if kernel.ndim != 2 or kernel.shape[1] != units:
        raise UnsupportedError(f"kernel: expected (I, {units}), got {kernel.shape}")
    y = op.emit("MatMul", op.floats, op.constant(kernel, "kernel"))
    for array in bias:
        y = op.emit("Add", y, op.constant(array, "bias"))
    return activations.apply(op, y, op.attribute("activation", None))


@rule("EinsumDense")
def _einsum(op: KerasLayer) -> str:
    axes = op.attribute("bias_axes", "")
    op.attribute("output_shape", None)
    kernel, *bias = op.weights("kernel", *["bias"] * bool(axes))
    equation = op.attribute("equation", "")
    y = op.emit("Einsum", op.floats, op.constant(kernel, "kernel"), equation=equation)
    for array in bias:
        y = op.emit("Add", y, op.constant(array, "bias"))
    return activations.apply(op, y, op.attribute("activation", None))


@rule("Flatten")
def _flatten(op: KerasLayer) -> str:
    x = op.x
    if op.attribute("data_format", "channels_last") == "channels_first" and op.rank(x) > 2:
        x = op.channels_last(x)
    return op.emit("Reshape", x, op.ints(0, -1))


@rule("Reshape")
def _reshape(op: KerasLayer) -> str:
    target: Any = op.attribute("target_shape", [])
    if not all(type(size) is int and (size > 0 or size == -1) for size in target):
        raise UnsupportedError(f"attribute target_shape={target!r}")
    return op.emit("Reshape", op.x, op.ints(0, *target))


@rule("Permute")
def _permute(op: KerasLayer) -> str:
    dims: Any = op.attribute("dims", [])
    if sorted(dims) != [*range(1, op.rank(op.x))]:
        raise UnsupportedError(f"attribute dims={dims!r}: the input has {op.rank(op.x)} axes")
    return op.transposed(op.x, 0, *dims)


@rule("RepeatVector")
def _repeat(op: KerasLayer) -> str:
    if op.rank(op.x) != 2:
        raise UnsupportedError(f"expected (N, C), got {op.rank(op.x)} axes")
    return op.emit("Tile", op.emit("Unsqueeze", op.x, op.ints(1)), op.ints(1, op.integer("n"), 1))


@rule("TimeDistributed")
def _time_distributed(op: KerasLayer) -> Made:
    """A layer for each step: all steps of all samples are a batch of it."""
    tensor, told = op.tensor, op.attribute("layer", None)
    held = op.layer.weights
    layer = inner_layer(told, held and held.inside("layer"), position=op.layer.position)
    op.wraps = True
    passes = layer.kind in PASSING
    if tensor.mask and not passes:
        raise UnsupportedError(f"around {layer.kind} with a mask")
    _, time, *inner = op.shape(tensor.value)

    def applied(value: str) -> str:
        path = f"{op.path}/{layer.name}"
        made = op.lowering.apply(layer, [Tensor(value)], {}, path, 0, op.depth)
        if len(made) != 1 or made[0].mask:
            raise UnsupportedError(f"around {layer.kind}: expected one result without a mask")
        return made[0].value

    if layer.kind in ("Dense", "Activation", "Dropout"):  # they see the last axis alone
        return Tensor(applied(tensor.value), tensor.mask)
    y = applied(op.emit("Reshape", tensor.value, op.ints(-1, *_known(inner))))
    behind = _known(op.shape(y)[1:])
    if time is not None:
        shape = op.ints(-1, time, *behind)
    else:
        whole = op.emit("Shape", tensor.value)
        cut = (op.ints(0), op.ints(2), op.ints(0), op.ints(1))
        shape = op.emit("Concat", op.emit("Slice", whole, *cut), op.ints(*behind), axis=0)
    return Tensor(op.emit("Reshape", y, shape), tensor.mask)


def _known(sizes: Sequence[int | None]) -> list[int]:
    known = [size for size in sizes if size is not None]
    if len(known) < len(sizes):
        raise UnsupportedError(f"sizes {sizes} behind the steps: a run tells them")
    return known
