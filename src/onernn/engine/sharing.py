"""Shares a model's arrays between processes that map one file."""

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
"""The number of bytes at the beginning of the file that identify it; the arrays follow."""


class SharedFileError(OnernnError):
    """Raised if the file of a `Shared` no longer exists, or was replaced by a different one."""


class Shared(Generic[T]):
    """An object whose arrays are in a file; its pickle is small because the arrays stay in the
    file.

    `share` makes such an object, and has an example.
    """

    def __init__(
        self, path: Path, stamp: bytes, pickled: bytes, spans: tuple[tuple[int, int], ...]
    ) -> None:
        self._path, self._stamp, self._pickled, self._spans = path, stamp, pickled, spans

    def open(self) -> T:
        """Returns the object, with its arrays mapped read-only; the arrays remain valid when the
        file is removed.

        Raises `SharedFileError` if the file no longer exists, or was replaced.
        """
        try:
            with open(self._path, "rb") as file:
                content = memoryview(mmap(file.fileno(), 0, access=ACCESS_READ))
        except (OSError, ValueError) as error:
            raise SharedFileError(
                f"{self._path}: {error}; open() works on the machine where onernn.share() made the"
                " file, and as long as its block lasts"
            ) from None
        if content[:_STAMP] != self._stamp or any(end > len(content) for _, end in self._spans):
            raise SharedFileError(
                f"{self._path}: expected the file that onernn.share() made; share the model again"
            )
        made: T = pickle.loads(self._pickled, buffers=[content[a:b] for a, b in self._spans])
        return made


@contextmanager
def share(model: T, folder: str | Path | None = None) -> Iterator[Shared[T]]:
    """Yields a model for other processes of this machine. Each process calls `Shared.open`, and all
    of them share the pages of the weights, including weights that are packed for the kernels.

    ``model``: a `Session`, or any object that pickle takes. ``folder``: the folder for the file
    that holds the arrays, by default the folder of temporary files. The file is removed when the
    block ends; processes that have opened it keep their pages. Raises `OSError` if the folder has
    too little free space.

    >>> with onernn.share({"weights": np.arange(3)}) as shared:
    ...     shared.open()["weights"].tolist()
    [0, 1, 2]
    """
    buffers: list[pickle.PickleBuffer] = []
    pickled = pickle.dumps(model, 5, buffer_callback=buffers.append)
    stamp = os.urandom(_STAMP)
    for_this_user = os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600
    path, handle = new_part(folder or tempfile.gettempdir(), *for_this_user)
    try:
        with open(handle, "wb", closefd=False) as file:
            file.write(stamp)
            spans = tuple(_write(file, buffer) for buffer in buffers)
        yield Shared(Path(path).absolute(), stamp, pickled, spans)
    finally:
        os.unlink(path)
        os.close(handle)


def _write(file: Any, buffer: pickle.PickleBuffer) -> tuple[int, int]:
    start = file.tell()
    start += file.write(bytes(-start % _ALIGNMENT))
    with buffer.raw() as content:
        return start, start + file.write(content)
