"""Programs in C and C++ run compiled models: the bits of a session, without Python."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.compiled_models import models
from support.graphs import step_model
from support.interpreters import printed, run_program, run_python

from onernn import Graph, Ragged, Session, UnsupportedError
from onernn.engine.compiling import compile_model
from onernn.kernels import build

pytestmark = pytest.mark.usefixtures("built")
HEADERS = build.HEADERS[0].parent
LIBRARY = build.library_of("")
SOURCE = Path(__file__).parent / "c_interface_test.c"


def linked(source: Path, program: Path, *flags: str, library: Path = LIBRARY) -> None:
    """Compiles a program of C as strictly as compilers do, and links it with a library."""
    if shutil.which("gcc") is None or not library.exists():
        pytest.skip("no gcc, or no kernels")
    strict = ("-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-pedantic", "-Werror", "-pthread")
    link = (str(library), f"-Wl,-rpath,{library.parent}")
    run_program("gcc", *strict, *flags, f"-I{HEADERS}", source, "-o", program, *link)


def bytes_of(feed: dict[str, Any], names: list[str]) -> bytes:
    """Inputs as the program reads them."""
    parts = []
    for name in names:
        value = feed[name]
        levels = (*value.outer, value.offsets) if isinstance(value, Ragged) else ()
        array = value.data if isinstance(value, Ragged) else np.asarray(value)
        parts.append(np.array(array.shape, np.int64).tobytes())
        parts += [np.array([len(o) - 1, *o], np.int64).tobytes() for o in levels]
        parts.append(np.ascontiguousarray(array).tobytes())
    return b"".join(parts)


def written(outputs: dict[str, Any]) -> bytes:
    """Outputs as the program writes them."""
    parts = []
    for name, value in outputs.items():
        levels = (*value.outer, value.offsets) if isinstance(value, Ragged) else ()
        array = value.data if isinstance(value, Ragged) else np.asarray(value)
        parts.append(" ".join([name, *map(str, array.shape)]).encode() + b"\n")
        parts += [each.astype(np.int64).tobytes() for each in levels]
        parts.append(np.ascontiguousarray(array).tobytes())
    return b"".join(parts)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("c") / "program"
    linked(SOURCE, made)
    return made


MODELS = ["tagger", "documents", "convolution", "bytes", "loops: early end"]


@pytest.mark.parametrize("name", MODELS)
def test_a_program_in_c_has_the_bits_of_a_session_in_eight_threads(
    name: str, program: Path, tmp_path: Path
) -> None:
    """Dense and ragged inputs, and outputs whose sizes only a run finds."""
    graph, feeds = models()[name]
    assert in_eight_threads(program, graph, feeds[0], tmp_path) == written(
        Session(graph, backend="kernels").run(feeds[0])
    )


def in_eight_threads(program: Path, graph: Graph, feed: Any, folder: Path, team: str = "") -> bytes:
    """Returns the outputs of 20 runs by each thread. ``team``: threads within each run."""
    compile_model(graph, folder / "m.onernn")
    (folder / "in").write_bytes(bytes_of(feed, [value.name for value in graph.inputs]))
    environment = {**os.environ, "ONERNN_TEAM": team}
    run_program(program, "m.onernn", "in", "out", 8, 20, cwd=folder, env=environment)
    return (folder / "out").read_bytes()


@pytest.fixture(scope="module")
def raced(repo: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program and the library with the sanitizer of threads."""
    folder, compiler = repo / "out" / "raced", repo / "tests" / "fuzz" / "watched-c++"
    isa = next(iter(build.isas()))
    environment = {**os.environ, "ISAS": isa, "CXX": f"{compiler} thread"}
    run_python(build.HERE / "build.py", "--out", folder, env=environment)
    made = tmp_path_factory.mktemp("raced") / "program"
    linked(SOURCE, made, "-g1", "-fsanitize=thread", library=build.library_of(isa, folder))
    return made


@pytest.mark.long
@pytest.mark.parametrize("team", ["", "3"])
@pytest.mark.parametrize("name", MODELS)
def test_eight_threads_race_nowhere(name: str, team: str, raced: Path, tmp_path: Path) -> None:
    """On streams of one model and of models of their own, alone and with a team that they share."""
    graph, feeds = models()[name]
    in_eight_threads(raced, graph, feeds[0], tmp_path, team)


def test_the_header_is_one_of_c_and_libonernn_has_its_functions_alone() -> None:
    declared = set(re.findall(r"\b(onernn_\w+|RegisterCustomOps)\(", build.HEADERS[0].read_text()))
    done = run_program("nm", "-D", "--defined-only", LIBRARY)
    assert {line.split()[-1] for line in done.stdout.splitlines()} == declared


OPEN = """
    import ctypes, re, sys
    library = ctypes.CDLL(sys.argv[1])
    library.onernn_message.restype = ctypes.c_char_p
    status = library.onernn_open(b"nothing", 1, ctypes.byref(ctypes.c_void_p()))
    maps = open("/proc/self/maps").read()
    print(*{*re.findall(r"libonernn-(.*)\\.so", maps)}, status, library.onernn_message().decode())
"""
CAPS = [*build.isas()]


@pytest.mark.parametrize("cap", ["", *CAPS, CAPS[0].upper()])
def test_libonernn_maps_only_the_best_library_that_the_cap_allows(cap: str) -> None:
    allowed = CAPS[: CAPS.index(cap.lower()) + 1] if cap else CAPS
    runs = [isa for isa in build.runnable(build.isas()) if build.library_of(isa).exists()]
    best = [isa for isa in runs if isa in allowed][-1:]
    assert printed(OPEN, LIBRARY, ONERNN_MAX_ISA=cap)[:2] == [*best, "6"]  # ONERNN_NO_FILE


def test_an_unknown_cap_is_refused_with_the_known_ones() -> None:
    status, *message = printed(OPEN, LIBRARY, ONERNN_MAX_ISA="avx3")
    assert status == "2"  # ONERNN_UNKNOWN
    assert " ".join(message) == f"ONERNN_MAX_ISA=avx3: expected one of {' '.join(CAPS)}"


WORDS = 11


def test_many_clients_in_c_are_as_each_alone(repo: Path, tmp_path: Path) -> None:
    """Frames in any order, twice in one call, refused ones; the bits of a session."""
    model, states = step_model(WORDS), {"h": "hN", "c": "cN"}
    compile_model(model, tmp_path / "m.onernn", states=states, streams=True)
    linked(repo / "tests" / "kernels" / "clients_test.c", tmp_path / "clients")
    run_program(tmp_path / "clients", "m.onernn", WORDS, "out", cwd=tmp_path)
    clients = {"a": [1, 4, 6, 7], "b": [2, 9], "c": [3, 5, 8], "new": [2]}
    session = Session(model, backend="kernels")
    made = {}
    for name, words in clients.items():
        state = dict.fromkeys(states, np.zeros((1, 1, 1, 8), np.float32))
        for at, word in enumerate(words):
            outputs = session.run({"x": np.array([word]), **state})
            state = {before: outputs[after] for before, after in states.items()}
            made[name, at] = outputs["y"]
    order = "c0 a0 b0 a1 a2 c1 a3 c2 b1 new0".split()
    want = np.stack([made[each[:-1], int(each[-1])] for each in order])
    assert (tmp_path / "out").read_bytes() == want.tobytes()


def test_a_file_for_many_clients_needs_all_sizes_of_a_frame(tmp_path: Path) -> None:
    model = step_model()
    opened = replace(model.inputs[0], shape=(None, 6))
    model = replace(model, inputs=(opened, *model.inputs[1:]))
    with pytest.raises(UnsupportedError) as caught:
        compile_model(model, tmp_path / "m.onernn", states={"h": "hN", "c": "cN"}, streams=True)
    assert caught.value.refusal.where == "x" and not (tmp_path / "m.onernn").exists()


STRICT = ("-Wpedantic", "-Wconversion", "-Wsign-conversion", "-Wshadow")


def compiled_cpp(command: str, source: Path, folder: Path) -> Path:
    """Returns a program that is compiled with onernn.hpp."""
    if shutil.which(command) is None:
        pytest.skip(f"no {command}")
    program = folder / "program"
    library = (f"-L{build.BUILT}", "-lonernn", f"-Wl,-rpath,{build.BUILT}")
    flags = ("-std=c++17", "-Wall", "-Wextra", "-Werror", *STRICT, f"-I{HEADERS}")
    run_program(command, *flags, source, "-o", program, *library)
    return program


@pytest.mark.parametrize("command", ["g++", "clang++"])
def test_a_program_in_cpp_has_the_numbers_of_a_session_and_the_words_of_errors(
    command: str, repo: Path, tmp_path: Path
) -> None:
    """By onernn.hpp, which compiles without a warning."""
    program = compiled_cpp(command, repo / "tests" / "kernels" / "cpp_interface.cpp", tmp_path)
    graph, _ = models()["tagger"]
    compile_model(graph, tmp_path / "m.onernn")
    words = np.array([3, 1, 4, 1, 5])
    words.tofile(tmp_path / "words")
    ragged = Ragged(words, np.array([0, 3, 5]))
    tags, *_ = Session(graph, backend="kernels").run({"words": ragged}).values()
    done = run_program(program, "m.onernn", "words", cwd=tmp_path)
    sizes, numbers, *refused = done.stdout.splitlines()
    assert sizes.split() == ["5", "2", "3"]
    assert [*map(int, numbers.split())] == tags.data.reshape(-1).tolist()
    assert "no value is named word; expected one of words, " in refused[0]
    assert refused[1] == "expected 1 sizes, got 2"
    assert "'words'" in refused[2] and "nowhere.onernn" in refused[3] and len(refused) == 4


@pytest.mark.parametrize("command", ["g++", "clang++"])
def test_clients_in_cpp_have_the_bits_of_a_session(
    command: str, repo: Path, tmp_path: Path
) -> None:
    program = compiled_cpp(command, repo / "tests" / "kernels" / "cpp_clients.cpp", tmp_path)
    model, states = step_model(WORDS), {"h": "hN", "c": "cN"}
    compile_model(model, tmp_path / "m.onernn", states=states, streams=True)
    done = run_program(program, tmp_path / "m.onernn")
    refused, numbers, *errors = done.stdout.splitlines()
    session = Session(model, backend="kernels")
    start = dict.fromkeys(states, np.zeros((1, 1, 1, 8), np.float32))
    first = session.run({"x": np.array([1]), **start})
    states_of_one = {before: first[after] for before, after in states.items()}
    runs = (session.run({"x": np.array([2]), **start}), first)
    wanted = [*runs, session.run({"x": np.array([4]), **states_of_one})]
    got = np.array(numbers.split(), np.float32).reshape(3, 3)
    assert refused == "-1" and got.tobytes() == np.concatenate([w["y"] for w in wanted]).tobytes()
    assert errors == ["expected 1 inputs, got 2", "closed"]
