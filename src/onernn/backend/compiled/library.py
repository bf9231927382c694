"""Finds, checks and loads the kernels' library for this CPU at its first use, once per process.

onernn has one library for each instruction set that it was built for (`kernels/build.py`). The
library for the least demanding set reports which sets the CPU and the operating system support.
Then the best available library is loaded.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

from onernn.backend.compiled import _bindings
from onernn.backend.process import CREATION, MAX_ISA, read_isa_cap
from onernn.ir.errors import LibraryError
from onernn.ir.records import dataclass
from onernn.kernels import build

ffi: Any = _bindings.ffi


@dataclass(frozen=True, eq=False)
class Kernels:
    """A loaded library of kernels.

    ``isa``: the instruction set that it is compiled for. ``runs``: all sets that this machine
    supports, the best one last. ``isa`` is not the best one if ONERNN_MAX_ISA limits it, or if
    onernn was not built for the better set ``missing``. ``sources``: the checksum of the C++
    sources that ``compiler`` compiled.
    """

    ffi: Any
    lib: Any
    isa: str
    runs: tuple[str, ...]
    path: Path
    sources: str
    compiler: str
    missing: str | None = None

    @property
    def multiplies_bf16(self) -> bool:
        """Whether the library uses bf16 instructions; otherwise it widens bf16 matrices to f32."""
        return self.isa.endswith(("_bf16", "_amx"))

    @property
    def shortfall(self) -> str:
        """Why this library is not the best one for this CPU, and what to do; "" if it is the
        best.
        """
        if self.missing:
            return f"slower than {self.missing}, which was not built; {how_to_get(self.missing)}"
        best = self.runs[-1]
        return "" if self.isa == best else f"capped by {MAX_ISA}: this machine runs {best}"


_kernels: Kernels | None = None


def load_kernels() -> Kernels:
    """Returns the library of this process. Raises `LibraryError` with the cause and a remedy."""
    global _kernels
    with CREATION:
        if _kernels is None:
            _kernels = _load(build.BUILT)
        return _kernels


def kernels_here() -> str:
    """Returns a text: which kernels this process has, or why it has none and how to get them."""
    try:
        result = load_kernels()
    except LibraryError as error:
        return f"none: {error}"
    return f"{result.isa} ({', '.join(filter(None, (str(result.path), result.shortfall)))})"


def _load(folder: Path) -> Kernels:
    wish, known = read_isa_cap(), list(build.isas())
    key = build.sources_key() if build.sources() else None
    there = [isa for isa in known if build.library_of(isa, folder).exists()] or known[:1]
    asked = known[0]
    if asked not in there:  # only ISAS=native was built: this set is tried if the system can run it
        asked = next((isa for isa in build.runnable(build.isas())[::-1] if isa in there), asked)
    first = _open(asked, folder, key)
    runs = tuple(ffi.string(first.lib.onernn_cpu()).decode().split())
    if not runs:
        raise LibraryError(f"kernels: expected a CPU with {known[0]}; use backend='reference'")
    allowed = [i for i in runs if known.index(i) <= known.index(wish or runs[-1])]
    isa = next((i for i in allowed[::-1] if i in there), known[0])
    kernels = first if isa == asked else _open(isa, folder, key)
    return replace(kernels, runs=runs, missing=None if isa == allowed[-1] else allowed[-1])


def _open(isa: str, folder: Path, key: str | None) -> Kernels:
    """Loads the library of an instruction set after comparing its checksum.

    ``key``: the key of the sources, None if they are not installed.
    """
    path = build.library_of(isa, folder)
    try:
        with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as content:
            # the file is mapped, so that the loader shares the pages
            built = build.built_from(content)
    except ValueError:  # the file is empty
        built = None
    except FileNotFoundError:
        why = "no compiler was there when it was built" if not folder.is_dir() else f"no {path}"
        raise LibraryError(f"this installation has no kernels: {why}; {how_to_get()}") from None
    except OSError as error:
        raise LibraryError(f"{path}: {error.strerror}; {how_to_get()}") from None
    if built is None:
        raise LibraryError(
            f"{path}: damaged: expected a library of onernn's kernels; {how_to_get()}"
        )
    if key not in (None, built[0]):
        raise LibraryError(f"{path}: built from different sources; {how_to_get()}")
    try:
        # NODELETE: otherwise Python's exit would unmap the library while its threads wait.
        lib: Any = ffi.dlopen(str(path), os.RTLD_NOW | os.RTLD_LOCAL | os.RTLD_NODELETE)
        of_this_package = lib.onernn_abi() == _bindings.CHECKSUM
    except (OSError, AttributeError) as error:
        raise LibraryError(f"{path}: cannot be loaded: {error}; {how_to_get()}") from None
    if not of_this_package or ffi.string(lib.onernn_isa()).decode() != isa:
        raise LibraryError(f"{path}: built for a different version of onernn; {how_to_get()}")
    return Kernels(ffi, lib, isa, (isa,), path, *built)


def how_to_get(isa: str | None = None) -> str:
    """Returns how to get the kernels of one or all instruction sets in this installation."""
    names = f"ISAS={isa} " if isa else ""
    if build.sources():
        return f"run: {names}python {build.HERE / 'build.py'}; it needs a C++17 compiler"
    import json
    from importlib import metadata

    source = "onernn"
    with suppress(metadata.PackageNotFoundError, ValueError, KeyError):
        built = metadata.distribution("onernn").read_text("direct_url.json")
        # The package was installed from a folder, a file or a repository, not from an index.
        source = json.loads(built or "")["url"]
    if source.endswith(".whl"):  # installing this wheel again would not help
        return (
            "build a wheel that has them and install it; in onernn's sources, with a C++17"
            f" compiler, run: {names}pip wheel --no-deps ."
        )
    return (
        "for a wheel with kernels run, where a C++17 compiler is unless an index has such a wheel:"
        f" {names}pip install --no-cache-dir --force-reinstall --no-deps {source}"
    )
