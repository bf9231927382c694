"""Files: replaced whole or not at all, inside a folder, and arrays of an ``.npz``."""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from onernn.ir.arrays import Array
from onernn.ir.budget import LOADING, Budget, usable_memory
from onernn.ir.errors import BudgetError, ModelFormatError, OnernnError

if TYPE_CHECKING:
    from zipfile import ZipFile, ZipInfo


COMPILED = ".onernn"
"""The suffix of compiled files."""


def is_compiled(model: object) -> bool:
    """Whether this is the path of a compiled file, by its name."""
    return isinstance(model, str | os.PathLike) and str(os.fspath(model)).endswith(COMPILED)


def inside(folder: Path, name: object, what: str, told_by: Path) -> Path:
    """The path of a file that a model names, links followed; it lies in the folder.

    Raises `ModelFormatError` for ``..``, absolute paths and links that leave the folder. ``what``:
    whose file it is; ``told_by``: the file that names it.
    """
    if isinstance(name, str) and name and "\0" not in name:
        result = (folder / name).resolve()
        if result.is_relative_to(folder.resolve()):
            return result
    raise ModelFormatError(
        f"{what}: its file {name!r} would lie outside of the model's folder; copy it there",
        told_by,
    )


def check_file(path: str | Path) -> None:
    """Raises `ModelFormatError` for what is no file: a pipe would be waited for."""
    if not os.path.isfile(path):
        is_there = os.path.exists(path)
        raise ModelFormatError("a folder, pipe or device" if is_there else "no such file", path)


def only_file(candidates: Iterable[Path], argument: str) -> Path | None:
    """The one that is a file, or None: a pipe in a folder would be waited for.

    Raises `ModelFormatError` for several; it names the ``argument`` that chooses.
    """
    files = [file for file in candidates if os.path.isfile(file)]
    if len(files) > 1:
        names = ", ".join(map(str, files))
        raise ModelFormatError(f"several candidates, give one as {argument}: {names}")
    return files[0] if files else None


@contextmanager
def replacing(path: str | Path) -> Iterator[BinaryIO]:
    """A stream for the new content of a file: it gets the file's name when the block ends.

    Until then, and where the block raises, the disk is full or the process dies, the old file
    stays as it was. Raises `OSError` naming the file.
    """
    with replacing_all([path]) as (stream,):
        yield stream


@contextmanager
def replacing_all(paths: Iterable[str | Path]) -> Iterator[list[BinaryIO]]:
    """A stream for each file; none of the files is replaced before all content is on the disk."""
    with ExitStack() as stack:
        new = [stack.enter_context(_NewFile(path)) for path in paths]
        yield [each.stream for each in new]
        for each in new:
            each.complete()
        for each in new:
            each.rename()


class _NewFile:
    """The content of a file under a name of its own, in the folder of the file."""

    def __init__(self, path: str | Path) -> None:
        # A link stays a link: the file that it names is replaced.
        self._path = os.path.realpath(path)
        self._part: str | None = None

    def __enter__(self) -> _NewFile:
        mode = None
        with self._named():
            if os.path.exists(self._path):
                mode = os.stat(self._path).st_mode
            if mode is not None and not stat.S_ISREG(mode):  # /dev/stdout: nothing to replace
                self.stream: BinaryIO = open(self._path, "wb")
                return self
            folder = os.path.dirname(self._path)
            part = os.path.join(folder, f".onernn-{os.urandom(8).hex()}.part")
            self.stream = open(part, "xb")
            self._part = part
            if mode is not None:
                os.chmod(part, stat.S_IMODE(mode))
        return self

    def complete(self) -> None:
        with self._named():
            self.stream.flush()
            if self._part is not None:
                os.fsync(self.stream.fileno())
            self.stream.close()

    def rename(self) -> None:
        if self._part is None:
            return
        with self._named():
            os.replace(self._part, self._path)
            self._part = None
            folder = os.open(os.path.dirname(self._path), os.O_RDONLY)
            try:
                os.fsync(folder)  # the name is on the disk, too
            finally:
                os.close(folder)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            with self._named():
                self.stream.close()  # writes what is buffered: the disk may still be full
        except OSError:
            if error is None:
                raise
        finally:
            if self._part is not None:
                Path(self._part).unlink(missing_ok=True)
        # A write inside of the block does not know the file's name.
        if isinstance(error, OSError) and error.filename is None:
            error.filename = self._path

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Errors name the file, not its part."""
        try:
            yield
        except OSError as error:
            error.filename = self._path
            raise


# Arrays of an ``.npz``: a size is believed only where the bytes for it are there.

_MOST_PACKED = 100
"""Bytes that a packed one may become, beyond what is always allowed; numbers give 1 to 20."""
_PIECE = 2**20


def most_unpacked(packed: int) -> int:
    """Most bytes that so many packed bytes may become, in a member and in a whole file."""
    return LOADING + _MOST_PACKED * packed


@contextmanager
def unzipped(stream: Any, what: str, file: str | Path) -> Iterator[ZipFile]:
    """An archive in a stream or a file; ``file`` and ``what`` it is not are for errors.

    Raises `ModelFormatError` for what is none, or has damaged members.
    """
    from zipfile import ZipFile  # slow, and few models are one

    try:
        with ZipFile(stream) as archive:
            yield archive
    except (OnernnError, FileNotFoundError):
        raise
    except Exception as error:  # zipfile, zlib, lzma and tokenize each raise kinds of their own
        raise ModelFormatError(f"{what}: {str(error)[:200]}", file) from error


def read_member(archive: ZipFile, member: ZipInfo, budget: Budget) -> Array:
    """The array of a member; nothing else of the file is read.

    Raises `BudgetError`, and `ValueError`, or what zipfile does, for what is none.
    """
    size, name = member.file_size, member.filename
    if size > most_unpacked(member.compress_size):
        raise ValueError(
            f"{name}: {member.compress_size:,} bytes would become {size:,}; store it uncompressed"
        )
    budget.take(size, name)
    with archive.open(member) as stream:
        version = np.lib.format.read_magic(stream)
        header: Any = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }.get(version)
        if header is None:
            raise ValueError(f"{name}: npy version {version}")
        shape, fortran, dtype = header(stream)
        if dtype.hasobject or not dtype.itemsize or min(shape, default=0) < 0:
            raise ValueError(f"{name}: an array of {dtype} {shape}")
        if math.prod(max(axis, 1) for axis in shape) * dtype.itemsize > max(size, LOADING):
            raise ValueError(f"{name}: an array of {dtype} {shape} in {size} bytes")
        flat = np.empty(math.prod(shape), dtype)
        left = flat.view(np.uint8).data
        while left:
            piece = stream.read(min(len(left), _PIECE))
            if not piece:
                raise ValueError(f"{name}: {len(left)} of {flat.nbytes} bytes are missing")
            left[: len(piece)] = piece
            left = left[len(piece) :]
    return flat.reshape(shape, order="F" if fortran else "C")


def npz_arrays(file: str | Path, prefixes: tuple[str, ...] = ("",)) -> dict[str, Array]:
    """The arrays of an ``.npz`` whose names begin so; the others are not read.

    Raises `ModelFormatError` if it is none, or holds objects, and `BudgetError` where they would
    take more than the file can hold, or three quarters of the memory.
    """
    check_file(file)
    try:
        with unzipped(file, "cannot be read as an .npz", file) as archive:
            budget = Budget(min(usable_memory(), most_unpacked(os.path.getsize(file))))
            members = {m.filename.removesuffix(".npy"): m for m in archive.infolist()}
            return {
                name: read_member(archive, member, budget)
                for name, member in members.items()
                if name.startswith(prefixes)
            }
    except BudgetError as error:
        raise BudgetError(f"{file}: {error}") from error
