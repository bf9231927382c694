"""The default backend: the kernels or oneDNN, whichever was measured as faster for a batch."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any

from onernn.backend import creation_lock
from onernn.backend.choosing import Choice, isa_of
from onernn.backend.compiled.backend import KernelsBackend
from onernn.backend.compiled.library import Kernels
from onernn.backend.isa import wished_isa
from onernn.backend.onednn.finding import WISHES, find
from onernn.backend.onednn.limits import FLOAT
from onernn.backend.onednn.precision import KERNELS_ONLY, is_onednns
from onernn.backend.stack import Later, Stack, Trainer, picklable
from onernn.core.errors import LibraryError, UnsupportedError
from onernn.core.limits import why_not
from onernn.core.spec import RnnSpec
from onernn.core.weights import RnnWeights, Weights, layers_of

if TYPE_CHECKING:
    from onernn.backend.onednn.backend import OneDnnBackend

TRAINED = 32
"""Sentences of the batches for which a trainer is chosen: it is made once, for all of them."""


class AutoBackend:
    """The kernels beside oneDNN; where one of them is missing the other one alone.

    oneDNN is opened for the first batch that it is faster for: a model that runs on kernels needs
    neither the 20 ms and 16 MB of its library nor weights packed twice. What none of them runs goes
    to the reference. Raises `LibraryError` where both are missing.
    """

    def __init__(self, threads: int | None = None, cache_capacity: int | None = None) -> None:
        self._given = threads, cache_capacity
        self._backends: dict[str, OneDnnBackend | KernelsBackend] = {}
        missing: list[str] = []
        self._isa = ""
        wished_isa()  # a name that nobody knows is told now
        self._later: Callable[[], OneDnnBackend] | None = None
        try:
            if _may_wait():
                find()
                threads = threads or _usable_threads()
                self._later = lambda: _onednn(threads, cache_capacity)
            else:
                onednn = _onednn(threads, cache_capacity)
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
        self.threads, self._missing = threads or 1, "; ".join(missing)

    @property
    def kernels(self) -> Kernels | None:
        """The library of kernels, if it is there."""
        found = self._backends.get("kernels")
        return found.kernels if isinstance(found, KernelsBackend) else None

    def __reduce__(self) -> Any:
        return AutoBackend, self._given

    @picklable
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
        if dtype in KERNELS_ONLY:
            return self._on_kernels(spec, layers, dtype, strict, quantization)
        if self._later is not None:
            options = {"dtype": dtype, "strict": strict, **quantization}
            waiting = self._waiting(spec, layers, options)
            if waiting is not None:
                return waiting
            self._open()
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
        if scales := quantization.get("scales"):  # one for every batch: the same bits in each
            one = fast.get("onednn" if all(map(is_onednns, scales)) else "kernels")
            if one is not None:
                return one
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

    def _on_kernels(
        self,
        spec: RnnSpec,
        layers: tuple[RnnWeights, ...],
        dtype: str,
        strict: bool,
        quantization: dict[str, Any],
    ) -> Stack:
        """A layer of a data type that nobody else has, which its kernel's name tells."""
        if "kernels" not in self._backends:
            from onernn.backend.reference import reference_instead  # with both, few layers

            return reference_instead(spec, layers, self._missing, strict)
        made = self._backends["kernels"].prepare(
            spec, layers, dtype=dtype, strict=strict, **quantization
        )
        if made.backend == "kernels":
            made.kernel += f"; oneDNN has no {dtype}"
        return made

    def _chosen(self, kernels: Stack, onednn: Stack) -> Stack:
        choice = Choice("kernels", self._isa, onednn.dtype, self.threads, onednn.spec)

        def trainer() -> Trainer:
            return _trainer(choice, kernels, lambda: onednn)

        if not choice.ever:
            return onednn.trained_by(trainer)
        others = ", ".join(choice.others)
        name = kernels.kernel + (f"; {onednn.kernel} for batches like {others}" if others else "")
        return kernels.beside(onednn, choice.prefers, "auto", name).trained_by(trainer)

    def _open(self) -> None:
        """oneDNN from now on; where it cannot be loaded the kernels run, which is told."""
        with creation_lock.CREATION:
            if self._later is None:
                return  # another thread was faster
            try:
                self._backends = {"onednn": self._later(), **self._backends}
            except LibraryError as error:
                self._missing = f"without oneDNN: {error}"
            self._later = None

    def _waiting(
        self, spec: RnnSpec, layers: tuple[RnnWeights, ...], options: dict[str, Any]
    ) -> Stack | None:
        """The layer on kernels, oneDNN's made for the first batch that it is faster for.

        None where one of both does not run it, kernels are never faster, or oneDNN has to be asked.
        """
        choice = Choice("kernels", self._isa, options["dtype"], self.threads, spec)
        if not choice.ever or options["dtype"] == "u8" or why_not(spec, layers, FLOAT):
            return None
        try:
            kernels = self._backends["kernels"].prepare(spec, layers, **options)
        except UnsupportedError:
            return None
        if kernels.backend == "reference" or kernels.dtype != options["dtype"]:
            return None

        @cache
        def onednn() -> Stack:
            self._open()
            try:
                made = self._backends["onednn"].prepare(spec, layers, **options)
            except (KeyError, UnsupportedError):
                made = None
            if made is not None and made.backend == "onednn":
                return made
            both.backend, both.kernel, both.why = kernels.backend, kernels.kernel, self._missing
            return kernels

        others = ", ".join(choice.others)
        name = kernels.kernel + (f"; oneDNN for batches like {others}" if others else "")
        both = kernels.beside(Later(onednn), choice.prefers, "auto", name)
        both = both.trained_by(lambda: _trainer(choice, kernels, onednn))
        return both


def _onednn(threads: int | None, cache_capacity: int | None) -> OneDnnBackend:
    from onernn.backend.onednn.backend import OneDnnBackend  # most models run without it

    return OneDnnBackend(threads, cache_capacity)


def _trainer(choice: Choice, kernels: Stack, onednn: Callable[[], Stack]) -> Trainer:
    """Whichever was measured as faster, if it trains the layer."""
    if choice.prefers("training", TRAINED):
        return kernels.trainer()
    try:
        theirs = onednn().trainer()
    except UnsupportedError:  # the layer is strict
        return kernels.trainer()
    return kernels.trainer() if theirs.why else theirs


def _may_wait() -> bool:
    """Whether oneDNN may be opened later: kernels are here, and nothing has to be asked of it."""
    if any(map(os.environ.get, WISHES)):
        return False  # a library, or a way in which it runs, which may not be there
    try:
        KernelsBackend()
    except LibraryError:
        return False
    with suppress(OSError), open("/proc/cpuinfo") as lines:
        return "amx_tile" not in lines.read(8192)  # with AMX all is oneDNN's
    return False


def _usable_threads() -> int:
    """How many OpenMP would take."""
    told = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return int(told) if told.isdecimal() and int(told) else len(os.sched_getaffinity(0))
