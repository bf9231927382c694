"""Generated sources compiled once, into the user's cache."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from onernn.backend.cache import cache_folder, is_whole, keep_digested, memory_file
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

    Its name is the hash of source, flags, compiler and target. What is in the cache and not whole
    is made anew; where there is no cache, in memory and for this process.
    """
    found = compiler()
    key = hashlib.sha256(repr(FLAGS).encode() + found.encode() + _target(found) + source.encode())
    name = f"layer-{key.hexdigest()[:32]}.so"
    target = None
    with suppress(OSError):
        target = cache_folder() / name
        if is_whole(target):
            return target
    if name in _IN_MEMORY:
        return _IN_MEMORY[name]
    content = _compiled(found, source)
    if target is not None:
        with suppress(OSError):  # a full disk
            keep_digested(target, content)
            return target
    return in_memory(name, content)


def opened(ffi: Any, source: str) -> Any:
    """A source as a library of this process. Raises `LibraryError`."""
    path = compiled(source)
    try:
        with suppress(OSError):  # of a folder that is mounted noexec
            return ffi.dlopen(str(path))
        return ffi.dlopen(str(in_memory(path.name, path.read_bytes())))
    except OSError as error:
        raise LibraryError(f"a compiled layer cannot be loaded: {error}") from None


_IN_MEMORY: dict[str, Path] = {}


def in_memory(name: str, content: bytes) -> Path:
    """A file in memory, the same one for a name. Raises `LibraryError`."""
    if name not in _IN_MEMORY:
        try:
            _IN_MEMORY[name] = memory_file(name, [content])
        except OSError as error:
            raise LibraryError(f"a compiled layer finds no place: {error}") from None
    return _IN_MEMORY[name]


def _compiled(compiler: str, source: str) -> bytes:
    try:
        with tempfile.TemporaryDirectory(prefix="onernn-") as inside:
            (Path(inside) / "layer.cpp").write_text(source)
            command = [compiler, *FLAGS, "layer.cpp", "-o", "layer.so"]
            done = subprocess.run(command, cwd=inside, capture_output=True, text=True, check=False)
            if not done.returncode:
                return (Path(inside) / "layer.so").read_bytes()
    except OSError as error:
        raise LibraryError(f"a layer cannot be compiled: {error}") from None
    raise LibraryError(f"{compiler} does not compile a layer: {done.stderr.strip()[:2000]}")
