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

from onernn.backend.compiled import library
from onernn.kernels import build

SMALL = ("cpu.cpp", "exported.hpp", "kernels.h", "onernn.h")


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
    assert f"ISAS=avx3: expected all, or some of {', '.join(known)}" in run(tree, 1, ISAS="avx3")


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
    other = tmp_path / "other-compiler"
    other.write_text(f'#!/bin/sh\nexec {compiler()} "$@"\n')
    other.chmod(0o755)
    assert "compilations" in run(tree, CXX=str(other))
    assert "compilations" not in run(tree, CXX=str(other))


@pytest.mark.parametrize(
    ("features", "best"),
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
    ("cpu", "best"),
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
    subprocess.run([*command, "-o", "main"], cwd=tree, check=True)
    done = subprocess.run(
        [emulator, "-cpu", cpu, "main"], cwd=tree, capture_output=True, text=True, check=True
    )
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
    slow = tree.parent / "slow-compiler"
    slow.write_text(f'#!/bin/sh\ncase "$*" in *cpu.cpp*) sleep 60;; esac\nexec {compiler()} "$@"\n')
    slow.chmod(0o755)
    killed = start(tree, CXX=str(slow))
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
    editor = tree.parent / "editor"
    # Only while it compiles: the compiler is also asked what it knows.
    edits = f'case "$*" in *cpu.cpp*) echo "// more" >> {tree / "new.hpp"};; esac'
    editor.write_text(f'#!/bin/sh\n{edits}\nexec {compiler()} "$@"\n')
    editor.chmod(0o755)
    assert "changed while they were compiled" in run(tree, status=1, CXX=str(editor))
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
    editor, edits = tmp_path / "editor", tmp_path / "edits"
    edit = f'case "$*" in *more.cpp*) test ! -e {edits} || echo "int two();" >> {header};; esac'
    editor.write_text(f'#!/bin/sh\n{edit}\nexec {compiler()} "$@"\n')
    editor.chmod(0o755)
    edits.touch()
    assert "changed while they were compiled" in run(tree, 1, CXX=str(editor), **cache)
    header.write_text("inline int own() { return 1; }\n")
    edits.unlink()
    assert compiled(run(tree, CXX=str(editor), **cache)) > 0


def test_a_compiler_that_does_not_know_this_cpu_builds_what_it_knows(tree: Path) -> None:
    known = build.isas()
    if len(known) < 2:
        pytest.skip("one instruction set only")
    old = tree.parent / "old-compiler"
    refuses = 'case "$*" in *-mavx2*) echo "unknown option" >&2; exit 1;; esac'
    old.write_text(f'#!/bin/sh\n{refuses}\nexec {compiler()} "$@"\n')
    old.chmod(0o755)
    run(tree, ISAS="", CXX=str(old))
    assert {path.name for path in libraries(tree)} == {f"libonernn-{[*known][0]}.so"}
    assert "unknown option" in run(tree, ISAS="avx2", CXX=str(old))


@pytest.mark.parametrize("chosen", ["", "/nowhere/c++"])
def test_without_a_compiler_nothing_is_built_and_that_is_told(tree: Path, chosen: str) -> None:
    said = run(tree, PATH="/nowhere", CXX=chosen)
    assert said.startswith("kernels: not built, oneDNN runs all layers: ")
    assert (chosen or "none of c++, g++ and clang++") in said
    assert not libraries(tree)


def test_what_was_built_from_these_sources_stays_where_the_compiler_went(tree: Path) -> None:
    run(tree)
    before = libraries(tree)
    assert "not built" not in run(tree, PATH="/nowhere", CXX="")
    assert libraries(tree) == before
