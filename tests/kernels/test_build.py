"""kernels/build.py in a tree of its own, which has one small source."""

from __future__ import annotations

import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.compiling import compiler
from support.interpreters import run_program

from onernn.backend.compiled import library
from onernn.kernels import build

SMALL = ("cpu.cpp", "cpu.hpp", "exported.hpp", "kernels.h", "onernn.h")


_AVX2 = "flags : sse4_1 sse4_2 popcnt fma f16c avx avx2"
_AVX512 = f"{_AVX2} avx512f avx512dq avx512bw avx512vl avx512cd"
_V8 = "Features : fp asimd evtstrm aes pmull sha1 sha2 crc32"
CPUS = {
    "Penryn": ("x86_64", "flags : sse4_1", ""),
    "Nehalem": ("x86_64", "flags\t\t: sse4_1 sse4_2 popcnt", "v2"),
    "Haswell": ("x86_64", _AVX2, "v2 avx2"),
    "Alder Lake": ("x86_64", f"{_AVX2} avx_vnni", "v2 avx2 avx2_vnni"),
    "Skylake": ("x86_64", _AVX512, "v2 avx2 avx512"),
    "Cascade Lake": ("x86_64", f"{_AVX512} avx512_vnni", "v2 avx2 avx512 avx512_vnni"),
    "Zen 4": (
        "x86_64",
        f"{_AVX512} avx512_bf16 avx512_vnni",
        "v2 avx2 avx512 avx512_vnni avx512_bf16",
    ),
    "Sapphire Rapids": (
        "x86_64",
        f"{_AVX512} avx_vnni avx512_bf16 avx512_vnni amx_bf16 amx_tile amx_int8",
        "v2 avx2 avx2_vnni avx512 avx512_vnni avx512_bf16 avx512_amx",
    ),
    "Cortex-A72": ("aarch64", _V8, "neon"),
    "Neoverse N1": ("aarch64", f"{_V8} atomics asimdrdm asimddp", "neon neon_dotprod"),
    "Neoverse V1": (
        "aarch64",
        f"{_V8} atomics asimdrdm asimddp i8mm bf16",
        "neon neon_dotprod neon_i8mm_bf16",
    ),
}
"""Of each CPU its architecture, the names that Linux prints in /proc/cpuinfo, and its sets."""


@pytest.mark.parametrize("cpu", CPUS)
def test_a_cpu_runs_the_sets_whose_features_linux_names(cpu: str, tmp_path: Path) -> None:
    machine, text, sets = CPUS[cpu]
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\n{text}\nbugs : none\n")
    assert build.runnable(build.isas(machine), tmp_path / "cpuinfo") == sets.split()


@pytest.fixture
def tree(repo: Path, tmp_path: Path) -> Path:
    """A folder of kernels; the test is skipped where there is no compiler."""
    compiler()
    (tmp_path / "kernels" / "library").mkdir(parents=True)
    shutil.copy2(repo / "src" / "onernn" / "kernels" / "build.py", tmp_path / "kernels")
    for name in SMALL:
        shutil.copy2(
            repo / "src" / "onernn" / "kernels" / "library" / name, tmp_path / "kernels" / "library"
        )
    return tmp_path / "kernels"


def start(tree: Path, **environment: str) -> subprocess.Popen[str]:
    """For two instruction sets, with a cache of objects that is the tree's own."""
    here = {"ISAS": " ".join([*build.isas()][:2]), "XDG_CACHE_HOME": str(tree / "cache")}
    return subprocess.Popen(
        [sys.executable, str(tree / "build.py")],
        env=os.environ | here | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(tree: Path, status: int = 0, **environment: str) -> str:
    """What it prints."""
    started = start(tree, **environment)
    said, complaint = started.communicate(timeout=600)
    assert started.returncode == status, said + complaint
    return said + complaint


def wrapped_compiler(folder: Path, script: str = "") -> str:
    """A compiler that runs a script of the shell first."""
    file = folder / "wrapped-compiler"
    file.write_text(f'#!/bin/sh\n{script}\nexec {compiler()} "$@"\n')
    file.chmod(0o755)
    return str(file)


def libraries(tree: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted((tree / "built").glob("*.so"))}


def test_there_is_a_library_for_each_instruction_set_and_a_second_build_does_nothing(
    tree: Path,
) -> None:
    assert "compilations" in run(tree, ISAS="all")
    made = libraries(tree)
    assert [*made] == sorted(build.library_of(isa, tree / "built") for isa in build.isas())
    dates = [path.stat().st_mtime_ns for path in made]
    assert "compilations" not in run(tree, ISAS="all")
    assert libraries(tree) == made and [path.stat().st_mtime_ns for path in made] == dates


@pytest.mark.long
def test_a_checkout_gets_the_first_set_and_that_of_this_cpu_and_others_where_they_are_named(
    tree: Path,
) -> None:
    known = [*build.isas()]
    run(tree, ISAS="")
    (own,) = {path.name for path in libraries(tree)} - {f"libonernn-{known[0]}.so"} or {""}
    assert own == "" or own == f"libonernn-{library.load_kernels().runs[-1]}.so"
    run(tree, ISAS=known[-1])
    assert {*map(build.library_of, (known[0], known[-1]), [tree / "built"] * 2)} <= {
        *libraries(tree)
    }
    run(tree, ISAS="all")
    assert len(libraries(tree)) == len(known)
    assert f"ISAS=avx3: expected all, native, or some of {', '.join(known)}" in run(
        tree, 1, ISAS="avx3"
    )


def test_native_is_the_best_set_of_this_cpu_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ISAS", raising=False)
    both = build.choose_sets()
    assert both[0] == [*build.isas()][0]
    monkeypatch.setenv("ISAS", "native")
    assert build.choose_sets() == both[-1:]


@pytest.mark.long
def test_libraries_of_other_sources_that_are_not_built_again_are_removed(tree: Path) -> None:
    run(tree)
    with open(tree / "library" / "cpu.cpp", "a") as file:
        file.write("// more\n")
    run(tree, ISAS="")
    left = {path.stem.removeprefix("libonernn-") for path in libraries(tree)}
    assert left <= {[*build.isas()][0], library.load_kernels().runs[-1]}
    assert "compilations" not in run(tree, ISAS="")


def compiled(said: str) -> int:
    """How many objects a build compiled."""
    return int(re.findall(r"kernels: (\d+) compilations", said)[0])


@pytest.mark.long
def test_only_objects_whose_source_headers_or_compiler_changed_are_compiled_in_any_tree(
    tree: Path, tmp_path: Path
) -> None:
    (tree / "own.hpp").write_text("inline int own() { return 1; }\n")
    (tree / "library" / "more.cpp").write_text(
        '#include "../own.hpp"\nint more() { return own(); }\n'
    )
    other = shutil.copytree(tree, tmp_path / "other" / "kernels")
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    both = compiled(run(tree, **cache))
    assert compiled(run(other, **cache)) == 0
    assert [*libraries(tree).values()] == [*libraries(other).values()]
    (tree / "own.hpp").write_text("inline int own() { return 2; }\n")
    some = compiled(run(tree, **cache))
    assert 0 < some < both
    shutil.rmtree(other / "built")
    assert compiled(run(other, **cache)) == 0  # what it was compiled from is still there
    for kept in (tmp_path / "cache" / "onernn" / "objects").iterdir():
        kept.write_bytes(kept.read_bytes()[:-1])
    shutil.rmtree(other / "built")
    assert compiled(run(other, **cache)) == both
    shutil.rmtree(other / "built")
    assert compiled(run(other, **cache, SOURCE_DATE_EPOCH="1")) == both  # a release


@pytest.mark.long
def test_a_cache_that_others_can_write_is_neither_read_nor_written(
    tree: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    said = run(tree, XDG_CACHE_HOME=str(cache))
    kept = cache / "onernn" / "objects"
    assert "not kept" not in said and stat.S_IMODE(kept.parent.stat().st_mode) == 0o700
    before = {file: file.stat().st_mtime_ns for file in kept.iterdir()}
    shutil.rmtree(tree / "built")
    kept.parent.chmod(0o777)
    said = run(tree, XDG_CACHE_HOME=str(cache))
    assert f"not kept for the next build: {kept.parent} can be written by others" in said
    assert compiled(said) == len(before)
    assert before == {file: file.stat().st_mtime_ns for file in kept.iterdir()}


def test_the_cache_keeps_what_was_used_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "_CACHE_BYTES", 150)
    cache = build._Cache(tmp_path)
    (tmp_path / "object").write_bytes(bytes(32))
    for day, key in enumerate("abc"):
        cache.keep(key, tmp_path / "object")
        os.utime(tmp_path / key, (day, day))
    (tmp_path / "object").unlink()
    assert cache.take("a", tmp_path / "copy") and (tmp_path / "copy").read_bytes() == bytes(32)
    (tmp_path / "copy").unlink()
    cache.trim()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a", "c"]


@pytest.mark.long
def test_the_same_sources_give_the_same_bytes_in_another_folder(tree: Path, tmp_path: Path) -> None:
    other = shutil.copytree(tree, tmp_path / "other" / "kernels")
    run(tree)
    run(other)
    assert [*libraries(tree).values()] == [*libraries(other).values()]


@pytest.mark.long
def test_other_sources_headers_or_compilers_are_built_anew(tree: Path, tmp_path: Path) -> None:
    run(tree)
    for change in ("library/cpu.cpp", "library/exported.hpp", "new.hpp"):
        with open(tree / change, "a") as file:
            file.write("// more\n")
        assert "compilations" in run(tree), change
    other = wrapped_compiler(tmp_path)
    assert "compilations" in run(tree, CXX=other)
    assert "compilations" not in run(tree, CXX=other)


@pytest.mark.parametrize(
    "features, best",
    [
        ("fp asimd aes crc32", "neon"),
        ("fp asimd aes crc32 atomics asimdrdm asimddp", "neon_dotprod"),
        ("fp asimd aes crc32 atomics asimdrdm asimddp i8mm", "neon_dotprod"),
        ("fp asimd aes crc32 atomics asimdrdm asimddp i8mm bf16", "neon_i8mm_bf16"),
    ],
)
def test_a_build_on_arm_is_for_what_the_system_says_the_cpu_has(
    features: str, best: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = f"processor\t: 0\nBogoMIPS\t: 50.00\nFeatures\t: {features}\nCPU part\t: 0xd0c\n"
    monkeypatch.setattr(build.Path, "read_text", lambda _: told)
    monkeypatch.setattr(build, "_command", list)
    assert build._best(build.isas("aarch64")) == best


@pytest.mark.parametrize(
    "cpu, best",
    [
        ("qemu64", ""),
        ("core2duo", ""),
        ("Nehalem", "v2"),
        ("SandyBridge", "v2"),
        ("Haswell", "v2 avx2"),
    ],
)
def test_other_cpus_are_told_what_they_run(tree: Path, cpu: str, best: str) -> None:
    """As an emulator plays them; it has no AVX-512."""
    emulator = shutil.which("qemu-x86_64")
    if emulator is None or "v2" not in build.isas():
        pytest.skip("no qemu-x86_64 here")
    (tree / "main.cpp").write_text(
        '#include <cstdio>\n#include "library/exported.hpp"\n'
        'int main() { std::printf("<%s>", onernn_cpu()); }\n'
    )
    told = ("-DONERNN_ABI=1u", '-DONERNN_LIBRARY_ISA="v2"', *build.isas()["v2"])
    command = [compiler(), "-std=c++17", "-static", *told, "library/cpu.cpp", "main.cpp"]
    run_program(*command, "-o", "main", cwd=tree)
    done = run_program(emulator, "-cpu", cpu, "main", cwd=tree)
    assert done.stdout == f"<{best}>"


def test_a_damaged_library_is_built_anew(tree: Path) -> None:
    run(tree)
    made = libraries(tree)
    for path, content in made.items():
        half = len(content) // 2
        path.write_bytes(content[:half] + bytes([content[half] ^ 1]) + content[half + 1 :])
    assert "compilations" in run(tree)
    assert libraries(tree) == made


@pytest.mark.long
def test_builds_at_the_same_time_wait_for_each_other_and_one_compiles(tree: Path) -> None:
    told = [each.communicate(timeout=600)[0] for each in [start(tree) for _ in range(4)]]
    assert sum("compilations" in said for said in told) == 1
    assert len(libraries(tree)) == len([*build.isas()][:2])


@pytest.mark.long
def test_a_build_that_was_killed_leaves_nothing_that_is_loaded_or_stays(tree: Path) -> None:
    run(tree)
    before = libraries(tree)
    source = tree / "library" / "cpu.cpp"
    source.write_text(source.read_text() + "// changed\n")
    slow = wrapped_compiler(tree.parent, 'case "$*" in *cpu.cpp*) sleep 60;; esac')
    killed = start(tree, CXX=slow)
    end = time.monotonic() + 300
    while not list((tree / "built").glob("part-*")):
        assert time.monotonic() < end and killed.poll() is None
        time.sleep(0.05)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert libraries(tree) == before
    assert "compilations" in run(tree)
    assert not list((tree / "built").glob("part-*"))
    assert [*libraries(tree).values()] != [*before.values()]


def test_what_does_not_compile_is_told_and_what_was_built_stays(tree: Path) -> None:
    run(tree)
    before = libraries(tree)
    (tree / "library" / "wrong.cpp").write_text("int wrong = nothing_here;\n")
    said = run(tree, status=1)
    assert "wrong.cpp" in said and "nothing_here" in said
    assert libraries(tree) == before


@pytest.mark.long
def test_sources_that_change_while_they_are_compiled_are_refused(tree: Path) -> None:
    """Else a library would tell that it comes from what was there before."""
    run(tree)
    before = libraries(tree)
    # Only while it compiles: the compiler is also asked what it knows.
    edits = f'case "$*" in *cpu.cpp*) echo "// more" >> {tree / "new.hpp"};; esac'
    editor = wrapped_compiler(tree.parent, edits)
    assert f"files in {tree} changed" in run(tree, status=1, CXX=editor)
    assert libraries(tree) == before
    assert "compilations" in run(tree)


@pytest.mark.long
def test_an_object_whose_header_changed_while_it_was_compiled_is_not_kept(
    tree: Path, tmp_path: Path
) -> None:
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    header, source = tree / "own.hpp", tree / "library" / "more.cpp"
    header.write_text("inline int own() { return 1; }\n")
    source.write_text('#include "../own.hpp"\nint more() { return own(); }\n')
    edits = tmp_path / "edits"
    edit = f'case "$*" in *more.cpp*) test ! -e {edits} || echo "int two();" >> {header};; esac'
    editor = wrapped_compiler(tmp_path, edit)
    edits.touch()
    assert f"files in {tree} changed" in run(tree, 1, CXX=editor, **cache)
    header.write_text("inline int own() { return 1; }\n")
    edits.unlink()
    assert compiled(run(tree, CXX=editor, **cache)) > 0


def test_a_compiler_that_does_not_know_this_cpu_builds_what_it_knows(tree: Path) -> None:
    known = build.isas()
    if len(known) < 2:
        pytest.skip("one instruction set only")
    refuses = 'case "$*" in *-mavx2*) echo "unknown option" >&2; exit 1;; esac'
    old = wrapped_compiler(tree.parent, refuses)
    run(tree, ISAS="", CXX=old)
    assert {path.name for path in libraries(tree)} == {f"libonernn-{[*known][0]}.so"}
    assert "unknown option" in run(tree, ISAS="avx2", CXX=old)


@pytest.mark.parametrize("chosen", ["", "/nowhere/c++"])
def test_without_a_compiler_nothing_is_built_and_that_is_told(tree: Path, chosen: str) -> None:
    said = run(tree, PATH="/nowhere", CXX=chosen)
    assert said.startswith("kernels: not built, oneDNN runs all layers: ")
    assert (chosen or "expected c++, g++ or clang++") in said
    assert not libraries(tree)


def test_what_was_built_from_these_sources_stays_where_the_compiler_went(tree: Path) -> None:
    run(tree)
    before = libraries(tree)
    assert "not built" not in run(tree, PATH="/nowhere", CXX="")
    assert libraries(tree) == before
