"""The operator ``onernn_rnn``: compiled against Paddle's own headers, once, and kept.

What is compiled calls the kernels' library alone, no Python. Its file lies in the user's cache
folder under the hash of all that it was made from, and ends with the hash of its own bytes.
"""

from __future__ import annotations

import ctypes
import hashlib
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache, partial
from importlib.resources import files
from pathlib import Path
from threading import Lock
from typing import Any

from onernn.adapters.paddle.live.execution import Options
from onernn.adapters.requirements import require
from onernn.backend.cache import cache_folder, keep, memory_file
from onernn.backend.compiled.library import load_kernels
from onernn.backend.compiled.packing import STORED
from onernn.core.errors import LibraryError, UnsupportedError
from onernn.kernels import build
from onernn.reorders.paddle import RNN_CELLS

NAME = "onernn_rnn"
"""Of the operator in programs; ``rnn`` of Paddle computes the same."""

_SOURCES = ("custom_operator.cpp", "packed_layer.hpp", "recurrent_layer.hpp")
_FLAGS = (
    *("-std=c++17", "-O2", "-shared", "-fPIC", "-fvisibility=hidden", "-pthread"),
    *("-Wl,--as-needed", "-Wl,-z,defs"),
)
_LIBRARIES = ("libs/libphi_core.so", "libs/libphi.so", "libs/libcommon.so", "base/libpaddle.so")
_HASH = 32
_LOCK = Lock()

FEW = "batches of so few words are faster in Paddle's own kernel; backend='kernels' takes ours"
"""The reason of a layer that stays where `is_faster_in_paddle`."""


class NoOperators(UnsupportedError):
    """This process cannot have compiled operators; the message tells why."""


def register_operators() -> None:
    """Paddle knows the operator that `optimize` puts into programs of Paddle 3.

    A process that loads a saved program with it, but optimizes none itself, calls this first. The
    first call on a machine compiles it, in seconds. Raises `NoOperators` where there is no C++17
    compiler, `LibraryError` for a damaged installation, `MissingDependencyError` without Paddle.
    """
    with _LOCK:
        _register()


@cache
def missing_operators() -> str:
    """Why this process has no compiled operators, "" where it has."""
    try:
        register_operators()
    except (NoOperators, LibraryError) as error:
        return str(error)
    return ""


def is_faster_in_paddle(shape: Sequence[int], hidden: int, is_test: bool) -> bool:
    """Whether Paddle's own kernel is known to be the faster one for inputs of this shape.

    Below this, what a call costs beside its arithmetic counts: packed weights are compared with
    those that came, and training packs them anew. Measured, design/0041. A size that a program
    leaves open is negative: there ours may be given anything.
    """
    first, second, *_ = shape
    words = first * second
    if first <= 0 or second <= 0:
        return False
    return words < 8 or words * hidden < 1024 if is_test else words < max(32, hidden // 4)


def arguments(
    sizes: tuple[str, int, bool, int],
    *,
    time_major: bool,
    is_test: bool,
    chosen: Options,
    fixed: bool = False,
) -> tuple[Any, ...]:
    """The operator's attributes, in its order; ``sizes``: mode, layers, two directions, hidden.

    ``fixed``: the weights stay as they are as long as they are there, as a predictor's do.

    Raises `UnsupportedError` for options that it has not.
    """
    if chosen.backend not in ("auto", "kernels"):
        raise UnsupportedError(
            f"programs of Paddle 3 run on kernels; take backend='kernels', not {chosen.backend!r}"
        )
    if chosen.dtype not in STORED:
        raise UnsupportedError(
            f"{chosen.dtype} is not there in programs of Paddle 3; take f32, bf16 or f16"
        )
    if chosen.dtype == "f16" and not is_test:
        raise UnsupportedError("no training in f16; take bf16 or f32, or call eval() before")
    mode, layers, two, hidden = sizes
    stored = getattr(load_kernels().lib, f"ONERNN_{chosen.dtype.upper()}")
    gates = list(RNN_CELLS[mode][1].permutation)
    threads = min(chosen.threads or 1, 2)
    return mode, gates, layers, two, hidden, time_major, is_test, fixed, stored, threads


@cache
def _register() -> None:
    paddle = require("paddle", "paddle")
    kernels = load_kernels()
    path = str(_library(paddle))
    # Not through paddle.utils.cpp_extension, which wants setuptools and warns about ccache.
    paddle.base.core.load_op_meta_info_and_register_op(path)
    if ctypes.CDLL(path).onernn_paddle_open(str(kernels.path).encode()):
        raise LibraryError(f"{kernels.path}: cannot be opened by {path}")


def _library(paddle: Any) -> Path:
    """Made now or before; a file in memory where nothing can be kept."""
    folder = files("onernn.adapters.paddle.live")
    sources = {name: folder.joinpath(name).read_bytes() for name in _SOURCES}
    sources[build.HEADER.name] = build.HEADER.read_bytes()
    told = (paddle.version.full_version, paddle.version.commit, _FLAGS, build.isas(), sources)
    name = f"paddle-{hashlib.sha256(repr(told).encode()).hexdigest()}.so"
    compiled = partial(_compiled, Path(paddle.__file__).parent, paddle.__version__, sources)
    try:
        kept = cache_folder() / name
        content = kept.read_bytes() if kept.is_file() else b""
    except OSError:
        return memory_file(name[:20], [compiled()])
    if hashlib.sha256(content[:-_HASH]).digest() != content[-_HASH:]:
        content = compiled()
        try:
            keep(kept, [content])
        except OSError:
            return memory_file(name[:20], [content])
    try:
        ctypes.CDLL(str(kept))
    except OSError:  # the folder is mounted noexec
        return memory_file(name[:20], [content])
    return kept


def _compiled(paddle: Path, version: str, sources: dict[str, bytes]) -> bytes:
    """The library, with its hash behind what the loader reads."""
    try:
        command = build.compiler()
    except build.NoCompiler as error:
        raise NoOperators(
            "programs of Paddle 3 need an operator that is compiled here once: install g++ or"
            f" clang++, or set CXX; {error}"
        ) from None
    headers = paddle / "include"
    includes = ["-I.", *(f"-isystem{each}" for each in (headers, headers / "third_party"))]
    libraries = [str(file) for each in _LIBRARIES if (file := paddle / each).is_file()]
    with tempfile.TemporaryDirectory() as inside:
        for name, text in sources.items():
            (Path(inside) / name).write_bytes(text)
        major = 2 if version.startswith("2.") else 3
        told = f"-DONERNN_ABI={build.abi()}u", f"-DONERNN_PADDLE={major}"
        options = [*_FLAGS, *told, *includes, _SOURCES[0], *libraries]
        done = subprocess.run(
            [*command, *options, "-o", "made.so"], cwd=inside, capture_output=True, check=False
        )
        if done.returncode:
            errors = [
                line
                for line in done.stderr.decode(errors="replace").splitlines()
                if "error" in line
            ]
            raise NoOperators(
                f"the operator does not compile against Paddle's headers in {headers}:"
                f" {'; '.join(errors[:3])[:600]}"
            )
        content = (Path(inside) / "made.so").read_bytes()
    return content + hashlib.sha256(content).digest()
