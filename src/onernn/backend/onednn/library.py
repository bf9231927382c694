"""Finds, checks and loads libdnnl at its first use, once per process, under a private name.

A process may contain a second copy of libdnnl: Paddle has one with the same SONAME. Then the loader
would use one copy for both users, or bind the symbols of one copy to the other. Paddle would fail
to import, or the heap would be corrupted. A private SONAME and RTLD_LOCAL | RTLD_DEEPBIND separate
the copies, whichever is loaded first.
"""

from __future__ import annotations

import mmap
import os
import platform
import struct
import sys
import threading
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from onernn.backend.onednn._bindings import ffi
from onernn.backend.process import (
    CREATION,
    DNNL_LIBRARY,
    MAX_ISA,
    ONEDNN,
    ONEDNN_MAX_ISA,
    read_isa_cap,
)
from onernn.ir.errors import LibraryError
from onernn.ir.files import replacing
from onernn.ir.records import cached_property, dataclass
from onernn.kernels.build import cache_folder


def keep(target: Path, content: Iterable[bytes]) -> None:
    """Writes a file that only this user can read; a failed write leaves no partial file. Raises
    `OSError`.
    """
    if target.exists() and not target.is_file():
        raise OSError(f"{target}: expected a file or nothing")
    with replacing(target) as stream:
        os.fchmod(stream.fileno(), 0o600)
        stream.writelines(content)


def memory_file(name: str, content: Iterable[bytes]) -> Path:
    """Returns the path of a file in memory, for folders that are read-only, full or mounted noexec.

    The file is never closed: the loader identifies a library by its path, and would mistake a later
    file with the same number for this one. Raises `OSError`.
    """
    handle = os.memfd_create(name)
    with open(handle, "wb", closefd=False) as file:
        file.writelines(content)
    return Path(f"/proc/self/fd/{handle}")


# Finds libdnnl without loading it.

DISTRIBUTION = "onednn-cpu-gomp"
ADVICE = f"set {DNNL_LIBRARY} to a libdnnl.so of oneDNN 3.2 or newer, or use backend='reference'"


def find() -> Path:
    """Returns the path of the library. Raises `LibraryError` if there is none."""
    override = os.environ.get(DNNL_LIBRARY)
    if override:
        path = Path(override).absolute()
        if not path.is_file():
            raise LibraryError(f"{DNNL_LIBRARY}={override}: no such file; unset it or correct it")
        return path
    for path in _list_installed_files():
        if path.name == "libdnnl.so.3" and path.is_file():
            return path.resolve()
    install = f"run: pip install {DISTRIBUTION}==2023.2.0; or "
    raise LibraryError(
        f"libdnnl not found: the distribution {DISTRIBUTION}, which exists for Linux x86-64 only"
        f" (this is {platform.system()} {platform.machine()}), is not installed or incomplete;"
        f" {install if platform.machine() == 'x86_64' else ''}{ADVICE}"
    )


def _list_installed_files() -> Iterator[Path]:
    """Yields the files of `DISTRIBUTION`, from pip's RECORD.

    `importlib.metadata` reads the same file, but its import takes longer than loading a small
    model.
    """
    start = f"{DISTRIBUTION.replace('-', '_')}-"
    for folder in filter(os.path.isdir, sys.path):
        for name in os.listdir(folder):
            if name.startswith(start) and name.endswith(".dist-info"):
                record = Path(folder, name, "RECORD")
                lines = record.read_text(errors="replace").splitlines() if record.is_file() else []
                yield from (Path(folder, line.partition(",")[0]) for line in lines)


# Shared libraries under a private SONAME: parses ELF files, and makes renamed copies.

_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_NEEDED, _DT_STRTAB, _DT_SONAME, _DT_RPATH, _DT_RUNPATH = 1, 5, 14, 15, 29
_CHUNK = 1 << 20


@dataclass(frozen=True)
class ElfLibrary:
    """A shared library.

    ``edit``: the offset of the byte in its SONAME that a renamed copy changes, or None.
    ``neighbours``: the libraries that it finds through $ORIGIN.
    """

    path: Path
    edit: int | None
    neighbours: tuple[Path, ...]

    def read_renamed(self) -> Iterator[bytes]:
        """Yields the content in chunks, with one byte of the SONAME changed: libdnnP.so.3 for
        libdnnl.so.3.
        """
        start, edit = 0, -1 if self.edit is None else self.edit
        with open(self.path, "rb", buffering=0) as file:
            while chunk := file.read(_CHUNK):
                if 0 <= (at := edit - start) < len(chunk):
                    chunk = chunk[:at] + b"P" + chunk[at + 1 :]
                start += len(chunk)
                yield chunk


def read_elf(path: Path) -> ElfLibrary:
    """Returns the description of an ELF file. Raises `LibraryError` if it is not a complete 64-bit
    library.
    """
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _parse(path, data)
    except OSError as error:
        raise LibraryError(f"{path}: {error.strerror}") from None
    except (struct.error, ValueError, KeyError, OverflowError):  # ValueError: an empty file
        raise LibraryError(f"{path}: expected a whole 64-bit ELF library") from None


def _parse(path: Path, data: mmap.mmap) -> ElfLibrary:
    if data[:6] != b"\x7fELF\x02\x01":  # 64 bit, little endian
        raise ValueError
    (table,) = struct.unpack_from("<Q", data, 32)
    entry, count = struct.unpack_from("<HH", data, 54)
    segments = [struct.unpack_from("<I4xQQ8xQ", data, table + i * entry) for i in range(count)]
    loads = [(index, address, size) for kind, index, address, size in segments if kind == _PT_LOAD]
    if any(index + size > len(data) for index, _, size in loads):
        raise ValueError  # reading beyond the end of the file would end the process with SIGBUS
    (dynamic,) = (
        data[index : index + size] for kind, index, _, size in segments if kind == _PT_DYNAMIC
    )
    entries: dict[int, list[int]] = {}
    for tag, value in struct.iter_unpack("<qQ", dynamic):
        entries.setdefault(tag, []).append(value)
    (base,) = entries[_DT_STRTAB]
    (strings,) = (
        index + base - address for index, address, size in loads if 0 <= base - address < size
    )

    def texts(tag: int) -> list[str]:
        starts = [strings + value for value in entries.get(tag, ())]
        return [data[start : data.find(b"\0", start)].decode() for start in starts]

    folders = [
        folder.replace("${ORIGIN}", "$ORIGIN").replace("$ORIGIN", str(path.parent))
        for paths in texts(_DT_RPATH) + texts(_DT_RUNPATH)
        for folder in paths.split(":")
        if "ORIGIN" in folder
    ]
    beside = [Path(folder, name) for folder in folders for name in texts(_DT_NEEDED)]
    edit = None  # a library without a SONAME needs no renaming
    for name in texts(_DT_SONAME):
        edit = strings + entries[_DT_SONAME][0] + len(name.partition(".")[0].encode()) - 1
    return ElfLibrary(path, edit, tuple(p for p in beside if p.exists()))


def copy_to_cache(elf: ElfLibrary) -> Path:
    """Returns the path of a renamed copy in the user's cache folder, written by this call or an
    earlier one.

    Every load compares the whole copy with the original, which takes 10 ms for 54 MB (SHA-256: 35
    ms). So a copy is never trusted because of its name, date, size or hash. The name only has to
    distinguish builds: it is a hash of the first megabyte, which contains the addresses of all
    symbols.
    """
    import hashlib  # imported late: it loads OpenSSL, which a run does not need

    name = hashlib.sha256(next(elf.read_renamed())).hexdigest()[:16]
    target = cache_folder() / f"libdnnP-{name}.so"
    if not _is_copy(target, elf):
        keep(target, elf.read_renamed())
    return target


def _is_copy(target: Path, elf: ElfLibrary) -> bool:
    if not target.is_file():
        return False
    with open(target, "rb", buffering=0) as file:
        same = all(file.read(len(chunk)) == chunk for chunk in elf.read_renamed())
        return same and not file.read(1)


def copy_to_memory(elf: ElfLibrary) -> Path:
    """Returns the path of a renamed copy in memory."""
    return memory_file("libdnnP", elf.read_renamed())


_NAMES = ("libdnnl.", "libdnnl-", "libonednn", "libmkldnn")


@dataclass(frozen=True, eq=False)
class Library:
    """A loaded libdnnl with the one CPU engine of this process.

    ``path``: the file that was found. ``mapped``: the file that was loaded: a private copy, or
    ``path`` if the library needs more libraries from its folder. ``max_threads``: the number of
    OpenMP threads of the thread that loaded it; 0 for a build without OpenMP. ``cache_capacity``:
    the maximum number of primitives that each direction of a layer keeps, about 0.3 MB each.
    """

    ffi: Any
    lib: Any
    path: Path
    mapped: Path
    version: str
    max_threads: int
    engine: Any
    cache_capacity: int = 512

    def check(self, status: int, what: str) -> None:
        """Raises `LibraryError` with ``what`` and the status if the status is a failure."""
        if status:
            name = self.ffi.string(self.lib.dnnl_status2str(status)).decode()
            raise LibraryError(f"{what}: oneDNN {self.version} returned '{name}'")

    @cached_property
    def effective_isa(self) -> str:
        """The instruction set that oneDNN uses, such as avx512_core_amx."""
        name = self.lib.dnnl_cpu_isa2str(self.lib.dnnl_get_effective_cpu_isa())
        return str(self.ffi.string(name).decode()).removeprefix("cpu_isa_")

    @cached_property
    def sums_u8_exactly(self) -> bool:
        """Whether u8*s8 products are summed in 32 bits: without VNNI, sums of two products saturate
        at 16 bits.
        """
        vnni = int(self.lib.dnnl_cpu_isa_avx512_core_vnni)
        return int(self.lib.dnnl_get_effective_cpu_isa()) & vnni == vnni

    @property
    def current_threads(self) -> int:
        """The number of OpenMP threads that a kernel uses if this OS thread creates it now; 0 for a
        build without OpenMP.
        """
        return int(self.lib.omp_get_max_threads()) if self.max_threads else 0

    def threads(self, count: int | None = None) -> Threads:
        """Returns a context manager. In it, kernels that this OS thread creates or executes use
        ``count`` OpenMP threads.

        A kernel must be executed with the same count as it was created with. A kernel made for two
        threads and run with one can corrupt the heap (measured: 3.2, bf16 LBR-GRU, packed weights).
        """
        return Threads(self, self.max_threads if count is None else count)


class Threads:
    """A context manager that sets the number of OpenMP threads; `contextlib.contextmanager` would
    take 2 us more.
    """

    __slots__ = ("_before", "_count", "_library")

    def __init__(self, library: Library, count: int) -> None:
        self._library, self._count, self._before = library, count, count

    def __enter__(self) -> None:
        library, count = self._library, self._count
        if count != 1 and threading.get_ident() == _forked:
            raise LibraryError(
                "oneDNN was loaded before this process was forked, and its threads do not survive"
                " that; use threads=1, load the first model after the fork, or start the process"
                " with 'spawn'"
            )
        if library.max_threads:
            self._before = library.lib.omp_get_max_threads()
            if self._before != count:
                library.lib.omp_set_num_threads(count)
        elif count > 1:
            raise LibraryError(
                f"{library.path}: threads={count}: expected 1, the library is not an OpenMP build"
            )

    def __exit__(self, *error: object) -> None:
        if self._before != self._count:
            self._library.lib.omp_set_num_threads(self._before)


_library: Library | None = None
_forked: int | None = None


def load_library() -> Library:
    """Returns the library of this process. Raises `LibraryError` with the cause and a remedy."""
    global _library
    with CREATION:
        if _library is None:
            _library = _load(find())
        return _library


def other_copies() -> list[Path]:
    """Returns the other files named libdnnl, libonednn or libmkldnn that this process has
    mapped.
    """
    try:
        lines = Path("/proc/self/maps").read_text(errors="replace").splitlines()
    except OSError:  # not Linux
        return []
    files = {Path(line.split(maxsplit=5)[-1]) for line in lines}
    own = None if _library is None else _library.mapped
    return sorted(f for f in files if f.name.startswith(_NAMES) and f != own)


def _after_fork() -> None:
    """Records the main thread of a forked child, whose OpenMP threads no longer exist.

    The main thread would wait for these threads forever. Measured: every kernel with two threads
    hangs, every kernel with one thread is right. Threads that the child starts have their own
    OpenMP threads.
    """
    global _forked
    if _library is not None:
        _forked = threading.get_ident()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _load(path: Path) -> Library:
    elf = read_elf(path)
    lib, mapped = _open_in_place(elf) if elf.neighbours else _open_private(elf)
    try:
        number = lib.dnnl_version()
    except ffi.error:
        raise LibraryError(
            f"{path}: expected a libdnnl, which has dnnl_version; {ADVICE}"
        ) from None
    version = f"{number.major}.{number.minor}.{number.patch}"
    if number.major != 3 or number.minor < 2:
        raise LibraryError(f"{path}: expected oneDNN 3.2 or newer 3.x, got {version}; {ADVICE}")
    _check_isa_cap(lib, path, version)
    openmp = number.cpu_runtime == lib.DNNL_RUNTIME_OMP
    threads = lib.omp_get_max_threads() if openmp else 0
    library = Library(ffi, lib, path, mapped, version, threads, None)
    wish = read_isa_cap()
    if wish in ONEDNN and not any(map(os.environ.get, ONEDNN_MAX_ISA)):
        cap = getattr(lib, f"dnnl_cpu_isa_{ONEDNN[wish]}")
        library.check(lib.dnnl_set_max_cpu_isa(cap), f"{path}: {MAX_ISA}={wish}")
    engine = ffi.new("dnnl_engine_t *")
    library.check(lib.dnnl_engine_create(engine, lib.dnnl_cpu, 0), f"{path}: CPU engine")
    return replace(library, engine=engine[0])


def _check_isa_cap(lib: Any, path: Path, version: str) -> None:
    """Raises `LibraryError` for an unknown instruction set in an environment variable. oneDNN
    itself would ignore the variable.
    """
    known = [n.removeprefix("dnnl_cpu_isa_") for n in dir(lib) if n.startswith("dnnl_cpu_isa_")]
    for variable in ONEDNN_MAX_ISA:
        wish = os.environ.get(variable, "").lower()
        if wish in ("", "all", *known) or f"cpu_isa_{wish}\0".encode() in path.read_bytes():
            continue  # another copy may be newer and know a name that `lib` lacks
        raise LibraryError(
            f"{variable}={os.environ[variable]}: expected an instruction set of oneDNN {version};"
            f" unset it, or set it to one of {', '.join(known).upper()}"
        )


def _dlopen(file: str) -> Any:
    # NODELETE: without it, Python's exit unmaps libgomp while its threads wait, and one process in
    # twenty ends with a segmentation fault.
    return ffi.dlopen(file, os.RTLD_NOW | os.RTLD_LOCAL | os.RTLD_DEEPBIND | os.RTLD_NODELETE)


def _open_in_place(elf: ElfLibrary) -> tuple[Any, Path]:
    names = ", ".join(path.name for path in elf.neighbours)
    if others := other_copies():
        raise LibraryError(
            f"{elf.path}: needs {names} in its folder and cannot be loaded from a copy while"
            f" {others[0]} is loaded in this process; load onernn's library first, or {ADVICE}"
        )
    try:
        return _dlopen(str(elf.path)), elf.path.resolve()
    except OSError as error:
        raise _unloadable(elf.path, error) from None


def _open_private(elf: ElfLibrary) -> tuple[Any, Path]:
    for copy in (copy_to_cache, copy_to_memory):
        try:
            file = copy(elf)
            return _dlopen(str(file)), file
        except OSError as error:  # the home folder is read-only, full or noexec: try memory
            failure = error
    raise _unloadable(elf.path, failure)


def _unloadable(path: Path, error: OSError) -> LibraryError:
    reason = str(error).rpartition("': ")[2]  # removes the path of the copy from the message
    if reason.startswith("libgomp.so.1: cannot open"):
        return LibraryError(
            f"{path}: needs libgomp.so.1, GNU's OpenMP runtime, which this system lacks; run:"
            " apt-get install libgomp1 (Debian, Ubuntu) or dnf install libgomp (Fedora, RHEL)"
        )
    return LibraryError(f"{path}: cannot be loaded: {reason}")
