"""Compiles the kernels: ``python kernels/build.py``.

Writes one shared library for each instruction set to ``kernels/built``: the least demanding set of
the architecture and the best one of this CPU, or the sets that the variable ISAS names.
``ISAS=all`` names every set. ``ISAS=native`` names only the best set of this CPU; such a build
takes two thirds of the default's time. A library is not built again if its sources, flags and
compiler are the same. All editable installations of a source tree share one build, and all trees of
a user share objects (see `cache_folder`).

This file needs only the standard library, so that setup.py can run it. Modules that only compiling
needs are imported inside functions, because every process that runs a model imports this file.
"""

from __future__ import annotations

import os
import platform
import re
import stat
import sys
import time
import zlib
from functools import lru_cache
from mmap import mmap
from pathlib import Path

HERE = Path(__file__).resolve().parent
LOADER = HERE / "loader" / "libonernn.cpp"
BUILT = HERE / "built"
HEADERS = (HERE / "library" / "onernn.h", HERE / "library" / "kernels.h")
Flags = dict[str, tuple[str, ...]]
# Flags by instruction set, the least demanding set first. ONERNN_MAX_ISA takes the same names of
# sets. The flags name single features: with -march=skylake-avx512, the compiler could use features
# that the CPU was not tested for.
_V2 = ("-march=x86-64", "-msse4.2", "-mpopcnt")
_AVX2 = (*_V2, "-mavx2", "-mfma", "-mf16c")
_AVX512 = (*_AVX2, "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq")
_BF16 = (*_AVX512, "-mavx512vnni", "-mavx512bf16")
_X86 = {
    "v2": _V2,
    "avx2": _AVX2,
    "avx2_vnni": (*_AVX2, "-mavxvnni"),
    "avx512": _AVX512,
    "avx512_vnni": (*_AVX512, "-mavx512vnni"),
    "avx512_bf16": _BF16,
    "avx512_amx": (*_BF16, "-mamx-tile", "-mamx-bf16", "-mamx-int8", "-DONERNN_TILES"),
}
# GCC schedules loads early, so it would run out of registers for the sums of a product.
_NEON = ("-fno-schedule-insns",)
_ARM64: Flags = {
    "neon": ("-march=armv8-a", *_NEON),
    "neon_dotprod": ("-march=armv8.2-a+dotprod", *_NEON),
    "neon_i8mm_bf16": ("-march=armv8.2-a+dotprod+i8mm+bf16", *_NEON),
}
# Sources that do not profit from wider registers. They are compiled only for the least demanding
# set, and linked into all libraries. They may not include lanes.hpp, whose types differ between
# sets.
_SHARED = frozenset(
    {
        "bounds",
        "division",
        "engine",
        "files",
        "interface",
        "moves",
        "onnxruntime",
        "streams",
    }
)
# The approximate number of seconds that one core needs to compile these sources (GCC 12, a rented
# Zen core); with an optimization level of `_LEVELS`, half as many. The slowest source is compiled
# first, so that no core waits for it at the end.
_SECONDS = {
    **dict.fromkeys(("axes", "convolutions"), 13),
    **dict.fromkeys(("cells_s8", "cells_f64", "cells_bf16", "moves", "quantized"), 9),
    **dict.fromkeys(("cells_f16", "cells_f32"), 8),
    **dict.fromkeys(("training", "sequences", "formulas", "products"), 6),
    **dict.fromkeys(("onnxruntime", "engine"), 4),
}
_CACHE_BYTES = 200 << 20
# Few CPUs use the v2 library, but every build waits for it. The objects that only this library uses
# compile in half the time without the vectorizer (design/0033 has its speed).
_LEVELS = {"v2": "-O1"}
# The sources that use the instructions which a set adds. For all other sources, a library links the
# objects of an earlier set.
_ADDED = {
    "avx2_vnni": ("cells_s8", "cpu", "quantized"),
    "avx512_vnni": ("cells_s8", "cpu", "quantized"),
    "avx512_bf16": ("cells_bf16", "cpu", "training"),
    "avx512_amx": ("cells_bf16", "cells_s8", "cpu", "quantized", "training"),
    "neon_dotprod": ("cells_s8", "cpu", "quantized"),
    "neon_i8mm_bf16": ("cells_bf16", "cells_s8", "cpu", "quantized", "training"),
}
# No contraction: the kernels choose which products and sums are fused. Without the --param, GCC
# stops inlining functions in a large source; Clang ignores it. All objects have the same namespace,
# because a library links objects of several instruction sets.
COMPILE = (
    *("-std=c++17", "-O3", "-ffp-contract=off", "--param=large-unit-insns=100000"),
    *("-fPIC", "-fvisibility=hidden", "-pthread", "-I.", "-DONERNN_ISA=library"),
)
# nodelete: ONNX Runtime unloads a library with each session. The next session would load the
# compiler's runtime again, which never frees 73 KB of its memory.
LINK = (
    *("-shared", "-pthread", "-s", "-Wl,-z,defs", "-Wl,-z,nodelete"),
    "-Wl,--version-script=exports.map",
)
# The compiler's runtime is linked statically, so that a Python with an older one (conda's) can load
# the library. Only its used sections are linked: others use instructions of newer CPUs (rdrand).
STATIC = ("-static-libstdc++", "-static-libgcc", "-Wl,--gc-sections")
EXPORTS = "{ global: onernn_*; RegisterCustomOps; local: *; };\n"
PROBE = """#include <thread>
extern "C" __attribute__((visibility("default"))) void RegisterCustomOps() {
  std::thread([] {}).join();
}
"""
_LAST_LINE = re.compile(rb"\nonernn kernels; sources (\w{16}); compiler (.*); crc32 (\w{8})\n\Z")


class BuildError(Exception):
    """Raised if the kernels do not compile."""


class NoCompiler(BuildError):
    """Raised if there is no C++17 compiler that supports all flags."""


def isas(machine: str = platform.machine()) -> Flags:
    """Returns the flags of an architecture's instruction sets, the least demanding set first."""
    if machine in ("x86_64", "AMD64"):
        return _X86
    return _ARM64 if machine in ("aarch64", "arm64") else {"portable": ()}


def choose_sets(machine: str = platform.machine()) -> list[str]:
    """Returns the instruction sets to compile for: the names in ISAS, or the best set of this CPU.

    Unless ISAS is ``native``, the least demanding set is one of them: every CPU runs it, and it
    reports which sets a CPU supports. Raises `BuildError`.
    """
    known = isas(machine)
    names = os.environ.get("ISAS", "").replace(",", " ").split()
    if names == ["native"]:
        return [_best(known)]
    names = names or [_best(known)]
    if unknown := sorted({*names} - {*known, "all"}):
        raise BuildError(
            f"ISAS={' '.join(unknown)}: expected all, native, or some of {', '.join(known)}"
        )
    first = next(iter(known))
    return [isa for isa in known if isa == first or not {isa, "all"}.isdisjoint(names)]


def _libraries(machine: str) -> list[str]:
    return [*choose_sets(machine), *([""] if LOADER.exists() else [])]


def runnable(known: Flags, cpuinfo: Path = Path("/proc/cpuinfo")) -> list[str]:
    """Returns the instruction sets that this CPU can run.

    /proc/cpuinfo names only CPU features that the operating system supports.
    """
    try:
        text = cpuinfo.read_text()
    except OSError:
        text = ""
    line = re.search(r"^(?:flags|Features)\s*:(.*)", text, re.MULTILINE)
    features = set(line[1].replace("_", "").replace("asimddp", "dotprod").split() if line else ())
    # For example, sse4_2, avx512_bf16 and amx_tile there are GCC's -msse4.2, -mavx512bf16 and
    # -mamx-tile; i8mm is ARM's +i8mm.
    name = re.compile(r"(?:^-m(?!arch)|\+)([\w.-]+)")
    needs = {
        isa: {re.sub("[.-]", "", n) for flag in known[isa] for n in name.findall(flag)}
        for isa in known
    }
    return [isa for isa in known if needs[isa] <= features]


def _best(known: Flags) -> str:
    """Returns the last instruction set that this CPU can run and the compiler, if any, supports."""
    command = tuple(_command())
    usable = runnable(known)[::-1]
    return next((isa for isa in usable if _knows(command, known[isa])), next(iter(known)))


@lru_cache
def _knows(command: tuple[str, ...], flags: tuple[str, ...]) -> bool:
    """Returns whether a compiler supports flags; an old one lacks the newest instruction sets."""
    try:
        return not command or bool(_run([*command, *flags, "-E", "-x", "c++", os.devnull], HERE))
    except BuildError:
        return False


def library_of(isa: str, folder: Path = BUILT) -> Path:
    """Returns the path of an instruction set's library; "" is the library that C programs link
    with.
    """
    return folder / (f"libonernn-{isa}.so" if isa else "libonernn.so")


def sources() -> list[Path]:
    """Returns the C++ sources; none in an installed wheel, which has only the libraries."""
    return sorted(HERE.glob("library/*.cpp"))


def abi() -> int:
    """Returns the number of the C interface, a checksum of its headers."""
    return zlib.crc32(b"".join(header.read_bytes() for header in HEADERS))


def sources_key(machine: str = platform.machine()) -> str:
    """Returns the key of the sources and flags: their checksum and their number of bytes.

    CRC-32 finds damage and edits. It need not resist attacks, because who can change a library can
    also change its checksum. SHA-256 would load OpenSSL into every process: 3 ms, 4 MB.
    """
    shared = sorted(_SHARED), _ADDED, _LEVELS
    text = repr((COMPILE, LINK, STATIC, EXPORTS, isas(machine), shared)).encode()
    key, size = zlib.crc32(text), len(text)
    for file in sorted([*HERE.glob("*.hpp"), *HERE.glob("library/*.*"), *HERE.glob("loader/*.*")]):
        content = file.read_bytes()
        text = f"{file.relative_to(HERE)} {len(content)}\n".encode() + content
        key, size = zlib.crc32(text, key), size + len(text)
    return f"{key:08x}{size:08x}"


def built_from(content: bytes | mmap) -> tuple[str, str] | None:
    """Returns the key of the sources and the compiler of a library; None if the library is damaged.

    The last line of the file, which the loader ignores, has both, and a checksum of the content
    before.
    """
    match = _LAST_LINE.search(content[-4096:])
    if match is None:
        return None
    key, compiler, checksum = (part.decode(errors="replace") for part in match.groups())
    with memoryview(content)[: content.rfind(b"; crc32 ")] as summed:
        return (key, compiler) if f"{zlib.crc32(summed):08x}" == checksum else None


def build(folder: Path = BUILT, machine: str = platform.machine()) -> list[Path]:
    """Returns the paths of the chosen instruction sets' libraries, compiled now or before.

    A file gets its final name when it is complete, so a build that was stopped leaves complete
    libraries, old or new. Libraries of other sets are removed if they come from other sources.
    Concurrent builds wait for each other. Raises `BuildError`, and its subclass `NoCompiler`.
    """
    import fcntl  # systems without it have raised `NoCompiler` before
    import shutil
    import tempfile

    targets = _libraries(machine)
    paths = [library_of(isa, folder) for isa in targets]
    if is_built(folder, machine):
        return paths
    if not sources():
        raise NoCompiler(f"{HERE}: expected sources, which installed packages lack; use a checkout")
    command, static = compiler(machine), _links_statically(machine)
    folder.mkdir(exist_ok=True, parents=True)
    with open(folder / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if is_built(folder, machine):
            return paths
        for rest in folder.glob("part-*"):  # left by a build that was killed
            shutil.rmtree(rest, ignore_errors=True)
        key = sources_key(machine)
        last_line = f"\nonernn kernels; sources {key}; compiler {_identity(command)}"
        with tempfile.TemporaryDirectory(prefix="part-", dir=folder) as inside:
            made = _compile(command, STATIC if static else (), machine, targets, Path(inside))
            if sources_key(machine) != key:
                raise BuildError(f"files in {HERE} changed while they were compiled: build again")
            for file, target in zip(made, paths, strict=True):
                content = file.read_bytes() + last_line.encode()
                with open(file, "wb") as stream:
                    stream.write(content + f"; crc32 {zlib.crc32(content):08x}\n".encode())
                    stream.flush()
                    os.fsync(stream.fileno())
                file.chmod(0o755)
                os.replace(file, target)
        for isa in _list_outdated(folder, machine):
            library_of(isa, folder).unlink()
    return paths


def is_built(folder: Path = BUILT, machine: str = platform.machine()) -> bool:
    """Returns whether all chosen libraries exist, and all libraries come from these sources and
    this compiler.
    """
    there = all(library_of(isa, folder).is_file() for isa in _libraries(machine))
    return there and not _list_outdated(folder, machine)


def _list_outdated(folder: Path, machine: str) -> list[str]:
    """Returns the sets whose libraries come from other sources, or from another compiler."""
    key, command = sources_key(machine) if sources() else None, _command() if sources() else None
    identity = _identity(command) if command else None
    outdated = []
    for isa in (*isas(machine), ""):
        path = library_of(isa, folder)
        origin = built_from(path.read_bytes()) if path.is_file() else (key, identity)
        if origin is None or key not in (None, origin[0]) or identity not in (None, origin[1]):
            outdated.append(isa)
    return outdated


def _command() -> list[str]:
    """Returns the compiler's command: CXX, or c++, g++ or clang++; [] if there is none."""
    import shlex
    import shutil

    there = [*filter(None, map(shutil.which, ("c++", "g++", "clang++")))]
    return shlex.split(os.environ.get("CXX", "")) or there[:1]


@lru_cache
def compiler(machine: str = platform.machine()) -> list[str]:
    """Returns the command of a C++17 compiler that supports all flags. Raises `NoCompiler`."""
    command = _command()
    if not command:
        raise NoCompiler("expected c++, g++ or clang++, got none; install one, or set CXX")
    try:
        _probe(command, machine)
    except BuildError as error:
        raise NoCompiler(f"expected a C++17 compiler that knows these flags: {error}") from None
    return command


@lru_cache
def _links_statically(machine: str) -> bool:
    try:
        _probe(compiler(machine), machine, *STATIC)
    except BuildError:  # the static library of the runtime may not be installed
        return False
    return True


def _probe(command: list[str], machine: str, *static: str) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as inside:
        place, targets = Path(inside), isas(machine)
        most = targets[choose_sets(machine)[-1]]  # has the flags of all other sets
        (place / "probe.cpp").write_text(PROBE)
        (place / "exports.map").write_text(EXPORTS)
        _run([*command, *COMPILE, *most, "-c", "probe.cpp", "-o", "probe.o"], place)
        _run([*_linker(command, targets), *static, "probe.o", "-o", "probe.so"], place)


def _linker(command: list[str], targets: Flags) -> list[str]:
    """Returns the link command of all libraries. It has the flags of the least demanding set,
    because Zig builds its C++ library again for each set of flags.
    """
    return [*command, *LINK, *next(iter(targets.values()))]


def _identity(command: list[str]) -> str:
    try:
        version = _run([*command, "--version"], HERE).splitlines()[:1]
    except BuildError:
        version = []
    words = [os.path.basename(command[0]), *command[1:], *version]
    return " ".join(words).encode("ascii", "replace").decode()


def _compile(
    command: list[str], static: tuple[str, ...], machine: str, wanted: list[str], inside: Path
) -> list[Path]:
    from concurrent.futures import ThreadPoolExecutor

    targets, cores = isas(machine), len(os.sched_getaffinity(0))
    (inside / "exports.map").write_text(EXPORTS)
    parts = {
        isa: [(_choose_isa(isa, file, targets), file) for file in (sources() if isa else [LOADER])]
        for isa in wanted
    }
    objects = {
        (isa, file): inside / f"{file.stem}-{isa}.o"
        for isa, file in sorted({part for each in parts.values() for part in each})
    }
    commands = {part: _to_compile(command, targets, *part) for part in objects}
    cache, texts = _Cache.of_user(), dict[Path, bytes]()
    origin = _origin(command)
    keys = {part: _object_key(origin, commands[part], part[1], texts) for part in objects}
    missing = [part for part in objects if not cache.take(keys[part], objects[part])]
    missing.sort(key=lambda part: [*_SECONDS, part[1].stem].index(part[1].stem))
    seconds = sum(_SECONDS.get(part[1].stem, 1) / (1 + bool(_level(*part))) for part in missing)
    seconds /= min(cores, len(missing) or 1)
    print(
        f"kernels: compiling for {', '.join(filter(None, wanted))}:"
        f" {len(missing)} of {len(objects)} objects, about {seconds:.0f} s on {cores} free cores",
        flush=True,
    )
    started = time.monotonic()

    prefix = []
    if "SOURCE_DATE_EPOCH" in os.environ:  # a release has the same bytes in every folder
        prefix = [f"-ffile-prefix-map={HERE}=kernels"]

    def compile_one(part: tuple[str, Path]) -> None:
        _run([*commands[part], *prefix, "-o", str(objects[part])], HERE)
        if _object_key(origin, commands[part], part[1], {}) == keys[part]:  # no file has changed
            cache.keep(keys[part], objects[part])

    with ThreadPoolExecutor(cores) as pool:
        jobs = [pool.submit(compile_one, part) for part in missing]
        try:
            for job in jobs:
                job.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    cache.trim()
    libraries = [library_of(isa, inside) for isa in wanted]
    for isa, library in zip(wanted, libraries, strict=True):
        linked = [str(objects[part]) for part in parts[isa]]
        loads = [] if isa else ["-Wl,-soname,libonernn.so", "-ldl"]
        _run([*_linker(command, targets), *static, *linked, "-o", str(library), *loads], inside)
    took = time.monotonic() - started
    print(f"kernels: {len(missing)} compilations on {cores} cores took {took:.0f} s", flush=True)
    return libraries


def _to_compile(command: list[str], targets: Flags, isa: str, file: Path) -> list[str]:
    names = ["-DONERNN_SHARED"] if file.stem in _SHARED else []
    if file.stem in (
        "cpu",
        LOADER.stem,
    ):  # only these sources use the set's name and the C interface's number
        names += [f'-DONERNN_LIBRARY_ISA="{isa}"', f"-DONERNN_ABI={abi()}u"]
    if file == LOADER:
        names.append(f'-DONERNN_SETS="{" ".join(targets)}"')
    options = [*COMPILE, *_level(isa, file), *targets[isa], *names]
    return [*command, *options, "-c", str(file.relative_to(HERE))]


def _level(isa: str, file: Path) -> list[str]:
    return [_LEVELS[isa]] if isa in _LEVELS and file.stem not in _SHARED else []


def _choose_isa(isa: str, file: Path, targets: Flags) -> str:
    """Returns the instruction set for which a source is compiled, if the library of ``isa`` links
    the object.
    """
    if file.stem in (*_SHARED, LOADER.stem):
        return next(iter(targets))
    known = [*targets]
    before = known[: known.index(isa) + 1]
    return next(each for each in before[::-1] if file.stem in _ADDED.get(each, (file.stem,)))


def cache_folder() -> Path:
    """Returns ``onernn`` in XDG_CACHE_HOME or ~/.cache. Raises `OSError` if a different user can
    change this folder.

    Users can change it if they may write to it, or if they may rename one of its parents; a sticky
    bit prevents the renaming.
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    folder = Path(base if os.path.isabs(base) else os.path.expanduser("~/.cache"), "onernn")
    if not folder.is_absolute():
        raise OSError("no home directory: set XDG_CACHE_HOME to a folder")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = folder.resolve()
    own = folder.stat()
    if own.st_uid != os.geteuid() or own.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise OSError(f"{folder} can be written by others: expected only you")
    for parent in folder.parents:
        result = parent.stat()
        # A group with the user's own number has no other members.
        group = stat.S_IWGRP if result.st_gid != result.st_uid else 0
        shared = result.st_mode & (group | stat.S_IWOTH) and not result.st_mode & stat.S_ISVTX
        if shared or result.st_uid not in (0, os.geteuid()):
            raise OSError(f"{parent} can be written by others: expected only you or root")
    return folder


class _Cache:
    """Objects that this user compiled before, in any source tree, by the key of their inputs.

    ``folder``: None if no folder is usable; then nothing is cached. A digest before each object's
    bytes detects a truncated or damaged file.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    @classmethod
    def of_user(cls) -> _Cache:
        if "SOURCE_DATE_EPOCH" in os.environ:
            return cls(None)  # a release uses no cached objects
        try:
            folder = cache_folder() / "objects"
            folder.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            print(f"kernels: objects are not kept for the next build: {error}", flush=True)
            return cls(None)
        return cls(folder)

    def take(self, key: str, target: Path) -> bool:
        """Copies an object to ``target``; returns False if it is not in the cache."""
        from hashlib import sha256

        if self.folder is None:
            return False
        try:
            content = (self.folder / key).read_bytes()
            os.utime(self.folder / key)  # the time of its last use, for `trim`
        except OSError:
            return False
        if sha256(content[32:]).digest() != content[:32]:
            return False
        target.write_bytes(content[32:])
        return True

    def keep(self, key: str, file: Path) -> None:
        from contextlib import suppress
        from hashlib import sha256

        if self.folder is None:
            return
        content, part = file.read_bytes(), self.folder / f"{key}.{os.getpid()}"
        with suppress(OSError):  # a build goes on if the disk is full
            part.write_bytes(sha256(content).digest() + content)
            part.replace(self.folder / key)

    def trim(self) -> None:
        """Removes the least recently used objects, until at most `_CACHE_BYTES` remain."""
        from contextlib import suppress

        with suppress(OSError):  # another build may remove the same files
            files = [(f.stat(), f) for f in self.folder.iterdir()] if self.folder else []
            files.sort(key=lambda each: each[0].st_mtime)
            size = sum(each.st_size for each, _ in files)
            for each, file in files:
                if size <= _CACHE_BYTES:
                    break
                file.unlink()
                size -= each.st_size


def _object_key(origin: str, command: list[str], file: Path, texts: dict[Path, bytes]) -> str:
    """Returns a key of all inputs of an object: compiler, command, source and included files."""
    from hashlib import sha256

    seen: dict[Path, None] = {}
    to_read = [file]
    while to_read:
        if (path := to_read.pop()) in seen:
            continue
        seen[path] = None
        if path not in texts:
            texts[path] = path.read_bytes() if path.is_file() else b""
        for name in re.findall(rb'^\s*#\s*include\s*"(.+?)"', texts[path], re.MULTILINE):
            to_read += [Path(os.path.normpath(at / name.decode())) for at in (path.parent, HERE)]
    included = [(os.path.relpath(path, HERE), texts[path]) for path in sorted(seen) if texts[path]]
    return sha256(repr((origin, command, included)).encode()).hexdigest()


def _origin(command: list[str]) -> str:
    """Returns the compiler's identity, the state of its file, and environment variables that it
    reads.
    """
    import shutil

    path = Path(shutil.which(command[0]) or command[0]).resolve()
    file = path.stat() if path.exists() else None
    read = [os.environ.get(name) for name in ("CPATH", "CPLUS_INCLUDE_PATH", "GCC_EXEC_PREFIX")]
    return repr((_identity(command), str(path), file and (file.st_size, file.st_mtime_ns), read))


def _run(command: list[str], folder: Path) -> str:
    import shlex
    import subprocess

    if "ziglang" in command:  # Zig misreads -march=x86-64, and has other names for ARM's features
        words = [word.replace("-march=armv8.2-a", "-mcpu=generic+v8_2a") for word in command]
        command = [word for word in words if not word.startswith("-march=")]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    except OSError as error:
        raise BuildError(f"{command[0]}: {error.strerror}") from None
    if done.returncode:
        raise BuildError(f"{shlex.join(command)}\n{done.stderr.strip()[:4000]}")
    return done.stdout


def main() -> int:
    """Builds the libraries. Returns 0 also if there is no compiler: onernn then runs on oneDNN."""
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
    print(f"kernels: {', '.join(choose_sets(chosen.machine))} in {chosen.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
