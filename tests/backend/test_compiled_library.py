"""The kernels' library: which one is loaded, and that no wrong file gets to run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.interpreters import run_python
from support.taggers import tagger
from support.tiles import TILES

from onernn import Session
from onernn.backend.compiled import library
from onernn.backend.compiled.library import load_kernels
from onernn.ir.errors import LibraryError
from onernn.kernels import build
from onernn.verification.inspecting import inspect_model

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


@pytest.fixture
def best(copy: Path, monkeypatch: pytest.MonkeyPatch) -> library.Kernels:
    """The best library of the copy, not capped; the test is skipped if it is the only one."""
    monkeypatch.delenv("ONERNN_MAX_ISA", raising=False)
    kernels = library._load(copy)
    if kernels.isa == ISAS[0]:
        pytest.skip("one library")
    return kernels


def loaded(cap: str, status: int = 0) -> subprocess.CompletedProcess[str]:
    """A process that loads the kernels under a cap and tells which."""
    code = """
from onernn.backend.compiled.library import load_kernels
kernels = load_kernels()
print(kernels.isa, kernels.ffi.string(kernels.lib.onernn_isa()).decode())
"""
    return run_python("-c", code, status=status, env=os.environ | {"ONERNN_MAX_ISA": cap})


def test_the_best_library_of_this_machine_is_loaded_once(built: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = {id(each) for each in pool.map(lambda _: load_kernels(), range(32))}
    assert len(found) == 1
    told = loaded("").stdout.split()
    best = load_kernels().runs[-1]
    assert told in ([best, best], [load_kernels().isa] * 2)


def test_where_a_set_is_missing_the_next_lower_one_runs_and_that_is_told(
    best: library.Kernels, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for isa in best.runs[1:]:
        build.library_of(isa, copy).unlink(missing_ok=True)
    found = library._load(copy)
    assert (found.isa, found.runs, found.missing) == (ISAS[0], best.runs, best.runs[-1])
    monkeypatch.setattr(library, "_kernels", found)
    told = library.kernels_here()
    own = best.runs[-1]
    assert f"slower than {own}, which was not built; run: ISAS={own} python " in told
    session = Session(tagger(), backend="kernels")
    said = inspect_model(tagger(), backend="kernels").slower_kernels
    assert said.startswith(f"{ISAS[0]} is slower than {own}, ")
    assert f"\nkernels: {said}\n" in session.explain()
    monkeypatch.setenv("ONERNN_MAX_ISA", ISAS[0])
    capped = library._load(copy)
    assert capped.missing is None
    assert capped.shortfall == f"capped by ONERNN_MAX_ISA: this machine runs {own}"


def test_nothing_is_said_of_the_best_library_of_this_cpu(
    best: library.Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    if best.isa != best.runs[-1]:
        pytest.skip("the best set of this CPU was not built")
    monkeypatch.setattr(library, "_kernels", best)
    assert best.shortfall == "" and library.kernels_here() == f"{best.isa} ({best.path})"
    assert "\nkernels: " not in Session(tagger(), backend="kernels").explain()


def test_the_library_and_the_build_name_the_same_sets_of_this_cpu(built: Path) -> None:
    """By CPUID and XGETBV, or by Linux's capabilities; and by the names in /proc/cpuinfo."""
    runs = load_kernels().runs
    if not build.runnable(build.isas()):
        pytest.skip("this CPU's /proc/cpuinfo names no features")
    assert list(runs) == build.runnable(build.isas())


@pytest.mark.parametrize("cap", ISAS)
def test_each_library_runs_under_its_cap(built: Path, cap: str) -> None:
    isa, told = loaded(cap.upper()).stdout.split()
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
    names["avx512_amx"] = {"amx_tile", "amx_bf16", "amx_int8"}
    if ISAS != list(names):
        pytest.skip("not x86-64")
    chain = [isa for isa in ISAS if isa != "avx2_vnni"]  # a CPU may have it with AVX-512 or without
    best = [isa for k, isa in enumerate(chain) if all(names[i] <= flags for i in chain[: k + 1])]
    beside = ["avx2_vnni"] if "avx2" in best and "avx_vnni" in flags else []
    assert load_kernels().runs == tuple(sorted([*best, *beside], key=ISAS.index))


def test_an_unknown_cap_is_refused_with_the_names_that_are_known() -> None:
    told = loaded("avx3", 1).stderr.splitlines()[-1]
    assert "LibraryError: ONERNN_MAX_ISA=avx3: " in told and told.endswith(", ".join(ISAS))


@pytest.mark.parametrize("how", BROKEN)
def test_a_file_that_is_not_whole_is_never_loaded(copy: Path, how: str) -> None:
    for path in copy.glob("*.so"):
        path.write_bytes(BROKEN[how](path.read_bytes()))
    with pytest.raises(LibraryError, match=f"{copy}.*: damaged"):
        library._load(copy)
    maps = Path("/proc/self/maps").read_text()
    assert str(copy) not in maps


def test_libraries_exchanged_for_each_other_are_refused(copy: Path) -> None:
    others = [path for isa in ISAS[1:] if (path := build.library_of(isa, copy)).exists()]
    if not others:
        pytest.skip("one library")
    shutil.copy2(others[0], build.library_of(ISAS[0], copy))
    with pytest.raises(LibraryError, match=f"{copy}.*version"):
        library._load(copy)


def test_a_library_that_is_missing_is_told(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for isa in ISAS:
        build.library_of(isa, copy).unlink(missing_ok=True)
    with pytest.raises(LibraryError, match=r"has no kernels: no .*libonernn-.*\.so; "):
        library._load(copy)
    shutil.rmtree(copy)
    with pytest.raises(LibraryError, match="no compiler"):
        library._load(copy)


def test_the_best_library_alone_is_loaded_and_a_cap_below_it_is_refused(
    best: library.Kernels, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build.library_of(ISAS[0], copy).unlink()
    alone = library._load(copy)
    assert (alone.isa, alone.runs, alone.missing) == (best.isa, best.runs, best.missing)
    monkeypatch.setenv("ONERNN_MAX_ISA", ISAS[0])
    with pytest.raises(LibraryError, match=f"libonernn-{ISAS[0]}.so"):
        library._load(copy)


def test_a_library_with_tiles_is_not_used_where_linux_refuses_them(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own question decides, not the features that /proc/cpuinfo names: ISAS=native."""
    if load_kernels().runs[-1] != "avx512_bf16" or not build.library_of(TILES, copy).exists():
        pytest.skip("this CPU has AMX or lacks more than that, or the library is not built")
    monkeypatch.delenv("ONERNN_MAX_ISA", raising=False)
    for path in {*copy.glob("*.so")} - {build.library_of(TILES, copy)}:
        path.unlink()
    monkeypatch.setattr(build, "runnable", list)
    with pytest.raises(LibraryError, match=f"libonernn-{ISAS[0]}.so"):
        library._load(copy)


def test_a_library_of_other_sources_is_refused(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not build.sources():
        pytest.skip("an installed package has no sources")
    monkeypatch.setattr(build, "sources_key", lambda: "0" * 16)
    with pytest.raises(LibraryError, match=f"{copy}.*; run: python "):
        library._load(copy)


@pytest.mark.parametrize(
    "url, told",
    [
        ("file:///tmp/onernn-9-py3-none-linux_x86_64.whl", "ISAS=avx2 pip wheel --no-deps ."),
        ("file:///src/onernn", "ISAS=avx2 pip install .* file:///src/onernn"),
    ],
)
def test_an_installed_package_says_how_to_get_a_set_by_what_it_was_installed_from(
    url: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wheel has what it has: to install it again changes nothing."""
    folder = tmp_path / "onernn-9.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: onernn\nVersion: 9\n")
    (folder / "direct_url.json").write_text(f'{{"url": "{url}"}}')
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(build, "sources", list)  # a wheel has none
    assert re.search(told, library.how_to_get("avx2"))


def test_an_installed_package_says_how_to_get_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "sources", list)  # a wheel has none
    with pytest.raises(LibraryError, match="pip install --no-cache-dir --force-reinstall --no-dep"):
        library._load(tmp_path / "nowhere")
