"""Compiles the kernels for every instruction set of a machine: ``python kernels/build.py``.

One shared library for each instruction set lies in ``kernels/built``. Only the standard library is
needed, so that setup.py can use this file as it stands. What is built from these sources, flags
and compiler already is not built again, so all editable installations of a tree share one build.

What only compiling needs is imported by it: every process that runs a model imports this file.
"""

from __future__ import annotations

import os
import platform
import re
import sys
import time
import zlib
from functools import lru_cache
from mmap import mmap
from pathlib import Path

HERE = Path(__file__).resolve().parent
BUILT = HERE / "built"
HEADER = HERE / "library" / "onernn.h"
# Flags by instruction set, the least demanding one first: the names in ONERNN_MAX_ISA. Single
# features and no -march=skylake-avx512, which allows a compiler what nobody asked the CPU for.
_V2 = ("-march=x86-64", "-msse4.2", "-mpopcnt")
_AVX2 = (*_V2, "-mavx2", "-mfma", "-mf16c")
_AVX512 = (*_AVX2, "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq")
_X86 = {
    "v2": _V2,
    "avx2": _AVX2,
    "avx512": _AVX512,
    "avx512_bf16": (*_AVX512, "-mavx512vnni", "-mavx512bf16"),
}
# Sources that gain nothing by wider registers are compiled for the least demanding set alone, and
# linked into all libraries. They may not include lanes.hpp, whose types differ.
_SHARED = frozenset({"engine", "interface", "moves", "onnxruntime"})
# Those that have instructions of avx512_bf16. Of the others it takes what avx512 has.
_BF16 = frozenset({"cells_bf16", "cells_s8", "cpu", "quantized", "training"})
# No contraction: the kernels say where a product and a sum are rounded as one. In a large source
# GCC would stop to inline what the products call; Clang, which does not, ignores it. All objects
# have one namespace, as a library has some of another instruction set.
COMPILE = (
    *("-std=c++17", "-O3", "-ffp-contract=off", "--param=large-unit-insns=100000"),
    *("-fPIC", "-fvisibility=hidden", "-pthread", "-I.", "-DONERNN_ISA=library"),
)
LINK = ("-shared", "-pthread", "-s", "-Wl,-z,defs", "-Wl,--version-script=exports.map")
# The compiler's own runtime inside: a Python that brings an older one (conda's) can load it, too.
# Of it only what is called: the rest has instructions of newer CPUs (rdrand).
STATIC = ("-static-libstdc++", "-static-libgcc", "-Wl,--gc-sections")
EXPORTS = "{ global: onernn_*; RegisterCustomOps; local: *; };\n"
PROBE = """#include <thread>
extern "C" __attribute__((visibility("default"))) void RegisterCustomOps() {
  std::thread([] {}).join();
}
"""
_LAST_LINE = re.compile(rb"\nonernn kernels; sources (\w{16}); compiler (.*); crc32 (\w{8})\n\Z")


class BuildError(Exception):
    """The kernels do not compile."""


class NoCompiler(BuildError):
    """There is no C++17 compiler that knows all flags."""


def isas(machine: str = platform.machine()) -> dict[str, tuple[str, ...]]:
    """The instruction sets of an architecture, the least demanding one first, and their flags."""
    return _X86 if machine in ("x86_64", "AMD64") else {"portable": ()}


def library_of(isa: str, folder: Path = BUILT) -> Path:
    """Where the library of an instruction set lies."""
    return folder / f"libonernn-{isa}.so"


def sources() -> list[Path]:
    """What is compiled; nothing in an installed wheel, which has the libraries."""
    return sorted(HERE.glob("library/*.cpp"))


def abi() -> int:
    """The number of the C interface: another header, another number."""
    return zlib.crc32(HEADER.read_bytes())


def sources_key(machine: str = platform.machine()) -> str:
    """Other sources or flags, another key: their checksum, and how many bytes they are.

    CRC-32 finds damage and edits, which are what happens here; nobody who can change a library is
    kept from writing its checksum. SHA-256 would load OpenSSL into every process: 3 ms, 4 MB.
    """
    shared = sorted(_SHARED), sorted(_BF16)
    told = repr((COMPILE, LINK, STATIC, EXPORTS, isas(machine), shared)).encode()
    key, size = zlib.crc32(told), len(told)
    for file in sorted([*HERE.glob("*.hpp"), *HERE.glob("library/*.*")]):
        text = file.read_bytes()
        told = f"{file.relative_to(HERE)} {len(text)}\n".encode() + text
        key, size = zlib.crc32(told, key), size + len(told)
    return f"{key:08x}{size:08x}"


def built_from(content: bytes | mmap) -> tuple[str, str] | None:
    """The key of the sources and the compiler that a library tells; None if it is not whole.

    Its last line, behind what the loader reads, tells both and the checksum of all before.
    """
    found = _LAST_LINE.search(content[-4096:])
    if found is None:
        return None
    key, compiler, checksum = (part.decode(errors="replace") for part in found.groups())
    with memoryview(content)[: content.rfind(b"; crc32 ")] as told:
        return (key, compiler) if f"{zlib.crc32(told):08x}" == checksum else None


def build(folder: Path = BUILT, machine: str = platform.machine()) -> list[Path]:
    """The libraries, compiled now or before. Raises `BuildError`, or its `NoCompiler`.

    Each file gets its name when it is whole, so a build that was stopped leaves old ones or new
    ones. Two builds wait for each other.
    """
    import fcntl  # systems without it get no further than to `NoCompiler`
    import shutil
    import tempfile

    paths = [library_of(isa, folder) for isa in isas(machine)]
    if is_built(folder, machine):
        return paths
    if not sources():
        raise NoCompiler(f"{HERE} holds no sources, which installed packages do without")
    command, static = compiler(machine), _links_statically(machine)
    folder.mkdir(exist_ok=True, parents=True)
    with open(folder / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if is_built(folder, machine):
            return paths
        for rest in folder.glob("part-*"):  # of a build that was killed
            shutil.rmtree(rest, ignore_errors=True)
        key = sources_key(machine)
        told = f"\nonernn kernels; sources {key}; compiler {_identity(command)}"
        with tempfile.TemporaryDirectory(prefix="part-", dir=folder) as inside:
            made = _compiled(command, STATIC if static else (), isas(machine), Path(inside))
            if sources_key(machine) != key:
                raise BuildError(f"files in {HERE} changed while they were compiled: build again")
            for file, target in zip(made, paths, strict=True):
                content = file.read_bytes() + told.encode()
                with open(file, "wb") as stream:
                    stream.write(content + f"; crc32 {zlib.crc32(content):08x}\n".encode())
                    stream.flush()
                    os.fsync(stream.fileno())
                file.chmod(0o755)
                os.replace(file, target)
    return paths


def is_built(folder: Path = BUILT, machine: str = platform.machine()) -> bool:
    """Whether the libraries come from the sources and the compiler that are here, if any are."""
    key, command = sources_key(machine) if sources() else None, _command() if sources() else None
    identity = _identity(command) if command else None
    for isa in isas(machine):
        path = library_of(isa, folder)
        told = built_from(path.read_bytes()) if path.is_file() else None
        if told is None or key not in (None, told[0]) or identity not in (None, told[1]):
            return False
    return True


def _command() -> list[str]:
    """CXX, or c++, g++ or clang++; empty where none is there."""
    import shlex
    import shutil

    if wish := shlex.split(os.environ.get("CXX", "")):
        return wish
    return next(
        ([found] for name in ("c++", "g++", "clang++") if (found := shutil.which(name))), []
    )


@lru_cache
def compiler(machine: str = platform.machine()) -> list[str]:
    """The command of a C++17 compiler that knows all flags. Raises `NoCompiler`."""
    command = _command()
    if not command:
        raise NoCompiler("none of c++, g++ and clang++ is there, and CXX is not set")
    try:
        _probe(command, machine)
    except BuildError as error:
        raise NoCompiler(f"no C++17 compiler that knows these flags: {error}") from None
    return command


@lru_cache
def _links_statically(machine: str) -> bool:
    try:
        _probe(compiler(machine), machine, *STATIC)
    except BuildError:  # some systems have its static library in a package of its own
        return False
    return True


def _probe(command: list[str], machine: str, *static: str) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as inside:
        place, targets = Path(inside), isas(machine)
        most = list(targets.values())[-1]  # has all that the others have
        (place / "probe.cpp").write_text(PROBE)
        (place / "exports.map").write_text(EXPORTS)
        _run([*command, *COMPILE, *most, "-c", "probe.cpp", "-o", "probe.o"], place)
        _run([*_linker(command, targets), *static, "probe.o", "-o", "probe.so"], place)


def _linker(command: list[str], targets: dict[str, tuple[str, ...]]) -> list[str]:
    """Links for the least demanding set: Zig makes a C++ library for each set of flags it sees."""
    return [*command, *LINK, *next(iter(targets.values()))]


def _identity(command: list[str]) -> str:
    """One line that tells apart compilers: the command without its folder, and its version."""
    try:
        version = _run([*command, "--version"], HERE).splitlines()[:1]
    except BuildError:
        version = []
    words = [os.path.basename(command[0]), *command[1:], *version]
    return " ".join(words).encode("ascii", "replace").decode()


def _compiled(
    command: list[str], static: tuple[str, ...], targets: dict[str, tuple[str, ...]], inside: Path
) -> list[Path]:
    """A library for each target, in a folder."""
    from concurrent.futures import ThreadPoolExecutor

    started, cores = time.monotonic(), len(os.sched_getaffinity(0))
    (inside / "exports.map").write_text(EXPORTS)
    parts = {
        isa: [(_compiled_for(isa, file, targets), file) for file in sources()] for isa in targets
    }
    objects = {
        (isa, file): inside / f"{file.stem}-{isa}.o"
        for isa, file in sorted({part for each in parts.values() for part in each})
    }

    def compile_one(isa: str, file: Path) -> str:
        names = [f'-DONERNN_LIBRARY_ISA="{isa}"', f"-DONERNN_ABI={abi()}u"]
        if file.stem in _SHARED:
            names.append("-DONERNN_SHARED")
        if "SOURCE_DATE_EPOCH" in os.environ:  # a release has the same bytes wherever it is built
            names.append(f"-ffile-prefix-map={HERE}=kernels")
        output = ("-c", f"library/{file.name}", "-o", str(objects[isa, file]))
        return _run([*command, *COMPILE, *targets[isa], *names, *output], HERE)

    with ThreadPoolExecutor(cores) as pool:
        jobs = [pool.submit(compile_one, *which) for which in objects]
        try:
            for job in jobs:
                job.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    libraries = [library_of(isa, inside) for isa in targets]
    for isa, library in zip(targets, libraries, strict=True):
        linked = [str(objects[part]) for part in parts[isa]]
        _run([*_linker(command, targets), *static, *linked, "-o", str(library)], inside)
    took = time.monotonic() - started
    print(f"kernels: {len(objects)} compilations on {cores} cores took {took:.0f} s", flush=True)
    return libraries


def _compiled_for(isa: str, file: Path, targets: dict[str, tuple[str, ...]]) -> str:
    """The instruction set of a source's object in a library."""
    if file.stem in _SHARED:
        return next(iter(targets))
    return "avx512" if isa == "avx512_bf16" and file.stem not in _BF16 else isa


def _run(command: list[str], folder: Path) -> str:
    """What a command prints. Raises `BuildError` with its complaint."""
    import shlex
    import subprocess

    if "ziglang" in command:  # reads x86-64 as "x86 without 64", and takes any x86-64 by itself
        command = [word for word in command if not word.startswith("-march=")]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    except OSError as error:
        raise BuildError(f"{command[0]}: {error.strerror}") from None
    if done.returncode:
        raise BuildError(f"{shlex.join(command)}\n{done.stderr.strip()[:4000]}")
    return done.stdout


def main() -> int:
    """Builds. Exit 0, too, where no compiler is: onernn then runs on oneDNN."""
    import argparse

    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--machine", default=platform.machine(), help="for a compiler of another")
    options.add_argument("--out", type=Path, default=BUILT, help="the folder of the libraries")
    chosen = options.parse_args()
    try:
        build(chosen.out.resolve(), chosen.machine)
    except NoCompiler as error:
        print(f"kernels: not built, oneDNN runs all layers: {error}", file=sys.stderr)
        return 0
    except BuildError as error:
        print(f"kernels: {error}", file=sys.stderr)
        return 1
    print(f"kernels: {', '.join(isas(chosen.machine))} in {chosen.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
