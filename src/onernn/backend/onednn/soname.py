"""Shared libraries under a private SONAME: what an ELF file says of itself, and renamed copies."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from pathlib import Path

from onernn.backend.cache import keep, memory_file
from onernn.ir.errors import LibraryError
from onernn.ir.records import dataclass
from onernn.kernels.build import cache_folder

_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_NEEDED, _DT_STRTAB, _DT_SONAME, _DT_RPATH, _DT_RUNPATH = 1, 5, 14, 15, 29
_CHUNK = 1 << 20


@dataclass(frozen=True)
class ElfLibrary:
    """A shared library: the offset of the byte to rename, and what it finds through $ORIGIN."""

    path: Path
    edit: int | None
    neighbours: tuple[Path, ...]

    def renamed(self) -> Iterator[bytes]:
        """The file in chunks, with libdnnl.so.3 calling itself libdnnP.so.3: one byte differs."""
        start, edit = 0, -1 if self.edit is None else self.edit
        with open(self.path, "rb", buffering=0) as file:
            while chunk := file.read(_CHUNK):
                if 0 <= (at := edit - start) < len(chunk):
                    chunk = chunk[:at] + b"P" + chunk[at + 1 :]
                start += len(chunk)
                yield chunk


def read_elf(path: Path) -> ElfLibrary:
    """How ``path`` can be loaded; `LibraryError` if it is no whole 64-bit ELF library."""
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _parse(path, data)
    except OSError as error:
        raise LibraryError(f"{path}: {error.strerror}") from None
    except (struct.error, ValueError, KeyError, OverflowError):  # mmap of nothing: ValueError
        raise LibraryError(f"{path}: not a 64-bit ELF library, or a truncated one") from None


def _parse(path: Path, data: mmap.mmap) -> ElfLibrary:
    if data[:6] != b"\x7fELF\x02\x01":  # 64 bit, little endian
        raise ValueError
    (table,) = struct.unpack_from("<Q", data, 32)
    entry, count = struct.unpack_from("<HH", data, 54)
    segments = [struct.unpack_from("<I4xQQ8xQ", data, table + i * entry) for i in range(count)]
    loads = [(at, address, size) for kind, at, address, size in segments if kind == _PT_LOAD]
    if any(at + size > len(data) for at, _, size in loads):
        raise ValueError  # the loader would map it, and the process die of SIGBUS later
    (dynamic,) = (data[at : at + size] for kind, at, _, size in segments if kind == _PT_DYNAMIC)
    entries: dict[int, list[int]] = {}
    for tag, value in struct.iter_unpack("<qQ", dynamic):
        entries.setdefault(tag, []).append(value)
    (base,) = entries[_DT_STRTAB]
    (strings,) = (at + base - address for at, address, size in loads if 0 <= base - address < size)

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
    edit = None  # a library without a SONAME clashes with nobody
    for name in texts(_DT_SONAME):
        edit = strings + entries[_DT_SONAME][0] + len(name.partition(".")[0].encode()) - 1
    return ElfLibrary(path, edit, tuple(p for p in beside if p.exists()))


def cached_copy(elf: ElfLibrary) -> Path:
    """A private copy in the user's cache directory, made now or equal to the original.

    The whole copy is compared with the original at every load, which costs 10 ms for 54 MB (SHA-256
    of the copy alone: 35 ms) and trusts nothing: no name, date, size or hash kept elsewhere. So the
    name only has to differ for different builds: the first megabyte holds all symbols' addresses.
    """
    import hashlib  # loads OpenSSL, which nothing else of a run needs

    name = hashlib.sha256(next(elf.renamed())).hexdigest()[:16]
    target = cache_folder() / f"libdnnP-{name}.so"
    if not _is_copy(target, elf):
        keep(target, elf.renamed())
    return target


def _is_copy(target: Path, elf: ElfLibrary) -> bool:
    if not target.is_file():
        return False
    with open(target, "rb", buffering=0) as file:
        same = all(file.read(len(chunk)) == chunk for chunk in elf.renamed())
        return same and not file.read(1)


def memory_copy(elf: ElfLibrary) -> Path:
    """A private copy in memory."""
    return memory_file("libdnnP", elf.renamed())
