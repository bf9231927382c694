"""libdnnl is found, copied, checked and loaded late; each case in a process of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import dedent

import numpy as np
import pytest
from support.interpreters import run_python

from onernn.backend.onednn import library
from onernn.backend.process import DNNL_LIBRARY, MAX_ISA, ONEDNN, WISHES
from onernn.ir.errors import LibraryError

MAPPED = "mapped = {w for w in open('/proc/self/maps').read().split() if 'libdnn' in w}\n"
LOAD = "from onernn.backend.onednn.library import load_library, other_copies\n"
REPORT = (
    "try: print('loaded', load_library().mapped)\n"
    "except onernn.LibraryError as error: print('refused', error)\n"
)


def run(code: str, **environment: object) -> str:
    """What a new interpreter prints; it must end well."""
    given = {name: str(value) for name, value in environment.items()}
    kept = {k: v for k, v in os.environ.items() if k not in (*WISHES, MAX_ISA)}
    script = "import onernn\n" + LOAD + dedent(code)
    return run_python("-c", script, env=kept | given, timeout=600).stdout.strip()


@pytest.fixture(scope="module")
def wheel() -> Path:
    """The libdnnl of the installed wheel."""
    for file in metadata.files("onednn-cpu-gomp") or ():
        if file.name == "libdnnl.so.3":
            return Path(str(file.locate())).resolve()
    pytest.fail("onednn-cpu-gomp is not installed")


@pytest.fixture
def cache() -> Iterator[Path]:
    with TemporaryDirectory() as folder:  # not tmp_path: pytest keeps those, and a copy has 54 MB
        yield Path(folder)


@pytest.fixture(scope="module")
def warm() -> Iterator[Path]:
    """A cache that several tests share."""
    with TemporaryDirectory() as folder:
        yield Path(folder)


def compiled(folder: Path, source: str, *flags: str, name: str = "libdnnl.so.3") -> Path:
    compiler = shutil.which("gcc") or pytest.skip("no gcc")
    out = folder / name
    command = [compiler, "-shared", "-fPIC", f"-Wl,-soname,{name}", "-x", "c", "-", "-o", out]
    subprocess.run([*command, *flags], input=source, text=True, check=True)
    return out


def fake(version: str) -> str:
    """C that answers as a sequential oneDNN of this version would, as far as loading asks."""
    return f"""
    static const struct {{ int v[3]; const char *hash; unsigned cpu, gpu; }}
        version = {{ {{ {version.replace(".", ", ")} }}, "", 1, 0 }};
    const void *dnnl_version(void) {{ return &version; }}
    int dnnl_engine_create(void **engine, int kind, unsigned long index) {{ return 0; }}
    """


def test_importing_loads_nothing() -> None:
    assert run(MAPPED + "print(mapped)") == "set()"


def test_a_copy_under_a_private_name_is_mapped(cache: Path, wheel: Path) -> None:
    code = "loaded = load_library()\n" + MAPPED
    code += "print(*mapped, loaded.path, loaded.version, other_copies())"
    (copy,) = [*run("load_library()", XDG_CACHE_HOME=cache).split(), *(cache / "onernn").iterdir()]
    assert run(code, XDG_CACHE_HOME=cache) == f"{copy} {wheel} 3.2.0 []"
    assert copy.stat().st_mode & 0o077 == 0
    original, renamed = (np.fromfile(file, np.uint8) for file in (wheel, copy))
    (at,) = np.flatnonzero(original != renamed)
    assert original[at - 6 : at + 6].tobytes() == b"libdnnl.so.3"


def test_a_good_copy_is_used_again(cache: Path) -> None:
    run("load_library()", XDG_CACHE_HOME=cache)
    (copy,) = (cache / "onernn").iterdir()
    before = copy.stat()
    run("load_library()", XDG_CACHE_HOME=cache)
    assert (copy.stat().st_ino, copy.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_without_a_writable_home_the_copy_is_in_memory(tmp_path: Path) -> None:
    (tmp_path / "onernn").touch()  # no folder can be made here, not even by root
    out = run("print(load_library().mapped, other_copies())", XDG_CACHE_HOME=tmp_path)
    assert out.startswith("/proc/self/fd/") and out.endswith(" []")


def test_a_cache_that_others_may_write_is_not_trusted(tmp_path: Path) -> None:
    (tmp_path / "onernn").mkdir()
    (tmp_path / "onernn").chmod(0o777)
    out = run("print(load_library().mapped)", XDG_CACHE_HOME=tmp_path)
    assert out.startswith("/proc/self/fd/")
    assert list((tmp_path / "onernn").iterdir()) == []


def test_two_threads_at_once_get_one_library(warm: Path) -> None:
    code = """
    from concurrent.futures import ThreadPoolExecutor
    from threading import Barrier
    start = Barrier(8)
    def load(_):
        start.wait()
        return load_library()
    print(len({id(found) for found in ThreadPoolExecutor(8).map(load, range(8))}))
    """
    assert run(code, XDG_CACHE_HOME=warm) == "1"


def test_another_copy_in_the_process_is_seen_and_no_hindrance(warm: Path, wheel: Path) -> None:
    code = f"""
    import ctypes
    ctypes.CDLL({str(wheel)!r}, ctypes.RTLD_GLOBAL)
    print(load_library().effective_isa != "", *other_copies())
    """
    assert run(code, XDG_CACHE_HOME=warm) == f"True {wheel}"


def test_the_library_stays_mapped_to_the_end(warm: Path) -> None:
    # Unmapping takes libgomp away from under its waiting threads.
    code = """
    import gc
    from onernn.backend.onednn import library
    load_library()
    library._library = None
    gc.collect()
    print('libdnnP' in open('/proc/self/maps').read())
    """
    assert run(code, XDG_CACHE_HOME=warm) == "True"


def test_a_failed_call_names_the_call_and_the_status(warm: Path) -> None:
    code = """
    found = load_library()
    found.check(found.lib.dnnl_success, "nothing")
    try: found.check(found.lib.dnnl_unimplemented, "gru primitive")
    except onernn.LibraryError as error: print(error)
    """
    expected = "gru primitive: oneDNN 3.2.0 returned 'unimplemented'"
    assert run(code, XDG_CACHE_HOME=warm) == expected


def test_a_thread_count_holds_inside_and_for_one_thread_only(warm: Path) -> None:
    code = """
    from threading import Thread
    found = load_library()
    count = found.lib.omp_get_max_threads
    print(found.max_threads, count())
    with found.threads(1):
        print(count())
        other = Thread(target=lambda: print(count()))
        other.start()
        other.join()
        with found.threads():
            print(count())
    print(count())
    """
    out = run(code, XDG_CACHE_HOME=warm, OMP_NUM_THREADS=3)
    assert out.split() == ["3", "3", "1", "3", "3", "3"]


def test_after_a_fork_several_threads_are_refused_where_they_would_hang(warm: Path) -> None:
    code = """
    import os
    from threading import Thread
    found = load_library()
    def enter(count):
        try:
            with found.threads(count): print("entered", count, flush=True)
        except onernn.LibraryError as error: print("refused", count, str(error)[:32], flush=True)
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        enter(2)
    else:
        enter(1)
        enter(2)
        enter(None)
        other = Thread(target=enter, args=(2,))
        other.start()
        other.join()
        os._exit(0)
    """
    reason = "oneDNN was loaded before this pr"
    assert run(code, XDG_CACHE_HOME=warm, OMP_NUM_THREADS=2).splitlines() == [
        "entered 1",
        f"refused 2 {reason}",
        f"refused None {reason}",
        "entered 2",
        "entered 2",
    ]


def test_the_library_found_is_the_one_that_importlib_finds(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(DNNL_LIBRARY, raising=False)
    files = metadata.files(library.DISTRIBUTION) or ()
    (installed,) = (str(each.locate()) for each in files if each.name == "libdnnl.so.3")
    assert library.find() == Path(installed).resolve()
    # One that stands before it, but whose files are gone, is passed over.
    broken = tmp_path / "onednn_cpu_gomp-2023.2.0.dist-info"
    broken.mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    assert library.find() == Path(installed).resolve()
    (broken / "RECORD").write_text("libdnnl.so.3,,\n")
    (tmp_path / "libdnnl.so.3").touch()
    assert library.find() == (tmp_path / "libdnnl.so.3").resolve()


def test_a_missing_library_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(DNNL_LIBRARY, raising=False)
    monkeypatch.setattr(library, "DISTRIBUTION", "none-such")
    with pytest.raises(LibraryError) as caught:
        library.find()
    for advice in ("Linux x86-64 only", DNNL_LIBRARY, "backend='reference'", "pip install"):
        assert advice in str(caught.value)


def test_a_missing_libgomp_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    # The loader's own words, for a library that needs a libgomp that is not there.
    words = "libgomp.so.1: cannot open shared object file: No such file or directory"
    error = library._unloadable(
        Path("libdnnl.so.3"), OSError(f"cannot load library 'copy.so': {words}")
    )
    assert "apt-get install libgomp1" in str(error)


def test_an_override_is_loaded_instead(cache: Path, warm: Path, wheel: Path) -> None:
    mine = Path(shutil.copy(wheel, cache / "libmine.so"))
    code = "print(load_library().path)"
    assert run(code, ONERNN_DNNL_LIBRARY=mine, XDG_CACHE_HOME=warm) == str(mine)


def test_an_override_that_is_not_there_is_named() -> None:
    out = run(REPORT, ONERNN_DNNL_LIBRARY="/nowhere/libdnnl.so")
    assert (
        out
        == "refused ONERNN_DNNL_LIBRARY=/nowhere/libdnnl.so: no such file; unset it or correct it"
    )


@pytest.mark.parametrize("variable", ["ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"])
def test_an_instruction_set_that_nobody_knows_is_refused(variable: str, warm: Path) -> None:
    """oneDNN itself takes the best there is, and says nothing."""
    told = run(REPORT, XDG_CACHE_HOME=warm, **{variable: "NONSENSE"})
    assert told.startswith(
        f"refused {variable}=NONSENSE: expected an instruction set of oneDNN 3.2.0"
    )
    assert "AVX512_CORE_AMX, " in told and told.endswith("SSE41")
    code = "print(load_library().effective_isa)"
    for known, isa in [("avx2", "avx2"), ("SSE41", "sse41")]:
        assert run(code, XDG_CACHE_HOME=warm, **{variable: known}) == isa
    for known in ("DEFAULT", "avx512_core_amx_fp16"):
        assert run(code, XDG_CACHE_HOME=warm, **{variable: known})


@pytest.mark.long
def test_the_cap_of_kernels_is_one_of_onednn_where_it_has_none_of_its_own(warm: Path) -> None:
    code = "print(load_library().effective_isa)"
    unset = {"ONEDNN_MAX_CPU_ISA": "", "DNNL_MAX_CPU_ISA": "", "XDG_CACHE_HOME": warm}
    for cap, isa in [("v2", "sse41"), ("AVX2", "avx2")]:
        assert run(code, **unset, ONERNN_MAX_ISA=cap) == isa
    for cap, isa in ONEDNN.items():  # as oneDNN's own variable does it, whatever this CPU has
        own = run(code, **unset | {"ONEDNN_MAX_CPU_ISA": isa})
        assert run(code, **unset, ONERNN_MAX_ISA=cap) == own
    both = unset | {"ONEDNN_MAX_CPU_ISA": "SSE41", "ONERNN_MAX_ISA": "avx2"}
    assert run(code, **both) == "sse41"
    told = run(REPORT, **unset, ONERNN_MAX_ISA="AVX512_CORE")
    assert told.startswith("refused ONERNN_MAX_ISA=AVX512_CORE: expected an instruction set")


@pytest.mark.parametrize("size", [0, 10, 5_000, 30_000_000])
def test_an_override_that_is_no_whole_library_is_refused(
    size: int, cache: Path, wheel: Path
) -> None:
    part = cache / "libdnnl.so.3"
    with open(wheel, "rb") as file:
        part.write_bytes(file.read(size))
    out = run(REPORT, ONERNN_DNNL_LIBRARY=part, XDG_CACHE_HOME=cache)
    assert out == f"refused {part}: expected a whole 64-bit ELF library"


@pytest.mark.parametrize("version", ["2.7.1", "3.1.0", "4.0.0"])
def test_another_major_version_is_refused_by_name(version: str, tmp_path: Path) -> None:
    path = compiled(tmp_path, fake(version))
    out = run(REPORT, ONERNN_DNNL_LIBRARY=path, XDG_CACHE_HOME=tmp_path)
    assert out.startswith(f"refused {path}: expected oneDNN 3.2 or newer 3.x, got {version}")


def test_a_library_of_something_else_is_refused(tmp_path: Path) -> None:
    path = compiled(tmp_path, "int answer;")
    out = run(REPORT, ONERNN_DNNL_LIBRARY=path, XDG_CACHE_HOME=tmp_path)
    assert out.startswith(f"refused {path}: expected a libdnnl")


@pytest.fixture
def with_neighbour(tmp_path: Path) -> Path:
    """A libdnnl that finds libnear.so beside itself, through $ORIGIN."""
    compiled(tmp_path, "int near;", name="libnear.so")
    origin = ["-Wl,-rpath,$ORIGIN", "-Wl,--no-as-needed", f"-L{tmp_path}", "-lnear"]
    return compiled(tmp_path, fake("3.9.0"), *origin)


def test_a_library_with_neighbours_is_loaded_in_place(with_neighbour: Path) -> None:
    code = "found = load_library()\nprint(found.mapped, found.version, other_copies())"
    out = run(code, ONERNN_DNNL_LIBRARY=with_neighbour)
    assert out == f"{with_neighbour} 3.9.0 []"


def test_a_library_with_neighbours_is_refused_beside_another(
    with_neighbour: Path, wheel: Path
) -> None:
    code = f"import ctypes\nctypes.CDLL({str(wheel)!r})\n" + REPORT
    out = run(code, ONERNN_DNNL_LIBRARY=with_neighbour)
    assert out.startswith(f"refused {with_neighbour}: needs libnear.so in its folder")
    assert str(wheel) in out
