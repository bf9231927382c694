"""What a hostile file or program makes the library do, while sanitizers watch every byte.

The library and these programs are compiled with the sanitizers of addresses and of undefined
behaviour. ONERNN_DAMAGES (`make fuzz-compiled`) is how often each file is damaged.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from support.compiled_models import compiled
from support.interpreters import run_program, run_python
from support.taggers import tagger

from onernn.backend.compiled.library import load_kernels
from onernn.engine.compiling import compile_model
from onernn.kernels import build

pytestmark = pytest.mark.usefixtures("built")
FUZZ = Path(__file__).parents[1] / "fuzz"
KNOWN = build.isas()
LEAST = next(iter(KNOWN))
LAST = "avx512_bf16" if "avx512_bf16" in build.runnable(KNOWN) else "avx512"
SETS = [isa for isa in (LEAST, "avx2", LAST) if isa in KNOWN]
"""The last one has the objects of the sets before it, except those of bf16 and bytes."""
DAMAGES = int(os.environ.get("ONERNN_DAMAGES", "100"))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The models, and a tagger in each precision."""
    folder = tmp_path_factory.mktemp("corpus")
    paths = [path for _, path in compiled(folder)]
    for dtype in ("bf16", "f16", "u8", "int8-dynamic", "int8-weights"):
        paths.append(folder / f"{dtype}.onernn")
        compile_model(tagger(), paths[-1], dtype=dtype)
    return paths


def built_by(watched: str, isa: str, folder: Path) -> Path:
    """The library of an instruction set by a compiler with sanitizers; a later run finds it."""
    if isa not in build.runnable(KNOWN):
        pytest.skip(f"this CPU lacks {isa}")
    environment = {**os.environ, "ISAS": isa, "CXX": f"{FUZZ / 'watched-c++'}{watched}"}
    run_python(build.HERE / "build.py", "--out", folder, env=environment)
    return build.library_of(isa, folder)


@pytest.fixture(scope="module", params=SETS)
def watched(request: pytest.FixtureRequest, repo: Path) -> Path:
    """The library of an instruction set, with the sanitizers of addresses and behaviour."""
    isa = request.param
    return built_by("", isa, repo / "out" / f"watched-{isa}")


def run(name: str, watched: Path, *arguments: str | Path, flags: tuple[str, ...] = ()) -> str:
    """What a program of tests/fuzz prints, once it has ended well."""
    program = watched.parent / name
    command = [FUZZ / "watched-c++", "-std=c++17", "-O1", "-pthread", *flags]
    link = [f"-I{build.HERE}", watched, f"-Wl,-rpath,{watched.parent}"]
    run_program(*command, FUZZ / f"{name}.cpp", *link, "-o", program)
    done = run_program(program, *arguments)
    print(done.stdout)
    return done.stdout


@pytest.mark.long
def test_each_function_stays_within_arrays_as_large_as_its_rule_asks(watched: Path) -> None:
    flags = ("-DONERNN_ISA=library", *KNOWN[LEAST])
    rounds = "60" if watched.stem.endswith(LEAST) else "15"  # the same sources in wider registers
    told = run("functions_alone", watched, rounds, flags=flags)
    assert int(told.split()[0]) == len(functions())


@pytest.mark.long
def test_a_refused_call_changes_nothing_and_no_call_leaves_its_arrays(
    watched: Path, corpus: list[Path]
) -> None:
    run("hostile_calls", watched, "20", *corpus)


@pytest.mark.long
def test_a_damaged_file_leaves_no_array(watched: Path, corpus: list[Path]) -> None:
    told = run("compiled_files", watched, str(DAMAGES), *corpus, flags=("-DONERNN_ALONE",))
    damaged, ran, whole, files = map(int, re.findall(r"\d+", told))
    assert files == len(corpus) and damaged == DAMAGES * files
    # The rest refuses what is drawn: lengths beyond a padded size, for instance.
    assert ran > damaged / 20 and whole > files * 0.85


def functions() -> list[str]:
    """The names of the functions that steps of a plan call."""
    kernels, names = load_kernels(), list[str]()
    while (name := kernels.lib.onernn_call_name(len(names))) != kernels.ffi.NULL:
        names.append(kernels.ffi.string(name).decode())
    return names


def test_the_corpus_of_damaged_files_has_every_function(corpus: list[Path]) -> None:
    """By name, whatever the types: files hold names as text, after a word that counts its bytes."""
    content = b"".join(path.read_bytes() for path in corpus)
    names = {name.partition(":")[0] for name in functions()}
    assert len(names) > 60
    assert [name for name in sorted(names) if b"\0" + name.encode() + b":" not in content] == []
