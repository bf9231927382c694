"""Files that are made once and loaded into processes, on disk or in memory."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from onernn.ir.files import replacing


def keep(target: Path, content: Iterable[bytes]) -> None:
    """Writes a file for this user alone, whole or not at all. Raises `OSError`."""
    if target.exists() and not target.is_file():
        raise OSError(f"{target} is no file")
    with replacing(target) as stream:
        os.fchmod(stream.fileno(), 0o600)
        stream.writelines(content)


def memory_file(name: str, content: Iterable[bytes]) -> Path:
    """A file in memory, for folders that are read-only, full or mounted noexec.

    It stays open for good: the loader knows a library by its path, and the next file to get this
    number would be taken for this one. Raises `OSError`.
    """
    handle = os.memfd_create(name)
    with open(handle, "wb", closefd=False) as file:
        file.writelines(content)
    return Path(f"/proc/self/fd/{handle}")
