"""Layers and stacks on the kernels of this package."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from onernn.backend.compiled.library import load_kernels
from onernn.backend.compiled.stack import CompiledStack, names_of
from onernn.backend.onednn.precision import DTYPES, U8Options, unknown
from onernn.backend.stack import Stack, Trainer, picklable
from onernn.ir.errors import UnsupportedError
from onernn.ir.spec import RnnSpec
from onernn.ir.weights import UNIT, Layers, PartScales, Weights, layers_of


class KernelsBackend:
    """Prepares layers on the kernels, loaded with the first backend, for one thread or two."""

    def __init__(self, threads: int | None = None) -> None:
        self.kernels = load_kernels()
        self.threads = min(threads or 1, 2)

    def __reduce__(self) -> Any:
        return KernelsBackend, (self.threads,)

    @picklable
    def prepare(
        self,
        spec: RnnSpec,
        weights: Weights,
        *,
        dtype: str = "f32",
        strict: bool = False,
        data_scale: float | None = None,
        data_shift: float = UNIT.shift,
        per_channel: bool = True,
        scales: Sequence[PartScales] = (),
        weights_scales: Any = None,
        projection_scales: Any = None,
    ) -> Stack:
        """See `Backend.prepare`. f16: matrices are stored so. bf16: see design/0020. int8-dynamic:
        see design/0034, as int8-weights. u8 only, see design/0034:
        ``data_scale`` and ``data_shift`` of all rows of x in the first layer;
        ``per_channel`` False: one scale a matrix; ``weights_scales`` and ``projection_scales``:
        see `column_scales`; ``scales``: of each layer and direction, in the order of
        `ir.rnn.parts`, in place of all of these."""
        if dtype not in DTYPES:
            raise UnsupportedError(unknown(dtype))
        layers = layers_of(spec, weights)
        options = U8Options.of(
            spec,
            dtype,
            data_scale=data_scale,
            data_shift=data_shift,
            per_channel=per_channel,
            scales=scales,
            weights_scales=weights_scales,
            projection_scales=projection_scales,
        )
        try:
            return self.stack(spec, layers, dtype, options)
        except UnsupportedError as error:
            from onernn.backend.reference import reference_instead  # most layers are supported

            return reference_instead(spec, layers, str(error), strict)

    def stack(self, spec: RnnSpec, layers: Layers, dtype: str, options: U8Options | None) -> Stack:
        """The layer on the kernels. Raises `UnsupportedError` for what they do not run."""
        kernel = CompiledStack(self.kernels, spec, layers, dtype, self.threads, options)
        stored, name = names_of(self.kernels, dtype, layers[0].iter.dtype)
        return Stack(
            spec,
            stored,
            kernel,
            partial(self.trainer, spec, layers, dtype),
            backend="kernels",
            name=name,
            reads="contiguous ragged, tnc and ntc batches are read in place, others are copied",
            real=layers[0].iter.dtype,
            compiled=kernel,
        )

    def trainer(self, spec: RnnSpec, weights: Weights, dtype: str) -> Trainer:
        """What trains a layer that need not run otherwise: nothing is packed for that.

        Kernels train float32 weights; the reference trains those of float64.
        """
        layers = layers_of(spec, weights)
        if layers[0].iter.dtype == np.float64:
            from onernn.backend.reference import reference_trainer

            why = "kernels train in float32, these weights are in float64"
            return reference_trainer(spec, layers, np.dtype(np.float64), why)
        from onernn.backend.compiled.training import kernels_trainer  # most models only run

        return kernels_trainer(self.kernels, spec, layers, dtype, self.threads)
