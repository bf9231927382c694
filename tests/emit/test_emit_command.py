"""onernn emit, as a user types it."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from support.command_line import failed, onernn
from support.compiling import compile_program
from support.graphs import new_node
from support.interpreters import run_program, run_python

from onernn import Graph, UnsupportedError, load
from onernn.engine.emit import write_cpp
from onernn.ir.graph import Value


def emit(*arguments: str | Path) -> str:
    done = onernn("emit", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(["--static", "N=1"], id="static"),
        pytest.param(
            ["--embed", "--weights", "f16", "--threads", "64"],
            id="embedded",
            marks=pytest.mark.long,
        ),
    ],
)
def test_the_example_compiles_without_a_warning_and_runs(
    options: list[str], repo: Path, tmp_path: Path
) -> None:
    written = emit(repo / "examples" / "segmenter", "-o", tmp_path, *options).split()
    names = {str(Path(file).relative_to(tmp_path)) for file in written}
    weights = set() if "--embed" in options else {"segmenter.weights"}
    kernels = {name for name in names if name.startswith("onernn/")}
    assert {"onernn/gru.hpp", "onernn/products.hpp"} <= kernels
    assert {"onernn/lstm.hpp", "onernn/rnn.hpp"}.isdisjoint(kernels)  # nobody needs them
    assert names - kernels == {"segmenter.hpp", "main.cpp", "CMakeLists.txt", *weights}
    compile_program(tmp_path / "main.cpp", tmp_path / "main", ("-O2",), tmp_path)
    ran = run_program("./main", cwd=tmp_path)
    assert re.search(r"scale_1_tmp_0\[0\] = [0-3]\n", ran.stdout)
    if weights:
        (tmp_path / "segmenter.weights").write_bytes(b"onernn01 but no weights")
        refused = run_program("./main", cwd=tmp_path, status=1)
        assert "not generated together" in refused.stderr


def test_the_interface_is_a_page_and_tells_no_path_of_this_machine(
    repo: Path, tmp_path: Path
) -> None:
    emit(repo / "examples" / "segmenter", "-o", tmp_path)
    header = (tmp_path / "segmenter.hpp").read_text()
    interface, _, rest = header.partition("// ==== How it is computed. ====")
    assert rest and len(interface.splitlines()) < 120
    conditions = [line for line in header.splitlines() if line.startswith("#if")]
    assert all("FAST_MATH" in line or "__clang__" in line for line in conditions)
    assert "#define" not in header
    assert str(repo) not in header and "model.pdmodel" in header


@pytest.mark.parametrize(
    "options, said",
    [
        (["--static", "Q=1"], "--static Q: expected an open size of the model, one of W, N"),
        (["--weights", "u8"], "--weights u8: expected one of f32, f16, bf16"),
        (["--name", "class"], "--name class: expected a C++ name, such as model_class"),
        (["--input", "letters"], "--input letters: expected NAME=TYPE(SIZES)"),
    ],
)
def test_wrong_options_are_one_message(
    options: list[str], said: str, repo: Path, tmp_path: Path
) -> None:
    model = repo / "examples" / "segmenter"
    assert said in failed(onernn("emit", model, "-o", tmp_path / "no", *options))
    assert not (tmp_path / "no").exists()


def texts(folder: Path) -> dict[str, bytes]:
    files = (file for file in folder.rglob("*") if file.is_file())
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def small() -> Graph:
    value = Value("x", "float32", (4, 3))
    nodes = (new_node("y = MatMul x w"),)
    return Graph("m.onnx", (value,), (Value("y"),), nodes, {"w": np.eye(3, dtype=np.float32)})


@pytest.mark.parametrize(
    "file", ["main.cpp", "CMakeLists.txt", "m.hpp", "m.weights", "onernn/memory.hpp"]
)
def test_what_was_edited_or_is_others_stays_and_nothing_else_is_written(
    file: str, tmp_path: Path
) -> None:
    target = tmp_path / file
    write_cpp(small(), tmp_path)
    for mine in (b"my own\n", b"", target.read_bytes() + b" ", target.read_bytes()[1:]):
        target.write_bytes(mine)
        before = texts(tmp_path)
        with pytest.raises(UnsupportedError, match=f"{file}: .*--force"):
            write_cpp(small(), tmp_path, embed=file != "m.weights", threads=2)
        assert texts(tmp_path) == before
    write_cpp(small(), tmp_path, force=True)
    assert target.read_bytes() != mine


def test_what_it_wrote_itself_it_writes_again(tmp_path: Path) -> None:
    write_cpp(small(), tmp_path)
    first = texts(tmp_path)
    for name, data in first.items():
        if not name.endswith(".weights"):  # as Git on Windows checks files out
            (tmp_path / name).write_bytes(data.replace(b"\n", b"\r\n"))
    write_cpp(small(), tmp_path)
    assert texts(tmp_path) == first
    write_cpp(small(), tmp_path, threads=2)
    assert texts(tmp_path)["m.hpp"] != first["m.hpp"]


@pytest.mark.parametrize("threads", [0, 65])
def test_a_model_uses_1_to_64_threads(threads: int, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"threads: expected 1 to 64, got {threads}"):
        write_cpp(small(), tmp_path, threads=threads)
    assert not texts(tmp_path)
    assert "'--threads'" in failed(onernn("emit", "m.onnx", "-o", tmp_path, "--threads", threads))


def test_a_full_disk_leaves_all_old_files(repo: Path, tmp_path: Path) -> None:
    write_cpp(load(repo / "examples" / "segmenter"), tmp_path)
    before = texts(tmp_path)
    limit = len(before["segmenter.hpp"]) // 2
    command = (
        f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}));"
        "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "from onernn.cli import main; main()"
    )
    arguments = ("emit", str(repo / "examples" / "segmenter"), "-o", str(tmp_path), "--force")
    made = run_python("-c", command, *arguments, "--static", "N=1", status=2)
    assert "segmenter" in made.stderr, made.stderr
    assert texts(tmp_path) == before
