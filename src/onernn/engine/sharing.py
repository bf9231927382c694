"""Numbers of a model in a file that processes map: they share its pages."""

from __future__ import annotations

import os
import pickle
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, Generic, TypeVar

from onernn.ir.errors import OnernnError
from onernn.ir.files import new_part

T = TypeVar("T")
_ALIGNMENT = 64
_STAMP = 64
"""Bytes in front of the numbers that identify the file."""


class SharedFileError(OnernnError):
    """The file behind a `Shared` is not there any more, or is another one."""


class Shared(Generic[T]):
    """An object whose arrays lie in a file; pickled it is small, as the file stays where it is."""

    def __init__(
        self, path: Path, stamp: bytes, pickled: bytes, spans: tuple[tuple[int, int], ...]
    ) -> None:
        self._path, self._stamp, self._pickled, self._spans = path, stamp, pickled, spans

    def open(self) -> T:
        """Returns the object, its arrays mapped read-only; it keeps them when the file's name is
        gone.
        """
        try:
            with open(self._path, "rb") as file:
                content = memoryview(mmap(file.fileno(), 0, access=ACCESS_READ))
        except (OSError, ValueError) as error:
            raise SharedFileError(
                f"{self._path}: {error}; open() works on the machine where onernn.shared() made the"
                " file, and as long as its block lasts"
            ) from None
        if content[:_STAMP] != self._stamp or len(content) < max(end for _, end in self._spans):
            raise SharedFileError(f"{self._path}: not the file that onernn.shared() made")
        made: T = pickle.loads(self._pickled, buffers=[content[a:b] for a, b in self._spans])
        return made


@contextmanager
def shared(model: T, folder: str | Path | None = None) -> Iterator[Shared[T]]:
    """A model for other processes of this machine: each calls `Shared.open`, and all of them share
    the pages of its weights, those that are packed for the kernels among them.

    ``model``: a `Session`, or anything that pickle takes. ``folder``: of the file that holds the
    numbers, by default that of temporary files. The file is removed when the block ends; processes
    that have opened it keep their pages. Raises `OSError` where the folder has no room.
    """
    buffers: list[pickle.PickleBuffer] = []
    pickled = pickle.dumps(model, 5, buffer_callback=buffers.append)
    stamp = os.urandom(_STAMP)
    for_this_user = os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600
    path, handle = new_part(folder or tempfile.gettempdir(), *for_this_user)
    try:
        with open(handle, "wb", closefd=False) as file:
            file.write(stamp)
            spans = tuple(_find_written(file, buffer) for buffer in buffers)
        yield Shared(Path(path).absolute(), stamp, pickled, spans)
    finally:
        os.unlink(path)
        os.close(handle)


def _find_written(file: Any, buffer: pickle.PickleBuffer) -> tuple[int, int]:
    """The places of a buffer's first byte, on a cache line, and of its end."""
    start = file.tell()
    start += file.write(bytes(-start % _ALIGNMENT))
    with buffer.raw() as content:
        return start, start + file.write(content)
