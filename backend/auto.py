"""The default backend: the kernels or oneDNN, whichever was measured as faster for a batch."""

from __future__ import annotations

import os
from typing import Any

from onernn.backend.choosing import Choice, isa_of
from onernn.backend.compiled.backend import KernelsBackend
from onernn.backend.isa import wished_isa
from onernn.backend.onednn.backend import OneDnnBackend
from onernn.backend.onednn.library import WISHES
from onernn.backend.stack import Stack, Trainer
from onernn.core.errors import LibraryError, UnsupportedError
from onernn.core.spec import RnnSpec
from onernn.core.weights import Weights, layers_of

TRAINED = 32
"""Sentences of the batches for which a trainer is chosen: it is made once, for all of them."""


class AutoBackend:
    """The kernels beside oneDNN; where one of them is missing the other one alone.

    What none of them runs goes to the reference. Raises `LibraryError` where both are missing.
    """

    def __init__(self, threads: int | None = None, cache_capacity: int | None = None) -> None:
        self._backends: dict[str, OneDnnBackend | KernelsBackend] = {}
        missing: list[str] = []
        self._isa = ""
        wished_isa()  # a name that nobody knows is told now
        try:
            onednn = OneDnnBackend(threads, cache_capacity)
            threads, self._isa = onednn.threads, isa_of(onednn.library.effective_isa)
            self._backends["onednn"] = onednn
        except LibraryError as error:
            if any(map(os.environ.get, WISHES)):
                raise  # somebody wants a library, or a way in which it runs
            missing.append(f"without oneDNN: {error}")
        try:
            kernels = KernelsBackend(threads)
            if self._isa != "amx":
                self._isa = kernels.kernels.isa
            self._backends["kernels"] = kernels
        except LibraryError as error:
            missing.append(f"without kernels: {error}")
        if not self._backends:
            raise LibraryError("; ".join(missing))
        self._threads, self._missing = threads or 1, "; ".join(missing)

    def prepare(
        self,
        spec: RnnSpec,
        weights: Weights,
        *,
        dtype: str = "f32",
        strict: bool = False,
        **quantization: Any,
    ) -> Stack:
        """See `Backend.prepare`; ``quantization``, u8 only: what both backends take."""
        layers = layers_of(spec, weights)
        fast: dict[str, Stack] = {}
        slow: list[Stack] = []
        refusals: list[UnsupportedError] = []
        for name, backend in self._backends.items():
            try:
                made = backend.prepare(spec, layers, dtype=dtype, strict=strict, **quantization)
            except UnsupportedError as error:
                refusals.append(error)
                continue
            if made.backend == "reference":
                slow.append(made)
            else:
                fast[name] = made
        if len(fast) == len(self._backends) == 2:
            return self._chosen(fast["kernels"], fast["onednn"])
        if not (fast or slow):
            if len({str(refusal) for refusal in refusals}) == 1:
                raise refusals[0]
            found = [reason for refusal in refusals for reason in refusal.refusals]
            raise UnsupportedError("no backend runs this:", tuple(found))
        alone, *_ = (*fast.values(), *slow)
        told = [alone.why] if fast else [each.why for each in slow]
        alone.why = "; ".join(dict.fromkeys(filter(None, (*told, self._missing))))
        return alone

    def _chosen(self, kernels: Stack, onednn: Stack) -> Stack:
        choice = Choice("kernels", self._isa, onednn.dtype, self._threads, onednn.spec)

        def trainer() -> Trainer:
            if choice.prefers("training", TRAINED):
                return kernels.trainer()
            try:
                theirs = onednn.trainer()
            except UnsupportedError:  # the layer is strict
                return kernels.trainer()
            return kernels.trainer() if theirs.why else theirs

        if not choice.ever:
            return onednn.trained_by(trainer)
        others = ", ".join(choice.others)
        name = kernels.kernel + (f"; {onednn.kernel} for batches like {others}" if others else "")
        return kernels.beside(onednn, choice.prefers, "auto", name).trained_by(trainer)
