"""The default backend: the kernels, and oneDNN for layers that the kernels do not support.

The layer, its dtype and the CPU determine which implementation runs all batches of a layer. Timings
and the number of threads do not matter, so the results of equal batches have equal bits. oneDNN has
slow reference loops for some layers. The reference loops run a layer only if the kernels cannot.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from onernn.backend.compiled.backend import KernelsBackend
from onernn.backend.compiled.library import Kernels
from onernn.backend.onednn.precision import KERNELS_ONLY, U8Options, is_onednns
from onernn.backend.process import CREATION, WISHES, read_isa_cap, usable_threads
from onernn.backend.stack import LayerBackend, Stack, Trainer
from onernn.ir.errors import LibraryError, Refusal, UnsupportedError
from onernn.ir.spec import RnnSpec
from onernn.ir.weights import Layers

if TYPE_CHECKING:
    from onernn.backend.onednn.backend import OneDnnBackend

AMX_DTYPES = ("bf16", "u8")
"""Dtypes for which AMX has instructions. oneDNN runs them if it uses AMX and the kernels do not."""
UNCUT = "states are not cut to the range of their bytes, as on oneDNN, which needs VNNI for u8"
MEASURED = {"avx2": "0.82 to 17", "avx512": "0.97 to 3.7"}
"""The measured speed of the kernels divided by the speed of oneDNN in f32, by instruction set
(design/0036).
"""


class AutoBackend(LayerBackend):
    """A backend that runs layers on the kernels or on oneDNN; if one library is missing, on the
    other one.

    It opens oneDNN for the first layer that needs it, because oneDNN's library takes 20 ms and 16
    MB. The reference runs the layers that neither the kernels nor oneDNN can run. Raises
    `LibraryError` if both libraries are missing, or if an environment variable requires oneDNN and
    it is missing.
    """

    def __init__(self, threads: int | None = None, cache_capacity: int | None = None) -> None:
        self._given = threads, cache_capacity
        self.threads = threads or usable_threads()
        self._backends: dict[str, OneDnnBackend | KernelsBackend] = {}
        self._missing: dict[str, str] = {}
        read_isa_cap()  # raises an error for an unknown name
        if not self._open_backend("kernels") and not self._open_backend("oneDNN"):
            raise LibraryError("; ".join(self._missing.values()))
        if any(map(os.environ.get, WISHES)):
            self._open_backend("oneDNN")

    @property
    def kernels(self) -> Kernels | None:
        """The library of kernels; None if it is missing."""
        backend = self._backends.get("kernels")
        return backend.kernels if isinstance(backend, KernelsBackend) else None

    @property
    def rule(self) -> str:
        """The reason for the choice of backends, as text for `Session.explain`."""
        if self.kernels is None:
            return f"oneDNN runs what it can, {self._missing['kernels']}"
        isa = self.kernels.isa
        speed = MEASURED.get("avx512" if isa.startswith("avx512") else isa)
        words = (
            f"they run f32 at {speed} times oneDNN's speed"
            if speed
            else "both were not measured there"
        )
        amx = (
            "; oneDNN runs bf16 and u8 on AMX, for which these kernels were not built: faster for"
            " dense batches of 8 and more, slower for single sequences"
        )
        return (
            "the kernels run every layer that they have, oneDNN and the reference run the others"
            f" (with {isa}, {words}{amx if self._only_onednn_has_amx() else ''})"
        )

    def __reduce__(self) -> Any:
        return AutoBackend, self._given

    def stack(
        self, spec: RnnSpec, layers: Layers, dtype: str, options: U8Options | None, strict: bool
    ) -> Stack:
        """Implements `LayerBackend.stack`."""
        slow: Stack | None = None
        refusals: list[UnsupportedError] = []
        missing: list[str] = []
        scales = options.scales if options and options.is_whole else ()
        order = self._order(dtype, scales)
        for name in order:
            backend = self._open_backend(name)
            if backend is None:
                missing.append(self._missing[name])
                continue
            try:
                stack = backend.stack(spec, layers, dtype, options, True)
            except UnsupportedError as error:
                refusals.append(error)
                continue
            if name == "oneDNN":
                stack.new_trainer = partial(self._trainer, stack.new_trainer, spec, layers, dtype)
                if is_loop(stack.kernel):
                    slow = stack
                    continue
            uncut = UNCUT if scales and name == "kernels" and order[0] == "oneDNN" else ""
            stack.why = "; ".join(filter(None, (stack.why, *missing, uncut)))
            return stack
        if slow is not None:  # only slow loops of oneDNN run this layer
            slow.why = "; ".join(filter(None, (slow.why, *missing, *map(str, refusals))))
            return slow
        reasons = [each for refusal in refusals for each in refusal.refusals]
        raise UnsupportedError("no backend runs this layer:", (*reasons, *map(Refusal, missing)))

    def find_preferred(self, dtype: str) -> OneDnnBackend | KernelsBackend | None:
        """Returns the backend that `stack` tries first for layers of a dtype; None if it is
        missing.
        """
        return self._open_backend(self._order(dtype, ())[0])

    def _trainer(
        self, onednns: Callable[[], Trainer], spec: RnnSpec, layers: Layers, dtype: str
    ) -> Trainer:
        """Returns oneDNN's trainer. Returns the kernels' trainer if oneDNN has none, or only a
        reference loop.
        """
        kernels: Any = self._open_backend("kernels")
        try:
            trainer = onednns()
        except UnsupportedError:
            if kernels is None:
                raise
        else:
            if kernels is None or not is_loop(trainer.name):
                return trainer
        return kernels.trainer(spec, layers, dtype)

    def _order(self, dtype: str, scales: Any) -> tuple[str, ...]:
        if dtype in KERNELS_ONLY:
            return ("kernels",)
        # The backends round states differently. So oneDNN comes first for scales that it can
        # represent.
        if scales:
            return ("oneDNN", "kernels") if all(map(is_onednns, scales)) else ("kernels", "oneDNN")
        if dtype in AMX_DTYPES and self._only_onednn_has_amx():
            return ("oneDNN", "kernels")
        return ("kernels", "oneDNN")

    def _only_onednn_has_amx(self) -> bool:
        with_tiles = self.kernels is not None and self.kernels.isa == "avx512_amx"
        return not with_tiles and self._has_amx()

    def _has_amx(self) -> bool:
        if read_isa_cap() or not _cpu_has_amx():
            return False
        onednn: Any = self._open_backend("oneDNN")
        return onednn is not None and "amx" in onednn.library.effective_isa

    def _open_backend(self, name: str) -> OneDnnBackend | KernelsBackend | None:
        with CREATION:
            if name not in self._backends and name not in self._missing:
                try:
                    self._backends[name] = self._open(name)
                except LibraryError as error:
                    if name == "oneDNN" and any(map(os.environ.get, WISHES)):
                        raise  # an environment variable asks for oneDNN
                    self._missing[name] = f"without {name}: {error}"
            return self._backends.get(name)

    def _open(self, name: str) -> OneDnnBackend | KernelsBackend:
        if name == "kernels":
            return KernelsBackend(self.threads)
        from onernn.backend.onednn.backend import OneDnnBackend  # most models do not need it

        return OneDnnBackend(*self._given)


def is_loop(name: str) -> bool:
    """Returns whether an implementation of oneDNN is, or contains, its slow reference loops."""
    return "ref" in name.replace(",", " ").split()


def _cpu_has_amx() -> bool:
    with suppress(OSError), open("/proc/cpuinfo") as lines:
        return "amx_tile" in lines.read(8192)
    return False
