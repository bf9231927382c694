"""What is made once and loaded into processes: the user's folder for it, or memory."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path

from onernn.core.files import replacing


def cache_folder() -> Path:
    """``onernn`` in XDG_CACHE_HOME, or in ~/.cache. Raises `OSError` where others could write.

    They could, too, where they may rename one of its parents: not in those with a sticky bit.
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    folder = Path(base if os.path.isabs(base) else os.path.expanduser("~/.cache"), "onernn")
    if not folder.is_absolute():
        raise OSError("no home directory")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = folder.resolve()
    own = folder.stat()
    if own.st_uid != os.geteuid() or own.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise OSError(f"{folder} can be written by others")
    for parent in folder.parents:
        found = parent.stat()
        # Of one's own group, which bears one's number, nobody else is a member.
        group = stat.S_IWGRP if found.st_gid != found.st_uid else 0
        shared = found.st_mode & (group | stat.S_IWOTH) and not found.st_mode & stat.S_ISVTX
        if shared or found.st_uid not in (0, os.geteuid()):
            raise OSError(f"{parent} can be written by others")
    return folder


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
