"""The kernels' library: which one is loaded, and that no wrong file gets to run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from onernn.backend.compiled import library
from onernn.backend.compiled.library import load_kernels
from onernn.ir.errors import LibraryError
from onernn.kernels import build

ISAS = list(build.isas())
BROKEN = {
    "cut short": lambda content: content[:-1000],
    "empty": lambda content: b"",
    "one bit": lambda content: content[:4096] + bytes([content[4096] ^ 1]) + content[4097:],
    "zeros": lambda content: bytes(len(content)),
    "more behind it": lambda content: content + b"\n",
    "another's": lambda content: Path(sys.executable).read_bytes(),
}


@pytest.fixture
def copy(built: Path, tmp_path: Path) -> Path:
    ignored = shutil.ignore_patterns("part-*")
    return shutil.copytree(built, tmp_path / "built", ignore=ignored)


def loaded(**environment: str) -> subprocess.CompletedProcess[str]:
    """A process that loads the kernels and tells which."""
    code = """
from onernn.backend.compiled.library import load_kernels
kernels = load_kernels()
print(kernels.isa, kernels.ffi.string(kernels.lib.onernn_isa()).decode())
"""
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | environment)


def test_the_best_library_of_this_machine_is_loaded_once(built: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = {id(each) for each in pool.map(lambda _: load_kernels(), range(32))}
    assert len(found) == 1
    told = loaded(ONERNN_MAX_ISA="").stdout.split()
    best = load_kernels().runs[-1]
    assert told in ([best, best], [load_kernels().isa] * 2)


def test_where_a_set_is_missing_the_next_lower_one_runs_and_that_is_told(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ONERNN_MAX_ISA", raising=False)
    best = library._load(copy)
    if best.isa == ISAS[0]:
        pytest.skip("one library")
    for isa in best.runs[1:]:
        build.library_of(isa, copy).unlink(missing_ok=True)
    found = library._load(copy)
    assert (found.isa, found.runs, found.missing) == (ISAS[0], best.runs, best.runs[-1])
    monkeypatch.setattr(library, "_kernels", found)
    told = library.kernels_here()
    own = best.runs[-1]
    assert f"slower than {own}, which was not built; run: ISAS={own} python " in told
    monkeypatch.setenv("ONERNN_MAX_ISA", ISAS[0])
    assert library._load(copy).missing is None


@pytest.mark.parametrize("cap", ISAS)
def test_each_library_runs_under_its_cap(built: Path, cap: str) -> None:
    done = loaded(ONERNN_MAX_ISA=cap.upper())
    assert done.returncode == 0, done.stderr
    isa, told = done.stdout.split()
    allowed = [each for each in load_kernels().runs if ISAS.index(each) <= ISAS.index(cap)]
    there = [each for each in allowed if build.library_of(each, built).exists()]
    assert isa == told == there[-1]


def test_the_cpu_runs_what_the_system_says_it_runs(built: Path) -> None:
    """Linux tells a flag where CPU and kernel both have it."""
    flags = set(Path("/proc/cpuinfo").read_text().split())
    names = {"v2": {"sse4_2", "popcnt"}, "avx2": {"avx2", "fma", "f16c"}}
    names["avx2_vnni"] = {"avx_vnni"}
    names["avx512"] = {"avx512f", "avx512bw", "avx512vl", "avx512dq"}
    names["avx512_vnni"] = {"avx512_vnni"}
    names["avx512_bf16"] = {"avx512_bf16"}
    if ISAS != list(names):
        pytest.skip("not x86-64")
    chain = [isa for isa in ISAS if isa != "avx2_vnni"]  # a CPU may have it with AVX-512 or without
    best = [isa for k, isa in enumerate(chain) if all(names[i] <= flags for i in chain[: k + 1])]
    beside = ["avx2_vnni"] if "avx2" in best and "avx_vnni" in flags else []
    assert load_kernels().runs == tuple(sorted([*best, *beside], key=ISAS.index))


def test_an_unknown_cap_is_refused_with_the_names_that_are_known() -> None:
    done = loaded(ONERNN_MAX_ISA="avx3")
    assert done.returncode == 1 and done.stderr.splitlines()[-1].endswith(
        "LibraryError: ONERNN_MAX_ISA=avx3: no instruction set of this machine's libraries;"
        f" unset it, or take one of {', '.join(ISAS)}"
    )


@pytest.mark.parametrize("how", BROKEN)
def test_a_file_that_is_not_whole_is_never_loaded(copy: Path, how: str) -> None:
    for path in copy.glob("*.so"):
        path.write_bytes(BROKEN[how](path.read_bytes()))
    with pytest.raises(LibraryError, match="damaged, or no library of onernn's kernels; "):
        library._load(copy)
    maps = Path("/proc/self/maps").read_text()
    assert str(copy) not in maps


def test_libraries_exchanged_for_each_other_are_refused(copy: Path) -> None:
    others = [path for isa in ISAS[1:] if (path := build.library_of(isa, copy)).exists()]
    if not others:
        pytest.skip("one library")
    shutil.copy2(others[0], build.library_of(ISAS[0], copy))
    with pytest.raises(LibraryError, match="of another version of onernn"):
        library._load(copy)


def test_a_library_that_is_missing_is_told(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build.library_of(ISAS[0], copy).unlink()  # it tells what the CPU runs
    with pytest.raises(LibraryError, match=r"has no kernels: no .*libonernn-.*\.so; "):
        library._load(copy)
    shutil.rmtree(copy)
    with pytest.raises(LibraryError, match="no kernels: no compiler was there when it was built"):
        library._load(copy)


def test_a_library_of_other_sources_is_refused(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not build.sources():
        pytest.skip("an installed package has no sources")
    monkeypatch.setattr(build, "sources_key", lambda: "0" * 16)
    with pytest.raises(LibraryError, match="built from other sources than these; run: python "):
        library._load(copy)


def test_an_installed_package_says_how_to_get_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "sources", list)  # a wheel has none
    with pytest.raises(LibraryError, match="pip install --no-cache-dir --force-reinstall --no-dep"):
        library._load(tmp_path / "nowhere")
