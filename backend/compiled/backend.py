"""Layers and stacks on the kernels of this package."""

from __future__ import annotations

from functools import partial

import numpy as np

from onernn.backend.compiled.library import Kernels, load_kernels
from onernn.backend.compiled.stack import CompiledStack, names_of
from onernn.backend.onednn.precision import PRECISIONS, UNIT, U8Options
from onernn.backend.stack import Stack, Trainer
from onernn.core.errors import UnsupportedError
from onernn.core.spec import RnnSpec
from onernn.core.weights import RnnWeights, Weights, layers_of


class KernelsBackend:
    """Prepares layers on the kernels, loaded with the first backend, for one thread or two."""

    def __init__(self, threads: int | None = None) -> None:
        self.kernels = load_kernels()
        self.threads = min(threads or 1, 2)

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
    ) -> Stack:
        """See `Backend.prepare`. f16: matrices are stored so. bf16: see design/0020. u8 only, see
        design/0034: ``data_scale``, of all rows of x; ``per_channel`` False: one scale a matrix."""
        if dtype not in PRECISIONS:
            raise UnsupportedError(f"dtype {dtype!r}: expected one of {', '.join(PRECISIONS)}")
        layers = layers_of(spec, weights)
        options = U8Options(data_scale, data_shift, per_channel) if dtype == "u8" else None
        try:
            kernel = CompiledStack(self.kernels, spec, layers, dtype, self.threads, options)
        except UnsupportedError as error:
            from onernn.backend.reference import reference_instead  # most layers are supported

            return reference_instead(spec, layers, str(error), strict)
        told, name = names_of(self.kernels, dtype, layers[0].iter.dtype)
        return Stack(
            spec,
            told,
            kernel,
            partial(_trainer, self.kernels, spec, layers, dtype, self.threads),
            backend="kernels",
            name=name,
            reads="contiguous ragged, tnc and ntc batches are read in place, others are copied",
            real=layers[0].iter.dtype,
            compiled=kernel,
        )


def _trainer(
    kernels: Kernels, spec: RnnSpec, layers: tuple[RnnWeights, ...], dtype: str, threads: int
) -> Trainer:
    """The kernels, which train float32 weights; the reference trains those of float64."""
    if layers[0].iter.dtype == np.float64:
        from onernn.backend.reference import reference_trainer

        why = "kernels train in float32, these weights are in float64"
        return reference_trainer(spec, layers, np.dtype(np.float64), why)
    from onernn.backend.compiled.training import kernels_trainer  # most models only run

    return kernels_trainer(kernels, spec, layers, dtype, threads)
