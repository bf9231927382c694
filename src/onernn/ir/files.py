"""Files: replaced whole or not at all, inside a folder, and arrays of an ``.npz``."""

from __future__ import annotations

import math
import os
import stat
import struct
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from io import BytesIO
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO, cast

import numpy as np

from onernn.ir.arrays import Array
from onernn.ir.budget import LOADING, FileBudget, budget_of_load, loading
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


# Archives and the arrays in them: a size is believed only where the bytes for it are there.

_PIECE = 2**20
_ENTRY = 24
"""Bytes of zipfile's objects for each byte of an archive's directory; a member has 47 or more."""
ARRAY = 512
"""Bytes that an array takes besides its numbers, with its name and its places in dictionaries."""
_MOST_HEADER = 10_000
"""Bytes of an ``.npy``'s header, as NumPy limits it, but before it is read."""


class _Directory:
    """A stream of which zipfile reads an archive's directory: what it makes of that is taken."""

    def __init__(self, stream: IO[bytes], budget: FileBudget) -> None:
        self.stream, self.budget = stream, budget
        self.seek, self.tell, self.seekable = stream.seek, stream.tell, stream.seekable

    def read(self, size: int = -1) -> bytes:
        if size > 0:  # else the end of the file, where a comment may be
            self.budget.take(_ENTRY * size, "the archive's directory")
        return self.stream.read(size)


@contextmanager
def unzipped(stream: IO[bytes], what: str, file: str | Path) -> Iterator[ZipFile]:
    """An archive in a stream; ``file`` and ``what`` it is not are for errors.

    Raises `ModelFormatError` for what is none, or has damaged members, and `BudgetError` for one of
    too many members.
    """
    from zipfile import ZipFile  # slow, and few models are one

    try:
        with ZipFile(cast(Any, _Directory(stream, loading()))) as archive:
            archive.fp = cast(Any, stream)  # members are taken by those who read them
            yield archive
    except (OnernnError, FileNotFoundError):
        raise
    except Exception as error:  # zipfile, zlib, lzma and tokenize each raise kinds of their own
        raise ModelFormatError(f"{what}: {str(error)[:200]}", file) from error


@contextmanager
def opened_member(archive: ZipFile, member: ZipInfo) -> Iterator[IO[bytes]]:
    """The bytes of a member, piece after piece.

    Raises `ValueError` for a compression other than deflate: lzma and bzip2 take memory as the
    file says.
    """
    if member.compress_type not in (0, 8):
        raise ValueError(f"{member.filename}: compressed by another method than deflate")
    with archive.open(member) as stream:
        yield stream


def member_bytes(archive: ZipFile, member: ZipInfo) -> bytes:
    """All bytes of a member, which the budget of the load counts. Raises as `opened_member`."""
    loading().take(member.file_size, member.filename)
    with opened_member(archive, member) as stream:
        return stream.read(member.file_size)


def read_member(archive: ZipFile, member: ZipInfo) -> Array:
    """The array of a member, by the budget of the load; nothing else of the file is read.

    Raises `BudgetError`, and `ValueError`, or what zipfile does, for what is none.
    """
    size, name = member.file_size, member.filename
    if size > member.compress_size:  # before anything is inflated
        loading().ask(size, f"{name}, which np.savez stores uncompressed,")
    with opened_member(archive, member) as stream:
        version = np.lib.format.read_magic(stream)
        if version not in ((1, 0), (2, 0)):
            raise ValueError(f"{name}: npy version {version}")
        form = "<H" if version == (1, 0) else "<I"
        packed = stream.read(struct.calcsize(form))
        (length,) = struct.unpack(form, packed)
        if length > _MOST_HEADER:
            raise ValueError(f"{name}: a header of {length:,} bytes")
        header = BytesIO(packed + stream.read(length))
        parts = np.lib.format
        parse = parts.read_array_header_1_0 if form == "<H" else parts.read_array_header_2_0
        shape, fortran, dtype = parse(header)
        if dtype.hasobject or not dtype.itemsize or min(shape, default=0) < 0:
            raise ValueError(f"{name}: an array of {dtype} {shape}")
        if math.prod(max(axis, 1) for axis in shape) * dtype.itemsize > max(size, LOADING):
            raise ValueError(f"{name}: an array of {dtype} {shape} in {size} bytes")
        loading().take(math.prod(shape) * dtype.itemsize + ARRAY, name)
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
    take more than `onernn.load` may take for a model of this size.
    """
    check_file(file)
    try:
        with budget_of_load(), open(file, "rb") as stream:
            loading().reads(os.fstat(stream.fileno()))
            with unzipped(stream, "cannot be read as an .npz", file) as archive:
                members = {m.filename.removesuffix(".npy"): m for m in archive.infolist()}
                return {
                    name: read_member(archive, member)
                    for name, member in members.items()
                    if name.startswith(prefixes)
                }
    except BudgetError as error:
        raise BudgetError(f"{file}: {error}") from error
