"""Converts oneDNN's own layouts of weights to the pivot layout, and back.

``ldigo`` (L, D, I, G, O) is the pivot layout. ``ldgoi`` (L, D, G, O, I) is the transposed layout.
See oneDNN's documentation of memory format tags.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import get_args

import numpy as np

from onernn.ir.arrays import Array
from onernn.ir.spec import Activation, Cell, Direction
from onernn.ir.weights import RnnWeights
from onernn.reorders.layers import (
    SIMPLE,
    Arrays,
    Framework,
    PivotLayer,
    check_all_read,
    layer_of,
    need,
    prefixes_of,
)

GATES = {cell: " ".join(cell.gates) for cell in Cell}
_NAMES = {
    "layer": "weights_layer",
    "iter": "weights_iter",
    "bias": "bias",
    "peephole": "weights_peephole",
    "projection": "weights_projection",
}


def ldgoi(ldigo: Array) -> Array:
    """Converts (L, D, I, G, O) to (L, D, G, O, I)."""
    return np.ascontiguousarray(ldigo.transpose(0, 1, 3, 4, 2))


def ldgoi_back(transposed: Array) -> Array:
    """Converts (L, D, G, O, I) to (L, D, I, G, O)."""
    return np.ascontiguousarray(transposed.transpose(0, 1, 4, 2, 3))


def _reader(back: Callable[[Array], Array]) -> Callable[..., PivotLayer]:
    def read(
        arrays: Arrays,
        *,
        cell: Cell | str,
        direction: Direction | None = None,
        activations: tuple[Activation, ...] | None = None,
    ) -> PivotLayer:
        """Returns a layer from weights_layer, weights_iter, bias (ldgo), weights_peephole (ldgo)
        and weights_projection (ldio).

        If the layers of a stack have different input sizes, the names of their arrays begin with
        0/, 1/, ..., and L is 1. ``cell``: a `Cell` or its value, such as "lbr_gru", because shapes
        do not determine it. Raises `ShapeError`.
        """
        prefixes = prefixes_of(arrays)
        check_all_read(arrays, {prefix + name for prefix in prefixes for name in _NAMES.values()})
        parts: list[RnnWeights] = []
        for prefix in prefixes:
            names = [prefix + name for name in _NAMES.values()]
            matrices = [need(arrays, name, 5) for name in names[:2]]
            rest = [arrays.get(name) for name in names[2:]]
            weights = RnnWeights(*map(back, matrices), *rest)
            parts += map(weights.of_layer, range(len(weights.iter)))
        return layer_of(Cell(cell), parts, direction, activations)

    return read


def _writer(form: Callable[[Array], Array]) -> Callable[[PivotLayer], dict[str, Array]]:
    def write(layer: PivotLayer) -> dict[str, Array]:
        groups = [list(layer.weights)]
        if len({w.layer.shape for w in layer.weights if w.layer is not None}) > 1:
            groups = [[weights] for weights in layer.weights]
        out = {}
        for k, group in enumerate(groups):
            prefix = f"{k}/" if len(groups) > 1 else ""
            for name, whole in RnnWeights.join(group, 0).arrays.items():
                out[prefix + _NAMES[name]] = form(whole) if whole.ndim == 5 else whole
        return out

    return write


def _framework(
    name: str, shape: str, form: Callable[..., Array], back: Callable[..., Array]
) -> Framework:
    return Framework(
        name,
        name.replace("onednn", "oneDNN", 1).replace("-", " "),
        shape,
        "bias (L, D, G', O)",
        GATES,
        _reader(back),
        _writer(form),
        limits=replace(SIMPLE, directions=get_args(Direction), projection=True, peephole=True),
    )


FRAMEWORKS = {
    "onednn": _framework("onednn", "ldigo (L, D, I, G, O), ldio", np.array, np.array),
    "onednn-ldgoi": _framework("onednn-ldgoi", "ldgoi (L, D, G, O, I), ldio", ldgoi, ldgoi_back),
}
