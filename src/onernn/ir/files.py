"""Replaces files completely or not at all, checks paths, and reads arrays of an ``.npz``."""

from __future__ import annotations

import errno
import fcntl
import math
import os
import signal
import stat
import struct
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
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
"""The suffix of the files that ``onernn compile`` writes."""


def is_compiled(model: object) -> bool:
    """Returns whether a model is a path with the suffix of compiled files."""
    return isinstance(model, str | os.PathLike) and str(os.fspath(model)).endswith(COMPILED)


def inside(folder: Path, name: object, what: str, told_by: Path) -> Path:
    """Returns the resolved path of a file that a model names; the file must be in the folder.

    A link in the folder may also lead into a hub's cache of the model's files (`_stores`). Raises
    `ModelFormatError` for ``..``, absolute paths and links that leave the folder. ``what``: the
    beginning of the message; ``told_by``: the file that contains the name.
    """
    if isinstance(name, str) and name and "\0" not in name:
        result, root = (folder / name).resolve(), folder.resolve()
        if result.is_relative_to(root):
            return result
        named_inside = not os.path.isabs(name) and ".." not in Path(name).parts
        if named_inside and any(map(result.is_relative_to, _stores(root, told_by))):
            return result
    raise ModelFormatError(
        f"{what}: expected a file in the model's folder, got {name!r}; copy it there",
        told_by,
    )


def _stores(root: Path, told_by: Path) -> Iterator[Path]:
    """Yields folders that may hold the linked files of a model.

    If the model's own file is a link, this is the folder of the link's target. A Hugging Face cache
    has the links of each revision in ``snapshots/``. The cache holds all files in ``blobs/``, a
    folder next to ``snapshots/`` that is not a link.
    """
    if os.path.islink(told_by):
        yield told_by.resolve().parent
    for each in (root, *root.parents):
        if each.name == "snapshots":
            yield each.with_name("blobs")


def as_argument(path: str | os.PathLike[str]) -> str:
    """Returns a path as a command-line argument; puts "./" before a leading "-", which programs
    would read as an option.
    """
    text = os.fspath(path)
    return f"./{text}" if text.startswith("-") else text


def check_file(path: str | Path) -> None:
    """Raises `ModelFormatError` for a path that is not a regular file: reading a pipe would
    block.
    """
    if not os.path.isfile(path):
        if not os.path.exists(path):
            raise ModelFormatError("no such file or folder; check the path", path)
        kind = "a folder" if os.path.isdir(path) else "a pipe or device"
        raise ModelFormatError(f"expected a file, got {kind}", path)


def check_folder(path: str | Path) -> None:
    """Raises `FileNotFoundError` if the folder in which a file will be written does not exist."""
    folder = Path(path).parent
    if not folder.is_dir():
        reason = f"the folder {folder} does not exist; create it"
        raise FileNotFoundError(errno.ENOENT, reason, str(path))


def only_file(candidates: Iterable[Path], argument: str) -> Path | None:
    """Returns the only candidate that is a regular file, or None.

    Pipes are ignored, because reading one would block.

    Raises `ModelFormatError` for several files; the error names the ``argument`` that chooses.
    """
    files = [file for file in candidates if os.path.isfile(file)]
    if len(files) > 1:
        names = ", ".join(map(str, files))
        raise ModelFormatError(f"{argument}: expected one file, got {names}; pass one of them")
    return files[0] if files else None


@contextmanager
def replacing(path: str | Path) -> Iterator[BinaryIO]:
    """Yields a stream for the new content of a file, which replaces the file when the block ends.

    The old file remains unchanged if the block raises, the disk is full or the process dies. Raises
    `OSError` naming the file.
    """
    with replacing_all([path]) as (stream,):
        yield stream


@contextmanager
def replacing_all(paths: Iterable[str | Path]) -> Iterator[list[BinaryIO]]:
    """Yields a stream for the new content of each file of a set.

    ``paths`` begins with the file that readers open first. All content is on the disk before the
    first file is replaced. Old and new files are never mixed: if the process is killed while it
    renames them, the first file is missing. After SIGINT, SIGTERM or SIGHUP the old files are back.
    """
    with ExitStack() as stack:
        new = [stack.enter_context(_NewFile(path)) for path in paths]
        yield [each.stream for each in new]
        for each in new:
            each.complete()
        _rename([each for each in new if each.part])


@contextmanager
def staging(path: str | Path) -> Iterator[tuple[Path, Callable[[], None]]]:
    """Makes a temporary folder for new files; removes the folder when the block ends.

    Yields the path of the file ``path`` in that folder, and a function. The function moves all
    files of that folder to the folder of ``path``, as `replacing_all` does. Raises `OSError`, which
    names the file in the folder of ``path``.
    """
    from shutil import copyfileobj, rmtree  # slow to import; most processes do not need them

    path = Path(path)
    with _naming(path):
        folder, handle = new_part(path.resolve().parent, os.O_DIRECTORY)

    def keep() -> None:
        made = sorted(os.listdir(folder), key=lambda name: (name != path.name, name))
        with replacing_all(path.with_name(name) for name in made) as streams:
            for name, stream in zip(made, streams, strict=True):
                with open(Path(folder, name), "rb") as content:
                    copyfileobj(content, stream)

    try:
        yield Path(folder, path.name), keep
    except OSError as error:
        if os.path.dirname(str(error.filename)) == folder:
            error.filename = str(path.with_name(os.path.basename(str(error.filename))))
        raise
    finally:
        rmtree(folder, ignore_errors=True)
        os.close(handle)


class _NewFile:
    """A file's new content, which is written under a temporary name in the file's folder."""

    def __init__(self, path: str | Path) -> None:
        # A link stays a link: its target is replaced. The pipe of /dev/stdout has no real path.
        real = os.path.realpath(path)
        self.path = real if os.path.exists(real) or not os.path.exists(path) else os.fspath(path)
        self.part: str | None = None

    def __enter__(self) -> _NewFile:
        mode = None
        with _naming(self.path):
            if os.path.exists(self.path):
                mode = os.stat(self.path).st_mode
            if mode is not None and not stat.S_ISREG(mode):  # /dev/stdout: nothing to replace
                self.stream: BinaryIO = open(self.path, "wb")
                return self
            self.part, handle = new_part(os.path.dirname(self.path))
            self.stream = open(handle, "wb")
            if mode is not None:
                os.fchmod(handle, stat.S_IMODE(mode))
        return self

    def complete(self) -> None:
        """Writes the buffered content to the disk. The open stream keeps the temporary file
        locked.
        """
        with _naming(self.path):
            self.stream.flush()
            if self.part is not None:
                os.fsync(self.stream.fileno())

    def rename(self) -> None:
        assert self.part is not None
        _move(self.part, self.path)
        self.part = None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            with _naming(self.path):
                self.stream.close()  # writes the buffer: the disk may still be full
        except OSError:
            if error is None:
                raise
        finally:
            if self.part is not None:
                Path(self.part).unlink(missing_ok=True)
        # A write inside of the block does not know the file's name.
        if isinstance(error, OSError) and error.filename is None:
            error.filename = self.path


@contextmanager
def _naming(path: str | Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if isinstance(error, FileNotFoundError):
            check_folder(path)
        error.filename = str(path)
        raise


def _rename(files: list[_NewFile]) -> None:
    """Renames complete files to their final names; moves the old files of a set away first."""
    if len(files) < 2:
        for each in files:
            each.rename()
        return
    old: list[tuple[str, str]] = []
    with _stopped_by_exceptions(), _turn(os.path.dirname(files[0].path)):
        try:
            for each in files:
                if os.path.isfile(each.path):
                    old.append((_part_in(os.path.dirname(each.path)), each.path))
                    _move(each.path, old[-1][0])
            for each in reversed(files):
                each.rename()
        except BaseException:  # restores the old set, its first file last
            for each in files:
                if each.part is None:
                    os.unlink(each.path)
            for part, path in reversed(old):
                if os.path.exists(part):
                    _move(part, path)
            raise
        for part, _ in old:
            Path(part).unlink(missing_ok=True)


@contextmanager
def _stopped_by_exceptions() -> Iterator[None]:
    """Makes the first signal that asks the process to end raise an exception, and ignores further
    signals.

    Python has handlers in the main thread only; in other threads the block changes nothing.
    """

    def stop(number: int, _: object) -> None:
        for each in before:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)

    is_main = threading.current_thread() is threading.main_thread()
    asking = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if is_main else ()
    usual = (signal.SIG_DFL, signal.default_int_handler)
    before = {each: how for each in asking if (how := signal.getsignal(each)) in usual}
    for each in before:
        signal.signal(each, stop)
    try:
        yield
    finally:
        for each, how in before.items():
            signal.signal(each, how)


def _move(path: str, to: str) -> None:
    with _naming(path):
        os.replace(path, to)
        folder = os.open(os.path.dirname(to), os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


# Temporary files and folders: the process that makes a file or folder locks it, and the lock ends
# with the process. So the next process in the folder can recognise and remove files that a killed
# process left.


def _part_in(folder: str | Path, name: str = "") -> str:
    return os.path.join(folder, f".onernn-{name or os.urandom(8).hex()}.part")


def new_part(
    folder: str | Path, flags: int = os.O_RDWR | os.O_CREAT | os.O_EXCL, mode: int = 0o666
) -> tuple[str, int]:
    """Makes a file, or with O_DIRECTORY a folder; returns its path, and a handle that locks it."""
    _remove_abandoned(folder)
    while True:
        part = _part_in(folder)
        if flags & os.O_DIRECTORY:
            os.mkdir(part)
        if (handle := _lock(part, flags, mode=mode)) is not None:
            return part, handle


@contextmanager
def _turn(folder: str) -> Iterator[None]:
    """Locks a folder, in which only one thread of all processes may rename a set of files at a
    time.
    """
    part = _part_in(folder, "turn")
    while (handle := _lock(part, os.O_RDWR | os.O_CREAT)) is None:
        pass
    try:
        yield
    finally:
        Path(part).unlink(missing_ok=True)
        os.close(handle)


def _lock(part: str, flags: int, how: int = fcntl.LOCK_EX, mode: int = 0o666) -> int | None:
    """Returns a handle that locks a temporary file or folder; None if another process removed it.

    With LOCK_NB it raises `OSError` if another process holds the lock, or if the file system has no
    locks. Without locks, no process removes the files of other processes.
    """
    is_locked = False
    try:
        handle = os.open(part, flags | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    except FileNotFoundError:
        if flags & os.O_CREAT:
            raise
        return None
    try:
        with nullcontext() if how & fcntl.LOCK_NB else suppress(OSError):
            fcntl.flock(handle, how)
        with suppress(FileNotFoundError):
            is_locked = os.path.samestat(os.fstat(handle), os.lstat(part))
        return handle if is_locked else None
    finally:
        if not is_locked:
            os.close(handle)


def _remove_abandoned(folder: str | Path) -> None:
    begin, end = _part_in("", "*").split("*")
    try:
        names = os.listdir(folder)
    except OSError:
        return
    for name in [name for name in names if name.startswith(begin) and name.endswith(end)]:
        part = os.path.join(folder, name)
        with suppress(OSError):
            mode = os.lstat(part).st_mode
            if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
                continue
            handle = _lock(part, os.O_RDONLY, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if handle is None:
                continue
            try:
                if stat.S_ISDIR(mode):
                    from shutil import rmtree

                    rmtree(part)
                else:
                    os.unlink(part)
            finally:
                os.close(handle)


# Archives and the arrays in them.

_PIECE = 2**20
_ENTRY = 24
"""Bytes that zipfile's objects take for each byte of an archive's directory, in which a member has
47 bytes or more.
"""
ARRAY = 512
"""Bytes that an array takes in addition to its elements, with its name and its entries in
dictionaries.
"""
_MOST_HEADER = 10_000
"""The maximum number of bytes in the header of an ``.npy``, the same as in NumPy; checked before
the header is read.
"""


class _Directory:
    """A stream from which zipfile reads an archive's directory; the budget counts zipfile's
    objects.
    """

    def __init__(self, stream: IO[bytes], budget: FileBudget) -> None:
        self.stream, self.budget = stream, budget
        self.seek, self.tell, self.seekable = stream.seek, stream.tell, stream.seekable

    def read(self, size: int = -1) -> bytes:
        if size > 0:  # without a size, zipfile reads the end record and comment
            self.budget.take(_ENTRY * size, "the archive's directory")
        return self.stream.read(size)


@contextmanager
def unzip(stream: IO[bytes], what: str, file: str | Path) -> Iterator[ZipFile]:
    """Opens an archive in a stream; ``file`` and ``what`` are for errors.

    Raises `ModelFormatError` for damaged archives, and `BudgetError` for too many members.
    """
    from zipfile import ZipFile  # slow to import, and few models are archives

    try:
        with ZipFile(cast(Any, _Directory(stream, loading()))) as archive:
            archive.fp = cast(Any, stream)  # the budget counts members when they are read
            yield archive
    except (OnernnError, FileNotFoundError):
        raise
    except Exception as error:  # zipfile raises many kinds of exceptions
        raise ModelFormatError(f"{what}: {str(error)[:200]}", file) from error


@contextmanager
def open_member(archive: ZipFile, member: ZipInfo) -> Iterator[IO[bytes]]:
    """Opens the bytes of a member, to read them in pieces.

    Raises `ValueError` for a compression other than deflate: lzma and bzip2 take as much memory as
    the file requests.
    """
    if member.compress_type not in (0, 8):
        raise ValueError(f"{member.filename}: expected no compression, or deflate")
    with archive.open(member) as stream:
        yield stream


def member_bytes(archive: ZipFile, member: ZipInfo) -> bytes:
    """Returns all bytes of a member; the budget of the load counts them.

    Raises the same errors as `open_member`.
    """
    loading().take(member.file_size, member.filename)
    with open_member(archive, member) as stream:
        return stream.read(member.file_size)


def read_member(archive: ZipFile, member: ZipInfo) -> Array:
    """Returns the array of a member, within the budget of the load; reads nothing else of the file.

    Raises `BudgetError`. Raises `ValueError`, or an error of zipfile, if the member is not an
    array.
    """
    size, name = member.file_size, member.filename
    if size > member.compress_size:  # checked before decompression
        loading().ask(size, f"{name}, which np.savez stores uncompressed,")
    with open_member(archive, member) as stream:
        version = np.lib.format.read_magic(stream)
        if version not in ((1, 0), (2, 0)):
            raise ValueError(f"{name}: expected npy version 1.0 or 2.0, got {version}")
        form = "<H" if version == (1, 0) else "<I"
        packed = stream.read(struct.calcsize(form))
        (length,) = struct.unpack(form, packed)
        if length > _MOST_HEADER:
            raise ValueError(
                f"{name}: expected a header of at most {_MOST_HEADER:,} bytes, got {length:,}"
            )
        header = BytesIO(packed + stream.read(length))
        parts = np.lib.format
        parse = parts.read_array_header_1_0 if form == "<H" else parts.read_array_header_2_0
        shape, fortran, dtype = parse(header)
        if dtype.hasobject or not dtype.itemsize or min(shape, default=0) < 0:
            raise ValueError(f"{name}: expected an array of numbers or text, got {dtype} {shape}")
        if math.prod(max(axis, 1) for axis in shape) * dtype.itemsize > max(size, LOADING):
            raise ValueError(
                f"{name}: {dtype} {shape} does not fit its {size} bytes; it is damaged"
            )
        loading().take(math.prod(shape) * dtype.itemsize + ARRAY, name)
        flat = np.empty(math.prod(shape), dtype)
        left = flat.view(np.uint8).data
        while left:
            piece = stream.read(min(len(left), _PIECE))
            if not piece:
                raise ValueError(
                    f"{name}: {len(left)} of {flat.nbytes} bytes are missing; it is damaged"
                )
            left[: len(piece)] = piece
            left = left[len(piece) :]
    return flat.reshape(shape, order="F" if fortran else "C")


def npz_arrays(file: str | Path, prefixes: tuple[str, ...] = ("",)) -> dict[str, Array]:
    """Returns the arrays of an ``.npz`` whose names begin with a prefix; other arrays are not read.

    Raises `ModelFormatError` if the file is not an ``.npz``, or holds Python objects. Raises
    `BudgetError` if the arrays would take more than `onernn.load` may take for a model of this
    size.
    """
    check_file(file)
    try:
        with budget_of_load(), open(file, "rb") as stream:
            loading().reads(os.fstat(stream.fileno()))
            with unzip(stream, "cannot be read as an .npz", file) as archive:
                members = {m.filename.removesuffix(".npy"): m for m in archive.infolist()}
                return {
                    name: read_member(archive, member)
                    for name, member in members.items()
                    if name.startswith(prefixes)
                }
    except BudgetError as error:
        raise BudgetError(f"{file}: {error}") from error
