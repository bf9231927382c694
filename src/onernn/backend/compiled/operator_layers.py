"""Layers inside ONNX Runtime: the kernels' library is one of custom operators, too."""

from __future__ import annotations

from contextlib import ExitStack

from onernn.backend.compiled.library import Kernels
from onernn.backend.compiled.stack import check, names_of, packed
from onernn.backend.onednn.precision import U8Options
from onernn.ir.spec import RnnSpec
from onernn.ir.weights import UNIT, Weights, layers_of

DOMAIN = "onernn"
"""Of the operators of the library; onernn.h tells what they take and give."""


class OperatorLayers:
    """Layers by their numbers, which nodes tell. Sessions that found them keep them."""

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels
        self._open = ExitStack()

    def close(self) -> None:
        """No session finds any of them from now on."""
        self._open.close()

    def add(
        self, spec: RnnSpec, weights: Weights, *, dtype: str, batch_major: bool
    ) -> tuple[int, str]:
        """The number of a layer, and a line about it.

        Raises `UnsupportedError` for what the kernels do not run.
        """
        kernels, layers = self._kernels, layers_of(spec, weights)
        options = None
        if dtype in ("u8", "int8-dynamic"):
            options = U8Options(None, UNIT.shift, True)
        told, parts, numbers = packed(kernels, spec, layers, dtype, options)
        made = kernels.ffi.new("int64_t *")
        status = kernels.lib.onernn_ort_layer_new(
            told, parts, kernels.ffi.from_buffer(numbers), len(numbers), batch_major, made
        )
        check(kernels.lib, status, "a layer")
        number = int(made[0])
        self._open.callback(kernels.lib.onernn_ort_layer_free, number)
        stored, kernel = names_of(kernels, dtype, layers[0].iter.dtype)
        return number, f"{spec.cell.name} {spec.direction}, {stored}, {kernel}"
