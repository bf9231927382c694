"""Generated sources compiled once, into the user's cache."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from functools import lru_cache
from pathlib import Path

from onernn.backend.cache import cache_folder
from onernn.core.errors import LibraryError

FLAGS = ("-std=c++17", "-O3", "-march=native", "-shared", "-fPIC", "-pthread")


def compiler() -> str:
    """The system's C++ compiler: CXX, or c++, g++ or clang++. Raises `LibraryError`."""
    chosen = os.environ.get("CXX")
    names = (chosen,) if chosen else ("c++", "g++", "clang++")
    for name in names:
        found = shutil.which(name)
        if found:
            return found
    raise LibraryError(
        f"backend 'generated' needs a C++ compiler, none of {', '.join(names)} is there;"
        " install g++, set CXX, or use another backend"
    )


@lru_cache(maxsize=8)
def _target(compiler: str) -> bytes:
    """What tells apart compilers, and the machines that they compile for."""
    command = [compiler, "-march=native", "-dM", "-E", "-x", "c++", os.devnull]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode:
        raise LibraryError(f"{compiler}: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout


def compiled(source: str) -> Path:
    """The library made of a source, compiled now or before. Raises `LibraryError`.

    Its name is the hash of source, flags, compiler and target; it appears under it when it is whole.
    Where the cache cannot be used it is made anew for this process.
    """
    found = compiler()
    key = hashlib.sha256(repr(FLAGS).encode() + found.encode() + _target(found) + source.encode())
    name = f"layer-{key.hexdigest()[:32]}.so"
    try:
        folder = cache_folder()
    except OSError:
        folder = Path(tempfile.mkdtemp(prefix="onernn-"))
    target = folder / name
    if target.is_file():
        return target
    with tempfile.TemporaryDirectory(dir=folder) as inside:
        (Path(inside) / "layer.cpp").write_text(source)
        command = [found, *FLAGS, "layer.cpp", "-o", name]
        done = subprocess.run(command, cwd=inside, capture_output=True, text=True, check=False)
        if done.returncode:
            raise LibraryError(f"{found} does not compile a layer: {done.stderr.strip()[:2000]}")
        os.replace(Path(inside) / name, target)
    return target
