"""The folder of the user for what is made once and loaded into processes."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """``onernn`` in XDG_CACHE_HOME, or in ~/.cache. Raises `OSError` where others could write."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    folder = Path(base if os.path.isabs(base) else os.path.expanduser("~/.cache"), "onernn")
    if not folder.is_absolute():
        raise OSError("no home directory")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    owner = folder.stat()
    if owner.st_uid != os.geteuid() or owner.st_mode & 0o022:
        raise OSError(f"{folder} can be written by others")
    return folder
