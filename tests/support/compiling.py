"""C++ compiled once: what the same compiler made of the same text is kept in out/compiled."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest

STRICT = ("-std=c++17", "-Wall", "-Wextra", "-Werror")
PLAIN = ("-O0",)
CHECKED = ("-O0", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
KEPT = Path(__file__).parents[2] / "out" / "compiled"
EMULATOR = shlex.split(os.environ.get("ONERNN_EMULATOR", ""))
"""The command that runs programs for another architecture, which CXX compiles: `make aarch64`."""
LARGEST = 1 << 30  # bytes of all that is kept; the oldest goes first


def compiler() -> str:
    """The system's C++ compiler; the test is skipped where there is none."""
    found = shutil.which(os.environ.get("CXX", "g++"))
    if found is None:
        pytest.skip("no C++ compiler (g++, or CXX)")
    return found


def compile_program(source: Path, program: Path, flags: Iterable[str], *folders: Path) -> None:
    """``folders``: all that ``source`` may include lies there, its own one first."""
    command = [compiler(), *STRICT, *flags, "-pthread"]
    kept = KEPT / _key(source, command, folders)
    if kept.exists():
        os.utime(kept)
    else:
        includes = [f"-I{folder}" for folder in folders[1:]]
        made = [*command, *includes, str(source), "-o", str(program)]
        done = subprocess.run(made, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[:4000]
        KEPT.mkdir(parents=True, exist_ok=True)
        part = kept.with_suffix(f".{os.getpid()}")
        shutil.copy(program, part)
        part.replace(kept)
        _trim()
    shutil.copy(kept, program)


def check_syntax(source: Path, flags: Iterable[str], *folders: Path) -> None:
    """The same without a program; the file that stands for it is empty."""
    nothing = source.with_suffix(".checked")
    nothing.touch()
    compile_program(source, nothing, ("-fsyntax-only", *flags), *folders)


def _key(source: Path, command: list[str], folders: Iterable[Path]) -> str:
    found = hashlib.sha256(repr((source.name, command, *_machine(command[0]))).encode())
    for folder in folders:
        for file in sorted(folder.rglob("*")):
            if file.suffix in (".cpp", ".hpp", ".h", ".inc"):
                found.update(f"{file.relative_to(folder)} {file.stat().st_size} ".encode())
                found.update(file.read_bytes())
    return found.hexdigest()


@cache
def _machine(command: str) -> tuple[str, str]:
    """The compiler by its own words, and what -march=native stands for."""
    told = subprocess.run([command, "--version"], capture_output=True, text=True, check=True)
    flags = (line for line in Path("/proc/cpuinfo").read_text().splitlines() if "flags" in line)
    return told.stdout, next(flags, "")


def _trim() -> None:
    """Another process may do the same."""
    with suppress(FileNotFoundError):
        files = sorted(KEPT.iterdir(), key=lambda file: file.stat().st_mtime)
        total = sum(file.stat().st_size for file in files)
        for file in files:
            if total <= LARGEST:
                break
            total -= file.stat().st_size
            file.unlink()
